//! Acts that several kinds of jobs have in common. Each may be repeated.

use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::osd::{Device, LogicalVolume, LvmName, LvmOsd, OsdId};
use pvc_model::storage::OsdRecord;
use pvc_model::{NodeName, with_causes};
use pvc_ops::osd::OsdRefusal;
use pvc_ports::{OsdError, UnitState};
use pvc_store::{Change, Changes};

use super::disk::{Known, is_recorded};
use super::{Hands, Osd, OsdJobError, Result, fresh, unless_gone};
use crate::context::Context;

/// Interval at which it is looked how a daemon does.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Time in which the daemon of an OSD starts, in which the cluster hears of that, and in which the
/// daemon stops. The service manager itself gives up after 90 s.
const START_WITHIN: Duration = Duration::from_secs(30);
const UP_WITHIN: Duration = Duration::from_secs(60);
const STOP_WITHIN: Duration = Duration::from_secs(120);

/// The state of the daemon once it is `wanted`, or when that has taken too long.
async fn daemon(
    context: &Context,
    id: OsdId,
    within: Duration,
    wanted: impl Fn(&UnitState) -> bool + Send,
) -> Result<UnitState> {
    let (hands, clock) = (Hands::of(context)?, &context.tools.clock);
    let until = clock.monotonic() + within;
    loop {
        let state = hands.disks.daemon_state(id).await?;
        if wanted(&state) || clock.monotonic() >= until {
            return Ok(state);
        }
        clock.sleep(LOOK_EVERY).await;
    }
}

/// Starts a prepared OSD, and waits until it runs.
pub(super) async fn start(context: &Context, osd: Osd) -> Result<()> {
    let Osd { id, uuid } = osd;
    let activated = Hands::of(context)?.disks.activate(id, uuid).await;
    let within = if activated.is_ok() { START_WITHIN } else { Duration::ZERO };
    match (daemon(context, id, within, |state| *state == UnitState::Active).await?, activated) {
        (UnitState::Active, _) => wait_until_up(context, osd).await,
        (_, Err(error)) => Err(OsdJobError::NotStarted { osd: id, why: with_causes(&error) }),
        (state, Ok(())) => Err(not_started(id, &state)),
    }
}

/// Waits until the cluster counts the OSD as up. That it does not, because it is told so or is
/// busy, is no reason to end one that runs.
async fn wait_until_up(context: &Context, osd: Osd) -> Result<()> {
    let (hands, clock) = (Hands::of(context)?, &context.tools.clock);
    let until = clock.monotonic() + UP_WITHIN;
    loop {
        if hands.state(osd).await?.is_some_and(|state| state.is_up) {
            return Ok(());
        }
        match hands.disks.daemon_state(osd.id).await? {
            UnitState::Active => {}
            state => return Err(not_started(osd.id, &state)),
        }
        if clock.monotonic() >= until {
            context.log(format!("OSD {} runs, and the cluster does not count it as up", osd.id));
            return Ok(());
        }
        clock.sleep(LOOK_EVERY).await;
    }
}

fn not_started(osd: OsdId, state: &UnitState) -> OsdJobError {
    let why = match state {
        UnitState::Active => "its daemon runs, and the cluster does not know it",
        UnitState::Starting => "its daemon starts again and again",
        UnitState::Stopping | UnitState::Inactive => "its daemon has stopped",
        UnitState::Failed => "its daemon has failed",
        UnitState::Missing => "Ceph is not installed on the node",
    };
    OsdJobError::NotStarted { osd, why: why.to_owned() }
}

/// Stops the daemon of an OSD, and has the cluster know it.
pub(super) async fn stop(context: &Context, id: OsdId) -> Result<()> {
    let hands = Hands::of(context)?;
    hands.disks.stop_daemon(id).await?;
    let rests = |state: &UnitState| {
        matches!(state, UnitState::Inactive | UnitState::Failed | UnitState::Missing)
    };
    if !rests(&daemon(context, id, STOP_WITHIN, rests).await?) {
        return Err(OsdJobError::NotStopped { osd: id, seconds: STOP_WITHIN.as_secs() });
    }
    Ok(unless_gone(hands.ceph.osd_down(id).await)?)
}

