use std::sync::Arc;

use super::super::{Named, NetworkTemplate, Ova, StorageTemplate, TemplateNet};
use super::*;
use crate::refusal::Kind;
use crate::storage::{PoolName, PoolRecord};

fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    cluster.nodes.insert("hv1".into(), Arc::new(crate::records::node("hv1")));
    let pool = PoolName::new("vms");
    let (pgs, tier) = ("64".to_owned(), "default".to_owned());
    let record = PoolRecord { name: pool.clone(), pgs, tier, stats: Arc::from("") };
    cluster.pools.insert(pool.clone(), Arc::new(record));
    cluster
}

fn named(id: i64, name: &str) -> Named {
    Named { id, name: name.to_owned() }
}

/// A catalog with one of each, of which the profile `web` uses all but the OVA.
fn catalog() -> Catalog {
    let net = TemplateNet { id: 1, vni: "1001".to_owned() };
    let disk = TemplateDisk {
        disk_id: "sda".to_owned(),
        mountpoint: Some("/".to_owned()),
        ..TemplateDisk::default()
    };
    let name = || "small".to_owned();
    let system = SystemTemplate { id: 1, name: name(), vcpus: 1, vram_mib: 512, ..blank() };
    let networks = NetworkTemplate { id: 2, name: name(), nets: vec![net], ..Default::default() };
    let storage = StorageTemplate { id: 3, name: name(), disks: vec![disk], ..Default::default() };
    Catalog {
        system_templates: vec![system],
        network_templates: vec![networks],
        storage_templates: vec![storage],
        userdata: vec![named(4, "small")],
        scripts: vec![named(5, "small")],
        ovas: vec![Ova { id: 6, name: name(), volumes: Vec::new() }],
        profiles: vec![Profile {
            id: 7,
            name: "web".to_owned(),
            source: PROVISIONER.to_owned(),
            system_template: 1,
            network_template: Some(2),
            storage_template: Some(3),
            userdata: Some(4),
            script: 5,
            ova: None,
            arguments: vec!["a=b".to_owned()],
        }],
    }
}

fn blank() -> SystemTemplate {
    SystemTemplate::default()
}

fn decided(change: &Change) -> Result<Decision> {
    decide(&cluster(), &catalog(), change)
}

#[track_caller]
fn edit(change: &Change) -> Edit {
    let mut edits = decided(change).unwrap().edits;
    assert_eq!(edits.len(), 1, "{edits:?}");
    edits.remove(0)
}

#[track_caller]
fn refused(change: &Change, kind: Kind, words: &str) {
    let refusal = decided(change).unwrap_err();
    assert_eq!(refusal.kind(), kind, "{refusal}");
    assert!(refusal.to_string().contains(words), "{refusal}");
}

