//! Details: a label in front of each value.

use super::paint::{Colour, Paint};

/// Lines of a label and a value, the values below each other.
pub struct Labels {
    paint: Paint,
    /// Column in which the values begin.
    width: usize,
    text: String,
}

impl Labels {
    pub fn new(paint: Paint, width: usize) -> Self {
        Self { paint, width, text: String::new() }
    }

    pub fn heading(&mut self, heading: &str) {
        self.text.push_str(&self.paint.bold(heading));
        self.text.push('\n');
    }

    /// A value that is empty is shown as `N/A`: scripts look for the last word of a line.
    pub fn line(&mut self, label: &str, value: impl AsRef<str>) {
        let value = Some(value.as_ref()).filter(|value| !value.is_empty()).unwrap_or("N/A");
        let padding = self.width.saturating_sub(label.len() + 1).max(1);
        self.text.push_str(&self.paint.colour(Colour::Purple, format!("{label}:")));
        self.text.push_str(&format!("{:padding$}{value}\n", ""));
    }

    /// Several values under one label; without any, `N/A`.
    pub fn lines(&mut self, label: &str, values: &[String]) {
        match values.split_first() {
            None => self.line(label, "N/A"),
            Some((first, rest)) => {
                self.line(label, first);
                for value in rest {
                    self.text.push_str(&format!("{:width$}{value}\n", "", width = self.width));
                }
            }
        }
    }

    /// A block of lines, such as a table, after its label.
    pub fn block(&mut self, block: &str) {
        self.text.push_str(block);
        self.text.push('\n');
    }

    pub fn blank(&mut self) {
        self.text.push('\n');
    }

    pub fn finish(self) -> String {
        self.text
    }
}
