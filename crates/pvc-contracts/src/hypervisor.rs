//! Contract of every [`Hypervisor`], with a guest that really runs (or is simulated as if it did).

#![allow(clippy::disallowed_methods, reason = "real adapters work in real time")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pvc_ports::{
    DeviceChange, Guest, GuestEvent, GuestRun, Hypervisor, HypervisorError, Migration, MigrationJob,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

const PAUSE: Duration = Duration::from_millis(100);

/// Makes the XML of a guest with this UUID and name.
pub type GuestXml = Box<dyn Fn(Uuid, &str) -> String + Send + Sync>;

/// Things that the suite needs from whoever runs it.
pub struct HypervisorFixture {
    /// The guest has a VNC display, obeys its power button once it has booted, and answers `pong`
    /// to a line `ping` on its serial console.
    pub guest: GuestXml,
    /// The XML of a disk of [`SPARE_BYTES`] bytes that can be plugged into it, with target `sdb`.
    pub spare_disk: String,
    /// The XML of a network interface that can be plugged into it, with [`SPARE_MAC`].
    pub spare_nic: String,
    /// Time that the guest may take to boot, and to go down.
    pub time_limit: Duration,
}

/// The size of the spare disk at the beginning.
pub const SPARE_BYTES: u64 = 1 << 20;
/// MAC address of the spare network interface.
pub const SPARE_MAC: &str = "52:54:00:c0:de:01";
const SPARE_TARGET: &str = "sdb";
/// Alias that a device is plugged in with.
const ALIAS: &str = "ua-contract";
const GROWN_BYTES: u64 = 3 << 20;

/// Runs the whole suite. Guests that it does not know may run meanwhile.
///
/// # Panics
/// When the hypervisor breaks the contract.
pub async fn hypervisor_contract(hypervisor: Arc<dyn Hypervisor>, fixture: HypervisorFixture) {
    let suite = Suite { hypervisor, fixture };
    suite.the_host_is_described_the_same_way_twice().await;
    suite.an_absent_guest_is_named_in_the_error_and_destroying_it_succeeds().await;
    suite.a_description_that_is_no_guest_is_refused_and_leaves_nothing().await;
    suite.a_description_of_another_guest_is_refused_and_leaves_nothing().await;
    suite.a_guest_that_is_made_waits_to_be_let_run().await;
    let uuid = suite.a_started_guest_runs_and_starting_it_again_changes_nothing().await;
    suite.a_running_guest_shows_its_xml_display_and_figures(uuid).await;
    suite.a_booted_guest_answers_on_its_console(uuid).await;
    suite.a_disk_is_plugged_in_grown_and_pulled_out_while_the_guest_runs(uuid).await;
    suite.an_interface_is_plugged_in_and_pulled_out_while_the_guest_runs(uuid).await;
    suite.a_guest_goes_when_its_shutdown_is_requested(uuid).await;
    suite.a_guest_started_again_is_another_instance_and_is_gone_when_destroy_returns().await;
}

struct Suite {
    hypervisor: Arc<dyn Hypervisor>,
    fixture: HypervisorFixture,
}

impl Suite {
    async fn the_host_is_described_the_same_way_twice(&self) {
        let facts = self.hypervisor.facts().await.expect("facts");
        assert!(["kvm", "qemu"].contains(&facts.domain_type.as_str()), "{facts:?}");
        assert_eq!(
            facts.kvm_refused.is_some(),
            facts.domain_type == "qemu",
            "why not KVM, and only then: {facts:?}"
        );
        assert!(!facts.emulator.is_empty() && !facts.qemu_version.is_empty(), "{facts:?}");
        assert_eq!(self.hypervisor.facts().await.expect("facts again"), facts);
        self.hypervisor.ping().await.expect("a hypervisor that gives facts answers a ping");
    }

    async fn an_absent_guest_is_named_in_the_error_and_destroying_it_succeeds(&self) {
        let absent = uuid(1);
        assert!(!self.guests().await.contains_key(&absent));
        self.hypervisor.destroy(absent).await.expect("what is not there is destroyed already");
        let hypervisor = &self.hypervisor;
        is_no_guest(absent, hypervisor.resume(absent).await);
        is_no_guest(absent, hypervisor.shutdown(absent).await);
        is_no_guest(absent, hypervisor.live_xml(absent).await);
        is_no_guest(absent, hypervisor.vnc(absent).await);
        is_no_guest(absent, hypervisor.resize_disk(absent, "sda", GROWN_BYTES).await);
        is_no_guest(
            absent,
            hypervisor.device(absent, DeviceChange::Attach, &self.fixture.spare_disk).await,
        );
        is_no_guest(absent, hypervisor.console_exchange(absent, b"ping\n", PAUSE).await);
        if let Some(agents) = hypervisor.agents() {
            is_no_guest(absent, agents.addresses(absent).await);
        }
    }

