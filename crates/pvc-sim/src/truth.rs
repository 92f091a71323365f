//! Rules that must never be broken, judged by the hosts themselves and not by anybody's records.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use pvc_model::link::IpNet;
use uuid::Uuid;

use crate::guests::Hypervisors;
use crate::host::Hosts;
use crate::orders::Orders;
use crate::power::Bmcs;
use crate::process::{Pid, Processes};
use crate::run::Run;
use crate::storage::{Ceph, ClientId};
use crate::zookeeper::Ensemble;

/// Time for which a host may have been without guests until a reset of it is one without need:
/// ending the last ones is part of it.
const RESET_AFTER_GUESTS: Duration = Duration::from_secs(60);

/// Time after the loss of the quorum in which something may still happen that was decided before.
const STILL_DECIDED: Duration = Duration::from_secs(30);

/// Time for which a node must have been well until nobody has a reason any more to take it for
/// dead.
const WELL: Duration = Duration::from_secs(60);

/// The same where nothing happens but elections and the like: a stamp each 5 s, the time that its
/// write may take, and a moment to be seen.
const WELL_IN_ELECTIONS: Duration = Duration::from_secs(15);

/// A process that stood still does next what it was about to do, and no check can be later than its
/// last one.
const ABOUT_TO: Duration = Duration::from_secs(5);

/// Time after a legacy peer has taken an address for which a holder of ours may still have it: a
/// phase of the hand-over, and the stall that the legacy peer's locks are known for ([T3]).
const LETS_GO: Duration = Duration::from_secs(8);

/// Something that must never happen has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// `I1`, …: the rule of the design; or `progress`, `panic`, `scene`.
    pub rule: String,
    pub what: String,
}

/// View of the judge: all parts of the world as they are.
pub(crate) struct Sight<'a> {
    pub run: &'a mut Run,
    pub hosts: &'a Hosts,
    pub processes: &'a Processes,
    pub zookeeper: &'a Ensemble,
    pub ceph: &'a Ceph,
    pub hypervisors: &'a Hypervisors,
    pub bmcs: &'a Bmcs,
}

impl Sight<'_> {
    /// Time at which the daemon of the host was last thawed.
    fn thawed(&self, host: usize) -> Option<Duration> {
        let daemon = self.hosts[host].daemon.as_ref()?;
        self.processes[daemon.pid].thawed
    }

    fn stands_still(&self, host: usize) -> bool {
        let host = &self.hosts[host];
        let runs = |pid: Pid| self.processes[pid].runs(self.hosts);
        host.frozen || host.daemon.as_ref().is_some_and(|daemon| !runs(daemon.pid))
    }

    fn holders(&self, address: IpNet) -> Vec<usize> {
        let has = |host: &usize| {
            let host = &self.hosts[*host];
            let is_gateway = || host.gateways.iter().any(|(_, gateway)| *gateway == address);
            host.on && !host.frozen && (host.addresses.contains(&address) || is_gateway())
        };
        (0..self.hosts.len()).filter(has).collect()
    }

    fn is_in_two_places(&self, address: IpNet, holders: &[usize]) -> String {
        let names: Vec<&str> = holders.iter().map(|host| self.hosts[*host].name.as_str()).collect();
        format!("{address} is on {}", names.join(" and "))
    }
}

pub(crate) struct Truth {
    pub violation: Option<Violation>,
    /// Host that cuts the power of each host at the moment; it is over when its caller is gone.
    cuts: Vec<Option<(usize, Weak<()>)>>,
    pub cuts_begun: u64,
    /// Number of times that a record said that a node is dead for certain.
    pub fenced: u64,
    pub starts: u64,
    /// Number of starts of each VM: one that is moved is not started.
    pub boots: BTreeMap<Uuid, u64>,
    /// Host on which each VM was started last.
    last_host: BTreeMap<Uuid, usize>,
    /// Number of starts of a VM on another host than before, without having been moved there.
    pub relocations: u64,
    /// Number of times that a VM of a node that was proven dead was given to another.
    pub recoveries: u64,
    /// Number of records of nodes that were removed.
    pub removals: u64,
    /// Host that said last what state a node's daemon is in.
    said_of: BTreeMap<String, usize>,
    /// Number of times that a legacy peer broke a rule as it is known to.
    pub by_legacy: BTreeMap<&'static str, u64>,
    pub orders: Orders,
}

