//! Arguments of a job that makes a VM.

use std::convert::Infallible;
use std::num::ParseIntError;

use pvc_model::NodeName;
use pvc_model::job::NotUnderstood;
use pvc_model::job::creation::{Seed, SeedFiles, VmCreation};
use pvc_model::storage::VolumeId;

use super::Arguments;

pub(super) fn arguments(creation: &VmCreation) -> Vec<(String, String)> {
    let VmCreation { vm, xml, image, disk, disk_bytes, seed, node, autostart, start } = creation;
    let mut arguments = vec![
        ("domain", vm.name.clone()),
        ("xml", xml.clone()),
        ("image", image.to_string()),
        ("disk", disk.to_string()),
        ("disk_bytes", disk_bytes.to_string()),
    ];
    if let Some(Seed { volume, files }) = seed {
        let SeedFiles { user_data, meta_data, network_config } = files;
        arguments.push(("seed", volume.to_string()));
        // Passwords may be in it: a name that ends so is a secret's.
        arguments.push(("user_data_key", user_data.clone()));
        arguments.push(("meta_data", meta_data.clone()));
        arguments.push(("network_config", network_config.clone()));
    }
    arguments.extend(node.iter().map(|node| ("target_node", node.to_string())));
    let flags = [("autostart", *autostart), ("start", *start)];
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
                    user_data: self.text("user_data_key")?,
                    meta_data: self.text("meta_data")?,
                    network_config: self.text("network_config")?,
                },
            }),
        };
        let bytes = |text: &str| -> Result<u64, ParseIntError> { text.parse() };
        let node = |text: &str| Ok::<_, Infallible>(NodeName::new(text));
        Ok(VmCreation {
            vm: self.vm()?,
            xml: self.text("xml")?,
            image: self.volume_called("image")?,
            disk: self.volume_called("disk")?,
            disk_bytes: self.parsed("disk_bytes", bytes)?,
            seed,
            node: self.maybe("target_node", node)?,
            autostart: self.find("autostart") == Some("true"),
            start: self.find("start") == Some("true"),
        })
    }

    fn volume_called(&self, argument: &'static str) -> Result<VolumeId, NotUnderstood> {
        let volume = VolumeId::from_record(&self.text(argument)?);
        volume.ok_or(NotUnderstood::MissingArgument { argument })
    }
}
