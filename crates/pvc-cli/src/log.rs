//! Logs: the end of one in a pager, or everything new as it comes.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pvc_client::Kind;

use crate::context::Pvc;
use crate::interrupt::{self, Stream};
use crate::outcome::{Failure, Outcome};
use crate::output::colour_code;

/// Number of lines that each look asks for while following. More new lines than this between two
/// looks cannot be told from a rotated log.
const WINDOW: usize = 500;
const PAUSE: Duration = Duration::from_millis(500);
/// Time that nobody may answer before the following ends.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);
pub const VIEWED: usize = 1000;
pub const FOLLOWED: usize = 10;

/// Fetches the last lines of one log.
pub type Fetch<'a> = &'a dyn Fn(usize) -> Result<String, pvc_client::Error>;

/// Shows the last lines, in a pager if somebody sits in front of it.
pub fn view(pvc: &mut Pvc, text: &str) -> Outcome {
    if pvc.out.is_terminal() && page(&shown(text)) {
        return Ok(());
    }
    if pvc.out.is_terminal() {
        pvc.out.document(shown(text));
    } else {
        pvc.out.document(text);
    }
    pvc.out.line("");
    Ok(())
}

/// The last `lines` lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Prints the last lines and then whatever comes, until somebody ends it.
pub fn follow(pvc: &mut Pvc, lines: usize, fetch: Fetch<'_>) -> Outcome {
    let _calm = calm_terminal(pvc);
    let mut seen = fetch(WINDOW.max(lines))?;
    let mut printer = Printer::default();
    printer.print(pvc, &tail(&seen, lines));
    let mut last_answer = Instant::now();
    loop {
        interrupt::pause(PAUSE);
        match fetch(WINDOW) {
            Ok(now) => {
                last_answer = Instant::now();
                let news = news(&seen, &now);
                if news.gap {
                    printer.print(pvc, "\n");
                    pvc.note(
                        "(lines are missing here: more came than one look shows, or the log was \
                         rotated)",
                    );
                }
                printer.print(pvc, news.text);
                seen = now;
            }
            // The API moves with the primary node; following a log outlives that.
            Err(error)
                if matches!(error.kind(), Kind::Unreachable | Kind::Server)
                    && last_answer.elapsed() < LONGEST_SILENCE => {}
            Err(error) => return Err(Failure::from(error)),
        }
    }
}

/// A guest may have left its colour on, and the cursor in the middle of a line: neither is for the
/// shell that comes after.
fn calm_terminal(pvc: &Pvc) -> Option<interrupt::Meanwhile> {
    pvc.out.is_terminal().then(|| interrupt::last_words(Stream::Out, "\x1b[0m\n".to_owned()))
}

/// Prints what a log gains.
///
/// Whether the last line is complete cannot be seen. A terminal gets it as it is, so that a
/// prompt looks like one. A pipe gets it with a newline once it has not grown between two looks,
/// so that the program behind it need not wait for the next line.
#[derive(Default)]
struct Printer {
    /// The last line as far as it is known, not yet printed.
    open: String,
    /// The last line was given a newline that the log has not shown yet.
    closed: bool,
}

impl Printer {
    fn print(&mut self, pvc: &mut Pvc, text: &str) {
        let text = if pvc.out.is_terminal() { shown(text) } else { self.whole_lines(text) };
        if !text.is_empty() {
            pvc.out.document(text);
            pvc.out.flush();
        }
    }

    fn whole_lines(&mut self, text: &str) -> String {
        if text.is_empty() {
            let line = std::mem::take(&mut self.open);
            self.closed = self.closed || !line.is_empty();
            return if line.is_empty() { line } else { line + "\n" };
        }
        let text = if std::mem::take(&mut self.closed) {
            text.strip_prefix('\n').unwrap_or(text)
        } else {
            text
        };
        self.open.push_str(text);
        let complete = self.open.rfind('\n').map_or(0, |newline| newline + 1);
        let rest = self.open.split_off(complete);
        std::mem::replace(&mut self.open, rest)
    }
}

/// Lines that the second look at a log shows beyond the first.
#[derive(Debug, PartialEq, Eq)]
struct News<'a> {
    text: &'a str,
    /// Nothing of the first look is left in the second.
    gap: bool,
}

