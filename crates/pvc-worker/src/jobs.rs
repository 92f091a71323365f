//! The kinds of jobs, one file each.

mod benchmark;
mod create;
mod device;
mod locks;
mod new_vm;
mod osd;
mod provision;
mod rename;
mod resize;
mod text;

pub use self::benchmark::{BenchmarkSettings, BenchmarkTools};
pub use self::provision::{Lists, Profiles, ScriptSettings, ScriptTools};
pub(crate) use self::rename::left_half_way;

use std::sync::Arc;

use pvc_model::cluster::Cluster;
use pvc_model::job::{JobVm, JobWork, NotUnderstood};
use pvc_model::vm::VmRecord;
use pvc_ops::NoVm;
use pvc_ports::DeviceChange;

use crate::kind::Steps;

/// Steps of a job of this kind: the only place that lists the kinds.
///
/// # Errors
/// Jobs that another version of PVC has recorded.
pub(crate) fn steps(work: &JobWork) -> Result<Arc<dyn Steps>, NotUnderstood> {
    let device = |vm: &JobVm, xml: &str, change| {
        Arc::new(device::ChangeDevice { vm: vm.clone(), xml: xml.to_owned(), change })
    };
    Ok(match work {
        JobWork::FlushLocks { vm } => Arc::new(locks::FlushLocks { vm: vm.clone() }),
        JobWork::AttachDevice { vm, xml } => device(vm, xml, DeviceChange::Attach),
        JobWork::DetachDevice { vm, xml } => device(vm, xml, DeviceChange::Detach),
        JobWork::CreateVm(new) => Arc::new(create::CreateVm { new: new.clone() }),
        JobWork::Provision(wanted) => Arc::new(provision::ProvisionVm { wanted: wanted.clone() }),
        JobWork::RenameVm { vm, to } => {
            Arc::new(rename::RenameVm { vm: vm.clone(), to: to.clone() })
        }
        JobWork::ResizeDisk { vm, volume } => {
            Arc::new(resize::ResizeDisk { vm: vm.clone(), volume: volume.clone() })
        }
        JobWork::AddOsds(new) => Arc::new(osd::Add { new: new.clone() }),
        JobWork::PlanOsds(new) => Arc::new(osd::Plan { new: new.clone() }),
        JobWork::ReplaceOsd(replacement) => {
            Arc::new(osd::Replace { replacement: replacement.clone() })
        }
        JobWork::RefreshOsd { osd, device } => {
            Arc::new(osd::Refresh { osd: *osd, device: device.clone() })
        }
        JobWork::RemoveOsd { osd, force } => Arc::new(osd::Remove { osd: *osd, force: *force }),
        JobWork::AddDbGroup { device } => Arc::new(osd::AddDbGroup { device: device.clone() }),
        JobWork::BenchmarkStorage { pool, name } => {
            Arc::new(benchmark::BenchmarkStorage { pool: pool.clone(), name: name.clone() })
        }
        work @ (JobWork::Upload { .. }
        | JobWork::Download { .. }
        | JobWork::ChangeStorage { .. }) => {
            return Err(NotUnderstood::NotForWorkers { name: work.name().to_owned() });
        }
        JobWork::Other { why, .. } => return Err(why.clone()),
    })
}

/// The VM that a job is about, whatever it is called by now.
fn find<'a>(vm: &JobVm, view: &'a Cluster) -> Result<&'a Arc<VmRecord>, NoVm> {
    vm.record(view).ok_or_else(|| NoVm { vm: vm.name.clone() })
}

/// Name of the VM now; if it is gone, what it was called.
fn name(vm: &JobVm, view: &Cluster) -> String {
    vm.record(view).map_or_else(|| vm.name.clone(), |record| record.name.clone())
}
