//! Adapters of this machine keep the contracts; its network does in network namespaces of the
//! test's own.

#![allow(clippy::disallowed_methods, reason = "a test waits, in real or in paused time")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv,
    recvfrom, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use pvc_contracts::exporters::{ExportersFixture, PAGE, exporters_contract};
use pvc_contracts::files::{FilesFixture, HostilePaths, files_contract};
use pvc_contracts::firewall::{FirewallFixture, firewall_contract};
use pvc_contracts::machine::{clock_contract, exec_contract, host_contract, random_contract};
use pvc_contracts::network::{NetworkFixture, network_contract};
use pvc_contracts::programs::{ProgramsFixture, programs_contract};
use pvc_contracts::sriov::{SriovFixture, sriov_contract};
use pvc_contracts::tcp_port::free_port;
use pvc_linux::{
    HttpExporters, LinuxExec, LinuxFiles, LinuxHost, LinuxNetwork, LinuxPrograms, LinuxSriov,
    NftFirewall, OsRandom, SystemClock,
};
use pvc_model::host_filter::{HostFilter, table};
use pvc_model::link::{LinkAbilities, LinkKind, Vxlan};
use pvc_ports::{
    Exec as _, FileOwner, Firewall as _, Network, Program, ProgramSignal, Programs as _,
};

/// Runs `test` on a thread in a network namespace of its own, which ends with it: whatever it does,
/// this machine's network is not touched.
fn alone<T: Send + 'static>(
    test: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("root may have a network namespace");
        ip("link set lo up");
        test()
    })
}

/// Waits for `future` on the calling thread, so that every socket is made in its namespace.
fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn ip(args: &str) {
    assert!(tries_ip(args), "`ip {args}` fails");
}

fn tries_ip(args: &str) -> bool {
    Command::new("ip")
        .args(args.split_whitespace())
        .output()
        .expect("iproute2 is installed")
        .status
        .success()
}

