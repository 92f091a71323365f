//! Commands that a later release brings.
//!
//! They are declared, so that help and completions show the whole tree and scripts are told what
//! is missing instead of "unrecognized". They are read from a table, only when they are needed;
//! a group leaves the table when its real commands arrive.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command};
use pvc_api_types::release::arrival;

use crate::args;
use crate::outcome::{Exit, Failure};

/// A line per command: its path and arguments, its options, what it does. Options with `=` take
/// a value, of which `{…}` lists the allowed ones; `!` marks a required option and `*` one that
/// may be repeated. `Y`, `W` and `F(…)` stand for the options that many commands share.
const TABLE: &str = include_str!("tree.txt");

/// Purposes of the groups of the table.
const ABOUTS: [(&str, &str); 3] = [
    ("vm snapshot", "Manage snapshots of a VM"),
    ("vm backup", "Manage backups of a VM (deprecated)"),
    ("vm mirror", "Keep a copy of a VM on another cluster"),
];

/// Groups of which only a part is still in the table.
const PARTLY_HERE: [&str; 2] = ["provisioner", "vm"];

/// Adds what the table has.
pub fn add_groups(command: Command) -> Command {
    command
        .mut_subcommand("vm", |group| fill(group, "vm"))
        .mut_subcommand("provisioner", |group| fill(group, "provisioner"))
}

/// Part of the table for the path of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Later {
    path: String,
    release: &'static str,
}

/// Finds the command that was given in the table.
pub fn find(matches: &ArgMatches) -> Option<Later> {
    let path = path(matches);
    let release = release(&path)?;
    TABLE.lines().map(path_of).find(|known| *known == path)?;
    Some(Later { path: path.join(" "), release })
}

/// The same for a line that the parser has refused: whoever lacks the whole command need not be
/// told of its arguments first.
pub fn find_in_words(words: &[OsString]) -> Option<Later> {
    let words: Vec<&str> = args::bare_words(words).map(|(_, word)| word).collect();
    let release = release(&words)?;
    let is_meant = |path: &Vec<&str>| words.starts_with(path);
    let path = TABLE.lines().map(path_of).find(is_meant)?;
    Some(Later { path: path.join(" "), release })
}

/// The release that brings what is at a path, if the table has it.
fn release(path: &[&str]) -> Option<&'static str> {
    arrival(path.first()?).or_else(|| arrival(&path.get(..2)?.join(" ")))
}

/// The failure that using such a command is.
pub fn not_yet(later: &Later) -> Failure {
    let Later { path, release } = later;
    Failure::new(
        Exit::NotYet,
        format!("`pvc {path}` is not part of this release; it arrives with {release}"),
    )
    .hint("nothing was done; until then use the client of the release that your cluster runs")
}

/// Note at the end of the help of a group or a command of the table.
fn note(path: &str) -> String {
    let words: Vec<&str> = path.split(' ').collect();
    let release = release(&words).unwrap_or("a later release");
    format!("Not part of this release: it arrives with {release}.")
}

/// Purpose of a group or a command; where what is around it is here already, with the release that
/// brings it.
fn about(path: &str, text: &str) -> String {
    let words: Vec<&str> = path.split(' ').collect();
    let around = words[..words.len() - 1].join(" ");
    match release(&words) {
        Some(release) if around.is_empty() || PARTLY_HERE.contains(&around.as_str()) => {
            format!("{text} [arrives with {release}]")
        }
        _ => text.to_owned(),
    }
}

fn path(matches: &ArgMatches) -> Vec<&str> {
    let mut path = Vec::new();
    let mut matches = matches;
    while let Some((name, below)) = matches.subcommand() {
        path.push(name);
        matches = below;
    }
    path
}

fn group(name: &'static str, path: &str) -> Command {
    let text = ABOUTS.iter().find(|(at, _)| *at == path).map_or("", |(_, about)| *about);
    Command::new(name)
        .about(about(path, text))
        .after_help(note(path))
        .arg_required_else_help(true)
        .subcommand_required(true)
}

