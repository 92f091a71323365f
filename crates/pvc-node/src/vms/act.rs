//! The effects: one step for one VM, with deadlines, and what became of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::fault::{self, fault_id};
use pvc_model::guest_network::GuestNetworks;
use pvc_model::hold::{Held, check_none_held};
use pvc_model::network_core::{CoreNet, CoreNetworks};
use pvc_model::storage::VolumeId;
use pvc_model::vm::locks::BlockingLock;
use pvc_model::vm::moving::MoveNote;
use pvc_model::vm::plan::{Planned, Step};
use pvc_model::vm::{NOT_RESTARTED, VmRecord, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{Guest, GuestRun, HypervisorError, StorageError};
use pvc_role::{Superseded, caught};
use pvc_store::{ChangeError, Changes, VmChange};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::locks::{check_rivals, free_own_locks};
use super::receive::Receiver;
use super::send::{self, Sender};
use super::start::ASKED;
use crate::shared::{GuestFacts, Shared};

/// The longest any step may take. Adapters have deadlines of their own; this is for those that
/// forget.
pub(super) const DEADLINE: Duration = Duration::from_secs(120);

/// Time that reading about a guest may take.
const OBSERVE_DEADLINE: Duration = Duration::from_secs(15);

/// Time until locks that could not be freed are tried again.
const FREE_AGAIN: Duration = Duration::from_secs(5);

/// Result of a task that was begun.
pub(super) enum Ended {
    Started,
    /// The guest was killed while it was being started.
    Died,
    ShutdownRequested {
        instance: i32,
        request: i32,
    },
    /// Done, and nothing to remember.
    Done,
    /// The order changed meanwhile; nothing was done.
    Superseded,
    /// The step could not be tried, for a reason that may pass.
    Later,
    /// The guest was handed over to this node, and is looked after until that has taken notice.
    /// `written` is the write that says so, if there was one.
    Left {
        to: NodeName,
        written: Option<i32>,
    },
    /// A task that is not the VM's own work is over.
    Aside,
    /// Facts that could be read about a guest. `vnc` is where its display listens, if it could be
    /// asked.
    Observed {
        facts: Option<GuestFacts>,
        vnc: Option<String>,
    },
}

/// Reason for which a step was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    /// The step will not work however often it is tried: the VM fails with this reason.
    #[error("{0}")]
    Permanent(String),
    /// The lock may be that of a dead node, of which those who fence it free the VM.
    #[error(
        "RBD lock {lock} on volume {volume} may be freed in a moment: a dead node's VMs are being \
         recovered"
    )]
    BeingFreed { lock: String, volume: VolumeId },
    /// The lock's node is asked to free it, by being seen to need it.
    #[error(
        "RBD lock {lock} ({address}) on volume {volume} is one of node `{node}`, which is to free \
         it"
    )]
    HeldBy { lock: String, address: String, volume: VolumeId, node: NodeName },
    /// The VM may be running: never started a second time.
    #[error("node `{node}` says that it runs the VM, {why}")]
    Elsewhere { node: NodeName, why: String },
    /// Something is done to a volume of which no guest may see a half. It may be over the next
    /// time.
    #[error(transparent)]
    VolumeHeld(#[from] Held),
    /// An SR-IOV function may be free, or known, the next time.
    #[error("{why}")]
    Function { why: String },
    /// The step may work the next time.
    #[error("it took longer than {seconds} s")]
    TooSlow { seconds: u64 },
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("the store could not be asked: {0}")]
    Store(#[from] pvc_store::StoreError),
}