fn ip_says(args: &str) -> String {
    let output =
        Command::new("ip").args(args.split_whitespace()).output().expect("iproute2 is installed");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn this_machine_keeps_the_contracts() {
    host_contract(&LinuxHost::new());
    random_contract(&OsRandom);
    wait(async {
        clock_contract(&SystemClock).await;
        exec_contract(&LinuxExec).await;
    });
}

struct RealPaths;

impl HostilePaths for RealPaths {
    fn link(&self, path: &Path, to: &Path) {
        std::os::unix::fs::symlink(to, path).unwrap();
    }

    fn fifo(&self, path: &Path) {
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    }

    fn sparse(&self, path: &Path, length_bytes: u64) {
        std::fs::File::create(path).unwrap().set_len(length_bytes).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_this_machine_keep_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = FilesFixture {
        files: Arc::new(LinuxFiles),
        directory: directory.path().to_owned(),
        hostile: Box::new(RealPaths),
        owner: FileOwner { user: "nobody".to_owned(), group: "nogroup".to_owned() },
    };
    files_contract(fixture).await;
}

#[test]
fn the_network_of_this_machine_keeps_the_contract() {
    let test = alone(|| {
        ip("link add ens4 type veth peer name far4");
        ip("link set far4 up");
        let can = |what: &str| {
            let able = tries_ip(&format!("link add name probe {what}"));
            match able {
                true => ip("link del probe"),
                false => eprintln!(
                    "this kernel refuses `{what}`: that this is said is all that \
                                    is tested of it"
                ),
            }
            able
        };
        let able = LinkAbilities {
            vlans: can("link ens4 type vlan id 9"),
            vxlans: can("type vxlan id 9 dstport 4789"),
        };
        let fixture = NetworkFixture { device: "ens4".to_owned(), able };
        wait(network_contract(Arc::new(LinuxNetwork::new()), fixture));
    });
    test.join().unwrap();
}

/// Shows that the kernel is asked, and what it answers: the one of our tests knows no SR-IOV.
#[test]
fn a_machine_without_sriov_cards_keeps_the_contract() {
    let test = alone(|| {
        let fixture = SriovFixture { ordinary: "lo".to_owned(), card: None };
        wait(sriov_contract(Arc::new(LinuxSriov::new()), fixture));
    });
    test.join().unwrap();
}

/// A program of a shell's words, every process of which says `token` in its environment.
fn shell(token: &str, name: &str, script: &str) -> Program {
    Program {
        name: name.to_owned(),
        program: "/bin/sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        env: vec![("TOKEN".to_owned(), token.to_owned())],
    }
}

/// Number of processes that have `token` in their environment. A zombie has none.
fn processes_of(token: &str) -> usize {
    let entry = format!("TOKEN={token}").into_bytes();
    let says_so = |process: &std::fs::DirEntry| {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|said| said == entry)
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.filter(says_so).count()
}

/// A process that begins another program says nothing for a moment.
async fn until_there_are(count: usize, token: &str) {
    let there = async {
        while processes_of(token) != count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), there).await.expect("there come to be so many");
}

fn token(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_programs_of_this_machine_keep_the_contract() {
    let (token, runtime) = (token("contract"), tempfile::tempdir().unwrap());
    // The shell handles a signal only between two commands, and `wait` is none that it waits for.
    let on = "while :; do sleep 600 & wait $!; done";
    let program = |name: &str, script: &str| shell(&token, name, script);
    let mut absent = program("absent", "");
    absent.program = "/nonexistent/program".to_owned();
    let fixture = ProgramsFixture {
        programs: Arc::new(LinuxPrograms::new(&token, runtime.path()).unwrap()),
        steady: program("steady", &format!("trap 'echo reloaded' HUP; echo ready; {on}")),
        failing: program("failing", "echo one; echo two >&2; exit 3"),
        stubborn: program("stubborn", &format!("trap '' TERM; echo ready; {on}")),
        forking: program("forking", &format!("setsid sleep 600 & echo ready; {on}")),
        leaving: program("leaving", "setsid sleep 600 & echo ready"),
        chatty: program("chatty", "head -c 100000000 /dev/zero | tr '\\0' x | fold -w 10000"),
        absent,
        processes: {
            let token = token.clone();
            Box::new(move || processes_of(&token))
        },
    };
    programs_contract(fixture).await;
}

/// Runs itself as a daemon: with `PVC_DAEMON` and `PVC_RUNTIME` set it starts programs, and dies by
/// SIGKILL.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_daemon_has_left_is_ended_by_the_next_one_of_its_kind_alone() {
    let daemon = std::env::var("PVC_DAEMON").ok().zip(std::env::var("PVC_RUNTIME").ok());
    if let Some((token, runtime)) = daemon {
        let programs = LinuxPrograms::new(&token, Path::new(&runtime)).unwrap();
        let script = "setsid sleep 600 & sleep 600 & echo ready; wait";
        let running = programs.start(&shell(&token, "left", script)).await.unwrap();
        assert_eq!(running.line().await.as_deref(), Some("ready"));
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    let (token, runtime) = (token("killed"), tempfile::tempdir().unwrap());
    let programs = LinuxPrograms::new(&token, runtime.path()).unwrap();
    let name = "what_a_killed_daemon_has_left_is_ended_by_the_next_one_of_its_kind_alone";
    let daemon = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact"])
        .env("PVC_DAEMON", &token)
        .env("PVC_RUNTIME", runtime.path())
        .output()
        .unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&daemon.status), Some(9));
    until_there_are(3, &token).await;
    let own = programs.start(&shell(&token, "own", "exec sleep 600")).await.unwrap();
    let another = LinuxPrograms::new("another", runtime.path()).unwrap();
    assert_eq!(another.end_left_over().await.unwrap(), 0);
    until_there_are(4, &token).await;
    let unrelated = [format!("{token}/99999999/1/0"), format!("{token}/0123abcd/99999999/1/0")];
    let unrelated = unrelated
        .map(|mark| Command::new("sleep").arg("600").env("PVC_PROGRAM", mark).spawn().unwrap());
    assert_eq!(programs.end_left_over().await.unwrap(), 3);
    assert_eq!(processes_of(&token), 1, "its own goes on");
    for mut process in unrelated {
        assert_eq!(process.try_wait().unwrap(), None, "it does not know the word");
        process.kill().unwrap();
        process.wait().unwrap();
    }
    own.signal(ProgramSignal::Terminate);
    own.ended().await;
    assert_eq!(processes_of(&token), 0);
}

