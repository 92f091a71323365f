use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{
    AgentAddress, DeviceChange, Guest, GuestAgents, GuestEvent, GuestRun, GuestStats, Hypervisor,
    HypervisorError, HypervisorFacts, Migration, MigrationJob, VncAddress,
};
use tokio::sync::{broadcast, mpsc, watch};
use uuid::Uuid;

use crate::Gate;
use crate::guests::{MemoryHypervisor, refused};
use crate::migration::{Finish, MemoryJob, MemoryMigration};

/// Behaviour of the guests with a certain UUID when the hypervisor is asked to do something with
/// them.
#[derive(Debug, Clone, Default)]
pub struct Manner {
    /// The power button is not listened to.
    pub ignores_shutdown: bool,
    /// The guest's monitor hangs: pressing its power button is answered by nobody.
    pub monitor_hangs: bool,
    /// Time that the guest takes to power off after its shutdown was requested.
    pub shutdown_takes: Duration,
    /// Time that bringing up the guest takes: it is listed already, and goes on coming up if nobody
    /// waits for it.
    pub start_takes: Duration,
    /// A start that is under way cannot be ended: the guest is not listed before it is there.
    pub is_deaf_at_start: bool,
    /// Starting is refused, with this reason.
    pub refuses_start: Option<String>,
    /// The guest dies while it is being started.
    pub dies_at_start: bool,
    /// Starting never returns (until the future is dropped, or somebody destroys the guest).
    pub start_hangs: bool,
    /// The guest dies this long after its start.
    pub dies_after: Option<Duration>,
    /// Time for which the guest is copied to another host before it runs there.
    pub migration_takes: Duration,
    /// A migration is begun and then fails with this reason.
    pub fails_migration: Option<String>,
    /// The guest writes to its memory faster than it can be copied: a migration ends only by being
    /// aborted.
    pub never_converges: bool,
    /// The connection breaks in the last moment of a migration: the guest runs there, or is held if
    /// that was asked for, its sender is told that this failed, and it runs on here as well.
    pub loses_finish: bool,
    /// Whether the finish is lost as with `loses_finish`, and this hypervisor breaks down at the
    /// same moment: the guest here stays held.
    pub breaks_at_finish: bool,
    /// A migration begins and then stands still, as when the other host has lost power.
    pub migration_stalls: bool,
}

struct Inner {
    host: MemoryHypervisor,
    manners: BTreeMap<Uuid, Manner>,
    /// Guests that are on their way out: when, by Tokio's clock, and which instance.
    leaving: Vec<(tokio::time::Instant, Uuid, i32)>,
    stats_hang: bool,
    /// Answers of the agents, where they are asked; `None` of one that never answers.
    agents: Option<BTreeMap<Uuid, Option<Vec<AgentAddress>>>>,
    xml_hangs: BTreeSet<Uuid>,
    xml_reads: BTreeMap<Uuid, usize>,
    is_silent: bool,
    /// CPU time that each guest has taken since it was made busy; `None` while it is idle.
    busy: Option<u64>,
    calls: Vec<String>,
    migrations: BTreeMap<Uuid, Migration>,
    /// The hypervisors that guests can be handed over to, by the name of their host.
    peers: BTreeMap<String, Weak<Mutex<Inner>>>,
    gate: Option<Arc<Gate>>,
    /// Tells starts under way which guests are destroyed.
    destroyed: broadcast::Sender<Uuid>,
}

impl Default for Inner {
    fn default() -> Self {
        Inner {
            host: MemoryHypervisor::default(),
            manners: BTreeMap::new(),
            leaving: Vec::new(),
            stats_hang: false,
            agents: None,
            xml_hangs: BTreeSet::new(),
            xml_reads: BTreeMap::new(),
            is_silent: false,
            busy: None,
            calls: Vec::new(),
            migrations: BTreeMap::new(),
            peers: BTreeMap::new(),
            gate: None,
            destroyed: broadcast::Sender::new(64),
        }
    }
}

