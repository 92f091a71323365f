//! Moves an OSD, with those that share its disk, to another disk. They keep their numbers.
//!
//! The group on the new disk is made first, while there is a way back: a disk that cannot be
//! written is found out before anything is destroyed. On the disk that the OSDs lie on already it
//! is made when they are gone.

use async_trait::async_trait;
use pvc_model::Uuid;
use pvc_model::job::osd::{OsdReplacement, sharing};
use pvc_model::osd::{
    AddOsds, BlockDevice, LogicalVolume, LvmName, LvmOsd, OsdId, VolumeGroup, block_bytes,
    may_take, plan_add,
};
use pvc_model::storage::OsdRecord;
use pvc_ops::osd::OsdRefusal;
use pvc_ports::{OsdError, OsdFigures};
use serde::{Deserialize, Serialize};

use super::acts::{are_recorded, record, remove_database, removed, start};
use super::disk::{Disk, Known, check_free_disk, find_disk, zap};
use super::leave::{Leaving, bring_back, erase};
use super::{
    Hands, Osd, OsdJobError, Result, fresh, named, own_record, recorded_state, recorded_uuid,
};
use crate::context::Context;
use crate::jobs::text;
use crate::kind::Kind;

pub(crate) struct Replace {
    pub replacement: OsdReplacement,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// Erases the new disk and makes the group for the data of all of them.
    Group(Group),
    Drain(Leaving),
    Stop(Leaving),
    Destroy(Leaving),
    /// Erases the OSD as it was.
    Erase(Osd),
    /// The same on the disk that they lie on already.
    Regroup(Group),
    /// Makes the OSD anew, one of `count` in the group, with a database of so many bytes in the
    /// group for those if it gets one.
    Prepare {
        osd: Osd,
        #[serde(with = "text::group")]
        group: LvmName,
        count: u32,
        db_bytes: Option<u64>,
    },
    Record {
        osds: Vec<Osd>,
        disk: Disk,
    },
    Start {
        osd: Osd,
        weight: f64,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Group {
    disk: Disk,
    #[serde(with = "text::group")]
    name: LvmName,
}

#[async_trait]
impl Kind for Replace {
    type Step = Step;
    type Fact = ();
    type Error = OsdJobError;

    async fn plan(&self, context: &Context) -> Result<Vec<Step>> {
        let hands = Hands::of(context)?;
        let view = fresh(context).await?;
        let record = own_record(context, &view, self.replacement.osd)?;
        let known = Known::look(hands).await?;
        let figures = hands.ceph.osd_figures().await.map_err(OsdError::from)?;
        let mut moving = Vec::new();
        for record in sharing(&view, record) {
            moving.push(self.moving(context, &known, &figures, record).await?);
        }
        let moving = self.on_one_disk(&known, moving);
        self.check_old_disk(context, &known, &moving).await?;
        let target = self.target(context, &known, &moving).await?;
        Ok(steps(moving, &target))
    }

    fn doing(&self, step: &Step) -> String {
        match step {
            Step::Group(group) | Step::Regroup(group) => {
                format!("making the volume group {} of device {}", group.name, group.disk.name)
            }
            Step::Drain(leaving) => format!("moving the data of OSD {} to others", leaving.osd.id),
            Step::Stop(leaving) => format!("stopping OSD {}", leaving.osd.id),
            Step::Destroy(leaving) => format!("destroying OSD {}", leaving.osd.id),
            Step::Erase(osd) => format!("erasing what is left of OSD {}", osd.id),
            Step::Prepare { osd, .. } => format!("making OSD {} on the new disk", osd.id),
            Step::Record { disk, .. } => format!("recording device {}", disk.name),
            Step::Start { osd, .. } => format!("starting OSD {}", osd.id),
        }
    }

    async fn look(&self, context: &Context, step: &Step) -> Result<Option<()>> {
        let is_done = match step {
            Step::Group(group) | Step::Regroup(group) => {
                Hands::of(context)?.disks.volume_group(&group.name).await?.is_some()
            }
            Step::Record { osds, disk } => are_recorded(context, osds, &disk.name).await?,
            // All others can be repeated, and one that was left in its middle may not be whole.
            _ => false,
        };
        Ok(is_done.then_some(()))
    }

    async fn run(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Group(group) | Step::Regroup(group) => make_group(context, group).await,
            Step::Drain(leaving) => leaving.drain(context, !self.replacement.force).await,
            Step::Stop(leaving) => leaving.stop(context).await,
            Step::Destroy(leaving) => leaving.destroy(context, self.replacement.force).await,
            // The disk is replaced because it fails, perhaps.
            Step::Erase(osd) => erase(context, *osd, true).await,
            Step::Prepare { osd, group, count, db_bytes } => {
                let block = LogicalVolume::block_of(group.clone(), osd.uuid);
                prepare(context, *osd, &block, *count, *db_bytes).await
            }
            Step::Record { osds, disk } => record(context, osds, &disk.name, osds.len() > 1).await,
            Step::Start { osd, weight } => start_moved(context, *osd, *weight).await,
        }
    }

    fn is_final(&self, step: &Step) -> bool {
        !matches!(step, Step::Group(_) | Step::Drain(_) | Step::Stop(_))
    }

    async fn undo(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Group(group) => unmake_group(context, group).await,
            Step::Drain(leaving) => leaving.take_in(context).await,
            Step::Stop(leaving) => leaving.start_again(context).await,
            Step::Destroy(leaving) => leaving.stay(context).await,
            _ => Ok(()),
        }
    }

