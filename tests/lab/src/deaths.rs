//! Deaths of nodes: what PVC says of it, and what the storage knows.

use std::collections::BTreeMap;

use pvc_standalone_tests::eventually;
use serde_json::Value;

use crate::{Lab, plain};

/// Undoes [`Lab::hang`] for every service of a node that stories do it to.
pub(crate) const NOTHING_HANGS: &str =
    "systemctl kill --signal=CONT pvcnoded zookeeper 'ceph-mon@*.service'
    systemctl service-watchdogs yes";

impl Lab {
    /// A service stops where it is, and nobody on `node` notices: without its watchdog, systemd
    /// does not.
    pub fn hang(&self, node: &str, service: &str) {
        self.on(node, "systemctl service-watchdogs no").ok();
        self.does(&["freeze", node, service]).ok();
    }

    /// The process of a service of `node`, by the node's own numbers; 0 while there is none.
    pub fn process_of(&self, node: &str, service: &str) -> String {
        let shown = self.on(node, &format!("systemctl show --property MainPID --value {service}"));
        shown.ok().trim().to_owned()
    }

    /// Returns what is said of the last fence of each node.
    pub(crate) fn fences(&self) -> BTreeMap<String, Value> {
        let nodes = self.json(&["node", "list"]).unwrap_or_default();
        let all = nodes.as_array().into_iter().flatten();
        all.map(|node| (plain(&node["name"]), node["fence"].clone())).collect()
    }

    /// Returns what `pvc` says of the last time that others took `node` for dead.
    ///
    /// # Errors
    /// If that was before this story, or never.
    pub fn fence(&self, node: &str) -> Result<Value, String> {
        let fence = self.json(&["node", "info", node])?["fence"].clone();
        if fence.is_null() || self.fences_before.get(node) == Some(&fence) {
            return Err(format!("nobody has taken {node} for dead in this story"));
        }
        Ok(fence)
    }

    /// Nobody has done more to `node` than to take it for dead.
    pub fn was_not_fenced(&self, node: &str) {
        if let Ok(fence) = self.fence(node) {
            assert_eq!(fence["proven_at"], "", "{node} was fenced: {fence}");
        }
    }

    /// Waits until `pvc` says who takes `node` for dead.
    pub fn suspected_by(&self, node: &str) -> String {
        eventually(&format!("somebody takes {node} for dead"), 90, || {
            self.fence(node).map(|fence| plain(&fence["by"]))
        })
    }

    /// Waits until `pvc` says that `node` is dead, and that this is `known` so. Returns all that it
    /// says.
    pub fn proven_dead(&self, node: &str, known: &str) -> Value {
        eventually(&format!("{node} is proven dead: {known}"), 180, || {
            let fence = self.fence(node)?;
            let is_so = plain(&fence["proof"]).contains(known) && fence["proven_at"] != "";
            if is_so { Ok(fence) } else { Err(fence.to_string()) }
        })
    }

    /// Waits until `pvc` says that `node` could not be proven dead, for a reason in which these
    /// words are.
    pub fn could_not_be_fenced(&self, node: &str, why: &str) {
        eventually(&format!("{node} could not be fenced: {why}"), 120, || {
            let fence = self.fence(node)?;
            if plain(&fence["last_failure"]).contains(why) {
                Ok(())
            } else {
                Err(fence.to_string())
            }
        });
        self.fault_says(&format!("FENCE_FAILED_{}", node.to_uppercase()), why);
    }

    /// Waits until the fault `id` is there and has these words.
    pub fn fault_says(&self, id: &str, words: &str) {
        eventually(&format!("the fault {id} says `{words}`"), 120, || {
            let faults = self.json(&["cluster", "fault", "list"])?;
            let all = faults.as_array().into_iter().flatten();
            let it = all.filter(|fault| fault["id"] == id).map(|fault| plain(&fault["message"]));
            if it.into_iter().any(|message| message.contains(words)) {
                Ok(())
            } else {
                Err(faults.to_string())
            }
        });
    }

    /// The one client that may write to the disk of `guest`, as the storage knows it.
    pub fn writer(&self, guest: &str) -> String {
        eventually(&format!("one client has the disk of {guest}"), 60, || {
            match self.lockers(guest)?.as_slice() {
                [one] => Ok(one.clone()),
                other => Err(format!("it is locked by {other:?}")),
            }
        })
    }

    pub(crate) fn lockers(&self, guest: &str) -> Result<Vec<String>, String> {
        let said = self.ask_ceph(&format!("rbd lock list vms/{guest}_sda --format json"))?;
        let locks: Vec<Value> = serde_json::from_str(&said).map_err(|error| error.to_string())?;
        Ok(locks.iter().map(|lock| plain(&lock["address"])).collect())
    }

    /// Waits until the storage refuses whatever `client` still writes.
    pub fn may_no_longer_write(&self, client: &str) {
        eventually(&format!("what {client} writes is refused"), 30, || {
            let refused = self.ask_ceph("ceph osd blocklist ls")?;
            if refused.lines().any(|line| line.split(' ').next() == Some(client)) {
                Ok(())
            } else {
                Err(refused)
            }
        });
    }

    /// Runs a program on the first node that reaches the storage, and returns what it prints.
    fn ask_ceph(&self, script: &str) -> Result<String, String> {
        let asked =
            self.nodes().into_iter().map(|node| self.on(&node, &format!("timeout 20 {script}")));
        let mut said = Err("there is no node".to_owned());
        for output in asked {
            said = if output.code == 0 { Ok(output.stdout) } else { Err(output.to_string()) };
            if said.is_ok() {
                break;
            }
        }
        said
    }
}
