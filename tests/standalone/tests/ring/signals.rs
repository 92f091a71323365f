//! Effects of signals to a daemon.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

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
    machine.write_configuration(
        &machine.configuration().replace("log_keepalives: no", "log_keepalives: yes"),
    );
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

/// Time that a daemon may take to end that was asked to while it starts.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn a_daemon_that_zookeeper_never_answers_ends_soon_when_it_is_asked_to() {
    let mut machine = Machine::prepared(Settings { cluster: true, ..Settings::default() });
    let silent = TcpListener::bind("127.0.0.1:0").expect("there are ports");
    let port = |address: &str| format!("port: {}", address.rsplit(':').next().unwrap_or_default());
    let (real, ours) = (
        port(&machine.zookeeper().address()),
        port(&silent.local_addr().expect("it is bound").to_string()),
    );
    let text = machine.configuration();
    assert!(text.contains(&real), "{text}");
    machine.write_configuration(&text.replace(&real, &ours));
    machine.libvirt().start();
    for role in ["worker", "api", "node"] {
        machine.spawn(role);
        let (_connection, _) = silent.accept().expect("it connects");
        let asked = Instant::now();
        let ended = machine.stop_by(role, Signal::SIGTERM);
        assert!(asked.elapsed() < SOON, "{role}: {:?}: {ended}", asked.elapsed());
        assert_eq!(ended.code, 0, "{role}: {ended}");
    }
}

/// Whether QEMU runs the guest with which a daemon finds out about KVM, for the one with this
/// state.
fn probe_runs(state: &Path) -> bool {
    let state = state.display().to_string();
    let processes = fs::read_dir("/proc").expect("/proc is there").flatten();
    let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| {
        let line = String::from_utf8_lossy(&line);
        line.contains("guest=pvc-kvm-probe") && line.contains(&state)
    })
}

#[test]
fn a_daemon_that_finds_out_about_kvm_ends_soon_when_it_is_asked_to_and_leaves_no_guest() {
    let mut machine = Machine::prepared(Settings::default());
    let text = machine.configuration();
    let known = text.lines().find(|line| line.contains("dynamic_directory")).expect("it is given");
    // Where nothing is known about KVM yet.
    let unknown = format!("  dynamic_directory: {}/dynamic", machine.dir().display());
    machine.write_configuration(&text.replace(known, &unknown));
    machine.libvirt().start();
    let state = machine.state();
    machine.spawn("standalone");
    eventually("there is the probe's guest", 60, || {
        // Where KVM works, it may have ended before anybody saw it.
        let is_over = machine.log().contains("the hypervisor answers");
        if probe_runs(&state) || is_over { Ok(()) } else { Err(machine.said()) }
    });
    let asked = Instant::now();
    let ended = machine.stop_by("standalone", Signal::SIGTERM);
    assert!(asked.elapsed() < SOON, "{:?}: {ended}", asked.elapsed());
    assert_eq!(ended.code, 0, "{ended}");
    assert!(!probe_runs(&state), "{ended}");
}
