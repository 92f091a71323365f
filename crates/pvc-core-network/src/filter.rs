//! The packet filter of this node: loaded at the start, and again whenever it is not what was
//! loaded. What it says is decided in `pvc_model::host_filter`.

use std::time::Duration;

use pvc_model::host_filter::{HostFilter, table};
use pvc_model::with_causes;
use pvc_ports::{Firewall, FirewallError, Ports};
use pvc_role::{Alarm, Context};
use tokio_util::sync::CancellationToken;

/// Time between two looks at the filter.
const INTERVAL: Duration = Duration::from_secs(10);

/// Loads the filter once, before the services that it is for. What fails is logged, and tried again
/// by [`run`].
pub async fn apply(wanted: Option<&HostFilter>, ports: &Ports) {
    match Keeper::default().round(wanted, ports.firewall.as_ref()).await {
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
        let done = keeper.round(Some(&wanted), context.ports.firewall.as_ref()).await;
        if let Ok(Some(done)) = &done {
            tracing::info!("{done}");
        }
        if let Some(error) = alarm.due(done.err(), context.now()) {
            tell(&context, &error).await;
        }
    }
}

async fn tell(context: &Context, error: &FirewallError) {
    tracing::error!(hint = error.hint(), "{}", in_words(error));
    let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
    let message = format!("node {}: {}{hint}", context.name(), in_words(error));
    context.raise_own("FIREWALL", &message).await;
}

fn in_words(error: &FirewallError) -> String {
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
        firewall: &dyn Firewall,
    ) -> Result<Option<&'static str>, FirewallError> {
        let table = &table();
        let found = firewall.table(table).await?;
        let Some(wanted) = wanted else {
            if found.is_none() {
                return Ok(None);
            }
            firewall.apply(table, None).await?;
            return Ok(Some("packet filter: switched off, and taken away"));
        };
        if found.is_some() && found == self.loaded {
            return Ok(None);
        }
        firewall.apply(table, Some(&wanted.rules())).await?;
        let before = self.loaded.take();
        self.loaded = firewall.table(table).await?;
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

    use pvc_testkit::{MemoryFirewall, ports};

    fn filter() -> HostFilter {
        HostFilter::new(["10.0.1.1/32".parse().unwrap()].into(), [].into(), [2181]).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_filter_is_loaded_once_and_again_when_somebody_flushed_it() {
        let firewall = MemoryFirewall::new();
        let mut keeper = Keeper::default();
        let wanted = filter();
        assert!(keeper.round(Some(&wanted), &firewall).await.unwrap().unwrap().contains("loaded;"));
        assert_eq!(keeper.round(Some(&wanted), &firewall).await.unwrap(), None);
        firewall.flush();
        assert!(keeper.round(Some(&wanted), &firewall).await.unwrap().unwrap().contains("again"));
        assert_eq!(firewall.table(&table()).await.unwrap(), Some(wanted.rules()));
        assert_eq!(keeper.round(Some(&wanted), &firewall).await.unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_filter_of_somebody_elses_making_is_replaced_and_one_not_wanted_is_taken_away() {
        let firewall = Arc::new(MemoryFirewall::new());
        let ports = Ports { firewall: firewall.clone(), ..ports() };
        firewall.apply(&table(), Some("chain input { }")).await.unwrap();
        apply(Some(&filter()), &ports).await;
        assert_eq!(firewall.table(&table()).await.unwrap(), Some(filter().rules()));
        apply(None, &ports).await;
        assert_eq!(firewall.table(&table()).await.unwrap(), None);
        let before = firewall.changes();
        apply(None, &ports).await;
        assert_eq!(firewall.changes(), before);
    }

    #[tokio::test(start_paused = true)]
    async fn a_filter_that_is_refused_is_tried_again() {
        let firewall = MemoryFirewall::new();
        firewall.set_refusing(|_, _| true);
        let mut keeper = Keeper::default();
        assert!(keeper.round(Some(&filter()), &firewall).await.is_err());
        firewall.set_refusing(|_, _| false);
        assert!(keeper.round(Some(&filter()), &firewall).await.unwrap().is_some());
    }
}
