//! Servers of DHCP and DNS that are dnsmasq itself, in a network and among mounts of the test's
//! own.

#![allow(clippy::disallowed_methods, reason = "a test waits in real time")]

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV6, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use pvc_guest_network::dhcp::{self, DhcpSettings};
use pvc_guest_network::leases::Refused;
use pvc_guest_network::links::Standing;
use pvc_linux::{LinuxExec, LinuxFiles, LinuxNetwork, LinuxPrograms, SystemClock};
use pvc_model::NodeName;
use pvc_model::guest_network::dnsmasq::{LEASE_VARIABLES, LeaseNews, database, is_reservable};
use pvc_model::guest_network::{GuestNetwork, Vni};
use pvc_model::link::Mac;
use pvc_model::network::{GivenLease, Ip6Client, LeaseRecord, NetworkOptions, NetworkRecord};
use pvc_ports::Ports;
use pvc_role::Context;
use pvc_store::Change;
use pvc_testkit::{SeededRandom, ports};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::common::{CARD, does, dual, new_store, put, record, vm_with_card, write};

const GATEWAY: &str = "10.20.1.1:53";

/// Writes down how it was called, and knows the leases that lie beside it.
const LEASE_PROGRAM: &str = "#!/bin/sh
echo \"$PVC_LEASE_NETWORK $PVC_LEASE_SOCKET $*\" >>\"$(dirname \"$0\")/calls\"
said=\"$DNSMASQ_LEASE_EXPIRES|$DNSMASQ_CLIENT_ID|$DNSMASQ_IAID|$DNSMASQ_MAC\"
echo \"$*|$said\" >>\"$(dirname \"$0\")/news\"
[ \"$1\" != init ] || cat \"$(dirname \"$0\")/database\"
";

/// Has a server of the network run with what `directory` holds, its own files where nothing can be
/// executed, until `is_so`.
async fn serve(directory: &Path, record: NetworkRecord, what: &str, is_so: impl Fn() -> bool) {
    serve_with(directory, record, Vec::new(), what, is_so).await;
}

/// Same as [`serve`], with what else is in the store.
async fn serve_with(
    directory: &Path,
    record: NetworkRecord,
    changes: Vec<Change>,
    what: &str,
    is_so: impl Fn() -> bool,
) {
    let files = directory.join("run");
    fs::create_dir(&files).unwrap();
    does(&format!("mount -t tmpfs -o noexec,nosuid none {}", files.display()));
    let executable = directory.join("program");
    fs::write(&executable, LEASE_PROGRAM).unwrap();
    fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).unwrap();
    let (clock, random) = (Arc::new(SystemClock), Arc::new(SeededRandom::new(1)));
    let store = new_store(clock.clone(), random.clone()).await;
    put(&store, record).await;
    for change in changes {
        write(&store, change).await;
    }
    let owner = directory.display().to_string();
    let ports = Ports {
        clock,
        random,
        network: Arc::new(LinuxNetwork::new()),
        programs: Arc::new(LinuxPrograms::new(&owner, directory).unwrap()),
        files: Arc::new(LinuxFiles),
        exec: Arc::new(LinuxExec),
        ..ports()
    };
    let context = Context::new(NodeName::new("hv1"), ports, store);
    let settings = DhcpSettings {
        directory: files.clone(),
        executable: executable.display().to_string(),
        socket: "/run/leases".to_owned(),
    };
    let end = CancellationToken::new();
    let (_term, terms) = watch::channel(1);
    let (_standing, stands) = watch::channel(Standing::from([Vni::new(1001).unwrap()]));
    let (_refused, refused) = watch::channel(Refused::new());
    let role = dhcp::run(context.clone(), settings, terms, stands, refused, end.clone());
    let role = tokio::spawn(role);
    let late = context.now() + Duration::from_secs(30);
    while !is_so() {
        assert!(context.now() < late, "not in time: {what}");
        context.sleep(Duration::from_millis(100)).await;
    }
    end.cancel();
    role.await.unwrap();
    assert_eq!(fs::read_dir(&files).unwrap().count(), 0, "its files go with it");
}

