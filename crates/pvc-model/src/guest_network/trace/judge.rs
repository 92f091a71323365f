//! Rules of operators, applied to a packet of which not everything is known.
//!
//! A rule is text of nft, whose language is large. Read is what operators usually write; of
//! everything else it stays open whether it matches, and never is that guessed. What a rule tests
//! is true, false, or open, as Kleene's logic has it: a packet whose port nobody has named is open
//! to `tcp dport 22`, and not to `udp dport 53` if it is one of TCP.

use std::net::IpAddr;

use ipnet::IpNet;

use super::Protocol;
use crate::guest_network::rules::Tokens;

/// Addresses that a packet may have, all of one family: one, or one of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    first: IpAddr,
    last: IpAddr,
}

impl Span {
    pub fn one(address: IpAddr) -> Span {
        Span { first: address, last: address }
    }

    pub fn of(net: IpNet) -> Span {
        Span { first: net.network(), last: net.broadcast() }
    }

    /// The address, if there is only one.
    pub fn address(&self) -> Option<IpAddr> {
        (self.first == self.last).then_some(self.first)
    }

    pub fn is_ip4(&self) -> bool {
        self.first.is_ipv4()
    }

    /// Whether all of it lies in the network.
    pub fn is_in(&self, net: &IpNet) -> bool {
        self.is_in_range(net.network(), net.broadcast()) == Test::True
    }

    fn is_in_range(&self, first: IpAddr, last: IpAddr) -> Test {
        if first.is_ipv4() != self.is_ip4() || last.is_ipv4() != self.is_ip4() {
            return Test::False;
        }
        Test::of_ranges((self.first, self.last), (first, last))
    }
}

/// Result of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Test {
    False,
    Open,
    True,
}

impl Test {
    fn of(is_so: bool) -> Test {
        if is_so { Test::True } else { Test::False }
    }

    fn and(self, other: Test) -> Test {
        self.min(other)
    }

    fn or(self, other: Test) -> Test {
        self.max(other)
    }

    fn not(self) -> Test {
        match self {
            Test::False => Test::True,
            Test::Open => Test::Open,
            Test::True => Test::False,
        }
    }

    /// Whether a value that is one of `known` is one of `wanted`.
    fn of_ranges<T: Ord>(known: (T, T), wanted: (T, T)) -> Test {
        if known.0 >= wanted.0 && known.1 <= wanted.1 {
            Test::True
        } else if known.1 < wanted.0 || known.0 > wanted.1 {
            Test::False
        } else {
            Test::Open
        }
    }
}

/// Packet as a rule sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub from: Span,
    pub to: Span,
    pub protocol: Option<Protocol>,
    /// First and last port that each end may have.
    pub from_port: (u16, u16),
    pub to_port: (u16, u16),
    /// Whether it belongs to a connection that another packet has begun.
    pub is_answer: bool,
    /// Links that it comes in by and goes out by, where they are known.
    pub in_by: Option<String>,
    pub out_by: Option<String>,
}

/// Ports of which nothing is known.
pub const ANY_PORT: (u16, u16) = (0, u16::MAX);

/// Effect of a rule on a packet that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Ends the rules of its network and direction.
    Passes,
    Drops,
    /// Leaves it to the rules behind it.
    GoesOn,
    /// Not understood.
    Open,
}

/// Applies a rule. The first is whether it matches, and the second what it does then.
pub fn judge(rule: &str, packet: &Packet) -> (Test, Verdict) {
    let tokens: Vec<&str> = Tokens(rule).collect();
    let mut reader = Reader { tokens: &tokens, packet };
    let mut matches = Test::True;
    loop {
        match reader.statement() {
            Statement::Nothing => {}
            Statement::Tests(Test::False) => return (Test::False, Verdict::GoesOn),
            Statement::Tests(test) => matches = matches.and(test),
            Statement::Ends(verdict) => return (matches, verdict),
            Statement::Rejects(Test::False) => return (Test::False, Verdict::GoesOn),
            Statement::Rejects(test) => return (matches.and(test), Verdict::Drops),
            Statement::NotUnderstood => return (Test::Open, last_verdict(&tokens)),
        }
    }
}

