//! Judgement of what is done with the VMs against what their records ask for: no memory is promised
//! twice (I11), and nothing is stopped that nobody wants stopped or that could have moved (I9).
//!
//! Whoever decides knows the others by their last keepalive, on a view that may be some seconds
//! old. So what has only just begun or ended counts neither way: [`NEWS`] is how long a daemon may
//! take to hear of something.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster as View;
use pvc_model::flush::{Stays, unflush};
use pvc_model::node::{DaemonState, DomainState, NodeRecord};
use pvc_model::vm::moving::is_moving;
use pvc_model::vm::{MigrationMethod, VmRecord, VmState};
use pvc_model::{NodeName, Uuid};

use crate::guests::SimGuest;
use crate::process::Pid;
use crate::truth::{Sight, Truth};

/// Two keepalives, on a server of ZooKeeper that lags as far as one may, and time to act.
const NEWS: Duration = Duration::from_secs(45);

/// Time that a node that resets itself may take from the end of its guests to its own.
const RESET: Duration = Duration::from_secs(2);

/// Orders of the records, and since when they stand.
#[derive(Default)]
pub(crate) struct Orders {
    view: Arc<View>,
    vms: BTreeMap<Uuid, Order>,
    /// Times since which each node takes VMs.
    takes_vms: BTreeMap<NodeName, Duration>,
    /// Times at which something last left a node, or was called off.
    freed: BTreeMap<NodeName, Duration>,
    /// Daemons of hosts that last said that they start, and when.
    announced: BTreeMap<usize, (Pid, Duration)>,
    /// Times at which a move of the VM last failed.
    failed_moves: BTreeMap<Uuid, Duration>,
    /// VMs that their node may have left off while it became ready, for their volume was held.
    left_off: BTreeSet<Uuid>,
    /// Nodes whose removal somebody has asked for, and that were not removed since.
    removable: BTreeSet<NodeName>,
    /// Nodes that were removed, as somebody had asked for.
    removed: BTreeSet<NodeName>,
}

/// Order for one VM.
struct Order {
    state: VmState,
    node: Option<NodeName>,
    since: Duration,
    /// Time at which the VM was last to be anything but running.
    off: Option<Duration>,
    method: Option<MigrationMethod>,
    /// Time since which the VM may be moved in this way.
    method_since: Duration,
    claim: Option<Claim>,
}

/// The VM has memory of a node, or is to have it.
#[derive(Clone)]
struct Claim {
    node: NodeName,
    since: Duration,
    /// Somebody chose the node for it; it was not only started where it belongs.
    is_placed: bool,
}

/// Whether the VM runs on its node, or will as soon as it can.
fn comes(state: &VmState) -> bool {
    matches!(state, VmState::Start | VmState::Restart | VmState::Migrate | VmState::MigrateLive)
}

/// Whether its guest may be ended for what is asked of it.
fn may_end(state: &VmState) -> bool {
    !matches!(
        state,
        VmState::Start
            | VmState::Migrate
            | VmState::MigrateLive
            | VmState::Unmigrate
            | VmState::Provision
    )
}

impl Orders {
    /// Time at which the daemon `pid` of the host said that it starts.
    pub fn announced(&self, host: usize, pid: Pid) -> Option<Duration> {
        self.announced.get(&host).filter(|(known, _)| *known == pid).map(|(_, when)| *when)
    }

    /// Whether nobody but an operator starts this VM, which waits for a node that is ready.
    pub fn is_left_off(&self, vm: Uuid) -> bool {
        self.left_off.contains(&vm)
    }

    /// Notes the VMs that a node leaves off in this moment, and forgets those that are not off.
    fn note_left_off(&mut self, view: &View) {
        let is_off = |vm: &Uuid| view.vms.get(vm).is_some_and(|vm| !comes(&vm.state));
        self.left_off.retain(is_off);
        if view.holds.is_empty() {
            return;
        }
        let takes_back = |node: &&Arc<NodeRecord>| node.domain_state == DomainState::Unflush;
        for node in view.nodes.values().filter(takes_back) {
            let back = unflush(view, &node.name, &BTreeSet::new(), usize::MAX);
            let held = back.stay.iter().filter(|(_, why)| matches!(why, Stays::Held(_)));
            self.left_off.extend(held.map(|(vm, _)| *vm));
        }
    }