/// A hypervisor in memory that keeps the contract of [`Hypervisor`] and misbehaves on request.
#[derive(Default)]
pub struct ScriptedHypervisor {
    inner: Arc<Mutex<Inner>>,
}

impl ScriptedHypervisor {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how the guest `uuid` behaves from now on.
    pub fn set_manner(&self, uuid: Uuid, manner: Manner) {
        self.with(|inner| inner.manners.insert(uuid, manner));
    }

    /// Sets the gate. From now on whoever asks for guests or their XML, or plugs devices, passes
    /// there before the call has an effect, and before it returns.
    pub fn set_gate(&self, gate: Arc<Gate>) {
        self.with(|inner| inner.gate = Some(gate));
    }

    /// Sets whether the hypervisor is unreachable. While set, every call fails with
    /// [`HypervisorError::Unreachable`]; guests run on.
    pub fn set_unreachable(&self, unreachable: bool) {
        self.with(|inner| inner.host.set_up(!unreachable));
    }

    /// Sets whether the hypervisor is silent. While set, [`Hypervisor::ping`] and
    /// [`Hypervisor::facts`] never return, as of a libvirt that hangs: whoever asks for more has
    /// asked one of them before.
    pub fn set_silent(&self, silent: bool) {
        self.with(|inner| inner.is_silent = silent);
    }

    /// Has the agents in guests asked, and that of `uuid` say this; with `None` it never answers.
    pub fn set_agent(&self, uuid: Uuid, says: Option<Vec<AgentAddress>>) {
        self.with(|inner| inner.agents.get_or_insert_default().insert(uuid, says));
    }

    /// Sets whether statistics hang. While set, [`Hypervisor::stats`] never returns.
    pub fn set_stats_hang(&self, hang: bool) {
        self.with(|inner| inner.stats_hang = hang);
    }

    /// Sets whether the XML of this guest hangs. While set, [`Hypervisor::live_xml`] never returns.
    pub fn set_xml_hangs(&self, uuid: Uuid, hangs: bool) {
        self.with(|inner| match hangs {
            true => inner.xml_hangs.insert(uuid),
            false => inner.xml_hangs.remove(&uuid),
        });
    }

    /// Number of times that somebody asked for the XML of this guest.
    pub fn count_of_xml(&self, uuid: Uuid) -> usize {
        self.with(|inner| inner.xml_reads.get(&uuid).copied().unwrap_or(0))
    }

    /// Has guests take CPU time from now on: their statistics differ from one call to the next.
    pub fn set_busy(&self) {
        self.with(|inner| inner.busy = Some(0));
    }

    /// Adds a peer: from now on guests can be moved to `peer` under the name `host`.
    pub fn add_peer(&self, host: &str, peer: &ScriptedHypervisor) {
        self.with(|inner| inner.peers.insert(host.to_owned(), Arc::downgrade(&peer.inner)));
    }

    /// Ends the guest as if somebody killed its QEMU process: the guest is gone, and an event says
    /// so.
    pub fn kill(&self, uuid: Uuid) {
        self.with(|inner| inner.remove(uuid));
    }

    /// Leaves a guest as if a daemon had made a guest and died before it let it run.
    pub fn leave_created(&self, uuid: Uuid, name: &str) {
        self.with(|inner| inner.make(uuid, name, "<domain/>"));
    }

    /// Adds a guest as if somebody started it behind our back.
    pub fn insert(&self, uuid: Uuid, name: &str) {
        let xml = "<domain><devices></devices></domain>";
        self.with(|inner| inner.insert(uuid, name, xml, GuestRun::Running));
    }

    pub fn set_run(&self, uuid: Uuid, run: GuestRun) {
        self.with(|inner| {
            if let Some(guest) = inner.host.guests.get_mut(&uuid) {
                guest.run = run;
            }
            inner.host.announce(GuestEvent::Changed(uuid));
        });
    }

    pub fn is_there(&self, uuid: Uuid) -> bool {
        self.with(|inner| inner.host.guests.contains_key(&uuid))
    }

