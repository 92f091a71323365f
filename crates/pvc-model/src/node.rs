//! Nodes: what they are, what they do, how they are doing.

pub mod removal;

use std::sync::Arc;

use crate::fence::FenceNote;
use crate::sriov::SriovRecords;
use crate::{NodeName, Uuid};

/// An enum that is stored as one lower-case word, and keeps a word it does not know.
macro_rules! word {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
            /// A word that this version does not know, kept as it stands. Empty if there was none.
            Unknown(Arc<str>),
        }

        impl $name {
            /// Every known value, in the order of the declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// Their words.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The value a record's word stands for; never fails.
            pub fn from_record(word: &str) -> Self {
                match word {
                    $($word => $name::$variant,)+
                    other => $name::Unknown(Arc::from(other)),
                }
            }

            /// The word, as it is stored and shown.
            pub fn as_str(&self) -> &str {
                match self {
                    $($name::$variant => $word,)+
                    $name::Unknown(word) => word,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use word;

word! {
    /// Role that a node may have.
    NodeRole { Coordinator = "coordinator", Hypervisor = "hypervisor" }
}

word! {
    /// The node daemon's own state. Whether it can be suspected of being dead says
    /// [`NodeRecord::owes_stamps`].
    DaemonState {
        Init = "init",
        Run = "run",
        Shutdown = "shutdown",
        Stop = "stop",
        Dead = "dead",
        Fenced = "fenced",
    }
}

word! {
    /// State of a node's part in the coordination. `client` is a node that is no coordinator.
    CoordinatorState {
        Primary = "primary",
        Secondary = "secondary",
        Takeover = "takeover",
        Relinquish = "relinquish",
        Client = "client",
    }
}

word! {
    /// Whether a node takes VMs.
    DomainState {
        Ready = "ready",
        Flush = "flush",
        Flushed = "flushed",
        Unflush = "unflush",
        FenceFlush = "fence-flush",
    }
}

impl DomainState {
    /// State in which a node comes back from a backup that caught it while VMs were given to
    /// others or taken back; `None` if that is the one it was in. Who was at it does not come
    /// back, and a node that was being recovered may be a living one by now.
    pub fn restored(&self) -> Option<DomainState> {
        match self {
            DomainState::Flush | DomainState::FenceFlush => Some(DomainState::Flushed),
            DomainState::Unflush => Some(DomainState::Ready),
            DomainState::Ready | DomainState::Flushed | DomainState::Unknown(_) => None,
        }
    }
}

/// The figures a node publishes with its keepalive.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NodeFigures {
    pub memory_total_mib: u64,
    pub memory_used_mib: u64,
    pub memory_free_mib: u64,
    /// Of the VMs that run here.
    pub memory_allocated_mib: u64,
    /// Of all VMs that are assigned here or run here.
    pub memory_provisioned_mib: u64,
    pub vcpus_allocated: u64,
    /// Load average of one minute.
    pub load: f64,
    /// Guests that the hypervisor runs here, ours or not.
    pub domains: u64,
}

/// Last report of a health plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginReport {
    pub name: String,
    /// Seconds since the epoch.
    pub last_run: i64,
    pub health_delta: i64,
    pub message: String,
    /// JSON text.
    pub data: Arc<str>,
}

/// Hypervisor that a node runs its guests with, for people to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HypervisorNote {
    /// `kvm`, or `qemu` where guests are emulated in software.
    pub accelerator: String,
    /// Reason why it is not KVM, if so.
    pub kvm_refused: Option<String>,
    pub libvirt_version: String,
    pub qemu_version: String,
}

/// Note that a daemon of ours writes about itself when it starts. Legacy peers leave such a note as
/// it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DaemonNote {
    pub version: String,
    /// The node's address on the storage network, which the locks of its guests carry.
    pub storage_address: Option<String>,
    /// The node's address on the cluster network, at which the others' tunnels end.
    pub cluster_address: Option<String>,
    /// Whether it looks after guests at all.
    pub runs_guests: bool,
    /// Whether it lets a guest go on that came from another node held, and only then.
    pub takes_held_guests: bool,
    /// Whether it stamps from the moment on at which it says that it starts.
    pub stamps_while_starting: bool,
    /// Whether its kernel has VLANs (8021q), once that is known.
    pub has_vlans: Option<bool>,
}