    async fn a_description_that_is_no_guest_is_refused_and_leaves_nothing(&self) {
        let guest = uuid(2);
        let whole = (self.fixture.guest)(guest, "contract-broken");
        for xml in ["", "no XML at all", "<domain/>", &whole[..whole.len() / 2]] {
            is_refused(self.hypervisor.start(guest, xml).await);
        }
        assert!(!self.guests().await.contains_key(&guest));
    }

    async fn a_description_of_another_guest_is_refused_and_leaves_nothing(&self) {
        let (asked, described) = (uuid(2), uuid(3));
        is_refused(
            self.hypervisor.start(asked, &(self.fixture.guest)(described, "contract-other")).await,
        );
        let guests = self.guests().await;
        assert!(!guests.contains_key(&asked) && !guests.contains_key(&described));
    }

    async fn a_guest_that_is_made_waits_to_be_let_run(&self) {
        let guest = uuid(4);
        self.make(guest).await;
        let made = self.guests().await.remove(&guest).expect("it is there");
        assert_eq!(made.run, GuestRun::Created);
        self.make(guest).await;
        assert_eq!(self.guests().await.remove(&guest), Some(made.clone()), "it waits on");
        let xml = self.hypervisor.live_xml(guest).await.expect("a guest that waits has its XML");
        assert!(xml.contains(&guest.to_string()), "{xml}");
        assert_eq!(self.guests().await.remove(&guest), Some(made), "looking at it changes nothing");
        self.hypervisor.destroy(guest).await.expect("what never ran can be ended");
        assert!(!self.guests().await.contains_key(&guest));
    }

    async fn a_started_guest_runs_and_starting_it_again_changes_nothing(&self) -> Uuid {
        let guest = uuid(4);
        let mut events = self.hypervisor.events();
        self.start(guest).await;
        self.is_reported(&mut events, guest).await;
        let first = self.runs(guest).await;
        assert_eq!((first.uuid, first.name.as_str()), (guest, NAME));
        self.start(guest).await;
        assert_eq!(self.runs(guest).await, first);
        guest
    }

    async fn a_running_guest_shows_its_xml_display_and_figures(&self, guest: Uuid) {
        let xml = self.hypervisor.live_xml(guest).await.expect("a running guest has its XML");
        assert!(xml.contains(&guest.to_string()), "{xml}");
        if let Some(agents) = self.hypervisor.agents() {
            assert_eq!(agents.addresses(guest).await.expect("it runs"), [], "it has no agent");
        }
        let vnc = self
            .hypervisor
            .vnc(guest)
            .await
            .expect("asking succeeds")
            .expect("the guest has a display");
        assert!(!vnc.listen.is_empty() && vnc.port > 0, "{vnc:?}");
        let stats = self
            .eventually("figures of the running guest", || async {
                self.hypervisor.stats().await.expect("figures").remove(&guest)
            })
            .await;
        assert_eq!(stats.vcpus, 1, "{stats:?}");
        assert!(stats.memory_kib > 0 && stats.memory_kib <= stats.max_memory_kib, "{stats:?}");
        assert_eq!(stats.memory.get("actual"), Some(&stats.memory_kib), "{stats:?}");
        assert_eq!(stats.cpu.get("cpu_time"), Some(&stats.cpu_time_ns), "{stats:?}");
        let disk = stats.disks.get("sda").expect("the guest's disk is counted");
        for figure in ["rd_req", "rd_bytes", "wr_req", "wr_bytes", "err"] {
            assert!(disk.contains_key(figure), "`{figure}` in {disk:?}");
        }
    }

    async fn a_booted_guest_answers_on_its_console(&self, guest: Uuid) {
        self.eventually("an answer on the console", || async {
            let answer = self
                .hypervisor
                .console_exchange(guest, b"ping\n", Duration::from_millis(500))
                .await;
            String::from_utf8_lossy(&answer.expect("the console opens"))
                .contains("pong")
                .then_some(())
        })
        .await;
    }

