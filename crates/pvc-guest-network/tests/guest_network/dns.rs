//! The DNS aggregator as a role, in the testkit's world with a database of SQLite.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pvc_database::SqliteDatabase;
use pvc_guest_network::dns::{self, DnsDatabase, DnsSettings};
use pvc_model::NodeName;
use pvc_model::guest_network::dns::HostAddress;
use pvc_model::network::NetworkRecord;
use pvc_ports::{
    Database, DatabaseError, DnsPorts, Files as _, Network as _, Output, Ports, Program, Rows,
    SqlDialect, SqlValue, Statement, Transaction,
};
use pvc_role::Context;
use pvc_store::Change;
use pvc_testkit::{
    FlakyDatabase, MemoryFiles, MemoryNetwork, ScriptedExec, ScriptedPrograms, ScriptedTransfers,
    SeededRandom, TokioClock, ZoneManner, eventually, ports,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::common::{new_store, without_dhcp, write};

const SOON: Duration = Duration::from_secs(60);
const ZONE: &str = "net1.example";
const FLOATING: [(&str, &str); 2] =
    [("brcluster", "10.0.0.254/24"), ("brupstream", "192.0.2.254/24")];

/// The network's own address on the primary, at which its server is.
const GATEWAY: (&str, &str) = ("vmbr1001", "10.20.1.1/24");

/// Tables as PVC 1.0.3 made them.
const TABLES: [&str; 2] = [
    "CREATE TABLE domains (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, type TEXT NOT NULL, \
     notified_serial INTEGER, account TEXT)",
    "CREATE TABLE records (id INTEGER PRIMARY KEY, domain_id INTEGER, name TEXT, type TEXT, \
     content TEXT, ttl INTEGER, prio INTEGER, disabled BOOLEAN, auth BOOLEAN)",
];

/// SQLite in memory, which works in a thread of its own: time that is paused stands still for it.
struct Still(Arc<dyn Database>);

/// Keeps time from going on by itself, as work that blocks does.
fn stand_still() -> std::sync::mpsc::Sender<()> {
    let (hold, held) = std::sync::mpsc::channel();
    tokio::task::spawn_blocking(move || held.recv());
    hold
}

#[async_trait]
impl Database for Still {
    fn dialect(&self) -> SqlDialect {
        self.0.dialect()
    }

    async fn begin(&self) -> Result<Box<dyn Transaction>, DatabaseError> {
        let _still = stand_still();
        Ok(Box::new(StillTransaction(self.0.begin().await?)))
    }
}

struct StillTransaction(Box<dyn Transaction>);

#[async_trait]
impl Transaction for StillTransaction {
    async fn run(&mut self, statement: Statement) -> Result<Rows, DatabaseError> {
        let _still = stand_still();
        self.0.run(statement).await
    }

    async fn commit(self: Box<Self>) -> Result<(), DatabaseError> {
        let _still = stand_still();
        self.0.commit().await
    }
}

struct World {
    context: Context,
    network: Arc<MemoryNetwork>,
    programs: ScriptedPrograms,
    exec: Arc<ScriptedExec>,
    /// While set, the server takes no orders.
    refuses_orders: Arc<AtomicBool>,
    files: Arc<MemoryFiles>,
    transfers: ScriptedTransfers,
    /// The database, as the role has it.
    database: FlakyDatabase,
    tables: Arc<dyn Database>,
    term: watch::Sender<u64>,
    end: CancellationToken,
}

async fn world() -> World {
    let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
    let store = new_store(clock.clone(), random.clone()).await;
    let (network, programs) = (Arc::new(MemoryNetwork::new()), ScriptedPrograms::new());
    let (files, transfers) = (Arc::new(MemoryFiles::new()), ScriptedTransfers::new());
    let refuses_orders = Arc::new(AtomicBool::new(false));
    let refuses = refuses_orders.clone();
    let exec = Arc::new(ScriptedExec::new(move |_| {
        let code = Some(refuses.load(Ordering::Relaxed).into());
        Ok(Output { code, ..ScriptedExec::success("") })
    }));
    let tables: Arc<dyn Database> = Arc::new(Still(Arc::new(SqliteDatabase::in_memory())));
    let database = FlakyDatabase::new(tables.clone());
    let dns =
        DnsPorts { database: Arc::new(database.clone()), transfers: Arc::new(transfers.clone()) };
    let ports = Ports {
        clock,
        random,
        network: network.clone(),
        programs: Arc::new(programs.clone()),
        exec: exec.clone(),
        files: files.clone(),
        dns: Some(dns),
        ..ports()
    };
    let context = Context::new(NodeName::new("hv1"), ports, store);
    let (term, end) = (watch::channel(0).0, CancellationToken::new());
    World {
        context,
        network,
        programs,
        exec,
        refuses_orders,
        files,
        transfers,
        database,
        tables,
        term,
        end,
    }
}

/// A world with addresses, tables, and a network whose server knows `web1`.
async fn whole_world() -> World {
    let world = world().await;
    for (link, address) in FLOATING.into_iter().chain([GATEWAY]) {
        world.network.create_bridge(link).await.unwrap();
        world.network.add_address(link, address.parse().unwrap()).await.unwrap();
    }
    for words in TABLES {
        world.sql(words).await;
    }
    world.knows(&[("web1", "10.20.1.100")]);
    world.put(without_dhcp()).await;
    world
}

impl World {
    fn start(&self) -> tokio::task::JoinHandle<()> {
        let settings = DnsSettings {
            directory: "/run/pvc/pdns".into(),
            addresses: FLOATING.map(|(link, ip)| (link.to_owned(), ip.parse().unwrap())).into(),
            upstream_domain: "up.example".to_owned(),
            database: DnsDatabase {
                host: "10.0.0.254".to_owned(),
                port: 5432,
                name: "pvcdns".to_owned(),
                user: "pvcdns".to_owned(),
                password: "very secret".to_owned(),
            },
        };
        assert!(!format!("{settings:?}").contains("secret"));
        let (context, end) = (self.context.clone(), self.end.clone());
        tokio::spawn(dns::run(context, settings, self.term.subscribe(), end))
    }

    async fn change(&self, change: Change) {
        write(&self.context.store, change).await;
    }

    async fn put(&self, record: NetworkRecord) {
        self.change(Change::PutNetwork(Box::new(record))).await;
    }

    /// From now on the network's server has these hosts.
    fn knows(&self, hosts: &[(&str, &str)]) {
        let hosts = hosts.iter().map(|(name, address)| HostAddress {
            name: format!("{name}.{ZONE}"),
            address: address.parse().unwrap(),
        });
        self.server_does(ZoneManner::Gives(hosts.collect()));
    }

    fn server_does(&self, manner: ZoneManner) {
        self.transfers.set_manner(SocketAddr::from(([10, 20, 1, 1], 53)), ZONE, manner);
    }

    async fn sql(&self, words: &'static str) -> Vec<Vec<SqlValue>> {
        let mut transaction = self.tables.begin().await.unwrap();
        let rows = transaction.run(Statement::new(words)).await.unwrap();
        transaction.commit().await.unwrap();
        rows.rows
    }

    async fn rows(&self) -> Vec<String> {
        let words = "SELECT name, type, content FROM records ORDER BY name, type, content";
        let text = |value: &SqlValue| match value {
            SqlValue::Text(text) => text.clone(),
            other => panic!("{other:?} is no text"),
        };
        let rows = self.sql(words).await;
        rows.iter().map(|row| row.iter().map(text).collect::<Vec<_>>().join(" ")).collect()
    }

    async fn becomes(&self, what: &str, expected: &[&str]) {
        let end = self.context.now() + SOON;
        loop {
            let rows = self.rows().await;
            if rows == expected {
                return;
            }
            assert!(self.context.now() < end, "not in time: {what}: {rows:#?}");
            self.context.sleep(Duration::from_millis(100)).await;
        }
    }

    fn server(&self) -> Option<Program> {
        self.programs.running().into_iter().next()
    }

    fn fault(&self) -> Option<String> {
        let view = self.context.store.view();
        view.faults.get("DNS_HV1").map(|fault| fault.message.clone())
    }

    async fn fault_says(&self, words: &str) {
        eventually("the fault is raised", 2 * SOON, || self.fault().is_some()).await;
        let fault = self.fault().unwrap();
        assert!(fault.contains(words), "{words} in {fault}");
    }

    async fn config(&self) -> String {
        let file = self.files.read("/run/pvc/pdns/pdns.conf".as_ref(), 1 << 20).await;
        String::from_utf8(file.unwrap()).unwrap()
    }

    fn orders(&self) -> Vec<String> {
        self.exec.ran().into_iter().map(|command| command.args.join(" ")).collect()
    }
}

const NS: &str = "net1.example NS pvc-dns.up.example";

fn soa(serial: u32) -> String {
    format!("net1.example SOA pvc-dns.up.example root.up.example {serial} 10800 1800 86400 86400")
}

#[tokio::test(start_paused = true)]
async fn a_server_runs_with_the_role_and_serves_what_the_networks_have() {
    let world = whole_world().await;
    let role = world.start();
    world.context.sleep(SOON).await;
    assert!(world.server().is_none() && world.rows().await.is_empty(), "it is not primary");

    world.term.send_replace(1);
    let web1 = "web1.net1.example A 10.20.1.100";
    world.becomes("the zone is there", &[NS, &soa(1), web1]).await;
    eventually("the server runs", SOON, || world.server().is_some()).await;
    let server = world.server().unwrap();
    assert_eq!(server.args, ["--config-dir=/run/pvc/pdns"]);
    assert!(server.env.iter().all(|(_, value)| !value.contains("secret")), "{server:?}");
    let config = world.config().await;
    for line in ["local-address=10.0.0.254,192.0.2.254", "gpgsql-password=very secret"] {
        assert!(config.lines().any(|found| found == line), "{line} in {config}");
    }
    let file = world.files.look("/run/pvc/pdns/pdns.conf".as_ref()).await.unwrap().unwrap();
    assert_eq!(file.mode, 0o600, "it has the password");

    world.knows(&[("web1", "10.20.1.101"), ("WEB2", "10.20.1.102"), ("evil", "192.0.2.1")]);
    let (web1, web2) = ("web1.net1.example A 10.20.1.101", "web2.net1.example A 10.20.1.102");
    world.becomes("it follows", &[NS, &soa(2), web1, web2]).await;
    let expected = ["purge net1.example$", "notify net1.example"]
        .map(|words| format!("--config-dir=/run/pvc/pdns --socket-dir=/run/pvc/pdns {words}"));
    eventually("the server has its orders", SOON, || world.orders().ends_with(&expected)).await;

    // An order that was refused is given again.
    world.refuses_orders.store(true, Ordering::Relaxed);
    world.knows(&[("web1", "10.20.1.101")]);
    let asked = world.orders().len();
    eventually("it takes no order", SOON, || world.orders().len() >= asked + 2).await;
    assert!(world.orders()[asked..].iter().all(|order| *order == expected[0]));
    world.refuses_orders.store(false, Ordering::Relaxed);
    eventually("the server has its orders", SOON, || world.orders().ends_with(&expected)).await;
    let asked = world.orders().len();
    world.context.sleep(SOON).await;
    assert_eq!(world.orders().len(), asked, "once is enough");

    world.programs.crash("pdns");
    eventually("it ended", SOON, || world.server().is_none()).await;
    eventually("one that dies is started again", SOON, || world.server().is_some()).await;

    world.term.send_replace(0);
    eventually("it goes with the role", SOON, || world.server().is_none()).await;
    assert_eq!(world.rows().await.len(), 3, "the next primary has the zone");
    assert_eq!(world.fault(), None);
    world.end.cancel();
    role.await.unwrap();
}

/// PVC 1.0.3 made zones only for networks that were added while the aggregator ran (lesson H12).
#[tokio::test(start_paused = true)]
async fn zones_follow_the_networks_and_an_operators_own_stay() {
    let world = whole_world().await;
    for words in [
        "INSERT INTO domains (name, type, account) VALUES ('old.example', 'MASTER', 'internal')",
        "INSERT INTO domains (name, type, account) VALUES ('own.example', 'MASTER', 'me')",
        "INSERT INTO domains (name, type) VALUES ('other.example', 'NATIVE')",
        "INSERT INTO records (domain_id, name, type, content) \
         SELECT id, 'a.' || name, 'A', '192.0.2.7' FROM domains",
    ] {
        world.sql(words).await;
    }
    world.term.send_replace(1);
    let role = world.start();
    let (other, own) = ("a.other.example A 192.0.2.7", "a.own.example A 192.0.2.7");
    let web1 = "web1.net1.example A 10.20.1.100";
    world.becomes("zones are those of networks", &[other, own, NS, &soa(1), web1]).await;

    let mut second = without_dhcp();
    (second.vni, second.domain) = ("1002".to_owned(), "own.example".to_owned());
    world.put(second).await;
    world.fault_says("`own.example` that is not PVC's").await;
    assert_eq!(world.rows().await.len(), 5);
    world.change(Change::RemoveNetwork("1002".to_owned())).await;
    eventually("the fault is over", SOON, || world.fault().is_none()).await;

    world.put(NetworkRecord { domain: "net9.example".to_owned(), ..without_dhcp() }).await;
    let end = world.context.now() + SOON;
    while world.rows().await.iter().any(|row| row.contains("net1.example")) {
        assert!(world.context.now() < end, "a domain that was renamed is gone");
        world.context.sleep(Duration::from_millis(100)).await;
    }
    world.end.cancel();
    role.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_zone_that_is_left_stays_for_records_of_others_and_keeps_nothing_else_back() {
    let world = whole_world().await;
    for words in [
        "INSERT INTO domains (name, type, account) VALUES ('mail.example', 'MASTER', 'internal')",
        "INSERT INTO domains (name, type, account) VALUES ('kept.example', 'MASTER', 'internal')",
        "INSERT INTO domains (name, type, account) VALUES ('old.example', 'MASTER', 'internal')",
        "INSERT INTO records (domain_id, name, type, content) \
         SELECT id, 'a.' || name, 'A', '192.0.2.7' FROM domains",
        "INSERT INTO records (domain_id, name, type, content) \
         SELECT id, name, 'MX', 'mx.example' FROM domains WHERE name = 'mail.example'",
        "CREATE TRIGGER kept BEFORE DELETE ON domains WHEN OLD.name = 'kept.example' \
         BEGIN SELECT RAISE(ABORT, 'not this one'); END",
    ] {
        world.sql(words).await;
    }
    world.term.send_replace(1);
    let role = world.start();
    let (kept, mail) = ("a.kept.example A 192.0.2.7", "a.mail.example A 192.0.2.7");
    let (mx, web1) = ("mail.example MX mx.example", "web1.net1.example A 10.20.1.100");
    world.becomes("the rest is done", &[kept, mail, mx, NS, &soa(1), web1]).await;
    world.fault_says("`mail.example` is no network's any more, and stays").await;
    world.fault_says("(MX)").await;
    world.sql("DELETE FROM records WHERE type = 'MX'").await;
    world.becomes("the next one goes", &[kept, NS, &soa(1), web1]).await;
    world.context.sleep(SOON).await;
    assert!(world.fault().is_some(), "one is still there");
    world.sql("DROP TRIGGER kept").await;
    world.becomes("all are gone", &[NS, &soa(1), web1]).await;
    eventually("the fault is over", SOON, || world.fault().is_none()).await;
    world.end.cancel();
    role.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn names_stay_while_the_network_is_not_understood_or_its_gateway_is_not_here() {
    let world = whole_world().await;
    world.term.send_replace(1);
    let role = world.start();
    let expected = [NS, &soa(1), "web1.net1.example A 10.20.1.100"];
    world.becomes("the zone is there", &expected).await;
    world.knows(&[]);
    let (link, address) = GATEWAY;
    world.network.remove_address(link, address.parse().unwrap()).await.unwrap();
    // Another network's bridge is not the place to ask at.
    world.network.create_bridge("vmbr1002").await.unwrap();
    world.network.add_address("vmbr1002", address.parse().unwrap()).await.unwrap();
    world.fault_says("its gateway is not on this node").await;
    assert_eq!(world.rows().await, expected);

    world.put(NetworkRecord { ip4_network: "junk".to_owned(), ..without_dhcp() }).await;
    world.network.add_address(link, address.parse().unwrap()).await.unwrap();
    eventually("the fault is over", SOON, || world.fault().is_none()).await;
    world.context.sleep(SOON).await;
    assert_eq!(world.rows().await, expected);
    world.put(without_dhcp()).await;
    world.becomes("it is known again", &[NS, &soa(2)]).await;
    world.end.cancel();
    role.await.unwrap();
}

/// PostgreSQL's primary comes to the node at about the same time as this role.
#[tokio::test(start_paused = true)]
async fn a_database_that_comes_late_in_a_takeover_is_used_at_once() {
    let world = whole_world().await;
    world.database.set_dead(true);
    world.term.send_replace(1);
    let role = world.start();
    world.context.sleep(Duration::from_secs(14)).await;
    world.database.set_dead(false);
    eventually("the server runs", Duration::from_secs(2), || world.server().is_some()).await;
    world.end.cancel();
    role.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_aggregator_that_was_switched_off_leaves_no_fault() {
    let world = world().await;
    world.context.raise_own("DNS", "PowerDNS does not run").await;
    assert!(world.fault().is_some());
    let off = tokio::spawn(dns::stay_off(world.context.clone(), world.end.clone()));
    eventually("the fault is over", SOON, || world.fault().is_none()).await;
    world.end.cancel();
    off.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_asked_takes_no_names_away() {
    let world = whole_world().await;
    world.term.send_replace(1);
    let role = world.start();
    let expected = [NS, &soa(1), "web1.net1.example A 10.20.1.100"];
    world.becomes("the zone is there", &expected).await;
    for manner in [ZoneManner::Silent, ZoneManner::Refuses] {
        world.server_does(manner);
        world.fault_says("the network 1001 stay as they were").await;
        assert_eq!(world.rows().await, expected);
        world.knows(&[("web1", "10.20.1.100")]);
        eventually("the fault is over", SOON, || world.fault().is_none()).await;
    }
    world.end.cancel();
    role.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_database_that_is_away_is_a_fault_and_holds_up_nothing() {
    let world = whole_world().await;
    world.database.set_dead(true);
    world.term.send_replace(1);
    let role = world.start();
    world.fault_says("cannot be reached").await;
    assert!(world.server().is_none(), "it would end at once");
    world.database.set_dead(false);
    eventually("the server runs", SOON, || world.server().is_some()).await;
    eventually("the fault is over", SOON, || world.fault().is_none()).await;

    // One that says nothing does not keep the server from going with the role.
    world.database.set_silent(true);
    world.context.sleep(Duration::from_secs(11)).await;
    assert!(world.server().is_some(), "it knows what it has read");
    world.term.send_replace(0);
    eventually("it goes at once", Duration::from_secs(1), || world.server().is_none()).await;
    world.database.set_silent(false);

    // What somebody else has changed, and what may have been done, is looked at again.
    world.database.set_conflicts(1);
    world.term.send_replace(2);
    world.knows(&[("web1", "10.20.1.111")]);
    let web1 = "web1.net1.example A 10.20.1.111";
    world.becomes("it follows", &[NS, &soa(2), web1]).await;
    world.database.set_lost_answers(1);
    world.knows(&[]);
    world.becomes("it follows", &[NS, &soa(3)]).await;
    world.end.cancel();
    role.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_database_without_tables_is_a_fault_that_says_which_are_missing() {
    let world = world().await;
    for (link, address) in FLOATING {
        world.network.create_bridge(link).await.unwrap();
        world.network.add_address(link, address.parse().unwrap()).await.unwrap();
    }
    world.term.send_replace(1);
    let role = world.start();
    world.fault_says("schema.pgsql.sql").await;
    world.end.cancel();
    role.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_server_waits_for_its_addresses_and_not_for_ever_for_one_of_them() {
    let world = whole_world().await;
    for (link, address) in FLOATING {
        world.network.remove_address(link, address.parse().unwrap()).await.unwrap();
    }
    world.term.send_replace(1);
    let role = world.start();
    world.context.sleep(Duration::from_secs(20)).await;
    assert!(world.server().is_none(), "it could not answer there");
    let (link, address) = FLOATING[0];
    world.network.add_address(link, address.parse().unwrap()).await.unwrap();
    eventually("the server runs", SOON, || world.server().is_some()).await;
    world.fault_says("`192.0.2.254/24` on `brupstream`").await;
    let (link, address) = FLOATING[1];
    world.network.add_address(link, address.parse().unwrap()).await.unwrap();
    eventually("the fault is over", SOON, || world.fault().is_none()).await;
    let end = world.context.now() + SOON;
    while !world.config().await.contains("=10.0.0.254,192.0.2.254\n") {
        assert!(world.context.now() < end, "it answers at both");
        world.context.sleep(Duration::from_millis(100)).await;
    }
    world.end.cancel();
    role.await.unwrap();
}
