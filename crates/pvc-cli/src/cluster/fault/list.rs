use pvc_api_types::operations::fault::{FaultOrder, GetFaults, GetFaultsFaultId, SortKey};
use pvc_api_types::param::Nothing;
use std::cmp::Reverse;
use std::fmt::Write as _;

use clap::{Args, ValueEnum};
use pvc_api_types::Fault;

use crate::context::Pvc;
use crate::format::{Form, Json, MaybeJson, Shape};
use crate::outcome::Outcome;
use crate::output::{Cell, Paint, Table, paint};

/// List the faults
#[derive(Debug, Args)]
pub struct List {
    /// Show only the fault of this id
    #[arg(add = crate::completion::faults())]
    limit: Option<String>,

    #[arg(short, long, value_enum, default_value_t = Format::Short, help = "How to print it")]
    format: Format,

    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line for each
    Short,
    /// Lines with all times
    Long,
    /// Answer of the API, on one line
    Json,
    /// The same, indented
    JsonPretty,
    /// The lines as comma-separated values
    Csv,
    /// The lines as YAML
    Yaml,
}

impl MaybeJson for Format {
    fn json(self) -> Option<Json> {
        match self {
            Format::Json => Some(Json::Line),
            Format::JsonPretty => Some(Json::Indented),
            Format::Short | Format::Long | Format::Csv | Format::Yaml => None,
        }
    }

    fn form(self) -> Option<Form> {
        match self {
            Format::Short => Some(Form::Table),
            Format::Csv => Some(Form::Csv),
            Format::Yaml => Some(Form::Yaml),
            Format::Long | Format::Json | Format::JsonPretty => None,
        }
    }
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.shape.check(self.format)?;
        let faults = match &self.limit {
            Some(id) => pvc.client()?.read(GetFaultsFaultId, [id], &Nothing)?,
            None => pvc.client()?.read(
                GetFaults,
                [],
                &FaultOrder { sort_key: Some(SortKey::LastReported) },
            )?,
        };
        if self.format.print_payload(pvc, &faults)? {
            return Ok(());
        }
        let faults = faults.read()?;
        if self.format == Format::Long {
            let text = long(faults, pvc.out.paint());
            pvc.out.line(text);
            return Ok(());
        }
        self.shape.print(pvc, self.format, short(faults))
    }
}

fn health(fault: &Fault) -> Cell {
    let colour = paint::fault(fault.health_delta, fault.status == "ack");
    Cell::coloured(format!("-{}%", fault.health_delta), colour)
}

fn short(mut faults: Vec<Fault>) -> Table {
    faults.sort_by_key(|fault| Reverse((fault.health_delta, fault.last_reported.clone())));
    let mut table = Table::new()
        .group("Meta", &[("ID", 3), ("Status", 7), ("Health", 7)])
        .group("Fault", &[("Last Reported", 14), ("Message", 8)])
        .important(&["ID", "Message", "Health", "Status", "Last Reported"])
        .wrapping();
    for fault in &faults {
        table.row(vec![
            fault.id.as_str().into(),
            fault.status.as_str().into(),
            health(fault),
            fault.last_reported.as_str().into(),
            fault.message.as_str().into(),
        ]);
    }
    table
}

fn long(mut faults: Vec<Fault>, paint: Paint) -> String {
    faults.sort_by_key(|fault| {
        Reverse((fault.status.clone(), fault.health_delta, fault.last_reported.clone()))
    });
    let mut table = Table::new().columns(&[
        ("ID", 3),
        ("Status", 7),
        ("Health", 7),
        ("Ack'd On", 9),
        ("Last Reported", 14),
        ("First Reported", 15),
    ]);
    for fault in &faults {
        let acknowledged =
            if fault.acknowledged_at.is_empty() { "N/A" } else { &fault.acknowledged_at };
        table.row(vec![
            fault.id.as_str().into(),
            fault.status.as_str().into(),
            health(fault),
            acknowledged.into(),
            fault.last_reported.as_str().into(),
            fault.first_reported.as_str().into(),
        ]);
    }
    let rendered = table.render(paint);
    let mut lines = rendered.lines();
    let mut text = lines.next().unwrap_or_default().to_owned();
    for (index, (line, fault)) in lines.zip(&faults).enumerate() {
        let blank = if index == 0 { "" } else { "\n" };
        let _ = write!(text, "{blank}\n{line}\n> {}", fault.message);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults() -> Vec<Fault> {
        serde_json::from_str(include_str!("../../../tests/wire/faults.json")).unwrap()
    }

    #[test]
    fn the_worst_comes_first_and_long_messages_hang() {
        let text = short(faults()).text(Paint::OFF, true, Some(100)) + "\n";
        crate::golden::check("fault-list.txt", &(text));
    }

    #[test]
    fn the_long_view_has_its_message_below() {
        crate::golden::check("fault-list-long.txt", &(long(faults(), Paint::OFF) + "\n"));
    }
}
