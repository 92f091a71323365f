//! Answers of the agents in guests, which may say whatever they like.

use std::net::IpAddr;

use pvc_model::link::{mac_text, parse_mac};
use pvc_ports::{AgentAddress, MOST_AGENT_ADDRESSES};

use crate::virt::AgentInterface;

/// Addresses at which the guest may be reached, of those that it says.
pub(crate) fn addresses(said: Vec<AgentInterface>) -> Vec<AgentAddress> {
    let of_interface = |AgentInterface { mac, addresses }: AgentInterface| {
        let mac = mac.as_deref().and_then(parse_mac).map(mac_text);
        mac.into_iter().flat_map(move |mac| {
            let parsed = addresses.clone().into_iter().filter_map(|text| text.parse().ok());
            let of_others = parsed.filter(is_for_others);
            of_others.map(move |address| AgentAddress { mac: mac.clone(), address })
        })
    };
    said.into_iter().flat_map(of_interface).take(MOST_AGENT_ADDRESSES).collect()
}

/// Whether others may reach something there: not of this host or this link alone, nor of many.
fn is_for_others(address: &IpAddr) -> bool {
    let is_of_link = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(is_of_link || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(mac: Option<&str>, addresses: &[&str]) -> AgentInterface {
        let addresses = addresses.iter().map(|text| (*text).to_owned()).collect();
        AgentInterface { mac: mac.map(str::to_owned), addresses }
    }

    fn found(said: Vec<AgentInterface>) -> Vec<String> {
        let line = |found: &AgentAddress| format!("{} {}", found.mac, found.address);
        addresses(said).iter().map(line).collect()
    }

    #[test]
    fn addresses_that_others_reach_are_taken_with_the_card_that_has_them() {
        let mac = Some("52:54:00:AB:cd:01");
        let usual = vec![
            said(Some("00:00:00:00:00:00"), &["127.0.0.1", "::1"]),
            said(mac, &["10.0.0.5", "fe80::1", "2001:db8::5"]),
        ];
        let card = "52:54:00:ab:cd:01";
        assert_eq!(found(usual), [format!("{card} 10.0.0.5"), format!("{card} 2001:db8::5")]);
    }

    #[test]
    fn what_is_no_address_or_too_much_is_left_out() {
        let mac = "52:54:00:00:00:01";
        let odd = ["", "10.0.0", "10.0.0.5/24", "localhost", "10.0.0.5\n", "0.0.0.0", "224.0.0.1"];
        assert_eq!(found(vec![said(Some(mac), &odd)]), [""; 0]);
        for none in [None, Some(""), Some("52:54:00:00:00"), Some("52:54:00:00:00:0g")] {
            assert_eq!(found(vec![said(none, &["10.0.0.5"])]), [""; 0], "{none:?}");
        }
        let many: Vec<AgentInterface> =
            (0..64).map(|_| said(Some(mac), &["10.0.0.5"; 64])).collect();
        assert_eq!(found(many).len(), MOST_AGENT_ADDRESSES);
    }
}
