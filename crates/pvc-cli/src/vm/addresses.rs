//! Addresses of the network cards of a VM: those that DHCP has given, and that its guest says.

use std::time::{Duration, Instant};

use pvc_api_types::operations::network::{GetNetworkVni, GetNetworkVniLeaseMac};
use pvc_api_types::operations::vm::GetVmVm;
use pvc_api_types::param::Nothing;
use pvc_api_types::{Network, Vm};
use pvc_client::Client;

use crate::context::Pvc;
use crate::interrupt;
use crate::outcome::Outcome;

/// Time for which a new guest may boot before it is no longer waited for its address.
const BOOT: Duration = Duration::from_secs(120);

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// The addresses of a VM by the leases of its networks: `10.20.1.101 (1001)`.
///
/// # Errors
/// Those of the API, but not that there is no lease.
pub fn of(client: &Client, vm: &Vm) -> Result<Vec<String>, pvc_client::Error> {
    let mut addresses = Vec::new();
    for (vni, mac) in cards(vm) {
        let leases = match client.read(GetNetworkVniLeaseMac, [vni, mac], &Nothing) {
            Ok(leases) => leases.read()?,
            Err(pvc_client::Error::NotFound { .. }) => continue,
            Err(error) => return Err(error),
        };
        addresses.extend(leases.iter().map(|lease| {
            let address = lease.ip6_address.as_deref().unwrap_or(&lease.ip4_address);
            format!("{address} ({vni})")
        }));
    }
    Ok(addresses)
}

/// Addresses that the agent in the guest says its cards have, besides those that are `known`.
pub fn by_agent(vm: &Vm, known: &[String]) -> Vec<String> {
    let is_known = |address: &str| known.iter().any(|it| it.split(' ').next() == Some(address));
    let said = vm.networks.iter().flat_map(|card| {
        let of_card = card.addresses.iter().filter(|address| !is_known(address));
        of_card.map(|address| format!("{address} ({}, by its agent)", card.vni))
    });
    said.collect()
}

/// The cards in networks of the cluster, each by VNI and MAC address.
fn cards(vm: &Vm) -> impl Iterator<Item = (&str, &str)> {
    let is_numbered = |vni: &str| vni.parse::<u32>().is_ok();
    let cards = vm.networks.iter().filter(move |card| is_numbered(&card.vni));
    cards.filter_map(|card| Some((card.vni.as_str(), card.mac.as_deref()?)))
}

/// Says the addresses of a running VM once DHCP or the agent in its guest knows one. They are
/// waited for if a network of it has DHCP: else nobody knows whether one will come.
pub fn say(pvc: &mut Pvc, name: &str) -> Outcome {
    let vm = pvc.client()?.read_only(GetVmVm, [name], "VM")?.read()?;
    if vm.networks.is_empty() {
        return Ok(());
    }
    let has_dhcp = has_dhcp(pvc.client()?, &vm);
    let begun = Instant::now();
    loop {
        match known(pvc.client()?, name) {
            Ok(addresses) if !addresses.is_empty() => {
                pvc.done(format!("It has the address {}.", addresses.join(", ")));
                return Ok(());
            }
            Ok(_) if !has_dhcp => {
                pvc.hint(&format!("`pvc vm info {name}` shows its address when its agent says it"));
                return Ok(());
            }
            Ok(_) if begun.elapsed() < BOOT => interrupt::pause(LOOK),
            Ok(_) => break pvc.warn(&format!("no address of VM `{name}` is known yet")),
            Err(error) => break pvc.warn(&format!("its address is not known: {error}")),
        }
    }
    pvc.hint(&format!("`pvc vm info {name}` shows it when it has one"));
    Ok(())
}

fn known(client: &Client, name: &str) -> Result<Vec<String>, pvc_client::Error> {
    let vm = client.read_only(GetVmVm, [name], "VM")?.read()?;
    let mut addresses = of(client, &vm)?;
    addresses.extend(by_agent(&vm, &addresses));
    Ok(addresses)
}

fn has_dhcp(client: &Client, vm: &Vm) -> bool {
    let has_dhcp = |network: &Network| {
        [&network.ip4.dhcp_flag, &network.ip6.dhcp_flag].iter().any(|flag| *flag == "True")
    };
    cards(vm).any(|(vni, _)| {
        let found = client.read(GetNetworkVni, [vni], &Nothing).ok();
        found.and_then(|it| it.read().ok()).is_some_and(|found| found.iter().any(has_dhcp))
    })
}

#[cfg(test)]
mod tests {
    use pvc_api_types::VmNetwork;

    use super::*;

    #[test]
    fn what_the_agent_says_is_shown_besides_the_leases() {
        let card = |vni: &str, addresses: &[&str]| VmNetwork {
            vni: vni.to_owned(),
            addresses: addresses.iter().map(|address| (*address).to_owned()).collect(),
            ..VmNetwork::default()
        };
        let networks = vec![
            card("1001", &["10.20.1.101", "2001:db8::5"]),
            card("macvtap:ens1", &["192.0.2.7"]),
            card("1002", &[]),
        ];
        let vm = Vm { networks, ..Vm::default() };
        let known = ["10.20.1.101 (1001)".to_owned()];
        let said = ["2001:db8::5 (1001, by its agent)", "192.0.2.7 (macvtap:ens1, by its agent)"];
        assert_eq!(by_agent(&vm, &known), said);
    }
}
