//! The DHCP and DNS servers of managed networks, which run on the primary. What each is told is
//! decided in `pvc_model::guest_network::dnsmasq`; here they are kept running.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::guest_network::dnsmasq::{Division, Place, dnsmasq};
use pvc_model::guest_network::mac::{cards, cards_by_name};
use pvc_model::guest_network::names::Names;
use pvc_model::guest_network::{GuestNetwork, GuestNetworks, Vni};
use pvc_model::link::{IpNet, Links, Mac};
use pvc_model::network::NetworkRecord;
use pvc_model::shared_map::SharedMap;
use pvc_ports::FileAccess;
use pvc_role::{Alarm, Context};
use pvc_supervisor::{
    ConfigFile, ProgramSpec, ProgramState, Ready, Reload, Stop, Supervisor, SupervisorPorts, Wanted,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::leases::Refused;
use crate::links::Standing;

const DNSMASQ: &str = "/usr/sbin/dnsmasq";

/// Time between two looks while a server waits for its network.
const WAITING: Duration = Duration::from_millis(500);

/// Time between two looks else.
const INTERVAL: Duration = Duration::from_secs(5);

/// Time that the kernel may take for a look.
const KERNEL: Duration = Duration::from_secs(5);

/// Time for which a server waits for gateways of one family when it has the other one's.
const LATE: Duration = Duration::from_secs(3);

/// Time between two starts of a server for names that are new, which its clients may take until
/// then, and for leases that it has given and that were refused: VMs may come all the time.
const NAMES: Duration = Duration::from_secs(600);

/// Time for which a server may be down before that is a fault.
const GRACE: Duration = Duration::from_secs(15);

const FAULT: &str = "DHCP";

/// Variables of a server's environment, which what it calls for leases inherits: the socket on
/// which the daemon hears of leases, and the number of the network. The servers' files lie where
/// nothing may be executed on many machines (`/run` of Debian), so that no script can hold them.
pub const LEASE_SOCKET: &str = "PVC_LEASE_SOCKET";
pub const LEASE_NETWORK: &str = "PVC_LEASE_NETWORK";

/// Settings of the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpSettings {
    /// Directory for their files, which do not outlive a boot.
    pub directory: PathBuf,
    /// The daemon's own executable file, which dnsmasq calls with what it does to leases.
    pub executable: String,
    /// Path of the socket on which that is told to the daemon.
    pub socket: String,
}

/// Keeps a server for each managed network that stands here while `term` is not 0, which says that
/// this node has the services of the primary, until `end`.
pub async fn run(
    context: Context,
    settings: DhcpSettings,
    mut term: watch::Receiver<u64>,
    mut standing: watch::Receiver<Standing>,
    refused: watch::Receiver<Refused>,
    end: CancellationToken,
) {
    let ports = &context.ports;
    let supervisor = Arc::new(Supervisor::new(SupervisorPorts {
        programs: ports.programs.clone(),
        files: ports.files.clone(),
        exec: ports.exec.clone(),
        clock: ports.clock.clone(),
    }));
    let keep = async {
        let mut servers = Servers::new(settings);
        let mut turns = context.turns(&end);
        let mut rest = INTERVAL;
        loop {
            tokio::select! {
                biased;
                goes_on = turns.next_change(rest) => if !goes_on { return },
                Ok(()) = term.changed() => {}
                Ok(()) = standing.changed() => {}
            }
            let situation = Situation {
                is_here: *term.borrow_and_update() != 0,
                standing: standing.borrow_and_update().clone(),
                networks: context.store.view().networks.clone(),
                refused: refused.borrow().clone(),
            };
            servers.round(&context, &supervisor, situation).await;
            rest = servers.next_look.saturating_sub(context.now());
        }
    };
    tokio::join!(supervisor.run(end.clone()), keep);
}

/// Things that decide which servers there are, but for what the kernel has.
#[derive(PartialEq)]
struct Situation {
    /// Whether this node has the services of the primary.
    is_here: bool,
    standing: Standing,
    networks: SharedMap<String, Arc<NetworkRecord>>,
    refused: Refused,
}

/// Gateways of a network that its bridge does not have.
struct Missing {
    since: Duration,
    gateways: Vec<IpNet>,
    /// Whether none is there.
    all: bool,
}