    /// Somebody asks for the removal of the node.
    pub fn removal_asked(&mut self, node: NodeName) {
        self.removable.insert(node);
    }

    /// Whether the node's record was removed, as somebody had asked for, and is not there again.
    pub fn is_removed(&self, node: &str) -> bool {
        self.removed.contains(node) && !self.view.nodes.contains_key(node)
    }

    pub fn move_failed(&mut self, vm: Uuid, now: Duration) {
        self.failed_moves.insert(vm, now);
    }
}

fn is_long_ago(when: Option<&Duration>, now: Duration) -> bool {
    when.is_none_or(|when| now.saturating_sub(*when) >= NEWS)
}

impl Truth {
    /// The records are like this now. Judges what has changed.
    pub fn records_changed(&mut self, sight: &mut Sight<'_>, view: Arc<View>) {
        let now = sight.run.now;
        let before = std::mem::replace(&mut self.orders.view, view.clone());
        self.orders.note_left_off(&view);
        for node in view.nodes.values() {
            let takes =
                node.daemon_state == DaemonState::Run && node.domain_state == DomainState::Ready;
            match takes {
                true => _ = self.orders.takes_vms.entry(node.name.clone()).or_insert(now),
                false => _ = self.orders.takes_vms.remove(&node.name),
            }
        }
        for node in before.nodes.keys().filter(|node| !view.nodes.contains_key(*node)) {
            self.of_removal(sight, node);
        }
        for node in view.nodes.values().filter(|node| node.daemon_state == DaemonState::Init) {
            let begins = before
                .nodes
                .get(&node.name)
                .is_none_or(|old| old.daemon_state != DaemonState::Init);
            let host = sight.hosts.named(node.name.as_str()).filter(|_| begins);
            if let Some((host, pid)) =
                host.and_then(|host| Some((host, sight.hosts[host].daemon.as_ref()?.pid)))
            {
                self.orders.announced.insert(host, (pid, now));
            }
        }
        let (mut drained, mut given_up) = (Vec::new(), Vec::new());
        let mut placed: Vec<(Arc<VmRecord>, Option<Arc<VmRecord>>)> = Vec::new();
        for vm in view.vms.values() {
            let old = before.vms.get(&vm.uuid);
            if old.is_some_and(|old| Arc::ptr_eq(old, vm)) {
                continue;
            }
            if self.note_order(sight, vm, old.is_some()) {
                placed.push((vm.clone(), old.cloned()));
            }
            if let Some(old) = old
                && !old.autostart
                && old.state == VmState::Start
                && vm.autostart
                && vm.state == VmState::Shutdown
            {
                drained.push(vm.clone());
            }
            if old.is_some_and(|old| comes(&old.state)) && vm.state == VmState::Stop && vm.autostart
            {
                given_up.push(vm.clone());
            }
        }
        for vm in drained {
            self.of_drained(sight, &vm);
        }
        for vm in given_up {
            self.of_given_up(sight, &vm);
        }
        let gone: Vec<Uuid> =
            self.orders.vms.keys().filter(|vm| !view.vms.contains_key(vm)).copied().collect();
        for vm in gone {
            if let Some(Order { claim: Some(claim), .. }) = self.orders.vms.remove(&vm) {
                self.orders.freed.insert(claim.node, now);
            }
        }
        for (vm, old) in placed {
            self.of_placement(sight, &vm, old.as_deref());
            if let Some(old) = &old {
                self.of_recovery(sight, old, &vm);
            }
        }
    }

