//! VMs of images, of profiles and of OVAs on Ceph, and a worker whose node dies while it makes one.

use std::fs;

use pvc_lab_tests::{Lab, NODES};
use pvc_standalone_tests::{Output, eventually, repository};
use pvc_testkit::ova::ovf;

pub(crate) const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGhlbGxv me@here";

/// Methods that the example without a system lacks: it finds its profile in the database, makes a
/// volume, writes it as a block device, and stands still in the middle if it is to.
const WRITES_THE_IMAGE: &str = r#"
    def setup(self):
        with open_db(config) as cursor:
            cursor.execute("SELECT id FROM profile WHERE name = %s", [self.vm_profile])
            row = cursor.fetchone()
        if not row or row["id"] < 1:
            self.fail(f"the database has {row} for profile {self.vm_profile}")

    def prepare(self):
        with open_zk(config) as zk:
            done, said = pvc_ceph.add_volume(zk, "vms", f"{self.vm_name}_sda", "48M")
            if not done:
                self.fail(said)
            done, self.device = pvc_ceph.map_volume(zk, "vms", f"{self.vm_name}_sda")
            if not done:
                self.fail(self.device)

    def install(self):
        with open("/root/hello.img", "rb") as image:
            with open(self.device, "r+b") as device:
                device.write(image.read())
        if self.vm_data["script_arguments"].get("then") == "wait":
            self.log_info("it is written, and waits")
            time.sleep(3600)

    def cleanup(self):
        with open_zk(config) as zk:
            pvc_ceph.unmap_volume(zk, "vms", f"{self.vm_name}_sda")


import time

import daemon_lib.ceph as pvc_ceph
from daemon_lib.vmbuilder import open_db, open_zk
from pvcworkerd.Daemon import config
"#;

/// A lab with the guest's image on every node, the pool `vms` and the profile `web`.
pub(crate) fn with_profile() -> Lab {
    let lab = Lab::whole();
    // Its image is made with it.
    lab.define("web1");
    // Known already, after another story.
    lab.pvc(&["storage", "pool", "add", "vms", "16"]);
    // A script sees the node's own root, and nothing that is mounted below it.
    for node in NODES {
        lab.on(node, "cp /var/lib/pvc-lab/hello.img /root/hello.img").ok();
    }
    let example = repository().join("packaging/provisioner/examples/script/1-noop.py");
    let script = fs::read_to_string(example).expect("it is in the checkout") + WRITES_THE_IMAGE;
    let write = format!("cat >/root/build.py <<'END'\n{script}\nEND");
    lab.on("pvchv1", &write).ok();
    // An earlier story may have taken its leader away.
    lab.until_database_leads_on(&lab.primary());
    for line in [
        "template system add small -u 1 -m 192 -s",
        "template network add small",
        "template storage add small",
        "template storage disk add small sda -p vms -s 1",
        "script add small /root/build.py",
        "script modify small /root/build.py",
        "profile add web -s small -n small -t small -x small",
    ] {
        let words = ["provisioner"].into_iter().chain(line.split(' '));
        // There already, if this lab has told such a story before.
        lab.pvc_on("pvchv1", &words.collect::<Vec<_>>());
    }
    lab.pvc(&["provisioner", "profile", "list"]).says(&["web", "small"]);
    lab
}

/// `pvc` with a line of words that have no blanks in them.
pub(crate) fn line(lab: &Lab, line: &str) -> Output {
    lab.pvc(&line.split(' ').collect::<Vec<_>>())
}

/// Removes a VM with its volumes, of which none stays.
pub(crate) fn goes_with_its_volumes(lab: &Lab, node: &str, vm: &str) {
    lab.pvc_on(node, &["vm", "stop", vm, "-y", "--wait"]).ok();
    // Ceph takes half a minute to forget the client of a node that has lost its power.
    eventually("nobody has its volumes open", 90, || {
        let removed = lab.pvc_on(node, &["vm", "remove", vm, "-y"]);
        if removed.code == 0 { Ok(()) } else { Err(removed.to_string()) }
    });
    volumes_are_gone(lab, node, vm);
}

fn volumes_are_gone(lab: &Lab, node: &str, vm: &str) {
    let images = lab.on(node, "rbd ls vms");
    assert!(!images.ok().contains(vm), "{images}");
}

