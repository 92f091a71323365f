//! Tables: left-aligned columns one space apart, a line of group headings above the headings.
//!
//! The same rows are CSV and YAML for programs, and a table can be told which columns to show, by
//! which to sort, and how much room there is.

use std::cmp::Ordering;
use std::fmt::Write as _;

use super::paint::{Colour, Paint};

/// A cell: pieces of text, each in its colour. Its width is that of the text, whatever colour.
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

    /// Number of columns that it takes.
    fn width(&self) -> usize {
        self.pieces.iter().map(|(text, _)| columns(text)).sum()
    }

    /// Text without its colours.
    fn text(&self) -> String {
        self.pieces.iter().map(|(text, _)| text.as_str()).collect()
    }

    fn painted(&self, paint: Paint) -> String {
        let painted = |(text, colour): &(String, Option<Colour>)| match colour {
            Some(colour) => paint.colour(*colour, harmless(text, &[])),
            None => harmless(text, &[]),
        };
        self.pieces.iter().map(painted).collect()
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { pieces: vec![(text.into(), None)] }
    }
}

/// A column: its heading, the heading of its group, and the width below which it never shrinks.
#[derive(Debug, Clone, Copy)]
struct Column {
    group: &'static str,
    heading: &'static str,
    least: usize,
    /// Whether another column has the same heading, so that its name needs that of its group.
    shared: bool,
    /// Whether its text is broken at spaces to fit, if it is the last one.
    wraps: bool,
}

#[derive(Debug, Clone)]
struct Row {
    cells: Vec<Cell>,
    /// Whether it says more of what the row before is about; what is blank is as there.
    more: bool,
}

/// A column that wraps is not made narrower than this.
const NARROWEST: usize = 20;

