//! Faults of a storage that fills up: guests stand still when it is full.
//!
//! A pool is judged by its own figures; where a storage is a cluster, also by what that says of its
//! OSDs, which several pools fill together. Both go by themselves when there is room again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::fault::fault_id;
use pvc_model::fullness::{FullState, FullnessRecord, predict, state_of_fault};
use pvc_model::size::format_size;
use pvc_ports::PoolInfo;
use pvc_role::{Alarm, Context};
use serde_json::Value;

/// The faults of a pool that is nearly full, and of one that is full.
const POOL_NEARFULL: &str = "POOL_NEARFULL";
const POOL_FULL: &str = "POOL_FULL";

/// The faults of a Ceph that says the same of its OSDs.
const CEPH_NEARFULL: &str = "CEPH_NEARFULL";
const CEPH_FULL: &str = "CEPH_FULL";

/// Checks of Ceph's health that mean that it is nearly full, and those that mean that it is full.
const NEARFULL_CHECKS: &[&str] = &[
    "OSD_NEARFULL",
    "OSD_BACKFILLFULL",
    "POOL_NEARFULL",
    "POOL_NEAR_FULL",
    "POOL_BACKFILLFULL",
    "PG_BACKFILL_FULL",
    "PG_RECOVERY_FULL",
];
const FULL_CHECKS: &[&str] = &["OSD_FULL", "POOL_FULL"];

/// Time for which Ceph has to say nothing of it before its fault is taken back: it is at a mark
/// again and again while data moves.
const QUIET: Duration = Duration::from_secs(600);

/// Advice that helps whatever is full.
const ADVICE: &str = "`pvc storage util` shows what grows and which snapshots hold the space; \
                      remove snapshots and volumes, `pvc storage trash purge` what is in the \
                      trash, or add room";

const DAY: u64 = 24 * 60 * 60;

/// The faults that were raised, and since when they are over.
#[derive(Default)]
pub(crate) struct FullFaults {
    alarms: BTreeMap<String, Alarm>,
    quiet: BTreeMap<&'static str, Alarm>,
}

impl FullFaults {
    /// Has the faults of the pools follow their figures. Pools without figures stay as they are.
    pub async fn note_pools(&mut self, context: &Context, pools: &[PoolInfo]) {
        for (id, trouble) in troubles(&context.store.view(), pools) {
            self.follow(context, id, trouble).await;
        }
    }

    /// Has the faults of Ceph follow its `health`, as JSON.
    pub async fn note_health(&mut self, context: &Context, health: &str) {
        let Ok(health) = serde_json::from_str::<Value>(health) else { return };
        for (id, checks, what) in [
            (CEPH_NEARFULL, NEARFULL_CHECKS, "is nearly full"),
            (CEPH_FULL, FULL_CHECKS, "is full: guests stand still at their next write"),
        ] {
            let said = said(&health, checks);
            let quiet = self.quiet.entry(id).or_insert(Alarm::after(QUIET));
            let is_over = quiet.due(said.is_empty().then_some(()), context.now()).is_some();
            if is_over {
                self.follow(context, id.to_owned(), None).await;
            } else if !said.is_empty() {
                let message = format!("Ceph {what}: {}. {ADVICE}", said.join("; "));
                self.follow(context, id.to_owned(), Some(message)).await;
            }
        }
    }

    /// Raises the fault when that is due, or takes it back, also one that another primary has
    /// raised.
    async fn follow(&mut self, context: &Context, id: String, trouble: Option<String>) {
        let Some(message) = trouble else {
            self.alarms.remove(&id);
            if context.store.view().faults.contains_key(&id) {
                tracing::info!(fault = id, "there is room again");
                context.clear(&id).await;
            }
            return;
        };
        let alarm = self.alarms.entry(id.clone()).or_default();
        if let Some(message) = alarm.due(Some(message), context.now()) {
            tracing::warn!("{message}");
            context.raise(&id, &message).await;
        }
    }
}