/// Finds what is new in `now`, given what was `seen`.
///
/// A log grows at its end and loses lines at its beginning. So the end of `seen` is the beginning
/// of `now`, and the longest such overlap that starts at a line is right: it says the fewest lines
/// are new, and identical lines cannot shift it. The last line may have grown.
fn news<'a>(seen: &str, now: &'a str) -> News<'a> {
    let starts = std::iter::once(0).chain(seen.match_indices('\n').map(|(index, _)| index + 1));
    for start in starts {
        if !seen[start..].is_empty() && now.starts_with(&seen[start..]) {
            return News { text: &now[seen.len() - start..], gap: false };
        }
    }
    News { text: now, gap: !seen.is_empty() }
}

/// A guest writes to its console what it likes; a terminal obeys what it reads. Colours pass,
/// everything else that could move, retitle or answer does not.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        if let Some(colour) = colour_code(rest) {
            shown.push_str(colour);
            rest = &rest[colour.len()..];
            continue;
        }
        if !letter.is_control() || matches!(letter, '\n' | '\t') {
            shown.push(letter);
        }
        rest = &rest[letter.len_utf8()..];
    }
    shown
}

/// Shows a text in the user's pager; says whether that worked.
fn page(text: &str) -> bool {
    let pager = std::env::var("PAGER").ok().filter(|pager| !pager.trim().is_empty());
    let pager = pager.unwrap_or_else(|| "less".to_owned());
    let mut command = Command::new("sh");
    command.args(["-c", &pager]).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        // Quit if it fits on the screen, let colours through, leave the text on the screen.
        command.env("LESS", "FRX");
    }
    let _meanwhile = interrupt::left_to_another();
    let Ok(mut child) = command.spawn() else { return false };
    if let Some(mut stdin) = child.stdin.take() {
        // Whoever leaves the pager before the end has seen enough.
        let _ = stdin.write_all(text.as_bytes()).and_then(|()| stdin.write_all(b"\n"));
    }
    // The shell says 127 if there is no such pager.
    child.wait().is_ok_and(|status| status.code() != Some(127))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(seen: &str, now: &str, text: &str, gap: bool) {
        assert_eq!(news(seen, now), News { text, gap }, "from {seen:?} to {now:?}");
    }

    #[test]
    fn what_was_added_is_new() {
        check("a\nb", "a\nb\nc", "\nc", false);
        check("a\nb", "a\nb", "", false);
        check("", "a", "a", false);
    }

    #[test]
    fn a_window_that_slid_is_aligned() {
        check("a\nb\nc", "b\nc\nd", "\nd", false);
        check("a\nb\nc", "c\nd\ne", "\nd\ne", false);
    }

    #[test]
    fn repeated_lines_do_not_shift_the_alignment() {
        check("x\nx\nx", "x\nx\nx\nx", "\nx", false);
        check("x\nbeat\nx\nbeat", "x\nbeat\nx\nbeat\nx", "\nx", false);
        check("a\nx\nx", "x\nx\nx\nb", "\nx\nb", false);
    }

    #[test]
    fn a_last_line_that_grew_is_continued() {
        check("boot\nlogi", "boot\nlogin: ", "n: ", false);
    }

    #[test]
    fn a_rotated_log_is_shown_from_its_beginning_with_a_note() {
        check("a\nb", "x\ny", "x\ny", true);
    }

    #[test]
    fn a_pipe_gets_whole_lines_and_does_not_wait_for_the_next_one() {
        let mut printer = Printer::default();
        assert_eq!(printer.whole_lines("a\nb"), "a\n");
        assert_eq!(printer.whole_lines("c"), "");
        assert_eq!(printer.whole_lines(""), "bc\n");
        assert_eq!(printer.whole_lines(""), "");
        assert_eq!(printer.whole_lines("\nd\ne"), "d\n");
        assert_eq!(printer.whole_lines(""), "e\n");
    }

    #[test]
    fn a_guest_cannot_drive_the_terminal() {
        assert_eq!(
            shown("\x1b[31mred\x1b[0m\x1b]0;title\x07 \x1b[2Jx\r\n\t\x08"),
            "\x1b[31mred\x1b[0m]0;title [2Jx\n\t"
        );
    }

    #[test]
    fn the_tail_of_a_short_text_is_all_of_it() {
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
        assert_eq!(tail("a", 10), "a");
    }
}