    async fn make_good(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Drain(leaving) | Step::Stop(leaving) | Step::Destroy(leaving) => {
                bring_back(context, leaving.osd.id).await
            }
            _ => Ok(()),
        }
    }

    fn result(&self, context: &Context, _: &[()]) -> String {
        let view = context.tools.store.view();
        let ids = match view.osds.get(&self.replacement.osd.to_string()) {
            Some(record) => ids(&sharing(&view, record)),
            None => vec![self.replacement.osd],
        };
        format!("{} moved to device {}", named(&ids), self.replacement.device)
    }
}

fn ids(records: &[&OsdRecord]) -> Vec<OsdId> {
    records.iter().filter_map(|record| OsdId::parse(&record.id).ok()).collect()
}

/// An OSD that moves.
struct Moving {
    id: OsdId,
    /// The OSD as it is; `None` if it was destroyed already, by a task before this one.
    leaving: Option<Leaving>,
    /// The OSD of which something may still lie on this node.
    old: Osd,
    new: Uuid,
    weight: f64,
    /// Size of its database in the group for those, if it has one there.
    db_bytes: Option<u64>,
}

/// Place that OSDs move to.
struct Target {
    group: Group,
    /// Whether they lie on that disk already.
    is_same: bool,
    /// Size of the database of each, if they get one that does not depend on the old.
    db_bytes: Option<u64>,
}

impl Replace {
    async fn moving(
        &self,
        context: &Context,
        known: &Known,
        figures: &[OsdFigures],
        record: &OsdRecord,
    ) -> Result<Moving> {
        let hands = Hands::of(context)?;
        let no_osd = || OsdRefusal::NoOsd { osd: record.id.clone() };
        let id = OsdId::parse(&record.id).map_err(|_| no_osd())?;
        // The cluster may have forgotten one whose making failed.
        let state = recorded_state(known, id, record)?;
        let uuid = state.and_then(|state| state.uuid);
        let old = Osd { id, uuid: uuid.unwrap_or_else(|| recorded_uuid(record)) };
        let leaving = match uuid {
            Some(_) => Some(Leaving::look(hands, old, state).await?),
            None => None,
        };
        let group = hands.disks.volume_group(&LvmName::db_group()).await?;
        Ok(Moving {
            id,
            leaving,
            old,
            new: context.tools.random.uuid(),
            weight: self.replacement.weight.unwrap_or_else(|| weight(figures, record)),
            db_bytes: group.and_then(|group| group.volume_bytes(&LogicalVolume::db_of(id).name)),
        })
    }

    /// The OSDs among these that lie where the asked one does. Records may name a disk by what the
    /// kernel called it once, and the name may be that of another by now: one that lies elsewhere
    /// stays. If the asked one lies nowhere any more, so do those that were on its disk.
    fn on_one_disk(&self, known: &Known, mut moving: Vec<Moving>) -> Vec<Moving> {
        let devices = |moving: &Moving| {
            let lvm = known.on_node.iter().find(|lvm| moving.old.lies_as(lvm));
            lvm.map(|lvm| lvm.devices.clone())
        };
        let asked = moving.iter().find(|moving| moving.id == self.replacement.osd);
        let asked = asked.and_then(devices);
        moving.retain(|moving| moving.id == self.replacement.osd || devices(moving) == asked);
        moving
    }

