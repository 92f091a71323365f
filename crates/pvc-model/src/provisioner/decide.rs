//! Decides on changes of what the provisioner keeps.

use super::{
    Catalog, Change, Class, NewDisk, NewProfile, OVA, OvaVolume, PROVISIONER, Profile,
    ProfileFields, ProvisionerRefusal, SystemTemplate, SystemTemplateFields, TemplateDisk,
};
use crate::cluster::Cluster;
use crate::guest_network::Vni;
use crate::network_core::CoreNet;
use crate::vm::{MigrationMethod, Selector};
use crate::{check_name, shown};

mod ova;

pub use ova::{check_new_ova, find_ova};

type Result<T> = std::result::Result<T, ProvisionerRefusal>;

/// The most characters of a name.
const LONGEST_NAME: usize = 63;

/// The most characters of a value that is no name.
const LONGEST_VALUE: usize = 255;

/// The most bytes of a userdata or a script.
pub(super) const MOST_TEXT: usize = 256 << 10;

/// The most arguments of a profile, and networks or disks of a template.
const MOST_PARTS: usize = 64;

/// The most rows of a class that have texts or parts: a list brings all of them with these, and the
/// database reads no more than 10,000 rows at a time.
const MOST_ROWS: usize = 150;

/// The most rows of a class that have none, but for the arguments of a profile.
const MOST_SMALL_ROWS: usize = 1000;

/// The most vCPUs, MiB of memory, GiB of a disk and milliseconds that a template may ask for.
const MOST_VCPUS: u32 = 1024;
const MOST_VRAM_MIB: u32 = 64 << 20;
const MOST_DISK_GIB: u32 = 1 << 20;
const MOST_DOWNTIME: u32 = 3_600_000;

/// Downtime of a template for which none is given, in milliseconds.
const DOWNTIME: u32 = 300;

/// Ways in which a VM is given a device of its node in the place of a network.
const DEVICES: [&str; 2] = ["macvtap:", "hostdev:"];

/// The word for what is not set, in any case.
const NONE: &str = "none";

/// Edit of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Adds a template, whose number is made by the database, as of all that are added.
    AddSystemTemplate(SystemTemplate),
    SetSystemTemplate(SystemTemplate),
    AddNetworkTemplate {
        name: String,
        mac_template: Option<String>,
    },
    AddNet {
        template: i64,
        vni: String,
    },
    /// Removes a network of a template, or all of them.
    RemoveNets {
        template: i64,
        vni: Option<String>,
    },
    AddStorageTemplate {
        name: String,
    },
    AddDisk {
        template: i64,
        disk: TemplateDisk,
    },
    /// Removes a disk of a template, or all of them.
    RemoveDisks {
        template: i64,
        disk_id: Option<String>,
    },
    AddUserdata {
        name: String,
        text: String,
    },
    SetUserdata {
        id: i64,
        text: String,
    },
    AddScript {
        name: String,
        text: String,
    },
    SetScript {
        id: i64,
        text: String,
    },
    AddProfile(Profile),
    SetProfile(Profile),
    AddOva {
        name: String,
        ovf: String,
    },
    /// Adds a volume of the OVA with this name, as all that is added of one.
    AddOvaVolume {
        ova: String,
        volume: OvaVolume,
    },
    AddSystemTemplateOfOva {
        ova: String,
        template: SystemTemplate,
    },
    /// Adds a network template that is called like its OVA.
    AddNetworkTemplateOfOva {
        ova: String,
    },
    AddNetOfOva {
        ova: String,
        vni: String,
    },
    /// Adds a profile that is called like its OVA, and has the templates that are, too.
    AddProfileOfOva {
        ova: String,
        script: i64,
    },
    RemoveOvaVolumes {
        ova: i64,
    },
    Remove {
        class: Class,
        id: i64,
    },
}

/// Decision on a change that is not refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub edits: Vec<Edit>,
    /// Sentence about what was done.
    pub message: String,
}

impl Decision {
    fn of(edits: impl Into<Vec<Edit>>, message: String) -> Self {
        Decision { edits: edits.into(), message }
    }
}

