use pvc_api_types::operations::cluster::GetStatus;
use std::error::Error as _;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use clap::Args;
use pvc_api_types::ClusterStatus;
use pvc_client::Kind;
use serde_json::{Value, json};

use super::list;
use super::store::Connection;
use crate::context::{self, Pvc};
use crate::format::{MaybeJson, PlainFormat, Shape};
use crate::outcome::{self, Outcome};
use crate::output::{Cell, Colour, Table, paint};

/// A cluster that says nothing within this time is shown as unreachable.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Show the state of every stored connection's cluster
///
/// All clusters are asked at the same time. One that cannot be asked is shown with `N/A`
/// everywhere and with the reason; the command succeeds nevertheless.
#[derive(Debug, Args)]
pub struct Detail {
    #[arg(short, long, value_enum, default_value_t = PlainFormat::Pretty, help = "How to print it")]
    format: PlainFormat,

    #[command(flatten)]
    shape: Shape,
}

impl Detail {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.shape.check(self.format)?;
        let connections = list::all(pvc);
        pvc.note(&format!("Gathering information from {} clusters...", connections.len()));
        let states = ask_all(&connections);
        let rows: Vec<Row<'_>> = connections.iter().zip(states).collect();
        if !self.format.print(pvc, &values(&rows)) {
            self.shape.print(pvc, self.format, table(&rows))?;
        }
        Ok(())
    }
}

/// A connection, and its cluster's state or why that is not known.
type Row<'a> = (&'a Connection, Result<ClusterStatus, String>);

fn ask_all(connections: &[Connection]) -> Vec<Result<ClusterStatus, String>> {
    std::thread::scope(|scope| {
        let ask = |connection| {
            scope.spawn(move || {
                let status = context::hurried(connection, TIME_LIMIT).read_soon(GetStatus);
                status.and_then(|status| status.read()).map_err(|error| reason(&error))
            })
        };
        let asked: Vec<_> = connections.iter().map(ask).collect();
        let answer =
            |thread: ScopedJoinHandle<'_, _>| thread.join().expect("asking does not panic");
        asked.into_iter().map(answer).collect()
    })
}

/// Reason why a cluster's state is not known, in a few words: the address stands beside it.
fn reason(error: &pvc_client::Error) -> String {
    let text = outcome::chain(error);
    match error.kind() {
        Kind::Unreachable => match text.split_once(": ").filter(|_| error.source().is_some()) {
            Some((_, cause)) => format!("unreachable: {cause}"),
            None => "unreachable".to_owned(),
        },
        Kind::Unauthorised => format!("the key is not accepted: {text}"),
        _ => text,
    }
}

fn values(rows: &[Row<'_>]) -> Value {
    let value = |(connection, status): &Row<'_>| {
        let text = |figure: fn(&ClusterStatus) -> Value| {
            status.as_ref().map_or_else(|_| json!("N/A"), figure)
        };
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
            "problem": status.as_ref().err(),
        })
    };
    rows.iter().map(value).collect()
}

/// The column with the reasons is there only if there are some.
fn table(rows: &[Row<'_>]) -> Table {
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
    let problems = rows.iter().any(|(_, status)| status.is_err());
    if problems {
        table = table.columns(&[("Problem", 8)]).important(&["Name", "Health", "Problem"]);
    }
    for (connection, status) in rows {
        let mut cells: Vec<Cell> =
            vec![connection.name.as_str().into(), connection.description.as_str().into()];
        match status {
            Ok(status) => {
                cells.extend(figures(status));
                cells.extend(problems.then(Cell::default));
            }
            Err(problem) => {
                cells.push(Cell::coloured("N/A", Colour::Purple));
                cells.extend((0..9).map(|_| "N/A".into()));
                cells.push(problem.as_str().into());
            }
        }
        table.row(cells);
    }
    table
}

fn figures(status: &ClusterStatus) -> Vec<Cell> {
    let health = status.cluster_health.health.percent();
    let shown = health
        .map_or_else(|| status.cluster_health.health.to_string(), |percent| format!("{percent}%"));
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
