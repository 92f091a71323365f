//! The firewall of PVC 1.0.3, which stays in the kernel when it is replaced: rules of networks in
//! the table `inet filter`, in which an operator may have others.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::Vni;

/// Rules and chains of networks that PVC 1.0.3 has made in `inet filter`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OldRules {
    /// Each by its chain and its number (handle).
    pub rules: Vec<(String, u64)>,
    /// Chains that are theirs alone.
    pub chains: BTreeSet<String>,
}

impl OldRules {
    /// Finds them in what `nft --stateless --handle list table inet filter` shows. A rule is theirs
    /// if it says no more than theirs do, of a network that has chains of theirs.
    pub fn find(listing: &str) -> OldRules {
        let chains: BTreeSet<String> = listing.lines().filter_map(chain_of).collect();
        let chains: BTreeSet<String> =
            chains.into_iter().filter(|chain| network_of(chain).is_some()).collect();
        let networks: BTreeSet<Vni> = chains.iter().filter_map(|chain| network_of(chain)).collect();
        let (mut rules, mut within) = (Vec::new(), None);
        for line in listing.lines() {
            if line.trim() == "}" {
                within = None;
            } else if let Some(chain) = chain_of(line) {
                within = Some(chain);
            } else if let (Some(chain), Some((rule, handle))) = (&within, rule_of(line))
                && !chains.contains(chain)
                && (is_jump(rule, &chains) || is_of_guests(rule, &networks))
            {
                rules.push((chain.clone(), handle));
            }
        }
        OldRules { rules, chains }
    }

    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Commands that take all of them out of effect.
    pub fn commands(&self) -> String {
        let mut text = String::new();
        for (chain, handle) in &self.rules {
            let _ = writeln!(text, "delete rule inet filter {chain} handle {handle}");
        }
        for chain in &self.chains {
            let _ = writeln!(text, "flush chain inet filter {chain}");
        }
        text
    }

    /// Commands that remove the chains as well. They are refused if rules of somebody else still
    /// lead to one.
    pub fn chain_commands(&self) -> String {
        let chains = self.chains.iter();
        chains.map(|chain| format!("delete chain inet filter {chain}\n")).collect()
    }
}

/// Name of the chain that begins with this line.
fn chain_of(line: &str) -> Option<String> {
    let name = line.trim().strip_prefix("chain ")?.split(" {").next()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    (!name.is_empty() && name.chars().all(is_plain)).then(|| name.to_owned())
}

/// The network that a chain of this name is of.
fn network_of(chain: &str) -> Option<Vni> {
    let rest = chain.strip_prefix("vxlan")?;
    Vni::parse(rest.strip_suffix("-in").or_else(|| rest.strip_suffix("-out"))?)
}

/// The rule in a line, and its number.
fn rule_of(line: &str) -> Option<(&str, u64)> {
    let (rule, handle) = line.trim().rsplit_once(" # handle ")?;
    Some((rule, handle.parse().ok()?))
}

/// Whether it leads packets of a network into one of the chains.
fn is_jump(rule: &str, chains: &BTreeSet<String>) -> bool {
    let words: Vec<&str> = rule.split_whitespace().collect();
    let [family, end, _, "counter", "jump", chain] = words[..] else { return false };
    matches!(family, "ip" | "ip6") && matches!(end, "saddr" | "daddr") && chains.contains(chain)
}

/// Words that such rules have beside the bridge of their network.
const WORDS: [&str; 26] = [
    "iifname",
    "counter",
    "accept",
    "drop",
    "meta",
    "l4proto",
    "nfproto",
    "ipv6",
    "ip",
    "ip6",
    "protocol",
    "nexthdr",
    "icmp",
    "icmpv6",
    "ipv6-icmp",
    "tcp",
    "udp",
    "th",
    "dport",
    "53",
    "67",
    "80",
    "123",
    "547",
    "{",
    "}",
];

/// Whether it lets packets from the bridge of one of the networks come in, or drops them.
fn is_of_guests(rule: &str, networks: &BTreeSet<Vni>) -> bool {
    let mut words = rule.split_whitespace().map(|word| word.trim_end_matches(','));
    let mut bridges = 0;
    let is_theirs = words.all(|word| {
        let bridge = word.strip_prefix('"').and_then(|word| word.strip_suffix('"'));
        let is_bridge = bridge.and_then(Vni::of_bridge).is_some_and(|vni| networks.contains(&vni));
        bridges += usize::from(is_bridge);
        is_bridge || WORDS.contains(&word)
    });
    is_theirs && bridges == 1 && rule.contains("iifname \"")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = r#"table inet filter { # handle 1
	set addresses { # handle 20
		type ipv4_addr
	}

	chain input { # handle 1
		type filter hook input priority filter; policy accept;
		ct state established,related accept # handle 5
		iifname "eth0" tcp dport 22 accept # handle 6
		iifname "vmbr7" meta l4proto { icmp, ipv6-icmp } counter accept # handle 10
		tcp dport 53 iifname "vmbr7" counter accept # handle 13
		iifname "vmbr7" udp dport 67 counter accept # handle 14
		iifname "vmbr7" tcp dport 22 counter accept # handle 15
		iifname "vmbr8" counter drop # handle 16
		iifname "vmbr7" ip saddr 10.0.0.9 counter accept # handle 17
		iifname "vmbr7" counter drop # handle 18
		iifname "vmbr7" counter drop comment "vmbr7" # handle 19
	}

	chain forward { # handle 2
		type filter hook forward priority filter; policy accept;
		ip6 daddr 2001:db8::/64 counter jump vxlan7-in # handle 21
		ip saddr 10.20.7.0/24 counter jump vxlan7-out # handle 22
		ip saddr 10.0.0.0/24 tcp dport 9 counter jump vxlan7-out # handle 23
		ip saddr 10.20.7.0/24 counter jump own # handle 24
	}

	chain own { # handle 3
		counter drop # handle 25
	}

	chain vxlan7-in { # handle 4
		counter # handle 26
		iifname "vmbr7" drop # handle 27
	}

	chain vxlan7-out { # handle 7
		counter # handle 28
	}

	chain vxlan-in { # handle 8
	}
}
"#;

    #[test]
    fn what_pvc_1_0_3_left_is_found_and_nothing_of_an_operator() {
        let old = OldRules::find(LISTING);
        let of = |chain: &str, handles: &[u64]| {
            handles.iter().map(|handle| (chain.to_owned(), *handle)).collect::<Vec<_>>()
        };
        assert_eq!(old.rules, [of("input", &[10, 13, 14, 18]), of("forward", &[21, 22])].concat());
        assert_eq!(old.chains, ["vxlan7-in", "vxlan7-out"].map(str::to_owned).into());
        let commands = old.commands();
        assert!(commands.contains("delete rule inet filter forward handle 22\n"), "{commands}");
        assert!(commands.ends_with("flush chain inet filter vxlan7-out\n"), "{commands}");
        assert!(old.chain_commands().starts_with("delete chain inet filter vxlan7-in\n"));
    }

    #[test]
    fn a_table_without_chains_of_networks_is_an_operators() {
        let others: String = LISTING
            .lines()
            .filter(|line| !line.contains("chain vxlan7"))
            .collect::<Vec<_>>()
            .join("\n");
        for listing in ["", "table inet filter {\n}\n", &others] {
            assert_eq!(OldRules::find(listing), OldRules::default());
        }
    }
}
