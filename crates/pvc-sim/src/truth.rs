//! What must never be true, judged by the hosts themselves and not by anybody's records.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use pvc_model::link::IpNet;
use uuid::Uuid;

use crate::orders::Orders;
use crate::state::State;
use crate::storage::ClientId;

/// How long a host may have been without guests until a reset of it is one without need: ending the last ones
/// is part of it.
const RESET_AFTER_GUESTS: Duration = Duration::from_secs(60);

/// How long after the loss of the quorum something may still happen that was decided before.
const STILL_DECIDED: Duration = Duration::from_secs(30);

/// For how long a node must have been well until nobody has a reason any more to take it for dead.
const WELL: Duration = Duration::from_secs(60);

/// A process that stood still does next what it was about to do, and no check can be later than its last one.
const ABOUT_TO: Duration = Duration::from_secs(5);

/// How long after an older peer has taken an address a holder of ours may still have it: a phase of the hand-over,
/// and the stall that the older one's locks are known for ([T3]).
const LETS_GO: Duration = Duration::from_secs(8);

/// Something that must never happen has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// `I1`, …: the rule of the design; or `progress`, `panic`, `scene`.
    pub rule: String,
    pub what: String,
}

pub(crate) struct Truth {
    pub violation: Option<Violation>,
    /// Who cuts the power of each host at the moment; it is over when its caller is gone.
    cuts: Vec<Option<(usize, Weak<()>)>>,
    pub cuts_begun: u64,
    /// How often a record said that a node is dead for certain.
    pub fenced: u64,
    pub starts: u64,
    /// How often each VM was started: one that is moved is not.
    pub boots: BTreeMap<Uuid, u64>,
    /// Where each VM was started last.
    last_host: BTreeMap<Uuid, usize>,
    /// How often one was started on another host than before, without having been moved there.
    pub relocations: u64,
    /// Who said last what state a node's daemon is in.
    said_of: BTreeMap<String, usize>,
    /// How often a peer of PVC 1.0.3 broke a rule as it is known to.
    pub by_older: BTreeMap<&'static str, u64>,
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
            said_of: BTreeMap::new(),
            by_older: BTreeMap::new(),
            orders: Orders::default(),
        }
    }

    pub fn cut_over(&mut self, target: usize) {
        self.cuts[target] = None;
    }
}

impl State {
    pub fn violate(&mut self, rule: &str, what: String) {
        self.note(format!("VIOLATION of {rule}: {what}"));
        if self.truth.violation.is_none() {
            self.truth.violation = Some(Violation { rule: rule.to_owned(), what });
        }
    }

    /// A rule is broken by a peer of PVC 1.0.3 in a way that `spec/` tells of: that is counted, and told in the log.
    fn broken_by_older(&mut self, rule: &'static str, what: &str) {
        self.note(format!("PVC 1.0.3 breaks {rule}: {what}"));
        *self.truth.by_older.entry(rule).or_default() += 1;
    }

    /// The daemon of host `by` writes what state another's daemon is in.
    pub fn truth_of_verdict(&mut self, by: usize, node: &str) {
        self.truth.said_of.insert(node.to_owned(), by);
    }