/// Runs `work` with a bridge and mounts of its own, which end with it.
fn on_a_bridge_of_its_own(work: impl Future<Output = ()> + Send + 'static) {
    let thread = std::thread::spawn(move || {
        let own = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
        unshare(own).expect("root may have namespaces");
        does("mount --make-rprivate /");
        does("ip link set lo up");
        does("ip link add vmbr1001 type bridge");
        does("ip address add 10.20.1.1/24 dev vmbr1001");
        does("ip link set vmbr1001 up");
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(work);
    });
    thread.join().unwrap();
}

fn answers() -> bool {
    TcpStream::connect_timeout(&GATEWAY.parse().unwrap(), Duration::from_secs(1)).is_ok()
}

/// `/run` of a Debian node is mounted with `noexec`.
#[test]
fn a_server_whose_files_lie_where_nothing_can_be_executed_asks_for_its_leases_and_tells_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_owned();
    on_a_bridge_of_its_own(async move {
        let lease = "4000000000 52:54:00:00:00:01 10.20.1.100 web1 *\n";
        fs::write(directory.join("database"), lease).unwrap();
        let calls = directory.join("calls");
        let has_reported = || {
            let calls = fs::read_to_string(&calls).unwrap_or_default();
            let reported = ["init", "old 52:54:00:00:00:01 10.20.1.100 web1"];
            answers()
                && reported
                    .map(|words| format!("1001 /run/leases {words}\n"))
                    .iter()
                    .all(|call| calls.contains(call.as_str()))
        };
        serve(&directory, record(), "it answers, and tells of its lease", has_reported).await;
    });
}

#[test]
fn a_server_starts_with_more_leases_than_its_range_has_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_owned();
    on_a_bridge_of_its_own(async move {
        let small = NetworkRecord { dhcp4_end: "10.20.1.109".to_owned(), ..record() };
        let lease =
            |number| format!("4000000000 52:54:00:00:00:{number:02x} 10.20.1.{number} * *\n");
        fs::write(directory.join("database"), (2..250).map(lease).collect::<String>()).unwrap();
        serve(&directory, small, "it answers", answers).await;
    });
}

/// The name (DUID-LL) of the client of IPv6 with [`CARD`], in hexadecimal.
const DUID: &str = "00:03:00:01:52:54:00:aa:bb:01";

/// Asks for an address of IPv6 until there is an answer, in the network of this thread, over the
/// link with the number `index`. The client's name ends with `last`.
fn ask_by_dhcp6(index: u32, last: u8) {
    let option = |code: u16, data: &[u8]| {
        let length = u16::try_from(data.len()).unwrap();
        [&code.to_be_bytes()[..], &length.to_be_bytes(), data].concat()
    };
    const SOLICIT: u8 = 1;
    const REPLY: u8 = 7;
    const TRANSACTION: [u8; 3] = [1, 2, 3];
    let duid = [0, 3, 0, 1, 0x52, 0x54, 0, 0xaa, 0xbb, last];
    let mut of_interface = [0; 12];
    of_interface[3] = 7;
    let message = [
        &[SOLICIT][..],
        &TRANSACTION,
        &option(1, &duid),
        &option(3, &of_interface),
        // At once, without asking which servers there are.
        &option(14, &[]),
        &option(8, &[0, 0]),
    ]
    .concat();
    let socket = UdpSocket::bind("[::]:546").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let servers = SocketAddrV6::new("ff02::1:2".parse().unwrap(), 547, 0, index);
    let mut answer = [0; 1500];
    let late = Instant::now() + Duration::from_secs(30);
    loop {
        assert!(Instant::now() < late, "no server answers");
        // Before the link is up there is no way.
        let _ = socket.send_to(&message, servers);
        if socket.recv(&mut answer).is_ok() && answer[0] == REPLY && answer[1..4] == TRANSACTION {
            return;
        }
    }
}

/// Runs `work` in a network of its own on the other end of a port of the bridge; `work` is given
/// the number of its link.
fn beside_the_bridge(work: impl FnOnce(u32) + Send + 'static) -> std::thread::JoinHandle<()> {
    does("ip link add port type veth peer name card");
    does("ip link set port master vmbr1001 up");
    let index = nix::net::if_::if_nametoindex("card").unwrap();
    let (say, thread_of) = std::sync::mpsc::channel();
    let (moved, is_here) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root may have namespaces");
        say.send(nix::unistd::gettid()).unwrap();
        is_here.recv().unwrap();
        does(&format!("ip link set card address {CARD} up"));
        does("ip address add fe80::1:2/64 dev card nodad");
        work(index);
    });
    does(&format!("ip link set card netns {}", thread_of.recv().unwrap()));
    moved.send(()).unwrap();
    thread
}

