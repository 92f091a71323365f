//! Finds keys in a document, reads them as the table says, and notes every mistake on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use pvc_model::role::Role;
use pvc_model::shown;

use crate::config::Format;
use crate::keys::{self, At, KEYS, Key, NETWORKS, Need, OldPlace};
use crate::kind::{self, Kind, Mismatch, Typed, Value};
use crate::problem::{Problem, Severity, misspelling};
use crate::yaml::{self, Data, Node, Place};

pub(crate) struct Reader<'d> {
    pub file: &'d str,
    pub document: &'d Node,
    pub format: Format,
    pub standalone: bool,
    /// Directory in which standalone mode keeps its state; stands for `{state}` in defaults.
    pub state: PathBuf,
    /// Name of this node; stands for `{node}` in defaults.
    pub node: String,
    pub problems: Vec<Problem>,
    /// Keys that a misspelt one was probably meant to be: they are not reported as missing too.
    misspelt: BTreeSet<String>,
    /// Sections that are missing as a whole, by place and path.
    absent: BTreeMap<(Place, String), Absent>,
    /// The keys asked for, so that a test can tell that the table has no dead ones.
    #[cfg(test)]
    pub asked: BTreeSet<&'static str>,
}

/// Place of a key in the document, or where it would be.
struct Spot<'d> {
    /// The key's path in this file.
    shown: String,
    place: Place,
    node: Option<&'d Node>,
    /// Something above it is not a section; that is reported once, elsewhere.
    blocked: bool,
    /// The outermost section above it that is missing, and the rest of the path.
    absent: Option<(String, String)>,
}

/// A section that is missing as a whole.
#[derive(Default)]
struct Absent {
    keys: Vec<String>,
    /// The flags that make its keys needed.
    flags: BTreeSet<&'static str>,
}

impl<'d> Reader<'d> {
    pub fn new(file: &'d str, document: &'d Node, format: Format) -> Self {
        Self {
            file,
            document,
            format,
            standalone: false,
            state: PathBuf::new(),
            node: String::new(),
            problems: Vec::new(),
            misspelt: BTreeSet::new(),
            absent: BTreeMap::new(),
            #[cfg(test)]
            asked: BTreeSet::new(),
        }
    }

    /// The key's value or its default. `None` if it has neither, or if what is there is wrong,
    /// which is then noted.
    pub fn get<T: Typed>(&mut self, path: &str) -> Option<T> {
        self.get_at(path, At::default())
    }

    /// Same as [`Self::get`], for values where any placeholder does once a mistake is noted.
    pub fn want<T: Typed + Default>(&mut self, path: &str) -> T {
        self.get(path).unwrap_or_default()
    }

    pub fn get_at<T: Typed>(&mut self, path: &str, at: At) -> Option<T> {
        let key = keys::find(path);
        #[cfg(test)]
        self.asked.insert(key.path);
        let value = self.value(key, at)?;
        Some(T::typed(value).expect("the table gives each key the kind that the code reads it as"))
    }

    fn value(&mut self, key: &'static Key, at: At) -> Option<Value> {
        let spot = self.spot(key, at);
        let Some(node) = spot.node.filter(|node| !counts_as_absent(node, key.kind)) else {
            return if self.required(key) && !spot.blocked {
                self.missing(key, &spot);
                None
            } else {
                self.default_of(key)
            };
        };
        match key.kind.read(node) {
            Ok(value) => {
                self.warn_of_quoted_number(key, &spot, node);
                Some(value)
            }
            Err(mismatch) => {
                self.mismatch(key, &spot, node, mismatch);
                None
            }
        }
    }

    fn missing(&mut self, key: &Key, spot: &Spot<'_>) {
        let flags = match key.need {
            Need::ClusterWith(flags) => flags,
            Need::With(ref flag) => std::slice::from_ref(flag),
            Need::Always | Need::Cluster | Need::Optional => &[],
        };
        if self.misspelt.contains(&spot.shown) {
            return;
        }
        if let Some((section, rest)) = &spot.absent {
            let absent = self.absent.entry((spot.place, section.clone())).or_default();
            absent.keys.push(rest.clone());
            absent.flags.extend(flags);
            return;
        }
        let found = if spot.node.is_some() { "is empty" } else { "is missing" };
        let hint = self.needed_while(flags);
        self.push(
            Severity::Error,
            spot.place,
            Some(spot.shown.clone()),
            found,
            Some(key.kind.expected()),
            hint,
        );
    }

