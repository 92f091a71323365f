//! Locks are known by the addresses of their nodes.

use super::*;
use crate::storage::VolumeId;
use crate::vm::locks::{Breaker, Verdict, may_break};

fn tells(cluster: &mut Cluster, name: &str, address: &str) {
    let storage_address = Some(address.to_owned());
    Arc::make_mut(cluster.nodes.get_mut(name).unwrap()).daemon =
        Some(DaemonNote { storage_address, ..DaemonNote::default() });
}

fn is_of_the_dead(cluster: &Cluster, address: &str) -> bool {
    let victim = cluster.node("dead").unwrap();
    let volume = VolumeId::parse("vms/vm1_sda").unwrap();
    let by = Breaker::Fencer { vm: Uuid::from_u128(1), volume: &volume, victim };
    may_break(cluster, address, &by) == Verdict::Break
}

#[test]
fn a_lock_is_known_by_the_storage_address_of_its_node() {
    let mut cluster = with_vms([vm(1, VmState::Start, "dead", 100)]);
    tells(&mut cluster, "hv1", "10.0.1.1");
    assert!(!is_of_the_dead(&cluster, "10.0.1.1"), "a living node has it");
    assert!(is_of_the_dead(&cluster, "10.0.1.9"), "nobody else is known to have it");
    tells(&mut cluster, "dead", "10.0.1.3");
    assert!(is_of_the_dead(&cluster, "10.0.1.3"));
    assert!(!is_of_the_dead(&cluster, "10.0.1.9"));
    Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).daemon_state = DaemonState::Fenced;
    assert!(is_of_the_dead(&cluster, "10.0.1.1"), "of two dead nodes, either one's");
}

#[test]
fn a_lock_from_an_unknown_address_may_be_that_of_another_legacy_peer_that_may_have_the_vm() {
    use VmState::{Migrate, Start};
    // Neither `dead` nor hv2 has told its address; hv1 has.
    for (state, node, last, listed_by, expected) in [
        (Start, "dead", None, None, true),
        (Start, "dead", Some("hv2"), None, true),
        (Start, "dead", None, Some("hv1"), true),
        (Start, "dead", None, Some("hv2"), false),
        (Start, "hv2", None, Some("dead"), false),
        (Start, "hv1", None, Some("dead"), true),
        // On its way: whoever sends it, or may just have got it, has it.
        (Migrate, "dead", None, Some("hv2"), false),
        (Migrate, "dead", Some("hv2"), None, false),
        (Migrate, "hv2", Some("dead"), Some("dead"), false),
        (Migrate, "hv1", Some("dead"), Some("dead"), true),
        (Migrate, "dead", Some("hv1"), Some("hv1"), true),
    ] {
        let last_node = last.map(NodeName::new);
        let mut cluster = with_vms([VmRecord { last_node, ..vm(1, state.clone(), node, 100) }]);
        tells(&mut cluster, "hv1", "10.0.1.1");
        if let Some(lister) = listed_by {
            Arc::make_mut(cluster.nodes.get_mut(lister).unwrap()).running.push(Uuid::from_u128(1));
        }
        let case = format!("{state}@{node} last {last:?} listed by {listed_by:?}");
        assert_eq!(is_of_the_dead(&cluster, "10.0.1.9"), expected, "{case}");
        assert!(!is_of_the_dead(&cluster, "10.0.1.1"), "{case}");
        Arc::make_mut(cluster.nodes.get_mut("hv2").unwrap()).daemon_state = DaemonState::Fenced;
        assert!(is_of_the_dead(&cluster, "10.0.1.9"), "{case}: one of two dead nodes has it");
    }
}