    /// State of the guest, if it is there.
    pub fn run(&self, uuid: Uuid) -> Option<GuestRun> {
        self.with(|inner| inner.host.run(uuid))
    }

    /// The number of the guest's present start, if it is there.
    pub fn instance(&self, uuid: Uuid) -> Option<i32> {
        self.with(|inner| inner.host.guests.get(&uuid).map(|guest| guest.instance))
    }

    /// The XML the guest was started with.
    pub fn started_with(&self, uuid: Uuid) -> Option<String> {
        self.with(|inner| inner.host.guests.get(&uuid).map(|guest| guest.xml.clone()))
    }

    /// Every changing call so far, as `start UUID`, `shutdown UUID`, `destroy UUID`.
    pub fn calls(&self) -> Vec<String> {
        self.with(|inner| inner.calls.clone())
    }

    /// The last migration of the guest from here.
    pub fn last_migration(&self, uuid: Uuid) -> Option<Migration> {
        self.with(|inner| inner.migrations.get(&uuid).cloned())
    }

    /// Number of times that `call` (`start`, …) was made for `uuid`.
    pub fn count(&self, call: &str, uuid: Uuid) -> usize {
        let wanted = format!("{call} {uuid}");
        self.calls().iter().filter(|made| **made == wanted).count()
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner.lock().expect("no test panics while holding it");
        inner.let_go();
        act(&mut inner)
    }

    async fn answers(&self) {
        if self.with(|inner| inner.is_silent) {
            std::future::pending::<()>().await;
        }
    }

    /// Looks after `delay` whether a guest has gone, so that its event is sent then and not at the
    /// next call.
    fn announce_after(&self, delay: Duration) {
        let inner = Arc::clone(&self.inner);
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            inner.lock().expect("no test panics while holding it").let_go();
        });
    }

    /// Does as `reached`, through the gate.
    async fn passed<T>(
        &self,
        act: impl FnOnce(&mut Inner) -> Result<T, HypervisorError>,
    ) -> Result<T, HypervisorError> {
        self.pass().await;
        let answer = self.reached(act);
        self.pass().await;
        answer
    }

    async fn pass(&self) {
        let gate = self.with(|inner| inner.gate.clone());
        if let Some(gate) = gate {
            gate.pass().await;
        }
    }

    fn reached<T>(
        &self,
        act: impl FnOnce(&mut Inner) -> Result<T, HypervisorError>,
    ) -> Result<T, HypervisorError> {
        self.with(|inner| inner.host.reached().and_then(|()| act(inner)))
    }
}

impl Inner {
    fn remove(&mut self, uuid: Uuid) {
        if self.host.guests.remove(&uuid).is_some() {
            self.host.announce(GuestEvent::Changed(uuid));
        }
    }

    /// Makes a guest that waits to be let run.
    fn make(&mut self, uuid: Uuid, name: &str, xml: &str) {
        self.insert(uuid, name, xml, GuestRun::Created);
    }

    /// Takes away what a start left that came to nothing.
    fn unmake(&mut self, uuid: Uuid) {
        if self.host.run(uuid) == Some(GuestRun::Created) {
            self.remove(uuid);
        }
    }

    fn insert(&mut self, uuid: Uuid, name: &str, xml: &str, run: GuestRun) {
        let guest = self.host.new_guest(name.to_owned(), xml.to_owned(), run);
        self.host.guests.insert(uuid, Box::new(guest));
        self.host.announce(GuestEvent::Changed(uuid));
    }

    /// Removes the guests whose time has come.
    fn let_go(&mut self) {
        let now = tokio::time::Instant::now();
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.leaving).into_iter().partition(|(at, ..)| *at <= now);
        self.leaving = later;
        for (_, uuid, instance) in due {
            if self.host.is_there(uuid, instance) {
                self.remove(uuid);
            }
        }
    }

    fn leave_after(&mut self, uuid: Uuid, delay: Duration) {
        if let Some(guest) = self.host.guests.get(&uuid) {
            let instance = guest.instance;
            self.leaving.push((tokio::time::Instant::now() + delay, uuid, instance));
            self.let_go();
        }
    }
}

