//! The DNS aggregator, which runs on the primary: PowerDNS serves the domains of managed networks
//! at the floating addresses, from a database that follows what the networks' own servers have.
//! Which zones and records there are is decided in `pvc_model::guest_network::dns`.

mod zones;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::guest_network::dns::{BadText, HostAddress, Server, Zone, Zones};
use pvc_model::guest_network::mac::cards_by_name;
use pvc_model::guest_network::names::Names;
use pvc_model::guest_network::{GuestNetworks, Vni};
use pvc_model::link::{IpNet, Mac};
use pvc_model::network::NetworkRecord;
use pvc_model::shared_map::SharedMap;
use pvc_model::with_causes;
use pvc_ports::{
    Command, Database, DatabaseError, DnsPorts, FileAccess, TransferError, ZoneTransfers,
};
use pvc_role::{Alarm, Context, Few};
use pvc_supervisor::{
    ConfigFile, ProgramSpec, ProgramState, Ready, Reload, Stop, Supervisor, SupervisorPorts, Wanted,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::leases::of_network;

use zones::ZoneError;

const SERVER: &str = "/usr/sbin/pdns_server";
const CONTROL: &str = "pdns_control";

/// Name of the server in the log.
const NAME: &str = "pdns";

/// Time between two transfers of a zone.
const INTERVAL: Duration = Duration::from_secs(10);

/// Time between two looks at a database that has not answered in this term: it may still be on its
/// way to this node.
const UNSEEN: Duration = Duration::from_secs(1);

/// Time between two looks while the server waits for its addresses.
const WAITING: Duration = Duration::from_millis(500);

/// Time for which it waits for all of its addresses when it has one of them.
const LATE: Duration = Duration::from_secs(3);

/// Time that the kernel may take for a look, and the server's control program for an order.
const LOCAL: Duration = Duration::from_secs(5);

/// Number of zones that are transferred at once.
const AT_ONCE: usize = 8;

/// Port of the networks' own servers.
const DNS: u16 = 53;

/// Time for which it may be wrong before that is a fault.
const GRACE: Duration = Duration::from_secs(30);

const FAULT: &str = "DNS";

/// Settings of the aggregator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsSettings {
    /// Directory for its files, which do not outlive a boot.
    pub directory: PathBuf,
    /// Links and addresses at which it serves; they come with the primary role.
    pub addresses: Vec<(String, IpNet)>,
    /// Domain of the upstream network, in which zones have their server.
    pub upstream_domain: String,
    pub database: DnsDatabase,
}

/// The database of the zones, as PowerDNS is told of it.
#[derive(Clone, PartialEq, Eq)]
pub struct DnsDatabase {
    pub host: String,
    pub port: u16,
    pub name: String,
    pub user: String,
    pub password: String,
}

/// Without the password, which would end in logs.
impl fmt::Debug for DnsDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DnsDatabase { host, port, name, user, password: _ } = self;
        f.debug_struct("DnsDatabase")
            .field("host", host)
            .field("port", port)
            .field("name", name)
            .field("user", user)
            .finish_non_exhaustive()
    }
}

/// Has the aggregator run while `term` is not 0, which says that this node has the services of the
/// primary, until `end`. Nothing waits for it.
pub async fn run(
    context: Context,
    settings: DnsSettings,
    mut term: watch::Receiver<u64>,
    end: CancellationToken,
) {
    let ports = &context.ports;
    let Some(dns) = ports.dns.clone() else { return end.cancelled().await };
    let supervisor = Arc::new(Supervisor::new(SupervisorPorts {
        programs: ports.programs.clone(),
        files: ports.files.clone(),
        exec: ports.exec.clone(),
        clock: ports.clock.clone(),
    }));
    let keep = async {
        let mut aggregator = Aggregator::new(settings, dns);
        let mut turns = context.turns(&end);
        let mut rest = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                goes_on = turns.next_change(rest) => if !goes_on { return },
                Ok(()) = term.changed() => {}
            }
            let now = *term.borrow_and_update();
            if now == 0 {
                aggregator.leave(&context, &supervisor).await;
                rest = INTERVAL;
                continue;
            }
            // A database or a server that hangs does not keep it from going with the role.
            rest = tokio::select! {
                biased;
                () = end.cancelled() => return,
                Ok(_) = term.wait_for(|term| *term != now) => Duration::ZERO,
                () = aggregator.round(&context, &supervisor) => {
                    aggregator.next.saturating_sub(context.now())
                }
            };
        }
    };
    tokio::join!(supervisor.run(end.clone()), keep);
}

/// Without an aggregator there is no fault of one: it may have been switched off in a fault.
pub async fn stay_off(context: Context, end: CancellationToken) {
    context.clear_own(FAULT).await;
    end.cancelled().await;
}