    async fn a_disk_is_plugged_in_grown_and_pulled_out_while_the_guest_runs(&self, guest: Uuid) {
        let device = &self.fixture.spare_disk;
        let plugged =
            || async { self.hypervisor.live_xml(guest).await.expect("XML").contains(SPARE_TARGET) };
        assert!(!plugged().await);
        self.hypervisor
            .device(guest, DeviceChange::Attach, &with_alias(device))
            .await
            .expect("the disk is plugged in");
        assert!(plugged().await);
        let live = self.hypervisor.live_xml(guest).await.expect("XML");
        assert!(live.contains(ALIAS), "an alias of ours stays: {live}");
        is_refused(self.hypervisor.device(guest, DeviceChange::Attach, device).await);
        self.hypervisor
            .resize_disk(guest, SPARE_TARGET, GROWN_BYTES)
            .await
            .expect("the disk grows");
        is_refused(self.hypervisor.resize_disk(guest, "nosuchdisk", GROWN_BYTES).await);
        self.hypervisor
            .device(guest, DeviceChange::Detach, device)
            .await
            .expect("the disk is pulled out");
        self.eventually("the guest without the disk", || async {
            (!plugged().await).then_some(())
        })
        .await;
        is_refused(self.hypervisor.device(guest, DeviceChange::Detach, device).await);
        is_refused(self.hypervisor.device(guest, DeviceChange::Attach, "<disk").await);
    }

    /// The guest has to let go of it, as of any PCI device.
    async fn an_interface_is_plugged_in_and_pulled_out_while_the_guest_runs(&self, guest: Uuid) {
        let device = &self.fixture.spare_nic;
        let plugged =
            || async { self.hypervisor.live_xml(guest).await.expect("XML").contains(SPARE_MAC) };
        assert!(!plugged().await);
        let attached = self.hypervisor.device(guest, DeviceChange::Attach, device).await;
        attached.expect("the interface is plugged in");
        assert!(plugged().await);
        let detached = self.hypervisor.device(guest, DeviceChange::Detach, device).await;
        detached.expect("the interface is pulled out");
        self.eventually("the guest without the interface", || async {
            (!plugged().await).then_some(())
        })
        .await;
        is_refused(self.hypervisor.device(guest, DeviceChange::Detach, device).await);
    }

    async fn a_guest_goes_when_its_shutdown_is_requested(&self, guest: Uuid) {
        let mut events = self.hypervisor.events();
        self.hypervisor.shutdown(guest).await.expect("the shutdown is requested");
        self.eventually("the guest gone", || async {
            (!self.guests().await.contains_key(&guest)).then_some(())
        })
        .await;
        self.is_reported(&mut events, guest).await;
        is_no_guest(guest, self.hypervisor.shutdown(guest).await);
    }

    async fn a_guest_started_again_is_another_instance_and_is_gone_when_destroy_returns(&self) {
        let guest = uuid(4);
        self.start(guest).await;
        let first = self.runs(guest).await.instance;
        self.hypervisor.destroy(guest).await.expect("the plug is pulled");
        assert!(!self.guests().await.contains_key(&guest));
        self.hypervisor.destroy(guest).await.expect("the plug is pulled again");
        self.start(guest).await;
        assert_ne!(self.runs(guest).await.instance, first);
        self.hypervisor.destroy(guest).await.expect("the plug is pulled");
    }

    // --- What the sentences are made of ----------------------------------------------------------

    async fn make(&self, guest: Uuid) {
        self.hypervisor
            .start(guest, &(self.fixture.guest)(guest, NAME))
            .await
            .expect("the guest is made");
    }

    async fn start(&self, guest: Uuid) {
        self.make(guest).await;
        self.hypervisor.resume(guest).await.expect("the guest is let run");
    }

    async fn guests(&self) -> BTreeMap<Uuid, Guest> {
        self.hypervisor.guests().await.expect("a list of the guests")
    }

    async fn runs(&self, guest: Uuid) -> Guest {
        self.eventually("the guest running", || async {
            self.guests().await.remove(&guest).filter(|guest| guest.run == GuestRun::Running)
        })
        .await
    }

    /// Waits for a hint about `guest`, or for one to look at everything.
    async fn is_reported(&self, events: &mut UnboundedReceiver<GuestEvent>, guest: Uuid) {
        let announced = timeout(self.fixture.time_limit, async {
            while let Some(event) = events.recv().await {
                if matches!(event, GuestEvent::Resync) || event == GuestEvent::Changed(guest) {
                    return;
                }
            }
            panic!("the hints ended");
        });
        announced.await.expect("a hint that the guest changed");
    }

