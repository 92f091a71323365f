//! Telling operators: faults in the store.

use std::convert::Infallible;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::fault::{FaultRecord, fault_id};
use pvc_store::{Change, Changes, local_time};

use crate::Alarm;
use crate::Context;

/// Points that a fault takes from the cluster's 100, unless it is said how many.
const DELTA: i64 = 10;

/// Time after which a fault that goes on is written again, so that its time of last report means
/// something.
pub const REFRESH: Duration = Duration::from_secs(300);

/// Time that the store may take for a fault.
const DEADLINE: Duration = Duration::from_secs(5);

/// Report of a fault that operators should know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultReport {
    pub message: String,
    /// Points that it takes from the cluster's 100.
    pub delta: i64,
    /// Whether it is shown again after somebody has acknowledged it, although it takes no more
    /// points than then: something else is wrong.
    pub is_news: bool,
}

impl From<String> for FaultReport {
    fn from(message: String) -> Self {
        FaultReport { message, delta: DELTA, is_news: false }
    }
}

/// Whatever fails here is logged and not more: the work goes on.
impl Context {
    /// Records the fault, or that it is still there. An acknowledged one stays quiet; in
    /// maintenance nothing is recorded.
    pub async fn raise(&self, id: &str, message: &str) {
        self.raise_report(id, &FaultReport::from(message.to_owned())).await;
    }

    /// [`raise`](Context::raise)s a fault that takes as many points as `report` says. An
    /// acknowledged one stays quiet until it takes more than when that was done, or is news.
    pub async fn raise_report(&self, id: &str, report: &FaultReport) {
        let now = local_time(self.ports.clock.wall());
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            if !cluster.config.maintenance {
                changes.push(Change::PutFault(renewed(cluster, id, report, &now)));
            }
            Ok::<_, Infallible>((changes, ()))
        };
        match self.within(DEADLINE, self.store.change(decide)).await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(fault = id, error, "a fault could not be recorded");
            }
            None => tracing::warn!(fault = id, "a fault could not be recorded in time"),
        }
    }

    /// [`raise`](Context::raise)s the fault of this kind that is about this node.
    pub async fn raise_own(&self, kind: &str, message: &str) {
        self.raise(&fault_id(kind, self.name().as_str()), message).await;
    }

    /// [`raise`](Context::raise)s faults, each an identifier and a message, beside the work: a
    /// store that is slow for them must not hold it up.
    pub fn raise_aside(&self, faults: Vec<(String, String)>) {
        if faults.is_empty() {
            return;
        }
        let context = self.clone();
        tokio::spawn(async move {
            for (id, message) in faults {
                context.raise(&id, &message).await;
            }
        });
    }

    /// Has the fault of this kind that is about this node follow `report`, a message or more:
    /// raises it when `alarm` is due, and takes it back when there is none, also one that a former
    /// life of the daemon has raised. Returns whether it was raised.
    pub async fn alarm_own(
        &self,
        kind: &str,
        alarm: &mut Alarm,
        report: Option<impl Into<FaultReport>>,
    ) -> bool {
        let report: Option<FaultReport> = report.map(Into::into);
        let id = fault_id(kind, self.name().as_str());
        let stands = || alarm.was_reported() || self.store.view().faults.contains_key(&id);
        if report.is_none() && stands() {
            self.clear(&id).await;
        }
        match alarm.due(report, self.now()) {
            None => false,
            Some(report) => {
                self.raise_report(&id, &report).await;
                true
            }
        }
    }

    /// Takes the fault of this kind that is about this node back, as [`clear`](Context::clear)
    /// does.
    pub async fn clear_own(&self, kind: &str) {
        self.clear(&fault_id(kind, self.name().as_str())).await;
    }

    /// Takes a fault back, if it stands: what was wrong is over, and whoever raised it knows.
    /// Others stay until an operator deletes them.
    pub async fn clear(&self, id: &str) {
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            if cluster.faults.contains_key(id) {
                changes.push(Change::RemoveFault(id.to_owned()));
            }
            Ok::<_, Infallible>((changes, ()))
        };
        if let Err(error) = self.in_time(DEADLINE, self.store.change(decide)).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(fault = id, error, "a fault that is over could not be taken back");
        }
    }
}

fn renewed(cluster: &Cluster, id: &str, report: &FaultReport, now: &str) -> FaultRecord {
    let known = cluster.faults.get(id);
    // What has become worse is not what an operator has acknowledged.
    let acknowledged =
        known.filter(|fault| fault.acknowledged && fault.delta >= report.delta && !report.is_news);
    FaultRecord {
        id: id.to_owned(),
        first_reported: known.map_or_else(|| now.to_owned(), |fault| fault.first_reported.clone()),
        last_reported: now.to_owned(),
        acknowledged_at: acknowledged
            .map_or_else(String::new, |fault| fault.acknowledged_at.clone()),
        acknowledged: acknowledged.is_some(),
        delta: report.delta,
        message: report.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn acknowledged() -> FaultRecord {
        FaultRecord {
            id: "X".to_owned(),
            first_reported: "first".to_owned(),
            last_reported: "then".to_owned(),
            acknowledged_at: "ack".to_owned(),
            acknowledged: true,
            delta: 10,
            message: "old".to_owned(),
        }
    }

    fn renewed_by(old: &FaultRecord, report: &FaultReport) -> FaultRecord {
        let faults = [("X".to_owned(), Arc::new(old.clone()))].into();
        renewed(&Cluster { faults, ..Cluster::default() }, "X", report, "now")
    }

    #[test]
    fn an_acknowledged_fault_stays_acknowledged_and_keeps_its_first_time() {
        let old = acknowledged();
        let new = renewed_by(&old, &FaultReport::from("new".to_owned()));
        assert_eq!(
            new,
            FaultRecord { last_reported: "now".to_owned(), message: "new".to_owned(), ..old }
        );
    }

    #[test]
    fn an_acknowledged_fault_is_news_again_when_it_has_become_worse() {
        let old = acknowledged();
        for (delta, is_news, is_shown) in [
            (2, false, false),
            (10, false, false),
            (11, false, true),
            (50, false, true),
            (2, true, true),
            (10, true, true),
        ] {
            let report = FaultReport { message: "new".to_owned(), delta, is_news };
            let new = renewed_by(&old, &report);
            assert_eq!((new.delta, new.acknowledged), (delta, !is_shown), "{report:?}");
            assert_eq!(new.acknowledged_at.is_empty(), is_shown, "{report:?}");
            assert_eq!(new.first_reported, "first");
        }
    }
}
