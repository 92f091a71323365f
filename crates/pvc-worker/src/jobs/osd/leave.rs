//! An OSD on its way off its disk: its data is moved, it is stopped, destroyed, and erased.

use std::ops::ControlFlow;
use std::time::Duration;

use pvc_model::osd::{BlockDevice, Device, LvmOsd, OsdId, OsdState, Safety, may_take, may_zap};
use pvc_model::with_causes;
use pvc_ops::osd::{find_osd, is_of_fenced_node};
use pvc_ops::{Kind as RefusalKind, Refusal};
use pvc_ports::{OsdError, UnitState};
use serde::{Deserialize, Serialize};

use super::acts::{remove_database, removed, stop};
use super::disk::{Known, zap};
use super::{Hands, Osd, OsdJobError, Result, fresh, unless_gone};
use crate::context::{Context, Unwritten};

/// Interval at which it is looked whether an OSD's data is elsewhere: it takes minutes to hours.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// An OSD that is to leave its disk, and how it was before.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Leaving {
    #[serde(flatten)]
    pub osd: Osd,
    was_in: bool,
    was_running: bool,
    /// Lies on a node that is fenced: nothing of it is on this one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_away: bool,
}

impl Leaving {
    pub async fn look(hands: Hands<'_>, osd: Osd, state: Option<&OsdState>) -> Result<Self> {
        let daemon = hands.disks.daemon_state(osd.id).await?;
        let was_running = matches!(daemon, UnitState::Active | UnitState::Starting);
        let was_in = state.is_some_and(|state| state.is_in);
        Ok(Leaving { osd, was_in, was_running, is_away: false })
    }

    pub fn of_fenced_node(osd: Osd, state: Option<&OsdState>) -> Self {
        let was_in = state.is_some_and(|state| state.is_in);
        Leaving { osd, was_in, was_running: false, is_away: true }
    }

    pub fn runs(&self) -> bool {
        self.was_running
    }

    pub fn is_away(&self) -> bool {
        self.is_away
    }

    /// Lets the OSD that has this number by now, on whatever node, hold data: a worker that came
    /// too late may have taken it out.
    pub async fn take_another_in(&self, context: &Context) -> Result<()> {
        let hands = Hands::of(context)?;
        match is_anothers(hands, self.osd).await? {
            true => Ok(unless_gone(hands.ceph.osd_in(self.osd.id).await)?),
            false => Ok(()),
        }
    }

