//! Starts that cannot succeed say why and what to do.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use pvc_standalone_tests::{Keeper, Machine, Output, Settings, eventually, exit, program, run};

fn pvcnoded(keeper: &Keeper, args: &[&str]) -> Output {
    let link = keeper.dir().join("pvcnoded");
    if !link.exists() {
        symlink(program("pvcd"), &link).expect("the test's directory can be written");
    }
    run(Command::new(link).args(args).env_clear(), "")
}

const TEN_MISTAKES: &str = "\
path:
  dynamic_directory: run/pvc
  system_log_directory: /var/log/pvc
  console_log_directory: /var/log/libvirt
  ceph_directory: /etc/ceph
subsystem:
  enable_hypervisor: maybe
  enable_networking: no
  enable_storage: no
cluster:
  name: one
  all_nodes: [one]
  coordinator_nodes: one
database:
  zookeeper:
    port: 70000
timer:
  keepalive_interval: soon
  vm_shutdown_timeout: -3
fencing:
  disable_on_ipmi_failure: no
  intervals:
    fence_intervall: 6
  ipmi:
    hostname: bmc
    username: admin
    password: hunter2
logging:
  console_log_lines: 1000.5
  stdout_logging: \"yes\"
api:
  listen:
    address: nowhere at all
    port: 7370
  authentication:
    enabled: yes
  token: []
";

#[test]
fn ten_mistakes_in_a_configuration_are_reported_at_once_without_any_service() {
    let keeper = Keeper::start();
    let version = pvcnoded(&keeper, &["--version"]);
    assert!(
        version.ok().split_whitespace().any(|word| word.starts_with(|c: char| c.is_ascii_digit())),
        "{version}"
    );

    let file = keeper.dir().join("ten.conf");
    fs::write(&file, TEN_MISTAKES).expect("the test's directory can be written");
    let path = file.to_string_lossy().into_owned();
    let checked = pvcnoded(&keeper, &["--check-config", &path]);
    let said = checked.fails(exit::FAILED);
    for key in [
        "dynamic_directory",
        "enable_hypervisor",
        "coordinator_nodes",
        "zookeeper.port",
        "keepalive_interval",
        "vm_shutdown_timeout",
        "fence_intervall",
        "console_log_lines",
        "stdout_logging",
        "listen.address",
    ] {
        let is_reported = said.lines().any(|line| line.contains(key));
        assert!(is_reported, "nothing is said about `{key}`: {said}");
    }
    let with_line = said.lines().filter(|line| line.contains("ten.conf:")).count();
    assert!(with_line >= 10, "{with_line} messages with file and line: {said}");
    assert!(said.contains("fence_intervals"), "the slip is not corrected: {said}");
    assert!(!said.contains("hunter2"), "a password is shown: {said}");

    // The daemon says the same, and does not start.
    let link = keeper.dir().join("pvcnoded");
    let started = run(Command::new(link).env_clear().env("PVC_CONFIG_FILE", &file), "");
    let also = started.fails(exit::FAILED);
    assert!(also.contains("fence_intervals") && also.contains("keepalive_interval"), "{also}");

    let missing = pvcnoded(&keeper, &["--check-config", "/no/such.conf"]).fails(exit::FAILED);
    assert!(missing.contains("/no/such.conf"), "{missing}");
    fs::write(&file, "a: [1, 2\nb: }\n").expect("the test's directory can be written");
    let no_yaml = pvcnoded(&keeper, &["--check-config", &path]).fails(exit::FAILED);
    assert!(no_yaml.contains("ten.conf:"), "{no_yaml}");
    fs::write(&file, [0xff, 0xfe, 0x00, 0x80]).expect("the test's directory can be written");
    pvcnoded(&keeper, &["--check-config", &path]).fails(exit::FAILED);

    let good = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/config/standalone.conf");
    pvcnoded(&keeper, &["--check-config", good]).ok();
}

#[test]
fn a_missing_libvirtd_is_waited_for_and_then_named() {
    let mut machine = Machine::prepared(Settings::default());
    let ended = machine.daemon_that_ends("standalone");
    assert_eq!(ended.code, 1, "{ended}");
    assert!(ended.said.contains("libvirt") && ended.said.contains("hint: "), "{ended}");
    assert!(ended.said.contains("systemctl status libvirtd"), "{ended}");

    // One that comes late is not too late.
    machine.spawn("standalone");
    eventually("waiting is the daemon", 20, || {
        let said = machine.said();
        if said.contains("waiting for the hypervisor") { Ok(()) } else { Err(said) }
    });
    machine.libvirt().start();
    eventually("running is the node", 40, || {
        let answer =
            machine.api().try_call("GET", "/node", &[], &[]).map_err(|error| error.to_string())?;
        if answer.text.contains("\"run\"") { Ok(()) } else { Err(answer.text) }
    });
    machine.define_hello("hello");
    machine.boot("hello");
}

#[test]
fn a_second_daemon_for_the_same_state_is_refused() {
    let machine = Machine::start();
    machine.define_hello("hello");
    let qemu = machine.boot("hello");
    let before = machine.entrusted();
    let first = machine.daemon("standalone").pid();

    let ended = machine.daemon_that_ends("standalone");
    assert_eq!(ended.code, 1, "{ended}");
    assert!(ended.said.contains("in use") && ended.said.contains(&first.to_string()), "{ended}");
    assert!(ended.said.contains("hint:"), "{ended}");

    // With a state of its own, it still cannot have the same address.
    let config = machine.configuration().replace(
        &machine.state().display().to_string(),
        &machine.dir().join("state2").display().to_string(),
    );
    machine.write_configuration(&config);
    let ended = machine.daemon_that_ends("standalone");
    assert_eq!(ended.code, 1, "{ended}");
    assert!(
        ended.said.contains(&machine.api().port.to_string()) && ended.said.contains("hint:"),
        "{ended}"
    );
    machine.write_configuration(&machine.configuration());

    assert_eq!(machine.entrusted(), before);
    assert_eq!(machine.qemu("hello"), qemu);
}
