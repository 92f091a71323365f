use std::time::Duration;

use clap::Args;
use pvc_api_types::ClusterStatus;
use serde_json::{Value, json};

use super::list;
use super::store::Connection;
use crate::context::{self, Pvc};
use crate::format::{MaybeJson, PlainFormat};
use crate::outcome::Outcome;
use crate::output::{Cell, Colour, Table, paint};

/// A cluster that says nothing within this time is shown as unreachable.
const PATIENCE: Duration = Duration::from_secs(5);

/// Show the state of every stored connection's cluster
///
/// All clusters are asked at the same time. One that cannot be reached is shown with
/// `N/A` everywhere; the command succeeds nevertheless.
#[derive(Debug, Args)]
pub struct Detail {
    #[arg(short, long, value_enum, default_value_t = PlainFormat::Pretty, help = "How to print it")]
    format: PlainFormat,
}

impl Detail {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let connections = list::all();
        pvc.note(&format!("Gathering information from {} clusters...", connections.len()));
        let states = ask_all(&connections);
        let rows: Vec<(&Connection, Option<ClusterStatus>)> = connections.iter().zip(states).collect();
        if !self.format.print(pvc, &values(&rows)) {
            let table = table(&rows).render(pvc.out.paint());
            pvc.out.line(table);
        }
        Ok(())
    }
}

fn ask_all(connections: &[Connection]) -> Vec<Option<ClusterStatus>> {
    std::thread::scope(|scope| {
        let ask = |connection| {
            scope.spawn(move || context::hurried(connection, PATIENCE).status().ok()?.read().ok())
        };
        let asked: Vec<_> = connections.iter().map(ask).collect();
        asked.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    })
}

fn values(rows: &[(&Connection, Option<ClusterStatus>)]) -> Value {
    let value = |(connection, status): &(&Connection, Option<ClusterStatus>)| {
        let text = |figure: fn(&ClusterStatus) -> Value| status.as_ref().map_or_else(|| json!("N/A"), figure);
        json!({
            "name": connection.name,
            "description": connection.description,
            "health": text(|status| json!(status.cluster_health.health)),
            "maintenance": text(|status| json!(status.maintenance)),
            "primary_node": text(|status| json!(status.primary_node)),
            "pvc_version": text(|status| json!(status.pvc_version)),
            "nodes": text(|status| json!(status.nodes.total)),
            "vms": text(|status| json!(status.vms.total)),
            "networks": text(|status| json!(status.networks)),
            "osds": text(|status| json!(status.osds.total)),
            "pools": text(|status| json!(status.pools)),
            "volumes": text(|status| json!(status.volumes)),
            "snapshots": text(|status| json!(status.snapshots)),
        })
    };
    rows.iter().map(value).collect()
}

fn table(rows: &[(&Connection, Option<ClusterStatus>)]) -> Table {
    let mut table = Table::new().columns(&[
        ("Name", 5),
        ("Description", 12),
        ("Health", 7),
        ("Primary", 8),
        ("Version", 8),
        ("Nodes", 6),
        ("VMs", 4),
        ("Networks", 9),
        ("OSDs", 5),
        ("Pools", 6),
        ("Volumes", 8),
        ("Snapshots", 10),
    ]);
    for (connection, status) in rows {
        let mut cells: Vec<Cell> =
            vec![connection.name.as_str().into(), connection.description.as_str().into()];
        match status {
            Some(status) => cells.extend(figures(status)),
            None => {
                cells.push(Cell::coloured("N/A", Colour::Purple));
                cells.extend((0..9).map(|_| "N/A".into()));
            }
        }
        table.row(cells);
    }
    table
}

fn figures(status: &ClusterStatus) -> Vec<Cell> {
    let health = status.cluster_health.health.percent();
    let shown =
        health.map_or_else(|| status.cluster_health.health.to_string(), |percent| format!("{percent}%"));
    vec![
        Cell::coloured(shown, paint::cluster_health(health, status.maintenance == "true")),
        status.primary_node.as_str().into(),
        status.pvc_version.as_deref().unwrap_or("N/A").into(),
        status.nodes.total.to_string().into(),
        status.vms.total.to_string().into(),
        status.networks.to_string().into(),
        status.osds.total.to_string().into(),
        status.pools.to_string().into(),
        status.volumes.to_string().into(),
        status.snapshots.to_string().into(),
    ]
}
