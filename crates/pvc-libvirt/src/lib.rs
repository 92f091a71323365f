//! The Hypervisor on libvirt.
//!
//! ```text
//!  tokio task ──call, deadline──▶ queue ──▶ thread ──▶ libvirt ──▶ libvirtd
//!                                              ▲                      │ events, loss
//!  events() ◀── hub ◀───────── event thread ◀──┴── supervisor ◀───────┘
//! ```
//!
//! - `virt`: the safe layer, all of this crate's `unsafe`
//! - `link`: the connection, its threads and deadlines, reconnecting
//! - `probe`: whether KVM works here, found out by running a guest
//! - `migration`: guests on their way to another host
//! - `stats`, `live_xml`, `agent`: reading what libvirt answers
//! - `mark`: how a guest that was never let run is told from one that somebody paused
//!
//! Above this file nobody knows that libvirt exists; this file translates and decides nothing.

#![allow(clippy::disallowed_methods, reason = "an adapter works in real time")]

mod agent;
mod link;
mod live_xml;
mod mark;
mod migration;
mod probe;
mod stats;
mod virt;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{
    AgentAddress, DeviceChange, Guest, GuestAgents, GuestEvent, GuestRun, GuestStats, Hypervisor,
    HypervisorError, HypervisorFacts, Migration, MigrationJob, VncAddress,
};
use tokio::sync::{Mutex, mpsc};
use uuid::Uuid;

use link::{CallError, Link};
use migration::{Job, Questions, Transfer};
use probe::{Memory, PROBE, Verdict};
use virt::{Connection, Domain, Kind, Record, Then, VirtError};

/// Reading: libvirt answers from memory.
const READ: Duration = Duration::from_secs(10);
/// Figures, which QEMU is asked for.
const STATS: Duration = Duration::from_secs(5);
/// Changing a running guest; libvirt itself waits up to 30 s for one that is busy.
const CHANGE: Duration = Duration::from_secs(35);
/// Starting opens the guest's storage, which may be slow.
const START: Duration = Duration::from_secs(90);
/// libvirt asks QEMU to end, waits, kills it, and waits for the kernel to let go.
const DESTROY: Duration = Duration::from_secs(60);
const PING: Duration = Duration::from_secs(3);
/// Each answer of an agent in a guest, of which one question takes two, in seconds.
const AGENT_ANSWER: i32 = 2;
const AGENT: Duration = Duration::from_secs(6);
const CONSOLE_LIMIT: usize = 1 << 20;
const STATE_ONLY: u32 = virt_sys::VIR_DOMAIN_STATS_STATE;

/// Way in which a domain's vCPUs are run: the `type` of its XML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DomainType {
    Kvm,
    /// Software emulation (TCG).
    Qemu,
}

impl DomainType {
    pub fn as_str(self) -> &'static str {
        match self {
            DomainType::Kvm => "kvm",
            DomainType::Qemu => "qemu",
        }
    }
}

/// Settings of the adapter.
#[derive(Debug, Clone)]
pub struct LibvirtOptions {
    /// URI of this host's libvirt, such as `qemu:///system` or
    /// `qemu+unix:///system?socket=/run/pvc/libvirt-sock`.
    pub uri: String,
    /// A directory in which QEMU, whoever it runs as, may open the probe's disk of 512 bytes.
    pub scratch: PathBuf,
    /// A file in which the verdict on KVM is kept between starts of the daemon, best below `/run`.
    pub verdict: Option<PathBuf>,
    /// Instead of probing: the administrator's word.
    pub domain_type: Option<DomainType>,
    /// URI of another host's libvirt, with `{host}` for its name.
    pub target_uri: String,
}

impl LibvirtOptions {
    /// URI at which the nodes of a cluster listen.
    pub const TARGET_URI: &str = "qemu+tcp://{host}/system";

    /// URI at which they listen with certificates, those of libvirt's own places (`/etc/pki`).
    pub const TARGET_URI_TLS: &str = "qemu+tls://{host}/system";

    /// URI at which they are reached, encrypted or not.
    pub fn target_uri(encrypted: bool) -> &'static str {
        if encrypted { LibvirtOptions::TARGET_URI_TLS } else { LibvirtOptions::TARGET_URI }
    }
}

/// The hypervisor of this host, through libvirt. Connects by itself, for the first call and
/// whenever the connection is lost; dropping it leaves all guests as they are.
pub struct LibvirtHypervisor {
    links: OnceLock<Links>,
    /// A connection of its own for what guests answer themselves, if they do: nothing else waits
    /// behind them.
    agents: OnceLock<Link>,
    options: LibvirtOptions,
    verdict: Mutex<Option<Verdict>>,
    /// To other hosts.
    questions: Questions,
}

