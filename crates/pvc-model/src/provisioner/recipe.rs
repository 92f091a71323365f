//! Everything that a profile says of a VM, found in what is kept.

use super::decide::is_inside;
use super::{
    Catalog, Class, OVA, OvaVolume, Profile, ProvisionerRefusal, Row, SystemTemplate, TemplateDisk,
    TemplateNet,
};
use crate::cluster::Cluster;
use crate::shown;
use crate::storage::{PoolName, VolumeId, VolumeName};

type Result<T> = std::result::Result<T, ProvisionerRefusal>;

/// The most arguments that a VM is made with besides those of its profile, and bytes of each.
const MOST_ARGUMENTS: usize = 64;
const MOST_ARGUMENT_BYTES: usize = 4096;

/// A VM as its profile describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    pub profile: String,
    pub system: SystemTemplate,
    pub mac_template: Option<String>,
    /// Number of the network template, and its networks.
    pub nets: (i64, Vec<TemplateNet>),
    pub disks: RecipeDisks,
    /// Name of the script.
    pub script: String,
    /// Number and name of the OVA that the disks are of.
    pub ova: Option<(i64, String)>,
    /// Arguments of the script by name, each once.
    pub arguments: Vec<(String, String)>,
}

/// Source of a VM's disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecipeDisks {
    /// Number of the storage template, and its disks.
    Template(i64, Vec<TemplateDisk>),
    Ova(Vec<OvaVolume>),
}

/// Room that a disk needs in its pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Room {
    Bytes(u64),
    /// The size of this volume.
    Of(VolumeId),
}

impl Recipe {
    /// Finds what `profile` says. `arguments` are those for this VM: they count more than those of
    /// the profile, and later ones more than earlier.
    ///
    /// # Errors
    /// A profile that is not there, or that refers to what is not there; arguments that are none.
    pub fn find(catalog: &Catalog, profile: &str, arguments: &[String]) -> Result<Recipe> {
        let found = catalog.profiles.iter().find(|row| row.name == profile);
        let missing = || format!("there is no profile `{}`", shown(profile));
        let found = found.ok_or_else(|| ProvisionerRefusal::value("profile", missing()))?;
        let broken = |class| ProvisionerRefusal::Broken { profile: found.name.clone(), class };
        let system = of(&catalog.system_templates, found.system_template);
        let network = found.network_template.map(|id| of(&catalog.network_templates, id));
        let network = match network {
            Some(None) => return Err(broken(Class::NetworkTemplate)),
            // One of an OVA may be without.
            None if found.source != OVA => return Err(broken(Class::NetworkTemplate)),
            found => found.flatten(),
        };
        let script = catalog.name(Class::Script, found.script);
        let (disks, ova) = disks(catalog, found)?;
        Ok(Recipe {
            profile: found.name.clone(),
            system: system.ok_or_else(|| broken(Class::SystemTemplate))?.clone(),
            mac_template: network.and_then(|template| template.mac_template.clone()),
            nets: network.map_or((0, Vec::new()), |row| (row.id, row.nets.clone())),
            disks,
            script: script.ok_or_else(|| broken(Class::Script))?.to_owned(),
            ova,
            arguments: merged(&found.arguments, arguments)?,
        })
    }

    /// Refuses networks of VMs that the cluster does not have.
    pub fn check_networks(&self, cluster: &Cluster) -> Result<()> {
        let is_vni = |vni: &str| vni.bytes().all(|byte| byte.is_ascii_digit());
        let mut vnis = self.nets.1.iter().map(|net| net.vni.as_str()).filter(|vni| is_vni(vni));
        match vnis.find(|vni| !cluster.networks.contains_key(*vni)) {
            None => Ok(()),
            Some(vni) => {
                let profile = self.profile.clone();
                Err(ProvisionerRefusal::NoNetwork { profile, vni: vni.to_owned() })
            }
        }
    }

    /// Room that the disks need, by pool, in the order of the disks.
    pub fn room(&self) -> Vec<(PoolName, Room)> {
        let gib = |size: i64| Room::Bytes(u64::try_from(size).unwrap_or(0) << 30);
        match &self.disks {
            RecipeDisks::Template(_, disks) => {
                let room = |disk: &TemplateDisk| {
                    let pool = PoolName::new(&disk.pool);
                    let room = match &disk.source_volume {
                        None => gib(disk.size_gib.unwrap_or(0)),
                        Some(volume) => {
                            let volume = VolumeName::new(volume);
                            Room::Of(VolumeId { pool: pool.clone(), volume })
                        }
                    };
                    (pool, room)
                };
                disks.iter().map(room).collect()
            }
            RecipeDisks::Ova(volumes) => {
                let room = |of: &OvaVolume| (PoolName::new(&of.pool), gib(of.size_gib));
                volumes.iter().map(room).collect()
            }
        }
    }