/// The faults of pools by identifier, each with its message if it is to stand: those of the pools
/// with figures, and those that are recorded of pools that are gone.
fn troubles(view: &Cluster, pools: &[PoolInfo]) -> BTreeMap<String, Option<String>> {
    let mut all: BTreeMap<String, Option<String>> = BTreeMap::new();
    for pool in pools.iter().filter(|pool| view.pools.contains_key(&pool.name)) {
        let [nearfull, full] = ids(pool.name.as_str());
        let before = if view.faults.contains_key(&full) {
            FullState::Full
        } else if view.faults.contains_key(&nearfull) {
            FullState::Nearfull
        } else {
            FullState::Ok
        };
        let record = view.fullness.get(&pool.name).map(|record| (**record).clone());
        let record = record.unwrap_or_default();
        let state = state_of_fault(record.ratios, pool.stored_bytes, pool.free_bytes, before);
        for (id, from) in [(nearfull, FullState::Nearfull), (full, FullState::Full)] {
            let trouble = (state >= from).then(|| in_words(pool, &record, state));
            // Two names may make one identifier.
            let known = all.entry(id).or_default();
            *known = known.take().or(trouble);
        }
    }
    let recorded: BTreeSet<String> =
        view.pools.keys().flat_map(|name| ids(name.as_str())).collect();
    let [nearfull, full] = ids("");
    let is_of_a_pool = |id: &String| id.starts_with(&nearfull) || id.starts_with(&full);
    for id in view.faults.keys().filter(|id| is_of_a_pool(id) && !recorded.contains(*id)) {
        all.insert(id.clone(), None);
    }
    all
}

/// The identifiers of the faults of a pool that is nearly full, and of one that is full.
fn ids(pool: &str) -> [String; 2] {
    [fault_id(POOL_NEARFULL, pool), fault_id(POOL_FULL, pool)]
}

fn in_words(pool: &PoolInfo, record: &FullnessRecord, state: FullState) -> String {
    let PoolInfo { name, stored_bytes, free_bytes } = pool;
    let what = match state {
        FullState::Full => "is full: guests stand still at their next write into it",
        _ => "is nearly full",
    };
    let holds = *stored_bytes as f64 + *free_bytes as f64;
    let percent = if holds > 0.0 { *stored_bytes as f64 / holds * 100.0 } else { 0.0 };
    let free = format_size(*free_bytes);
    let ahead = match predict(record, *stored_bytes, *free_bytes).full_in {
        Some(seconds @ 1..) => {
            let days = seconds.div_ceil(DAY);
            format!(", which at the rate of the last week are gone in {days} days")
        }
        _ => String::new(),
    };
    format!("pool {name} {what}: {percent:.1} % are used, {free} free{ahead}. {ADVICE}")
}

