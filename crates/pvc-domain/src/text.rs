//! Places in an XML text, and replacing what is there.
//!
//! All functions here are given a text that roxmltree has accepted; what they look for is there.

use std::ops::Range;

use roxmltree::Node;

/// A replacement in a text. An empty range inserts.
#[derive(Debug, Clone)]
pub(crate) struct Splice {
    pub at: Range<usize>,
    pub with: String,
}

impl Splice {
    pub fn new(at: Range<usize>, with: impl Into<String>) -> Self {
        Splice { at, with: with.into() }
    }
}

/// The text with all splices made. They must not overlap.
pub(crate) fn apply(text: &str, mut splices: Vec<Splice>) -> String {
    // An insertion stands before a replacement that begins at the same place.
    splices.sort_by_key(|splice| (splice.at.start, splice.at.end));
    let mut result = String::with_capacity(text.len() + 256);
    let mut done = 0;
    for splice in splices {
        result.push_str(&text[done..splice.at.start]);
        result.push_str(&splice.with);
        done = splice.at.end;
    }
    result.push_str(&text[done..]);
    result
}

/// Whether XML can carry every character of `text`.
pub(crate) fn is_xml_text(text: &str) -> bool {
    text.chars().all(|c| match c {
        '\t' | '\n' | '\r' => true,
        c => c >= ' ' && c != '\u{fffe}' && c != '\u{ffff}',
    })
}

/// `value` as character data.
pub(crate) fn escape_text(value: &str) -> String {
    escape(value, |c| match c {
        '&' => Some("&amp;"),
        '<' => Some("&lt;"),
        '>' => Some("&gt;"),
        '\r' => Some("&#13;"),
        _ => None,
    })
}

/// `value` as part of an attribute's value between quotes of either kind.
pub(crate) fn escape_attribute(value: &str) -> String {
    escape(value, |c| match c {
        '&' => Some("&amp;"),
        '<' => Some("&lt;"),
        '>' => Some("&gt;"),
        '\'' => Some("&apos;"),
        '"' => Some("&quot;"),
        '\t' => Some("&#9;"),
        '\n' => Some("&#10;"),
        '\r' => Some("&#13;"),
        _ => None,
    })
}

pub(crate) fn escape(value: &str, replacement: impl Fn(char) -> Option<&'static str>) -> String {
    let mut result = String::with_capacity(value.len());
    for c in value.chars() {
        match replacement(c) {
            Some(text) => result.push_str(text),
            None => result.push(c),
        }
    }
    result
}

/// The start tag of an element, from `<` to its `>`.
pub(crate) fn start_tag(text: &str, node: Node<'_, '_>) -> Range<usize> {
    let start = node.range().start;
    let mut quote = None;
    for (offset, byte) in text.as_bytes()[start..].iter().enumerate() {
        match (quote, byte) {
            (None, b'>') => return start..start + offset + 1,
            (None, b'"' | b'\'') => quote = Some(*byte),
            (Some(open), byte) if open == *byte => quote = None,
            _ => {}
        }
    }
    start..text.len()
}

/// Whether the element is written `<a/>`.
pub(crate) fn is_self_closing(text: &str, node: Node<'_, '_>) -> bool {
    text[start_tag(text, node)].ends_with("/>")
}

/// Range between the tags of an element; `None` if it is written `<a/>`.
pub(crate) fn content(text: &str, node: Node<'_, '_>) -> Option<Range<usize>> {
    if is_self_closing(text, node) {
        return None;
    }
    // The end tag cannot contain `</`, so the last one begins it, whatever comments say before.
    let range = node.range();
    let end = text[range.clone()].rfind("</").map_or(range.end, |offset| range.start + offset);
    Some(start_tag(text, node).end..end)
}

/// The qualified name of an element as written, with its prefix.
pub(crate) fn written_name<'t>(text: &'t str, node: Node<'_, '_>) -> &'t str {
    let tag = &text[start_tag(text, node)];
    let end = tag[1..].find(|c: char| c.is_ascii_whitespace() || c == '/' || c == '>').unwrap_or(0);
    &tag[1..=end]
}

/// The attributes of a start tag as written: name and value, references kept.
pub(crate) fn written_attributes(tag: &str) -> Vec<(&str, &str)> {
    let mut attributes = Vec::new();
    let mut rest = tag.find(|c: char| c.is_ascii_whitespace()).map_or("", |at| &tag[at..]);
    while let Some(equals) = rest.find('=') {
        let name = rest[..equals].trim();
        let value = rest[equals + 1..].trim_start();
        let Some(quote) = value.chars().next() else { break };
        let Some(end) = value[1..].find(quote) else { break };
        attributes.push((name, &value[1..=end]));
        rest = &value[end + 2..];
    }
    attributes
}

