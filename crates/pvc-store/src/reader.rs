//! From bytes in the tree to records, for all kinds: tolerant. A value that cannot be read becomes
//! the harmless default and is named in the record's `defects`; no record is ever left out for it.

use std::borrow::Cow;
use std::sync::Arc;

use pvc_model::shown;

use crate::once;
use crate::raw::{Place, Raw, Value, lossy};

/// Largest number of entries of one list that are read: tags, snapshots, leases, rules. It is ten
/// times as many as anybody has, and as many take a few milliseconds.
pub(crate) const MOST_ENTRIES: usize = 10_000;

/// Largest number of bytes that are read of one text, and of all texts of one list; XML and what is
/// only handed on have no such limit here.
pub(crate) const MOST_TEXT: usize = 1 << 20;

/// The largest text that is read as JSON, in bytes: what is said of a job may carry an XML and has
/// a log.
pub(crate) const MOST_JSON: usize = 4 << 20;

/// Largest number of defects of one record that are named.
pub(crate) const MOST_DEFECTS: usize = 20;

/// Reads the keys below one root and collects what was wrong with them.
pub(crate) struct Reader<'a> {
    pub place: Place<'a>,
    /// The way to it from the root of the record, with a `/` behind it.
    way: String,
    /// Number of bytes that may still be read of a text, or of those of a list.
    left: usize,
    defects: Vec<String>,
    /// Number of defects that were found after `MOST_DEFECTS` had been named.
    unnamed: usize,
}

impl<'a> Reader<'a> {
    pub fn new(raw: &'a Raw, root: &str) -> Self {
        let (way, defects) = (String::new(), Vec::new());
        Reader { place: raw.place(root), way, left: MOST_TEXT, defects, unnamed: 0 }
    }

    /// Notes a defect of `key`.
    fn wrong(&mut self, key: &str, what: impl FnOnce() -> String) {
        let way = std::mem::take(&mut self.way);
        self.defect(|| format!("`{way}{key}` {}", what()));
        self.way = way;
    }

    pub fn defect(&mut self, what: impl FnOnce() -> String) {
        if self.defects.len() < MOST_DEFECTS {
            self.defects.push(what());
        } else {
            self.unnamed += 1;
        }
    }

    pub fn into_defects(mut self) -> Vec<String> {
        if self.unnamed > 0 {
            self.defects.push(format!("and {} more", self.unnamed));
        }
        self.defects
    }

    /// Says in the log that the record `what` is shown in part, if it is: it has no place for its
    /// defects.
    pub fn log_what_is_cut(&self, what: &str) {
        let is_cut = |defect: &&String| defect.ends_with(CUT);
        for defect in self.defects.iter().filter(is_cut) {
            if once::is_new(&format!("{what}: {defect}")) {
                tracing::error!(record = what, defect, "a record is shown in part");
            }
        }
    }

    pub fn text(&mut self, key: &str) -> String {
        let text = self.shared(key);
        let read = &text[..text.floor_char_boundary(self.left)];
        if !self.way.is_empty() {
            self.left -= read.len();
        }
        if read.len() < text.len() {
            let (read, all) = (read.len(), text.len());
            self.wrong(key, || format!("has {all} bytes, of which {read} {CUT}"));
        }
        read.to_owned()
    }

    /// The text itself, not a copy of it.
    pub fn shared(&mut self, key: &str) -> Arc<str> {
        match self.place.get(key).map(|node| &node.data) {
            None => Arc::default(),
            Some(Value::Text(text)) => text.clone(),
            Some(Value::Other(bytes)) => {
                self.wrong(key, || "is not UTF-8 text".to_owned());
                lossy(bytes).into()
            }
        }
    }

    /// A number; 0 where there is nothing, 0 and a defect where there is something else.
    pub fn number<T: std::str::FromStr + Default>(&mut self, key: &str) -> T {
        let text = self.shared(key);
        if text.is_empty() || *text == *"None" {
            return T::default();
        }
        let number = (text.len() <= LONGEST_NUMBER).then(|| text.parse().ok()).flatten();
        number.unwrap_or_else(|| {
            self.wrong(key, || format!("is `{}`, not a number", shown(&text)));
            T::default()
        })
    }

    /// Python's `True`/`False`; anything else is false, and a defect unless it means "not set".
    pub fn flag(&mut self, key: &str) -> bool {
        let text = self.shared(key);
        match &*text {
            "True" | "true" => true,
            "False" | "false" | "" | "None" => false,
            other => {
                self.wrong(key, || format!("is `{}`, not `True` or `False`", shown(other)));
                false
            }
        }
    }

    /// The names below `key`, as many as are read.
    pub fn children(&mut self, key: &str) -> Vec<&'a str> {
        let names = self.place.children(key);
        self.most(key, names)
    }

    /// Returns as many of the entries of `key` as are read.
    pub fn most<T>(&mut self, key: &str, entries: impl Iterator<Item = T>) -> Vec<T> {
        let mut entries = entries.fuse();
        let read = entries.by_ref().take(MOST_ENTRIES).collect();
        if entries.next().is_some() {
            self.wrong(key, || format!("has more entries than the {MOST_ENTRIES} that {CUT}"));
        }
        read
    }

    /// Reads each entry of the list `key` from its own place.
    pub fn list<T>(&mut self, key: &str, entry: impl Fn(&mut Reader<'a>, &str) -> T) -> Vec<T> {
        let names = self.children(key);
        self.entries(key, &names, entry)
    }

    /// Reads the entries `names` of the list `key`, each from its own place.
    pub fn entries<T>(
        &mut self,
        key: &str,
        names: &[&str],
        entry: impl Fn(&mut Reader<'a>, &str) -> T,
    ) -> Vec<T> {
        let list = self.place.below(key);
        let (way, defects) = (String::new(), std::mem::take(&mut self.defects));
        let mut r = Reader { place: list, way, left: MOST_TEXT, defects, unnamed: self.unnamed };
        let read = |name: &&str| {
            r.place = list.below(name);
            r.way = if key.is_empty() { format!("{name}/") } else { format!("{key}/{name}/") };
            entry(&mut r, name)
        };
        let entries = names.iter().map(read).collect();
        (self.defects, self.unnamed) = (r.defects, r.unnamed);
        entries
    }
}

/// End of a defect that says that not all is shown.
const CUT: &str = "are shown";

/// The longest text of a number.
const LONGEST_NUMBER: usize = 64;

/// Returns as much of a text that stands alone as is read.
pub(crate) fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_TEXT)]
}

/// Returns a flag as a legacy peer writes it.
pub(crate) fn python_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// The items of a list as they are written.
pub(crate) fn joined<T: ToString>(items: &[T], separator: &str) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(separator)
}

/// Returns the text that is read as JSON at `path`; `None` if nothing is there, or too much.
pub(crate) fn json<'a>(raw: &'a Raw, path: &str) -> Option<Cow<'a, str>> {
    raw.text(path).filter(|text| text.len() <= MOST_JSON)
}

/// A text that means nothing when empty or the word `None`.
pub(crate) fn set(text: &str) -> Option<&str> {
    (!text.is_empty() && text != "None").then_some(text)
}

pub(crate) fn comma_list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

#[cfg(test)]
pub(crate) fn raw_of(nodes: impl IntoIterator<Item = (String, String)>) -> Raw {
    let mut raw = Raw::default();
    for (path, value) in nodes {
        let stat = pvc_ports::Stat::default();
        let entry = pvc_ports::Entry { data: value.into(), stat };
        raw.put(&path, crate::raw::RawNode::read(&path, &entry));
    }
    raw
}
