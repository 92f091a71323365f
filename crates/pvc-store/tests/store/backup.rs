//! A tree is dumped, loaded and restored.

use super::*;

#[tokio::test]
async fn a_dump_is_loaded_into_an_empty_tree_to_the_letter() {
    let world = empty().await;
    let mut dump = Shape { seed: 3, nodes: 3, vms: 20, networks: 2, snapshots: 1 }.dump();
    dump.insert("/tasks/00000001".to_owned(), "{}".to_owned());
    world.store.load(&dump).await.expect("a valid dump");
    let view = world.store.view();
    assert_eq!(
        (view.vms.len(), view.nodes.len(), view.networks.len(), view.volumes.len()),
        (20, 3, 2, 20)
    );
    assert!(
        view.vms
            .values()
            .all(|vm| vm.defects.is_empty() && vm.domain.is_ok() && vm.snapshots.len() == 1)
    );
    let mut backup = world.other.backup(true).await.expect("readable");
    backup.remove("/");
    assert_eq!(backup, dump);
}

#[tokio::test]
async fn a_tree_that_holds_no_cluster_has_no_backup() {
    let world = empty().await;
    let refused = world.store.backup(true).await;
    assert!(matches!(refused, Err(StoreError::NotInitialized)), "{refused:?}");
    world.other.initialize(false).await.expect("an empty tree can be initialized");
    assert!(world.store.backup(true).await.expect("readable").contains_key("/schema/version"));
}

#[tokio::test]
async fn a_restore_brings_back_orders_and_not_what_was_so_then() {
    let world = empty().await;
    let dump = Shape { seed: 3, nodes: 3, vms: 3, networks: 1, snapshots: 0 }.dump();
    world.store.load(&dump).await.expect("a valid dump");
    let (node, vm) = {
        let view = world.store.view();
        (
            view.nodes.keys().next().expect("there are nodes").clone(),
            *view.vms.keys().next().expect("and VMs"),
        )
    };
    let now = [
        (format!("/nodes/{node}/daemonstate"), "dead"),
        (format!("/nodes/{node}/runningdomains"), ""),
        (format!("/pvcrs/working_on/{node}"), "now"),
        ("/config/primary_node".to_owned(), "none"),
    ];
    write_raw(&world, &now[2].0, b"now").await;
    for (path, value) in &now {
        write_raw(&world, path, value.as_bytes()).await;
    }
    write_raw(&world, &format!("/domains/{vm}/profile"), b"changed since").await;
    let mut dump = dump;
    dump.insert(now[2].0.clone(), "then".to_owned());
    world.store.restore(&dump).await.expect("a valid dump");
    for (path, value) in &now {
        assert_eq!(raw(&world, path).await.as_deref(), Some(*value), "{path}");
    }
    assert_eq!(
        raw(&world, &format!("/domains/{vm}/profile")).await.as_ref(),
        dump.get(&format!("/domains/{vm}/profile"))
    );
}

#[tokio::test]
async fn an_empty_tree_gets_the_orders_and_whole_records_without_what_was_so_then() {
    let world = empty().await;
    let mut dump = Shape { seed: 3, nodes: 1, vms: 3, networks: 1, snapshots: 1 }.dump();
    let (node, vm) = ("/nodes/pvchv1", "/domains/");
    dump.insert("/pvcrs/working_on/pvchv1".to_owned(), "then".to_owned());
    dump.insert("/tasks/1/progress".to_owned(), "half".to_owned());
    dump.insert("/config/primary_node".to_owned(), "pvchv1".to_owned());
    assert!(!dump[&format!("{node}/runningdomains")].is_empty(), "it would have said so");
    world.store.restore(&dump).await.expect("a valid dump");
    let recovered = world.other.backup(true).await.expect("readable");
    for key in ["daemonstate", "runningdomains", "keepalive", "memfree"] {
        assert_eq!(recovered[&format!("{node}/{key}")], "", "{key}");
    }
    assert_eq!(recovered["/config/primary_node"], "");
    assert!(
        !recovered
            .keys()
            .any(|key| key.starts_with("/tasks/1") || key.ends_with("working_on/pvchv1"))
    );
    let orders = |of: &BTreeMap<String, String>| -> BTreeMap<String, String> {
        let ends = ["/xml", "/state", "/node", "/tags", "/profile", "/domainstate"];
        let is_order =
            |key: &String| key.starts_with(vm) && ends.iter().any(|end| key.ends_with(end));
        of.iter()
            .filter(|(key, _)| is_order(key))
            .map(|(key, text)| (key.clone(), text.clone()))
            .collect()
    };
    assert_eq!(orders(&recovered), orders(&dump));
    let view = world.other.fresh().await.expect("readable");
    assert!(
        view.vms.len() == 3
            && view.vms.values().all(|vm| vm.domain.is_ok() && vm.snapshots.len() == 1)
    );
    assert_eq!(view.config.primary, None);
    // A node's daemon stamps, and PVC 1.0.3 reads, what is there.
    let mut expected: BTreeSet<&String> = dump.keys().collect();
    expected.retain(|key| !key.starts_with("/tasks/") && !key.starts_with("/pvcrs/working_on/"));
    let mut found: BTreeSet<&String> = recovered.keys().collect();
    found.retain(|key| *key != "/");
    assert_eq!(found, expected);
}

