use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::store::{Connection, LOCAL, Store};
use crate::context::Pvc;
use crate::format::{Form, Json, MaybeJson, Shape};
use crate::outcome::Outcome;
use crate::output::{Table, json};

/// List the stored connections
///
/// Nothing is connected to. `local` is left out on a machine without the daemon.
#[derive(Debug, Args)]
pub struct List {
    /// Show the keys instead of `xxxx`
    #[arg(short = 'k', long)]
    show_keys: bool,

    #[arg(short, long, value_enum, default_value_t = Format::Pretty, help = "How to print it")]
    format: Format,

    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table
    Pretty,
    /// The bare names
    Raw,
    /// On one line
    Json,
    /// The same, indented
    JsonPretty,
    /// Targets for Prometheus' file-based service discovery
    JsonPrometheus,
    /// The table's rows as comma-separated values
    Csv,
    /// The table's rows as YAML
    Yaml,
}

impl MaybeJson for Format {
    fn json(self) -> Option<Json> {
        match self {
            Format::Json => Some(Json::Line),
            Format::JsonPretty => Some(Json::Indented),
            Format::Pretty | Format::Raw | Format::JsonPrometheus | Format::Csv | Format::Yaml => {
                None
            }
        }
    }

    fn form(self) -> Option<Form> {
        match self {
            Format::Pretty => Some(Form::Table),
            Format::Csv => Some(Form::Csv),
            Format::Yaml => Some(Form::Yaml),
            Format::Raw | Format::Json | Format::JsonPretty | Format::JsonPrometheus => None,
        }
    }
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.shape.check(self.format)?;
        let connections = all(pvc);
        match self.format {
            Format::Pretty | Format::Csv | Format::Yaml => {
                self.shape.print(pvc, self.format, table(&connections, self.show_keys))?;
            }
            Format::Raw => connections.iter().for_each(|connection| pvc.out.line(&connection.name)),
            Format::Json => pvc.out.line(json::compact(&self.values(&connections))),
            Format::JsonPretty => pvc.out.line(json::pretty(&self.values(&connections))),
            Format::JsonPrometheus => pvc.out.line(json::pretty(&targets(&connections))),
        }
        Ok(())
    }

    fn values(&self, connections: &[Connection]) -> Value {
        let value = |connection: &Connection| {
            json!({
                "name": connection.name,
                "description": connection.description,
                "address": connection.host,
                "port": connection.port,
                "scheme": connection.scheme,
                "api_key": shown_key(connection, self.show_keys),
            })
        };
        connections.iter().map(value).collect()
    }
}

/// Every stored connection that can be read, `local` first. The others are warned of; only `local`
/// may be missing for good reasons.
pub fn all(pvc: &Pvc) -> Vec<Connection> {
    let store = Store::open();
    if let Some(why) = store.why_unused() {
        pvc.warn(&why.to_string());
    }
    let mut connections = Vec::new();
    for (name, entry) in &store.entries {
        match entry.resolve(name) {
            Ok(connection) => connections.push(connection),
            Err(_) if name == LOCAL => {}
            Err(failure) => pvc.warn(&failure.message),
        }
    }
    connections.sort_by_key(|connection| connection.name != LOCAL);
    connections
}

fn table(connections: &[Connection], show_keys: bool) -> Table {
    let mut table = Table::new().columns(&[
        ("Name", 5),
        ("Description", 12),
        ("Address", 8),
        ("Port", 5),
        ("Scheme", 7),
        ("API Key", 8),
    ]);
    for connection in connections {
        table.row(vec![
            connection.name.as_str().into(),
            connection.description.as_str().into(),
            connection.host.as_str().into(),
            connection.port.to_string().into(),
            connection.scheme.as_str().into(),
            shown_key(connection, show_keys).unwrap_or_else(|| "N/A".to_owned()).into(),
        ]);
    }
    table
}

fn shown_key(connection: &Connection, show: bool) -> Option<String> {
    let key = connection.api_key.as_deref()?;
    Some(if show { key.to_owned() } else { masked(key) })
}

/// A key's shape without its content.
fn masked(key: &str) -> String {
    key.chars().map(|letter| if letter.is_alphanumeric() { 'x' } else { letter }).collect()
}

fn targets(connections: &[Connection]) -> Value {
    let target = |connection: &Connection| {
        json!({
            "targets": [format!("{}:{}", connection.host, connection.port)],
            "labels": {
                "job": "pvc",
                "pvc_cluster_name": format!("{}: {}", connection.name, connection.description),
                "pvc_cluster_id": connection.name,
            },
        })
    };
    connections.iter().map(target).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_key_keeps_its_shape() {
        assert_eq!(masked("2c2b8f4e-0D3e"), "xxxxxxxx-xxxx");
    }
}
