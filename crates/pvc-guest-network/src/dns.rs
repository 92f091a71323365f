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

use pvc_model::guest_network::GuestNetworks;
use pvc_model::guest_network::dns::{BadText, HostAddress, Server, Zone, Zones};
use pvc_model::link::IpNet;
use pvc_model::network::NetworkRecord;
use pvc_model::shared_map::SharedMap;
use pvc_model::with_causes;
use pvc_ports::{Command, DatabaseError, DnsPorts, FileAccess, TransferError, ZoneTransfers};
use pvc_role::{Alarm, Context};
use pvc_supervisor::{
    ConfigFile, ProgramSpec, ProgramState, Ready, Reload, Stop, Supervisor, SupervisorPorts, Wanted,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use zones::ZoneError;

const SERVER: &str = "/usr/sbin/pdns_server";
const CONTROL: &str = "pdns_control";

/// Name of the server in the log.
const NAME: &str = "pdns";

/// Time between two transfers of a zone.
const INTERVAL: Duration = Duration::from_secs(10);

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
    #[error("names of the network {vni} stay as they were: {error}")]
    Transfer { vni: String, error: TransferError },
    #[error(
        "PowerDNS failed {times} times: {why}; it is started again. Are `pdns-server` and \
         `pdns-backend-pgsql` installed, and the distribution's own `pdns.service` disabled?"
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
    /// Whether the database has answered in this term, and with the tables that it should have.
    has_tables: bool,
    /// Zones that have changed, and of which the server was not told.
    untold: BTreeSet<String>,
    troubles: Vec<Trouble>,
    alarm: Alarm,
    /// Whether the fault may stand: a former life of the daemon may have raised it.
    may_stand: bool,
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
            has_tables: false,
            untold: BTreeSet::new(),
            troubles: Vec::new(),
            alarm: Alarm::after(GRACE),
            may_stand: true,
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
            if let Err(trouble) = self.serve(supervisor).await {
                self.troubles.push(trouble);
            }
            self.announce(context, supervisor).await;
            self.next = context.now() + if waits { WAITING } else { INTERVAL };
        }
        let failed = supervisor.states().borrow().get(NAME).cloned();
        self.tell(context, failed).await;
    }

    /// Finds the addresses at which the server can answer. Returns whether they are waited for.
    async fn find_addresses(&mut self, context: &Context) -> bool {
        let links = match context.in_time(LOCAL, context.ports.network.links()).await {
            Ok(links) => links,
            Err(error) => {
                self.troubles.push(Trouble::Links(with_causes(&error)));
                return true;
            }
        };
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
    async fn serve(&mut self, supervisor: &Supervisor) -> Result<(), Trouble> {
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
        self.untold.extend(zones::remove_left(database.as_ref(), &self.zones).await?);
        let mut found = transfers(&self.dns.transfers, &self.zones).await;
        for (name, zone) in &self.zones.zones {
            let (hosts, failed) = match found.remove(name) {
                Some(Ok(hosts)) => (Some(hosts), None),
                Some(Err(error)) => (None, Some(error)),
                None => (None, None),
            };
            let done = zones::set(database.as_ref(), zone, hosts.as_ref()).await;
            if matches!(done, Ok(true) | Err(ZoneError::Database(DatabaseError::Unknown { .. }))) {
                self.untold.insert(name.clone());
            }
            match (done, failed) {
                (Ok(_), None) => {}
                (Ok(_), Some(error)) => {
                    let vni = zone.vni.to_string();
                    self.troubles.push(Trouble::Transfer { vni, error });
                }
                (Err(error), _) if is_about_the_database(&error) => return Err(error.into()),
                (Err(error), _) => self.troubles.push(error.into()),
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
        while let Some(zone) = self.untold.pop_first() {
            let is_there = self.zones.zones.contains_key(&zone);
            let order = |words: [&str; 2]| {
                let socket = format!("--socket-dir={}", self.settings.directory.display());
                let args = [&socket, words[0], words[1]].map(str::to_owned).into();
                let program = CONTROL.to_owned();
                Command { program, args, env: Vec::new(), stdin: None, deadline: LOCAL }
            };
            let mut orders = vec![order(["purge", &format!("{zone}$")])];
            if is_there {
                orders.push(order(["notify", &zone]));
            }
            for order in orders {
                // Without it the change is seen within a minute.
                if let Err(error) = context.ports.exec.run(order).await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(zone, error, "PowerDNS was not told of a change");
                    return;
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
        if message.is_none() && std::mem::take(&mut self.may_stand) {
            context.clear_own(FAULT).await;
        }
        if let Some(message) = self.alarm.due(message, context.now()) {
            self.may_stand = true;
            tracing::error!("{message}");
            context.raise_own(FAULT, &message).await;
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

type Found = Result<BTreeSet<HostAddress>, TransferError>;

/// Hosts of each zone, as the network's own server has them.
async fn transfers(port: &Arc<dyn ZoneTransfers>, zones: &Zones) -> BTreeMap<String, Found> {
    let mut found = BTreeMap::new();
    let (mut tasks, mut waiting) = (JoinSet::new(), zones.zones.values());
    loop {
        while tasks.len() < AT_ONCE
            && let Some(zone) = waiting.next()
        {
            let (port, zone) = (port.clone(), zone.clone());
            tasks.spawn(async move { (zone.name.clone(), transfer(port.as_ref(), &zone).await) });
        }
        match tasks.join_next().await {
            Some(Ok((name, hosts))) => _ = found.insert(name, hosts),
            // A bug of ours: the zone stays as it is.
            Some(Err(error)) => tracing::error!(%error, "a transfer has ended"),
            None => return found,
        }
    }
}

/// A network without a gateway has no server, and no hosts.
async fn transfer(port: &dyn ZoneTransfers, zone: &Zone) -> Found {
    let mut last = Ok(BTreeSet::new());
    for gateway in &zone.gateways {
        match port.hosts(SocketAddr::new(*gateway, DNS), &zone.name).await {
            Ok(found) => return Ok(zone.hosts(found)),
            // Of the other family it would be as large.
            Err(error @ TransferError::TooLarge { .. }) => return Err(error),
            Err(error) => last = Err(error),
        }
    }
    last
}
