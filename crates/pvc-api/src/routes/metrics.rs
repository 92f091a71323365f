//! Metrics, open to scrapers.

use pvc_api_types::operations::metrics::{GetMetrics, GetMetricsHealth, GetMetricsResource};
use pvc_model::cluster::Cluster;
use pvc_ports::aside;

use super::text;
use crate::error::Result;
use crate::metrics::{VmShares, health, resource};
use crate::state::ApiState;
use crate::table::{Answer, Ask, Table};

pub fn add(table: Table) -> Table {
    table.add(get_metrics).add(get_metrics_health).add(get_metrics_resource)
}

async fn get_metrics(ask: Ask<GetMetrics>) -> Result<Answer<GetMetrics>> {
    let all = |cluster: &Cluster, known: &mut VmShares| health(cluster) + &resource(cluster, known);
    Ok(Answer::encoded(text(made_aside(&ask.api, all).await)))
}

async fn get_metrics_health(ask: Ask<GetMetricsHealth>) -> Result<Answer<GetMetricsHealth>> {
    Ok(Answer::encoded(text(health(&ask.api.view()))))
}

async fn get_metrics_resource(ask: Ask<GetMetricsResource>) -> Result<Answer<GetMetricsResource>> {
    Ok(Answer::encoded(text(made_aside(&ask.api, resource).await)))
}

/// A text of metrics, made where it keeps no other request, and no keepalive, from its turn. One at
/// a time: after a change of all records it takes milliseconds, and anybody may ask. Whoever goes
/// away meanwhile gives the turn to the next only when the text is made.
async fn made_aside(
    api: &ApiState,
    make: impl FnOnce(&Cluster, &mut VmShares) -> String + Send + 'static,
) -> String {
    let mut known = api.metrics().clone().lock_owned().await;
    let cluster = api.view();
    aside(move || make(&cluster, &mut known)).await
}
