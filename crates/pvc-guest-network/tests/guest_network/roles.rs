//! Links, DHCP servers and leases as roles, in the testkit's world.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pvc_guest_network::dhcp::{self, DhcpSettings};
use pvc_guest_network::leases::{self, LeaseRequest, Refused};
use pvc_guest_network::links::{self, Standing, Tell};
use pvc_guest_network::unconfirmed;
use pvc_model::NodeName;
use pvc_model::guest_network::Vni;
use pvc_model::guest_network::dnsmasq::LeaseNews;
use pvc_model::guest_network::plan::Underlay;
use pvc_model::guest_network::unconfirmed::{UnconfirmedChange, Undo};
use pvc_model::link::LinkAbilities;
use pvc_model::network::{GivenLease, GivenLease6, Ip6Client, NetworkOptions, NetworkRecord};
use pvc_model::vm::VmState;
use pvc_ports::{Network, Ports};
use pvc_role::Context;
use pvc_store::{Change, Changes, NewVm};
use pvc_testkit::{
    MemoryNetwork, NetworkChange, ProgramCall, ScriptedPrograms, SeededRandom, TokioClock,
    eventually, ports,
};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::common::{CARD, new_store, record, vm_with_card, write};

const SOON: Duration = Duration::from_secs(30);
const MAC: &str = "52:54:00:00:00:01";

struct World {
    context: Context,
    network: Arc<MemoryNetwork>,
    programs: ScriptedPrograms,
    refused: watch::Sender<Refused>,
    end: CancellationToken,
}

async fn world() -> World {
    let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
    let store = new_store(clock.clone(), random.clone()).await;
    let (network, programs) = (Arc::new(MemoryNetwork::new()), ScriptedPrograms::new());
    let ports = Ports {
        clock,
        random,
        network: network.clone(),
        programs: Arc::new(programs.clone()),
        ..ports()
    };
    let context = Context::new(NodeName::new("hv1"), ports, store);
    let (refused, _) = watch::channel(Refused::new());
    World { context, network, programs, refused, end: CancellationToken::new() }
}

fn vni() -> Vni {
    Vni::new(1001).unwrap()
}

impl World {
    async fn change(&self, change: Change) {
        write(&self.context.store, change).await;
    }

    async fn has(&self, link: &str) -> bool {
        self.network.links().await.unwrap().contains_key(link)
    }

    async fn becomes(&self, what: &str, link: &str, is_there: bool) {
        let end = self.context.now() + SOON;
        while self.has(link).await != is_there {
            assert!(self.context.now() < end, "{what}");
            self.context.sleep(Duration::from_millis(100)).await;
        }
    }

    fn servers(&self) -> Vec<String> {
        self.programs.running().into_iter().map(|program| program.name).collect()
    }

    /// Number of times that a server was started.
    fn starts(&self) -> usize {
        let calls = self.programs.calls();
        calls.iter().filter(|call| matches!(call, ProgramCall::Started(_))).count()
    }

    fn leases(&self) -> Vec<(String, String)> {
        let view = self.context.store.view();
        let leases = view.networks.get("1001").map(|network| network.leases.clone());
        let leases = leases.unwrap_or_default().into_iter();
        leases.map(|lease| (lease.mac, lease.address)).collect()
    }
}

/// Networks of a cluster's node go by its tunnels' address; a machine alone has none.
fn alone() -> Underlay {
    Underlay { tunnels: None, bridge_device: None, bridge_mtu: None }
}

/// An operator is to know before there is a network that needs them.
#[tokio::test(start_paused = true)]
async fn the_abilities_of_the_kernel_are_announced_without_a_network() {
    let world = world().await;
    let able = LinkAbilities { vlans: false, vxlans: true };
    world.network.set_abilities(able);
    let (_filtered, is_filtered) = watch::channel(BTreeSet::new());
    let (standing, _) = watch::channel(Standing::new());
    let tell = Tell { standing, ..Tell::default() };
    let announced = tell.abilities.clone();
    let role = links::run(world.context.clone(), alone(), is_filtered, tell, world.end.clone());
    let role = tokio::spawn(role);
    eventually("they are announced", SOON, || announced.get() == Some(&able)).await;
    world.end.cancel();
    role.await.unwrap();
}

