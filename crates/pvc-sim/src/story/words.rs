//! The words of a story: sentences of a fixed form, and what they mean.
//!
//! A form is a line like `cut NET network of NODE`. Words in capitals are filled in, "the" is left
//! out anywhere, and everything else stands as it is. The forms are tables, in
//! [`super::story_actions`] and [`super::facts`]: they are what is known, what an error lists, and
//! what the manual shows.

use std::time::Duration;

use pvc_model::node::{CoordinatorState, DaemonState, DomainState};
use pvc_model::vm::VmState;

use crate::host::Net;

/// Number of forms that are shown to whoever said something else.
const CLOSEST: usize = 5;

/// Places in an order.
const NTH: [&str; 7] = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"];

/// A form of a sentence.
pub(super) struct Form<T: 'static> {
    pub form: &'static str,
    pub means: fn(&Filled) -> T,
}

/// The names that stand in a story.
pub(super) struct Names {
    pub nodes: Vec<String>,
    pub vms: Vec<String>,
}

/// State of a node: what its record says, or whether it has power.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NodeWord {
    On,
    Off,
    Daemon(DaemonState),
    Coordinator(CoordinatorState),
    Domain(DomainState),
}

impl NodeWord {
    fn all() -> Vec<(String, NodeWord)> {
        let power = [("on".to_owned(), NodeWord::On), ("off".to_owned(), NodeWord::Off)];
        let daemon = DaemonState::ALL.iter().map(|s| (s.to_string(), NodeWord::Daemon(s.clone())));
        let role =
            CoordinatorState::ALL.iter().map(|s| (s.to_string(), NodeWord::Coordinator(s.clone())));
        let domain = DomainState::ALL.iter().map(|s| (s.to_string(), NodeWord::Domain(s.clone())));
        power.into_iter().chain(daemon).chain(role).chain(domain).collect()
    }
}

/// Values of the capitals of a form in one sentence.
#[derive(Default)]
pub(super) struct Filled {
    pub nodes: Vec<usize>,
    pub vms: Vec<usize>,
    pub vm_states: Vec<VmState>,
    pub node_words: Vec<NodeWord>,
    pub nets: Vec<Net>,
    pub times: Vec<Duration>,
    /// Seconds, forwards or backwards.
    pub step: i64,
    pub count: u32,
    /// Place of something in its order, from 1.
    pub nth: u32,
    pub text: String,
}

impl Filled {
    /// The first node of the sentence.
    pub fn node(&self) -> usize {
        self.nodes[0]
    }

    pub fn vm(&self) -> usize {
        self.vms[0]
    }
}

/// A word and where it stands.
struct Word<'a> {
    text: &'a str,
    at: usize,
}

fn split(sentence: &str) -> Vec<Word<'_>> {
    let place = |text: &str| text.as_ptr() as usize - sentence.as_ptr() as usize;
    sentence
        .split_whitespace()
        .filter(|text| *text != "the")
        .map(|text| Word { text, at: place(text) })
        .collect()
}

/// Reads `sentence`, which has one of the forms of these tables.
///
/// # Errors
/// In words: what is not known, and what is.
pub(super) fn read<T>(
    sentence: &str,
    kind: &str,
    forms: &[&[Form<T>]],
    names: &Names,
) -> Result<T, String> {
    // Of the forms that do not fit, the one that fits longest says best what is wrong.
    let mut closest: Option<(usize, String)> = None;
    for form in forms.iter().copied().flatten() {
        match fill(sentence, form.form, names) {
            Ok(filled) => return Ok((form.means)(&filled)),
            Err((place, Some(why))) if closest.as_ref().is_none_or(|(best, _)| place > *best) => {
                closest = Some((place, why));
            }
            Err(_) => {}
        }
    }
    if let Some((place, why)) = closest
        && place > 0
    {
        return Err(format!("`{sentence}`: {why}"));
    }
    let mut known: Vec<&str> = forms.iter().copied().flatten().map(|form| form.form).collect();
    known.sort_by_key(|form| std::cmp::Reverse(likeness(sentence, form)));
    known.truncate(CLOSEST);
    let known = known.join("\n  ");
    Err(format!(
        "`{sentence}` is no {kind}. Closest are:\n  {known}\n`pvc-sim sentences` shows all"
    ))
}

/// Number of words of the form that stand in the sentence, more or less: half of a word will do.
fn likeness(sentence: &str, form: &str) -> usize {
    let words: Vec<&str> = sentence.split_whitespace().collect();
    let is_like = |wanted: &&str| {
        words.iter().any(|word| strsim::normalized_levenshtein(word, wanted) >= 0.5)
    };
    form.split_whitespace().filter(is_like).count()
}