/// Runs itself as a daemon: with `PVC_DAEMON` set it runs a program until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_ends_with_the_daemon_that_runs_it_also_when_that_is_killed() {
    let token = std::env::var("PVC_DAEMON");
    let command = |token: String| pvc_ports::Command {
        program: "sleep".to_owned(),
        args: vec!["600".to_owned()],
        env: vec![("TOKEN".to_owned(), token)],
        stdin: None,
        deadline: Duration::from_secs(600),
    };
    if let Ok(token) = token {
        LinuxExec.run(command(token)).await.unwrap();
        return;
    }
    let token = self::token("exec");
    let name = "a_program_ends_with_the_daemon_that_runs_it_also_when_that_is_killed";
    let mut daemon = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact"])
        .env("PVC_DAEMON", &token)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let long = Duration::from_secs(20);
    pvc_testkit::eventually("it runs", long, || processes_of(&token) == 1).await;
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    pvc_testkit::eventually("it has ended", long, || processes_of(&token) == 0).await;
}

#[test]
fn the_firewall_of_this_machine_keeps_the_contract() {
    let test = alone(|| {
        nft("add table inet theirs");
        nft("add chain inet theirs input");
        nft("add table bridge pvc-contrac");
        let fixture = FirewallFixture {
            firewall: Arc::new(NftFirewall::new(Arc::new(LinuxExec))),
            tables: Box::new(|| {
                let listed = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
                String::from_utf8(listed.stdout).unwrap()
            }),
            refused: "chain input {\n\tip saddr @nobody drop\n}".to_owned(),
        };
        wait(firewall_contract(fixture));
    });
    test.join().unwrap();
}

/// Frames that a bridge hands to a guest go over no card: what is left to one to compute arrives as
/// it is, and clients of DHCP that look at it drop the answer.
#[test]
fn what_a_bridge_sends_to_a_guest_has_its_checksum() {
    let test = alone(|| {
        ip("link add vmbr7 type bridge");
        ip("addr add 10.20.7.1/24 dev vmbr7");
        ip("link add tap1 type veth peer name eth0");
        ip("link set tap1 master vmbr7");
        for link in ["vmbr7", "tap1", "eth0"] {
            ip(&format!("link set {link} up"));
        }
        ip("neigh add 10.20.7.2 lladdr 52:54:00:00:00:02 dev vmbr7");
        let guest =
            socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll)
                .unwrap();
        setsockopt(&guest, sockopt::ReceiveTimeout, &TimeVal::new(1, 0)).unwrap();
        let port = nix::net::if_::if_nametoindex("eth0").unwrap();
        let server = std::net::UdpSocket::bind("10.20.7.1:7777").unwrap();
        let arrives_summed = || {
            let mut buffer = [0; 2048];
            for _ in 0..20 {
                server.send_to(b"an offer of DHCP", "10.20.7.2:68").unwrap();
                while let Ok((length, from)) = recvfrom::<LinkAddr>(guest.as_raw_fd(), &mut buffer)
                {
                    let frame = &buffer[..length];
                    let is_ours = length > 42 && frame[34..36] == 7777_u16.to_be_bytes();
                    let at = from.and_then(|from| u32::try_from(from.ifindex()).ok());
                    if is_ours && at == Some(port) {
                        return is_summed(&frame[14..]);
                    }
                }
            }
            panic!("nothing arrives");
        };
        assert!(!arrives_summed(), "else nothing is shown here");
        wait(LinuxNetwork::new().compute_checksums("vmbr7")).unwrap();
        assert!(arrives_summed());
    });
    test.join().unwrap();
}

