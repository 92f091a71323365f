//! The `pvc` command line, one file per command.
//!
//! The way of a call: `args` mends what only the old parser understood, `tree` says what exists,
//! the command's own file says what it does, [`Pvc`] gives it a connection and a place to print,
//! and `outcome` turns the end into an exit code.

#![allow(
    clippy::disallowed_methods,
    reason = "no part of the simulated world: one thread, real time"
)]

mod answer;
mod args;
mod audit;
mod choice;
mod cluster;
mod completion;
mod confirm;
mod connection;
mod context;
mod edit;
mod events;
mod format;
#[cfg(test)]
mod golden;
mod image;
mod interrupt;
mod later;
mod log;
mod man;
mod missing;
mod network;
mod node;
mod outcome;
mod output;
mod plan;
mod provisioner;
mod storage;
mod task;
mod time;
mod tree;
mod vm;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};

pub use context::Pvc;
pub use outcome::{Exit, Failure, Outcome};

/// Runs the command line `args`, with the program's name first, and says how it ended.
pub fn main(args: Vec<OsString>) -> ExitCode {
    if completion::answer(&args) {
        return ExitCode::SUCCESS;
    }
    audit::record(&args);
    let compat = context::compatible_exit();
    interrupt::prepare(compat);
    let code = match completion::activated_the_old_way() {
        None => run(args::mend(args), compat),
        Some(Ok(shell)) => run(vec!["pvc".into(), "completion".into(), shell.into()], compat),
        Some(Err(failure)) => {
            complain(&failure);
            failure.code(compat)
        }
    };
    if code == Exit::Interrupted as u8 {
        interrupt::end();
    }
    ExitCode::from(code)
}

fn run(args: Vec<OsString>, compat: bool) -> u8 {
    let matches = match tree::command().try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(error) => return misread(&error, &args).code(compat),
    };
    let global = match context::Global::from_arg_matches(&matches).map_err(|error| explain(&error))
    {
        Ok(global) => global.with_environment(),
        Err(exit) => return exit.code(compat),
    };
    let silent = global.as_ref().is_ok_and(|global| global.silent);
    let outcome = global.and_then(|global| {
        if let Some(later) = later::find(&matches) {
            return Err(later::not_yet(&later));
        }
        let command = tree::Command::from_arg_matches(&matches)
            .map_err(|error| Failure::usage(error.to_string()))?;
        let mut pvc = Pvc::new(global);
        pvc.answers = answer::format(&matches);
        pvc.dry_run = answer::is_dry_run(&matches);
        let outcome = command.run(&mut pvc);
        pvc.out.flush();
        outcome
    });
    match outcome {
        Ok(()) => Exit::Success.code(compat),
        Err(failure) => {
            if !silent {
                complain(&failure);
            }
            failure.code(compat)
        }
    }
}

/// Says what is wrong with a line that the parser has refused.
fn misread(error: &clap::Error, args: &[OsString]) -> Exit {
    let known = if error.use_stderr() { mistake(error, args) } else { None };
    match known {
        Some(failure) => {
            complain(&failure);
            failure.exit
        }
        None => explain(error),
    }
}

/// A mistake of which more can be said than the parser does.
fn mistake(error: &clap::Error, args: &[OsString]) -> Option<Failure> {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return None;
    }
    if let Some(later) = later::find_in_words(args) {
        return Some(later::not_yet(&later));
    }
    if matches!(error.kind(), ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument)
        && let Some(failure) = tree::other_word(args)
    {
        return Some(failure);
    }
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(option))) => {
            tree::misplaced(option, args).or_else(|| unasked(option))
        }
        _ => None,
    }
}

/// The failure of a line that answers a question its command does not ask.
fn unasked(option: &str) -> Option<Failure> {
    let answer = matches!(option, "-y" | "--yes");
    answer.then(|| {
        Failure::usage(format!("unexpected `{option}`: this command asks no question")).hint(
            format!("leave `{option}` out; where a command asks, `{option}` stands behind it"),
        )
    })
}

/// Prints what the parser has to say: help to standard output, mistakes to standard error.
fn explain(error: &clap::Error) -> Exit {
    let text = error.render();
    match error.kind() {
        // A group without a command shows what it holds; nobody made a mistake.
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let styled = context::colour_wanted();
            let mut out = output::Output::stdout(false, styled);
            out.text(if styled { text.ansi().to_string() } else { text.to_string() });
            out.flush();
            Exit::Success
        }
        _ => {
            let _ = error.print();
            Exit::Usage
        }
    }
}

/// Tells on standard error what went wrong and what helps.
fn complain(failure: &Failure) {
    if !failure.message.is_empty() {
        output::aside(format!("error: {}", failure.message));
    }
    if let Some(hint) = &failure.hint {
        output::aside(format!("hint: {hint}"));
    }
}