/// Gives an OSD, which does not run, a database of so many bytes in the group for those. A volume
/// of that name that no OSD uses is a leftover.
pub(super) async fn give_database(context: &Context, osd: Osd, bytes: u64) -> Result<()> {
    let disks = Hands::of(context)?.disks;
    let own = Hands::of(context)?.lvm(osd).await?.ok_or(OsdJobError::Gone { osd: osd.id })?;
    let volume = LogicalVolume::db_of(osd.id);
    if own.db.as_ref() == Some(&volume.device()) {
        return Ok(());
    }
    remove_database(context, osd).await?;
    disks.create_volume(&volume, bytes).await?;
    Ok(disks.give_db(osd.id, osd.uuid, &volume).await?)
}

/// Removes the volume in the group for databases that is called after the OSD, unless another one
/// uses it.
pub(super) async fn remove_database(context: &Context, osd: Osd) -> Result<()> {
    let hands = Hands::of(context)?;
    let volume = LogicalVolume::db_of(osd.id);
    let group = hands.disks.volume_group(&LvmName::db_group()).await?;
    if group.and_then(|group| group.volume_bytes(&volume.name)).is_none() {
        return Ok(());
    }
    let known = Known::look(hands).await?;
    // What is left of one that is destroyed may still name it.
    let is_of_another =
        |lvm: &LvmOsd| lvm.db.as_ref() == Some(&volume.device()) && !osd.lies_as(lvm);
    if known.living().any(is_of_another) {
        return Ok(());
    }
    removed(hands.disks.remove_volume(&volume).await)
}

/// Passes over that a volume is not there.
pub(super) fn removed(done: Result<(), OsdError>) -> Result<()> {
    match done {
        Err(OsdError::NoVolume { .. } | OsdError::NoGroup { .. }) => Ok(()),
        done => Ok(done?),
    }
}

/// Records that the OSDs lie on `device` of this node, as they do.
pub(super) async fn record(
    context: &Context,
    osds: &[Osd],
    device: &Device,
    is_split: bool,
) -> Result<()> {
    let lie = Hands::of(context)?.disks.lvm_osds().await?;
    let find = |osd: &Osd| {
        let lvm = lie.iter().find(|lvm| osd.lies_as(lvm));
        lvm.ok_or(OsdJobError::Gone { osd: osd.id })
    };
    let found = osds.iter().map(find).collect::<Result<Vec<&LvmOsd>>>()?;
    let node = &context.tools.node;
    let decide = |_: &Cluster| {
        let mut changes = Changes::new();
        for lvm in &found {
            changes.push(Change::PutOsd(Box::new(as_record(lvm, node, device, is_split))));
        }
        Ok::<_, OsdRefusal>((changes, ()))
    };
    Ok(context.change(decide).await?)
}

fn as_record(lvm: &LvmOsd, node: &NodeName, device: &Device, is_split: bool) -> OsdRecord {
    OsdRecord {
        id: lvm.id.to_string(),
        node: node.to_string(),
        device: device.to_string(),
        db_device: lvm.db.as_ref().map(db_name).unwrap_or_default(),
        fsid: lvm.uuid.to_string(),
        cluster: lvm.cluster.to_string(),
        group: lvm.block.group.to_string(),
        volume: lvm.block.name.to_string(),
        is_split,
        stats: "".into(),
    }
}

/// A database as records name it: `osd-db/osd-3`.
fn db_name(db: &Device) -> String {
    let below = db.as_str().trim_start_matches("/dev/");
    match LogicalVolume::parse(below) {
        Ok(volume) => volume.to_string(),
        Err(_) => db.to_string(),
    }
}

/// Whether all of them are recorded so.
pub(super) async fn are_recorded(context: &Context, osds: &[Osd], device: &Device) -> Result<bool> {
    let view = fresh(context).await?;
    let is_there = |osd: &Osd| {
        is_recorded(&view, *osd)
            && view.osds[&osd.id.to_string()].device == device.as_str()
            && view.osds[&osd.id.to_string()].node == context.tools.node.as_str()
    };
    Ok(osds.iter().all(is_there))
}

/// Removes the records of these OSDs; one that another OSD has by now stays.
pub(super) async fn forget(context: &Context, osds: &[Osd]) -> Result<()> {
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        for osd in osds.iter().filter(|osd| is_recorded(cluster, **osd)) {
            changes.push(Change::RemoveOsd(osd.id.to_string()));
        }
        Ok::<_, OsdRefusal>((changes, ()))
    };
    Ok(context.change(decide).await?)
}