/// Whether the checksum of an IPv4 packet of UDP is right.
fn is_summed(packet: &[u8]) -> bool {
    let length = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    let (header, udp) = (&packet[12..20], &packet[20..length]);
    let words = |bytes: &[u8]| -> u32 {
        bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) * 256 + u32::from(*pair.get(1).unwrap_or(&0)))
            .sum()
    };
    let sum = words(header) + 17 + u32::try_from(udp.len()).unwrap() + words(udp);
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded & 0xffff) + (folded >> 16) == 0xffff
}

#[test]
fn what_ip_makes_is_seen_as_it_is() {
    let test = alone(|| {
        ip("link add ens4 type veth peer name far4");
        ip("link add br7 type bridge");
        ip("link set ens4 mtu 9000 master br7 up");
        ip("addr add 10.0.0.1/24 dev br7");
        ip("addr add 10.0.0.250/32 dev br7");
        ip("addr add 2001:db8::7/64 dev br7 nodad");
        ip("link add vx9 type vxlan id 9 dstport 4789 dev br7");
        ip("link set br7 up");
        ip("route add default via 10.0.0.254");
        ip("route add 10.9.0.0/16 via 10.0.0.253 metric 7 table 99");
        let (links, routes) = wait(async {
            (
                LinuxNetwork::new().links().await.unwrap(),
                LinuxNetwork::new().routes().await.unwrap(),
            )
        });
        let (port, bridge) = (&links["ens4"], &links["br7"]);
        assert_eq!(
            (port.mtu, port.master.as_deref(), port.up, port.carrier),
            (9000, Some("br7"), true, false)
        );
        assert_eq!(port.kind.to_string(), "veth");
        let lower = Some("br7".to_owned());
        let vxlan = Vxlan { id: 9, local: None, lower, port: 4789, learning: true };
        assert_eq!(links["vx9"].kind, LinkKind::Vxlan(vxlan));
        let addresses: Vec<String> = bridge.addresses.iter().map(ToString::to_string).collect();
        for wanted in ["10.0.0.1/24", "10.0.0.250/32", "2001:db8::7/64"] {
            assert!(addresses.iter().any(|address| address == wanted), "{addresses:?}");
        }
        let shown: Vec<String> = routes.iter().map(ToString::to_string).collect();
        assert!(shown.contains(&"default via 10.0.0.254 on br7".to_owned()), "{shown:?}");
        assert!(
            !shown.iter().any(|route| route.contains("10.9.0.0")),
            "of another table: {shown:?}"
        );
    });
    test.join().unwrap();
}

