//! Arguments of a job that makes a VM.

use std::convert::Infallible;
use std::num::ParseIntError;

use pvc_model::NodeName;
use pvc_model::job::NotUnderstood;
use pvc_model::job::creation::{Seed, SeedFiles, VmCreation};
use pvc_model::storage::VolumeId;

use super::Arguments;

pub(super) fn arguments(creation: &VmCreation) -> Vec<(String, String)> {
    let VmCreation { vm, xml, image, disk, disk_bytes, seed, node, medium, .. } = creation;
    let mut arguments = vec![
        ("domain", vm.name.clone()),
        ("xml", xml.clone()),
        ("image", image.to_string()),
        ("disk", disk.to_string()),
        ("disk_bytes", disk_bytes.to_string()),
    ];
    arguments.extend(medium.iter().map(|medium| ("medium", medium.to_string())));
    if let Some(Seed { volume, files }) = seed {
        let SeedFiles { user_data, meta_data, network_config } = files;
        arguments.push(("seed", volume.to_string()));
        // Passwords may be in it: a name that ends so is a secret's, and is kept apart.
        arguments.push(("user_data_key", user_data.clone()));
        arguments.push(("meta_data", meta_data.clone()));
        arguments.push(("network_config", network_config.clone()));
    }
    arguments.extend(node.iter().map(|node| ("target_node", node.to_string())));
    let flags = [
        ("autostart", creation.autostart),
        ("start", creation.start),
        ("refuse_memory_overcommit", creation.refuse_memory_overcommit),
        ("force", creation.force),
    ];
    arguments.extend(flags.map(|(name, is_so)| (name, is_so.to_string())));
    arguments.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

impl Arguments<'_> {
    pub(super) fn creation(&self) -> Result<VmCreation, NotUnderstood> {
        let seed = match self.find("seed") {
            None => None,
            Some(_) => Some(Seed {
                volume: self.volume_called("seed")?,
                files: SeedFiles {
                    // Once the job is over it is nowhere any more.
                    user_data: self.find("user_data_key").unwrap_or_default().to_owned(),
                    meta_data: self.text("meta_data")?,
                    network_config: self.text("network_config")?,
                },
            }),
        };
        let bytes = |text: &str| -> Result<u64, ParseIntError> { text.parse() };
        let node = |text: &str| Ok::<_, Infallible>(NodeName::new(text));
        let is_set = |flag| self.find(flag) == Some("true");
        let vm = self.vm()?;
        if vm.uuid.is_none() {
            return Err(NotUnderstood::MissingArgument { argument: "vm" });
        }
        Ok(VmCreation {
            vm,
            xml: self.text("xml")?,
            image: self.volume_called("image")?,
            medium: self.find("medium").map(|_| self.volume_called("medium")).transpose()?,
            disk: self.volume_called("disk")?,
            disk_bytes: self.parsed("disk_bytes", bytes)?,
            seed,
            node: self.maybe("target_node", node)?,
            autostart: is_set("autostart"),
            start: is_set("start"),
            refuse_memory_overcommit: is_set("refuse_memory_overcommit"),
            force: is_set("force"),
        })
    }

    fn volume_called(&self, argument: &'static str) -> Result<VolumeId, NotUnderstood> {
        let volume = VolumeId::from_record(&self.text(argument)?);
        volume.ok_or(NotUnderstood::MissingArgument { argument })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::option;
    use proptest::prelude::*;
    use pvc_model::Uuid;
    use pvc_model::job::{JobVm, JobWork};

    use super::super::tests::volume;
    use super::*;

    fn seed() -> impl Strategy<Value = Seed> {
        let files = ("\\PC{0,40}", "\\PC{0,40}", "\\PC{0,40}");
        (volume(), files).prop_map(|(volume, (user_data, meta_data, network_config))| Seed {
            volume,
            files: SeedFiles { user_data, meta_data, network_config },
        })
    }

    pub fn work() -> impl Strategy<Value = JobWork> {
        let vm = ("\\PC{0,20}", any::<u128>(), "\\PC{0,40}");
        let disks = (volume(), volume(), any::<u64>(), option::of(seed()), option::of(volume()));
        let flags = any::<[bool; 4]>();
        (vm, disks, option::of("[a-z0-9]{1,9}"), flags).prop_map(|(vm, disks, node, flags)| {
            let [autostart, start, refuse_memory_overcommit, force] = flags;
            JobWork::CreateVm(Box::new(VmCreation {
                vm: JobVm { name: vm.0, uuid: Some(Uuid::from_u128(vm.1)) },
                xml: vm.2,
                image: disks.0,
                disk: disks.1,
                disk_bytes: disks.2,
                seed: disks.3,
                medium: disks.4,
                node: node.map(NodeName::new),
                autostart,
                start,
                refuse_memory_overcommit,
                force,
            }))
        })
    }
}