impl Truth {
    pub fn new(hosts: usize) -> Self {
        Truth {
            violation: None,
            cuts: vec![None; hosts],
            cuts_begun: 0,
            fenced: 0,
            starts: 0,
            boots: BTreeMap::new(),
            last_host: BTreeMap::new(),
            relocations: 0,
            recoveries: 0,
            removals: 0,
            said_of: BTreeMap::new(),
            by_legacy: BTreeMap::new(),
            orders: Orders::default(),
        }
    }

    pub fn cut_over(&mut self, target: usize) {
        self.cuts[target] = None;
    }

    pub fn violate(&mut self, run: &Run, rule: &str, what: String) {
        run.note(format!("VIOLATION of {rule}: {what}"));
        if self.violation.is_none() {
            self.violation = Some(Violation { rule: rule.to_owned(), what });
        }
    }

    /// A rule is broken by a peer of PVC 1.0.3 in a way that `spec/` tells of: that is counted, and
    /// told in the log.
    fn broken_by_legacy(&mut self, run: &Run, rule: &'static str, what: &str) {
        run.note(format!("PVC 1.0.3 breaks {rule}: {what}"));
        *self.by_legacy.entry(rule).or_default() += 1;
    }

    /// The daemon of host `by` writes what state another's daemon is in.
    pub fn said_of(&mut self, by: usize, node: &str) {
        self.said_of.insert(node.to_owned(), by);
    }

    /// A guest is about to run on `host`, started, or arrived from another.
    pub fn of_start(&mut self, sight: &mut Sight<'_>, host: usize, vm: Uuid, arrives: bool) {
        self.starts += 1;
        let before = self.last_host.insert(vm, host);
        if !arrives && before.is_some_and(|before| before != host) {
            self.relocations += 1;
        }
        // One that arrives was decided on when it was sent.
        if !arrives {
            let what = format!("{} starts VM {vm}", sight.hosts[host].name);
            self.of_decision(sight, &what, host);
        }
        for other in (0..sight.hosts.len()).filter(|other| *other != host) {
            let known = &sight.hosts[other];
            let guests = &sight.hypervisors[other].guests;
            let Some(guest) = guests.get(&vm).filter(|guest| guest.is_alive()) else {
                continue;
            };
            // Its hypervisor let it go on, and nobody can know better than the one who looks after
            // that.
            if guest.is_leftover {
                continue;
            }
            let shut_out = sight.ceph.blocked.contains(&guest.client);
            let (name, here, there) =
                (guest.name.clone(), sight.hosts[host].name.clone(), known.name.clone());
            let starts = format!("VM {name} starts on {here} while");
            match (sight.bmcs[other].has_lied, shut_out) {
                (false, _) => {
                    self.violate(sight.run, "I1", format!("{starts} it runs on {there}"));
                }
                (true, true) => {}
                (true, false) => {
                    let what =
                        format!("{starts} its guest on {there}, whose BMC lied, may still write");
                    self.violate(sight.run, "I2", what);
                }
            }
        }
    }

    /// A guest loses its volumes: it must be one of a host that is off, or believed to be by a BMC
    /// that lied.
    pub fn of_broken_lock(&mut self, sight: &mut Sight<'_>, client: ClientId) {
        let victim = (0..sight.hosts.len()).find_map(|host| {
            let mut guests = sight.hypervisors[host].guests.values();
            let guest = guests.find(|guest| guest.client == client && guest.is_alive())?;
            Some((host, guest.name.clone(), sight.bmcs[host].has_lied || guest.is_leftover))
        });
        if let Some((host, guest, false)) = victim {
            let host = &sight.hosts[host].name;
            self.violate(
                sight.run,
                "I2",
                format!("the lock of VM {guest} is broken while it runs on {host}"),
            );
        }
    }

    pub fn of_cut(&mut self, sight: &mut Sight<'_>, by: usize, target: usize, caller: Weak<()>) {
        let (fencer, victim) = (sight.hosts[by].name.clone(), sight.hosts[target].name.clone());
        sight.run.note(format!("{fencer}: tells the BMC of {victim} to cut the power"));
        self.of_decision(sight, &format!("{fencer} cuts the power of {victim}"), by);
        let thawed =
            sight.thawed(by).is_some_and(|thawed| sight.run.now.saturating_sub(thawed) < ABOUT_TO);
        if !thawed {
            self.of_suspicion(sight, target, Some(by), &format!("{fencer} cuts the power of"));
        }
        let in_flight = self.cuts[target].as_ref().filter(|(_, caller)| caller.strong_count() > 0);
        // One that has stood still since cannot take back what it had begun by right.
        if let Some((other, _)) = in_flight.filter(|(other, _)| !sight.stands_still(*other)) {
            let other = sight.hosts[*other].name.clone();
            self.violate(
                sight.run,
                "I6",
                format!("{fencer} cuts the power of {victim} while {other} does"),
            );
        }
        self.cuts[target] = Some((by, caller));
        self.cuts_begun += 1;
    }

