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
/// start is named in the log and nothing more: the node can be mended while its daemon runs.
pub(crate) async fn start_all(ports: &Ports, services: &[Service]) {
    let start = services.iter().map(|service| start(&ports.exec, service));
    join_all(start).await;
    let until = ports.clock.monotonic() + CEILING;
    let mut waiting = services.to_vec();
    loop {
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

async fn start(exec: &Arc<dyn Exec>, service: &Service) {
    // Without waiting for the job: a unit that hangs while it starts must not hold up the others.
    if let Err(why) = systemctl(exec, &["start", "--no-block", &service.0]).await {
        tracing::error!(unit = service.0, why, "the service cannot be started");
    }
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