impl StepError {
    /// The reason to write to the record, if trying again is useless.
    fn reason(&self, shared: &Shared) -> Option<String> {
        match self {
            StepError::Permanent(reason) => Some(reason.clone()),
            StepError::HeldBy { lock, address, volume, node } => {
                let seconds = ASKED.as_secs();
                let why = format!("node {node}, whose it is, has not freed it within {seconds} s");
                let (why, node) = (why.as_str(), Some(node));
                Some(BlockingLock { id: lock, address, volume, why, node }.reason())
            }
            // The bridge is about to be made, or a fault tells why it is not.
            StepError::Hypervisor(HypervisorError::Refused { why })
                if is_of_a_network_to_come(why, shared) =>
            {
                None
            }
            StepError::Hypervisor(HypervisorError::Refused { why }) => {
                let settings = &shared.settings;
                let is_ours = settings.guest_networks.is_some();
                Some(with_advice(why, settings.core_networks.as_ref(), is_ours, shared.name()))
            }
            StepError::Storage(StorageError::NoVolume { volume }) => Some(format!(
                "volume `{volume}` does not exist; create it, or take the disk out with `pvc vm \
                 volume remove`"
            )),
            StepError::Storage(StorageError::NoPool { pool }) => {
                Some(format!("pool `{pool}` does not exist; create it with `pvc storage pool add`"))
            }
            _ => None,
        }
    }
}

#[derive(Clone)]
pub(super) struct Actor {
    pub shared: Arc<Shared>,
    pub starts: Arc<Semaphore>,
    pub others: Arc<Semaphore>,
    /// Slots for guests on their way from here.
    pub sends: Arc<Semaphore>,
    /// Ends what would take longer than the daemon has left.
    pub ending: CancellationToken,
}

impl Actor {
    /// Does `planned` if `record` still says what it said.
    pub async fn act(self, planned: Planned, record: Arc<VmRecord>) -> Ended {
        to_its_end(&planned, self.act_in_turn(&planned, &record)).await
    }

    /// Hands the guest over to `to`; takes as long as it takes.
    pub async fn send(
        self,
        planned: Planned,
        to: NodeName,
        home: Option<Option<NodeName>>,
    ) -> Ended {
        let send = async {
            let _slot = self.sends.acquire().await.expect("the semaphore is never closed");
            // By the record as it is then: the note goes over that of the move before.
            Sender::new(self.shared.clone(), self.ending.clone(), &planned, to, home).send().await
        };
        to_its_end(&planned, send).await
    }

    /// Waits for a guest that another node hands over.
    pub async fn receive(self, planned: Planned) -> Ended {
        let receiver = Receiver::new(self.shared.clone(), self.ending.clone(), &planned);
        to_its_end(&planned, receiver.receive()).await
    }

    /// Looks after a VM that was sent from here.
    pub async fn watch_sent(self, vm: Uuid, to: NodeName, written: Option<i32>) -> Ended {
        send::watch_sent(self.shared, self.ending, vm, to, written).await;
        Ended::Aside
    }

    /// Frees the locks of a guest that is gone and whose VM is another node's by now, however long
    /// that takes.
    pub async fn free_left(self, record: Arc<VmRecord>) -> Ended {
        loop {
            match self.shared.within(DEADLINE, free_own_locks(&self.shared, &record)).await {
                // A lock of somebody else is that node's own affair.
                Some(
                    Ok(())
                    | Err(
                        StepError::Permanent(_)
                        | StepError::BeingFreed { .. }
                        | StepError::HeldBy { .. },
                    ),
                ) => return Ended::Done,
                Some(Err(error)) => {
                    tracing::warn!(vm = record.name, %error, "what the guest may have left locked \
                                                              could not be freed");
                }
                None => tracing::warn!(
                    vm = record.name,
                    "the storage does not free what the guest may have left locked"
                ),
            }
            if !self.shared.rest(FREE_AGAIN, &self.ending).await {
                return Ended::Done;
            }
        }
    }