    /// Notes that a key is missing which only the code knows to be required.
    pub fn missing_at(&mut self, path: &str, at: At) {
        let key = keys::find(path);
        let spot = self.spot(key, at);
        if !spot.blocked {
            self.missing(key, &spot);
        }
    }

    fn needed_while<'f>(
        &self,
        flags: impl IntoIterator<Item = &'f &'static str>,
    ) -> Option<String> {
        let flags: Vec<_> = flags.into_iter().map(|flag| self.shown(flag, At::default())).collect();
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        (!flags.is_empty()).then(|| format!("needed while {} is on", kind::one_of(&flags)))
    }

    /// All problems, in the order of the file.
    pub fn into_problems(mut self) -> Vec<Problem> {
        for ((place, section), absent) in std::mem::take(&mut self.absent) {
            let keys: Vec<_> = absent.keys.iter().map(|key| format!("`{key}`")).collect();
            let allowed = format!("a section with {}", keys.join(", "));
            let hint = self.needed_while(&absent.flags);
            self.push(Severity::Error, place, Some(section), "is missing", Some(allowed), hint);
        }
        self.problems.sort_by_key(|problem| problem.place);
        self.problems
    }

    fn mismatch(&mut self, key: &Key, spot: &Spot<'_>, node: &Node, mismatch: Mismatch) {
        let found = match mismatch.found {
            Some(found) if !key.kind.is_secret() => found,
            _ => kind::describe(node, key.kind.is_secret()),
        };
        let place = spot.place;
        self.push(
            Severity::Error,
            place,
            Some(spot.shown.clone()),
            found,
            Some(key.kind.expected()),
            mismatch.hint,
        );
    }

    fn warn_of_quoted_number(&mut self, key: &Key, spot: &Spot<'_>, node: &Node) {
        if key.kind.is_number_in_python() && node.scalar().is_some_and(|scalar| scalar.quoted) {
            self.push(
                Severity::Warning,
                spot.place,
                Some(spot.shown.clone()),
                "is a number in quotes",
                None,
                Some("remove the quotes: daemons of PVC 1.0.3 stop on it".into()),
            );
        }
    }

    /// Whether the key must be given here.
    fn required(&self, key: &Key) -> bool {
        let has_a_place = match key.old {
            OldPlace::Same | OldPlace::Maybe(_) => self.format == Format::PvcConf,
            OldPlace::At(_) | OldPlace::Within(_) | OldPlace::Only => true,
        };
        let in_cluster = !self.standalone && has_a_place;
        match key.need {
            Need::Always => true,
            Need::Cluster => in_cluster,
            Need::ClusterWith(flags) => in_cluster && flags.iter().any(|flag| self.is_on(flag)),
            Need::With(flag) => self.is_on(flag),
            Need::Optional => false,
        }
    }

    /// Reads a flag, without noting anything.
    pub fn is_on(&self, path: &str) -> bool {
        let key = keys::find(path);
        let given = self.spot(key, At::default()).node.and_then(|node| key.kind.read(node).ok());
        matches!(given.or_else(|| self.default_of(key)), Some(Value::Flag(true)))
    }

    fn default_of(&self, key: &Key) -> Option<Value> {
        let text = match self.standalone {
            true => key.alone.or(key.default)?,
            false => key.default?,
        };
        if let Some(rest) = text.strip_prefix("{state}/") {
            return Some(Value::Path(self.state.join(rest)));
        }
        let document = yaml::parse(&text.replace("{node}", &self.node)).ok();
        let value = document.and_then(|document| key.kind.read(&document.root).ok());
        Some(value.expect("the defaults in the table are valid"))
    }

    /// Whether the key has a value in the file, right or wrong.
    pub fn is_given(&self, path: &str, at: At) -> bool {
        let key = keys::find(path);
        self.spot(key, at).node.is_some_and(|node| !counts_as_absent(node, key.kind))
    }

    /// The key's path as this file would have it.
    pub fn shown(&self, path: &str, at: At) -> String {
        self.spot(keys::find(path), at).shown
    }

    /// Number of items of the list at `path`; what is not a list is noted by [`Self::survey`].
    pub fn items(&self, path: &str) -> usize {
        match walk(self.document, path).map(|found| &found.data) {
            Ok(Data::List(items)) => items.len(),
            Ok(Data::Scalar(_) | Data::Map(_)) | Err(_) => 0,
        }
    }

    fn spot(&self, key: &Key, at: At) -> Spot<'d> {
        let mut missing: Option<(String, Near)> = None;
        for path in places(key, self.format) {
            let path = at.fill(&path);
            match walk_with_key(self.document, &path) {
                Ok((node, place)) => {
                    return Spot {
                        shown: path,
                        place,
                        node: Some(node),
                        blocked: false,
                        absent: None,
                    };
                }
                Err(near) => missing = missing.or(Some((path, near))),
            }
        }
        let nowhere = Near { place: Place::START, blocked: false, depth: 0 };
        let (shown, near) = missing.unwrap_or((at.fill(key.path), nowhere));
        let absent = split_after(&shown, near.depth + 1);
        Spot { shown, place: near.place, node: None, blocked: near.blocked, absent }
    }

    /// Notes an error about a key that was read without one.
    pub fn error_at(
        &mut self,
        path: &str,
        at: At,
        found: impl Into<String>,
        allowed: &str,
        hint: &str,
    ) {
        let spot = self.spot(keys::find(path), at);
        let hint = Some(hint.to_owned()).filter(|hint| !hint.is_empty());
        let allowed = Some(allowed.to_owned()).filter(|allowed| !allowed.is_empty());
        self.push(Severity::Error, spot.place, Some(spot.shown), found, allowed, hint);
    }

    pub fn warn_at(&mut self, path: &str, at: At, found: impl Into<String>, hint: &str) {
        let spot = self.spot(keys::find(path), at);
        self.push(
            Severity::Warning,
            spot.place,
            Some(spot.shown),
            found,
            None,
            Some(hint.to_owned()),
        );
    }

    pub fn push(
        &mut self,
        severity: Severity,
        place: Place,
        key: Option<String>,
        found: impl Into<String>,
        allowed: Option<String>,
        hint: Option<String>,
    ) {
        let problem = Problem {
            severity,
            file: self.file.into(),
            place: Some(place),
            key,
            found: found.into(),
            allowed,
            hint,
        };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Notes what is in the document and should not be: unknown keys, values where sections belong,
    /// and two spellings of one key that disagree.
    pub fn survey(&mut self) {
        let known = Known::of(self.format);
        self.survey_node(self.document, Place::START, &known, "");
        for key in KEYS {
            self.survey_spellings(key);
            self.survey_former(key);
        }
    }

    fn survey_node(&mut self, node: &Node, place: Place, known: &Known, path: &str) {
        if node.is_null() || (known.children.is_empty() && !known.list) {
            return;
        }
        match &node.data {
            Data::List(items) if known.list => {
                for (index, item) in items.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    match &item.data {
                        Data::Map(_) => self.survey_section(item, known, &path),
                        Data::Scalar(_) | Data::List(_) => {
                            self.not_a_section(item, item.place, known, &path)
                        }
                    }
                }
            }
            Data::Map(_) if !known.list => self.survey_section(node, known, path),
            Data::Scalar(_) | Data::List(_) | Data::Map(_) => {
                self.not_a_section(node, place, known, path)
            }
        }
    }

    fn survey_section(&mut self, section: &Node, known: &Known, path: &str) {
        let Data::Map(entries) = &section.data else { return };
        for entry in entries {
            let path = join(path, &entry.key);
            match known.children.get(entry.key.as_str()) {
                Some(child) => self.survey_node(&entry.value, entry.place, child, &path),
                None => self.unknown_key(section, entry, known, &path),
            }
        }
    }

    fn not_a_section(&mut self, node: &Node, place: Place, known: &Known, path: &str) {
        let (allowed, hint) = if known.list && !path.ends_with(']') {
            ("a list of sections", "begin each item with a hyphen: `- key: value`")
        } else {
            ("a section of keys", "write one `key: value` per line, indented")
        };
        // What stands here is not shown: it may be a password that lost its place.
        let found = match node.data {
            Data::Scalar(_) => "is a plain value",
            Data::List(_) => "is a list",
            Data::Map(_) => "is a section of keys",
        };
        let key = if path.is_empty() { None } else { Some(path.to_owned()) };
        let found = if key.is_none() { format!("the file {found}") } else { found.to_owned() };
        self.push(Severity::Error, place, key, found, Some(allowed.into()), Some(hint.into()));
    }

    fn unknown_key(&mut self, section: &Node, entry: &yaml::Entry, known: &Known, path: &str) {
        let absent =
            known.children.keys().map(String::as_str).filter(|name| section.entry(name).is_none());
        if let Some(name) = misspelling(&entry.key, absent) {
            let hint = format!("did you mean `{name}`?");
            let section = path.strip_suffix(entry.key.as_str()).unwrap_or_default();
            self.misspelt.insert(format!("{section}{name}"));
            self.push(
                Severity::Error,
                entry.place,
                Some(path.into()),
                "is not a known key",
                None,
                Some(hint),
            );
            return;
        }
        let begins_alike =
            |name: &&String| name.starts_with(&entry.key) || entry.key.starts_with(name.as_str());
        let hint =
            match (elsewhere(&entry.key, self.format), known.children.keys().find(begins_alike)) {
                (Some(place), _) => format!("it is ignored here: the key belongs at `{place}`"),
                (None, Some(name)) => format!("it is ignored; perhaps `{name}` is meant"),
                (None, None) => "it is ignored".into(),
            };
        // Among tokens, a word out of place may be the token itself; and where a line break was
        // lost, what stands before the colon may begin with a secret. What looks like a key is
        // shown.
        let key = (!known.list && looks_like_a_key(&entry.key)).then(|| shown(path));
        let found = match key {
            _ if known.list => "an item of the list has a key that is not known",
            Some(_) => "is not a known key",
            None => "what stands before the colon is not a known key, and does not look like one",
        };
        self.push(Severity::Warning, entry.place, key, found, None, Some(hint));
    }

    fn survey_spellings(&mut self, key: &Key) {
        for at in every_at(self, key) {
            let given: Vec<_> = places(key, self.format)
                .into_iter()
                .map(|path| at.fill(&path))
                .filter_map(|path| {
                    walk_with_key(self.document, &path).ok().map(|found| (path, found))
                })
                .collect();
            if let [(first, (value, _)), (second, (other, place)), ..] = given.as_slice()
                && value.to_json() != other.to_json()
            {
                let found = format!("is given besides `{first}`, with another value");
                let hint = "they mean the same: keep one of them".to_owned();
                self.push(Severity::Error, *place, Some(second.clone()), found, None, Some(hint));
            }
        }
    }

    /// Warns of keys where PVC 1.0.3 does not look for them: it would not start with such a file.
    fn survey_former(&mut self, key: &Key) {
        if self.format != Format::PvcConf {
            return;
        }
        for at in every_at(self, key) {
            for former in key.former.iter().map(|path| at.fill(path)) {
                let Ok((_, place)) = walk_with_key(self.document, &former) else { continue };
                let found = "is read here for now, and daemons of PVC 1.0.3 do not find it here";
                let hint = format!("move it to `{}`", at.fill(key.path));
                self.push(Severity::Warning, place, Some(former), found, None, Some(hint));
            }
        }
    }
}

