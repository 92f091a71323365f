//! The domains of managed networks in the DNS aggregator (`spec/network.md` §6): which zones its
//! database has, which records are PVC's in them, and what PowerDNS is told.
//!
//! ```text
//!  GuestNetworks ── zones ─▶ Zone ─┐
//!  what the network's server has ──┼─ Zone::plan ─▶ ZonePlan: rows that go, rows that come
//!  rows of the database ───────────┘
//! ```
//!
//! Names of hosts are what guests call themselves: what is not a host of the zone is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

use super::{GuestNetwork, GuestNetworks, Ip4, Ip6, Vni, dns_name};
use crate::link::IpNet;

/// Value of a zone's `account` that marks it as PVC's.
pub const ACCOUNT: &str = "internal";

/// The most addresses of hosts that a zone has: as many as a server has leases, in two families.
pub const MOST_HOSTS: usize = 20_000;

/// Time for which others may keep the address of a host, in seconds: that of dnsmasq's own answers.
const HOST_TTL: i64 = 600;

/// The same of the records of a zone itself, in seconds.
const ZONE_TTL: i64 = 86_400;

/// Name of the server that zones name which have no other, in the upstream domain.
const SERVER: &str = "pvc-dns";

/// The last part of the record that begins a zone: refresh, retry, expiry and the time for which
/// others may keep that there is no such name, in seconds.
const TIMES: &str = "10800 1800 86400 86400";

/// An address of a host, by its whole name without the dot at its end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostAddress {
    pub name: String,
    pub address: IpAddr,
}

/// The domain of a managed network, as the aggregator is to serve it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    pub vni: Vni,
    /// Its name, in small letters.
    pub name: String,
    pub name_servers: BTreeSet<String>,
    /// The server that the zone names as its first.
    pub primary: String,
    /// Mailbox of who is responsible for it, as DNS writes one.
    pub mailbox: String,
    /// Addresses of the network's own server, IPv4 first.
    pub gateways: Vec<IpAddr>,
    /// Whether the network's addresses are understood. If not, it is not known which hosts there
    /// are, whatever its server says.
    pub has_known_addresses: bool,
    ip4: Option<Ip4>,
    ip6: Option<Ip6>,
}

/// Zones of all managed networks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zones {
    /// By their names.
    pub zones: BTreeMap<String, Zone>,
    /// Networks whose domain is that of another one, with it.
    pub doubles: BTreeMap<Vni, String>,
    /// Whether the domain of every recorded network is known. If not, no zone is without a network
    /// for certain.
    pub is_whole: bool,
}

impl Zones {
    /// Returns the zones of `networks`, in a cluster whose upstream network has this domain.
    pub fn of(networks: &GuestNetworks, upstream_domain: &str) -> Zones {
        let decides = |field| matches!(field, "vni" | "nettype" | "domain");
        let is_whole = !networks.bad.iter().any(|(_, bad)| decides(bad.field));
        let mut all = Zones { is_whole, ..Zones::default() };
        let of_addresses =
            |field: &str| ["ip4_", "ip6_", "dhcp4_"].iter().any(|part| field.starts_with(part));
        let bad = networks.bad.iter().filter(|(_, bad)| of_addresses(bad.field));
        let unknown: BTreeSet<Vni> = bad.filter_map(|(vni, _)| Vni::parse(vni)).collect();
        for network in &networks.networks {
            let Some(mut zone) = Zone::of(network, upstream_domain) else { continue };
            zone.has_known_addresses = !unknown.contains(&zone.vni);
            if all.zones.contains_key(&zone.name) {
                all.doubles.insert(network.vni, zone.name);
            } else {
                all.zones.insert(zone.name.clone(), zone);
            }
        }
        all
    }
}