/// Three connections, so that what only asks never waits behind what changes, and what ends a guest
/// behind neither: a few starts on slow storage would otherwise hold up the list of guests, and a
/// few guests whose monitors hang every stop.
struct Links {
    asking: Arc<Link>,
    changing: Link,
    ending: Arc<Link>,
}

impl LibvirtHypervisor {
    /// Returns at once; whoever calls first waits for the connections. Who never calls has no
    /// threads and none of libvirt's libraries.
    pub fn new(options: LibvirtOptions) -> Self {
        Self {
            links: OnceLock::new(),
            agents: OnceLock::new(),
            options,
            verdict: Mutex::new(None),
            questions: Questions::default(),
        }
    }

    fn links(&self) -> &Links {
        let uri = &self.options.uri;
        self.links.get_or_init(|| Links {
            asking: Arc::new(Link::start("asking", uri.clone())),
            changing: Link::start("changing", uri.clone()),
            ending: Arc::new(Link::start("ending", uri.clone())),
        })
    }

    /// Asks something about the host or about all guests.
    async fn ask<T: Send + 'static>(
        &self,
        deadline: Duration,
        question: impl FnOnce(&Connection) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T, HypervisorError> {
        self.links()
            .asking
            .call(deadline, question)
            .await
            .map_err(|error| translate(error, Uuid::nil(), deadline))
    }

    /// Whether KVM works here. Probed once; one probe at a time.
    async fn verdict(
        &self,
        emulator: &str,
        qemu_version: &str,
    ) -> Result<Verdict, HypervisorError> {
        let mut known = self.verdict.lock().await;
        if let Some(verdict) = &*known {
            return Ok(verdict.clone());
        }
        let verdict = self.find_verdict(emulator, qemu_version).await?;
        *known = Some(verdict.clone());
        Ok(verdict)
    }

    async fn find_verdict(
        &self,
        emulator: &str,
        qemu_version: &str,
    ) -> Result<Verdict, HypervisorError> {
        if let Some(domain_type) = self.options.domain_type {
            let refused = (domain_type == DomainType::Qemu)
                .then(|| "switched off by configuration".to_owned());
            return Ok(Verdict { domain_type, refused, lasting: false });
        }
        let memory = Memory::new(self.options.verdict.clone(), qemu_version);
        if let Some(verdict) = memory.recall() {
            return Ok(verdict);
        }
        let verdict = probe::probe(&self.links().changing, emulator, &self.options.scratch).await?;
        match &verdict.refused {
            None => tracing::info!("KVM works here: a probe guest ran under it"),
            Some(why) => tracing::warn!(%why, "guests are emulated in software, which is slow"),
        }
        memory.keep(&verdict);
        Ok(verdict)
    }
}

#[async_trait]
impl Hypervisor for LibvirtHypervisor {
    async fn facts(&self) -> Result<HypervisorFacts, HypervisorError> {
        let (libvirt, qemu, emulator) = self
            .ask(READ, |connection| {
                let capabilities = connection.domain_capabilities("qemu")?;
                let emulator = live_xml::emulator(&capabilities).ok_or_else(|| {
                    VirtError::ours("libvirt names no emulator for this host's architecture")
                })?;
                Ok((connection.libvirt_version()?, connection.hypervisor_version()?, emulator))
            })
            .await?;
        let qemu_version = version_text(qemu);
        let verdict = self.verdict(&emulator, &qemu_version).await?;
        Ok(HypervisorFacts {
            domain_type: verdict.domain_type.as_str().to_owned(),
            kvm_refused: verdict.refused,
            libvirt_version: version_text(libvirt),
            qemu_version,
            emulator,
        })
    }

    async fn ping(&self) -> Result<(), HypervisorError> {
        self.ask(PING, |connection| connection.libvirt_version().map(|_| ())).await
    }

    async fn guests(&self) -> Result<BTreeMap<Uuid, Guest>, HypervisorError> {
        let guests = self.ask(READ, |connection| {
            let records = connection.all_stats(STATE_ONLY, stats::ACTIVE)?;
            let guests = records.iter().filter(|record| record.uuid != PROBE);
            guests.filter_map(|record| guest(connection, record).transpose()).collect()
        });
        Ok(guests.await?)
    }