/// Facts about the VMs in its network that a server was started with: others are another server.
struct Facts {
    division: Division,
    names: Names,
    /// Number of leases that were refused by then.
    refused: u64,
    since: Duration,
}

/// VMs' cards in a network.
#[derive(Clone, Copy)]
struct Cards<'a> {
    all: &'a BTreeSet<Mac>,
    by_name: Option<&'a BTreeMap<String, BTreeSet<Mac>>>,
}

struct Servers {
    settings: DhcpSettings,
    wanted: Wanted,
    /// Facts that the servers that are wanted were started with.
    facts: BTreeMap<Vni, Facts>,
    alarm: Alarm,
    missing: BTreeMap<Vni, Missing>,
    situation: Option<Situation>,
    next_look: Duration,
}

impl Servers {
    fn new(settings: DhcpSettings) -> Servers {
        Servers {
            settings,
            wanted: Wanted::new(),
            facts: BTreeMap::new(),
            alarm: Alarm::after(GRACE),
            missing: BTreeMap::new(),
            situation: None,
            next_look: Duration::ZERO,
        }
    }

    /// Has the servers run that should. The kernel is asked when the situation is another one, or
    /// it is time to: the store changes with each keepalive.
    async fn round(&mut self, context: &Context, supervisor: &Supervisor, situation: Situation) {
        if self.situation.as_ref() != Some(&situation) || context.now() >= self.next_look {
            let waits = self.look(context, &situation).await;
            self.situation = Some(situation);
            self.next_look = context.now() + if waits { WAITING } else { INTERVAL };
            supervisor.want(self.wanted.clone());
        }
        self.tell(context, supervisor).await;
    }

    /// Decides which servers are to run. Returns whether one waits for its network.
    async fn look(&mut self, context: &Context, situation: &Situation) -> bool {
        if !situation.is_here {
            self.wanted.clear();
            self.missing.clear();
            return false;
        }
        let view = context.store.view();
        let links = match context.in_time(KERNEL, context.ports.network.links()).await {
            Ok(links) => links,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the servers of networks stay as they are");
                return true;
            }
        };
        let (cards, by_name, now) = (cards(&view), cards_by_name(&view), context.now());
        let mut waits = false;
        let (mut before, mut missing) =
            (std::mem::take(&mut self.wanted), std::mem::take(&mut self.missing));
        for network in GuestNetworks::of(&view).networks {
            let (vni, gateways) = (network.vni, network.gateways());
            if gateways.is_empty() {
                continue;
            }
            let bridge = links.get(&vni.bridge());
            let has =
                |gateway: &IpNet| bridge.is_some_and(|bridge| bridge.addresses.contains(gateway));
            let (here, absent): (Vec<IpNet>, Vec<IpNet>) = gateways.into_iter().partition(has);
            let since = missing.remove(&vni).map_or(context.now(), |missing| missing.since);
            let is_late = context.now().saturating_sub(since) >= LATE;
            let is_whole = absent.is_empty();
            let stands = situation.standing.contains(&vni);
            // One that runs goes on with what it was told until it can have what is new: its
            // gateways change within a second. One that waits for all of them does not wait for
            // ever for those of one family.
            let can_have_it = stands && !here.is_empty() && (is_whole || is_late);
            waits |= !can_have_it;
            let former = before.remove(&name(vni));
            let spec = match can_have_it {
                true => {
                    let none = BTreeSet::new();
                    let all = cards.get(&vni).unwrap_or(&none);
                    let cards = Cards { all, by_name: by_name.get(&vni) };
                    let refused = situation.refused.get(&vni).copied().unwrap_or(0);
                    let place = Here { view: &view, links: &links, gateways: &here, refused, now };
                    self.spec(place, &network, cards, former)
                }
                false => former,
            };
            self.wanted.extend(spec.map(|spec| (name(vni), spec)));
            if stands && !is_whole {
                let all = here.is_empty();
                self.missing.insert(vni, Missing { since, gateways: absent, all });
            }
        }
        self.facts.retain(|vni, _| self.wanted.contains_key(&name(*vni)));
        waits
    }

    /// The server of a network as a program; `None` if it has none. That a card has come or gone
    /// since the server was started is no reason to start it anew, as long as there are addresses
    /// for whoever comes; that a name has come, or a lease was refused that it has given, is one
    /// from time to time.
    fn spec(
        &mut self,
        here: Here<'_>,
        network: &GuestNetwork,
        cards: Cards<'_>,
        former: Option<ProgramSpec>,
    ) -> Option<ProgramSpec> {
        let record = here.view.networks.get(&network.vni.to_string())?;
        let names = Names::of(cards.by_name, network, &record.leases);
        if let (Some(former), Some(facts)) = (former, self.facts.get(&network.vni)) {
            let is_same = spec(&self.settings, here, network, facts).as_ref() == Some(&former);
            let is_time = here.now.saturating_sub(facts.since) >= NAMES;
            let is_outdated = facts.division.is_outdated(network, &record.leases, cards.all)
                || (is_time && (!facts.names.cover(&names) || facts.refused != here.refused));
            if is_same && !is_outdated {
                return Some(former);
            }
        }
        let division = Division::of(network, &record.leases, cards.all);
        let facts = Facts { division, names, refused: here.refused, since: here.now };
        let spec = spec(&self.settings, here, network, &facts);
        self.facts.insert(network.vni, facts);
        spec
    }

    /// Tells operators of servers that stay down, or do not serve all that they should.
    async fn tell(&mut self, context: &Context, supervisor: &Supervisor) {
        let states = supervisor.states();
        let missing = self.missing.iter().next().map(|(vni, missing)| {
            let gateways: Vec<String> =
                missing.gateways.iter().map(|gateway| format!("`{gateway}`")).collect();
            let server = if missing.all { "waits for it" } else { "serves the other family alone" };
            format!(
                "node {}: the bridge `{}` does not have the gateway {}; the network's DHCP and DNS \
                 server {server}",
                context.name(),
                vni.bridge(),
                gateways.join(", "),
            )
        });
        let failed = states.borrow().iter().find_map(|(name, state)| match state {
            ProgramState::Failed { why, times } => Some(format!(
                "node {}: `{name}`, the DHCP and DNS server of a network, failed {times} times: \
                 {why}; it is started again",
                context.name()
            )),
            _ => None,
        });
        context.alarm_own(FAULT, &mut self.alarm, failed.or(missing)).await;
    }
}

