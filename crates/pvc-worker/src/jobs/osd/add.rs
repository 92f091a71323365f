//! Makes OSDs of a disk.
//!
//! Until the first of them runs, nothing of them holds data, and all can be taken back.

use async_trait::async_trait;
use pvc_model::osd::{AddOsds, DeviceClass, LvmName, plan_add};
use pvc_ops::{Kind as RefusalKind, Refusal};
use serde::{Deserialize, Serialize};

use super::acts::{are_recorded, forget, give_database, record, remove_database, start, stop};
use super::disk::{Disk, Known, check_free_disk, find_disk, zap};
use super::leave::unless_of_disk;
use super::{Hands, Osd, OsdJobError, Result, fresh, named, unless_gone};
use crate::context::Context;
use crate::kind::{Kind, read};

pub(crate) struct Add {
    pub new: AddOsds,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// Erases the disk and makes the OSDs, which do not run.
    Make {
        disk: Disk,
        count: u32,
    },
    /// Gives the OSD with this place among the new ones a database.
    Database {
        nth: usize,
        bytes: u64,
    },
    Record {
        disk: Disk,
    },
    Start {
        nth: usize,
        weight: f64,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fact {
    Made { osds: Vec<Osd> },
    Done,
}

#[async_trait]
impl Kind for Add {
    type Step = Step;
    type Fact = Fact;
    type Error = OsdJobError;

    async fn plan(&self, context: &Context) -> Result<Vec<Step>> {
        let hands = Hands::of(context)?;
        let (disk, now) = find_disk(context, hands, &self.new.device).await?;
        let known = Known::look(hands).await?;
        let group = hands.disks.volume_group(&LvmName::db_group()).await?;
        let plan = plan_add(&self.new, &now, known.osds(), group.as_ref())?;
        check_free_disk(context, &now, &known).await?;
        Ok(steps(disk, plan.count, plan.db.map(|db| db.bytes), plan.weight))
    }

    fn doing(&self, step: &Step) -> String {
        match step {
            Step::Make { disk, count: 1 } => format!("making an OSD of device {}", disk.name),
            Step::Make { disk, count } => format!("making {count} OSDs of device {}", disk.name),
            Step::Database { nth, .. } => format!("making the database of {}", self.new_one(*nth)),
            Step::Record { .. } => "recording what was made".to_owned(),
            Step::Start { nth, .. } => format!("starting {}", self.new_one(*nth)),
        }
    }

    /// A step that was left in its middle is done again, but for the record: OSDs that may not be
    /// whole are not used.
    async fn look(&self, context: &Context, step: &Step) -> Result<Option<Fact>> {
        let is_done = match step {
            Step::Record { disk } => are_recorded(context, &made(context), &disk.name).await?,
            Step::Make { .. } | Step::Database { .. } | Step::Start { .. } => false,
        };
        Ok(is_done.then_some(Fact::Done))
    }

    async fn run(&self, context: &Context, step: &Step) -> Result<Fact> {
        match step {
            Step::Make { disk, count } => {
                let osds = make(context, disk, *count).await?;
                return Ok(Fact::Made { osds });
            }
            Step::Database { nth, bytes } => {
                give_database(context, nth_made(context, *nth)?, *bytes).await?;
            }
            Step::Record { disk } => {
                let made = made(context);
                record(context, &made, &disk.name, made.len() > 1).await?;
            }
            Step::Start { nth, weight } => {
                start_new(context, nth_made(context, *nth)?, *weight).await?;
            }
        }
        Ok(Fact::Done)
    }

    /// An OSD that has run may hold data already.
    fn is_final(&self, step: &Step) -> bool {
        matches!(step, Step::Start { .. })
    }

    async fn undo(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Make { disk, .. } => unmake(context, disk).await,
            Step::Database { nth, .. } => {
                let unborn = unborn(context).await?;
                match made(context).get(*nth).filter(|osd| unborn.contains(osd)) {
                    Some(osd) => remove_database(context, *osd).await,
                    None => Ok(()),
                }
            }
            Step::Record { .. } => forget(context, &unborn(context).await?).await,
            Step::Start { .. } => Ok(()),
        }
    }

    fn result(&self, context: &Context, facts: &[Fact]) -> String {
        let made = facts.iter().find_map(|fact| match fact {
            Fact::Made { osds } => Some(osds.iter().map(|osd| osd.id).collect::<Vec<_>>()),
            Fact::Done => None,
        });
        let (made, node) = (named(&made.unwrap_or_default()), &context.tools.node);
        format!("made {made} of device {} of node \"{node}\"", self.new.device)
    }
}

impl Add {
    fn new_one(&self, nth: usize) -> String {
        match self.new.count {
            1 => "the new OSD".to_owned(),
            count => format!("new OSD {} of {count}", nth + 1),
        }
    }
}

fn steps(disk: Disk, count: u32, db_bytes: Option<u64>, weight: f64) -> Vec<Step> {
    let all = 0..count as usize;
    let databases = db_bytes
        .into_iter()
        .flat_map(|bytes| all.clone().map(move |nth| Step::Database { nth, bytes }));
    let mut steps = vec![Step::Make { disk: disk.clone(), count }];
    steps.extend(databases);
    steps.push(Step::Record { disk });
    steps.extend(all.map(|nth| Step::Start { nth, weight }));
    steps
}

/// The OSDs that the job has made: the result of its first step, once that is recorded.
fn made(context: &Context) -> Vec<Osd> {
    let facts = context.progress().steps.map(|steps| steps.facts).unwrap_or_default();
    match facts.first().and_then(|fact| read(fact).ok()) {
        Some(Fact::Made { osds }) => osds,
        _ => Vec::new(),
    }
}

/// The OSDs among them that the cluster knows to have never been up, or does not know. One that was
/// up may hold data: nothing of it is taken back.
async fn unborn(context: &Context) -> Result<Vec<Osd>> {
    let known = Known::look(Hands::of(context)?).await?;
    let has_run = |osd: &Osd| known.states.iter().any(|state| osd.is_in(state) && !state.is_new);
    Ok(made(context).into_iter().filter(|osd| !has_run(osd)).collect())
}

fn nth_made(context: &Context, nth: usize) -> Result<Osd> {
    let osd = made(context).get(nth).copied();
    Ok(osd.expect("it is done after all were made, and they are as many as were asked for"))
}

async fn make(context: &Context, disk: &Disk, count: u32) -> Result<Vec<Osd>> {
    let hands = Hands::of(context)?;
    let _alone = context.tools.disks.lock().await;
    let now = disk.now(hands).await?;
    let known = Known::look(hands).await?;
    let unborn = known.unborn_on(&now, &*fresh(context).await?);
    let left = known.without(&unborn.iter().map(|osd| osd.id).collect::<Vec<_>>());
    check_free_disk(context, &now, &left).await?;
    purge(hands, &unborn).await?;
    zap(hands, &now).await?;
    let class = DeviceClass::of([&disk.name, &now.device]);
    hands.disks.prepare_all(&now.device, class, count).await?;
    let made = Known::look(hands).await?.on(&now);
    if made.len() != count as usize {
        return Err(OsdJobError::NotMade { device: disk.name.clone(), made: made.len(), count });
    }
    context.log(format!("{} made", named(&made.iter().map(|osd| osd.id).collect::<Vec<_>>())));
    Ok(made)
}

/// Has the cluster forget OSDs that never ran.
async fn purge(hands: Hands<'_>, unborn: &[Osd]) -> Result<()> {
    for osd in unborn {
        unless_gone(hands.ceph.purge(osd.id, true).await)?;
    }
    Ok(())
}

/// Takes back what was made, or a part of it. A disk that cannot be erased is left as it is: nobody
/// needs what is on it, and the next who takes it erases it.
async fn unmake(context: &Context, disk: &Disk) -> Result<()> {
    let hands = Hands::of(context)?;
    let _alone = context.tools.disks.lock().await;
    let (known, view) = (Known::look(hands).await?, fresh(context).await?);
    let now = match disk.now(hands).await {
        Err(OsdJobError::AnotherDisk { .. }) => None,
        now => Some(now?),
    };
    let mut unborn = made(context);
    // One that was up may hold data: it is no more to be taken back.
    unborn.retain(|osd| known.states.iter().any(|state| osd.is_in(state) && state.is_new));
    if let Some(now) = &now {
        unborn.extend(known.unborn_on(now, &view));
    }
    purge(hands, &unborn).await?;
    let Some(now) = now.filter(|now| !now.groups.is_empty()) else { return Ok(()) };
    let known = Known::look(hands).await?;
    match check_free_disk(context, &now, &known).await {
        Ok(()) => unless_of_disk(context, zap(hands, &now).await),
        Err(error) if error.kind() == RefusalKind::Conflict => Ok(()),
        Err(error) => Err(error),
    }
}

/// Gives a new OSD its place and starts it. One that does not start leaves nothing behind, unless
/// it was up once: then it may hold data, whoever has started it.
async fn start_new(context: &Context, osd: Osd, weight: f64) -> Result<()> {
    let hands = Hands::of(context)?;
    hands.ceph.crush_add(osd.id, weight, &context.tools.node).await?;
    let Err(error) = start(context, osd).await else { return Ok(()) };
    let OsdJobError::NotStarted { osd: id, why } = error else { return Err(error) };
    // Once it is stopped it cannot come up any more.
    stop(context, id).await?;
    if hands.state(osd).await?.is_some_and(|state| !state.is_new) {
        return Err(OsdJobError::NotStartedAgain { osd: id, why });
    }
    hands.ceph.crush_remove(id).await?;
    Err(OsdJobError::NotStarted { osd: id, why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::written;

    #[test]
    fn steps_and_facts_of_the_versions_before_are_read() {
        let disk = r#"{"name":"/dev/sdb","size_bytes":1099511627776,"model":"a b","serial":"S1","content":""}"#;
        for text in [
            format!(r#"{{"make":{{"disk":{disk},"count":2}}}}"#),
            r#"{"database":{"nth":1,"bytes":1073741824}}"#.to_owned(),
            format!(r#"{{"record":{{"disk":{disk}}}}}"#),
            r#"{"start":{"nth":0,"weight":1.5}}"#.to_owned(),
        ] {
            let step: Step = read(&text).expect("as it was recorded");
            assert_eq!(written(&step), text);
        }
        let uuid = "2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1";
        for text in
            [format!(r#"{{"made":{{"osds":[{{"id":"3","uuid":"{uuid}"}}]}}}}"#), r#""done""#.into()]
        {
            let fact: Fact = read(&text).expect("as it was recorded");
            assert_eq!(written(&fact), text);
        }
    }
}
