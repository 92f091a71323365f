use clap::Args;
use pvc_api_types::Network;
use pvc_api_types::operations::network::{
    AclFilter, GetNetworkVni, GetNetworkVniAcl, GetNetworkVniLease, LeaseFilter,
};
use pvc_client::Kind;
use serde_json::Value;

use crate::context::Pvc;
use crate::format::{InfoFormat, MaybeJson};
use crate::outcome::{Failure, Outcome};
use crate::output::labels::Labels;
use crate::output::{Paint, Table};

/// Show a network in detail
///
/// With its leases and firewall rules, if the cluster's API tells them.
#[derive(Debug, Args)]
pub struct Info {
    /// The network, by VNI or description
    #[arg(value_name = "VNI", add = crate::completion::networks())]
    vni: String,

    #[arg(short, long, value_enum, default_value_t = InfoFormat::Pretty, help = "How to print it")]
    format: InfoFormat,
}

impl Info {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let network = pvc.client()?.read_only(GetNetworkVni, [&self.vni], "network")?;
        if self.format.print_payload(pvc, &network)? {
            return Ok(());
        }
        let network = network.read()?;
        let mut text = view(&network, pvc.out.paint());
        if network.r#type == "managed" {
            let vni = network.vni.to_string();
            let leases = part(pvc, &vni, Part::Leases)?;
            let rules = part(pvc, &vni, Part::Rules)?;
            let room = pvc.out.is_terminal().then(crate::output::width);
            text.push_str(&tables(&leases, &rules, pvc.out.paint(), room));
        }
        pvc.out.text(text);
        Ok(())
    }
}

/// Part of a network.
#[derive(Clone, Copy)]
enum Part {
    Leases,
    Rules,
}

/// Reads a part of a network; nothing from an API that has none of it, or cannot tell yet.
fn part(pvc: &mut Pvc, vni: &str, part: Part) -> Result<Vec<Value>, Failure> {
    let client = pvc.client()?;
    let list = match part {
        Part::Leases => client
            .read(GetNetworkVniLease, [vni], &LeaseFilter::default())
            .and_then(|list| list.read_as()),
        Part::Rules => client
            .read(GetNetworkVniAcl, [vni], &AclFilter::default())
            .and_then(|list| list.read_as()),
    };
    match list {
        Ok(list) => Ok(list),
        Err(error) if matches!(error.kind(), Kind::NotFound | Kind::NotYet) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

const WIDTH: usize = 20;

fn view(network: &Network, paint: Paint) -> String {
    let mut lines = Labels::new(paint, WIDTH);
    lines.heading("Virtual network information:");
    lines.blank();
    lines.line("VNI", network.vni.to_string());
    lines.line("Type", &network.r#type);
    lines.line("MTU", &network.mtu);
    lines.line("Description", &network.description);
    if network.r#type == "managed" {
        lines.line("Domain", &network.domain);
        lines.line("DNS Servers", network.name_servers.join(", "));
        lines.blank();
        lines.line("IPv6 network", &network.ip6.network);
        lines.line("IPv6 gateway", &network.ip6.gateway);
        lines.line("DHCPv6 enabled", &network.ip6.dhcp_flag);
        lines.line("IPv4 network", &network.ip4.network);
        lines.line("IPv4 gateway", &network.ip4.gateway);
        lines.line("DHCPv4 enabled", &network.ip4.dhcp_flag);
        if network.ip4.dhcp_flag == "True" {
            lines.line(
                "DHCPv4 range",
                format!("{} - {}", network.ip4.dhcp_start, network.ip4.dhcp_end),
            );
        }
        lines.blank();
        lines.line("Masquerade", word(network.masquerade));
        lines.line("Spoof guard", word(network.spoof_guard));
    }
    if network.unconfirmed_since.is_some() {
        lines.blank();
        lines.line("Last change", "taken back soon unless confirmed: `pvc network confirm`");
    }
    lines.finish()
}

/// The word that a flag of a network has elsewhere.
fn word(flag: bool) -> &'static str {
    if flag { "True" } else { "False" }
}

/// Tables of leases and rules; long texts are broken to fit into `room`, which a terminal has.
fn tables(leases: &[Value], rules: &[Value], paint: Paint, room: Option<usize>) -> String {
    let text = |value: &Value, name: &str| match value.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => "N/A".to_owned(),
        Some(other) => other.to_string(),
    };
    let mut text_of = String::new();
    let mut add = |title, columns: &[(&'static str, usize)], members: &[&str], list: &[Value]| {
        if list.is_empty() {
            return;
        }
        let mut table = Table::new().group(title, columns).wrapping();
        for value in list {
            table.row(members.iter().map(|member| text(value, member).into()).collect());
        }
        text_of.push_str(&format!("\n{}\n", table.text(paint, true, room)));
    };
    add(
        "Leases",
        &[("Hostname", 9), ("IP Address", 11), ("MAC Address", 13), ("Timestamp", 10)],
        &["hostname", "ip4_address", "mac_address", "timestamp"],
        leases,
    );
    add(
        "ACLs",
        &[("Direction", 10), ("Order", 6), ("Description", 12), ("Rule", 5)],
        &["direction", "order", "description", "rule"],
        rules,
    );
    text_of
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_view() {
        let networks: Vec<Network> =
            serde_json::from_str(include_str!("../../tests/wire/networks.json")).unwrap();
        let leases = [json!({"hostname": "web1", "ip4_address": "10.0.0.5",
            "mac_address": "52:54:00:aa:bb:cc", "timestamp": null})];
        let rules =
            [json!({"direction": "in", "order": "0", "description": "ssh", "rule": "tcp dport 22 \
                                                                                   accept"})];
        let texts: Vec<String> = networks.iter().map(|network| view(network, Paint::OFF)).collect();
        let text = texts.join("\n") + &tables(&leases, &rules, Paint::OFF, None);
        crate::golden::check("network-info.txt", &text);
    }

    #[test]
    fn a_long_rule_is_broken_on_a_terminal_and_whole_elsewhere() {
        let rule = format!("ip saddr {{ {}10.9.9.9 }} accept", "10.20.30.40, ".repeat(20));
        let rules = [json!({"direction": "in", "order": 0, "description": "a", "rule": rule})];
        let text = tables(&[], &rules, Paint::OFF, Some(79));
        assert!(text.lines().all(|line| line.len() <= 80), "also the ruler: {text}");
        assert!(text.lines().count() > 5 && text.contains("ACLs -----"), "{text}");
        let piped = tables(&[], &rules, Paint::OFF, None);
        assert!(piped.contains(&rule), "{piped}");
    }
}
