//! Calls by which a script changes other VMs than the one that its task makes.
//!
//! Each is one decision of `pvc-ops`, written as long as this worker has the job. They are not
//! taken back with the task: its log names them.

use pvc_model::cluster::Cluster;
use pvc_model::job::provision::MOST_MADE;
use pvc_model::request::StateRequest;
use pvc_model::vm::{DEFAULT_MAX_DOWNTIME_MS, MigrationMethod, Selector};
use pvc_model::{shown, with_causes};
use pvc_ops::vm::{Define, Definition, RemoveRefusal, Removed, StateAsk, StatePlan, VolumeRemoval};
use pvc_store::ChangeError;
use serde_json::Value;

use super::build::Session;
use super::calls::{Arguments, Done, Failed, Refused, wrong};
use crate::context::Unwritten;

/// Defines another VM, in state `stop`.
pub(super) async fn define(session: &mut Session<'_>, given: &Arguments<'_>) -> Done {
    if session.defined >= MOST_MADE {
        return Err(refused(format!("a script defines at most {MOST_MADE} VMs")));
    }
    let definition = Definition::read(wanted(given)?).await;
    let definition = definition.map_err(|why| refused(with_causes(&why)))?;
    let (context, script) = (session.context, session.script());
    let decide = |cluster: &Cluster| script.define(cluster, &definition);
    let defined = context.change(decide).await?;
    session.defined += 1;
    let (name, node) = (defined.name, defined.node);
    context.log(format!("the script has defined VM \"{name}\", which stays"));
    let message = format!("VM \"{name}\" was defined on node \"{node}\".");
    Ok(with_notes(message, &defined.warnings))
}

/// The VM as the script gives it.
fn wanted(given: &Arguments<'_>) -> Done<Define> {
    if optional(given, "initial_state")?.is_some_and(|state| state != "stop") {
        return Err(refused("a VM is defined in state `stop`: `start_vm` starts it"));
    }
    let (user_tags, protected_tags) = tags(given)?;
    let method = word(given, "migration_method", MigrationMethod::WORDS)?;
    Ok(Define {
        node: optional(given, "target_node")?,
        node_limit: texts(given, "node_limit")?,
        selector: word(given, "node_selector", Selector::WORDS)?
            .map(|selector| Selector::from_record(&selector)),
        autostart: given.is_set("node_autostart"),
        migration_method: method.map(|method| MigrationMethod::from_record(&method)),
        max_downtime_ms: downtime_ms(given)?,
        user_tags,
        protected_tags,
        profile: optional(given, "profile")?,
        ..Define::new(given.text("config_data")?)
    })
}

/// Asks for a state of another VM. Its node does the rest, and nobody waits for it.
pub(super) async fn ask(
    session: &Session<'_>,
    given: &Arguments<'_>,
    request: StateRequest,
) -> Done {
    let vm = given.text("domain")?;
    let (context, script) = (session.context, session.script());
    let ask = StateAsk {
        refuse_memory_overcommit: session.refuses_overcommit(),
        ..StateAsk::new(request, false)
    };
    let plan = StatePlan::new(&context.tools.store, &vm, ask).await.map_err(ChangeError::Store)?;
    let decide = |cluster: &Cluster| script.set_state(cluster, &plan);
    let outcome = context.change(decide).await?;
    let (name, done) = (outcome.name, request.participle());
    context.log(format!("the script has asked that VM \"{name}\" is {done}"));
    Ok(with_notes(format!("VM \"{name}\" is being {done}."), &outcome.warnings))
}