    /// Notes what is asked of the VM now. Whether it was given to another node to run there.
    fn note_order(&mut self, sight: &Sight<'_>, vm: &VmRecord, is_known: bool) -> bool {
        let now = sight.run.now;
        let is_there = vm
            .node
            .as_ref()
            .and_then(|node| sight.hosts.named(node.as_str()))
            .is_some_and(|host| sight.hypervisors[host].has_alive(vm.uuid));
        let orders = &mut self.orders;
        let old = orders.vms.remove(&vm.uuid);
        // One that is being made is promised what it will have.
        let is_made = vm.state == VmState::Provision;
        let claims = vm.node.clone().filter(|_| comes(&vm.state) || is_made);
        let old_claim = old.as_ref().and_then(|old| old.claim.clone());
        let stays = old_claim.clone().filter(|claim| claims.as_ref() == Some(&claim.node));
        let moved = old.as_ref().is_some_and(|old| old.node != vm.node);
        // It stays, or is back, where it never left: nobody has chosen anything.
        let is_placed = is_known && moved && !is_there;
        let is_new = stays.is_none() && claims.is_some();
        if let Some(lost) = old_claim.filter(|_| stays.is_none()) {
            orders.freed.insert(lost.node, now);
        }
        let unchanged = old.as_ref().filter(|old| old.state == vm.state && old.node == vm.node);
        let since = unchanged.map_or(now, |old| old.since);
        let same_method = old
            .as_ref()
            .filter(|old| old.method == vm.migration_method)
            .map(|old| old.method_since);
        let was_off = old.as_ref().is_some_and(|old| may_end(&old.state));
        let off =
            if was_off || may_end(&vm.state) { Some(now) } else { old.and_then(|old| old.off) };
        let claim = stays.or_else(|| claims.map(|node| Claim { node, since: now, is_placed }));
        let method = vm.migration_method.clone();
        let method_since = same_method.unwrap_or(now);
        let (state, node) = (vm.state.clone(), vm.node.clone());
        let order = Order { state, node, since, off, method, method_since, claim };
        orders.vms.insert(vm.uuid, order);
        is_new && is_placed
    }

    // --- I3 ------------------------------------------------------------------------------------

    /// A VM that was to run was given to another node, to run there.
    fn of_recovery(&mut self, sight: &mut Sight<'_>, old: &VmRecord, vm: &VmRecord) {
        // One on its way runs where it came from, and may be called back.
        let ran = matches!(old.state, VmState::Start | VmState::Restart);
        let Some(from) = old.node.as_ref().filter(|_| ran && vm.state == VmState::Start) else {
            return;
        };
        if sight.hosts.have_legacy() || vm.node.as_ref() == Some(from) {
            return;
        }
        let own = self.orders.view.nodes.get(from);
        if own.is_some_and(|own| own.daemon_state == DaemonState::Dead) {
            let what = format!(
                "VM {} is taken from {from}, whose death is suspected and not proven",
                vm.name
            );
            return self.violate(sight.run, "I3", what);
        }
        if own.is_some_and(|own| own.domain_state == DomainState::FenceFlush) {
            self.recoveries += 1;
        }
        let runs = |host: usize| sight.hypervisors[host].has_alive(vm.uuid);
        let host = sight.hosts.named(from.as_str());
        if host.is_some_and(|host| !sight.bmcs[host].has_lied && runs(host)) {
            self.violate(
                sight.run,
                "I3",
                format!("VM {} is taken from {from}, where it runs", vm.name),
            );
        }
    }

    /// Judges the removal of a node's record: somebody has asked for it, and nothing runs there.
    fn of_removal(&mut self, sight: &mut Sight<'_>, node: &NodeName) {
        self.removals += 1;
        if !self.orders.removable.remove(node) {
            let what = format!("the record of {node} is gone, and nobody had asked for that");
            return self.violate(sight.run, "I10", what);
        }
        self.orders.removed.insert(node.clone());
        let Some(host) = sight.hosts.named(node.as_str()) else { return };
        if sight.hosts.have_legacy() || sight.bmcs[host].has_lied {
            return;
        }
        let mut guests = sight.hypervisors[host].guests.values();
        let runs = guests.find(|guest| guest.is_alive() && !guest.is_leftover);
        if let Some(guest) = runs {
            let what =
                format!("the record of {node} is removed while VM {} runs there", guest.name);
            self.violate(sight.run, "I3", what);
        }
    }

    // --- I11 -----------------------------------------------------------------------------------