/// A table being filled.
#[derive(Debug, Default)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Row>,
    indent: usize,
    /// Headings, the most important first. Columns that are not named come behind, from the left.
    important: &'static [&'static str],
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
    pub fn group(mut self, group: &'static str, columns: &[(&'static str, usize)]) -> Self {
        for &(heading, least) in columns {
            let others = self.columns.iter_mut().filter(|column| column.heading == heading);
            let shared = others.map(|column| column.shared = true).count() > 0;
            self.columns.push(Column { group, heading, least, shared, wraps: false });
        }
        self
    }

    /// Adds columns without a group heading.
    pub fn columns(self, columns: &[(&'static str, usize)]) -> Self {
        self.group("", columns)
    }

    /// Says which columns stay where there is not room for all.
    pub fn important(self, important: &'static [&'static str]) -> Self {
        Self { important, ..self }
    }

    /// Has the text of the last column broken at spaces.
    pub fn wrapping(mut self) -> Self {
        if let Some(last) = self.columns.last_mut() {
            last.wraps = true;
        }
        self
    }

    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.rows.push(Row { cells, more: false });
    }

    /// Adds a row that says more of what the row before is about.
    pub fn more(&mut self, cells: Vec<Cell>) {
        self.row(cells);
        if let Some(row) = self.rows.last_mut() {
            row.more = true;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Names of the columns for options and programs: `ram`, `used_percent`; with the group's name
    /// in front where two share a heading.
    fn names(&self) -> Vec<String> {
        let name = |column: &Column| match column.shared && !column.group.is_empty() {
            true => format!("{}_{}", name_of(column.group), name_of(column.heading)),
            false => name_of(column.heading),
        };
        self.columns.iter().map(name).collect()
    }

    fn find(&self, column: &str) -> Result<usize, String> {
        let names = self.names();
        let found = names.iter().position(|name| *name == name_of(column));
        found
            .ok_or_else(|| format!("there is no column `{column}`; there are {}", names.join(", ")))
    }

    fn pick(&mut self, columns: &[usize]) {
        self.columns = columns.iter().map(|column| self.columns[*column]).collect();
        for row in &mut self.rows {
            row.cells = columns.iter().map(|column| row.cells[*column].clone()).collect();
        }
        self.rows.retain(|row| !row.more || row.cells.iter().any(|cell| cell.width() > 0));
    }

    /// Keeps these columns, in this order. Fails, with the columns there are, if there is none of
    /// that name, and if one is named twice: a program could not tell them apart.
    pub fn select(&mut self, columns: &[String]) -> Result<(), String> {
        let mut picked = Vec::with_capacity(columns.len());
        for name in columns {
            let column = self.find(name)?;
            if picked.contains(&column) {
                return Err(format!("the column `{name}` is named twice"));
            }
            picked.push(column);
        }
        self.pick(&picked);
        Ok(())
    }

    /// Sorts the rows by a column, with `-` before its name the other way round. Figures are
    /// compared as such, and stand before words; in words and versions each number counts as one:
    /// `1.0.9` is before `1.0.10`.
    pub fn sort(&mut self, by: &str) -> Result<(), String> {
        let (name, backwards) = by.strip_prefix('-').map_or((by, false), |name| (name, true));
        let column = self.find(name)?;
        let mut blocks: Vec<Vec<Row>> = Vec::new();
        for row in self.rows.drain(..) {
            match blocks.last_mut() {
                Some(block) if row.more => block.push(row),
                _ => blocks.push(vec![row]),
            }
        }
        blocks.sort_by(|one, other| {
            let order = compare(&one[0].cells[column].text(), &other[0].cells[column].text());
            if backwards { order.reverse() } else { order }
        });
        self.rows = blocks.into_iter().flatten().collect();
        Ok(())
    }

    /// Drops columns, the least important first, until the table is at most `room` wide or has only
    /// one left. Returns the names of those that went.
    pub fn fit(&mut self, room: usize) -> Vec<String> {
        let mut names = self.names();
        let mut gone = Vec::new();
        while self.columns.len() > 1 && self.width() > room {
            let rank = |column: &usize| {
                let named =
                    self.important.iter().position(|name| *name == self.columns[*column].heading);
                named.unwrap_or(self.important.len() + column)
            };
            let least = (0..self.columns.len()).max_by_key(rank).expect("there are columns");
            gone.push(names.remove(least));
            let others: Vec<usize> =
                (0..self.columns.len()).filter(|column| *column != least).collect();
            self.pick(&others);
        }
        gone
    }

    /// Width of the widest line, at least.
    fn width(&self) -> usize {
        let rows = self.laid_out(None);
        let mut widths = self.widths(&rows);
        let (Some(last), Some(column)) = (widths.last_mut(), self.columns.last()) else { return 0 };
        let cells = rows.iter().filter_map(|row| row.last()).map(Cell::width);
        let mut longest = cells.max().unwrap_or(0).max(columns(column.heading));
        if column.wraps {
            longest = longest.min(NARROWEST);
            *last = (*last).min(NARROWEST);
        }
        let before: usize = widths[..widths.len() - 1].iter().map(|width| width + 1).sum();
        let groups = if self.is_grouped() { columns(&self.group_line(&widths)) } else { 0 };
        self.indent + groups.max(before + longest)
    }

    fn is_grouped(&self) -> bool {
        self.columns.iter().any(|column| !column.group.is_empty())
    }

    /// The table as text, without a newline at its end.
    pub fn render(&self, paint: Paint) -> String {
        self.text(paint, true, None)
    }

    /// The same, without its headings if they are not wanted, and with texts broken to fit into
    /// `room`.
    pub fn text(&self, paint: Paint, headings: bool, room: Option<usize>) -> String {
        let rows = self.laid_out(room);
        let widths = self.widths(&rows);
        let mut lines = Vec::with_capacity(rows.len() + 2);
        if headings {
            if self.is_grouped() {
                lines.push(paint.bold(self.group_line(&widths)));
            }
            let cells: Vec<Cell> =
                self.columns.iter().map(|column| column.heading.into()).collect();
            lines.push(paint.bold(line(&cells, &widths, Paint::OFF)));
        }
        lines.extend(rows.iter().map(|row| line(row, &widths, paint)));
        let margin = " ".repeat(self.indent);
        let lines: Vec<String> = lines.into_iter().map(|line| format!("{margin}{line}")).collect();
        lines.join("\n")
    }

    /// The rows as lines.
    fn laid_out(&self, room: Option<usize>) -> Vec<Vec<Cell>> {
        let rows: Vec<Vec<Cell>> = self.rows.iter().map(|row| row.cells.clone()).collect();
        let (Some(room), Some(last)) = (room, self.columns.last()) else { return rows };
        if !last.wraps {
            return rows;
        }
        let widths = self.widths(&rows);
        let before = widths.len() - 1;
        let margin: usize =
            self.indent + widths[..before].iter().map(|width| width + 1).sum::<usize>();
        let width = room.saturating_sub(margin).max(NARROWEST);
        let mut lines = Vec::with_capacity(rows.len());
        for mut row in rows {
            let mut pieces = wrapped(&row[before].text(), width).into_iter();
            row[before] = pieces.next().unwrap_or_default().into();
            lines.push(row);
            for piece in pieces {
                let mut more = vec![Cell::default(); before];
                more.push(piece.into());
                lines.push(more);
            }
        }
        lines
    }

    /// The widths of the columns; the last one of a group has room for what is left of its heading.
    fn widths(&self, rows: &[Vec<Cell>]) -> Vec<usize> {
        let longest = |index: usize| rows.iter().map(move |row| row[index].width()).max();
        let of =
            |(index, column): (usize, &Column)| column.least.max(longest(index).unwrap_or(0) + 1);
        let mut widths: Vec<usize> = self.columns.iter().enumerate().map(of).collect();
        let mut start = 0;
        for group in self.columns.chunk_by(|one, other| one.group == other.group) {
            let end = start + group.len();
            let width = widths[start..end].iter().sum::<usize>() + group.len() - 1;
            let heading = columns(group[0].group);
            if heading > 0 {
                widths[end - 1] += (heading + 1).saturating_sub(width);
            }
            start = end;
        }
        widths
    }

    fn group_line(&self, widths: &[usize]) -> String {
        let mut widths = widths.iter();
        let groups = self.columns.chunk_by(|one, other| one.group == other.group).map(|group| {
            let (heading, count) = (group[0].group, group.len());
            let width = widths.by_ref().take(count).sum::<usize>() + count - 1;
            let dashes = width.saturating_sub(columns(heading) + 1);
            format!("{heading} {}", "-".repeat(dashes))
        });
        groups.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    }

    /// The rows for programs: what is blank in a row that says more is filled in.
    fn filled(&self) -> Vec<Vec<String>> {
        let mut filled: Vec<Vec<String>> = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let before = filled.last().filter(|_| row.more);
            let text = |(index, cell): (usize, &Cell)| match (cell.text(), before) {
                (text, Some(before)) if text.is_empty() => before[index].clone(),
                (text, _) => text,
            };
            let cells: Vec<String> = row.cells.iter().enumerate().map(text).collect();
            filled.push(cells);
        }
        filled
    }

    /// Comma-separated values (RFC 4180, but with plain newlines).
    pub fn csv(&self, headings: bool) -> String {
        let heading = headings.then(|| self.names());
        let lines = heading.into_iter().chain(self.filled());
        lines
            .map(|cells| cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\n")
            .collect()
    }

    /// A YAML list of the rows. Every value is a quoted text: a VM may be called `no`.
    pub fn yaml(&self) -> String {
        if self.rows.is_empty() {
            return "[]\n".to_owned();
        }
        let names = self.names();
        let mut text = String::new();
        for cells in self.filled() {
            for (index, (name, cell)) in names.iter().zip(cells).enumerate() {
                let start = if index == 0 { "- " } else { "  " };
                let _ = writeln!(text, "{start}{name}: {}", quoted_for_yaml(cell));
            }
        }
        text
    }
}

/// `RAM (M)` is `ram`, `Used%` is `used_percent`.
fn name_of(heading: &str) -> String {
    let bare = heading.split(['(', '[']).next().unwrap_or(heading).trim();
    let mut name = String::new();
    for letter in bare.chars() {
        match letter {
            '%' => name.push_str("_percent"),
            '\'' => {}
            letter if letter.is_alphanumeric() => name.extend(letter.to_lowercase()),
            _ => name.push('_'),
        }
    }
    name
}

fn compare(one: &str, other: &str) -> Ordering {
    match (figure(one), figure(other)) {
        (Some(one), Some(other)) => one.total_cmp(&other),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => natural(one, other),
    }
}

/// Compares words and versions: a run of digits by the number it is.
fn natural(one: &str, other: &str) -> Ordering {
    let (mut left, mut right) = (one, other);
    while let (Some(a), Some(b)) = (left.chars().next(), right.chars().next()) {
        let order = if a.is_ascii_digit() && b.is_ascii_digit() {
            let ((a, behind_a), (b, behind_b)) = (digits(left), digits(right));
            (left, right) = (behind_a, behind_b);
            // Of any length: without zeros in front the longer one is the greater.
            a.len().cmp(&b.len()).then_with(|| a.cmp(b))
        } else {
            (left, right) = (&left[a.len_utf8()..], &right[b.len_utf8()..]);
            a.cmp(&b)
        };
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len()).then_with(|| one.cmp(other))
}

/// The number at the beginning of a text, without zeros in front, and what is behind it.
fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    (text[..end].trim_start_matches('0'), &text[end..])
}

