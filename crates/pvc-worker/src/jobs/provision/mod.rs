//! Makes a VM from a profile, by its script.
//!
//! ```text
//!  build (a process, five methods; the VM in state `provision`) ─ finish (`stop` or `start`)
//! ```
//!
//! The script keeps its state in its process, so the build is one step, and is taken back if its
//! worker is lost. What it makes through calls is written down before it is made (`ledger`): the
//! next worker takes back what there is of it, by identity, and nothing that is another's. Devices
//! that a dead worker has mapped are unmapped by the next worker of the same node when it starts,
//! and until then their volumes are held, unless the node is proven dead.

mod build;
mod calls;
mod data;
mod devices;
mod ledger;
mod records;
mod vms;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::job::JobId;
use pvc_model::job::course::AfterLoss;
use pvc_model::job::provision::Provision;
use pvc_model::provisioner::{Catalog, Class};
use pvc_model::storage::VolumeId;
use pvc_model::vm::VmState;
use pvc_model::with_causes;
use pvc_ops::provision::ProvisionRefusal;
use pvc_ops::storage::{StillMapped, StorageRefusal, require_no_other_user};
use pvc_ops::vm::DefineRefusal;
use pvc_ops::{Kind as RefusalKind, Refusal};
use pvc_ports::{
    BlockDeviceError, BlockDevices, Files, Scripts, ScriptsError, StorageError, Unmapped,
};
use pvc_provisioner::{Provisioner, ProvisionerError};
use pvc_store::{Change, Changes, Expect, VmChange};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::ledger::{Made, MadeVolume, NotNoted};
use super::new_vm::{Ending, Fact, of_storage, recorded, remove};
use crate::context::{Context, Tools, Unwritten};
use crate::kind::Kind;
use crate::left_over::Left;

/// Profiles with all that they refer to, where the provisioner keeps them.
#[async_trait]
pub trait Profiles: Send + Sync {
    /// Everything but texts.
    async fn catalog(&self) -> Result<Catalog, ProvisionerError>;
    /// The text of a script, or the description of an OVA.
    async fn text(&self, class: Class, name: &str) -> Result<Option<String>, ProvisionerError>;
}

#[async_trait]
impl Profiles for Provisioner {
    async fn catalog(&self) -> Result<Catalog, ProvisionerError> {
        Provisioner::catalog(self).await
    }

    async fn text(&self, class: Class, name: &str) -> Result<Option<String>, ProvisionerError> {
        let found = self.texts(class, Some(name)).await?;
        Ok(found.into_iter().next().map(|found| found.text))
    }
}

/// Answers to calls of scripts that ask for a list of the cluster, in the shape of the HTTP API:
/// `None` for other calls.
pub type Lists = fn(
    &Cluster,
    function: &str,
    arguments: &Map<String, Value>,
) -> Option<std::result::Result<Value, String>>;

/// Means to run scripts of the provisioner, and to end what earlier processes have left of them.
pub struct ScriptTools {
    /// `None` if this node's configuration names no database of them: no script is begun, and what
    /// earlier ones have left is ended all the same.
    pub profiles: Option<Arc<dyn Profiles>>,
    pub scripts: Arc<dyn Scripts>,
    pub devices: Arc<dyn BlockDevices>,
    pub files: Arc<dyn Files>,
    pub lists: Lists,
    pub settings: ScriptSettings,
}

/// Settings of the scripts of a node.
#[derive(Debug, Clone)]
pub struct ScriptSettings {
    /// The longest that one method of a script may take, and all of them together.
    pub phase_time: Duration,
    pub whole_time: Duration,
    /// Memory that the processes of a script may use together.
    pub memory_bytes: u64,
    /// Time for which volumes of VMs that a script removes are kept in the trash; none removes
    /// them at once.
    pub removed_volumes_stay: Duration,
    /// Whether the digits at the end of a VM's name are its number for scripts; PVC 1.0.3 tells
    /// them 0.
    pub numbers_vms: bool,
    /// Name of the processor's architecture, as `uname -m` says it.
    pub architecture: String,
    /// Hosts and port of Ceph's monitors, and the UUID of libvirt's secret.
    pub monitors: Vec<String>,
    pub monitor_port: u16,
    pub monitor_secret: String,
    /// Flat configuration, for scripts that look into it.
    pub config: Map<String, Value>,
}

