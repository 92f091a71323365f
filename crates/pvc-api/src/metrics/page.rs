//! The text format: every metric with its help, its type and all its samples in one block.

use std::fmt::{Display, Write};
use std::sync::Arc;

#[derive(Default)]
pub struct Page {
    text: String,
    blocks: Vec<Block>,
    /// Without help and types.
    is_bare: bool,
}

/// Ends of a metric's parts in the text.
struct Block {
    /// The end of its help and type.
    head: usize,
    /// The end of its samples.
    end: usize,
}

/// The samples of a page without help and types, metric by metric: what one record adds to every
/// page.
pub struct Share {
    text: Box<str>,
    /// Ends of the samples of each metric.
    ends: Box<[usize]>,
}

impl Share {
    fn of(&self, metric: usize) -> &str {
        let start = metric.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[metric]]
    }
}

/// The samples of one metric.
pub struct Samples<'a> {
    text: &'a mut String,
    name: &'a str,
}

impl Page {
    /// Adds a gauge with the samples that `fill` gives it.
    pub fn gauge(&mut self, name: &str, help: impl Display, fill: impl FnOnce(&mut Samples)) {
        let text = &mut self.text;
        if !self.is_bare {
            writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge")
                .expect("memory takes every byte");
        }
        let head = text.len();
        fill(&mut Samples { text, name });
        self.blocks.push(Block { head, end: self.text.len() });
    }

    /// A page of samples alone, to be kept of one record.
    pub fn bare() -> Self {
        Page { is_bare: true, ..Page::default() }
    }

    /// Part of a bare page that is kept.
    pub fn into_share(self) -> Share {
        debug_assert!(self.is_bare, "help and types are those of the page it is gathered into");
        Share { ends: self.blocks.iter().map(|block| block.end).collect(), text: self.text.into() }
    }

    /// Adds the metrics of `heads`, a page without samples, each with the samples that `shares`
    /// have of it. The shares are of pages with the same metrics in the same order.
    pub fn gather(&mut self, heads: &Page, shares: &[Arc<Share>]) {
        self.text
            .reserve(heads.text.len() + shares.iter().map(|share| share.text.len()).sum::<usize>());
        let mut start = 0;
        for (metric, block) in heads.blocks.iter().enumerate() {
            self.text.push_str(&heads.text[start..block.head]);
            let head = self.text.len();
            shares.iter().for_each(|share| self.text.push_str(share.of(metric)));
            self.blocks.push(Block { head, end: self.text.len() });
            start = block.end;
        }
    }

    /// Adds a gauge with one sample and no labels.
    pub fn figure(&mut self, name: &str, help: &str, value: f64) {
        self.gauge(name, help, |samples| samples.add(&[], value));
    }

    pub fn finish(self) -> String {
        self.text
    }
}

impl Samples<'_> {
    pub fn add(&mut self, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(self.name);
        for (at, (label, content)) in labels.iter().enumerate() {
            self.text.push_str(if at == 0 { "{" } else { "," });
            self.text.push_str(label);
            self.text.push_str("=\"");
            push_escaped(self.text, content);
            self.text.push('"');
        }
        let close = if labels.is_empty() { "" } else { "}" };
        writeln!(self.text, "{close} {}", Number(value)).expect("memory takes every byte");
    }

    /// A sample that says something with its labels alone.
    pub fn info(&mut self, labels: &[(&str, &str)]) {
        self.add(labels, 1.0);
    }
}

fn push_escaped(text: &mut String, content: &str) {
    for c in content.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
}

struct Number(f64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let whole = self.0 as i64;
        match self.0 {
            // Most figures are whole, and integers are written several times as fast.
            value if whole as f64 == value && whole != i64::MAX => whole.fmt(f),
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            value => value.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Page;

    #[test]
    fn labels_are_escaped_and_whole_numbers_have_no_fraction() {
        let mut page = Page::default();
        page.gauge("a", "What it is", |samples| {
            samples.add(&[("x", "1\\\"\n"), ("y", "ü")], 2.0);
            samples.add(&[], 0.25);
        });
        assert_eq!(
            page.finish(),
            "# HELP a What it is\n# TYPE a gauge\na{x=\"1\\\\\\\"\\n\",y=\"ü\"} 2\na 0.25\n"
        );
    }
}