    /// Has the cluster move the OSD's data to others, and waits until it has if it is to.
    pub async fn drain(&self, context: &Context, waits: bool) -> Result<()> {
        let hands = Hands::of(context)?;
        let mut is_said = false;
        loop {
            let why = match moved(hands, self.osd).await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) if !waits => return Ok(()),
                Err(error) if !waits => return Err(error),
                Ok(Some(why)) => why,
                // The cluster has all the time that it needs, and may be silent for some of it.
                Err(error) => with_causes(&error),
            };
            if self.wait(context, &why, &mut is_said).await?.is_break() {
                return Err(OsdJobError::NotSafe { osd: self.osd.id, why });
            }
        }
    }

    /// Says that the data is waited for, and waits a while. Breaks when the job is cancelled.
    async fn wait(
        &self,
        context: &Context,
        why: &str,
        is_said: &mut bool,
    ) -> Result<ControlFlow<()>> {
        let line = format!("waiting until the data of OSD {} is elsewhere: {why}", self.osd.id);
        if !std::mem::replace(is_said, true) {
            context.log(line.clone());
        }
        context.say_waiting(&line);
        if !context.is_held() {
            return Err(Unwritten::Lost.into());
        }
        tokio::select! {
            biased;
            () = context.cancelled.cancelled() => Ok(ControlFlow::Break(())),
            () = context.tools.clock.sleep(LOOK_EVERY) => Ok(ControlFlow::Continue(())),
        }
    }

    /// Lets the OSD hold data again, if it did.
    pub async fn take_in(&self, context: &Context) -> Result<()> {
        let hands = Hands::of(context)?;
        if self.was_in && hands.state(self.osd).await?.is_some() {
            unless_gone(hands.ceph.osd_in(self.osd.id).await)?;
        }
        Ok(())
    }

    pub async fn stop(&self, context: &Context) -> Result<()> {
        match is_anothers(Hands::of(context)?, self.osd).await? {
            true => Ok(()),
            false => stop(context, self.osd.id).await,
        }
    }

    /// Starts the OSD again, if it ran.
    pub async fn start_again(&self, context: &Context) -> Result<()> {
        let hands = Hands::of(context)?;
        if self.was_running && hands.lvm(self.osd).await?.is_some() {
            hands.disks.start_daemon(self.osd.id).await?;
        }
        Ok(())
    }

    /// Lets an OSD that is not destroyed run and hold data again, if it did.
    pub async fn stay(&self, context: &Context) -> Result<()> {
        if Hands::of(context)?.state(self.osd).await?.is_some() {
            self.start_again(context).await?;
            self.take_in(context).await?;
        }
        Ok(())
    }

    /// Has the cluster know that the OSD of a fenced node does not run, if it counts on it. One
    /// that runs says at once that it is up: systemd may have started it on a node that is on
    /// again.
    ///
    /// # Errors
    /// If the node is not fenced any more, or the OSD is up again.
    async fn have_it_down(&self, context: &Context) -> Result<()> {
        if self.up_on(context).await?.is_none() {
            return Ok(());
        }
        if !context.is_held() {
            return Err(Unwritten::Lost.into());
        }
        unless_gone(Hands::of(context)?.ceph.osd_down(self.osd.id).await)?;
        context.tools.clock.sleep(LOOK_EVERY).await;
        match self.up_on(context).await? {
            Some(node) => Err(OsdJobError::BackAgain { osd: self.osd.id, node }),
            None => Ok(()),
        }
    }

    /// The OSD's node, which has to be fenced, if the cluster counts the OSD as up.
    async fn up_on(&self, context: &Context) -> Result<Option<String>> {
        let view = fresh(context).await?;
        let (osd, record) = find_osd(&view, &self.osd.id.to_string())?;
        let node = record.node.clone();
        if !is_of_fenced_node(&view, record) {
            return Err(OsdJobError::BackAgain { osd, node });
        }
        let state = Hands::of(context)?.state(self.osd).await?;
        Ok(state.filter(|state| state.is_up).map(|_| node))
    }

    /// Takes the OSD's identity from it. Its number stays its own until it is purged.
    ///
    /// Waits until the cluster says that this is safe, unless it is forced: since the drain, the
    /// OSD may have been taken in again, and as long as the cluster has not come to rest after the
    /// stop it may not tell. One that the node's boot has started again is stopped.
    pub async fn destroy(&self, context: &Context, force: bool) -> Result<()> {
        let hands = Hands::of(context)?;
        let mut is_said = false;
        loop {
            let Some(state) = hands.state(self.osd).await? else { return Ok(()) };
            if !context.is_held() {
                return Err(Unwritten::Lost.into());
            }
            // One that the cluster does not count as up may run all the same.
            match self.is_away {
                true => self.have_it_down(context).await?,
                false => stop(context, self.osd.id).await?,
            }
            if state.is_in {
                unless_gone(hands.ceph.osd_out(self.osd.id).await)?;
            }
            match unless_gone(hands.ceph.destroy(self.osd.id, force).await) {
                Err(OsdError::NotSafe { why, .. }) => {
                    if self.wait(context, &why, &mut is_said).await?.is_break() {
                        return Err(OsdError::NotSafe { osd: self.osd.id, why }.into());
                    }
                }
                // That it is destroyed is seen, not believed.
                done => done?,
            }
        }
    }
}

/// Whether the cluster has given the OSD's number to another one.
async fn is_anothers(hands: Hands<'_>, osd: Osd) -> Result<bool> {
    let states = hands.ceph.osd_states().await?;
    let found = states.iter().find(|state| state.id == osd.id).and_then(|state| state.uuid);
    Ok(found.is_some_and(|uuid| uuid != osd.uuid))
}