/// Removes from the trash, for good, whatever has one of these names.
pub(crate) fn purge(lab: &Lab, node: &str, volumes: &[&str]) {
    for volume in volumes {
        let purge = format!(
            "for id in $(rbd trash ls vms | awk '$2 == \"{volume}\" {{ print $1 }}'); do \
             pvc --quiet --connection local --unsafe storage trash purge vms $id -y; done"
        );
        lab.on(node, &purge).ok();
    }
}

/// Checks that what a script has mapped and mounted for a VM is gone, on whichever node it ran.
pub(crate) fn nothing_is_mapped(lab: &Lab, vm: &str) {
    let left = format!(
        "ls -d /dev/rbd/vms/{vm}_sda /run/pvc/scripts/*/device-* 2>/dev/null
        grep ' /tmp/target' /proc/mounts"
    );
    for node in NODES {
        assert_eq!(lab.on(node, &left).stdout, "", "{node}");
    }
}

#[test]
fn a_vm_of_an_image_on_ceph_runs_from_a_clone_and_survives_its_node() {
    let lab = Lab::whole();
    lab.define("web1");
    lab.pvc(&["storage", "pool", "add", "vms", "16"]);
    let convert = "rm -f /root/hello.qcow2 && qemu-img convert -O qcow2 \
                   /var/lib/pvc-lab/hello.img /root/hello.qcow2";
    lab.on("pvchv1", convert).ok();
    lab.pvc_on("pvchv1", &["image", "add", "hello", "/root/hello.qcow2", "-p", "vms"]).ok();
    line(&lab, "image info hello").says(&["hello", "vms"]);
    let node = lab.witness(&lab.primary());
    what_is_installed_from_is_a_clone(&lab, node);
    lab.on("pvchv1", &format!("echo '{KEY}' >/root/made1.pub")).ok();
    let made = format!(
        "vm create made1 --image hello --memory 192 --disk 48M --ssh-key /root/made1.pub \
         --target {node} --start --wait"
    );
    line(&lab, &made).ok();
    assert_eq!(lab.running_on("made1"), [node], "the command has waited until it runs");
    lab.on("pvchv1", "rbd info vms/made1_sda").says(&["parent: vms/", "size 48 MiB"]);
    lab.hears(node, "made1", "ready; type help");
    // What cloud-init is to find, on a volume in Ceph as well.
    lab.hears(node, "made1", "\"local-hostname\":\"made1\"");
    lab.hears(node, "made1", &format!("\"public-keys\":[\"{KEY}\""));
    // It is a VM as every other.
    lab.does(&["power", node, "off"]).ok();
    let there = lab.recovered("made1", node);
    lab.hears(&there, "made1", "ready; type help");
    let refused = lab.pvc_on(&there, &["image", "remove", "hello", "-y"]).fails(1).to_owned();
    assert!(refused.contains("`vms/made1_sda`"), "its disk stands on it: {refused}");
    goes_with_its_volumes(&lab, &there, "made1");
    purge(&lab, &there, &["made1_sda", "made1_cidata"]);
    lab.pvc_on(&there, &["image", "remove", "hello", "-y"]).ok();
    lab.does(&["power", node, "on"]).ok();
}

/// Makes a VM with an empty disk, whose CD is a clone of the image that its file becomes, and
/// removes all of it. The guest finds no system: what an installer does is shown on one machine.
fn what_is_installed_from_is_a_clone(lab: &Lab, node: &str) {
    let volumes = ["inst1_sda", "inst1_iso"];
    // Left there, if this story has failed in this lab.
    purge(lab, "pvchv1", &volumes);
    line(lab, "image remove cd -y --purge");
    lab.on("pvchv1", "cp /var/lib/pvc-lab/hello.img /root/cd.iso").ok();
    let made = format!(
        "vm create inst1 --from-iso /root/cd.iso --disk 16M --memory 128 --target {node} --start \
         --wait"
    );
    line(lab, &made)
        .says(&["Added image \"cd\" to pool \"vms\".", "Its screen is VNC at 127.0.0.1:"]);
    assert_eq!(lab.running_on("inst1"), [node], "the command has waited until it runs");
    lab.on("pvchv1", "rbd info vms/inst1_iso").says(&["parent: vms/"]);
    let disk = lab.on("pvchv1", "rbd info vms/inst1_sda");
    assert!(!disk.says(&["size 16 MiB"]).contains("parent: "), "it is empty: {disk}");
    goes_with_its_volumes(lab, node, "inst1");
    purge(lab, "pvchv1", &volumes);
    line(lab, "image remove cd -y --purge").ok();
}

