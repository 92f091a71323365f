use clap::Args;
use pvc_api_types::Benchmark;
use pvc_api_types::operations::benchmark::{BenchmarkFilter, GetStorageCephBenchmark};
use pvc_client::Payload;

use super::report::{NONE, Report, TESTS, TestReport, bytes, whole};
use super::{bars, compare};
use crate::context::Pvc;
use crate::format::{MaybeJson, TextFormat};
use crate::outcome::{Failure, Outcome};
use crate::output::{self, Paint, harmless};

/// Show a benchmark in detail
///
/// Bandwidths of large blocks and requests a second of small ones are drawn as bars; then
/// each test has its figures, and the load of the node that did it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage benchmark info new-disks
  pvc storage benchmark info new-disks --compare 2024-11-14T12:00:00_hv1")]
pub struct Info {
    /// The benchmark, by its name
    job: String,

    /// Show how many times another benchmark it comes to, test by test
    #[arg(long, value_name = "OTHER")]
    compare: Option<String>,

    #[arg(short, long, value_enum, default_value_t = TextFormat::Pretty, help = "How to print it")]
    format: TextFormat,
}

impl Info {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let (one, payload) = read(pvc, &self.job)?;
        if let Some(other) = &self.compare {
            let (other, _) = read(pvc, other)?;
            if !self.format.print(pvc, &compare::ratios(&one, &other)) {
                let text = compare::view(&one, &other, output::width(), pvc.out.paint());
                pvc.out.text(text);
            }
            return Ok(());
        }
        if self.format.print_payload(pvc, &payload)? {
            return Ok(());
        }
        let text = view(&one, output::width(), pvc.out.paint());
        pvc.out.text(text);
        Ok(())
    }
}

fn read(pvc: &mut Pvc, job: &str) -> Result<(Benchmark, Payload<Vec<Benchmark>>), Failure> {
    let filter = BenchmarkFilter { job: Some(job.to_owned()) };
    let payload = pvc.client()?.read(GetStorageCephBenchmark, [], &filter)?;
    let found: Vec<Benchmark> = payload.read()?;
    match found.into_iter().next() {
        Some(found) => Ok((found, payload)),
        None => Err(Failure::not_found("no benchmark fits")
            .hint("`pvc storage benchmark list` shows all of them")),
    }
}

fn view(benchmark: &Benchmark, room: usize, paint: Paint) -> String {
    let title = paint.bold(format!("Benchmark {}:", harmless(&benchmark.job, &[])));
    let head = format!("{title}\n\nTest format: {}\n\n", benchmark.test_format);
    let Some(report) = Report::read(benchmark) else { return format!("{head}Running\n") };
    let mut text = head + &bars::charts(&report, room, paint);
    for (name, title, depth) in TESTS {
        let test = report.test(name);
        let heading = format!("{title}, queue depth {depth}");
        text += &format!("\n{}\n{}\n", paint.bold(&heading), "-".repeat(room.min(120)));
        text += &match (test.is_there(), test.is_text()) {
            (false, _) => "No result\n".to_owned(),
            (true, true) => legacy(test),
            (true, false) => beside(&blocks(test), room, paint),
        };
    }
    text
}