/// Has the OSD hold no data. Returns why its data is not elsewhere yet, if it is not.
async fn moved(hands: Hands<'_>, osd: Osd) -> Result<Option<String>> {
    if hands.state(osd).await?.is_none() {
        return Ok(None);
    }
    let safety = match hands.ceph.osd_out(osd.id).await {
        Ok(()) => hands.ceph.safe_to_destroy(osd.id).await,
        Err(error) => Err(error),
    };
    match safety {
        Ok(Safety::Safe) | Err(OsdError::NoOsd { .. }) => Ok(None),
        Ok(Safety::NotYet(why)) => Ok(Some(why)),
        Err(error) => Err(error.into()),
    }
}

/// Sets right what a worker that came too late has done to the OSD that has this number now, if
/// that lies on this node: lets it run and hold data.
pub(super) async fn bring_back(context: &Context, id: OsdId) -> Result<()> {
    let hands = Hands::of(context)?;
    let known = Known::look(hands).await?;
    let is_it = |lvm: &LvmOsd| {
        let osd = Osd { id, uuid: lvm.uuid };
        lvm.id == id && known.state(id).is_some_and(|state| osd.is_in(state))
    };
    if known.on_node.iter().any(is_it) {
        hands.disks.start_daemon(id).await?;
        unless_gone(hands.ceph.osd_in(id).await)?;
    }
    Ok(())
}

/// Erases what is left of an OSD on this node: its database, and its disk if nothing else is on
/// that, or else its volume. With `is_best_effort` a disk that cannot be written any more, or a
/// database that cannot be removed, is passed over.
pub(super) async fn erase(context: &Context, osd: Osd, is_best_effort: bool) -> Result<()> {
    for done in [remove_database(context, osd).await, erase_block(context, osd).await] {
        match done {
            done if is_best_effort => unless_of_disk(context, done)?,
            Err(error) if is_of_disk(&error) => {
                let source = Box::new(error);
                return Err(OsdJobError::NotErased { osd: osd.id, source });
            }
            done => done?,
        }
    }
    Ok(())
}

/// Passes over what a disk refuses; the log of the task says so.
pub(super) fn unless_of_disk(context: &Context, done: Result<()>) -> Result<()> {
    match done {
        Err(error) if is_of_disk(&error) => {
            context.log(format!("passed over: {}", with_causes(&error)));
            Ok(())
        }
        done => done,
    }
}

/// Whether the disk, or what is on it, is to blame: not the store or what has to be asked first.
fn is_of_disk(error: &OsdJobError) -> bool {
    match error {
        OsdJobError::Osd(OsdError::Cluster(_))
        | OsdJobError::NotSafe { .. }
        | OsdJobError::Unwritten(_) => false,
        OsdJobError::Osd(_) => true,
        other => other.kind() == RefusalKind::Conflict,
    }
}

async fn erase_block(context: &Context, osd: Osd) -> Result<()> {
    let hands = Hands::of(context)?;
    let _alone = context.tools.disks.lock().await;
    let known = Known::look(hands).await?;
    let Some(own) = known.on_node.iter().find(|lvm| osd.lies_as(lvm)) else { return Ok(()) };
    if known.state(osd.id).is_some_and(|state| osd.is_in(state)) {
        let why = "the cluster still counts on it".to_owned();
        return Err(OsdJobError::NotSafe { osd: osd.id, why });
    }
    match free_disk(hands, &known, &own.devices).await? {
        Some(disk) => zap(hands, &disk).await,
        None => removed(hands.disks.remove_volume(&own.block).await),
    }
}

/// The disk that the devices are, if nothing else is on it that somebody may need.
async fn free_disk(
    hands: Hands<'_>,
    known: &Known,
    devices: &[Device],
) -> Result<Option<BlockDevice>> {
    let [only] = devices else { return Ok(None) };
    let disk = hands.disks.device(only).await?;
    let is_free = may_take(&disk).is_ok() && may_zap(&disk, known.osds()).is_ok();
    Ok(is_free.then_some(disk))
}
