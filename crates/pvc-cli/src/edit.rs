//! Texts that an operator edits, and what they have changed.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use similar::{ChangeTag, TextDiff};

use crate::answer::Format;
use crate::context::Pvc;
use crate::interrupt;
use crate::outcome::{Failure, plain_io};
use crate::output::{Colour, Paint};

/// Lets the operator edit a text, in a file that is called after `name`.
pub fn edited(name: &str, suffix: &str, present: &str) -> Result<String, Failure> {
    let cannot = |what: &str, error: &std::io::Error| {
        Failure::failed(format!("cannot {what}: {}", plain_io(error)))
    };
    let mut file = tempfile::Builder::new()
        .prefix(&format!("pvc-{}-", name.replace('/', "_")))
        .suffix(suffix)
        .tempfile()
        .map_err(|error| cannot("make a file to edit", &error))?;
    file.write_all(present.as_bytes()).map_err(|error| cannot("write the file to edit", &error))?;
    let set = |name| std::env::var(name).ok().filter(|editor| !editor.trim().is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    let _meanwhile = interrupt::left_to_another();
    let status = Command::new("sh")
        .args(["-c", &format!("{editor} \"$1\""), "sh"])
        .arg(file.path())
        .status()
        .map_err(|error| cannot("start the editor", &error))?;
    if !status.success() {
        return Err(Failure::failed(format!(
            "the editor `{editor}` failed, and nothing was changed"
        ))
        .hint("`EDITOR` names the editor to use"));
    }
    std::fs::read_to_string(file.path()).map_err(|error| cannot("read the edited file", &error))
}

/// Keeps what somebody has typed, since it could not be used.
pub fn kept(text: &str, suffix: &str, failure: Failure) -> Failure {
    let kept = tempfile::Builder::new().prefix("pvc-edited-").suffix(suffix).tempfile().and_then(
        |mut file| {
            file.write_all(text.as_bytes())?;
            file.keep().map_err(|error| error.error)
        },
    );
    match kept {
        Ok((_, path)) => {
            let hint = format!("what you have edited is kept in `{}`", path.display());
            let hint = failure
                .hint
                .as_ref()
                .map_or_else(|| hint.clone(), |before| format!("{before}; {hint}"));
            failure.hint(hint)
        }
        Err(_) => failure,
    }
}

/// Time for which a diff may be looked for; after that a longer one than needed is shown.
const DIFF_TIME: Duration = Duration::from_secs(1);

/// Shows what has changed between two texts, unless the answer is JSON. Returns whether anything
/// has.
pub fn show_changes(pvc: &mut Pvc, old: &str, new: &str) -> bool {
    let changes = difference(old, new, pvc.out.paint());
    if changes.is_empty() {
        pvc.out.line("Aborting with no modifications.");
        return false;
    }
    if pvc.answers == Format::Sentence {
        pvc.out.line("Pending modifications:");
        pvc.out.line("");
        pvc.out.line(changes);
    }
    true
}

/// A unified diff in colours; empty if nothing differs.
fn difference(old: &str, new: &str, paint: Paint) -> String {
    let diff = TextDiff::configure().timeout(DIFF_TIME).diff_lines(old, new);
    let mut text = String::new();
    for group in diff.grouped_ops(3) {
        if !text.is_empty() {
            text.push_str("...\n");
        }
        for change in group.iter().flat_map(|operation| diff.iter_changes(operation)) {
            let line = change.value().trim_end_matches('\n');
            let line = match change.tag() {
                ChangeTag::Insert => paint.colour(Colour::Green, format!("+{line}")),
                ChangeTag::Delete => paint.colour(Colour::Red, format!("-{line}")),
                ChangeTag::Equal => format!(" {line}"),
            };
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_change_makes_no_difference() {
        assert_eq!(difference("a\nb\n", "a\nb\n", Paint::OFF), "");
    }

    #[test]
    fn a_change_is_shown_with_its_surroundings() {
        let text = difference("a\nb\nc\n", "a\nB\nc\n", Paint::OFF);
        assert_eq!(text, " a\n-b\n+B\n c\n");
    }

    /// Of two texts without a common line every pair of lines may have to be compared.
    #[test]
    fn a_difference_that_would_take_minutes_is_longer_than_needed_and_whole() {
        let lines =
            |word: &str| -> String { (0..50_000).map(|n| format!("{word}{n}\n")).collect() };
        let text = difference(&lines("old"), &lines("new"), Paint::OFF);
        assert_eq!(text.lines().filter(|line| line.starts_with('-')).count(), 50_000);
        assert_eq!(text.lines().filter(|line| line.starts_with('+')).count(), 50_000);
    }
}
