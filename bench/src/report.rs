//! Figures, as people and programs read them.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

/// Something measured.
#[derive(Debug, Clone, PartialEq)]
pub enum Quantity {
    Time(Spread),
    Bytes(u64),
    /// Number of what the figure's name says.
    Count(f64),
}

/// Many measurements of one thing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub p50: Duration,
    pub p99: Duration,
    pub samples: usize,
}

impl Spread {
    /// # Panics
    /// If there are no samples.
    pub fn of(mut samples: Vec<Duration>) -> Self {
        assert!(!samples.is_empty(), "nothing was measured");
        samples.sort_unstable();
        let at = |part: usize| samples[(samples.len() * part / 100).min(samples.len() - 1)];
        Spread { p50: at(50), p99: at(99), samples: samples.len() }
    }

    /// The same for each of `parts` equal parts.
    pub fn per(self, parts: usize) -> Self {
        let part = |whole: Duration| whole.div_f64(parts.max(1) as f64);
        Spread { p50: part(self.p50), p99: part(self.p99), samples: self.samples }
    }

    /// Returns what is left when `other` was part of every measurement.
    pub fn without(self, other: Spread) -> Self {
        let p50 = self.p50.saturating_sub(other.p50);
        // The slow ones of both rarely fall together: only what is usual may be taken off.
        let p99 = self.p99.saturating_sub(other.p50);
        Spread { p50, p99, samples: self.samples }
    }
}

impl Quantity {
    /// The number that ratios are made of: the median of times.
    fn scalar(&self) -> f64 {
        match self {
            Quantity::Time(spread) => spread.p50.as_secs_f64(),
            Quantity::Bytes(bytes) => *bytes as f64,
            Quantity::Count(count) => *count,
        }
    }

    fn json(&self) -> Value {
        match self {
            Quantity::Time(spread) => json!({
                "p50_ns": spread.p50.as_nanos() as u64,
                "p99_ns": spread.p99.as_nanos() as u64,
                "samples": spread.samples,
            }),
            Quantity::Bytes(bytes) => json!({ "bytes": bytes }),
            Quantity::Count(count) => json!({ "count": count }),
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Quantity::Time(spread) => write!(f, "{} (p99 {})", time(spread.p50), time(spread.p99)),
            Quantity::Bytes(size) => f.write_str(&bytes(*size)),
            Quantity::Count(count) if count.fract() == 0.0 => write!(f, "{count:.0}"),
            Quantity::Count(count) => write!(f, "{count:.2}"),
        }
    }
}

/// Largest value that a figure may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// Time of the slowest hundredth.
    P99(Duration),
    /// Time of the median.
    P50(Duration),
    Bytes(u64),
    Count(f64),
}

impl Budget {
    fn holds(self, measured: &Quantity) -> bool {
        match (self, measured) {
            (Budget::P99(limit), Quantity::Time(spread)) => spread.p99 <= limit,
            (Budget::P50(limit), Quantity::Time(spread)) => spread.p50 <= limit,
            (Budget::Bytes(limit), Quantity::Bytes(bytes)) => *bytes <= limit,
            (Budget::Count(limit), Quantity::Count(count)) => *count <= limit,
            _ => panic!("a budget of {self:?} says nothing about {measured:?}"),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::P99(limit) => write!(f, "p99 {}", time(*limit)),
            Budget::P50(limit) => f.write_str(&time(*limit)),
            Budget::Bytes(limit) => f.write_str(&bytes(*limit)),
            Budget::Count(limit) => write!(f, "{limit}"),
        }
    }
}

/// A line of the report.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    pub name: String,
    outcome: Outcome,
    reference: Option<(String, Quantity)>,
    budget: Option<Budget>,
}

#[derive(Debug, Clone, PartialEq)]
enum Outcome {
    Measured(Quantity),
    /// Reason for which it could not be measured.
    Missing(String),
}

impl Figure {
    pub fn new(name: impl Into<String>, measured: Quantity) -> Self {
        Figure {
            name: name.into(),
            outcome: Outcome::Measured(measured),
            reference: None,
            budget: None,
        }
    }

    pub fn time(name: impl Into<String>, spread: Spread) -> Self {
        Figure::new(name, Quantity::Time(spread))
    }

    pub fn missing(name: impl Into<String>, why: impl fmt::Display) -> Self {
        let outcome = Outcome::Missing(why.to_string());
        Figure { name: name.into(), outcome, reference: None, budget: None }
    }

    /// Sets the measured quantity against a reference.
    pub fn against(mut self, what: impl Into<String>, reference: Quantity) -> Self {
        self.reference = Some((what.into(), reference));
        self
    }

    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Ratio of the figure to its reference.
    pub fn ratio(&self) -> Option<f64> {
        let (Outcome::Measured(measured), Some((_, reference))) = (&self.outcome, &self.reference)
        else {
            return None;
        };
        (reference.scalar() > 0.0).then(|| measured.scalar() / reference.scalar())
    }

    /// Whether it keeps its budget, if it has one and was measured.
    pub fn is_within(&self) -> Option<bool> {
        match (&self.outcome, self.budget) {
            (Outcome::Measured(measured), Some(budget)) => Some(budget.holds(measured)),
            _ => None,
        }
    }