    async fn start(&self, uuid: Uuid, xml: &str) -> Result<(), HypervisorError> {
        let described = live_xml::uuid(xml).map_err(|why| HypervisorError::Refused { why })?;
        if described != uuid {
            let why =
                format!("the guest's description has the UUID `{described}` instead of `{uuid}`");
            return Err(HypervisorError::Refused { why });
        }
        let xml = mark::marked(xml).map_err(|why| HypervisorError::Refused { why })?;
        let started = self.links().changing.call_to_its_end(START, move |connection| {
            if is_active(connection, uuid)? {
                return Ok(());
            }
            match connection.create(&xml, Then::Hold) {
                Ok(_) => Ok(()),
                // Somebody else was faster, or it is there in spite of the error: what counts is
                // that it is there.
                Err(_) if is_active(connection, uuid).unwrap_or(false) => Ok(()),
                Err(error) => Err(error),
            }
        });
        started.await.map_err(|error| match error {
            CallError::Libvirt(error) if error.is_death() => {
                HypervisorError::Died { why: error.to_string() }
            }
            error => translate(error, uuid, START),
        })
    }

    async fn resume(&self, uuid: Uuid) -> Result<(), HypervisorError> {
        let resumed = self.links().changing.call_to_its_end(CHANGE, move |connection| {
            let guest = connection.lookup(uuid)?;
            if guest.is_paused()? {
                match guest.resume() {
                    // Somebody else was faster.
                    Err(_) if !guest.is_paused().unwrap_or(true) => {}
                    other => other?,
                }
            }
            if let Err(error) = mark::take_off(&guest) {
                tracing::warn!(%uuid, %error, "a guest that was let run is still marked as new; \
                                               that is tried again");
            }
            Ok(())
        });
        resumed.await.map_err(|error| translate(error, uuid, CHANGE))
    }

    async fn shutdown(&self, uuid: Uuid) -> Result<(), HypervisorError> {
        with_guest(&self.links().ending, uuid, CHANGE, |_, guest| guest.press_power_button()).await
    }

    async fn destroy(&self, uuid: Uuid) -> Result<(), HypervisorError> {
        let destroyed =
            with_guest(&self.links().ending, uuid, DESTROY, |_, guest| guest.destroy()).await;
        match destroyed {
            Err(HypervisorError::NoGuest { .. }) => Ok(()),
            other => other,
        }
    }

    async fn live_xml(&self, uuid: Uuid) -> Result<String, HypervisorError> {
        with_guest(&self.links().asking, uuid, READ, |_, guest| {
            let xml = guest.xml()?;
            // Whoever let it run died before it took the mark off, or could not: a pause of it
            // would be taken for the time before its first.
            if mark::is_in(&xml) && !guest.is_paused()? {
                mark::take_off(guest)?;
            }
            Ok(xml)
        })
        .await
    }

    async fn stats(&self) -> Result<BTreeMap<Uuid, GuestStats>, HypervisorError> {
        let ask =
            || self.ask(STATS, |connection| connection.all_stats(stats::GROUPS, stats::WHICH));
        let records = match ask().await {
            // A guest that stopped answering holds up the first question about it. The second one
            // passes it over, because libvirt now knows that it is busy.
            Err(HypervisorError::TimedOut { .. }) => ask().await?,
            other => other?,
        };
        let running = records.iter().filter(|record| record.id >= 0 && record.uuid != PROBE);
        Ok(running.map(|record| (record.uuid, stats::guest_stats(record))).collect())
    }

    async fn vnc(&self, uuid: Uuid) -> Result<Option<VncAddress>, HypervisorError> {
        Ok(live_xml::vnc(&self.live_xml(uuid).await?))
    }

    async fn device(
        &self,
        uuid: Uuid,
        change: DeviceChange,
        device: &str,
    ) -> Result<(), HypervisorError> {
        let device = device.to_owned();
        with_guest(&self.links().changing, uuid, CHANGE, move |_, guest| match change {
            DeviceChange::Attach => guest.attach(&device),
            DeviceChange::Detach => guest.detach(&device),
        })
        .await
    }

    async fn resize_disk(
        &self,
        uuid: Uuid,
        target: &str,
        bytes: u64,
    ) -> Result<(), HypervisorError> {
        let target = target.to_owned();
        with_guest(&self.links().changing, uuid, CHANGE, move |_, guest| {
            guest.resize_disk(&target, bytes)
        })
        .await
    }

    async fn migrate(
        &self,
        uuid: Uuid,
        migration: &Migration,
    ) -> Result<Box<dyn MigrationJob>, HypervisorError> {
        if !with_guest(&self.links().asking, uuid, READ, |_, guest| guest.is_active()).await? {
            return Err(HypervisorError::NoGuest { uuid });
        }
        let to = self.options.target_uri.replace("{host}", &migration.host);
        let transfer =
            Transfer { uuid, from: self.options.uri.clone(), to, migration: migration.clone() };
        Ok(Box::new(
            Job::begin(transfer, self.links().asking.clone(), self.links().ending.clone()).await?,
        ))
    }

    async fn state_at(&self, host: &str, uuid: Uuid) -> Result<Option<GuestRun>, HypervisorError> {
        self.questions.state_at(self.options.target_uri.replace("{host}", host), uuid).await
    }