/// Decides on a change of what is kept.
///
/// # Errors
/// The first reason against it: what it names and there is none of, what there is already, what
/// refers to it, and values that cannot be.
pub fn decide(cluster: &Cluster, catalog: &Catalog, change: &Change) -> Result<Decision> {
    match change {
        Change::AddSystemTemplate { name, fields } => {
            check_new(catalog, Class::SystemTemplate, name)?;
            let name = name.clone();
            let downtime = Some(DOWNTIME.into());
            let new =
                SystemTemplate { name, migration_max_downtime: downtime, ..Default::default() };
            let template = with_fields(cluster, new, fields)?;
            let message = format!("Added system template \"{}\".", template.name);
            Ok(Decision::of([Edit::AddSystemTemplate(template)], message))
        }
        Change::ModifySystemTemplate { name, fields } => {
            let rows = &catalog.system_templates;
            let present = find(rows, Class::SystemTemplate, name)?.clone();
            let template = with_fields(cluster, present, fields)?;
            let message = format!("Changed system template \"{name}\".");
            Ok(Decision::of([Edit::SetSystemTemplate(template)], message))
        }
        Change::AddNetworkTemplate { name, mac_template } => {
            check_new(catalog, Class::NetworkTemplate, name)?;
            let mac_template = optional("mac_template", mac_template.as_deref())?;
            let message = format!("Added network template \"{name}\".");
            let name = name.clone();
            Ok(Decision::of([Edit::AddNetworkTemplate { name, mac_template }], message))
        }
        Change::AddNet { template, vni, permit_duplicate } => {
            add_net(catalog, template, vni, *permit_duplicate)
        }
        Change::RemoveNet { template, vni } => remove_net(catalog, template, vni),
        Change::AddStorageTemplate { name } => {
            check_new(catalog, Class::StorageTemplate, name)?;
            let message = format!("Added storage template \"{name}\".");
            Ok(Decision::of([Edit::AddStorageTemplate { name: name.clone() }], message))
        }
        Change::AddDisk { template, disk } => add_disk(cluster, catalog, template, disk),
        Change::RemoveDisk { template, disk_id } => remove_disk(catalog, template, disk_id),
        Change::AddText { class, name, text } => add_text(catalog, *class, name, text),
        Change::ModifyText { class, name, text } => modify_text(catalog, *class, name, text),
        Change::AddProfile(new) => add_profile(catalog, new),
        Change::ModifyProfile { name, fields } => {
            let present = find(&catalog.profiles, Class::Profile, name)?.clone();
            let profile = with_parts(catalog, present, fields)?;
            let message = format!("Changed profile \"{name}\".");
            Ok(Decision::of([Edit::SetProfile(profile)], message))
        }
        Change::AddOva(new) => ova::add_ova(cluster, catalog, new),
        Change::Remove { class: Class::Ova, name } => ova::remove_ova(catalog, name),
        Change::Remove { class, name } => remove(catalog, *class, name),
    }
}

fn remove_net(catalog: &Catalog, template: &str, vni: &str) -> Result<Decision> {
    let present = find(&catalog.network_templates, Class::NetworkTemplate, template)?;
    if !present.nets.iter().any(|net| net.vni == vni) {
        let (template, vni) = (shown(template), shown(vni));
        return Err(ProvisionerRefusal::NoNet { template, vni });
    }
    let edit = Edit::RemoveNets { template: present.id, vni: Some(vni.to_owned()) };
    let message = format!("Removed network {vni} from network template \"{template}\".");
    Ok(Decision::of([edit], message))
}

fn remove_disk(catalog: &Catalog, template: &str, disk_id: &str) -> Result<Decision> {
    let present = find(&catalog.storage_templates, Class::StorageTemplate, template)?;
    if !present.disks.iter().any(|disk| disk.disk_id == disk_id) {
        let (template, disk_id) = (shown(template), shown(disk_id));
        return Err(ProvisionerRefusal::NoDisk { template, disk_id });
    }
    let edit = Edit::RemoveDisks { template: present.id, disk_id: Some(disk_id.to_owned()) };
    let message = format!("Removed disk {disk_id} from storage template \"{template}\".");
    Ok(Decision::of([edit], message))
}

