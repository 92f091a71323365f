//! The command tree.

use std::ffi::OsString;

use clap::{Arg, CommandFactory, Parser, Subcommand};

use crate::answer;
use crate::args;
use crate::audit;
use crate::cluster::{self, Cluster};
use crate::completion::Completion;
use crate::connection::Connections;
use crate::context::{Global, Pvc};
use crate::events::Events;
use crate::image::Image;
use crate::later;
use crate::man::Man;
use crate::network::Network;
use crate::node::Node;
use crate::outcome::{Failure, Outcome};
use crate::provisioner::Provisioner;
use crate::storage::Storage;
use crate::vm::Vm;

/// Manage a Parallel Virtual Cluster
///
/// The options below stand before the group: `pvc -c office vm list`. Data goes to
/// standard output, everything else to standard error.
#[derive(Debug, Parser)]
#[command(
    name = "pvc",
    bin_name = "pvc",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = true,
    args_override_self = true,
    after_help = EPILOGUE
)]
struct Line {
    #[command(flatten)]
    global: Global,

    #[command(subcommand)]
    command: Command,
}

const EPILOGUE: &str = "\
Exit codes:
  0  done, or declined when asked
  1  refused, or failed: also if a task or a guest that was waited for failed
  2  the command line makes no sense
  3  there is no such VM, node, connection, task ...
  4  the API cannot be reached
  5  the API does not accept the key
  6  the command is not part of this release
  7  the server failed, or its answer could not be understood
  130  Ctrl-C
With PVC_COMPAT_EXIT=1 they are those of PVC 1.0.3's client: 0, 1 and 2, and a
failed task is 0.

Variables:
  PVC_CONNECTION (or PVC_CLUSTER), PVC_DEBUG, PVC_QUIET, PVC_SILENT, PVC_UNSAFE,
  PVC_COLOUR, PVC_TIMEOUT  what the options of these names do
  PVC_API_KEY     the key to use instead of the stored one
  PVC_CLIENT_DIR  the directory of the stored connections [default: ~/.config/pvc]
  PVC_CLIENT_DB_PERMS    their file mode, octal [default: 600]
  PVC_CLIENT_VERIFY_SSL  True verifies certificates, anything else does not [default: True]
  PVC_CONFIG_FILE the daemon configuration that the connection `local` reads
  NO_COLOR        no colours
  PAGER, VISUAL, EDITOR  the programs to show and edit with

Examples:
  pvc status
  pvc vm start web1 --wait
  pvc -q -c office vm list --state fail -f json";

/// Command that stands behind the global options.
#[derive(Debug, Subcommand)]
pub enum Command {
    #[command(subcommand, arg_required_else_help = true)]
    Cluster(Cluster),
    Completion(Completion),
    #[command(subcommand, arg_required_else_help = true)]
    Connection(Connections),
    Events(Events),
    #[command(subcommand, arg_required_else_help = true)]
    Image(Image),
    #[command(hide = true)]
    Man(Man),
    #[command(subcommand, arg_required_else_help = true)]
    Network(Network),
    #[command(subcommand, arg_required_else_help = true)]
    Node(Node),
    #[command(subcommand, arg_required_else_help = true)]
    Provisioner(Provisioner),
    Status(cluster::status::Status),
    #[command(subcommand, arg_required_else_help = true)]
    Storage(Storage),
    Task(cluster::task::Task),
    #[command(subcommand, arg_required_else_help = true)]
    Vm(Vm),
}

impl Command {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Command::Cluster(command) => command.run(pvc),
            Command::Completion(command) => command.run(pvc),
            Command::Connection(command) => command.run(pvc),
            Command::Events(command) => command.run(pvc),
            Command::Image(command) => command.run(pvc),
            Command::Man(command) => command.run(pvc),
            Command::Network(command) => command.run(pvc),
            Command::Node(command) => command.run(pvc),
            Command::Provisioner(command) => command.run(pvc),
            Command::Status(command) => command.run(pvc),
            Command::Storage(command) => command.run(pvc),
            Command::Task(command) => command.run(pvc),
            Command::Vm(command) => command.run(pvc),
        }
    }
}

/// Everything there is, including what a later release brings.
pub fn command() -> clap::Command {
    later::add_groups(answer::add_format(Line::command()))
}

/// The failure of a line with a global option behind the group, with the line that was meant.
pub fn misplaced(option: &str, args: &[OsString]) -> Option<Failure> {
    let global = command().get_arguments().find(|argument| is_called(argument, option)).cloned()?;
    let meant = args::moved_ahead(args, option, global.get_action().takes_values());
    let meant = meant.map_or_else(
        || format!("pvc {option} GROUP …"),
        |meant| args::for_a_shell(&audit::redacted_words(&meant)),
    );
    let message = format!("`{option}` is a global option, and those stand before the group");
    Some(Failure::usage(message).hint(format!("`{meant}`")))
}

