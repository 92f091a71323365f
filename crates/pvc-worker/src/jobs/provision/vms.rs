//! What a script asks for other VMs than the one that it makes.

use std::time::Duration;

use pvc_model::request::StateRequest;
use pvc_model::shown;
use pvc_model::vm::{DEFAULT_MAX_DOWNTIME_MS, MigrationMethod, Selector, VmState};
use pvc_ops::vm::{Define, StateAsk, VolumeRemoval, remove as remove_vm, set_state};
use serde_json::Value;

use super::build::Session;
use super::calls::{Arguments, Done, Failed, Refused, failed};

/// Defines a VM. It is the operator's from then on: it stays, whatever becomes of the script.
pub(super) async fn define(session: &Session<'_>, given: &Arguments<'_>) -> Done {
    let starts = match given.value("initial_state").and_then(Value::as_str).unwrap_or("stop") {
        "stop" => Ok((VmState::Stop, false)),
        "disable" => Ok((VmState::Disable, false)),
        "start" => Ok((VmState::Stop, true)),
        other => Err(refused(format!(
            "a VM begins in state `stop`, `disable` or `start`, not `{}`",
            shown(other)
        ))),
    };
    let (state, starts_later) = starts?;
    let word = |name: &str| word(given, name);
    let downtime = match given.value("migration_max_downtime") {
        None => DEFAULT_MAX_DOWNTIME_MS,
        Some(value) => number(value).ok_or_else(|| {
            refused("`migration_max_downtime` is no whole number of milliseconds".to_owned())
        })?,
    };
    let ask = Define {
        node: word("target_node"),
        node_limit: names(given.value("node_limit")),
        selector: word("node_selector").map(|word| known(&word, Selector::ALL)).transpose()?,
        autostart: given.is_set("node_autostart"),
        migration_method: word("migration_method")
            .map(|word| known(&word, MigrationMethod::ALL))
            .transpose()?,
        max_downtime_ms: downtime,
        user_tags: tags(given, false),
        protected_tags: tags(given, true),
        state,
        starts_later,
        profile: word("profile"),
        ..Define::new(given.text("config_data")?)
    };
    let store = &session.context.tools.store;
    let defined = pvc_ops::vm::define(store, &ask).await.map_err(failed)?;
    let name = &defined.name;
    session.context.log(format!("the script has defined VM \"{name}\", which stays"));
    if starts_later {
        let start = StateAsk::new(StateRequest::Start, false);
        set_state(store, &defined.uuid.to_string(), start).await.map_err(failed)?;
    }
    Ok(format!("Added new VM with Name \"{name}\" and UUID \"{}\" to database.", defined.uuid))
}

/// Asks another VM to start, to stop or to shut down. Nodes do the rest.
pub(super) async fn ask(session: &Session<'_>, function: &str, given: &Arguments<'_>) -> Done {
    let (request, asked) = match function {
        "vm.start_vm" => (StateRequest::Start, "Starting"),
        "vm.stop_vm" => (StateRequest::Stop, "Forcibly stopping"),
        _ => (StateRequest::Shutdown, "Shutting down"),
    };
    let vm = another(session, given)?;
    let store = &session.context.tools.store;
    let outcome = set_state(store, &vm, StateAsk::new(request, false)).await.map_err(failed)?;
    let message = format!("{asked} VM \"{}\".", outcome.name);
    session.context.log(format!("for the script: {message}"));
    Ok(message)
}

/// Removes another VM, with its volumes or without.
pub(super) async fn remove(session: &Session<'_>, function: &str, given: &Arguments<'_>) -> Done {
    let vm = another(session, given)?;
    let tools = &session.context.tools;
    // As what scripts remove else: at once, not to the trash.
    let removal = VolumeRemoval { storage: tools.storage.as_ref(), keep: Duration::ZERO };
    let volumes = (function == "vm.remove_vm").then_some(removal);
    let removed = remove_vm(&tools.store, tools.clock.as_ref(), volumes, &vm).await;
    let removed = removed.map_err(failed)?;
    session.context.log(format!("the script has removed VM \"{}\"", removed.name));
    Ok(format!("Removed VM \"{}\" and its {} volumes.", removed.name, removed.volumes.len()))
}

/// The VM that is meant, which is not the one that this task makes: that is the task's own to
/// start, and to take back.
fn another(session: &Session<'_>, given: &Arguments<'_>) -> Done {
    let vm = given.text("domain")?;
    let view = session.context.tools.store.view();
    let own = session.uuid();
    let is_own = vm.parse() == Ok(own) || view.vm(&vm).is_some_and(|found| found.uuid == own);
    match is_own {
        true => Err(refused(format!(
            "VM `{}` is the one that this task makes, and starts at its end",
            shown(&vm)
        ))),
        false => Ok(vm),
    }
}

fn refused(why: String) -> Failed {
    Failed::Refused(Refused(why))
}

/// A word that is given; PVC 1.0.3 writes none as an empty text or `none`.
fn word(given: &Arguments<'_>, name: &str) -> Option<String> {
    let word = given.value(name).and_then(Value::as_str)?.trim();
    (!word.is_empty() && !word.eq_ignore_ascii_case("none")).then(|| word.to_owned())
}

/// The value of a word, which has to be one of these.
fn known<T: Clone + std::fmt::Display>(word: &str, all: &[T]) -> Result<T, Failed> {
    let words = || all.iter().map(ToString::to_string);
    let place = words().position(|known| known == word);
    place.map(|place| all[place].clone()).ok_or_else(|| {
        let words: Vec<String> = words().collect();
        refused(format!("`{}` is none of {}", shown(word), words.join(", ")))
    })
}

/// Names in a text with commas, or in a list.
fn names(value: Option<&Value>) -> Vec<String> {
    let text = |value: &Value| value.as_str().map(|name| name.trim().to_owned());
    let names: Vec<String> = match value {
        Some(Value::String(names)) => names.split(',').map(|name| name.trim().to_owned()).collect(),
        Some(Value::Array(names)) => names.iter().filter_map(text).collect(),
        _ => Vec::new(),
    };
    names.into_iter().filter(|name| !name.is_empty()).collect()
}

/// Names of tags: texts, or dictionaries with `name` and `protected` as the API's lists have them.
fn tags(given: &Arguments<'_>, protected: bool) -> Vec<String> {
    let all = given.value("tags").and_then(Value::as_array);
    let tag = |value: &Value| match value {
        Value::String(name) => (!protected).then(|| name.clone()),
        tag => {
            let name = tag["name"].as_str()?.to_owned();
            (tag["protected"].as_bool().unwrap_or(false) == protected).then_some(name)
        }
    };
    all.into_iter().flatten().filter_map(tag).collect()
}

/// A number, also as a text.
fn number(value: &Value) -> Option<u32> {
    match value {
        Value::Number(number) => number.as_u64()?.try_into().ok(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}