/// Words that end the judgement of a packet, or may.
const ENDS: [&str; 13] = [
    "accept", "drop", "reject", "return", "continue", "queue", "vmap", "synproxy", "tproxy", "fwd",
    "jump", "goto", "dup",
];

/// Whether a rule may give the packet other addresses or ports, of which the rules behind it know
/// nothing here. Marks and options are none of them.
fn rewrites(tokens: &[&str]) -> bool {
    let is_other = |before: &[&str]| {
        let is_note = matches!(before, [.., "meta" | "ct", _] | [.., "mark" | "priority"]);
        !is_note && !matches!(before, [.., "option", _, _])
    };
    let mut sets = (0..tokens.len()).filter(|at| tokens[*at] == "set");
    sets.any(|at| is_other(&tokens[..at]))
}

/// The verdict of a rule that is not understood as a whole.
fn last_verdict(tokens: &[&str]) -> Verdict {
    if rewrites(tokens) {
        return Verdict::Open;
    }
    let tokens = match tokens {
        [rest @ .., "comment", _] => rest,
        all => all,
    };
    let mut ends = tokens.iter().enumerate().filter(|(_, token)| ENDS.contains(token));
    let (first, second) = (ends.next(), ends.next());
    match (first, second) {
        (None, _) => Verdict::GoesOn,
        (Some((_, &"reject")), None) => Verdict::Drops,
        (Some((at, word)), None) if at + 1 == tokens.len() => match *word {
            "accept" | "return" => Verdict::Passes,
            "drop" => Verdict::Drops,
            "continue" => Verdict::GoesOn,
            _ => Verdict::Open,
        },
        _ => Verdict::Open,
    }
}

/// Part of a rule.
enum Statement {
    Nothing,
    Tests(Test),
    Ends(Verdict),
    /// A `reject`, with the test that nft puts before it for its kind of answer.
    Rejects(Test),
    /// Neither is its end known.
    NotUnderstood,
}

