//! Messages about a mistake.

use std::fmt;

use crate::yaml::Place;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The daemon refuses to start.
    Error,
    /// The daemon starts; the operator should look.
    Warning,
}

/// A mistake: where, which key, what was found, what is allowed, and what to do. Never holds the
/// text of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub severity: Severity,
    pub file: String,
    /// `None` when it concerns the file as a whole.
    pub place: Option<Place>,
    /// The key as written in this file, from its top.
    pub key: Option<String>,
    /// Value that was found, as a clause that follows the key: "is `five`".
    pub found: String,
    /// Value that would be right there, as a noun.
    pub allowed: Option<String>,
    pub hint: Option<String>,
}

impl Problem {
    /// The mistake in one clause, without its place and hint.
    pub fn message(&self) -> String {
        let key = self.key.as_ref().map(|key| format!("`{key}` ")).unwrap_or_default();
        let allowed = self
            .allowed
            .as_ref()
            .map(|allowed| format!(", expected {allowed}"))
            .unwrap_or_default();
        format!("{key}{}{allowed}", self.found)
    }

    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{severity}: {}", self.file)?;
        if let Some(place) = self.place {
            write!(f, ":{}:{}", place.line, place.column)?;
        }
        write!(f, ": {}", self.message())?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Reason why a configuration cannot be used: every mistake, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// At least one.
    pub errors: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&render(self.errors.iter().chain(&self.warnings)))
    }
}

impl ConfigErrors {
    /// The errors of a file that could not even be read.
    pub(crate) fn whole_file(file: &str, found: String, hint: Option<String>) -> Self {
        let error = Problem {
            severity: Severity::Error,
            file: file.into(),
            place: None,
            key: None,
            found,
            allowed: None,
            hint,
        };
        Self { errors: vec![error], warnings: Vec::new() }
    }
}

/// The problems as an operator reads them, one or two lines each.
pub fn render<'p>(problems: impl IntoIterator<Item = &'p Problem>) -> String {
    let lines: Vec<_> = problems.into_iter().map(Problem::to_string).collect();
    lines.join("\n")
}

/// The known word that `word` most likely stands for, if it is clearly a slip: at most two letters
/// added, dropped, changed or swapped, and fewer in short words, where two letters are another
/// word.
pub(crate) fn misspelling<'k>(
    word: &str,
    known: impl IntoIterator<Item = &'k str>,
) -> Option<&'k str> {
    let plain = |text: &str| text.to_lowercase().replace(['-', ' '], "_");
    let word = plain(word);
    known
        .into_iter()
        .map(|candidate| (distance(&word, &plain(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= 2 && *distance * 2 < candidate.chars().count())
        .min()
        .map(|(_, candidate)| candidate)
}

/// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > 2 {
        return usize::MAX / 2;
    }
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                (i, j) => {
                    let changed = usize::from(a[i - 1] != b[j - 1]);
                    let mut best = (rows[i - 1][j] + 1)
                        .min(rows[i][j - 1] + 1)
                        .min(rows[i - 1][j - 1] + changed);
                    if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                        best = best.min(rows[i - 2][j - 2] + 1);
                    }
                    best
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_one_or_two_letters_is_recognised() {
        let known = ["keepalive_interval", "monitoring_interval", "mtu"];
        for word in
            ["keepalive_intervall", "kepalive_interval", "keepalive-interval", "Keepalive_Interval"]
        {
            assert_eq!(misspelling(word, known), Some("keepalive_interval"), "{word}");
        }
        assert_eq!(misspelling("mut", known), Some("mtu"));
    }

    #[test]
    fn another_word_is_not_a_slip() {
        for word in ["keepalive", "foo", "mt_size", "vlan"] {
            assert_eq!(misspelling(word, ["keepalive_interval", "mtu", "phy"]), None, "{word}");
        }
    }
}
