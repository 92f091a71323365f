//! Questions before something is lost.

use std::io::{BufRead, IsTerminal, Write};

use clap::Args;
use pvc_api_types::Message;
use pvc_api_types::operation::Operation;
use serde::de::DeserializeOwned;

use crate::answer::Format;
use crate::context::Pvc;
use crate::outcome::{Exit, Failure, Outcome};
use crate::output::calm;

/// `-y`, for commands that ask.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Yes {
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// Asks `sentence`. Fails, quietly and with exit code 0, if the answer is no; fails loudly if
/// nobody is there to answer, because a script that went on would take it for done.
pub fn ask(pvc: &mut Pvc, yes: Yes, sentence: &str) -> Outcome {
    if pvc.unasked(yes.yes) {
        return Ok(());
    }
    match answer(pvc, sentence) {
        Answer::Yes => {
            if pvc.answers == Format::Sentence {
                pvc.out.line("");
            }
            Ok(())
        }
        Answer::No => {
            pvc.out.line("Aborted.");
            pvc.out.flush();
            Err(Failure::quiet(Exit::Success))
        }
        Answer::Nobody => Err(Failure::failed("not confirmed, and nothing was done")
            .hint("without a terminal say `--yes`, or `pvc --unsafe` for a whole script")
            .once_a_success()),
    }
}

/// Makes a change after it was asked about. What the cluster would refuse is refused before the
/// question, unless its API is too old to tell.
pub fn change<O, const N: usize>(
    pvc: &mut Pvc,
    yes: Yes,
    sentence: &str,
    operation: O,
    at: [&str; N],
    params: &O::Params,
) -> Outcome
where
    O: Operation<At = [String; N], Reply = Message> + Copy,
    O::DryRun: DeserializeOwned,
{
    if !pvc.unasked(yes.yes) {
        pvc.client()?.dry_run(operation, at, params)?;
    }
    ask(pvc, yes, sentence)?;
    let message = pvc.client()?.change(operation, at, params)?;
    pvc.done(message);
    Ok(())
}

/// Asks a question that can be left open: `None` if nobody is there to answer.
pub fn wants(pvc: &mut Pvc, sentence: &str) -> Option<bool> {
    if pvc.dry_run {
        return None;
    }
    match answer(pvc, sentence) {
        Answer::Yes => Some(true),
        Answer::No => Some(false),
        Answer::Nobody => None,
    }
}

/// Refuses what [`type_name`] is to ask about if nobody can type: for a change that is costly to
/// judge before that.
pub fn check_can_type(pvc: &Pvc, yes: Yes) -> Outcome {
    if pvc.unasked(yes.yes) || std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::failed("not confirmed, and nothing was done")
        .hint("without a terminal say `--yes`")
        .once_a_success())
}

/// Has `expected` typed in full: for what cannot be undone for a whole cluster. An empty answer is
/// never a yes.
pub fn type_name(pvc: &mut Pvc, yes: Yes, sentence: &str, expected: &str) -> Outcome {
    if pvc.unasked(yes.yes) {
        return Ok(());
    }
    check_can_type(pvc, yes)?;
    pvc.out.flush();
    let question = format!("{sentence}\nType `{expected}` to go on: ");
    let _ = write!(std::io::stderr(), "{}", calm(&question, false));
    match read_line() {
        Some(typed) if !expected.is_empty() && typed.trim() == expected => Ok(()),
        _ => {
            pvc.out.line("Aborted.");
            pvc.out.flush();
            Err(Failure::quiet(Exit::Success))
        }
    }
}

enum Answer {
    Yes,
    No,
    Nobody,
}

/// An answer piped in counts as a typed one: `echo y | pvc …` has always worked. Without a terminal
/// and without a line to read nobody is there.
fn answer(pvc: &mut Pvc, sentence: &str) -> Answer {
    pvc.out.flush();
    if !pvc.global.silent {
        let _ = write!(std::io::stderr(), "{} [y/N]? ", calm(sentence, false));
    }
    let line = read_line();
    let person = std::io::stdin().is_terminal();
    if (!person || line.is_none()) && !pvc.global.silent {
        // Nobody's Enter has ended the line of the question.
        let _ = writeln!(std::io::stderr());
    }
    match line {
        Some(line) if matches!(line.trim().to_lowercase().as_str(), "y" | "yes") => Answer::Yes,
        None if !person => Answer::Nobody,
        _ => Answer::No,
    }
}

fn read_line() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(line),
    }
}