/// Figure in a text such as `12`, `6.8%` or `108G`.
fn figure(text: &str) -> Option<f64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && !"-.".contains(letter));
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let power = match unit {
        "" | "%" | "B" => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        "P" => 5,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * 1024_f64.powi(power))
}

/// A text without what a terminal would obey, such as the escape sequences of a hostile record.
/// The control characters `but` stay.
pub fn harmless(text: &str, but: &[char]) -> String {
    let printable = |letter: char| match letter.is_control() && !but.contains(&letter) {
        true => char::REPLACEMENT_CHARACTER,
        false => letter,
    };
    text.chars().map(printable).collect()
}

/// A field of CSV. What a spreadsheet would take for a formula gets an apostrophe in front, unless
/// it is a figure.
fn quoted(cell: &str) -> String {
    let mut field = harmless(cell, &['\t', '\n', '\r']);
    if field.starts_with(FORMULA) && figure(&field).is_none() {
        field.insert(0, '\'');
    }
    match field.contains([',', '"', '\n', '\r', '\t', '\'']) || field.trim() != field {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field,
    }
}

/// Characters that begin a formula, in spreadsheets of all languages.
const FORMULA: [char; 11] = ['=', '+', '-', '@', '\t', '\n', '\r', '＝', '＋', '－', '＠'];

