//! Names that operators give.

use std::fmt;
use std::sync::Arc;

/// Reason why a text cannot be a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error(
        "volume `{name}` is named without its pool: `POOL/{name}` is wanted, such as `vms/{name}`"
    )]
    NoPool { name: String },
    #[error("a {what} name cannot be empty")]
    Empty { what: &'static str },
    #[error("{what} name `{shown}…` has {length} characters, at most {limit} are allowed")]
    TooLong { what: &'static str, shown: String, length: usize, limit: usize },
    #[error("{what} name `{name}` contains {found}; letters, digits, `.`, `-` and `_` are allowed")]
    Forbidden { what: &'static str, name: String, found: String },
    #[error("{what} name `{name}` must begin with a letter or a digit")]
    BadStart { what: &'static str, name: String },
}

/// The beginning of a text that somebody gave, fit for a message: 60 characters at most, and no
/// control characters among them.
pub fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(60).map(printable).collect();
    if text.chars().nth(60).is_some() {
        shown.push('…');
    }
    shown
}

/// The first few names, at most `most` of them, and how many more there are: `a, b and 3 more`.
pub fn listed(names: impl ExactSizeIterator<Item: fmt::Display>, most: usize) -> String {
    let more = names.len().saturating_sub(most);
    let shown = names.take(most).map(|name| name.to_string()).collect::<Vec<_>>().join(", ");
    match more {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn printable(c: char) -> char {
    if c.is_control() { '\u{fffd}' } else { c }
}

/// Checks a name that is to be created: it becomes part of paths, file names and command lines.
///
/// `what` is the noun for the message (`VM`, `volume`), `limit` the most characters allowed.
pub fn check_name(what: &'static str, name: &str, limit: usize) -> Result<(), BadName> {
    let length = name.chars().count();
    let Some(first) = name.chars().next() else { return Err(BadName::Empty { what }) };
    if length > limit {
        let shown = name.chars().take(20).map(printable).collect();
        return Err(BadName::TooLong { what, shown, length, limit });
    }
    let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if let Some(bad) = name.chars().find(|c| !allowed(c)) {
        let found = match bad {
            ' ' => "a space".to_owned(),
            '/' => "a `/`".to_owned(),
            c if c.is_control() => format!("the control character U+{:04X}", c as u32),
            c => format!("`{c}`"),
        };
        let name = name.chars().map(printable).collect();
        return Err(BadName::Forbidden { what, name, found });
    }
    if !first.is_ascii_alphanumeric() {
        return Err(BadName::BadStart { what, name: name.to_owned() });
    }
    Ok(())
}

/// The short host name of a node. Taken as it stands in a record: the record may be older than our
/// rules.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// The name as a record or the host has it.
    pub fn new(name: impl AsRef<str>) -> Self {
        NodeName(Arc::from(name.as_ref()))
    }

    /// The name as an operator gives it for something that is to be created.
    pub fn parse(name: &str) -> Result<Self, BadName> {
        check_name("node", name, 63).map(|()| NodeName::new(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl From<&str> for NodeName {
    fn from(name: &str) -> Self {
        NodeName::new(name)
    }
}

impl std::borrow::Borrow<str> for NodeName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_the_first_few_and_says_how_many_more_there_are() {
        let listed = |count: usize| listed(["a", "b", "c", "d"][..count].iter(), 2);
        assert_eq!([0, 1, 2].map(listed), ["", "a", "a, b"]);
        assert_eq!([3, 4].map(listed), ["a, b and 1 more", "a, b and 2 more"]);
    }

    #[test]
    fn a_usual_name_is_accepted() {
        for name in ["web1", "db-1.example", "a_b", "9lives"] {
            assert_eq!(check_name("VM", name, 63), Ok(()), "{name}");
        }
    }

    #[test]
    fn a_volume_without_its_pool_is_refused_with_what_is_required() {
        let refused = |text: &str| crate::storage::VolumeId::parse(text).unwrap_err().to_string();
        assert_eq!(
            refused("web1_sda"),
            "volume `web1_sda` is named without its pool: `POOL/web1_sda` is wanted, such as \
             `vms/web1_sda`"
        );
        assert_eq!(refused("vms/"), "a volume name cannot be empty");
        assert_eq!(refused("/web1_sda"), "a pool name cannot be empty");
        assert!(refused("we b").contains("a space"));
    }

    #[test]
    fn a_name_that_could_leave_its_place_is_refused() {
        for name in ["", "a b", "../etc", "-rf", ".hidden", "bücher", "a\nb", "a\0b"] {
            assert!(check_name("VM", name, 63).is_err(), "{name:?}");
        }
        assert!(check_name("VM", &"x".repeat(300), 63).is_err());
    }

    #[test]
    fn the_message_says_what_was_found_and_never_prints_control_characters() {
        let message = check_name("VM", "a\u{7}b", 63).unwrap_err().to_string();
        assert_eq!(
            message,
            "VM name `a\u{fffd}b` contains the control character U+0007; letters, digits, `.`, `-` \
             and `_` are allowed"
        );
        let long = check_name("VM", &"\u{1b}[31m".repeat(100), 63).unwrap_err().to_string();
        assert!(!long.contains('\u{1b}'), "{long:?}");
    }
}
