//! Names and addresses in the networks of VMs of a world.

use pvc_model::network::{Direction, NetworkRecord};

/// The part of a network's addresses that its number makes.
fn subnet(vni: u32) -> u8 {
    u8::try_from(vni % 1000 % 250).expect("it is below 250")
}

/// The host of this number in the network.
pub(crate) fn host_of(vni: u32, host: u8) -> String {
    format!("10.20.{}.{host}", subnet(vni))
}

pub(crate) fn ip4_network(vni: u32) -> String {
    format!("{}/24", host_of(vni, 0))
}

/// First and last address that DHCP gives there.
pub(crate) fn dhcp_range(vni: u32) -> [String; 2] {
    [100, 199].map(|host| host_of(vni, host))
}

/// The address that operators reserve for a VM.
pub(crate) fn reserved_address(vni: u32, vm: usize) -> String {
    host_of(vni, 200 + u8::try_from(vm % 50).expect("it is below 50"))
}

/// The MAC address of a VM's network card.
pub(crate) fn mac(vm: usize) -> String {
    format!("52:54:00:01:{:02x}:{:02x}", vm / 256 % 256, vm % 256)
}

/// Description of a rule, which is its name.
pub(crate) fn rule_name(rule: &str) -> String {
    rule.replace(|c: char| !c.is_ascii_alphanumeric(), "-")
}

/// Direction of a rule with these words: one that begins with a destination is about what guests
/// send, any other about what comes to them.
pub(crate) fn rule_direction(rule: &str) -> Direction {
    if rule.starts_with("ip daddr ") { Direction::Out } else { Direction::In }
}

/// A managed network as whoever set the cluster up has made it.
pub(crate) fn first_record(vni: u32) -> NetworkRecord {
    let [dhcp4_start, dhcp4_end] = dhcp_range(vni);
    NetworkRecord {
        vni: vni.to_string(),
        description: format!("net{vni}"),
        nettype: "managed".to_owned(),
        domain: format!("net{vni}.example"),
        ip4_network: ip4_network(vni),
        ip4_gateway: host_of(vni, 1),
        dhcp4_flag: "True".to_owned(),
        dhcp4_start,
        dhcp4_end,
        ..NetworkRecord::default()
    }
}

/// The port of a guest of this client of Ceph, which no other has, in the network at this place
/// among its own.
pub(crate) fn port(client: u64, place: usize) -> String {
    format!("vnet{client}p{place}")
}