/// Records that a task, a rollback, a move, an unconfirmed change and a fault leave in a dump.
fn under_way(vm: Uuid) -> BTreeMap<String, String> {
    let vm_note = |of: &str| format!("/pvcrs/{of}/{vm}");
    let own = |(path, text): (&str, &str)| (path.to_owned(), text.to_owned());
    let fixed = [
        ("/tasks/00000001", r#"{"name":"provisioner.create","node":"pvchv1","run_on":"pvchv1"}"#),
        ("/tasks/00000001/progress", r#"{"state":"running"}"#),
        ("/tasks/00000001/secrets", "{}"),
        ("/tasks/00000001/cancel", ""),
        ("/pvcrs/holds/vms:vm00000_sda", r#"{"by":"x","roll_back":"s1"}"#),
        ("/pvcrs/unconfirmed/1000", r#"{"seconds":60,"undo":{"remove_rule":"ssh"}}"#),
        ("/pvcrs/working_on/pvchv1", "then"),
        ("/pvcrs/fences/pvchv1", "{}"),
        ("/pvcrs/renamings", ""),
        ("/pvcrs/of_tomorrow", "then"),
        ("/faults/x", ""),
        ("/faults/x/status", "new"),
    ];
    let of_vm = [(vm_note("moves"), "{}".to_owned()), (vm_note("renamings"), "{}".to_owned())];
    fixed.map(own).into_iter().chain(of_vm).collect()
}

#[tokio::test]
async fn what_was_under_way_does_not_come_back_whether_the_tree_is_empty_or_not() {
    for is_empty in [false, true] {
        let world = empty().await;
        let mut dump = Shape { seed: 3, nodes: 1, vms: 3, networks: 1, snapshots: 0 }.dump();
        if !is_empty {
            world.store.load(&dump).await.expect("a valid dump");
        }
        let uuid = |key: &String| Uuid::try_parse(key.strip_prefix("/domains/")?).ok();
        let under_way = under_way(dump.keys().find_map(uuid).expect("there are VMs"));
        dump.extend(under_way.clone());
        let restored = world.store.restore(&dump).await.expect("a valid dump");
        assert!(restored.keys < dump.len() && restored.disabled.is_empty(), "{restored:?}");
        let found = world.other.backup(true).await.expect("readable");
        for path in under_way.keys() {
            assert!(!found.contains_key(path), "{path}");
        }
        for path in ["/tasks", "/faults", "/pvcrs/holds", "/pvcrs/moves", "/pvcrs/unconfirmed"] {
            assert!(found.contains_key(path), "{path}");
        }
        let view = world.other.fresh().await.expect("readable");
        assert!(view.jobs.is_empty() && view.holds.is_empty() && view.unconfirmed.is_empty());
        assert_eq!((view.vms.len(), view.faults.len()), (3, 0));
    }
}

#[tokio::test]
async fn a_vm_comes_back_in_a_state_that_ends_without_the_task_that_it_was_of() {
    let world = empty().await;
    let cases = [
        ("provision", "disable"),
        ("import", "disable"),
        ("restore", "disable"),
        ("delete", "disable"),
        ("migrate", "start"),
        ("migrate-live", "start"),
        ("unmigrate", "start"),
        ("restart", "start"),
        ("shutdown", "shutdown"),
        ("stop", "stop"),
        ("mirror", "mirror"),
        ("odd", "odd"),
    ];
    let mut dump = Shape { vms: cases.len(), ..Shape::with_vms(0) }.dump();
    let is_state = |key: &&String| key.starts_with("/domains/") && key.ends_with("/state");
    let paths: Vec<String> = dump.keys().filter(is_state).cloned().collect();
    assert_eq!(paths.len(), cases.len());
    for (path, (then, _)) in paths.iter().zip(cases) {
        dump.insert(path.clone(), then.to_owned());
    }
    let autostart = paths[0].replace("/state", "/node_autostart");
    dump.insert(autostart.clone(), "True".to_owned());
    let name = |path: &String| dump[path.trim_end_matches("/state")].clone();
    let names: Vec<String> = paths.iter().take(4).map(name).collect();
    let tried = world.store.dry().restore(&dump).await.expect("a valid dump");
    assert_eq!((&tried.disabled, raw(&world, "/config").await), (&names, None));
    let restored = world.store.restore(&dump).await.expect("a valid dump");
    assert_eq!((restored.keys, &restored.disabled), (tried.keys, &names));
    for (path, (then, expected)) in paths.iter().zip(cases) {
        assert_eq!(raw(&world, path).await.as_deref(), Some(expected), "{then}");
    }
    assert_eq!(raw(&world, &autostart).await.as_deref(), Some("False"), "no node starts it");
    // Whoever has brought it into that state since may be at it.
    write_raw(&world, &paths[0], b"provision").await;
    let restored = world.store.restore(&dump).await.expect("a valid dump");
    assert_eq!(restored.disabled, names[1..]);
    assert_eq!(raw(&world, &paths[0]).await.as_deref(), Some("provision"));
}

#[tokio::test]
async fn a_node_comes_back_in_a_state_that_ends_without_whoever_was_at_it_then() {
    let dump = Shape { nodes: 1, ..Shape::with_vms(0) }.dump();
    let (daemon, domain) = ("/nodes/pvchv1/daemonstate", "/nodes/pvchv1/domainstate");
    for (then, now, expected) in [
        // ZooKeeper came back empty.
        ("fence-flush", None, "flushed"),
        ("flush", None, "flushed"),
        ("unflush", None, "ready"),
        ("ready", None, "ready"),
        ("odd", None, "odd"),
        // The node has been switched on since.
        ("fence-flush", Some(("run", "ready")), "flushed"),
        ("flushed", Some(("run", "ready")), "flushed"),
        // It is being flushed at the moment.
        ("flush", Some(("run", "flush")), "flush"),
        // It is being recovered.
        ("ready", Some(("fenced", "fence-flush")), "fence-flush"),
        ("flush", Some(("fenced", "fence-flush")), "fence-flush"),
        // It was recovered.
        ("ready", Some(("fenced", "flushed")), "ready"),
    ] {
        let world = empty().await;
        if let Some((is, takes)) = now {
            world.store.load(&dump).await.expect("a valid dump");
            write_raw(&world, daemon, is.as_bytes()).await;
            write_raw(&world, domain, takes.as_bytes()).await;
        }
        let mut dump = dump.clone();
        dump.insert(domain.to_owned(), then.to_owned());
        world.store.restore(&dump).await.expect("a valid dump");
        assert_eq!(raw(&world, domain).await.as_deref(), Some(expected), "{then} {now:?}");
    }
}

/// Keys of a network with a reservation and a lease of each family, in the order of their paths.
fn dhcp(address: &str, expiry: &str) -> Vec<(String, String)> {
    let (network, mac) = ("/networks/1000", "52:54:00:00:00:01");
    let (lease, reservation) =
        (format!("{network}/dhcp4_leases/{mac}"), format!("{network}/dhcp4_reservations/{mac}"));
    let of_6 = "/pvcrs/dhcp6_leases/1000";
    let json = format!(r#"{{"duid":"00:01","iaid":"7","expiry":{expiry}}}"#);
    vec![
        (lease.clone(), String::new()),
        (format!("{lease}/clientid"), "*".to_owned()),
        (format!("{lease}/expiry"), expiry.to_owned()),
        (format!("{lease}/hostname"), "web1".to_owned()),
        (format!("{lease}/ipaddr"), address.to_owned()),
        (reservation.clone(), "static".to_owned()),
        (format!("{reservation}/hostname"), String::new()),
        (format!("{reservation}/ipaddr"), address.to_owned()),
        (of_6.to_owned(), String::new()),
        (format!("{of_6}/2001:db8::9"), json),
    ]
}

#[tokio::test]
async fn leases_of_now_stay_and_those_of_then_come_back_where_there_are_none() {
    let plain = Shape { seed: 3, nodes: 1, vms: 1, networks: 1, snapshots: 0 }.dump();
    let with = |keys: Vec<(String, String)>| {
        let mut dump = plain.clone();
        dump.extend(keys);
        dump
    };
    // A guest had an address then that another has now.
    let then: Vec<_> = dhcp("10.0.0.5", "5")
        .into_iter()
        .map(|(path, text)| (path.replace("00:01", "00:02").replace("::9", "::8"), text))
        .collect();
    let now = dhcp("10.0.0.5", "9");
    let is_reservation = |path: &String| path.contains("reservations");
    // What an interrupted restore has left: all but the last keys of both families.
    let is_begun = |path: &String| !path.ends_with("/ipaddr") && !path.ends_with("::8");
    let begun: Vec<_> = then.iter().filter(|(path, _)| is_begun(path)).cloned().collect();
    for (before, is_of_now) in [
        (None, false),
        (Some(with(Vec::new())), false),
        (Some(with(begun)), false),
        (Some(with(now.clone())), true),
    ] {
        let world = empty().await;
        if let Some(before) = &before {
            world.store.load(before).await.expect("a valid dump");
        }
        world.store.restore(&with(then.clone())).await.expect("a valid dump");
        for (path, text) in &then {
            let is_of_both = now.iter().any(|(other, _)| other == path);
            let comes_back = !is_of_now || is_reservation(path) || is_of_both;
            assert_eq!(raw(&world, path).await.as_ref(), comes_back.then_some(text), "{path}");
        }
        for (path, text) in now.iter().filter(|(path, _)| is_of_now && !is_reservation(path)) {
            assert_eq!(raw(&world, path).await.as_ref(), Some(text), "{path}");
        }
        let view = world.other.fresh().await.expect("readable");
        let leases = &view.networks.get("1000").expect("restored").leases;
        let given = leases.iter().filter(|lease| lease.expiry.is_some()).count();
        let reserved = if is_of_now { 2 } else { 1 };
        assert_eq!((given, leases.len() - given), (2, reserved), "{leases:?}");
    }
}

#[tokio::test]
async fn a_restore_says_that_the_cluster_is_in_maintenance_then() {
    let world = empty().await;
    let mut dump = Shape::with_vms(0).dump();
    for (then, expected) in [("true", true), ("false", false), ("", false), ("True", true)] {
        dump.insert("/config/maintenance".to_owned(), then.to_owned());
        let restored = world.store.restore(&dump).await.expect("a valid dump");
        assert_eq!(restored.maintenance, expected, "{then}");
        let view = world.other.fresh().await.expect("readable");
        assert_eq!(view.config.maintenance, expected, "{then}");
    }
    // Of a dump that says nothing of it.
    dump.remove("/config/maintenance");
    let restored = world.store.restore(&dump).await.expect("a valid dump");
    assert!(restored.maintenance, "as before");
}

#[tokio::test]
async fn a_dump_that_does_not_fit_is_refused_before_anything_is_written() {
    let world = empty().await;
    let good: BTreeMap<String, String> = Shape::with_vms(1).dump();
    let with = |key: &str, value: &str| {
        let mut dump = good.clone();
        dump.insert(key.to_owned(), value.to_owned());
        dump
    };
    let refused = world.store.restore(&with("/schema/version", "14")).await;
    assert!(matches!(refused, Err(RestoreError::Schema { .. })));
    for key in ["no-slash", "/a//b", "/a/../b", "/zookeeper/quota", "/a/"] {
        assert!(
            matches!(world.store.restore(&with(key, "x")).await, Err(RestoreError::BadKey { .. })),
            "{key}"
        );
    }
    assert!(!world.store.fresh().await.is_ok_and(|view| view.config.schema.is_some()));
}

#[tokio::test]
async fn a_tree_larger_than_one_request_is_restored_in_parts() {
    let world = empty().await;
    let dump = Shape { seed: 5, nodes: 3, vms: 1500, networks: 1, snapshots: 0 }.dump();
    let bytes: usize = dump.iter().map(|(key, value)| key.len() + value.len()).sum();
    assert!(bytes > 2 << 20, "{bytes}");
    world.store.restore(&dump).await.expect("a valid dump");
    assert_eq!(world.other.fresh().await.expect("readable").vms.len(), 1500);
}