#[test]
fn a_neighbour_learns_where_an_address_went() {
    let (tell, hear) = mpsc::channel();
    let (checked, done) = mpsc::channel::<()>();
    let neighbour = alone(move || {
        tell.send(nix::unistd::gettid()).unwrap();
        eventually("the other end is plugged in", || tries_ip("link show far4"));
        ip("link set far4 up");
        ip("addr add 192.0.2.9/24 dev far4");
        ip("addr add 2001:db8::9/64 dev far4 nodad");
        for address in ["192.0.2.250", "2001:db8::fa"] {
            ip(&format!("neigh add {address} lladdr 02:00:00:00:00:99 dev far4 nud stale"));
        }
        tell.send(nix::unistd::gettid()).unwrap();
        for address in ["192.0.2.250", "2001:db8::fa"] {
            let knows_neighbour =
                || ip_says(&format!("neigh show {address}")).contains("02:00:00:00:00:42");
            eventually(&format!("{address} is known at its new place"), knows_neighbour);
        }
        let _ = checked.send(());
    });
    let holder = alone(move || {
        let other = hear.recv().unwrap();
        ip("link add ens4 address 02:00:00:00:00:42 type veth peer name far4");
        ip(&format!("link set far4 netns {other}"));
        hear.recv().unwrap();
        wait(async {
            let network = LinuxNetwork::new();
            network.create_bridge("brupstream").await.unwrap();
            network.set_master("ens4", Some("brupstream")).await.unwrap();
            network.set_up("ens4", true).await.unwrap();
            network.set_up("brupstream", true).await.unwrap();
            eventually("the cable is in", || {
                std::fs::read_to_string("/proc/net/dev").is_ok()
                    && ip_says("link show brupstream").contains("LOWER_UP")
            });
            for address in ["192.0.2.250/24", "2001:db8::fa/64"] {
                network.add_address("brupstream", address.parse().unwrap()).await.unwrap();
                let ip = address.split('/').next().unwrap().parse().unwrap();
                network.announce("brupstream", ip).await.unwrap();
            }
        });
        // The link lives as long as its namespace, which ends with this thread.
        done.recv_timeout(Duration::from_secs(60)).expect("the neighbour learns");
    });
    holder.join().unwrap();
    neighbour.join().unwrap();
}

#[test]
fn an_announcement_is_sent_twice_in_both_forms_and_leaves_through_the_port() {
    let test = alone(|| {
        ip("link add ens4 address 02:00:00:00:00:42 type veth peer name far4");
        ip("link set far4 up");
        ip("link set ens4 up");
        let listener =
            socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll)
                .unwrap();
        setsockopt(&listener, sockopt::ReceiveTimeout, &TimeVal::new(20, 0)).unwrap();
        wait(async {
            LinuxNetwork::new().announce("ens4", "10.99.0.250".parse().unwrap()).await.unwrap()
        });
        let mut operations = Vec::new();
        let mut buffer = [0; 2048];
        // Each frame is seen where it leaves and where it arrives.
        while operations.len() < 8 {
            let length = recv(listener.as_raw_fd(), &mut buffer, MsgFlags::empty())
                .expect("a frame in time");
            let frame = &buffer[..length];
            if frame[12..14] == [8, 6] && frame[6..12] == [2, 0, 0, 0, 0, 0x42] {
                assert_eq!(frame[28..32], [10, 99, 0, 250]);
                operations.push(frame[21]);
            }
        }
        operations.sort_unstable();
        assert_eq!(operations, [1, 1, 1, 1, 2, 2, 2, 2]);
    });
    test.join().unwrap();
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..600 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("it did not come true in 30 s: {what}");
}

