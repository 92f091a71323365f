//! The services of this machine that PVC needs, started in order and waited for until they run.

use std::time::Duration;

use futures::future::join_all;
use pvc_model::node::NodeRole;
use pvc_ports::{Ports, Services, ServicesError, UnitState};

use crate::settings::NodeSettings;

/// Time that the services may take to run. Then the start goes on without them: what needs one says
/// so.
const CEILING: Duration = Duration::from_secs(10);

/// Time between two questions whether a service runs.
const POLL: Duration = Duration::from_millis(250);

/// Units that only the packages of PVC 1.0.3 bring. Legacy peers in the cluster may need them;
/// nothing of this daemon does, so their absence is no mistake.
const OF_PVC_1_0_3: [&str; 2] = ["keydb-server.service", HEALTH];

const HEALTH: &str = "pvchealthd.service";

/// A unit of the service manager, by its full name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service(pub String);

/// The services this node needs, in the order of `spec/startup.md` §4.
pub(crate) fn needed(settings: &NodeSettings) -> Vec<Service> {
    let on = settings.subsystems;
    let coordinator = settings.role == NodeRole::Coordinator;
    let host = settings.name.as_str();
    let writes_evpn = settings.guest_networks.as_ref().is_some_and(|on| on.evpn.is_some());
    let table = [
        ("zookeeper.service".to_owned(), coordinator),
        ("libvirtd.service".to_owned(), on.hypervisor),
        ("patroni.service".to_owned(), on.networking && coordinator),
        // Hypervisors have tunnels, too, and PVC 1.0.3 left them out.
        ("frr.service".to_owned(), on.networking && (coordinator || writes_evpn)),
        (format!("ceph-mon@{host}.service"), on.storage && coordinator),
        (format!("ceph-mgr@{host}.service"), on.storage && coordinator),
        ("keydb-server.service".to_owned(), (on.api || on.worker) && coordinator),
        ("pvcworkerd.service".to_owned(), on.worker),
        // On every coordinator, though only the primary has the floating address: a new primary
        // serves at once.
        ("pvcapid.service".to_owned(), on.api && coordinator),
        (HEALTH.to_owned(), true),
    ];
    table.into_iter().filter(|(_, needed)| *needed).map(|(name, _)| Service(name)).collect()
}

/// Starts all of `services` and returns when they run, or after a ceiling. A service that does not
/// start is named in the log and nothing more: the node can be mended while its daemon runs. One
/// that the service manager does not even begin to start (it has no such unit, or there is no
/// manager) is not waited for.
pub(crate) async fn start_all(ports: &Ports, services: &[Service]) {
    let begun =
        join_all(services.iter().map(|service| start(ports.services.as_ref(), service))).await;
    let until = ports.clock.monotonic() + CEILING;
    let mut waiting: Vec<Service> = services
        .iter()
        .zip(begun)
        .filter(|(_, begun)| *begun)
        .map(|(service, _)| service.clone())
        .collect();
    while !waiting.is_empty() {
        let asked = waiting.iter().map(|service| runs(ports.services.as_ref(), service));
        let answers = join_all(asked).await;
        waiting =
            waiting.into_iter().zip(answers).filter(|(_, runs)| !runs).map(|(s, _)| s).collect();
        if waiting.is_empty() || ports.clock.monotonic() >= until {
            break;
        }
        ports.clock.sleep(POLL).await;
    }
    for Service(unit) in waiting {
        tracing::error!(unit, "the service does not run; see `systemctl status {unit}`");
    }
}

/// Whether the start was begun.
async fn start(services: &dyn Services, service: &Service) -> bool {
    let begun = services.start(&service.0).await;
    if let Err(error) = &begun {
        log_failure(service, error);
    }
    begun.is_ok()
}

fn log_failure(service: &Service, error: &ServicesError) {
    let Service(unit) = service;
    if may_lack(service, error) && unit == HEALTH {
        tracing::info!(
            "this release has no health daemon: the health of this node is not judged, and shows \
             as N/A. What is wrong \
             with it is reported by faults (`pvc cluster fault list`)"
        );
    } else if may_lack(service, error) {
        tracing::debug!(unit, "the service is not installed, and not needed by this release");
    } else {
        tracing::error!(unit, %error, hint = error.hint(), "the service cannot be started");
    }
}

