//! Findings that are not acted on: reported once in the log, and kept up as a fault.

use std::collections::BTreeMap;
use std::time::Duration;

use pvc_model::Uuid;
use pvc_model::fault::fault_id;
use pvc_model::vm::plan::Finding;
use pvc_role::Alarm;

use crate::shared::Shared;

/// Time for which something must be so before it is called a fault: records and guests change one
/// after the other.
const TIME_LIMIT: Duration = Duration::from_secs(15);

#[derive(Default)]
pub(super) struct Findings {
    known: BTreeMap<Uuid, Known>,
}

struct Known {
    finding: Finding,
    name: String,
    alarm: Alarm,
}

impl Known {
    fn new(name: &str, finding: &Finding) -> Self {
        // What has been so for a while, or was written down, is so.
        let is_certain = matches!(finding, Finding::CrashLoop { .. } | Finding::Failed(_));
        let alarm = if is_certain { Alarm::default() } else { Alarm::after(TIME_LIMIT) };
        Known { finding: finding.clone(), name: name.to_owned(), alarm }
    }
}

impl Findings {
    /// Takes in what the latest pass found, and tells whom it concerns.
    pub fn report(&mut self, shared: &Shared, found: &BTreeMap<Uuid, (String, Finding)>) {
        let now = shared.now();
        self.forget_the_gone(found);
        let mut to_raise = Vec::new();
        for (uuid, (name, finding)) in found {
            let known = self.known.entry(*uuid).or_insert_with(|| Known::new(name, finding));
            if std::mem::discriminant(&known.finding) != std::mem::discriminant(finding) {
                *known = Known::new(name, finding);
            }
            known.finding = finding.clone();
            let is_news = !known.alarm.was_reported();
            let Some(finding) = known.alarm.due(Some(finding), now) else { continue };
            let message = message(shared, *uuid, name, finding);
            if is_news {
                tracing::warn!("{message}");
            }
            if let Some(kind) = fault_kind(finding) {
                to_raise.push((fault_id(kind, name), message));
            }
        }
        shared.raise_aside(to_raise);
    }

    fn forget_the_gone(&mut self, found: &BTreeMap<Uuid, (String, Finding)>) {
        self.known.retain(|uuid, known| {
            let stays = found.contains_key(uuid);
            if !stays && known.alarm.was_reported() {
                tracing::info!(vm = known.name, "what was wrong with the VM is over");
            }
            stays
        });
    }
}

/// The kind of the fault's identifier. What passes by itself is only logged.
fn fault_kind(finding: &Finding) -> Option<&'static str> {
    match finding {
        Finding::Stray => Some("VM_STRAY"),
        Finding::NoOrder(_) => Some("VM_UNREADABLE"),
        Finding::RunsDespite(_) => Some("VM_UNEXPECTED"),
        Finding::Held => Some("VM_PAUSED"),
        Finding::CrashLoop { .. } => Some("VM_CRASHLOOP"),
        Finding::Failed(_) => Some("VM_FAILED"),
        Finding::RunsOn(_) | Finding::VolumeHeld(_) => Some("VM_BLOCKED"),
    }
}

/// Describes the finding and what to do about it.
fn message(shared: &Shared, uuid: Uuid, name: &str, finding: &Finding) -> String {
    let node = shared.name();
    match finding {
        Finding::Stray => format!(
            "guest {name} ({uuid}) runs on {node} but no such VM is defined; it is left alone. \
             Define it with `pvc vm define`, or end it with `virsh destroy {uuid}` on {node}"
        ),
        Finding::NoOrder(why) => format!(
            "VM {name} ({uuid}) runs on {node} and is left alone, because {why}. \
             Set it right with `pvc vm start`, `pvc vm stop` or `pvc vm move`"
        ),
        Finding::RunsDespite(state) => format!(
            "VM {name} runs on {node} although its state is {state}. Start or stop it with `pvc vm \
             start {name}` or `pvc vm stop {name}`"
        ),
        Finding::Held => format!(
            "VM {name} is paused on {node}: by hand, or because its disk failed. \
             See `virsh domstate --reason {name}` there; continue it with `virsh resume {name}` or \
             use `pvc vm stop {name}`"
        ),
        Finding::RunsOn(other) => {
            format!(
                "VM {name} is not started on {node}: node {other} still says that it runs there. \
                 Start the daemon of {other}, which ends its copy. If {other} is dead, the VM \
                 starts once that is proven: `pvc node info {other}` shows what keeps it from \
                 being so; if the server is off for good, `pvc node confirm-off {other}` says so"
            )
        }
        Finding::VolumeHeld(held) => {
            let first = match held.purpose.ends_by_itself() {
                true => String::new(),
                false => format!(
                    ". Whatever is done to a volume needs its VMs off: use `pvc vm stop {name}` \
                     first"
                ),
            };
            format!(
                "VM {name} is not started on {node}: {held}. It starts when that is over: \
                 {}{first}",
                held.hint()
            )
        }
        Finding::CrashLoop { deaths } => format!(
            "VM {name} has died {deaths} times in a row soon after its start on {node}; it is \
             started ever more slowly. \
             Look at `pvc vm log {name}`, then mend it or use `pvc vm disable {name}`"
        ),
        Finding::Failed(reason) => {
            let reason = if reason.is_empty() { "its record does not say why" } else { reason };
            format!(
                "VM {name} has failed on {node}: {reason}. \
                 Set that right and use `pvc vm start {name}`, or let it be with `pvc vm stop \
                 {name}`"
            )
        }
    }
}