    /// Refuses an old disk that none of the OSDs is on.
    async fn check_old_disk(
        &self,
        context: &Context,
        known: &Known,
        moving: &[Moving],
    ) -> Result<()> {
        let Some(spec) = &self.replacement.old_device else { return Ok(()) };
        let (disk, now) = find_disk(context, Hands::of(context)?, spec).await?;
        // One that was destroyed already is there as well.
        let is_it = |lvm: &LvmOsd| moving.iter().any(|moving| moving.old.lies_as(lvm));
        match known.on_node.iter().any(|lvm| is_it(lvm) && lvm.is_on(&now)) {
            true => Ok(()),
            false => Err(OsdJobError::NotThere { osd: self.replacement.osd, device: disk.name }),
        }
    }

    /// The new disk, which must be large enough and free but for the OSDs themselves.
    async fn target(&self, context: &Context, known: &Known, moving: &[Moving]) -> Result<Target> {
        let hands = Hands::of(context)?;
        let (disk, now) = find_disk(context, hands, &self.replacement.device).await?;
        let own: Vec<OsdId> = moving.iter().map(|moving| moving.id).collect();
        let is_same = known.needing(&now).any(|osd| own.contains(&osd.id));
        let mut databases = hands.disks.volume_group(&LvmName::db_group()).await?;
        if let Some(group) = &mut databases {
            // Those of before make room.
            group.free_bytes += moving.iter().filter_map(|moving| moving.db_bytes).sum::<u64>();
        }
        let left = known.without(&own);
        let db_bytes = self.check(&now, &left, moving.len(), databases.as_ref())?;
        check_free_disk(context, &now, &left).await?;
        let name = LvmName::block_group(context.tools.random.uuid());
        Ok(Target { group: Group { disk, name }, is_same, db_bytes })
    }

    /// Whether so many OSDs fit on the disk. Returns the size of their databases if it was asked
    /// for one.
    fn check(
        &self,
        disk: &BlockDevice,
        known: &Known,
        count: usize,
        databases: Option<&VolumeGroup>,
    ) -> Result<Option<u64>> {
        let OsdReplacement { device, weight, db, .. } = &self.replacement;
        let asked = AddOsds {
            device: device.clone(),
            weight: weight.unwrap_or_default(),
            db: *db,
            count: u32::try_from(count).unwrap_or(u32::MAX),
        };
        let plan = plan_add(&asked, disk, known.osds(), databases)?;
        Ok(plan.db.map(|db| db.bytes))
    }
}

/// Weight of the OSD in the cluster; as it was recorded, if the cluster does not say.
fn weight(figures: &[OsdFigures], record: &OsdRecord) -> f64 {
    let is_its = |figures: &&OsdFigures| figures.id.to_string() == record.id;
    figures.iter().find(is_its).map_or_else(|| recorded_weight(record), |osd| osd.crush_weight)
}

fn recorded_weight(record: &OsdRecord) -> f64 {
    let stats: serde_json::Value = serde_json::from_str(&record.stats).unwrap_or_default();
    stats.get("weight").and_then(serde_json::Value::as_f64).unwrap_or(1.0)
}

fn steps(moving: Vec<Moving>, target: &Target) -> Vec<Step> {
    let Target { group, is_same, db_bytes } = target;
    let leaving = || moving.iter().filter_map(|moving| moving.leaving.clone());
    let new = |moving: &Moving| Osd { id: moving.id, uuid: moving.new };
    let count = u32::try_from(moving.len()).unwrap_or(u32::MAX);
    let mut steps = Vec::new();
    if !is_same {
        steps.push(Step::Group(group.clone()));
    }
    steps.extend(leaving().map(Step::Drain));
    steps.extend(leaving().map(Step::Stop));
    steps.extend(leaving().map(Step::Destroy));
    steps.extend(moving.iter().map(|moving| Step::Erase(moving.old)));
    if *is_same {
        steps.push(Step::Regroup(group.clone()));
    }
    let prepare = |moving: &Moving| Step::Prepare {
        osd: new(moving),
        group: group.name.clone(),
        count,
        db_bytes: db_bytes.or(moving.db_bytes),
    };
    steps.extend(moving.iter().map(prepare));
    let osds = moving.iter().map(new).collect();
    steps.push(Step::Record { osds, disk: group.disk.clone() });
    let start = |moving: &Moving| Step::Start { osd: new(moving), weight: moving.weight };
    steps.extend(moving.iter().map(start));
    steps
}

async fn make_group(context: &Context, group: &Group) -> Result<()> {
    let hands = Hands::of(context)?;
    let _alone = context.tools.disks.lock().await;
    let now = group.disk.now(hands).await?;
    // Those that lay on the disk are destroyed by now.
    check_free_disk(context, &now, &Known::look(hands).await?).await?;
    zap(hands, &now).await?;
    Ok(hands.disks.create_volume_group(&group.name, &now.device).await?)
}

