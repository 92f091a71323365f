use clap::Args;
use pvc_api_types::Vm;
use pvc_api_types::operations::storage::GetStorageCephVolumePoolVolume;
use pvc_api_types::operations::vm::{BusWord, DiskWord, PostVmVmVolumes, VolumeAddition};
use pvc_api_types::param::{Choice, Flag, Nothing};
use pvc_client::Kind;
use pvc_domain::{HardwareEdit, NewDisk};
use pvc_model::domain::DiskSource;
use pvc_model::storage::VolumeId;

use crate::choice::words;
use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};
use crate::vm::Which;
use crate::vm::live::{Edit, Hardware, Live, Restart};

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
    #[arg(value_name = "VOLUME", add = crate::completion::volume_paths())]
    volume: String,

    /// Name of the disk in the guest, such as sdb; the next free one if none is given
    #[arg(short, long, value_name = "DEV")]
    disk_id: Option<String>,

    /// The bus that it is connected to
    #[arg(short, long, default_value = "scsi", value_parser = words::<BusWord>())]
    bus: BusWord,

    /// Whether VOLUME is a volume or a file
    #[arg(short, long, default_value = "rbd", value_parser = words::<DiskWord>())]
    r#type: DiskWord,

    #[command(flatten)]
    live: Live,

    #[command(flatten)]
    restart: Restart,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.source()?;
        Edit::of(pvc, &self.vm.domain, &self)?.plug_in(pvc, self.live, self.restart)
    }

    fn source(&self) -> Result<DiskSource, Failure> {
        if self.r#type == DiskWord::File {
            return Ok(DiskSource::File(self.volume.clone()));
        }
        VolumeId::from_record(&self.volume).map(DiskSource::Volume).ok_or_else(|| {
            Failure::usage(format!("`{}` is no volume", self.volume))
                .hint("a volume is named POOL/VOLUME")
        })
    }
}

impl Hardware for Add {
    type Operation = PostVmVmVolumes;
    const OPERATION: PostVmVmVolumes = PostVmVmVolumes;

    fn params(&self, restart: bool) -> VolumeAddition {
        VolumeAddition {
            volume: self.volume.clone(),
            kind: Some(self.r#type),
            disk_id: self.disk_id.clone(),
            bus: Some(self.bus),
            restart: Flag(restart),
        }
    }

    fn edit(&self, pvc: &mut Pvc, _: &Vm) -> Result<HardwareEdit, Failure> {
        let source = self.source()?;
        if let DiskSource::Volume(volume) = &source {
            check_exists(pvc, volume)?;
        }
        let (target, bus) = (self.disk_id.clone(), Some(self.bus.word().to_owned()));
        Ok(HardwareEdit::AddDisk(NewDisk { source, target, bus }))
    }
}

fn check_exists(pvc: &mut Pvc, volume: &VolumeId) -> Outcome {
    match pvc.client()?.read(
        GetStorageCephVolumePoolVolume,
        [volume.pool.as_str(), volume.volume.as_str()],
        &Nothing,
    ) {
        Ok(found) if !found.is_empty() => Ok(()),
        Err(error) if error.kind() != Kind::NotFound => Err(error.into()),
        _ => Err(Failure::not_found(format!("no volume `{volume}`"))
            .hint("`pvc storage volume add POOL NAME SIZE` creates one")),
    }
}