/// The text between the first `before` and the next `after`, or nothing.
fn between<'a>(xml: &'a str, before: &str, after: &str) -> &'a str {
    let inside = xml.split_once(before).and_then(|(_, rest)| rest.split_once(after));
    inside.map_or("", |(text, _)| text.trim())
}

/// Refuses what no hypervisor makes a guest of, as far as the tests care.
fn check(uuid: Uuid, xml: &str) -> Result<(), HypervisorError> {
    let is_whole = xml.trim_end().ends_with("</domain>");
    if !is_whole {
        return Err(refused("the XML is not well-formed"));
    }
    match between(xml, "<uuid>", "</uuid>").parse::<Uuid>() {
        Ok(described) if described == uuid => Ok(()),
        _ => Err(refused("the XML describes another guest")),
    }
}

#[async_trait]
impl GuestAgents for ScriptedHypervisor {
    async fn addresses(&self, uuid: Uuid) -> Result<Vec<AgentAddress>, HypervisorError> {
        let says = self.with(|inner| inner.agents.as_ref()?.get(&uuid).cloned());
        match says {
            Some(Some(addresses)) => Ok(addresses),
            Some(None) => std::future::pending().await,
            None if self.is_there(uuid) => Ok(Vec::new()),
            None => Err(HypervisorError::NoGuest { uuid }),
        }
    }
}

#[async_trait]
impl Hypervisor for ScriptedHypervisor {
    async fn facts(&self) -> Result<HypervisorFacts, HypervisorError> {
        self.answers().await;
        self.reached(|_| {
            Ok(HypervisorFacts {
                domain_type: "qemu".to_owned(),
                kvm_refused: Some("this is a test".to_owned()),
                libvirt_version: "11.3.0".to_owned(),
                qemu_version: "10.0.0".to_owned(),
                emulator: "/usr/bin/qemu-system-x86_64".to_owned(),
            })
        })
    }

    async fn ping(&self) -> Result<(), HypervisorError> {
        self.answers().await;
        self.reached(|_| Ok(()))
    }

    async fn guests(&self) -> Result<BTreeMap<Uuid, Guest>, HypervisorError> {
        self.passed(|inner| Ok(inner.host.shown())).await
    }

    async fn start(&self, uuid: Uuid, xml: &str) -> Result<(), HypervisorError> {
        let manner = self.reached(|inner| {
            inner.calls.push(format!("start {uuid}"));
            Ok(inner.manners.get(&uuid).cloned().unwrap_or_default())
        })?;
        let destroyed = self.with(|inner| inner.destroyed.clone());
        let mut killed = destroyed.subscribe();
        let kill = async {
            if manner.is_deaf_at_start {
                std::future::pending::<()>().await;
            }
            while killed.recv().await != Ok(uuid) {}
        };
        if manner.start_hangs {
            kill.await;
            return Err(HypervisorError::Died {
                why: "killed while it was being started".to_owned(),
            });
        }
        if !manner.start_takes.is_zero() {
            self.reached(|inner| {
                if !inner.host.guests.contains_key(&uuid) && !manner.is_deaf_at_start {
                    inner.make(uuid, between(xml, "<name>", "</name>"), xml);
                }
                Ok(())
            })?;
            tokio::select! {
                biased;
                () = kill => {
                    return Err(HypervisorError::Died { why: "killed while it was being \
                                                             started".to_owned() });
                }
                () = tokio::time::sleep(manner.start_takes) => {}
            }
        }
        let failed = match manner.refuses_start {
            Some(why) => Err(HypervisorError::Refused { why }),
            None if manner.dies_at_start => check(uuid, xml)
                .and(Err(HypervisorError::Died { why: "killed by the test".to_owned() })),
            None => check(uuid, xml),
        };
        if let Err(error) = failed {
            self.with(|inner| inner.unmake(uuid));
            return Err(error);
        }
        self.reached(|inner| {
            if !inner.host.guests.contains_key(&uuid) {
                inner.make(uuid, between(xml, "<name>", "</name>"), xml);
            }
            Ok(())
        })
    }

