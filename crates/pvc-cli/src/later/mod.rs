//! Commands that a later release brings.
//!
//! They are declared, so that help and completions show the whole tree and scripts are told what
//! is missing instead of "unrecognized". They are read from a table, only when they are needed;
//! a group leaves the table when its real commands arrive.

use clap::{Arg, ArgAction, ArgMatches, Command};
use pvc_api_types::release::arrival;

use crate::outcome::{Exit, Failure};

/// A line per command: its path and arguments, its options, what it does. Options with `=` take
/// a value, of which `{…}` lists the allowed ones; `!` marks a required option and `*` one that
/// may be repeated. `Y`, `W` and `F(…)` stand for the options that many commands share.
const TABLE: &str = include_str!("tree.txt");

/// What the groups of the table are for.
const ABOUTS: [(&str, &str); 26] = [
    ("network", "Manage networks"),
    ("network acl", "Manage the firewall rules of a network"),
    ("network dhcp", "Manage the static leases of a network"),
    ("network sriov", "Manage SR-IOV devices"),
    ("network sriov pf", "Show the SR-IOV physical functions of a node"),
    ("network sriov vf", "Manage the SR-IOV virtual functions of a node"),
    ("storage", "Manage the storage"),
    ("storage benchmark", "Measure the storage"),
    ("storage osd", "Manage OSDs"),
    ("storage pool", "Manage pools"),
    ("storage volume", "Manage volumes"),
    ("storage volume snapshot", "Manage snapshots of volumes"),
    ("provisioner", "Make VMs from templates"),
    ("provisioner ova", "Manage OVA images"),
    ("provisioner profile", "Manage profiles"),
    ("provisioner script", "Manage provisioning scripts"),
    ("provisioner template", "Manage templates"),
    ("provisioner template network", "Manage network templates"),
    ("provisioner template network vni", "Manage the networks of a network template"),
    ("provisioner template storage", "Manage storage templates"),
    ("vm snapshot", "Manage snapshots of a VM"),
    ("vm backup", "Manage backups of a VM (deprecated)"),
    ("vm mirror", "Keep a copy of a VM on another cluster"),
    ("provisioner template storage disk", "Manage the disks of a storage template"),
    ("provisioner template system", "Manage system templates"),
    ("provisioner userdata", "Manage userdata documents"),
];

/// Adds what the table has on the top level.
pub fn add_groups(command: Command) -> Command {
    command
        .subcommand(group("network", "Manage networks").defer(|group| fill(group, "network")))
        .subcommand(group("storage", "Manage the storage").defer(|group| fill(group, "storage")))
        .subcommand(group("provisioner", "Make VMs from templates").defer(|group| fill(group, "provisioner")))
}

/// Adds what the table has below `vm`.
pub fn add_vm_groups(command: Command) -> Command {
    fill(command, "vm")
}

/// The release that brings the command that was given, if the table has it.
pub fn release(matches: &ArgMatches) -> Option<&'static str> {
    let path = path(matches);
    arrival(path.first()?).or_else(|| arrival(&path.get(..2)?.join(" ")))
}

/// The failure that using such a command is.
pub fn not_yet(matches: &ArgMatches, release: &str) -> Failure {
    let path = path(matches).join(" ");
    Failure::new(Exit::NotYet, format!("`pvc {path}` is not part of this release; it arrives with {release}"))
        .hint("nothing was done; until then use the client of the release that your cluster runs")
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

fn group(name: &'static str, about: &'static str) -> Command {
    Command::new(name).about(about).arg_required_else_help(true).subcommand_required(true)
}

/// Adds every command of the table whose path begins with `prefix`.
fn fill(mut command: Command, prefix: &'static str) -> Command {
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        let mut parts = line.split(';').map(str::trim);
        let (usage, options, about) = (parts.next(), parts.next(), parts.next());
        let (Some(usage), Some(options), Some(about)) = (usage, options, about) else { continue };
        let words: Vec<&'static str> = usage.split(' ').collect();
        let lower = words
            .iter()
            .take_while(|word| word.starts_with(|letter: char| letter.is_ascii_lowercase()))
            .count();
        let (path, arguments) = words.split_at(lower);
        if path[0] != prefix {
            continue;
        }
        let leaf = leaf(path[lower - 1], arguments, options, about);
        command = insert(command, prefix.to_owned(), &path[1..lower - 1], leaf);
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
        let about = ABOUTS.iter().find(|(path, _)| *path == at).map_or("", |(_, about)| *about);
        command.subcommand(group(first, about))
    };
    command.mut_subcommand(*first, |group| insert(group, at, rest, leaf))
}

fn leaf(
    name: &'static str,
    arguments: &[&'static str],
    options: &'static str,
    about: &'static str,
) -> Command {
    let arguments = arguments.iter().map(|argument| positional(argument));
    let options = options.split(' ').filter(|option| !option.is_empty()).flat_map(option);
    Command::new(name)
        .about(about)
        .after_help("This command is not part of this release.")
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
            Arg::new("format").short('f').long("format").value_parser(formats).help("How to print it"),
        ];
    }
    match word {
        "Y" => vec![flag("yes").short('y').help("Do not ask")],
        "W" => vec![flag("wait").help("Wait for the task to end"), flag("no-wait").help("Return at once")],
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
        Some((choices, _)) => argument.value_parser(choices.split(',').collect::<Vec<_>>()).ignore_case(true),
        None => argument.allow_hyphen_values(true),
    }
}