/// Figures that belong together, with their names.
type Block = (&'static str, Vec<(String, String)>);

fn blocks(test: TestReport<'_>) -> Vec<Block> {
    let shown = |figure: Option<f64>, form: &dyn Fn(f64) -> String| {
        figure.map_or_else(|| NONE.to_owned(), form)
    };
    let named = |names: &[(&str, String)]| -> Vec<(String, String)> {
        names.iter().map(|(name, text)| ((*name).to_owned(), text.clone())).collect()
    };
    let two = |figure: f64| format!("{figure:.2}");
    let (cpu, memory) = ("avg_cpu_util_percent", "avg_memory_util_percent");
    let network = "avg_network_util_bps";
    let load = |of, name| shown(test.load(of, name), &two);
    let bps = |name| shown(test.load(network, name), &whole);
    // fio counts bandwidths in KiB a second.
    let kib = |kib: f64| bytes(kib * 1024.0);
    let spread = |of: &str, deviation: &str, form: &dyn Fn(f64) -> String| {
        let figure = |name: &str| test.figure(&format!("{of}_{name}"));
        named(&[
            ("Min", shown(figure("min"), form)),
            ("Max", shown(figure("max"), form)),
            ("Mean", shown(figure("mean"), form)),
            ("StdDev", shown(figure(deviation), form)),
            ("Samples", shown(figure("samples"), &whole)),
        ])
    };
    let microseconds = |name| shown(test.latency(name), &|ns| two(ns / 1000.0));
    let buckets = test.buckets().into_iter().map(|(bound, share)| (bound, two(share)));
    vec![
        (
            "Overall",
            named(&[
                ("BW/s", test.bandwidth_text()),
                ("IOPS", test.iops_text()),
                ("I/O", shown(test.figure("io_bytes"), &bytes)),
                ("Time", shown(test.of_job("job_runtime"), &|ms| format!("{:.0}s", ms / 1000.0))),
            ]),
        ),
        (
            "CPU (%)",
            named(&[
                ("Total", load(cpu, "total")),
                ("User", shown(test.of_job("usr_cpu"), &two)),
                ("Sys", shown(test.of_job("sys_cpu"), &two)),
                ("OSD", load(cpu, "ceph-osd")),
                ("MON", load(cpu, "ceph-mon")),
            ]),
        ),
        (
            "Memory (%)",
            named(&[
                ("Total", load(memory, "total")),
                ("OSD", load(memory, "ceph-osd")),
                ("MON", load(memory, "ceph-mon")),
            ]),
        ),
        (
            "Network (bps)",
            named(&[("Total", bps("total")), ("Sent", bps("sent")), ("Recv", bps("recv"))]),
        ),
        ("Bandwidth", spread("bw", "dev", &kib)),
        ("IOPS", spread("iops", "stddev", &whole)),
        (
            "Latency (μs)",
            named(&[
                ("Min", microseconds("min")),
                ("Max", microseconds("max")),
                ("Mean", microseconds("mean")),
                ("StdDev", microseconds("stddev")),
            ]),
        ),
        ("Buckets (μs/%)", buckets.collect()),
    ]
}

/// The blocks beside each other, as many as there is room for; then the next ones.
fn beside(blocks: &[Block], room: usize, paint: Paint) -> String {
    let mut text = String::new();
    let mut rest = blocks;
    while !rest.is_empty() {
        let mut taken = 0;
        let mut used = 0;
        while taken < rest.len() && (taken == 0 || used + width(&rest[taken]) <= room) {
            used += width(&rest[taken]) + GAP;
            taken += 1;
        }
        let (line, later) = rest.split_at(taken);
        text += &line_of(line, paint);
        rest = later;
        if !rest.is_empty() {
            text.push('\n');
        }
    }
    text
}

const GAP: usize = 3;

/// Widths of the names and of the figures of a block.
fn widths((title, figures): &Block) -> (usize, usize) {
    let longest = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
    let name = longest(&mut figures.iter().map(|(name, _)| name.chars().count()));
    let figure = longest(&mut figures.iter().map(|(_, figure)| figure.chars().count()));
    let least = title.chars().count().saturating_sub(name + 1);
    (name, figure.max(least))
}

fn width(block: &Block) -> usize {
    let (name, figure) = widths(block);
    name + 1 + figure
}

fn line_of(blocks: &[Block], paint: Paint) -> String {
    let height = blocks.iter().map(|(_, figures)| figures.len()).max().unwrap_or(0);
    let mut lines = vec![Vec::new(); height + 1];
    for block in blocks {
        let (name, figure) = widths(block);
        lines[0].push(paint.bold(format!("{:1$}", block.0, name + 1 + figure)));
        for (at, line) in lines.iter_mut().skip(1).enumerate() {
            line.push(match block.1.get(at) {
                Some((label, text)) => format!("{label:name$} {text:>figure$}"),
                None => " ".repeat(name + 1 + figure),
            });
        }
    }
    let joined = lines.iter().map(|cells| cells.join(&" ".repeat(GAP)).trim_end().to_owned());
    joined.map(|line| line + "\n").collect()
}

/// A result of texts: a line for what was done in all, and one for each kind of figures.
fn legacy(test: TestReport<'_>) -> String {
    const PARTS: [(&str, &str, &[&str]); 5] = [
        ("overall", "Overall", &["iosize", "bandwidth", "iops", "runtime"]),
        ("bandwidth", "Bandwidth", &["min", "max", "mean", "stdev", "numsamples"]),
        ("iops", "IOPS", &["min", "max", "mean", "stdev", "numsamples"]),
        ("latency", "Latency (μs)", &["min", "max", "mean", "stdev"]),
        ("cpu", "CPU (%)", &["user", "system", "ctxsw", "majfault", "minfault"]),
    ];
    let line = |(part, title, figures): &(&str, &str, &[&str])| {
        let figures: Vec<String> = figures
            .iter()
            .filter_map(|figure| Some(format!("{figure} {}", test.text(part, figure)?)))
            .collect();
        let figures = if figures.is_empty() { NONE.to_owned() } else { figures.join("  ") };
        format!("{title:13} {figures}\n")
    };
    PARTS.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(at: usize) -> String {
        let benchmarks: Vec<Benchmark> =
            serde_json::from_str(include_str!("../../../tests/wire/benchmarks.json")).unwrap();
        view(&benchmarks[at], 100, Paint::OFF)
    }

    #[test]
    fn a_benchmark_of_each_format_in_detail() {
        crate::golden::check("benchmark-info.txt", &shown(1));
        crate::golden::check("benchmark-info-format-1.txt", &shown(2));
        crate::golden::check("benchmark-info-format-0.txt", &shown(3));
    }

    #[test]
    fn one_at_work_has_no_figures_yet() {
        assert!(shown(0).ends_with("Running\n"), "{}", shown(0));
    }

    #[test]
    fn figures_go_into_more_lines_where_there_is_little_room() {
        let benchmarks: Vec<Benchmark> =
            serde_json::from_str(include_str!("../../../tests/wire/benchmarks.json")).unwrap();
        let text = view(&benchmarks[1], 60, Paint::OFF);
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
    }
}
