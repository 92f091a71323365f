//! JSON as scripts have always got it: on one line with a space behind `,` and `:`, or indented;
//! everything beyond ASCII escaped.
//!
//! What the API answered is laid out anew as text. It is never taken apart into values: numbers
//! stay as they were written, and a list of a thousand VMs is not held twice.

use serde::Serialize;

/// JSON on one line.
pub fn compact(value: &impl Serialize) -> String {
    compact_text(&written(value))
}

/// Indented by two.
pub fn pretty(value: &impl Serialize) -> String {
    pretty_text(&written(value))
}

/// Indented by four: the connection store.
pub fn stored(value: &impl Serialize) -> String {
    lay_out(&written(value), Some(4))
}

/// JSON text on one line.
pub fn compact_text(text: &str) -> String {
    lay_out(text, None)
}

/// JSON text indented by two.
pub fn pretty_text(text: &str) -> String {
    lay_out(text, Some(2))
}

fn written(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("what is printed holds nothing that JSON cannot say")
}

/// Lays out `text`, which must be JSON.
fn lay_out(text: &str, indent: Option<usize>) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    let mut depth = 0;
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        match letter {
            '"' => rest = string(rest, &mut out),
            '{' | '[' => {
                out.push(letter);
                let inside = rest.trim_ascii_start();
                if inside.starts_with(['}', ']']) {
                    out.push_str(&inside[..1]);
                    rest = &inside[1..];
                } else {
                    depth += 1;
                    new_line(&mut out, indent, depth);
                }
            }
            '}' | ']' => {
                depth = usize::saturating_sub(depth, 1);
                new_line(&mut out, indent, depth);
                out.push(letter);
            }
            ',' if indent.is_some() => {
                out.push(',');
                new_line(&mut out, indent, depth);
            }
            ',' => out.push_str(", "),
            ':' => out.push_str(": "),
            _ if letter.is_ascii_whitespace() => {}
            _ => out.push(letter),
        }
    }
    out
}

fn new_line(out: &mut String, indent: Option<usize>, depth: usize) {
    if let Some(width) = indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', width * depth));
    }
}

/// Copies a string up to its closing quote, and returns what stands behind that. What is escaped
/// stays so; what is beyond ASCII becomes so, in UTF-16 halves where it must.
fn string<'a>(text: &'a str, out: &mut String) -> &'a str {
    out.push('"');
    let mut rest = text;
    loop {
        let plain = rest.bytes().position(|byte| byte == b'"' || byte == b'\\' || byte >= 0x7f);
        let (before, behind) = rest.split_at(plain.unwrap_or(rest.len()));
        out.push_str(before);
        let Some(letter) = behind.chars().next() else { return "" };
        let taken = if letter == '\\' { 2.min(behind.len()) } else { letter.len_utf8() };
        rest = &behind[taken..];
        match letter {
            '"' => {
                out.push('"');
                return rest;
            }
            '\\' => out.push_str(&behind[..taken]),
            _ => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn one_line_is_spaced_and_escaped() {
        let value = json!({"b": [1, 2.5, null], "a": "ü😀\"\n\u{7f}, : {"});
        assert_eq!(
            compact(&value),
            r#"{"b": [1, 2.5, null], "a": "\u00fc\ud83d\ude00\"\n\u007f, : {"}"#
        );
    }

    #[test]
    fn indentation_is_two_and_empty_lists_and_objects_stay_on_their_line() {
        let value = json!({"a": [], "b": {"c": "ä", "d": [1, {}]}});
        let text = "{\n  \"a\": [],\n  \"b\": {\n    \"c\": \"\\u00e4\",\n    \"d\": \
                    [\n      1,\n      {}\n    ]\n  }\n}";
        assert_eq!(pretty(&value), text);
    }

    #[test]
    fn the_layout_changes_nothing_else() {
        let text = "{ \"x\" :\t[ 1.50, 1e3 , -0 ,true ],\n\"\\u00fc\\\\\": \"\\\"\" , \"e\": { } }";
        assert_eq!(
            compact_text(text),
            r#"{"x": [1.50, 1e3, -0, true], "\u00fc\\": "\"", "e": {}}"#
        );
        let before: Value = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&pretty_text(text)).unwrap(), before);
    }

    #[test]
    fn text_that_is_no_json_does_no_harm() {
        for text in ["\"abc", "\"abc\\", "]}", "{", "\"ü"] {
            compact_text(text);
            pretty_text(text);
        }
    }
}