/// Record of a node. Numbers that could not be read are 0 and named in `defects`.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeRecord {
    pub name: NodeName,
    pub role: NodeRole,
    pub daemon_state: DaemonState,
    pub coordinator_state: CoordinatorState,
    pub domain_state: DomainState,
    /// Seconds since the epoch by that node's wall clock. Its value means nothing here; that it
    /// changes does.
    pub keepalive: i64,
    /// Counts the writes of `keepalive`: one write is one sign of life, whatever it says.
    pub keepalives: i32,
    pub active_schema: Option<u32>,
    pub latest_schema: Option<u32>,
    pub pvc_version: String,
    pub cpus: u32,
    pub kernel: String,
    pub os: String,
    pub arch: String,
    pub figures: NodeFigures,
    /// The VMs that the node says it runs.
    pub running: Vec<Uuid>,
    /// The VMs whose guests the node is starting or ending right now, said before it begins: what
    /// `running` says of them may be outdated in a moment. Always empty of legacy peers.
    pub working_on: Vec<Uuid>,
    /// 0 to 100, if a health daemon has said something.
    pub health: Option<u8>,
    pub plugins: Vec<PluginReport>,
    /// JSON text, by interface.
    pub network_stats: Arc<str>,
    pub ipmi_hostname: String,
    /// Cards whose functions guests can be given.
    pub sriov: SriovRecords,
    /// Not known of legacy peers.
    pub daemon: Option<DaemonNote>,
    /// Not known of legacy peers, nor of a node without guests.
    pub hypervisor: Option<HypervisorNote>,
    /// The last fence of this node, if one of our own nodes did it.
    pub fence: Option<FenceNote>,
    /// Parts of the record that could not be read, for the operator.
    pub defects: Vec<String>,
}

impl NodeRecord {
    /// Whether a daemon of ours started last on this node. Our note stays where it is when a node
    /// is moved back to PVC 1.0.3, which writes another version.
    pub fn runs_our_daemon(&self) -> bool {
        self.daemon.as_ref().is_some_and(|note| note.version == self.pvc_version)
    }

    /// The fence of this node since its last sign of life, if there is one.
    pub fn present_fence(&self) -> Option<&FenceNote> {
        self.fence.as_ref().filter(|fence| fence.stamp.is_none_or(|stamp| stamp == self.keepalives))
    }

    /// Whether others have proven the node dead.
    pub fn is_fenced(&self) -> bool {
        self.daemon_state == DaemonState::Fenced
    }

    /// Whether others have proven the node dead, or are at giving its VMs away.
    pub fn is_given_up(&self) -> bool {
        self.is_fenced() || self.domain_state == DomainState::FenceFlush
    }

    /// Whether a guest that is sent here may be left held until it belongs here.
    pub fn takes_held_guests(&self) -> bool {
        self.runs_our_daemon() && self.daemon.as_ref().is_some_and(|note| note.takes_held_guests)
    }

    /// Whether its daemon writes stamps in its present state: if none comes for long, it may be
    /// dead. A legacy peer that starts writes none.
    pub fn owes_stamps(&self) -> bool {
        let stamps_while_starting =
            || self.daemon.as_ref().is_some_and(|note| note.stamps_while_starting);
        match self.daemon_state {
            DaemonState::Run => true,
            DaemonState::Init => self.runs_our_daemon() && stamps_while_starting(),
            _ => false,
        }
    }

    /// Whether guests can run here, as far as anybody has said.
    pub fn runs_guests(&self) -> bool {
        !self.runs_our_daemon() || self.daemon.as_ref().is_none_or(|note| note.runs_guests)
    }

    /// Whether new VMs may be placed here: its daemon runs and it is ready.
    pub fn takes_vms(&self) -> bool {
        self.daemon_state == DaemonState::Run && self.domain_state == DomainState::Ready
    }
}