/// Takes the group back, on which nothing was made yet.
async fn unmake_group(context: &Context, group: &Group) -> Result<()> {
    let hands = Hands::of(context)?;
    let _alone = context.tools.disks.lock().await;
    let now = match group.disk.now(hands).await {
        Err(OsdJobError::AnotherDisk { .. }) => return Ok(()),
        now => now?,
    };
    let is_its = now.groups == [group.name.clone()] && now.holders.is_empty();
    if is_its && may_take(&now).is_ok() {
        zap(hands, &now).await?;
    }
    Ok(())
}

/// Makes the OSD, from its beginning if that was tried before: a number that the cluster has
/// forgotten over a failure is its own again, and what was made is removed.
async fn prepare(
    context: &Context,
    osd: Osd,
    block: &LogicalVolume,
    count: u32,
    db_bytes: Option<u64>,
) -> Result<()> {
    let hands = Hands::of(context)?;
    if hands.state(osd).await?.is_some_and(|state| state.is_up) {
        return Ok(());
    }
    hands.ceph.reserve(osd.id, osd.uuid).await?;
    removed(hands.disks.remove_volume(block).await)?;
    remove_database(context, osd).await?;
    let group = &block.group;
    let found = hands.disks.volume_group(group).await?;
    let found = found.ok_or_else(|| OsdError::NoGroup { group: group.clone() })?;
    hands.disks.create_volume(block, block_bytes(found.size_bytes, count)).await?;
    let db = LogicalVolume::db_of(osd.id);
    if let Some(bytes) = db_bytes {
        hands.disks.create_volume(&db, bytes).await?;
    }
    Ok(hands.disks.prepare(osd.id, osd.uuid, block, db_bytes.map(|_| &db)).await?)
}

/// Gives the OSD its weight and starts it; it holds data again, as the one before it did.
async fn start_moved(context: &Context, osd: Osd, weight: f64) -> Result<()> {
    let hands = Hands::of(context)?;
    hands.ceph.crush_add(osd.id, weight, &context.tools.node).await?;
    start(context, osd).await?;
    Ok(hands.ceph.osd_in(osd.id).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{read, written};

    #[test]
    fn steps_and_facts_of_the_versions_before_are_read() {
        let uuid = "2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1";
        let osd = format!(r#""id":"3","uuid":"{uuid}""#);
        let disk = r#"{"name":"/dev/sdb","size_bytes":7,"model":"","serial":"","content":""}"#;
        let group = format!(r#"{{"disk":{disk},"name":"ceph-{uuid}"}}"#);
        let leaving = format!(r#"{{{osd},"was_in":true,"was_running":true}}"#);
        for text in [
            format!(r#"{{"group":{group}}}"#),
            format!(r#"{{"drain":{leaving}}}"#),
            format!(r#"{{"stop":{leaving}}}"#),
            format!(r#"{{"destroy":{leaving}}}"#),
            format!(r#"{{"erase":{{{osd}}}}}"#),
            format!(r#"{{"regroup":{group}}}"#),
            format!(
                r#"{{"prepare":{{"osd":{{{osd}}},"group":"ceph-{uuid}","count":2,"db_bytes":7}}}}"#
            ),
            format!(r#"{{"record":{{"osds":[{{{osd}}}],"disk":{disk}}}}}"#),
            format!(r#"{{"start":{{"osd":{{{osd}}},"weight":1.5}}}}"#),
        ] {
            let step: Step = read(&text).expect("as it was recorded");
            assert_eq!(written(&step), text);
        }
        read::<<Replace as Kind>::Fact>("null").expect("as it was recorded");
    }

    #[test]
    fn the_weight_is_that_of_the_cluster_or_else_the_recorded_one() {
        let stats =
            |text: &str| OsdRecord { id: "3".into(), stats: text.into(), ..OsdRecord::default() };
        let figures = OsdFigures { id: 3, crush_weight: 2.5, ..OsdFigures::default() };
        assert_eq!(weight(&[figures], &stats(r#"{"weight": 7.0}"#)), 2.5);
        for (text, weight) in
            [(r#"{"weight": 0.25}"#, 0.25), (r#"{"weight": "|"}"#, 1.0), ("", 1.0), ("{", 1.0)]
        {
            assert_eq!(super::weight(&[], &stats(text)), weight, "{text}");
        }
    }
}