struct Reader<'a> {
    tokens: &'a [&'a str],
    packet: &'a Packet,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first)
    }

    fn peek(&self) -> Option<&'a str> {
        self.tokens.first().copied()
    }

    /// Takes the next token if it is this one.
    fn takes(&mut self, word: &str) -> bool {
        let is_it = self.peek() == Some(word);
        if is_it {
            self.next();
        }
        is_it
    }

    fn statement(&mut self) -> Statement {
        let Some(word) = self.next() else { return Statement::Ends(Verdict::GoesOn) };
        let test = match word {
            "accept" | "return" => return self.end(Verdict::Passes),
            "drop" => return self.end(Verdict::Drops),
            "continue" => return self.end(Verdict::GoesOn),
            "reject" => return self.end_of_reject(),
            "counter" => return self.counter(),
            "log" => return self.log(),
            "comment" => {
                return self.next().map_or(Statement::NotUnderstood, |_| Statement::Nothing);
            }
            "meta" => match self.next() {
                Some("l4proto") => self.protocol(),
                Some("nfproto") => self.family(),
                Some(key @ ("iifname" | "oifname" | "iif" | "oif")) => self.link(key),
                _ => None,
            },
            "iifname" | "oifname" | "iif" | "oif" => self.link(word),
            "ip" => self.header(self.packet.from.is_ip4(), Reader::ip4),
            "ip6" => self.header(!self.packet.from.is_ip4(), Reader::address),
            "tcp" => self.ports(Some(Protocol::Tcp)),
            "udp" => self.ports(Some(Protocol::Udp)),
            "th" => self.ports(None),
            "icmp" => self.header(self.packet.from.is_ip4(), Reader::icmp),
            "icmpv6" => self.header(!self.packet.from.is_ip4(), Reader::icmp),
            "ct" if self.takes("state") => self.state(),
            _ => None,
        };
        test.map_or(Statement::NotUnderstood, Statement::Tests)
    }

    /// The end of a rule, behind which only a comment may stand.
    fn end(&self, verdict: Verdict) -> Statement {
        self.end_with(Statement::Ends(verdict))
    }

    fn end_with(&self, end: Statement) -> Statement {
        match self.tokens {
            [] | ["comment", _] => end,
            _ => Statement::NotUnderstood,
        }
    }

    /// The end of a `reject`: an answer of TCP goes to packets of TCP alone, and one of ICMP to
    /// those of its family.
    fn end_of_reject(&mut self) -> Statement {
        let packet = self.packet;
        let is_ip4 = packet.from.is_ip4();
        if !self.takes("with") {
            return self.end_with(Statement::Rejects(Test::True));
        }
        let test = match self.next() {
            Some("tcp") if self.takes("reset") => {
                packet.protocol.map_or(Test::Open, |protocol| Test::of(protocol == Protocol::Tcp))
            }
            Some(kind @ ("icmp" | "icmpv6" | "icmpx")) => {
                self.takes("type");
                let is_type = self.next().is_some_and(|word| word != "comment");
                match kind {
                    _ if !is_type => return Statement::NotUnderstood,
                    "icmp" => Test::of(is_ip4),
                    "icmpv6" => Test::of(!is_ip4),
                    _ => Test::True,
                }
            }
            _ => return Statement::NotUnderstood,
        };
        self.end_with(Statement::Rejects(test))
    }

    fn counter(&mut self) -> Statement {
        if self.takes("packets") {
            let is_whole = self.number() && self.takes("bytes") && self.number();
            return if is_whole { Statement::Nothing } else { Statement::NotUnderstood };
        }
        match self.peek() {
            Some(word) if word == "name" || word.starts_with('"') => Statement::NotUnderstood,
            _ => Statement::Nothing,
        }
    }

    fn number(&mut self) -> bool {
        self.next().is_some_and(|word| word.bytes().all(|c| c.is_ascii_digit()))
    }

    fn log(&mut self) -> Statement {
        loop {
            match self.peek() {
                Some("prefix" | "level" | "group" | "snaplen" | "queue-threshold") => {
                    self.next();
                    if self.next().is_none() {
                        return Statement::NotUnderstood;
                    }
                }
                Some("flags") => return Statement::NotUnderstood,
                _ => return Statement::Nothing,
            }
        }
    }

    /// A test of a header that only packets of one family have.
    fn header(
        &mut self,
        is_of_family: bool,
        test: impl FnOnce(&mut Self) -> Option<Test>,
    ) -> Option<Test> {
        if is_of_family { test(self) } else { Some(Test::False) }
    }

    fn ip4(&mut self) -> Option<Test> {
        if self.takes("protocol") { self.protocol() } else { self.address() }
    }

    fn address(&mut self) -> Option<Test> {
        let span = match self.next()? {
            "saddr" => self.packet.from,
            "daddr" => self.packet.to,
            _ => return None,
        };
        self.value(|text| {
            let (first, last) = address_range(text)?;
            (first.is_ipv4() == span.is_ip4()).then(|| span.is_in_range(first, last))
        })
    }

    fn ports(&mut self, protocol: Option<Protocol>) -> Option<Test> {
        let packet = self.packet;
        let is_it = match (protocol, packet.protocol) {
            (Some(wanted), Some(is)) => Test::of(wanted == is),
            (None, Some(Protocol::Tcp | Protocol::Udp)) => Test::True,
            _ => Test::Open,
        };
        if is_it == Test::False {
            return Some(Test::False);
        }
        let known = match self.next()? {
            "sport" => packet.from_port,
            "dport" => packet.to_port,
            _ => return None,
        };
        let test = self.value(|text| Some(Test::of_ranges(known, port_range(text)?)))?;
        Some(is_it.and(test))
    }

    fn icmp(&mut self) -> Option<Test> {
        let packet = self.packet;
        let is_it = packet.protocol.map_or(Test::Open, |is| Test::of(is == Protocol::Icmp));
        if is_it == Test::False {
            return Some(Test::False);
        }
        if !self.takes("type") {
            return None;
        }
        let (name, number) = match (packet.is_answer, packet.from.is_ip4()) {
            (false, true) => ("echo-request", "8"),
            (false, false) => ("echo-request", "128"),
            (true, true) => ("echo-reply", "0"),
            (true, false) => ("echo-reply", "129"),
        };
        let test = self.value(|text| {
            if text == name || text == number {
                return Some(Test::True);
            }
            let is_other = ICMP_TYPES.contains(&text) || plain_number(text).is_some();
            is_other.then_some(Test::False)
        })?;
        Some(is_it.and(test))
    }

    fn protocol(&mut self) -> Option<Test> {
        let packet = self.packet;
        let own = packet.protocol.map(|protocol| protocol.number(packet.from.is_ip4()));
        self.value(|text| {
            let named = PROTOCOLS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
            let wanted = named.or_else(|| plain_number(text)?.try_into().ok())?;
            Some(own.map_or(Test::Open, |own| Test::of(own == wanted)))
        })
    }

    fn family(&mut self) -> Option<Test> {
        let is_ip4 = self.packet.from.is_ip4();
        self.value(|text| match text {
            "ipv4" => Some(Test::of(is_ip4)),
            "ipv6" => Some(Test::of(!is_ip4)),
            _ => None,
        })
    }

    fn link(&mut self, key: &str) -> Option<Test> {
        let packet = self.packet;
        let own = if key.starts_with('i') { &packet.in_by } else { &packet.out_by };
        self.value(|text| {
            let name = text.trim_matches('"');
            let is_plain = !name.contains(['*', '\\', '"']) && !name.is_empty();
            let is_name = is_plain && !name.starts_with(|c: char| c.is_ascii_digit());
            is_name.then(|| own.as_ref().map_or(Test::Open, |own| Test::of(own == name)))
        })
    }

    /// The state of its connection. Several without braces are alternatives, too.
    fn state(&mut self) -> Option<Test> {
        let own = if self.packet.is_answer { "established" } else { "new" };
        let is_own = |text: &str| STATES.contains(&text).then(|| Test::of(text == own));
        let is_negated = self.is_negated();
        let mut test = match self.takes("{") {
            true => self.set(&is_own)?,
            false => is_own(self.next()?)?,
        };
        while self.takes(",") {
            // Versions of nft differ in what it means that none of several bits is set.
            test = test.or(is_own(self.next()?).filter(|_| !is_negated)?);
        }
        self.ends_value().then(|| if is_negated { test.not() } else { test })
    }

    fn is_negated(&mut self) -> bool {
        let is_negated = self.takes("!=") || self.takes("ne");
        _ = is_negated || self.takes("==") || self.takes("eq");
        is_negated
    }

    /// A comparison with a value or a set of them. `None` if it is none, or `is` does not know it.
    fn value(&mut self, is: impl Fn(&str) -> Option<Test>) -> Option<Test> {
        let is_negated = self.is_negated();
        let test = match self.takes("{") {
            true => self.set(&is)?,
            false => is(self.next()?)?,
        };
        self.ends_value().then(|| if is_negated { test.not() } else { test })
    }

    /// A set behind its brace. Elements that are not known leave it open, unless another is it.
    fn set(&mut self, is: &impl Fn(&str) -> Option<Test>) -> Option<Test> {
        let mut test = Test::False;
        loop {
            let end = self.tokens.iter().position(|token| matches!(*token, "," | "}" | "{"))?;
            let (element, rest) = self.tokens.split_at(end);
            let of_element = match element {
                [value] | [value, "comment", _] => is(value).unwrap_or(Test::Open),
                [] => Test::False,
                _ => Test::Open,
            };
            test = test.or(of_element);
            self.tokens = &rest[1..];
            match rest[0] {
                "," => {}
                "}" => return Some(test),
                _ => return None,
            }
        }
    }

    /// Whether nothing goes on with the value that was read.
    fn ends_value(&self) -> bool {
        let goes_on = ["and", "or", "xor", "vmap", "map", "lt", "gt", "le", "ge"];
        let is_word = |word: &str| word.starts_with(|c: char| c.is_ascii_alphabetic());
        self.peek().is_none_or(|word| is_word(word) && !goes_on.contains(&word))
    }
}

