//! Addresses that an operator reserves in a network, and takes back.

use std::net::{IpAddr, Ipv4Addr};

use super::dnsmasq::is_reservable;
use super::refusal::NetworkRefusal;
use super::request::find;
use super::{BadNetwork, GuestNetwork, is_host_of_4, is_unset};
use crate::cluster::Cluster;
use crate::link::{Mac, is_unicast, mac_text, parse_mac};
use crate::network::{LeaseRecord, NetworkRecord};
use crate::shown;

/// An address that DHCP is to keep for a MAC address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewReservation {
    pub mac: String,
    pub address: String,
    /// Empty for none.
    pub hostname: String,
}

/// The MAC address of a network card as operators write it, with `:` or `-` between its octets.
/// `None` of those that no single card has.
pub fn card_mac(text: &str) -> Option<Mac> {
    let mac = match text.contains(':') {
        true => parse_mac(text),
        false => parse_mac(&text.replace('-', ":")),
    };
    mac.filter(|mac| is_unicast(*mac) && *mac != Mac::default())
}

/// Decides on a reservation.
///
/// # Errors
/// What is wrong with it.
pub fn reserve<'a>(
    cluster: &'a Cluster,
    network: &str,
    new: &NewReservation,
) -> Result<(&'a NetworkRecord, LeaseRecord), NetworkRefusal> {
    let record = find(cluster, network)?;
    let mac = card_mac(&new.mac).map(mac_text);
    let mac = mac.ok_or_else(|| NetworkRefusal::BadMac { mac: shown(&new.mac) })?;
    let read = GuestNetwork::read(record).ok().map(|(network, _)| network);
    let managed = read.as_ref().and_then(GuestNetwork::managed);
    let managed = managed.ok_or(NetworkRefusal::NotManaged { what: "dhcp" })?;
    let vni = record.vni.clone();
    let ip4 = managed.ip4.as_ref().ok_or(NetworkRefusal::NoAddresses { vni })?;
    let text = new.address.trim();
    let address: Ipv4Addr =
        text.parse().map_err(|_| BadNetwork::new("ipaddress", text, "an IPv4 address"))?;
    if !is_host_of_4(address, ip4.network) {
        let (field, found) = ("ipaddress", address.to_string());
        return Err(NetworkRefusal::NotInNetwork { field, found, net: ip4.network.into() });
    }
    let taken = |of: String| Err(NetworkRefusal::AddressTaken { address, of });
    if ip4.gateway == Some(address) {
        return taken("the network's gateway".to_owned());
    }
    let mut reserved = record.leases.iter().filter(|lease| lease.expiry.is_none());
    for lease in reserved.by_ref() {
        if card_mac(&lease.mac).map(mac_text).as_ref() == Some(&mac) {
            let address = shown(&lease.address);
            return Err(NetworkRefusal::Reserved { mac, address });
        }
        if lease.address.parse() == Ok(address) {
            return taken(format!("reserved for `{}`", shown(&lease.mac)));
        }
    }
    let hostname = match new.hostname.trim() {
        text if is_unset(text) => "None".to_owned(),
        text => hostname(text)?,
    };
    if let Some(other) = named(record, &hostname).filter(|_| !is_unset(&hostname)) {
        return Err(NetworkRefusal::HostnameTaken { hostname, mac: shown(&other.mac) });
    }
    let address = address.to_string();
    Ok((record, LeaseRecord { mac, address, hostname, ..LeaseRecord::default() }))
}

/// The reservation with this host name: DNS would answer with the address of either.
fn named<'a>(record: &'a NetworkRecord, hostname: &str) -> Option<&'a LeaseRecord> {
    let mut reserved = record.leases.iter().filter(|lease| lease.expiry.is_none());
    reserved.find(|lease| lease.hostname.eq_ignore_ascii_case(hostname))
}

/// A host name: one label, as it becomes a name in the network's domain, and one that dnsmasq takes
/// for a name.
fn hostname(text: &str) -> Result<String, NetworkRefusal> {
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || c == b'-';
    let is_label = (1..=63).contains(&text.len())
        && text.bytes().all(is_plain)
        && !text.starts_with('-')
        && !text.ends_with('-')
        && is_reservable(text);
    match is_label {
        true => Ok(text.to_owned()),
        false => Err(NetworkRefusal::BadHostname { hostname: shown(text) }),
    }
}

/// The lease with this MAC address, this host name, this address or, of IPv6, of this client, of a
/// network: a reservation if there is one, for what DHCP has given then ends by itself.
///
/// # Errors
/// If there is none, or more than one may be meant.
pub fn release<'a>(
    cluster: &'a Cluster,
    network: &str,
    which: &str,
) -> Result<(&'a NetworkRecord, &'a LeaseRecord), NetworkRefusal> {
    let record = find(cluster, network)?;
    let mac = card_mac(which).map(mac_text);
    let address: Option<IpAddr> = which.parse().ok();
    let is_meant = |lease: &&LeaseRecord| {
        (lease.mac == which && !which.is_empty())
            || mac.as_ref().is_some_and(|mac| *mac == lease.mac.to_ascii_lowercase())
            || (!is_unset(which) && lease.hostname == which)
            || (!is_unset(which) && lease.address == which)
            || (address.is_some() && lease.address.parse().ok() == address)
            || lease.ip6.as_ref().is_some_and(|client| client.duid.eq_ignore_ascii_case(which))
    };
    let meant: Vec<&LeaseRecord> = record.leases.iter().filter(is_meant).collect();
    let Some(first) = meant.first() else {
        let (vni, which) = (record.vni.clone(), shown(which));
        return Err(NetworkRefusal::NoLease { vni, which });
    };
    // A client of IPv6 may have several addresses.
    let key = |lease: &LeaseRecord| match lease.ip6 {
        Some(_) => lease.address.clone(),
        None => lease.mac.clone(),
    };
    let is_other = |other: &&&LeaseRecord| match other.ip6.is_some() == first.ip6.is_some() {
        true => key(other) != key(first),
        false => !other.mac.eq_ignore_ascii_case(&first.mac),
    };
    if meant.iter().any(|other| is_other(&other)) {
        let macs: Vec<String> =
            meant.iter().take(5).map(|lease| format!("`{}`", shown(&key(lease)))).collect();
        let (which, macs) = (shown(which), macs.join(", "));
        return Err(NetworkRefusal::SeveralLeases { which, macs });
    }
    Ok((record, first))
}