impl Zone {
    fn of(network: &GuestNetwork, upstream_domain: &str) -> Option<Zone> {
        let managed = network.managed()?;
        let name = managed.domain.clone()?;
        let upstream = upstream_domain.strip_suffix('.').unwrap_or(upstream_domain);
        let upstream = dns_name(upstream).unwrap_or_else(|| name.clone());
        // An address is no name of a server.
        let given = managed.name_servers.iter().filter(|server| server.parse::<IpAddr>().is_err());
        let mut servers: Vec<String> = given.cloned().collect();
        if servers.is_empty() {
            servers.push(format!("{SERVER}.{upstream}"));
        }
        let mut gateways: Vec<IpAddr> = network.gateways().iter().map(IpNet::addr).collect();
        gateways.sort();
        Some(Zone {
            vni: network.vni,
            name,
            primary: servers[0].clone(),
            name_servers: servers.into_iter().collect(),
            mailbox: format!("root.{upstream}"),
            gateways,
            has_known_addresses: true,
            ip4: managed.ip4.clone(),
            ip6: managed.ip6.clone(),
        })
    }

    /// Picks the hosts of this zone: names of one label below it, with addresses of its network.
    pub fn hosts(&self, found: impl IntoIterator<Item = HostAddress>) -> BTreeSet<HostAddress> {
        let is_one = |host: &HostAddress| self.is_host(&host.name) && self.contains(host.address);
        let small = |host: HostAddress| HostAddress { name: host.name.to_lowercase(), ..host };
        found.into_iter().map(small).filter(is_one).take(MOST_HOSTS).collect()
    }

    /// Whether it could be the name of a host here, in small letters.
    fn is_host(&self, name: &str) -> bool {
        let label = name.strip_suffix(&self.name).and_then(|rest| rest.strip_suffix('.'));
        label.is_some_and(|label| !label.contains('.')) && dns_name(name).is_some()
    }

    fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(ip) => self.ip4.as_ref().is_some_and(|ip4| ip4.network.contains(&ip)),
            IpAddr::V6(ip) => self.ip6.as_ref().is_some_and(|ip6| ip6.network.contains(&ip)),
        }
    }

    /// Decides what changes in the database. Without `hosts` it is not known which there are, and
    /// their rows stay. Rows that are not PVC's stay in any case: those of other kinds, those of
    /// other names than hosts have, and addresses of the zone's servers.
    pub fn plan(&self, hosts: Option<&BTreeSet<HostAddress>>, rows: &[Row]) -> ZonePlan {
        let mut plan = ZonePlan::default();
        self.plan_servers(rows, &mut plan);
        if let Some(hosts) = hosts {
            self.plan_hosts(hosts, rows, &mut plan);
        }
        self.plan_start(rows, &mut plan);
        plan
    }

    fn plan_servers(&self, rows: &[Row], plan: &mut ZonePlan) {
        let mut missing = self.name_servers.clone();
        for row in rows.iter().filter(|row| row.name == self.name && row.kind == "NS") {
            if !missing.remove(&row.content.to_lowercase()) {
                plan.remove.push(row.id);
            }
        }
        for content in missing {
            plan.add.push(NewRow { name: self.name.clone(), kind: "NS", content, ttl: ZONE_TTL });
        }
    }

    fn plan_hosts(&self, hosts: &BTreeSet<HostAddress>, rows: &[Row], plan: &mut ZonePlan) {
        // Whoever has an alias has no address: guests do not take the names of an operator's.
        let aliases: BTreeSet<&str> =
            rows.iter().filter(|row| row.kind == "CNAME").map(|row| row.name.as_str()).collect();
        // Who has the name of a server answers for the whole zone.
        let servers = self.servers(rows);
        let is_free = |name: &str| !aliases.contains(name) && !servers.contains(name);
        let mut missing: BTreeSet<&HostAddress> =
            hosts.iter().filter(|host| is_free(&host.name)).collect();
        let is_hosts = |row: &&Row| {
            row.is_address()
                && self.is_host(&row.name)
                && !servers.contains(&row.name.to_ascii_lowercase())
        };
        for row in rows.iter().filter(is_hosts) {
            let is_kept = row.host().is_some_and(|host| missing.remove(&host));
            if !is_kept {
                plan.remove.push(row.id);
            }
        }
        for host in missing {
            plan.add.push(NewRow {
                name: host.name.clone(),
                kind: kind_of(host.address),
                content: host.address.to_string(),
                ttl: HOST_TTL,
            });
        }
    }

    /// Names of the zone's servers, with the first one that an operator may have set.
    fn servers(&self, rows: &[Row]) -> BTreeSet<String> {
        let starts = rows.iter().filter(|row| row.name == self.name && row.kind == "SOA");
        let set = starts.filter_map(|row| Start::read(&row.content)).map(|start| start.who[0]);
        let set = set.map(|name| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase());
        set.chain(self.name_servers.iter().chain([&self.primary]).cloned()).collect()
    }

    /// The record that a zone begins with, whose serial number tells others of a change. What else
    /// an operator has set in it stays.
    fn plan_start(&self, rows: &[Row], plan: &mut ZonePlan) {
        let mut starts = rows.iter().filter(|row| row.name == self.name && row.kind == "SOA");
        let found = starts.find_map(|row| Some((row, Start::read(&row.content)?)));
        let kept = found.as_ref().map(|(row, _)| row.id);
        let all = rows.iter().filter(|row| row.name == self.name && row.kind == "SOA");
        plan.remove.extend(all.map(|row| row.id).filter(|id| Some(*id) != kept));
        match found {
            None => {
                let content = format!("{} {} 1 {TIMES}", self.primary, self.mailbox);
                let (name, ttl) = (self.name.clone(), ZONE_TTL);
                plan.add.push(NewRow { name, kind: "SOA", content, ttl });
            }
            Some((row, start)) if !plan.is_empty() => {
                plan.restart = Some((row.id, start.next().text()));
            }
            Some(_) => {}
        }
    }
}

