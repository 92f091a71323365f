//! OVAs, with the templates and the profile that come and go with them.

use super::{
    DOWNTIME, Decision, Edit, MOST_VCPUS, MOST_VRAM_MIB, Result, check_new, existing, find, number,
};
use crate::cluster::Cluster;
use crate::provisioner::{
    Catalog, Class, NewOva, Ova, Profile, ProvisionerRefusal, SystemTemplate,
};
use crate::shown;

/// The scripts that make VMs of OVAs, the preferred first.
const SCRIPTS: [&str; 2] = ["ova", "default_ova"];

/// Refuses an OVA of this name before anything is known of it but that; returns the number of the
/// script that its profile is to have.
///
/// # Errors
/// If there is no script for OVAs, or the name is none or taken.
pub fn check_new_ova(catalog: &Catalog, name: &str) -> Result<i64> {
    for class in [Class::Ova, Class::SystemTemplate, Class::Profile] {
        check_new(catalog, class, name)?;
    }
    let script = SCRIPTS.iter().find_map(|script| catalog.id(Class::Script, script));
    script.ok_or(ProvisionerRefusal::NoOvaScript)
}

/// The VNIs of the networks that an OVA names, and the names that no network has alone.
fn mapped<'a>(cluster: &Cluster, names: &'a [String]) -> (Vec<String>, Vec<&'a str>) {
    let (mut vnis, mut unknown): (_, Vec<&str>) = (Vec::new(), Vec::new());
    for name in names {
        let is_it = |vni: &String, description: &str| vni == name || description == name;
        let records = cluster.networks.iter();
        let mut fit = records.filter(|(vni, record)| is_it(vni, &record.description));
        match (fit.next(), fit.next()) {
            (Some((vni, _)), None) => vnis.push(vni.clone()),
            _ if unknown.contains(&name.as_str()) => {}
            _ => unknown.push(name),
        }
    }
    (vnis, unknown)
}

pub(super) fn add_ova(cluster: &Cluster, catalog: &Catalog, new: &NewOva) -> Result<Decision> {
    let script = check_new_ova(catalog, &new.name)?;
    let (vnis, unknown) = mapped(cluster, &new.networks);
    if !vnis.is_empty() {
        check_new(catalog, Class::NetworkTemplate, &new.name)?;
    }
    let name = || new.name.clone();
    let template = SystemTemplate {
        name: name(),
        vcpus: number("vcpus", new.vcpus, MOST_VCPUS)?,
        vram_mib: number("vram", u32::try_from(new.vram_mib).unwrap_or(u32::MAX), MOST_VRAM_MIB)?,
        serial: !new.has_graphics,
        vnc: new.has_graphics,
        migration_max_downtime: Some(DOWNTIME.into()),
        ..SystemTemplate::default()
    };
    let mut edits = vec![Edit::AddOva { name: name(), ovf: new.ovf.clone() }];
    for volume in &new.volumes {
        edits.push(Edit::AddOvaVolume { ova: name(), volume: volume.clone() });
    }
    edits.push(Edit::AddSystemTemplateOfOva { ova: name(), template });
    if !vnis.is_empty() {
        edits.push(Edit::AddNetworkTemplateOfOva { ova: name() });
    }
    for vni in &vnis {
        edits.push(Edit::AddNetOfOva { ova: name(), vni: vni.clone() });
    }
    edits.push(Edit::AddProfileOfOva { ova: name(), script });
    let message = added(new, vnis.len(), &unknown);
    Ok(Decision { edits, message })
}

fn added(new: &NewOva, networks: usize, unknown: &[&str]) -> String {
    let disks = match new.volumes.len() {
        1 => "1 disk".to_owned(),
        count => format!("{count} disks"),
    };
    let template = if networks > 0 {
        ", system template and network template"
    } else {
        " and system template"
    };
    let mut message = format!(
        "Added OVA \"{}\" with {disks}. Its profile{template} have the same name.",
        new.name
    );
    let names: Vec<String> = unknown.iter().map(|name| format!("`{}`", shown(name))).collect();
    if !names.is_empty() {
        message.push_str(&format!(
            " Left out are interfaces in {}, of which there is not exactly one network here.",
            names.join(", ")
        ));
    }
    message
}

/// Decides on the removal of an OVA with its profiles and its templates.
pub(super) fn remove_ova(catalog: &Catalog, name: &str) -> Result<Decision> {
    let id = existing(catalog, Class::Ova, name)?;
    let is_of_it = |ova: Option<i64>| ova == Some(id);
    let systems = catalog.system_templates.iter().filter(|one| is_of_it(one.ova));
    let networks = catalog.network_templates.iter().filter(|one| is_of_it(one.ova));
    let storages = catalog.storage_templates.iter().filter(|one| is_of_it(one.ova));
    let templates: Vec<(Class, i64, &str)> = systems
        .map(|one| (Class::SystemTemplate, one.id, &*one.name))
        .chain(networks.map(|one| (Class::NetworkTemplate, one.id, &*one.name)))
        .chain(storages.map(|one| (Class::StorageTemplate, one.id, &*one.name)))
        .collect();
    let (own, others): (Vec<&Profile>, Vec<&Profile>) =
        catalog.profiles.iter().partition(|profile| is_of_it(profile.ova));
    for (class, template, name) in &templates {
        let users = others.iter().filter(|other| other.refers_to(*class) == Some(*template));
        let by: Vec<String> = users.map(|profile| profile.name.clone()).collect();
        if !by.is_empty() {
            return Err(ProvisionerRefusal::Used { class: *class, name: (*name).to_owned(), by });
        }
    }
    let mut edits: Vec<Edit> =
        own.iter().map(|one| Edit::Remove { class: Class::Profile, id: one.id }).collect();
    for (class, id, _) in templates {
        match class {
            Class::NetworkTemplate => edits.push(Edit::RemoveNets { template: id, vni: None }),
            Class::StorageTemplate => {
                edits.push(Edit::RemoveDisks { template: id, disk_id: None });
            }
            _ => {}
        }
        edits.push(Edit::Remove { class, id });
    }
    edits.push(Edit::RemoveOvaVolumes { ova: id });
    edits.push(Edit::Remove { class: Class::Ova, id });
    Ok(Decision::of(edits, format!("Removed OVA \"{name}\".")))
}

/// The OVA of this name.
///
/// # Errors
/// If there is none.
pub fn find_ova<'a>(catalog: &'a Catalog, name: &str) -> Result<&'a Ova> {
    find(&catalog.ovas, Class::Ova, name)
}
