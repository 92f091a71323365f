//! The hypervisor of one node.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use uuid::Uuid;

/// State of a guest that the hypervisor knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestRun {
    /// The guest's CPUs run, or are blocked waiting for something.
    Running,
    /// Held, by somebody, by an I/O error, or since it came from another host by a migration that
    /// was to leave it [`held`](Migration::held).
    Paused,
    /// Made by [`Hypervisor::start`], and never let run: it has done nothing yet, whoever may have
    /// made it.
    Created,
    /// Being started, or about to be copied to here.
    Arriving,
    /// Held by a migration. At its target: what has come so far is not whole. At its source: it is
    /// in its last moment or broke off then, and whether the guest goes on at the target is not
    /// known here.
    Leaving,
    /// Told to shut down and on its way.
    ShuttingDown,
    /// Being created, or crashed and kept, or anything else that is neither running nor gone.
    Other,
}

/// A guest as the hypervisor sees it, whoever started it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    pub uuid: Uuid,
    pub name: String,
    pub run: GuestRun,
    /// A number that is new each time this guest is started here (libvirt's domain id).
    pub instance: i32,
}

/// A hint that something happened to a guest; what, must be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestEvent {
    Changed(Uuid),
    /// The connection was lost or re-made: look at everything again.
    Resync,
}

/// Version and abilities of the hypervisor of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HypervisorFacts {
    /// `kvm` if a probe guest ran under it, else `qemu` (software emulation): the `type` of a
    /// domain.
    pub domain_type: String,
    /// Reason for which KVM is not used, if so; for people.
    pub kvm_refused: Option<String>,
    /// Version texts of libvirt and QEMU.
    pub libvirt_version: String,
    pub qemu_version: String,
    /// The emulator binary to use for this host's own architecture.
    pub emulator: String,
}

/// Counters of a running guest; see `spec/vm.md` §8 for the record that is made of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GuestStats {
    /// Memory that the guest may have.
    pub max_memory_kib: u64,
    /// Memory that the guest has, by its balloon's driver: its own word, up to what it may have.
    pub memory_kib: u64,
    pub vcpus: u32,
    pub cpu_time_ns: u64,
    /// libvirt's memory statistics by their libvirt names (`actual`, `rss`, …), in KiB or counts.
    pub memory: BTreeMap<String, u64>,
    /// `cpu_time`, `user_time`, `system_time` in nanoseconds.
    pub cpu: BTreeMap<String, u64>,
    /// Counters of the disks by target device (`sda`): `rd_req`, `rd_bytes`, `wr_req`, `wr_bytes`,
    /// `err`.
    pub disks: BTreeMap<String, BTreeMap<String, i64>>,
    /// Counters of the interfaces by host-side device (`vnet0`): `rd_bytes`, `rd_packets`, …,
    /// `wr_drops`.
    pub interfaces: BTreeMap<String, BTreeMap<String, i64>>,
}

/// The most addresses that are taken from the agent of one guest.
pub const MOST_AGENT_ADDRESSES: usize = 64;

/// Address that the agent in a guest says a network card has. It may say whatever it likes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AgentAddress {
    /// MAC address of the card, in small letters.
    pub mac: String,
    pub address: IpAddr,
}

/// Address at which a guest's display listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VncAddress {
    pub listen: String,
    pub port: u16,
}

/// The file that collects a guest's serial console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsoleLog {
    pub path: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChange {
    Attach,
    Detach,
}

/// Settings of the move of a running guest to the hypervisor of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// The target's name or address on the cluster's network.
    pub host: String,
    /// Time for which the guest may stand still for the last copy.
    pub max_downtime: Duration,
    /// Whether the guest stays held on the target until it is told to [resume](Hypervisor::resume)
    /// there.
    pub held: bool,
    /// Whether what is copied is encrypted on its way.
    pub encrypted: bool,
}

/// Progress of a migration, in bytes and in all copied so far: memory that a guest writes to is
/// copied again, so `remaining` also grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MigrationProgress {
    pub elapsed: Duration,
    pub total: u64,
    pub processed: u64,
    pub remaining: u64,
}

/// A migration under way. Dropping it does not end it.
#[async_trait]
pub trait MigrationJob: Send + Sync {
    /// Returns the progress; `None` before it has begun to copy, and once it has ended.
    async fn progress(&self) -> Result<Option<MigrationProgress>, HypervisorError>;

    /// Asks for the end of it; may have to be asked again for one that was just about to begin.
    /// Whether it came in time tells [`outcome`](MigrationJob::outcome); one that has ended already
    /// is no error.
    async fn abort(&self) -> Result<(), HypervisorError>;

    /// Waits for the end: `Ok` means that the guest is on the target, running or
    /// [held](Migration::held), and gone here without having run since; an error that it is still
    /// here, and most likely runs. If only the word of its arrival was lost on the way back, it is
    /// there as well: [`Hypervisor::state_at`] tells.
    ///
    /// # Cancellation
    /// May be dropped and called again; after it has returned once, it fails.
    async fn outcome(&mut self) -> Result<(), HypervisorError>;
}

