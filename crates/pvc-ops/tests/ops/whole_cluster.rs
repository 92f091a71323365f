//! The cluster as a whole: made, backed up, restored, closed by a password.

use super::*;

#[tokio::test]
async fn a_cluster_is_initialized_once_backed_up_and_restored() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let refusal = refused(cluster::initialize(&world.store, false).await);
    assert!(refusal.hint().unwrap().contains("--overwrite"));
    assert!(cluster::set_maintenance(&world.store, true).await.unwrap());
    assert!(!cluster::set_maintenance(&world.store, true).await.unwrap());
    let dump = cluster::backup(&world.store, true).await.unwrap();
    let text = serde_json::to_string(&dump).unwrap();
    cluster::initialize(&world.store, true).await.unwrap();
    assert!(world.store.view().vms.is_empty());
    for bad in ["", "[]", "{\"/a\": 1}", "\"no\"", "{}"] {
        assert_eq!(
            refused(cluster::restore(&world.store, bad, false).await).kind(),
            Kind::Invalid,
            "{bad}"
        );
    }
    let twice = serde_json::to_string(&text).unwrap();
    let restored = cluster::restore(&world.store, &twice, false).await.unwrap();
    assert_eq!(world.vm().name, "web1");
    assert!(world.store.view().config.maintenance);
    let notes = cluster::notes(&restored);
    assert!(notes.iter().any(|note| note.contains("`pvc cluster maintenance off`")), "{notes:?}");
    cluster::set_maintenance(&world.store, false).await.unwrap();
    let mut dump = dump;
    dump.insert("/config/maintenance".to_owned(), "false".to_owned());
    dump.insert(format!("/domains/{UUID}/state"), "provision".to_owned());
    let restored = cluster::restore(&world.store, &cluster::dump_text(&dump), false).await.unwrap();
    assert_eq!(world.vm().state, VmState::Disable);
    let notes = cluster::notes(&restored);
    assert!(notes.iter().any(|note| note.contains("`web1`: look at the volumes")), "{notes:?}");
    assert!(!notes.iter().any(|note| note.contains("maintenance")), "{notes:?}");
}

#[tokio::test]
async fn the_dump_of_another_cluster_is_restored_only_by_force() {
    let world = World::with_nodes(&["hv1"]).await;
    let dump = |name: &str| {
        let records = [("/schema/version", "15"), ("/config", name)];
        let records = records.map(|(path, text)| (path.to_owned(), text.to_owned()));
        cluster::dump_text(&records.into())
    };
    let restore = async |name: &str, force| {
        cluster::restore(&world.store, &dump(name), force).await.map(|restored| restored.keys)
    };
    assert_eq!(world.store.view().config.name, "", "it has none yet");
    restore("prod", false).await.unwrap();
    assert_eq!(world.store.view().config.name, "prod");
    restore("prod", false).await.unwrap();
    let refusal = refused(restore("office", false).await);
    assert_eq!(refusal.kind(), Kind::Conflict);
    assert_eq!(refusal.to_string(), "the dump is of cluster `office`, and this is cluster `prod`");
    assert_eq!(world.store.view().config.name, "prod");
    restore("office", true).await.unwrap();
    assert_eq!(world.store.view().config.name, "office");
}

/// The store of one who knows this password, on a connection of his own.
async fn member(world: &World, password: &str, closed: &Closed) -> (Store, Arc<FlakyTree>) {
    let tree = FlakyTree::with_password(world.tree.connect(), password, closed);
    let random = Arc::new(SeededRandom::new(3));
    (Store::open(tree.clone(), world.clock.clone(), random).await.unwrap(), tree)
}

#[tokio::test(start_paused = true)]
async fn records_are_not_closed_to_a_node_of_the_cluster_unless_that_is_forced() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    let refused = cluster::protect(&world.store, Access::Members, true).await.unwrap_err();
    assert!(matches!(refused, ChangeError::Store(pvc_store::StoreError::NoPassword)), "{refused}");
    world.store.announce_daemon(&"hv2".into(), "knows none").await.unwrap();
    let (store, _) = member(&world, "secret", &Closed::default()).await;
    let refused = cluster::protect(&store, Access::Members, false).await.unwrap_err();
    assert!(refused.to_string().starts_with("nodes `hv1`, `hv2` would be locked out"), "{refused}");
    let refused = cluster::protect(&store, Access::Members, true).await.unwrap_err();
    assert!(refused.to_string().starts_with("every node would be locked out"), "{refused}");

    store.announce_daemon(&"hv1".into(), "knows it").await.unwrap();
    let refused = cluster::protect(&store, Access::Members, false).await.unwrap_err();
    assert!(refused.to_string().starts_with("node `hv2` would be locked out"), "{refused}");
    let (before, known) = cluster::protection(&store).await.unwrap();
    assert_eq!((before.access, before.closed), (AccessList::Anybody, 0));
    assert_eq!(known["hv1"], KnownPassword::Ours);
    assert_eq!(known["hv2"], KnownPassword::Unproven);
    let closed = cluster::protect(&store, Access::Members, true).await.unwrap();
    assert_eq!((closed.access, closed.open), (AccessList::Members, 0));
    // Nobody is locked out by opening them.
    let opened = cluster::protect(&store, Access::Anybody, false).await.unwrap();
    assert_eq!((opened.access, opened.closed), (AccessList::Anybody, 0));
    assert_eq!(store.known_passwords().await.unwrap(), known, "what is proven stays so");
}

#[tokio::test(start_paused = true)]
async fn a_restore_says_that_the_records_are_open_although_there_is_a_password() {
    let world = World::with_nodes(&["hv1"]).await;
    let text = cluster::dump_text(&cluster::backup(&world.store, true).await.unwrap());
    let is_said = async |store: &Store| {
        let restored = cluster::restore(store, &text, false).await.unwrap();
        cluster::notes(&restored).iter().any(|note| note.contains("`pvc cluster store close`"))
    };
    assert!(!is_said(&world.store).await, "who knows no password has not closed them");
    let (store, _) = member(&world, "secret", &Closed::default()).await;
    assert!(is_said(&store).await);
    store.announce_daemon(&"hv1".into(), "knows it").await.unwrap();
    cluster::protect(&store, Access::Members, false).await.unwrap();
    assert!(!is_said(&store).await);
}

#[tokio::test(start_paused = true)]
async fn records_are_never_closed_to_a_node_that_knows_another_password() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    let closed = Closed::default();
    let (right, _) = member(&world, "secret", &closed).await;
    let (typo, session) = member(&world, "secert", &closed).await;
    right.announce_daemon(&"hv1".into(), "one").await.unwrap();
    typo.announce_daemon(&"hv2".into(), "other").await.unwrap();
    for (store, locked_out) in [(&right, "hv2"), (&typo, "hv1")] {
        for force in [false, true] {
            let refused = cluster::protect(store, Access::Members, force).await.unwrap_err();
            let expected = format!("node `{locked_out}` would be locked out: another password");
            assert!(refused.to_string().starts_with(&expected), "{refused}");
        }
        assert_eq!(store.protection().await.unwrap().closed, 0);
    }
    session.close().await;
    let (mended, _) = member(&world, "secret", &closed).await;
    mended.announce_daemon(&"hv2".into(), "mended").await.unwrap();
    cluster::protect(&right, Access::Members, false).await.unwrap();
}
