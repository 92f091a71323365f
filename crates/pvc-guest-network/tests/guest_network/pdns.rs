//! The DNS aggregator with PowerDNS, PostgreSQL and dnsmasq themselves, in a network of the test's
//! own.

#![allow(clippy::disallowed_methods, reason = "a test looks at real files")]

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use domain::base::iana::Rcode;
use domain::base::{Message, MessageBuilder, Name, Rtype};
use domain::rdata::A;
use nix::sched::{CloneFlags, unshare};
use pvc_contracts::postgres_server::{DATABASE, PostgresServer, USER};
use pvc_database::{PostgresDatabase, PostgresOptions};
use pvc_dns::TcpTransfers;
use pvc_guest_network::dhcp::{self, DhcpSettings};
use pvc_guest_network::dns::{self, DnsDatabase, DnsSettings};
use pvc_guest_network::leases::Refused;
use pvc_guest_network::links::Standing;
use pvc_linux::{LinuxExec, LinuxFiles, LinuxNetwork, LinuxPrograms, SystemClock};
use pvc_model::NodeName;
use pvc_model::guest_network::Vni;
use pvc_model::guest_network::dns::HostAddress;
use pvc_model::link::IpNet;
use pvc_model::network::NetworkRecord;
use pvc_ports::{
    Database, DnsPorts, Ports, SqlValue, Statement, TransferError, ZoneTransfers as _,
};
use pvc_role::Context;
use pvc_testkit::{SeededRandom, ports};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::common::{does, new_store, put, record};

const FLOATING: [(&str, &str); 2] = [("brcluster", "10.0.0.254"), ("brupstream", "192.0.2.254")];

/// Password with everything that a file of PowerDNS or a line for PostgreSQL could trip over.
const PASSWORD: &str = "pa ss#w'o\\rd\"x$y=";

/// The tables as Debian's package has them.
const SCHEMA: &str = "/usr/share/pdns-backend-pgsql/schema/schema.pgsql.sql";

/// Knows the leases that lie beside it.
const LEASE_PROGRAM: &str = "#!/bin/sh
[ \"$1\" != init ] || cat \"$(dirname \"$0\")/leases\"
";

fn of_domain(domain: &str) -> NetworkRecord {
    NetworkRecord { domain: domain.to_owned(), ..record() }
}

/// Runs `work` in a network of its own, with a network's bridge and the floating addresses.
fn in_a_network_of_its_own<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root may have a network namespace");
        does("ip link set lo up");
        let gateway = ("vmbr1001", "10.20.1.1");
        for (link, address) in FLOATING.into_iter().chain([gateway]) {
            does(&format!("ip link add {link} type bridge"));
            does(&format!("ip address add {address}/24 dev {link}"));
            does(&format!("ip link set {link} up"));
        }
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(work());
    });
    thread.join().unwrap();
}

struct World {
    context: Context,
    directory: PathBuf,
    server: PostgresServer,
    database: Arc<dyn Database>,
    term: watch::Sender<u64>,
    standing: watch::Sender<Standing>,
    end: CancellationToken,
}

impl World {
    async fn new(directory: &Path) -> World {
        let data = directory.join("postgres");
        fs::create_dir(&data).unwrap();
        // PowerDNS comes to the socket as a user of its own.
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
        let server = PostgresServer::start(&data, Some(PASSWORD));
        let database: Arc<dyn Database> = Arc::new(PostgresDatabase::new(&PostgresOptions {
            host: server.host(),
            port: 5432,
            database: DATABASE.to_owned(),
            user: USER.to_owned(),
            password: Some(PASSWORD.to_owned()),
        }));
        let (clock, random) = (Arc::new(SystemClock), Arc::new(SeededRandom::new(1)));
        let store = new_store(clock.clone(), random.clone()).await;
        let owner = directory.display().to_string();
        let dns = DnsPorts { database: database.clone(), transfers: Arc::new(TcpTransfers) };
        let ports = Ports {
            clock,
            random,
            network: Arc::new(LinuxNetwork::new()),
            programs: Arc::new(LinuxPrograms::new(&owner, directory).unwrap()),
            files: Arc::new(LinuxFiles),
            exec: Arc::new(LinuxExec),
            dns: Some(dns),
            ..ports()
        };
        let context = Context::new(NodeName::new("hv1"), ports, store);
        let (term, end) = (watch::channel(1).0, CancellationToken::new());
        let standing = watch::channel(Standing::from([Vni::new(1001).unwrap()])).0;
        let directory = directory.to_owned();
        World { context, directory, server, database, term, standing, end }
    }

