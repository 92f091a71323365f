//! Telling operators: faults in the store.

use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::fault::FaultRecord;
pub(crate) use pvc_model::fault::fault_id;
use pvc_store::{Change, Changes};

use crate::shared::Shared;

/// What a fault takes from the cluster's 100 points.
pub(crate) const DELTA: i64 = 10;

/// How often a fault that goes on is written again, so that its time of last report means
/// something.
pub(crate) const REFRESH: Duration = Duration::from_secs(300);

/// How long the store may take for it.
const DEADLINE: Duration = Duration::from_secs(5);

/// Records the fault, or that it is still there. An acknowledged one stays quiet; in maintenance
/// nothing is recorded. Whatever fails here is logged and not more: the work goes on.
pub(crate) async fn raise(shared: &Arc<Shared>, id: &str, message: &str) {
    let now = local_time(shared.ports.clock.wall());
    let decide = |cluster: &Cluster| -> Result<_, std::convert::Infallible> {
        let mut changes = Changes::new();
        if !cluster.config.maintenance {
            changes.push(Change::PutFault(renewed(cluster, id, message, &now)));
        }
        Ok((changes, ()))
    };
    match shared.within(DEADLINE, shared.store.change(decide)).await {
        Some(Ok(())) => {}
        Some(Err(error)) => {
            tracing::warn!(
                fault = id,
                error = &error as &dyn std::error::Error,
                "a fault could not be recorded"
            );
        }
        None => tracing::warn!(fault = id, "a fault could not be recorded in time"),
    }
}

fn renewed(cluster: &Cluster, id: &str, message: &str, now: &str) -> FaultRecord {
    let known = cluster.faults.get(id);
    FaultRecord {
        id: id.to_owned(),
        first_reported: known.map_or_else(|| now.to_owned(), |fault| fault.first_reported.clone()),
        last_reported: now.to_owned(),
        acknowledged_at: known.map_or_else(String::new, |fault| fault.acknowledged_at.clone()),
        acknowledged: known.is_some_and(|fault| fault.acknowledged),
        delta: DELTA,
        message: message.to_owned(),
    }
}

/// The local time as legacy peers write it.
fn local_time(since_epoch: Duration) -> String {
    let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(0);
    let time = jiff::Timestamp::from_second(seconds).unwrap_or_default();
    time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledged_fault_stays_acknowledged_and_keeps_its_first_time() {
        let old = FaultRecord {
            id: "X".to_owned(),
            first_reported: "first".to_owned(),
            last_reported: "then".to_owned(),
            acknowledged_at: "ack".to_owned(),
            acknowledged: true,
            delta: 10,
            message: "old".to_owned(),
        };
        let cluster = Cluster {
            faults: [("X".to_owned(), Arc::new(old.clone()))].into(),
            ..Cluster::default()
        };
        let new = renewed(&cluster, "X", "new", "now");
        assert_eq!(
            new,
            FaultRecord { last_reported: "now".to_owned(), message: "new".to_owned(), ..old }
        );
    }
}
