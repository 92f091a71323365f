//! JSON as scripts have always got it: on one line with a space behind `,` and `:`, everything
//! beyond ASCII escaped; or indented by two.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter};

/// One line.
pub fn compact(value: &Value) -> String {
    format(value, Spaced)
}

/// Indented by two.
pub fn pretty(value: &Value) -> String {
    format(value, Indented(PrettyFormatter::with_indent(b"  ")))
}

/// Indented by four, keys sorted: the connection store.
pub fn stored(value: &impl Serialize) -> String {
    // A map of the standard library sorts; going through it keeps that here.
    let value = serde_json::to_value(value).expect("a store holds nothing that JSON cannot say");
    format(&value, Indented(PrettyFormatter::with_indent(b"    ")))
}

fn format(value: &Value, formatter: impl Formatter) -> String {
    let mut text = Vec::with_capacity(1024);
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    value.serialize(&mut serializer).expect("a JSON value in memory can be written");
    String::from_utf8(text).expect("JSON is UTF-8")
}

/// Escapes everything beyond ASCII, in UTF-16 halves where it must be.
fn ascii<W: ?Sized + Write>(writer: &mut W, fragment: &str) -> io::Result<()> {
    let mut units = [0; 2];
    for letter in fragment.chars() {
        if letter.is_ascii() && letter != '\x7f' {
            writer.write_all(&[letter as u8])?;
            continue;
        }
        for unit in letter.encode_utf16(&mut units) {
            write!(writer, "\\u{unit:04x}")?;
        }
    }
    Ok(())
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        ascii(writer, fragment)
    }
}

struct Indented(PrettyFormatter<'static>);

impl Formatter for Indented {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        ascii(writer, fragment)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_line_is_spaced_and_escaped() {
        let value = json!({"b": [1, 2.5, null], "a": "ü😀\"\n\u{7f}"});
        assert_eq!(compact(&value), r#"{"b": [1, 2.5, null], "a": "\u00fc\ud83d\ude00\"\n\u007f"}"#);
    }

    #[test]
    fn indentation_is_two_and_empty_things_stay_on_their_line() {
        let value = json!({"a": [], "b": {"c": "ä"}});
        assert_eq!(pretty(&value), "{\n  \"a\": [],\n  \"b\": {\n    \"c\": \"\\u00e4\"\n  }\n}");
    }
}