/// A number as nft reads it in the same way: not in another base.
fn plain_number(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|c| c.is_ascii_digit());
    let is_decimal = text == "0" || !text.starts_with('0');
    text.parse().ok().filter(|_| is_plain && is_decimal)
}

fn address_range(text: &str) -> Option<(IpAddr, IpAddr)> {
    if let Ok(address) = text.parse() {
        return Some((address, address));
    }
    if let Ok(net) = text.parse::<IpNet>() {
        return Some((net.network(), net.broadcast()));
    }
    let (first, last) = text.split_once('-')?;
    let (first, last): (IpAddr, IpAddr) = (first.parse().ok()?, last.parse().ok()?);
    (first.is_ipv4() == last.is_ipv4() && first <= last).then_some((first, last))
}

/// Names of ports that every system knows alike.
const PORTS: [(&str, u16); 6] =
    [("ssh", 22), ("smtp", 25), ("domain", 53), ("http", 80), ("ntp", 123), ("https", 443)];

fn port_range(text: &str) -> Option<(u16, u16)> {
    let port = |text: &str| {
        let named = PORTS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
        named.or_else(|| plain_number(text))
    };
    if let Some(port) = port(text) {
        return Some((port, port));
    }
    let (first, last) = text.split_once('-')?;
    let (first, last) = (port(first)?, port(last)?);
    (first <= last).then_some((first, last))
}