    async fn act_in_turn(&self, planned: &Planned, record: &Arc<VmRecord>) -> Ended {
        let done = match planned.step {
            Step::Start => self.start(planned, record).await,
            _ => {
                let _slot = self.others.acquire().await.expect("the semaphore is never closed");
                let done = self.shared.within(DEADLINE, self.try_step(planned, record)).await;
                done.unwrap_or(Err(StepError::TooSlow { seconds: DEADLINE.as_secs() }))
            }
        };
        match done {
            Ok(ended) => ended,
            Err(StepError::Hypervisor(error @ HypervisorError::Died { .. })) => {
                tracing::warn!(vm = planned.name, %error, "the guest is started again");
                Ended::Died
            }
            Err(trouble) => {
                match trouble.reason(&self.shared).filter(|_| planned.step == Step::Start) {
                    Some(reason) => {
                        tracing::error!(vm = planned.name, reason, "the VM cannot be started");
                        self.fail(planned, &reason).await
                    }
                    None => {
                        tracing::warn!(vm = planned.name, error = %trouble, "a step did not work \
                                                                             and is tried again");
                        Ended::Later
                    }
                }
            }
        }
    }

    async fn try_step(
        &self,
        planned: &Planned,
        record: &Arc<VmRecord>,
    ) -> Result<Ended, StepError> {
        if !still_ordered(&*self.shared.store.fresh().await?, record) {
            return Ok(Ended::Superseded);
        }
        let hypervisor = &self.shared.ports.hypervisor;
        match &planned.step {
            Step::Destroy(_) => {
                hypervisor.destroy(planned.vm).await?;
                Ok(Ended::Done)
            }
            Step::RequestShutdown { instance, again } => {
                if !again && let Some(why) = self.cannot_restart(record).await? {
                    return Ok(self.stays_up(planned, &why).await);
                }
                let shutdown_requested =
                    Ended::ShutdownRequested { instance: *instance, request: planned.request };
                match hypervisor.shutdown(planned.vm).await {
                    Ok(()) => Ok(shutdown_requested),
                    Err(HypervisorError::NoGuest { .. }) => Ok(Ended::Done),
                    // A guest that is held, or whose monitor hangs, cannot obey; its time runs
                    // nevertheless, and then the plug is pulled.
                    Err(
                        error
                        @ (HypervisorError::Refused { .. } | HypervisorError::TimedOut { .. }),
                    ) => {
                        tracing::warn!(vm = planned.name, %error, "its shutdown could not be \
                                                                   requested");
                        Ok(shutdown_requested)
                    }
                    Err(error) => Err(error.into()),
                }
            }
            Step::Write(state) => {
                Ok(self.write(planned, vec![VmChange::State(state.clone())]).await)
            }
            Step::Resume if !self.runs_nowhere_else(record).await => Ok(Ended::Later),
            Step::Resume => match hypervisor.resume(planned.vm).await {
                Ok(()) | Err(HypervisorError::NoGuest { .. }) => Ok(Ended::Done),
                Err(error) => Err(error.into()),
            },
            Step::Fail(reason) => Ok(self.fail(planned, reason).await),
            Step::ClearFailure => {
                Ok(self.write(planned, vec![VmChange::FailedReason(String::new())]).await)
            }
            Step::Start | Step::Send(_) | Step::Receive => {
                unreachable!("starts and moves have ways of their own, without this deadline")
            }
        }
    }

    /// Whether a guest that a broken move has left held here may go on: what was sent to a legacy
    /// peer may run there.
    async fn runs_nowhere_else(&self, record: &VmRecord) -> bool {
        let is_own = |note: &&MoveNote| note.from == *self.shared.name() && !note.held;
        let Some(note) = record.moving.as_ref().filter(is_own) else { return true };
        let view = self.shared.store.view();
        if view.nodes.get(&note.to).is_none_or(|target| target.is_fenced()) {
            return true;
        }
        let host = self.shared.settings.migration.host(&note.to);
        match self.shared.ports.hypervisor.state_at(&host, record.uuid).await {
            Ok(there) if there != Some(GuestRun::Running) => true,
            there => {
                let (vm, to) = (&record.name, &note.to);
                tracing::warn!(vm, %to, ?there, "the guest is held, and may run where it was sent; \
                                                 it stays held");
                false
            }
        }
    }

