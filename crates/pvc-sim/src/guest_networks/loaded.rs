//! Rules of networks as a host has loaded them.

use std::collections::{BTreeMap, BTreeSet};

use pvc_model::guest_network::Vni;

/// Chain of the rules of operators as a host has loaded it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Chain(pub Vec<String>);

impl Chain {
    /// Whether the chain lets nothing pass that these rules do not.
    pub fn is_of(&self, rules: &[String]) -> bool {
        let is_cut =
            |(last, before): (&String, &[String])| last == "drop" && rules.starts_with(before);
        self.0 == rules || self.0.split_last().is_some_and(is_cut)
    }
}

/// The table of networks, as a host has loaded it.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// Bridges of networks that are filtered, and of those that are closed.
    pub guests: BTreeSet<String>,
    pub closed: BTreeSet<String>,
    chains: BTreeMap<String, Chain>,
}

impl Loaded {
    /// Reads the words of the table.
    pub fn read(text: &str) -> Loaded {
        let mut loaded = Loaded::default();
        let mut place = String::new();
        for line in text.lines() {
            match line.strip_suffix(" {") {
                Some(begun) if !line.starts_with('\t') => begun.clone_into(&mut place),
                _ => loaded.take(&place, line.trim()),
            }
        }
        loaded
    }

    fn take(&mut self, place: &str, line: &str) {
        let bridges = |line: &str| -> BTreeSet<String> {
            let elements = line.strip_prefix("elements = {").and_then(|it| it.strip_suffix('}'));
            let elements = elements.into_iter().flat_map(|elements| elements.split(','));
            elements.map(|bridge| bridge.trim().trim_matches('"').to_owned()).collect()
        };
        match place {
            "set guests" => self.guests.extend(bridges(line)),
            "set closed" => self.closed.extend(bridges(line)),
            _ => {
                let Some(name) = place.strip_prefix("chain vxlan") else { return };
                let chain = self.chains.entry(name.to_owned()).or_default();
                match line.strip_prefix("counter") {
                    Some("") | None => {}
                    Some(rule) => chain.0.push(rule.trim().to_owned()),
                }
            }
        }
    }

    /// The chains of a network that is filtered: of what comes in, and of what goes out.
    pub fn of(&self, vni: Vni) -> Option<[Chain; 2]> {
        let chain =
            |way: &str| self.chains.get(&format!("{vni}-{way}")).cloned().unwrap_or_default();
        self.guests.contains(&vni.bridge()).then(|| ["in", "out"].map(chain))
    }
}