    async fn eventually<T, F: Future<Output = Option<T>>>(
        &self,
        what: &str,
        look: impl Fn() -> F,
    ) -> T {
        let until = Instant::now() + self.fixture.time_limit;
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(Instant::now() < until, "waited {:?} for {what}", self.fixture.time_limit);
            sleep(PAUSE).await;
        }
    }
}

/// The element of a device with an alias.
fn with_alias(device: &str) -> String {
    let at = device.rfind("</").expect("it has an end tag");
    format!("{}<alias name='{ALIAS}'/>{}", &device[..at], &device[at..])
}

/// Things that the suite for two hypervisors needs from whoever runs it.
pub struct MigrationFixture {
    /// A guest without disks, or with disks that both sides reach.
    pub guest: GuestXml,
    /// Names by which the first hypervisor reaches the second, and the second the first.
    pub hosts: (String, String),
    /// A host where nobody listens.
    pub nobody: String,
    pub time_limit: Duration,
}

/// Moves a guest between two hypervisors that reach each other.
///
/// # Panics
/// When a hypervisor breaks the contract.
pub async fn migration_contract(
    one: Arc<dyn Hypervisor>,
    two: Arc<dyn Hypervisor>,
    fixture: MigrationFixture,
) {
    let pair = Pair { one, two, fixture, guest: uuid(9) };
    pair.a_guest_that_is_not_there_is_named().await;
    pair.start().await;
    pair.a_target_that_does_not_answer_leaves_the_guest_as_it_is().await;
    pair.a_moved_guest_runs_there_and_is_gone_here().await;
    pair.it_comes_back_the_same_way().await;
    pair.a_guest_that_is_sent_held_goes_on_when_it_is_asked_to_and_not_before().await;
    pair.a_migration_that_is_given_up_leaves_the_guest_in_one_place().await;
}

struct Pair {
    one: Arc<dyn Hypervisor>,
    two: Arc<dyn Hypervisor>,
    fixture: MigrationFixture,
    guest: Uuid,
}

impl Pair {
    async fn a_guest_that_is_not_there_is_named(&self) {
        is_no_guest(self.guest, self.migrate(&self.one, &self.fixture.hosts.0).await.map(drop));
    }

    async fn start(&self) {
        let xml = (self.fixture.guest)(self.guest, "contract-moves");
        self.one.start(self.guest, &xml).await.expect("the guest is made");
        self.one.resume(self.guest).await.expect("the guest is let run");
        self.until_runs(&self.one).await;
    }

    async fn a_target_that_does_not_answer_leaves_the_guest_as_it_is(&self) {
        let before = self.run(&self.one).await;
        let asked = self.one.state_at(&self.fixture.nobody, self.guest).await;
        assert!(matches!(asked, Err(HypervisorError::Unreachable { .. })), "{asked:?}");
        let refused = match self.migrate(&self.one, &self.fixture.nobody).await {
            Ok(mut job) => job.outcome().await,
            Err(error) => Err(error),
        };
        assert!(!refused.expect_err("nobody is there").to_string().is_empty());
        assert_eq!(self.run(&self.one).await, before);
    }

    async fn a_moved_guest_runs_there_and_is_gone_here(&self) {
        let mut events = self.two.events();
        let (there, here) = &self.fixture.hosts;
        assert_eq!(self.one.state_at(there, self.guest).await.expect("an answer"), None);
        assert_eq!(
            self.two.state_at(here, self.guest).await.expect("an answer"),
            Some(GuestRun::Running)
        );
        let device =
            with_alias("<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>");
        let plugged = self.one.device(self.guest, DeviceChange::Attach, &device).await;
        plugged.expect("the device is plugged in");
        let mut job = self.migrate(&self.one, &self.fixture.hosts.0).await.expect("it begins");
        // Told or not, as fast as it may be over: asking harms nothing.
        if let Some(progress) = job.progress().await.expect("an answer") {
            assert!(progress.processed <= progress.total.max(progress.processed), "{progress:?}");
        }
        job.outcome().await.expect("it arrives");
        assert_eq!(self.run(&self.one).await, None);
        self.until_runs(&self.two).await;
        let live = self.two.live_xml(self.guest).await.expect("XML");
        assert!(live.contains(ALIAS), "the device comes with its alias: {live}");
        assert_eq!(
            self.one.state_at(there, self.guest).await.expect("an answer"),
            Some(GuestRun::Running)
        );
        assert_eq!(self.two.state_at(here, self.guest).await.expect("an answer"), None);
        let announced = timeout(self.fixture.time_limit, events.recv()).await;
        assert!(announced.is_ok(), "nobody was told of its arrival");
        is_no_guest(self.guest, self.migrate(&self.one, &self.fixture.hosts.0).await.map(drop));
        job.abort().await.expect("what is over is given up already");
    }