/// Reason why names are not served as they should be.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("the addresses {0} are not here, at which it should answer")]
    Addresses(String),
    #[error("the links cannot be looked at: {0}")]
    Links(String),
    #[error(transparent)]
    Config(#[from] BadText),
    #[error(transparent)]
    Zone(#[from] ZoneError),
    #[error(
        "the network {vni} has the domain `{domain}` of another one, and its names are not \
         served"
    )]
    Double { vni: String, domain: String },
    #[error("names of the network {vni} stay as they were: its gateway is not on this node")]
    Gateway { vni: String },
    #[error("names of the network {vni} stay as they were: {error}")]
    Transfer { vni: String, error: TransferError },
    #[error(
        "PowerDNS failed {times} times: {why}; it is started again. Are `pdns-server` and \
         `pdns-backend-pgsql` installed, and the distribution's own `pdns.service` masked?"
    )]
    Server { why: String, times: u32 },
}

struct Aggregator {
    settings: DnsSettings,
    dns: DnsPorts,
    /// Networks of the last round, which change seldom.
    networks: Option<SharedMap<String, Arc<NetworkRecord>>>,
    zones: Zones,
    /// Addresses at which it is to answer.
    here: BTreeSet<IpAddr>,
    absent_since: Option<Duration>,
    /// Addresses of bridges, at which the networks' own servers are.
    on_bridges: BTreeSet<(Vni, IpAddr)>,
    /// Whether the database has answered in this term, and with the tables that it should have.
    has_tables: bool,
    /// Zones that have changed, and of which the server was not told.
    untold: BTreeSet<String>,
    troubles: Vec<Trouble>,
    alarm: Alarm,
    /// Time of the next look.
    next: Duration,
}

impl Aggregator {
    fn new(settings: DnsSettings, dns: DnsPorts) -> Aggregator {
        Aggregator {
            settings,
            dns,
            networks: None,
            zones: Zones::default(),
            here: BTreeSet::new(),
            absent_since: None,
            on_bridges: BTreeSet::new(),
            has_tables: false,
            untold: BTreeSet::new(),
            troubles: Vec::new(),
            alarm: Alarm::after(GRACE),
            next: Duration::ZERO,
        }
    }

    /// Goes with the role.
    async fn leave(&mut self, context: &Context, supervisor: &Supervisor) {
        supervisor.want(Wanted::new());
        self.here.clear();
        self.absent_since = None;
        self.has_tables = false;
        self.untold.clear();
        self.troubles.clear();
        self.next = Duration::ZERO;
        self.tell(context, None).await;
    }

    /// Looks, if it is time to or there are other zones: the store changes with each keepalive.
    async fn round(&mut self, context: &Context, supervisor: &Supervisor) {
        let view = context.store.view();
        if self.networks.as_ref() != Some(&view.networks) {
            let zones = Zones::of(&GuestNetworks::of(&view), &self.settings.upstream_domain);
            if zones != self.zones {
                self.zones = zones;
                self.next = Duration::ZERO;
            }
            self.networks = Some(view.networks.clone());
        }
        if context.now() >= self.next {
            self.next = context.now() + INTERVAL;
            self.troubles.clear();
            let waits = self.find_addresses(context).await;
            if let Err(trouble) = self.serve(&view, supervisor).await {
                self.troubles.push(trouble);
            }
            self.announce(context, supervisor).await;
            let rest = match (waits, self.has_tables) {
                (true, _) => WAITING,
                (false, false) => UNSEEN,
                (false, true) => INTERVAL,
            };
            self.next = context.now() + rest;
        }
        let failed = supervisor.states().borrow().get(NAME).cloned();
        self.tell(context, failed).await;
    }

    /// Finds the addresses at which the server can answer. Returns whether they are waited for.
    async fn find_addresses(&mut self, context: &Context) -> bool {
        self.on_bridges.clear();
        let links = match context.in_time(LOCAL, context.ports.network.links()).await {
            Ok(links) => links,
            Err(error) => {
                self.troubles.push(Trouble::Links(with_causes(&error)));
                return true;
            }
        };
        for (name, link) in &links {
            let Some(vni) = Vni::of_bridge(name) else { continue };
            self.on_bridges.extend(link.addresses.iter().map(|address| (vni, address.addr())));
        }
        let is_here = |(link, address): &&(String, IpNet)| {
            links.get(link).is_some_and(|link| link.addresses.contains(address))
        };
        let (here, absent): (Vec<_>, Vec<_>) = self.settings.addresses.iter().partition(is_here);
        let here: BTreeSet<IpAddr> = here.into_iter().map(|(_, address)| address.addr()).collect();
        if absent.is_empty() {
            self.absent_since = None;
            self.here = here;
            return false;
        }
        // One that somebody removes is back within a second: a server that runs goes on.
        let since = *self.absent_since.get_or_insert(context.now());
        if context.now().saturating_sub(since) < LATE {
            return true;
        }
        let absent: Vec<String> =
            absent.iter().map(|(link, address)| format!("`{address}` on `{link}`")).collect();
        self.troubles.push(Trouble::Addresses(absent.join(", ")));
        if !here.is_empty() {
            self.here = here;
        }
        false
    }