fn add_text(catalog: &Catalog, class: Class, name: &str, text: &str) -> Result<Decision> {
    check_new(catalog, class, name)?;
    check_text(class, text)?;
    let message = format!("Added {class} \"{name}\".");
    let (name, text) = (name.to_owned(), text.to_owned());
    let edit = match class {
        Class::Script => Edit::AddScript { name, text },
        _ => Edit::AddUserdata { name, text },
    };
    Ok(Decision::of([edit], message))
}

fn modify_text(catalog: &Catalog, class: Class, name: &str, text: &str) -> Result<Decision> {
    let id = existing(catalog, class, name)?;
    check_text(class, text)?;
    let text = text.to_owned();
    let edit = match class {
        Class::Script => Edit::SetScript { id, text },
        _ => Edit::SetUserdata { id, text },
    };
    Ok(Decision::of([edit], format!("Changed {class} \"{name}\".")))
}

fn not_found(class: Class, name: &str) -> ProvisionerRefusal {
    ProvisionerRefusal::NotFound { class, name: shown(name) }
}

fn existing(catalog: &Catalog, class: Class, name: &str) -> Result<i64> {
    catalog.id(class, name).ok_or_else(|| not_found(class, name))
}

fn find<'a, T: super::Row>(rows: &'a [T], class: Class, name: &str) -> Result<&'a T> {
    rows.iter().find(|row| row.name() == name).ok_or_else(|| not_found(class, name))
}

fn most_rows(class: Class) -> usize {
    match class {
        Class::SystemTemplate | Class::Profile => MOST_SMALL_ROWS,
        Class::NetworkTemplate
        | Class::StorageTemplate
        | Class::Userdata
        | Class::Script
        | Class::Ova => MOST_ROWS,
    }
}

/// Refuses a name that is none, or is taken.
fn check_new(catalog: &Catalog, class: Class, name: &str) -> Result<()> {
    let what = match class {
        Class::SystemTemplate | Class::NetworkTemplate | Class::StorageTemplate => "template",
        Class::Userdata => "userdata",
        Class::Script => "script",
        Class::Ova => "OVA",
        Class::Profile => "profile",
    };
    check_name(what, name, LONGEST_NAME)?;
    let most = most_rows(class);
    if catalog.rows(class).count() >= most {
        return Err(ProvisionerRefusal::Full { class, most });
    }
    match catalog.id(class, name) {
        None => Ok(()),
        Some(_) => Err(ProvisionerRefusal::Exists { class, name: name.to_owned() }),
    }
}

/// A value that may be left out; an empty text is none.
fn optional(parameter: &'static str, value: Option<&str>) -> Result<Option<String>> {
    let Some(value) = value.map(str::trim).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    check_value(parameter, value)?;
    Ok(Some(value.to_owned()))
}

fn check_value(parameter: &'static str, value: &str) -> Result<()> {
    let length = value.chars().count();
    if length > LONGEST_VALUE {
        let why = format!("has {length} characters, at most {LONGEST_VALUE} are allowed");
        return Err(ProvisionerRefusal::value(parameter, why));
    }
    if value.chars().any(char::is_control) {
        let why = format!("`{}` contains control characters", shown(value));
        return Err(ProvisionerRefusal::value(parameter, why));
    }
    Ok(())
}

/// Refuses a value that has other characters than letters, digits and these.
fn check_plain(parameter: &'static str, value: &str, others: &str) -> Result<()> {
    check_value(parameter, value)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    match value.chars().find(|c| !is_plain(*c)) {
        None => Ok(()),
        Some(bad) => {
            let why = format!("`{}` contains `{bad}`, which it cannot", shown(value));
            Err(ProvisionerRefusal::value(parameter, why))
        }
    }
}

