//! A Debian that the example script installs on the lab's Ceph, and one of an image of it.

use pvc_lab_tests::Lab;
use pvc_standalone_tests::{CLOUD_INIT_IS_DONE, Output, debian_profile, debian_userdata};

use crate::guest_networks::a_network_is_made;
use crate::provisioner::{KEY, goes_with_its_volumes, line, nothing_is_mapped, purge};

/// The script, as PVC's packages bring it.
const SCRIPT: &str = "/usr/share/pvc/provisioner/examples/script/3-debootstrap.py";

/// The files of the story, on the node that it asks.
const NODE: &str = "pvchv1";
const DISK: &str = "/root/deb1.qcow2";
const KEYS: &str = "/root/deb2.pub";

/// The volumes that the story leaves in the trash: the disks of its VMs, and the empty one in whose
/// place the contents of the image came.
const TRASHED: [&str; 4] = ["deb1_sda", "deb2_sda", "deb2_cidata", "new_image_debian"];

/// Seconds that an installation, or what is done with the contents of its disk, may take.
const WORK: u64 = 1_800;

/// Seconds that a guest may take to boot, and cloud-init in it to come to its end: nothing but
/// software runs it here.
const BOOT: u64 = 1_200;

#[test]
fn a_debian_of_the_example_script_and_one_of_an_image_of_it_boot_from_ceph_with_their_data() {
    // Beside other stories, services in the guests take longer than systemd waits for them.
    let lab = Lab::whole_and_quiet();
    let archive = lab.archive();
    nothing_is_left_of_an_earlier_time(&lab);
    a_network_is_made(&lab);
    let primary = lab.primary();
    lab.until_database_leads_on(&primary);
    // There already, if an earlier story has made it.
    lab.pvc(&["storage", "pool", "add", "vms", "16"]);
    a_profile_is_made(&lab);
    lab.has_plain_loop_devices(&primary);
    let create = format!("provisioner create deb1 debian -a deb_mirror={archive} --no-start");
    at_length(&lab, &create).says(&["deb1"]);
    nothing_is_mapped(&lab, "deb1");

    // What an image is made of is the disk before its first boot.
    line(&lab, "storage volume snapshot add vms deb1_sda new").ok();
    an_image_is_made_of_the_snapshot(&lab);
    line(&lab, "vm start deb1 --wait").ok();
    let runs = lab.running_on("deb1");
    let [first] = &runs[..] else { panic!("it runs on {runs:?}") };
    shows(&lab, first, "deb1", &["userdata of the profile on deb1", CLOUD_INIT_IS_DONE]);

    let data = user_data(&lab, "deb2", "of its own");
    lab.put(NODE, KEYS, &format!("{KEY}\n"));
    // Its network begins on another node.
    let node = lab.witness(&primary);
    let made = format!(
        "vm create deb2 --image debian --vcpus 1 --memory 768M --disk 3G --network 1001 --ssh-key \
         {KEYS} --user-data {data} --target {node} --start --wait"
    );
    at_length(&lab, &made).ok();
    assert_eq!(lab.running_on("deb2"), [node], "the command has waited until it runs");
    lab.on(NODE, "rbd info vms/deb2_sda").says(&["parent: vms/", "size 3 GiB"]);

    shows(&lab, node, "deb2", &["userdata of its own on deb2", KEY, CLOUD_INIT_IS_DONE]);
    for vm in ["deb1", "deb2"] {
        line(&lab, &format!("vm info {vm}")).says(&["10.20.1."]);
    }
    all_of_it_goes(&lab);
}

/// A line of `pvc` that may take some minutes.
fn at_length(lab: &Lab, line: &str) -> Output {
    lab.on(NODE, &format!("timeout {WORK} pvc --unsafe --connection local {line}"))
}

/// A file with userdata that say whose they are, and who may log in.
fn user_data(lab: &Lab, vm: &str, whose: &str) -> String {
    let path = format!("/root/{vm}.yaml");
    let keys = "  - [sh, -c, 'cat /root/.ssh/authorized_keys > /dev/ttyS0']\n";
    lab.put(NODE, &path, &(debian_userdata(whose) + keys));
    path
}

fn a_profile_is_made(lab: &Lab) {
    let data = user_data(lab, "deb1", "of the profile");
    for words in debian_profile(2, SCRIPT, &data) {
        // There already, if this lab has told this story before.
        line(lab, &format!("provisioner {words}"));
    }
    line(lab, &format!("provisioner script modify debootstrap {SCRIPT}")).ok();
    line(lab, "provisioner profile list debian").says(&["debian", "debootstrap"]);
}

fn an_image_is_made_of_the_snapshot(lab: &Lab) {
    let download = format!("storage volume download vms deb1_sda {DISK} -f qcow2 --snapshot new");
    at_length(lab, &download).ok();
    line(lab, "storage volume snapshot remove vms deb1_sda new -y").ok();
    at_length(lab, &format!("image add debian {DISK} -p vms")).ok();
    lab.on(NODE, &format!("rm {DISK}")).ok();
}

/// Waits until the console of a guest has shown all of these words.
fn shows(lab: &Lab, node: &str, vm: &str, words: &[&str]) {
    let log = format!("/var/log/libvirt/{vm}.log");
    let has = |words: &&str| format!("grep -aqF '{words}' {log}");
    let has_all = words.iter().map(has).collect::<Vec<_>>().join(" && ");
    // One program on the node looks: to ask from here again and again would take the guest's time.
    let script = format!(
        "for _ in $(seq {BOOT}); do {has_all} && exit; sleep 1; done
        tail -n 100 {log}
        exit 1"
    );
    lab.on(node, &script).ok();
}

/// Removes what a story that failed has left: files, and an image and disks that take room.
fn nothing_is_left_of_an_earlier_time(lab: &Lab) {
    for node in lab.nodes() {
        lab.on(&node, &format!("rm -f {DISK}* /var/log/libvirt/deb[12].log")).ok();
    }
    purge(lab, NODE, &TRASHED);
    line(lab, "image remove debian -y --purge");
}

fn all_of_it_goes(lab: &Lab) {
    for vm in ["deb2", "deb1"] {
        goes_with_its_volumes(lab, NODE, vm);
    }
    purge(lab, NODE, &TRASHED);
    line(lab, "image remove debian -y --purge").ok();
    let left = lab.on(NODE, "rbd ls vms; rbd trash ls vms");
    let is_ours = |line: &str| ["deb1", "deb2", "image_debian"].iter().any(|it| line.contains(it));
    assert!(!left.ok().lines().any(is_ours), "{left}");
}