fn kind_of(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "A" } else { "AAAA" }
}

/// A row of a zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub id: i64,
    pub name: String,
    pub kind: String,
    pub content: String,
}

impl Row {
    fn is_address(&self) -> bool {
        matches!(self.kind.as_str(), "A" | "AAAA")
    }

    fn host(&self) -> Option<HostAddress> {
        let address: IpAddr = self.content.parse().ok()?;
        let is_of_that_kind = kind_of(address) == self.kind;
        is_of_that_kind.then(|| HostAddress { name: self.name.clone(), address })
    }
}

/// A row that is to come.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NewRow {
    pub name: String,
    pub kind: &'static str,
    pub content: String,
    /// In seconds.
    pub ttl: i64,
}

/// Changes of a zone, which are made together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ZonePlan {
    /// Numbers of rows.
    pub remove: Vec<i64>,
    pub add: Vec<NewRow>,
    /// The row with which the zone begins, and its new content.
    pub restart: Option<(i64, String)>,
}

impl ZonePlan {
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.add.is_empty() && self.restart.is_none()
    }
}

/// Content of the record that a zone begins with.
struct Start<'a> {
    /// Server and mailbox.
    who: [&'a str; 2],
    serial: u32,
    times: [&'a str; 4],
}

impl Start<'_> {
    fn read(content: &str) -> Option<Start<'_>> {
        let mut words = content.split_whitespace();
        let mut word = || words.next();
        let who = [word()?, word()?];
        let serial = word()?.parse().ok()?;
        let times = [word()?, word()?, word()?, word()?];
        let is_whole = times.iter().all(|time| time.parse::<u32>().is_ok());
        (is_whole && word().is_none()).then_some(Start { who, serial, times })
    }

    /// With the number that comes after its own; they go round, and 0 is none.
    fn next(self) -> Self {
        Start { serial: self.serial.checked_add(1).unwrap_or(1), ..self }
    }

    fn text(&self) -> String {
        format!("{} {} {}", self.who.join(" "), self.serial, self.times.join(" "))
    }
}

/// A zone in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneRow {
    pub id: i64,
    pub name: String,
    pub account: String,
}

