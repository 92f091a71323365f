//! Tests of what the packages do to a machine, and what they leave alone.

#![allow(clippy::disallowed_methods, reason = "nothing is simulated here")]

use pvc_packages_tests::Machine;

const DAEMONS: [&str; 3] = ["pvcnoded.service", "pvcworkerd.service", "pvcapid.service"];

/// Units that a boot starts.
const OF_A_BOOT: [&str; 4] =
    ["pvcnoded.service", "pvcworkerd.service", "pvcautoready.service", "pvc.target"];

/// The units of PVC that are enabled, one a line.
fn started_at_boot(machine: &Machine) -> String {
    machine.run("cd /etc/systemd/system && ls pvc.target.wants multi-user.target.wants | grep pvc")
}

fn not_among<'u>(enabled: &str, units: &[&'u str]) -> Vec<&'u str> {
    units.iter().copied().filter(|unit| !enabled.lines().any(|line| line == *unit)).collect()
}

#[test]
fn the_first_installation_enables_what_a_boot_starts_and_starts_nothing() {
    let machine = Machine::new();
    machine.install(1);
    assert_eq!(machine.systemctl_calls(), [""; 0]);
    let enabled = started_at_boot(&machine);
    assert_eq!(not_among(&enabled, &OF_A_BOOT), [""; 0], "{enabled}");
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
    for page in ["man8/pvcnoded.8.gz", "man8/pvcd.8.gz", "man1/pvc.1.gz", "man1/pvc-vm-start.1.gz"]
    {
        machine.run(&format!("gzip --test /usr/share/man/{page}"));
    }
    machine.run("bash -n /usr/share/bash-completion/completions/pvc");
}

