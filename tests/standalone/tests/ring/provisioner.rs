//! Templates and profiles are kept by the whole program, across its death.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use pvc_standalone_tests::{Machine, exit};

fn words(line: &str) -> Vec<&str> {
    ["-q", "provisioner"].into_iter().chain(line.split(' ')).collect()
}

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
        machine.pvc(&words(&line)).ok();
    }
    machine.kill("standalone");
    machine.start_daemons();
    let shown = machine.pvc(&words("userdata show small"));
    assert_eq!(shown.ok(), "#cloud-config\npackages: [vim]\n");
    let listed = machine.pvc(&words("profile list -f json"));
    assert!(listed.ok().contains(r#""arguments": ["release=12"]"#), "{listed}");
    let refused = machine.pvc(&words("script remove small -y"));
    assert_eq!(refused.code, exit::FAILED, "{refused}");
    assert!(refused.stderr.contains("is used by profile `web`"), "{refused}");
    machine.pvc(&words("profile remove web -y")).ok();
    machine.pvc(&words("script remove small -y")).ok();
    machine.pvc(&words("script show small")).fails(exit::NOT_FOUND);
    // It may have passwords in it.
    let kept = machine.state().join("provisioner");
    let mode = fs::metadata(&kept).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "{}", kept.display());
}
