use std::cmp::Reverse;
use std::fmt::Write as _;

use clap::{Args, ValueEnum};
use pvc_api_types::Fault;

use crate::context::Pvc;
use crate::format::{Json, MaybeJson};
use crate::outcome::Outcome;
use crate::output::{self, Cell, Paint, Table, paint};

/// List the faults
#[derive(Debug, Args)]
pub struct List {
    /// Show only the fault of this id
    #[arg(add = crate::completion::faults())]
    limit: Option<String>,

    #[arg(short, long, value_enum, default_value_t = Format::Short, help = "How to print it")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One line for each
    Short,
    /// With all times
    Long,
    /// What the API answered, on one line
    Json,
    /// The same, indented
    JsonPretty,
}

impl MaybeJson for Format {
    fn json(self) -> Option<Json> {
        match self {
            Format::Json => Some(Json::Line),
            Format::JsonPretty => Some(Json::Indented),
            Format::Short | Format::Long => None,
        }
    }
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let faults = match &self.limit {
            Some(id) => pvc.client()?.fault(id)?,
            None => pvc.client()?.faults()?,
        };
        if self.format.print_payload(pvc, &faults)? {
            return Ok(());
        }
        let faults = faults.read()?;
        let text = if self.format == Format::Long {
            long(faults, pvc.out.paint())
        } else {
            short(faults, pvc.out.paint(), output::width())
        };
        pvc.out.line(text);
        Ok(())
    }
}

fn health(fault: &Fault) -> Cell {
    let colour = paint::fault(fault.health_delta, fault.status == "ack");
    Cell::coloured(format!("-{}%", fault.health_delta), colour)
}

fn short(mut faults: Vec<Fault>, paint: Paint, width: usize) -> String {
    faults.sort_by_key(|fault| Reverse((fault.health_delta, fault.last_reported.clone())));
    let longest = |least: usize, text: fn(&Fault) -> &String| {
        faults.iter().map(|fault| text(fault).chars().count() + 1).max().unwrap_or(0).max(least) + 1
    };
    let margin = longest(3, |fault| &fault.id)
        + longest(7, |fault| &fault.status)
        + 8
        + longest(14, |fault| &fault.last_reported);
    let mut table = Table::new()
        .group("Meta", &[("ID", 3), ("Status", 7), ("Health", 7)])
        .group("Fault", &[("Last Reported", 14), ("Message", 8)]);
    for fault in &faults {
        let mut lines = wrapped(&fault.message, width.saturating_sub(margin).max(20)).into_iter();
        table.row(vec![
            fault.id.as_str().into(),
            fault.status.as_str().into(),
            health(fault),
            fault.last_reported.as_str().into(),
            lines.next().unwrap_or_default().into(),
        ]);
        for line in lines {
            table.row(vec!["".into(), "".into(), "".into(), "".into(), line.into()]);
        }
    }
    table.render(paint)
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
        let acknowledged = if fault.acknowledged_at.is_empty() { "N/A" } else { &fault.acknowledged_at };
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

/// Breaks a text at spaces so that no line is wider than `width`, unless a word alone is.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults() -> Vec<Fault> {
        serde_json::from_str(include_str!("../../../tests/wire/faults.json")).unwrap()
    }

    #[test]
    fn the_worst_comes_first_and_long_messages_hang() {
        let text = short(faults(), Paint::OFF, 100) + "\n";
        crate::golden::check("fault-list.txt", &(text));
    }

    #[test]
    fn the_long_view_has_its_message_below() {
        crate::golden::check("fault-list-long.txt", &(long(faults(), Paint::OFF) + "\n"));
    }
}