/// A node whose filter is loaded, in a namespace of its own, and a machine with several addresses
/// in another, on one cable: what the other one can begin, and what it cannot.
#[test]
fn the_filter_keeps_other_machines_off_the_ports_between_nodes_and_off_nothing_else() {
    let (tell, hear) = mpsc::channel();
    let (checked, done) = mpsc::channel::<()>();
    let other = alone(move || {
        tell.send(nix::unistd::gettid()).unwrap();
        eventually("the other end is plugged in", || tries_ip("link show far4"));
        ip("link set far4 up");
        for address in ["10.0.1.2/24", "10.0.1.66/24", "192.0.2.7/24"] {
            ip(&format!("addr add {address} dev far4"));
        }
        for address in ["2001:db8::66/64", "2001:db8::7/64"] {
            ip(&format!("addr add {address} dev far4 nodad"));
        }
        tell.send(nix::unistd::gettid()).unwrap();
        done.recv().unwrap();
        let reaches = |from: &str, to: &str| connects(from, to);
        eventually("the cable carries", || reaches("10.0.1.2", "10.0.1.1:22"));
        eventually("the cable carries IPv6", || reaches("2001:db8::7", "[2001:db8::1]:22"));
        assert!(reaches("10.0.1.2", "10.0.1.1:2181"), "a node reaches ZooKeeper");
        assert!(reaches("10.0.1.2", "10.0.1.1:49160"), "and the migration's port");
        assert!(reaches("2001:db8::7", "[2001:db8::1]:2181"), "whom the configuration names, too");
        for port in [2181, 6801, 16509, 49160] {
            assert!(
                !reaches("10.0.1.66", &format!("10.0.1.1:{port}")),
                "another machine reaches {port}"
            );
        }
        assert!(
            !reaches("2001:db8::66", "[2001:db8::1]:2181"),
            "another machine reaches it over IPv6"
        );
        assert!(reaches("10.0.1.66", "10.0.1.1:7370"), "the API's port, which is in Ceph's range");
        assert!(reaches("10.0.1.66", "10.0.1.1:22") && reaches("2001:db8::66", "[2001:db8::1]:22"));
        let udp = std::net::UdpSocket::bind("10.0.1.66:0").unwrap();
        udp.send_to(b"x", "10.0.1.1:6801").unwrap();
        // The other machine serves: what the node begins from a port of these ranges is answered.
        let served = std::net::TcpListener::bind("10.0.1.66:80").unwrap();
        tell.send(nix::unistd::gettid()).unwrap();
        served.accept().unwrap();
        done.recv().unwrap();
    });
    let node = alone(move || {
        let far = hear.recv().unwrap();
        ip(&format!("link add ens4 type veth peer name far4 netns {far}"));
        ip("addr add 10.0.1.1/24 dev ens4");
        ip("addr add 2001:db8::1/64 dev ens4 nodad");
        ip("link set ens4 up");
        let _services: Vec<std::net::TcpListener> = [22, 2181, 6801, 7370, 16509, 49160]
            .map(|port| std::net::TcpListener::bind(format!("[::]:{port}")).unwrap())
            .into();
        let udp = std::net::UdpSocket::bind("10.0.1.1:6801").unwrap();
        let firewall = NftFirewall::new(Arc::new(LinuxExec));
        // Somebody else's table, which has to stay.
        nft("add table inet theirs");
        let nodes = ["10.0.1.1/32", "10.0.1.2/32"].map(|net| net.parse().unwrap());
        let allowed = ["2001:db8::7/128"].map(|net| net.parse().unwrap());
        let filter =
            HostFilter::new(nodes.into(), allowed.into(), [2181]).unwrap().leaving_open(7370);
        wait(firewall.apply(&table(), Some(&filter.rules()))).unwrap();
        assert!(connects("10.0.1.1", "10.0.1.1:2181") && connects("127.0.0.1", "127.0.0.1:2181"));
        hear.recv().unwrap();
        checked.send(()).unwrap();
        hear.recv().unwrap();
        udp.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        udp.recv(&mut [0; 8]).expect("datagrams are not looked at");
        assert!(
            connects_from("10.0.1.1:49170", "10.0.1.66:80"),
            "the answers to this node come in"
        );
        checked.send(()).unwrap();
        wait(firewall.apply(&table(), None)).unwrap();
        assert_eq!(wait(firewall.table(&table())).unwrap(), None);
        let tables = Command::new("nft").args(["list", "tables"]).output().unwrap();
        assert_eq!(String::from_utf8(tables.stdout).unwrap().trim(), "table inet theirs");
    });
    other.join().unwrap();
    node.join().unwrap();
}

