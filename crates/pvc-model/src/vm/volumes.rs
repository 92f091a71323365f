//! Volumes that only one guest may use at a time, and who uses them: what every path that ends in a
//! start asks.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::moving::has_guest;
use super::{VmRecord, VmState};
use crate::NodeName;
use crate::Uuid;
use crate::cluster::Cluster;
use crate::node::{DaemonState, NodeRecord};
use crate::request::is_off;
use crate::storage::{SnapshotName, VolumeId};

/// The other VMs that use a volume that this one uses, each with the first such volume, where
/// neither says that it shares it (`<shareable/>`): of these and this one, one may run at a time.
pub fn rivals<'a>(
    cluster: &'a Cluster,
    vm: &VmRecord,
) -> impl Iterator<Item = (&'a VmRecord, &'a VolumeId)> {
    let own = vm.domain.iter().flat_map(|domain| domain.own_volumes().cloned()).collect();
    rivals_for(cluster, vm.uuid, own)
}

/// The same of a VM that uses, or is to use, the volumes `own` alone.
pub fn rivals_for(
    cluster: &Cluster,
    vm: Uuid,
    own: BTreeSet<VolumeId>,
) -> impl Iterator<Item = (&VmRecord, &VolumeId)> {
    let others = cluster.vms.values().filter(move |other| other.uuid != vm);
    others.filter_map(move |other| {
        let used = other.domain.as_ref().ok()?.own_volumes().find(|used| own.contains(*used))?;
        Some((&**other, used))
    })
}

/// The node that says it runs the VM and is not proven dead: its guest may be well.
pub fn runs_on(cluster: &Cluster, vm: Uuid) -> Option<&NodeName> {
    let runs = |node: &&Arc<NodeRecord>| node.running.contains(&vm) && !node.is_fenced();
    cluster.nodes.values().find(runs).map(|node| &node.name)
}

/// The node whose storage address this is, as the nodes of ours tell it. Of a node that is gone for
/// good the record may be there although another node has its address by now: so one that runs is
/// believed first, and one that was proven dead only if no other has it.
pub fn node_at<'a>(cluster: &'a Cluster, address: &str) -> Option<&'a Arc<NodeRecord>> {
    let is_at = |node: &&Arc<NodeRecord>| {
        node.daemon.as_ref().and_then(|note| note.storage_address.as_deref()) == Some(address)
    };
    cluster.nodes.values().filter(is_at).min_by_key(|node| match node.daemon_state {
        DaemonState::Run => 0,
        DaemonState::Fenced => 2,
        _ => 1,
    })
}

/// The VMs that other nodes are at starting, and that run nowhere as far as is known: each may wait
/// for a lock that a guest left on `here`.
pub fn started_elsewhere<'a>(
    cluster: &'a Cluster,
    here: &'a NodeName,
) -> impl Iterator<Item = Uuid> + 'a {
    let starts = move |vm: &&Arc<VmRecord>| {
        let node =
            vm.node.as_ref().filter(|node| *node != here).and_then(|node| cluster.nodes.get(node));
        vm.state == VmState::Start
            && node.is_some_and(|node| node.working_on.contains(&vm.uuid))
            && runs_on(cluster, vm.uuid).is_none()
    };
    cluster.vms.values().filter(starts).map(|vm| vm.uuid)
}

/// The VMs that may use the volume: whose definition names it, or beside whose definition it is
/// recorded.
pub fn users<'a>(cluster: &'a Cluster, volume: &'a VolumeId) -> impl Iterator<Item = &'a VmRecord> {
    users_where(cluster, move |used| used == volume).map(|(vm, _)| vm)
}

/// The VMs that may use volumes of which `is_meant` is true, each with the first of them.
pub fn users_where<'a>(
    cluster: &'a Cluster,
    is_meant: impl Fn(&VolumeId) -> bool + 'a,
) -> impl Iterator<Item = (&'a VmRecord, &'a VolumeId)> {
    cluster.vms.values().filter_map(move |vm| {
        let used = vm.named_volumes().find(|used| is_meant(used))?;
        Some((&**vm, used))
    })
}

/// Whether the VM is off for sure: nothing is to start it, and no node has a guest of it that may
/// be well.
pub fn is_at_rest(cluster: &Cluster, vm: &VmRecord) -> bool {
    let may_have = |node: &Arc<NodeRecord>| !node.is_fenced() && has_guest(cluster, node, vm.uuid);
    is_off(&vm.state) && !cluster.nodes.values().any(may_have)
}

