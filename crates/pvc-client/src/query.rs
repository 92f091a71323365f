//! Parameters as the API takes them.

/// A list of parameters: absent values are left out, booleans are `True` and `False`, lists are
/// repeated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(&'static str, String)>,
}

impl Query {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a text.
    pub fn text(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.pairs.push((name, value.into()));
        self
    }

    /// Adds a text if there is one.
    pub fn maybe(self, name: &'static str, value: Option<impl Into<String>>) -> Self {
        match value {
            Some(value) => self.text(name, value),
            None => self,
        }
    }

    /// Adds a boolean in the words that every server understands.
    pub fn flag(self, name: &'static str, value: bool) -> Self {
        self.text(name, if value { "True" } else { "False" })
    }

    /// Adds a boolean if one was given.
    pub fn maybe_flag(self, name: &'static str, value: Option<bool>) -> Self {
        match value {
            Some(value) => self.flag(name, value),
            None => self,
        }
    }

    /// Adds a parameter once per value.
    pub fn list(mut self, name: &'static str, values: &[String]) -> Self {
        for value in values {
            self = self.text(name, value);
        }
        self
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The parameters as they stand behind `?` or in a form body.
    pub fn encoded(&self) -> String {
        let pairs: Vec<String> = self
            .pairs
            .iter()
            .map(|(name, value)| format!("{}={}", escape(name), escape(value)))
            .collect();
        pairs.join("&")
    }
}

/// Percent-encodes everything but unreserved characters, so that a name with a slash, a space or
/// an umlaut stays one path segment and one parameter value.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_values_are_left_out_and_lists_are_repeated() {
        let tags = ["daily".to_owned(), "web".to_owned()];
        let query = Query::new()
            .maybe("node", None::<String>)
            .flag("force", true)
            .maybe_flag("autostart", None)
            .list("user_tags", &tags);
        assert_eq!(query.encoded(), "force=True&user_tags=daily&user_tags=web");
    }

    #[test]
    fn reserved_characters_and_unicode_are_escaped() {
        assert_eq!(escape("a/b c?&=ü"), "a%2Fb%20c%3F%26%3D%C3%BC");
        assert_eq!(escape("web-1_x.~"), "web-1_x.~");
    }
}
