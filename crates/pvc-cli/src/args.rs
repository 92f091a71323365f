//! Mends what only the old parser understood, before the real one reads the command line.

use std::ffi::OsString;

/// A command and its options of several letters behind a single dash, each with its long form.
type Renamed = ([&'static str; 2], &'static [(&'static str, &'static str)]);

/// Commands whose options may be written so. Everywhere else `-ds` stays what it looks like, two
/// options.
const RENAMED: [Renamed; 3] = [
    (
        ["node", "list"],
        &[("-ds", "--daemon-state"), ("-cs", "--coordinator-state"), ("-vs", "--domain-state")],
    ),
    (["network", "add"], &[("-i6", "--ipnet6"), ("-g6", "--gateway6")]),
    (["network", "modify"], &[("-i6", "--ipnet6"), ("-g6", "--gateway6")]),
];

/// Global options that take the next word as their value.
const WITH_VALUE: [&str; 3] = ["-c", "--connection", "--timeout"];

/// Renames options of several letters behind a single dash under the commands that have them, and
/// takes `help` and `version` in the place of a group for the options of these names.
pub fn mend(args: Vec<OsString>) -> Vec<OsString> {
    let args = asked_in_words(args);
    let Some((path, rest)) = command_path(&args) else { return args };
    let Some((_, renamed)) = RENAMED.iter().find(|(command, _)| path == *command) else {
        return args;
    };
    let mut options_ended = false;
    let mend_word = |(index, word): (usize, OsString)| {
        options_ended = options_ended || (index >= rest && word == "--");
        if index < rest || options_ended { word } else { renamed_word(word, renamed) }
    };
    args.into_iter().enumerate().map(mend_word).collect()
}

/// `pvc help vm list` is `pvc vm list --help`.
fn asked_in_words(mut args: Vec<OsString>) -> Vec<OsString> {
    let Some((at, word)) = bare_words(&args).next() else { return args };
    let option = match word {
        "help" => "--help",
        "version" => "--version",
        _ => return args,
    };
    args.remove(at);
    // `pvc version` alone: an option of that name behind a group means another thing.
    let to = if option == "--help" { args.len() } else { at };
    args.insert(to, option.into());
    args
}

fn renamed_word(word: OsString, renamed: &[(&str, &str)]) -> OsString {
    let Some(text) = word.to_str() else { return word };
    let (name, value) =
        text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    match (renamed.iter().find(|(short, _)| *short == name), value) {
        (Some((_, long)), Some(value)) => format!("{long}={value}").into(),
        (Some((_, long)), None) => (*long).into(),
        (None, _) => word,
    }
}

/// Group and command, and the index of the word behind them.
fn command_path(args: &[OsString]) -> Option<([&str; 2], usize)> {
    let mut words = bare_words(args);
    let ((_, group), (index, command)) = (words.next()?, words.next()?);
    Some(([group, command], index + 1))
}

/// The words that are no options, and where they stand, without the program's name and the values
/// of global options. The values of a command's own options are among them: only the command knows
/// which take one.
pub fn bare_words(args: &[OsString]) -> impl Iterator<Item = (usize, &str)> {
    let mut value = false;
    let mut group = false;
    args.iter().enumerate().skip(1).filter_map(move |(index, word)| {
        let word = word.to_str().unwrap_or("\u{fffd}");
        let is_value = std::mem::take(&mut value);
        value = !group && !is_value && WITH_VALUE.contains(&word);
        if is_value || word.starts_with('-') {
            return None;
        }
        group = true;
        Some((index, word))
    })
}

/// The line with an option, and its value if it takes one, moved to its beginning; `None` if it
/// does not stand there as a word of its own.
pub fn moved_ahead(args: &[OsString], option: &str, takes_value: bool) -> Option<Vec<OsString>> {
    let joined = format!("{option}=");
    let is_joined = |word: &OsString| word.to_str().is_some_and(|word| word.starts_with(&joined));
    let at =
        args.iter().position(|word| *word == *option || is_joined(word)).filter(|at| *at > 0)?;
    let words = if takes_value && !is_joined(&args[at]) { 2 } else { 1 };
    let mut moved = args.to_vec();
    let taken: Vec<OsString> = moved.drain(at..args.len().min(at + words)).collect();
    moved.splice(1..1, taken);
    Some(moved)
}

/// A call of this program that a shell takes for these words.
pub fn for_a_shell(words: &[String]) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "-_./:=,@%+".contains(letter);
    let quoted = |word: &String| match word {
        word if !word.is_empty() && word.chars().all(plain) => word.clone(),
        word => format!("'{}'", word.replace('\'', "'\\''")),
    };
    std::iter::once("pvc".to_owned())
        .chain(words.iter().skip(1).map(quoted))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_to_a_shell_is_quoted() {
        let words = ["/bin/pvc", "vm", "list", "a b", "it's", ""].map(str::to_owned);
        assert_eq!(for_a_shell(&words), r"pvc vm list 'a b' 'it'\''s' ''");
    }

    fn mended(line: &str) -> String {
        let words = line.split(' ').map(OsString::from).collect();
        let words: Vec<String> =
            mend(words).into_iter().map(|word| word.into_string().unwrap()).collect();
        words.join(" ")
    }

    #[test]
    fn options_of_two_letters_are_renamed_under_their_command() {
        assert_eq!(
            mended("pvc node list -ds run -vs=ready x"),
            "pvc node list --daemon-state run --domain-state=ready x"
        );
        assert_eq!(
            mended("pvc -c a -q node list -cs primary"),
            "pvc -c a -q node list --coordinator-state primary"
        );
        assert_eq!(
            mended("pvc network add 10 -i6 fd::/64 -g6=fd::1"),
            "pvc network add 10 --ipnet6 fd::/64 --gateway6=fd::1"
        );
    }

    #[test]
    fn help_and_version_can_be_asked_for_in_words() {
        assert_eq!(mended("pvc help"), "pvc --help");
        assert_eq!(mended("pvc -q help vm list"), "pvc -q vm list --help");
        assert_eq!(mended("pvc version"), "pvc --version");
        assert_eq!(mended("pvc vm info help"), "pvc vm info help");
    }

    #[test]
    fn the_same_letters_elsewhere_stay_what_they_are() {
        for line in [
            "pvc vm list -ds",
            "pvc node list -- -ds",
            "pvc node info -ds x",
            "pvc -c node list -ds",
        ] {
            assert_eq!(mended(line), line);
        }
    }

    #[test]
    fn letters_that_only_begin_alike_stay_what_they_are() {
        assert_eq!(mended("pvc node list -dsx -d s"), "pvc node list -dsx -d s");
    }
}