    /// Has the server run and the zones be as they should. PowerDNS ends when it cannot reach its
    /// database at its start, and is not started before somebody has.
    async fn serve(&mut self, view: &Cluster, supervisor: &Supervisor) -> Result<(), Trouble> {
        let database = self.dns.database.clone();
        if !self.has_tables {
            zones::check_tables(database.as_ref()).await?;
            self.has_tables = true;
        }
        if !self.here.is_empty() {
            supervisor.want(Wanted::from([(NAME.to_owned(), self.spec()?)]));
        }
        for (vni, domain) in &self.zones.doubles {
            let (vni, domain) = (vni.to_string(), domain.clone());
            self.troubles.push(Trouble::Double { vni, domain });
        }
        self.remove_left(database.as_ref()).await?;
        let mut found = transfers(&self.dns.transfers, &self.zones, &self.on_bridges).await;
        let cards = cards_by_name(view);
        for (name, zone) in &self.zones.zones {
            let (hosts, failed) = match found.remove(name) {
                Some(Ok(hosts)) => {
                    let cards = cards.get(&zone.vni);
                    (hosts.map(|hosts| allowed(view, zone.vni, cards, hosts)), None)
                }
                Some(Err(trouble)) => (None, Some(trouble)),
                None => (None, None),
            };
            let done = zones::set(database.as_ref(), zone, hosts.as_ref()).await;
            if matches!(done, Ok(true) | Err(ZoneError::Database(DatabaseError::Unknown { .. }))) {
                self.untold.insert(name.clone());
            }
            match (done, failed) {
                (Ok(_), None) => {}
                (Ok(_), Some(trouble)) => self.troubles.push(trouble),
                (Err(error), _) if is_about_the_database(&error) => return Err(error.into()),
                (Err(error), _) => self.troubles.push(error.into()),
            }
        }
        Ok(())
    }

    /// Removes zones that no network has any more. One that stays keeps nothing else back.
    async fn remove_left(&mut self, database: &dyn Database) -> Result<(), Trouble> {
        let left = match zones::find_left(database, &self.zones).await {
            Err(error) if is_about_the_database(&error) => return Err(error.into()),
            Err(error) => {
                self.troubles.push(error.into());
                return Ok(());
            }
            Ok(left) => left,
        };
        for zone in left {
            let done = zones::remove_left(database, &zone).await;
            if matches!(done, Ok(()) | Err(ZoneError::Database(DatabaseError::Unknown { .. }))) {
                self.untold.insert(zone.name.clone());
            }
            match done {
                Ok(()) => {}
                Err(error) if is_about_the_database(&error) => return Err(error.into()),
                Err(error) => self.troubles.push(error.into()),
            }
        }
        Ok(())
    }

    /// Has the server forget what it knew of zones that have changed, and tell others.
    async fn announce(&mut self, context: &Context, supervisor: &Supervisor) {
        let state = supervisor.states().borrow().get(NAME).cloned();
        if !matches!(state, Some(ProgramState::Ready { .. })) {
            // One that starts knows nothing yet, and tells others by itself.
            self.untold.clear();
            return;
        }
        let until = context.now() + LOCAL;
        for zone in std::mem::take(&mut self.untold) {
            // A server that hangs is not asked for all of them.
            if context.now() >= until {
                self.untold.insert(zone);
                continue;
            }
            let is_there = self.zones.zones.contains_key(&zone);
            let directory = self.settings.directory.display();
            let order = |words: [&str; 2]| {
                let own = ["config", "socket"].map(|what| format!("--{what}-dir={directory}"));
                let args = own.into_iter().chain(words.map(str::to_owned)).collect();
                let program = CONTROL.to_owned();
                Command { program, args, env: Vec::new(), stdin: None, deadline: LOCAL }
            };
            let mut orders = vec![order(["purge", &format!("{zone}$")])];
            if is_there {
                orders.push(order(["notify", &zone]));
            }
            for order in orders {
                // Without it the change is seen within a minute, and others learn of it later.
                if let Err(why) = succeed(context, order).await {
                    tracing::warn!(
                        zone,
                        why,
                        "PowerDNS has not taken a change, and will be asked again"
                    );
                    self.untold.insert(zone);
                    break;
                }
            }
        }
    }

