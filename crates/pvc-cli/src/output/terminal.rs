//! Texts of others, of which a terminal shall obey nothing: those of a server, of a guest, of a
//! record.

use std::borrow::Cow;

/// The text with a mark in the place of each character that a terminal would obey. Newlines and
/// tabs stay, and codes of colours if `colours` are wanted.
pub fn calm(text: &str, colours: bool) -> Cow<'_, str> {
    let is_obeyed = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    if !text.contains(is_obeyed) {
        return text.into();
    }
    let mut calm = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(is_obeyed) {
        calm.push_str(&rest[..at]);
        rest = &rest[at..];
        let code = colour_code(rest).filter(|_| colours);
        calm.push_str(code.unwrap_or("\u{fffd}"));
        let length = rest.chars().next().map_or(0, char::len_utf8);
        rest = &rest[code.map_or(length, str::len)..];
    }
    calm.push_str(rest);
    calm.into()
}

/// `ESC [ digits ; digits m` at the beginning of a text.
pub fn colour_code(text: &str) -> Option<&str> {
    let body = text.strip_prefix("\x1b[")?;
    let length = body.find(|letter: char| !letter.is_ascii_digit() && letter != ';')?;
    body[length..].starts_with('m').then(|| &text[..length + 3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_marked() {
        let hostile = "\x1b[31mred\x1b[0m\x1b]52;c;eA==\x07\r\u{9b}2J\u{7f}\n\tü\x1b[2J";
        let marked = |colours| calm(hostile, colours).replace('\u{fffd}', "?");
        assert_eq!(marked(true), "\x1b[31mred\x1b[0m?]52;c;eA==???2J?\n\tü?[2J");
        assert_eq!(marked(false), "?[31mred?[0m?]52;c;eA==???2J?\n\tü?[2J");
        assert!(matches!(calm("a\n\tü", false), Cow::Borrowed("a\n\tü")));
    }
}
