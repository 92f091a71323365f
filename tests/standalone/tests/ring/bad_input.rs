//! Requests that nobody should send: each gets a message and an error, and nothing changes.

use std::fs;
use std::io::{self, Read};

use pvc_standalone_tests::{Answer, Api, Machine, exit, hello_uuid};

#[test]
fn bad_input_is_refused_with_a_message_and_changes_nothing() {
    let machine = Machine::start();
    machine.define_hello("hello");
    let qemu = machine.boot("hello");
    let before = machine.entrusted();
    type Story = fn(&Machine);
    let stories: [(&str, Story); 6] = [
        ("XML", bad_xml),
        ("names", bad_names),
        ("parameters", bad_parameters),
        ("bodies", bad_bodies),
        ("tokens", bad_tokens),
        ("command lines", bad_command_lines),
    ];
    for (what, story) in stories {
        story(&machine);
        assert_eq!(machine.entrusted(), before, "bad {what} changed something");
    }
    assert_eq!(machine.qemu("hello"), qemu);
    machine.volumes_are(&["vms/hello_sda"]);
    let log = machine.log();
    assert!(!log.contains("panicked"), "{log}");
    assert!(!log.contains(&machine.api().token), "the token is in the log");
}

/// XML that is refused, with a word that its message must have.
fn xml_cases(machine: &Machine) -> Vec<(&'static str, String, &'static str)> {
    let good = machine.hello_xml("other");
    let disk = "<disk type='network' device='disk'><source protocol='rbd' \
                name='vms/second'/><target dev='sda' bus='scsi'/></disk>";
    let bombs = "<!DOCTYPE d [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;'>]>";
    let outside = "<!DOCTYPE d [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>";
    let body = good.split_once("-->").expect("it begins with a comment").1;
    vec![
        ("an empty text", String::new(), "xml"),
        ("no XML at all", "name: other\nmemory: 192\n".to_owned(), ""),
        ("half a document", good[..good.len() / 2].to_owned(), ""),
        ("another root", "<network><name>other</name></network>".to_owned(), "domain"),
        ("two disks with one target", good.replace("<serial", &format!("{disk}<serial")), "sda"),
        ("no UUID", good.replace(&format!("<uuid>{}</uuid>", hello_uuid("other")), ""), "uuid"),
        ("a UUID that is none", good.replace(&hello_uuid("other"), "1234"), "uuid"),
        ("no name", good.replace("<name>other</name>", ""), "name"),
        ("no memory", good.replace("<memory unit='MiB'>192</memory>", ""), "memory"),
        ("negative memory", good.replace(">192<", ">-5<"), "memory"),
        ("more memory than there is", good.replace(">192<", ">99999999<"), "memory"),
        ("more vCPUs than there are", good.replace("<vcpu>1<", "<vcpu>4000<"), "vCPU"),
        (
            "a disk without a source",
            good.replace("<source protocol='rbd' name='vms/other_sda'/>", ""),
            "source",
        ),
        (
            "a volume that leaves its pool",
            good.replace("vms/other_sda", "vms/../../etc/passwd"),
            "",
        ),
        ("entities that grow", format!("{bombs}{}", body.replace("<name>other", "<name>&b;")), ""),
        (
            "an entity that reads a file",
            format!("{outside}{}", body.replace("<name>other", "<name>&x;")),
            "",
        ),
        ("a control character", good.replace("<name>other", "<name>oth\u{1}er"), ""),
        ("the UUID of another VM", good.replace(&hello_uuid("other"), &hello_uuid("hello")), ""),
        ("the name of another VM", good.replace("<name>other<", "<name>hello<"), "hello"),
    ]
}

fn bad_xml(machine: &Machine) {
    for (what, xml, word) in xml_cases(machine) {
        let answer = machine.http_define(&xml);
        let message = answer.refused(&[400, 409, 413, 422]);
        assert!(
            message.to_lowercase().contains(&word.to_lowercase()),
            "{what}: `{word}` is not in: {message}"
        );
        assert!(!message.contains("root:"), "{what}: a file of ours was read: {message}");

        let file = machine.dir().join("bad.xml");
        fs::write(&file, &xml).expect("the test's directory can be written");
        let said = machine.pvc(&["vm", "define", &file.to_string_lossy()]).fails(exit::FAILED);
        assert!(said.contains("error:"), "{what}: {said}");
        if word != "hello" {
            let said = machine
                .pvc(&["vm", "modify", "hello", &file.to_string_lossy(), "-y"])
                .fails(exit::FAILED);
            assert!(said.contains("error:"), "{what}: {said}");
        }
    }
    five_megabytes_of_comment(machine);
    let missing = machine.pvc(&["vm", "define", "/no/such/file.xml"]);
    assert!(missing.stderr.contains("/no/such/file.xml"), "{missing}");
    missing.fails(missing.code);
}

