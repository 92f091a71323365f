//! Templates and profiles are kept by the whole program, across its death, and make VMs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use pvc_standalone_tests::{Machine, eventually, exit, hello_image, repository};
use serde_json::Value;

#[test]
fn a_profile_outlives_a_daemon_that_is_killed() {
    let mut machine = Machine::start();
    let userdata = machine.dir().join("user.yaml");
    let script = machine.dir().join("build.py");
    fs::write(&userdata, "#cloud-config\npackages: [vim]\n").expect("it can be written");
    fs::write(&script, "pass\n").expect("it can be written");
    for line in [
        "template system add small -u 1 -m 64 -s --node-selector mem".to_owned(),
        "template network add small".to_owned(),
        "template network vni add small 1001".to_owned(),
        "template storage add small".to_owned(),
        "template storage disk add small sda -p vms -s 1 -f ext4 --fsarg L=root -m /".to_owned(),
        format!("userdata add small {}", userdata.display()),
        format!("script add small {}", script.display()),
        "profile add web -s small -n small -t small -u small -x small -a release=12".to_owned(),
    ] {
        machine.quietly(&format!("provisioner {line}")).ok();
    }
    machine.kill("standalone");
    machine.start_daemons();
    let shown = machine.quietly("provisioner userdata show small");
    assert_eq!(shown.ok(), "#cloud-config\npackages: [vim]\n");
    let listed = machine.quietly("provisioner profile list -f json");
    assert!(listed.ok().contains(r#""arguments": ["release=12"]"#), "{listed}");
    let refused = machine.quietly("provisioner script remove small -y");
    assert_eq!(refused.code, exit::FAILED, "{refused}");
    assert!(refused.stderr.contains("is used by profile `web`"), "{refused}");
    machine.quietly("provisioner profile remove web -y").ok();
    machine.quietly("provisioner script remove small -y").ok();
    machine.quietly("provisioner script show small").fails(exit::NOT_FOUND);
    // It may have passwords in it.
    let kept = machine.state().join("provisioner");
    let mode = fs::metadata(&kept).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "{}", kept.display());
}

/// A machine with the profile `web`, whose script is the example without a system, with `more` in
/// its class. Tests give their VMs different names: devices are those of the whole machine.
fn with_profile(more: &str) -> Machine {
    let machine = Machine::start();
    let example = repository().join("packaging/provisioner/examples/script/1-noop.py");
    let example = fs::read_to_string(example).expect("it is in the checkout");
    let script = machine.dir().join("build.py");
    fs::write(&script, format!("{example}\n{more}")).expect("it can be written");
    for line in [
        "template system add small -u 1 -m 192 -s".to_owned(),
        "template network add small".to_owned(),
        "template storage add small".to_owned(),
        "template storage disk add small sda -p vms -s 1".to_owned(),
        format!("script add small {}", script.display()),
        "profile add web -s small -n small -t small -x small -a said=ready".to_owned(),
    ] {
        machine.quietly(&format!("provisioner {line}")).ok();
    }
    machine
}

#[test]
fn a_vm_is_made_from_a_profile_by_its_script_and_boots() {
    let image = hello_image();
    let script = format!(
        r#"
    def setup(self):
        self.log_info(f"setup says {{self.vm_data['script_arguments']['said']}}")
        print("setup prints a line")
        subprocess.run(["echo", "a command prints another"], check=True)

    def prepare(self):
        with open_zk(config) as zk:
            done, said = pvc_ceph.add_volume(zk, "vms", f"{{self.vm_name}}_sda", "48M")
            if not done:
                self.fail(said)
            done, self.device = pvc_ceph.map_volume(zk, "vms", f"{{self.vm_name}}_sda")
            if not done:
                self.fail(self.device)

    def install(self):
        with open(self.device, "r+b") as device:
            device.write(IMAGE)

    def cleanup(self):
        with open_zk(config) as zk:
            pvc_ceph.unmap_volume(zk, "vms", f"{{self.vm_name}}_sda")


import subprocess

import daemon_lib.ceph as pvc_ceph
from daemon_lib.vmbuilder import open_zk
from pvcworkerd.Daemon import config

IMAGE = open("{}", "rb").read()
"#,
        image.display()
    );
    let machine = with_profile(&script);
    let line = "provisioner create made1 web -a said=now=ready";
    let made = machine.pvc(&line.split(' ').collect::<Vec<_>>());
    made.says(&["VM \"made1\" with profile \"web\" is provisioned, and starts"]);
    for line in ["setup says now=ready", "setup prints a line", "a command prints another"] {
        assert!(made.stderr.contains(line), "`{line}` is missing: {made}");
    }
    assert_eq!(machine.vm_state("made1"), "start", "the command has waited until it runs");
    eventually("the guest boots from what the script has written", 120, || {
        let log = machine.pvc(&["vm", "log", "made1"]);
        match log.stdout.contains("hello: boot 1") {
            true => Ok(()),
            false => Err(log),
        }
    });
    machine.volumes_are(&["vms/made1_sda"]);
    assert!(!std::path::Path::new("/dev/rbd/vms/made1_sda").exists(), "it is unmapped");
}

#[test]
fn a_script_that_fails_leaves_no_vm_and_no_volume() {
    let script = r#"
    def prepare(self):
        with open_zk(config) as zk:
            pvc_ceph.add_volume(zk, "vms", f"{self.vm_name}_sda", "48M")
            done, self.device = pvc_ceph.map_volume(zk, "vms", f"{self.vm_name}_sda")
        run_os_command(f"mkfs.ext4 -q {self.device}")
        os.mkdir("/tmp/target")
        code, _, why = run_os_command(f"mount {self.device} /tmp/target")
        if code:
            self.fail(why)

    def install(self):
        self.fail("there is no such release")


import os
import daemon_lib.ceph as pvc_ceph
from daemon_lib.common import run_os_command
from daemon_lib.vmbuilder import open_zk
from pvcworkerd.Daemon import config
"#;
    let machine = with_profile(script);
    let failed = machine.pvc(&["provisioner", "create", "broken1", "web", "--no-start"]);
    failed.fails(exit::FAILED);
    let why = "error in install(): ProvisioningError: there is no such release";
    assert!(failed.stderr.contains(why), "{failed}");
    machine.pvc(&["vm", "info", "broken1"]).fails(exit::NOT_FOUND);
    machine.volumes_are(&[]);
    assert!(!std::path::Path::new("/dev/rbd/vms/broken1_sda").exists(), "it is unmapped");
    let mounts = fs::read_to_string("/proc/mounts").expect("it can be read");
    assert!(!mounts.contains("/scripts/"), "{mounts}");
}

#[test]
fn a_daemon_that_is_killed_while_a_script_works_leaves_nothing_of_it() {
    // What its command line shows: the number of seconds is this test's alone.
    let script = r#"
    def prepare(self):
        self.log_info(json.dumps(self.vm_data["script_arguments"]))
        with open_zk(config) as zk:
            pvc_ceph.add_volume(zk, "vms", f"{self.vm_name}_sda", "48M")
            done, self.device = pvc_ceph.map_volume(zk, "vms", f"{self.vm_name}_sda")
        run_os_command(f"mkfs.ext4 -q {self.device}")
        os.mkdir("/tmp/target")
        code, _, why = run_os_command(f"mount {self.device} /tmp/target")
        if code:
            self.fail(why)

    def install(self):
        subprocess.Popen(["setsid", "sleep", "86017"], cwd="/tmp/target")
        self.log_info("it is mounted")
        subprocess.run(["sleep", "86017"])


import json
import os
import subprocess
import daemon_lib.ceph as pvc_ceph
from daemon_lib.common import run_os_command
from daemon_lib.vmbuilder import open_zk
from pvcworkerd.Daemon import config
"#;
    let mut machine = with_profile(script);
    let arguments = [("odd", "\"a\" 'b' = c, $d\nsecond line\\"), ("said", "é")];
    let given = arguments.map(|(name, value)| format!("{name}={value}"));
    let mut line = vec!["provisioner", "create", "killed1", "web", "--no-wait", "-f", "json"];
    line.extend(given.iter().flat_map(|argument| ["-a", argument]));
    let task: Value = serde_json::from_str(machine.pvc(&line).ok()).expect("it is JSON");
    let task = task["task_id"].as_str().expect("it is a text").to_owned();
    let log = || {
        let log = machine.pvc(&["task", "log", &task, "-f", "raw"]);
        match log.stdout.contains("it is mounted") {
            true => Ok(log.stdout),
            false => Err(log),
        }
    };
    let log = eventually("the script comes so far", 60, log);
    let line = log.lines().find_map(|line| Some(&line[line.find('{')?..]));
    let logged: BTreeMap<String, String> =
        serde_json::from_str(line.expect("it is logged")).expect("it is JSON");
    assert_eq!(logged, arguments.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    eventually("the script waits, and a process that it has left", 60, || match sleepers() {
        2 => Ok(()),
        number => Err(number),
    });

    machine.kill("standalone");
    machine.start_daemons();
    let ended = eventually("the task is over", 120, || {
        let shown = machine.pvc(&["task", "show", &task, "-f", "json"]);
        let ended: Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
        match ended["state"].as_str() {
            Some("FAILURE") => Ok(ended),
            _ => Err(shown),
        }
    });
    assert!(ended.to_string().contains("its worker stopped"), "{ended}");
    machine.pvc(&["vm", "info", "killed1"]).fails(exit::NOT_FOUND);
    machine.volumes_are(&[]);
    assert_eq!(sleepers(), 0);
    let device = std::path::Path::new("/dev/rbd/vms/killed1_sda");
    assert!(fs::symlink_metadata(device).is_err(), "it is unmapped");
    let mounts = fs::read_to_string("/proc/mounts").expect("it can be read");
    assert!(!mounts.contains("/scripts/") && !mounts.contains("killed1_sda"), "{mounts}");
    // The name is free.
    let again = machine.pvc(&["provisioner", "create", "killed1", "web", "--dry-run"]);
    again.ok();
}

/// Number of processes that the script of the test above has started.
fn sleepers() -> usize {
    let processes = fs::read_dir("/proc").expect("there are processes").filter_map(Result::ok);
    let is_one = |process: &fs::DirEntry| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        line.starts_with(b"sleep\x0086017\0")
    };
    processes.filter(is_one).count()
}