impl ScriptTools {
    /// Ends what workers of this node that are no more have left. Returns what stays mapped.
    pub(crate) async fn end_left_over(&self) -> Left {
        let unmapped = self.devices.unmap_left_over().await;
        let failed = unmapped.iter().filter_map(|unmapped| unmapped.as_ref().err());
        let left = failed.map(|error| error.volume().cloned()).collect();
        log_unmapped(unmapped);
        if let Err(error) = self.scripts.end_left_over().await {
            let error = with_causes(&error);
            tracing::warn!(error, "what earlier scripts have left could not be removed");
        }
        left
    }

    /// Lets go of volumes that are held for scripts on this node, of jobs that this process does
    /// not do: earlier ones have left them, or this one could not unmap them at the time. Whether
    /// none of them stays held.
    pub(crate) async fn let_go_of(&self, tools: &Tools, former: Vec<(VolumeId, JobId)>) -> bool {
        let mut is_done = true;
        for (volume, job) in former {
            match devices::end_former((tools, self), &volume, &job).await {
                Ok(()) => {
                    tracing::info!(%volume, %job, "a volume that a script had mapped is let go of");
                }
                Err(error) => {
                    is_done = false;
                    let error = with_causes(&error);
                    tracing::warn!(%volume, %job, error, "a volume that a script had mapped \
                                                          cannot be let go of; it is tried again");
                }
            }
        }
        is_done
    }

    /// Unmaps what scripts of this worker, which stops, have left mapped. The adapter logs what
    /// becomes of each: there may be no time to wait for all.
    pub(crate) async fn unmap_all(&self) {
        let _ = self.devices.unmap_all().await;
    }
}

fn log_unmapped(ended: Vec<Unmapped>) {
    for unmapped in ended {
        match unmapped {
            Ok(volume) => tracing::info!(%volume, "a volume was unmapped that a script had left"),
            Err(error) => {
                let error = with_causes(&error);
                tracing::warn!(error, "a volume that a script had mapped could not be unmapped");
            }
        }
    }
}