/// The failure of a line with a word that other programs have for a command of this one.
pub fn other_word(args: &[OsString]) -> Option<Failure> {
    let mut group = command();
    let mut path = "pvc".to_owned();
    for (_, word) in args::bare_words(args) {
        if !group.has_subcommands() {
            return None;
        }
        if let Some(below) = group.find_subcommand(word) {
            group = below.clone();
            path = format!("{path} {word}");
            continue;
        }
        let (_, meant) = WORDS.iter().find(|(theirs, _)| *theirs == word)?;
        let found = meant.iter().find_map(|name| group.find_subcommand(name))?;
        let about = found.get_about().map(ToString::to_string).unwrap_or_default();
        let hint = format!("`{path} {}`: {about}", found.get_name());
        return Some(Failure::usage(format!("there is no command `{path} {word}`")).hint(hint));
    }
    None
}

/// Words of other programs for a command, with the names that it may have here, the best first.
const WORDS: [(&str, &[&str]); 14] = [
    ("ls", &["list", "get"]),
    ("ps", &["list", "get"]),
    ("show", &["info", "get", "list", "status"]),
    ("describe", &["info", "get", "status"]),
    ("get", &["info", "list"]),
    ("rm", &["remove", "delete"]),
    ("del", &["remove", "delete"]),
    ("delete", &["remove", "delete"]),
    ("create", &["define", "add", "create", "init"]),
    ("new", &["define", "add", "create", "init"]),
    ("edit", &["modify", "meta", "set"]),
    ("kill", &["stop", "cancel"]),
    ("reboot", &["restart"]),
    ("console", &["log"]),
];