    fn spec(&self) -> Result<ProgramSpec, BadText> {
        let DnsSettings { directory, database, .. } = &self.settings;
        let server = Server {
            addresses: &self.here,
            directory,
            host: &database.host,
            port: database.port,
            database: &database.name,
            user: &database.user,
            password: &database.password,
        };
        let contents = server.config()?.into_bytes();
        let file = ConfigFile { contents, access: FileAccess::PRIVATE };
        Ok(ProgramSpec {
            program: SERVER.to_owned(),
            args: vec![format!("--config-dir={}", directory.display())],
            env: Vec::new(),
            files: BTreeMap::from([(directory.join("pdns.conf"), file)]),
            reload: Reload::Restart,
            ready: Ready::AtOnce,
            stop: Stop { within: Duration::from_secs(2), ..Stop::default() },
        })
    }

    /// Tells operators of what lasts.
    async fn tell(&mut self, context: &Context, server: Option<ProgramState>) {
        let server = match server {
            Some(ProgramState::Failed { why, times }) => Some(Trouble::Server { why, times }),
            _ => None,
        };
        let first = server.as_ref().or(self.troubles.first());
        let message = first.map(|trouble| {
            let others = self.troubles.len() + usize::from(server.is_some()) - 1;
            let more = if others == 0 { String::new() } else { format!(" ({others} more)") };
            format!("node {}: DNS of guests: {}{more}", context.name(), with_causes(trouble))
        });
        let words = message.clone().unwrap_or_default();
        if context.alarm_own(FAULT, &mut self.alarm, message).await {
            tracing::error!("{words}");
        }
    }
}

/// Whether no zone can be set, not only this one.
fn is_about_the_database(error: &ZoneError) -> bool {
    matches!(
        error,
        ZoneError::Database(DatabaseError::Unreachable { .. } | DatabaseError::TimedOut { .. })
    )
}

/// Runs a command that is to exit with status 0.
async fn succeed(context: &Context, command: Command) -> Result<(), String> {
    let done = context.ports.exec.run(command).await.map_err(|error| with_causes(&error))?;
    done.success()
}

/// Hosts of the zone of a network that have none of others' names. `cards` are those of VMs in it,
/// by the VMs' names.
fn allowed(
    view: &Cluster,
    vni: Vni,
    cards: Option<&BTreeMap<String, BTreeSet<Mac>>>,
    hosts: BTreeSet<HostAddress>,
) -> BTreeSet<HostAddress> {
    let Some((record, network)) = of_network(view, vni) else { return hosts };
    let names = Names::of(cards, &network, &record.leases);
    names.allowed_hosts(hosts, &record.leases)
}

/// Hosts of a zone; `None` if it is not known which there are.
type Found = Result<Option<BTreeSet<HostAddress>>, Trouble>;

/// Hosts of each zone, as the network's own server has them.
async fn transfers(
    port: &Arc<dyn ZoneTransfers>,
    zones: &Zones,
    on_bridges: &BTreeSet<(Vni, IpAddr)>,
) -> BTreeMap<String, Found> {
    let mut transfers = Few::new(
        AT_ONCE,
        zones.zones.values().map(|zone| {
            let (port, zone) = (port.clone(), zone.clone());
            let is_here = |gateway: &&IpAddr| on_bridges.contains(&(zone.vni, **gateway));
            let here: Vec<IpAddr> = zone.gateways.iter().filter(is_here).copied().collect();
            async move { (zone.name.clone(), transfer(port.as_ref(), &zone, &here).await) }
        }),
    );
    let mut found = BTreeMap::new();
    while let Some(done) = transfers.ended().await {
        match done {
            Ok((name, hosts)) => _ = found.insert(name, hosts),
            // A bug of ours: the zone stays as it is.
            Err(error) => tracing::error!(%error, "a transfer has ended"),
        }
    }
    found
}

/// Asks at those gateways that are `here`: what is asked at another address goes to whoever has it.
/// A network without a gateway has no server, and no hosts.
async fn transfer(port: &dyn ZoneTransfers, zone: &Zone, here: &[IpAddr]) -> Found {
    let vni = zone.vni.to_string();
    if !zone.has_known_addresses {
        // That is said of the network itself.
        return Ok(None);
    }
    let mut last = match zone.gateways.is_empty() {
        true => Ok(Some(BTreeSet::new())),
        false => Err(Trouble::Gateway { vni: vni.clone() }),
    };
    for gateway in here {
        match port.hosts(SocketAddr::new(*gateway, DNS), &zone.name).await {
            Ok(found) => return Ok(Some(zone.hosts(found))),
            // Of the other family it would be as large.
            Err(error @ TransferError::TooLarge { .. }) => {
                return Err(Trouble::Transfer { vni, error });
            }
            Err(error) => last = Err(Trouble::Transfer { vni: vni.clone(), error }),
        }
    }
    last
}