/// Either it is refused as too large, or it is kept to the letter: both are honest.
fn five_megabytes_of_comment(machine: &Machine) {
    let comment = format!("<!-- {} -->", "lorem ipsum ".repeat(450_000));
    let xml = machine.hello_xml("other").replace("<devices>", &format!("{comment}<devices>"));
    let answer = machine.http_define(&xml);
    if answer.status == 200 {
        assert!(
            machine.vm("other")["xml"].as_str().is_some_and(|kept| kept.contains("lorem ipsum"))
        );
        assert!(machine.pvc(&["vm", "list"]).ok().contains("other"));
        machine.pvc(&["vm", "undefine", "other", "-y"]).ok();
    } else {
        answer.refused(&[400, 413]);
    }
}

fn bad_names(machine: &Machine) {
    let long = "n".repeat(300);
    let names = [
        "two words",
        " ",
        "../../etc/passwd",
        "a/b",
        "naïve",
        "名前",
        "x\u{202e}y",
        "-dash",
        ".",
        "..",
        "semi;colon",
        long.as_str(),
    ];
    for name in names {
        let xml = machine.hello_xml("other").replace("<name>other<", &format!("<name>{name}<"));
        let refused = machine.http_define(&xml).refused(&[400]);
        assert!(refused.contains("name"), "{name}: {refused}");
        let renamed = machine.api().call("POST", "/vm/hello/rename", &[("new_name", name)], &[]);
        renamed.refused(&[400]);
        machine
            .api()
            .call(
                "POST",
                "/vm/hello/tags",
                &[("action", "add"), ("tag", "a/b"), ("protected", "false")],
                &[],
            )
            .refused(&[400]);
    }
    machine.pvc(&["vm", "rename", "hello", "two words", "-y"]).fails(exit::FAILED);
    machine.pvc(&["vm", "info", "no such VM"]).fails(exit::NOT_FOUND);
    machine.pvc(&["vm", "info", "%2e%2e/%2e%2e"]).fails(exit::NOT_FOUND);
    assert_eq!(machine.api().get("/vm/..%2f..%2fetc%2fpasswd").status, 404);
    assert_eq!(machine.api().get("/vm/%00").status, 404);
}

fn bad_parameters(machine: &Machine) {
    let api = machine.api();
    let good = machine.hello_xml("other");
    let with = |name: &str, value: &str| {
        let mut query = vec![
            ("migration_method", "none"),
            ("migration_max_downtime", "300"),
            ("selector", "none"),
        ];
        query.retain(|(known, _)| *known != name);
        query.push((name, value));
        api.call("POST", "/vm", &query, &[("xml", &good)])
    };
    for (name, value) in [
        ("selector", "fastest"),
        ("migration_method", "teleport"),
        ("migration_max_downtime", "soon"),
        ("migration_max_downtime", "-1"),
        ("migration_max_downtime", "99999999999999999999"),
        ("node", "nowhere"),
    ] {
        let message = with(name, value).refused(&[400]);
        assert!(message.contains(name) || message.contains(value), "{name}={value}: {message}");
    }
    // Required ones that are missing, and values outside of their choices, are named.
    let answer = api.call("POST", "/vm", &[], &[]);
    answer.refused(&[400]);
    assert!(answer.json()["errors"]["xml"].is_string(), "{answer:?}");
    let answer = api.post("/vm/hello/state", &[("state", "dance")]);
    answer.refused(&[400]);
    assert!(answer.json()["errors"]["state"].is_string(), "{answer:?}");
    api.post("/vm/hello/node", &[("action", "explode")]).refused(&[400]);
    api.post("/vm/hello/tags", &[("action", "add"), ("protected", "no")]).refused(&[400]);
    api.post("/vm/hello/meta", &[]).refused(&[400]);
    api.post("/vm/nobody/state", &[("state", "start")]).refused(&[400, 404]);
    api.call("PUT", "/vm/hello", &[], &[]).refused(&[400]);
    api.call("DELETE", "/vm/nobody", &[], &[]).refused(&[400, 404]);
    api.get("/vm?limit=(").refused(&[400]);
    api.get("/vm?state=dancing").refused(&[400]);
    api.get("/vm/hello/console?lines=many").refused(&[400]);
    api.get("/vm/hello/console?lines=-1").refused(&[400]);
    api.get("/vm/hello/console?lines=99999999999999999999999").refused(&[400]);
    api.call("DELETE", "/vm", &[], &[]).refused(&[405]);
    assert_eq!(api.get("/no/such/path").status, 404);

    // Fields that nobody knows are ignored in parameters, as clients rely on, and JSON bodies are
    // no parameters.
    assert_eq!(api.get("/vm?unknown=1&limit=hello").status, 200);
    for body in
        [r#"{"xml": 7, "surprise": {"a": []}}"#, r#"{"xml": "<domain/>"}"#, "[1, 2", "\u{0}\u{1}"]
    {
        let length = body.len();
        let answer = raw(
            api,
            "POST",
            "/vm",
            &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"),
            body.as_bytes(),
        );
        answer.refused(&[400, 415]);
    }
    let binary = [0xff, 0xfe, b'x', b'=', 0x80];
    raw(
        api,
        "POST",
        "/vm",
        "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 5\r\n",
        &binary[..],
    )
    .refused(&[400]);
}

/// Sends one request as it is written here.
fn raw(api: &Api, method: &str, path: &str, headers: &str, body: impl Read) -> Answer {
    let head = format!(
        "{method} /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Api-Key: \
         {}\r\n{headers}\r\n",
        api.token
    );
    api.raw(&head, body)
        .unwrap_or_else(|error| panic!("{method} {path} was not answered: {error}"))
        .0
}

fn bad_bodies(machine: &Machine) {
    let api = machine.api();
    let head = |headers: &str| {
        format!(
            "POST /api/v1/vm HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {}\r\nContent-Type: \
             application/x-www-form-urlencoded\r\n{headers}\r\n\r\n",
            api.token
        )
    };
    let two_gigabytes = 2_u64 << 30;
    let memory = machine.daemon("standalone").resident_kib();

    let header = head(&format!("Content-Length: {two_gigabytes}"));
    let (answer, sent) = api.raw(&header, io::repeat(b'x').take(two_gigabytes)).expect("an answer");
    answer.refused(&[413]);
    assert!(sent < 64 << 20, "{sent} bytes had to be sent before it was refused");

    let (answer, sent) = api
        .raw(&head("Transfer-Encoding: chunked"), Chunks { left: two_gigabytes })
        .expect("an answer");
    answer.refused(&[413]);
    assert!(sent < 64 << 20, "{sent} bytes had to be sent before it was refused");

    let grown = machine.daemon("standalone").resident_kib().saturating_sub(memory);
    assert!(grown < 64 << 10, "the daemon grew by {grown} KiB");
    // A client that promises and does not keep it hurts nobody else.
    let stalled = head("Content-Length: 1000");
    let _open = std::net::TcpStream::connect(("127.0.0.1", api.port)).and_then(|mut stream| {
        io::Write::write_all(&mut stream, stalled.as_bytes())?;
        Ok(stream)
    });
    assert_eq!(api.get("/vm").status, 200);
    let (answer, _) = api.raw("this is no HTTP\r\n\r\n", io::empty()).expect("an answer");
    assert_eq!(answer.status, 400);
}

/// A body in chunks that says nothing about its length.
struct Chunks {
    left: u64,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        let size = 32 << 10;
        let chunk = format!("{size:x}\r\n{}\r\n", "x".repeat(size));
        buffer[..chunk.len()].copy_from_slice(chunk.as_bytes());
        self.left = self.left.saturating_sub(size as u64);
        Ok(chunk.len())
    }
}

