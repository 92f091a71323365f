//! House rules for words: how doc comments begin, which words they and names do without, and how
//! long lines are. See docs/dev/words.md.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{architecture, run};

/// Folders whose Rust sources are checked.
const FOLDERS: [&str; 5] = ["bench", "bin", "crates", "tests", "xtask"];

/// Words that a doc comment does not begin with: after them the reader still waits for its subject.
const BEGINNINGS: [&str; 18] = [
    "As", "How", "It", "One", "So", "That", "There", "They", "This", "Those", "What", "When",
    "Where", "Which", "Who", "Whom", "Whose", "Why",
];

/// Words and phrases that neither a doc comment nor a name has, in lower case: those of the table
/// "Not used" that have no other meaning here.
const NOT_USED: [&str; 22] = [
    "cared",
    "deed",
    "deeds",
    "foretell",
    "foretells",
    "foretold",
    "hopeless",
    "learnt",
    "mind",
    "moot",
    "patience",
    "patient",
    "pressed",
    "somehow",
    "stranger",
    "strangers",
    "stuff",
    "turned round",
    "vain",
    "wish",
    "wished",
    "wishes",
];

/// Words that a name does not have. A comment may: one thing is told from another.
const NOT_IN_NAMES: [&str; 4] = ["heard", "thing", "things", "told"];

/// Number of characters that a line may have.
const COLUMNS: usize = 100;

/// Findings in one source file, each with the number of its line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    beginnings: Vec<(usize, String)>,
    not_used: Vec<(usize, String)>,
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
            for (line, word) in &found.not_used {
                println!("{}:{line}: `{word}` is not used", path.display());
            }
            for (line, columns) in &found.long_lines {
                println!("{}:{line}: has {columns} columns", path.display());
            }
            bad += found.beginnings.len() + found.not_used.len() + found.long_lines.len();
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
    let pieces = pieces(text);
    let raw = lines_of_raw_strings(&pieces);
    let mut found = Findings { not_used: unused_names(&pieces), ..Findings::default() };
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
        if let Some((_, text)) = comment {
            let words = format!(" {} ", words_of(text).join(" "));
            let used = NOT_USED.iter().filter(|word| words.contains(&format!(" {word} ")));
            found.not_used.extend(used.map(|word| (number, (*word).to_owned())));
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

/// Kind of a piece of a source file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Text,
    RawString,
}

/// Piece of a source file, and the line in which it begins.
#[derive(Debug, Clone, Copy)]
struct Piece<'a> {
    kind: Kind,
    line: usize,
    text: &'a str,
}

/// Pieces of `text`: comments, literals and names whole, other code by characters.
fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut line = 1;
    while let Some(first) = rest.chars().next() {
        let (kind, length) = match first {
            '/' if rest.starts_with("//") => (Kind::Comment, rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => {
                (Kind::Comment, rest.find("*/").map_or(rest.len(), |end| end + 2))
            }
            '"' => (Kind::Text, string_length(rest)),
            '\'' => (Kind::Text, character_length(rest)),
            _ => match raw_string_length(rest) {
                Some(length) => (Kind::RawString, length),
                None => (Kind::Code, name_length(rest).max(first.len_utf8())),
            },
        };
        let (piece, after) = rest.split_at(length);
        pieces.push(Piece { kind, line, text: piece });
        line += piece.matches('\n').count();
        rest = after;
    }
    pieces
}

/// Numbers of lines that have a part of a raw string: such text is kept as its program wrote it.
fn lines_of_raw_strings(pieces: &[Piece<'_>]) -> BTreeSet<usize> {
    let raw = pieces.iter().filter(|piece| piece.kind == Kind::RawString);
    raw.flat_map(|piece| piece.line..=piece.line + piece.text.matches('\n').count()).collect()
}

/// Names that have a word of [`NOT_USED`] or [`NOT_IN_NAMES`], and their lines.
fn unused_names(pieces: &[Piece<'_>]) -> Vec<(usize, String)> {
    let code = pieces.iter().filter(|piece| piece.kind == Kind::Code);
    code.filter(|piece| {
        let words = format!(" {} ", words_of(piece.text).join(" "));
        NOT_USED.iter().chain(&NOT_IN_NAMES).any(|word| words.contains(&format!(" {word} ")))
    })
    .map(|piece| (piece.line, piece.text.to_owned()))
    .collect()
}

/// Words of a text or of a name in lower case. In `SomeName` and `some_name` there are two.
fn words_of(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        let is_before_small = characters.peek().is_some_and(|next| next.is_lowercase());
        if !c.is_alphanumeric() || c.is_uppercase() && (before.is_lowercase() || is_before_small) {
            words.push(String::new());
        }
        if c.is_alphanumeric() {
            words.last_mut().expect("it begins with one").extend(c.to_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Length of the raw string that `text` begins with.
fn raw_string_length(text: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        text.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(['"', '#']))
    })?;
    let hashes = text[prefix.len()..].chars().take_while(|c| *c == '#').count();
    let body = prefix.len() + hashes;
    let inner = text[body..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(inner.find(&end).map_or(text.len(), |at| body + 1 + at + end.len()))
}

/// Length of the name or number that `text` begins with; 0 if it begins with neither.
fn name_length(text: &str) -> usize {
    text.find(|c| !is_of_name(c)).unwrap_or(text.len())
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
        assert_eq!(findings("/// Its name.\n/// Whether.\n\n/// Whenever\n").beginnings, []);
        assert_eq!(findings("//! There\n/// How\n").beginnings.len(), 2);
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
        assert_eq!(lines_of_raw_strings(&pieces(&code)), BTreeSet::from([2]));
    }

    #[test]
    fn a_word_that_is_not_used_is_found_in_names_and_doc_comments_and_nowhere_else() {
        let lines = [
            "/// Patience of it, which is",
            "/// turned round; told from another.",
            "// A wish.",
            "fn it_is_told(AStranger: u8) { let x = \"wish\"; }",
            "let reminded = r#\"",
            "/// wish\"#; let VAIN_STARTS = 'm'; let b = br\"wish\"; turned_round()",
            "/// A thing of which nobody has heard: two things, and something.",
            "let (last_heard, anything) = listen::<Thing>(everything); // a thing heard",
        ];
        let found = findings(&lines.join("\n")).not_used;
        let found: Vec<_> = found.iter().map(|(line, word)| (*line, word.as_str())).collect();
        let names = [
            (4, "it_is_told"),
            (4, "AStranger"),
            (6, "VAIN_STARTS"),
            (6, "turned_round"),
            (8, "last_heard"),
            (8, "Thing"),
        ];
        let comments = [(1, "patience"), (2, "turned round")];
        assert_eq!(found, [&names[..], &comments[..]].concat());
    }
}
