use clap::Args;
use pvc_api_types::operations::storage::GetStorageCephVolumePoolVolume;
use pvc_api_types::param::Nothing;
use pvc_client::Kind;
use pvc_domain::NewDisk;
use pvc_model::domain::DiskSource;
use pvc_model::storage::VolumeId;

use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};
use crate::vm::live::{Edit, Live, Restart};
use crate::vm::{Which, definition};

/// Add a disk to a VM
///
/// The volume has to exist. A running guest gets the disk at once unless `--no-live`
/// says otherwise; the command waits for that. With `--restart` the guest is restarted
/// instead.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc vm volume add web1 vms/web1_data
  pvc vm volume add web1 /srv/iso/debian.iso --type file --bus ide --no-live")]
pub struct Add {
    #[command(flatten)]
    vm: Which,

    /// The volume as POOL/VOLUME, or the path of a file on the node
    #[arg(value_name = "VOLUME")]
    volume: String,

    /// Name of the disk in the guest, such as sdb; the next free one if none is given
    #[arg(short, long, value_name = "DEV")]
    disk_id: Option<String>,

    /// How it is connected
    #[arg(short, long, default_value = "scsi", value_parser = ["scsi", "ide", "usb", "virtio"])]
    bus: String,

    /// Whether VOLUME is a volume or a file
    #[arg(short, long, default_value = "rbd", value_parser = ["rbd", "file"])]
    r#type: String,

    #[command(flatten)]
    live: Live,

    #[command(flatten)]
    restart: Restart,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let source = self.source(pvc)?;
        let mut edit = Edit::of(pvc, &self.vm.domain)?;
        let disk = NewDisk { source, target: self.disk_id, bus: Some(self.bus) };
        let added = edit.domain.add_disk(&disk).map_err(|error| definition::unedited(&error))?;
        edit.plug_in(pvc, self.live, self.restart, &added.xml)
    }

    fn source(&self, pvc: &mut Pvc) -> Result<DiskSource, Failure> {
        if self.r#type == "file" {
            return Ok(DiskSource::File(self.volume.clone()));
        }
        let volume = VolumeId::from_record(&self.volume).ok_or_else(|| {
            Failure::usage(format!("`{}` is no volume", self.volume))
                .hint("a volume is named POOL/VOLUME")
        })?;
        match pvc.client()?.read(
            GetStorageCephVolumePoolVolume,
            [volume.pool.as_str(), volume.volume.as_str()],
            &Nothing,
        ) {
            Ok(found) if !found.is_empty() => Ok(DiskSource::Volume(volume)),
            Err(error) if error.kind() != Kind::NotFound => Err(error.into()),
            _ => Err(Failure::not_found(format!("no volume `{volume}`"))
                .hint("create it first, on a node: `pvcd volume create POOL/VOLUME SIZE`")),
        }
    }
}