/// The words of Ceph about those of `checks` that have failed and that nobody has muted.
fn said(health: &Value, checks: &[&str]) -> Vec<String> {
    let failed = |check: &&str| {
        let check = health.get("checks")?.get(*check)?;
        let is_muted = check.get("muted").and_then(Value::as_bool).unwrap_or(false);
        let words = check.get("summary").and_then(|summary| summary.get("message")?.as_str());
        (!is_muted).then(|| words.unwrap_or_default().to_owned())
    };
    checks.iter().filter_map(failed).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_model::fault::FaultRecord;
    use pvc_model::fullness::Ratios;
    use pvc_model::storage::{PoolName, PoolRecord};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn view(pools: &[&str], faults: &[&str]) -> Cluster {
        let mut view = Cluster::default();
        for &name in pools {
            let (name, text) = (PoolName::new(name), || "x".to_owned());
            let (pgs, tier, stats) = (text(), text(), "{}".into());
            let record = FullnessRecord { ratios: Ratios::OF_DIRECTORY, samples: Vec::new() };
            view.fullness.insert(name.clone(), Arc::new(record));
            view.pools.insert(name.clone(), Arc::new(PoolRecord { name, pgs, tier, stats }));
        }
        for id in faults {
            let text = || "x".to_owned();
            let fault = FaultRecord {
                id: (*id).to_owned(),
                first_reported: text(),
                last_reported: text(),
                acknowledged_at: String::new(),
                acknowledged: false,
                delta: 10,
                message: text(),
            };
            view.faults.insert((*id).to_owned(), Arc::new(fault));
        }
        view
    }

    fn filled(name: &str, percent: u64) -> PoolInfo {
        let (stored_bytes, free_bytes) = (percent * GIB, (100 - percent) * GIB);
        PoolInfo { name: PoolName::new(name), stored_bytes, free_bytes }
    }

    /// The faults that are to stand, and those that are to go.
    fn faults(view: &Cluster, pools: &[PoolInfo]) -> (Vec<String>, Vec<String>) {
        let (stand, go): (Vec<_>, Vec<_>) =
            troubles(view, pools).into_iter().partition(|(_, trouble)| trouble.is_some());
        let ids_of = |all: Vec<(String, Option<String>)>| -> Vec<String> {
            all.into_iter().map(|(id, _)| id).collect()
        };
        (ids_of(stand), ids_of(go))
    }

    #[test]
    fn a_pool_that_fills_up_is_a_fault_until_it_is_well_below_the_mark() {
        let both = ["POOL_FULL_VMS", "POOL_NEARFULL_VMS"];
        for (percent, before, expected) in [
            (84, &both[..0], &both[..0]),
            (86, &both[..0], &both[1..]),
            (84, &both[1..], &both[1..]),
            (80, &both[1..], &both[..0]),
            (100, &both[1..], &both[..]),
            (99, &both[..], &both[..]),
            (95, &both[..], &both[1..]),
        ] {
            let view = view(&["vms"], before);
            let (stand, _) = faults(&view, &[filled("vms", percent)]);
            assert_eq!(stand, expected, "{percent} after {before:?}");
        }
    }

    #[test]
    fn faults_of_pools_that_are_gone_go_and_those_without_figures_stay() {
        let gone = ["POOL_FULL_OLD", "POOL_NEARFULL_OLD"];
        let others = ["CEPH_FULL", "POOL_NEARFULL_VMS", "NODE_FENCED_HV1"];
        let view = view(&["vms"], &[&gone[..], &others[..]].concat());
        let (stand, go) = faults(&view, &[filled("of-another", 100)]);
        assert_eq!((stand, go), (Vec::new(), gone.map(str::to_owned).to_vec()));
    }

    #[test]
    fn the_message_says_how_full_the_pool_is_and_what_helps() {
        let all = troubles(&view(&["vms"], &[]), &[filled("vms", 90)]);
        let message = all["POOL_NEARFULL_VMS"].as_deref().expect("it is nearly full");
        let words = "pool vms is nearly full: 90.0 % are used, 10G free. `pvc storage util`";
        assert!(message.starts_with(words), "{message}");
    }

    #[test]
    fn ceph_is_full_by_its_own_word_unless_that_is_muted() {
        let health: Value = serde_json::from_str(
            r#"{"status":"HEALTH_ERR","checks":{
                "OSD_NEARFULL":{"summary":{"message":"1 nearfull osd(s)","count":1},"muted":false},
                "POOL_NEARFULL":{"summary":{"message":"2 pool(s) nearfull"},"muted":true},
                "OSD_FULL":{"summary":{"message":"1 full osd(s)","count":1}},
                "OSD_DOWN":{"summary":{"message":"1 osds down","count":1},"muted":false}}}"#,
        )
        .expect("it is JSON");
        assert_eq!(said(&health, NEARFULL_CHECKS), ["1 nearfull osd(s)"]);
        assert_eq!(said(&health, FULL_CHECKS), ["1 full osd(s)"]);
        assert!(said(&Value::Null, FULL_CHECKS).is_empty());
    }
}