    async fn resume(&self, uuid: Uuid) -> Result<(), HypervisorError> {
        self.reached(|inner| {
            let Some(was) = inner.host.waits_to_run(uuid)? else { return Ok(()) };
            inner.host.guest(uuid)?.run = GuestRun::Running;
            inner.calls.push(format!("resume {uuid}"));
            inner.host.announce(GuestEvent::Changed(uuid));
            let life = inner.manners.get(&uuid).and_then(|manner| manner.dies_after);
            if let Some(life) = life.filter(|_| was == GuestRun::Created) {
                self.announce_after(life);
                inner.leave_after(uuid, life);
            }
            Ok(())
        })
    }

    async fn shutdown(&self, uuid: Uuid) -> Result<(), HypervisorError> {
        self.reached(|inner| {
            inner.host.guest(uuid)?;
            inner.calls.push(format!("shutdown {uuid}"));
            let manner = inner.manners.get(&uuid).cloned().unwrap_or_default();
            if manner.monitor_hangs {
                return Err(HypervisorError::TimedOut { seconds: 35 });
            }
            if !manner.ignores_shutdown {
                self.announce_after(manner.shutdown_takes);
                inner.leave_after(uuid, manner.shutdown_takes);
            }
            Ok(())
        })
    }

    async fn destroy(&self, uuid: Uuid) -> Result<(), HypervisorError> {
        self.reached(|inner| {
            inner.calls.push(format!("destroy {uuid}"));
            inner.remove(uuid);
            let _ = inner.destroyed.send(uuid); // nobody may be starting anything
            Ok(())
        })
    }

    async fn live_xml(&self, uuid: Uuid) -> Result<String, HypervisorError> {
        let hangs = self.with(|inner| {
            *inner.xml_reads.entry(uuid).or_default() += 1;
            inner.xml_hangs.contains(&uuid)
        });
        if hangs {
            std::future::pending::<()>().await;
        }
        self.passed(|inner| inner.host.live_xml(uuid)).await
    }

    async fn stats(&self) -> Result<BTreeMap<Uuid, GuestStats>, HypervisorError> {
        if self.with(|inner| inner.stats_hang) {
            std::future::pending::<()>().await;
        }
        self.reached(|inner| {
            inner.busy = inner.busy.map(|time| time + 1_000_000);
            let guests = inner.host.guests.iter();
            let running = guests.filter(|(_, guest)| guest.run == GuestRun::Running);
            let disk: BTreeMap<String, i64> = ["rd_req", "rd_bytes", "wr_req", "wr_bytes", "err"]
                .into_iter()
                .zip([3, 0, 0, 0, 0])
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
            let stats = GuestStats {
                max_memory_kib: 1 << 20,
                memory_kib: 1 << 20,
                vcpus: 1,
                cpu_time_ns: 5 + inner.busy.unwrap_or(0),
                memory: BTreeMap::from([("actual".to_owned(), 1 << 20)]),
                cpu: BTreeMap::from([("cpu_time".to_owned(), 5)]),
                disks: BTreeMap::from([("sda".to_owned(), disk.clone())]),
                ..GuestStats::default()
            };
            Ok(running.map(|(uuid, _)| (*uuid, stats.clone())).collect())
        })
    }

    async fn vnc(&self, uuid: Uuid) -> Result<Option<VncAddress>, HypervisorError> {
        self.reached(|inner| {
            let guest = inner.host.guest(uuid)?;
            let port = 5900 + u16::try_from(guest.instance).unwrap_or(0);
            Ok(Some(VncAddress { listen: "127.0.0.1".to_owned(), port }))
        })
    }