/// Fits the sentence to one form, or says how many words fit, and what a word in capitals cannot
/// be.
fn fill(sentence: &str, form: &str, names: &Names) -> Result<Filled, (usize, Option<String>)> {
    let words = split(sentence);
    let mut rest = words.as_slice();
    let mut filled = Filled::default();
    let mut misnamed = None;
    for wanted in form.split_whitespace() {
        let place = words.len() - rest.len();
        let taken = match take(sentence, rest, wanted, names, &mut filled) {
            Ok(taken) => taken,
            // A sentence that begins with a name which nobody has may be of this form.
            Err(Some(why)) if place == 0 && matches!(wanted, "NODE" | "VM") && !rest.is_empty() => {
                misnamed = Some(why);
                1
            }
            // What is filled in may be anything; only after a word that is fixed it is surely meant
            // so.
            Err(why) => return Err((if misnamed.is_some() { 0 } else { place }, why)),
        };
        rest = &rest[taken..];
    }
    match (rest.is_empty(), misnamed) {
        (true, None) => Ok(filled),
        (true, Some(why)) => Err((words.len(), Some(why))),
        (false, _) => Err((0, None)),
    }
}

/// Number of words that `wanted` takes.
fn take(
    sentence: &str,
    rest: &[Word<'_>],
    wanted: &str,
    names: &Names,
    filled: &mut Filled,
) -> Result<usize, Option<String>> {
    let Some(first) = rest.first() else {
        let is_open = wanted.chars().all(|c| c.is_uppercase() || c == '-');
        return Err(is_open.then(|| format!("{wanted} is missing at its end")));
    };
    let one = |list: &[String], kind: &str| {
        let known = list.iter().position(|name| name == first.text);
        known.ok_or_else(|| {
            Some(format!("`{}` is no {kind}; there are {}", first.text, list.join(", ")))
        })
    };
    match wanted {
        "NODE" => filled.nodes.push(one(&names.nodes, "node")?),
        "VM" => filled.vms.push(one(&names.vms, "VM")?),
        "NODES" => return take_nodes(rest, names, filled),
        "VM-STATES" => return take_vm_states(rest, filled),
        "NODE-STATES" => return take_node_states(rest, filled),
        "NET" => filled.nets.push(net(first.text)?),
        "TIME" => filled.times.push(time(first.text).map_err(Some)?),
        "STEP" => {
            let (sign, text) = match first.text.strip_prefix('-') {
                Some(text) => (-1, text),
                None => (1, first.text.trim_start_matches('+')),
            };
            filled.step = sign * time(text).map_err(Some)?.as_secs() as i64;
        }
        "COUNT" => {
            let why = || Some(format!("`{}` is no number", first.text));
            filled.count = first.text.parse().map_err(|_| why())?;
        }
        "NTH" => {
            let place = NTH.iter().position(|word| *word == first.text);
            let why = || format!("`{}` is none of {}", first.text, NTH.join(", "));
            filled.nth = place.ok_or_else(|| Some(why()))? as u32 + 1;
        }
        "TEXT" => {
            filled.text = sentence[first.at..].trim_matches(['"', '`', '\'']).to_owned();
            return Ok(rest.len());
        }
        literal if literal == first.text => {}
        _ => return Err(None),
    }
    Ok(1)
}

fn take_nodes(
    rest: &[Word<'_>],
    names: &Names,
    filled: &mut Filled,
) -> Result<usize, Option<String>> {
    let list = enumerated(rest);
    for name in &list {
        let node = names.nodes.iter().position(|known| known == name);
        let why = || format!("`{name}` is no node; there are {}", names.nodes.join(", "));
        filled.nodes.push(node.ok_or_else(|| Some(why()))?);
    }
    Ok(length(rest, &list))
}

fn take_vm_states(rest: &[Word<'_>], filled: &mut Filled) -> Result<usize, Option<String>> {
    let list = enumerated(rest);
    for word in &list {
        let state = VmState::ALL.iter().find(|state| state.as_str() == *word);
        let known: Vec<&str> = VmState::ALL.iter().map(VmState::as_str).collect();
        let why = || format!("`{word}` is no state of a VM; there are {}", known.join(", "));
        filled.vm_states.push(state.cloned().ok_or_else(|| Some(why()))?);
    }
    Ok(length(rest, &list))
}

fn take_node_states(rest: &[Word<'_>], filled: &mut Filled) -> Result<usize, Option<String>> {
    let list = enumerated(rest);
    let all = NodeWord::all();
    for word in &list {
        let known: Vec<&str> = all.iter().map(|(word, _)| word.as_str()).collect();
        let why = || format!("`{word}` is no state of a node; there are {}", known.join(", "));
        let state = all.iter().find(|(known, _)| known == word);
        filled.node_words.push(state.map(|(_, state)| state.clone()).ok_or_else(|| Some(why()))?);
    }
    Ok(length(rest, &list))
}

fn net(text: &str) -> Result<Net, Option<String>> {
    match text {
        "cluster" => Ok(Net::Cluster),
        "upstream" => Ok(Net::Upstream),
        "storage" => Ok(Net::Storage),
        other => {
            Err(Some(format!("`{other}` is no network; there are cluster, upstream, storage")))
        }
    }
}

/// `a`, `a or b`, `a, b or c`.
fn enumerated<'a>(words: &[Word<'a>]) -> Vec<&'a str> {
    let mut list = Vec::new();
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let name = word.text.trim_end_matches(',');
        list.push(name);
        let goes_on = match rest.peek() {
            Some(next) if next.text == "or" => rest.next().is_some(),
            _ => name.len() < word.text.len(),
        };
        if !goes_on {
            break;
        }
    }
    list
}

