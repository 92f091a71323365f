//! Results of benchmarks, in all formats.
//!
//! 0 has texts, as an earlier PVC made them; 1 has the reports of fio; 2 has the load of the node
//! beside them.

use pvc_api_types::Benchmark;
use serde_json::Value;

use crate::output::{harmless, units};

/// The tests by their names in results: their names for people, and their queue depths.
pub const TESTS: [(&str, &str, u32); 8] = [
    ("seq_read", "Sequential read (4M blocks)", 64),
    ("seq_write", "Sequential write (4M blocks)", 64),
    ("rand_read_4M", "Random read (4M blocks)", 64),
    ("rand_write_4M", "Random write (4M blocks)", 64),
    ("rand_read_4K", "Random read (4K blocks)", 64),
    ("rand_write_4K", "Random write (4K blocks)", 64),
    ("rand_read_4K_lowdepth", "Random read (4K blocks)", 1),
    ("rand_write_4K_lowdepth", "Random write (4K blocks)", 1),
];

/// Of a figure that there is not.
pub const NONE: &str = "N/A";

/// Result of a benchmark that is done.
pub struct Report<'a>(&'a Value);

impl<'a> Report<'a> {
    /// `None` if the benchmark is at work.
    pub fn read(benchmark: &'a Benchmark) -> Option<Self> {
        let result = &benchmark.benchmark_result;
        (!result.is_string()).then_some(Report(result))
    }

    pub fn test(&self, name: &str) -> TestReport<'a> {
        let (test, empty) = (self.0.get(name), &Value::Null);
        let direction = if name.contains("read") { "read" } else { "write" };
        TestReport { all: test.unwrap_or(empty), direction }
    }
}

/// Result of a test; every figure of it may be missing.
#[derive(Clone, Copy)]
pub struct TestReport<'a> {
    all: &'a Value,
    direction: &'static str,
}

impl<'a> TestReport<'a> {
    pub fn is_there(self) -> bool {
        self.all.is_object()
    }

    /// Whether it is one of texts.
    pub fn is_text(self) -> bool {
        self.all.get("jobs").is_none() && self.all.get("overall").is_some()
    }