    /// The programs that make the filesystems of the disks.
    pub fn makers(&self) -> Vec<String> {
        let RecipeDisks::Template(_, disks) = &self.disks else { return Vec::new() };
        let kinds = disks.iter().filter_map(|disk| disk.filesystem.as_deref());
        let mut makers: Vec<String> = kinds
            .map(|kind| match kind {
                "swap" => "mkswap".to_owned(),
                kind => format!("mkfs.{kind}"),
            })
            .collect();
        makers.sort();
        makers.dedup();
        makers
    }
}

fn of<T: Row>(rows: &[T], id: i64) -> Option<&T> {
    rows.iter().find(|row| row.id() == id)
}

type Source = (RecipeDisks, Option<(i64, String)>);

/// The disks of a profile. Those of an OVA stand in the place of a storage template.
fn disks(catalog: &Catalog, profile: &Profile) -> Result<Source> {
    let broken = |class| ProvisionerRefusal::Broken { profile: profile.name.clone(), class };
    if profile.source == OVA {
        let ova = profile.ova.and_then(|id| of(&catalog.ovas, id));
        let ova = ova.ok_or_else(|| broken(Class::Ova))?;
        return Ok((RecipeDisks::Ova(ova.volumes.clone()), Some((ova.id, ova.name.clone()))));
    }
    let template = profile.storage_template.and_then(|id| of(&catalog.storage_templates, id));
    let template = template.ok_or_else(|| broken(Class::StorageTemplate))?;
    // One that is kept from before it was looked at.
    let outside = template.disks.iter().find_map(|disk| {
        disk.mountpoint
            .as_deref()
            .filter(|mountpoint| !mountpoint.is_empty() && !is_inside(mountpoint))
    });
    if let Some(outside) = outside {
        let (profile, shown) = (profile.name.as_str(), shown(outside));
        let why =
            format!("`{profile}` has a disk that is mounted at `{shown}`, outside of the guest");
        return Err(ProvisionerRefusal::value("profile", why));
    }
    Ok((RecipeDisks::Template(template.id, template.disks.clone()), None))
}

fn merged(of_profile: &[String], of_vm: &[String]) -> Result<Vec<(String, String)>> {
    if of_vm.len() > MOST_ARGUMENTS {
        let why = format!("at most {MOST_ARGUMENTS} are taken");
        return Err(ProvisionerRefusal::value("arg", why));
    }
    let mut arguments: Vec<(String, String)> = Vec::new();
    for text in of_profile.iter().chain(of_vm) {
        let (name, value) = argument(text)?;
        match arguments.iter_mut().find(|(known, _)| known == name) {
            Some((_, before)) => value.clone_into(before),
            None => arguments.push((name.to_owned(), value.to_owned())),
        }
    }
    Ok(arguments)
}

