//! Rules that must hold when a story has ended and everything is mended, by its number in the
//! design.

use pvc_standalone_tests::eventually;
use serde_json::Value;

use crate::{Lab, NODES, number};

/// The last fault is gone by then: until all VMs run that should (I4).
const LIMIT: u64 = 240;

impl Lab {
    /// Holds the mended world to what the story was not allowed to break.
    pub(crate) fn audit(&self) {
        self.does(&["up"]).ok();
        self.is_in_order();
    }

    /// Waits until the records and the world agree, and holds both to what must be so in the middle
    /// of a story, too.
    pub fn is_in_order(&self) {
        let vms = eventually("every VM is as its record says (I1, I4)", LIMIT, || {
            let vms = self.json(&["vm", "list"])?;
            let vms = vms.as_array().cloned().unwrap_or_default();
            vms.iter().try_for_each(|vm| self.is_as_recorded(vm)).map(|()| vms)
        });
        self.acknowledged_changes_are_kept(&vms);
        for vm in &vms {
            self.one_client_may_write(&text(vm, "name"));
        }
        self.no_move_has_left_a_lock();
        self.nothing_was_recovered_without_proof();
        self.the_primary_has_the_addresses();
    }

    fn is_as_recorded(&self, vm: &Value) -> Result<(), String> {
        let (name, state, node) = (text(vm, "name"), text(vm, "state"), text(vm, "node"));
        let runs = self.running_on(&name);
        let limit: Vec<String> =
            vm["node_limit"].as_array().into_iter().flatten().map(crate::plain).collect();
        if !limit.is_empty() && !runs.iter().all(|node| limit.contains(node)) {
            return Err(format!("I11: `{name}` runs on {runs:?} and may run on {limit:?} alone"));
        }
        let agrees = match state.as_str() {
            "start" => runs == [node.clone()],
            "stop" | "disable" => runs.is_empty(),
            _ => false,
        };
        if agrees {
            Ok(())
        } else {
            Err(format!("`{name}` is to be in `{state}` on {node}, and runs on {runs:?}"))
        }
    }

    /// I10: what was answered with success is there, whoever died since.
    fn acknowledged_changes_are_kept(&self, vms: &[Value]) {
        let names: Vec<String> = vms.iter().map(|vm| text(vm, "name")).collect();
        for guest in self.defined.borrow().iter() {
            assert!(names.contains(guest), "I10: `{guest}` was defined, and is not in {names:?}");
        }
    }

    /// A lock that outlives its move would hold up the next one, with a legacy peer for good.
    fn no_move_has_left_a_lock(&self) {
        eventually("the records of VMs are locked by nobody", 60, || match self.locks_on_vms() {
            locks if locks.is_empty() => Ok(()),
            locks => Err(locks),
        });
    }

    /// I3: where VMs were given away, it is recorded how the death of their node was known.
    fn nothing_was_recovered_without_proof(&self) {
        for (node, fence) in self.fences() {
            let is_reported =
                !text(&fence, "proof").is_empty() && !text(&fence, "proven_at").is_empty();
            let recovered = fence["recovered"].as_array().is_some_and(|vms| !vms.is_empty());
            assert!(
                is_reported || !recovered,
                "I3: VMs of {node} were recovered without proof: {fence}"
            );
        }
    }

    /// I12: whoever is recorded as primary has the floating addresses, and nobody else has.
    fn the_primary_has_the_addresses(&self) {
        eventually("the floating addresses are the primary's (I12)", 60, || {
            let (primary, holders) = (self.primary(), self.holders_of_floating_addresses());
            if holders == [primary.clone()] {
                Ok(())
            } else {
                Err(format!("{primary} is primary, and {holders:?} has them"))
            }
        });
    }

    /// I2: nobody but the node that runs a guest may write to its disk.
    fn one_client_may_write(&self, guest: &str) {
        eventually(&format!("the lock on the disk of {guest} is its node's (I2)"), 30, || {
            let runs = self.running_on(guest);
            let locks = self.on(NODES[0], &format!("rbd lock list vms/{guest}_sda --format json"));
            let locks: Vec<Value> =
                serde_json::from_str(locks.ok()).map_err(|error| error.to_string())?;
            let clients: Vec<String> = locks.iter().map(|lock| text(lock, "address")).collect();
            let is_its = |client: &String| {
                runs.iter().any(|node| client.starts_with(&storage_address(node)))
            };
            let agrees = clients.len() <= 1 && (runs.is_empty() || clients.iter().all(is_its));
            if agrees {
                Ok(())
            } else {
                Err(format!("it runs on {runs:?} and is locked by {clients:?}"))
            }
        });
    }
}

/// The address that Ceph knows `node` by, with the colon before the port.
fn storage_address(node: &str) -> String {
    format!("10.99.2.{}:", number(node))
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().to_owned()
}