#[derive(Debug, thiserror::Error)]
pub enum HypervisorError {
    /// The hypervisor answered, and said no; trying again will not help.
    #[error("the hypervisor refused: {why}")]
    Refused { why: String },
    /// The hypervisor did not answer; trying again may help.
    #[error("the hypervisor cannot be reached: {why}")]
    Unreachable { why: String },
    #[error("the hypervisor did not answer within {seconds} s")]
    TimedOut { seconds: u64 },
    /// The guest was ended from outside while it was being started: nothing says that it cannot
    /// run.
    #[error("the guest died while it was being started: {why}")]
    Died { why: String },
    #[error("guest `{uuid}` does not run here")]
    NoGuest { uuid: Uuid },
}

/// The hypervisor of one node. Every method may be repeated: starting a running guest and
/// destroying an absent one both succeed without effect. No method but [`start`](Hypervisor::start)
/// takes longer than its adapter's deadline.
#[async_trait]
pub trait Hypervisor: Send + Sync {
    async fn facts(&self) -> Result<HypervisorFacts, HypervisorError>;

    /// Whether it answers now; cheap.
    async fn ping(&self) -> Result<(), HypervisorError>;

    /// All guests there are here now, whoever started them, by UUID.
    async fn guests(&self) -> Result<BTreeMap<Uuid, Guest>, HypervisorError>;

    /// Makes a transient guest from `xml` and leaves it [`GuestRun::Created`]: none of its CPUs
    /// runs before [`resume`](Hypervisor::resume), also if it comes into being after its caller has
    /// lost interest. If one with this UUID is here already, nothing is done.
    ///
    /// Returns when the hypervisor is through with it, however long that takes: whoever waits knows
    /// from then on that nothing more comes of it. [`destroy`](Hypervisor::destroy) ends one that
    /// takes too long.
    ///
    /// # Cancellation
    /// Dropping the future leaves a start that has begun to itself.
    async fn start(&self, uuid: Uuid, xml: &str) -> Result<(), HypervisorError>;

    /// Lets a guest run that is held, for whatever reason. One that runs is left as it is.
    async fn resume(&self, uuid: Uuid) -> Result<(), HypervisorError>;

    /// Presses the power button, once. The guest may ignore it.
    async fn shutdown(&self, uuid: Uuid) -> Result<(), HypervisorError>;

    /// Pulls the plug. Returns when the guest is gone.
    async fn destroy(&self, uuid: Uuid) -> Result<(), HypervisorError>;

    /// The guest's XML as it runs, with everything the hypervisor filled in.
    async fn live_xml(&self, uuid: Uuid) -> Result<String, HypervisorError>;

    /// Counters of every running guest. One that does not answer is not waited for: it is left out,
    /// or has only the figures that the hypervisor knows without it.
    async fn stats(&self) -> Result<BTreeMap<Uuid, GuestStats>, HypervisorError>;

    /// Returns the address at which the guest's display listens, or `None` if it has none.
    async fn vnc(&self, uuid: Uuid) -> Result<Option<VncAddress>, HypervisorError>;

    /// Plugs the device described by the XML element `device` into the running guest, or pulls it
    /// out.
    async fn device(
        &self,
        uuid: Uuid,
        change: DeviceChange,
        device: &str,
    ) -> Result<(), HypervisorError>;

    /// Tells a running guest that the disk `target` (`sda`) now has `bytes` bytes.
    async fn resize_disk(
        &self,
        uuid: Uuid,
        target: &str,
        bytes: u64,
    ) -> Result<(), HypervisorError>;

    /// Begins to move the running guest to another node's hypervisor, without stopping it. The
    /// guest keeps its name, its UUID and its XML; its volumes must be reachable from both.
    async fn migrate(
        &self,
        uuid: Uuid,
        migration: &Migration,
    ) -> Result<Box<dyn MigrationJob>, HypervisorError>;

    /// State of the guest on another node's hypervisor, `host` as in [`Migration`]; `None`: it is
    /// not there.
    async fn state_at(&self, host: &str, uuid: Uuid) -> Result<Option<GuestRun>, HypervisorError>;

    /// Types `input` on the guest's serial console and returns what it prints within `wait`.
    async fn console_exchange(
        &self,
        uuid: Uuid,
        input: &[u8],
        wait: Duration,
    ) -> Result<Vec<u8>, HypervisorError>;

    /// Hints about changes from now on. Each call makes a receiver of its own.
    fn events(&self) -> mpsc::UnboundedReceiver<GuestEvent>;

    /// The agents in guests; `None` if they are not asked at all.
    fn agents(&self) -> Option<&dyn GuestAgents> {
        None
    }
}

/// The agents that run in guests of one node, each of which answers when it likes. A question to
/// one holds up nothing else that the hypervisor is asked.
#[async_trait]
pub trait GuestAgents: Send + Sync {
    /// Addresses of the running guest, at most [`MOST_AGENT_ADDRESSES`]; none without an agent that
    /// has connected. Those of the loopback and of a link alone are left out.
    async fn addresses(&self, uuid: Uuid) -> Result<Vec<AgentAddress>, HypervisorError>;
}
