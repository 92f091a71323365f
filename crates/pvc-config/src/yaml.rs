//! YAML as a tree that remembers where everything stood.
//!
//! The files were written for PyYAML, which reads YAML 1.1: `yes` and `on` are booleans, `<<`
//! merges mappings. A scalar is kept as written, because what it means depends on the key that it
//! belongs to.

use std::collections::BTreeMap;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};

/// Number of nodes that aliases may add. A configuration has some hundred; a "billion laughs" has
/// more.
const MAX_ALIASED_NODES: usize = 20_000;

/// A position in the file, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

impl Place {
    pub(crate) const START: Place = Place { line: 1, column: 1 };

    fn of(span: Span) -> Self {
        Self { line: span.start.line().max(1), column: span.start.col() + 1 }
    }
}

#[derive(Clone)]
pub(crate) struct Node {
    pub place: Place,
    pub data: Data,
}

#[derive(Clone)]
pub(crate) enum Data {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Clone)]
pub(crate) struct Scalar {
    pub text: String,
    /// Written in quotes, as a block, or tagged `!!str`: text and nothing else.
    pub quoted: bool,
}

#[derive(Clone)]
pub(crate) struct Entry {
    pub key: String,
    pub place: Place,
    pub value: Node,
}

/// Something wrong with the YAML itself. It never quotes the file: a value may be a password.
#[derive(Clone)]
pub(crate) struct Fault {
    pub place: Place,
    pub what: String,
    pub hint: Option<String>,
}

pub(crate) struct Document {
    pub root: Node,
    /// Mistakes that did not keep the rest from being read.
    pub faults: Vec<Fault>,
}

impl Node {
    pub fn is_null(&self) -> bool {
        match &self.data {
            Data::Scalar(scalar) => {
                !scalar.quoted
                    && matches!(scalar.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            Data::List(_) | Data::Map(_) => false,
        }
    }

    pub fn scalar(&self) -> Option<&Scalar> {
        match &self.data {
            Data::Scalar(scalar) => Some(scalar),
            Data::List(_) | Data::Map(_) => None,
        }
    }

    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.data {
            Data::Map(entries) => entries.iter().find(|entry| entry.key == key),
            Data::Scalar(_) | Data::List(_) => None,
        }
    }

    fn count(&self) -> usize {
        match &self.data {
            Data::Scalar(_) => 1,
            Data::List(items) => 1 + items.iter().map(Node::count).sum::<usize>(),
            Data::Map(entries) => {
                1 + entries.iter().map(|entry| entry.value.count()).sum::<usize>()
            }
        }
    }

    /// The node as plain data, scalars with the meaning YAML 1.1 gives them.
    pub fn to_json(&self) -> serde_json::Value {
        match &self.data {
            Data::Scalar(_) if self.is_null() => serde_json::Value::Null,
            Data::Scalar(scalar) => scalar.to_json(),
            Data::List(items) => items.iter().map(Node::to_json).collect(),
            Data::Map(entries) => {
                let pairs = entries.iter().map(|entry| (entry.key.clone(), entry.value.to_json()));
                serde_json::Value::Object(pairs.collect())
            }
        }
    }
}

impl Scalar {
    /// The boolean that YAML 1.1 sees in an unquoted word.
    pub fn flag(&self) -> Option<bool> {
        if self.quoted {
            return None;
        }
        match self.text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => None,
        }
    }

    fn to_json(&self) -> serde_json::Value {
        if let Some(flag) = self.flag() {
            return flag.into();
        }
        if !self.quoted {
            if let Ok(number) = self.text.parse::<i64>() {
                return number.into();
            }
            if let Some(number) =
                self.text.parse::<f64>().ok().and_then(serde_json::Number::from_f64)
            {
                return number.into();
            }
        }
        self.text.clone().into()
    }
}

/// Reads the one document that `text` must hold. An empty text is a document that is null.
pub(crate) fn parse(text: &str) -> Result<Document, Fault> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut options = granit_parser::Options::default();
    options.set_emit_comments(false);
    let mut loader = Loader {
        text,
        events: Parser::new_from_str_with_options(text, options),
        anchors: BTreeMap::new(),
        aliased: 0,
        faults: Vec::new(),
    };
    let root = loader.document()?;
    Ok(Document { root, faults: loader.faults })
}

struct Loader<'t> {
    text: &'t str,
    events: Parser<'t, StrInput<'t>>,
    anchors: BTreeMap<usize, Node>,
    aliased: usize,
    faults: Vec<Fault>,
}