/// Empty text counts as not given where text could not be empty anyway: samples write `""` for
/// "none". So does Python's `None` in place of an address, which templates put there.
fn counts_as_absent(node: &Node, kind: Kind) -> bool {
    // An empty flag is refused instead: Python takes it for false whatever the default is.
    let empty_text = node.scalar().is_some_and(|scalar| scalar.text.is_empty());
    match kind {
        Kind::Flag => false,
        // A role that somebody left empty is no reason for the one that may do everything.
        Kind::Choice(Role::OF_TOKENS) => false,
        Kind::Text | Kind::Secret => node.is_null(),
        Kind::Ipv4
            if node.scalar().is_some_and(|scalar| scalar.text.eq_ignore_ascii_case("none")) =>
        {
            true
        }
        _ => node.is_null() || empty_text,
    }
}

fn every_at(reader: &Reader<'_>, key: &Key) -> Vec<At> {
    if key.path.contains("{net}") {
        NETWORKS.iter().map(|&net| At { net, item: 0 }).collect()
    } else if key.path.contains("[]") {
        let list = places(key, reader.format)[0].split("[]").next().unwrap_or_default().to_owned();
        (0..reader.items(&list)).map(|item| At { net: "", item }).collect()
    } else {
        vec![At::default()]
    }
}

