//! Changes while the store is away, closed or opened.

use super::*;

#[tokio::test]
async fn without_a_store_changes_are_refused_and_reads_go_on() {
    let api = with_web().await;
    api.tree.close().await;
    let reply = api.post("/vm/web/state?state=start").await;
    assert_eq!(reply.status, 503, "{}", reply.text());
    let reply = api.get("/vm/web").await;
    assert_eq!(reply.ok()[0]["name"], "web");
    assert_eq!(reply.headers["x-pvc-stale"], "true");
    assert_eq!(api.get("/vm/web/console").await.status, 503);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_known_to_be_gone_refuses_changes_at_once() {
    let connection = FlakyTree::new(EmbeddedTree::in_memory().connect());
    let api = start_on(connection.clone(), &Shape::with_vms(1).dump(), settings()).await;
    connection.cut();
    let reply = api.post("/vm/vm00000/state?state=start").await;
    assert!(!reply.headers.contains_key("retry-after"), "a connection lost just now is waited for");
    tokio::time::sleep(Duration::from_secs(4)).await;
    let asked = connection.requests();
    for path in ["/vm/vm00000/state?state=start", "/vm/vm00000/rename?new_name=shop"] {
        let reply = api.post(path).await;
        assert!(reply.refused(503).contains("has not been reachable for 4 s"), "{}", reply.text());
        assert_eq!(reply.headers["retry-after"], "5");
    }
    assert_eq!(api.get("/vm/vm00000/console").await.headers["retry-after"], "5");
    assert_eq!(connection.requests(), asked, "the store was not asked for any of it");
    let reply = api.get("/vm/vm00000").await;
    reply.ok();
    assert_eq!(reply.headers["x-pvc-stale"], "true");
    let age: u64 = reply.headers["age"].to_str().unwrap().parse().unwrap();
    assert!(age >= 4, "seconds since the store was reached: {age}");
    connection.mend();
    api.eventually("the view is fresh", |_| api.store.outage().is_none()).await;
    api.post("/vm/vm00000/state?state=start").await.ok();
}

#[tokio::test(start_paused = true)]
async fn many_who_ask_the_store_for_the_same_at_once_are_one_to_it() {
    let member =
        FlakyTree::with_password(EmbeddedTree::in_memory().connect(), "secret", &Closed::default());
    let api = start_on(member.clone(), &Shape::with_vms(1).dump(), settings()).await;
    for path in ["/vm/vm00000/console?lines=1", "/node/pvchv1/log?lines=1", "/store/access"] {
        let before = member.requests();
        api.get(path).await.ok();
        let one = member.requests() - before;
        let before = member.requests();
        let replies = futures::future::join_all((0..50).map(|_| api.get(path))).await;
        assert!(replies.iter().all(|reply| reply.status == 200), "{path}");
        // The view is looked after meanwhile.
        let asked = member.requests() - before;
        assert!((1..=one + 1).contains(&asked), "{path}: {asked}, not {one}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_store_is_closed_and_opened_by_those_who_know_its_password() {
    let unprotected = with_vms(1).await;
    assert!(unprotected.get("/store/access").await.refused(400).contains("knows no password"));
    assert!(
        unprotected
            .post("/store/access?access=members")
            .await
            .refused(400)
            .contains("knows no password")
    );

    let member =
        FlakyTree::with_password(EmbeddedTree::in_memory().connect(), "secret", &Closed::default());
    let api = start_on(member, &Shape::with_vms(1).dump(), settings()).await;
    let before = api.get("/store/access").await.ok();
    assert_eq!((&before["access"], &before["closed"]), (&json!("anybody"), &json!(0)));
    let nodes = before["without_password"].as_array().unwrap().len();
    assert_eq!(nodes, 3, "their daemons have said nothing");
    assert!(
        api.post("/store/access?access=members").await.refused(400).contains("would be locked out")
    );
    assert!(api.post("/store/access?access=nobody").await.refused(400).contains("access"));
    let forced = "/store/access?access=members&force=true";
    assert!(api.post(forced).await.refused(400).contains("every node would be locked out"));
    api.store.announce_daemon(&"pvchv1".into(), "a test").await.unwrap();
    let before = api.get("/store/access").await.ok();
    assert_eq!(before["without_password"], json!(["pvchv2", "pvchv3"]));
    let done = api.post(forced).await.ok();
    assert!(done["message"].as_str().unwrap().starts_with("the store is closed: all "), "{done}");
    let closed = api.get("/store/access").await.ok();
    assert_eq!(
        (&closed["access"], &closed["open"], &closed["closed"]),
        (&json!("members"), &json!(0), &before["open"])
    );
    api.post("/store/access?access=anybody").await.ok();
    assert_eq!(api.get("/store/access").await.ok(), before);
}
