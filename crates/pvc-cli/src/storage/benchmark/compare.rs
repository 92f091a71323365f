//! Two benchmarks beside each other.

use pvc_api_types::Benchmark;
use serde_json::{Map, Value, json};

use super::bars::{Bar, chart, judged, short_name};
use super::report::{NONE, Report, TESTS};
use crate::output::{Paint, harmless};

/// Ratio of the result of `other` to that of `one`; `None` if it is not known.
fn ratio(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    let (one, other) = (one?, other.filter(|other| *other > 0.0)?);
    Some(one / other)
}

/// Each test of both, drawn below each other, with the ratio.
pub fn view(one: &Benchmark, other: &Benchmark, room: usize, paint: Paint) -> String {
    let mut text = String::new();
    let (Some(left), Some(right)) = (Report::read(one), Report::read(other)) else {
        return "A benchmark that is at work cannot be compared.\n".to_owned();
    };
    for (name, title, depth) in TESTS {
        let (a, b) = (judged(name, left.test(name)), judged(name, right.test(name)));
        let times = ratio(a.0, b.0).map_or_else(|| NONE.to_owned(), |it| format!("{it:.2}x"));
        let size = if name.contains("4K") { "4K" } else { "4M" };
        let heading = format!("{} ({size}): {times}", short_name(title, depth));
        let bar = |benchmark: &Benchmark, (figure, text): (Option<f64>, String)| Bar {
            label: harmless(&benchmark.job, &[]),
            figure,
            text,
        };
        text += &chart(&heading, &[bar(one, a), bar(other, b)], room, paint);
        text.push('\n');
    }
    text.pop();
    text
}

/// The same for programs.
pub fn ratios(one: &Benchmark, other: &Benchmark) -> Value {
    let mut tests = Map::new();
    if let (Some(left), Some(right)) = (Report::read(one), Report::read(other)) {
        for (name, ..) in TESTS {
            let (a, b) = (left.test(name), right.test(name));
            let of = json!({
                "bandwidth": ratio(a.bandwidth(), b.bandwidth()),
                "iops": ratio(a.iops(), b.iops()),
            });
            tests.insert(name.to_owned(), of);
        }
    }
    json!({ "job": one.job, "compared_with": other.job, "ratios": tests })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn benchmarks() -> Vec<Benchmark> {
        serde_json::from_str(include_str!("../../../tests/wire/benchmarks.json")).unwrap()
    }

    #[test]
    fn two_benchmarks_beside_each_other() {
        let all = benchmarks();
        let text = view(&all[1], &all[2], 80, Paint::OFF);
        crate::golden::check("benchmark-compare.txt", &text);
        let ratios = ratios(&all[1], &all[2]);
        assert_eq!(ratios["ratios"]["seq_read"]["bandwidth"], 2.0);
    }

    #[test]
    fn one_of_each_format_is_compared_with_another() {
        let all = benchmarks();
        for other in &all[1..4] {
            for one in &all[1..4] {
                let ratios = ratios(one, other);
                let tests = ratios["ratios"].as_object().expect("they are compared");
                assert_eq!(tests.len(), TESTS.len());
                let is_known = tests.values().all(|test| test["iops"].is_f64());
                assert!(is_known, "{} and {}: {ratios}", one.job, other.job);
            }
        }
    }

    #[test]
    fn what_is_not_known_of_one_has_no_ratio() {
        assert_eq!((ratio(None, Some(1.0)), ratio(Some(1.0), Some(0.0))), (None, None));
        assert_eq!(ratio(Some(1.0), Some(2.0)), Some(0.5));
        let all = benchmarks();
        assert!(view(&all[0], &all[1], 80, Paint::OFF).contains("at work"));
    }
}