    /// A VM was given to a node, to run there. It may always return home.
    fn of_placement(&mut self, sight: &mut Sight<'_>, vm: &VmRecord, old: Option<&VmRecord>) {
        if sight.hosts.have_legacy() {
            return;
        }
        let Some(node) = &vm.node else { return };
        let Some(host) = sight.hosts.named(node.as_str()) else { return };
        let known = self.orders.view.nodes.get(node);
        // One that a recovery has called back runs there no more: it is placed anew later.
        if known.is_some_and(|node| node.domain_state == DomainState::FenceFlush) {
            return;
        }
        let home = old.and_then(|old| old.last_node.as_ref());
        // One on its way may be called back to where its guest is, as far as anybody knows, and
        // stays with who sends it if it cannot be moved, also if its guest has died meanwhile.
        let is_sender = |old: &VmRecord| {
            is_moving(&old.state) && old.moving.as_ref().is_some_and(|note| note.from == *node)
        };
        let returns = home == Some(node)
            || old.is_some_and(is_sender)
            || known.is_some_and(|node| node.running.contains(&vm.uuid));
        // What was limited in the same moment may have been limited afterwards.
        let is_limited =
            old.is_none_or(|old| old.node_limit == vm.node_limit) && !vm.node_limit.is_empty();
        if is_limited && !vm.node_limit.contains(node) && !returns {
            let what = format!(
                "VM {} is given to {node}, which is none of those it is limited to",
                vm.name
            );
            self.violate(sight.run, "I11", what);
        }
        // One that was given less memory while it ran comes with what it has, which others learn
        // when it is there and its node says so.
        let connected = self
            .well_since(sight, host)
            .map_or(Duration::ZERO, |since| sight.run.now.saturating_sub(since));
        let memory = |vm: &Uuid, guest: &SimGuest| match self.orders.view.vms.get(vm) {
            Some(record) if sight.run.now.saturating_sub(guest.since).min(connected) < NEWS => {
                guest.memory_mib.min(record.memory_mib())
            }
            _ => guest.memory_mib,
        };
        let claimed =
            self.claimed_mib(sight, host, |age, is_placed| is_placed || age >= NEWS, memory);
        let room = sight.hosts[host].room_mib();
        if claimed > room {
            let said =
                self.orders.view.nodes.get(node).map_or(0, |node| node.figures.memory_free_mib);
            let what = format!(
                "VM {} is given to {node}, where {claimed} MiB are promised with it and there are \
                 {room} MiB; its \
                 record says that {said} MiB are free",
                vm.name
            );
            self.violate(sight.run, "I11", what);
        }
    }

    /// Memory of a host, in MiB, that is in use, as `memory` says of each guest, or promised, of
    /// what `counts` by its age and whether it was placed.
    fn claimed_mib(
        &self,
        sight: &Sight<'_>,
        host: usize,
        counts: impl Fn(Duration, bool) -> bool,
        memory: impl Fn(&Uuid, &SimGuest) -> u64,
    ) -> u64 {
        let orders = &self.orders;
        let name = sight.hosts[host].name.as_str();
        let claim = |vm: &Uuid| {
            let claim = orders.vms.get(vm).and_then(|order| order.claim.as_ref());
            claim.filter(|claim| claim.node.as_str() == name)
        };
        let age = |since: Duration| sight.run.now.saturating_sub(since);
        let guests = &sight.hypervisors[host].guests;
        let there = guests.iter().filter(|(vm, guest)| {
            counts(age(guest.since), claim(vm).is_some_and(|claim| claim.is_placed))
        });
        let there: u64 = there.map(|(vm, guest)| memory(vm, guest)).sum();
        let promised = orders.view.vms.values().filter(|vm| {
            let claimed =
                claim(&vm.uuid).is_some_and(|claim| counts(age(claim.since), claim.is_placed));
            claimed && !guests.contains_key(&vm.uuid)
        });
        there + promised.map(|vm| vm.memory_mib()).sum::<u64>()
    }

    // --- I9 ------------------------------------------------------------------------------------