    /// Reason for which the VM would not start again, if it is to be restarted: asked as long as
    /// its guest is well.
    async fn cannot_restart(&self, record: &VmRecord) -> Result<Option<String>, StepError> {
        if record.state != VmState::Restart {
            return Ok(None);
        }
        let checked = async {
            let view = self.shared.store.view();
            check_none_held(&view, record)?;
            check_rivals(&self.shared, &view, record).await?;
            self.xml_for_here(record).await
        };
        match checked.await {
            Ok(_) => Ok(None),
            Err(trouble) => trouble.reason(&self.shared).map(Some).ok_or(trouble),
        }
    }

    /// The guest runs on, and its record says so again.
    async fn stays_up(&self, planned: &Planned, why: &str) -> Ended {
        tracing::error!(
            vm = planned.name,
            why,
            "the VM is not restarted, because it could not be started again"
        );
        let id = fault_id(fault::VM_NOT_RESTARTED, &planned.name);
        let message = format!(
            "VM {} was not restarted and runs on, because it could not be started again: {why}",
            planned.name
        );
        self.shared.raise_aside(vec![(id, message)]);
        let reason = format!("{NOT_RESTARTED}{}", one_line(why));
        self.write(planned, vec![VmChange::State(VmState::Start), VmChange::FailedReason(reason)])
            .await
    }

    async fn fail(&self, planned: &Planned, reason: &str) -> Ended {
        let changes =
            vec![VmChange::State(VmState::Fail), VmChange::FailedReason(one_line(reason))];
        self.write(planned, changes).await
    }

    /// Writes to the VM's record if the request that was looked at is still the last one.
    pub(super) async fn write(&self, planned: &Planned, wanted: Vec<VmChange>) -> Ended {
        let vm = planned.vm;
        let was_looked_at = |record: &VmRecord| {
            (record.incarnation, record.state_version) == (planned.incarnation, planned.request)
        };
        let decide = |cluster: &Cluster| {
            let record =
                cluster.vms.get(&vm).filter(|record| was_looked_at(record)).ok_or(Superseded)?;
            let mut changes = Changes::new();
            changes.expect(pvc_store::Expect::VmState(vm)).expect(pvc_store::Expect::VmNode(vm));
            if !record.is_assigned_to(self.shared.name()) {
                return Err(Superseded);
            }
            for change in &wanted {
                changes.vm(vm, change.clone());
            }
            Ok((changes, ()))
        };
        match self.shared.store.change(decide).await {
            Ok(()) => Ended::Done,
            Err(ChangeError::Refused(Superseded)) => Ended::Superseded,
            Err(error) => {
                tracing::warn!(
                    vm = planned.name,
                    error = &error as &dyn std::error::Error,
                    "the VM's record could not be written"
                );
                Ended::Later
            }
        }
    }

    /// Reads what a running guest really has.
    pub async fn observe(self, guest: Guest) -> Ended {
        let vm = guest.uuid;
        let nothing = Ended::Observed { facts: None, vnc: None };
        match caught(self.shared.within(OBSERVE_DEADLINE, self.read(guest))).await {
            Ok(read) => read.unwrap_or(nothing),
            Err(_) => {
                tracing::error!(%vm, "a guest could not be looked at by a bug of this program");
                nothing
            }
        }
    }

    async fn read(&self, guest: Guest) -> Ended {
        let hypervisor = &self.shared.ports.hypervisor;
        let (xml, vnc) = (hypervisor.live_xml(guest.uuid).await, hypervisor.vnc(guest.uuid).await);
        let live = xml.ok().and_then(|xml| pvc_domain::summary(&xml).ok()).map(Arc::new);
        let default = || console_log_path(&self.shared.settings.console_log_directory, &guest.name);
        let console = live.as_ref().and_then(|live| live.console_log.as_ref()).map(PathBuf::from);
        let facts = GuestFacts {
            instance: guest.instance,
            console: Some(console.unwrap_or_else(default)),
            name: guest.name,
            live,
        };
        let address = vnc
            .ok()
            .map(|vnc| vnc.map_or_else(String::new, |at| format!("{}:{}", at.listen, at.port)));
        Ended::Observed { facts: Some(facts), vnc: address }
    }
}

