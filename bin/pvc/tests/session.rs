//! The program as its users meet it: arguments in, text and an exit code out, against a small
//! server that answers with what the API answers.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed"
)]

#[path = "../../../crates/pvc-client/tests/stub/mod.rs"]
mod stub;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use stub::{Received, Reply, Stub, ok, status};

const DOCUMENT: &str = include_str!("../../../docs/api/openapi.json");
const VMS: &str = include_str!("../../../crates/pvc-cli/tests/wire/vms.json");
const NODES: &str = include_str!("../../../crates/pvc-cli/tests/wire/nodes.json");
const FAULTS: &str = include_str!("../../../crates/pvc-cli/tests/wire/faults.json");
const NETWORKS: &str = include_str!("../../../crates/pvc-cli/tests/wire/networks.json");
const POOLS: &str = include_str!("../../../crates/pvc-cli/tests/wire/pools.json");
const TASKS: &str = include_str!("../../../crates/pvc-cli/tests/wire/tasks.json");
const TREE: &str = include_str!("../../../crates/pvc-cli/tests/golden/tree.txt");
const STATUS: &str = include_str!("../../../crates/pvc-cli/tests/wire/status.json");

/// A user with a home of their own and, mostly, one stored connection.
struct User {
    home: tempfile::TempDir,
    environment: Vec<(String, String)>,
}

impl User {
    fn of(stub: &Stub) -> Self {
        let user = Self::without_connection();
        let (host, port) = (stub.address.ip().to_string(), stub.address.port().to_string());
        let added =
            user.run(&["connection", "add", "lab", "-a", &host, "-p", &port, "-k", "secret"]);
        assert_eq!(code(&added), 0, "{added:?}");
        user.with("PVC_CONNECTION", "lab")
    }