    fn cells(&self) -> [String; 5] {
        let measured = match &self.outcome {
            Outcome::Measured(measured) => measured.to_string(),
            Outcome::Missing(why) => format!("not measured: {why}"),
        };
        let reference =
            self.reference.as_ref().map(|(what, quantity)| format!("{what}: {quantity}"));
        let ratio = self.ratio().map(|ratio| format!("{} ×", significant(ratio)));
        let budget = self.budget.map(|budget| match self.is_within() {
            Some(true) => format!("{budget}: within"),
            Some(false) => format!("{budget}: OVER"),
            None => budget.to_string(),
        });
        [
            self.name.clone(),
            measured,
            ratio.unwrap_or_default(),
            reference.unwrap_or_default(),
            budget.unwrap_or_default(),
        ]
    }

    fn json(&self) -> Value {
        let (measured, missing) = match &self.outcome {
            Outcome::Measured(measured) => (measured.json(), Value::Null),
            Outcome::Missing(why) => (Value::Null, json!(why)),
        };
        let (against, reference) = match &self.reference {
            Some((what, reference)) => (json!(what), reference.json()),
            None => (Value::Null, Value::Null),
        };
        json!({
            "figure": self.name,
            "measured": measured,
            "not_measured": missing,
            "ratio": self.ratio(),
            "reference": reference,
            "reference_is": against,
            "budget": self.budget.map(|budget| budget.to_string()),
            "within": self.is_within(),
        })
    }
}

/// Figures that belong together.
#[derive(Debug)]
pub struct Section {
    pub title: String,
    pub figures: Vec<Figure>,
}

/// The sections as a table for a terminal.
pub fn table(sections: &[Section]) -> String {
    let head = ["", "measured", "ratio", "to", "budget"].map(str::to_owned);
    let mut text = String::new();
    for section in sections {
        let rows: Vec<[String; 5]> = std::iter::once(head.clone())
            .chain(section.figures.iter().map(Figure::cells))
            .collect();
        let width =
            |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2), width(3), width(4)];
        text.push_str(&format!("{}\n", section.title));
        for row in rows {
            let [name, measured, ratio, reference, budget] = row;
            let [w0, w1, w2, w3, _] = widths;
            let line =
                format!("  {name:w0$}  {measured:w1$}  {ratio:>w2$}  {reference:w3$}  {budget}");
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

/// The sections as JSON.
pub fn to_json(sections: &[Section]) -> Value {
    let section = |section: &Section| {
        let figures: Vec<Value> = section.figures.iter().map(Figure::json).collect();
        json!({ "section": section.title, "figures": figures })
    };
    Value::Array(sections.iter().map(section).collect())
}

fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match time.as_nanos() {
        0..1_000 => format!("{} ns", time.as_nanos()),
        1_000..1_000_000 => format!("{} µs", significant(seconds * 1e6)),
        1_000_000..1_000_000_000 => format!("{} ms", significant(seconds * 1e3)),
        _ => format!("{} s", significant(seconds)),
    }
}

pub fn bytes(bytes: u64) -> String {
    let (value, unit) = match bytes {
        0..1_000 => return format!("{bytes} B"),
        1_000..1_000_000 => (1e3, "kB"),
        1_000_000.. => (1e6, "MB"),
    };
    format!("{} {unit}", significant(bytes as f64 / value))
}

/// Three significant digits at most.
fn significant(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        size if size >= 0.1 => format!("{value:.2}").trim_end_matches(".00").to_owned(),
        size if size >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    }
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_spread_knows_its_median_and_its_slowest_hundredth() {
        let spread = Spread::of((1..=200).rev().map(ms).collect());
        assert_eq!((spread.p50, spread.p99, spread.samples), (ms(101), ms(199), 200));
        assert_eq!(Spread::of(vec![ms(7)]).p99, ms(7));
    }

    #[test]
    fn a_budget_for_the_slowest_is_not_kept_by_the_median() {
        let spread = Spread { p50: ms(1), p99: ms(30), samples: 200 };
        let figure = Figure::time("list", spread);
        assert_eq!(figure.clone().budget(Budget::P99(ms(20))).is_within(), Some(false));
        assert_eq!(figure.budget(Budget::P50(ms(20))).is_within(), Some(true));
    }

    #[test]
    fn a_ratio_is_made_of_medians() {
        let spread = |p50| Quantity::Time(Spread { p50: ms(p50), p99: ms(90), samples: 9 });
        assert_eq!(Figure::new("a", spread(30)).against("b", spread(20)).ratio(), Some(1.5));
    }

    #[test]
    fn the_table_says_what_is_over_and_what_is_missing() {
        let over = Figure::new("requests", Quantity::Count(4.0)).budget(Budget::Count(3.0));
        let missing = Figure::missing("start", "`pvc` is not built");
        let text = table(&[Section { title: "one tree".into(), figures: vec![over, missing] }]);
        assert!(text.contains("3: OVER"), "{text}");
        assert!(text.contains("not measured: `pvc` is not built"), "{text}");
    }

    #[test]
    fn numbers_are_short_enough_to_compare() {
        assert_eq!(time(Duration::from_nanos(950)), "950 ns");
        assert_eq!(time(Duration::from_micros(1_234)), "1.23 ms");
        assert_eq!(time(Duration::from_millis(123_456)), "123 s");
        assert_eq!(bytes(25_030_000), "25 MB");
        assert_eq!(grouped(10_000), "10,000");
        assert_eq!(significant(0.0004), "4.0e-4");
    }
}
