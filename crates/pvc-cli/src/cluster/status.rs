use pvc_api_types::operations::cluster::GetStatus;
use std::fmt::Write as _;

use clap::{Args, ValueEnum};
use pvc_api_types::{ClusterStatus, Resources, StateCounts};

use crate::context::Pvc;
use crate::format::{Json, MaybeJson};
use crate::outcome::Outcome;
use crate::output::{Colour, Paint, paint, units};

/// Show the state of the cluster
///
/// Health is 100 % less what the faults that nobody acknowledged take off. `pvc status`
/// is the same command.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc status
  pvc --quiet cluster status --format json | jq .cluster_health.health")]
pub struct Status {
    #[arg(short, long, value_enum, default_value_t = Format::Pretty, help = "How to print it")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Everything
    Pretty,
    /// A few lines, for a login message
    Short,
    /// Answer of the API, on one line
    Json,
    /// The same, indented
    JsonPretty,
}

impl MaybeJson for Format {
    fn json(self) -> Option<Json> {
        match self {
            Format::Json => Some(Json::Line),
            Format::JsonPretty => Some(Json::Indented),
            Format::Pretty | Format::Short => None,
        }
    }
}

impl Status {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let status = pvc.client()?.read_soon(GetStatus)?;
        if self.format.print_payload(pvc, &status)? {
            return Ok(());
        }
        let view = View { status: &status.read()?, paint: pvc.out.paint() };
        pvc.out.text(if self.format == Format::Short { view.short() } else { view.full() });
        Ok(())
    }
}

struct View<'a> {
    status: &'a ClusterStatus,
    paint: Paint,
}

impl View<'_> {
    fn full(&self) -> String {
        let status = self.status;
        let use_of = &status.resources;
        let mut text = String::new();
        self.line(&mut text, "Primary node", &status.primary_node);
        self.line(&mut text, "PVC version", status.pvc_version.as_deref().unwrap_or("N/A"));
        self.line(&mut text, "Upstream IP", &status.upstream_ip);
        text.push('\n');
        self.health(&mut text);
        self.line(&mut text, "Total CPU", &cpu(use_of));
        self.line(&mut text, "Total memory", &memory(use_of));
        self.line(&mut text, "Total disk", &disk(use_of));
        text.push('\n');
        self.line(
            &mut text,
            "Nodes",
            &self.counts(&status.nodes, paint::node_summary, &["run,ready"]),
        );
        self.line(
            &mut text,
            "VMs",
            &self.counts(&status.vms, paint::vm_state_summary, &["start", "disable", "mirror"]),
        );
        self.line(&mut text, "OSDs", &self.counts(&status.osds, paint::osd_summary, &["up,in"]));
        self.line(&mut text, "Pools", &status.pools.to_string());
        self.line(&mut text, "Volumes", &status.volumes.to_string());
        self.line(&mut text, "Snapshots", &status.snapshots.to_string());
        self.line(&mut text, "Networks", &status.networks.to_string());
        text
    }

    fn short(&self) -> String {
        let mut text = String::new();
        self.health(&mut text);
        let use_of = &self.status.resources;
        self.line(&mut text, "CPU usage", &cpu(use_of));
        self.line(&mut text, "Memory usage", &memory(use_of));
        self.line(&mut text, "Disk usage", &disk(use_of));
        text
    }

    fn health(&self, text: &mut String) {
        let health = &self.status.cluster_health;
        let maintenance = self.status.maintenance == "true";
        let figure = health
            .health
            .percent()
            .map_or_else(|| health.health.to_string(), |percent| format!("{percent}%"));
        let mut shown =
            self.paint.colour(paint::cluster_health(health.health.percent(), maintenance), figure);
        if maintenance {
            let _ = write!(shown, " {}", self.paint.colour(Colour::Blue, "(maintenance on)"));
        }
        self.line(text, "Health", &shown);
        let fault = |message: &pvc_api_types::HealthMessage| {
            let colour = paint::fault(message.health_delta, false);
            let delta = self.paint.colour(colour, format!("(-{}%)", message.health_delta));
            format!("{} {delta}: {}", message.id, message.text)
        };
        let faults: Vec<String> = health.messages.iter().map(fault).collect();
        let faults = if faults.is_empty() {
            "None".to_owned()
        } else {
            faults.join(&format!("\n{:WIDTH$}", ""))
        };
        self.line(text, "Active faults", &faults);
    }

    /// `2/3 run,ready, 1/3 run,flushed`: the good states first, then the rest by name.
    fn counts(&self, counts: &StateCounts, colour: fn(&str) -> Colour, first: &[&str]) -> String {
        let rank =
            |state: &str| first.iter().position(|good| *good == state).unwrap_or(first.len());
        let mut states: Vec<(&String, &u64)> =
            counts.by_state.iter().filter(|(_, count)| **count > 0).collect();
        states.sort_by_key(|(state, _)| rank(state));
        if states.is_empty() {
            return counts.total.to_string();
        }
        let shown = |(state, count): (&String, &u64)| {
            format!("{}/{} {}", count, counts.total, self.paint.colour(colour(state), state))
        };
        states.into_iter().map(shown).collect::<Vec<_>>().join(", ")
    }

    fn line(&self, text: &mut String, label: &str, value: &str) {
        let value = if value.is_empty() { "N/A" } else { value };
        let padding = WIDTH - label.len() - 1;
        let label = self.paint.colour(Colour::Purple, format!("{label}:"));
        let _ = writeln!(text, "{label}{:padding$}{value}", "");
    }
}

/// Column in which the values begin.
const WIDTH: usize = 16;

fn cpu(use_of: &Resources) -> String {
    let cpu = &use_of.cpu;
    format!("{} ({} / {})", units::percent(cpu.utilization), units::load(cpu.load), cpu.total)
}

/// The API counts memory in MiB.
fn memory(use_of: &Resources) -> String {
    let memory = &use_of.memory;
    of_total(memory.utilization, memory.used << 20, memory.total << 20)
}

/// The API counts storage in KiB.
fn disk(use_of: &Resources) -> String {
    let disk = &use_of.disk;
    of_total(disk.utilization, disk.used << 10, disk.total << 10)
}

fn of_total(percent: f64, used: i64, total: i64) -> String {
    format!("{} ({} / {})", units::percent(percent), units::bytes(used), units::bytes(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> ClusterStatus {
        serde_json::from_str(include_str!("../../tests/wire/status.json")).unwrap()
    }

    #[test]
    fn the_full_view() {
        let view = View { status: &status(), paint: Paint::OFF };
        crate::golden::check("cluster-status.txt", &(view.full()));
    }

    #[test]
    fn the_short_view() {
        let view = View { status: &status(), paint: Paint::OFF };
        crate::golden::check("cluster-status-short.txt", &(view.short()));
    }

    #[test]
    fn maintenance_is_said_and_turns_health_blue() {
        let status = ClusterStatus { maintenance: "true".to_owned(), ..status() };
        let text = View { status: &status, paint: Paint::ON }.short();
        assert!(text.contains("\x1b[94m90%\x1b[0m \x1b[94m(maintenance on)\x1b[0m"), "{text}");
    }

    #[test]
    fn a_cluster_that_knows_nothing_of_itself_is_shown_all_the_same() {
        let text = View { status: &ClusterStatus::default(), paint: Paint::OFF }.full();
        assert!(text.contains("Health:         N/A\n"), "{text}");
    }
}
