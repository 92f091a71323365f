//! Tables: left-aligned columns one space apart, a line of group headings above the headings.

use std::fmt::Write as _;

use super::paint::{Colour, Paint};

/// One cell: pieces of text, each in its colour. Its width is that of the text, whatever colour.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    pieces: Vec<(String, Option<Colour>)>,
}

impl Cell {
    pub fn coloured(text: impl Into<String>, colour: Colour) -> Self {
        Self { pieces: vec![(text.into(), Some(colour))] }
    }

    /// Adds a piece at the end.
    pub fn push(&mut self, text: &str, colour: Option<Colour>) {
        self.pieces.push((text.to_owned(), colour));
    }

    /// How many columns it takes.
    fn width(&self) -> usize {
        self.pieces.iter().map(|(text, _)| columns(text)).sum()
    }

    fn painted(&self, paint: Paint) -> String {
        let painted = |(text, colour): &(String, Option<Colour>)| match colour {
            Some(colour) => paint.colour(*colour, text),
            None => text.clone(),
        };
        self.pieces.iter().map(painted).collect()
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { pieces: vec![(text.into(), None)] }
    }
}

/// A column: its heading, and the width below which it never shrinks.
#[derive(Debug, Clone, Copy)]
struct Column {
    heading: &'static str,
    least: usize,
}

/// A table being filled.
#[derive(Debug, Default)]
pub struct Table {
    /// Heading and number of columns of each group; none for a table without groups.
    groups: Vec<(&'static str, usize)>,
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
    indent: usize,
}

impl Table {
    pub fn new() -> Self {
        Self::default()
    }

    /// Shifts the whole table to the right.
    pub fn indented(self, indent: usize) -> Self {
        Self { indent, ..self }
    }

    /// Adds a group of columns, given as heading and least width.
    pub fn group(mut self, heading: &'static str, columns: &[(&'static str, usize)]) -> Self {
        self.groups.push((heading, columns.len()));
        self.columns(columns)
    }

    /// Adds columns without a group heading.
    pub fn columns(mut self, columns: &[(&'static str, usize)]) -> Self {
        self.columns.extend(columns.iter().map(|&(heading, least)| Column { heading, least }));
        self
    }

    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, without a newline at its end.
    pub fn render(&self, paint: Paint) -> String {
        let widths = self.widths();
        let mut lines = Vec::with_capacity(self.rows.len() + 2);
        if !self.groups.is_empty() {
            lines.push(paint.bold(self.group_line(&widths)));
        }
        let headings: Vec<Cell> = self.columns.iter().map(|column| column.heading.into()).collect();
        lines.push(paint.bold(line(&headings, &widths, Paint::OFF)));
        lines.extend(self.rows.iter().map(|row| line(row, &widths, paint)));
        let margin = " ".repeat(self.indent);
        let lines: Vec<String> = lines.into_iter().map(|line| format!("{margin}{line}")).collect();
        lines.join("\n")
    }

    fn widths(&self) -> Vec<usize> {
        let longest = |index: usize| self.rows.iter().map(move |row| row[index].width()).max();
        self.columns
            .iter()
            .enumerate()
            .map(|(index, column)| column.least.max(longest(index).unwrap_or(0) + 1))
            .collect()
    }

    fn group_line(&self, widths: &[usize]) -> String {
        let mut widths = widths.iter();
        let groups = self.groups.iter().map(|&(heading, count)| {
            let width = widths.by_ref().take(count).sum::<usize>() + count - 1;
            let dashes = width.saturating_sub(columns(heading) + 1);
            format!("{heading} {}", "-".repeat(dashes))
        });
        groups.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    }
}

fn line(cells: &[Cell], widths: &[usize], paint: Paint) -> String {
    let mut line = String::new();
    let last = cells.iter().rposition(|cell| cell.width() > 0).unwrap_or(0);
    for (index, (cell, width)) in cells.iter().zip(widths).enumerate().take(last + 1) {
        line.push_str(&cell.painted(paint));
        if index < last {
            let padding = width.saturating_sub(cell.width()) + 1;
            let _ = write!(line, "{:padding$}", "");
        }
    }
    line
}

/// How many columns a text takes.
fn columns(text: &str) -> usize {
    text.chars().count()
}
