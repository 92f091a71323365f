//! Metrics, open to scrapers.

use std::sync::Arc;

use pvc_api_types::operations::metrics::{GetMetrics, GetMetricsHealth, GetMetricsResource};

use crate::answer::Answer;
use crate::error::Result;
use crate::metrics::{Scrape, health};
use crate::state::ApiState;
use crate::table::{Ask, Table};

pub fn add(table: Table) -> Table {
    table.add(get_metrics).add(get_metrics_health).add(get_metrics_resource)
}

async fn get_metrics(ask: Ask<GetMetrics>) -> Result<Answer<GetMetrics>> {
    let page = page(&ask.api).await;
    Ok(Answer::text(format!("{}{}", page.health, page.resource)))
}

async fn get_metrics_health(ask: Ask<GetMetricsHealth>) -> Result<Answer<GetMetricsHealth>> {
    Ok(Answer::text(health(&ask.api.view())))
}

async fn get_metrics_resource(ask: Ask<GetMetricsResource>) -> Result<Answer<GetMetricsResource>> {
    Ok(Answer::text(page(&ask.api).await.resource.clone()))
}

async fn page(api: &ApiState) -> Arc<Scrape> {
    let view = {
        let api = api.clone();
        move || api.view()
    };
    api.scrapes().page(view).await
}