/// A SYN to ZooKeeper of 10.0.1.1 as if 10.0.1.2 had sent it, with a loose source route (RFC 791)
/// that was gone to its end and whose last hop is who really sends it: the answers go there.
fn forged_syn(from_port: u16) -> Vec<u8> {
    let (as_node, to, by, own) = ([10, 0, 1, 2], [10, 0, 1, 1], [10, 0, 1, 99], [10, 0, 1, 66]);
    let mut tcp = [&from_port.to_be_bytes()[..], &2181_u16.to_be_bytes()].concat();
    // Sequence and acknowledgement, length of the header, SYN, window, checksum, no urgent data.
    tcp.extend([0, 0, 0, 7, 0, 0, 0, 0, 5 << 4, 2, 4, 0, 0, 0, 0, 0]);
    let over = [&as_node[..], &to, &[0, 6, 0, 20], &tcp].concat();
    let sum: u32 = over.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    // The option has 11 bytes, and its next hop would be the twelfth.
    let route = [&[131, 11, 12][..], &by, &own, &[0]].concat();
    let head = [&[0x48, 0, 0, 52, 0, 1, 0, 0, 64, 6, 0, 0][..], &as_node, &to].concat();
    [head, route, tcp].concat()
}

/// Sends it as it is.
fn send_raw(packet: &[u8]) {
    let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), SockProtocol::Raw);
    let raw = raw.unwrap();
    let to = SockaddrIn::new(10, 0, 1, 1, 0);
    sendto(raw.as_raw_fd(), packet, &to, MsgFlags::empty()).unwrap();
}

/// Packets that the only counted rule with these words has seen.
fn counted(words: &str) -> u64 {
    let rules = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    let rules = String::from_utf8(rules.stdout).unwrap();
    let line = rules.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("{rules}"));
    let mut after = line.split(' ').skip_while(|word| *word != "packets");
    after.nth(1).unwrap().parse().unwrap()
}

/// A node in a namespace of its own, and in another one a machine that speaks as a node: with a way
/// for the answers that leads to itself, and from an address of a network that it is not in.
#[test]
fn a_machine_that_speaks_as_a_node_is_not_let_in_by_another_way_than_nodes_come() {
    type Work = Box<dyn FnOnce() + Send>;
    let (ask, asked) = mpsc::channel::<Work>();
    let (tell, hear) = mpsc::channel();
    let other = alone(move || {
        tell.send(nix::unistd::gettid()).unwrap();
        asked.iter().for_each(|work| work());
    });
    let node = alone(move || {
        fn there<T: Send + 'static>(
            ask: &mpsc::Sender<Work>,
            work: impl FnOnce() -> T + Send + 'static,
        ) -> T {
            let (tell, hear) = mpsc::channel();
            ask.send(Box::new(move || tell.send(work()).unwrap())).unwrap();
            hear.recv().expect("the other machine lives")
        }
        let far = hear.recv().unwrap();
        ip(&format!("link add ens4 type veth peer name far4 netns {far}"));
        for words in ["addr add 10.0.1.1/24 dev ens4", "link set ens4 up"] {
            ip(words);
        }
        there(&ask, || {
            for address in ["10.0.1.66/24", "10.0.9.2/32"] {
                ip(&format!("addr add {address} dev far4"));
            }
            ip("link set far4 up");
        });
        // As PVC 1.0.3 has it.
        for setting in [
            "all/accept_source_route 1",
            "ens4/accept_source_route 1",
            "all/rp_filter 0",
            "ens4/rp_filter 0",
        ] {
            let (path, value) = setting.split_once(' ').unwrap();
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{path}"), value).unwrap();
        }
        let _services = [22, 2181].map(|port| TcpListener::bind(("0.0.0.0", port)).unwrap());
        nft("add table inet theirs");
        nft("add chain inet theirs output { type filter hook output priority 0 ; }");
        for ports in ["41000-41999", "42000-42999"] {
            nft(&format!(
                "add rule inet theirs output ip daddr 10.0.1.66 tcp dport {ports} counter"
            ));
        }
        let mut port = 41_000;
        eventually("without a filter it gets the answers", || {
            port += 1;
            there(&ask, move || send_raw(&forged_syn(port)));
            counted("41000-41999") > 0
        });
        let firewall = NftFirewall::new(Arc::new(LinuxExec));
        let load = |filter: &HostFilter| {
            wait(firewall.apply(&table(), Some(&filter.rules()))).unwrap();
        };
        let nets = |nets: &[&str]| nets.iter().map(|net| net.parse().unwrap()).collect();
        let all = nets(&["10.0.1.2/32", "10.0.9.0/24"]);
        let filter = HostFilter::new(all, [].into(), [2181]).unwrap();
        load(&filter);
        let mut port = 42_000;
        eventually("it is dropped", || {
            port += 1;
            there(&ask, move || send_raw(&forged_syn(port)));
            counted("tcp flags") > 0
        });
        assert_eq!(counted("42000-42999"), 0, "nothing was answered");

        // A node's address of the network behind ens5, by ens4.
        ip("route add 10.0.9.2/32 dev ens4");
        let reaches = |to: &'static str| there(&ask, move || connects("10.0.9.2", to));
        eventually("it is taken for a node", || reaches("10.0.1.1:2181"));
        let by = |link: &str| {
            filter.clone().closed_outside(&nets(&["10.0.9.0/24"]), [link.to_owned()].into())
        };
        load(&by("ens4"));
        assert!(!reaches("10.0.1.1:2181") && reaches("10.0.1.1:22"));
        load(&by("ens6"));
        assert!(reaches("10.0.1.1:2181"));
    });
    node.join().unwrap();
    other.join().unwrap();
}