    /// A node that gives its VMs away has one shut down until it takes VMs again.
    fn of_drained(&mut self, sight: &mut Sight<'_>, vm: &VmRecord) {
        let orders = &self.orders;
        let Some(own) = vm.node.as_ref().and_then(|node| orders.view.nodes.get(node)) else {
            return;
        };
        if own.domain_state != DomainState::Flush || sight.hosts.have_legacy() {
            return;
        }
        let target = (0..sight.hosts.len()).find(|host| self.could_have_taken(sight, *host, vm, 0));
        if let Some(target) = target {
            let what = format!(
                "{} shuts VM {} down to be empty, and {} has had room for it for {} s",
                own.name,
                vm.name,
                sight.hosts[target].name,
                NEWS.as_secs()
            );
            self.violate(sight.run, "I9", what);
        }
    }

    // --- I4 ------------------------------------------------------------------------------------

    /// Judges that whoever recovers the VMs of a dead node found no place for this one, and lets it
    /// wait for its node.
    fn of_given_up(&mut self, sight: &mut Sight<'_>, vm: &VmRecord) {
        let own = vm.node.as_ref().and_then(|node| self.orders.view.nodes.get(node));
        let is_recovered = own.is_some_and(|own| own.domain_state == DomainState::FenceFlush);
        if !is_recovered || sight.hosts.have_legacy() {
            return;
        }
        // Those that choose before it may have left no room.
        let others = self.orders.view.vms.values();
        let others_mib: u64 = others
            .filter(|other| comes(&other.state) && other.node == vm.node)
            .map(|other| other.memory_mib())
            .sum();
        if let Some(target) =
            (0..sight.hosts.len()).find(|host| self.could_have_taken(sight, *host, vm, others_mib))
        {
            let what = format!(
                "VM {} of a dead node waits for it, and {} has had room for it for {} s",
                vm.name,
                sight.hosts[target].name,
                NEWS.as_secs()
            );
            self.violate(sight.run, "I4", what);
        }
    }

    /// Whether everybody has had time to know that this host can take the VM, and so much memory
    /// besides.
    fn could_have_taken(
        &self,
        sight: &Sight<'_>,
        host: usize,
        vm: &VmRecord,
        besides_mib: u64,
    ) -> bool {
        let (known, orders) = (&sight.hosts[host], &self.orders);
        let hypervisor = &sight.hypervisors[host];
        let node = NodeName::new(&known.name);
        let is_another = vm.node.as_ref() != Some(&node);
        let is_allowed = vm.node_limit.is_empty() || vm.node_limit.contains(&node);
        let takes = orders
            .takes_vms
            .get(&node)
            .is_some_and(|since| sight.run.now.saturating_sub(*since) >= NEWS);
        let is_well = known.on && hypervisor.is_up && !known.disk_full;
        let is_settled = is_long_ago(orders.freed.get(&node), sight.run.now)
            && is_long_ago(hypervisor.had_guest.as_ref(), sight.run.now);
        let room = known.room_mib();
        let claimed = self.claimed_mib(sight, host, |_, _| true, |_, guest| guest.memory_mib);
        // One that its node does not list yet counts twice for whoever decides: it has memory, and
        // is promised all that it will have.
        let listed = orders.view.nodes.get(&node).map(|node| &node.running);
        let is_listed = |vm: &Uuid| listed.is_some_and(|listed| listed.contains(vm));
        let arriving =
            hypervisor.guests.iter().filter(|(vm, guest)| guest.is_incoming || !is_listed(vm));
        let arriving = arriving.map(|(_, guest)| guest);
        let arriving: u64 = arriving.map(|guest| guest.memory_mib).sum();
        let fits = claimed + arriving + besides_mib + vm.memory_mib() <= room;
        let has_contact = self
            .well_since(sight, host)
            .is_some_and(|since| sight.run.now.saturating_sub(since) >= NEWS);
        has_contact && is_another && is_allowed && takes && is_well && is_settled && fits
    }

