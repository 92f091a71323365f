//! State of Ceph, published by the primary: status, health and usage as Ceph says them, and pools
//! and OSDs in numbers.
//!
//! Ceph that is unwell hangs. So this is a task of its own: nothing waits for it, each question is
//! asked beside the others, and what gets no answer keeps its last good one in the store.

use std::collections::BTreeSet;
use std::time::Duration;

use pvc_model::answered::Question;
use pvc_model::cluster::Cluster;
use pvc_ports::{OsdFigures, PoolFigures, PoolInfo, StorageCluster, StorageError};
use pvc_role::{Alarm, Context};
use pvc_store::Report;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::answered::Answered;
use crate::full_faults::FullFaults;
use crate::fullness;

/// Time for which the answer to one question is waited for. Adapters have deadlines of their own;
/// this is for those that forget.
const DEADLINE: Duration = Duration::from_secs(30);

/// Time for which Ceph may be silent before operators are told.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The fault of a cluster whose Ceph says nothing to its primary.
const SILENT: &str = "CEPH_SILENT";

/// Asks each `interval`, until `end`.
pub async fn run(context: Context, interval: Duration, end: CancellationToken) {
    // An answer that hangs does not hold up the end.
    end.run_until_cancelled(watch(&context, interval, &end)).await;
}

async fn watch(context: &Context, interval: Duration, end: &CancellationToken) {
    let (mut silence, mut answered) = (Silence::default(), Answered::default());
    let mut full_faults = FullFaults::default();
    let mut turns = context.turns(end);
    while turns.next(interval).await {
        if let Some(cluster) = context.ports.storage.cluster().filter(|_| context.is_primary()) {
            let at = context.ports.clock.wall().as_secs();
            let answers = ask(context, cluster).await;
            silence.note(context, &answers).await;
            let (pools, health) = (answers.contents(), answers.health.as_ref().ok().cloned());
            let stamp = answered.note(context, at, answers.outcomes());
            publish(context, answers, stamp).await;
            fullness::note(context, &pools, timely(context, cluster.full_ratios())).await;
            // Another may have become primary while Ceph was asked.
            if context.is_primary() {
                full_faults.note_pools(context, &pools).await;
                full_faults.note_health(context, health.as_deref().unwrap_or_default()).await;
            }
        } else {
            silence = Silence::default();
            full_faults = FullFaults::default();
            answered.forget();
        }
    }
}

type Asked<T> = Result<T, StorageError>;

/// Answers of Ceph in one pass.
struct Answers {
    status: Asked<String>,
    health: Asked<String>,
    usage: Asked<String>,
    pools: Asked<Vec<PoolFigures>>,
    osds: Asked<Vec<OsdFigures>>,
}

async fn ask(context: &Context, cluster: &dyn StorageCluster) -> Answers {
    let osds = async {
        // A Ceph without any OSD may never say how its OSDs are.
        if context.store.view().osds.is_empty() {
            Ok(Vec::new())
        } else {
            cluster.osd_figures().await
        }
    };
    let (status, health, usage, pools, osds) = tokio::join!(
        timely(context, cluster.status()),
        timely(context, cluster.health()),
        timely(context, cluster.usage()),
        timely(context, cluster.pool_figures()),
        timely(context, osds),
    );
    Answers { status, health, usage, pools, osds }
}

async fn timely<T>(context: &Context, question: impl Future<Output = Asked<T>>) -> Asked<T> {
    let (doing, seconds) = ("saying how it is".to_owned(), DEADLINE.as_secs());
    let late = Err(StorageError::TimedOut { doing, seconds });
    context.within(DEADLINE, question).await.unwrap_or(late)
}

impl Answers {
    /// Each question with the reason why it was not answered, if it was not.
    fn errors(&self) -> [(Question, Option<&StorageError>); 5] {
        [
            (Question::Status, self.status.as_ref().err()),
            (Question::Health, self.health.as_ref().err()),
            (Question::Usage, self.usage.as_ref().err()),
            (Question::Pools, self.pools.as_ref().err()),
            (Question::Osds, self.osds.as_ref().err()),
        ]
    }

    /// Questions that were not answered, with the reason.
    fn failures(&self) -> Vec<(Question, &StorageError)> {
        self.errors().into_iter().filter_map(|(what, error)| Some((what, error?))).collect()
    }

