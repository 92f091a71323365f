//! What signals do to a daemon.

use std::fs;

use nix::sys::signal::Signal;
use pvc_standalone_tests::{Machine, Outside, Settings, eventually};

#[test]
fn each_signal_that_asks_a_daemon_to_stop_ends_it_cleanly() {
    let mut machine = Machine::with(Settings { cluster: true, ..Settings::default() });
    let outside = Outside::connect(&machine.zookeeper().address());
    let state = format!("/nodes/{}/daemonstate", machine.node());
    for (signal, name) in [(Signal::SIGINT, "SIGINT"), (Signal::SIGQUIT, "SIGQUIT")] {
        assert_eq!(outside.get(&state).as_deref(), Some(b"run".as_slice()));
        for role in ["worker", "api", "node"] {
            let ended = machine.stop_by(role, signal);
            assert_eq!(ended.code, 0, "{role}: {ended}");
            assert!(ended.said.contains(&format!("asked to stop by {name}")), "{role}: {ended}");
        }
        // A daemon that was just killed would have left what it said before.
        assert_eq!(outside.get(&state).as_deref(), Some(b"stop".as_slice()), "after {name}");
        machine.start_daemons();
    }
}

#[test]
fn a_hangup_opens_the_log_file_again_after_it_was_moved_away() {
    let mut machine = Machine::prepared(Settings::default());
    // So that there is always a next line.
    machine
        .write_configuration(&machine.configuration().replace("log_keepalives: no", "log_keepalives: yes"));
    machine.libvirt().start();
    machine.start_daemons();
    let file = machine.dir().join("log/pvcnoded.log");
    let moved = machine.dir().join("pvcnoded.log.1");
    let keepalives = |path: &std::path::Path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().filter(|line| line.contains("keepalive") && line.contains("role=")).count()
    };
    let more_than = |path: &std::path::Path, before: usize| {
        let now = keepalives(path);
        if now > before { Ok(()) } else { Err(format!("{now} lines in {}", path.display())) }
    };
    eventually("logged are keepalives", 30, || more_than(&file, 0));

    fs::rename(&file, &moved).expect("the log is there");
    let before = keepalives(&moved);
    eventually("written to is the file that was moved", 30, || more_than(&moved, before));
    assert!(!file.exists(), "nothing opens the log again unasked");

    machine.daemon("standalone").signal(Signal::SIGHUP);
    eventually("written to is the new file", 30, || more_than(&file, 0));
    let old = fs::read(&moved).expect("it is there");
    let before = keepalives(&file);
    eventually("written to is the new file again", 30, || more_than(&file, before + 1));
    assert!(fs::read(&moved).expect("it is there") == old, "the old file is still written to");
    machine.all_daemons_run();
}