    async fn sql(&self, words: &'static str) -> Vec<Vec<SqlValue>> {
        let mut transaction = self.database.begin().await.unwrap();
        let rows = transaction.run(Statement::new(words)).await.unwrap();
        transaction.commit().await.unwrap();
        rows.rows
    }

    async fn load_schema(&self) {
        let schema: &'static str = fs::read_to_string(SCHEMA).unwrap().leak();
        for words in schema.split(';').map(str::trim).filter(|words| !words.is_empty()) {
            self.sql(words).await;
        }
    }

    async fn put(&self, record: NetworkRecord) {
        put(&self.context.store, record).await;
    }

    /// Starts the networks' own servers and the aggregator.
    fn start(&self) -> [tokio::task::JoinHandle<()>; 2] {
        let executable = self.directory.join("program");
        fs::write(&executable, LEASE_PROGRAM).unwrap();
        fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).unwrap();
        let dhcp = DhcpSettings {
            directory: self.directory.join("dnsmasq"),
            executable: executable.display().to_string(),
            socket: "/run/leases".to_owned(),
        };
        let address = |ip: &str| -> IpNet { format!("{ip}/24").parse().unwrap() };
        let dns = DnsSettings {
            directory: self.files(),
            addresses: FLOATING.map(|(link, ip)| (link.to_owned(), address(ip))).into(),
            upstream_domain: "up.example".to_owned(),
            database: DnsDatabase {
                host: self.server.host(),
                port: 5432,
                name: DATABASE.to_owned(),
                user: USER.to_owned(),
                password: PASSWORD.to_owned(),
            },
        };
        let (context, end) = (&self.context, &self.end);
        let (term, standing) = (self.term.subscribe(), self.standing.subscribe());
        let (_, refused) = watch::channel(Refused::new());
        let dhcp = dhcp::run(context.clone(), dhcp, term, standing, refused, end.clone());
        let dns = dns::run(context.clone(), dns, self.term.subscribe(), end.clone());
        [tokio::spawn(dhcp), tokio::spawn(dns)]
    }

    fn files(&self) -> PathBuf {
        self.directory.join("pdns")
    }

    async fn eventually(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        let late = self.context.now() + Duration::from_secs(60);
        while !is_so().await {
            let fault = self.context.store.view().faults.get("DNS_HV1").cloned();
            assert!(self.context.now() < late, "not in time: {what}: {fault:?}");
            self.context.sleep(Duration::from_millis(100)).await;
        }
    }
}

fn at(server: &str) -> SocketAddr {
    SocketAddr::new(server.parse().unwrap(), 53)
}

/// Asks a server for the IPv4 addresses of a name. `None` if it does not answer.
async fn ask(server: &str, name: &str) -> Option<(Rcode, Vec<Ipv4Addr>)> {
    let name: Name<Vec<u8>> = name.parse().unwrap();
    let mut question = MessageBuilder::new_vec().question();
    question.push((name, Rtype::A)).unwrap();
    let question = question.finish();
    let answer = async {
        let mut stream = TcpStream::connect(at(server)).await?;
        stream.write_u16(question.len().try_into().unwrap()).await?;
        stream.write_all(&question).await?;
        let mut answer = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(5), answer).await.ok()?.ok()?;
    let answer = Message::from_octets(answer).unwrap();
    let addresses = answer.answer().unwrap().limit_to::<A>();
    let addresses = addresses.map(|record| record.unwrap().data().addr()).collect();
    Some((answer.header().rcode(), addresses))
}

async fn has(server: &str, name: &str, address: &str) -> bool {
    let expected = (Rcode::NOERROR, vec![address.parse().unwrap()]);
    ask(server, name).await == Some(expected)
}

