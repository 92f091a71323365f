//! Metrics, open to scrapers.

use std::sync::Arc;

use bytes::Bytes;
use pvc_api_types::operations::metrics::{
    GetMetrics, GetMetricsCeph, GetMetricsHealth, GetMetricsResource, GetMetricsZookeeper,
};

use crate::answer::Answer;
use crate::error::Result;
use crate::metrics::{Scrape, health};
use crate::state::ApiState;
use crate::table::{Ask, Table};

pub fn add(table: Table) -> Table {
    table
        .add(get_metrics)
        .add(get_metrics_health)
        .add(get_metrics_resource)
        .add(get_metrics_ceph)
        .add(get_metrics_zookeeper)
}

/// A Ceph or an exporter that does not answer takes the rest of the page from nobody.
async fn get_metrics(ask: Ask<GetMetrics>) -> Result<Answer<GetMetrics>> {
    let api = &ask.api;
    let (has_ceph, has_zookeeper) = api.has_exporters();
    let ceph = async {
        match has_ceph {
            true => part("Ceph", api.ceph_page().await),
            false => Vec::new(),
        }
    };
    let zookeeper = async {
        match has_zookeeper {
            true => part("ZooKeeper", api.zookeeper_page().await),
            false => Vec::new(),
        }
    };
    let (ceph, zookeeper) = tokio::join!(ceph, zookeeper);
    let page = page(api).await?;
    let own = vec![page.health(), page.resource()];
    Ok(Answer::text_of([own, ceph, zookeeper].concat()))
}

/// A page as a part of another: it ends with its line, and one that is missing says why in a
/// comment of one line.
fn part(of: &str, page: Result<Bytes>) -> Vec<Bytes> {
    match page {
        Ok(page) if page.is_empty() || page.ends_with(b"\n") => vec![page],
        Ok(page) => vec![page, Bytes::from_static(b"\n")],
        Err(error) => {
            let why: String =
                error.body.message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            vec![format!("# the metrics of {of} are missing: {why}\n").into()]
        }
    }
}

async fn get_metrics_ceph(ask: Ask<GetMetricsCeph>) -> Result<Answer<GetMetricsCeph>> {
    ask.api.ceph_page().await.map(Answer::text)
}

async fn get_metrics_zookeeper(
    ask: Ask<GetMetricsZookeeper>,
) -> Result<Answer<GetMetricsZookeeper>> {
    ask.api.zookeeper_page().await.map(Answer::text)
}

async fn get_metrics_health(ask: Ask<GetMetricsHealth>) -> Result<Answer<GetMetricsHealth>> {
    Ok(Answer::text(health(&ask.api.view())))
}

async fn get_metrics_resource(ask: Ask<GetMetricsResource>) -> Result<Answer<GetMetricsResource>> {
    Ok(Answer::text(page(&ask.api).await?.resource()))
}

async fn page(api: &ApiState) -> Result<Arc<Scrape>> {
    let view = {
        let api = api.clone();
        move || api.view()
    };
    api.scrapes().page(api.clock().monotonic(), view).await
}
