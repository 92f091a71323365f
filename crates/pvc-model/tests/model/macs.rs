//! Two VMs of one network do not share a MAC address.

use std::sync::Arc;

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::domain::{Nic, NicKind};
use pvc_model::guest_network::Vni;
use pvc_model::guest_network::mac::{cards, check_macs, free_mac, is_plugged_in};
use pvc_model::vm::VmState;

use crate::records::vm;

const MAC: &str = "52:54:00:aa:bb:cc";

fn nic(kind: NicKind, mac: &str) -> Nic {
    Nic {
        kind,
        mac: mac.to_owned(),
        model: "virtio".to_owned(),
        target: None,
        is_exclusive: false,
        has_vlan: false,
    }
}

fn card(bridge: &str, mac: &str) -> Nic {
    nic(NicKind::Bridge(bridge.to_owned()), mac)
}

/// A cluster of VMs, from number 1 on, with a card each.
fn cluster<const N: usize>(vms: [(VmState, Nic); N]) -> Cluster {
    let mut cluster = Cluster::default();
    for (number, (state, nic)) in (1..).zip(vms) {
        let mut record = vm(number, state, Some("hv1"));
        let mut domain = record.domain.as_deref().unwrap().clone();
        domain.nics.push(nic);
        record.domain = Ok(Arc::new(domain));
        cluster.vms.insert(record.uuid, Arc::new(record));
    }
    cluster
}

#[test]
fn a_card_is_refused_with_the_address_of_another_vm_of_its_network() {
    let one = cluster([(VmState::Stop, card("vmbr1001", MAC))]);
    let (own, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let taken = [card("vmbr1001", MAC)];
    let refusal = check_macs(&one, other, &[], &taken).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "VM `vm1` has MAC address `52:54:00:aa:bb:cc` in network `1001`, too"
    );
    let upper = [card("br1001", &MAC.to_uppercase())];
    assert_eq!(check_macs(&one, other, &[], &upper), Err(refusal), "the same, written differently");
    assert_eq!(check_macs(&one, own, &[], &taken), Ok(()), "it is its own");
    assert_eq!(check_macs(&one, other, &taken, &taken), Ok(()), "it had it before");
    for free in [
        card("vmbr1001", "52:54:00:aa:bb:cd"),
        card("vmbr1002", MAC),
        // One is drawn at each start.
        card("vmbr1001", ""),
        nic(NicKind::Direct("ens1f0v1".to_owned()), MAC),
    ] {
        assert_eq!(check_macs(&one, other, &[], std::slice::from_ref(&free)), Ok(()), "{free:?}");
    }
    let mirror = cluster([(VmState::Mirror, card("vmbr1001", MAC))]);
    assert_eq!(check_macs(&mirror, other, &[], &taken), Ok(()), "a mirror does not run");
    let nameless = cluster([(VmState::Start, card("vmbr1001", ""))]);
    assert_eq!(check_macs(&nameless, other, &[], &[card("vmbr1001", "")]), Ok(()));
}

#[test]
fn a_drawn_address_that_is_taken_is_drawn_again() {
    // 52:54:00:10:10:10 and what follows it.
    let taken = cluster([
        (VmState::Stop, card("vmbr1001", "52:54:00:10:10:10")),
        (VmState::Mirror, card("vmbr1002", "52:54:00:10:10:11")),
        (VmState::Stop, nic(NicKind::Direct("ens1f0v1".to_owned()), "52:54:00:10:10:12")),
    ]);
    let beside = [card("vmbr1001", "52:54:00:10:10:13")];
    let mut next = 0..;
    let drawn = free_mac(&taken, &beside, || [0, 0, next.next().unwrap()]);
    assert_eq!(drawn, "52:54:00:10:10:14");
    let stuck = free_mac(&taken, &beside, || [0; 3]);
    assert_eq!(stuck, "52:54:00:10:10:10", "drawn a bounded number of times, and refused then");
}

#[test]
fn a_card_is_plugged_in_if_its_network_or_its_address_is_another() {
    let before = [card("vmbr1001", MAC), nic(NicKind::Direct("ens1f0v1".to_owned()), MAC)];
    assert!(!is_plugged_in(&before, &before));
    assert!(!is_plugged_in(&before, &[]));
    assert!(!is_plugged_in(&[], &before[1..]));
    for after in [card("vmbr1002", MAC), card("vmbr1001", ""), card("vmbr1001", "52:54:00:0:0:1")] {
        assert!(is_plugged_in(&before, &[after]));
    }
}

#[test]
fn the_cards_of_a_network_are_those_of_vms_that_may_run() {
    let found = cards(&cluster([
        (VmState::Stop, card("vmbr1001", MAC)),
        (VmState::Start, card("vmbr1001", "52:54:00:AA:BB:CD")),
        (VmState::Start, card("vmbr1002", "52:54:00:aa:bb:ce")),
        (VmState::Mirror, card("vmbr1001", "52:54:00:aa:bb:cf")),
        (VmState::Start, card("brcluster", "52:54:00:aa:bb:d0")),
        (VmState::Start, card("vmbr1001", "")),
        (VmState::Start, nic(NicKind::Direct("ens1f0v1".to_owned()), MAC)),
    ]));
    let of = |vni: u32| found[&Vni::new(vni).unwrap()].iter().map(|mac| mac[5]).collect::<Vec<_>>();
    assert_eq!((found.len(), of(1001), of(1002)), (2, vec![0xcc, 0xcd], vec![0xce]));
}