fn is_called(argument: &Arg, option: &str) -> bool {
    match option.strip_prefix("--") {
        Some(long) => {
            let aliases = argument.get_all_aliases().unwrap_or_default();
            argument.get_long() == Some(long) || aliases.contains(&long)
        }
        None => argument
            .get_short()
            .is_some_and(|short| option.strip_prefix('-') == Some(&short.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_another_program_leads_to_the_command() {
        let said = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            other_word(&words).and_then(|failure| failure.hint)
        };
        assert_eq!(said("pvc vm ls").unwrap(), "`pvc vm list`: List the VMs");
        assert!(said("pvc -q node show hv1").unwrap().starts_with("`pvc node info`: "));
        assert!(said("pvc vm rm web1 -y").unwrap().starts_with("`pvc vm remove`: "));
        assert!(said("pvc network create 1001").unwrap().starts_with("`pvc network add`: "));
        assert!(said("pvc vm tag rm web1 x").unwrap().starts_with("`pvc vm tag remove`: "));
        assert!(said("pvc connection create x").unwrap().starts_with("`pvc connection add`: "));
        assert!(said("pvc cluster show").unwrap().starts_with("`pvc cluster status`: "));
        assert_eq!(said("pvc vm dance"), None);
        assert_eq!(said("pvc vm info ls"), None, "a VM may be called so");
    }

    fn meant(option: &str, line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        misplaced(option, &words).and_then(|failure| failure.hint)
    }

    #[test]
    fn a_global_option_behind_the_group_is_shown_where_it_belongs() {
        let said = |line: &str| Some(format!("`{line}`"));
        assert_eq!(meant("-q", "pvc vm list -q"), said("pvc -q vm list"));
        assert_eq!(
            meant("-c", "/usr/bin/pvc vm info web1 -c office -f json"),
            said("pvc -c office vm info web1 -f json")
        );
        assert_eq!(
            meant("--connection", "pvc status --connection=x"),
            said("pvc --connection=x status")
        );
        assert_eq!(
            meant("--color", "pvc vm list --color ^web"),
            said("pvc --color vm list '^web'")
        );
        assert_eq!(
            meant("-q", "pvc vm list -qf json"),
            said("pvc -q GROUP …"),
            "letters in one word stay"
        );
        assert_eq!(meant("-z", "pvc vm list -z"), None);
    }

    #[test]
    fn a_key_is_not_repeated_in_a_hint() {
        let hint = meant("-q", "pvc connection add x -a h -k secret -q").unwrap();
        assert!(hint.contains("-k '***'") && !hint.contains("secret"), "{hint}");
    }

    /// Every command of the recorded tree, with its arguments and options.
    #[test]
    fn the_tree_is_the_recorded_one() {
        let mut command = command();
        command.build();
        let mut lines = Vec::new();
        describe(&command, &mut lines);
        lines.sort();
        let described = lines.join("\n") + "\n";
        crate::golden::check("tree.txt", &described);
    }

    /// Words of a line as a shell takes them, up to its comment: a `#`, or what stands two spaces
    /// behind. Each command of it is apart.
    fn commands_of(line: &str) -> Vec<Vec<String>> {
        let (mut commands, mut quote, mut word) = (vec![Vec::new()], None, None::<String>);
        let mut letters = line.chars().peekable();
        let end = |word: &mut Option<String>, commands: &mut Vec<Vec<String>>| {
            let last = commands.last_mut().expect("there is always one");
            last.extend(word.take());
        };
        while let Some(letter) = letters.next() {
            match (letter, quote) {
                (letter, Some(mark)) if letter == mark => quote = None,
                (letter, Some(_)) => word.get_or_insert_default().push(letter),
                ('\'' | '"', None) => {
                    quote = Some(letter);
                    word.get_or_insert_default();
                }
                (' ', None) if letters.peek() == Some(&' ') => break,
                (' ', None) => end(&mut word, &mut commands),
                ('#', None) if word.is_none() => break,
                (';' | '|' | '>', None) => {
                    end(&mut word, &mut commands);
                    commands.push(Vec::new());
                }
                // What may be left out stands in brackets.
                ('[' | ']', None) => {}
                (letter, None) => word.get_or_insert_default().push(letter),
            }
        }
        end(&mut word, &mut commands);
        commands
    }

    /// Lines of the manual that are command lines, with where they stand.
    fn lines_of_the_manual() -> Vec<(String, String)> {
        let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let pages = std::fs::read_dir(top.join("docs/manual")).unwrap();
        let mut pages: Vec<_> = pages.map(|page| page.unwrap().path()).collect();
        pages.push(top.join("README.md"));
        let mut lines = Vec::new();
        for page in pages {
            let text = std::fs::read_to_string(&page).unwrap();
            let broken = text.split("\\\n").map(str::trim_start);
            let text = broken.collect::<Vec<_>>().concat();
            for (number, line) in text.lines().enumerate() {
                let line = line.trim_start().trim_start_matches("$ ");
                if line.starts_with("pvc ") && !line.contains("GROUP") {
                    lines.push((format!("{}:{}", page.display(), number + 1), line.to_owned()));
                }
            }
        }
        lines
    }

    #[test]
    fn the_manual_says_no_command_that_there_is_not() {
        use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
        let mut count = 0;
        for (place, line) in lines_of_the_manual() {
            let is_ours = |words: &Vec<String>| words.first().is_some_and(|word| word == "pvc");
            for words in commands_of(&line).into_iter().filter(is_ours) {
                count += 1;
                let words = crate::args::mend(words.iter().map(Into::into).collect());
                match command().try_get_matches_from(&words) {
                    Ok(_) => {}
                    Err(error) if [DisplayHelp, DisplayVersion].contains(&error.kind()) => {}
                    Err(error) => panic!("{place}: {line}\n{error}"),
                }
            }
        }
        assert!(count > 80, "the manual has more of them than {count}");
    }

    #[test]
    fn a_line_of_the_manual_is_read_as_a_shell_reads_it() {
        let read = |line: &str| commands_of(line);
        assert_eq!(read("pvc a 'b  c'  # d"), [["pvc", "a", "b  c"]]);
        assert_eq!(read("pvc a   and so on"), [["pvc", "a"]]);
        assert_eq!(read("pvc a ''"), [["pvc", "a", ""]]);
        assert_eq!(read("pvc a [b] | jq '.[] | x'"), [&["pvc", "a", "b"][..], &["jq", ".[] | x"]]);
        assert_eq!(read("pvc a ; pvc b # c"), [["pvc", "a"], ["pvc", "b"]]);
    }

    #[test]
    fn the_tree_is_sound() {
        let mut command = command();
        command.build();
        command.debug_assert();
    }

    #[test]
    fn every_command_says_what_it_does_in_one_line() {
        let mut command = command();
        command.build();
        check_abouts(&command);
    }

    fn check_abouts(command: &clap::Command) {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        assert!(
            !about.is_empty() && !about.ends_with('.') && about.len() < 80,
            "{}: {about:?}",
            command.get_name()
        );
        command.get_subcommands().filter(|below| below.get_name() != "help").for_each(check_abouts);
    }

    fn describe(command: &clap::Command, lines: &mut Vec<String>) {
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            if below.has_subcommands() {
                describe(below, lines);
                if below.is_subcommand_required_set() {
                    continue;
                }
            }
            let name = below.get_bin_name().unwrap_or_default();
            let words: Vec<String> = below
                .get_arguments()
                .filter(|argument| argument.get_id() != "help")
                .map(word)
                .collect();
            lines.push(format!("{name} {}", words.join(" ")).trim_end().to_owned());
        }
    }

    fn word(argument: &clap::Arg) -> String {
        if argument.is_positional() {
            let name = argument.get_value_names().map_or("", |names| names[0].as_str());
            return if argument.is_required_set() { name.to_owned() } else { format!("[{name}]") };
        }
        let short = argument.get_short().map(|short| format!("-{short},")).unwrap_or_default();
        let value = if argument.get_action().takes_values() { "=" } else { "" };
        let required = if argument.is_required_set() { "!" } else { "" };
        format!("{short}--{}{value}{required}", argument.get_long().unwrap_or_default())
    }
}