#[test]
fn the_samples_can_be_used() {
    let machine = Machine::new();
    machine.install(1);
    for sample in ["pvc.conf", "pvcnoded.yaml"] {
        machine.run(&format!(
            "pvcnoded --check-config /usr/share/doc/pvc-daemon-common/examples/{sample}"
        ));
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
fn each_unit_is_given_what_its_work_needs_and_no_more() {
    let machine = Machine::new();
    machine.install(1);
    // systemd's own measure, from 0 (nothing is exposed) to 100 (everything is).
    for (unit, most) in
        [("pvcautoready", 25), ("pvcapid", 30), ("pvcnoded", 50), ("pvcworkerd", 75)]
    {
        machine.run(&format!(
            "systemd-analyze security --offline=yes --threshold={most} {unit}.service"
        ));
    }
}

/// A program that the daemon starts may do what the daemon may, and no more.
#[test]
fn a_node_that_is_cut_off_may_reset_its_machine() {
    let machine = Machine::new();
    machine.install(1);
    let unit = machine.run("cat /lib/systemd/system/pvcnoded.service");
    let of = |key: &str| {
        let lines = unit.lines().filter_map(|line| line.strip_prefix(key));
        lines.flat_map(|line| line.split_whitespace().map(str::to_owned)).collect::<Vec<_>>()
    };
    assert!(of("CapabilityBoundingSet=").contains(&"CAP_SYS_BOOT".to_owned()), "{unit}");
    // Of the group, which has those that load a kernel as well, one is taken out.
    assert!(of("SystemCallFilter=~").contains(&"@reboot".to_owned()), "{unit}");
    assert!(of("SystemCallFilter=").contains(&"reboot".to_owned()), "{unit}");
}

#[test]
fn an_upgrade_restarts_the_daemons_that_run_and_no_others() {
    let machine = Machine::new();
    machine.install(1);
    machine.configure();
    machine.running(&["pvcnoded.service", "pvcapid.service"]);
    machine.systemctl_calls();
    machine.install(2);
    let mut calls = machine.systemctl_calls();
    calls.sort();
    assert_eq!(
        calls,
        ["--quiet --system restart pvcapid.service", "--quiet --system restart pvcnoded.service"]
    );
}

#[test]
fn a_version_that_cannot_use_the_configuration_does_not_take_over() {
    let machine = Machine::new();
    machine.install(1);
    machine.write("/etc/pvc/pvc.conf", "cluster:\n  name: [unfinished\n", 0o640);
    machine.running(&DAEMONS);
    machine.systemctl_calls();
    let said = machine.install(2);
    assert_eq!(machine.systemctl_calls(), [""; 0]);
    assert!(said.contains("/etc/pvc/pvc.conf:"), "the mistake is named: {said}");
    assert!(said.contains("pvcnoded.service was not restarted"), "{said}");
}

#[test]
fn nothing_is_started_for_an_administrator_who_does_not_want_it() {
    let machine = Machine::new();
    machine.install(1);
    machine.configure();
    machine.running(&DAEMONS);
    machine.policy(101);
    machine.systemctl_calls();
    machine.install(2);
    assert_eq!(machine.systemctl_calls(), [""; 0]);
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
    machine.systemctl_calls();
    let all = "pvc-daemon-node pvc-daemon-api pvc-daemon-worker pvc-client-cli pvc-daemon-common";
    machine.dpkg(&format!("--remove {all}"));
    let mut calls = machine.systemctl_calls();
    calls.sort();
    assert_eq!(calls, ["stop pvcapid.service", "stop pvcnoded.service", "stop pvcworkerd.service"]);
    assert!(machine.has("/var/log/pvc/pvcnoded.log"));

    machine.dpkg(&format!("--purge {all}"));
    assert_eq!(machine.systemctl_calls(), [""; 0]);
    assert!(!machine.has("/var/log/pvc"));
    assert!(machine.has("/etc/pvc/pvc.conf"));
    assert!(machine.has("/var/lib/pvc/volumes/vms/web1_disk0.raw"));
    assert!(!machine.has("/etc/systemd/system/pvc.target.wants/pvcnoded.service"));
}

/// Packages with the names of those of PVC 1.0.3, with files where it has them, and with what its
/// scripts do to units: they enable them when they are set up, and disable them, without stopping a
/// daemon, before they are replaced or removed.
const PVC_1_0_3: &str = r#"
set -e
make() { # name "unit…" file…
    name=$1 units=$2; shift 2
    control=/tmp/pvc-1.0.3/$name/DEBIAN
    mkdir -p $control
    printf 'Package: %s\nVersion: 1.0.3-0\nArchitecture: all\n' "$name" >$control/control
    printf 'Maintainer: x <x@y.z>\nDescription: x\n' >>$control/control
    for file; do
        mkdir -p /tmp/pvc-1.0.3/$name/$(dirname $file)
        echo old >/tmp/pvc-1.0.3/$name/$file
        case $file in
            *.target) printf '[Install]\nWantedBy=multi-user.target\n' >/tmp/pvc-1.0.3/$name/$file ;;
            *.service) printf '[Install]\nWantedBy=pvc.target\n' >/tmp/pvc-1.0.3/$name/$file ;;
        esac
    done
    if [ -n "$units" ]; then
        printf '#!/bin/sh\nset -e\nsystemctl daemon-reload\nsystemctl enable %s\n' "$units" \
            >$control/postinst
        printf '#!/bin/sh\nset -e\nsystemctl disable %s\n' "$units" >$control/prerm
        chmod 755 $control/postinst $control/prerm
    fi
    dpkg-deb --build /tmp/pvc-1.0.3/$name >/dev/null
}
etc=lib/systemd/system
make pvc-daemon-common '' usr/share/pvc/daemon_lib/common.py
make pvc-daemon-node 'pvcnoded.service pvc.target' usr/share/pvc/pvcnoded.py \
    $etc/pvcnoded.service $etc/pvc.target