/// Name of a network's server in the log.
fn name(vni: Vni) -> String {
    format!("dnsmasq-{vni}")
}

/// Things of this node that a server depends on.
#[derive(Clone, Copy)]
struct Here<'a> {
    view: &'a Cluster,
    links: &'a Links,
    /// Gateways of the network that its bridge has.
    gateways: &'a [IpNet],
    /// Number of leases of the network that were refused.
    refused: u64,
    now: Duration,
}

/// The server of a network as a program; `None` if it has none.
fn spec(
    settings: &DhcpSettings,
    here: Here<'_>,
    network: &GuestNetwork,
    facts: &Facts,
) -> Option<ProgramSpec> {
    let record = here.view.networks.get(&network.vni.to_string())?;
    let conf = settings.directory.join(format!("{}.conf", network.vni));
    let place = Place {
        gateways: &here.gateways.iter().map(IpNet::addr).collect(),
        division: &facts.division,
        names: &facts.names,
        mtu: here.links.get(&network.vni.bridge()).map(|bridge| bridge.mtu),
        file: &conf.to_string_lossy(),
        script: &settings.executable,
    };
    let server = dnsmasq(network, &record.leases, place)?;
    let mut hosts = server.hosts;
    if facts.refused > 0 {
        // With another file it is another program, and is started anew.
        hosts += &format!("# {} leases were refused that it had given\n", facts.refused);
    }
    let conf_file = ConfigFile { contents: hosts.into_bytes(), access: FileAccess::PRIVATE };
    Some(ProgramSpec {
        program: DNSMASQ.to_owned(),
        args: server.args,
        env: vec![
            (LEASE_SOCKET.to_owned(), settings.socket.clone()),
            (LEASE_NETWORK.to_owned(), network.vni.to_string()),
        ],
        files: BTreeMap::from([(conf, conf_file)]),
        reload: Reload::Restart,
        ready: Ready::AtOnce,
        stop: Stop { within: Duration::from_secs(2), ..Stop::default() },
    })
}