    async fn device(
        &self,
        uuid: Uuid,
        change: DeviceChange,
        device: &str,
    ) -> Result<(), HypervisorError> {
        self.passed(|inner| {
            inner.host.guest(uuid)?;
            if !(device.starts_with('<') && device.ends_with('>')) {
                return Err(refused("that is no device"));
            }
            // A network interface has no target of its own until it is plugged in.
            let named = between(device, "<target dev='", "'");
            let target = if named.is_empty() { device } else { named };
            inner.host.device(uuid, change, target.to_owned(), device)?;
            inner.calls.push(format!("device {uuid} {change:?} {device}"));
            Ok(())
        })
        .await
    }

    async fn resize_disk(
        &self,
        uuid: Uuid,
        target: &str,
        bytes: u64,
    ) -> Result<(), HypervisorError> {
        self.reached(|inner| {
            let guest = inner.host.guest(uuid)?;
            if !guest.plugged.contains_key(target)
                && !guest.xml.contains(&format!("dev='{target}'"))
            {
                return Err(refused("there is no such disk"));
            }
            inner.calls.push(format!("resize {uuid} {target} {bytes}"));
            Ok(())
        })
    }

    async fn migrate(
        &self,
        uuid: Uuid,
        migration: &Migration,
    ) -> Result<Box<dyn MigrationJob>, HypervisorError> {
        let (peer, manner) = self.reached(|inner| {
            inner.host.guest(uuid)?;
            inner.calls.push(format!("migrate {uuid}"));
            inner.migrations.insert(uuid, migration.clone());
            let peer = inner.peers.get(&migration.host).and_then(Weak::upgrade);
            Ok((peer, inner.manners.get(&uuid).cloned().unwrap_or_default()))
        })?;
        let to = peer.ok_or_else(|| refuses_connections(&migration.host))?;
        let handover = Handover { uuid, from: self.inner.clone(), to, held: migration.held };
        Ok(Box::new(handover.begin(manner)?))
    }

    async fn state_at(&self, host: &str, uuid: Uuid) -> Result<Option<GuestRun>, HypervisorError> {
        let peer = self.with(|inner| inner.peers.get(host).and_then(Weak::upgrade));
        let peer = peer.ok_or_else(|| refuses_connections(host))?;
        let peer = locked(&peer);
        peer.host.reached().map_err(|_| refuses_connections(host))?;
        Ok(peer.host.run(uuid))
    }

    async fn console_exchange(
        &self,
        uuid: Uuid,
        input: &[u8],
        _wait: Duration,
    ) -> Result<Vec<u8>, HypervisorError> {
        self.reached(|inner| inner.host.console(uuid, input))
    }

    fn events(&self) -> mpsc::UnboundedReceiver<GuestEvent> {
        self.with(|inner| inner.host.events())
    }

    fn agents(&self) -> Option<&dyn GuestAgents> {
        self.with(|inner| inner.agents.is_some()).then_some(self as &dyn GuestAgents)
    }
}

fn refuses_connections(host: &str) -> HypervisorError {
    HypervisorError::Unreachable { why: format!("`{host}`: connection refused") }
}

fn locked(inner: &Mutex<Inner>) -> std::sync::MutexGuard<'_, Inner> {
    inner.lock().expect("no test panics while holding it")
}

/// A guest between two hypervisors: it runs on one, and is there on the other, held, until it
/// arrives.
struct Handover {
    uuid: Uuid,
    from: Arc<Mutex<Inner>>,
    to: Arc<Mutex<Inner>>,
    held: bool,
}

impl Handover {
    fn prepare(&self) -> Result<(), HypervisorError> {
        let leaving = locked(&self.from).host.guest(self.uuid)?.clone();
        let mut to = locked(&self.to);
        to.host.reached()?;
        to.host.can_receive(self.uuid)?;
        to.insert(self.uuid, &leaving.name, &leaving.xml, GuestRun::Arriving);
        to.host.guest(self.uuid)?.plugged = leaving.plugged;
        Ok(())
    }

