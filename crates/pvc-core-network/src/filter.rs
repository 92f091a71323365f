//! The packet filter of this node: loaded at the start, and again whenever it is not what was
//! loaded. What it says is decided in `pvc_model::host_filter`.

use std::time::Duration;

use pvc_model::host_filter::HostFilter;
use pvc_model::with_causes;
use pvc_ports::{Network, NetworkError, Ports};
use pvc_role::{Alarm, Context};
use tokio_util::sync::CancellationToken;

/// Time between two looks at the filter.
const INTERVAL: Duration = Duration::from_secs(10);

/// Loads the filter once, before the services that it is for. What fails is logged, and tried again
/// by [`run`].
pub async fn apply(wanted: Option<&HostFilter>, ports: &Ports) {
    match Keeper::default().round(wanted, ports.network.as_ref()).await {
        Ok(Some(done)) => tracing::info!("{done}"),
        Ok(None) => {}
        Err(error) => tracing::error!(hint = error.hint(), "{}", in_words(&error)),
    }
}

/// Looks at the filter again and again. What keeps it from being what it should be is a fault.
pub async fn run(context: Context, wanted: HostFilter, end: CancellationToken) {
    let mut keeper = Keeper::default();
    let mut alarm = Alarm::default();
    let mut turns = context.turns(&end);
    while turns.next(INTERVAL).await {
        let done = keeper.round(Some(&wanted), context.ports.network.as_ref()).await;
        if let Ok(Some(done)) = &done {
            tracing::info!("{done}");
        }
        if let Some(error) = alarm.due(done.err(), context.now()) {
            tell(&context, &error).await;
        }
    }
}

async fn tell(context: &Context, error: &NetworkError) {
    tracing::error!(hint = error.hint(), "{}", in_words(error));
    let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
    let message = format!("node {}: {}{hint}", context.name(), in_words(error));
    context.raise_own("FIREWALL", &message).await;
}

fn in_words(error: &NetworkError) -> String {
    format!("packet filter: {}", with_causes(error))
}

/// Ruleset that the kernel showed after it was loaded: the words are the kernel's, not those that
/// were loaded.
#[derive(Default)]
struct Keeper {
    loaded: Option<String>,
}

impl Keeper {
    /// Looks, decides, acts. Returns what was done, if anything. Loading is one step for the
    /// kernel, so that the first round after a start, which knows nothing of what stands, may as
    /// well load it anew.
    async fn round(
        &mut self,
        wanted: Option<&HostFilter>,
        network: &dyn Network,
    ) -> Result<Option<&'static str>, NetworkError> {
        let found = network.filter().await?;
        let Some(wanted) = wanted else {
            if found.is_none() {
                return Ok(None);
            }
            network.set_filter(None).await?;
            return Ok(Some("packet filter: switched off, and taken away"));
        };
        if found.is_some() && found == self.loaded {
            return Ok(None);
        }
        network.set_filter(Some(&wanted.ruleset())).await?;
        let before = self.loaded.take();
        self.loaded = network.filter().await?;
        Ok(Some(match before {
            None => "packet filter: loaded; only nodes reach the ports between nodes",
            Some(_) => "packet filter: it was changed or missing, and is loaded again",
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;

    use pvc_testkit::{MemoryNetwork, NetworkChange, ports};

    fn filter() -> HostFilter {
        HostFilter::new(["10.0.1.1/32".parse().unwrap()].into(), [].into(), [2181]).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_filter_is_loaded_once_and_again_when_somebody_flushed_it() {
        let network = MemoryNetwork::new();
        let mut keeper = Keeper::default();
        let wanted = filter();
        assert!(keeper.round(Some(&wanted), &network).await.unwrap().unwrap().contains("loaded;"));
        assert_eq!(keeper.round(Some(&wanted), &network).await.unwrap(), None);
        network.flush_filter();
        assert!(keeper.round(Some(&wanted), &network).await.unwrap().unwrap().contains("again"));
        assert_eq!(network.filter().await.unwrap(), Some(wanted.ruleset()));
        assert_eq!(keeper.round(Some(&wanted), &network).await.unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_filter_of_somebody_elses_making_is_replaced_and_one_not_wanted_is_taken_away() {
        let network = Arc::new(MemoryNetwork::new());
        let ports = Ports { network: network.clone(), ..ports() };
        network.set_filter(Some("table inet pvc-hosts { }")).await.unwrap();
        apply(Some(&filter()), &ports).await;
        assert_eq!(network.filter().await.unwrap(), Some(filter().ruleset()));
        apply(None, &ports).await;
        assert_eq!(network.filter().await.unwrap(), None);
        let before = network.changes().len();
        apply(None, &ports).await;
        assert_eq!(network.changes().len(), before);
    }

    #[tokio::test(start_paused = true)]
    async fn a_filter_that_is_refused_is_tried_again() {
        let network = MemoryNetwork::new();
        network.set_refusing(|change| matches!(change, NetworkChange::Filter { .. }));
        let mut keeper = Keeper::default();
        assert!(keeper.round(Some(&filter()), &network).await.is_err());
        network.set_refusing(|_| false);
        assert!(keeper.round(Some(&filter()), &network).await.unwrap().is_some());
    }
}
