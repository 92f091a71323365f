//! Addresses that DHCP of IPv6 has given: `/pvcrs/dhcp6_leases/{vni}/{address}` with JSON, ours
//! alone. Those of IPv4 lie with their network, by MAC address; a client of IPv6 names itself, and
//! legacy peers would take it for one of IPv4 there.
//!
//! Legacy peers that remove a network leave them behind: what was written before its network was
//! made is of a former one.

use std::net::Ipv6Addr;

use pvc_model::network::{GivenLease6, Ip6Client, LeaseRecord};
use serde::{Deserialize, Serialize};

use super::{PLACE, network};
use crate::draft::Draft;
use crate::raw::Raw;
use crate::reader::{MOST_ENTRIES, Reader, json};

pub(super) const ROOT: &str = "/pvcrs/dhcp6_leases";

/// Bytes of a lease, about.
const BYTES: usize = 256;

pub(super) fn weight(raw: &Raw, vni: &str) -> usize {
    raw.place(ROOT).width(vni).min(MOST_ENTRIES) * (PLACE + BYTES)
}

#[derive(Serialize, Deserialize)]
struct Written {
    duid: String,
    iaid: String,
    #[serde(default)]
    mac: Option<String>,
    #[serde(default)]
    hostname: Option<String>,
    expiry: u64,
}

fn root(vni: &str) -> String {
    format!("{ROOT}/{vni}")
}

/// The leases of the network that there is.
pub(super) fn read(raw: &Raw, vni: &str) -> Vec<LeaseRecord> {
    let (root, Some(network)) = (root(vni), raw.get(&network::root(vni))) else {
        return Vec::new();
    };
    let mut r = Reader::new(raw, &root);
    let addresses = r.children("");
    r.log_what_is_cut(&root);
    let read = |address: &str| {
        let path = format!("{root}/{address}");
        let address: Ipv6Addr = address.parse().ok()?;
        raw.get(&path).filter(|lease| lease.mzxid >= network.czxid)?;
        let Written { duid, iaid, mac, hostname, expiry } =
            serde_json::from_str(&json(raw, &path)?).ok()?;
        Some(LeaseRecord {
            mac: mac.unwrap_or_default(),
            address: address.to_string(),
            hostname: hostname.unwrap_or_default(),
            expiry: Some(expiry.to_string()),
            client_id: String::new(),
            ip6: Some(Ip6Client { duid, iaid }),
        })
    };
    addresses.into_iter().filter_map(read).collect()
}

/// Writes what DHCP has given of a network that there is.
pub(crate) fn put(draft: &mut Draft<'_>, vni: &str, lease: &GivenLease6) {
    if !draft.demand(network::root(vni)) {
        return;
    }
    let GivenLease6 { address, client, mac, hostname, expiry } = lease.clone();
    let Ip6Client { duid, iaid } = client;
    let text = serde_json::to_string(&Written { duid, iaid, mac, hostname, expiry });
    let path = format!("{}/{address}", root(vni));
    draft.put_deep(path, text.expect("texts and a number are JSON"));
}

pub(crate) fn remove(draft: &mut Draft<'_>, vni: &str, address: Ipv6Addr) {
    draft.delete(&format!("{}/{address}", root(vni)));
}

/// Removes those of a network that goes.
pub(super) fn remove_all(draft: &mut Draft<'_>, vni: &str) {
    draft.delete(&root(vni));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::raw_of;

    #[test]
    fn what_nobody_understands_is_no_lease_and_takes_no_other_with_it() {
        let lease = r#"{"duid":"00:01","iaid":"7","expiry":5,"more":1}"#;
        let leases = [
            ("2001:db8::9", lease),
            ("junk", lease),
            ("2001:db8::a", ""),
            ("2001:db8::b", "{}"),
            ("2001:db8::c", r#"{"duid":"00:01","iaid":"7","expiry":"soon"}"#),
        ];
        let leases = leases.map(|(address, text)| (format!("{ROOT}/7/{address}"), text.to_owned()));
        let network = (network::root("7"), "web".to_owned());
        let found = read(&raw_of([network].into_iter().chain(leases.clone())), "7");
        let ip6 = Some(Ip6Client { duid: "00:01".into(), iaid: "7".into() });
        let (address, expiry) = ("2001:db8::9".into(), Some("5".into()));
        assert_eq!(found, [LeaseRecord { address, expiry, ip6, ..LeaseRecord::default() }]);
        assert_eq!(read(&raw_of(leases), "7"), [], "of a network that is gone");
    }
}