/// The VM whose snapshot the snapshot `snapshot` of `volume` is part of, and the name of that one.
pub fn owner_of_snapshot<'a>(
    cluster: &'a Cluster,
    volume: &VolumeId,
    snapshot: &SnapshotName,
) -> Option<(&'a VmRecord, &'a str)> {
    let part = format!("{volume}@{snapshot}");
    cluster.vms.values().find_map(|vm| {
        let whole = vm.snapshots.iter().find(|whole| whole.volumes.contains(&part))?;
        Some((&**vm, whole.name.as_str()))
    })
}

/// The first VM with a snapshot that has a part in a volume of which `is_meant` is true: the VM,
/// its snapshot's name, and the volume.
pub fn part_of_snapshot(
    cluster: &Cluster,
    is_meant: impl Fn(&VolumeId) -> bool,
) -> Option<(&VmRecord, &str, VolumeId)> {
    let meant = |part: &String| {
        let (volume, _) = part.split_once('@')?;
        VolumeId::from_record(volume).filter(&is_meant)
    };
    cluster.vms.values().find_map(|vm| {
        let mut parts = vm.snapshots.iter().flat_map(|whole| {
            whole.volumes.iter().filter_map(|part| Some((whole.name.as_str(), meant(part)?)))
        });
        parts.next().map(|(whole, volume)| (&**vm, whole, volume))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Disk, DiskSource};
    use crate::node::DaemonNote;
    use crate::records;
    use crate::vm::VmSnapshot;

    fn volume(name: &str) -> VolumeId {
        VolumeId::parse(&format!("vms/{name}")).unwrap()
    }

    /// A started VM on `hv2` with these disks, of which those in brackets are shared.
    fn vm(number: u128, disks: &[&str]) -> VmRecord {
        let mut vm = records::vm(number, VmState::Start, Some("hv2"));
        let mut domain = records::domain(vm.uuid);
        let disk = |name: &&str| Disk {
            source: DiskSource::Volume(volume(name.trim_matches(['(', ')']))),
            target: "sda".to_owned(),
            bus: String::new(),
            device: "disk".to_owned(),
            shared: name.starts_with('('),
        };
        domain.disks = disks.iter().map(disk).collect();
        vm.domain = Ok(Arc::new(domain));
        vm
    }

    fn cluster<const N: usize>(nodes: [NodeRecord; N], vms: impl Into<Vec<VmRecord>>) -> Cluster {
        let nodes = nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect();
        let vms = vms.into().into_iter().map(|vm| (vm.uuid, Arc::new(vm))).collect();
        Cluster { nodes, vms, ..Cluster::default() }
    }

    #[test]
    fn rivals_are_the_others_that_use_a_volume_which_neither_shares() {
        let unreadable = || VmRecord { domain: Err("broken".to_owned()), ..vm(7, &[]) };
        let vms = vec![
            vm(1, &["a", "b", "(c)"]),
            vm(2, &["d", "b", "a"]),
            vm(3, &["(a)"]),
            vm(4, &["c"]),
            vm(5, &["d"]),
            vm(6, &[]),
            unreadable(),
        ];
        let cluster = cluster([], vms);
        for (number, expected) in [
            (1, vec![(2, "b")]),
            (2, vec![(1, "a"), (5, "d")]),
            (3, vec![]),
            (4, vec![]),
            (5, vec![(2, "d")]),
            (6, vec![]),
            (7, vec![]),
        ] {
            let vm = &cluster.vms[&Uuid::from_u128(number)];
            let found: Vec<_> =
                rivals(&cluster, vm).map(|(other, used)| (other.uuid, used.clone())).collect();
            let expected: Vec<_> = expected
                .into_iter()
                .map(|(other, used)| (Uuid::from_u128(other), volume(used)))
                .collect();
            assert_eq!(found, expected, "VM {number}");
        }
        // One that is not recorded yet has them as well.
        assert_eq!(rivals(&cluster, &vm(8, &["d"])).count(), 2);
    }

    #[test]
    fn the_users_of_a_volume_are_all_whose_records_name_it() {
        let recorded =
            VmRecord { recorded_volumes: vec![volume("a"), volume("e")], ..vm(3, &["f"]) };
        let unreadable = VmRecord {
            domain: Err("broken".to_owned()),
            recorded_volumes: vec![volume("b")],
            ..vm(4, &[])
        };
        let cluster = cluster([], vec![vm(1, &["a", "b"]), vm(2, &["(a)"]), recorded, unreadable]);
        for (name, expected) in
            [("a", vec![1, 2, 3]), ("b", vec![1, 4]), ("e", vec![3]), ("c", vec![])]
        {
            let id = volume(name);
            let found: Vec<_> = users(&cluster, &id).map(|vm| vm.uuid).collect();
            let expected: Vec<_> = expected.into_iter().map(Uuid::from_u128).collect();
            assert_eq!(found, expected, "{name}");
        }
        let of_pool: Vec<_> =
            users_where(&cluster, |used| used.pool.as_str() == "vms").map(|(_, id)| id).collect();
        assert_eq!(of_pool, [&volume("a"), &volume("a"), &volume("f"), &volume("b")]);
        assert_eq!(users_where(&cluster, |used| used.pool.as_str() == "ssd").count(), 0);
    }

    #[test]
    fn a_vm_is_at_rest_when_it_is_off_and_no_node_that_may_be_well_has_it() {
        use VmState::{Disable, Fail, Mirror, Shutdown, Start, Stop};
        let uuid = Uuid::from_u128(1);
        for (state, runs, works, daemon, expected) in [
            (Stop, false, false, DaemonState::Run, true),
            (Disable, false, false, DaemonState::Run, true),
            (Mirror, false, false, DaemonState::Run, true),
            (Stop, true, false, DaemonState::Run, false),
            (Stop, true, false, DaemonState::Dead, false),
            (Stop, true, false, DaemonState::Fenced, true),
            (Stop, false, true, DaemonState::Run, false),
            (Shutdown, false, false, DaemonState::Run, false),
            (Fail, false, false, DaemonState::Run, false),
            (Start, false, false, DaemonState::Fenced, false),
        ] {
            let listed = |is: bool| if is { vec![uuid] } else { vec![] };
            let node = NodeRecord {
                running: listed(runs),
                working_on: listed(works),
                daemon_state: daemon.clone(),
                ..records::node("hv2")
            };
            let vm = VmRecord { state: state.clone(), ..vm(1, &[]) };
            let cluster = cluster([node], [vm]);
            let case = format!("{state}, runs: {runs}, works: {works}, node {daemon:?}");
            assert_eq!(is_at_rest(&cluster, &cluster.vms[&uuid]), expected, "{case}");
        }
    }

    fn whole(name: &str, volumes: &[&str]) -> VmSnapshot {
        VmSnapshot {
            name: name.to_owned(),
            timestamp: "1".to_owned(),
            xml: Arc::from(""),
            volumes: volumes.iter().map(|volume| (*volume).to_owned()).collect(),
        }
    }

    #[test]
    fn a_snapshot_belongs_to_the_vm_whose_snapshot_names_it() {
        let snapshots = vec![whole("new", &["vms/a@new"]), whole("old", &["vms/b@x", "vms/a@x"])];
        let cluster = cluster([], [vm(1, &[]), VmRecord { snapshots, ..vm(2, &[]) }]);
        for (name, snapshot, expected) in [
            ("a", "x", Some("old")),
            ("a", "new", Some("new")),
            ("b", "x", Some("old")),
            ("b", "new", None),
            ("c", "x", None),
        ] {
            let owner = owner_of_snapshot(&cluster, &volume(name), &SnapshotName::new(snapshot));
            let found = owner.map(|(vm, whole)| (vm.uuid, whole));
            let expected = expected.map(|whole| (Uuid::from_u128(2), whole));
            assert_eq!(found, expected, "{name}@{snapshot}");
        }
    }

    #[test]
    fn the_first_snapshot_with_a_part_in_a_volume_is_found_and_an_odd_part_is_none() {
        let snapshots = vec![
            whole("odd", &["vms/a", "a@odd"]),
            whole("new", &["vms/b@new"]),
            whole("old", &["vms/b@old", "vms/c@old"]),
        ];
        let cluster = cluster([], [vm(1, &["a"]), VmRecord { snapshots, ..vm(2, &[]) }]);
        for (names, expected) in [
            (&["a"][..], None),
            (&["b"], Some(("new", "b"))),
            (&["c"], Some(("old", "c"))),
            (&["c", "b"], Some(("new", "b"))),
            (&[], None),
        ] {
            let is_meant = |id: &VolumeId| names.iter().any(|name| *id == volume(name));
            let found = part_of_snapshot(&cluster, is_meant);
            let found = found.map(|(vm, whole, part)| (vm.uuid, whole, part));
            let expected = expected.map(|(whole, part)| (Uuid::from_u128(2), whole, volume(part)));
            assert_eq!(found, expected, "{names:?}");
        }
    }

    #[test]
    fn a_vm_runs_where_a_node_says_so_that_is_not_proven_dead() {
        let vm = Uuid::from_u128(1);
        for (state, expected) in [
            (DaemonState::Run, true),
            (DaemonState::Dead, true),
            (DaemonState::Stop, true),
            (DaemonState::Fenced, false),
        ] {
            let here = NodeRecord { daemon_state: state.clone(), ..records::node("hv1") };
            let lists = NodeRecord { running: vec![vm], ..here.clone() };
            let starts = NodeRecord { working_on: vec![vm], ..here };
            let found = |node| runs_on(&cluster([records::node("hv2"), node], []), vm).cloned();
            assert_eq!(found(lists), expected.then(|| "hv1".into()), "{state:?}");
            assert_eq!(found(starts), None, "{state:?}");
        }
    }

    #[test]
    fn a_node_is_found_by_the_address_that_it_tells() {
        let note = |address: &str| DaemonNote {
            storage_address: Some(address.to_owned()),
            ..DaemonNote::default()
        };
        let announced =
            |name, address| NodeRecord { daemon: Some(note(address)), ..records::node(name) };
        let silent = NodeRecord { daemon: Some(DaemonNote::default()), ..records::node("hv3") };
        let nodes = [
            announced("hv1", "10.0.1.1"),
            announced("hv2", "10.0.1.2"),
            silent,
            records::node("hv4"),
        ];
        let cluster = cluster(nodes, []);
        let found = |address| node_at(&cluster, address).map(|node| node.name.to_string());
        assert_eq!(found("10.0.1.1").as_deref(), Some("hv1"));
        assert_eq!(found("10.0.1.2").as_deref(), Some("hv2"));
        assert_eq!(found("10.0.1.3"), None);
    }

    #[test]
    fn of_nodes_with_one_address_one_that_runs_is_believed_first_and_a_dead_one_last() {
        use DaemonState::{Dead, Fenced, Run, Stop};
        let at = |name: &str, state: &DaemonState| NodeRecord {
            daemon: Some(DaemonNote {
                storage_address: Some("10.0.1.1".to_owned()),
                ..DaemonNote::default()
            }),
            daemon_state: state.clone(),
            ..records::node(name)
        };
        for (first, second, expected) in [
            (Fenced, Run, "hv5"),
            (Run, Fenced, "hv2"),
            (Fenced, Dead, "hv5"),
            (Stop, Run, "hv5"),
            (Stop, Dead, "hv2"),
            (Fenced, Fenced, "hv2"),
        ] {
            let cluster = cluster([at("hv2", &first), at("hv5", &second)], []);
            let found = node_at(&cluster, "10.0.1.1").map(|node| node.name.to_string());
            assert_eq!(found.as_deref(), Some(expected), "{first:?} {second:?}");
        }
    }

    #[test]
    fn a_vm_is_started_elsewhere_while_its_own_other_node_works_on_it_and_it_runs_nowhere() {
        use VmState::{Migrate, Start, Stop};
        let uuid = Uuid::from_u128(1);
        for (state, node, works, runs, expected) in [
            (Start, "hv2", "hv2", "", true),
            (Start, "hv1", "hv1", "", false),
            (Start, "hv2", "hv3", "", false),
            (Start, "hv2", "", "", false),
            (Start, "hv9", "hv2", "", false),
            (Start, "hv2", "hv2", "hv1", false),
            (Start, "hv2", "hv2", "hv2", false),
            (Stop, "hv2", "hv2", "", false),
            (Migrate, "hv2", "hv2", "", false),
        ] {
            let listed = |name: &str, by: &str| if name == by { vec![uuid] } else { vec![] };
            let nodes = ["hv1", "hv2", "hv3"].map(|name| NodeRecord {
                working_on: listed(name, works),
                running: listed(name, runs),
                ..records::node(name)
            });
            let vm = VmRecord { state: state.clone(), node: Some(node.into()), ..vm(1, &[]) };
            let cluster = cluster(nodes, [vm]);
            let found: Vec<_> = started_elsewhere(&cluster, &"hv1".into()).collect();
            let case = format!("{state} on {node}, which {works} works on and {runs} runs");
            assert_eq!(found, Vec::from_iter(expected.then_some(uuid)), "{case}");
        }
        let nowhere = VmRecord { node: None, ..vm(1, &[]) };
        let hv2 = NodeRecord { working_on: vec![uuid], ..records::node("hv2") };
        let cluster = cluster([hv2], [nowhere]);
        assert_eq!(started_elsewhere(&cluster, &"hv1".into()).count(), 0);
    }
}
