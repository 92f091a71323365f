//! `scenario.toml`: what stands there, and what it means.

#![allow(clippy::disallowed_methods, reason = "a story is a file of the real world")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use pvc_model::check_name;
use pvc_model::vm::{MigrationMethod, Selector};
use serde::Deserialize;
use toml::Spanned;
use uuid::Uuid;

use super::words::{self, Form, Names};
use super::{Expected, Said, Step, Story, facts, story_actions};
use crate::cluster::{HostShape, Rules, Shape, VmShape};
use crate::guest_networks::plug_in;
use crate::guests::Manner;
use crate::nature::{Elections, Mutation};
use crate::sriov::Function;

/// Time for which something is waited for if the story does not say.
const WITHIN: Duration = Duration::from_secs(300);

/// Time that ZooKeeper's servers take to elect a leader if the story does not say.
const ELECTION_MS: u64 = 1_000;

/// Time for which what is true in the end has to stay so.
const STAYS: Duration = Duration::from_secs(30);

/// More memory than any machine has: 64 TiB.
const MOST_MIB: u64 = 64 << 20;

/// The longest name of a node or a VM.
const MOST_LETTERS: usize = 63;

/// More VMs of a kind than a story can be told of.
const MOST_VMS: usize = 1_000;

type Text = Spanned<String>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Primary node when the story begins; by default the first coordinator.
    primary: Option<Text>,
    /// Exactly these nodes are fenced.
    #[serde(default)]
    fenced: Vec<Text>,
    /// Nodes that may be fenced or not.
    #[serde(default)]
    may_be_fenced: Vec<Text>,
    #[serde(default)]
    never: Vec<Text>,
    #[serde(default)]
    always: Vec<Text>,
    /// Reason for which the story fails, if it is known to.
    known: Option<String>,
    #[serde(default)]
    world: WorldTable,
    #[serde(default)]
    node: Vec<NodeTable>,
    #[serde(default)]
    vm: Vec<VmTable>,
    #[serde(default)]
    happens: Vec<HappensTable>,
    finally: FinallyTable,
    /// Read before everything else.
    #[serde(default, rename = "variant")]
    _variant: Vec<toml::Table>,
    #[serde(default, rename = "each")]
    _each: BTreeMap<String, Vec<toml::Table>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct WorldTable {
    seed: Option<u64>,
    /// Whether a node that lost the store gives its guests up, and after how long.
    reset_after: Option<Text>,
    /// Number of missed keepalives after which a node is taken for dead; 0: never.
    fence_intervals: Option<u32>,
    /// Action for the VMs of a node that is proven dead: `migrate` or `none`.
    successful_fence: Option<Text>,
    /// Whether the word of a migration's end gets lost, each time.
    #[serde(default)]
    loses_words: bool,
    /// The node whose ZooKeeper server leads at first: the others need one, and elect another if it
    /// goes.
    leader: Option<Text>,
    /// Time that the servers take to elect, once they have noticed.
    elections_take: Option<Text>,
    /// Whether Ceph has monitors that say how it is.
    #[serde(default)]
    monitors: bool,
    /// Number of managed networks of VMs, 1001 and so on.
    #[serde(default)]
    networks: u32,
    /// Number of functions of each node's SR-IOV card.
    #[serde(default)]
    functions: u32,
    /// Whether the coordinators have a database whose leader follows the primary role.
    #[serde(default)]
    database: bool,
    /// A deliberate flaw, to see that a story finds it.
    mutation: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeTable {
    name: Text,
    #[serde(default)]
    role: Role,
    memory: Option<Text>,
    /// Version that runs on the node when the story begins: ours, or `1.0.3`.
    version: Option<Text>,
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Role {
    #[default]
    Coordinator,
    Hypervisor,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum BeginsIn {
    #[default]
    Start,
    Stop,
    Disable,
    /// The VM is not there yet.
    Undefined,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VmTable {
    name: Text,
    /// Number of its kind: `web` and 3 are web1, web2 and web3.
    count: Option<Spanned<usize>>,
    on: Option<Text>,
    memory: Option<Text>,
    #[serde(default)]
    state: BeginsIn,
    #[serde(default)]
    limit: Vec<Text>,
    selector: Option<Text>,
    method: Option<Text>,
    #[serde(default)]
    ignores_shutdown: bool,
    #[serde(default)]
    never_converges: bool,
    start_takes: Option<Text>,
    shutdown_takes: Option<Text>,
    migration_takes: Option<Text>,
    /// Number of the SR-IOV function that it has for itself.
    function: Option<u32>,
    /// Whether it has it by a macvtap device, and not the device itself.
    #[serde(default)]
    macvtap: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HappensTable {
    /// Time of the step, counted from the story's beginning.
    at: Option<Text>,
    /// Fact that the step follows, as soon as it is true.
    after: Option<Text>,
    /// Time that `after` may take.
    within: Option<Text>,
    /// Time between that and the step.
    wait: Option<Text>,
    #[serde(rename = "do")]
    story_action: Text,
    /// Expected answer to what an operator asks for here.
    answer: Option<Text>,
    /// The coordinator that is asked; any.
    through: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FinallyTable {
    within: Option<Text>,
    stays: Option<Text>,
    holds: Vec<Text>,
}

#[derive(Deserialize)]
struct VariantsOnly {
    #[serde(default)]
    variant: Vec<toml::Table>,
    /// Tables of which every variant has one of each kind.
    #[serde(default)]
    each: BTreeMap<String, Vec<toml::Table>>,
}

/// More variants than a story can be told in.
const MOST_VARIANTS: usize = 200;

impl VariantsOnly {
    /// The words of every variant: its own, and those of one table of each kind.
    ///
    /// # Errors
    /// If a word is said twice, or there are too many.
    fn all(self) -> Result<Vec<toml::Table>, String> {
        let mut variants = self.variant;
        for (kind, tables) in self.each {
            if variants.is_empty() {
                variants.push(toml::Table::new());
            }
            if variants.len().saturating_mul(tables.len()) > MOST_VARIANTS {
                return Err(format!("there are more than {MOST_VARIANTS} variants"));
            }
            let each = |variant: &toml::Table| {
                let tables = tables.iter();
                tables.map(|table| both(variant, table, &kind)).collect::<Vec<_>>()
            };
            variants = variants.iter().flat_map(each).collect::<Result<_, _>>()?;
        }
        Ok(variants)
    }
}

/// A variant with the words of one more table; the names of both are joined.
fn both(variant: &toml::Table, more: &toml::Table, kind: &str) -> Result<toml::Table, String> {
    let mut both = variant.clone();
    for (key, value) in more {
        match (key.as_str(), both.get(key), value) {
            ("name", Some(toml::Value::String(name)), toml::Value::String(more)) => {
                let name = format!("{name}-{more}");
                both.insert(key.clone(), toml::Value::String(name));
            }
            ("name", _, _) | (_, None, _) => _ = both.insert(key.clone(), value.clone()),
            (_, Some(_), _) => return Err(format!("`{key}` of `each.{kind}` is said before")),
        }
    }
    Ok(both)
}

/// Every story in `folder`: one, or one for each variant.
///
/// # Errors
/// In words, with the file and, where it can be told, the line.
pub(super) fn read(folder: &Path) -> Result<Vec<Story>, String> {
    let path = folder.join("scenario.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    if !folder.join("README.md").is_file() {
        return Err(format!(
            "{}: there is no README.md that says what the story is about",
            folder.display()
        ));
    }
    let name =
        folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let place = Place { file: path.display().to_string(), text: text.clone() };
    let variants: VariantsOnly = toml::from_str(&text).map_err(|error| place.toml(&error))?;
    let variants = variants.all().map_err(|why| format!("{}: {why}", place.file))?;
    if variants.is_empty() {
        return Ok(vec![story(&place, name, None)?]);
    }
    let mut stories = Vec::new();
    for table in variants {
        let (variant, text) = vary(&place, &text, &table)?;
        if stories.iter().any(|known: &Story| known.variant.as_deref() == Some(&variant)) {
            return Err(format!("{}: two variants are called `{variant}`", place.file));
        }
        let place = Place { file: format!("{} (variant {variant})", path.display()), text };
        stories.push(story(&place, name.clone(), Some(variant))?);
    }
    Ok(stories)
}

/// Fills a variant's words in wherever the text says `{word}`. Its name, and the text.
fn vary(place: &Place, text: &str, table: &toml::Table) -> Result<(String, String), String> {
    let Some(toml::Value::String(name)) = table.get("name") else {
        return Err(format!("{}: a variant needs a name", place.file));
    };
    let mut text = text.to_owned();
    for (key, value) in table {
        let toml::Value::String(value) = value else {
            return Err(format!("{}: `{key}` of variant {name} is no text", place.file));
        };
        let slot = format!("{{{key}}}");
        if key != "name" && !text.contains(&slot) {
            return Err(format!("{}: no sentence uses `{slot}` of variant {name}", place.file));
        }
        text = text.replace(&slot, value);
    }
    Ok((name.clone(), text))
}

/// A text and where it is from, to say where something is wrong.
struct Place {
    file: String,
    text: String,
}

impl Place {
    fn line(&self, at: usize) -> usize {
        self.text.as_bytes()[..at.min(self.text.len())]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
            + 1
    }

    fn wrong(&self, at: &Text, why: &str) -> String {
        self.wrong_at(at.span().start, why)
    }

    fn wrong_at(&self, at: usize, why: &str) -> String {
        format!("{}:{}: {why}", self.file, self.line(at))
    }

    fn toml(&self, error: &toml::de::Error) -> String {
        match error.span() {
            Some(span) => format!("{}:{}: {}", self.file, self.line(span.start), error.message()),
            None => format!("{}: {}", self.file, error.message()),
        }
    }

    fn time(&self, text: &Text) -> Result<Duration, String> {
        words::time(text.get_ref()).map_err(|why| self.wrong(text, &why))
    }

    fn time_or(&self, text: &Option<Text>, usual: Duration) -> Result<Duration, String> {
        text.as_ref().map_or(Ok(usual), |text| self.time(text))
    }

    /// `512 MiB`, `8 GiB`.
    fn memory(&self, text: &Option<Text>, usual: u64) -> Result<u64, String> {
        let Some(text) = text else { return Ok(usual) };
        let mut parts = text.get_ref().split_whitespace();
        let number = parts.next().and_then(|number| number.parse::<u64>().ok());
        let size = match (number, parts.next(), parts.next()) {
            (Some(number), Some("MiB"), None) => Some(number),
            (Some(number), Some("GiB"), None) => number.checked_mul(1024),
            _ => None,
        };
        let most = MOST_MIB / 1024;
        let why = || {
            format!(
                "`{}` is no amount of memory; say `512 MiB` or `8 GiB`, up to {most} GiB",
                text.get_ref()
            )
        };
        size.filter(|mib| (1..=MOST_MIB).contains(mib)).ok_or_else(|| self.wrong(text, &why()))
    }

    /// The name of something that is made.
    fn name(&self, text: &Text, kind: &'static str) -> Result<String, String> {
        let name = text.get_ref();
        if Uuid::try_parse(name).is_ok() {
            return Err(self.wrong(text, &format!("`{name}` is a UUID and no name")));
        }
        let checked = check_name(kind, name, MOST_LETTERS);
        checked.map(|()| name.clone()).map_err(|why| self.wrong(text, &why.to_string()))
    }

    fn one_of(&self, list: &[String], name: &Text, kind: &str) -> Result<usize, String> {
        let known = list.iter().position(|known| known == name.get_ref());
        let why = || format!("`{}` is no {kind}; there are {}", name.get_ref(), list.join(", "));
        known.ok_or_else(|| self.wrong(name, &why()))
    }

    /// Reads a sentence. Variants fill in what is in braces: what is left of them was forgotten.
    fn said<T>(
        &self,
        text: &Text,
        kind: &str,
        forms: &[&[Form<T>]],
        names: &Names,
    ) -> Result<Said<T>, String> {
        let words = text.get_ref().trim().to_owned();
        if words.contains(['{', '}']) {
            return Err(self.wrong(text, &format!("`{words}`: no variant says what is in braces")));
        }
        let what = words::read(&words, kind, forms, names).map_err(|why| self.wrong(text, &why))?;
        Ok(Said { words, what })
    }

    fn facts(&self, texts: &[Text], names: &Names) -> Result<Vec<Said<facts::Fact>>, String> {
        // A variant that adds nothing leaves an empty sentence.
        let said = texts.iter().flat_map(|text| self.sentences(text));
        said.map(|text| self.said(&text, "fact", facts::FORMS, names)).collect()
    }

    /// The sentences of a text, between semicolons.
    fn sentences(&self, text: &Text) -> Vec<Text> {
        let parts = text.get_ref().split(';').map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| Spanned::new(text.span(), part.to_owned())).collect()
    }
}

fn story(place: &Place, name: String, variant: Option<String>) -> Result<Story, String> {
    let file: File = toml::from_str(&place.text).map_err(|error| place.toml(&error))?;
    let hosts = hosts(place, &file.node)?;
    let nodes: Vec<String> = hosts.iter().map(|host| host.name.clone()).collect();
    let vms = vms(place, &file.vm, &nodes)?;
    let names = Names { nodes: nodes.clone(), vms: vms.iter().map(|vm| vm.name.clone()).collect() };
    check_names(place, &names)?;
    let Some(first) = hosts.iter().position(|host| host.is_coordinator) else {
        return Err(format!("{}: no node is a coordinator", place.file));
    };
    let primary = match &file.primary {
        Some(name) => place.one_of(&nodes, name, "node")?,
        None => first,
    };
    let named = |texts: &[Text]| {
        let names = texts.iter().flat_map(|text| place.sentences(text));
        names.map(|name| place.one_of(&nodes, &name, "node")).collect::<Result<Vec<_>, _>>()
    };
    let mut shape = Shape::plain(0, 0);
    shape.nature.seed = file.world.seed.unwrap_or(1);
    shape.nature.lost_words = if file.world.loses_words { 1000 } else { 0 };
    shape.nature.reset_after = file
        .world
        .reset_after
        .as_ref()
        .map(|text| Ok::<_, String>(place.time(text)?.as_secs()))
        .transpose()?;
    if let Some(leader) = &file.world.leader {
        let takes = file.world.elections_take.as_ref().map(|text| place.time(text)).transpose()?;
        let takes_ms =
            takes.map_or(ELECTION_MS, |takes| u64::try_from(takes.as_millis()).unwrap_or(u64::MAX));
        let first = place.one_of(&nodes, leader, "node")?;
        shape.nature.elections = Some(Elections { first, takes_ms: (takes_ms, takes_ms) });
    } else if let Some(takes) = &file.world.elections_take {
        return Err(place.wrong(takes, "`elections_take` needs a `leader`"));
    }
    shape.nature.monitors = file.world.monitors;
    shape.nature.database = file.world.database;
    shape.nature.networks = file.world.networks;
    shape.nature.functions = file.world.functions;
    shape.nature.mutation =
        file.world.mutation.as_ref().map(|name| mutation(place, name)).transpose()?;
    shape.fencing.fence_intervals =
        file.world.fence_intervals.unwrap_or(shape.fencing.fence_intervals);
    if let Some(action) = &file.world.successful_fence {
        shape.fencing.recover_after_success = recovers(place, action)?;
    }
    (shape.hosts, shape.vms) = (hosts, vms);
    plug_in(&mut shape);
    Ok(Story {
        name,
        variant,
        shape,
        primary,
        fenced: named(&file.fenced)?,
        may_be_fenced: named(&file.may_be_fenced)?,
        steps: steps(place, &file.happens, &names)?,
        never: place.facts(&file.never, &names)?,
        always: place.facts(&file.always, &names)?,
        finally: place.facts(&file.finally.holds, &names)?,
        within: place.time_or(&file.finally.within, WITHIN)?,
        stays: place.time_or(&file.finally.stays, STAYS)?,
        known: file.known.filter(|known| !known.is_empty()),
    })
}

/// Reads the action as `fencing.actions.successful_fence` in the configuration.
fn recovers(place: &Place, action: &Text) -> Result<bool, String> {
    match action.get_ref().as_str() {
        "migrate" => Ok(true),
        "none" => Ok(false),
        other => {
            Err(place
                .wrong(action, &format!("`{other}` is no fence action; there are migrate, none")))
        }
    }
}

fn mutation(place: &Place, name: &Text) -> Result<Mutation, String> {
    let found = Mutation::ALL.iter().find(|(known, _)| known == name.get_ref());
    let known: Vec<&str> = Mutation::ALL.iter().map(|(known, _)| *known).collect();
    let why = || format!("`{}` is no mutation; there are {}", name.get_ref(), known.join(", "));
    found.map(|(_, mutation)| *mutation).ok_or_else(|| place.wrong(name, &why()))
}

/// The nodes of the story; three coordinators if it says nothing of them.
fn hosts(place: &Place, tables: &[NodeTable]) -> Result<Vec<HostShape>, String> {
    if tables.is_empty() {
        let mut hosts = Shape::plain(3, 0).hosts;
        for (index, host) in hosts.iter_mut().enumerate() {
            host.name = format!("pvchv{}", index + 1);
        }
        return Ok(hosts);
    }
    let host = |table: &NodeTable| {
        Ok(HostShape {
            name: place.name(&table.name, "node")?,
            is_coordinator: table.role == Role::Coordinator,
            memory_mib: place.memory(&table.memory, 64 << 10)?,
            drift_ppm: 0,
            is_legacy: is_legacy(place, &table.version)?,
        })
    };
    tables.iter().map(host).collect()
}

fn is_legacy(place: &Place, version: &Option<Text>) -> Result<bool, String> {
    match version.as_ref().map(|text| (text, text.get_ref().as_str())) {
        None | Some((_, "ours")) => Ok(false),
        Some((_, "1.0.3")) => Ok(true),
        Some((text, other)) => Err(place.wrong(
            text,
            &format!("`{other}` is no version that can run here; there are ours, 1.0.3"),
        )),
    }
}

fn vms(place: &Place, tables: &[VmTable], nodes: &[String]) -> Result<Vec<VmShape>, String> {
    let mut vms = Vec::new();
    for table in tables {
        let one = vm(place, table, nodes)?;
        let Some(count) = &table.count else {
            vms.push(one);
            continue;
        };
        if !(1..=MOST_VMS).contains(count.get_ref()) {
            let why = format!("`count` is 1 to {MOST_VMS}, not {}", count.get_ref());
            return Err(place.wrong_at(count.span().start, &why));
        }
        let named = |number| VmShape { name: format!("{}{number}", one.name), ..one.clone() };
        let kind: Vec<VmShape> = (1..=*count.get_ref()).map(named).collect();
        if let Some(Err(why)) = kind.last().map(|last| check_name("VM", &last.name, MOST_LETTERS)) {
            return Err(place.wrong(&table.name, &why.to_string()));
        }
        vms.extend(kind);
    }
    Ok(vms)
}

fn vm(place: &Place, table: &VmTable, nodes: &[String]) -> Result<VmShape, String> {
    let usual = Manner::default();
    let millis = |text: &Option<Text>, usual: u64| {
        let time = place.time_or(text, Duration::from_millis(usual))?;
        Ok::<_, String>(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    };
    let selector = table.selector.as_ref().map(|text| {
        let known: Vec<&str> = Selector::ALL.iter().map(Selector::as_str).collect();
        let found = Selector::ALL.iter().find(|one| one.as_str() == text.get_ref()).cloned();
        let why = format!("`{}` is no selector; there are {}", text.get_ref(), known.join(", "));
        found.ok_or_else(|| place.wrong(text, &why))
    });
    let method = table.method.as_ref().map(|text| {
        let found = MigrationMethod::ALL.iter().find(|one| one.as_str() == text.get_ref()).cloned();
        let why = format!(
            "`{}` is no migration method; there are either, live, shutdown",
            text.get_ref()
        );
        // A variant has to say something, also that either will do.
        if text.get_ref() == "either" {
            Ok(None)
        } else {
            found.map(Some).ok_or_else(|| place.wrong(text, &why))
        }
    });
    let limit: Vec<usize> = table
        .limit
        .iter()
        .map(|name| place.one_of(nodes, name, "node"))
        .collect::<Result<_, _>>()?;
    let host = table.on.as_ref().map(|name| place.one_of(nodes, name, "node")).transpose()?;
    if let (Some(on), Some(host)) = (&table.on, host)
        && !limit.is_empty()
        && !limit.contains(&host)
    {
        return Err(place.wrong(on, &format!("`{}` is none of its `limit`", on.get_ref())));
    }
    Ok(VmShape {
        name: place.name(&table.name, "VM")?,
        memory_mib: place.memory(&table.memory, 1024)?,
        exists: table.state != BeginsIn::Undefined,
        runs: table.state == BeginsIn::Start,
        manner: Manner {
            ignores_shutdown: table.ignores_shutdown,
            never_converges: table.never_converges,
            start_ms: millis(&table.start_takes, usual.start_ms)?,
            shutdown_ms: millis(&table.shutdown_takes, usual.shutdown_ms)?,
            migration_ms: millis(&table.migration_takes, usual.migration_ms)?,
            dies_at_start: 0,
        },
        rules: Rules {
            host,
            is_disabled: table.state == BeginsIn::Disable,
            limit,
            selector: selector.transpose()?,
            method: method.transpose()?.flatten(),
        },
        networks: Vec::new(),
        function: table.function.map(|number| Function { number, is_macvtap: table.macvtap }),
    })
}

/// Every name once: a sentence must not mean two things.
fn check_names(place: &Place, names: &Names) -> Result<(), String> {
    let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
    for name in names.nodes.iter().chain(&names.vms) {
        *counts.entry(name).or_default() += 1;
    }
    match counts.into_iter().find(|(_, count)| *count > 1) {
        Some((name, _)) => {
            Err(format!("{}: `{name}` is the name of more than one thing", place.file))
        }
        None => Ok(()),
    }
}

/// Reads the steps. Whatever is said to happen before the step that it follows would happen late,
/// and nobody would know.
fn steps(place: &Place, tables: &[HappensTable], names: &Names) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut earliest = Duration::ZERO;
    for table in tables {
        let step = step(place, table, names)?;
        if let (Some(at), Some(text)) = (step.at, &table.at) {
            if at < earliest {
                let why = format!(
                    "`{}` is over when its turn comes: steps happen in their order",
                    text.get_ref()
                );
                return Err(place.wrong(text, &why));
            }
            earliest = at;
        }
        earliest += step.wait;
        steps.push(step);
    }
    Ok(steps)
}

fn step(place: &Place, table: &HappensTable, names: &Names) -> Result<Step, String> {
    if let (Some(within), None) = (&table.within, &table.after) {
        return Err(place.wrong(within, "`within` is for `after`"));
    }
    if let (Some(at), Some(_)) = (&table.at, &table.after) {
        return Err(place.wrong(at, "either `at` or `after`; `wait` says how much later"));
    }
    let story_actions = place.sentences(&table.story_action);
    let story_actions =
        story_actions.iter().map(|text| place.said(text, "action", &[story_actions::FORMS], names));
    let answer = match table.answer.as_ref().map(|text| (text, text.get_ref().as_str())) {
        None | Some((_, "done")) => Expected::Done,
        Some((_, "anything")) => Expected::Anything,
        Some((_, "nothing")) => Expected::Nothing,
        Some((text, words)) => match words.strip_prefix("refused: ") {
            Some(why) => Expected::Refused(why.to_owned()),
            None => {
                let known = "there are `done`, `anything`, `nothing`, and `refused: ` with words \
                             of the reason";
                return Err(place.wrong(text, &format!("`{words}` is no answer; {known}")));
            }
        },
    };
    Ok(Step {
        at: table.at.as_ref().map(|text| place.time(text)).transpose()?,
        after: place.facts(table.after.as_slice(), names)?,
        within: place.time_or(&table.within, WITHIN)?,
        wait: place.time_or(&table.wait, Duration::ZERO)?,
        story_actions: story_actions.collect::<Result<_, _>>()?,
        answer,
        through: table
            .through
            .as_ref()
            .map(|name| place.one_of(&names.nodes, name, "node"))
            .transpose()?,
    })
}