impl Zones {
    /// Returns those zones of the database that PVC has made and no network has any more.
    pub fn without_network<'a>(&self, there: &'a [ZoneRow]) -> Vec<&'a ZoneRow> {
        let is_left = |zone: &&ZoneRow| {
            self.is_whole && zone.account == ACCOUNT && !self.zones.contains_key(&zone.name)
        };
        there.iter().filter(is_left).collect()
    }
}

/// Whether rows of this kind are among those that PVC makes. Those of an operator keep a zone that
/// no network has any more.
pub fn is_kind_of_ours(kind: &str) -> bool {
    matches!(kind, "SOA" | "NS" | "A" | "AAAA")
}

/// Things that PowerDNS is told.
pub struct Server<'a> {
    /// Addresses at which it answers.
    pub addresses: &'a BTreeSet<IpAddr>,
    /// Directory of its control socket.
    pub directory: &'a Path,
    /// The PostgreSQL with the zones.
    pub host: &'a str,
    pub port: u16,
    pub database: &'a str,
    pub user: &'a str,
    pub password: &'a str,
}

/// A text that cannot stand in PowerDNS's configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {what} of the DNS database cannot stand in the configuration of PowerDNS, as it begins or \
     ends with a space, ends with `\\`, or has `#` behind a space or a control character"
)]
pub struct BadText {
    pub what: &'static str,
}

impl Server<'_> {
    /// Returns the contents of its configuration file.
    ///
    /// # Errors
    /// [`BadText`] names what PowerDNS would read otherwise.
    pub fn config(&self) -> Result<String, BadText> {
        let texts = [
            ("gpgsql-host", "host", self.host),
            ("gpgsql-dbname", "name", self.database),
            ("gpgsql-user", "user", self.user),
            ("gpgsql-password", "password", self.password),
        ];
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        let mut text = String::new();
        let mut line = |key: &str, value: &str| {
            writeln!(text, "{key}={value}").expect("a text takes everything");
        };
        for (key, value) in [
            // One process in the foreground, which somebody else watches.
            ("daemon", "no"),
            ("guardian", "no"),
            ("write-pid", "no"),
            ("disable-syslog", "yes"),
            ("log-timestamp", "no"),
            ("loglevel", "3"),
            // It answers the world.
            ("setuid", "pdns"),
            ("setgid", "pdns"),
            ("version-string", "powerdns"),
            // It asks nobody outside for news about itself.
            ("security-poll-suffix", ""),
            // Others may copy the zones, and are told of changes.
            ("disable-axfr", "no"),
            ("allow-axfr-ips", "0.0.0.0/0,::/0"),
            ("primary", "yes"),
            ("secondary", "yes"),
            ("secondary-do-renotify", "yes"),
            // A new zone is served at once, and not minutes later.
            ("zone-cache-refresh-interval", "0"),
            ("launch", "gpgsql"),
            ("gpgsql-dnssec", "no"),
            ("local-port", "53"),
        ] {
            line(key, value);
        }
        line("local-address", &addresses.join(","));
        line("socket-dir", &self.directory.to_string_lossy());
        line("gpgsql-port", &self.port.to_string());
        for (key, what, value) in texts {
            if !is_plain(value) {
                return Err(BadText { what });
            }
            line(key, value);
        }
        Ok(text)
    }
}