    async fn it_comes_back_the_same_way(&self) {
        let mut job = self.migrate(&self.two, &self.fixture.hosts.1).await.expect("it begins");
        job.outcome().await.expect("it arrives");
        assert_eq!(self.run(&self.two).await, None);
        self.until_runs(&self.one).await;
    }

    async fn a_guest_that_is_sent_held_goes_on_when_it_is_asked_to_and_not_before(&self) {
        let max_downtime = Duration::from_millis(300);
        let host = self.fixture.hosts.0.clone();
        let held = Migration { host, max_downtime, held: true, encrypted: false };
        let mut job = self.one.migrate(self.guest, &held).await.expect("it begins");
        job.outcome().await.expect("it arrives");
        assert_eq!(self.run(&self.one).await, None);
        assert_eq!(self.run(&self.two).await, Some(GuestRun::Paused));
        let there = self.one.state_at(&self.fixture.hosts.0, self.guest).await.expect("an answer");
        assert_eq!(there, Some(GuestRun::Paused));
        sleep(PAUSE).await;
        assert_eq!(
            self.run(&self.two).await,
            Some(GuestRun::Paused),
            "nobody has told it to go on"
        );
        for _ in 0..2 {
            self.two.resume(self.guest).await.expect("it goes on");
            assert_eq!(self.run(&self.two).await, Some(GuestRun::Running));
        }
        is_no_guest(self.guest, self.one.resume(self.guest).await);
        self.it_comes_back_the_same_way().await;
    }

    async fn a_migration_that_is_given_up_leaves_the_guest_in_one_place(&self) {
        let mut job = self.migrate(&self.one, &self.fixture.hosts.0).await.expect("it begins");
        job.abort().await.expect("it is asked to end");
        let (there, gone) = match job.outcome().await {
            Ok(()) => (&self.two, &self.one),
            Err(_) => (&self.one, &self.two),
        };
        self.until_runs(there).await;
        let until = Instant::now() + self.fixture.time_limit;
        while self.run(gone).await.is_some() {
            assert!(Instant::now() < until, "something of it is left");
            sleep(PAUSE).await;
        }
        there.destroy(self.guest).await.expect("the plug is pulled");
    }

    async fn migrate(
        &self,
        from: &Arc<dyn Hypervisor>,
        host: &str,
    ) -> Result<Box<dyn MigrationJob>, HypervisorError> {
        let max_downtime = Duration::from_millis(300);
        let migration =
            Migration { host: host.to_owned(), max_downtime, held: false, encrypted: false };
        from.migrate(self.guest, &migration).await
    }

    async fn run(&self, on: &Arc<dyn Hypervisor>) -> Option<GuestRun> {
        on.guests().await.expect("a list of the guests").get(&self.guest).map(|guest| guest.run)
    }

    async fn until_runs(&self, on: &Arc<dyn Hypervisor>) {
        let until = Instant::now() + self.fixture.time_limit;
        while self.run(on).await != Some(GuestRun::Running) {
            assert!(Instant::now() < until, "it does not run");
            sleep(PAUSE).await;
        }
    }
}

const NAME: &str = "contract";

fn uuid(number: u128) -> Uuid {
    Uuid::from_u128(0x636f_6e74_7261_4374_8000_0000_0000_0000 + number)
}

fn is_no_guest<T: Debug>(uuid: Uuid, answer: Result<T, HypervisorError>) {
    assert!(
        matches!(&answer, Err(HypervisorError::NoGuest { uuid: named }) if *named == uuid),
        "{answer:?}"
    );
}

fn is_refused<T: Debug>(answer: Result<T, HypervisorError>) {
    assert!(
        matches!(&answer, Err(HypervisorError::Refused { why }) if !why.is_empty()),
        "{answer:?}"
    );
}