    /// Somebody takes the node for dead, and so `does` something about it; `by`: whoever wrote that
    /// of it, if nobody is named. A peer of PVC 1.0.3 compares the wall clocks of two hosts
    /// (`spec/coordination.md` §5.5).
    pub fn of_suspicion(
        &mut self,
        sight: &mut Sight<'_>,
        host: usize,
        by: Option<usize>,
        does: &str,
    ) {
        let Some(since) = self.well_since(sight, host) else { return };
        let seconds = sight.run.now.saturating_sub(since).as_secs();
        let well = if sight.run.nature.elections.is_some() { WELL_IN_ELECTIONS } else { WELL };
        if seconds < well.as_secs() {
            return;
        }
        let name = sight.hosts[host].name.clone();
        let by = by.or_else(|| self.said_of.get(&name).copied());
        let what = format!("{does} {name}, which has been well for {seconds} s");
        match by.is_some_and(|by| sight.hosts[by].is_legacy) {
            true => self.broken_by_legacy(sight.run, "I8", &what),
            false => self.violate(sight.run, "I8", what),
        }
    }

    /// Time since which nothing has kept the node's daemon from being heard; `None` if something
    /// does.
    pub fn well_since(&self, sight: &Sight<'_>, host: usize) -> Option<Duration> {
        let pid = sight.hosts[host].daemon.as_ref()?.pid;
        // Whoever has not said yet that it starts is not heard.
        let announced = self.orders.announced(host, pid)?;
        let connected = sight.zookeeper.connected_since(sight.processes, pid);
        let connected = connected.filter(|_| sight.processes[pid].runs(sight.hosts))?;
        Some(connected.max(announced).max(sight.thawed(host).unwrap_or_default()))
    }

    /// Judges a decision: without quorum nobody decides anything.
    pub fn of_decision(&mut self, sight: &mut Sight<'_>, what: &str, by: usize) {
        let zookeeper = sight.zookeeper;
        let since = zookeeper.lost_quorum_at.filter(|_| !zookeeper.has_quorum());
        let Some(since) = since else { return };
        // A process that stood still does next what it was about to do.
        let since = sight.thawed(by).map_or(since, |thawed| thawed.max(since));
        if sight.run.now.saturating_sub(since) > STILL_DECIDED {
            self.violate(sight.run, "I7", format!("{what} without quorum"));
        }
    }

    pub fn of_reset(&mut self, sight: &mut Sight<'_>, host: usize) {
        let known = &sight.hypervisors[host];
        let had = !known.guests.is_empty()
            || known
                .had_guest
                .is_some_and(|had| sight.run.now.saturating_sub(had) <= RESET_AFTER_GUESTS);
        let name = &sight.hosts[host].name;
        sight.run.note(format!("{name}: resets itself"));
        // While its hypervisor does not answer, the daemon has to believe what it saw last.
        if !had && known.is_up {
            self.violate(
                sight.run,
                "I5",
                format!("{name} resets itself without having had guests"),
            );
        }
    }

    /// A host that stood still goes on, with the addresses that it has.
    pub fn of_thaw(&mut self, sight: &mut Sight<'_>, host: usize) {
        let known = &sight.hosts[host];
        let gateways = known.gateways.iter().map(|(_, gateway)| *gateway);
        let addresses: Vec<IpNet> = known.addresses.iter().copied().chain(gateways).collect();
        for address in addresses {
            self.of_address(sight, host, address);
        }
    }