fn bad_tokens(machine: &Machine) {
    let api = machine.api();
    let head = |headers: &str| {
        format!("GET /api/v1/vm HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
    };
    let ask = |headers: &str| api.raw(&head(headers), io::empty()).expect("an answer").0;
    ask("").refused(&[401]);
    ask("X-Api-Key: wrong\r\n").refused(&[401]);
    ask("X-Api-Key:\r\n").refused(&[401]);
    ask(&format!("X-Api-Key: {}x\r\n", api.token)).refused(&[401]);
    ask(&format!("X-Api-Key: {}\r\n", &api.token[..api.token.len() - 1])).refused(&[401]);
    ask(&format!("X-Api-Key: {}\r\n", "t".repeat(8000))).refused(&[401, 431]);
    let overlong = ask(&format!("X-Api-Key: {}\r\n", "t".repeat(1 << 20)));
    assert!([400, 401, 431].contains(&overlong.status), "{overlong:?}");
    ask("Cookie: session=forged\r\n").refused(&[401]);
    // Whoever has the right one is let in, whatever others try meanwhile.
    assert_eq!(api.get("/vm").status, 200);

    let port = api.port.to_string();
    machine
        .pvc(&["connection", "add", "wrong", "-a", "127.0.0.1", "-p", &port, "-k", "not-the-token"])
        .ok();
    let refused = machine.pvc(&["-c", "wrong", "vm", "list"]);
    assert_eq!(refused.code, 5, "{refused}");
    refused.fails_with_hint();
    let refused = machine.pvc(&["-c", "wrong", "vm", "stop", "hello", "-y"]);
    assert_eq!(refused.code, 5, "{refused}");
    machine.pvc(&["connection", "remove", "wrong"]).ok();
    machine.pvc(&["-c", "nowhere", "vm", "list"]).fails_with_hint();
}

fn bad_command_lines(machine: &Machine) {
    for args in [
        &["vm", "dance"][..],
        &["vm", "start"],
        &["vm", "list", "--fromat", "json"],
        &["vm", "list", "-f", "xml"],
        &["vm", "stop", "hello", "and", "more"],
        &["no-such-group"],
        &["vm", "log", "hello", "-l", "many"],
    ] {
        machine.pvc(args).fails(exit::USAGE);
    }
    machine.pvc(&["vm", "start", "nobody"]).fails(exit::NOT_FOUND);
    machine.pvc(&["vm", "tag", "add", "nobody", "tag"]).fails(exit::NOT_FOUND);
    // What another release brings says so.
    let later = machine.pvc(&["vm", "snapshot", "create", "hello"]);
    assert_eq!(later.code, 6, "{later}");
    assert!(later.stderr.contains("release"), "{later}");
}
