//! Networks on the wire.

use pvc_api_types as api;
use pvc_model::cluster::Cluster;
use pvc_model::guest_network::trace::{End, Step, Trace, Way};
use pvc_model::network::{AclRecord, LeaseRecord, NetworkOptions, NetworkRecord};

/// A network, or `None` if its record's VNI is no number: clients take it as one.
pub fn network(cluster: &Cluster, record: &NetworkRecord) -> Option<api::Network> {
    let options = cluster.network_options.get(&record.vni).map(|options| **options);
    let NetworkOptions { masquerade, spoof_guard } = options.unwrap_or_default();
    Some(api::Network {
        vni: record.vni.parse().ok()?,
        description: record.description.clone(),
        r#type: record.nettype.clone(),
        mtu: record.mtu.clone(),
        domain: unset(&record.domain),
        name_servers: record.name_servers.clone(),
        ip6: api::Ipv6Settings {
            network: unset(&record.ip6_network),
            gateway: unset(&record.ip6_gateway),
            dhcp_flag: flag(&record.dhcp6_flag),
        },
        ip4: api::Ipv4Settings {
            network: unset(&record.ip4_network),
            gateway: unset(&record.ip4_gateway),
            dhcp_flag: flag(&record.dhcp4_flag),
            dhcp_start: unset(&record.dhcp4_start),
            dhcp_end: unset(&record.dhcp4_end),
        },
        masquerade,
        spoof_guard,
        unconfirmed_since: cluster.unconfirmed.get(&record.vni).map(|change| change.changed_at),
    })
}

pub fn lease(record: &LeaseRecord) -> api::Lease {
    let (ip4_address, ip6_address) = match record.ip6 {
        Some(_) => (String::new(), Some(record.address.clone())),
        None => (record.address.clone(), None),
    };
    api::Lease {
        hostname: unset(&record.hostname),
        ip4_address,
        mac_address: record.mac.clone(),
        ip6_address,
        duid: record.ip6.as_ref().map(|client| client.duid.clone()),
        timestamp: record.expiry.clone().unwrap_or_else(|| "static".to_owned()),
    }
}

pub fn acl(record: &AclRecord) -> api::Acl {
    api::Acl {
        direction: record.direction.as_str().to_owned(),
        order: record.order.into(),
        description: record.description.clone(),
        rule: record.rule.clone(),
    }
}

pub fn trace(vm: String, target: String, trace: &Trace) -> api::NetworkTrace {
    let (there, back) = (way(&trace.there), trace.back.as_ref().map(way));
    api::NetworkTrace { vm, target, passes: trace.passes(), there, back }
}

fn way(way: &Way) -> api::TraceWay {
    api::TraceWay {
        from: way.from.map(|address| address.to_string()),
        to: way.to.map(|address| address.to_string()),
        steps: way.steps.iter().map(step).collect(),
        end: end(&way.end),
        depends: way.depends.iter().map(ToString::to_string).collect(),
        assumed: way.assumed.iter().map(ToString::to_string).collect(),
    }
}

fn step(step: &Step) -> api::TraceStep {
    api::TraceStep {
        kind: step.kind().to_owned(),
        text: step.to_string(),
        node: step.node().map(ToString::to_string),
        network: step.vni().map(|vni| vni.get().into()),
    }
}

fn end(end: &End) -> api::TraceEnd {
    api::TraceEnd {
        kind: end.kind().to_owned(),
        text: end.to_string(),
        node: end.node().map(ToString::to_string),
        arrives: end.is_arrival(),
    }
}

/// The text, or the word `None`, which clients compare with.
fn unset(text: &str) -> String {
    if text.is_empty() { "None".into() } else { text.to_owned() }
}

/// `True` or `False` however a legacy peer spelt it.
fn flag(text: &str) -> String {
    match text.to_ascii_lowercase().as_str() {
        "true" => "True".into(),
        "false" => "False".into(),
        _ => unset(text),
    }
}
