use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use pvc_api_types::{Change, Event, EventKind};
use pvc_client::Kind;

use crate::context::Pvc;
use crate::interrupt;
use crate::outcome::Outcome;
use crate::output::Output;

/// Time that the API may be away: the primary node's address moves with it.
const TIME_LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(1);

/// Print what changes in the cluster, as it changes
///
/// A line says which object to look at again, not what it looks like now. The command
/// goes on until Ctrl-C, also while the API moves with the primary node; a line `reset`
/// says that events may be missing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc events
  pvc -q events --kind vm,node -f json | jq -r .id")]
pub struct Events {
    /// Only changes of these sorts of objects
    #[arg(short, long, value_name = "KIND,...", value_delimiter = ',', value_enum)]
    kind: Vec<Sort>,

    #[arg(short, long, value_enum, default_value_t = Format::Pretty, help = "How to print it")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    Cluster,
    Node,
    Vm,
    Network,
    Storage,
    Task,
    Fault,
}

impl Sort {
    fn kind(self) -> EventKind {
        match self {
            Sort::Cluster => EventKind::Cluster,
            Sort::Node => EventKind::Node,
            Sort::Vm => EventKind::Vm,
            Sort::Network => EventKind::Network,
            Sort::Storage => EventKind::Storage,
            Sort::Task => EventKind::Task,
            Sort::Fault => EventKind::Fault,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Sort, change and name
    Pretty,
    /// Objects as the API sends them, one on each line
    Json,
}

impl Events {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let client = pvc.take_client()?;
        let mut cursor = None;
        let mut last_answer = Instant::now();
        loop {
            let ended = client.events(&mut cursor, |event, data| {
                last_answer = Instant::now();
                self.print(&mut pvc.out, event, data);
            });
            match ended {
                Ok(()) => last_answer = Instant::now(),
                Err(error)
                    if cursor.is_some()
                        && matches!(error.kind(), Kind::Unreachable | Kind::Server)
                        && last_answer.elapsed() < TIME_LIMIT => {}
                Err(error) => return Err(error.into()),
            }
            interrupt::pause(PAUSE);
        }
    }

    fn print(&self, out: &mut Output, event: &Event, data: &str) {
        let wanted = self.kind.is_empty() || self.kind.iter().any(|sort| sort.kind() == event.kind);
        if !wanted && event.kind != EventKind::Reset {
            return;
        }
        match self.format {
            Format::Json => out.line(crate::output::json::compact_text(data)),
            Format::Pretty => out.line(line(event)),
        }
        out.flush();
    }
}

fn line(event: &Event) -> String {
    let change = match event.change {
        Change::Created => "created",
        Change::Changed => "changed",
        Change::Removed => "removed",
    };
    match event.kind {
        EventKind::Reset => "reset    events may be missing: look at everything again".to_owned(),
        kind => format!("{:8} {change:8} {}", kind.name(), event.id).trim_end().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_sort_change_and_object() {
        let event = |kind, id: &str| Event {
            revision: 7,
            kind,
            id: id.to_owned(),
            change: Change::Removed,
        };
        assert_eq!(line(&event(EventKind::Vm, "2c2b8f4e")), "vm       removed  2c2b8f4e");
        assert_eq!(line(&event(EventKind::Cluster, "")), "cluster  removed");
        assert!(line(&event(EventKind::Reset, "")).starts_with("reset "));
    }
}