/// Everything that a server has said of leases, as it is understood.
fn news(directory: &Path) -> Vec<LeaseNews> {
    let text = fs::read_to_string(directory.join("news")).unwrap_or_default();
    let read = |line: &str| {
        let (args, said) = line.split_once('|')?;
        let args: Vec<String> = args.split(' ').map(str::to_owned).collect();
        let said: Vec<&str> = said.split('|').collect();
        LeaseNews::read(&args, |key| {
            let place = LEASE_VARIABLES.iter().position(|name| *name == key)?;
            said.get(place).filter(|text| !text.is_empty()).map(|text| (*text).to_owned())
        })
    };
    text.lines().filter_map(read).collect()
}

#[test]
fn a_lease_of_ipv6_is_reported_with_its_client_and_known_to_the_next_server() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_owned();
    let only_ip6 = NetworkRecord {
        ip4_network: "None".to_owned(),
        dhcp4_flag: "False".to_owned(),
        ip6_network: "2001:db8:1::/64".to_owned(),
        ip6_gateway: "2001:db8:1::1".to_owned(),
        dhcp6_flag: "True".to_owned(),
        ..record()
    };
    on_a_bridge_of_its_own(async move {
        does("ip address add 2001:db8:1::1/64 dev vmbr1001 nodad");
        // Not one that a server would choose by itself.
        let known = LeaseRecord {
            address: "2001:db8:1::abcd".to_owned(),
            hostname: "web6".to_owned(),
            expiry: Some("4000000000".to_owned()),
            ip6: Some(Ip6Client { duid: DUID.to_owned(), iaid: "7".to_owned() }),
            ..LeaseRecord::default()
        };
        let (network, _) = GuestNetwork::read(&only_ip6).unwrap();
        let leases = database(&network, &[known], 0, |_| false);
        fs::write(directory.join("database"), leases).unwrap();
        let client = beside_the_bridge(|index| {
            ask_by_dhcp6(index, 1);
            ask_by_dhcp6(index, 2);
        });
        let of = |duid: &str, has_mac: bool| {
            news(&directory).into_iter().find_map(|news| match news {
                LeaseNews::Given6(lease) => {
                    let is_it = lease.client.duid == duid && lease.mac.is_some() == has_mac;
                    is_it.then_some(lease)
                }
                _ => None,
            })
        };
        let other = "00:03:00:01:52:54:00:aa:bb:02";
        let is_reported =
            || of(DUID, false).is_some() && of(DUID, true).is_some() && of(other, true).is_some();
        serve(&directory, only_ip6, "both have their addresses", is_reported).await;
        client.join().unwrap();
        let (restored, asked) = (of(DUID, false).unwrap(), of(DUID, true).unwrap());
        assert_eq!((restored.expiry, restored.hostname.as_deref()), (4_000_000_000, Some("web6")));
        for lease in [&restored, &asked] {
            assert_eq!(lease.address.to_string(), "2001:db8:1::abcd");
            assert_eq!(lease.client.iaid, "7");
        }
        assert_eq!(asked.mac.as_deref(), Some(CARD));
        let new = of(other, true).unwrap();
        assert!(network.contains(new.address.into()) && new.address != asked.address, "{new:?}");
    });
}

/// Client of DHCP on `card`, which speaks as whatever MAC address it likes.
struct Client(UdpSocket);

