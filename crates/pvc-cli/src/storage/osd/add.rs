use clap::Args;
use pvc_api_types::operations::osd::{OsdAddition, PostStorageCephOsd};
use pvc_api_types::operations::task::GetTasksTaskIdLog;
use pvc_api_types::param::{Added, Nothing};
use pvc_client::{Error, Submitted};

use super::{Databases, Disk, Way};
use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::output::harmless;
use crate::task;

/// Make an OSD of a disk
///
/// All that is on the disk is lost; one that has partitions or is in use is refused.
/// DEVICE is an absolute path, best one below /dev/disk/by-path, or detect:NAME:SIZE:ID:
/// of the disks whose model has NAME in it and whose size is SIZE, within 3 %, the one
/// with the number ID, counted from 0. `--plan` tells which disk that is, and what would
/// be done to it, and does nothing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage osd add hv1 detect:MZ7KH:960GB:0 --plan
  pvc storage osd add hv1 /dev/disk/by-path/pci-0000:03:00.0-scsi-0:1:0:0
  pvc storage osd add hv2 /dev/nvme0n1 --osd-count 2 --ext-db-ratio 0.05 --yes")]
pub struct Add {
    #[command(flatten)]
    disk: Disk,

    /// Weight of each OSD: how much of the data it takes, compared with others
    #[arg(short, long, default_value_t = 1.0)]
    weight: f64,

    #[command(flatten)]
    databases: Databases,

    /// Number of OSDs to make of the disk
    #[arg(short = 'c', long, value_name = "COUNT")]
    osd_count: Option<u32>,

    /// Do nothing; tell which disk it is and what would be done
    #[arg(long, conflicts_with = "no_wait")]
    plan: bool,

    #[command(flatten)]
    way: Way,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let addition = OsdAddition {
            node: self.disk.node,
            device: self.disk.device,
            weight: self.weight,
            ext_db_ratio: self.databases.ext_db_ratio,
            ext_db_size: self.databases.ext_db_size,
            osd_count: self.osd_count,
            plan: Added(self.plan),
        };
        if self.plan {
            return tell(pvc, &addition);
        }
        let OsdAddition { node, device, .. } = &addition;
        let sentence = format!("Destroy all data on \"{device}\" of node \"{node}\" for a new OSD");
        self.way.submit(pvc, (PostStorageCephOsd, []), &addition, &sentence)
    }
}

/// Prints what the node says it would do. Of what it refuses it says what is there, too.
fn tell(pvc: &mut Pvc, addition: &OsdAddition) -> Outcome {
    // A server that does not know the parameter would add the OSD.
    if !pvc.client()?.takes(PostStorageCephOsd, "plan")? {
        return Err(Error::too_old_to_tell().into());
    }
    let task = match pvc.client()?.submit(PostStorageCephOsd, [], addition)? {
        Submitted::Task(task) => task,
        Submitted::WouldBe(message) => {
            pvc.done(message);
            return Ok(());
        }
    };
    let end = task::end_of(pvc, &task.task_id)?;
    let log = pvc.client()?.read(GetTasksTaskIdLog, [&task.task_id], &Nothing)?.read()?;
    if !pvc.done_as_json(&log) {
        log.log.iter().for_each(|line| pvc.out.line(harmless(line, &[])));
    }
    task::check(&task.task_id, &end)
}