    /// The address was added on `host`.
    pub fn of_address(&mut self, sight: &mut Sight<'_>, host: usize, address: IpNet) {
        let holders = sight.holders(address);
        if holders.len() < 2 {
            return;
        }
        let what = sight.is_in_two_places(address, &holders);
        if !sight.hosts[host].is_legacy {
            return self.violate(sight.run, "I12", what);
        }
        // It adds each address before the holder may let go (`spec/coordination.md` §3); ours does
        // so then.
        self.broken_by_legacy(sight.run, "I12", &what);
        sight.run.later(LETS_GO, move |state| {
            state.judge(|truth, sight| {
                let holders = sight.holders(address);
                let ours = holders.iter().any(|host| !sight.hosts[*host].is_legacy);
                if holders.len() > 1 && ours {
                    let what = sight.is_in_two_places(address, &holders);
                    let what = format!("{what}, still after {} s", LETS_GO.as_secs());
                    truth.violate(sight.run, "I12", what);
                }
            });
        });
    }

    /// A record says that the node is dead for certain.
    pub fn of_fenced(&mut self, sight: &mut Sight<'_>, host: usize, marked_dead: Duration) {
        let known = &sight.hosts[host];
        let since = |when: Option<Duration>| when.is_some_and(|when| when >= marked_dead);
        let was_off = !known.on || since(known.last_off) || since(known.last_on);
        if !was_off && !sight.bmcs[host].has_lied {
            let name = known.name.clone();
            self.violate(
                sight.run,
                "I3",
                format!("{name} is called fenced and was never off since it fell silent"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    //! Each judge finds what it is there for, and nothing in the same world without the misdeed.

    use pvc_model::storage::VolumeId;
    use pvc_node::FloatingAddress;
    use pvc_ports::{Bmc, Hypervisor, Migration, Network, Power, Storage};

    use super::*;
    use crate::actions::Action;
    use crate::cluster::{Cluster, Shape, host_name};
    use crate::daemons::ipmi;
    use crate::guests::SimHypervisor;
    use crate::host::Net;
    use crate::log::Log;
    use crate::network::floating;
    use crate::power::{BmcManner, HostPower};
    use crate::process::Gate;
    use crate::state::World;
    use crate::storage::Volumes;

    const SECOND: Duration = Duration::from_secs(1);

    fn found(world: &World) -> Option<String> {
        let violation = world.with(|state| state.truth.violation.clone())?;
        Some(format!("{}: {}", violation.rule, violation.what))
    }

    fn vm(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn volume(number: u128) -> VolumeId {
        VolumeId::from_record(&format!("vms/web{number}")).expect("a volume's name")
    }

    /// Starts a guest with a volume of its own, as a hypervisor does when it is told to. Whether it
    /// runs.
    fn start(world: &World, host: usize, number: u128) -> bool {
        let (uuid, volume) = (vm(number), volume(number));
        let xml = format!(
            "<domain type='kvm'><name>web{number}</name><uuid>{uuid}</uuid><memory \
             unit='MiB'>512</memory>\
             <vcpu>1</vcpu><os><type>hvm</type></os><devices><disk type='network' device='disk'>\
             <source protocol='rbd' name='{volume}'/><target dev='sda' \
             bus='scsi'/></disk></devices></domain>"
        );
        world.with(|state| {
            state.ceph.volumes.insert(&volume);
            let started = state.with_hypervisors(|hypervisors, around| {
                hypervisors.start_guest(around, host, uuid, &xml)?;
                hypervisors.resume_guest(around, host, uuid)
            });
            started.is_ok()
        })
    }

    fn end(world: &World, host: usize, number: u128) {
        let why = "it is not needed any more";
        world.with(|state| {
            state.with_hypervisors(|hypervisors, around| {
                hypervisors.end_guest(around, host, vm(number), why, false);
            });
        });
    }

    // --- Guests and their locks ----------------------------------------------------------------

    /// Breaks the locks as somebody on the host of the gate, the second, does.
    async fn break_locks(gate: &Gate, number: u128) {
        let (storage, volume) = (Volumes { gate: gate.clone(), host: 1 }, volume(number));
        let locks = storage.locks(&volume).await.expect("it is there");
        assert_eq!(locks.len(), 1, "a guest has it, or had it");
        storage.break_lock(&volume, &locks[0]).await.expect("Ceph answers");
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_that_starts_while_it_runs_elsewhere_is_found() {
        let (world, _) = World::of_hosts(2);
        assert!(start(&world, 0, 1));
        end(&world, 0, 1);
        assert!(start(&world, 1, 1));
        assert_eq!(found(&world), None, "it ended where it ran before");
        assert!(!start(&world, 0, 1), "its lock is held");
        assert_eq!(
            found(&world).as_deref(),
            Some("I1: VM web1 starts on hv1 while it runs on hv2")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_broken_lock_of_a_guest_that_runs_is_found() {
        let (world, gates) = World::of_hosts(3);
        assert!(start(&world, 0, 1) && start(&world, 2, 2));
        world.with(|state| state.power_off(0, "somebody pulled the plug"));
        break_locks(&gates[1], 1).await;
        assert_eq!(found(&world), None, "its host is off");
        break_locks(&gates[1], 2).await;
        assert_eq!(
            found(&world).as_deref(),
            Some("I2: the lock of VM web2 is broken while it runs on hv3")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_that_starts_while_the_guest_of_a_lying_bmc_may_still_write_is_found() {
        let (world, gates) = World::of_hosts(2);
        assert!(start(&world, 0, 1) && start(&world, 0, 2));
        world.with(|state| state.bmcs[0].has_lied = true);
        break_locks(&gates[1], 1).await;
        assert!(start(&world, 1, 1));
        assert_eq!(found(&world), None, "what the other one writes is refused");
        assert!(!start(&world, 1, 2), "its lock is held");
        let found = found(&world).expect("nobody has shut the other one out");
        assert!(found.starts_with("I2: VM web2 starts on hv2 while its guest on hv1"), "{found}");
    }

    // --- Resets --------------------------------------------------------------------------------

    #[tokio::test(start_paused = true)]
    async fn a_node_that_resets_itself_without_guests_is_found() {
        let (world, _) = World::of_hosts(2);
        assert!(start(&world, 0, 1));
        world.with(|state| state.reset(0));
        assert_eq!(found(&world), None, "it had one to give up");
        world.with(|state| state.reset(1));
        assert_eq!(
            found(&world).as_deref(),
            Some("I5: hv2 resets itself without having had guests")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_resets_itself_long_after_its_last_guest_is_found() {
        let (world, gates) = World::of_hosts(2);
        assert!(start(&world, 0, 1) && start(&world, 1, 2));
        end(&world, 1, 2);
        gates[1].sleep(RESET_AFTER_GUESTS - SECOND).await;
        end(&world, 0, 1);
        world.with(|state| state.reset(0));
        assert_eq!(found(&world), None, "it ended its last one for that");
        gates[1].sleep(2 * SECOND).await;
        world.with(|state| state.reset(1));
        assert_eq!(
            found(&world).as_deref(),
            Some("I5: hv2 resets itself without having had guests")
        );
    }

    // --- Fencing -------------------------------------------------------------------------------

    fn bmc(host: usize) -> Bmc {
        let key = ipmi(&host_name(host));
        Bmc { host: key.hostname, user: key.username, password: key.password }
    }

    /// Three hosts, and the BMCs as the first two reach them.
    fn fencers() -> (World, [HostPower; 2]) {
        let (world, gates) = World::of_hosts(3);
        (world, [0, 1].map(|host| HostPower { gate: gates[host].clone(), host }))
    }

    #[tokio::test(start_paused = true)]
    async fn two_who_cut_the_power_of_one_node_at_once_are_found() {
        let (world, [one, two]) = fencers();
        for fencer in [&one, &two] {
            fencer.cut(&bmc(2)).await.expect("it obeys");
        }
        assert_eq!(found(&world), None, "one came after the other");
        let victim = bmc(2);
        let (first, second) = tokio::join!(one.cut(&victim), two.cut(&victim));
        first.and(second).expect("it obeys");
        assert_eq!(found(&world).as_deref(), Some("I6: hv2 cuts the power of hv3 while hv1 does"));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stands_still_cannot_take_back_what_it_asked_of_a_bmc() {
        let (world, [one, two]) = fencers();
        world.with(|state| state.bmcs[2].manner = BmcManner::Slow(5));
        let victim = bmc(2);
        let freeze = async {
            two.gate.sleep(SECOND).await;
            world.with(|state| Action::FreezeHost(0).happens_to(state));
            two.cut(&victim).await.expect("it obeys");
            world.with(|state| Action::ThawHost(0).happens_to(state));
        };
        _ = tokio::join!(one.cut(&victim), freeze);
        assert_eq!(found(&world), None, "the second had the right to it by then");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stopped_waiting_for_a_bmc_is_in_nobodys_way() {
        let (world, [one, two]) = fencers();
        world.with(|state| state.bmcs[2].manner = BmcManner::Slow(5));
        let victim = bmc(2);
        tokio::time::timeout(SECOND, one.cut(&victim)).await.expect_err("it takes longer");
        two.cut(&victim).await.expect("it obeys");
        assert_eq!(found(&world), None, "nobody else is at it any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_taken_for_dead_while_it_is_well_is_found() {
        let cluster =
            Cluster::start(Shape::plain(3, 0), Log::new(false)).await.expect("all is well");
        cluster.pass(2 * WELL).await.expect("all is well");
        let suspect = |host: usize, by: usize| {
            cluster.world.with(|state| {
                let does = "hv2 takes for dead";
                state.judge(|truth, sight| truth.of_suspicion(sight, host, Some(by), does));
            });
            found(&cluster.world)
        };
        cluster.world.with(|state| Action::Unplug(2, Net::Cluster).happens_to(state));
        assert_eq!(suspect(2, 1), None, "nobody hears it");
        cluster.world.with(|state| state.hosts[1].is_legacy = true);
        assert_eq!(suspect(0, 1), None, "PVC 1.0.3 is known for that");
        cluster.world.with(|state| state.hosts[1].is_legacy = false);
        let why = suspect(0, 1).expect("everybody hears it");
        assert!(why.starts_with("I8: hv2 takes for dead hv1, which has been well for"), "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_called_fenced_and_was_never_off_is_found() {
        let (world, gates) = World::of_hosts(2);
        world.with(|state| state.power_off(0, "somebody pulled the plug"));
        gates[1].sleep(SECOND).await;
        let silent_since = world.now();
        world.with(|state| state.judge(|truth, sight| truth.of_fenced(sight, 0, silent_since)));
        assert_eq!(found(&world), None, "it is off");
        world.with(|state| {
            state.power_on(0, "the plug is back");
            state.judge(|truth, sight| truth.of_fenced(sight, 0, silent_since));
        });
        assert_eq!(found(&world), None, "it was off until now");
        world.with(|state| state.judge(|truth, sight| truth.of_fenced(sight, 1, silent_since)));
        let why = "I3: hv2 is called fenced and was never off since it fell silent";
        assert_eq!(found(&world).as_deref(), Some(why));
    }

    // --- Without quorum ------------------------------------------------------------------------

    /// Takes ZooKeeper's servers of all hosts but the first away, or gives them back.
    fn set_servers(world: &World, up: bool) {
        world.with(|state| {
            for host in 1..state.hosts.len() {
                let server = if up { Action::ServerUp(host) } else { Action::ServerDown(host) };
                server.happens_to(state);
            }
            assert_eq!(state.zookeeper.has_quorum(), up);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_long_after_the_loss_of_the_quorum_is_found() {
        let (world, gates) = World::of_hosts(3);
        set_servers(&world, false);
        gates[0].sleep(STILL_DECIDED - SECOND).await;
        assert!(start(&world, 0, 1));
        assert_eq!(found(&world), None, "it was decided before");
        gates[0].sleep(2 * SECOND).await;
        set_servers(&world, true);
        assert!(start(&world, 0, 2));
        assert_eq!(found(&world), None, "there is a quorum again");
        set_servers(&world, false);
        gates[0].sleep(STILL_DECIDED + SECOND).await;
        assert!(start(&world, 0, 3));
        let why = format!("I7: hv1 starts VM {} without quorum", vm(3));
        assert_eq!(found(&world), Some(why));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fence_long_after_the_loss_of_the_quorum_is_found() {
        let (world, gates) = World::of_hosts(3);
        let bmcs = HostPower { gate: gates[0].clone(), host: 0 };
        bmcs.cut(&bmc(2)).await.expect("it obeys");
        assert_eq!(found(&world), None, "two of three are left");
        set_servers(&world, false);
        gates[0].sleep(STILL_DECIDED + SECOND).await;
        bmcs.cut(&bmc(1)).await.expect("it obeys");
        assert_eq!(found(&world).as_deref(), Some("I7: hv1 cuts the power of hv2 without quorum"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_move_that_begins_long_after_the_loss_of_the_quorum_is_found() {
        let (world, gates) = World::of_hosts(3);
        assert!(start(&world, 0, 1) && start(&world, 0, 2));
        let hypervisor = SimHypervisor { gate: gates[0].clone(), host: 0 };
        let to =
            Migration { host: host_name(1), max_downtime: SECOND, held: false, encrypted: false };
        let mut job = hypervisor.migrate(vm(1), &to).await.expect("both hosts answer");
        set_servers(&world, false);
        gates[0].sleep(STILL_DECIDED + SECOND).await;
        job.outcome().await.expect("it was on its way");
        assert_eq!(found(&world), None, "what was sent before may arrive");
        assert!(hypervisor.migrate(vm(2), &to).await.is_ok(), "both hosts answer");
        assert_eq!(found(&world).as_deref(), Some("I7: hv1 sends VM web2 without quorum"));
    }

    // --- Floating addresses --------------------------------------------------------------------

    /// The host takes the first of the floating addresses.
    async fn take_address(world: &World, host: usize) {
        let FloatingAddress { link, address, .. } = &floating()[0];
        let network = world.with(|state| state.hosts[host].network.clone());
        network.add_address(link, *address).await.expect("every host has this link");
    }

    async fn let_address_go(world: &World, host: usize) {
        let FloatingAddress { link, address, .. } = &floating()[0];
        let network = world.with(|state| state.hosts[host].network.clone());
        network.remove_address(link, *address).await.expect("every host has this link");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_on_two_hosts_is_found() {
        let (world, _) = World::of_hosts(3);
        take_address(&world, 0).await;
        let_address_go(&world, 0).await;
        take_address(&world, 1).await;
        assert_eq!(found(&world), None, "one after the other has it");
        world.with(|state| state.power_off(1, "somebody pulled the plug"));
        take_address(&world, 2).await;
        assert_eq!(found(&world), None, "a host without power has nothing");
        take_address(&world, 0).await;
        assert_eq!(found(&world).as_deref(), Some("I12: 192.0.2.100/24 is on hv1 and hv3"));
    }

    /// The host makes the bridge of a network of VMs, and takes its gateway.
    async fn take_gateway(world: &World, host: usize) {
        let network = world.with(|state| state.hosts[host].network.clone());
        network.insert_bridge("vmbr1001");
        let gateway: IpNet = "10.20.1.1/24".parse().expect("an address with its prefix length");
        network.add_address("vmbr1001", gateway).await.expect("the bridge was just made");
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_on_two_hosts_is_found() {
        let (world, _) = World::of_hosts(3);
        take_gateway(&world, 0).await;
        let network = world.with(|state| state.hosts[0].network.clone());
        network.remove_link("vmbr1001").await.expect("it is a bridge");
        take_gateway(&world, 1).await;
        assert_eq!(found(&world), None, "the first one's went with its bridge");
        world.with(|state| state.power_off(1, "somebody pulled the plug"));
        take_gateway(&world, 2).await;
        assert_eq!(found(&world), None, "a host without power has nothing");
        take_gateway(&world, 0).await;
        assert_eq!(found(&world).as_deref(), Some("I12: 10.20.1.1/24 is on hv1 and hv3"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_a_thawed_host_still_has_is_found() {
        let (world, _) = World::of_hosts(2);
        take_address(&world, 0).await;
        world.with(|state| Action::FreezeHost(0).happens_to(state));
        take_address(&world, 1).await;
        assert_eq!(found(&world), None, "nobody hears from a host that stands still");
        world.with(|state| Action::ThawHost(0).happens_to(state));
        assert_eq!(found(&world).as_deref(), Some("I12: 192.0.2.100/24 is on hv1 and hv2"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_kept_long_after_a_legacy_peer_has_taken_it_is_found() {
        for lets_go in [true, false] {
            let (world, gates) = World::of_hosts(2);
            world.with(|state| state.hosts[1].is_legacy = true);
            take_address(&world, 0).await;
            take_address(&world, 1).await;
            assert_eq!(found(&world), None, "PVC 1.0.3 is known for that");
            assert_eq!(world.with(|state| state.truth.by_legacy.get("I12").copied()), Some(1));
            if lets_go {
                let_address_go(&world, 0).await;
            }
            gates[0].sleep(LETS_GO + SECOND).await;
            let why = "I12: 192.0.2.100/24 is on hv1 and hv2, still after 8 s";
            assert_eq!(found(&world).as_deref(), (!lets_go).then_some(why));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_ours_takes_beside_a_legacy_peer_is_found() {
        let (world, _) = World::of_hosts(2);
        world.with(|state| state.hosts[1].is_legacy = true);
        take_address(&world, 1).await;
        assert_eq!(found(&world), None, "it is the only one");
        take_address(&world, 0).await;
        assert_eq!(found(&world).as_deref(), Some("I12: 192.0.2.100/24 is on hv1 and hv2"));
    }
}
