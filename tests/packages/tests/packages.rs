//! What the packages do to a machine, and what they leave alone.

use pvc_packages_tests::Machine;

const DAEMONS: [&str; 3] = ["pvcnoded.service", "pvcworkerd.service", "pvcapid.service"];

#[test]
fn the_first_installation_enables_what_a_boot_starts_and_starts_nothing() {
    let machine = Machine::new();
    machine.install(1);
    assert_eq!(machine.told(), [""; 0]);
    let enabled =
        machine.run("cd /etc/systemd/system && ls pvc.target.wants multi-user.target.wants | grep pvc");
    for unit in ["pvcnoded.service", "pvcworkerd.service", "pvcautoready.service", "pvc.target"] {
        assert!(enabled.lines().any(|line| line == unit), "{enabled}");
    }
    // The node daemon does that, on the primary.
    assert!(!enabled.contains("pvcapid"), "{enabled}");
    assert!(!machine.has("/etc/pvc/pvc.conf"), "the configuration is the administrator's to write");
}

#[test]
fn every_program_runs_under_its_name() {
    let machine = Machine::new();
    machine.install(1);
    for program in ["pvcnoded", "pvcapid", "pvcworkerd", "pvc-standalone"] {
        let version = machine.run(&format!("/usr/sbin/{program} --version"));
        assert_eq!(version.trim(), format!("{program} {}", env!("CARGO_PKG_VERSION")));
    }
    assert!(machine.run("pvc --version").contains(env!("CARGO_PKG_VERSION")));
    for page in ["man8/pvcnoded.8.gz", "man8/pvcd.8.gz", "man1/pvc.1.gz", "man1/pvc-vm-start.1.gz"] {
        machine.run(&format!("gzip --test /usr/share/man/{page}"));
    }
    machine.run("bash -n /usr/share/bash-completion/completions/pvc");
}

#[test]
fn the_samples_can_be_used() {
    let machine = Machine::new();
    machine.install(1);
    for sample in ["pvc.conf", "pvcnoded.yaml"] {
        machine.run(&format!("pvcnoded --check-config /usr/share/doc/pvc-daemon-common/examples/{sample}"));
    }
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    let machine = Machine::new();
    machine.install(1);
    let units = format!("pvc.target pvcautoready.service {}", DAEMONS.join(" "));
    let found = machine.run(&format!("systemd-analyze verify --man=no {units}"));
    let ours: Vec<&str> = found.lines().filter(|line| line.contains("pvc")).collect();
    assert_eq!(ours, [""; 0]);
}

#[test]
fn the_api_is_given_little_and_the_boots_helper_next_to_nothing() {
    let machine = Machine::new();
    machine.install(1);
    // systemd's own measure, from 0 (nothing is exposed) to 100 (everything is).
    for (unit, most) in [("pvcautoready", 25), ("pvcapid", 45)] {
        machine.run(&format!("systemd-analyze security --offline=yes --threshold={most} {unit}.service"));
    }
}

#[test]
fn an_upgrade_restarts_the_daemons_that_run_and_no_others() {
    let machine = Machine::new();
    machine.install(1);
    machine.configure();
    machine.running(&["pvcnoded.service", "pvcapid.service"]);
    machine.told();
    machine.install(2);
    let mut told = machine.told();
    told.sort();
    assert_eq!(
        told,
        ["--quiet --system restart pvcapid.service", "--quiet --system restart pvcnoded.service"]
    );
}

#[test]
fn a_version_that_cannot_use_the_configuration_does_not_take_over() {
    let machine = Machine::new();
    machine.install(1);
    machine.write("/etc/pvc/pvc.conf", "cluster:\n  name: [unfinished\n", 0o640);
    machine.running(&DAEMONS);
    machine.told();
    let said = machine.install(2);
    assert_eq!(machine.told(), [""; 0]);
    assert!(said.contains("/etc/pvc/pvc.conf:"), "the mistake is named: {said}");
    assert!(said.contains("pvcnoded.service was not restarted"), "{said}");
}

#[test]
fn an_administrator_who_wants_nothing_started_is_heard() {
    let machine = Machine::new();
    machine.install(1);
    machine.configure();
    machine.running(&DAEMONS);
    machine.policy(101);
    machine.told();
    machine.install(2);
    assert_eq!(machine.told(), [""; 0]);
}

#[test]
fn what_an_administrator_disabled_stays_so() {
    let machine = Machine::new();
    machine.install(1);
    // What `systemctl disable pvcautoready` does.
    machine.run("rm /etc/systemd/system/pvc.target.wants/pvcautoready.service");
    machine.install(2);
    assert!(!machine.has("/etc/systemd/system/pvc.target.wants/pvcautoready.service"));
    assert!(machine.has("/etc/systemd/system/pvc.target.wants/pvcnoded.service"));
}