fn system(fields: SystemTemplateFields) -> Change {
    let fields = SystemTemplateFields {
        vcpus: fields.vcpus.or(Some(2)),
        vram_mib: fields.vram_mib.or(Some(1024)),
        ..fields
    };
    Change::AddSystemTemplate { name: "new".to_owned(), fields }
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn a_system_template_is_kept_with_what_it_was_given() {
    let fields = SystemTemplateFields {
        vnc: Some(false),
        vnc_bind: text("0.0.0.0"),
        node_limit: Some(texts(&["hv1", " hv1"])),
        node_selector: text("None"),
        migration_method: text("LIVE"),
        ..Default::default()
    };
    let Edit::AddSystemTemplate(new) = edit(&system(fields)) else { panic!("it is added") };
    assert_eq!((new.vcpus, new.vram_mib), (2, 1024));
    assert_eq!(new.vnc_bind, None, "there is no VNC to be bound");
    assert_eq!(new.node_limit, text("hv1"));
    assert_eq!(new.node_selector, None, "`none` is nothing that is kept");
    assert_eq!(new.migration_method, text("live"));
    assert_eq!(new.migration_max_downtime, Some(300));
}

#[test]
fn q73_a_value_is_cleared_by_an_empty_text_and_kept_by_nothing() {
    let mut catalog = catalog();
    let present = &mut catalog.system_templates[0];
    (present.node_selector, present.migration_method) = (text("mem"), text("live"));
    let fields = SystemTemplateFields { node_selector: text(""), ..Default::default() };
    let change = Change::ModifySystemTemplate { name: "small".to_owned(), fields };
    let edits = decide(&cluster(), &catalog, &change).unwrap().edits;
    let [Edit::SetSystemTemplate(changed)] = &edits[..] else { panic!("{edits:?}") };
    assert_eq!((changed.id, &changed.node_selector), (1, &None));
    assert_eq!((changed.migration_method.as_deref(), changed.vcpus), (Some("live"), 1));
}

#[test]
fn q52_values_that_no_vm_could_have_are_refused_by_their_parameter() {
    let fields = SystemTemplateFields::default;
    for (fields, words) in [
        (SystemTemplateFields { vcpus: Some(0), ..fields() }, "vcpus: 0 is not between"),
        (SystemTemplateFields { vram_mib: Some(u32::MAX), ..fields() }, "vram: 4294967295"),
        (
            SystemTemplateFields { node_limit: Some(texts(&["hv9"])), ..fields() },
            "node_limit: there is no node `hv9`",
        ),
        (
            SystemTemplateFields { node_selector: text("best"), ..fields() },
            "node_selector: `best` is not one of `mem`",
        ),
        (
            SystemTemplateFields { migration_method: text("dead"), ..fields() },
            "migration_method: `dead` is not one of",
        ),
        (
            SystemTemplateFields { vnc: Some(true), vnc_bind: text("'/><x"), ..fields() },
            "vnc_bind: ",
        ),
        (SystemTemplateFields { migration_max_downtime: Some(0), ..fields() }, "downtime: 0"),
    ] {
        refused(&system(fields), Kind::Invalid, words);
    }
}

#[test]
fn a_name_is_taken_once_in_its_class_and_goes_into_paths() {
    let add = |name: &str| Change::AddStorageTemplate { name: name.to_owned() };
    refused(&add("small"), Kind::Conflict, "there is a storage template `small` already");
    for name in ["", "../x", "a b", "%", "a\nb", &"x".repeat(64)] {
        refused(&add(name), Kind::Invalid, "name");
    }
    assert!(decided(&add("web")).is_ok(), "profiles have names of their own");
}

#[test]
fn networks_are_numbers_or_those_between_nodes_or_devices() {
    let add = |vni: &str, permit_duplicate| Change::AddNet {
        template: "small".to_owned(),
        vni: vni.to_owned(),
        permit_duplicate,
    };
    for vni in ["1", "16777214", "upstream", "cluster", "storage", "macvtap:ens1f0v0"] {
        assert_eq!(edit(&add(vni, false)), Edit::AddNet { template: 2, vni: vni.to_owned() });
    }
    for vni in ["0", "16777215", "-1", "01", "Upstream", "net", "", "1;DROP", "hostdev:", "٣"] {
        refused(&add(vni, false), Kind::Invalid, "vni: `");
    }
    refused(&add("1001", false), Kind::Conflict, "has network `1001` already");
    assert!(decided(&add("1001", true)).is_ok());
    let none = Change::RemoveNet { template: "small".to_owned(), vni: "7".to_owned() };
    refused(&none, Kind::NotFound, "network template `small` has no network `7`");
    let nowhere = Change::AddNet {
        template: "none".to_owned(),
        vni: "1".to_owned(),
        permit_duplicate: false,
    };
    refused(&nowhere, Kind::NotFound, "there is no network template `none`");
}

fn disk() -> NewDisk {
    NewDisk {
        disk_id: "sdb".to_owned(),
        pool: "vms".to_owned(),
        size_gib: Some(4),
        ..NewDisk::default()
    }
}

#[test]
fn a_disk_is_new_with_a_size_or_the_copy_of_a_volume() {
    let add = |disk| Change::AddDisk { template: "small".to_owned(), disk };
    let filesystem = || text("ext4");
    let formatted = NewDisk {
        filesystem: filesystem(),
        filesystem_args: texts(&["-L=data", "--quiet=1"]),
        mountpoint: text("/srv"),
        ..disk()
    };
    let Edit::AddDisk { template: 3, disk: kept } = edit(&add(formatted)) else { panic!("added") };
    assert_eq!(kept.filesystem_args, text("-L=data --quiet=1"));
    let copy = || NewDisk { source_volume: text("golden"), size_gib: None, ..disk() };
    let Edit::AddDisk { disk: kept, .. } = edit(&add(copy())) else { panic!("it is added") };
    assert_eq!((kept.size_gib, kept.filesystem_args), (None, text("")));
    for (disk, words) in [
        (NewDisk { size_gib: Some(1), ..copy() }, "source_volume: "),
        (NewDisk { filesystem: filesystem(), ..copy() }, "source_volume: "),
        (NewDisk { mountpoint: text("/"), ..copy() }, "source_volume: "),
        (NewDisk { size_gib: None, ..disk() }, "disk_size: is needed"),
        (NewDisk { size_gib: Some(0), ..disk() }, "disk_size: 0"),
        (NewDisk { mountpoint: text("/srv"), ..disk() }, "mountpoint: "),
        (NewDisk { filesystem_args: texts(&["-L=x"]), ..disk() }, "filesystem_arg: "),
        (NewDisk { filesystem: text("../sh"), ..disk() }, "filesystem: "),
        (NewDisk { pool: "none".to_owned(), ..disk() }, "pool: there is no pool `none`"),
        (NewDisk { disk_id: "a/b".to_owned(), ..disk() }, "disk_id: "),
        (
            NewDisk { filesystem: filesystem(), mountpoint: text("/a b"), ..disk() },
            "mountpoint: has a space",
        ),
        (
            NewDisk { filesystem: filesystem(), filesystem_args: texts(&["-L=a b"]), ..disk() },
            "filesystem_arg: `-L=a b` has a space",
        ),
        (
            NewDisk { filesystem: filesystem(), filesystem_args: texts(&["-d=/etc"]), ..disk() },
            "filesystem_arg: `-d=/etc` is not among",
        ),
        (
            NewDisk { filesystem: filesystem(), filesystem_args: texts(&["-E=a=/x"]), ..disk() },
            "filesystem_arg: `-E=a=/x` is not among",
        ),
        (
            NewDisk { filesystem: filesystem(), mountpoint: text("/../usr"), ..disk() },
            "mountpoint: is a path",
        ),
        (
            NewDisk { filesystem: filesystem(), mountpoint: text("srv"), ..disk() },
            "mountpoint: is a path",
        ),
    ] {
        refused(&add(disk), Kind::Invalid, words);
    }
    let same = NewDisk { disk_id: "sda".to_owned(), ..disk() };
    refused(&add(same), Kind::Conflict, "storage template `small` has a disk `sda` already");
    let root = NewDisk { filesystem: filesystem(), mountpoint: text("/"), ..disk() };
    refused(&add(root), Kind::Conflict, "a disk `sda` that is mounted at `/` already");
}

#[test]
fn what_a_profile_uses_stays_and_the_refusal_names_the_profile() {
    for class in [
        Class::SystemTemplate,
        Class::NetworkTemplate,
        Class::StorageTemplate,
        Class::Userdata,
        Class::Script,
    ] {
        let remove = Change::Remove { class, name: "small".to_owned() };
        refused(&remove, Kind::Conflict, &format!("{class} `small` is used by profile `web`"));
        let mut catalog = catalog();
        catalog.profiles.clear();
        let edits = decide(&cluster(), &catalog, &remove).unwrap().edits;
        let id = catalog.id(class, "small").unwrap();
        assert_eq!(edits.last(), Some(&Edit::Remove { class, id }));
        let parts = matches!(class, Class::NetworkTemplate | Class::StorageTemplate);
        assert_eq!(edits.len(), if parts { 2 } else { 1 }, "what it consists of goes first");
    }
    let profile = Change::Remove { class: Class::Profile, name: "web".to_owned() };
    assert_eq!(edit(&profile), Edit::Remove { class: Class::Profile, id: 7 });
}

#[test]
fn many_profiles_are_named_in_part() {
    let mut catalog = catalog();
    for number in 0..20 {
        let name = format!("web{number}");
        catalog.profiles.push(Profile { name, ..catalog.profiles[0].clone() });
    }
    let remove = Change::Remove { class: Class::Script, name: "small".to_owned() };
    let refusal = decide(&cluster(), &catalog, &remove).unwrap_err().to_string();
    assert!(refusal.ends_with("`web8` and 11 more"), "{refusal}");
}

#[test]
fn there_is_an_end_to_what_is_kept() {
    let mut catalog = catalog();
    for number in 0..150 {
        catalog.userdata.push(named(number + 10, &format!("u{number}")));
    }
    let add = |class| Change::AddText { class, name: "new".to_owned(), text: "x".to_owned() };
    let refusal = decide(&cluster(), &catalog, &add(Class::Userdata)).unwrap_err();
    assert_eq!(refusal.to_string(), "userdata: 150 are kept already, and no more can be");
    assert!(decide(&cluster(), &catalog, &add(Class::Script)).is_ok());
}

#[test]
fn of_what_has_no_texts_and_no_parts_there_is_more() {
    let mut catalog = catalog();
    let (first, system) = (catalog.profiles[0].clone(), catalog.system_templates[0].clone());
    let add = Change::AddProfile(profile("new"));
    for number in catalog.profiles.len()..1000 {
        assert!(decide(&cluster(), &catalog, &add).is_ok(), "there are {number}");
        catalog.profiles.push(Profile { name: format!("p{number}"), ..first.clone() });
    }
    let refusal = decide(&cluster(), &catalog, &add).unwrap_err();
    assert_eq!(refusal.to_string(), "profile: 1000 are kept already, and no more can be");
    for number in 0..1000 {
        let name = format!("s{number}");
        catalog.system_templates.push(SystemTemplate { name, ..system.clone() });
    }
    let refusal = check_new_ova(&catalog, "box").unwrap_err();
    assert_eq!(refusal.to_string(), "system template: 1000 are kept already, and no more can be");
}

fn profile(name: &str) -> NewProfile {
    let small = || text("small");
    NewProfile {
        name: name.to_owned(),
        source: PROVISIONER.to_owned(),
        fields: ProfileFields {
            system_template: small(),
            network_template: small(),
            storage_template: small(),
            userdata: small(),
            script: small(),
            arguments: Some(texts(&["deb_packages=vim,less", "x=a=b"])),
        },
        ova: None,
    }
}

#[test]
fn a_profile_refers_to_what_there_is() {
    let Edit::AddProfile(added) = edit(&Change::AddProfile(profile("new"))) else {
        panic!("it is added")
    };
    assert_eq!((added.system_template, added.userdata, added.script), (1, Some(4), 5));
    assert_eq!(added.arguments, ["deb_packages=vim,less", "x=a=b"]);
    let with = |change: &dyn Fn(&mut NewProfile)| {
        let mut new = profile("new");
        change(&mut new);
        Change::AddProfile(new)
    };
    for (change, words) in [
        (with(&|new| new.fields.userdata = text("none")), "userdata: there is no userdata `none`"),
        (with(&|new| new.fields.script = None), "script: a profile cannot be without"),
        (with(&|new| new.fields.storage_template = None), "storage_template: a profile of type"),
        (with(&|new| new.ova = text("none")), "ova: there is no OVA `none`"),
        (with(&|new| new.source = "ova".to_owned()), "ova: is needed"),
        (with(&|new| new.source = "x".to_owned()), "profile_type: `x` is neither"),
        (with(&|new| new.fields.arguments = Some(texts(&["x"]))), "arg: `x` is not `NAME=VALUE`"),
        (with(&|new| new.fields.arguments = Some(texts(&["x=a|y=b"]))), "which ends an argument"),
        (with(&|new| new.fields.arguments = Some(texts(&["x=a\nb"]))), "control characters"),
        (with(&|new| new.fields.arguments = Some(texts(&["x=1", "x=2"]))), "`x` is given twice"),
    ] {
        refused(&change, Kind::Invalid, words);
    }
    let of_ova = with(&|new| {
        (new.source, new.ova) = ("OVA".to_owned(), text("small"));
        (new.fields.network_template, new.fields.storage_template) = (None, None);
    });
    let Edit::AddProfile(added) = edit(&of_ova) else { panic!("it is added") };
    assert_eq!((added.source.as_str(), added.ova, added.storage_template), (OVA, Some(6), None));
}

#[test]
fn a_profile_is_changed_in_part() {
    let modify = |fields| Change::ModifyProfile { name: "web".to_owned(), fields };
    let none = ProfileFields::default;
    let cleared =
        modify(ProfileFields { userdata: text(""), arguments: Some(texts(&[""])), ..none() });
    let Edit::SetProfile(changed) = edit(&cleared) else { panic!("it is changed") };
    assert_eq!((changed.userdata, changed.arguments.len()), (None, 0));
    assert_eq!((changed.id, changed.script, changed.network_template), (7, 5, Some(2)));
    let without = modify(ProfileFields { network_template: text(""), ..none() });
    refused(&without, Kind::Invalid, "network_template: a profile of type");
    let script = modify(ProfileFields { script: text(""), ..none() });
    refused(&script, Kind::Invalid, "script: a profile cannot be without");
}

#[test]
fn a_text_has_a_bound_and_is_one() {
    let add = |class, text: &str| Change::AddText {
        class,
        name: "new".to_owned(),
        text: text.to_owned(),
    };
    for class in [Class::Userdata, Class::Script] {
        refused(&add(class, &"x".repeat(MOST_TEXT + 1)), Kind::Invalid, "data: has 262145 bytes");
        refused(&add(class, "a\0b"), Kind::Invalid, "data: contains a NUL byte");
        assert!(decided(&add(class, &"x".repeat(MOST_TEXT))).is_ok());
    }
    refused(&add(Class::Script, " \n"), Kind::Invalid, "data: is empty");
    assert!(decided(&add(Class::Userdata, "")).is_ok(), "a guest may be given nothing");
}
