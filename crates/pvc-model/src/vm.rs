//! VMs: what is recorded about them, and what may happen to them.

pub mod backoff;
pub mod locks;
pub mod moving;
pub mod plan;
pub mod volumes;

use std::sync::Arc;

use crate::domain::{DomainSummary, each_once};
use crate::node::word;
use crate::storage::VolumeId;
use crate::{NodeName, Uuid};

word! {
    /// State that a VM should be in, or that it is passing through: the stored word is both.
    VmState {
        /// Should run on its node.
        Start = "start",
        /// Graceful stop, then start.
        Restart = "restart",
        /// A shutdown by ACPI is requested; ends in `stop`.
        Shutdown = "shutdown",
        Stop = "stop",
        /// Off, and nobody wonders.
        Disable = "disable",
        /// The node gave up; the record says why.
        Fail = "fail",
        Migrate = "migrate",
        /// Same as `migrate`, without the fallback to a shutdown.
        MigrateLive = "migrate-live",
        /// A name of older versions; never written.
        Unmigrate = "unmigrate",
        Provision = "provision",
        Import = "import",
        Restore = "restore",
        /// The copy of another cluster's VM; must stay off.
        Mirror = "mirror",
        /// About to be removed.
        Delete = "delete",
    }
}

impl VmState {
    /// State in which a VM comes back from a backup that caught it while something was done to it;
    /// `None` if that is the one it was in. Whoever did it does not come back, and nobody else
    /// would end its state.
    ///
    /// A VM that was moved or restarted was up: done once more, it would be done to a guest of
    /// today. One that was shut down was to be off, and a guest of today is asked as that one was,
    /// which is gentler than `stop`. Of one whose disks were being made, filled or removed nobody
    /// knows how they are by now: it is neither started nor ended until somebody has looked.
    pub fn restored(&self) -> Option<VmState> {
        match self {
            VmState::Migrate | VmState::MigrateLive | VmState::Unmigrate | VmState::Restart => {
                Some(VmState::Start)
            }
            VmState::Provision | VmState::Import | VmState::Restore | VmState::Delete => {
                Some(VmState::Disable)
            }
            VmState::Start
            | VmState::Stop
            | VmState::Shutdown
            | VmState::Disable
            | VmState::Fail
            | VmState::Mirror
            | VmState::Unknown(_) => None,
        }
    }
}

word! {
    /// Figure by which a target node is chosen.
    Selector {
        /// Most free memory.
        Mem = "mem",
        /// Most memory not promised to VMs.
        Memprov = "memprov",
        /// Fewest allocated vCPUs.
        Vcpus = "vcpus",
        /// Lowest load.
        Load = "load",
        /// Fewest VMs.
        Vms = "vms",
    }
}

word! {
    /// Way in which a VM may be moved.
    MigrationMethod { Live = "live", Shutdown = "shutdown" }
}

/// A tag of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    pub name: String,
    /// `user` or `system`.
    pub kind: String,
    pub protected: bool,
}

/// A VM as it was.
#[derive(Debug, Clone, PartialEq)]
pub struct VmSnapshot {
    pub name: String,
    /// Seconds since the epoch with a fraction, as text: kept to the digit.
    pub timestamp: String,
    pub xml: Arc<str>,
    /// `pool/volume@snapshot`
    pub volumes: Vec<String>,
}

/// Time that a guest may stand still for the last copy of a live migration, if nobody said
/// otherwise.
pub const DEFAULT_MAX_DOWNTIME_MS: u32 = 300;

/// Begin of the reason why a VM was not restarted, and runs on as it was.
pub const NOT_RESTARTED: &str = "not restarted: ";

/// Record of a VM. What could not be read is named in `defects`; the VM is never left out.
#[derive(Debug, Clone, PartialEq)]
pub struct VmRecord {
    pub uuid: Uuid,
    pub name: String,
    pub state: VmState,
    /// Counts the writes of `state`: one write, also of the same word, is one request. Compared
    /// with what a node last acted on.
    pub state_version: i32,
    /// Identity of this record among those that this UUID has had: the store's number of the
    /// transaction that made it. Versions begin anew with a VM that is removed and defined again;
    /// this does not come again.
    pub incarnation: i64,
    /// The node it is assigned to. Empty names are `None`.
    pub node: Option<NodeName>,
    /// The node to return to after a migration.
    pub last_node: Option<NodeName>,
    /// Reason why it failed, or was [not restarted](NOT_RESTARTED); empty otherwise.
    pub failed_reason: String,
    pub xml: Arc<str>,
    /// Contents of the XML, or why it cannot be read.
    pub domain: Result<Arc<DomainSummary>, String>,
    pub profile: Option<String>,
    /// The volumes as recorded beside the XML; may be stale after a legacy peer renamed the VM.
    pub recorded_volumes: Vec<VolumeId>,
    /// Statistics as JSON text, as the hosting node last wrote them; empty before.
    pub stats: Arc<str>,
    /// `listen:port`, or empty.
    pub vnc: String,
    pub autostart: bool,
    pub migration_method: Option<MigrationMethod>,
    pub max_downtime_ms: u32,
    pub selector: Option<Selector>,
    /// The only nodes it may be placed on; empty: any.
    pub node_limit: Vec<NodeName>,
    pub tags: Vec<Tag>,
    /// Newest first.
    pub snapshots: Vec<VmSnapshot>,
    /// Latest move of the VM, as the node that sends it reports. Not known of legacy peers.
    pub moving: Option<moving::MoveNote>,
    pub defects: Vec<String>,
}

impl VmRecord {
    pub fn is_assigned_to(&self, node: &NodeName) -> bool {
        self.node.as_ref() == Some(node)
    }

    /// Reason why its last restart was not carried out.
    pub fn not_restarted(&self) -> Option<&str> {
        self.failed_reason.strip_prefix(NOT_RESTARTED)
    }

    /// All volumes it may use: those of the XML and those recorded beside it, each once.
    pub fn volumes(&self) -> Vec<VolumeId> {
        each_once(self.named_volumes())
    }

    /// Same as [`volumes`](VmRecord::volumes), each as often as it is named.
    pub fn named_volumes(&self) -> impl Iterator<Item = &VolumeId> {
        let of_xml = self.domain.iter().flat_map(|domain| domain.named_volumes());
        of_xml.chain(&self.recorded_volumes)
    }

    pub fn memory_mib(&self) -> u64 {
        self.domain.as_ref().map_or(0, |domain| domain.memory_mib)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_is_restored_is_one_that_ends_without_whoever_began_it() {
        for state in VmState::ALL {
            let expected = match state.as_str() {
                "migrate" | "migrate-live" | "unmigrate" | "restart" => Some(VmState::Start),
                "provision" | "import" | "restore" | "delete" => Some(VmState::Disable),
                _ => None,
            };
            assert_eq!(state.restored(), expected, "{state}");
            assert_eq!(expected.and_then(|state| state.restored()), None, "once is enough");
        }
        assert_eq!(VmState::from_record("odd").restored(), None);
    }
}