pub(crate) struct ProvisionVm {
    pub wanted: Box<Provision>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    Build,
    Finish,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ProvisionError {
    #[error(transparent)]
    Refused(#[from] ProvisionRefusal),
    #[error(transparent)]
    Provisioner(#[from] ProvisionerError),
    #[error("the filesystems of the profile need `{program}`, which node `{node}` has not")]
    NoMaker { program: String, node: String },
    #[error("this worker runs no scripts of the provisioner")]
    NoScripts,
    #[error(transparent)]
    Scripts(#[from] ScriptsError),
    #[error(transparent)]
    Device(#[from] BlockDeviceError),
    #[error("error in {at}: {class}: {text}")]
    Raised { at: &'static str, class: String, text: String },
    #[error("error in {at}: it took longer than {} s, and was ended", .after.as_secs())]
    TooLong { at: &'static str, after: Duration },
    #[error("error in {at}: {source}")]
    Ended { at: &'static str, source: ScriptsError },
    #[error("error in {at}: the script's process sent a message that nobody expects there")]
    Unexpected { at: &'static str },
    #[error("the script's create() returned XML of more than {most} bytes")]
    LongXml { most: usize },
    #[error("the XML that the script's create() returned cannot be recorded: {source}")]
    Xml { source: DefineRefusal },
    #[error("the script was ended because the task is cancelled")]
    Cancelled,
    #[error("the script was ended because its worker stops")]
    Leaving,
    #[error(transparent)]
    NotNoted(#[from] NotNoted),
    #[error("VM `{vm}` was removed, or given another state, while it was made")]
    Changed { vm: String },
    #[error(transparent)]
    Storage(#[from] StorageRefusal),
    #[error(transparent)]
    StillMapped(#[from] StillMapped),
}

impl Refusal for ProvisionError {
    fn kind(&self) -> RefusalKind {
        match self {
            ProvisionError::Refused(why) => why.kind(),
            ProvisionError::Storage(why) => why.kind(),
            ProvisionError::StillMapped(why) => why.kind(),
            ProvisionError::Provisioner(ProvisionerError::Refused(why)) => why.kind(),
            ProvisionError::Provisioner(_)
            | ProvisionError::Device(_)
            | ProvisionError::Leaving
            | ProvisionError::NotNoted(NotNoted::Lost) => RefusalKind::Unavailable,
            _ => RefusalKind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            ProvisionError::Refused(why) => why.hint(),
            ProvisionError::Storage(why) => why.hint(),
            ProvisionError::StillMapped(why) => why.hint(),
            ProvisionError::Provisioner(why) => why.hint(),
            ProvisionError::Xml { source } => source.hint(),
            ProvisionError::TooLong { .. } => Some(
                "`provisioner.script_phase_seconds` and `provisioner.script_seconds` of the \
                 configuration say how long a script may take"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

type Result<T, E = Unwritten<ProvisionError>> = std::result::Result<T, E>;

/// Number of stages that PVC 1.0.3 counts.
const STAGES: u32 = 11;

/// The last stage but one.
const STARTING: u32 = 10;

#[async_trait]
impl Kind for ProvisionVm {
    type Step = Step;
    type Fact = Fact;
    type Error = Unwritten<ProvisionError>;

    const AFTER_LOSS: AfterLoss = AfterLoss::TakeBack;

    fn stages(&self) -> Option<u32> {
        Some(STAGES)
    }

    async fn plan(&self, _: &Context) -> Result<Vec<Step>> {
        Ok(vec![Step::Build, Step::Finish])
    }

    fn doing(&self, step: &Step) -> String {
        let Provision { vm, profile, start, define, .. } = &*self.wanted;
        match step {
            Step::Build => format!("provisioning VM \"{}\" with profile \"{profile}\"", vm.name),
            Step::Finish if *start => format!("starting VM \"{}\"", vm.name),
            Step::Finish if *define => format!("completing VM \"{}\"", vm.name),
            Step::Finish => "completing what the script has made".to_owned(),
        }
    }

    async fn look(&self, context: &Context, step: &Step) -> Result<Option<Fact>> {
        match step {
            // Its process is gone, and what that has kept with it.
            Step::Build => Ok(None),
            Step::Finish => {
                let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
                Ok(self.finished(&view))
            }
        }
    }

    async fn run(&self, context: &Context, step: &Step) -> Result<Fact> {
        match step {
            Step::Build => {
                let tools = context.tools.scripts.clone();
                let tools = tools.ok_or(ProvisionError::NoScripts)?;
                build::build(context, &tools, &self.wanted).await?;
                remove_unfinished(context).await?;
                Ok(Fact::Done)
            }
            Step::Finish => {
                context.edit(|progress| progress.current = STARTING);
                self.finish(context).await
            }
        }
    }

    async fn undo(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Build => self.take_back(context).await,
            Step::Finish => Ok(()),
        }
    }

    fn result(&self, _: &Context, facts: &[Fact]) -> String {
        let Provision { vm, profile, start, define, .. } = &*self.wanted;
        let name = &vm.name;
        let done = format!("VM \"{name}\" with profile \"{profile}\" is provisioned");
        match Fact::not_started(facts) {
            Some(why) => format!("{done}, and was not started: {why}"),
            None if *start => format!("{done}, and starts"),
            None if *define => done,
            None => format!("the script of profile \"{profile}\" has run; no VM is defined"),
        }
    }
}

impl ProvisionVm {
    fn uuid(&self) -> Uuid {
        self.wanted.vm.uuid.expect("a job of this kind is not understood without one")
    }

    fn ending(&self) -> Ending {
        Ending {
            vm: self.uuid(),
            starts: self.wanted.start,
            refuse_memory_overcommit: self.wanted.refuse_memory_overcommit,
        }
    }

    /// Result of the last step, if it is in effect.
    fn finished(&self, view: &Cluster) -> Option<Fact> {
        if !self.wanted.define {
            return Some(Fact::Done);
        }
        let is_on_way_back =
            view.vms.get(&self.uuid()).is_some_and(|vm| vm.state == VmState::Delete);
        if is_on_way_back { None } else { self.ending().reached(view) }
    }

    async fn finish(&self, context: &Context) -> Result<Fact> {
        let Provision { vm, define, .. } = &*self.wanted;
        if !define {
            return Ok(Fact::Done);
        }
        let ending = self.ending();
        let changed = || ProvisionError::Changed { vm: vm.name.clone() };
        context.change(|cluster| ending.reach(cluster).ok_or_else(changed)).await
    }

    async fn take_back(&self, context: &Context) -> Result<()> {
        devices::end_all(context).await?;
        let made = ledger::all(&context.progress());
        let was_defined = made.contains(&Made::DefinedVm);
        let is_own = match was_defined || made.contains(&Made::Vm) {
            true => self.lock_out(context, was_defined).await?,
            false => true,
        };
        for made in made.iter().rev() {
            let Made::Volume(volume) = made else { continue };
            devices::unmap_here(context, context.tools.scripts.as_deref(), &volume.name).await?;
            match is_own {
                true => self.remove_volume(context, volume).await?,
                false => context.log(format!(
                    "volume {} stays: the VM is not this task's any more",
                    volume.name
                )),
            }
        }
        match is_own {
            true => self.forget(context).await,
            false => Ok(()),
        }
    }

    /// Has the VM in state `delete`, from which nobody starts it: the way back has begun. `false`
    /// if it is not this job's any more.
    async fn lock_out(&self, context: &Context, was_defined: bool) -> Result<bool> {
        let uuid = self.uuid();
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            let state = cluster.vms.get(&uuid).map(|vm| vm.state.clone());
            if state == Some(VmState::Provision) {
                changes.vm(uuid, VmChange::State(VmState::Delete)).expect(Expect::VmState(uuid));
            }
            let is_own = match state {
                // One that was there was removed by somebody: its volumes may be another's by now.
                None => !was_defined,
                Some(state) => matches!(state, VmState::Provision | VmState::Delete),
            };
            Ok((changes, is_own))
        };
        match context.change::<_, ProvisionError>(decide).await {
            // Whoever has the job now takes the VM back; what came late here is removed all the
            // same, if that has ended with nothing.
            Err(Unwritten::Lost) => {
                let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
                Ok(!view.vms.contains_key(&uuid))
            }
            done => done,
        }
    }

    async fn forget(&self, context: &Context) -> Result<()> {
        let uuid = self.uuid();
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            let is_locked_out =
                cluster.vms.get(&uuid).is_some_and(|vm| vm.state == VmState::Delete);
            if is_locked_out {
                changes.push(Change::RemoveVm(uuid));
            }
            Ok((changes, is_locked_out))
        };
        match context.change::<_, ProvisionError>(decide).await {
            Ok(true) => context.log(format!("VM \"{}\" is removed", self.wanted.vm.name)),
            Ok(false) | Err(Unwritten::Lost) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl ProvisionVm {
    /// Removes what there is of a volume that the script has made. What has its name by now and is
    /// another stays, and so does what somebody else uses by now.
    async fn remove_volume(&self, context: &Context, volume: &MadeVolume) -> Result<()> {
        let storage = context.tools.storage.as_ref();
        remove::<ProvisionError>(context, &volume.making).await?;
        let there = match storage.measured(&volume.name).await {
            Ok(there) => Some(there.identity),
            Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => None,
            Err(error) => return Err(of_storage(error)),
        };
        if there.is_some() && there == volume.identity {
            let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
            let (own, job) = (self.uuid(), &context.job);
            if let Err(why) = require_no_other_user(&view, &volume.name, own, job) {
                context.log(format!("volume {} stays: {why}", volume.name));
                return Ok(());
            }
            remove::<ProvisionError>(context, &volume.name).await?;
            context.log(format!("volume {} is removed", volume.name));
        }
        recorded(context, &volume.name).await
    }
}

/// Removes the volumes that the script could not make whole, and has gone on without.
async fn remove_unfinished(context: &Context) -> Result<()> {
    for made in ledger::all(&context.progress()) {
        if let Made::Volume(volume) = made {
            remove::<ProvisionError>(context, &volume.making).await?;
        }
    }
    Ok(())
}