    /// Each question that was asked, and whether it was answered.
    fn outcomes(&self) -> Vec<(Question, bool)> {
        // Without records of OSDs nobody asks for their figures.
        let is_asked = |question| {
            question != Question::Osds || !matches!(&self.osds, Ok(osds) if osds.is_empty())
        };
        let outcomes = self.errors().into_iter().filter(|(question, _)| is_asked(*question));
        outcomes.map(|(question, error)| (question, error.is_none())).collect()
    }

    /// Contents of the pools.
    fn contents(&self) -> Vec<PoolInfo> {
        let content = |pool: &PoolFigures| PoolInfo {
            name: pool.name.clone(),
            stored_bytes: pool.stored_bytes,
            free_bytes: pool.free_bytes,
        };
        self.pools.iter().flatten().map(content).collect()
    }

    /// Reports that go into the store: only of pools and OSDs that the cluster knows.
    fn reports(self, view: &Cluster) -> Vec<Report> {
        let texts = [
            self.status.ok().map(Report::StorageStatus),
            self.health.ok().map(Report::StorageHealth),
            self.usage.ok().map(Report::StorageUsage),
        ];
        let pools = self.pools.unwrap_or_default();
        let pools = pools.iter().filter(|pool| view.pools.contains_key(&pool.name));
        let osds = self.osds.unwrap_or_default();
        let osds = osds.iter().filter(|osd| view.osds.contains_key(&osd.id.to_string()));
        let pools = pools.map(|pool| Report::PoolStats(pool.name.clone(), pool_stats(pool)));
        let osds = osds.map(|osd| Report::OsdStats(osd.id.to_string(), osd_stats(osd)));
        texts.into_iter().flatten().chain(pools).chain(osds).collect()
    }
}

/// Writes what was answered, together with its `stamp` if that is due.
async fn publish(context: &Context, answers: Answers, stamp: Option<Report>) {
    let mut reports = answers.reports(&context.store.view());
    reports.extend(stamp);
    // Another may have become primary while Ceph was asked.
    if reports.is_empty() || !context.is_primary() {
        return;
    }
    if let Err(error) = context.in_time(DEADLINE, context.store.report(reports)).await {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "what Ceph says of itself could not be written");
    }
}

/// Questions that Ceph does not answer, and for how long it has said nothing at all.
struct Silence {
    missing: BTreeSet<Question>,
    alarm: Alarm,
}

impl Default for Silence {
    fn default() -> Self {
        Silence { missing: BTreeSet::new(), alarm: Alarm::after(TIME_LIMIT) }
    }
}

impl Silence {
    async fn note(&mut self, context: &Context, answers: &Answers) {
        let failures = answers.failures();
        let missing: BTreeSet<Question> = failures.iter().map(|(what, _)| *what).collect();
        if let Some((_, error)) = failures.first().filter(|_| !missing.is_subset(&self.missing)) {
            let what = missing.iter().map(Question::to_string).collect::<Vec<_>>().join(", ");
            let error = *error as &dyn std::error::Error;
            tracing::warn!(what, error, "Ceph does not say how it is; what it said last stays");
        } else if failures.is_empty() && !self.missing.is_empty() {
            tracing::info!("Ceph says again how it is");
        }
        self.missing = missing;
        self.tell(context, answers.status.as_ref().err()).await;
    }

    /// Raises the fault of a Ceph that has been silent for long, now and then.
    async fn tell(&mut self, context: &Context, error: Option<&StorageError>) {
        let Some(error) = self.alarm.due(error, context.now()) else { return };
        let node = context.name();
        let message = format!(
            "Ceph does not answer the primary node {node} ({error}); VMs may hang on their \
             volumes, and what is shown of the storage is old. Look at the monitors: `ceph status`"
        );
        context.raise_own(SILENT, &message).await;
    }
}

