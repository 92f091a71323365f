//! Figures drawn as bars.

use super::report::{NONE, Report, TESTS, TestReport, bytes, whole};
use crate::output::Paint;

/// Columns of the longest bar, if there is room.
const LONGEST: usize = 40;

/// A figure that is drawn.
pub struct Bar {
    pub label: String,
    pub figure: Option<f64>,
    pub text: String,
}

/// The bars below a heading, the longest for the largest figure.
pub fn chart(heading: &str, bars: &[Bar], room: usize, paint: Paint) -> String {
    let label = bars.iter().map(|bar| bar.label.chars().count()).max().unwrap_or(0);
    let text = bars.iter().map(|bar| bar.text.chars().count()).max().unwrap_or(0);
    let most = bars.iter().filter_map(|bar| bar.figure).fold(0.0, f64::max);
    let longest = room.saturating_sub(label + text + 5).clamp(5, LONGEST);
    let mut drawn = format!("{}\n", paint.bold(heading));
    for bar in bars {
        let length = match bar.figure {
            Some(figure) if figure > 0.0 => {
                ((figure / most * longest as f64).round() as usize).clamp(1, longest)
            }
            _ => 0,
        };
        let (filled, rest) = ("█".repeat(length), " ".repeat(longest - length));
        drawn += &format!("  {:label$} {filled}{rest} {:>text$}\n", bar.label, bar.text);
    }
    drawn
}

/// The figure that a test is judged by: bandwidth of large blocks, requests a second of small ones.
pub fn judged(name: &str, test: TestReport<'_>) -> (Option<f64>, String) {
    if name.contains("4K") {
        (test.iops(), test.iops().map_or_else(|| NONE.to_owned(), whole))
    } else {
        let text = |bandwidth| format!("{}/s", bytes(bandwidth));
        (test.bandwidth(), test.bandwidth().map_or_else(|| NONE.to_owned(), text))
    }
}

/// The name of a test for people, without the size of its blocks.
pub fn short_name(title: &str, depth: u32) -> String {
    let title = title.split(" (").next().unwrap_or(title);
    if depth == 1 { format!("{title}, one at a time") } else { title.to_owned() }
}

/// Bandwidths and requests a second of a result.
pub fn charts(report: &Report<'_>, room: usize, paint: Paint) -> String {
    let bars = |small: bool| -> Vec<Bar> {
        let tests = TESTS.iter().filter(|(name, ..)| name.contains("4K") == small);
        let bar = |&(name, title, depth): &(&str, &str, u32)| {
            let (figure, text) = judged(name, report.test(name));
            Bar { label: short_name(title, depth), figure, text }
        };
        tests.map(bar).collect()
    };
    let large = chart("Bandwidth (4M blocks)", &bars(false), room, paint);
    let small = chart("Requests a second (4K blocks)", &bars(true), room, paint);
    format!("{large}\n{small}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, figure: Option<f64>) -> Bar {
        let text = figure.map_or_else(|| NONE.to_owned(), whole);
        Bar { label: label.to_owned(), figure, text }
    }

    #[test]
    fn the_largest_figure_has_the_longest_bar_and_none_has_no_bar() {
        let bars = [bar("a", Some(100.0)), bar("bb", Some(25.0)), bar("c", None)];
        let drawn = chart("Heading", &bars, 80, Paint::OFF);
        let lengths: Vec<usize> = drawn.lines().map(|line| line.matches('█').count()).collect();
        assert_eq!(lengths, [0, 40, 10, 0]);
        assert!(drawn.lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn a_small_figure_is_seen_and_zeros_and_a_narrow_terminal_are_no_trouble() {
        let drawn = chart("H", &[bar("a", Some(1e9)), bar("b", Some(1.0))], 20, Paint::OFF);
        let last = drawn.lines().last().expect("two bars");
        assert_eq!(last.matches('█').count(), 1);
        let zeros = chart("H", &[bar("a", Some(0.0)), bar("b", None)], 80, Paint::OFF);
        assert!(!zeros.contains('█'));
    }
}