    /// Returns when the guest has ended here by itself.
    async fn until_gone(&self) {
        while locked(&self.from).host.guests.contains_key(&self.uuid) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Removes what is held on the target.
    fn undo(&self) {
        let mut to = locked(&self.to);
        if to.host.run(self.uuid) == Some(GuestRun::Arriving) {
            to.remove(self.uuid);
        }
    }

    /// Ends the migration: the guest stops here and runs there, or is held there.
    fn finish(&self, manner: &Manner) -> Result<(), HypervisorError> {
        let is_here = locked(&self.from).host.guests.contains_key(&self.uuid);
        if !is_here {
            self.undo();
            return Err(refused("domain is no longer running"));
        }
        let finish = match manner {
            Manner { breaks_at_finish: true, .. } => Finish::Broken,
            Manner { loses_finish: true, .. } => Finish::Lost,
            _ => Finish::Done,
        };
        {
            let mut to = locked(&self.to);
            to.host.arrives(self.uuid, self.held)?;
            to.host.announce(GuestEvent::Changed(self.uuid));
        }
        let mut from = locked(&self.from);
        from.host.departs(self.uuid, finish);
        from.host.announce(GuestEvent::Changed(self.uuid));
        match finish {
            Finish::Done => Ok(()),
            Finish::Lost | Finish::Broken => Err(refused("the connection was closed")),
        }
    }

    /// Begins it: from now on it goes on by itself, until it is aborted.
    fn begin(self, manner: Manner) -> Result<MemoryJob, HypervisorError> {
        self.prepare()?;
        let stalls = manner.migration_stalls;
        let migration =
            MemoryMigration::begin(manner.migration_takes, manner.never_converges && !stalls);
        if stalls {
            migration.stands_still_after(manner.migration_takes / 4);
        }
        let (abort, aborted) = watch::channel(false);
        let job = migration.job(self.uuid, move || {
            abort.send_replace(true);
        });
        tokio::spawn(self.run(migration, manner, aborted));
        Ok(job)
    }

    async fn run(
        self,
        migration: MemoryMigration,
        manner: Manner,
        mut aborted: watch::Receiver<bool>,
    ) {
        let copied = async {
            tokio::time::sleep(manner.migration_takes).await;
            if manner.never_converges || manner.migration_stalls {
                std::future::pending::<()>().await;
            }
        };
        let was_aborted = tokio::select! {
            biased;
            // The job may be dropped: then nobody aborts it any more.
            Ok(_) = aborted.wait_for(|aborted| *aborted) => true,
            () = self.until_gone() => false,
            () = copied => false,
        };
        let outcome = match &manner.fails_migration {
            _ if was_aborted => Err("the migration was aborted".to_owned()),
            Some(why) => Err(why.clone()),
            None => self.finish(&manner).map_err(|error| error.to_string()),
        };
        if outcome.is_err() {
            self.undo();
        }
        migration.end(outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_guest_leaves_when_its_time_has_come_and_says_so() {
        let hypervisor = ScriptedHypervisor::new();
        let uuid = Uuid::from_u128(1);
        let takes = Manner { shutdown_takes: Duration::from_secs(3), ..Manner::default() };
        hypervisor.set_manner(uuid, takes);
        hypervisor
            .start(uuid, &format!("<domain><name>a</name><uuid>{uuid}</uuid></domain>"))
            .await
            .unwrap();
        let mut events = hypervisor.events();
        hypervisor.shutdown(uuid).await.unwrap();
        assert!(hypervisor.is_there(uuid));
        assert_eq!(events.recv().await, Some(GuestEvent::Changed(uuid)));
        assert!(!hypervisor.is_there(uuid));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unreachable_hypervisor_fails_every_call_and_its_guests_run_on() {
        let hypervisor = ScriptedHypervisor::new();
        let uuid = Uuid::from_u128(1);
        hypervisor.insert(uuid, "a");
        hypervisor.set_unreachable(true);
        assert!(hypervisor.guests().await.is_err());
        hypervisor.set_unreachable(false);
        assert_eq!(hypervisor.guests().await.unwrap()[&uuid].name, "a");
    }
}