    /// The daemon of a host ends a guest, or asks it to end.
    pub fn of_stop(&mut self, sight: &mut Sight<'_>, host: usize, vm: Uuid) {
        let now = sight.run.now;
        let known = &sight.hosts[host];
        if sight.hosts.have_legacy() {
            return;
        }
        let Some(guest) = sight.hypervisors[host].guests.get(&vm) else { return };
        let orders = &self.orders;
        let (Some(order), Some(record)) = (orders.vms.get(&vm), orders.view.vms.get(&vm)) else {
            return;
        };
        let runs_elsewhere = (0..sight.hosts.len())
            .any(|other| other != host && sight.hypervisors[other].has_alive(vm));
        // Of two, one has to go, and an order to stop it may be one that its node has not heard the
        // end of.
        if guest.is_leftover
            || !guest.is_alive()
            || runs_elsewhere
            || !is_long_ago(order.off.as_ref(), now)
        {
            return;
        }
        let here = order.node.as_ref().is_some_and(|node| node.as_str() == known.name);
        let has_settled = |since: Duration| now.saturating_sub(since) >= NEWS;
        let has_contact = self.well_since(sight, host).is_some_and(has_settled);
        // Whoever tried for an earlier target may not have heard of this one.
        let has_failed =
            orders.failed_moves.get(&vm).is_some_and(|failed| *failed + NEWS >= order.since);
        // What began in another way ends so, and whoever tried may not have heard of this way.
        let is_another_way = order.method_since > order.since || !has_settled(order.method_since);
        let shuts_down = order.method == Some(MigrationMethod::Shutdown) || is_another_way;
        let is_to_stay = here && has_settled(order.since) && has_settled(guest.since);
        let why = match order.state {
            // Without quorum guests run on, unless the node is to give itself up.
            VmState::Start
                if is_to_stay && !has_contact && sight.run.nature.reset_after.is_none() =>
            {
                let what = format!("{} ends the guest of VM {}", known.name, record.name);
                return self.of_decision(sight, &what, host);
            }
            _ if !has_contact => return,
            VmState::Start if is_to_stay => "is to run there, and nobody asked for its end",
            VmState::MigrateLive if !here => "is to be moved while it runs or not at all",
            VmState::Migrate if !here && !shuts_down && !has_failed => {
                "could be moved while it runs, which was not tried"
            }
            _ => return,
        };
        let what = format!("{} ends the guest of VM {}, which {why}", known.name, record.name);
        let life = known.life;
        // A node that takes itself for lost ends its guests, and then the machine in the same
        // breath.
        sight.run.later(RESET, move |state| {
            if state.hosts[host].life == life {
                state.truth.violate(&state.run, "I9", what);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use pvc_model::cluster::Cluster as View;
    use pvc_model::node::{DaemonState, DomainState};
    use pvc_model::vm::{MigrationMethod, VmState};

    use super::{NEWS, RESET};
    use crate::cluster::{Cluster, Shape, vm_uuid};
    use crate::log::Log;

    /// A cluster of three in which nothing has changed for a while, with two VMs: vm0 on hv1, vm1
    /// on hv2.
    async fn calm() -> Cluster {
        let cluster =
            Cluster::start(Shape::plain(3, 2), Log::new(false)).await.expect("all is well");
        cluster.pass(NEWS + Duration::from_secs(30)).await.expect("all is well");
        cluster
    }

    /// The records of the cluster, with another record of one VM.
    fn changed(
        cluster: &Cluster,
        vm: usize,
        change: impl FnOnce(&mut pvc_model::vm::VmRecord),
    ) -> Arc<View> {
        let mut view = (*cluster.view()).clone();
        let record = view.vms.get_mut(&vm_uuid(vm)).expect("it is defined");
        change(Arc::make_mut(record));
        Arc::new(view)
    }

    /// Finds what is wrong when the records become `views`, one after the other.
    fn judged(cluster: &Cluster, views: &[Arc<View>]) -> Option<String> {
        cluster.world.with(|state| {
            for view in views {
                state.judge(|truth, sight| truth.records_changed(sight, view.clone()));
            }
            state
                .truth
                .violation
                .clone()
                .map(|violation| format!("{}: {}", violation.rule, violation.what))
        })
    }

    /// The same cluster once the VM's guest is gone.
    async fn calm_without_guest(host: usize, vm: usize) -> Cluster {
        let cluster = calm().await;
        let why = "it is not needed any more";
        cluster.world.with(|state| {
            state.with_hypervisors(|hypervisors, around| {
                hypervisors.end_guest(around, host, vm_uuid(vm), why, false);
            });
        });
        cluster
    }

    async fn ended(cluster: &Cluster, host: usize, vm: usize) -> Option<String> {
        cluster.world.with(|state| {
            state.judge(|truth, sight| truth.of_stop(sight, host, vm_uuid(vm)));
        });
        let violation = cluster.pass(2 * RESET).await.err()?;
        Some(format!("{}: {}", violation.rule, violation.what))
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_that_is_given_more_memory_than_there_is_is_found() {
        let cluster = calm_without_guest(0, 0).await;
        let to_hv2 = |vm: &mut pvc_model::vm::VmRecord| vm.node = Some("hv2".into());
        assert_eq!(judged(&cluster, &[changed(&cluster, 0, to_hv2)]), None);
        let cluster = calm_without_guest(0, 0).await;
        cluster.world.with(|state| state.hosts[1].memory_mib = 2048 + 1536);
        let found =
            judged(&cluster, &[changed(&cluster, 0, to_hv2)]).expect("1 GiB and 1 GiB are more");
        assert!(found.starts_with("I11: VM vm0 is given to hv2, where 2048 MiB"), "{found}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_that_is_taken_from_a_node_where_it_runs_is_found() {
        let to_hv2 = |vm: &mut pvc_model::vm::VmRecord| vm.node = Some("hv2".into());
        let cluster = calm_without_guest(0, 0).await;
        assert_eq!(judged(&cluster, &[changed(&cluster, 0, to_hv2)]), None);
        let cluster = calm().await;
        let found = judged(&cluster, &[changed(&cluster, 0, to_hv2)]);
        assert_eq!(found.as_deref(), Some("I3: VM vm0 is taken from hv1, where it runs"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_that_is_taken_from_a_node_that_nobody_has_proven_dead_is_found() {
        let cluster = calm().await;
        let mut suspected = (*cluster.view()).clone();
        let node = suspected.nodes.get_mut("hv1").expect("it is a node");
        Arc::make_mut(node).daemon_state = DaemonState::Dead;
        let mut taken = suspected.clone();
        let vm = taken.vms.get_mut(&vm_uuid(0)).expect("it is defined");
        Arc::make_mut(vm).node = Some("hv2".into());
        let found =
            judged(&cluster, &[Arc::new(suspected), Arc::new(taken)]).expect("nothing is proven");
        assert!(found.starts_with("I3: VM vm0 is taken from hv1"), "{found}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_of_a_node_that_goes_unasked_or_while_a_guest_runs_there_is_found() {
        let removed = |cluster: &Cluster, is_asked: bool| {
            if is_asked {
                cluster.world.with(|state| state.truth.orders.removal_asked("hv1".into()));
            }
            let mut view = (*cluster.view()).clone();
            view.nodes.remove("hv1").expect("it is a node");
            judged(cluster, &[Arc::new(view)])
        };
        let unasked = removed(&calm_without_guest(0, 0).await, false);
        let lost = "I10: the record of hv1 is gone, and nobody had asked for that";
        assert_eq!(unasked.as_deref(), Some(lost));
        let too_early = removed(&calm().await, true);
        let runs = "I3: the record of hv1 is removed while VM vm0 runs there";
        assert_eq!(too_early.as_deref(), Some(runs));
        let lied = calm().await;
        lied.world.with(|state| state.bmcs[0].has_lied = true);
        assert_eq!(removed(&lied, true), None, "nobody can know better than its BMC");
        assert_eq!(removed(&calm_without_guest(0, 0).await, true), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_that_is_given_to_a_node_it_is_not_limited_to_is_found() {
        let cluster = calm_without_guest(0, 0).await;
        let limit =
            |vm: &mut pvc_model::vm::VmRecord| vm.node_limit = vec!["hv1".into(), "hv3".into()];
        let limited = changed(&cluster, 0, limit);
        let strayed = changed(&cluster, 0, |vm| {
            limit(vm);
            vm.node = Some("hv2".into());
        });
        let found = judged(&cluster, &[limited, strayed.clone()]).expect("hv2 is not among them");
        assert!(found.starts_with("I11: VM vm0 is given to hv2, which is none"), "{found}");
        let cluster = calm_without_guest(0, 0).await;
        assert_eq!(judged(&cluster, &[strayed]), None, "it may have been limited afterwards");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_that_shuts_down_what_has_room_elsewhere_is_found() {
        let shut_down = |cluster: &Cluster, memory: u64| {
            cluster.world.with(|state| {
                state.hosts[1].memory_mib = memory;
                state.hosts[2].memory_mib = memory;
            });
            let mut view = (*changed(cluster, 0, |vm| {
                vm.state = VmState::Shutdown;
                vm.autostart = true;
            }))
            .clone();
            let hv1 = view.nodes.get_mut("hv1").expect("it is a node");
            Arc::make_mut(hv1).domain_state = DomainState::Flush;
            judged(cluster, &[Arc::new(view)])
        };
        assert_eq!(shut_down(&calm().await, 2500), None);
        let found = shut_down(&calm().await, 64 << 10).expect("there is room");
        assert!(found.starts_with("I9: hv1 shuts VM vm0 down"), "{found}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_of_a_dead_node_that_is_given_up_though_there_is_room_is_found() {
        let given_up = |cluster: &Cluster, memory: u64| {
            cluster.world.with(|state| {
                state.hosts[1].memory_mib = memory;
                state.hosts[2].memory_mib = memory;
            });
            let mut view =
                (*changed(cluster, 0, |vm| (vm.state, vm.autostart) = (VmState::Stop, true)))
                    .clone();
            let hv1 = Arc::make_mut(view.nodes.get_mut("hv1").expect("it is a node"));
            (hv1.daemon_state, hv1.domain_state) = (DaemonState::Fenced, DomainState::FenceFlush);
            judged(cluster, &[Arc::new(view)])
        };
        assert_eq!(given_up(&calm().await, 2500), None);
        let found = given_up(&calm().await, 64 << 10).expect("there is room");
        assert!(
            found.starts_with("I4: VM vm0 of a dead node waits for it, and hv2 has had room"),
            "{found}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_is_ended_while_it_is_to_run_is_found() {
        let cluster = calm().await;
        let found = ended(&cluster, 0, 0).await.expect("nobody asked for it");
        assert!(
            found.starts_with("I9: hv1 ends the guest of VM vm0, which is to run there"),
            "{found}"
        );
        let cluster = calm().await;
        let stopped = changed(&cluster, 0, |vm| vm.state = VmState::Stop);
        let started = changed(&cluster, 0, |vm| vm.state_version += 2);
        judged(&cluster, &[stopped, started]);
        assert_eq!(
            ended(&cluster, 0, 0).await,
            None,
            "its node has not heard yet that it is to run again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_is_ended_instead_of_moved_is_found() {
        let methods: BTreeMap<&str, (Option<MigrationMethod>, VmState, bool)> = BTreeMap::from([
            ("not tried", (None, VmState::Migrate, true)),
            ("live only", (Some(MigrationMethod::Live), VmState::MigrateLive, true)),
            ("shut down on purpose", (Some(MigrationMethod::Shutdown), VmState::Migrate, false)),
        ]);
        for (what, (method, state, is_wrong)) in methods {
            let cluster = calm().await;
            let moved = changed(&cluster, 0, |vm| {
                (vm.node, vm.migration_method, vm.state) = (Some("hv2".into()), method, state);
            });
            assert_eq!(judged(&cluster, &[moved]), None);
            let found = ended(&cluster, 0, 0).await;
            assert_eq!(found.is_some(), is_wrong, "{what}: {found:?}");
        }
        let cluster = calm().await;
        let moved =
            changed(&cluster, 0, |vm| (vm.node, vm.state) = (Some("hv2".into()), VmState::Migrate));
        judged(&cluster, &[moved]);
        cluster.world.with(|state| state.truth.orders.move_failed(vm_uuid(0), state.run.now));
        assert_eq!(ended(&cluster, 0, 0).await, None, "it was tried");
    }
}
