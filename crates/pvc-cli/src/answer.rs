//! Output of a command that changes something: the API's sentence, or JSON for scripts; and whether
//! it is only to be tried.
//!
//! The options are added to all of these commands in one place. A command with an option `--format`
//! of its own, and one that prints nothing of the API's, does not get it. Where `--format` is that
//! of an image, the option is called `--answer`.

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde::Serialize;
use serde_json::json;

use crate::context::Pvc;
use crate::output::json;

const ID: &str = "answer";
/// The option of commands that have no `--dry-run` of their own.
const DRY_RUN: &str = "try-dry";
/// Commands and groups whose output is not an answer of the API.
const WITHOUT: [&str; 8] =
    ["backup", "completion", "connection", "dump", "is-primary", "log", "man", "what-if"];

/// Commands whose own `--format`, if they have one, is that of an image.
const OF_IMAGES: [&str; 3] = ["add", "download", "upload"];
/// Commands with an answer that change nothing of the cluster's, and have nothing to be tried.
const CHANGING_NOTHING: [&str; 1] = ["download"];

/// Format in which an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    #[default]
    Sentence,
    Json,
    JsonPretty,
}

/// Adds the option to every command that lacks one of its name.
pub fn add_format(command: Command) -> Command {
    if WITHOUT.contains(&command.get_name()) {
        return command;
    }
    let group = command.has_subcommands();
    let command = if group { command.mut_subcommands(add_format) } else { command };
    let own = command.get_arguments().any(|argument| argument.get_long() == Some("format"));
    let name = match own {
        true if OF_IMAGES.contains(&command.get_name()) => "answer",
        true => return command,
        false => "format",
    };
    if group {
        return command;
    }
    let is_left_out = CHANGING_NOTHING.contains(&command.get_name())
        || command.get_arguments().any(|own| own.get_long() == Some("dry-run"));
    let command = match is_left_out {
        true => command,
        false => command.arg(
            Arg::new(DRY_RUN)
                .long("dry-run")
                .action(ArgAction::SetTrue)
                .help("Change nothing; say whether it would be refused"),
        ),
    };
    let taken = command.get_arguments().any(|argument| argument.get_short() == Some('f'));
    let option = Arg::new(ID)
        .long(name)
        .value_name("FORMAT")
        .value_parser(["pretty", "json", "json-pretty"])
        .default_value("pretty")
        .help("How to print the answer: as a sentence, or as JSON");
    command.arg(if taken { option } else { option.short('f') })
}

/// The command's own part of the line.
fn innermost(mut matches: &ArgMatches) -> &ArgMatches {
    while let Some((_, below)) = matches.subcommand() {
        matches = below;
    }
    matches
}

/// Whether the line asks for a dry run of a command that knows of none by itself.
pub fn is_dry_run(matches: &ArgMatches) -> bool {
    matches!(innermost(matches).try_get_one::<bool>(DRY_RUN), Ok(Some(true)))
}

/// The format that the line asks for.
pub fn format(matches: &ArgMatches) -> Format {
    match innermost(matches).try_get_one::<String>(ID) {
        Ok(Some(word)) if word == "json" => Format::Json,
        Ok(Some(word)) if word == "json-pretty" => Format::JsonPretty,
        _ => Format::Sentence,
    }
}

impl Pvc {
    /// Prints the API's sentence about a change.
    pub fn done(&mut self, message: impl AsRef<str>) {
        let message = message.as_ref();
        if !self.done_as_json(&json!({ "message": message })) {
            self.out.line(message);
        }
    }

    /// Prints `value` if answers are JSON; returns whether they are.
    pub fn done_as_json(&mut self, value: &impl Serialize) -> bool {
        match self.answers {
            Format::Sentence => return false,
            Format::Json => self.out.line(json::compact(value)),
            Format::JsonPretty => self.out.line(json::pretty(value)),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_format(name: &'static str) -> Command {
        add_format(Command::new(name).arg(Arg::new("own").short('f').long("format")))
    }

    #[test]
    fn where_format_is_that_of_an_image_the_option_has_another_name() {
        let options = |name| {
            let command = with_format(name);
            let longs = command.get_arguments().filter_map(|argument| argument.get_long());
            longs.map(str::to_owned).collect::<Vec<_>>()
        };
        for name in ["add", "upload"] {
            assert_eq!(options(name), ["format", "dry-run", "answer"], "{name}");
        }
        assert_eq!(options("download"), ["format", "answer"], "it changes nothing");
        assert_eq!(options("list"), ["format"]);
    }

    #[test]
    fn an_answer_is_printed_as_the_line_says() {
        let of = |words: &[&str]| {
            let line = [&["download"][..], words].concat();
            format(&with_format("download").try_get_matches_from(line).expect("it is understood"))
        };
        assert_eq!(of(&["-f", "qcow2", "--answer", "json"]), Format::Json);
        assert_eq!(of(&["--format", "json"]), Format::Sentence, "it is the image's");
    }
}