/// Number of words that an enumeration takes, with its "or"s.
fn length(words: &[Word<'_>], list: &[&str]) -> usize {
    let mut left = list.len();
    let counts = |word: &&Word<'_>| {
        if word.text == "or" {
            return true;
        }
        left = left.wrapping_sub(1);
        left != usize::MAX
    };
    words.iter().take_while(counts).count()
}

/// `500ms`, `30s`, `5m`, `1h`.
///
/// # Errors
/// In words.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => 0,
    };
    let known =
        number.parse::<u64>().ok().filter(|_| millis > 0).and_then(|n| n.checked_mul(millis));
    known
        .map(Duration::from_millis)
        .ok_or_else(|| format!("`{text}` is no time; say 500ms, 30s, 5m or 1h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names { nodes: vec!["a".into(), "b".into(), "c".into()], vms: vec!["web".into()] }
    }

    const FORMS: &[Form<String>] = &[
        Form {
            form: "VM runs on NODES",
            means: |filled| format!("{:?} on {:?}", filled.vms, filled.nodes),
        },
        Form {
            form: "cut NET network of NODE",
            means: |filled| format!("{:?} {}", filled.nets, filled.node()),
        },
        Form { form: "log says TEXT", means: |filled| filled.text.clone() },
        Form { form: "stops behind NTH change", means: |filled| filled.nth.to_string() },
    ];

    fn understood(sentence: &str) -> Result<String, String> {
        read(sentence, "fact", &[FORMS], &names())
    }

    #[test]
    fn sentences_are_read_with_and_without_articles_and_lists() {
        assert_eq!(understood("web runs on a").unwrap(), "[0] on [0]");
        assert_eq!(understood("web runs on a, b or c").unwrap(), "[0] on [0, 1, 2]");
        assert_eq!(understood("cut the cluster network of b").unwrap(), "[Cluster] 1");
        assert_eq!(understood("the log says \"the end, or not\"").unwrap(), "the end, or not");
        assert_eq!(understood("stops behind the third change").unwrap(), "3");
    }

    #[test]
    fn what_is_not_known_is_named_with_what_is() {
        assert_eq!(
            understood("web runs on a or x").unwrap_err(),
            "`web runs on a or x`: `x` is no node; there are a, b, c"
        );
        let said = understood("cut the cable of b").unwrap_err();
        assert_eq!(
            said,
            "`cut the cable of b`: `cable` is no network; there are cluster, upstream, storage"
        );
        assert!(understood("cut the cluster network of").unwrap_err().contains("NODE is missing"));
        assert_eq!(
            understood("stops behind the last change").unwrap_err(),
            "`stops behind the last change`: `last` is none of first, second, third, fourth, \
             fifth, sixth, seventh"
        );
        assert_eq!(
            understood("wbe runs on a").unwrap_err(),
            "`wbe runs on a`: `wbe` is no VM; there are web"
        );
        assert!(
            understood("pour coffee").unwrap_err().contains("Closest are:\n  VM runs on NODES")
        );
        assert!(
            understood("web runs on a now")
                .unwrap_err()
                .contains("Closest are:\n  VM runs on NODES")
        );
        assert!(
            understood("cot network of a")
                .unwrap_err()
                .contains("Closest are:\n  cut NET network of NODE")
        );
    }

    #[test]
    fn times_have_a_unit() {
        assert_eq!(time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        assert!(time("5").unwrap_err().contains("no time"));
        assert!(time("99999999999999999999h").is_err());
    }
}
