//! Settings of the API that an operator can change, as values.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use pvc_images::Spool;
use pvc_model::NodeName;
use pvc_model::guest_network::plan::LargestMtus;
use pvc_model::guest_network::request::Neighbour;
use pvc_model::link::IpNet;
use pvc_model::role::Role;

/// A way in: who it is for, and the word they must say. `Debug` keeps the word to itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Shown in logs and recorded with jobs; never secret.
    pub description: String,
    pub secret: String,
    pub role: Role,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token")
            .field("description", &self.description)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

/// Certificate chain and private key, both as PEM files. Read again on [`crate::serve`]'s reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Limits of what one client, or all of them, may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The largest request body, in bytes.
    pub body_bytes: usize,
    /// The largest body of a restore, in bytes.
    pub restore_bytes: usize,
    /// Number of bytes of all bodies that may be in memory at once. Files that are uploaded are not
    /// among them, nor is what comes without a key. One caller may have half of them, and all who
    /// may only read a quarter.
    pub bodies_bytes: usize,
    /// Time that a client may take for the head of a request, and to stay silent between two.
    pub head_time: Duration,
    /// Time that a client may take to send a body, in all.
    pub body_time: Duration,
    /// Time that a change may take before its client is told that the outcome is open.
    pub change_time: Duration,
    /// Longest time that a request for a state waits.
    pub wait_time: Duration,
    /// Number of requests that may wait for a state at once.
    pub waits: usize,
    /// Number of event streams that may be open at once. One caller may have half of them.
    pub streams: usize,
    /// Number of uploads to volumes that may be under way at once, and of downloads. One caller may
    /// have half of them.
    pub transfers: usize,
    /// Number of connections that may be open at once; fewer if the process may not open so many
    /// files.
    pub connections: usize,
    /// Number of them that one address may have.
    pub connections_each: usize,
    /// Time that somebody who has not shown a key may take to send a body.
    pub unauthenticated_time: Duration,
    /// Time that requests in flight get to finish when the daemon stops.
    pub drain_time: Duration,
    /// Time that a session of the browser lasts without a request.
    pub session_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes: 8 << 20,
            restore_bytes: 64 << 20,
            bodies_bytes: 256 << 20,
            head_time: Duration::from_secs(20),
            body_time: Duration::from_secs(120),
            change_time: Duration::from_secs(30),
            wait_time: Duration::from_secs(15 * 60),
            waits: 256,
            streams: 256,
            transfers: 8,
            connections: 4096,
            connections_each: 512,
            unauthenticated_time: Duration::from_secs(10),
            drain_time: Duration::from_secs(10),
            session_time: Duration::from_secs(8 * 3600),
        }
    }
}

/// By which names the API may be reached without a key, beside IP addresses and `localhost`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Names of this machine, and what an operator has added.
    pub own: Vec<String>,
    /// Domains in which each node has a name.
    pub domains: Vec<String>,
}

/// Everything that is set about the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiSettings {
    /// Node on which it runs.
    pub node: NodeName,
    /// Address at which it listens, besides this port on the loopback.
    pub listen: SocketAddr,
    /// Whether the address comes and goes, as a floating one does: it is listened on also while it
    /// is elsewhere.
    pub floating: bool,
    /// The tokens that open the API, or `None` if it is open to everybody.
    pub tokens: Option<Vec<Token>>,
    pub names: Names,
    /// Plain HTTP without.
    pub tls: Option<TlsFiles>,
    /// Whether the storage can be looked at for a read, as a directory can: a cluster's takes a
    /// program each time, and may hang.
    pub storage_is_near: bool,
    /// Place for images while they are read or made.
    pub spool: Spool,
    /// Whether the VMs of a node that is proven dead are started elsewhere, as on all nodes: who
    /// fences does that, if anybody does.
    pub recover_after_fence: bool,
    /// Whether no node is ever taken for dead, as on all nodes.
    pub nobody_fences: bool,
    /// The coordinators, as configured.
    pub coordinators: BTreeSet<NodeName>,
    /// Whether a start is refused that would take more memory than the VM's node has.
    pub refuse_memory_overcommit: bool,
    /// Time for which volumes that are removed are kept in the trash; none removes them at once.
    pub removed_volumes_stay: Duration,
    /// Networks between the nodes, which none of VMs may overlap.
    pub core_networks: Vec<Neighbour>,
    /// Whether the machine is alone and has no device for bridged networks.
    pub lacks_bridge_device: bool,
    /// MTUs that this node carries: the others are configured alike.
    pub largest_mtus: LargestMtus,
    /// Addresses of the nodes, and networks between them, from which no guest may send.
    pub nodes: BTreeSet<IpNet>,
    /// Addresses of this node, as configured.
    pub own_addresses: BTreeSet<IpAddr>,
    /// Addresses of whichever node is primary, as configured.
    pub floating_addresses: BTreeSet<IpAddr>,
    /// Whether the metrics endpoints exist.
    pub metrics: bool,
    pub limits: Limits,
}

impl ApiSettings {
    /// Plain HTTP on `node`, at `listen`, for whoever knows one of `tokens`.
    pub fn new(node: NodeName, listen: SocketAddr, tokens: Vec<Token>) -> Self {
        ApiSettings {
            node,
            listen,
            floating: false,
            tokens: Some(tokens),
            names: Names::default(),
            tls: None,
            storage_is_near: false,
            spool: Spool::default(),
            recover_after_fence: true,
            nobody_fences: false,
            coordinators: BTreeSet::new(),
            refuse_memory_overcommit: false,
            removed_volumes_stay: Duration::from_secs(24 * 3600),
            core_networks: Vec::new(),
            lacks_bridge_device: false,
            largest_mtus: LargestMtus::default(),
            nodes: BTreeSet::new(),
            own_addresses: BTreeSet::new(),
            floating_addresses: BTreeSet::new(),
            metrics: true,
            limits: Limits::default(),
        }
    }
}
