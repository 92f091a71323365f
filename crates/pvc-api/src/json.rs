//! JSON as clients of PVC 1.0.3 expect it: one line, everything beyond ASCII escaped, a newline at
//! the end.

use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::marker::PhantomData;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// Writes text in `\uXXXX` beyond ASCII, and a number without a fraction as an integer: the figures
/// of the hypervisor and of network cards are counters for those who read them.
struct Ascii;

/// Beyond this, not every integer is a floating-point number of its own.
const EXACT_INTEGERS: f64 = 9_007_199_254_740_992.0;

impl Formatter for Ascii {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        if value.fract() == 0.0 && value.abs() < EXACT_INTEGERS {
            write!(writer, "{}", value as i64)
        } else {
            write!(writer, "{value}")
        }
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut plain = 0;
        for (at, c) in fragment.char_indices().filter(|(_, c)| !c.is_ascii()) {
            writer.write_all(&fragment.as_bytes()[plain..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            plain = at + c.len_utf8();
        }
        writer.write_all(&fragment.as_bytes()[plain..])
    }
}

/// `value` as bytes, without the newline at the end.
pub fn to_bytes(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    let mut serializer = Serializer::with_formatter(&mut bytes, Ascii);
    value
        .serialize(&mut serializer)
        .expect("the types of the wire have text as keys, and memory takes every byte");
    bytes
}

/// JSON of a `T`, kept once for all replies that are made of it.
pub struct Json<T> {
    /// The text with the newline at its end.
    line: Bytes,
    of: PhantomData<fn() -> T>,
}

impl<T: Serialize> Json<T> {
    pub fn of(value: &T) -> Self {
        Json { line: to_line(value).into(), of: PhantomData }
    }
}

impl<T> Json<T> {
    /// The text, without the newline at the end.
    pub fn bytes(&self) -> &[u8] {
        without_newline(&self.line)
    }

    /// The text with the newline at the end.
    pub fn line(&self) -> Bytes {
        self.line.clone()
    }
}

impl<T> Clone for Json<T> {
    fn clone(&self) -> Self {
        Json { line: self.line.clone(), of: PhantomData }
    }
}

fn to_line(value: &impl Serialize) -> Vec<u8> {
    let mut line = to_bytes(value);
    line.push(b'\n');
    line
}

fn without_newline(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\n").unwrap_or(line)
}

/// A JSON reply with an entity tag of its content.
pub fn reply(status: StatusCode, value: &impl Serialize) -> Response {
    let line = to_line(value);
    let tag = strong_tag(without_newline(&line));
    from_line(status, line.into(), tag)
}

/// A JSON reply of bytes that are JSON already, with the newline at the end.
pub fn from_line(status: StatusCode, line: Bytes, tag: HeaderValue) -> Response {
    let mut response = (status, Body::from(line)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if status == StatusCode::OK {
        headers.insert(header::ETAG, tag);
    }
    response
}

/// A 200 reply.
pub fn ok(value: &impl Serialize) -> Response {
    reply(StatusCode::OK, value)
}

/// The entity tag of exactly these bytes.
pub fn strong_tag(bytes: &[u8]) -> HeaderValue {
    tag_value(&format!("\"{:016x}\"", hash(bytes)))
}

/// The entity tag of content that may differ in what the passing of time alone changes.
pub fn weak_tag(hash: u64) -> HeaderValue {
    tag_value(&format!("W/\"{hash:016x}\""))
}

fn tag_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("hexadecimal digits and quotes make a header value")
}

/// A hash that is the same in every process of one build.
pub fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::to_bytes;

    fn json(value: impl serde::Serialize) -> String {
        String::from_utf8(to_bytes(&value)).unwrap()
    }

    #[test]
    fn text_beyond_ascii_is_escaped_also_beyond_the_first_plane() {
        assert_eq!(json("a\"bü日😀c\n"), r#""a\"b\u00fc\u65e5\ud83d\ude00c\n""#);
    }

    #[test]
    fn a_number_without_fraction_is_an_integer() {
        assert_eq!(json([0.0, 2.5, -3.0, 1e300, f64::NAN]), format!("[0,2.5,-3,{},null]", 1e300));
    }
}