fn number(parameter: &'static str, value: u32, most: u32) -> Result<i64> {
    match (1..=most).contains(&value) {
        true => Ok(value.into()),
        false => {
            let why = format!("{value} is not between 1 and {most}");
            Err(ProvisionerRefusal::value(parameter, why))
        }
    }
}

/// Reads one of a few words, in any case; none for an empty text or the word for it.
fn word(parameter: &'static str, value: &str, words: &[&str]) -> Result<Option<String>> {
    let value = value.trim().to_ascii_lowercase();
    if value.is_empty() || value == NONE {
        return Ok(None);
    }
    if words.contains(&value.as_str()) {
        return Ok(Some(value));
    }
    let words: Vec<String> = words.iter().chain([&NONE]).map(|word| format!("`{word}`")).collect();
    let why = format!("`{}` is not one of {}", shown(&value), words.join(", "));
    Err(ProvisionerRefusal::value(parameter, why))
}

fn with_fields(
    cluster: &Cluster,
    mut template: SystemTemplate,
    fields: &SystemTemplateFields,
) -> Result<SystemTemplate> {
    if let Some(vcpus) = fields.vcpus {
        template.vcpus = number("vcpus", vcpus, MOST_VCPUS)?;
    }
    if let Some(vram) = fields.vram_mib {
        template.vram_mib = number("vram", vram, MOST_VRAM_MIB)?;
    }
    template.serial = fields.serial.unwrap_or(template.serial);
    template.vnc = fields.vnc.unwrap_or(template.vnc);
    if let Some(bind) = &fields.vnc_bind {
        template.vnc_bind = optional("vnc_bind", Some(bind))?;
        check_plain("vnc_bind", template.vnc_bind.as_deref().unwrap_or_default(), ".:-_%")?;
    }
    if !template.vnc {
        template.vnc_bind = None;
    }
    if let Some(nodes) = &fields.node_limit {
        template.node_limit = node_limit(cluster, nodes)?;
    }
    if let Some(selector) = &fields.node_selector {
        template.node_selector = word("node_selector", selector, Selector::WORDS)?;
    }
    template.node_autostart = fields.node_autostart.unwrap_or(template.node_autostart);
    if let Some(method) = &fields.migration_method {
        template.migration_method = word("migration_method", method, MigrationMethod::WORDS)?;
    }
    if let Some(downtime) = fields.migration_max_downtime {
        let downtime = number("migration_max_downtime", downtime, MOST_DOWNTIME)?;
        template.migration_max_downtime = Some(downtime);
    }
    Ok(template)
}