fn nft(command: &str) {
    let status = Command::new("nft")
        .args(command.split_whitespace())
        .status()
        .expect("nftables is installed");
    assert!(status.success(), "`nft {command}` fails");
}

fn connects(from: &str, to: &str) -> bool {
    let from = if from.contains(':') { format!("[{from}]:0") } else { format!("{from}:0") };
    connects_from(&from, to)
}

/// Whether a connection from the address `from` stands within a second.
fn connects_from(from: &str, to: &str) -> bool {
    let (from, to): (std::net::SocketAddr, std::net::SocketAddr) =
        (from.parse().unwrap(), to.parse().unwrap());
    wait(async {
        let socket = if from.is_ipv4() {
            tokio::net::TcpSocket::new_v4()
        } else {
            tokio::net::TcpSocket::new_v6()
        };
        let socket = socket.unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(from).unwrap();
        matches!(tokio::time::timeout(Duration::from_secs(1), socket.connect(to)).await, Ok(Ok(_)))
    })
}

/// An exporter that sends this after the head of each request, and then ends or says no more.
/// Returns the address of its page.
fn exporter(answer: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let head = BufReader::new(stream.try_clone().unwrap()).lines();
            let _ = head.map_while(Result::ok).take_while(|line| !line.is_empty()).count();
            // Whoever has had enough goes.
            let _ = answer(&mut stream);
        }
    });
    url
}

fn says(status: &'static str, body: &'static [u8]) -> String {
    exporter(move |stream| {
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len())?;
        stream.write_all(body)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn exporters_of_this_machine_keep_the_contract() {
    let good = says("200 OK", PAGE.as_bytes());
    let onward = good.clone();
    let absent = free_port();
    let fixture = ExportersFixture {
        exporters: Arc::new(HttpExporters::default()),
        good,
        refusing: says("503 Service Unavailable", b"no"),
        redirecting: exporter(move |stream| {
            write!(stream, "HTTP/1.1 302 Found\r\nLocation: {onward}\r\nContent-Length: 0\r\n\r\n")
        }),
        // Its first half comes at once, and the rest never.
        silent: exporter(|stream| {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf")?;
            std::thread::sleep(Duration::from_secs(3600));
            Ok(())
        }),
        endless: exporter(|stream| {
            write!(stream, "HTTP/1.1 200 OK\r\n\r\n")?;
            loop {
                stream.write_all(&[b'7'; 1 << 16])?;
            }
        }),
        garbled: says("200 OK", b"\xff\xfe"),
        absent: format!("http://127.0.0.1:{absent}/metrics"),
    };
    exporters_contract(fixture).await;
}
