//! New VMs on one machine, of an image and of a profile, beside what makes the same by hand.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, anyhow};
use pvc_standalone_tests::{Machine, eventually, hello_image, hello_uuid, repository, run};

use crate::measure::{Pair, Scale, timed};
use crate::place::Kind;
use crate::report::{Figure, Quantity, Spread};

/// Name of the guest that is made without PVC.
const BY_HAND: &str = "by-hand";

/// The longest that all VMs of a profile may take together, in seconds.
const LIMIT: u64 = 1_800;

/// The time until VMs of an image run, and until those of a profile are made. Which tree the
/// records are in makes no difference, so they are measured with one.
pub fn figures(kind: Kind, scale: &Scale) -> Result<Vec<Figure>> {
    if kind == Kind::Zookeeper {
        return Ok(Vec::new());
    }
    let scale = *scale;
    // What the machine of the tests cannot do is a panic.
    let measuring = std::thread::spawn(move || {
        let machine = Machine::start();
        let mut figures = vec![of_an_image(&machine, &scale)];
        figures.extend(of_a_profile(&machine, &scale));
        figures
    });
    measuring.join().map_err(|why| match why.downcast::<String>() {
        Ok(why) => anyhow!(*why),
        Err(_) => anyhow!("the machine could not be made"),
    })
}

/// `pvc vm create --image --start`, beside the programs that an administrator would run.
fn of_an_image(machine: &Machine, scale: &Scale) -> Figure {
    let image = machine.dir().join("image.img");
    fs::copy(hello_image(), &image).expect("there is room");
    let grown = format!("{}", scale.image_bytes);
    let resize = ["resize", "-q", "-f", "raw"];
    run(Command::new("qemu-img").args(resize).arg(&image).arg(grown), "").ok();
    machine.quietly(&format!("image add hello {}", image.display())).ok();
    let mut times = Pair::default();
    for round in 0..=scale.new_vms {
        let name = format!("image{round}");
        let create = format!("vm create {name} --image hello --memory 128 --start");
        let (pvc, made) = timed(|| machine.quietly(&create));
        made.ok();
        let xml = machine.libvirt().virsh(&["dumpxml", "--inactive", &name]).stdout;
        machine.quietly(&format!("vm stop {name} -y")).ok();
        let (by_hand, ()) = timed(|| by_hand(machine, &image, &xml, &name));
        machine.libvirt().virsh(&["destroy", BY_HAND]).ok();
        machine.quietly(&format!("vm remove {name} -y")).ok();
        // The first ones find caches empty.
        if round > 0 {
            times.measured.push(pvc);
            times.reference.push(by_hand);
        }
    }
    let (pvc, by_hand) = times.spreads();
    Figure::time("`pvc vm create --image` until the guest runs", pvc)
        .against("`qemu-img convert` and `virsh create`", Quantity::Time(by_hand))
}

/// Makes the first disk of the VM of this `xml` once more, and starts a guest like it.
fn by_hand(machine: &Machine, image: &Path, xml: &str, name: &str) {
    let disk = machine.dir().join(format!("{BY_HAND}.img"));
    let convert = ["convert", "-f", "raw", "-O", "raw"];
    run(Command::new("qemu-img").args(convert).arg(image).arg(&disk), "").ok();
    let at = xml.find("<source file=").expect("its first disk is a file");
    let end = at + xml[at..].find("/>").expect("the element ends");
    let text = format!("{}<source file='{}'{}", &xml[..at], disk.display(), &xml[end..]);
    let text = text
        .replace(&format!("<name>{name}</name>"), &format!("<name>{BY_HAND}</name>"))
        .replace(uuid_of(&text), &hello_uuid(BY_HAND));
    let file = machine.dir().join(format!("{BY_HAND}.xml"));
    fs::write(&file, text).expect("the machine's folder can be written");
    machine.libvirt().virsh(&["create", &file.display().to_string()]).ok();
}

fn uuid_of(xml: &str) -> &str {
    let begin = xml.find("<uuid>").expect("it has one") + "<uuid>".len();
    &xml[begin..begin + xml[begin..].find('<').expect("the element ends")]
}

/// `pvc provisioner create` of many VMs at once, by a script that makes nothing, until
/// all are in the list and no task is at work any more.
fn of_a_profile(machine: &Machine, scale: &Scale) -> Vec<Figure> {
    let example = repository().join("packaging/provisioner/examples/script/1-noop.py");
    for line in [
        "template system add small -u 1 -m 64 -s".to_owned(),
        "template network add small".to_owned(),
        "template storage add small".to_owned(),
        format!("script add small {}", example.display()),
        "profile add small -s small -n small -t small -x small".to_owned(),
    ] {
        machine.quietly(&format!("provisioner {line}")).ok();
    }
    let mut alone = Vec::new();
    for round in 0..=scale.new_vms {
        let create = format!("provisioner create alone{round} small --no-start");
        let (took, made) = timed(|| machine.quietly(&create));
        made.ok();
        if round > 0 {
            alone.push(took);
        }
    }
    let count = scale.profile_vms;
    let (took, ()) = timed(|| {
        for number in 0..count {
            let line = format!("provisioner create many{number} small --no-start --no-wait");
            machine.quietly(&line).ok();
        }
        eventually("all VMs of the profile are made", LIMIT, || {
            let list = machine.quietly("vm list many -f raw");
            if list.stdout.lines().count() < count {
                return Err(list);
            }
            // One is in the list before its script is done.
            let tasks = machine.quietly("task list -f raw");
            if tasks.code == 0 && tasks.stdout.is_empty() { Ok(()) } else { Err(tasks) }
        });
    });
    let (each, alone) = (Spread::of(vec![took]).per(count), Spread::of(alone));
    vec![
        Figure::time(format!("{count} VMs of one profile, each"), each)
            .against("one alone", Quantity::Time(alone)),
        Figure::time(format!("{count} VMs of one profile, all"), Spread::of(vec![took])),
    ]
}