#[test]
fn a_profiles_script_writes_to_ceph_and_its_vm_boots_from_that() {
    let lab = with_profile();
    let made = line(&lab, "provisioner create made2 web");
    made.says(&["VM \"made2\" with profile \"web\" is provisioned, and starts"]);
    let runs = lab.running_on("made2");
    let [node] = &runs[..] else { panic!("it runs on {runs:?}") };
    lab.hears(node, "made2", "ready; type help");
    nothing_is_mapped(&lab, "made2");
    goes_with_its_volumes(&lab, node, "made2");
    userdata_are_held_against_the_schema(&lab);
}

/// Adds userdata on a node that has cloud-init, which is asked whether they are by its schema.
fn userdata_are_held_against_the_schema(lab: &Lab) {
    let refused = ["cloud-init's schema refuses", "packages: 7 is not of type 'array'"];
    for (packages, warnings) in [("7", &refused[..]), ("[vim]", &refused[..0])] {
        let write = format!("printf '#cloud-config\\npackages: {packages}\\n' >/root/checked.yaml");
        lab.on("pvchv1", &write).ok();
        // Left there, if such a story has failed in this lab.
        line(lab, "provisioner userdata remove checked -y");
        let added = line(lab, "provisioner userdata add checked /root/checked.yaml");
        added.ok();
        let is_warned = |words: &&str| added.stderr.contains(*words);
        assert!(warnings.iter().all(is_warned), "{added}");
        assert_eq!(added.stderr.contains("cloud-init"), !warnings.is_empty(), "{added}");
        // It is kept, whatever a schema says.
        line(lab, "provisioner userdata show checked").says(&[&format!("packages: {packages}")]);
    }
    line(lab, "provisioner userdata remove checked -y").ok();
}

#[test]
fn what_a_script_has_made_is_taken_back_by_another_worker_if_its_node_dies() {
    let lab = with_profile();
    let primary = lab.primary();
    let begun = line(&lab, "provisioner create made3 web -a then=wait --no-wait").ok().to_owned();
    let task = begun.split_whitespace().nth(2).expect("the task is named").to_owned();
    eventually("the script stands still in the middle", 120, || {
        let log = line(&lab, &format!("task log {task}"));
        if log.stdout.contains("it is written, and waits") { Ok(()) } else { Err(log.to_string()) }
    });
    lab.on("pvchv2", "rbd ls vms").says(&["made3_sda"]);
    lab.does(&["power", &primary, "off"]).ok();
    lab.until_another_is_primary(&primary);
    let other = lab.witness(&primary);
    eventually("another worker has taken it back", 300, || {
        let shown = lab.pvc_on(other, &["task", &task, "--no-wait"]);
        let is_over = shown.stdout.contains("its worker stopped before it was done");
        let images = lab.on(other, "rbd ls vms");
        let is_gone = images.code == 0 && !images.stdout.contains("made3_sda");
        if is_over && is_gone { Ok(()) } else { Err(format!("{shown}\n{images}")) }
    });
    lab.pvc_on(other, &["vm", "info", "made3"]).fails(3);
    lab.does(&["power", &primary, "on"]).ok();
    // Its name is free again.
    eventually("there is a worker for the next one", 120, || {
        let made = lab.pvc_on(other, &["provisioner", "create", "made3", "web"]);
        if made.code == 0 { Ok(()) } else { Err(made.to_string()) }
    });
    goes_with_its_volumes(&lab, other, "made3");
}

/// The script for OVAs, as PVC's packages bring it.
const OVA_SCRIPT: &str = "/usr/share/pvc/provisioner/examples/script/2-ova.py";

/// The volumes of the story, as they are called in the trash, too.
const OF_OVA: [&str; 2] = ["box1_sda", "ova_hello_sda"];

