//! A tree is dumped, restored and recovered.

use super::*;

#[tokio::test]
async fn a_backup_restores_into_an_empty_tree_to_the_letter() {
    let world = empty().await;
    let dump = Shape { seed: 3, nodes: 3, vms: 20, networks: 2, snapshots: 1 }.dump();
    world.store.restore(&dump).await.expect("a valid dump");
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
async fn a_restore_brings_back_orders_and_not_what_was_so_then() {
    let world = empty().await;
    let dump = Shape { seed: 3, nodes: 3, vms: 3, networks: 1, snapshots: 0 }.dump();
    world.store.restore(&dump).await.expect("a valid dump");
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
async fn a_tree_is_recovered_with_its_orders_and_without_what_was_so_then() {
    let world = empty().await;
    let mut dump = Shape { seed: 3, nodes: 1, vms: 3, networks: 1, snapshots: 1 }.dump();
    let (node, vm) = ("/nodes/pvchv1", "/domains/");
    dump.insert("/pvcrs/working_on/pvchv1".to_owned(), "then".to_owned());
    dump.insert("/tasks/1/progress".to_owned(), "half".to_owned());
    dump.insert("/config/primary_node".to_owned(), "pvchv1".to_owned());
    assert!(!dump[&format!("{node}/runningdomains")].is_empty(), "it would have said so");
    world.store.recover(dump.clone()).await.expect("a valid dump");
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
