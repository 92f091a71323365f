//! Metrics that Ceph and ZooKeeper export.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use pvc_api::{ApiSettings, router};
use pvc_embedded::EmbeddedTree;
use pvc_model::storage::RbdAccess;
use pvc_store::synthetic::Shape;
use pvc_testkit::{MemoryStorage, PageManner, ScriptedCluster, ScriptedExporters};

use crate::common::{Api, Reply, settings, start_with, with_vms};

const CEPH: &str = "http://manager.invalid:9283/metrics";
const ZOOKEEPER: &str = "http://pvchv1:9141/metrics";

/// A cluster whose Ceph and ZooKeeper export metrics.
struct Exporting {
    api: Api,
    exporters: ScriptedExporters,
    ceph: Arc<ScriptedCluster>,
}

async fn exporting(settings: ApiSettings) -> Exporting {
    let access = RbdAccess {
        monitors: vec!["hv1".into()],
        port: 6789,
        user: "libvirt".into(),
        secret: None,
    };
    let ceph = Arc::new(ScriptedCluster::new(access));
    let storage = MemoryStorage::of_cluster(ceph.clone());
    let tree = EmbeddedTree::in_memory().connect();
    let api = start_with(tree, &Shape::with_vms(1).dump(), settings, storage).await;
    let exporters = ScriptedExporters::new();
    for (url, page) in [(CEPH, "ceph_health_status 0\n"), (ZOOKEEPER, "zk_b{h=\"x:2181\"} 1\na 2")]
    {
        exporters.set_manner(url, PageManner::Says(page.to_owned()));
    }
    let state = api.state.clone().with_exporters(Arc::new(exporters.clone()));
    let api = Api { router: router(state.clone()), state, ..api };
    api.write("/config/primary_node", "pvchv1").await;
    Exporting { api, exporters, ceph }
}

/// Asks as somebody without a key.
async fn open(api: &Api, path: &str) -> Reply {
    api.send(Request::get(format!("/api/v1{path}")).body(Body::empty()).unwrap()).await
}

#[tokio::test(start_paused = true)]
async fn a_clusters_page_has_the_metrics_of_all_to_everybody() {
    let cluster = exporting(settings()).await;
    let reply = open(&cluster.api, "/metrics/ceph").await;
    assert_eq!((reply.status.as_u16(), reply.text().as_str()), (200, "ceph_health_status 0\n"));
    assert_eq!(reply.headers["content-type"], "text/plain; charset=utf-8");
    let reply = open(&cluster.api, "/metrics/zookeeper").await;
    assert_eq!((reply.status.as_u16(), reply.text().as_str()), (200, "a 2\nzk_b{h=\"x\"} 1\n"));
    let all = open(&cluster.api, "/metrics").await.text();
    assert!(all.starts_with("# HELP pvc_info"), "{all}");
    assert!(all.ends_with("\nceph_health_status 0\na 2\nzk_b{h=\"x\"} 1\n"), "{all}");
}

#[tokio::test(start_paused = true)]
async fn an_exporter_that_fails_says_why_and_takes_the_other_metrics_from_nobody() {
    let cluster = exporting(settings()).await;
    for (manner, why) in [
        (PageManner::Refuses(500), "status 500"),
        (PageManner::Silent, "within 5 s"),
        (PageManner::Endless, "more than"),
        (PageManner::Garbled, "no text"),
    ] {
        cluster.exporters.set_manner(CEPH, manner.clone());
        cluster.exporters.set_manner(ZOOKEEPER, manner);
        let said = open(&cluster.api, "/metrics/ceph").await.refused(503);
        assert!(said.contains(why) && said.contains(CEPH), "{said}");
        let said = open(&cluster.api, "/metrics/zookeeper").await.refused(503);
        assert!(said.contains(why) && said.contains(ZOOKEEPER), "{said}");
        let all = open(&cluster.api, "/metrics").await;
        let text = all.text();
        assert!(all.status == 200 && text.starts_with("# HELP pvc_info"), "{text}");
        assert!(text.contains("\n# the metrics of Ceph are missing: "), "{text}");
        assert!(text.contains("\n# the metrics of ZooKeeper are missing: "), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_manager_without_the_module_and_a_cluster_without_a_primary_are_named() {
    let cluster = exporting(settings()).await;
    cluster.ceph.say(|said| said.metrics_url = None);
    let reply = open(&cluster.api, "/metrics/ceph").await;
    assert_eq!(reply.refused(503), "Ceph's manager exports no metrics");
    assert!(reply.json()["hint"].as_str().unwrap().contains("ceph mgr module enable prometheus"));
    cluster.api.write("/config/primary_node", "none").await;
    let said = open(&cluster.api, "/metrics/zookeeper").await.refused(503);
    assert!(said.contains("no node is primary"), "{said}");
    assert_eq!(cluster.exporters.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn monitors_that_hang_are_waited_for_as_long_as_a_scraper_waits() {
    let cluster = exporting(settings()).await;
    cluster.ceph.say(|said| said.hangs = true);
    let begun = tokio::time::Instant::now();
    let said = open(&cluster.api, "/metrics/ceph").await.refused(503);
    assert_eq!(said, "the metrics of Ceph did not come within 8 s");
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn many_who_ask_at_once_are_one_to_the_exporter() {
    let cluster = exporting(settings()).await;
    let asks = (0..50).map(|_| open(&cluster.api, "/metrics/ceph"));
    let replies = futures::future::join_all(asks).await;
    assert!(replies.iter().all(|reply| reply.text() == "ceph_health_status 0\n"));
    assert_eq!(cluster.exporters.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_machine_alone_has_neither() {
    let api = with_vms(1).await;
    let said = open(&api, "/metrics/ceph").await.refused(404);
    assert_eq!(said, "there is no Ceph here, and so there are no metrics of it");
    let said = open(&api, "/metrics/zookeeper").await.refused(404);
    assert!(said.contains("no metrics of a ZooKeeper"), "{said}");
    assert!(!open(&api, "/metrics").await.text().contains("# the metrics of"));
}

#[tokio::test(start_paused = true)]
async fn they_are_switched_off_with_the_others() {
    let cluster = exporting(ApiSettings { metrics: false, ..settings() }).await;
    for path in ["/metrics", "/metrics/ceph", "/metrics/zookeeper"] {
        assert_eq!(open(&cluster.api, path).await.status, 404, "{path}");
    }
    assert_eq!(cluster.exporters.asked(), 0);
}
