//! Templates, userdata, scripts and profiles are changed by one request each.

use super::*;

/// A server of which every change succeeds.
fn server(request: &Received, before: usize) -> Reply {
    match (request.method.as_str(), request.path()) {
        ("GET", "/api/v1/openapi.json") => ok(DOCUMENT),
        ("GET", "/api/v1/provisioner/userdata/web") => {
            ok(r#"[{"id": 1, "name": "web", "userdata": "one\ntwo\n"}]"#)
        }
        ("GET", "/api/v1/provisioner/script/web") => {
            ok(r#"[{"id": 1, "name": "web", "script": "pass"}]"#)
        }
        ("GET", _) => cluster(request, before),
        _ => message("done"),
    }
}

fn words(line: &str) -> Vec<&str> {
    ["-q", "provisioner"].into_iter().chain(line.split(' ')).collect()
}

#[test]
fn each_change_of_what_vms_are_made_of_is_one_request() {
    for (line, request) in [
        (
            "template system add small -u 2 -m 2048 -s -N",
            "POST /provisioner/template/system?name=small&vcpus=2&vram=2048&serial=True&vnc=False",
        ),
        (
            "template system add large -u 8 -m 16384 -n -b 127.0.0.1 --node-limit hv1,hv2 \
             --node-selector MEM --node-autostart --migration-method live --max-downtime 100",
            "POST /provisioner/template/system?name=large&vcpus=8&vram=16384&serial=False\
             &vnc=True&vnc_bind=127.0.0.1&node_limit=hv1%2Chv2&node_selector=MEM\
             &node_autostart=True&migration_method=live&migration_max_downtime=100",
        ),
        (
            "template system modify small -m 4096 -S --node-limit= --no-node-autostart",
            "PUT /provisioner/template/system/small?vram=4096&serial=False&node_limit=\
             &node_autostart=False",
        ),
        ("template system remove small -y", "DELETE /provisioner/template/system/small"),
        (
            "template network add web -m {prefix}:2f",
            "POST /provisioner/template/network?name=web&mac_template=%7Bprefix%7D%3A2f",
        ),
        ("template network vni add web 1001", "POST /provisioner/template/network/web/net/1001"),
        (
            "template network vni add web 1001 -d",
            "POST /provisioner/template/network/web/net/1001?permit_duplicate=True",
        ),
        (
            "template network vni remove web 1001 -y",
            "DELETE /provisioner/template/network/web/net/1001",
        ),
        ("template network remove web -y", "DELETE /provisioner/template/network/web"),
        ("template storage add web", "POST /provisioner/template/storage?name=web"),
        (
            "template storage disk add web sda -p vms -s 10 -f ext4 --fsarg L=root --fsarg quiet=1 \
             -m /",
            "POST /provisioner/template/storage/web/disk/sda?pool=vms&disk_size=10&filesystem=ext4\
             &filesystem_arg=-L%3Droot&filesystem_arg=--quiet%3D1&mountpoint=%2F",
        ),
        (
            "template storage disk add web sdb -p vms -i golden",
            "POST /provisioner/template/storage/web/disk/sdb?pool=vms&source_volume=golden",
        ),
        (
            "template storage disk remove web sdb -y",
            "DELETE /provisioner/template/storage/web/disk/sdb",
        ),
        ("template storage remove web -y", "DELETE /provisioner/template/storage/web"),
        ("userdata remove web -y", "DELETE /provisioner/userdata/web"),
        ("script remove web -y", "DELETE /provisioner/script/web"),
        (
            "profile add web -s small -n web -t web -u web -x deb -a packages=vim,less -a x=1",
            "POST /provisioner/profile?name=web&profile_type=provisioner&system_template=small\
             &network_template=web&storage_template=web&userdata=web&script=deb\
             &arg=packages%3Dvim%2Cless&arg=x%3D1",
        ),
        (
            "profile add box -p OVA -s box -x ova -o box",
            "POST /provisioner/profile?name=box&profile_type=ova&system_template=box&script=ova\
             &ova=box",
        ),
        ("profile modify web -u= -a x=2", "PUT /provisioner/profile/web?userdata=&arg=x%3D2"),
        ("profile modify web -d", "PUT /provisioner/profile/web?arg="),
        ("profile modify web --script-arg x=3", "PUT /provisioner/profile/web?arg=x%3D3"),
        ("profile remove web -y", "DELETE /provisioner/profile/web"),
        ("ova remove box -y", "DELETE /provisioner/ova/box"),
    ] {
        let stub = Stub::start(server);
        let output = User::of(&stub).run(&words(line));
        assert_eq!((code(&output), out(&output).as_str()), (0, "done\n"), "{line}: {output:?}");
        assert_eq!(changes(&stub), [request], "{line}");
    }
}

#[test]
fn a_line_that_makes_no_sense_asks_nobody() {
    for line in [
        "template system add small -u many -m 1",
        "template system add small -u 1 -m 1 --node-selector best",
        "template system modify small",
        "template storage disk add web sdb -p vms -i golden -s 1",
        "profile modify web",
        "profile modify web -d -a x=1",
        "profile add web -p other -s x -x y",
        "userdata modify web",
        "userdata add web /nonexistent/file",
    ] {
        let stub = Stub::start(server);
        let output = User::of(&stub).run(&words(line));
        assert_eq!(code(&output), 2, "{line}: {output:?}");
        assert!(changes(&stub).is_empty(), "{line}");
    }
}

#[test]
fn a_text_is_sent_and_shown_as_it_is() {
    let multipart = "Content-Type: multipart/mixed; boundary=\"x\"\n\n--x\n\n#cloud-config\n--x--";
    for (group, text) in [
        ("userdata", multipart),
        ("userdata", "#cloud-config\npackages: ['ü']\n"),
        ("userdata", "#!/bin/sh\nexit 0\n"),
        ("script", "pass\n"),
    ] {
        for (action, request) in [("add", "?name=new"), ("modify", "/new")] {
            let stub = Stub::start(server);
            let line = format!("{group} {action} new -");
            let output = User::of(&stub).answering(text, &words(&line));
            assert_eq!((code(&output), err(&output).as_str()), (0, ""), "{line}: {output:?}");
            let method = if action == "add" { "POST" } else { "PUT" };
            assert_eq!(changes(&stub), [format!("{method} /provisioner/{group}{request}")]);
            let sent = stub.received().into_iter().find(|one| one.method == method).unwrap();
            assert_eq!(decoded(&sent.body), format!("data={text}"), "{line}");
        }
    }
    let stub = Stub::start(server);
    let shown = User::of(&stub).run(&words("script show web"));
    assert_eq!((code(&shown), out(&shown).as_str()), (0, "pass"));
    let json = User::of(&stub).run(&words("userdata show web -f json"));
    assert!(out(&json).starts_with(r#"{"id": 1, "name": "web""#), "{json:?}");
}

#[test]
fn userdata_that_cloud_init_would_leave_alone_is_warned_of() {
    let stub = Stub::start(server);
    let output = User::of(&stub).answering("packages: [vim]\n", &words("userdata add new -"));
    assert_eq!(code(&output), 0);
    assert!(err(&output).starts_with("warning: cloud-init will not know"), "{output:?}");
}

#[test]
fn a_configuration_that_cloud_inits_schema_refuses_is_warned_of_and_kept() {
    let programs = tempfile::tempdir().unwrap();
    let program = programs.path().join("cloud-init");
    let text = "#cloud-config\npakages: [vim]\n";
    for (script, warning) in [
        (
            "[ \"$1 $2\" = 'schema --config-file' ] && grep -q pakages \"$3\" || exit 9\n\
             printf 'Error: pakages was\\033[1m unexpected\\n'; exit 1",
            "warning: cloud-init's schema refuses this configuration:\n\
             warning: Error: pakages was [1m unexpected\n",
        ),
        ("echo fine", ""),
        ("kill -9 $$", ""),
    ] {
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
        let stub = Stub::start(server);
        let user = User::of(&stub).with("PATH", &path);
        let output = user.answering(text, &words("userdata add new -"));
        assert_eq!((code(&output), err(&output).as_str()), (0, warning), "{script}");
        assert_eq!(changes(&stub).len(), 1);
        // A program of the guest is not held against it.
        let output = user.answering("#!/bin/sh\npakages\n", &words("userdata add new -"));
        assert_eq!(err(&output), "", "{script}");
    }
}

#[test]
fn a_script_with_a_syntax_error_is_warned_of_and_kept_and_nothing_of_it_is_run() {
    let stub = Stub::start(server);
    let user = User::of(&stub);
    let mark = user.home.path().join("was-run");
    let fine = format!("open({:?}, 'w')\nx = '\\d'\n", mark.display().to_string());
    for line in ["script add new -", "script modify web -"] {
        let output = user.answering("import os\ndef x(:\n", &words(line));
        assert_eq!((code(&output), out(&output).as_str()), (0, "done\n"), "{output:?}");
        let said = err(&output);
        let begins = said.starts_with("warning: the script has a syntax error, by Python 3.");
        assert!(begins && said.contains(": line 2: ") && said.lines().count() == 1, "{said}");
        let output = user.answering(&fine, &words(line));
        assert_eq!((code(&output), err(&output).as_str()), (0, ""), "{output:?}");
    }
    assert!(!mark.exists());
    assert_eq!(changes(&stub).len(), 4);
}

#[test]
fn without_a_python_that_answers_no_script_is_warned_of() {
    let programs = tempfile::tempdir().unwrap();
    let program = programs.path().join("python3");
    for script in ["", "#!/bin/sh\nkill -9 $$\n", "#!/bin/sh\necho Traceback; exit 1\n"] {
        if !script.is_empty() {
            std::fs::write(&program, script).unwrap();
            let mode = PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&program, mode).unwrap();
        }
        let stub = Stub::start(server);
        let user = User::of(&stub).with("PATH", programs.path().to_str().unwrap());
        let output = user.answering("def x(:\n", &words("script add new -"));
        assert_eq!((code(&output), err(&output).as_str()), (0, ""), "{script}: {output:?}");
        assert_eq!(changes(&stub).len(), 1);
    }
}

#[test]
fn what_a_script_says_is_printed_while_its_task_runs() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    // Number of lines that the script has written; with the last of them the task ends.
    let written = Arc::new(AtomicUsize::new(1));
    let said = written.clone();
    let stub = Stub::start(move |request, before| {
        let lines = said.load(Relaxed);
        match (request.method.as_str(), request.path()) {
            ("GET", "/api/v1/tasks/0a1b2c3d") => {
                let state = if lines < 3 { "RUNNING" } else { "SUCCESS" };
                ok(format!(
                    r#"{{"state": "{state}", "current": {lines}, "total": 3, "status": "at it"}}"#
                ))
            }
            ("GET", "/api/v1/tasks/0a1b2c3d/log") => {
                let log = (0..lines).map(|line| format!("line {line}")).collect::<Vec<_>>();
                ok(serde_json::json!({ "log": log }).to_string())
            }
            ("POST", _) => status(
                202,
                r#"{"task_id": "0a1b2c3d", "task_name": "provisioner.create", "run_on": "hv1"}"#,
            ),
            _ => server(request, before),
        }
    });
    let user = User::of(&stub);
    let line = ["provisioner", "create", "new1", "web", "--no-start", "--wait", "--script-arg"];
    let line = [&line[..], &["x=\"a\" = 'b'"]].concat();
    let mut child = user.command(&line).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    for number in 0..3 {
        let wanted = format!("line {number}");
        assert!(lines.any(|line| line == wanted), "{wanted} is printed");
        // The next one is not written before.
        written.store(3.min(number + 2), Relaxed);
    }
    assert_eq!(lines.collect::<Vec<_>>(), [""; 0]);
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(out(&output).ends_with("SUCCESS: at it\n"), "{output:?}");
    let asked = "POST /provisioner/create?name=new1&profile=web&define_vm=True&start_vm=False\
                 &arg=x%3D%22a%22%20%3D%20%27b%27";
    assert_eq!(changes(&stub), [asked]);
}

#[test]
fn a_text_that_is_edited_is_shown_and_asked_about() {
    let editor = "sed -i s/two/three/";
    for (answer, exit, count) in [("y\n", 0, 1), ("n\n", 1, 0)] {
        let stub = Stub::start(server);
        let user = User::of(&stub).with("EDITOR", editor);
        let output = user.answering(answer, &words("userdata modify web -e"));
        assert_eq!(code(&output), exit, "{output:?}");
        assert!(out(&output).contains("-two\n+three\n"), "{output:?}");
        assert_eq!(changes(&stub).len(), count);
    }
    let stub = Stub::start(server);
    let user = User::of(&stub).with("EDITOR", "true");
    let output = user.run(&words("script modify web -e"));
    assert_eq!(out(&output), "Aborting with no modifications.\n");
    assert!(changes(&stub).is_empty());
}
