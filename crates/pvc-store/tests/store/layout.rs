//! A cluster is made, wiped and upgraded; keys that are missing are made.

use super::*;

#[tokio::test]
async fn a_new_cluster_is_seen_at_once_and_made_only_once() {
    let world = empty().await;
    assert!(!world.store.is_initialized());
    world.store.initialize(false).await.expect("an empty tree");
    assert_eq!(world.store.view().config.schema, Some(15));
    assert!(matches!(world.store.initialize(false).await, Err(StoreError::AlreadyInitialized)));
    assert!(matches!(world.other.initialize(false).await, Err(StoreError::AlreadyInitialized)));
}

#[tokio::test]
async fn initializing_over_a_cluster_leaves_nothing_of_it_and_everything_of_other_programs() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    write_raw(&world, "/patroni", b"keep").await;
    world.store.initialize(true).await.expect("told to");
    assert!(world.store.view().vms.is_empty());
    assert_eq!(raw(&world, "/patroni").await.as_deref(), Some("keep"));
    assert_eq!(raw(&world, &format!("/domains/{UUID}")).await, None);
}

#[tokio::test]
async fn what_a_wipe_that_stopped_half_way_left_is_no_part_of_a_new_cluster() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    let begun = ["/schema/version", "/config/primary_node/sync_lock", "/config/primary_node"];
    let deletes = begun.map(|path| Op::Delete { path: path.to_owned(), version: None });
    world.tree.connect().multi(deletes.to_vec()).await.expect("they are there");
    assert!(matches!(world.store.initialize(false).await, Err(StoreError::Remains)));
    assert_eq!(raw(&world, "/schema/version").await, None);
    world.store.initialize(true).await.expect("told to");
    assert!(world.store.view().vms.is_empty());
    assert_eq!(world.store.view().config.schema, Some(15));
}

#[tokio::test]
async fn a_key_that_an_older_layout_lacks_is_made_by_whoever_rests_on_it() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    let limit = format!("/domains/{UUID}/node_limit");
    world
        .tree
        .connect()
        .multi(vec![Op::Delete { path: limit.clone(), version: None }])
        .await
        .expect("writable");
    world.store.fresh().await.expect("readable");
    change(&world.store, |changes| {
        changes.expect(Expect::VmNodeLimit(UUID)).vm(UUID, VmChange::Autostart(false));
    })
    .await;
    assert_eq!(raw(&world, &limit).await.as_deref(), Some(""));
}

#[tokio::test]
async fn missing_keys_are_filled_in_and_present_ones_left_alone() {
    let world = cluster().await;
    write_raw(&world, "/nodes/old", b"hypervisor").await;
    write_raw(&world, &format!("/domains/{UUID}"), b"web1").await;
    write_raw(&world, &format!("/domains/{UUID}/state"), b"start").await;
    assert!(world.store.repair().await.expect("writable") > 40);
    assert_eq!(
        raw(&world, &format!("/domains/{UUID}/migration_max_downtime")).await.as_deref(),
        Some("300")
    );
    assert_eq!(raw(&world, &format!("/domains/{UUID}/state")).await.as_deref(), Some("start"));
    assert_eq!(world.store.repair().await.expect("writable"), 0);
}

#[tokio::test]
async fn what_is_noted_about_moves_of_vms_that_are_gone_is_removed_and_not_written() {
    let world = cluster().await;
    world.store.repair().await.expect("writable");
    let note = |vm: Uuid| format!("/pvcrs/moves/{vm}");
    let (here, gone) = (UUID, Uuid::from_u128(7));
    const NOTE: &str = "{\"from\":\"pvchv1\",\"to\":\"pvchv2\",\"phase\":\"copying\"}";
    define(&world.store, new_vm("web1", here)).await;
    for path in [note(here), note(gone), "/pvcrs/moves/of-tomorrow".to_owned()] {
        write_raw(&world, &path, NOTE.as_bytes()).await;
    }
    world.store.fresh().await.expect("readable");
    assert_eq!(world.store.remove_lost_move_notes().await.expect("writable"), 1);
    assert_eq!(raw(&world, &note(gone)).await, None);
    assert!(raw(&world, &note(here)).await.is_some(), "the last move of a VM that is there");
    assert!(raw(&world, "/pvcrs/moves/of-tomorrow").await.is_some(), "nobody knows what it is");
    assert_eq!(world.store.remove_lost_move_notes().await.expect("writable"), 0);
    // What is told of a move goes with its record, also a sender's last word that comes late.
    let recorded =
        world.store.fresh().await.expect("readable").vms[&here].moving.clone().expect("a note");
    for vm in [gone, here] {
        world.store.report(vec![Report::Move(vm, recorded.clone())]).await.expect("writable");
    }
    assert_eq!(raw(&world, &note(gone)).await, None);
    assert_ne!(raw(&world, &note(here)).await.as_deref(), Some(NOTE));
}

#[tokio::test]
async fn the_last_node_to_be_upgraded_raises_the_schema() {
    let world = cluster().await;
    let hv1 = NodeName::new("hv1");
    assert_eq!(schema_step(&Cluster::default(), &hv1), SchemaStep::NotInitialized);
    change(&world.store, |changes| {
        changes
            .push(Change::AddNode(Box::new(new_node("hv1"))))
            .push(Change::AddNode(Box::new(new_node("hv2"))));
    })
    .await;
    assert_eq!(schema_step(&world.store.view(), &hv1), SchemaStep::Current);
    write_raw(&world, "/schema/version", b"12").await;
    write_raw(&world, "/cmd", b"").await;
    write_raw(&world, "/nodes/hv2/latestschema", b"").await;
    let view = world.store.fresh().await.expect("readable");
    assert_eq!(schema_step(&view, &hv1), SchemaStep::Wait { behind: vec!["hv2".into()] });
    write_raw(&world, "/nodes/hv2/latestschema", b"15").await;
    let view = world.store.fresh().await.expect("readable");
    assert_eq!(schema_step(&view, &hv1), SchemaStep::Raise);
    world.store.raise_schema().await.expect("writable");
    world.store.advertise_schema(&hv1).await.expect("writable");
    assert_eq!(schema_step(&world.store.view(), &hv1), SchemaStep::Current);
    assert_eq!(raw(&world, "/cmd").await, None);
    assert_eq!(raw(&world, "/nodes/hv1/activeschema").await.as_deref(), Some("15"));
    assert!(world.store.check_layout().is_ok());
    write_raw(&world, "/schema/version", b"16").await;
    world.store.fresh().await.expect("readable");
    let refused = world.store.check_layout().expect_err("it is newer than what is known");
    assert!(matches!(refused, StoreError::LayoutTooNew { found: 16, known: 15 }), "{refused}");
    assert_eq!(
        schema_step(&world.other.fresh().await.expect("readable"), &hv1),
        SchemaStep::TooNew { found: 16 }
    );
}
