//! Audit: a line in the system's authentication log for each call, with who did what. Secrets are
//! left out.

use std::ffi::OsString;
use std::os::unix::net::UnixDatagram;

/// Facility `auth`, severity `info`.
const PRIORITY: u8 = (4 << 3) | 6;

/// Options whose value nobody may read in a log.
const SECRET: [&str; 3] = ["-k", "--api-key", "--destination-api-key"];

/// Writes the line, if there is a system log that takes it without waiting.
pub fn record(args: &[OsString]) {
    let user = std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned());
    let line =
        format!("<{PRIORITY}>pvc[{}]: user={user} command={}", std::process::id(), redacted(args));
    let Ok(socket) = UnixDatagram::unbound() else { return };
    if socket.set_nonblocking(true).is_ok() {
        let _ = socket.send_to(line.as_bytes(), "/dev/log");
    }
}

/// The command line on one line, with `***` for keys.
fn redacted(args: &[OsString]) -> String {
    redacted_words(args).join(" ").replace(|letter: char| letter.is_control(), " ")
}

/// The words of a command line, with `***` for keys.
pub fn redacted_words(args: &[OsString]) -> Vec<String> {
    let mut words = Vec::with_capacity(args.len());
    let mut secret = false;
    for word in args {
        let word = word.to_string_lossy();
        words.push(if secret { "***".to_owned() } else { redacted_word(&word) });
        secret = SECRET.contains(&&*word);
    }
    words
}

/// Hides the value of `--api-key=X` and `-kX`. `-k` alone may also be a flag in a group of short
/// options; hiding a word too much does no harm.
fn redacted_word(word: &str) -> String {
    if let Some((name, _)) = word.split_once('=').filter(|(name, _)| SECRET.contains(name)) {
        return format!("{name}=***");
    }
    match word.strip_prefix("-k") {
        Some(value) if !value.is_empty() => "-k***".to_owned(),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_never_reaches_the_log_in_whatever_form_it_is_given() {
        for line in [
            "pvc connection add x -k hunter2",
            "pvc connection add x -khunter2",
            "pvc connection add x --api-key=hunter2",
            "pvc vm snapshot send --destination-api-key hunter2",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let redacted = redacted(&words);
            assert!(!redacted.contains("hunter2") && redacted.contains("***"), "{redacted}");
        }
    }

    #[test]
    fn a_newline_in_an_argument_makes_no_second_line() {
        assert_eq!(redacted(&["pvc".into(), "a\nb".into()]), "pvc a b");
    }
}