/// The members that legacy peers read.
fn pool_stats(pool: &PoolFigures) -> String {
    json!({
        "id": pool.id,
        "stored_bytes": pool.stored_bytes,
        "free_bytes": pool.free_bytes,
        "used_bytes": pool.used_bytes,
        "used_percent": pool.used_fraction,
        "num_objects": pool.objects,
        "num_object_clones": pool.object_clones,
        "num_object_copies": pool.object_copies,
        "num_objects_missing_on_primary": pool.objects_missing_on_primary,
        "num_objects_unfound": pool.objects_unfound,
        "num_objects_degraded": pool.objects_degraded,
        "read_ops": pool.read_ops,
        "read_bytes": pool.read_bytes,
        "write_ops": pool.write_ops,
        "write_bytes": pool.write_bytes,
    })
    .to_string()
}

/// The members that legacy peers read.
fn osd_stats(osd: &OsdFigures) -> String {
    json!({
        "uuid": osd.uuid,
        "up": u8::from(osd.is_up),
        "in": u8::from(osd.is_in),
        "primary_affinity": osd.primary_affinity,
        "utilization": osd.utilization,
        "var": osd.variance,
        "pgs": osd.placement_groups,
        "kb": osd.kib,
        "kb_used": osd.kib_used,
        "kb_used_data": osd.kib_used_data,
        "kb_used_omap": osd.kib_used_omap,
        "kb_used_meta": osd.kib_used_meta,
        "kb_avail": osd.kib_available,
        "weight": osd.crush_weight,
        "reweight": osd.reweight,
        "class": osd.class,
        "node": osd.node,
        "used": osd.used,
        "avail": osd.available,
        "wr_ops": osd.write_ops,
        "wr_data": osd.write_data,
        "rd_ops": osd.read_ops,
        "rd_data": osd.read_data,
        "state": osd.state,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_embedded::EmbeddedTree;
    use pvc_model::NodeName;
    use pvc_model::answered::{AnsweredRecord, REWRITTEN_AFTER, answered_at};
    use pvc_model::node::{CoordinatorState, NodeRole};
    use pvc_model::storage::{OsdRecord, PoolName, PoolRecord, RbdAccess};
    use pvc_ports::Ports;
    use pvc_store::{Change, Changes, Ipmi, NewNode, NodeChange, Store};
    use pvc_testkit::{
        MemoryStorage, ScriptedCluster, SeededRandom, TokioClock, eventually, ports,
    };

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn pool(name: &str) -> PoolFigures {
        PoolFigures {
            name: PoolName::new(name),
            id: 2,
            stored_bytes: 35,
            free_bytes: 1000,
            used_bytes: 105,
            used_fraction: 0.25,
            objects: 4,
            object_clones: 0,
            object_copies: 12,
            objects_missing_on_primary: 0,
            objects_unfound: 0,
            objects_degraded: 0,
            read_ops: 1,
            read_bytes: 1024,
            write_ops: 2,
            write_bytes: 2048,
        }
    }

    fn late<T>() -> Asked<T> {
        Err(StorageError::TimedOut { doing: "saying how it is".to_owned(), seconds: 5 })
    }

    fn view() -> Cluster {
        let mut view = Cluster::default();
        let text = || "x".to_owned();
        let vms = PoolRecord {
            name: PoolName::new("vms"),
            pgs: text(),
            tier: text(),
            stats: "{}".into(),
        };
        view.pools.insert(vms.name.clone(), Arc::new(vms));
        let osd = OsdRecord { id: "0".to_owned(), ..OsdRecord::default() };
        view.osds.insert("0".to_owned(), Arc::new(osd));
        view
    }

    #[test]
    fn what_is_answered_is_published_whatever_else_hangs() {
        let osd = |id| OsdFigures { id, is_up: true, ..OsdFigures::default() };
        let answers = Answers {
            status: Ok("all is well".to_owned()),
            health: late(),
            usage: late(),
            pools: Ok(vec![pool("vms"), pool("of-somebody-else")]),
            osds: Ok(vec![osd(0), osd(7)]),
        };
        assert_eq!(
            answers.failures().iter().map(|(what, _)| *what).collect::<Vec<_>>(),
            [Question::Health, Question::Usage]
        );
        let answered = answers.outcomes().into_iter().filter(|(_, is_answered)| *is_answered);
        assert_eq!(
            answered.map(|(question, _)| question).collect::<Vec<_>>(),
            [Question::Status, Question::Pools, Question::Osds]
        );
        let reports = answers.reports(&view());
        assert_eq!(
            reports,
            [
                Report::StorageStatus("all is well".to_owned()),
                Report::PoolStats(PoolName::new("vms"), pool_stats(&pool("vms"))),
                Report::OsdStats("0".to_owned(), osd_stats(&osd(0))),
            ],
            "what the cluster has no record of is left alone"
        );
    }

    #[test]
    fn osds_that_nobody_asks_for_have_neither_answered_nor_been_silent() {
        let (text, osds) = (|| Ok(String::new()), Ok(Vec::new()));
        let (status, health, usage) = (text(), text(), text());
        let answers = Answers { status, health, usage, pools: late(), osds };
        let asked = Question::ALL.into_iter().filter(|question| *question != Question::Osds);
        assert_eq!(
            answers.outcomes(),
            asked.map(|question| (question, question != Question::Pools)).collect::<Vec<_>>()
        );
    }

    #[test]
    fn figures_have_the_members_that_readers_look_for() {
        let text = pool_stats(&pool("vms"));
        let members = r#""stored_bytes":35,"free_bytes":1000,"used_bytes":105,"used_percent":0.25"#;
        assert!(text.starts_with(&format!("{{\"id\":2,{members},")), "{text}");
        let osd =
            OsdFigures { is_in: true, write_data: "124k".to_owned(), ..OsdFigures::default() };
        let text = osd_stats(&osd);
        assert!(
            text.contains(r#""up":0,"in":1,"#) && text.contains(r#""wr_data":"124k""#),
            "{text}"
        );
    }

    async fn primary(storage: MemoryStorage) -> Context {
        let clock = Arc::new(TokioClock::new());
        let random = Arc::new(SeededRandom::new(1));
        let store = Store::open(EmbeddedTree::in_memory().connect(), clock.clone(), random.clone())
            .await
            .unwrap();
        store.initialize(false).await.unwrap();
        let ports = Ports { storage: Arc::new(storage), clock, random, ..ports() };
        let context = Context::new(NodeName::new("hv1"), ports, store);
        let mut changes = Changes::new();
        changes.push(Change::AddNode(Box::new(NewNode {
            name: context.name().clone(),
            role: NodeRole::Coordinator,
            cpus: 8,
            kernel: "6.1".to_owned(),
            os: "GNU/Linux".to_owned(),
            arch: "x86_64".to_owned(),
            version: "0.2.0".to_owned(),
            ipmi: Ipmi::default(),
            keepalive: 0,
        })));
        changes.node(context.name(), NodeChange::Coordinator(CoordinatorState::Primary));
        let (pgs, tier) = ("32".to_owned(), "default".to_owned());
        changes.push(Change::PutPool { name: PoolName::new("vms"), pgs, tier });
        context
            .store
            .change(|_| Ok::<_, std::convert::Infallible>((changes.clone(), ())))
            .await
            .unwrap();
        context
    }

    fn access() -> RbdAccess {
        RbdAccess { monitors: Vec::new(), port: 6789, user: "libvirt".to_owned(), secret: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_ceph_that_falls_silent_keeps_its_last_words_and_becomes_a_fault() {
        let cluster = Arc::new(ScriptedCluster::new(access()));
        cluster.say(|said| said.pools = Some(vec![pool("vms")]));
        let context = primary(MemoryStorage::of_cluster(cluster.clone())).await;
        let end = CancellationToken::new();
        let task = tokio::spawn(run(context.clone(), INTERVAL, end.clone()));
        let view = || context.store.view();
        let time_limit = Duration::from_secs(300);
        eventually("it is published", time_limit, || {
            let config = &view().config;
            &*config.storage_status == "HEALTH_OK" && config.storage_health.contains("checks")
        })
        .await;
        eventually("with the pools", time_limit, || {
            view().pools.values().any(|p| p.stats.contains("1000"))
        })
        .await;

        eventually("with their history", time_limit, || {
            view().fullness.contains_key(&PoolName::new("vms"))
        })
        .await;

        let (now, stamp) = (
            || context.ports.clock.wall().as_secs(),
            || answered_at(&view(), Question::Status).unwrap(),
        );
        let first = stamp();
        eventually("its stamp moves while it answers", time_limit, || stamp() > first).await;
        assert!(stamp() >= first + REWRITTEN_AFTER, "but once a minute");
        let last = now();

        cluster.say(|said| said.hangs = true);
        eventually("it is a fault", time_limit, || view().faults.contains_key("CEPH_SILENT_HV1"))
            .await;
        assert_eq!(&*view().config.storage_status, "HEALTH_OK");
        let silent = stamp();
        let since = last.saturating_sub(INTERVAL.as_secs())..=last + INTERVAL.as_secs();
        assert!(since.contains(&silent), "{silent} is the last answer: {since:?}");
        context.sleep(4 * DEADLINE).await;
        assert_eq!(stamp(), silent, "it stands still with the words");

        cluster.say(|said| (said.hangs, said.text) = (false, "HEALTH_WARN".to_owned()));
        eventually("it is heard again", time_limit, || {
            &*view().config.storage_status == "HEALTH_WARN"
        })
        .await;
        assert!(stamp() >= silent + 4 * DEADLINE.as_secs(), "at once with what it says");
        end.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_primary_keeps_the_age_of_what_it_has_no_answer_to() {
        let cluster = Arc::new(ScriptedCluster::new(access()));
        cluster.say(|said| said.hangs = true);
        let context = primary(MemoryStorage::of_cluster(cluster.clone())).await;
        let mut before = AnsweredRecord::taken_over(NodeName::new("hv9"), None);
        before.note(Question::Status, 7, true);
        context.store.report(vec![Report::StorageAnswered(before)]).await.unwrap();
        eventually("another has asked", Duration::from_secs(5), || {
            context.store.view().answered.is_some()
        })
        .await;
        let end = CancellationToken::new();
        let task = tokio::spawn(run(context.clone(), INTERVAL, end.clone()));
        eventually("the new one says what is known", Duration::from_secs(120), || {
            let view = context.store.view();
            let is_by_it =
                view.answered.as_ref().is_some_and(|record| record.by == *context.name());
            is_by_it && answered_at(&view, Question::Status) == Some(7)
        })
        .await;
        end.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_ceph_that_fills_up_is_a_fault_until_there_is_room() {
        let cluster = Arc::new(ScriptedCluster::new(access()));
        let holds = |stored_bytes: u64| {
            let free_bytes = 1000 - stored_bytes;
            Some(vec![PoolFigures { stored_bytes, free_bytes, ..pool("vms") }])
        };
        let words = r#"{"checks":{"OSD_NEARFULL":{"summary":{"message":"1 nearfull osd(s)"}}}}"#;
        cluster.say(|said| (said.pools, said.health) = (holds(920), words.to_owned()));
        let context = primary(MemoryStorage::of_cluster(cluster.clone())).await;
        let end = CancellationToken::new();
        let task = tokio::spawn(run(context.clone(), INTERVAL, end.clone()));
        let stands = |id: &str| context.store.view().faults.contains_key(id);
        let time_limit = Duration::from_secs(300);
        eventually("both are faults", time_limit, || {
            stands("POOL_NEARFULL_VMS") && stands("CEPH_NEARFULL")
        })
        .await;
        assert!(!stands("POOL_FULL_VMS") && !stands("CEPH_FULL"));

        cluster.say(|said| (said.pools, said.health) = (holds(500), "{}".to_owned()));
        eventually("the pool has room", time_limit, || !stands("POOL_NEARFULL_VMS")).await;
        assert!(stands("CEPH_NEARFULL"), "Ceph may say it again in a moment");
        eventually("Ceph has room", Duration::from_secs(1200), || !stands("CEPH_NEARFULL")).await;
        end.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_primary_asks() {
        let cluster = Arc::new(ScriptedCluster::new(access()));
        let context = primary(MemoryStorage::of_cluster(cluster)).await;
        let mut changes = Changes::new();
        changes.node(context.name(), NodeChange::Coordinator(CoordinatorState::Secondary));
        context
            .store
            .change(|_| Ok::<_, std::convert::Infallible>((changes.clone(), ())))
            .await
            .unwrap();
        let end = CancellationToken::new();
        let task = tokio::spawn(run(context.clone(), INTERVAL, end.clone()));
        context.sleep(Duration::from_secs(60)).await;
        assert_eq!(&*context.store.view().config.storage_health, "");
        end.cancel();
        task.await.unwrap();
    }
}