/// Name and value of an argument; the value is whatever stands behind the first `=`.
fn argument(text: &str) -> Result<(&str, &str)> {
    let bad = |why: String| Err(ProvisionerRefusal::value("arg", why));
    if text.len() > MOST_ARGUMENT_BYTES {
        return bad(format!("an argument has at most {MOST_ARGUMENT_BYTES} bytes"));
    }
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name, value)),
        _ => bad(format!("`{}` is not NAME=VALUE", shown(text))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::network::NetworkRecord;
    use crate::provisioner::{Named, NetworkTemplate, Ova, PROVISIONER, StorageTemplate};

    fn catalog() -> Catalog {
        let text = str::to_owned;
        let named = |id, name: &str| Named { id, name: text(name) };
        let disk = |id, disk_id: &str| TemplateDisk {
            id,
            pool: text("vms"),
            disk_id: text(disk_id),
            size_gib: Some(4),
            ..Default::default()
        };
        let mut copy = disk(3, "sdc");
        (copy.size_gib, copy.source_volume) = (None, Some(text("golden")));
        let mut root = disk(1, "sda");
        root.filesystem = Some(text("ext4"));
        let mut swap = disk(2, "sdb");
        swap.filesystem = Some(text("swap"));
        let net = |vni: &str| TemplateNet { id: 1, vni: text(vni) };
        let of_ova = OvaVolume {
            id: 1,
            pool: text("vms"),
            volume: text("ova_o_sda"),
            format: text("vmdk"),
            disk_id: text("sda"),
            size_gib: 20,
        };
        let profile = Profile {
            id: 1,
            name: text("web"),
            source: text(PROVISIONER),
            system_template: 1,
            network_template: Some(1),
            storage_template: Some(1),
            script: 1,
            arguments: vec![text("a=1"), text("b=2=3")],
            ..Default::default()
        };
        let appliance = Profile {
            id: 2,
            name: text("appliance"),
            source: text(OVA),
            network_template: None,
            storage_template: Some(1),
            ova: Some(1),
            ..profile.clone()
        };
        Catalog {
            system_templates: vec![SystemTemplate { id: 1, vcpus: 2, ..Default::default() }],
            network_templates: vec![NetworkTemplate {
                id: 1,
                mac_template: Some(text("{prefix}:00")),
                nets: vec![net("1001"), net("upstream"), net("hostdev:ens1f0v1")],
                ..Default::default()
            }],
            storage_templates: vec![StorageTemplate {
                id: 1,
                disks: vec![root, swap, copy],
                ..Default::default()
            }],
            scripts: vec![named(1, "noop")],
            ovas: vec![Ova { id: 1, name: text("o"), volumes: vec![of_ova] }],
            profiles: vec![profile, appliance],
            ..Default::default()
        }
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_profile_is_found_with_all_that_it_refers_to() {
        let recipe = Recipe::find(&catalog(), "web", &[]).expect("it is whole");
        assert_eq!((recipe.system.vcpus, recipe.script.as_str()), (2, "noop"));
        assert_eq!(recipe.mac_template.as_deref(), Some("{prefix}:00"));
        assert_eq!(recipe.nets.1.len(), 3);
        assert_eq!(recipe.makers(), ["mkfs.ext4", "mkswap"]);
        let (vms, golden) = (PoolName::new("vms"), VolumeName::new("golden"));
        let copy = Room::Of(VolumeId { pool: vms.clone(), volume: golden });
        let gib = |count: u64| (vms.clone(), Room::Bytes(count << 30));
        assert_eq!(recipe.room(), [gib(4), gib(4), (vms.clone(), copy)]);
    }

    #[test]
    fn the_disks_of_an_ova_stand_in_the_place_of_a_storage_template() {
        let recipe = Recipe::find(&catalog(), "appliance", &[]).expect("it is whole");
        assert_eq!(recipe.ova, Some((1, "o".to_owned())));
        assert_eq!(recipe.room(), [(PoolName::new("vms"), Room::Bytes(20 << 30))]);
        assert_eq!((recipe.nets.1.len(), recipe.makers().len()), (0, 0));
    }

    #[test]
    fn a_profile_that_refers_to_nothing_is_refused_with_what_is_missing() {
        type Cut = fn(&mut Catalog);
        let cuts: [(Cut, &str); 6] = [
            (|all| all.system_templates.clear(), "system template"),
            (|all| all.network_templates.clear(), "network template"),
            (|all| all.profiles[0].network_template = None, "network template"),
            (|all| all.storage_templates.clear(), "storage template"),
            (|all| all.scripts.clear(), "script"),
            (|all| all.profiles[0].source = OVA.to_owned(), "OVA"),
        ];
        for (cut, class) in cuts {
            let mut catalog = catalog();
            cut(&mut catalog);
            let refused = Recipe::find(&catalog, "web", &[]).expect_err(class).to_string();
            assert_eq!(refused, format!("profile `web` has no {class}"));
        }
        let refused = Recipe::find(&catalog(), "nobody", &[]).expect_err("there is none");
        assert_eq!(refused.parameter().map(|(parameter, _)| parameter), Some("profile"));
    }

    #[test]
    fn later_arguments_count_more_and_a_value_is_whatever_stands_behind_the_first_sign() {
        let of_vm = texts(&["b=x", "c=\"'\n|,=", "d=", "c=last=one"]);
        let recipe = Recipe::find(&catalog(), "web", &of_vm).expect("they are arguments");
        let arguments: Vec<(&str, &str)> =
            recipe.arguments.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(arguments, [("a", "1"), ("b", "x"), ("c", "last=one"), ("d", "")]);
        for bad in ["", "a", "=a", &format!("a={}", "x".repeat(5000))] {
            assert!(Recipe::find(&catalog(), "web", &texts(&[bad])).is_err(), "{bad}");
        }
        assert!(Recipe::find(&catalog(), "web", &vec!["a=1".to_owned(); 65]).is_err());
    }

    #[test]
    fn networks_that_the_cluster_does_not_have_are_refused() {
        let recipe = Recipe::find(&catalog(), "web", &[]).expect("it is whole");
        let mut cluster = Cluster::default();
        let refused = recipe.check_networks(&cluster).expect_err("there is no network");
        assert!(refused.to_string().contains("1001"), "{refused}");
        cluster.networks.insert("1001".to_owned(), Arc::new(NetworkRecord::default()));
        assert_eq!(recipe.check_networks(&cluster), Ok(()));
    }
}