/// Places where the key may be written in a file of this format, the usual one first.
pub(crate) fn places(key: &Key, format: Format) -> Vec<String> {
    let under_pvc = |path: &str| format!("pvc.{path}");
    match (format, key.old) {
        (Format::PvcConf, OldPlace::Only) | (Format::PvcnodedYaml, OldPlace::Within(_)) => {
            Vec::new()
        }
        (Format::PvcnodedYaml, OldPlace::Only) => vec![under_pvc(key.path)],
        (Format::PvcnodedYaml, OldPlace::At(paths) | OldPlace::Maybe(paths)) => {
            paths.iter().map(|path| under_pvc(path)).collect()
        }
        (Format::PvcConf, _) | (Format::PvcnodedYaml, OldPlace::Same) => [key.path]
            .iter()
            .chain(key.aliases)
            .chain(key.former)
            .map(|path| (*path).to_owned())
            .collect(),
    }
}

/// The place of a key whose last word is `word`, for keys that were put into the wrong section.
fn elsewhere(word: &str, format: Format) -> Option<String> {
    let mut all = KEYS.iter().flat_map(|key| places(key, format));
    all.find(|path| path.rsplit('.').next() == Some(word))
        .map(|path| path.replace("{net}", "<network>"))
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.into() } else { format!("{path}.{key}") }
}

