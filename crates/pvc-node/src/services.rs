//! The services of this machine that PVC needs, started in order and waited for until they run.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use pvc_model::node::NodeRole;
use pvc_ports::{Command, Exec};

use crate::settings::{NodeSettings, Ports};

/// How long the services may take to run. Then the start goes on without them: what needs one says so.
const CEILING: Duration = Duration::from_secs(10);

/// How often a service is asked whether it runs.
const POLL: Duration = Duration::from_millis(250);

/// A unit of the service manager, by its full name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service(pub String);

/// The services this node needs, in the order of `spec/startup.md` §4.
pub(crate) fn needed(settings: &NodeSettings) -> Vec<Service> {
    let on = settings.subsystems;
    let coordinator = settings.role == NodeRole::Coordinator;
    let host = settings.name.as_str();
    let table = [
        ("zookeeper.service".to_owned(), coordinator),
        ("libvirtd.service".to_owned(), on.hypervisor),
        ("patroni.service".to_owned(), on.networking && coordinator),
        ("frr.service".to_owned(), on.networking && coordinator),
        (format!("ceph-mon@{host}.service"), on.storage && coordinator),
        (format!("ceph-mgr@{host}.service"), on.storage && coordinator),
        ("keydb-server.service".to_owned(), (on.api || on.worker) && coordinator),
        ("pvcworkerd.service".to_owned(), on.worker),
        ("pvchealthd.service".to_owned(), true),
    ];
    table.into_iter().filter(|(_, needed)| *needed).map(|(name, _)| Service(name)).collect()
}

/// Starts all of `services` and returns when they run, or after a ceiling. A service that does not
/// start is named in the log and nothing more: the node can be mended while its daemon runs. One that
/// the service manager does not even begin to start (it has no such unit, or there is no manager) is
/// not waited for.
pub(crate) async fn start_all(ports: &Ports, services: &[Service]) {
    let start = services.iter().map(|service| start(&ports.exec, service));
    let begun = join_all(start).await;
    let until = ports.clock.monotonic() + CEILING;
    let mut waiting: Vec<Service> =
        services.iter().zip(begun).filter(|(_, begun)| *begun).map(|(service, _)| service.clone()).collect();
    while !waiting.is_empty() {
        let asked = waiting.iter().map(|service| runs(&ports.exec, service));
        let answers = join_all(asked).await;
        waiting = waiting.into_iter().zip(answers).filter(|(_, runs)| !runs).map(|(s, _)| s).collect();
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
async fn start(exec: &Arc<dyn Exec>, service: &Service) -> bool {
    // Without waiting for the job: a unit that hangs while it starts must not hold up the others.
    let begun = systemctl(exec, &["start", "--no-block", &service.0]).await;
    if let Err(why) = &begun {
        tracing::error!(unit = service.0, why, "the service cannot be started");
    }
    begun.is_ok()
}

async fn runs(exec: &Arc<dyn Exec>, service: &Service) -> bool {
    systemctl(exec, &["is-active", "--quiet", &service.0]).await.is_ok()
}

async fn systemctl(exec: &Arc<dyn Exec>, args: &[&str]) -> Result<(), String> {
    let command = Command {
        program: "systemctl".to_owned(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: Vec::new(),
        stdin: None,
        deadline: CEILING,
    };
    match exec.run(command).await {
        Ok(output) if output.code == Some(0) => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use pvc_testkit::{FakeHost, MemoryStorage, ScriptedExec, ScriptedHypervisor, SeededRandom, TokioClock};

    use crate::settings::Subsystems;
    use crate::settings::tests::settings;

    fn ports(exec: Arc<ScriptedExec>) -> Ports {
        Ports {
            hypervisor: Arc::new(ScriptedHypervisor::new()),
            storage: Arc::new(MemoryStorage::new()),
            host: Arc::new(FakeHost::new()),
            exec,
            clock: Arc::new(TokioClock::new()),
            random: Arc::new(SeededRandom::new(1)),
        }
    }

    fn failure() -> pvc_ports::Output {
        pvc_ports::Output { code: Some(3), stdout: Vec::new(), stderr: b"inactive".to_vec() }
    }

    #[test]
    fn a_node_needs_what_its_part_and_its_switches_say() {
        let mut settings = settings("hv1");
        let names = |settings: &NodeSettings| needed(settings).into_iter().map(|s| s.0).collect::<Vec<_>>();
        assert_eq!(names(&settings), ["zookeeper.service", "libvirtd.service", "pvchealthd.service"]);
        settings.role = NodeRole::Hypervisor;
        settings.subsystems = Subsystems {
            hypervisor: true,
            networking: true,
            sriov: true,
            storage: true,
            worker: true,
            api: true,
        };
        assert_eq!(names(&settings), ["libvirtd.service", "pvcworkerd.service", "pvchealthd.service"]);
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
                "pvchealthd.service",
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn services_are_started_together_and_waited_for_until_they_run() {
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let exec = Arc::new(ScriptedExec::new(move |command| {
            let is_question = command.args[0] == "is-active";
            let nth = if is_question { asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) } else { 99 };
            Ok(if nth < 5 { failure() } else { ScriptedExec::success("") })
        }));
        let ports = ports(exec.clone());
        let units = [Service("a.service".to_owned()), Service("b.service".to_owned())];
        start_all(&ports, &units).await;
        let starts: Vec<_> = exec.ran().into_iter().filter(|command| command.args[0] == "start").collect();
        assert_eq!(starts[0].args, ["start", "--no-block", "a.service"]);
        assert_eq!(starts.len(), 2);
        assert_eq!(exec.ran().len(), 2 + 2 + 2 + 2 + 1, "who runs is not asked again");
        assert!(ports.clock.monotonic() < Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_never_runs_holds_up_the_start_only_so_long() {
        let exec = ScriptedExec::new(|command| {
            Ok(if command.args[0] == "start" { ScriptedExec::success("") } else { failure() })
        });
        let ports = ports(Arc::new(exec));
        start_all(&ports, &[Service("broken.service".to_owned())]).await;
        let took = ports.clock.monotonic();
        assert!((CEILING..CEILING + POLL * 2).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_nobody_begins_to_start_is_not_waited_for() {
        let ports = ports(Arc::new(ScriptedExec::new(|_| Ok(failure()))));
        start_all(&ports, &[Service("unknown.service".to_owned())]).await;
        assert_eq!(ports.clock.monotonic(), Duration::ZERO);
    }
}
