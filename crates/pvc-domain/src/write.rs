//! The text in another dress: on one line, or indented.

use roxmltree::{Document, Node};

use crate::DomainError;
use crate::read::parse;
use crate::text::{content, escape, start_tag, written_attributes, written_name};

/// The XML on one line with `'` around attribute values, as the API's member `xml` carries it:
/// white space between elements is left out, line ends inside values become `&#10;`.
///
/// # Errors
/// If `xml` is not well-formed.
pub fn one_line_single_quotes(xml: &str) -> Result<String, DomainError> {
    write(&parse(xml)?, &Style { quote: '\'', indented: false })
}

/// The XML with one element on each line, indented by two spaces, `"` around attribute values.
///
/// # Errors
/// If `xml` is not well-formed.
pub fn pretty(xml: &str) -> Result<String, DomainError> {
    write(&parse(xml)?, &Style { quote: '"', indented: true })
}

struct Style {
    quote: char,
    indented: bool,
}

fn write(document: &Document<'_>, style: &Style) -> Result<String, DomainError> {
    let mut writer = Writer { text: document.input_text(), style, out: String::new() };
    for node in document.root().children() {
        writer.node(node, 0);
    }
    if style.indented && !writer.out.is_empty() {
        writer.out.push('\n');
    }
    Ok(writer.out)
}

struct Writer<'w> {
    text: &'w str,
    style: &'w Style,
    out: String,
}

impl Writer<'_> {
    /// Recursion is bounded: the parser of this crate refuses deep nesting.
    fn node(&mut self, node: Node<'_, '_>, depth: usize) {
        if node.is_text() {
            return;
        }
        self.line(depth);
        if node.is_element() {
            self.element(node, depth);
        } else {
            self.markup(&self.text[node.range()]);
        }
    }

    fn line(&mut self, depth: usize) {
        if self.style.indented && !self.out.is_empty() {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n("  ", depth));
        }
    }

    fn element(&mut self, node: Node<'_, '_>, depth: usize) {
        self.start(node);
        let Some(range) =
            content(self.text, node).filter(|range| !self.text[range.clone()].trim().is_empty())
        else {
            self.out.push_str("/>");
            return;
        };
        self.out.push('>');
        if has_text(node) {
            // Text and elements mixed: white space may mean something.
            self.characters(node, &self.text[range]);
        } else {
            for child in node.children() {
                self.node(child, depth + 1);
            }
            self.line(depth);
        }
        self.out.push_str(&format!("</{}>", written_name(self.text, node)));
    }

    fn start(&mut self, node: Node<'_, '_>) {
        let quote = self.style.quote;
        self.out.push('<');
        self.out.push_str(written_name(self.text, node));
        for (name, value) in written_attributes(&self.text[start_tag(self.text, node)]) {
            let value = escape(value, |c| match c {
                '\'' if quote == '\'' => Some("&apos;"),
                '"' if quote == '"' => Some("&quot;"),
                // A parser turns a raw line end in a value into a space.
                '\n' | '\r' | '\t' => Some(" "),
                _ => None,
            });
            self.out.push_str(&format!(" {name}={quote}{value}{quote}"));
        }
    }

    fn characters(&mut self, node: Node<'_, '_>, raw: &str) {
        if self.style.indented {
            self.out.push_str(raw);
            return;
        }
        if raw.contains('<') {
            for child in node.children() {
                if let Some(text) = child.text().filter(|_| child.is_text()) {
                    self.out.push_str(&line_text(&crate::text::escape_text(text)));
                } else {
                    self.node(child, 0);
                }
            }
            return;
        }
        let text = line_text(raw);
        self.out.push_str(&text);
    }

    /// A comment or processing instruction. Their line ends cannot be written otherwise: they
    /// become spaces.
    fn markup(&mut self, raw: &str) {
        if self.style.indented {
            self.out.push_str(raw);
        } else {
            self.out.push_str(&raw.replace("\r\n", " ").replace(['\n', '\r'], " "));
        }
    }
}

fn has_text(node: Node<'_, '_>) -> bool {
    node.children()
        .any(|child| child.is_text() && child.text().is_some_and(|text| !text.trim().is_empty()))
}

/// Character data without line ends of its own.
fn line_text(raw: &str) -> String {
    raw.replace("\r\n", "\n").replace('\n', "&#10;")
}
