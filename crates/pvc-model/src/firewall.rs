//! The tables of nftables that are PVC's, and what may stand in them.

use std::fmt;

/// Packets that a table looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableFamily {
    /// IPv4 and IPv6.
    Inet,
    /// The frames that bridges forward.
    Bridge,
}

impl fmt::Display for TableFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TableFamily::Inet => "inet",
            TableFamily::Bridge => "bridge",
        })
    }
}

/// A table that is PVC's own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableName {
    family: TableFamily,
    name: String,
}

impl TableName {
    /// The table of this name; `None` if the name is not one of ours: `pvc-` and small letters,
    /// digits and hyphens.
    pub fn new(family: TableFamily, name: &str) -> Option<TableName> {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_ours = name.strip_prefix("pvc-").is_some_and(|rest| !rest.is_empty());
        // As long a name as the kernel takes is longer than this.
        (is_ours && name.len() <= 64 && name.chars().all(is_plain))
            .then(|| TableName { family, name: name.to_owned() })
    }
}

/// Name as `nft` has it: `inet pvc-hosts`.
impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// Reason why a text is refused as the rules of a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRules {
    #[error("line {line} closes a brace that was not opened")]
    ClosesTable { line: usize },
    #[error("a brace is not closed")]
    Open,
    #[error("line {line} begins a quoted text that does not end in the same line")]
    OpenQuote { line: usize },
    #[error("line {line} has the word `include`, which would read a file")]
    Include { line: usize },
    #[error("line {line} has a control character or a backslash")]
    OddCharacter { line: usize },
    #[error("the rules have more than {MOST_RULES_BYTES} bytes")]
    TooLong,
}

/// The most bytes that the rules of one table may have.
pub const MOST_RULES_BYTES: usize = 4 << 20;

/// Whether `rules` can be put between the braces of a table and stay there, whatever it says.
///
/// Rules hold words of users. nft reads a file of commands, so that a text which closes the table
/// could go on with a command of its own; one that includes a file could have it do that. What is
/// left is up to nft, which takes a table whole or not at all.
///
/// # Errors
/// What would leave the table, with its line, counted from 1.
pub fn check_rules(rules: &str) -> Result<(), BadRules> {
    if rules.len() > MOST_RULES_BYTES {
        return Err(BadRules::TooLong);
    }
    let mut depth = 0_usize;
    for (line, text) in (1..).zip(rules.split('\n')) {
        let is_odd = |c: char| c == '\\' || (c.is_control() && c != '\t');
        if text.contains(is_odd) {
            return Err(BadRules::OddCharacter { line });
        }
        for part in Parts(text) {
            match part {
                Part::OpenQuote => return Err(BadRules::OpenQuote { line }),
                Part::Word("include") => return Err(BadRules::Include { line }),
                Part::Word(_) => {}
                Part::Brace('{') => depth += 1,
                Part::Brace(_) => {
                    depth = depth.checked_sub(1).ok_or(BadRules::ClosesTable { line })?;
                }
            }
        }
    }
    if depth > 0 { Err(BadRules::Open) } else { Ok(()) }
}

/// Words and braces of a line: quoted texts and the comment at its end are left out.
struct Parts<'a>(&'a str);

enum Part<'a> {
    Word(&'a str),
    Brace(char),
    OpenQuote,
}

impl<'a> Iterator for Parts<'a> {
    type Item = Part<'a>;

    fn next(&mut self) -> Option<Part<'a>> {
        loop {
            let first = self.0.chars().next()?;
            match first {
                '#' => return None,
                '"' => match self.0[1..].find('"') {
                    Some(end) => self.0 = &self.0[end + 2..],
                    None => {
                        self.0 = "";
                        return Some(Part::OpenQuote);
                    }
                },
                '{' | '}' => {
                    self.0 = &self.0[1..];
                    return Some(Part::Brace(first));
                }
                c if c.is_alphanumeric() => {
                    let end = self.0.find(|c: char| !c.is_alphanumeric()).unwrap_or(self.0.len());
                    let (word, rest) = self.0.split_at(end);
                    self.0 = rest;
                    return Some(Part::Word(word));
                }
                other => self.0 = &self.0[other.len_utf8()..],
            }
        }
    }
}

/// Returns the commands with which `nft -f` makes the table, or replaces one that is there, or
/// (`rules` is `None`) removes it, all in one step: no packet meets half of it.
pub fn commands(table: &TableName, rules: Option<&str>) -> String {
    // The kernel cannot replace a table, and refuses to delete one that is not there.
    let anew = format!("add table {table}\ndelete table {table}\n");
    match rules {
        None => anew,
        Some(rules) => format!("{anew}table {table} {{\n{rules}\n}}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_ours_has_a_name_that_says_so() {
        let inet = |name| TableName::new(TableFamily::Inet, name);
        assert_eq!(inet("pvc-hosts").unwrap().to_string(), "inet pvc-hosts");
        let long = format!("pvc-{}", "x".repeat(61));
        for bad in ["", "pvc-", "filter", "pvc", "pvc-A", "pvc-a b", "pvc-a;flush", &long] {
            assert_eq!(inet(bad), None, "{bad}");
        }
    }

    #[test]
    fn rules_stay_between_the_braces_of_their_table() {
        for good in [
            "",
            "chain input {\n\ttype filter hook input priority 0; policy accept;\n}",
            "set s { type ipv4_addr; elements = { 10.0.0.1, 10.0.0.2 } }",
            "chain c { counter accept comment \"} ; flush ruleset {\" }",
            "chain c { # }\n}",
            "chain includes { }",
        ] {
            assert_eq!(check_rules(good), Ok(()), "{good}");
        }
        let closes = |line| BadRules::ClosesTable { line };
        for (bad, why) in [
            ("}\nflush ruleset\ntable inet x {", closes(1)),
            ("chain c {\n}\n}; flush ruleset; table inet x { chain d {", closes(3)),
            ("chain c { # \" \n} }", closes(2)),
            ("chain c {", BadRules::Open),
            ("chain c { comment \"x\n} } flush ruleset\" }", BadRules::OpenQuote { line: 1 }),
            ("include \"/etc/nftables.conf\"", BadRules::Include { line: 1 }),
            ("chain c { }\n\tinclude'x'", BadRules::Include { line: 2 }),
            ("chain c { # \\\n}", BadRules::OddCharacter { line: 1 }),
            ("chain c { \0 }", BadRules::OddCharacter { line: 1 }),
            ("chain c { \r }", BadRules::OddCharacter { line: 1 }),
        ] {
            assert_eq!(check_rules(bad), Err(why), "{bad}");
        }
        assert_eq!(check_rules(&" ".repeat(MOST_RULES_BYTES + 1)), Err(BadRules::TooLong));
    }

    #[test]
    fn a_table_is_replaced_in_one_file_of_commands() {
        let table = TableName::new(TableFamily::Bridge, "pvc-guard").unwrap();
        let text = commands(&table, Some("chain c { }"));
        let begin = "add table bridge pvc-guard\ndelete table bridge pvc-guard\n";
        assert_eq!(text, format!("{begin}table bridge pvc-guard {{\nchain c {{ }}\n}}\n"));
        assert_eq!(commands(&table, None), begin);
    }
}