    fn without_connection() -> Self {
        Self { home: tempfile::tempdir().unwrap(), environment: Vec::new() }
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pvc"));
        command
            .args(args)
            .env_clear()
            .env("HOME", self.home.path())
            // Whatever this machine runs is not the test's.
            .env("PVC_CONFIG_FILE", "/nonexistent/pvc.conf")
            .env("PATH", std::env::var_os("PATH").unwrap());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs with something on standard input.
    fn answering(&self, input: &str, args: &[&str]) -> Output {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Runs on a terminal, whose output is both streams in one.
    fn on_a_terminal(&self, line: &str) -> String {
        let output = self.terminal(line).stdin(Stdio::null()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// A terminal in which the program runs; what is written to its input is typed there.
    fn terminal(&self, line: &str) -> Command {
        self.typed(&format!("exec {} {line}", env!("CARGO_BIN_EXE_pvc")))
    }

    /// A terminal in which a shell runs a line.
    fn typed(&self, line: &str) -> Command {
        let own = self.command(&[]);
        let environment = own.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let mut command = Command::new("script");
        command.args(["-qefc", line, "/dev/null"]).env_clear().envs(environment);
        command
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn message(text: &str) -> Reply {
    ok(format!(r#"{{"message": "{text}"}}"#))
}

/// A cluster with the two VMs and three nodes of the recorded answers.
fn cluster(request: &Received, _: usize) -> Reply {
    match (request.method.as_str(), request.path()) {
        ("GET", "/api/v1/vm") => ok(VMS),
        ("GET", "/api/v1/vm/web1" | "/api/v1/vm/2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1") => {
            ok(one_vm(0))
        }
        ("GET", "/api/v1/vm/db1") => ok(one_vm(1)),
        ("GET", "/api/v1/node") => ok(NODES),
        ("GET", "/api/v1/status") => ok(STATUS),
        ("GET", "/api/v1/network") => ok(r#"[{"vni": 1001}]"#),
        ("GET", "/api/v1/faults") => ok(r#"[{"id": "NODE_FLUSH", "message": "hv1"}]"#),
        ("GET", "/api/v1/tasks") => ok(r#"{"reserved": {"hv1": [{"id": "0a1b2c3d"}]}}"#),
        ("GET", _) => status(404, r#"{"message": "nothing of that name"}"#),
        _ => message("done"),
    }
}

fn one_vm(index: usize) -> String {
    let vms: Vec<serde_json::Value> = serde_json::from_str(VMS).unwrap();
    format!("[{}]", vms[index])
}

/// The requests that may have changed something.
fn changes(stub: &Stub) -> Vec<String> {
    let changes = |line: &String| !line.starts_with("GET") && !line.ends_with("/check");
    stub.lines().into_iter().filter(changes).collect()
}

#[test]
fn a_list_is_data_on_standard_output_and_a_banner_on_standard_error() {
    let stub = Stub::start(cluster);
    let output = User::of(&stub).run(&["vm", "list"]);
    assert_eq!(code(&output), 0);
    let names: Vec<String> = out(&output)
        .lines()
        .skip(2)
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["db1", "web1"], "sorted by name");
    assert!(!out(&output).contains('\x1b'));
    let banner = format!(
        "Using connection \"lab\" - Host: \"{}\"  Scheme: \"http\"  Prefix: \"/api/v1\"\n\n",
        stub.address
    );
    assert_eq!(err(&output), banner);
    assert_eq!(stub.lines(), ["GET /vm?negate=False"], "without colours nothing more is asked");
}

/// A cluster with something in each of its lists.
fn full_cluster(request: &Received, before: usize) -> Reply {
    match request.path() {
        "/api/v1/faults" => ok(FAULTS),
        "/api/v1/network" => ok(NETWORKS),
        "/api/v1/storage/ceph/pool" => ok(POOLS),
        "/api/v1/storage/ceph/volume" => ok(r#"[{"name": "web1_sda", "pool": "vms", "stats": {}},
            {"name": "db1_sda", "pool": "ssd", "stats": {}}]"#),
        "/api/v1/tasks" => ok(TASKS),
        "/api/v1/vm/web1/tags" => {
            ok(r#"{"name": "web1", "tags": [{"name": "prod", "type": "user", "protected": false},
                {"name": "backup", "type": "user", "protected": true}]}"#)
        }
        _ => cluster(request, before),
    }
}

/// Every list, by the column to sort it by.
const LISTS: [(&str, &str); 15] = [
    ("cluster fault list", "id"),
    ("cluster task", "id"),
    ("connection detail", "name"),
    ("connection list", "name"),
    ("network list", "vni"),
    ("node list", "name"),
    ("storage pool list", "name"),
    ("storage volume list", "name"),
    ("task", "id"),
    ("vm list", "name"),
    ("vm memory get web1", "ram"),
    ("vm network get web1", "network"),
    ("vm tag get web1", "name"),
    ("vm vcpu get web1", "vcpus"),
    ("vm volume get web1", "volume"),
];

#[test]
fn every_list_is_csv_with_the_columns_and_in_the_order_that_were_asked_for() {
    let stub = Stub::start(full_cluster);
    let user = User::of(&stub);
    let rows = |line: &str, options: &[&str]| {
        let words: Vec<&str> = ["-q"].into_iter().chain(line.split(' ')).collect();
        let output = user.run(&[&words, options].concat());
        assert_eq!(code(&output), 0, "{line} {options:?}: {output:?}");
        out(&output).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for (line, column) in LISTS {
        let whole = rows(line, &["-f", "csv"]);
        assert!(whole.len() > 1, "{line}: {whole:?}");
        let headings: Vec<&str> = whole[0].split(',').collect();
        assert!(headings.contains(&column), "{line}: {whole:?}");
        assert_eq!(rows(line, &["-f", "csv", "--no-headers"]), whole[1..], "{line}");

        let last = headings[headings.len() - 1];
        let two = if last == column { last.to_owned() } else { format!("{last},{column}") };
        let picked = rows(line, &["-f", "csv", "--columns", &two]);
        assert_eq!((&picked[0], picked.len()), (&two, whole.len()), "{line}");

        let one = ["-f", "csv", "--no-headers", "--columns", column, "--sort"];
        let up = rows(line, &[&one[..], &[column]].concat());
        let mut down = rows(line, &[&one[..], &[&format!("-{column}")]].concat());
        down.reverse();
        let mut names = up.clone();
        names.dedup();
        // Rows that are alike, or belong together, keep their order both ways.
        if names.len() == up.len() && !up.iter().any(String::is_empty) {
            assert_eq!(up, down, "{line}");
        }

        let table = rows(line, &["--columns", column]);
        let bare = rows(line, &["--columns", column, "--no-headers"]);
        assert!(table.ends_with(&bare) && table.len() > bare.len(), "{line}: {table:?} {bare:?}");
        let wrong: Vec<&str> = line.split(' ').chain(["--columns", "colour"]).collect();
        assert_eq!(code(&user.run(&wrong)), 2, "{line}");
    }
}

#[test]
fn no_list_is_without_the_options_that_all_lists_have() {
    let path = |line: &str| {
        let words = line.split(' ').skip(1).take_while(|word| word.starts_with(char::is_lowercase));
        words.collect::<Vec<_>>().join(" ")
    };
    let have: Vec<String> =
        TREE.lines().filter(|line| line.contains("--columns=")).map(path).collect();
    let known = LISTS.map(|(line, _)| line.trim_end_matches(" web1").to_owned());
    assert_eq!(have, known, "the test above asks all of them");
    let is_list = |path: &String| path.ends_with(" list") || path.ends_with(" get");
    let user = User::without_connection();
    for lacking in TREE.lines().map(path).filter(is_list).filter(|path| !have.contains(path)) {
        let output = user.run(&lacking.split(' ').collect::<Vec<_>>());
        assert_eq!(code(&output), 6, "`{lacking}` is not of a later release: {output:?}");
    }
}

#[test]
fn a_network_that_does_not_exist_leads_to_the_list_of_those_that_do() {
    let stub = Stub::start(full_cluster);
    let user = User::of(&stub);
    let output = user.run(&["-q", "vm", "network", "add", "web1", "4242"]);
    assert_eq!(code(&output), 3);
    assert_eq!(
        err(&output),
        "error: no network `4242` in the cluster\nhint: `pvc network list` shows the networks; \
         `upstream`, `cluster` and `storage` always exist\n"
    );
    assert_eq!(changes(&stub), Vec::<String>::new());
    let listed = user.run(&["-q", "network", "list", "-f", "raw"]);
    assert_eq!((code(&listed), out(&listed).as_str()), (0, "100\n1001\n"));
}

#[test]
fn quiet_hides_the_banner_and_silent_everything() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let quiet = user.run(&["-q", "vm", "list", "-f", "raw"]);
    assert_eq!((out(&quiet).as_str(), err(&quiet).as_str()), ("db1\nweb1\n", ""));
    let silent = user.run(&["-s", "vm", "info", "nobody"]);
    assert_eq!((code(&silent), out(&silent), err(&silent)), (3, String::new(), String::new()));
}

#[test]
fn json_is_what_the_api_answered_on_one_line() {
    let stub = Stub::start(|_, _| ok(r#"{"maintenance":"false","new":[1,{"ü":null}]}"#));
    let user = User::of(&stub);
    let line = user.run(&["-q", "cluster", "status", "--format", "json"]);
    assert_eq!(out(&line), "{\"maintenance\": \"false\", \"new\": [1, {\"\\u00fc\": null}]}\n");
    let pretty = user.run(&["-q", "status", "-f", "json-pretty"]);
    assert!(out(&pretty).starts_with("{\n  \"maintenance\": \"false\",\n  \"new\": [\n    1,\n"));
}

#[test]
fn one_vm_is_an_object_and_not_a_list_of_one() {
    let stub = Stub::start(cluster);
    let output = User::of(&stub).run(&["-q", "vm", "info", "web1", "-f", "json"]);
    let vm: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(vm["name"], "web1");
}

#[test]
fn every_kind_of_outcome_has_its_exit_code() {
    let replies = [(400, 1), (401, 5), (404, 3), (500, 7)];
    for (reply, exit) in replies {
        let stub = Stub::start(move |_, _| status(reply, r#"{"message": "no, because"}"#));
        let output = User::of(&stub).run(&["-q", "vm", "start", "web1"]);
        assert_eq!(code(&output), exit);
        assert!(
            err(&output).starts_with("error: ") && err(&output).contains("no, because"),
            "{output:?}"
        );
        assert_eq!(out(&output), "");
    }
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    assert_eq!(code(&user.run(&["vm", "dance"])), 2);
    assert_eq!(code(&user.run(&["vm", "start"])), 2);
    let later = user.run(&["-q", "storage", "volume", "resize", "vms", "a", "2G"]);
    assert_eq!(code(&later), 6);
    assert!(
        err(&later).contains("`pvc storage volume resize` is not part of this release"),
        "{later:?}"
    );
    assert!(
        err(&later).contains("`pvcd volume list | create | import | record | remove`"),
        "{later:?}"
    );
    let later = user.run(&["-q", "storage", "volume", "add"]);
    assert_eq!(code(&later), 6, "its arguments come second");
    assert_eq!(code(&user.run(&["-c", "nowhere", "vm", "list"])), 3);
    let user = User::of(&stub).with("PVC_COMPAT_EXIT", "1");
    assert_eq!(code(&user.run(&["vm", "info", "nobody"])), 1);
}

#[test]
fn a_server_that_is_not_there_is_code_four_with_a_hint() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let user = User::without_connection().with("PVC_CONNECTION", "gone");
    user.run(&["connection", "add", "gone", "-a", "127.0.0.1", "-p", &free.port().to_string()]);
    let output = user.run(&["-q", "status"]);
    assert_eq!(code(&output), 4);
    assert!(
        err(&output).contains("cannot connect to") && err(&output).contains("hint: "),
        "{output:?}"
    );
}

/// A user of a server that takes every connection and says nothing.
fn of_a_silent_server() -> User {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    let user = User::without_connection().with("PVC_CONNECTION", "mute");
    user.run(&["connection", "add", "mute", "-a", "127.0.0.1", "-p", &port]);
    user
}

#[test]
fn a_login_is_not_held_up_by_a_server_that_does_not_answer() {
    let user = of_a_silent_server();
    let begun = Instant::now();
    let output = user.run(&["-q", "cluster", "status", "-f", "short"]);
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    assert_eq!((code(&output), out(&output)), (4, String::new()));
    assert!(
        err(&output).contains("accepts connections, but has not answered within 10 s"),
        "{output:?}"
    );
}

#[test]
fn a_limit_for_the_answer_can_be_given() {
    let user = of_a_silent_server();
    let begun = Instant::now();
    for line in [&["--timeout", "1s", "vm", "list"][..], &["--timeout=1", "node", "info", "hv1"]] {
        let output = user.run(line);
        assert_eq!(code(&output), 4);
        assert!(err(&output).contains("has not answered within 1 s"), "{output:?}");
        assert!(err(&output).contains("hint: is that the port of the API? `pvc --timeout 1m …`"));
    }
    let user = user.with("PVC_TIMEOUT", "1s");
    let output = user.run(&["-q", "vm", "start", "web1"]);
    assert_eq!(code(&output), 4);
    assert!(err(&output).contains("the request may have been carried out"), "{output:?}");
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    assert_eq!(code(&user.with("PVC_TIMEOUT", "soon").run(&["status"])), 2);
}

#[test]
fn a_web_page_and_a_key_that_cannot_be_sent_are_named() {
    let stub = Stub::start(|_, _| status(404, "<html><head><title>nginx</title></head></html>"));
    let user = User::of(&stub);
    let output = user.run(&["-q", "vm", "list"]);
    assert_eq!(code(&output), 7);
    assert!(
        err(&output)
            .starts_with("error: the server's answer is a web page (`nginx`) with status 404")
    );
    let output = user.with("PVC_API_KEY", "line\nbreak").run(&["-q", "vm", "list"]);
    assert_eq!(code(&output), 5);
    assert!(
        err(&output).contains("the API key holds a character that cannot be sent"),
        "{output:?}"
    );
}

#[test]
fn a_node_that_does_not_exist_is_code_three_wherever_it_is_named() {
    let stub = Stub::start(|request, before| match (request.method.as_str(), request.path()) {
        ("GET", "/api/v1/vm") if request.target.contains("node=") => {
            status(400, r#"{"message": "node: there is no node `hv9`"}"#)
        }
        ("POST", _) => {
            status(400, r#"{"message": "there is no node `hv9`", "hint": "`pvc node list`"}"#)
        }
        ("GET", "/api/v1/node/hv1") => ok(NODES),
        _ => cluster(request, before),
    });
    let user = User::of(&stub);
    let file = user.home.path().join("web1.xml");
    std::fs::write(&file, out(&user.run(&["-q", "vm", "dump", "web1"]))).unwrap();
    let path = file.to_str().unwrap();
    for line in [
        &["vm", "list", "-t", "hv9"][..],
        &["vm", "define", path, "-t", "hv9"],
        &["vm", "define", path, "-l", "hv1,hv9"],
        &["vm", "meta", "web1", "-l", "hv9"],
    ] {
        let output = user.run(&[&["-q"], line].concat());
        assert_eq!(code(&output), 3, "{line:?}: {output:?}");
        assert!(err(&output).contains("there is no node `hv9`"), "{output:?}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_a_mistake_in_the_command_line() {
    let user = User::without_connection();
    for line in [
        &["vm", "define", "/nonexistent"][..],
        &["cluster", "restore", "-y", "-f", "/nonexistent"],
        &["vm", "meta", "web1", "--max-downtime", "abc"],
    ] {
        let output = user.run(line);
        assert_eq!(code(&output), 2, "{line:?}: {output:?}");
    }
    let output = user.run(&["vm", "meta", "web1", "--max-downtime", "abc"]);
    assert!(
        err(&output).contains("a whole number of milliseconds is needed, as in 300"),
        "{output:?}"
    );
}

#[test]
fn vcpus_are_texts_in_json() {
    let stub = Stub::start(cluster);
    let output = User::of(&stub).run(&["-q", "vm", "vcpu", "get", "web1", "-f", "json"]);
    let value: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    let expected = serde_json::json!({"name": "web1", "vcpus": "2", "sockets": "1", "cores": "2", "threads": "1"});
    assert_eq!(value, expected);
}

#[test]
fn a_group_without_a_command_shows_its_help_and_is_no_mistake() {
    let output = User::without_connection().run(&["vm"]);
    assert_eq!((code(&output), err(&output).as_str()), (0, ""));
    assert!(out(&output).contains("Usage: pvc vm <COMMAND>"));
}

#[test]
fn help_says_what_a_later_release_brings() {
    let user = User::without_connection();
    let top = out(&user.run(&["--help"]));
    assert!(top.contains("  provisioner  Make VMs from templates [arrives with release "), "{top}");
    assert!(top.contains("  storage      Manage the storage\n"), "a part of it is here: {top}");
    let storage = out(&user.run(&["storage", "--help"]));
    assert!(storage.contains("Manage OSDs [arrives with release "), "{storage}");
    let vm = out(&user.run(&["vm", "--help"]));
    assert!(vm.contains("  snapshot     Manage snapshots of a VM [arrives with release "), "{vm}");
    assert!(!vm.contains("List the VMs [arrives"), "{vm}");
    let group = out(&user.run(&["storage", "volume"]));
    assert!(group.contains("Add a volume [arrives with release "), "{group}");
    let group = out(&user.run(&["storage", "osd"]));
    assert!(group.contains("Not part of this release: it arrives with release "), "{group}");
    assert!(group.contains("`pvcd volume list | create | import | record | remove`"), "{group}");
}

#[test]
fn a_global_option_behind_the_group_is_shown_where_it_belongs() {
    let output = User::without_connection().run(&["vm", "list", "-q"]);
    assert_eq!((code(&output), out(&output)), (2, String::new()));
    assert_eq!(
        err(&output),
        "error: `-q` is a global option, and those stand before the group\nhint: `pvc -q vm list`\n"
    );
}

#[test]
fn an_output_that_cannot_be_written_is_one_clear_error() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    for line in [
        &["-q", "vm", "list"][..],
        &["--help"],
        &["completion", "bash"],
        &["-q", "vm", "dump", "web1"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = user.command(line).stdout(full).output().unwrap();
        assert_eq!(code(&output), 1, "{line:?}");
        assert_eq!(
            err(&output),
            "error: cannot write to standard output: no space left on device\n"
        );
    }
}

#[test]
fn colours_are_for_terminals_and_for_who_asks_for_them() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    assert!(!out(&user.run(&["vm", "list"])).contains('\x1b'));
    assert!(out(&user.run(&["--colour", "vm", "list"])).contains("\x1b[92mstart\x1b[0m"));
    assert!(
        out(&user.run(&["--color", "vm", "list"])).contains("\x1b[91m9999\x1b[0m"),
        "an unknown network is red"
    );
    assert!(user.on_a_terminal("vm list").contains("\x1b[92mstart"));
    let user = user.with("NO_COLOR", "1");
    assert!(!user.on_a_terminal("vm list").contains("\x1b[92m"));
    assert!(user.on_a_terminal("--colour vm list").contains("\x1b[92m"));
}

#[test]
fn a_reader_that_leaves_early_ends_the_program_quietly() {
    let many = format!("[{}]", vec![one_vm(0).trim_matches(['[', ']']).to_owned(); 2000].join(","));
    let stub = Stub::start(move |_, _| ok(many.clone()));
    let user = User::of(&stub);
    let mut child = user.command(&["-q", "vm", "list", "-f", "json"]).spawn().unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((code(&output), err(&output)), (0, String::new()));
}

#[test]
fn nothing_is_removed_without_somebody_to_say_yes() {
    let stub = Stub::start(|request, before| match request.line().as_str() {
        "GET /vm?negate=False" => ok(one_vm(0)),
        _ => cluster(request, before),
    });
    let user = User::of(&stub);
    let nobody = user.run(&["-q", "vm", "remove", "web1"]);
    assert_eq!(code(&nobody), 1);
    assert!(err(&nobody).contains("hint: without a terminal say `--yes`"), "{nobody:?}");
    let no = user.answering("n\n", &["-q", "vm", "remove", "web1"]);
    assert_eq!((code(&no), out(&no).as_str()), (0, "Aborted.\n"));
    assert_eq!(changes(&stub), [""; 0], "nothing was asked of the server");
    let yes = user.answering("y\n", &["-q", "vm", "remove", "web1"]);
    assert_eq!((code(&yes), out(&yes).trim()), (0, "done"));
    assert_eq!(code(&user.run(&["-q", "vm", "remove", "web1", "-y"])), 0);
    assert_eq!(code(&user.run(&["-q", "-u", "vm", "undefine", "web1"])), 0);
    let removed = "DELETE /vm/web1?delete_disks=True";
    assert_eq!(changes(&stub), [removed, removed, "DELETE /vm/web1?delete_disks=False"]);
}

#[test]
fn networks_pools_and_volumes_are_listed() {
    let networks = include_str!("../../../crates/pvc-cli/tests/wire/networks.json");
    let pools = include_str!("../../../crates/pvc-cli/tests/wire/pools.json");
    let stub = Stub::start(move |request, _| match request.path() {
        "/api/v1/network" if request.target.contains("limit=none") => ok("[]"),
        "/api/v1/network" | "/api/v1/network/1001" => ok(networks),
        "/api/v1/network/test-net" => ok("[{\"vni\": 1001, \"type\": \"managed\"}]"),
        "/api/v1/network/1001/lease" => {
            ok("[{\"hostname\": \"web1\", \"ip4_address\": \"10.0.0.5\"}]")
        }
        "/api/v1/network/1001/acl" => status(501, "{\"message\": \"not yet\"}"),
        "/api/v1/storage/ceph/pool" => ok(pools),
        "/api/v1/storage/ceph/volume" => {
            ok(r#"[{"name": "b", "pool": "vms"}, {"name": "a", "pool": "vms"}]"#)
        }
        _ => status(404, r#"{"message": "nothing of that name"}"#),
    });
    let user = User::of(&stub);
    let run = |line: &[&str]| user.run(&[&["-q"], line].concat());
    assert_eq!(out(&run(&["network", "list", "-f", "raw"])), "100\n1001\n");
    assert!(out(&run(&["network", "list"])).contains("1001  test-net"));
    assert_eq!(code(&run(&["network", "list", "none"])), 3);
    let info = run(&["network", "info", "test-net"]);
    assert!(
        out(&info).contains("VNI:                1001\n") && out(&info).contains("web1"),
        "{info:?}"
    );
    assert_eq!(code(&run(&["network", "info", "nothing"])), 3);
    let pools = out(&run(&["storage", "pool", "list", "-f", "raw"]));
    assert_eq!(pools, "vms\nnew\n", "they stay in the order of the API, which is that of Ceph");
    assert_eq!(
        out(&run(&["storage", "volume", "list", "-p", "vms", "-f", "raw"])),
        "vms/a\nvms/b\n"
    );
    assert!(
        stub.lines().contains(&"GET /storage/ceph/volume?pool=vms".to_owned()),
        "{:?}",
        stub.lines()
    );
}

#[test]
fn help_and_version_are_found_by_whoever_looks_for_them() {
    let user = User::without_connection();
    let help = |line: &[&str]| out(&user.run(line));
    assert_eq!(help(&["help"]), help(&["--help"]));
    assert_eq!(help(&["help", "vm", "list"]), help(&["vm", "list", "--help"]));
    assert_eq!(help(&["version"]), help(&["--version"]));
    let ls = user.run(&["vm", "ls"]);
    assert_eq!((code(&ls), out(&ls)), (2, String::new()));
    assert_eq!(
        err(&ls),
        "error: there is no command `pvc vm ls`\nhint: `pvc vm list`: List the VMs\n"
    );
}

#[test]
fn a_task_can_be_cancelled() {
    let stub = Stub::start(|_, _| message("task `0a1b2c3d` was asked to stop"));
    let output = User::of(&stub).run(&["-q", "task", "cancel", "0a1b2c3d"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "task `0a1b2c3d` was asked to stop\n"));
    assert_eq!(stub.lines(), ["DELETE /tasks/0a1b2c3d"]);
}

#[test]
fn a_change_can_be_answered_in_json() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let output = user.run(&["-q", "vm", "start", "web1", "-f", "json"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "{\"message\": \"done\"}\n"));
    let output = user.answering("y\n", &["-q", "vm", "stop", "web1", "--format", "json"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "{\"message\": \"done\"}\n"));
    let output = user.run(&["-q", "vm", "migrate", "web1", "-f", "--format", "json"]);
    assert_eq!(out(&output), "{\"message\": \"done\"}\n", "there `-f` is `--force`: {output:?}");
    let user = User::of(&Stub::start(task("SUCCESS")));
    let output = user.run(&["-q", "vm", "flush-locks", "web1", "-f", "json"]);
    let end: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(
        (end["state"].as_str(), end["status"].as_str()),
        (Some("SUCCESS"), Some("locks flushed"))
    );
}

#[test]
fn events_are_printed_as_they_come_and_gone_on_with_after_a_break() {
    let stub = Stub::start(|request, before| {
        let event = |id: &str| {
            format!(
                "id: a-{before}\nevent: vm\ndata: \
                 {{\"revision\":{before},\"kind\":\"vm\",\"id\":\"{id}\",\"change\":\"changed\"}}\n\n"
            )
        };
        match (before, request.target.as_str()) {
            (0, "/api/v1/events") => ok(format!(": hello\n\n{}", event("one"))),
            (1, "/api/v1/events?cursor=a-0") => ok(event("two")),
            _ => status(401, r#"{"message": "enough"}"#),
        }
    });
    let output = User::of(&stub).run(&["-q", "events"]);
    assert_eq!(out(&output), "vm       changed  one\nvm       changed  two\n", "{output:?}");
    assert_eq!(code(&output), 5, "what does not pass ends it");
}

#[test]
fn a_list_is_printed_as_it_was_asked_for() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let run = |line: &[&str]| user.run(&[&["-q", "vm", "list"], line].concat());
    let csv = out(&run(&["--columns", "ram,name", "--sort", "-name", "-f", "csv"]));
    assert!(csv.starts_with("ram,name\n2048,web1\n"), "{csv}");
    let bare = out(&run(&["--columns=name", "--no-headers"]));
    assert_eq!(bare, "db1\nweb1\n");
    let yaml = out(&run(&["--columns", "name,state", "-f", "yaml"]));
    assert_eq!(yaml, "- name: \"db1\"\n  state: \"fail\"\n- name: \"web1\"\n  state: \"start\"\n");
    let wrong = run(&["--columns", "colour"]);
    assert_eq!(code(&wrong), 2);
    assert!(err(&wrong).contains("there are name, state, tags"), "{wrong:?}");
    assert_eq!(code(&run(&["--sort", "ram", "-f", "json"])), 2);
    assert_eq!(code(&user.run(&["-q", "task", "abc", "-f", "csv"])), 2, "one task is no list");
    let wide = out(&run(&[]));
    assert!(
        wide.contains("Snapshots") && wide.contains("Migrated"),
        "a pipe has room for all: {wide}"
    );
}

#[test]
fn on_a_narrow_terminal_columns_leave_and_no_line_is_broken() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let line = format!("stty cols 60 rows 24; exec {} vm list", env!("CARGO_BIN_EXE_pvc"));
    let output = user.typed(&line).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let table: Vec<&str> =
        text.lines().filter(|line| line.contains("web1") || line.contains("Name")).collect();
    assert!(table.len() >= 2 && text.contains("Current"), "{text}");
    assert!(text.contains("(no room for: ") && text.contains("snapshots"), "{text}");
    let bare =
        |line: &str| line.replace("\x1b[1m", "").replace("\x1b[92m", "").replace("\x1b[0m", "");
    assert!(table.iter().all(|line| bare(line).trim_end().chars().count() <= 60), "{text}");
}

#[test]
fn a_piped_no_is_a_no() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    for input in ["n\n", "no\n", "\n", "perhaps\n", "n"] {
        let no = user.answering(input, &["-q", "vm", "stop", "web1"]);
        assert_eq!((code(&no), out(&no).as_str()), (0, "Aborted.\n"), "{input:?}");
        assert_eq!(err(&no), "Forcibly stop VM \"web1\" [y/N]? \n", "{input:?}");
    }
    let silent = user.answering("n\n", &["-s", "vm", "stop", "web1"]);
    assert_eq!((code(&silent), out(&silent), err(&silent)), (0, String::new(), String::new()));
    let nobody = user.answering("", &["-s", "vm", "stop", "web1"]);
    assert_eq!((code(&nobody), out(&nobody), err(&nobody)), (1, String::new(), String::new()));
    assert_eq!(changes(&stub), [""; 0]);
}

#[test]
fn what_the_cluster_would_refuse_is_refused_before_anybody_is_asked() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    for line in [
        &["vm", "undefine", "nobody"][..],
        &["vm", "remove", "nobody"],
        &["vm", "rename", "nobody", "somebody"],
        &["vm", "stop", "nobody"],
        &["vm", "shutdown", "nobody"],
        &["vm", "restart", "nobody"],
        &["vm", "disable", "nobody"],
    ] {
        let output = user.answering("y\n", &[&["-q"], line].concat());
        assert_eq!(code(&output), 3, "{line:?}: {output:?}");
        assert_eq!(err(&output), "error: nothing of that name\n", "{line:?}");
    }
    for (line, words) in [
        (&["vm", "restart", "db1"][..], "VM `db1` cannot be restarted: the VM is in state `fail`"),
        (&["vm", "shutdown", "db1"], "VM `db1` cannot be shut down: the VM is in state `fail`"),
        (&["vm", "rename", "web1", "web2"], "VM `web1` is in state `start`; it can be renamed in"),
        (&["vm", "rename", "web1", "web 2"], "VM name `web 2`"),
        (&["vm", "remove", "web1"], "volume `vms/web1_sda` of VM `web1` is used by VM `db1`, too"),
    ] {
        let output = user.answering("y\n", &[&["-q"], line].concat());
        assert_eq!(code(&output), 1, "{line:?}: {output:?}");
        assert!(
            err(&output).contains(words) && !err(&output).contains("[y/N]"),
            "{line:?}: {output:?}"
        );
    }
    assert_eq!(changes(&stub), [""; 0]);
}

/// What only the server knows is asked of it, with what it says of itself: one that does not know
/// `dry_run` of an operation would carry it out.
#[test]
fn a_server_that_can_tell_is_asked_whether_it_would_refuse() {
    let told = |document: &'static str| {
        Stub::start(move |request, _| {
            match (request.path(), request.line().contains("dry_run=True")) {
                ("/api/v1/openapi.json", _) => ok(document),
                (_, true) => {
                    status(400, r#"{"message": "VM `web1` may run on node `hv2`", "hint": "wait"}"#)
                }
                ("/api/v1/vm/web1/removal", _) if document == DOCUMENT => {
                    status(400, r#"{"message": "VM `web1` may run on node `hv2`", "hint": "wait"}"#)
                }
                ("/api/v1/vm/web1/removal", _) => status(404, "{}"),
                (path, false) if request.method == "GET" && path.starts_with("/api/v1/vm/") => {
                    ok(one_vm(0))
                }
                (_, false) => message("done"),
            }
        })
    };
    let lines: [&[&str]; 7] = [
        &["vm", "undefine", "web1"],
        &["vm", "remove", "web1"],
        &["vm", "rename", "web1", "web2"],
        &["vm", "stop", "web1"],
        &["vm", "shutdown", "web1"],
        &["vm", "restart", "web1"],
        &["vm", "disable", "web1", "--force"],
    ];
    let stub = told(DOCUMENT);
    let user = User::of(&stub);
    for line in lines {
        for more in [&[][..], &["--dry-run"]] {
            let output = user.answering("y\n", &[&["-q"], line, more].concat());
            assert_eq!(code(&output), 1, "{line:?}: {output:?}");
            assert_eq!(
                err(&output),
                "error: VM `web1` may run on node `hv2`\nhint: wait\n",
                "{line:?}"
            );
        }
    }
    let asked = changes(&stub);
    assert!(
        asked.len() == 10 && asked.iter().all(|line| line.contains("dry_run=True")),
        "{asked:?}"
    );
    assert!(asked[8].starts_with("POST /vm/web1/state?state=disable&force=True"), "{asked:?}");

    // One that knows it of moves alone.
    let stub = told(
        r#"{"paths": {"/api/v1/vm/{vm}/node": {"post": {"parameters": [{"name": "dry_run"}]}}}}"#,
    );
    let user = User::of(&stub);
    for line in lines {
        let output = user.answering("", &[&["-q"], line, &["--dry-run"]].concat());
        assert_eq!(code(&output), 6, "{line:?}: {output:?}");
    }
    let output = user.answering("n\n", &["-q", "vm", "stop", "web1"]);
    assert!(err(&output).contains("[y/N]"), "{output:?}");
    assert_eq!(changes(&stub), [""; 0], "it was not asked");
}

#[test]
fn a_dry_run_says_what_would_be_done() {
    let stub = Stub::start(|request, _| match request.path() {
        "/api/v1/openapi.json" => ok(DOCUMENT),
        _ => message("VM `web1` would be started"),
    });
    let user = User::of(&stub);
    let output = user.run(&["-q", "vm", "start", "web1", "--dry-run", "--wait"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "VM `web1` would be started\n"));
    assert_eq!(
        changes(&stub),
        ["POST /vm/web1/state?state=start&force=False&wait=False&dry_run=True"]
    );
}

#[test]
fn of_an_option_that_is_repeated_the_last_one_counts() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let output =
        user.run(&["-q", "-q", "-c", "gone", "-c", "lab", "vm", "list", "-f", "json", "-f", "raw"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "db1\nweb1\n"), "{output:?}");
}

#[test]
fn waiting_for_a_start_is_asked_of_the_server_and_a_failed_guest_fails_the_command() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let fine = user.run(&["-q", "vm", "start", "web1", "--wait"]);
    assert_eq!((code(&fine), out(&fine).as_str()), (0, "done\n"));
    assert_eq!(changes(&stub), ["POST /vm/web1/state?state=start&force=False&wait=True"]);
    let failed = user.run(&["-q", "vm", "start", "db1", "-w"]);
    assert_eq!(code(&failed), 1);
    assert!(err(&failed).contains("VM `db1` failed: no space"), "{failed:?}");
    let plain = user.run(&["-q", "vm", "start", "db1"]);
    assert_eq!(code(&plain), 0, "without waiting only the request counts");
}

#[test]
fn waiting_can_be_limited() {
    let stub = Stub::start(|_, _| {
        std::thread::sleep(Duration::from_secs(20));
        message("late")
    });
    let started = Instant::now();
    let output = User::of(&stub).run(&["-q", "vm", "shutdown", "web1", "-y", "--wait=1s"]);
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("VM `web1` has not got there within 1 s"), "{output:?}");
}

/// A task that has two steps before it ends.
fn task(end: &'static str) -> impl Fn(&Received, usize) -> Reply + Send + Sync {
    let looks = std::sync::atomic::AtomicUsize::new(0);
    move |request, _| {
        if request.method == "POST" {
            return status(
                202,
                r#"{"task_id": "0a1b2c3d", "task_name": "vm.flush_locks", "run_on": "hv1"}"#,
            );
        }
        match looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => ok(r#"{"state": "PENDING", "current": 0, "total": 1, "status": "waiting"}"#),
            1 => ok(r#"{"state": "RUNNING", "current": 1, "total": 2, "status": "looking"}"#),
            2 => status(503, "{}"),
            _ => ok(format!(
                r#"{{"state": "{end}", "current": 2, "total": 2, "status": "locks flushed"}}"#
            )),
        }
    }
}

#[test]
fn a_task_is_followed_without_a_terminal_line_by_line() {
    let output = User::of(&Stub::start(task("SUCCESS"))).run(&["vm", "flush-locks", "web1"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert_eq!(
        out(&output),
        "Task ID: 0a1b2c3d (vm.flush_locks) assigned to node hv1\n\nSUCCESS: locks flushed\n"
    );
    assert!(err(&output).contains("[1/2] looking\n") && !err(&output).contains('\r'), "{output:?}");
}

#[test]
fn a_failed_task_fails_the_command_unless_old_codes_are_wanted() {
    let output = User::of(&Stub::start(task("FAILURE"))).run(&["-q", "vm", "flush-locks", "web1"]);
    assert_eq!(code(&output), 1);
    assert!(
        err(&output).contains("task `0a1b2c3d` ended with FAILURE: locks flushed"),
        "{output:?}"
    );
    let user = User::of(&Stub::start(task("FAILURE"))).with("PVC_COMPAT_EXIT", "yes");
    assert_eq!(code(&user.run(&["-q", "vm", "flush-locks", "web1"])), 0);
}

#[test]
fn interrupting_the_waiting_does_not_interrupt_the_task_and_says_so() {
    let stub = Stub::start(|request, _| match request.method.as_str() {
        "POST" => status(
            202,
            r#"{"task_id": "0a1b2c3d", "task_name": "vm.flush_locks", "run_on": "hv1"}"#,
        ),
        _ => ok(r#"{"state": "RUNNING", "current": 1, "total": 2, "status": "looking"}"#),
    });
    let user = User::of(&stub);
    let child = user.command(&["vm", "flush-locks", "web1"]).spawn().unwrap();
    let output = interrupted(child, || stub.lines().len() >= 3);
    assert_eq!(output.status.signal(), Some(2), "a shell says 130, and ends the loop around it");
    assert!(err(&output).contains("hint: `pvc cluster task 0a1b2c3d` waits again"), "{output:?}");
    let user = user.with("PVC_COMPAT_EXIT", "1");
    let child = user.command(&["vm", "flush-locks", "web1"]).spawn().unwrap();
    let asked = stub.lines().len();
    assert_eq!(code(&interrupted(child, || stub.lines().len() >= asked + 3)), 1);
}

/// Presses Ctrl-C as soon as `ready`.
fn interrupted(child: Child, ready: impl Fn() -> bool) -> Output {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ready() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    child.wait_with_output().unwrap()
}

#[test]
fn interrupting_the_waiting_for_a_vm_says_that_the_request_stands() {
    let stub = Stub::start(|_, _| {
        std::thread::sleep(Duration::from_secs(20));
        message("late")
    });
    let user = User::of(&stub);
    let child = user.command(&["vm", "shutdown", "web1", "--wait", "-y"]).spawn().unwrap();
    let output = interrupted(child, || !stub.lines().is_empty());
    assert_eq!(output.status.signal(), Some(2));
    assert!(
        err(&output)
            .contains("\nerror: no longer waiting; a request that the API has received stands\n")
    );
    assert!(
        err(&output).ends_with("hint: `pvc vm info web1` shows the present state\n"),
        "{output:?}"
    );
    let user = user.with("PVC_COMPAT_EXIT", "1");
    let child = user.command(&["-q", "vm", "shutdown", "web1", "--wait", "-y"]).spawn().unwrap();
    let asked = stub.lines().len();
    let output = interrupted(child, || stub.lines().len() > asked);
    assert_eq!(code(&output), 1);
    assert!(err(&output).ends_with("Aborted!\n"), "{output:?}");
}

#[test]
fn a_followed_log_gives_the_terminal_back_in_its_own_colours() {
    let stub = Stub::start(|_, _| ok(r#"{"name": "web1", "data": "\u001b[31mred login: "}"#));
    let user = User::of(&stub);
    let mut terminal = user.terminal("-q vm log web1 -f").spawn().unwrap();
    let mut keyboard = terminal.stdin.take().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while stub.lines().len() < 2 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    // The terminal turns this letter into the signal.
    keyboard.write_all(b"\x03").unwrap();
    let output = terminal.wait_with_output().unwrap();
    drop(keyboard);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("\x1b[31mred login: "), "{shown:?}");
    assert!(shown.trim_end_matches("^C").contains("\x1b[0m\r\n"), "{shown:?}");
    assert_eq!(output.status.code(), Some(130));
}

#[test]
fn ctrl_c_in_a_pager_is_the_pagers() {
    let stub = Stub::start(|_, _| ok(r#"{"name": "web1", "data": "login: "}"#));
    let user =
        User::of(&stub).with("PAGER", "trap '' INT; cat; read key < /dev/tty; echo left by $key");
    let mut terminal = user.terminal("-q vm log web1").spawn().unwrap();
    let mut keyboard = terminal.stdin.take().unwrap();
    let mut screen = BufReader::new(terminal.stdout.take().unwrap());
    let mut line = String::new();
    screen.read_line(&mut line).unwrap();
    assert_eq!(line, "login: \r\n");
    keyboard.write_all(b"\x03q\n").unwrap();
    let mut rest = String::new();
    screen.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("left by q"), "{rest:?}");
    assert_eq!(terminal.wait().unwrap().code(), Some(0));
}

#[test]
fn a_task_need_not_be_waited_for() {
    let stub = Stub::start(task("SUCCESS"));
    let output = User::of(&stub).run(&["-q", "vm", "flush-locks", "web1", "--no-wait"]);
    assert_eq!(out(&output), "Task ID: 0a1b2c3d assigned to node hv1\n");
    assert_eq!(stub.lines(), ["POST /vm/web1/locks"]);
}

#[test]
fn a_task_that_does_not_exist_is_not_waited_for_for_ever() {
    let stub = Stub::start(|request, _| match request.path() {
        "/api/v1/tasks" => ok(r#"{"scheduled": null, "active": null, "reserved": null}"#),
        _ => ok(r#"{"state": "PENDING", "current": 0, "total": 1, "status": "waiting"}"#),
    });
    let output = User::of(&stub).run(&["-q", "cluster", "task", "ffffffff"]);
    assert_eq!(code(&output), 3, "{output:?}");
}

#[test]
fn a_key_is_kept_and_shown_only_on_demand() {
    let user = User::without_connection();
    let added = user.answering(
        "2c2b8f4e-0D3e\n",
        &["connection", "add", "a", "-a", "10.0.0.1", "-s", "-k", "-"],
    );
    assert_eq!(code(&added), 0, "{added:?}");
    let list = out(&user.run(&["connection", "list"]));
    assert!(list.contains("xxxxxxxx-xxxx") && !list.contains("2c2b"), "{list}");
    assert!(out(&user.run(&["connection", "list", "-k"])).contains("2c2b8f4e-0D3e"));
    let targets = out(&user.run(&["connection", "list", "--format", "json-prometheus"]));
    let targets: serde_json::Value = serde_json::from_str(&targets).unwrap();
    let target = targets
        .as_array()
        .unwrap()
        .iter()
        .find(|target| target["labels"]["pvc_cluster_id"] == "a")
        .unwrap();
    assert_eq!(target["targets"][0], "10.0.0.1:7370");
    assert_eq!(target["labels"]["pvc_cluster_name"], "a: N/A");
    assert_eq!(code(&user.run(&["connection", "remove", "a"])), 0);
    assert_eq!(code(&user.run(&["connection", "remove", "a"])), 3);
}

#[test]
fn a_read_stores_nothing_and_without_a_home_a_write_is_refused() {
    let user = User::without_connection();
    assert_eq!(code(&user.run(&["connection", "list"])), 0);
    assert_eq!(std::fs::read_dir(user.home.path()).unwrap().count(), 0);
    let homeless = |args: &[&str]| user.command(args).env_remove("HOME").output().unwrap();
    let read = homeless(&["connection", "list"]);
    assert_eq!((code(&read), err(&read)), (0, String::new()));
    let write = homeless(&["connection", "add", "x", "-a", "10.0.0.1"]);
    assert_eq!(code(&write), 1);
    assert!(err(&write).contains("hint: set `PVC_CLIENT_DIR`"), "{write:?}");
    assert!(!std::path::Path::new("/tmp/pvc/pvc.json").exists());
}

#[test]
fn connections_that_everybody_could_have_written_are_not_used() {
    let user = User::without_connection();
    user.run(&["connection", "add", "x", "-a", "10.0.0.1"]);
    let directory = user.home.path().join(".config/pvc");
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    let list = user.run(&["connection", "list", "-f", "raw"]);
    assert_eq!((code(&list), out(&list).as_str()), (0, ""));
    assert!(err(&list).contains("everybody can write it"), "{list:?}");
    assert_eq!(code(&user.run(&["-c", "x", "status"])), 3);
    assert_eq!(code(&user.run(&["connection", "add", "y", "-a", "10.0.0.1"])), 1);
}

#[test]
fn a_connection_that_could_not_be_used_is_not_stored() {
    let user = User::without_connection();
    let odd: [&[&str]; 6] = [
        &["local", "-a", "h"],
        &["a b/..", "-a", "h"],
        &["", "-a", "h"],
        &["x", "-a", "h", "-p", "0"],
        &["x", "-a", "h", "-p", "70000"],
        &["x", "-a", "http://h"],
    ];
    for args in odd {
        let output = user.run(&[&["connection", "add"], args].concat());
        assert_eq!(code(&output), 2, "{args:?}: {output:?}");
    }
    assert_eq!(std::fs::read_dir(user.home.path()).unwrap().count(), 0);
    let local = user.run(&["connection", "remove", "local"]);
    assert_eq!(code(&local), 1);
    assert!(err(&local).contains("always there"), "{local:?}");
}

#[test]
fn a_local_daemon_that_does_not_answer_is_said_how_to_start() {
    let user = User::without_connection();
    let file = user.home.path().join("pvc.conf");
    std::fs::write(&file, "api: {listen: {address: 127.0.0.1, port: 1}}\n").unwrap();
    let output = user.with("PVC_CONFIG_FILE", file.to_str().unwrap()).run(&["-q", "status"]);
    assert_eq!(code(&output), 4);
    assert!(
        err(&output).contains("`systemctl start pvcapid`") && err(&output).contains("`./run`"),
        "{output:?}"
    );
    assert!(err(&output).contains("api/v1`: connection refused\n"), "{output:?}");
}

#[test]
fn clusters_that_cannot_be_reached_are_shown_as_such_beside_the_others() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let locked = Stub::start(|_, _| status(401, r#"{"message": "unknown key"}"#));
    let port = locked.address.port().to_string();
    user.run(&["connection", "add", "locked", "-a", "127.0.0.1", "-p", &port]);
    user.run(&["connection", "add", "gone", "-a", "127.0.0.1", "-p", "1"]);
    let output = user.run(&["-q", "connection", "detail", "-f", "json"]);
    let rows: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!((&rows[0]["name"], &rows[0]["health"]), (&"gone".into(), &"N/A".into()));
    assert_eq!(rows[0]["problem"], "unreachable: connection refused");
    assert_eq!((&rows[1]["name"], &rows[1]["health"]), (&"lab".into(), &90.into()));
    assert_eq!(rows[1]["problem"], serde_json::Value::Null);
    assert_eq!(rows[2]["problem"], "the key is not accepted: unknown key");
    assert_eq!(code(&output), 0);
    let table = out(&user.run(&["-q", "connection", "detail"]));
    assert!(
        table.contains("Problem\n") && table.contains(" unreachable: connection refused\n"),
        "{table}"
    );
    user.run(&["connection", "remove", "gone"]);
    user.run(&["connection", "remove", "locked"]);
    let table = out(&user.run(&["-q", "connection", "detail"]));
    assert!(table.contains("Snapshots\n"), "without problems there is no column for them: {table}");
}

#[test]
fn the_local_connection_is_read_from_the_daemons_configuration() {
    let stub = Stub::start(cluster);
    let user = User::without_connection();
    let file = user.home.path().join("pvc.conf");
    let text = format!(
        "api:\n  enabled: yes\n  listen:\n    address: 0.0.0.0\n    port: {}\n",
        stub.address.port()
    );
    std::fs::write(&file, text).unwrap();
    let user = user.with("PVC_CONFIG_FILE", file.to_str().unwrap());
    let output = user.run(&["-c", "local", "vm", "list", "-f", "raw"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "db1\nweb1\n"), "{output:?}");
    assert!(err(&output).contains("Using connection \"local\""));
}

#[test]
fn without_a_daemon_and_a_connection_the_error_says_what_to_do() {
    let user = User::without_connection().with("PVC_CONFIG_FILE", "/nonexistent/pvc.conf");
    let output = user.run(&["vm", "list"]);
    assert_eq!(code(&output), 1);
    assert!(
        err(&output).contains("no connection") && err(&output).contains("pvc connection add"),
        "{output:?}"
    );
}

#[test]
fn options_of_two_letters_work_where_they_always_have() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    user.run(&["node", "list", "-ds", "run", "-cs=primary", "x", "-vs", "ready"]);
    assert_eq!(
        stub.lines(),
        ["GET /node?limit=x&daemon_state=run&coordinator_state=primary&domain_state=ready"]
    );
    assert_eq!(
        code(&user.run(&[
            "-q",
            "network",
            "add",
            "10",
            "-d",
            "x",
            "-p",
            "managed",
            "-i6",
            "fd00::/64"
        ])),
        6
    );
}

#[test]
fn a_list_that_is_empty_is_fine_and_a_search_that_finds_nothing_is_not() {
    let stub = Stub::start(|_, _| status(404, r#"{"message": "No VMs found"}"#));
    let user = User::of(&stub);
    let all = user.run(&["-q", "vm", "list", "-f", "json"]);
    assert_eq!((code(&all), out(&all).as_str()), (0, "[]\n"));
    assert_eq!(code(&user.run(&["-q", "vm", "list", "^web"])), 3);
}

#[test]
fn a_definition_with_mistakes_is_refused_with_all_of_them_and_never_sent() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let file = user.home.path().join("vm.xml");
    std::fs::write(
        &file,
        "<domain type='kvm'>\n<name>a b</name><memory unit='MiB'>x</memory>\n</domain>",
    )
    .unwrap();
    let output = user.run(&["-q", "vm", "define", file.to_str().unwrap()]);
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("mistakes:\n") && err(&output).contains("uuid"), "{output:?}");
    std::fs::write(&file, "no xml").unwrap();
    assert_eq!(code(&user.run(&["-q", "vm", "define", file.to_str().unwrap()])), 1);
    assert_eq!(changes(&stub), [""; 0]);
}

#[test]
fn a_definition_is_sent_with_everything_that_was_said() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let xml = out(&user.run(&["-q", "vm", "dump", "web1"]));
    assert!(xml.starts_with("<domain type=\"kvm\">\n  <name>web1</name>\n"), "{xml}");
    let output = user.answering(
        &xml,
        &[
            "-q", "vm", "define", "-", "-t", "hv2", "-l", "hv1,hv2", "-a", "-g", "x", "-g", "y",
            "-G", "z",
        ],
    );
    assert_eq!(code(&output), 0, "{output:?}");
    let wanted = "POST /vm?node=hv2&limit=hv1%2Chv2&selector=none&autostart=True&migration_method=none&migration_max_downtime=300&user_tags=x&user_tags=y&protected_tags=z";
    assert_eq!(changes(&stub), [wanted]);
}

#[test]
fn only_what_was_given_of_the_metadata_is_sent() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    user.run(&["vm", "meta", "web1", "-A", "-d", "500"]);
    assert_eq!(changes(&stub), ["POST /vm/web1/meta?autostart=False&migration_max_downtime=500"]);
    assert_eq!(code(&user.run(&["vm", "meta", "web1"])), 2);
}

#[test]
fn memory_is_set_in_the_definition_and_a_restart_only_on_demand() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let unasked = user.run(&["-q", "vm", "memory", "set", "web1", "4096"]);
    assert_eq!(code(&unasked), 0, "nobody to ask is no restart: {unasked:?}");
    assert!(
        err(&unasked).contains("warning: VM `web1` runs on as it was; the change takes effect"),
        "{unasked:?}"
    );
    assert!(err(&unasked).contains("hint: `pvc vm restart web1`"), "{unasked:?}");
    user.run(&["-q", "vm", "vcpu", "set", "web1", "4", "-t", "2,2,1", "-r", "-y"]);
    let path = "/vm/2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1";
    assert_eq!(
        changes(&stub),
        [format!("PUT {path}?restart=False"), format!("PUT {path}?restart=True")]
    );
    let bodies: Vec<String> = stub
        .received()
        .into_iter()
        .filter(|request| request.method == "PUT")
        .map(|request| request.body)
        .collect();
    assert!(bodies[0].contains("4096") && bodies[1].contains("sockets"), "{bodies:?}");
    user.run(&["-q", "vm", "memory", "set", "db1", "4096", "-r", "-y"]);
    assert!(
        changes(&stub)[2].ends_with("restart=False"),
        "a VM that does not run is not started by a change"
    );
}

#[test]
fn a_change_that_would_be_refused_is_not_asked_about() {
    let stub = Stub::start(|request, before| match request.path().ends_with("/check") {
        true => {
            status(400, r#"{"message": "node `hv1` takes VMs of up to 2 vCPUs", "hint": "fewer"}"#)
        }
        false => cluster(request, before),
    });
    let user = User::of(&stub);
    let file = user.home.path().join("web1.xml");
    std::fs::write(&file, out(&user.run(&["-q", "vm", "dump", "web1"])).replace("2048", "1024"))
        .unwrap();
    let path = file.to_str().unwrap();
    for line in [
        &["vm", "vcpu", "set", "web1", "99"][..],
        &["vm", "vcpu", "set", "web1", "99", "--restart"],
        &["vm", "modify", "web1", path],
        &["vm", "modify", "web1", path, "-d", "-r"],
    ] {
        let output = user.answering("y\n", &[&["-q"], line].concat());
        assert_eq!(code(&output), 1);
        assert!(
            err(&output).ends_with("error: node `hv1` takes VMs of up to 2 vCPUs\nhint: fewer\n")
        );
        assert!(!err(&output).contains("[y/N]"), "{line:?}: {output:?}");
    }
    assert_eq!(changes(&stub), [""; 0]);
}

#[test]
fn a_server_that_cannot_judge_a_change_is_asked_to_make_it() {
    let stub = Stub::start(|request, before| match request.path().ends_with("/check") {
        true => status(404, "<h1>Not Found</h1>"),
        false => cluster(request, before),
    });
    let output = User::of(&stub).answering("y\n", &["-q", "vm", "memory", "set", "web1", "4096"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "done\n"), "{output:?}");
    assert!(changes(&stub)[0].ends_with("?restart=True"), "{:?}", changes(&stub));
}

#[test]
fn a_removed_card_is_detached_by_its_own_address() {
    let stub = Stub::start(|request, before| match (request.method.as_str(), request.path()) {
        ("DELETE", _) => status(
            202,
            r#"{"task_id": "0a1b2c3d", "task_name": "vm.device_detach", "run_on": "hv1"}"#,
        ),
        ("GET", "/api/v1/tasks/0a1b2c3d") => {
            ok(r#"{"state": "SUCCESS", "current": 1, "total": 1, "status": "detached"}"#)
        }
        _ => cluster(request, before),
    });
    let output = User::of(&stub).run(&["-q", "vm", "network", "remove", "web1", "1001"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert_eq!(changes(&stub).len(), 2);
    let detached = stub.received().into_iter().find(|request| request.method == "DELETE").unwrap();
    assert!(detached.body.contains("52%3A54%3A00%3Aaa%3Abb%3Acc"), "{detached:?}");
    let stored = stub.received().into_iter().find(|request| request.method == "PUT").unwrap();
    assert!(!stored.body.contains("52%3A54%3A00%3Aaa%3Abb%3Acc"), "{stored:?}");
}

#[test]
fn a_device_that_the_guest_does_not_take_is_taken_back_from_the_definition() {
    let stub = Stub::start(|request, before| match (request.method.as_str(), request.path()) {
        ("POST", _) => status(
            202,
            r#"{"task_id": "0a1b2c3d", "task_name": "vm.device_attach", "run_on": "hv1"}"#,
        ),
        ("GET", "/api/v1/network/1001") => ok(r#"[{"vni": 1001}]"#),
        ("GET", "/api/v1/tasks/0a1b2c3d") => {
            ok(r#"{"state": "FAILURE", "current": 1, "total": 1, "status": "no such bridge"}"#)
        }
        _ => cluster(request, before),
    });
    let output = User::of(&stub).run(&[
        "-q",
        "vm",
        "network",
        "add",
        "web1",
        "1001",
        "-a",
        "52:54:00:11:22:33",
    ]);
    assert_eq!(code(&output), 1);
    assert!(
        err(&output).contains("no such bridge")
            && err(&output).contains("the definition is as it was"),
        "{output:?}"
    );
    let puts: Vec<Received> =
        stub.received().into_iter().filter(|request| request.method == "PUT").collect();
    assert!(puts[0].body.contains("52%3A54%3A00%3A11%3A22%3A33"), "{puts:?}");
    assert!(!puts[1].body.contains("52%3A54%3A00%3A11%3A22%3A33"), "{puts:?}");
}

#[test]
fn a_modification_is_shown_before_it_is_made() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let file = user.home.path().join("web1.xml");
    let present = out(&user.run(&["-q", "vm", "dump", "web1"]));
    std::fs::write(&file, &present).unwrap();
    let path = file.to_str().unwrap();
    let same = user.run(&["-q", "vm", "modify", "web1", path]);
    assert_eq!((code(&same), out(&same).as_str()), (0, "Aborting with no modifications.\n"));
    std::fs::write(&file, present.replace("2048", "1024")).unwrap();
    let unconfirmed = user.run(&["-q", "vm", "modify", "web1", path]);
    assert_eq!(code(&unconfirmed), 1);
    assert_eq!(
        err(&unconfirmed).matches("warning: ").count(),
        1,
        "each is said once: {unconfirmed:?}"
    );
    assert!(
        out(&unconfirmed).contains(
            "-  <memory unit=\"MiB\">2048</memory>\n+  <memory unit=\"MiB\">1024</memory>"
        )
    );
    assert_eq!(changes(&stub), [""; 0]);
    assert_eq!(code(&user.run(&["-q", "vm", "modify", "web1", path, "-y"])), 0);
    assert_eq!(changes(&stub).len(), 1);
}

#[test]
fn a_modification_without_a_source_is_told_both() {
    let output = User::without_connection().run(&["vm", "modify", "web1"]);
    assert_eq!(code(&output), 2);
    assert!(
        err(&output).contains("`pvc vm modify web1 --editor` edits the present one"),
        "{output:?}"
    );
    assert!(err(&output).contains("`pvc vm modify web1 FILE` takes it from a file"), "{output:?}");
}

#[test]
fn an_editor_can_make_the_modification() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub).with("EDITOR", "sed -i s/2048/512/");
    let output = user.run(&["-q", "vm", "modify", "web1", "--editor", "--yes"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(stub.received().last().unwrap().body.contains("512"));
    let user = User::of(&stub).with("EDITOR", "false");
    assert_eq!(code(&user.run(&["-q", "vm", "modify", "web1", "--editor", "--yes"])), 1);
    assert_eq!(changes(&stub).len(), 1);
}

#[test]
fn a_flush_is_waited_for_until_the_node_says_flushed() {
    let looks = std::sync::atomic::AtomicUsize::new(0);
    let stub = Stub::start(move |request, _| {
        if request.method == "POST" {
            return message("Flushing node hv1");
        }
        let states = ["ready", "flush", "flushed"];
        let look = looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed).min(2);
        ok(format!(r#"[{{"name": "hv1", "domain_state": "{}"}}]"#, states[look]))
    });
    let output = User::of(&stub).run(&["node", "flush", "hv1", "--wait"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "Flushing node hv1\n"), "{output:?}");
    assert!(err(&output).contains("done. ["), "{output:?}");
    assert_eq!(stub.lines().len(), 4);
}

/// What a node says of a flush under way, look by look; the last one again and again.
fn flushing(looks: Vec<&'static str>) -> Stub {
    let look = std::sync::atomic::AtomicUsize::new(0);
    Stub::start(move |request, _| {
        if request.method == "POST" {
            return message("node `hv1` is being flushed already");
        }
        let look = look.fetch_add(1, std::sync::atomic::Ordering::Relaxed).min(looks.len() - 1);
        ok(format!(r#"[{{"name": "hv1", "daemon_state": "run", {}}}]"#, looks[look]))
    })
}

const WAITING: &str = r#""domain_state": "flush", "waits_for": [
    {"name": "web1", "action": "move", "reason": "it is being moved to node `hv2`", "percent": 7},
    {"name": "db1", "action": "blocked", "reason": "it could not be moved to node `hv2`: host CPU differs"}]"#;
const FARTHER: &str = r#""domain_state": "flush", "waits_for": [
    {"name": "web1", "action": "move", "reason": "it is being moved to node `hv2`", "percent": 93}]"#;
const FLUSHED: &str = r#""domain_state": "flushed", "waits_for": []"#;

#[test]
fn what_a_flush_waits_for_is_said_when_it_changes() {
    let stub = flushing(vec![WAITING, WAITING, FARTHER, FLUSHED]);
    let output = User::of(&stub).run(&["node", "flush", "hv1", "--wait"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let said = err(&output);
    let told: Vec<&str> = said.lines().skip_while(|line| *line != "Waiting...").collect();
    assert_eq!(
        told[..4],
        [
            "Waiting...",
            "  VM `db1`: it could not be moved to node `hv2`: host CPU differs",
            "  VM `web1`: it is being moved to node `hv2`",
            "  VM `db1`: it is done"
        ]
    );
    assert!(told.len() == 5 && told[4].starts_with("done. ["), "{told:?}");
}

#[test]
fn a_terminal_shows_how_far_the_copies_are() {
    let stub = flushing(vec![WAITING, FARTHER, FLUSHED]);
    let text = User::of(&stub).on_a_terminal("node flush hv1 --wait");
    assert!(text.contains("; web1 7 %") && text.contains("; web1 93 %"), "{text:?}");
    assert!(text.contains("  VM `db1`: it is done\r\n"), "{text:?}");
    assert_eq!(text.matches("VM `web1`: it is being moved").count(), 1, "{text:?}");
}

#[test]
fn a_quiet_wait_says_nothing_of_it() {
    let stub = flushing(vec![WAITING, FLUSHED]);
    let output = User::of(&stub).run(&["-q", "node", "flush", "hv1", "--wait"]);
    assert_eq!((code(&output), err(&output)), (0, String::new()));
}

#[test]
fn a_refusal_is_printed_as_the_api_words_it_with_the_exit_code_of_its_kind() {
    for (reply, exit) in [(404, 3), (400, 1), (409, 1)] {
        let stub = Stub::start(move |request, _| match request.path() {
            "/api/v1/openapi.json" => ok(DOCUMENT),
            _ => status(reply, r#"{"message": "node `x` does not do", "hint": "try `y`"}"#),
        });
        let user = User::of(&stub);
        for line in [
            &["-q", "vm", "migrate", "web1", "-t", "x"][..],
            &["-q", "vm", "migrate", "web1", "-t", "x", "--dry-run"],
            &["-q", "vm", "move", "web1", "-t", "x"],
            &["-q", "node", "primary", "x"],
            &["-q", "node", "flush", "x", "--wait"],
        ] {
            let output = user.run(line);
            assert_eq!(code(&output), exit, "{line:?}");
            assert_eq!(err(&output), "error: node `x` does not do\nhint: try `y`\n", "{line:?}");
        }
    }
}

#[test]
fn a_yes_that_nobody_asked_for_is_explained() {
    let output = User::without_connection().run(&["node", "flush", "-y"]);
    assert_eq!(code(&output), 2);
    assert_eq!(
        err(&output),
        "error: unexpected `-y`: this command asks no question\n\
         hint: leave `-y` out; where a command asks, `-y` stands behind it\n"
    );
}

#[test]
fn faults_are_deleted_by_scripts_that_say_yes_to_an_older_client() {
    let stub = Stub::start(cluster);
    let output = User::of(&stub).run(&["cluster", "fault", "delete", "NODE_FLUSH", "-y"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert_eq!(changes(&stub), ["DELETE /faults/NODE_FLUSH"]);
}

#[test]
fn a_stored_connection_is_replaced_only_by_force() {
    let user = User::without_connection();
    let add = |host: &str, more: &[&str]| {
        let line = [&["connection", "add", "office", "-a", host, "-k", "secret"], more].concat();
        user.run(&line)
    };
    assert_eq!(code(&add("10.0.0.1", &[])), 0);
    assert_eq!(code(&add("10.0.0.1", &[])), 0, "the same once more");
    let refused = add("10.0.0.2", &[]);
    assert_eq!(code(&refused), 1);
    assert_eq!(
        err(&refused),
        "error: there is a connection `office` already\n\
         hint: `pvc connection list` shows it; another name keeps it, `--force` replaces it\n"
    );
    assert!(out(&user.run(&["connection", "list"])).contains("10.0.0.1"));
    assert_eq!(code(&add("10.0.0.2", &["--force"])), 0);
    assert!(out(&user.run(&["connection", "list"])).contains("10.0.0.2"));
}

#[test]
fn a_node_that_is_already_there_is_not_waited_for() {
    let stub = Stub::start(|_, _| message("Node hv1 is already ready"));
    assert_eq!(code(&User::of(&stub).run(&["-q", "node", "ready", "hv1", "-w"])), 0);
    assert_eq!(stub.lines().len(), 1);
}

#[test]
fn being_primary_is_told_by_the_exit_code_alone() {
    let stub = Stub::start(|_, before| match before {
        0 => status(500, "{}"),
        1 => ok(r#"{"primary_node": "none"}"#),
        _ => ok(r#"{"primary_node": "hv1"}"#),
    });
    let user = User::of(&stub);
    let primary = user.run(&["--quiet", "node", "is-primary", "hv1"]);
    assert_eq!((code(&primary), out(&primary), err(&primary)), (0, String::new(), String::new()));
    assert_eq!(code(&user.run(&["--quiet", "node", "is-primary", "hv2"])), 1);
}

#[test]
fn a_followed_log_prints_each_line_once_and_at_once() {
    let stub = Stub::start(|_, before| {
        let windows = ["boot\nbeat", "boot\nbeat", "boot\nbeat\nbeat", "beat\nbeat\ndone"];
        ok(serde_json::json!({"name": "web1", "data": windows[before.min(3)]}).to_string())
    });
    let user = User::of(&stub);
    let mut child = user.command(&["-q", "vm", "log", "web1", "-f"]).spawn().unwrap();
    let lines: Vec<String> =
        BufReader::new(child.stdout.take().unwrap()).lines().take(4).map(Result::unwrap).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(lines, ["boot", "beat", "beat", "done"]);
}

#[test]
fn a_log_is_printed_as_it_is_without_a_terminal() {
    let stub = Stub::start(|_, _| ok(r#"{"name": "web1", "data": "a\nb\nc"}"#));
    let output = User::of(&stub).run(&["-q", "vm", "log", "web1", "-l", "2"]);
    assert_eq!(out(&output), "b\nc\n");
    assert_eq!(stub.lines(), ["GET /vm/web1/console?lines=2"]);
}

/// What a shell's function asks when Tab is pressed behind these words.
fn complete(user: &User, words: &[&str]) -> Output {
    let mut command = user.command(&["--", "pvc"]);
    command.args(words).env("_PVC_COMPLETE_SHELL", "bash");
    command.env("_CLAP_COMPLETE_INDEX", words.len().to_string()).env("_CLAP_IFS", "\n");
    command.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_COMPLETE_SPACE", "true");
    command.output().unwrap()
}

#[test]
fn tab_offers_the_names_of_the_vms_there_are() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let offered = out(&complete(&user, &["vm", "start", ""]));
    assert!(offered.contains("web1") && offered.contains("db1"), "{offered}");
    let offered = out(&complete(&user, &["node", "flush", "h"]));
    assert!(offered.contains("hv2") && !offered.contains("pvchv1"), "{offered}");
    let offered = out(&complete(&user, &["vm", "list", "--tag", ""]));
    assert!(offered.contains("daily"), "{offered}");
    let offered = out(&complete(&user, &["vm", "list", "--state", "st"]));
    assert!(offered.contains("start") && offered.contains("stop"), "{offered}");
    let offered = out(&complete(&user, &["cluster", "fault", "ack", ""]));
    assert!(offered.contains("NODE_FLUSH"), "{offered}");
    let offered = out(&complete(&user, &["task", "cancel", ""]));
    assert!(offered.contains("0a1b2c3d"), "{offered}");
    let offered = out(&complete(&user, &["network", "sriov", ""]));
    assert!(offered.contains("vf"), "{offered}");
}

#[test]
fn tab_is_quick_and_silent_when_nobody_answers() {
    let user = User::without_connection().with("PVC_CONFIG_FILE", "/nonexistent");
    let started = Instant::now();
    let output = complete(&user, &["vm", "start", "we"]);
    assert_eq!(err(&output), "");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn every_shell_gets_its_function() {
    let user = User::without_connection();
    for (shell, word) in [("bash", "complete "), ("zsh", "#compdef"), ("fish", "complete ")] {
        let output = user.run(&["completion", shell]);
        assert_eq!(code(&output), 0);
        assert!(out(&output).contains(word), "{shell}: {}", out(&output));
    }
}

#[test]
fn the_first_clients_way_to_activate_completions_works() {
    let user = User::without_connection();
    for (word, expected) in [
        ("bash_source", "complete "),
        ("source_bash", "complete "),
        ("zsh_source", "#compdef"),
        ("fish_source", "complete "),
    ] {
        let output = user.command(&[]).env("_PVC_COMPLETE", word).output().unwrap();
        assert_eq!((code(&output), err(&output)), (0, String::new()), "{word}");
        assert!(out(&output).contains(expected), "{word}: {}", out(&output));
    }
    let question = user.command(&[]).env("_PVC_COMPLETE", "bash_complete").output().unwrap();
    assert_eq!(
        (code(&question), out(&question), err(&question)),
        (0, String::new(), String::new())
    );
    let odd = user.command(&[]).env("_PVC_COMPLETE", "tcsh_source").output().unwrap();
    assert_eq!(code(&odd), 2);
    assert!(err(&odd).contains("hint: `pvc completion bash`"), "{odd:?}");
}

#[test]
fn there_is_a_man_page_for_each_command() {
    let user = User::without_connection();
    let directory = user.home.path().join("man");
    assert_eq!(code(&user.run(&["man", directory.to_str().unwrap()])), 0);
    let page = std::fs::read_to_string(directory.join("pvc-vm-start.1")).unwrap();
    assert!(page.contains(".SH EXAMPLES\n.nf\n  pvc vm start web1\n"), "{page}");
    assert!(directory.join("pvc.1").exists() && directory.join("pvc-network-acl-add.1").exists());
}

#[test]
fn a_cluster_is_restored_only_from_a_backup() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let file = user.home.path().join("backup.json");
    std::fs::write(&file, r#"{"vm": 1}"#).unwrap();
    let path = file.to_str().unwrap();
    assert_eq!(code(&user.run(&["cluster", "restore", "-f", path, "-y"])), 1);
    std::fs::write(&file, r#"{"/": "", "/schema/version": "15", "/nodes/hv1": ""}"#).unwrap();
    let unconfirmed = user.run(&["-q", "cluster", "restore", "-f", path]);
    assert_eq!(code(&unconfirmed), 1);
    assert_eq!(changes(&stub), [""; 0]);
    assert_eq!(code(&user.run(&["-q", "cluster", "restore", "-f", path, "-y"])), 0);
    assert_eq!(changes(&stub), ["POST /restore?yes-i-really-mean-it=yes"]);
}

#[test]
fn a_variable_that_is_neither_on_nor_off_is_a_mistake() {
    let output = User::without_connection().with("PVC_QUIET", "maybe").run(&["connection", "list"]);
    assert_eq!(code(&output), 2);
    assert!(err(&output).contains("`PVC_QUIET` is `maybe`"), "{output:?}");
}

/// `pvc` beside a `pvc-sim` that keeps what it is told and says `reply`.
fn with_simulator(user: &User, reply: &str) -> tempfile::TempDir {
    let place = tempfile::tempdir_in(user.home.path()).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_pvc"), place.path().join("pvc")).unwrap();
    let program = place.path().join("pvc-sim");
    let script =
        format!("#!/bin/sh\ncat >$0.input\necho \"$@\" >$0.arguments\ncat <<'END'\n{reply}\nEND\n");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    place
}

fn run_there(user: &User, place: &tempfile::TempDir, args: &[&str]) -> Output {
    let own = user.command(args);
    let environment = own.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let mut command = Command::new(place.path().join("pvc"));
    command.args(args).env_clear().envs(environment).stdin(Stdio::null()).output().unwrap()
}

const WHAT_IF: &str = include_str!("../../../crates/pvc-cli/tests/wire/what-if.json");

#[test]
fn what_if_asks_the_program_beside_it_about_a_backup_made_at_that_moment() {
    let stub = Stub::start(|request, _| match request.path() {
        "/api/v1/backup" => ok(r#""{\"/schema/version\": \"15\"}""#),
        _ => status(404, "{}"),
    });
    let user = User::of(&stub);
    let place = with_simulator(&user, WHAT_IF.trim_end());
    let output =
        run_there(&user, &place, &["-q", "cluster", "what-if", "node", "hv3", "--death", "hang"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(out(&output).starts_with("If node `"), "{output:?}");
    let kept =
        |what: &str| std::fs::read_to_string(place.path().join(format!("pvc-sim.{what}"))).unwrap();
    assert_eq!(kept("input"), r#"{"/schema/version":"15"}"#);
    let arguments =
        "what-if - --node hv3 --death hang --keepalive-interval 5 --fence-intervals 6\n";
    assert_eq!(kept("arguments"), arguments);
    assert_eq!(stub.lines(), ["GET /backup"], "nothing is changed");

    let json = run_there(&user, &place, &["-q", "cluster", "what-if", "node", "hv3", "-f", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&out(&json)).unwrap();
    let reply: serde_json::Value = serde_json::from_str(WHAT_IF).unwrap();
    assert_eq!(answer, reply["answer"]);
}

#[test]
fn what_if_of_a_file_needs_no_cluster() {
    let user = User::without_connection();
    let place = with_simulator(&user, WHAT_IF.trim_end());
    let file = user.home.path().join("cluster.json");
    std::fs::write(&file, "{}").unwrap();
    let file = file.to_str().unwrap();
    let output = run_there(&user, &place, &["cluster", "what-if", "node", "hv3", "--from", file]);
    assert_eq!(code(&output), 0, "{output:?}");
    let gone =
        run_there(&user, &place, &["cluster", "what-if", "node", "hv3", "--from", "/nonexistent"]);
    assert_eq!(
        (code(&gone), err(&gone).as_str()),
        (2, "error: cannot read `/nonexistent`: no such file or directory\n")
    );
}

#[test]
fn what_if_says_what_the_program_refuses_and_that_it_is_missing() {
    let user = User::without_connection();
    let refused = r#"{"refused": {"not_found": true, "message": "there is no node `hv9`", "hint": "the nodes are: hv1"}}"#;
    let place = with_simulator(&user, refused);
    let line = ["cluster", "what-if", "node", "hv9", "--from", "/dev/null"];
    let output = run_there(&user, &place, &line);
    let said = "error: `/dev/null`: there is no node `hv9`\nhint: the nodes are: hv1\n";
    assert_eq!((code(&output), err(&output).as_str()), (3, said));

    let place = with_simulator(&user, "no JSON");
    let output = run_there(&user, &place, &line);
    assert_eq!(code(&output), 1);
    assert!(err(&output).starts_with("error: `pvc-sim` gave no answer: "), "{output:?}");

    std::fs::remove_file(place.path().join("pvc-sim")).unwrap();
    let output = run_there(&user, &place, &line);
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("is missing\nhint: it belongs to `"), "{output:?}");
}