/// The words of a line of the table that name the command, without its arguments.
fn path_of(line: &'static str) -> Vec<&'static str> {
    let is_name = |word: &&str| word.starts_with(|letter: char| letter.is_ascii_lowercase());
    line.split([' ', ';']).take_while(is_name).collect()
}

/// Adds every command of the table whose path begins with `prefix`.
fn fill(mut command: Command, prefix: &'static str) -> Command {
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        let mut parts = line.split(';').map(str::trim);
        let (usage, options, about) = (parts.next(), parts.next(), parts.next());
        let (Some(usage), Some(options), Some(about)) = (usage, options, about) else { continue };
        let path = path_of(line);
        if path[0] != prefix {
            continue;
        }
        let arguments: Vec<&'static str> = usage.split(' ').skip(path.len()).collect();
        let leaf = leaf(&path, &arguments, options, about);
        command = insert(command, prefix.to_owned(), &path[1..path.len() - 1], leaf);
    }
    command
}

/// Puts a command below the groups of its path, making those that are not there yet.
fn insert(command: Command, at: String, path: &[&'static str], leaf: Command) -> Command {
    let Some((first, rest)) = path.split_first() else { return command.subcommand(leaf) };
    let at = format!("{at} {first}");
    let command = if command.find_subcommand(first).is_some() {
        command
    } else {
        command.subcommand(group(first, &at))
    };
    command.mut_subcommand(*first, |group| insert(group, at, rest, leaf))
}

fn leaf(
    path: &[&'static str],
    arguments: &[&'static str],
    options: &'static str,
    text: &str,
) -> Command {
    let (name, path) = (path[path.len() - 1], path.join(" "));
    let arguments = arguments.iter().map(|argument| positional(argument));
    let options = options.split(' ').filter(|option| !option.is_empty()).flat_map(option);
    Command::new(name)
        .about(about(&path, text))
        .after_help(note(&path))
        .args(arguments)
        .args(options)
}

/// `NAME`, or `[NAME]` if it may be left out.
fn positional(word: &'static str) -> Arg {
    let name = word.trim_matches(['[', ']']);
    Arg::new(name).value_name(name).required(!word.starts_with('['))
}

fn option(word: &'static str) -> Vec<Arg> {
    if let Some(formats) = word.strip_prefix("F(") {
        let formats: Vec<&'static str> = formats.trim_end_matches(')').split(',').collect();
        return vec![
            Arg::new("format")
                .short('f')
                .long("format")
                .value_parser(formats)
                .help("How to print it"),
        ];
    }
    match word {
        "Y" => vec![flag("yes").short('y').help("Do not ask")],
        "W" => vec![
            flag("wait").help("Wait for the task to end"),
            flag("no-wait").help("Return at once"),
        ],
        _ => vec![plain_option(word)],
    }
}

fn flag(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}

/// `-p,--type={managed,bridged}!`
fn plain_option(word: &'static str) -> Arg {
    let (names, value) = match word.split_once('=') {
        Some((names, value)) => (names, Some(value)),
        None => (word, None),
    };
    let (short, long) = match names.split_once(',') {
        Some((short, long)) => (short.chars().nth(1), long),
        None => (None, names),
    };
    let long = long.trim_start_matches("--");
    let argument = Arg::new(long).long(long);
    let argument = match short {
        Some(short) => argument.short(short),
        None => argument,
    };
    let Some(value) = value else { return argument.action(ArgAction::SetTrue) };
    let argument = argument.required(value.contains('!'));
    let argument = if value.contains('*') { argument.action(ArgAction::Append) } else { argument };
    match value.split_once('{').and_then(|(_, rest)| rest.split_once('}')) {
        Some((choices, _)) => {
            argument.value_parser(choices.split(',').collect::<Vec<_>>()).ignore_case(true)
        }
        None => argument.allow_hyphen_values(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        find_in_words(&words).map(|later| later.path)
    }

    #[test]
    fn a_command_of_the_table_is_found_whatever_its_arguments() {
        let export = Some("vm snapshot export".to_owned());
        assert_eq!(meant("pvc vm snapshot export"), export);
        assert_eq!(meant("pvc -c office vm snapshot export -x"), export);
        assert_eq!(meant("pvc vm autobackup extra"), Some("vm autobackup".to_owned()));
        assert_eq!(meant("pvc vm snapshot create"), Some("vm snapshot create".to_owned()));
    }

    #[test]
    fn what_the_table_does_not_have_is_left_to_the_parser() {
        for line in [
            "pvc",
            "pvc storage",
            "pvc network sriov vf list",
            "pvc storage volumes list",
            "pvc vm list",
            "pvc vm snapshots",
            "pvc x",
        ] {
            assert_eq!(meant(line), None, "{line}");
        }
    }
}