make pvc-daemon-worker pvcworkerd.service usr/share/pvc/pvcworkerd.py $etc/pvcworkerd.service
make pvc-daemon-health pvchealthd.service usr/share/pvc/pvchealthd.py $etc/pvchealthd.service
make pvc-daemon-api '' usr/share/pvc/pvcapid.py $etc/pvcapid.service
make pvc-client-cli '' usr/bin/pvc
dpkg --no-triggers --force-downgrade --auto-deconfigure --install /tmp/pvc-1.0.3/*.deb
"#;

/// Command for what apt does on its own when ours comes: its common package breaks the health
/// daemon of PVC 1.0.3.
const WITHOUT_HEALTH: &str = "dpkg --no-triggers --force-depends --remove pvc-daemon-health";

#[test]
fn pvc_1_0_3_is_replaced_in_place_and_its_configuration_stays() {
    let machine = Machine::new();
    machine.run(PVC_1_0_3);
    machine.configure();
    machine.running(&["pvcnoded.service", "pvcworkerd.service"]);
    machine.systemctl_calls();
    machine.run(WITHOUT_HEALTH);
    machine.install(1);
    let mut calls = machine.systemctl_calls();
    calls.sort();
    assert_eq!(
        calls,
        [
            "--quiet --system restart pvcnoded.service",
            "--quiet --system restart pvcworkerd.service"
        ]
    );
    assert!(!machine.has("/usr/share/pvc/pvcnoded.py"));
    assert!(machine.has("/usr/bin/pvc") && machine.has("/usr/bin/pvc-sim"));
    for unit in ["pvc.target", "pvcnoded.service", "pvcworkerd.service"] {
        assert!(!machine.run(&format!("cat /lib/systemd/system/{unit}")).contains("old"), "{unit}");
    }
    assert!(machine.has("/etc/pvc/pvc.conf"));
    let versions = machine.run("dpkg-query -W -f '${db:Status-Status} ${Version}\\n' 'pvc-*'");
    let versions: Vec<&str> =
        versions.lines().filter(|line| !line.starts_with("not-installed")).collect();
    assert_eq!(versions, [concat!("installed 1:", env!("CARGO_PKG_VERSION"), "-1"); 5]);
}

#[test]
fn ours_pvc_1_0_3_and_ours_again_are_started_at_a_boot_each() {
    let machine = Machine::new();
    machine.install(1);
    machine.run(PVC_1_0_3);
    let of_pvc_1_0_3 = started_at_boot(&machine);
    let its_own = ["pvcnoded.service", "pvcworkerd.service", "pvchealthd.service", "pvc.target"];
    assert_eq!(not_among(&of_pvc_1_0_3, &its_own), [""; 0], "{of_pvc_1_0_3}");
    machine.run(WITHOUT_HEALTH);
    machine.install(2);
    let enabled = started_at_boot(&machine);
    assert_eq!(not_among(&enabled, &OF_A_BOOT), [""; 0], "{enabled}");
    assert!(!enabled.contains("pvchealthd"), "{enabled}");
}

#[test]
fn what_an_administrator_disabled_stays_so_although_pvc_1_0_3_was_there() {
    let machine = Machine::new();
    machine.install(1);
    machine.run("rm /etc/systemd/system/pvc.target.wants/pvcautoready.service");
    machine.run(PVC_1_0_3);
    machine.run(WITHOUT_HEALTH);
    machine.install(2);
    // PVC 1.0.3 disables other units than this one.
    assert!(!machine.has("/etc/systemd/system/pvc.target.wants/pvcautoready.service"));
}

/// apt may set packages up one by one: the target is the common package's here, and was the node
/// package's.
#[test]
fn the_target_is_enabled_although_pvc_1_0_3_disables_it_last() {
    let machine = Machine::new();
    machine.install(1);
    machine.run(PVC_1_0_3);
    machine.run(WITHOUT_HEALTH);
    for package in ["pvc-daemon-common", "pvc-daemon-worker", "pvc-daemon-api", "pvc-daemon-node"] {
        machine.dpkg(&format!("--force-depends --force-breaks --install /mnt/2/{package}_*.deb"));
    }
    let enabled = started_at_boot(&machine);
    assert_eq!(not_among(&enabled, &OF_A_BOOT), [""; 0], "{enabled}");
}

#[test]
fn the_health_daemon_of_pvc_1_0_3_ends_when_its_package_has_gone() {
    let machine = Machine::new();
    machine.run(PVC_1_0_3);
    machine.configure();
    machine.running(&["pvchealthd.service"]);
    machine.run(WITHOUT_HEALTH);
    assert_eq!(machine.systemctl_calls(), [""; 0], "its own package leaves it running");
    machine.install(1);
    assert_eq!(machine.systemctl_calls(), ["stop pvchealthd.service"]);
}

#[test]
fn the_packages_are_newer_than_any_of_pvc_1_0_3() {
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