/// Removes another VM, which is off, with its volumes or without.
pub(super) async fn remove(
    session: &Session<'_>,
    given: &Arguments<'_>,
    with_volumes: bool,
) -> Done {
    let vm = given.text("domain")?;
    let (context, script) = (session.context, session.script());
    let decide = |cluster: &Cluster| script.remove(cluster, &vm, with_volumes);
    let mut removal = context.change(decide).await?;
    if with_volumes {
        let tools = &context.tools;
        let keep = session.tools.settings.removed_volumes_stay;
        let how = VolumeRemoval { storage: tools.storage.as_ref(), keep };
        let taken = removal.remove_volumes(&tools.store, how).await;
        taken.map_err(Unwritten::<RemoveRefusal>::from)?;
    }
    let end = |cluster: &Cluster| removal.end(cluster).map(|changes| (changes, ()));
    context.change(end).await?;
    let removed = removal.into_removed();
    let left = removed.left_on_nodes().map(|left| format!("; its {left}")).unwrap_or_default();
    let Removed { name, volumes, kept, .. } = removed;
    let count = volumes.len();
    context.log(format!("the script has removed VM \"{name}\" and {count} volumes{left}"));
    let message = format!("VM \"{name}\" was removed with {} volumes", volumes.len());
    Ok(match kept.len() {
        0 => format!("{message}."),
        number => format!("{message}, of which {number} are in the trash."),
    })
}

fn refused(why: impl Into<String>) -> Failed {
    Failed::Refused(Refused(why.into()))
}

/// A message, and what will work but likely not as intended.
fn with_notes(message: String, notes: &[String]) -> String {
    notes.iter().fold(message, |message, note| format!("{message} Note: {note}."))
}

/// A text; none where the script has given `None` or an empty one.
fn optional(given: &Arguments<'_>, name: &str) -> Done<Option<String>> {
    match given.value(name) {
        Value::Null => Ok(None),
        Value::String(text) if text.is_empty() => Ok(None),
        _ => given.text(name).map(Some),
    }
}

/// A word that is `known`; none where the script has given `none`.
fn word(given: &Arguments<'_>, name: &str, known: &[&str]) -> Done<Option<String>> {
    let word = optional(given, name)?.filter(|word| !word.eq_ignore_ascii_case("none"));
    match word {
        Some(word) if !known.contains(&word.as_str()) => {
            Err(refused(format!("`{name}` is `none` or one of {}", known.join(", "))))
        }
        word => Ok(word),
    }
}

/// Milliseconds that the VM may stand still for a live migration.
fn downtime_ms(given: &Arguments<'_>) -> Done<u32> {
    const NAME: &str = "migration_max_downtime";
    let Some(text) = optional(given, NAME)? else { return Ok(DEFAULT_MAX_DOWNTIME_MS) };
    text.parse().map_err(|_| {
        let (text, most) = (shown(&text), u32::MAX);
        refused(format!("{NAME}: `{text}` is not a whole number from 0 to {most}"))
    })
}

/// The texts of a list, or of one text between its commas.
fn texts(given: &Arguments<'_>, name: &str) -> Done<Vec<String>> {
    let no_list = || wrong(format!("the argument `{name}` is no list of texts"));
    match given.value(name) {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => {
            let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
            Ok(texts.map(str::to_owned).collect())
        }
        Value::Array(texts) => {
            let text = |text: &Value| text.as_str().map(str::to_owned).ok_or_else(no_list);
            texts.iter().map(text).collect()
        }
        _ => Err(no_list()),
    }
}

/// The tags that users may take away, and the protected ones: of a list of names, or of
/// dictionaries as PVC 1.0.3 has them.
fn tags(given: &Arguments<'_>) -> Done<(Vec<String>, Vec<String>)> {
    let no_tags = || wrong("the argument `tags` is no list of tags".to_owned());
    let (mut user, mut protected) = (Vec::new(), Vec::new());
    let tags = match given.value("tags") {
        Value::Null => return Ok((user, protected)),
        Value::Array(tags) => tags,
        _ => return Err(no_tags()),
    };
    for tag in tags {
        let name = tag.as_str().or_else(|| tag["name"].as_str()).ok_or_else(no_tags)?;
        match tag["protected"].as_bool() {
            Some(true) => protected.push(name.to_owned()),
            Some(false) | None => user.push(name.to_owned()),
        }
    }
    Ok((user, protected))
}