/// The end of the work for one step, also if that panics.
async fn to_its_end(planned: &Planned, work: impl Future<Output = Ended>) -> Ended {
    caught(work).await.unwrap_or_else(|_| {
        tracing::error!(
            vm = planned.name,
            "a step failed by a bug of this program; it is tried again later"
        );
        Ended::Later
    })
}

/// Whether the record still gives the order that a step was planned for.
pub(super) fn still_ordered(cluster: &Cluster, planned_on: &VmRecord) -> bool {
    cluster.vms.get(&planned_on.uuid).is_some_and(|now| {
        (now.incarnation, now.state_version, &now.state, &now.node)
            == (
                planned_on.incarnation,
                planned_on.state_version,
                &planned_on.state,
                &planned_on.node,
            )
    })
}

/// Path of the file to which the serial console of a VM is logged. The name is a record's and may
/// be older than our rules for names: it must not lead out of the folder.
pub(super) fn console_log_path(folder: &Path, name: &str) -> PathBuf {
    let safe: String = name.chars().map(|c| if c == '/' || c == '\0' { '_' } else { c }).collect();
    folder.join(format!("{safe}.log"))
}

/// The bridge for lack of which the hypervisor refused a guest.
fn missing_bridge(why: &str) -> Option<&str> {
    let (_, rest) = why.split_once("Cannot get interface MTU on '")?;
    rest.split_once("': No such device").map(|(bridge, _)| bridge)
}

/// Whether the guest was refused for lack of the bridge of a network that this node makes: at a
/// node's start it may come a moment after the first VMs.
fn is_of_a_network_to_come(why: &str, shared: &Shared) -> bool {
    let is_made = |bridge: &str| {
        let networks = GuestNetworks::of(&shared.store.view()).networks;
        networks.iter().any(|network| network.vni.bridge() == bridge)
    };
    shared.settings.guest_networks.is_some() && missing_bridge(why).is_some_and(is_made)
}

/// Joins what the hypervisor said, and what to do about it where it is known. `networks` are those
/// between the nodes, where this daemon makes them; `has_guest_networks` if it makes those of VMs.
fn with_advice(
    why: &str,
    networks: Option<&CoreNetworks>,
    has_guest_networks: bool,
    node: &NodeName,
) -> String {
    // It goes into a command that somebody may copy.
    let bridge = missing_bridge(why)
        .filter(|bridge| bridge.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)));
    let Some(bridge) = bridge else { return why.to_owned() };
    let core = CoreNet::ALL.into_iter().find(|net| net.bridge() == bridge);
    let vni = bridge.strip_prefix("vmbr").filter(|_| has_guest_networks);
    match (core.zip(networks), vni) {
        (Some((net, networks)), _) => format!("{why}; {}", advice_on_core(net, networks, node)),
        (None, Some(vni)) => {
            let fault = fault_id("GUEST_NETWORK", node.as_str());
            format!(
                "{why}; network {vni} is not among those of `pvc network list`, or fault `{fault}` \
                 says what keeps it from this node"
            )
        }
        (None, None) => format!("{why}; {}", advice_on_other(bridge)),
    }
}