    /// The text of format 0: a figure of a part.
    pub fn text(self, part: &str, figure: &str) -> Option<String> {
        match self.all.get(part)?.get(figure)? {
            Value::String(text) => Some(harmless(text, &[])),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// The same, if it is a number.
    fn number(self, part: &str, figure: &str) -> Option<f64> {
        let number = self.text(part, figure)?.parse::<f64>().ok();
        number.filter(|number| number.is_finite() && *number >= 0.0)
    }

    fn job(self) -> Option<&'a Value> {
        self.all.pointer("/jobs/0")
    }

    /// A figure of the job as a whole.
    pub fn of_job(self, name: &str) -> Option<f64> {
        self.job()?.get(name)?.as_f64()
    }

    /// A figure of what was read or written.
    pub fn figure(self, name: &str) -> Option<f64> {
        self.job()?.get(self.direction)?.get(name)?.as_f64()
    }

    /// Nanoseconds.
    pub fn latency(self, name: &str) -> Option<f64> {
        self.job()?.get(self.direction)?.get("lat_ns")?.get(name)?.as_f64()
    }

    /// A figure of the load of the node.
    pub fn load(self, of: &str, name: &str) -> Option<f64> {
        self.all.get(of)?.get(name)?.as_f64()
    }

    /// Shares of the requests in percent, by the microseconds below which their latency was.
    pub fn buckets(self) -> Vec<(String, f64)> {
        let Some(job) = self.job() else { return Vec::new() };
        let mut found = Vec::new();
        for (unit, microseconds) in
            [("latency_ns", 0.001), ("latency_us", 1.0), ("latency_ms", 1000.0)]
        {
            let members = job.get(unit).and_then(Value::as_object).into_iter().flatten();
            let mut of_unit: Vec<(f64, String, f64)> = members
                .filter_map(|(bound, share)| {
                    let share = share.as_f64().filter(|share| *share > 0.0)?;
                    let (bound, sign) = match bound.strip_prefix(">=") {
                        Some(bound) => (bound, ">="),
                        None => (bound.as_str(), ""),
                    };
                    let bound = bound.parse::<f64>().ok()? * microseconds;
                    Some((bound, format!("{sign}{bound}"), share))
                })
                .collect();
            of_unit.sort_by(|a, b| a.0.total_cmp(&b.0));
            found.extend(of_unit.into_iter().map(|(_, bound, share)| (bound, share)));
        }
        found
    }

    /// Bytes a second. In format 0 the mean is a number of KiB.
    pub fn bandwidth(self) -> Option<f64> {
        let of_text = || Some(self.number("bandwidth", "mean")? * 1024.0);
        self.figure("bw_bytes").or_else(of_text)
    }

    pub fn iops(self) -> Option<f64> {
        self.figure("iops").or_else(|| self.number("iops", "mean"))
    }

    pub fn bandwidth_text(self) -> String {
        let text = self.text("overall", "bandwidth");
        text.or_else(|| self.bandwidth().map(bytes)).unwrap_or_else(|| NONE.to_owned())
    }

    pub fn iops_text(self) -> String {
        let text = self.text("overall", "iops");
        text.or_else(|| self.iops().map(whole)).unwrap_or_else(|| NONE.to_owned())
    }
}

/// A number of bytes, in the unit that reads best.
pub fn bytes(bytes: f64) -> String {
    units::bytes(bytes as i64)
}

pub fn whole(figure: f64) -> String {
    format!("{figure:.0}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(result: Value) -> Benchmark {
        Benchmark { id: 1, job: "x".to_owned(), test_format: 2, benchmark_result: result }
    }

    #[test]
    fn what_is_missing_or_of_another_kind_is_no_figure() {
        for result in [json!({}), json!([]), json!(null), json!({"seq_read": 7})] {
            let benchmark = of(result);
            let report = Report::read(&benchmark).expect("it is done");
            let test = report.test("seq_read");
            assert_eq!((test.bandwidth_text(), test.iops_text()), (NONE.into(), NONE.into()));
            assert!(test.buckets().is_empty() && test.latency("min").is_none());
        }
        assert!(Report::read(&of(json!("Running"))).is_none());
    }

    #[test]
    fn buckets_are_in_microseconds_and_in_order() {
        let job = json!({
            "latency_us": {"1000": 4.0, "500": 2.0, "2": 0.0},
            "latency_ns": {"750": 1.5},
            "latency_ms": {">=2000": 0.5, "2": 3.0},
        });
        let benchmark = of(json!({"seq_read": {"jobs": [job]}}));
        let buckets = Report::read(&benchmark).expect("it is done").test("seq_read").buckets();
        let bounds: Vec<&str> = buckets.iter().map(|(bound, _)| bound.as_str()).collect();
        assert_eq!(bounds, ["0.75", "500", "1000", "2000", ">=2000000"]);
    }

    #[test]
    fn a_hostile_text_of_an_old_result_is_harmless() {
        let benchmark = of(json!({"seq_read": {"overall": {"bandwidth": "\u{1b}[31m1"}}}));
        let report = Report::read(&benchmark).expect("it is done");
        assert!(!report.test("seq_read").bandwidth_text().contains('\u{1b}'));
    }

    #[test]
    fn a_text_of_an_old_result_that_is_a_number_is_a_figure() {
        let of = |mean: &str| {
            let part = json!({"mean": mean});
            let test = json!({"overall": {}, "bandwidth": part, "iops": part});
            let benchmark = of(json!({"seq_read": test}));
            let test = Report::read(&benchmark).expect("it is done").test("seq_read");
            (test.bandwidth(), test.iops())
        };
        assert_eq!(of("2.5"), (Some(2560.0), Some(2.5)));
        for odd in ["", "1 GiB/s", "-1", "inf", "NaN"] {
            assert_eq!(of(odd), (None, None), "{odd}");
        }
    }
}