/// Depth to which a path leads into the document that does not lead to its end.
#[derive(Clone, Copy)]
struct Near {
    place: Place,
    blocked: bool,
    /// Number of words of the path that are there.
    depth: usize,
}

/// The first `words` words of a path and the rest, if there is a rest.
fn split_after(path: &str, words: usize) -> Option<(String, String)> {
    let (at, _) = path.match_indices('.').nth(words.checked_sub(1)?)?;
    Some((path[..at].to_owned(), path[at + 1..].to_owned()))
}

fn walk<'d>(document: &'d Node, path: &str) -> Result<&'d Node, ()> {
    walk_with_key(document, path).map(|(node, _)| node).map_err(|_| ())
}

/// The node at `path`, with the place to point at: that of a plain value itself, that of its key
/// else.
fn walk_with_key<'d>(document: &'d Node, path: &str) -> Result<(&'d Node, Place), Near> {
    let (mut node, mut place) = (document, Place::START);
    for (depth, word) in path.split('.').enumerate() {
        let (name, item) = match word.split_once('[') {
            Some((name, index)) => (name, index.trim_end_matches(']').parse::<usize>().ok()),
            None => (word, None),
        };
        let blocked = !node.is_null() && !matches!(node.data, Data::Map(_));
        let entry = node.entry(name).ok_or(Near { place, blocked, depth })?;
        (node, place) = (&entry.value, entry.place);
        if let Some(item) = item {
            let Data::List(items) = &node.data else {
                return Err(Near { place, blocked: true, depth });
            };
            node = items.get(item).ok_or(Near { place, blocked: true, depth })?;
            place = node.place;
        }
    }
    if node.scalar().is_some() {
        place = node.place;
    }
    Ok((node, place))
}

/// The keys of one format as a tree.
#[derive(Default)]
struct Known {
    children: BTreeMap<String, Known>,
    list: bool,
}

impl Known {
    fn of(format: Format) -> Self {
        let mut root = Known::default();
        for key in KEYS {
            let nets: &[&'static str] = if key.path.contains("{net}") { &NETWORKS } else { &[""] };
            for net in nets {
                places(key, format)
                    .iter()
                    .for_each(|path| root.insert(&path.replace("{net}", net)));
            }
        }
        root
    }

    fn insert(&mut self, path: &str) {
        let mut at = self;
        for word in path.split('.') {
            let name = word.trim_end_matches("[]");
            at = at.children.entry(name.to_owned()).or_default();
            at.list |= name.len() < word.len();
        }
    }
}

/// The state directory that the file names, for defaults below it.
pub(crate) fn state_directory(document: &Node, otherwise: &Path) -> PathBuf {
    let given = walk(document, "standalone.state_directory").ok();
    match given.and_then(|node| Kind::Directory.read(node).ok()) {
        Some(Value::Path(path)) => path,
        _ => otherwise.to_owned(),
    }
}

/// Whether `text` has the shape that all keys of these files have: lower-case words joined by `_`
/// or `-`.
fn looks_like_a_key(text: &str) -> bool {
    text.len() <= 40
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-'))
}