/// Whether the service cannot be started only because it is one that a node may do without.
fn may_lack(Service(unit): &Service, error: &ServicesError) -> bool {
    matches!(error, ServicesError::Missing { .. }) && OF_PVC_1_0_3.contains(&unit.as_str())
}

async fn runs(services: &dyn Services, service: &Service) -> bool {
    matches!(services.state(&service.0).await, Ok(UnitState::Active))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;

    use pvc_testkit::{ScriptedServices, UnitCall, UnitManner, ports};

    use crate::settings::Subsystems;
    use crate::settings::tests::settings;

    fn with(services: &Arc<ScriptedServices>) -> Ports {
        Ports { services: services.clone(), ..ports() }
    }

    fn units(names: &[&str]) -> Vec<Service> {
        names.iter().map(|name| Service((*name).to_owned())).collect()
    }

    #[test]
    fn a_node_needs_what_its_part_and_its_switches_say() {
        let mut settings = settings("hv1");
        let names =
            |settings: &NodeSettings| needed(settings).into_iter().map(|s| s.0).collect::<Vec<_>>();
        assert_eq!(
            names(&settings),
            ["zookeeper.service", "libvirtd.service", "pvchealthd.service"]
        );
        settings.role = NodeRole::Hypervisor;
        settings.subsystems = Subsystems {
            hypervisor: true,
            networking: true,
            storage: true,
            worker: true,
            api: true,
        };
        assert_eq!(
            names(&settings),
            ["libvirtd.service", "pvcworkerd.service", "pvchealthd.service"]
        );
        settings.role = NodeRole::Coordinator;
        assert_eq!(
            names(&settings),
            [
                "zookeeper.service",
                "libvirtd.service",
                "patroni.service",
                "frr.service",
                "ceph-mon@hv1.service",
                "ceph-mgr@hv1.service",
                "keydb-server.service",
                "pvcworkerd.service",
                "pvcapid.service",
                "pvchealthd.service",
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn services_are_started_together_and_waited_for_until_they_run() {
        let slow = ScriptedServices::new()
            .with("a.service", UnitManner::RunsAfter(2))
            .with("b.service", UnitManner::RunsAfter(1));
        let services = Arc::new(slow);
        let ports = with(&services);
        start_all(&ports, &units(&["a.service", "b.service"])).await;
        let calls = ["a.service", "b.service"].map(|unit| UnitCall::Start(unit.to_owned()));
        assert_eq!(services.calls(), calls);
        for unit in ["a.service", "b.service"] {
            assert_eq!(ports.services.state(unit).await.unwrap(), UnitState::Active);
        }
        assert!(ports.clock.monotonic() < Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_never_runs_holds_up_the_start_only_so_long() {
        let broken = ScriptedServices::new()
            .with("hangs.service", UnitManner::Hangs)
            .with("fails.service", UnitManner::Fails);
        let ports = with(&Arc::new(broken));
        start_all(&ports, &units(&["hangs.service", "fails.service"])).await;
        let took = ports.clock.monotonic();
        assert!((CEILING..CEILING + POLL * 2).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_pvc_1_0_3_brings_may_be_absent_without_a_warning() {
        let services = ScriptedServices::new();
        let may_lack = async |unit: &str| {
            let error = services.start(unit).await.expect_err("there is no unit at all");
            super::may_lack(&Service(unit.to_owned()), &error)
        };
        assert!(may_lack("pvchealthd.service").await);
        assert!(may_lack("keydb-server.service").await);
        assert!(!may_lack("libvirtd.service").await);
        assert!(!may_lack("pvcapid.service").await);
        services.set_unreachable(true);
        assert!(
            !may_lack("pvchealthd.service").await,
            "one that is there and does not start is a mistake"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_nobody_begins_to_start_is_not_waited_for() {
        let services = Arc::new(ScriptedServices::new());
        let ports = with(&services);
        start_all(&ports, &units(&["unknown.service"])).await;
        services.set_unreachable(true);
        start_all(&ports, &units(&["unknown.service"])).await;
        assert_eq!(ports.clock.monotonic(), Duration::ZERO);
    }
}
