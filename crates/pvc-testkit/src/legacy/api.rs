//! Writes of its API and command line: `spec/vm.md` §2, `spec/coordination.md` §2 and §7.

use std::sync::Arc;
use std::time::Duration;

use pvc_model::Uuid;
use pvc_ports::Clock;

use super::LegacyPorts;
use super::placing::find_target;
use super::records::{Kind, Records};

/// Requests of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LegacyAsk {
    /// The VM, and the state that is written.
    State(Uuid, &'static str),
    /// Disables the VM as the command line does: first `shutdown`, then this when it is off.
    Disable(Uuid),
    /// Moves the VM `to` a node; `None`: the API chooses. `returns`: as `vm migrate`, else as
    /// `vm move`.
    Move {
        vm: Uuid,
        to: Option<String>,
        returns: bool,
        live_only: bool,
    },
    Unmigrate(Uuid),
    Undefine(Uuid),
    Flush(String),
    Ready(String),
    Primary(String),
    Secondary(String),
    Maintenance(bool),
}

/// An API of PVC 1.0.3.
pub struct LegacyApi {
    records: Records,
    clock: Arc<dyn Clock>,
}

impl LegacyApi {
    pub fn new(ports: &LegacyPorts) -> LegacyApi {
        LegacyApi { records: Records::new(ports, true, Duration::ZERO), clock: ports.clock.clone() }
    }

    /// Does what is asked for.
    ///
    /// # Errors
    /// Why it refuses.
    pub async fn ask(&self, ask: &LegacyAsk) -> Result<(), String> {
        match ask {
            LegacyAsk::State(vm, state) => self.set_state(*vm, state).await,
            LegacyAsk::Disable(vm) => self.disable(*vm).await,
            LegacyAsk::Move { vm, to, returns, live_only } => {
                self.move_vm(*vm, to.as_deref(), *returns, *live_only).await
            }
            LegacyAsk::Unmigrate(vm) => self.unmigrate(*vm).await,
            LegacyAsk::Undefine(vm) => self.undefine(*vm).await,
            LegacyAsk::Flush(node) => self.domain_state(node, "flush", "flushed").await,
            LegacyAsk::Ready(node) => self.domain_state(node, "unflush", "ready").await,
            LegacyAsk::Primary(node) => self.role(node, node).await,
            LegacyAsk::Secondary(node) => self.role(node, "none").await,
            LegacyAsk::Maintenance(on) => {
                self.put("/config/maintenance", if *on { "true" } else { "false" }).await;
                Ok(())
            }
        }
    }

    async fn put(&self, path: &str, value: &str) {
        self.records.write(&[(path.to_owned(), value.to_owned())]).await;
    }

    async fn vm(&self, vm: Uuid, key: &str) -> String {
        self.records.text(&format!("/domains/{vm}/{key}")).await
    }

    /// Makes one write under the lock on the state, which is held for half a second more.
    async fn change<const N: usize>(&self, vm: Uuid, values: [(&str, &str); N]) {
        let lock = self.records.lock(&format!("/domains/{vm}/state"), Kind::Exclusive, None).await;
        let values = values.map(|(key, value)| (format!("/domains/{vm}/{key}"), value.to_owned()));
        self.records.write(&values).await;
        self.clock.sleep(Duration::from_millis(500)).await;
        self.records.release(lock).await;
    }

    async fn set_state(&self, vm: Uuid, state: &str) -> Result<(), String> {
        let now = self.vm(vm, "state").await;
        let refused = match state {
            "restart" | "shutdown" => now != "start",
            _ => now == "mirror",
        };
        if now.is_empty() || refused {
            return Err(format!("ERROR: VM is in state {now}"));
        }
        self.change(vm, [("state", state)]).await;
        Ok(())
    }

    async fn disable(&self, vm: Uuid) -> Result<(), String> {
        if self.vm(vm, "state").await == "start" {
            self.change(vm, [("state", "shutdown")]).await;
            while self.vm(vm, "state").await != "stop" {
                self.clock.sleep(Duration::from_secs(1)).await;
            }
        }
        self.set_state(vm, "disable").await
    }

    async fn move_vm(
        &self,
        vm: Uuid,
        to: Option<&str>,
        returns: bool,
        live_only: bool,
    ) -> Result<(), String> {
        let (node, last) = (self.vm(vm, "node").await, self.vm(vm, "lastnode").await);
        if returns && !last.is_empty() {
            return Err("ERROR: VM has been previously migrated".to_owned());
        }
        let to = match to {
            Some(to) => to.to_owned(),
            None => find_target(&self.records, vm)
                .await
                .ok_or("ERROR: Could not find a valid target node")?,
        };
        if to == node {
            return Err("ERROR: VM is already running on the specified node".to_owned());
        }
        let state = self.vm(vm, "state").await;
        let state = moving_state(&state, live_only);
        let last = if returns { node.as_str() } else { "" };
        self.change(vm, [("state", state), ("node", to.as_str()), ("lastnode", last)]).await;
        Ok(())
    }

    async fn unmigrate(&self, vm: Uuid) -> Result<(), String> {
        let home = self.vm(vm, "lastnode").await;
        if home.is_empty() {
            return Err("ERROR: VM has not been previously migrated".to_owned());
        }
        let state = self.vm(vm, "state").await;
        let state = moving_state(&state, false);
        self.change(vm, [("state", state), ("node", home.as_str()), ("lastnode", "")]).await;
        Ok(())
    }

    /// The volumes stay: the world's operators want it so.
    async fn undefine(&self, vm: Uuid) -> Result<(), String> {
        if self.vm(vm, "state").await != "stop" {
            self.change(vm, [("state", "stop")]).await;
        }
        self.clock.sleep(Duration::from_secs(1)).await;
        self.change(vm, [("state", "delete")]).await;
        self.records.delete(&format!("/domains/{vm}")).await;
        Ok(())
    }

    async fn domain_state(&self, node: &str, wanted: &str, already: &str) -> Result<(), String> {
        let path = format!("/nodes/{node}/domainstate");
        if self.records.text(&path).await == already {
            return Err(format!("ERROR: Node \"{node}\" is already {already}"));
        }
        self.put(&path, wanted).await;
        Ok(())
    }

    /// `key`: what is written. A node that is asked to step back may be chosen again.
    async fn role(&self, node: &str, key: &str) -> Result<(), String> {
        let is = async |key: &str| self.records.text(&format!("/nodes/{node}/{key}")).await;
        let wants_primary = key == node;
        let is_primary = is("routerstate").await == "primary";
        if is("daemonmode").await == "hypervisor"
            || is("daemonstate").await != "run"
            || is_primary == wants_primary
        {
            return Err(format!("ERROR: Node \"{node}\" cannot be asked for that"));
        }
        self.put("/config/primary_node", key).await;
        Ok(())
    }
}

fn moving_state(now: &str, live_only: bool) -> &str {
    match (now, live_only) {
        ("start", true) => "migrate-live",
        ("start", false) => "migrate",
        (other, _) => other,
    }
}
