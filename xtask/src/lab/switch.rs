//! The switch room: a namespace with a bridge for each network, the gateway and the BMCs'
//! addresses. Nodes are cabled to it afresh at every power-on; nothing of it is connected to the
//! machine.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use super::layout::{Lab, NETWORKS, Network, NodeName};
use crate::run;

/// The switch room's part of the lab's directory, and of its namespace's name.
pub const SWITCH: &str = "switch";

/// VLANs that nodes find as devices of their own: the machine's kernel need not know 802.1q.
pub const VLANS: [u16; 2] = [10, 20];

/// Makes the switch room, whatever of it is missing.
pub fn build(lab: &Lab) -> Result<()> {
    let room = lab.named(SWITCH);
    if !namespace_exists(&room) {
        ip(&["netns", "add", &room])?;
    }
    ip(&["-n", &room, "link", "set", "lo", "up"])?;
    for Bridge { name, mtu, mac } in bridges() {
        bridge(&room, &name, mtu, &mac)?;
    }
    address(&room, "10.99.0.254/24")?;
    for node in lab.nodes() {
        address(&room, &format!("{}/24", node.bmc_address()))?;
    }
    Ok(())
}

/// A bridge of the switch room.
struct Bridge {
    name: String,
    mtu: u16,
    mac: String,
}

/// Each has an address of its own, since one that was given none takes the lowest of its ports':
/// with the port of a machine that loses its power it would change, and whoever talks to the BMCs
/// would look for them under the old one.
fn bridges() -> Vec<Bridge> {
    let mac = |number: u16| format!("02:99:01:00:00:{number:02x}");
    let networks = NETWORKS.iter().map(|network| Bridge {
        name: network.name.to_owned(),
        mtu: network.mtu,
        mac: mac(network.number.into()),
    });
    let vlans = VLANS.iter().map(|vlan| Bridge {
        name: format!("vlan{vlan}"),
        mtu: 1500,
        mac: mac(0x80 + vlan),
    });
    networks.chain(vlans).collect()
}

fn bridge(room: &str, name: &str, mtu: u16, mac: &str) -> Result<()> {
    if !link_exists(room, name) {
        ip(&[
            "-n",
            room,
            "link",
            "add",
            name,
            "mtu",
            &mtu.to_string(),
            "type",
            "bridge",
            "forward_delay",
            "0",
        ])?;
    }
    ip(&["-n", room, "link", "set", name, "address", mac, "mtu", &mtu.to_string(), "up"])
}

fn address(room: &str, address: &str) -> Result<()> {
    ip(&["-n", room, "address", "replace", address, "dev", "upstream"])
}

pub fn remove(lab: &Lab) -> Result<()> {
    remove_namespace(&lab.named(SWITCH))
}

/// Gives `node` a new namespace with new cables: a machine that was off has no old addresses.
pub fn connect(lab: &Lab, node: &NodeName) -> Result<()> {
    let (room, own) = (lab.named(SWITCH), lab.named(&node.text));
    disconnect(lab, node)?;
    ip(&["netns", "add", &own])?;
    ip(&["-n", &own, "link", "set", "lo", "up"])?;
    let cut = cut_networks(lab, node);
    for Cable { network, bridge, device, mtu, mac } in cables(node) {
        let port = port(node, &device);
        let mtu = mtu.to_string();
        let near = ["-n", &room, "link", "add", &port, "mtu", &mtu, "type", "veth"];
        let far = ["peer", "name", &device, "mtu", &mtu, "address", &mac, "netns", &own];
        ip(&[&near[..], &far[..]].concat())?;
        let plugged = if cut.iter().any(|cut| cut == network) { "down" } else { "up" };
        ip(&["-n", &room, "link", "set", &port, "master", &bridge, plugged])?;
    }
    Ok(())
}

/// Takes `node`'s cables and its namespace away. The cables first: the kernel removes a namespace
/// when it finds the time.
pub fn disconnect(lab: &Lab, node: &NodeName) -> Result<()> {
    let room = lab.named(SWITCH);
    for cable in cables(node) {
        let port = port(node, &cable.device);
        if link_exists(&room, &port) {
            ip(&["-n", &room, "link", "del", &port])?;
        }
    }
    remove_namespace(&lab.named(&node.text))
}

/// Pulls `node`'s cables out of `networks`; also those that it will have after its next power-on.
pub fn cut(lab: &Lab, node: &NodeName, networks: &[Network]) -> Result<()> {
    let mut cut = cut_networks(lab, node);
    for network in networks {
        set_ports(lab, node, network, "down")?;
        cut.push(network.name.into());
    }
    write_cut(lab, node, cut)
}