    async fn console_exchange(
        &self,
        uuid: Uuid,
        input: &[u8],
        wait: Duration,
    ) -> Result<Vec<u8>, HypervisorError> {
        let input = input.to_owned();
        with_guest(&self.links().changing, uuid, READ + wait, move |connection, guest| {
            guest.converse(connection, &input, wait, CONSOLE_LIMIT)
        })
        .await
    }

    fn events(&self) -> mpsc::UnboundedReceiver<GuestEvent> {
        self.links().asking.events()
    }

    fn agents(&self) -> Option<&dyn GuestAgents> {
        Some(self)
    }
}

#[async_trait]
impl GuestAgents for LibvirtHypervisor {
    async fn addresses(&self, uuid: Uuid) -> Result<Vec<AgentAddress>, HypervisorError> {
        // Most guests have none, and are not asked.
        if !live_xml::has_agent(&self.live_xml(uuid).await?) {
            return Ok(Vec::new());
        }
        let link = self.agents.get_or_init(|| Link::start("agents", self.options.uri.clone()));
        let said = with_guest(link, uuid, AGENT, |_, guest| guest.agent_interfaces(AGENT_ANSWER));
        Ok(agent::addresses(said.await?))
    }
}

/// A call about one running guest.
async fn with_guest<T: Send + 'static>(
    link: &Link,
    uuid: Uuid,
    deadline: Duration,
    work: impl FnOnce(&Connection, &Domain) -> Result<T, VirtError> + Send + 'static,
) -> Result<T, HypervisorError> {
    let answer = link.call(deadline, move |connection| {
        let guest = connection.lookup(uuid)?;
        match work(connection, &guest) {
            // libvirt says "operation is not valid" when the guest has just ended, and also when
            // the operation is wrong for a guest that runs.
            Err(error) if error.kind() == Kind::NotRunning && guest.is_active().unwrap_or(true) => {
                Ok(Err(refused(error)))
            }
            other => other.map(Ok),
        }
    });
    answer.await.map_err(|error| translate(error, uuid, deadline))?
}

/// The guest behind a record, if it is active.
fn guest(connection: &Connection, record: &Record) -> Result<Option<(Uuid, Guest)>, VirtError> {
    let Some(mut guest) = stats::guest(record) else { return Ok(None) };
    if guest.run == GuestRun::Paused && !stats::is_arriving(record) {
        match connection.lookup(guest.uuid).and_then(|domain| mark::is_on(&domain)) {
            Ok(true) => guest.run = GuestRun::Created,
            Ok(false) => {}
            Err(error) if matches!(error.kind(), Kind::NoDomain | Kind::NotRunning) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Some((guest.uuid, guest)))
}

fn is_active(connection: &Connection, uuid: Uuid) -> Result<bool, VirtError> {
    match connection.lookup(uuid).and_then(|guest| guest.is_active()) {
        Err(error) if error.kind() == Kind::NoDomain => Ok(false),
        other => other,
    }
}

fn refused(error: VirtError) -> HypervisorError {
    HypervisorError::Refused { why: error.to_string() }
}

fn translate(error: CallError, uuid: Uuid, deadline: Duration) -> HypervisorError {
    match error {
        CallError::Unreachable(why) => HypervisorError::Unreachable { why },
        CallError::Late => HypervisorError::TimedOut { seconds: deadline.as_secs() },
        CallError::Libvirt(error) => match error.kind() {
            Kind::NoDomain | Kind::NotRunning if !uuid.is_nil() => {
                HypervisorError::NoGuest { uuid }
            }
            Kind::Busy => HypervisorError::TimedOut { seconds: deadline.as_secs() },
            _ => refused(error),
        },
    }
}

/// libvirt counts 1,000,000 for a major version and 1,000 for a minor one.
fn version_text(version: u64) -> String {
    format!("{}.{}.{}", version / 1_000_000, version / 1000 % 1000, version % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(version_text(11_003_000), "11.3.0");
        assert_eq!(version_text(7_002_019), "7.2.19");
    }

    #[tokio::test]
    async fn a_libvirt_that_is_not_there_is_unreachable_and_named() {
        let hypervisor = LibvirtHypervisor::new(LibvirtOptions {
            uri: "qemu+unix:///system?socket=/nonexistent/libvirt-sock".to_owned(),
            scratch: "/nonexistent".into(),
            verdict: None,
            domain_type: None,
            target_uri: LibvirtOptions::TARGET_URI.to_owned(),
        });
        let error = hypervisor.guests().await.expect_err("there is none").to_string();
        assert!(
            error.starts_with("the hypervisor cannot be reached: libvirt at `qemu+unix://"),
            "{error}"
        );
        assert!(error.contains("No such file or directory"), "{error}");
    }
}
