//! The parameter `limit` of lists: a regular expression on names.

use regex::{Regex, RegexBuilder};

use crate::error::{ApiError, Result};

/// The most characters of a pattern, and the memory one may compile to: a pattern is a few words,
/// and matching takes time linear in the text whatever the pattern.
const MAX_PATTERN: usize = 1024;
const MAX_COMPILED_BYTES: usize = 1 << 20;

/// Names that a list is limited to.
#[derive(Debug, Clone)]
pub struct Limit {
    pattern: Option<Regex>,
}

impl Limit {
    /// The limit that `text` describes: `web` is found anywhere in a name, `^web` at its beginning,
    /// `web$` at its end, and `^web$` is the whole name. Nothing, or an empty text, limits nothing.
    pub fn new(text: Option<&str>) -> Result<Self> {
        let Some(text) = text.filter(|text| !text.is_empty()) else {
            return Ok(Limit { pattern: None });
        };
        if text.chars().count() > MAX_PATTERN {
            return Err(ApiError::parameter(
                "limit",
                format!("is longer than {MAX_PATTERN} characters"),
            ));
        }
        let pattern = RegexBuilder::new(text).size_limit(MAX_COMPILED_BYTES).nest_limit(50).build();
        let pattern = pattern.map_err(|error| bad_pattern(text, &error))?;
        Ok(Limit { pattern: Some(pattern) })
    }

    pub fn matches(&self, name: &str) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(name))
    }
}

fn bad_pattern(text: &str, error: &regex::Error) -> ApiError {
    let why = match error {
        regex::Error::CompiledTooBig(_) => "is too large".to_owned(),
        error => {
            // The last line of a syntax error is the explanation; those before draw an arrow.
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            last.trim_start_matches("error: ").to_owned()
        }
    };
    let shown: String = text.chars().take(80).filter(|c| !c.is_control()).collect();
    ApiError::parameter(
        "limit",
        format!("`{shown}` is not a regular expression that can be used: {why}"),
    )
    .hint(Some(
        "look-around and back-references are not supported; a plain part of the name always works",
    ))
}

#[cfg(test)]
mod tests {
    use super::Limit;

    fn matches(limit: &str, name: &str) -> bool {
        Limit::new(Some(limit)).unwrap().matches(name)
    }

    #[test]
    fn a_plain_word_is_found_anywhere_and_anchors_bind_it() {
        assert!(matches("web", "myweb1") && matches("^web", "web1") && matches("web1$", "myweb1"));
        assert!(!matches("^web", "myweb") && !matches("web$", "web1") && !matches("^web$", "web1"));
        assert!(matches("a|b", "xax") && matches("", "anything"));
    }

    #[test]
    fn an_anchor_binds_its_own_alternative() {
        assert!(matches("^(a|b)$", "b") && !matches("^(a|b)$", "ab"));
        assert!(matches("^a|b$", "ac") && !matches("^a|b$", "ca"));
    }

    #[test]
    fn a_pattern_that_only_a_backtracking_engine_could_run_is_refused_with_a_reason() {
        for bad in ["(a)\\1", "(?=x)", "(", "*", "[z-a]"] {
            let error = Limit::new(Some(bad)).unwrap_err();
            assert_eq!(error.status, 400, "{bad}");
            assert!(error.body.message.starts_with("limit: "), "{}", error.body.message);
        }
    }

    #[test]
    fn a_pattern_that_would_take_much_memory_is_refused() {
        assert!(Limit::new(Some("((a{1000}){1000}){1000}")).is_err());
        assert!(Limit::new(Some(&"a".repeat(2000))).is_err());
    }
}