/// Whether PowerDNS reads a value as it stands.
fn is_plain(value: &str) -> bool {
    let has_remark = value.contains(" #") || value.starts_with('#');
    let is_trimmed = value.trim() == value;
    is_trimmed && !has_remark && !value.ends_with('\\') && !value.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::network::NetworkRecord;
    use std::sync::Arc;

    fn record(vni: &str, domain: &str) -> NetworkRecord {
        NetworkRecord {
            vni: vni.to_owned(),
            nettype: "managed".to_owned(),
            domain: domain.to_owned(),
            ip4_network: "10.20.1.0/24".to_owned(),
            ip4_gateway: "10.20.1.1".to_owned(),
            ip6_network: "2001:db8:1::/64".to_owned(),
            ip6_gateway: "2001:db8:1::1".to_owned(),
            ..NetworkRecord::default()
        }
    }

    fn zones(records: &[NetworkRecord]) -> Zones {
        let mut cluster = Cluster::default();
        for record in records {
            cluster.networks.insert(record.vni.clone(), Arc::new(record.clone()));
        }
        Zones::of(&GuestNetworks::of(&cluster), "up.example")
    }

    fn zone() -> Zone {
        zones(&[record("7", "Net1.Example")]).zones.remove("net1.example").unwrap()
    }

    fn host(name: &str, address: &str) -> HostAddress {
        HostAddress { name: name.to_owned(), address: address.parse().unwrap() }
    }

    fn row(id: i64, name: &str, kind: &str, content: &str) -> Row {
        Row { id, name: name.to_owned(), kind: kind.to_owned(), content: content.to_owned() }
    }

    /// Rows of the zone after the plan.
    fn done(plan: &ZonePlan, rows: &[Row]) -> Vec<Row> {
        let mut rows: Vec<Row> =
            rows.iter().filter(|row| !plan.remove.contains(&row.id)).cloned().collect();
        for row in &mut rows {
            if let Some((_, content)) = plan.restart.as_ref().filter(|(id, _)| *id == row.id) {
                row.content.clone_from(content);
            }
        }
        let next = rows.iter().map(|row| row.id).max().unwrap_or(0) + 1;
        for (id, new) in (next..).zip(&plan.add) {
            rows.push(row(id, &new.name, new.kind, &new.content));
        }
        rows
    }

    fn shown(rows: &[Row]) -> Vec<String> {
        let mut shown: Vec<String> =
            rows.iter().map(|row| format!("{} {} {}", row.name, row.kind, row.content)).collect();
        shown.sort();
        shown
    }

    #[test]
    fn a_new_zone_begins_with_its_servers_and_serial_number_one() {
        let zone = zone();
        let rows = done(&zone.plan(None, &[]), &[]);
        let expected = [
            "net1.example NS pvc-dns.up.example",
            "net1.example SOA pvc-dns.up.example root.up.example 1 10800 1800 86400 86400",
        ];
        assert_eq!(shown(&rows), expected);
        assert!(zone.plan(None, &rows).is_empty());
        let gateways = zone.gateways.iter().map(IpAddr::to_string);
        assert_eq!(gateways.collect::<Vec<_>>(), ["10.20.1.1", "2001:db8:1::1"]);
    }

    #[test]
    fn servers_are_those_of_the_network_and_never_an_address() {
        let servers = ["ns2.example.", "10.0.0.1", "NS1.example"].map(str::to_owned).to_vec();
        let record = NetworkRecord { name_servers: servers, ..record("7", "net1.example") };
        let zone = zones(&[record]).zones.remove("net1.example").unwrap();
        let former = [
            row(1, "net1.example", "NS", "pvc-dns.up.example"),
            row(2, "net1.example", "NS", "NS1.example"),
            row(3, "sub.net1.example", "NS", "ns.other.example"),
            row(4, "net1.example", "SOA", "a.example b.example 4294967295 1 2 3 4"),
        ];
        let rows = done(&zone.plan(None, &former), &former);
        let expected = [
            "net1.example NS NS1.example",
            "net1.example NS ns2.example",
            "net1.example SOA a.example b.example 1 1 2 3 4",
            "sub.net1.example NS ns.other.example",
        ];
        assert_eq!(shown(&rows), expected);
    }

    #[test]
    fn hosts_come_and_go_and_each_change_has_a_new_serial_number() {
        let zone = zone();
        let first = BTreeSet::from([
            host("web1.net1.example", "10.20.1.100"),
            host("web1.net1.example", "2001:db8:1::5"),
        ]);
        let rows = done(&zone.plan(Some(&first), &[]), &[]);
        assert!(zone.plan(Some(&first), &rows).is_empty());
        assert!(zone.plan(None, &rows).is_empty(), "unknown hosts are not gone");
        let second = BTreeSet::from([
            host("web1.net1.example", "10.20.1.101"),
            host("web1.net1.example", "2001:db8:1::5"),
        ]);
        let plan = zone.plan(Some(&second), &rows);
        assert_eq!((plan.remove.len(), plan.add.len()), (1, 1));
        let rows = done(&plan, &rows);
        let expected = [
            "net1.example NS pvc-dns.up.example",
            "net1.example SOA pvc-dns.up.example root.up.example 2 10800 1800 86400 86400",
            "web1.net1.example A 10.20.1.101",
            "web1.net1.example AAAA 2001:db8:1::5",
        ];
        assert_eq!(shown(&rows), expected);
        let rows = done(&zone.plan(Some(&BTreeSet::new()), &rows), &rows);
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn rows_of_an_operator_stay_and_guests_do_not_take_their_names() {
        let zone = zone();
        let rows = [
            row(1, "net1.example", "SOA", "a.example b.example 7 1 2 3 4"),
            row(2, "net1.example", "NS", "pvc-dns.up.example"),
            row(3, "net1.example", "A", "192.0.2.1"),
            row(4, "net1.example", "MX", "mail.example"),
            row(5, "www.net1.example", "CNAME", "web1.net1.example"),
            row(6, "a.b.net1.example", "A", "192.0.2.2"),
            row(7, "web1.net1.example", "TXT", "mine"),
        ];
        let hosts = BTreeSet::from([host("www.net1.example", "10.20.1.100")]);
        assert!(zone.plan(Some(&hosts), &rows).is_empty());
    }

    #[test]
    fn guests_are_no_servers_of_their_zone_and_the_servers_addresses_stay() {
        let servers = vec!["NS1.net1.example".to_owned()];
        let record = NetworkRecord { name_servers: servers, ..record("7", "net1.example") };
        let zone = zones(&[record]).zones.remove("net1.example").unwrap();
        let rows = [
            row(1, "net1.example", "SOA", "Set.net1.example. b.example 7 1 2 3 4"),
            row(2, "net1.example", "NS", "ns1.net1.example"),
            row(3, "ns1.net1.example", "A", "192.0.2.1"),
            row(4, "Set.net1.example", "AAAA", "2001:db8::1"),
        ];
        let hosts = ["ns1.net1.example", "set.net1.example"].map(|name| host(name, "10.20.1.100"));
        assert!(zone.plan(Some(&hosts.into()), &rows).is_empty());
        assert!(zone.plan(Some(&BTreeSet::new()), &rows).is_empty());
        let inside = zones(&[self::record("7", "up.example")]);
        let taken = BTreeSet::from([host("pvc-dns.up.example", "10.20.1.100")]);
        let plan = inside.zones["up.example"].plan(Some(&taken), &[]);
        assert!(plan.add.iter().all(|row| row.kind != "A"), "{plan:?}");
    }

    #[test]
    fn of_a_network_whose_addresses_are_not_understood_no_hosts_are_known() {
        for bad in [
            NetworkRecord { ip4_network: "10.20.1.0/33".to_owned(), ..record("7", "net1.example") },
            NetworkRecord { ip4_gateway: "10.20.2.1".to_owned(), ..record("7", "net1.example") },
            NetworkRecord { ip6_network: "junk".to_owned(), ..record("7", "net1.example") },
            NetworkRecord { dhcp4_flag: "True".to_owned(), ..record("7", "net1.example") },
        ] {
            let zones = zones(&[bad, record("8", "net2.example")]);
            assert!(!zones.zones["net1.example"].has_known_addresses, "{zones:?}");
            assert!(zones.zones["net2.example"].has_known_addresses, "{zones:?}");
        }
    }

    #[test]
    fn addresses_are_compared_as_addresses_and_each_stands_once() {
        let zone = zone();
        let hosts = BTreeSet::from([host("web1.net1.example", "2001:db8:1::5")]);
        let start = zone.plan(None, &[]);
        let mut rows = done(&start, &[]);
        rows.push(row(10, "web1.net1.example", "AAAA", "2001:db8:1:0::5"));
        assert!(zone.plan(Some(&hosts), &rows).is_empty());
        rows.push(row(11, "web1.net1.example", "AAAA", "2001:db8:1::5"));
        rows.push(row(12, "web1.net1.example", "A", "2001:db8:1::5"));
        rows.push(row(13, "web1.net1.example", "A", "junk"));
        rows.push(row(14, "net1.example", "SOA", "half of one"));
        let plan = zone.plan(Some(&hosts), &rows);
        assert_eq!(plan.remove, [11, 12, 13, 14]);
        assert!(plan.add.is_empty() && plan.restart.is_some());
    }

    #[test]
    fn what_is_no_host_of_the_zone_is_left_out() {
        let found = [
            host("WEB1.Net1.Example", "10.20.1.100"),
            host("net1.example", "10.20.1.100"),
            host("a.b.net1.example", "10.20.1.100"),
            host("*.net1.example", "10.20.1.100"),
            host("web1.other.example", "10.20.1.100"),
            host("xnet1.example", "10.20.1.100"),
            host(".net1.example", "10.20.1.100"),
            host("-.net1.example", "10.20.1.100"),
            host("web2.net1.example", "10.20.2.100"),
            host("web2.net1.example", "2001:db8:2::1"),
            host("web2.net1.example", "::ffff:10.20.1.100"),
        ];
        assert_eq!(zone().hosts(found), [host("web1.net1.example", "10.20.1.100")].into());
    }

    #[test]
    fn there_are_never_more_hosts_than_a_server_has() {
        let hosts = (0..2 * MOST_HOSTS).map(|number| {
            host(&format!("h{number}.net1.example"), &format!("10.20.1.{}", number % 256))
        });
        assert_eq!(zone().hosts(hosts).len(), MOST_HOSTS);
    }

    #[test]
    fn a_zone_goes_when_pvc_made_it_and_every_network_is_known() {
        let there =
            [("net1.example", "internal"), ("old.example", "internal"), ("own.example", "")].map(
                |(name, account)| ZoneRow { id: 1, name: name.into(), account: account.into() },
            );
        let whole = zones(&[record("7", "net1.example")]);
        let names = |zones: &Zones| -> Vec<String> {
            zones.without_network(&there).iter().map(|zone| zone.name.clone()).collect()
        };
        assert_eq!(names(&whole), ["old.example"]);
        let half = NetworkRecord { nettype: String::new(), ..record("8", "old.example") };
        assert!(names(&zones(&[record("7", "net1.example"), half])).is_empty());
    }

    #[test]
    fn two_networks_with_one_domain_have_one_zone() {
        let zones = zones(&[record("7", "net1.example"), record("8", "net1.example")]);
        assert_eq!(zones.zones["net1.example"].vni, Vni::new(7).unwrap());
        assert_eq!(zones.doubles, [(Vni::new(8).unwrap(), "net1.example".to_owned())].into());
    }

    fn server(password: &str) -> Result<String, BadText> {
        let addresses = ["10.0.0.254", "192.0.2.254"].map(|ip| ip.parse().unwrap()).into();
        let server = Server {
            addresses: &addresses,
            directory: Path::new("/run/pvc/pdns"),
            host: "10.0.0.254",
            port: 5432,
            database: "pvcdns",
            user: "pvcdns",
            password,
        };
        server.config()
    }

    #[test]
    fn powerdns_gets_no_option_that_it_does_not_know() {
        let config = server("a#b 'c'\"d\\e").unwrap();
        for line in [
            "local-address=10.0.0.254,192.0.2.254",
            "socket-dir=/run/pvc/pdns",
            "gpgsql-password=a#b 'c'\"d\\e",
        ] {
            assert!(config.lines().any(|found| found == line), "{line} in {config}");
        }
        assert!(!config.contains("default-soa-name") && !config.contains("master"));
    }

    #[test]
    fn a_password_that_powerdns_would_read_otherwise_is_refused() {
        for bad in [" a", "a ", "a #b", "#a", "a\\", "a\nlaunch=", "a\tb"] {
            assert_eq!(server(bad), Err(BadText { what: "password" }), "{bad:?}");
        }
    }
}