fn node_limit(cluster: &Cluster, nodes: &[String]) -> Result<Option<String>> {
    let mut names: Vec<&str> = Vec::new();
    for name in nodes.iter().map(|node| node.trim()).filter(|node| !node.is_empty()) {
        if cluster.node(name).is_none() {
            let why = format!("there is no node `{}`", shown(name));
            return Err(ProvisionerRefusal::value("node_limit", why));
        }
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(Some(names.join(",")).filter(|names| !names.is_empty()))
}

/// The network as it is kept.
fn checked_vni(vni: &str) -> Result<String> {
    let vni = vni.trim();
    if CoreNet::named(vni).is_some() {
        return Ok(vni.to_owned());
    }
    let device = DEVICES.iter().find_map(|way| vni.strip_prefix(way));
    if let Some(device) = device.filter(|device| !device.is_empty()) {
        check_plain("vni", device, ".-_:")?;
        return Ok(vni.to_owned());
    }
    match Vni::parse(vni) {
        Some(number) => Ok(number.to_string()),
        None => {
            let why = format!(
                "`{}` is neither a number from 1 to {} nor `upstream`, `cluster`, `storage`, \
                 `macvtap:DEVICE` or `hostdev:DEVICE`",
                shown(vni),
                Vni::MAX
            );
            Err(ProvisionerRefusal::value("vni", why))
        }
    }
}

fn add_net(catalog: &Catalog, template: &str, vni: &str, twice: bool) -> Result<Decision> {
    let present = find(&catalog.network_templates, Class::NetworkTemplate, template)?;
    let vni = checked_vni(vni)?;
    if !twice && present.nets.iter().any(|net| net.vni == vni) {
        return Err(ProvisionerRefusal::HasNet { template: shown(template), vni });
    }
    check_room("vni", present.nets.len())?;
    let message = format!("Added network {vni} to network template \"{template}\".");
    Ok(Decision::of([Edit::AddNet { template: present.id, vni }], message))
}

fn check_room(parameter: &'static str, present: usize) -> Result<()> {
    match present < MOST_PARTS {
        true => Ok(()),
        false => {
            let why = format!("the template has {present} already, more are not possible");
            Err(ProvisionerRefusal::value(parameter, why))
        }
    }
}

fn add_disk(
    cluster: &Cluster,
    catalog: &Catalog,
    template: &str,
    new: &NewDisk,
) -> Result<Decision> {
    let present = find(&catalog.storage_templates, Class::StorageTemplate, template)?;
    let disk = checked_disk(cluster, new)?;
    let has = |what: String| Err(ProvisionerRefusal::HasDisk { template: shown(template), what });
    if present.disks.iter().any(|known| known.disk_id == disk.disk_id) {
        return has(format!("a disk `{}`", disk.disk_id));
    }
    let is_there = |known: &&TemplateDisk| known.mountpoint == disk.mountpoint;
    let other = present.disks.iter().find(is_there).filter(|_| disk.mountpoint.is_some());
    if let (Some(other), Some(mountpoint)) = (other, &disk.mountpoint) {
        return has(format!("a disk `{}` that is mounted at `{mountpoint}`", other.disk_id));
    }
    check_room("disk_id", present.disks.len())?;
    let message = format!("Added disk {} to storage template \"{template}\".", disk.disk_id);
    Ok(Decision::of([Edit::AddDisk { template: present.id, disk }], message))
}

fn checked_disk(cluster: &Cluster, new: &NewDisk) -> Result<TemplateDisk> {
    let refused = |parameter, why: &str| Err(ProvisionerRefusal::value(parameter, why));
    let (disk_id, pool) = (new.disk_id.trim(), new.pool.trim());
    if disk_id.is_empty() {
        return refused("disk_id", "is the name of a disk, such as `sda`");
    }
    check_plain("disk_id", disk_id, "-_")?;
    if !cluster.pools.iter().any(|(name, _)| name.as_str() == pool) {
        return refused("pool", &format!("there is no pool `{}`", shown(pool)));
    }
    let source_volume = optional("source_volume", new.source_volume.as_deref())?;
    let filesystem = optional("filesystem", new.filesystem.as_deref())?;
    let mountpoint = optional("mountpoint", new.mountpoint.as_deref())?;
    let args: Vec<&str> = new.filesystem_args.iter().map(String::as_str).collect();
    if let Some(source) = &source_volume {
        check_plain("source_volume", source, ".-_")?;
        let is_more = new.size_gib.is_some() || filesystem.is_some() || mountpoint.is_some();
        if is_more || !args.is_empty() {
            let why =
                "a copy of a volume has its size, its filesystem and what is in it from there";
            return refused("source_volume", why);
        }
    }
    let size_gib = new.size_gib.map(|size| number("disk_size", size, MOST_DISK_GIB)).transpose()?;
    if source_volume.is_none() && size_gib.is_none() {
        return refused("disk_size", "is needed of a disk that is no copy of a volume");
    }
    check_filesystem(filesystem.as_deref(), mountpoint.as_deref(), &args)?;
    Ok(TemplateDisk {
        id: 0,
        pool: pool.to_owned(),
        disk_id: disk_id.to_owned(),
        source_volume,
        size_gib,
        mountpoint,
        filesystem,
        filesystem_args: Some(args.join(" ")),
    })
}

/// Checks the filesystem of a disk, the place at which it is mounted, and the options of its `mkfs`
/// program.
fn check_filesystem(
    filesystem: Option<&str>,
    mountpoint: Option<&str>,
    args: &[&str],
) -> Result<()> {
    let refused = |parameter, why: &str| Err(ProvisionerRefusal::value(parameter, why));
    if filesystem.is_none() && mountpoint.is_some() {
        return refused("mountpoint", "a disk without a filesystem cannot be mounted");
    }
    if filesystem.is_none() && !args.is_empty() {
        return refused("filesystem_arg", "a disk without a filesystem has no options for it");
    }
    // It becomes part of the name of a program.
    check_plain("filesystem", filesystem.unwrap_or_default(), ".-_")?;
    for arg in args {
        check_value("filesystem_arg", arg)?;
        if arg.is_empty() || arg.contains(char::is_whitespace) {
            return refused("filesystem_arg", &format!("`{}` has a space in it", shown(arg)));
        }
        if !is_known_option(arg) {
            let why = format!("`{}` is not among those that only shape a filesystem", shown(arg));
            return refused("filesystem_arg", &why);
        }
    }
    if mountpoint.is_some_and(|mountpoint| mountpoint.contains(char::is_whitespace)) {
        return refused("mountpoint", "has a space in it, which `/etc/fstab` cannot have");
    }
    if mountpoint.is_some_and(|mountpoint| !is_inside(mountpoint)) {
        return refused("mountpoint", "is a path from the guest's root: `/srv`, without `..`");
    }
    Ok(())
}

/// Whether a path from the root of a guest, put behind a directory, stays in that.
pub(super) fn is_inside(mountpoint: &str) -> bool {
    mountpoint.starts_with('/') && mountpoint.split('/').all(|part| !matches!(part, "." | ".."))
}

/// Options of `mkfs` programs that only shape a filesystem. Others read files of the node into it,
/// or write to other devices: `-d` of `mkfs.ext4`, `-p` of `mkfs.xfs`, `--rootdir` of `mkfs.btrfs`.
const OPTIONS: [&str; 33] = [
    "-C",
    "-E",
    "-F",
    "-G",
    "-I",
    "-K",
    "-L",
    "-M",
    "-N",
    "-O",
    "-T",
    "-U",
    "-b",
    "-c",
    "-e",
    "-f",
    "-g",
    "-i",
    "-m",
    "-n",
    "-q",
    "-s",
    "--checksum",
    "--csum",
    "--data",
    "--features",
    "--force",
    "--label",
    "--metadata",
    "--nodesize",
    "--quiet",
    "--sectorsize",
    "--uuid",
];

fn is_known_option(arg: &str) -> bool {
    let (option, value) = arg.split_once('=').unwrap_or((arg, ""));
    OPTIONS.contains(&option) && !value.contains('/')
}

fn check_text(class: Class, text: &str) -> Result<()> {
    if text.len() > MOST_TEXT {
        let why = format!("has {} bytes, at most {MOST_TEXT} are kept", text.len());
        return Err(ProvisionerRefusal::value("data", why));
    }
    if text.contains('\0') {
        return Err(ProvisionerRefusal::value("data", "contains a NUL byte, so it is no text"));
    }
    if class == Class::Script && text.trim().is_empty() {
        return Err(ProvisionerRefusal::value("data", "is empty, so it is no script"));
    }
    Ok(())
}

fn add_profile(catalog: &Catalog, new: &NewProfile) -> Result<Decision> {
    check_new(catalog, Class::Profile, &new.name)?;
    let source = new.source.to_ascii_lowercase();
    if ![PROVISIONER, OVA].contains(&source.as_str()) {
        let why = format!("`{}` is neither `provisioner` nor `ova`", shown(&source));
        return Err(ProvisionerRefusal::value("profile_type", why));
    }
    let ova = reference(catalog, Class::Ova, "ova", new.ova.as_deref())?;
    if source == OVA && ova.is_none() {
        return Err(ProvisionerRefusal::value("ova", "is needed of a profile of type `ova`"));
    }
    let blank = Profile { name: new.name.clone(), source, ova, ..Profile::default() };
    let (system, script) = (&new.fields.system_template, &new.fields.script);
    let fields = ProfileFields {
        system_template: Some(system.clone().unwrap_or_default()),
        script: Some(script.clone().unwrap_or_default()),
        ..new.fields.clone()
    };
    let profile = with_parts(catalog, blank, &fields)?;
    let message = format!("Added profile \"{}\".", profile.name);
    Ok(Decision::of([Edit::AddProfile(profile)], message))
}

/// The number of what a profile is to refer to; none for an empty text.
fn reference(
    catalog: &Catalog,
    class: Class,
    parameter: &'static str,
    name: Option<&str>,
) -> Result<Option<i64>> {
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
    let none =
        || ProvisionerRefusal::value(parameter, format!("there is no {class} `{}`", shown(name)));
    catalog.id(class, name).map(Some).ok_or_else(none)
}

fn with_parts(catalog: &Catalog, mut profile: Profile, fields: &ProfileFields) -> Result<Profile> {
    let needed = |parameter, class, name: &str| {
        let missing = || ProvisionerRefusal::value(parameter, "a profile cannot be without");
        reference(catalog, class, parameter, Some(name))?.ok_or_else(missing)
    };
    if let Some(name) = &fields.system_template {
        profile.system_template = needed("system_template", Class::SystemTemplate, name)?;
    }
    if let Some(name) = &fields.network_template {
        let class = Class::NetworkTemplate;
        profile.network_template = reference(catalog, class, "network_template", Some(name))?;
    }
    if let Some(name) = &fields.storage_template {
        let class = Class::StorageTemplate;
        profile.storage_template = reference(catalog, class, "storage_template", Some(name))?;
    }
    if let Some(name) = &fields.userdata {
        profile.userdata = reference(catalog, Class::Userdata, "userdata", Some(name))?;
    }
    if let Some(name) = &fields.script {
        profile.script = needed("script", Class::Script, name)?;
    }
    if profile.source != OVA {
        let templates = [
            ("network_template", profile.network_template),
            ("storage_template", profile.storage_template),
        ];
        for (parameter, template) in templates {
            if template.is_none() {
                let why = "a profile of type `provisioner` cannot be without";
                return Err(ProvisionerRefusal::value(parameter, why));
            }
        }
    }
    if let Some(arguments) = &fields.arguments {
        profile.arguments = checked_arguments(arguments)?;
    }
    Ok(profile)
}

fn checked_arguments(arguments: &[String]) -> Result<Vec<String>> {
    let refused = |why: String| Err(ProvisionerRefusal::value("arg", why));
    let arguments: Vec<&String> = arguments.iter().filter(|one| !one.is_empty()).collect();
    if arguments.len() > MOST_PARTS {
        return refused(format!("{} are given, at most {MOST_PARTS} are kept", arguments.len()));
    }
    let mut names: Vec<&str> = Vec::new();
    for argument in &arguments {
        check_value("arg", argument)?;
        let Some((name, _)) = argument.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return refused(format!("`{}` is not `NAME=VALUE`", shown(argument)));
        };
        if argument.contains(super::BETWEEN_ARGUMENTS) {
            return refused(format!("`{}` contains `|`, which ends an argument", shown(argument)));
        }
        if names.contains(&name) {
            return refused(format!("`{}` is given twice", shown(name)));
        }
        names.push(name);
    }
    Ok(arguments.into_iter().cloned().collect())
}

fn remove(catalog: &Catalog, class: Class, name: &str) -> Result<Decision> {
    let id = existing(catalog, class, name)?;
    let users = catalog.profiles.iter().filter(|profile| profile.refers_to(class) == Some(id));
    let by: Vec<String> = users.map(|profile| profile.name.clone()).collect();
    if !by.is_empty() {
        return Err(ProvisionerRefusal::Used { class, name: name.to_owned(), by });
    }
    let parts = match class {
        Class::NetworkTemplate => Some(Edit::RemoveNets { template: id, vni: None }),
        Class::StorageTemplate => Some(Edit::RemoveDisks { template: id, disk_id: None }),
        _ => None,
    };
    let edits: Vec<Edit> = parts.into_iter().chain([Edit::Remove { class, id }]).collect();
    Ok(Decision::of(edits, format!("Removed {class} \"{name}\".")))
}

#[cfg(test)]
mod tests;