/// A text of JSON is one of YAML, but for letters that YAML wants escaped and JSON does not.
fn quoted_for_yaml(text: String) -> String {
    let json = serde_json::Value::from(text).to_string();
    let mut quoted = String::with_capacity(json.len());
    for letter in json.chars() {
        if letter.is_control()
            || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
        {
            let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
        } else {
            quoted.push(letter);
        }
    }
    quoted
}

/// Breaks a text at spaces so that no line is wider than `width`, unless a word alone is.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
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

/// Number of columns that a text takes.
fn columns(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools() -> Table {
        let mut table = Table::new()
            .group("Pools", &[("Name", 5), ("Used%", 6), ("Free (net)", 11)])
            .group("Read", &[("OPS", 4)])
            .group("Write", &[("OPS", 4)])
            .important(&["Name", "Free (net)"]);
        for (name, used, free, read) in [
            ("vms", "6.8%", "745G", "9"),
            ("a, \"b\"", "10.1%", "9999M", "10"),
            ("no", "N/A", "1T", "100"),
        ] {
            table.row([name, used, free, read, "0"].map(Cell::from).to_vec());
        }
        table
    }

    fn first(table: &Table) -> Vec<String> {
        table.filled().into_iter().map(|mut cells| cells.remove(0)).collect()
    }

    #[test]
    fn columns_leave_by_importance_until_the_rest_fits() {
        let mut table = pools();
        assert_eq!(table.fit(60), [""; 0]);
        assert_eq!(table.fit(26), ["write_ops", "read_ops"]);
        assert!(
            table.render(Paint::OFF).lines().all(|line| line.len() <= 26),
            "{}",
            table.render(Paint::OFF)
        );
        assert_eq!(table.fit(20), ["used_percent"]);
        assert_eq!(table.fit(1), ["free"], "one always stays");
        assert_eq!(table.render(Paint::OFF).lines().nth(1), Some("Name"));
    }

    #[test]
    fn columns_are_chosen_by_name_in_any_order() {
        let mut table = pools();
        table.select(&["Write OPS".replace(' ', "_"), "NAME".to_owned()]).unwrap();
        assert_eq!(table.names(), ["write_ops", "name"], "they are called as they were asked for");
        let text = table.render(Paint::OFF);
        assert_eq!(text.lines().next(), Some("Write  Pools -"), "{text}");
        assert_eq!(
            text.lines().nth(1),
            Some("OPS    Name"),
            "a heading stands above its group: {text}"
        );
        let twice = pools().select(&["name".to_owned(), "Name".to_owned()]).unwrap_err();
        assert_eq!(twice, "the column `Name` is named twice");
        let words = pools().select(&["colour".to_owned()]).unwrap_err();
        assert_eq!(
            words,
            "there is no column `colour`; there are name, used_percent, free, read_ops, write_ops"
        );
    }

    #[test]
    fn figures_are_sorted_as_such_and_before_words() {
        let sorted = |by| {
            let mut table = pools();
            table.sort(by).unwrap();
            first(&table)
        };
        assert_eq!(sorted("free"), ["a, \"b\"", "vms", "no"]);
        assert_eq!(sorted("used_percent"), ["vms", "a, \"b\"", "no"]);
        assert_eq!(sorted("-read_ops"), ["no", "a, \"b\"", "vms"]);
        assert_eq!(sorted("name"), ["a, \"b\"", "no", "vms"]);
    }

    #[test]
    fn in_versions_and_names_each_number_counts_as_one() {
        let mut table = Table::new().columns(&[("Version", 8)]);
        let versions = [
            "1.0.10",
            "web10",
            "1.0.9",
            "0.2.0",
            "web2",
            "1.0.9-rc1",
            "web02",
            "99999999999999999999a",
        ];
        for version in versions {
            table.row(vec![version.into()]);
        }
        table.sort("version").unwrap();
        let sorted = [
            "0.2.0",
            "1.0.9",
            "1.0.9-rc1",
            "1.0.10",
            "99999999999999999999a",
            "web02",
            "web2",
            "web10",
        ];
        assert_eq!(first(&table), sorted);
    }

    #[test]
    fn what_belongs_to_a_row_stays_with_it() {
        let mut table = Table::new().columns(&[("ID", 3), ("Data", 5)]);
        table.row(vec!["b".into(), "1".into()]);
        table.more(vec!["".into(), "2".into()]);
        table.row(vec!["a".into(), "3".into()]);
        table.sort("id").unwrap();
        assert_eq!(table.csv(true), "id,data\na,3\nb,1\nb,2\n");
        table.select(&["id".to_owned()]).unwrap();
        assert_eq!(table.csv(false), "a\nb\n", "and goes with the columns it is about");
    }

    #[test]
    fn csv_quotes_what_it_must_and_yaml_every_value() {
        let mut table = pools();
        table.select(&["name".to_owned(), "free".to_owned()]).unwrap();
        assert_eq!(table.csv(false), "vms,745G\n\"a, \"\"b\"\"\",9999M\nno,1T\n");
        assert!(
            table
                .yaml()
                .starts_with("- name: \"vms\"\n  free: \"745G\"\n- name: \"a, \\\"b\\\"\"\n")
        );
        assert_eq!(Table::new().columns(&[("Name", 5)]).yaml(), "[]\n");
    }

    #[test]
    fn a_hostile_record_gives_neither_formulas_nor_orders_to_a_terminal() {
        let csv = |text: &str| {
            let mut table = Table::new().columns(&[("Name", 5)]);
            table.row(vec![text.into()]);
            table.csv(false)
        };
        assert_eq!(csv("=HYPERLINK(\"http://x\")"), "\"'=HYPERLINK(\"\"http://x\"\")\"\n");
        assert_eq!(csv("@SUM(A1)"), "\"'@SUM(A1)\"\n");
        assert_eq!(csv("-1+cmd|' /C calc'!A0"), "\"'-1+cmd|' /C calc'!A0\"\n");
        assert_eq!(csv("\t=1"), "\"'\t=1\"\n");
        assert_eq!(csv("-10%"), "-10%\n", "a figure stays one");
        assert_eq!(csv("two\nlines"), "\"two\nlines\"\n");
        assert_eq!(csv("\x1b[2Jx\u{9b}1m\0"), "\u{fffd}[2Jx\u{fffd}1m\u{fffd}\n");

        let mut table = Table::new().columns(&[("Name", 5), ("X", 2)]);
        table.row(vec!["a\x1b[2J\nb".into(), "\u{7f}\u{85}\u{2028}\"".into()]);
        let text = table.text(Paint::ON, false, None);
        assert_eq!(text, "a\u{fffd}[2J\u{fffd}b  \u{fffd}\u{fffd}\u{2028}\"");
        assert_eq!(
            table.yaml(),
            "- name: \"a\\u001b[2J\\nb\"\n  x: \"\\u007f\\u0085\\u2028\\\"\"\n"
        );
    }

    #[test]
    fn a_long_text_is_broken_at_spaces_and_whole_for_programs() {
        let mut table = Table::new().columns(&[("ID", 3), ("Message", 8)]).wrapping();
        table.row(vec!["x".into(), "the quick brown fox jumps".into()]);
        let text = table.text(Paint::OFF, false, Some(25));
        assert_eq!(text, "x   the quick brown fox\n    jumps");
        assert_eq!(table.csv(false), "x,the quick brown fox jumps\n");
    }
}