/// The same for the bridge of a network that this daemon looks after.
fn advice_on_core(net: CoreNet, networks: &CoreNetworks, node: &NodeName) -> String {
    let (bridge, carrier) = (net.bridge(), networks.carrier(net));
    if carrier == net {
        let fault = fault_id("NETWORK", node.as_str());
        return format!(
            "bridge `{bridge}` does not stand on this node; fault `{fault}` and its log say why"
        );
    }
    format!(
        "there is no bridge `{bridge}`, because network `{net}` is on the device of `{carrier}`; \
         plug the VM \
         into `{carrier}`, whose bridge `{}` carries both",
        carrier.bridge()
    )
}

fn advice_on_other(bridge: &str) -> String {
    format!(
        "it does not exist on this node; `ip link add {bridge} type bridge && ip link set \
         {bridge} up` makes one by hand"
    )
}

/// A reason as one line of at most 1,000 characters: it goes into tables.
pub(super) fn one_line(reason: &str) -> String {
    reason.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(1000).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    use pvc_model::network_core::CoreNetwork;

    #[test]
    fn a_console_log_stays_in_its_folder() {
        let folder = Path::new("/var/log/libvirt");
        assert_eq!(console_log_path(folder, "web1"), Path::new("/var/log/libvirt/web1.log"));
        assert_eq!(
            console_log_path(folder, "../../etc/x"),
            Path::new("/var/log/libvirt/.._.._etc_x.log")
        );
    }

    /// Advice about a missing bridge, without the words of libvirt.
    fn advice(bridge: &str, networks: Option<&CoreNetworks>) -> String {
        advice_with(bridge, networks, false)
    }

    /// Same as [`advice`], on a node that may make the networks of VMs.
    fn advice_with(bridge: &str, networks: Option<&CoreNetworks>, is_ours: bool) -> String {
        let why = format!("Cannot get interface MTU on '{bridge}': No such device");
        let said = with_advice(&why, networks, is_ours, &NodeName::new("hv1"));
        said.strip_prefix(&format!("{why}; ")).expect("what libvirt said comes first").to_owned()
    }

    fn core_networks(storage_device: &str) -> CoreNetworks {
        let on = |device: &str| CoreNetwork {
            device: device.to_owned(),
            mtu: 1500,
            address: None,
            gateway: None,
        };
        CoreNetworks { cluster: on("ens5"), upstream: on("ens4"), storage: on(storage_device) }
    }

    #[test]
    fn a_bridge_that_nobody_here_makes_is_named_with_how_to_make_it() {
        let by_hand =
            |bridge: &str| format!("`ip link add {bridge} type bridge && ip link set {bridge} up`");
        let networks = core_networks("ens6");
        for (bridge, networks) in
            [("brupstream", None), ("br0", Some(&networks)), ("vmbr100", Some(&networks))]
        {
            let said = advice(bridge, networks);
            assert!(said.contains(&by_hand(bridge)), "{said}");
        }
        // The packet filter of a bridge made by hand is nobody's.
        let said = advice_with("vmbr100", Some(&networks), true);
        assert!(said.contains("network 100") && said.contains("GUEST_NETWORK_HV1"), "{said}");
        assert!(!said.contains("ip link"), "{said}");
        for other in [
            "Cannot get interface MTU on 'br0': Permission denied",
            "Cannot get interface MTU on 'a;reboot': No such device",
            "no such machine",
        ] {
            assert_eq!(with_advice(other, None, true, &NodeName::new("hv1")), other);
        }
    }

    #[test]
    fn a_bridge_between_the_nodes_is_this_daemons_to_make() {
        let said = advice("brstorage", Some(&core_networks("ens6")));
        assert!(said.contains("fault `NETWORK_HV1`") && !said.contains("ip link"), "{said}");
        let said = advice("brstorage", Some(&core_networks("ens5")));
        assert!(said.contains("plug the VM into `cluster`, whose bridge `brcluster`"), "{said}");
    }

    #[test]
    fn a_reason_is_one_short_line() {
        assert_eq!(one_line("internal error:\n qemu\tdied"), "internal error: qemu died");
        assert_eq!(one_line(&"x".repeat(5000)).len(), 1000);
    }
}