impl<'t> Loader<'t> {
    fn document(&mut self) -> Result<Node, Fault> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if root.is_none() => {}
                Event::DocumentStart(..) => {
                    return Err(Fault {
                        place: Place::of(span),
                        what: "begins a second YAML document".into(),
                        hint: Some("keep one document in the file: remove this `---` line".into()),
                    });
                }
                event => root = Some(self.node(event, span)?),
            }
        }
        Ok(root.unwrap_or_else(|| null(Place::START)))
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), Fault> {
        match self.events.next() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(self.syntax(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn node(&mut self, event: Event<'t>, span: Span) -> Result<Node, Fault> {
        let place = Place::of(span);
        let (data, anchor) = match event {
            Event::Alias(id) => return self.alias(id, place),
            Event::Scalar(text, style, anchor, tag) => {
                let text_tag = tag
                    .as_ref()
                    .is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix() == "str");
                self.refuse_tag(tag.as_deref(), place);
                let quoted = style != ScalarStyle::Plain || text_tag;
                (Data::Scalar(Scalar { text: text.into_owned(), quoted }), anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.refuse_tag(tag.as_deref(), place);
                (Data::List(self.list()?), anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.refuse_tag(tag.as_deref(), place);
                (Data::Map(self.map()?), anchor)
            }
            _ => return Ok(null(place)),
        };
        let node = Node { place, data };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self) -> Result<Vec<Node>, Fault> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd | Event::StreamEnd, _) => return Ok(items),
                (event, span) => items.push(self.node(event, span)?),
            }
        }
    }

    fn map(&mut self) -> Result<Vec<Entry>, Fault> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut merged = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd | Event::StreamEnd) {
                break;
            }
            let key = self.node(event, span)?;
            let (event, span) = self.next()?;
            let mut value = self.node(event, span)?;
            if value.is_null() {
                // An empty value has no position of its own worth telling.
                value.place = key.place;
            }
            let Some(name) = key.scalar() else {
                self.fault(key.place, "has a list or a section where a key should be", None);
                continue;
            };
            if name.text == "<<" && !name.quoted {
                merged.push(value);
            } else if let Some(first) = entries.iter().find(|entry| entry.key == name.text) {
                let what = format!(
                    "`{}` is written twice in one section, first in line {}",
                    first.key, first.place.line
                );
                self.fault(key.place, what, Some("keep one of them"));
            } else {
                entries.push(Entry { key: name.text.clone(), place: key.place, value });
            }
        }
        for value in merged {
            self.merge(&mut entries, value);
        }
        Ok(entries)
    }

    /// Adds what `<<` brings, without overriding what the section says itself.
    fn merge(&mut self, entries: &mut Vec<Entry>, value: Node) {
        match value.data {
            Data::Map(others) => {
                for other in others {
                    if entries.iter().all(|entry| entry.key != other.key) {
                        entries.push(other);
                    }
                }
            }
            Data::List(items) => items.into_iter().for_each(|item| self.merge(entries, item)),
            Data::Scalar(_) => {
                self.fault(value.place, "merges (`<<`) something that is not a section", None)
            }
        }
    }

    fn alias(&mut self, id: usize, place: Place) -> Result<Node, Fault> {
        let Some(target) = self.anchors.get(&id) else {
            return Err(Fault {
                place,
                what: "refers (`*`) to a section that contains it".into(),
                hint: None,
            });
        };
        self.aliased += target.count();
        if self.aliased > MAX_ALIASED_NODES {
            return Err(Fault {
                place,
                what: "repeats too much through aliases (`*`)".into(),
                hint: Some("write the values out".into()),
            });
        }
        Ok(Node { place, data: target.data.clone() })
    }

    fn refuse_tag(&mut self, tag: Option<&granit_parser::Tag>, place: Place) {
        if tag.is_some_and(|tag| !tag.is_yaml_core_schema()) {
            // The tag is not shown: a password that begins with `!` looks like one.
            let hint = "put the value in quotes if it begins with `!`; encrypted values must be \
                        decrypted first";
            self.fault(place, "has a YAML tag (a word that begins with `!`)", Some(hint));
        }
    }

    fn fault(&mut self, place: Place, what: impl Into<String>, hint: Option<&str>) {
        self.faults.push(Fault { place, what: what.into(), hint: hint.map(Into::into) });
    }

    fn syntax(&self, error: &ScanError) -> Fault {
        let place = Place { line: error.marker().line().max(1), column: error.marker().col() + 1 };
        let hint = self.text.lines().nth(place.line - 1).and_then(syntax_hint);
        Fault {
            place,
            what: format!("is not valid YAML: {}", error.info()),
            hint: hint.map(Into::into),
        }
    }
}

/// The usual slips, told from the line at fault without quoting it.
fn syntax_hint(line: &str) -> Option<&'static str> {
    let indent = line.len() - line.trim_start().len();
    let content = line.trim_start();
    if line[..indent].contains('\t') {
        Some("indent with spaces: YAML does not allow tabs there")
    } else if content.starts_with(['%', '@', '`', '&', '*', '!'])
        || content.contains(": %")
        || content.contains(": @")
    {
        Some("put the value in quotes")
    } else if content.contains(':') && !content.contains(": ") && !content.ends_with(':') {
        Some("a colon after a key is followed by a space: `key: value`")
    } else if content.matches(['"', '\'']).count() % 2 == 1 {
        Some("a quotation mark is opened and not closed")
    } else {
        Some(
            "look at the indentation and the quotation marks of this line and of the one before it",
        )
    }
}

fn null(place: Place) -> Node {
    Node { place, data: Data::Scalar(Scalar { text: String::new(), quoted: false }) }
}