impl Client {
    fn new() -> Client {
        does("ip address add 10.20.1.250/24 dev card");
        does("ip route add 255.255.255.255 dev card");
        let socket = UdpSocket::bind("0.0.0.0:68").unwrap();
        socket.set_broadcast(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        Client(socket)
    }

    /// Sends a message of a kind until there is an answer. Returns the kind of the answer and the
    /// address in it.
    fn ask(&self, mac: Mac, kind: u8, options: &[u8]) -> (u8, Ipv4Addr) {
        const TO_SERVER: u8 = 1;
        const IS_BROADCAST: u8 = 0x80;
        let mut message = vec![0; 236];
        message[..4].copy_from_slice(&[TO_SERVER, 1, 6, 0]);
        message[4..8].copy_from_slice(&[mac[3], mac[4], mac[5], kind]);
        message[10] = IS_BROADCAST;
        message[28..34].copy_from_slice(&mac);
        message.extend([99, 130, 83, 99, 53, 1, kind]);
        message.extend(options);
        message.push(255);
        let late = Instant::now() + Duration::from_secs(30);
        let mut answer = [0; 1500];
        loop {
            assert!(Instant::now() < late, "no server answers {mac:?}");
            // Before the link is up there is no way.
            let _ = self.0.send_to(&message, "255.255.255.255:67");
            while let Ok(length) = self.0.recv(&mut answer) {
                if length > 243 && answer[4..8] == message[4..8] && answer[28..34] == mac {
                    // The kind of a message is its first option.
                    let address: [u8; 4] = answer[16..20].try_into().unwrap();
                    return (answer[242], address.into());
                }
            }
        }
    }

    /// Asks for an address as one that has had it. Returns whether it gets it.
    fn requests(&self, mac: Mac, address: Ipv4Addr) -> bool {
        const REQUEST: u8 = 3;
        const ACK: u8 = 5;
        let [a, b, c, d] = address.octets();
        self.ask(mac, REQUEST, &[50, 4, a, b, c, d]) == (ACK, address)
    }

    /// Asks which address it can have, as a client with this identification.
    fn is_offered(&self, mac: Mac, id: u8) -> Ipv4Addr {
        const DISCOVER: u8 = 1;
        self.ask(mac, DISCOVER, &[61, 2, 0, id]).1
    }
}

/// A guest that speaks as many takes what is anybody's.
#[test]
fn a_flood_of_mac_addresses_leaves_addresses_for_the_cards_of_vms_and_to_who_had_them() {
    const CARD: Mac = [0x52, 0x54, 0, 0xaa, 0xbb, 1];
    const EARLIER: Mac = [0x52, 0x54, 0, 0xdd, 0, 1];
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_owned();
    on_a_bridge_of_its_own(async move {
        let address = |last| Ipv4Addr::new(10, 20, 1, last);
        let earlier = GivenLease {
            mac: "52:54:00:dd:00:01".to_owned(),
            address: address(103),
            hostname: None,
            expiry: Some(4_000_000_000),
            client_id: None,
        };
        let lease = format!("4000000000 {} {} * *\n", earlier.mac, earlier.address);
        fs::write(directory.join("database"), lease).unwrap();
        let guest = beside_the_bridge(move |_| {
            let client = Client::new();
            for last in 100..=163 {
                // The first 16 of 64 are for cards.
                let is_given = client.requests([0x52, 0x54, 0, 0xcc, 0, last], address(last));
                assert_eq!(is_given, last >= 116, "{last}");
            }
            assert!(client.requests(EARLIER, address(103)), "it goes on with what it has");
            let own = client.is_offered(CARD, 1);
            assert!((address(100)..address(116)).contains(&own) && own != address(103), "{own}");
            assert!(client.requests(CARD, own));
            // Nor does it get more by calling itself otherwise.
            for id in 2..6 {
                assert_eq!(client.is_offered(CARD, id), own);
            }
        });
        let network = NetworkRecord { dhcp4_end: "10.20.1.163".to_owned(), ..record() };
        let changes = vec![
            Change::DefineVm(Box::new(vm_with_card())),
            Change::PutLease { vni: "1001".to_owned(), lease: earlier },
        ];
        let finished = || guest.is_finished();
        serve_with(&directory, network, changes, "the guest is done", finished).await;
        guest.join().unwrap();
    });
}

/// Of the two addresses one lies outside of the range that anybody is given an address of, and one
/// within it.
#[test]
fn a_reserved_address_is_given_to_its_card_and_to_nobody_else() {
    const OTHER: Mac = [0x52, 0x54, 0, 0xdd, 0, 1];
    const RESERVED: [(Mac, &str, u8); 2] = [
        ([0x52, 0x54, 0, 0xee, 0, 1], "52:54:00:ee:00:01", 50),
        ([0x52, 0x54, 0, 0xee, 0, 2], "52:54:00:ee:00:02", 150),
    ];
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_owned();
    on_a_bridge_of_its_own(async move {
        fs::write(directory.join("database"), "").unwrap();
        let guest = beside_the_bridge(move |_| {
            let client = Client::new();
            for (mac, _, last) in RESERVED {
                let address = Ipv4Addr::new(10, 20, 1, last);
                assert!(!client.requests(OTHER, address), "{address} is another's");
                assert_eq!(client.is_offered(mac, 1), address);
                assert!(client.requests(mac, address), "{address} is its own");
                assert!(!client.requests(OTHER, address), "{address} is another's still");
            }
        });
        let reserve = |(_, mac, last): (Mac, &str, u8)| Change::PutReservation {
            vni: "1001".to_owned(),
            reservation: LeaseRecord {
                mac: mac.to_owned(),
                address: format!("10.20.1.{last}"),
                hostname: "None".to_owned(),
                ..LeaseRecord::default()
            },
        };
        let changes = RESERVED.map(reserve).into();
        let finished = || guest.is_finished();
        serve_with(&directory, record(), changes, "the guest is done", finished).await;
        guest.join().unwrap();
    });
}

/// Every guest of a network hears what the others call themselves.
#[test]
fn in_a_guarded_network_a_guest_does_not_get_the_address_of_one_whose_name_it_takes() {
    const GUEST: Mac = [0x52, 0x54, 0, 0xdd, 0, 1];
    const OTHER: Mac = [0x52, 0x54, 0, 0xdd, 0, 2];
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_owned();
    on_a_bridge_of_its_own(async move {
        fs::write(directory.join("database"), "").unwrap();
        let guest = beside_the_bridge(move |_| {
            const REQUEST: u8 = 3;
            const ACK: u8 = 5;
            let client = Client::new();
            let own = client.is_offered(GUEST, 7);
            let [a, b, c, d] = own.octets();
            let request = [50, 4, a, b, c, d, 61, 2, 0, 7];
            assert_eq!(client.ask(GUEST, REQUEST, &request), (ACK, own));
            assert_ne!(client.is_offered(OTHER, 7), own);
            assert_eq!(client.is_offered(GUEST, 8), own, "nor does it lose it by another name");
        });
        // Small enough that all of it is anybody's.
        let network = NetworkRecord { dhcp4_end: "10.20.1.109".to_owned(), ..record() };
        let options = NetworkOptions { spoof_guard: true, ..NetworkOptions::default() };
        let changes = vec![Change::PutNetworkOptions { vni: "1001".to_owned(), options }];
        let finished = || guest.is_finished();
        serve_with(&directory, network, changes, "the guest is done", finished).await;
        guest.join().unwrap();
    });
}

/// A guest says of itself what it likes, and others believe the names of hosts.
#[test]
fn a_guest_gets_neither_the_name_of_another_vm_nor_one_that_is_nobodys() {
    const CARD: Mac = [0x52, 0x54, 0, 0xaa, 0xbb, 1];
    const fn other(last: u8) -> Mac {
        [0x52, 0x54, 0, 0xdd, 0, last]
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_owned();
    on_a_bridge_of_its_own(async move {
        fs::write(directory.join("database"), "").unwrap();
        let calls = directory.join("news");
        let guest = beside_the_bridge(move |_| {
            const REQUEST: u8 = 3;
            const ACK: u8 = 5;
            let client = Client::new();
            let says = |mac: Mac, last: u8, name: &str| {
                let length = u8::try_from(name.len()).unwrap();
                let options = [&[50, 4, 10, 20, 1, last, 12, length][..], name.as_bytes()];
                let given = client.ask(mac, REQUEST, &options.concat());
                assert_eq!(given, (ACK, Ipv4Addr::new(10, 20, 1, last)), "{name}");
            };
            says(other(1), 131, "web1");
            says(other(2), 132, "WEB1.net1.example");
            says(other(3), 133, "wpad");
            says(other(4), 134, "isatap.net1.example");
            says(other(5), 135, "web12");
            says(CARD, 101, "web1");
            let late = Instant::now() + Duration::from_secs(20);
            while !fs::read_to_string(&calls).unwrap_or_default().contains(" web1|") {
                assert!(Instant::now() < late, "its card does not get the name of the VM");
                std::thread::sleep(Duration::from_millis(50));
            }
            says(other(6), 136, "web1");
            says(CARD, 101, "hello");
        });
        let names = || -> BTreeMap<u8, Option<String>> {
            let given = news(&directory).into_iter().filter_map(|news| match news {
                LeaseNews::Given(lease) => Some((lease.address.octets()[3], lease.hostname)),
                _ => None,
            });
            given.collect()
        };
        let changes = vec![Change::DefineVm(Box::new(vm_with_card()))];
        let is_passed = || {
            let names = names();
            names.len() == 7 && names.get(&101) == Some(&Some("hello".to_owned()))
        };
        serve_with(&directory, record(), changes, "all of it is told", is_passed).await;
        guest.join().unwrap();
        let expected = [
            (101, Some("hello")),
            (131, None),
            (132, None),
            (133, None),
            (134, None),
            (135, Some("web12")),
            (136, None),
        ];
        let expected = expected.map(|(last, name)| (last, name.map(str::to_owned)));
        assert_eq!(names(), BTreeMap::from(expected));
    });
}

/// Words that a program prints.
fn says(words: &str) -> String {
    let mut parts = words.split_whitespace();
    let done = Command::new(parts.next().unwrap()).args(parts).output().unwrap();
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn a_guest_of_a_network_of_both_families_makes_itself_an_address_and_has_a_way_out_by_ipv6() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_owned();
    on_a_bridge_of_its_own(async move {
        does("ip address add 2001:db8:1::1/64 dev vmbr1001 nodad");
        fs::write(directory.join("database"), "").unwrap();
        let guest = beside_the_bridge(|_| {
            let late = Instant::now() + Duration::from_secs(30);
            loop {
                let own = says("ip -6 address show dev card scope global");
                let way = says("ip -6 route show default dev card");
                // Of the network and the MAC address.
                let is_there = own.contains(" 2001:db8:1:0:5054:ff:feaa:bb01/64 ");
                if is_there && way.contains("via fe80::") {
                    break;
                }
                assert!(Instant::now() < late, "not in time: {own} {way}");
                std::thread::sleep(Duration::from_millis(100));
            }
            for gateway in ["10.20.1.1:53", "[2001:db8:1::1]:53"] {
                if gateway.starts_with('1') {
                    does("ip address add 10.20.1.250/24 dev card");
                }
                let gateway = gateway.parse().unwrap();
                TcpStream::connect_timeout(&gateway, Duration::from_secs(10)).unwrap();
            }
        });
        let finished = || guest.is_finished();
        serve(&directory, dual(), "the guest is done", finished).await;
        guest.join().unwrap();
    });
}

/// dnsmasq tells of a lease by the name that is reserved for its host, if it takes it for one.
#[test]
fn a_name_can_be_reserved_if_dnsmasq_takes_it_for_a_name() {
    const NAMES: [&str; 16] = [
        "ignore", "infinite", "5", "90", "12h", "1s", "7w", "30m", "2d", "h", "hh", "12x", "1a",
        "4s5", "12-h", "x_y",
    ];
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_owned();
    let lines = |line: fn(u8, &str) -> String| {
        (10..).zip(NAMES).map(|(number, name)| line(number, name)).collect::<String>()
    };
    let leases =
        lines(|number, _| format!("4000000000 52:54:00:00:00:{number} 10.20.1.{number} * *\n"));
    let reserved = lines(|number, name| {
        format!("dhcp-host=52:54:00:00:00:{number},10.20.1.{number},{name}\n")
    });
    on_a_bridge_of_its_own(async move {
        let (program, conf) = (directory.join("program"), directory.join("conf"));
        fs::write(directory.join("database"), leases).unwrap();
        fs::write(&conf, reserved).unwrap();
        fs::write(&program, LEASE_PROGRAM).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut server = Command::new("/usr/sbin/dnsmasq")
            .args(["--keep-in-foreground", "--log-facility=-", "--pid-file", "--leasefile-ro"])
            .args(["--bind-interfaces", "--interface=vmbr1001"])
            .arg("--dhcp-range=10.20.1.100,10.20.1.199,48h")
            .arg(format!("--conf-file={}", conf.display()))
            .arg(format!("--dhcp-script={}", program.display()))
            .spawn()
            .unwrap();
        let late = Instant::now() + Duration::from_secs(20);
        let calls = loop {
            let calls = fs::read_to_string(directory.join("calls")).unwrap_or_default();
            if (10..).zip(NAMES).all(|(number, _)| calls.contains(&format!(" 10.20.1.{number}"))) {
                break calls;
            }
            assert!(Instant::now() < late, "not in time: {calls}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        server.kill().unwrap();
        server.wait().unwrap();
        for (number, name) in (10..).zip(NAMES) {
            let is_one = calls.contains(&format!(" 10.20.1.{number} {name}\n"));
            assert_eq!(is_reservable(name), is_one, "{name}: {calls}");
        }
    });
}
