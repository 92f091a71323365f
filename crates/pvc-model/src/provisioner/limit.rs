//! The parameter `limit` of the provisioner's lists.

/// Names that a list is limited to: a part of them, bound by `^` at their beginning and by `$` at
/// their end. Nothing else has a meaning of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameLimit<'a> {
    part: &'a str,
    at_beginning: bool,
    at_end: bool,
}

impl<'a> NameLimit<'a> {
    /// The limit that `text` describes; nothing, or an empty text, limits nothing.
    pub fn new(text: Option<&'a str>) -> Self {
        let text = text.unwrap_or_default();
        let (part, at_beginning) =
            text.strip_prefix('^').map_or((text, false), |part| (part, true));
        let (part, at_end) = part.strip_suffix('$').map_or((part, false), |part| (part, true));
        NameLimit { part, at_beginning, at_end }
    }

    pub fn matches(self, name: &str) -> bool {
        match (self.at_beginning, self.at_end) {
            (true, true) => name == self.part,
            (true, false) => name.starts_with(self.part),
            (false, true) => name.ends_with(self.part),
            (false, false) => name.contains(self.part),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_found_anywhere_and_anchors_bind_it() {
        for (limit, name, matches) in [
            ("", "web", true),
            ("eb", "web1", true),
            ("^web", "web1", true),
            ("^eb", "web1", false),
            ("b1$", "web1", true),
            ("web$", "web1", false),
            ("^web1$", "web1", true),
            ("^web$", "web1", false),
            ("WEB", "web", false),
            ("^$", "web", false),
        ] {
            assert_eq!(NameLimit::new(Some(limit)).matches(name), matches, "{limit} {name}");
        }
        assert!(NameLimit::new(None).matches("web"));
    }

    #[test]
    fn what_means_something_to_sql_or_regular_expressions_means_itself() {
        for (limit, name) in [("%", "web"), ("w_b", "web"), ("w.b", "web"), ("\\", "web")] {
            assert!(!NameLimit::new(Some(limit)).matches(name), "{limit}");
        }
        assert!(NameLimit::new(Some("w_b")).matches("w_b1"));
    }
}