    /// A guest is about to run on `host`, started or arrived.
    pub fn truth_of_start(&mut self, host: usize, vm: Uuid) {
        self.truth.starts += 1;
        let arrives = self.hosts[host].guests.contains_key(&vm);
        let before = self.truth.last_host.insert(vm, host);
        if !arrives && before.is_some_and(|before| before != host) {
            self.truth.relocations += 1;
        }
        // One that arrives was decided on when it was sent.
        if !arrives {
            self.truth_of_decision(&format!("{} starts VM {vm}", self.hosts[host].name), host);
        }
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            let known = &self.hosts[other];
            let Some(guest) = known.guests.get(&vm).filter(|guest| !guest.is_incoming) else { continue };
            // Its hypervisor let it go on, and nobody can know better than the one who looks after that.
            if guest.is_leftover {
                continue;
            }
            let shut_out = self.ceph.blocked.contains(&guest.client);
            let (name, here, there) = (guest.name.clone(), self.hosts[host].name.clone(), known.name.clone());
            match (known.bmc_lied, shut_out) {
                (false, _) => self.violate("I1", format!("VM {name} starts on {here} while it runs on {there}")),
                (true, true) => {}
                (true, false) => self.violate(
                    "I2",
                    format!("VM {name} starts on {here} while its guest on {there}, whose BMC lied, may still write"),
                ),
            }
        }
    }

    /// A guest loses its volumes: it must be one of a host that is off, or believed to be by a BMC that lied.
    pub fn truth_of_broken_lock(&mut self, client: ClientId) {
        let victim = self.hosts.iter().find_map(|host| {
            let guest = host.guests.values().find(|guest| guest.client == client)?;
            Some((host.name.clone(), guest.name.clone(), host.bmc_lied || guest.is_leftover))
        });
        if let Some((host, guest, false)) = victim {
            self.violate("I2", format!("the lock of VM {guest} is broken while it runs on {host}"));
        }
    }

    pub fn truth_of_cut(&mut self, by: usize, target: usize, caller: Weak<()>) {
        let (fencer, victim) = (self.hosts[by].name.clone(), self.hosts[target].name.clone());
        self.note(format!("{fencer}: tells the BMC of {victim} to cut the power"));
        self.truth_of_decision(&format!("{fencer} cuts the power of {victim}"), by);
        let thawed = self.thawed(by).is_some_and(|thawed| self.now.saturating_sub(thawed) < ABOUT_TO);
        if !thawed {
            self.truth_of_suspicion(target, Some(by), &format!("{fencer} cuts the power of"));
        }
        let in_flight = self.truth.cuts[target].as_ref().filter(|(_, caller)| caller.strong_count() > 0);
        if let Some((other, _)) = in_flight {
            let other = self.hosts[*other].name.clone();
            self.violate("I6", format!("{fencer} cuts the power of {victim} while {other} does"));
        }
        self.truth.cuts[target] = Some((by, caller));
        self.truth.cuts_begun += 1;
    }

    /// When the daemon of the host was last thawed.
    fn thawed(&self, host: usize) -> Option<Duration> {
        let daemon = self.hosts[host].daemon.as_ref()?;
        self.processes[daemon.pid].thawed
    }

    /// Somebody takes the node for dead, and so `does` something about it; `by`: whoever wrote that of it, if nobody
    /// is named. A peer of PVC 1.0.3 compares the wall clocks of two hosts (`spec/coordination.md` §5.5).
    pub fn truth_of_suspicion(&mut self, host: usize, by: Option<usize>, does: &str) {
        let Some(since) = self.well_since(host) else { return };
        let seconds = self.now.saturating_sub(since).as_secs();
        if seconds < WELL.as_secs() {
            return;
        }
        let name = self.hosts[host].name.clone();
        let by = by.or_else(|| self.truth.said_of.get(&name).copied());
        let what = format!("{does} {name}, which has been well for {seconds} s");
        match by.is_some_and(|by| self.hosts[by].is_older) {
            true => self.broken_by_older("I8", &what),
            false => self.violate("I8", what),
        }
    }

    /// Since when nothing has kept the node's daemon from being heard; `None` if something does.
    pub fn well_since(&self, host: usize) -> Option<Duration> {
        let pid = self.hosts[host].daemon.as_ref()?.pid;
        // Whoever has not said yet that it starts is not heard.
        let announced = self.truth.orders.announced(host, pid)?;
        let heard = self.heard_since(pid).filter(|_| self.runs(pid))?;
        Some(heard.max(announced).max(self.thawed(host).unwrap_or_default()))
    }

    /// Without quorum nobody decides anything.
    pub fn truth_of_decision(&mut self, what: &str, by: usize) {
        let since = self.zookeeper.lost_quorum_at.filter(|_| !self.has_quorum());
        let Some(since) = since else { return };
        // A process that stood still does next what it was about to do.
        let since = self.thawed(by).map_or(since, |thawed| thawed.max(since));
        if self.now.saturating_sub(since) > STILL_DECIDED {
            self.violate("I7", format!("{what} without quorum"));
        }
    }

    pub fn truth_of_reset(&mut self, host: usize) {
        let known = &self.hosts[host];
        let had = !known.guests.is_empty()
            || known.had_guest.is_some_and(|had| self.now.saturating_sub(had) <= RESET_AFTER_GUESTS);
        let name = known.name.clone();
        self.note(format!("{name}: resets itself"));
        // While its hypervisor does not answer, the daemon has to believe what it saw last.
        if !had && known.hypervisor_up {
            self.violate("I5", format!("{name} resets itself without having had guests"));
        }
    }

    fn holders(&self, address: IpNet) -> Vec<usize> {
        let has = |host: &usize| {
            let host = &self.hosts[*host];
            host.on && !host.frozen && host.addresses.contains(&address)
        };
        (0..self.hosts.len()).filter(has).collect()
    }

    fn is_in_two_places(&self, address: IpNet, holders: &[usize]) -> String {
        let names: Vec<&str> = holders.iter().map(|host| self.hosts[*host].name.as_str()).collect();
        format!("{address} is on {}", names.join(" and "))
    }

    /// The address was added on `host`.
    pub fn truth_of_address(&mut self, host: usize, address: IpNet) {
        let holders = self.holders(address);
        if holders.len() < 2 {
            return;
        }
        let what = self.is_in_two_places(address, &holders);
        if !self.hosts[host].is_older {
            return self.violate("I12", what);
        }
        // It adds each address before the holder may let go (`spec/coordination.md` §3); ours does so then.
        self.broken_by_older("I12", &what);
        self.later(LETS_GO, move |state| {
            let holders = state.holders(address);
            let ours = holders.iter().any(|host| !state.hosts[*host].is_older);
            if holders.len() > 1 && ours {
                let what = state.is_in_two_places(address, &holders);
                state.violate("I12", format!("{what}, still after {} s", LETS_GO.as_secs()));
            }
        });
    }

    /// A record says that the node is dead for certain.
    pub fn truth_of_fenced(&mut self, host: usize, marked_dead: Duration) {
        let known = &self.hosts[host];
        let since = |when: Option<Duration>| when.is_some_and(|when| when >= marked_dead);
        let was_off = !known.on || since(known.last_off) || since(known.last_on);
        if !was_off && !known.bmc_lied {
            let name = known.name.clone();
            self.violate("I3", format!("{name} is called fenced and was never off since it fell silent"));
        }
    }
}