/// Its packet filter goes while another network is made.
#[tokio::test(start_paused = true)]
async fn a_network_is_not_made_that_is_not_filtered_any_more_when_it_comes_to_its_turn() {
    let (filtered, is_filtered) = watch::channel(BTreeSet::new());
    let taken_away = filtered.clone();
    let network = Arc::new(MemoryNetwork::with_watcher(move |change| {
        if matches!(change, NetworkChange::Created { link, .. } if link == "vmbr1001") {
            taken_away.send_replace(BTreeSet::from([vni()]));
        }
    }));
    let mut world = world().await;
    let ports = Ports { network: network.clone(), ..world.context.ports.clone() };
    world.context = Context::new(NodeName::new("hv1"), ports, world.context.store.clone());
    world.network = network;
    let (standing, stands) = watch::channel(Standing::new());
    let role = links::run(
        world.context.clone(),
        alone(),
        is_filtered,
        Tell { standing, ..Tell::default() },
        world.end.clone(),
    );
    let role = tokio::spawn(role);
    let other = Vni::new(1002).unwrap();
    let second = NetworkRecord { vni: other.to_string(), description: "b".into(), ..record() };
    let decide = |_: &_| {
        let mut changes = Changes::new();
        changes.push(Change::PutNetwork(Box::new(record())));
        changes.push(Change::PutNetwork(Box::new(second.clone())));
        Ok::<_, Infallible>((changes, ()))
    };
    world.context.store.change(decide).await.unwrap();
    filtered.send_replace(BTreeSet::from([vni(), other]));
    eventually("the first one is made", SOON, || stands.borrow().contains(&vni())).await;
    world.context.sleep(SOON).await;
    assert!(!world.has("vmbr1002").await, "nothing filters it");
    filtered.send_replace(BTreeSet::from([vni(), other]));
    world.becomes("the second one is made", "vmbr1002", true).await;
    world.end.cancel();
    role.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_record_that_makes_no_network_is_a_fault_until_it_is_mended() {
    let world = world().await;
    let (_filtered, is_filtered) = watch::channel(BTreeSet::new());
    let (standing, _stands) = watch::channel(Standing::new());
    let role = links::run(
        world.context.clone(),
        alone(),
        is_filtered,
        Tell { standing, ..Tell::default() },
        world.end.clone(),
    );
    let role = tokio::spawn(role);
    let odd = NetworkRecord { nettype: "mesh".to_owned(), ..record() };
    world.change(Change::PutNetwork(Box::new(odd))).await;
    let fault = || {
        let view = world.context.store.view();
        view.faults.get("GUEST_NETWORK_HV1").map(|fault| fault.message.clone())
    };
    eventually("there is a fault", 2 * SOON, || fault().is_some()).await;
    let message = fault().unwrap();
    let words = "node hv1: network 1001 is none as it is recorded: `nettype` is `mesh`";
    assert!(message.starts_with(words), "{message}");
    world.change(Change::RemoveNetwork("1001".to_owned())).await;
    eventually("it goes", 2 * SOON, || fault().is_none()).await;
    world.end.cancel();
    role.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_network_is_made_once_it_is_filtered_and_removed_with_its_record() {
    let world = world().await;
    let (filtered, is_filtered) = watch::channel(BTreeSet::new());
    let (standing, stands) = watch::channel(Standing::new());
    let underlay = Underlay { tunnels: None, bridge_device: None, bridge_mtu: None };
    let role = links::run(
        world.context.clone(),
        underlay,
        is_filtered,
        Tell { standing, ..Tell::default() },
        world.end.clone(),
    );
    let role = tokio::spawn(role);
    world.change(Change::PutNetwork(Box::new(record()))).await;
    world.context.sleep(SOON).await;
    assert!(!world.has("vmbr1001").await, "nothing filters it");
    filtered.send_replace(BTreeSet::from([vni()]));
    world.becomes("the network is made", "vmbr1001", true).await;
    eventually("it is said to stand", SOON, || stands.borrow().contains(&vni())).await;
    world.network.pull_out("vmbr1001");
    world.becomes("what somebody removes is made again", "vmbr1001", true).await;
    world.change(Change::RemoveNetwork("1001".to_owned())).await;
    world.becomes("the network is removed", "vmbr1001", false).await;
    eventually("it stands no more", SOON, || stands.borrow().is_empty()).await;
    world.end.cancel();
    role.await.unwrap();
}

/// The DHCP servers of a node with the networks, which has the services of the primary.
struct Servers {
    term: watch::Sender<u64>,
    role: tokio::task::JoinHandle<()>,
    _standing: watch::Sender<Standing>,
}

impl Servers {
    fn of(world: &World) -> Servers {
        let (term, terms) = watch::channel(1);
        let (standing, stands) = watch::channel(Standing::from([vni()]));
        let settings = DhcpSettings {
            directory: "/run/pvc/dnsmasq".into(),
            executable: "/usr/sbin/pvcnoded".to_owned(),
            socket: "/run/pvc/leases".to_owned(),
        };
        let (context, refused) = (world.context.clone(), world.refused.subscribe());
        let role = dhcp::run(context, settings, terms, stands, refused, world.end.clone());
        Servers { term, role: tokio::spawn(role), _standing: standing }
    }

    async fn end(self, world: &World) {
        world.end.cancel();
        self.role.await.unwrap();
    }
}

impl World {
    async fn has_address(&self, address: &str, is_there: bool) {
        let address = address.parse().unwrap();
        match is_there {
            true => self.network.add_address("vmbr1001", address).await.unwrap(),
            false => self.network.remove_address("vmbr1001", address).await.unwrap(),
        }
    }

    fn fault(&self) -> Option<String> {
        let view = self.context.store.view();
        view.faults.get("DHCP_HV1").map(|fault| fault.message.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_in_the_way_of_networks_is_a_fault_and_not_what_only_cannot_be_found_out() {
    let world = world().await;
    world.network.hide_abilities();
    let (_filtered, is_filtered) = watch::channel(BTreeSet::from([vni()]));
    let (standing, stands) = watch::channel(Standing::new());
    let underlay = Underlay { tunnels: None, bridge_device: None, bridge_mtu: None };
    let role = links::run(
        world.context.clone(),
        underlay,
        is_filtered,
        Tell { standing, ..Tell::default() },
        world.end.clone(),
    );
    let role = tokio::spawn(role);
    world.change(Change::PutNetwork(Box::new(record()))).await;
    eventually("the network stands", SOON, || stands.borrow().contains(&vni())).await;
    let fault = || world.context.store.view().faults.get("GUEST_NETWORK_HV1").cloned();
    assert_eq!(fault(), None);
    world.network.set_failing(true);
    eventually("a kernel that does not answer is a fault", 2 * SOON, || fault().is_some()).await;
    let message = fault().unwrap().message.clone();
    assert!(message.contains("the links cannot be looked at"), "{message}");
    world.network.set_failing(false);
    eventually("it is taken back", 2 * SOON, || fault().is_none()).await;
    world.end.cancel();
    role.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_a_former_life_of_the_daemon_has_raised_is_taken_back() {
    let world = world().await;
    world.context.raise_own("GUEST_NETWORK", "network 1001 is down").await;
    let fault = || world.context.store.view().faults.get("GUEST_NETWORK_HV1").cloned();
    assert!(fault().is_some());
    let (_filtered, is_filtered) = watch::channel(BTreeSet::from([vni()]));
    let (standing, _stands) = watch::channel(Standing::new());
    let underlay = Underlay { tunnels: None, bridge_device: None, bridge_mtu: None };
    world.change(Change::PutNetwork(Box::new(record()))).await;
    let role = links::run(
        world.context.clone(),
        underlay,
        is_filtered,
        Tell { standing, ..Tell::default() },
        world.end.clone(),
    );
    let role = tokio::spawn(role);
    eventually("it is taken back", SOON, || fault().is_none()).await;
    world.end.cancel();
    role.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_runs_where_the_services_are_once_its_gateway_is_there() {
    let world = world().await;
    world.change(Change::PutNetwork(Box::new(record()))).await;
    let servers = Servers::of(&world);
    world.context.sleep(SOON).await;
    assert!(world.servers().is_empty(), "it could not listen on its gateway");
    world.network.create_bridge("vmbr1001").await.unwrap();
    world.has_address("10.20.1.1/24", true).await;
    eventually("the server runs", SOON, || world.servers() == ["dnsmasq-1001"]).await;
    let server = world.programs.running().remove(0);
    assert!(server.args.contains(&"--dhcp-script=/usr/sbin/pvcnoded".to_owned()), "{server:?}");
    let env = [("PVC_LEASE_SOCKET", "/run/pvc/leases"), ("PVC_LEASE_NETWORK", "1001")];
    assert_eq!(server.env, env.map(|(name, value)| (name.to_owned(), value.to_owned())));
    world.programs.crash("dnsmasq-1001");
    eventually("it ended", SOON, || world.servers().is_empty()).await;
    eventually("one that dies is started again", SOON, || world.servers().len() == 1).await;
    // The gateway is leased from the kernel: one that is late stops no server.
    world.has_address("10.20.1.1/24", false).await;
    world.context.sleep(SOON).await;
    assert_eq!(world.servers().len(), 1);
    servers.term.send_replace(0);
    eventually("it goes with the services", SOON, || world.servers().is_empty()).await;
    servers.end(&world).await;
}

/// A gateway of IPv6 that the kernel refuses is no reason to be without IPv4.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_stays_away_is_a_fault_and_keeps_the_other_family_from_nothing() {
    let world = world().await;
    let dual = NetworkRecord {
        ip6_network: "2001:db8:1::/64".to_owned(),
        ip6_gateway: "2001:db8:1::1".to_owned(),
        dhcp6_flag: "True".to_owned(),
        ..record()
    };
    world.change(Change::PutNetwork(Box::new(dual))).await;
    world.network.create_bridge("vmbr1001").await.unwrap();
    world.has_address("10.20.1.1/24", true).await;
    let servers = Servers::of(&world);
    let serves = |arg: &str| {
        let running = world.programs.running();
        running.first().is_some_and(|server| server.args.iter().any(|found| found == arg))
    };
    let range = "--dhcp-range=10.20.1.125,10.20.1.199,48h";
    eventually("IPv4 is served", SOON, || serves(range)).await;
    assert!(!serves("--enable-ra"));
    eventually("the fault is raised", SOON, || world.fault().is_some()).await;
    let fault = world.fault().unwrap();
    assert!(fault.contains("`vmbr1001`") && fault.contains("`2001:db8:1::1/64`"), "{fault}");
    world.has_address("2001:db8:1::1/64", true).await;
    eventually("both are served", SOON, || serves(range) && serves("--enable-ra")).await;
    eventually("the fault is over", SOON, || world.fault().is_none()).await;
    servers.end(&world).await;
}

/// Keepalives change the store several times a second in a large cluster.
#[tokio::test(start_paused = true)]
async fn changes_of_other_records_are_no_reason_to_ask_the_kernel() {
    let world = world().await;
    world.change(Change::PutNetwork(Box::new(record()))).await;
    world.network.create_bridge("vmbr1001").await.unwrap();
    world.has_address("10.20.1.1/24", true).await;
    let servers = Servers::of(&world);
    eventually("the server runs", SOON, || world.servers().len() == 1).await;
    let (before, began) = (world.network.looks(), world.context.now());
    for number in 0..100 {
        let other = NetworkOptions { masquerade: number % 2 == 0, ..NetworkOptions::default() };
        world.change(Change::PutNetworkOptions { vni: "7".to_owned(), options: other }).await;
        world.context.sleep(Duration::from_millis(10)).await;
    }
    let looks = world.network.looks() - before;
    assert!(looks <= 1, "{looks} in {:?}", world.context.now() - began);
    let other = NetworkRecord { dhcp4_end: "10.20.1.150".to_owned(), ..record() };
    world.change(Change::PutNetwork(Box::new(other))).await;
    let range = "--dhcp-range=10.20.1.100,10.20.1.150,48h".to_owned();
    let has_it = || world.programs.running().iter().any(|server| server.args.contains(&range));
    eventually("a change of its own is for a server at once", Duration::from_secs(1), has_it).await;
    servers.end(&world).await;
}

/// Each start of a server asks for all its leases, and VMs may come all the time.
#[tokio::test(start_paused = true)]
async fn the_name_of_a_vm_that_is_new_is_its_cards_within_ten_minutes() {
    let world = world().await;
    world.change(Change::PutNetwork(Box::new(record()))).await;
    world.network.create_bridge("vmbr1001").await.unwrap();
    world.has_address("10.20.1.1/24", true).await;
    let servers = Servers::of(&world);
    eventually("the server runs", SOON, || world.servers().len() == 1).await;
    world.change(Change::DefineVm(Box::new(vm_with_card()))).await;
    world.context.sleep(SOON).await;
    assert_eq!(world.starts(), 1, "others may come");
    let minutes = Duration::from_secs(660);
    eventually("a server knows the name", minutes, || world.starts() == 2).await;
    let conf = Path::new("/run/pvc/dnsmasq/1001.conf");
    let text = world.context.ports.files.read(conf, 1 << 20).await.unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("\ndhcp-name-match=set:name1,web1\n"), "{text}");
    world.change(Change::RemoveVm(vm_with_card().uuid)).await;
    world.context.sleep(minutes).await;
    assert_eq!(world.starts(), 2, "one that goes is no reason");
    servers.end(&world).await;
}

/// A server has freed an address that its card gave back, and the guard keeps it for that card.
#[tokio::test(start_paused = true)]
async fn a_server_that_has_given_what_another_card_keeps_is_started_anew_within_ten_minutes() {
    let world = world().await;
    world.change(Change::PutNetwork(Box::new(record()))).await;
    let options = NetworkOptions { spoof_guard: true, ..NetworkOptions::default() };
    world.change(Change::PutNetworkOptions { vni: "1001".to_owned(), options }).await;
    let vm = NewVm { state: VmState::Start, ..vm_with_card() };
    world.change(Change::DefineVm(Box::new(vm))).await;
    world.network.create_bridge("vmbr1001").await.unwrap();
    world.has_address("10.20.1.1/24", true).await;
    let servers = Servers::of(&world);
    eventually("the server runs", SOON, || world.servers().len() == 1).await;
    let of = |mac: &str| match given("10.20.1.100") {
        LeaseNews::Given(lease) => LeaseNews::Given(GivenLease { mac: mac.to_owned(), ..lease }),
        other => other,
    };
    recorded_of(&world, &[of(CARD)]).await;
    assert!(world.refused.borrow().is_empty());
    recorded_of(&world, &[of("52:54:00:00:00:02")]).await;
    recorded_of(&world, &[of("52:54:00:00:00:02")]).await;
    assert_eq!(*world.refused.borrow(), Refused::from([(vni(), 2)]));
    world.context.sleep(SOON).await;
    assert_eq!(world.starts(), 1, "others may come");
    let minutes = Duration::from_secs(660);
    eventually("a server knows whose the address is", minutes, || world.starts() == 2).await;
    world.context.sleep(minutes).await;
    assert_eq!(world.starts(), 2, "it was told once");
    servers.end(&world).await;
}

/// VMs come and go, and each start of a server asks for all its leases.
#[tokio::test(start_paused = true)]
async fn a_card_that_is_new_starts_a_server_anew_only_where_it_may_find_no_address() {
    let world = world().await;
    world.change(Change::PutNetwork(Box::new(record()))).await;
    world.network.create_bridge("vmbr1001").await.unwrap();
    world.has_address("10.20.1.1/24", true).await;
    let servers = Servers::of(&world);
    eventually("the server runs", SOON, || world.servers().len() == 1).await;
    let hosts = async || {
        let conf = Path::new("/run/pvc/dnsmasq/1001.conf");
        let text = world.context.ports.files.read(conf, 1 << 20).await.unwrap();
        String::from_utf8(text).unwrap()
    };
    world.change(Change::DefineVm(Box::new(vm_with_card()))).await;
    world.context.sleep(SOON).await;
    assert_eq!((world.starts(), hosts().await.as_str()), (1, ""), "it would find an address");
    for last in 125..195_u8 {
        let lease = GivenLease {
            mac: format!("52:54:00:cc:00:{last:02x}"),
            address: [10, 20, 1, last].into(),
            hostname: None,
            expiry: Some(4_000_000_000),
            client_id: None,
        };
        world.change(Change::PutLease { vni: "1001".to_owned(), lease }).await;
    }
    eventually("a server runs that knows the card", SOON, || world.starts() == 2).await;
    assert_eq!(
        hosts().await,
        format!(
            "dhcp-host={CARD}\ndhcp-name-match=set:name1,web1\ndhcp-name-match=set:name1,web1.*\n\
             dhcp-mac=set:own1,{CARD}\ndhcp-ignore-names=tag:name1,tag:!own1\n"
        )
    );
    world.context.sleep(SOON).await;
    assert_eq!(world.starts(), 2, "nothing is new");
    servers.end(&world).await;
}

fn given(address: &str) -> LeaseNews {
    LeaseNews::Given(GivenLease {
        mac: MAC.to_owned(),
        address: address.parse().unwrap(),
        hostname: Some("web1".to_owned()),
        expiry: Some(4_000_000_000),
        client_id: None,
    })
}

fn ended(address: &str) -> LeaseNews {
    LeaseNews::Ended { mac: MAC.to_owned(), address: address.parse().unwrap() }
}

#[tokio::test(start_paused = true)]
async fn leases_are_recorded_before_the_server_has_its_answer_and_given_to_the_next_one() {
    let world = world().await;
    world.change(Change::PutNetwork(Box::new(record()))).await;
    let (requests, queue) = mpsc::channel(8);
    let queue = Arc::new(Mutex::new(queue));
    let (context, refused) = (world.context.clone(), world.refused.clone());
    let role = tokio::spawn(leases::run(context, queue, refused, world.end.clone()));
    let tell = async |news: LeaseNews| {
        let (done, written) = oneshot::channel();
        requests.send(LeaseRequest::News { vni: vni(), news, done }).await.unwrap();
        written.await.unwrap();
    };
    let recorded = |address: &str| vec![(MAC.to_owned(), address.to_owned())];
    tell(given("10.20.1.100")).await;
    assert_eq!(world.leases(), recorded("10.20.1.100"));
    tell(given("10.99.1.100")).await;
    assert_eq!(world.leases(), recorded("10.20.1.100"), "what is of no network is no lease");
    tell(given("10.20.1.101")).await;
    tell(ended("10.20.1.100")).await;
    assert_eq!(world.leases(), recorded("10.20.1.101"), "it has another one by now");
    let (answer, database) = oneshot::channel();
    requests.send(LeaseRequest::Database { vni: vni(), answer }).await.unwrap();
    assert_eq!(database.await.unwrap(), format!("4000000000 {MAC} 10.20.1.101 web1 *\n"));
    tell(ended("10.20.1.101")).await;
    assert_eq!(world.leases(), []);
    world.end.cancel();
    role.await.unwrap();
}

fn only_ip6() -> NetworkRecord {
    NetworkRecord {
        ip4_network: "None".to_owned(),
        dhcp4_flag: "False".to_owned(),
        ip6_network: "2001:db8:1::/64".to_owned(),
        ip6_gateway: "2001:db8:1::1".to_owned(),
        dhcp6_flag: "True".to_owned(),
        ..record()
    }
}

fn given6(address: &str, mac: Option<&str>) -> LeaseNews {
    let duid = "00:03:00:01:52:54:00:00:00:01".to_owned();
    LeaseNews::Given6(GivenLease6 {
        address: address.parse().unwrap(),
        client: Ip6Client { duid, iaid: "7".to_owned() },
        mac: mac.map(str::to_owned),
        hostname: Some("web1".to_owned()),
        expiry: 4_000_000_000,
    })
}

#[tokio::test(start_paused = true)]
async fn leases_of_ipv6_are_recorded_by_their_address_and_given_to_the_next_server() {
    let world = world().await;
    world.change(Change::PutNetwork(Box::new(only_ip6()))).await;
    let (requests, queue) = mpsc::channel(8);
    let queue = Arc::new(Mutex::new(queue));
    let (context, refused) = (world.context.clone(), world.refused.clone());
    let role = tokio::spawn(leases::run(context, queue, refused, world.end.clone()));
    let tell = async |news: LeaseNews| {
        let (done, written) = oneshot::channel();
        requests.send(LeaseRequest::News { vni: vni(), news, done }).await.unwrap();
        written.await.unwrap();
    };
    let database = async || {
        let (answer, database) = oneshot::channel();
        requests.send(LeaseRequest::Database { vni: vni(), answer }).await.unwrap();
        database.await.unwrap()
    };
    let recorded = |mac: &str, address: &str| (mac.to_owned(), address.to_owned());
    let (first, second) = ("2001:db8:1::9", "2001:db8:1::a");
    tell(given6(first, Some(MAC))).await;
    tell(given6("2001:db8:2::9", Some(MAC))).await;
    tell(given6(second, None)).await;
    let both = [recorded(MAC, first), recorded("", second)];
    assert_eq!(world.leases(), both, "what is of no network is no lease");
    tell(given6(first, None)).await;
    assert_eq!(world.leases(), both, "a server that was started anew does not know the MAC");
    let own = "00:03:00:01:52:54:00:00:00:01";
    let text = format!(
        "duid 00:03:00:01:02:70:76:00:03:e9\n4000000000 7 {first} web1 {own}\n\
         4000000000 7 {second} web1 {own}\n"
    );
    assert_eq!(database().await, text);
    tell(LeaseNews::Ended6(second.parse().unwrap())).await;
    tell(LeaseNews::Ended6(second.parse().unwrap())).await;
    assert_eq!(world.leases(), both[..1]);

    for host in 0x10..0x40 {
        tell(given6(&format!("2001:db8:1::{host:x}"), Some(MAC))).await;
    }
    assert_eq!(world.leases().len(), 16, "more than that no guest needs");

    let other = NetworkRecord { ip6_network: "2001:db8:3::/64".to_owned(), ..only_ip6() };
    world.change(Change::PutNetwork(Box::new(other))).await;
    assert!(!database().await.contains(first), "it is of another network");
    eventually("no server will say when it ends", SOON, || world.leases().is_empty()).await;
    world.end.cancel();
    role.await.unwrap();
}

/// Every guest of a network hears what a client of IPv6 calls itself, and can give its lease back.
#[tokio::test(start_paused = true)]
async fn in_a_guarded_network_a_lease_of_ipv6_is_its_cards_until_its_time_is_over() {
    let world = world().await;
    world.change(Change::PutNetwork(Box::new(only_ip6()))).await;
    world.change(Change::DefineVm(Box::new(vm_with_card()))).await;
    let set_guard = async |spoof_guard| {
        let options = NetworkOptions { spoof_guard, ..NetworkOptions::default() };
        world.change(Change::PutNetworkOptions { vni: "1001".to_owned(), options }).await;
    };
    let (address, another) = ("2001:db8:1::9", "52:54:00:00:00:02");
    let of = |news, edit: fn(&mut GivenLease6)| match news {
        LeaseNews::Given6(mut lease) => {
            edit(&mut lease);
            LeaseNews::Given6(lease)
        }
        other => other,
    };
    let asked = given6(address, Some(CARD));
    let taken =
        of(given6(address, Some(another)), |lease| "00:03:42".clone_into(&mut lease.client.duid));
    let renamed = of(asked.clone(), |lease| "00:03:43".clone_into(&mut lease.client.duid));
    let over = of(asked.clone(), |lease| lease.expiry = 5);
    let ended = LeaseNews::Ended6(address.parse().unwrap());
    for (is_guarded, news, expected) in [
        (true, vec![asked.clone(), ended.clone()], vec![CARD]),
        (true, vec![taken.clone()], vec![CARD]),
        (true, vec![renamed], vec![CARD]),
        (true, vec![over, ended.clone()], vec![]),
        (true, vec![taken.clone(), ended.clone()], vec![]),
        (false, vec![asked, taken.clone()], vec![another]),
        (false, vec![ended], vec![]),
    ] {
        set_guard(is_guarded).await;
        let shown = format!("{is_guarded} {news:?}");
        for news in news {
            recorded_of(&world, &[news]).await;
        }
        let holders: Vec<String> = world.leases().into_iter().map(|(mac, _)| mac).collect();
        assert_eq!(holders, expected, "{shown}");
    }
}

/// A guest of a guarded network whose lease goes is shut off until it renews, in up to a day.
#[tokio::test(start_paused = true)]
async fn in_a_guarded_network_a_lease_of_ipv4_is_its_cards_until_its_time_is_over() {
    let world = world().await;
    world.change(Change::PutNetwork(Box::new(record()))).await;
    let vm = NewVm { state: VmState::Start, ..vm_with_card() };
    world.change(Change::DefineVm(Box::new(vm))).await;
    let set_guard = async |spoof_guard| {
        let options = NetworkOptions { spoof_guard, ..NetworkOptions::default() };
        world.change(Change::PutNetworkOptions { vni: "1001".to_owned(), options }).await;
    };
    let (address, another) = ("10.20.1.100", "52:54:00:00:00:02");
    let of = |mac: &str, until: u64| {
        LeaseNews::Given(GivenLease {
            mac: mac.to_owned(),
            address: address.parse().unwrap(),
            hostname: None,
            expiry: Some(until),
            client_id: None,
        })
    };
    let ended =
        |mac: &str| LeaseNews::Ended { mac: mac.to_owned(), address: address.parse().unwrap() };
    let (asked, taken) = (of(CARD, 4_000_000_000), of(another, 4_000_000_000));
    for (is_guarded, news, expected) in [
        (true, vec![asked.clone(), ended(CARD)], vec![CARD]),
        (true, vec![taken.clone()], vec![CARD]),
        (true, vec![of(CARD, 5), ended(CARD)], vec![]),
        (true, vec![taken.clone(), ended(another)], vec![]),
        (true, vec![of(CARD, 5), taken.clone()], vec![another]),
        (false, vec![asked.clone()], vec![CARD]),
        (false, vec![ended(CARD)], vec![]),
        (true, vec![asked.clone()], vec![CARD]),
    ] {
        set_guard(is_guarded).await;
        let shown = format!("{is_guarded} {news:?}");
        for news in news {
            recorded_of(&world, &[news]).await;
        }
        let holders: Vec<String> = world.leases().into_iter().map(|(mac, _)| mac).collect();
        assert_eq!(holders, expected, "{shown}");
    }
    // Many guests give their leases back when they shut down.
    let vm = NewVm { state: VmState::Stop, ..vm_with_card() };
    world.change(Change::RemoveVm(vm.uuid)).await;
    world.change(Change::DefineVm(Box::new(vm))).await;
    recorded_of(&world, &[ended(CARD)]).await;
    assert_eq!(world.leases(), []);
}

/// Has the role hear all of it at once, and end in the same moment.
async fn recorded_of(world: &World, news: &[LeaseNews]) -> Vec<String> {
    let (requests, queue) = mpsc::channel(8);
    for news in news {
        let (done, _) = oneshot::channel();
        let request = LeaseRequest::News { vni: vni(), news: news.clone(), done };
        requests.try_send(request).unwrap();
    }
    let end = CancellationToken::new();
    end.cancel();
    let (queue, refused) = (Arc::new(Mutex::new(queue)), world.refused.clone());
    leases::run(world.context.clone(), queue, refused, end).await;
    world.leases().into_iter().map(|(_, address)| address).collect()
}

#[tokio::test(start_paused = true)]
async fn what_was_said_of_leases_before_the_end_is_recorded() {
    let world = world().await;
    world.change(Change::PutNetwork(Box::new(record()))).await;
    assert_eq!(recorded_of(&world, &[given("10.20.1.100")]).await, ["10.20.1.100"]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_one_address_is_not_that_of_the_next_one() {
    let world = world().await;
    world.change(Change::PutNetwork(Box::new(record()))).await;
    let (first, second) = ("10.20.1.100", "10.20.1.101");
    assert_eq!(recorded_of(&world, &[given(first)]).await, [first]);
    assert_eq!(recorded_of(&world, &[given(second), ended(first)]).await, [second]);
    assert_eq!(recorded_of(&world, &[ended(second), given(second)]).await, [second]);
    // Nothing of the second one is recorded when it ends, and both have.
    let all = [given(first), ended(second), ended(first)];
    assert!(recorded_of(&world, &all).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_change_that_nobody_confirms_is_taken_back_when_its_time_is_over() {
    let world = world().await;
    let (before, changed) = (record(), NetworkRecord { mtu: "1400".to_owned(), ..record() });
    world.change(Change::PutNetwork(Box::new(changed))).await;
    let change = UnconfirmedChange {
        seconds: 60,
        changed_at: 0,
        undo: Undo::Fields { record: Box::new(before), options: NetworkOptions::default() },
    };
    world.change(Change::PutUnconfirmed { vni: "1001".to_owned(), change }).await;
    let role = tokio::spawn(unconfirmed::run(world.context.clone(), world.end.clone()));
    let view = || world.context.store.view();
    let began = world.context.now();
    while !view().unconfirmed.is_empty() {
        let gone = world.context.now() - began;
        assert!(gone < Duration::from_secs(90), "it is taken back");
        world.context.sleep(Duration::from_secs(1)).await;
    }
    assert!(world.context.now() - began >= Duration::from_secs(60), "not before");
    assert_eq!(*view().networks["1001"], record());
    world.end.cancel();
    role.await.unwrap();
}
