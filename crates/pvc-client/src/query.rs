//! Parameters as they stand in an address or a form body.

/// The parameters as they stand behind `?` or in a form body.
pub fn encoded(pairs: &[(&'static str, String)]) -> String {
    let pair = |(name, value): &(&str, String)| format!("{}={}", escape(name), escape(value));
    pairs.iter().map(pair).collect::<Vec<_>>().join("&")
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
    fn reserved_characters_and_unicode_are_escaped() {
        assert_eq!(escape("a/b c?&=ü"), "a%2Fb%20c%3F%26%3D%C3%BC");
        assert_eq!(escape("web-1_x.~"), "web-1_x.~");
    }

    #[test]
    fn parameters_are_separated() {
        let pairs = [("force", "True".to_owned()), ("user_tags", "a b".to_owned())];
        assert_eq!(encoded(&pairs), "force=True&user_tags=a%20b");
    }
}
