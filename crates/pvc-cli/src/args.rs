//! Mends what only the old parser understood, before the real one reads the command line.

use std::ffi::OsString;

/// A command and its options of several letters behind a single dash, each with its long form.
type Renamed = ([&'static str; 2], &'static [(&'static str, &'static str)]);

/// Where such options are allowed. Everywhere else `-ds` stays what it looks like, two options.
const RENAMED: [Renamed; 3] = [
    (
        ["node", "list"],
        &[("-ds", "--daemon-state"), ("-cs", "--coordinator-state"), ("-vs", "--domain-state")],
    ),
    (["network", "add"], &[("-i6", "--ipnet6"), ("-g6", "--gateway6")]),
    (["network", "modify"], &[("-i6", "--ipnet6"), ("-g6", "--gateway6")]),
];

/// Global options that take the next word as their value.
const WITH_VALUE: [&str; 2] = ["-c", "--connection"];

/// Renames options of several letters behind a single dash under the commands that have them.
pub fn mend(args: Vec<OsString>) -> Vec<OsString> {
    let Some((path, rest)) = command_path(&args) else { return args };
    let Some((_, renamed)) = RENAMED.iter().find(|(command, _)| path == *command) else { return args };
    let mut options_ended = false;
    let mend_word = |(index, word): (usize, OsString)| {
        options_ended = options_ended || (index >= rest && word == "--");
        if index < rest || options_ended { word } else { renamed_word(word, renamed) }
    };
    args.into_iter().enumerate().map(mend_word).collect()
}

fn renamed_word(word: OsString, renamed: &[(&str, &str)]) -> OsString {
    let Some(text) = word.to_str() else { return word };
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    match (renamed.iter().find(|(short, _)| *short == name), value) {
        (Some((_, long)), Some(value)) => format!("{long}={value}").into(),
        (Some((_, long)), None) => (*long).into(),
        (None, _) => word,
    }
}

/// Group and command, and the index of the word behind them.
fn command_path(args: &[OsString]) -> Option<([&str; 2], usize)> {
    let mut path = Vec::new();
    let mut words = args.iter().enumerate().skip(1);
    while let Some((index, word)) = words.next() {
        let word = word.to_str()?;
        if WITH_VALUE.contains(&word) && path.is_empty() {
            words.next();
        } else if !word.starts_with('-') {
            path.push(word);
        }
        if let [group, command] = path[..] {
            return Some(([group, command], index + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mended(line: &str) -> String {
        let words = line.split(' ').map(OsString::from).collect();
        let words: Vec<String> = mend(words).into_iter().map(|word| word.into_string().unwrap()).collect();
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
    fn the_same_letters_elsewhere_stay_what_they_are() {
        for line in ["pvc vm list -ds", "pvc node list -- -ds", "pvc node info -ds x", "pvc -c node list -ds"]
        {
            assert_eq!(mended(line), line);
        }
    }

    #[test]
    fn letters_that_only_begin_alike_stay_what_they_are() {
        assert_eq!(mended("pvc node list -dsx -d s"), "pvc node list -dsx -d s");
    }
}
