//! House rules for words: how doc comments begin, and how long lines are. See docs/dev/words.md.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{architecture, run};

/// Folders whose Rust sources are checked.
const FOLDERS: [&str; 5] = ["bench", "bin", "crates", "tests", "xtask"];

/// Words that a doc comment does not begin with: after them the reader still waits for its subject.
const BEGINNINGS: [&str; 12] =
    ["As", "It", "One", "So", "That", "This", "Those", "What", "Where", "Which", "Who", "Why"];

/// Number of characters that a line may have.
const COLUMNS: usize = 100;

/// Findings in one source file, each with the number of its line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    beginnings: Vec<(usize, String)>,
    long_lines: Vec<(usize, usize)>,
}

/// Checks every source file and the code map, and prints what it finds.
///
/// # Errors
/// If there are findings, or a file cannot be read.
pub fn run() -> Result<()> {
    let mut bad = architecture::differences()?;
    for folder in FOLDERS {
        for path in sources(&run::top().join(folder))? {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read `{}`", path.display()))?;
            let path = path.strip_prefix(run::top()).expect("it is below the top");
            let found = findings(&text);
            for (line, word) in &found.beginnings {
                println!("{}:{line}: a doc comment begins with `{word}`", path.display());
            }
            for (line, columns) in &found.long_lines {
                println!("{}:{line}: has {columns} columns", path.display());
            }
            bad += found.beginnings.len() + found.long_lines.len();
        }
    }
    if bad > 0 {
        bail!("{bad} findings: see docs/dev/words.md and ARCHITECTURE.md");
    }
    Ok(())
}

/// Rust sources below `folder`, without what cargo builds.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read `{}`", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                found.extend(sources(&path)?);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn findings(text: &str) -> Findings {
    let raw = lines_of_raw_strings(text);
    let mut found = Findings::default();
    let mut above = None;
    for (index, line) in text.lines().enumerate() {
        let (number, columns) = (index + 1, line.chars().count());
        if columns > COLUMNS && !raw.contains(&number) {
            found.long_lines.push((number, columns));
        }
        let comment = if raw.contains(&number) { None } else { doc_comment(line) };
        if let Some((marker, text)) = comment
            && above != Some(marker)
            && let Some(word) = text.split(|c: char| !c.is_alphanumeric() && c != '-').next()
            && BEGINNINGS.contains(&word)
        {
            found.beginnings.push((number, word.to_owned()));
        }
        above = comment.map(|(marker, _)| marker);
    }
    found
}

/// Marker and text of a line of a doc comment.
fn doc_comment(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    ["///", "//!"].into_iter().find_map(|marker| {
        let text = line.strip_prefix(marker)?;
        (!text.starts_with('/')).then_some((marker, text.trim_start()))
    })
}

/// Numbers of lines that have a part of a raw string: such text is kept as its program wrote it.
fn lines_of_raw_strings(text: &str) -> BTreeSet<usize> {
    let mut lines = BTreeSet::new();
    let mut rest = text;
    let mut before = ' ';
    let line_of = |rest: &str| text[..text.len() - rest.len()].matches('\n').count() + 1;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => string_length(rest),
            '\'' => character_length(rest),
            'r' if !is_of_name(before) || matches!(before, 'b' | 'c') => {
                let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
                let body = 1 + hashes;
                if rest[body..].starts_with('"') {
                    let end = format!("\"{}", "#".repeat(hashes));
                    let length = rest[body + 1..]
                        .find(&end)
                        .map_or(rest.len(), |at| body + 1 + at + end.len());
                    lines.extend(line_of(rest)..=line_of(&rest[length..]));
                    length
                } else {
                    1
                }
            }
            other => other.len_utf8(),
        };
        before = first;
        rest = &rest[length..];
    }
    lines
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Length of the string literal that `text` begins with.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of the character literal that `text` begins with; of a lifetime, only that of its quote.
fn character_length(text: &str) -> usize {
    let mut inner = text[1..].char_indices();
    match (inner.next(), inner.next()) {
        (Some((_, '\\')), Some((after, escaped))) => {
            let from = 1 + after + escaped.len_utf8();
            text[from..].find('\'').map_or(text.len(), |end| from + end + 1)
        }
        (_, Some((after, '\''))) => 1 + after + 1,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doc_comment_is_judged_by_its_first_word() {
        let text = "//! What it is.\n\nstruct A {\n    /// One that is.\n    b: u8,\n    /// \
                    One-minute load.\n    /// It goes on.\n    c: u8,\n    // It is no doc \
                    comment.\n    /// `It` is fine.\n    d: u8, //// It\n}\n";
        let words: Vec<_> = findings(text).beginnings;
        assert_eq!(words, [(1, "What".to_owned()), (4, "One".to_owned())]);
        assert_eq!(findings("/// Its name.\n/// Whether.\n\n/// When\n").beginnings, []);
        assert_eq!(findings("//! This\n/// That\n").beginnings.len(), 2);
    }

    #[test]
    fn a_line_is_as_long_as_its_characters() {
        assert_eq!(findings(&"ä".repeat(COLUMNS)).long_lines, []);
        assert_eq!(findings(&"ä".repeat(COLUMNS + 1)).long_lines, [(1, COLUMNS + 1)]);
    }

    #[test]
    fn raw_strings_are_let_be_and_nothing_else() {
        let long = "x".repeat(COLUMNS);
        let raw =
            format!("a\nlet a = r#\"{long}\" /// It\n/// It {long}\"#;\n\"{long}\"; // {long}\n");
        let found = findings(&raw);
        assert_eq!(found.long_lines.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [4]);
        assert_eq!(found.beginnings, []);
        let code = format!(
            "let (a, b) = ('\"', '\\''); let r = var\"\\\"\"; f::<'r>(\"r#\\\"\");\n\
             {long}y br\"{long}\"\n\
             // r\"\n/* r\" */ {long}\n"
        );
        assert_eq!(lines_of_raw_strings(&code), BTreeSet::from([2]));
    }
}
