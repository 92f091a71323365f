//! Lines of logs are written by several daemons, and begin no cluster.

use super::*;

#[tokio::test]
async fn several_daemons_write_one_log_without_losing_lines() {
    let world = cluster().await;
    let hv1 = NodeName::new("hv1");
    let write = |store: Store, who: &'static str| {
        let hv1 = hv1.clone();
        async move {
            for n in 0..20 {
                store
                    .append_node_log(&hv1, &[format!("{who} {n}")], 100)
                    .await
                    .expect("the lock comes round");
            }
        }
    };
    tokio::join!(write(world.store.clone(), "node"), write(world.other.clone(), "api"));
    let log = world.store.node_log(&hv1).await.expect("readable").expect("written");
    assert_eq!(log.lines().count(), 40);
    world.store.append_node_log(&hv1, &["last".into()], 3).await.expect("writable");
    assert_eq!(
        world.store.node_log(&hv1).await.expect("readable").expect("written").lines().count(),
        3
    );
}

#[tokio::test]
async fn a_log_of_long_lines_is_written_in_a_request_that_every_server_takes() {
    let world = cluster().await;
    let hv1 = NodeName::new("hv1");
    let tree = FlakyTree::new(world.tree.connect());
    tree.limit_requests(0xf_ffff);
    let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(8)));
    let store = Store::open(tree, clock, random).await.expect("readable");
    let mut lines: Vec<String> = (0..2000).map(|n| format!("{n} {}", "ä".repeat(600))).collect();
    lines.push("ä".repeat(1 << 20));
    lines.push("the last".to_owned());
    store.append_node_log(&hv1, &lines, 5000).await.expect("it is not too large");
    let log = store.node_log(&hv1).await.expect("still connected").expect("written");
    assert!(log.ends_with("ä\nthe last") && log.lines().count() > 300, "{}", log.len());
    assert!((400 << 10..=512 << 10).contains(&log.len()), "{}", log.len());
}

#[tokio::test]
async fn a_line_of_a_log_does_not_begin_a_cluster_in_an_empty_store() {
    let world = empty().await;
    let written =
        world.store.append_node_log(&NodeName::new("hv1"), &["a line".to_owned()], 10).await;
    assert!(matches!(written, Err(StoreError::Tree(_))), "{written:?}");
    let children =
        world.store.tree().children("/").await.expect("reachable").expect("the root is there");
    assert!(!children.iter().any(|name| name == "logs"), "{children:?}");
}

#[tokio::test]
async fn a_line_of_a_log_does_not_begin_a_cluster_in_a_store_that_is_emptied_meanwhile() {
    let world = cluster().await;
    let hv1 = NodeName::new("hv1");
    world.store.append_node_log(&hv1, &["first".to_owned()], 10).await.expect("writable");
    let tree = FlakyTree::new(world.tree.connect());
    let clock = Arc::new(TokioClock::new());
    let store =
        Store::open(tree.clone(), clock, Arc::new(SeededRandom::new(8))).await.expect("readable");
    let other = world.tree.connect();
    tree.before_next_create(async move {
        let gone = ["/logs/hv1/messages", "/logs/hv1", "/logs"];
        let delete = |path: &str| Op::Delete { path: path.to_owned(), version: None };
        other.multi(gone.map(delete).to_vec()).await.expect("nobody else writes");
    });
    let written = store.append_node_log(&hv1, &["a line".to_owned()], 10).await;
    assert!(matches!(written, Err(StoreError::Tree(_))), "{written:?}");
    let children =
        world.store.tree().children("/").await.expect("reachable").expect("the root is there");
    assert!(!children.iter().any(|name| name == "logs"), "{children:?}");
}