/// Names of protocols, as nft and `/etc/protocols` have them.
const PROTOCOLS: [(&str, u8); 15] = [
    ("icmp", 1),
    ("igmp", 2),
    ("tcp", 6),
    ("udp", 17),
    ("dccp", 33),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", 58),
    ("ipv6-icmp", 58),
    ("ospf", 89),
    ("comp", 108),
    ("vrrp", 112),
    ("sctp", 132),
    ("udplite", 136),
];

const STATES: [&str; 5] = ["new", "established", "related", "invalid", "untracked"];

/// Names of ICMP's types, in both versions.
const ICMP_TYPES: [&str; 28] = [
    "echo-request",
    "echo-reply",
    "destination-unreachable",
    "source-quench",
    "redirect",
    "router-advertisement",
    "router-solicitation",
    "time-exceeded",
    "parameter-problem",
    "timestamp-request",
    "timestamp-reply",
    "info-request",
    "info-reply",
    "address-mask-request",
    "address-mask-reply",
    "packet-too-big",
    "mld-listener-query",
    "mld-listener-report",
    "mld-listener-done",
    "mld-listener-reduction",
    "mld2-listener-report",
    "nd-router-solicit",
    "nd-router-advert",
    "nd-neighbor-solicit",
    "nd-neighbor-advert",
    "nd-redirect",
    "router-renumbering",
    "ind-neighbor-solicit",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(protocol: Option<Protocol>, port: Option<u16>) -> Packet {
        Packet {
            from: Span::one("10.20.7.11".parse().unwrap()),
            to: Span::one("10.20.8.4".parse().unwrap()),
            protocol,
            from_port: ANY_PORT,
            to_port: port.map_or(ANY_PORT, |port| (port, port)),
            is_answer: false,
            in_by: Some("vmbr7".to_owned()),
            out_by: None,
        }
    }

    /// An answer of TCP from port 22 to a guest of which the network alone is known.
    fn answer() -> Packet {
        Packet {
            from: Span::one("2001:db8:8::4".parse().unwrap()),
            to: Span::of("2001:db8:7::/64".parse().unwrap()),
            protocol: Some(Protocol::Tcp),
            from_port: (22, 22),
            to_port: ANY_PORT,
            is_answer: true,
            in_by: None,
            out_by: Some("vmbr7".to_owned()),
        }
    }

    #[test]
    fn a_rule_matches_or_does_not_or_that_is_not_known() {
        use Test::{False, Open, True};
        let ssh = packet(Some(Protocol::Tcp), Some(22));
        for (rule, test) in [
            ("", True),
            ("accept", True),
            ("counter packets 7 bytes 9 accept", True),
            ("log prefix \"x; drop\" level info accept", True),
            ("ip saddr 10.20.7.11 accept", True),
            ("ip saddr 10.20.7.0/24 ip daddr 10.20.8.1-10.20.8.9 accept", True),
            ("ip saddr != 10.20.7.0/24 accept", False),
            ("ip saddr { 10.0.0.1, 10.20.7.0/24 comment \"web\" } accept", True),
            ("ip saddr != { 10.0.0.1, 10.0.0.2 } accept", True),
            ("ip saddr { 10.20.7.11 timeout 5s } accept", Open),
            ("ip saddr { 10.0.0.1 timeout 5s, 10.20.7.11 } accept", True),
            ("ip saddr { { 10.0.0.1, 10.0.0.2 }, 10.20.7.11 } accept", Open),
            ("ip6 saddr 2001:db8::1 accept", False),
            ("ip6 nexthdr tcp accept", False),
            ("tcp dport 22 accept", True),
            ("tcp dport ssh accept", True),
            ("tcp dport != 22 accept", False),
            ("tcp dport 20-30 accept", True),
            ("tcp dport { 80, 443 } accept", False),
            ("tcp dport { 80, 20-30 } accept", True),
            ("tcp dport { 80, web-cache } accept", Open),
            ("tcp dport web-cache accept", Open),
            ("tcp dport 0x16 accept", Open),
            ("tcp dport 022 accept", Open),
            ("tcp dport 20 - 30 accept", Open),
            ("tcp dport > 1024 accept", Open),
            ("tcp sport 1024-65535 accept", Open),
            ("tcp sport 0-65535 accept", True),
            ("th dport 22 accept", True),
            ("udp dport 22 accept", False),
            ("tcp flags syn accept", Open),
            ("udp length 9 accept", False),
            ("meta l4proto { tcp, udp } th dport 53 accept", False),
            ("meta l4proto 6 accept", True),
            ("ip protocol icmp accept", False),
            ("ip protocol != icmp accept", True),
            ("ip protocol esp accept", False),
            ("ip protocol strange accept", Open),
            ("icmp type echo-request accept", False),
            ("meta nfproto ipv6 accept", False),
            ("ct state new accept", True),
            ("ct state established,related accept", False),
            ("ct state { established, new } accept", True),
            ("ct state != new accept", False),
            ("ct state != established,related accept", Open),
            ("ct mark 7 accept", Open),
            ("iifname vmbr7 accept", True),
            ("iifname \"vmbr8\" accept", False),
            ("iifname \"vmbr*\" accept", Open),
            ("iifname vmbr* accept", Open),
            ("iifname { \"vmbr7\", lo } accept", True),
            ("oifname vmbr8 accept", Open),
            ("limit rate 9/second accept", Open),
            ("udp dport 53 limit rate 9/second accept", False),
            ("ip saddr . tcp dport { 10.20.7.11 . 22 } accept", Open),
            ("ip saddr & 255.255.0.0 == 10.20.0.0 accept", Open),
            ("ip saddr and 255.255.0.0 == 10.20.0.0 accept", Open),
            ("ip saddr 10.20.7.11 & 255.0.0.0 accept", Open),
            ("ip saddr vmap { 10.20.7.11 : drop }", Open),
            ("@th,0,16 22 drop", Open),
            ("fib daddr type local accept", Open),
            ("tcp dport 22 accept drop", Open),
            ("tcp dport", Open),
            ("tcp dport {", Open),
            ("ip saddr {}", False),
            ("!= 7", Open),
            ("reject", True),
            ("reject comment \"x\"", True),
            ("reject with tcp reset", True),
            ("reject with tcp reset comment \"x\"", True),
            ("reject with icmp type port-unreachable", True),
            ("reject with icmp port-unreachable", True),
            ("reject with icmpv6 type no-route", False),
            ("reject with icmpv6 no-route comment \"x\"", False),
            ("reject with icmpx type admin-prohibited", True),
            ("tcp dport 23 reject with icmpx admin-prohibited", False),
            ("meta mark 7 reject with tcp reset", Open),
            ("reject with tcp", Open),
            ("reject with icmp", Open),
            ("reject with icmp type comment \"x\"", Open),
            ("reject with strange", Open),
            ("reject with", Open),
            ("reject drop", Open),
            ("ip daddr set 10.0.0.5", Open),
            ("udp dport set 25", False),
        ] {
            assert_eq!(judge(rule, &ssh).0, test, "{rule}");
        }
        let any = packet(None, None);
        for (rule, test) in [
            ("tcp dport 22 accept", Open),
            ("icmp type echo-request accept", Open),
            ("ip protocol tcp accept", Open),
            ("reject with tcp reset", Open),
            ("ip saddr 10.0.0.1 tcp dport 22 accept", False),
            ("tcp dport 22 ip saddr 10.0.0.1 accept", False),
        ] {
            assert_eq!(judge(rule, &any).0, test, "{rule}");
        }
        let ping = packet(Some(Protocol::Icmp), None);
        for (rule, test) in [
            ("icmp type echo-request accept", True),
            ("icmp type { destination-unreachable, 8 } accept", True),
            ("icmp type echo-reply accept", False),
            ("icmp type 3 accept", False),
            ("icmp type strange accept", Open),
            ("icmp code 1 accept", Open),
            ("icmpv6 type echo-request accept", False),
            ("th dport 7 accept", Open),
            ("reject with tcp reset", False),
            ("reject with icmp type host-unreachable", True),
        ] {
            assert_eq!(judge(rule, &ping).0, test, "{rule}");
        }
        for (rule, test) in [
            ("ct state established,related accept", True),
            ("tcp sport 22 accept", True),
            ("tcp dport 22 accept", Open),
            ("ip6 daddr 2001:db8:7::1 accept", Open),
            ("ip6 daddr 2001:db8::/32 accept", True),
            ("ip6 daddr 2001:db8:9::/64 accept", False),
            ("ip6 daddr != 2001:db8:7::/64 accept", False),
            ("ip saddr 10.0.0.0/8 accept", False),
            ("reject with icmp type host-unreachable", False),
            ("reject with icmpv6 type no-route", True),
        ] {
            assert_eq!(judge(rule, &answer()).0, test, "{rule}");
        }
    }

    #[test]
    fn a_verdict_is_one_of_those_that_are_understood() {
        let ssh = packet(Some(Protocol::Tcp), Some(22));
        for (rule, verdict) in [
            ("accept", Verdict::Passes),
            ("return comment \"x\"", Verdict::Passes),
            ("drop", Verdict::Drops),
            ("reject", Verdict::Drops),
            ("reject with icmpx type admin-prohibited", Verdict::Drops),
            ("reject with strange thing", Verdict::Drops),
            ("ip daddr set 10.0.0.5", Verdict::Open),
            ("tcp dport set 25 accept", Verdict::Open),
            ("meta mark 1 ip saddr set 10.0.0.5 drop", Verdict::Open),
            ("ip ttl set 9", Verdict::Open),
            ("ct mark set 7 meta priority set 1:2", Verdict::GoesOn),
            ("tcp option maxseg size set 1400", Verdict::GoesOn),
            ("udp dport set 25", Verdict::GoesOn),
            ("continue", Verdict::GoesOn),
            ("counter", Verdict::GoesOn),
            ("meta mark set 7", Verdict::GoesOn),
            ("limit rate 9/second drop", Verdict::Drops),
            ("limit rate 9/second drop comment \"x\"", Verdict::Drops),
            ("limit rate 9/second reject with tcp reset", Verdict::Drops),
            ("limit rate 9/second log prefix \"drop\"", Verdict::GoesOn),
            ("meta mark vmap { 1 : accept, 2 : drop }", Verdict::Open),
            ("queue num 1", Verdict::Open),
            ("meta mark 1 accept drop", Verdict::Open),
        ] {
            assert_eq!(judge(rule, &ssh).1, verdict, "{rule}");
        }
    }
}