#[test]
fn a_guests_name_is_answered_at_the_floating_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    in_a_network_of_its_own(|| async move {
        let world = World::new(&path).await;
        world.load_schema().await;
        for words in [
            // As the tables were before PowerDNS 4.7.
            "ALTER TABLE domains DROP COLUMN options, DROP COLUMN catalog",
            "INSERT INTO domains (name, type, account) VALUES ('own.example', 'NATIVE', NULL)",
            "INSERT INTO domains (name, type, account) VALUES ('old.example', 'MASTER', \
             'internal')",
            "INSERT INTO records (domain_id, name, type, content, ttl) \
             SELECT id, name, 'SOA', 'a.example b.example 1 2 3 4 5', 60 FROM domains",
            "INSERT INTO records (domain_id, name, type, content, ttl) \
             SELECT id, 'www.' || name, 'A', '192.0.2.7', 60 FROM domains",
        ] {
            world.sql(words).await;
        }
        fs::write(path.join("leases"), "4000000000 52:54:00:00:00:01 10.20.1.100 Web1 *\n")
            .unwrap();
        world.put(of_domain("net1.example")).await;
        let roles = world.start();
        for (_, server) in FLOATING {
            world
                .eventually("the name is answered", async || {
                    has(server, "web1.net1.example", "10.20.1.100").await
                })
                .await;
        }
        let (_, server) = FLOATING[0];
        assert!(has(server, "www.own.example", "192.0.2.7").await, "an operator's own zone");
        // PowerDNS learns a moment later that a zone is gone.
        world
            .eventually("a zone of no network is not answered for", async || {
                ask(server, "www.old.example").await == Some((Rcode::REFUSED, Vec::new()))
            })
            .await;
        assert_eq!(ask(server, "none.net1.example").await, Some((Rcode::NXDOMAIN, Vec::new())));
        let config = world.files().join("pdns.conf");
        assert_eq!(fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o600);

        // Others can copy a zone.
        let web1 = |zone: &str| HostAddress {
            name: format!("web1.{zone}"),
            address: "10.20.1.100".parse().unwrap(),
        };
        let copied = TcpTransfers.hosts(at(server), "net1.example").await.unwrap();
        assert_eq!(copied, [web1("net1.example")]);

        // What the role orders when a zone has changed is taken.
        for order in [["purge", "net1.example$"], ["notify", "net1.example"]] {
            let own = ["config", "socket"]
                .map(|what| format!("--{what}-dir={}", world.files().display()));
            let done = Command::new("pdns_control").args(own).args(order).output().unwrap();
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success(), "{order:?}: {said}");
        }

        // The database is made anew under both, and another domain is followed.
        world.server.restart();
        world.put(of_domain("net2.example")).await;
        world
            .eventually("the new domain is answered", async || {
                has(server, "web1.net2.example", "10.20.1.100").await
            })
            .await;
        world
            .eventually("the old one is not", async || {
                ask(server, "web1.net1.example").await == Some((Rcode::REFUSED, Vec::new()))
            })
            .await;
        let start = "SELECT content FROM records WHERE type = 'SOA' AND name = 'net2.example'";
        let start = format!("{:?}", world.sql(start).await);
        assert!(start.contains("pvc-dns.up.example root.up.example "), "{start}");

        world.term.send_replace(0);
        world.eventually("it goes with the role", async || !config.exists()).await;
        assert_eq!(ask(server, "web1.net2.example").await, None);
        world.end.cancel();
        for role in roles {
            role.await.unwrap();
        }
    });
}

/// dnsmasq puts a zone into one message of TCP.
#[test]
fn a_zone_that_dnsmasq_cannot_transfer_is_not_taken_for_a_small_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    in_a_network_of_its_own(|| async move {
        let world = World::new(&path).await;
        world.load_schema().await;
        let lease = |number: u32| {
            let [_, _, high, low] = number.to_be_bytes();
            let name = format!("a-name-of-a-host-that-is-rather-long-{number}");
            format!("4000000000 52:54:00:00:{high:02x}:{low:02x} 10.20.{high}.{low} {name} *\n")
        };
        fs::write(path.join("leases"), (512..2512).map(lease).collect::<String>()).unwrap();
        let wide =
            NetworkRecord { ip4_network: "10.20.0.0/16".to_owned(), ..of_domain("net1.example") };
        world.put(wide).await;
        does("ip address del 10.20.1.1/24 dev vmbr1001");
        does("ip address add 10.20.1.1/16 dev vmbr1001");
        let roles = world.start();
        world
            .eventually("it is refused as too large", async || {
                let found = TcpTransfers.hosts(at("10.20.1.1"), "net1.example").await;
                matches!(found, Err(TransferError::TooLarge { .. }))
            })
            .await;
        world.end.cancel();
        for role in roles {
            role.await.unwrap();
        }
    });
}
