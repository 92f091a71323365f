use clap::Args;
use pvc_api_types::Benchmark;
use pvc_api_types::operations::benchmark::{BenchmarkFilter, GetStorageCephBenchmark};

use super::report::Report;
use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::outcome::Outcome;
use crate::output::{Cell, Colour, Table};

/// List the benchmarks
///
/// The newest come first. The latest 20 are kept.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage benchmark list
  pvc storage benchmark list -f json")]
pub struct List {
    /// Only the benchmark with this name
    job: Option<String>,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.list.check()?;
        let filter = BenchmarkFilter { job: self.job.clone() };
        let answer = or_empty(pvc.client()?.read(GetStorageCephBenchmark, [], &filter))?;
        let what = ("benchmark", "pvc storage benchmark list");
        let benchmarks = self.list.read(pvc, &answer, self.job.is_some(), what)?;
        let Some(benchmarks): Option<Vec<Benchmark>> = benchmarks else { return Ok(()) };
        self.list.print(pvc, &benchmarks, |benchmark| benchmark.job.clone(), table)
    }
}

fn table(benchmarks: &[Benchmark]) -> Table {
    let figures = [("R/W Bandwith/s", 15), ("R/W IOPS", 10)];
    let mut table = Table::new()
        .group("Benchmarks", &[("Job", 20), ("Format", 6)])
        .group("Sequential (4M blocks)", &figures)
        .group("Random (4K blocks)", &figures);
    for benchmark in benchmarks {
        let mut row: Vec<Cell> =
            vec![benchmark.job.as_str().into(), benchmark.test_format.to_string().into()];
        row.extend(figures_of(benchmark));
        table.row(row);
    }
    table
}

fn figures_of(benchmark: &Benchmark) -> Vec<Cell> {
    let Some(report) = Report::read(benchmark) else {
        return vec![Cell::coloured("Running", Colour::Yellow); 4];
    };
    let pairs = [("seq_read", "seq_write"), ("rand_read_4K", "rand_write_4K")];
    let cells = pairs.into_iter().flat_map(|(read, write)| {
        let (read, write) = (report.test(read), report.test(write));
        [
            format!("{} / {}", read.bandwidth_text(), write.bandwidth_text()).into(),
            format!("{} / {}", read.iops_text(), write.iops_text()).into(),
        ]
    });
    cells.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn the_table_with_results_of_all_formats_and_one_at_work() {
        let benchmarks: Vec<Benchmark> =
            serde_json::from_str(include_str!("../../../tests/wire/benchmarks.json")).unwrap();
        let text = table(&benchmarks).render(Paint::OFF) + "\n";
        crate::golden::check("benchmark-list.txt", &text);
    }
}