/// Replaces everything between the tags of `node`.
pub(crate) fn set_content(text: &str, node: Node<'_, '_>, with: &str) -> Splice {
    match content(text, node) {
        Some(range) => Splice::new(range, with),
        None => {
            let end = start_tag(text, node).end;
            Splice::new(end - "/>".len()..end, format!(">{with}</{}>", written_name(text, node)))
        }
    }
}

/// Gives `node` the attribute, in place of what it had.
pub(crate) fn set_attribute(text: &str, node: Node<'_, '_>, name: &str, value: &str) -> Splice {
    let value = escape_attribute(value);
    match node.attribute_node(name) {
        Some(attribute) => Splice::new(attribute.range_value(), value),
        None => {
            let at = node.range().start + 1 + written_name(text, node).len();
            Splice::new(at..at, format!(" {name}='{value}'"))
        }
    }
}

/// Takes the attribute away, with the white space before it.
pub(crate) fn remove_attribute(text: &str, node: Node<'_, '_>, name: &str) -> Option<Splice> {
    let range = node.attribute_node(name)?.range();
    let before = text[..range.start].trim_end_matches([' ', '\t', '\r', '\n']).len();
    Some(Splice::new(before..range.end, ""))
}

/// Takes the element away, with its line if it stands alone on it.
pub(crate) fn remove(text: &str, node: Node<'_, '_>) -> Splice {
    let range = node.range();
    let before = text[..range.start].trim_end_matches([' ', '\t']);
    let start = if before.ends_with('\n') {
        before.trim_end_matches('\n').trim_end_matches('\r').len()
    } else {
        range.start
    };
    Splice::new(start..range.end, "")
}

/// The white space before the element on its line; `None` if something else stands there.
pub(crate) fn indentation<'t>(text: &'t str, node: Node<'_, '_>) -> Option<&'t str> {
    let before = &text[..node.range().start];
    // Whatever is on the line: it may be as long as the text.
    let rest = before.trim_end_matches([' ', '\t']);
    rest.ends_with('\n').then(|| &before[rest.len()..])
}

/// Inserts `element` as the next sibling of `node`, on a line of its own if `node` has one.
pub(crate) fn insert_after(text: &str, node: Node<'_, '_>, element: &Element) -> Splice {
    let end = node.range().end;
    match indentation(text, node) {
        Some(indent) => {
            Splice::new(end..end, format!("\n{indent}{}", element.render(Some(indent))))
        }
        None => Splice::new(end..end, element.render(None)),
    }
}

/// Inserts `element` as the last child of `parent`.
pub(crate) fn append(text: &str, parent: Node<'_, '_>, element: &Element) -> Splice {
    if let Some(last) = parent.last_element_child() {
        return insert_after(text, last, element);
    }
    match indentation(text, parent) {
        Some(outer) => {
            let inner = format!("{outer}  ");
            set_content(
                text,
                parent,
                &format!("\n{inner}{}\n{outer}", element.render(Some(&inner))),
            )
        }
        None => set_content(text, parent, &element.render(None)),
    }
}

/// An element to be written.
#[derive(Debug, Clone)]
pub(crate) struct Element {
    name: String,
    attributes: Vec<(String, String)>,
    children: Vec<Element>,
    /// Written as it stands in place of everything else.
    verbatim: Option<String>,
    text: Option<String>,
}

impl Element {
    pub fn new(name: &str) -> Self {
        Element {
            name: name.to_owned(),
            attributes: Vec::new(),
            children: Vec::new(),
            verbatim: None,
            text: None,
        }
    }

    /// An element that is already written.
    pub fn verbatim(xml: &str) -> Self {
        Element { verbatim: Some(xml.to_owned()), ..Element::new("") }
    }

    pub fn with(mut self, attribute: &str, value: &str) -> Self {
        self.attributes.push((attribute.to_owned(), value.to_owned()));
        self
    }

    pub fn child(mut self, child: Element) -> Self {
        self.children.push(child);
        self
    }

    pub fn text(mut self, text: &str) -> Self {
        self.text = Some(text.to_owned());
        self
    }

    /// The element as text. With an indentation its children stand on lines of their own.
    pub fn render(&self, indent: Option<&str>) -> String {
        if let Some(verbatim) = &self.verbatim {
            return verbatim.clone();
        }
        let mut result = format!("<{}", self.name);
        for (name, value) in &self.attributes {
            result.push_str(&format!(" {name}='{}'", escape_attribute(value)));
        }
        if let Some(text) = &self.text {
            return format!("{result}>{}</{}>", escape_text(text), self.name);
        }
        if self.children.is_empty() {
            return result + "/>";
        }
        result.push('>');
        let inner = indent.map(|indent| format!("{indent}  "));
        for child in &self.children {
            if let Some(inner) = &inner {
                result.push('\n');
                result.push_str(inner);
            }
            result.push_str(&child.render(inner.as_deref()));
        }
        if let Some(indent) = indent {
            result.push('\n');
            result.push_str(indent);
        }
        result + &format!("</{}>", self.name)
    }
}