/// Puts `node`'s cables into `networks` again.
pub fn heal(lab: &Lab, node: &NodeName, networks: &[Network]) -> Result<()> {
    let mut cut = cut_networks(lab, node);
    for network in networks {
        set_ports(lab, node, network, "up")?;
        cut.retain(|name| name != network.name);
    }
    write_cut(lab, node, cut)
}

/// The names of the networks that `node` is cut from.
pub fn cut_networks(lab: &Lab, node: &NodeName) -> Vec<String> {
    let text = fs::read_to_string(cut_file(lab, node)).unwrap_or_default();
    text.split_whitespace().map(Into::into).collect()
}

fn write_cut(lab: &Lab, node: &NodeName, mut cut: Vec<String>) -> Result<()> {
    cut.sort();
    cut.dedup();
    Ok(fs::write(cut_file(lab, node), cut.join(" "))?)
}

fn cut_file(lab: &Lab, node: &NodeName) -> PathBuf {
    lab.part(&node.text).join("cut")
}

fn set_ports(lab: &Lab, node: &NodeName, network: &Network, state: &str) -> Result<()> {
    let room = lab.named(SWITCH);
    for cable in cables(node).iter().filter(|cable| cable.network == network.name) {
        let port = port(node, &cable.device);
        if link_exists(&room, &port) {
            ip(&["-n", &room, "link", "set", &port, state])?;
        }
    }
    Ok(())
}

/// # Errors
/// If there is no network of that name.
pub fn network(name: &str) -> Result<Network> {
    match NETWORKS.iter().find(|network| network.name == name) {
        Some(network) => Ok(*network),
        None => bail!("there is no network `{name}`; there are: upstream, cluster, storage"),
    }
}

struct Cable {
    /// Network whose cut the cable shares: VLANs run through the upstream cable.
    network: &'static str,
    bridge: String,
    device: String,
    mtu: u16,
    mac: String,
}

fn cables(node: &NodeName) -> Vec<Cable> {
    let mac = |network: u16| format!("02:99:00:{:02x}:00:{:02x}", network, node.number);
    let plain = NETWORKS.iter().map(|network| Cable {
        network: network.name,
        bridge: network.name.into(),
        device: network.device.into(),
        mtu: network.mtu,
        mac: mac(network.number.into()),
    });
    let tagged = VLANS.iter().map(|vlan| Cable {
        network: "upstream",
        bridge: format!("vlan{vlan}"),
        device: format!("vlan{vlan}"),
        mtu: 1500,
        mac: mac(0x80 + vlan),
    });
    plain.chain(tagged).collect()
}

/// The switch's end of a cable; a device's name has at most 15 characters.
fn port(node: &NodeName, device: &str) -> String {
    format!("{}.{device}", node.text)
}

/// A command in the switch room, with the machine's own files.
pub fn inside(lab: &Lab, program: &str) -> Command {
    let mut command = run::command("nsenter");
    command.arg(format!("--net=/run/netns/{}", lab.named(SWITCH))).arg(program);
    command
}

fn namespace_exists(name: &str) -> bool {
    PathBuf::from(format!("/run/netns/{name}")).exists()
}

fn remove_namespace(name: &str) -> Result<()> {
    if namespace_exists(name) {
        ip(&["netns", "del", name])?;
    }
    Ok(())
}

fn link_exists(namespace: &str, link: &str) -> bool {
    let shown = run::command("ip").args(["-n", namespace, "link", "show", "dev", link]).output();
    shown.is_ok_and(|shown| shown.status.success())
}

fn ip(arguments: &[&str]) -> Result<()> {
    run::run(run::command("ip").args(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cable_end_has_a_name_that_linux_takes() {
        let node = NodeName::numbered(9);
        for cable in cables(&node) {
            assert!(port(&node, &cable.device).len() <= 15);
        }
    }

    #[test]
    fn every_bridge_has_an_address_that_no_other_bridge_or_cable_has() {
        let ends = (1..=9).flat_map(|number| cables(&NodeName::numbered(number)));
        let mut all: Vec<String> = ends.map(|cable| cable.mac).collect();
        all.extend(bridges().into_iter().map(|bridge| bridge.mac));
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "{all:?}");
        assert!(all.iter().all(|mac| mac.len() == 17), "{all:?}");
    }

    #[test]
    fn an_unknown_network_is_refused_and_the_known_are_named() {
        let error = network("wifi").unwrap_err().to_string();
        assert_eq!(error, "there is no network `wifi`; there are: upstream, cluster, storage");
    }
}