/// Packs the guest's image as an OVA, as VMware and VirtualBox export it, and its first half beside
/// it.
fn an_ova_is_packed(lab: &Lab) {
    let image = "/var/lib/pvc-lab/hello.img";
    let size = lab.on("pvchv1", &format!("stat -Lc %s {image}"));
    let capacity: u64 = size.ok().trim().parse().expect("it is a number of bytes");
    let pack = format!(
        "rm -rf /root/ova && mkdir /root/ova && cd /root/ova && cat >hello.ovf && \
         qemu-img convert -f raw -O vmdk -o subformat=streamOptimized {image} hello.vmdk && \
         tar --format=ustar -cf hello.ova hello.ovf hello.vmdk && \
         head -c $(($(stat -c %s hello.ova) / 2)) hello.ova >cut.ova"
    );
    let description = ovf(&[("hello.vmdk", capacity)], &[]);
    lab.does_with(&["exec", "pvchv1", "--", "bash", "-c", &pack], &description).ok();
}

#[test]
fn an_ova_becomes_volumes_of_ceph_and_one_that_is_cut_leaves_none() {
    let lab = Lab::whole();
    // The image that it is packed from is made with it.
    lab.define("web1");
    // Known already, after another story.
    lab.pvc(&["storage", "pool", "add", "vms", "16"]);
    let primary = lab.primary();
    lab.until_database_leads_on(&primary);
    lab.has_plain_loop_devices(&primary);
    // Left there, if this story has failed in this lab.
    line(&lab, "provisioner ova remove hello -y");
    purge(&lab, "pvchv1", &OF_OVA);
    // There already, if this lab has told it before.
    line(&lab, &format!("provisioner script add ova {OVA_SCRIPT}"));
    line(&lab, &format!("provisioner script modify ova {OVA_SCRIPT}")).ok();
    an_ova_is_packed(&lab);

    let cut = line(&lab, "provisioner ova upload hello /root/ova/cut.ova -p vms");
    assert!(cut.fails(1).contains("are left of what was said"), "{cut}");
    eventually("nothing of the one that was cut is left", 60, || {
        let left = lab.on("pvchv1", "rbd ls vms && rbd trash ls vms");
        if left.code == 0 && !left.stdout.contains("ova_hello") { Ok(()) } else { Err(left) }
    });
    line(&lab, "provisioner profile list hello").fails(3);

    let uploaded = line(&lab, "provisioner ova upload hello /root/ova/hello.ova -p vms");
    uploaded.says(&["Added OVA \"hello\" with 1 disk.", "CRC-32 of the file: "]);
    line(&lab, "provisioner ova list").says(&["hello", "sda", "raw", "ova_hello_sda"]);
    let compare = "rbd --no-progress export vms/ova_hello_sda - | cmp - /var/lib/pvc-lab/hello.img";
    lab.on("pvchv1", compare).ok();
    // What it was exported with is more than a guest has here.
    line(&lab, "provisioner template system modify hello -u 1 -m 192").ok();
    a_vm_of_the_ova_runs_and_goes(&lab);
    line(&lab, "provisioner ova remove hello -y").says(&["Removed OVA \"hello\"."]);
    volumes_are_gone(&lab, "pvchv1", "ova_hello");
    purge(&lab, "pvchv1", &OF_OVA);
}

fn a_vm_of_the_ova_runs_and_goes(lab: &Lab) {
    for node in NODES {
        // What an earlier guest of that name said is no word of this one's.
        lab.on(node, "rm -f /var/log/libvirt/box1.log").ok();
    }
    let create = "timeout 600 pvc --unsafe --connection local provisioner create box1 hello";
    let made = lab.on("pvchv1", create);
    made.says(&["VM \"box1\" with profile \"hello\" is provisioned, and starts"]);
    assert!(made.stderr.contains("converting the image of disk sda"), "{made}");
    let runs = lab.running_on("box1");
    let [node] = &runs[..] else { panic!("it runs on {runs:?}") };
    lab.hears(node, "box1", "ready; type help");
    for volumes_of in ["box1", "ova_hello"] {
        nothing_is_mapped(lab, volumes_of);
    }
    goes_with_its_volumes(lab, node, "box1");
}