#[test]
fn a_removal_stops_our_daemons_and_a_purge_keeps_configuration_and_volumes() {
    let machine = Machine::new();
    machine.install(1);
    machine.configure();
    machine.write("/var/log/pvc/pvcnoded.log", "", 0o640);
    machine.write("/var/lib/pvc/volumes/vms/web1_disk0.raw", "", 0o600);
    machine.told();
    let all = "pvc-daemon-node pvc-daemon-api pvc-daemon-worker pvc-client-cli pvc-daemon-common";
    machine.dpkg(&format!("--remove {all}"));
    let mut told = machine.told();
    told.sort();
    assert_eq!(told, ["stop pvcapid.service", "stop pvcnoded.service", "stop pvcworkerd.service"]);
    assert!(machine.has("/var/log/pvc/pvcnoded.log"));

    machine.dpkg(&format!("--purge {all}"));
    assert_eq!(machine.told(), [""; 0]);
    assert!(!machine.has("/var/log/pvc"));
    assert!(machine.has("/etc/pvc/pvc.conf"));
    assert!(machine.has("/var/lib/pvc/volumes/vms/web1_disk0.raw"));
    assert!(!machine.has("/etc/systemd/system/pvc.target.wants/pvcnoded.service"));
}

/// Packages of the original's names, with files where it has them.
const ORIGINAL: &str = r#"
set -e
make() { # name file…
    name=$1; shift
    mkdir -p /tmp/original/$name/DEBIAN
    printf 'Package: %s\nVersion: 1.0.3-0\nArchitecture: all\nMaintainer: x <x@y.z>\nDescription: x\n' "$name" \
        >/tmp/original/$name/DEBIAN/control
    for file; do
        mkdir -p /tmp/original/$name/$(dirname $file)
        echo old >/tmp/original/$name/$file
    done
    dpkg-deb --build /tmp/original/$name >/dev/null
    dpkg --no-triggers --install /tmp/original/$name.deb
}
make pvc-daemon-common usr/share/pvc/daemon_lib/common.py
make pvc-daemon-node usr/share/pvc/pvcnoded.py lib/systemd/system/pvcnoded.service lib/systemd/system/pvc.target
make pvc-daemon-worker usr/share/pvc/pvcworkerd.py lib/systemd/system/pvcworkerd.service
make pvc-daemon-api usr/share/pvc/pvcapid.py lib/systemd/system/pvcapid.service
make pvc-client-cli usr/bin/pvc
"#;

#[test]
fn the_original_is_replaced_in_place_and_its_configuration_stays() {
    let machine = Machine::new();
    machine.run(ORIGINAL);
    machine.configure();
    machine.running(&["pvcnoded.service", "pvcworkerd.service"]);
    machine.told();
    machine.install(1);
    let mut told = machine.told();
    told.sort();
    assert_eq!(
        told,
        ["--quiet --system restart pvcnoded.service", "--quiet --system restart pvcworkerd.service"]
    );
    assert!(!machine.has("/usr/share/pvc/pvcnoded.py"));
    assert!(machine.has("/usr/bin/pvc") && machine.has("/usr/bin/pvc-sim"));
    for unit in ["pvc.target", "pvcnoded.service", "pvcworkerd.service"] {
        assert!(!machine.run(&format!("cat /lib/systemd/system/{unit}")).contains("old"), "{unit}");
    }
    assert!(machine.has("/etc/pvc/pvc.conf"));
    let versions = machine.run("dpkg-query -W -f '${db:Status-Status} ${Version}\\n' 'pvc-*'");
    let versions: Vec<&str> = versions.lines().filter(|line| !line.starts_with("not-installed")).collect();
    assert_eq!(versions, [concat!("installed 1:", env!("CARGO_PKG_VERSION"), "-1"); 5]);
}

#[test]
fn the_packages_are_newer_than_any_of_the_original() {
    let machine = Machine::new();
    let version = machine.run("dpkg-deb --field /mnt/1/pvc-daemon-node_*.deb Version");
    machine.run(&format!("dpkg --compare-versions '{}' gt 99.0-0", version.trim()));
}

#[test]
fn nothing_of_this_machine_is_changed_by_these_tests() {
    let machine = Machine::new();
    machine.run("mkdir -p /etc/pvc && touch /etc/pvc/made-by-a-test");
    assert!(machine.has("/etc/pvc/made-by-a-test"), "it is still there in the next call");
    assert!(!std::path::Path::new("/etc/pvc/made-by-a-test").exists());
}

#[test]
fn a_pvc_that_this_machine_runs_is_not_on_its_copies() {
    let of_pvc = [
        "/etc/pvc/pvc.conf",
        "/var/lib/pvc/tree/tree.redb",
        "/var/log/pvc/pvcnoded.log",
        "/usr/local/bin/pvc",
        "/usr/local/bin/pvcd",
        "/usr/local/bin/pvc-sim",
    ];
    let machine = Machine::copy_of_one_with(&[&of_pvc[..], &["/etc/of-somebody-else"]].concat());
    for path in of_pvc {
        assert!(!machine.has(path), "{path}");
    }
    assert!(machine.has("/etc/of-somebody-else"), "all else is there");
    machine.configure();
    let configuration = machine.run("cat /etc/pvc/pvc.conf");
    assert!(!configuration.contains("this machine's"), "the test's own is seen: {configuration}");
}
