//! Traces of packets: a few at a time, by records that are understood once for all of them.

use std::sync::{Arc, Mutex, PoisonError};

use pvc_model::cluster::Cluster;
use pvc_model::guest_network::trace::TraceIndex;

use crate::error::Result;
use crate::slots::{Slot, Slots};

/// Number of traces that are made at once: each may go through thousands of rules, on the node that
/// is primary.
const AT_ONCE: usize = 4;

pub struct Traces {
    slots: Arc<Slots>,
    /// Index of the latest trace.
    index: Mutex<Option<Arc<TraceIndex>>>,
}

impl Default for Traces {
    fn default() -> Self {
        Traces { slots: Slots::brief(AT_ONCE), index: Mutex::default() }
    }
}

impl Traces {
    /// Takes a slot for a trace of a caller.
    ///
    /// # Errors
    /// 503, if as many traces are made as may be.
    pub fn slot(&self, caller: &str) -> Result<Slot> {
        self.slots.take(caller, "traces")
    }

    /// The index of these records, which is that of the trace before if nothing of it has changed.
    pub fn index(&self, cluster: &Cluster) -> Arc<TraceIndex> {
        // Who comes while it is made waits for it.
        let mut known = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = known.as_ref().filter(|index| index.is_of(cluster)) {
            return index.clone();
        }
        let index = Arc::new(TraceIndex::of(cluster));
        *known = Some(index.clone());
        index
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use pvc_model::network::NetworkRecord;
    use pvc_testkit::eventually;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;

    /// Begins a trace, which ends when the sender is dropped.
    async fn begin(traces: &Traces, caller: &str) -> Result<(JoinHandle<()>, mpsc::Sender<()>)> {
        let slot = traces.slot(caller)?;
        let ((begins, begun), (ends, end)) = (oneshot::channel(), mpsc::channel());
        let work = move || {
            begins.send(()).expect("somebody waits for it");
            let _ = end.recv();
        };
        let asked = tokio::spawn(slot.aside(work));
        begun.await.expect("it begins");
        Ok((asked, ends))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn so_many_traces_are_made_at_once_whether_anybody_waits_for_them_or_not() {
        let traces = Traces::default();
        let (mut asked, mut ends) = (Vec::new(), Vec::new());
        let mut refused = 0;
        for _ in 0..50 {
            match begin(&traces, "a").await {
                Ok((one, end)) => {
                    asked.push(one);
                    ends.push(end);
                }
                Err(error) => {
                    assert_eq!((error.status.as_u16(), error.retry_after), (503, Some(1)));
                    refused += 1;
                }
            }
        }
        assert_eq!((asked.len(), refused), (2, 48));
        let theirs = [begin(&traces, "b").await.unwrap(), begin(&traces, "b").await.unwrap()];
        assert!(begin(&traces, "c").await.is_err());
        for one in asked {
            one.abort();
            assert!(one.await.unwrap_err().is_cancelled());
        }
        drop(theirs);
        eventually("those of `b` are over", Duration::from_secs(20), || traces.slot("c").is_ok())
            .await;
        assert!(traces.slot("a").is_err(), "nobody waits for them, and they go on");
        drop(ends);
        eventually("those of `a` are over", Duration::from_secs(20), || traces.slot("a").is_ok())
            .await;
    }

    #[test]
    fn records_are_understood_once_for_all_traces_until_they_change() {
        let (traces, mut cluster) = (Traces::default(), Cluster::default());
        let first = traces.index(&cluster);
        cluster.revision += 1;
        assert!(Arc::ptr_eq(&first, &traces.index(&cluster)));
        cluster.networks.insert("7".to_owned(), Arc::new(NetworkRecord::default()));
        let second = traces.index(&cluster);
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &traces.index(&cluster)));
    }
}
