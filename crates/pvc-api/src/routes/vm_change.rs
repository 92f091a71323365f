//! VMs, to change.

use axum::extract::Request;
use axum::http::StatusCode;
use pvc_api_types::operation::Operation;
use pvc_api_types::operations::vm::{
    Definition, DeleteVmVm, DeleteVmVmDevice, GetVmVmRemoval, MethodWord, PlaceAction, PostVm,
    PostVmVm, PostVmVmCheck, PostVmVmDevice, PostVmVmLocks, PostVmVmMeta, PostVmVmNode,
    PostVmVmRename, PostVmVmState, PostVmVmTags, PutVmVm, SelectorWord, StateWord, TagAction,
};
use pvc_api_types::{Message, TaskRef};
use pvc_model::request::{Answer as Granted, StateRequest};
use pvc_model::vm::{MigrationMethod, Selector};
use pvc_ops::device::DeviceAsk;
use pvc_ops::vm::{
    self, Define, Meta, Modify, Move, Movement, StateAsk, StateOutcome, VolumeRemoval,
};
use pvc_ports::DeviceChange;
use pvc_store::ChangeError;

use super::later;
use super::storage::kept;
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::refuse::refused;
use crate::state::ApiState;
use crate::table::{self, Ask, Mode, Table};
use crate::view;
use crate::wait;

pub fn add(table: Table) -> Table {
    table
        .add(post_vm)
        .add_raw(post_vm_vm)
        .add(put_vm_vm)
        .add(delete_vm_vm)
        .add(post_vm_vm_meta)
        .add(post_vm_vm_tags)
        .add(post_vm_vm_state)
        .add(post_vm_vm_node)
        .add(post_vm_vm_check)
        .add(get_vm_vm_removal)
        .add(post_vm_vm_locks)
        .add(post_vm_vm_rename)
        .add(post_vm_vm_device)
        .add(delete_vm_vm_device)
}

/// A sentence, and what will work but likely not as intended.
fn with_warnings(message: String, warnings: &[String]) -> String {
    warnings.iter().fold(message, |message, warning| format!("{message}; note: {warning}"))
}

fn selector(word: SelectorWord) -> Option<Selector> {
    match word {
        SelectorWord::Mem => Some(Selector::Mem),
        SelectorWord::Memprov => Some(Selector::Memprov),
        SelectorWord::Vcpus => Some(Selector::Vcpus),
        SelectorWord::Load => Some(Selector::Load),
        SelectorWord::Vms => Some(Selector::Vms),
        SelectorWord::None => None,
    }
}

fn method(word: MethodWord) -> Option<MigrationMethod> {
    match word {
        MethodWord::Live => Some(MigrationMethod::Live),
        MethodWord::Shutdown => Some(MigrationMethod::Shutdown),
        MethodWord::None => None,
    }
}

async fn define<O>(
    api: &ApiState,
    mode: Mode,
    expected: Option<String>,
    definition: Definition,
) -> Result<Answer<O>>
where
    O: Operation<Reply = Message>,
{
    let ask = Define {
        expected,
        node: definition.node,
        node_limit: definition.limit.0,
        selector: definition.selector.and_then(selector),
        autostart: definition.autostart.0,
        migration_method: definition.migration_method.and_then(method),
        max_downtime_ms: definition.migration_max_downtime.0,
        user_tags: definition.user_tags,
        protected_tags: definition.protected_tags,
        force: definition.force.0,
        ..Define::new(definition.xml)
    };
    let defined = api.carry_out(|api| async move { vm::define(api.store(), &ask).await }).await?;
    let message = format!("VM `{}` was defined on node `{}`", defined.name, defined.node);
    Ok(mode.done(with_warnings(message, &defined.warnings)))
}

async fn post_vm(ask: Ask<PostVm>) -> Result<Answer<PostVm>> {
    define(&ask.api, ask.mode, None, ask.params).await
}

/// A path that names an operation of a later release is refused before anything else is read.
async fn post_vm_vm(api: ApiState, request: Request) -> Result<Answer<PostVmVm>> {
    later::check_is_vm(request.uri().path())?;
    let ask: Ask<PostVmVm> = table::ask(api, request).await?;
    let [name] = ask.at;
    define(&ask.api, ask.mode, Some(name), ask.params).await
}

async fn put_vm_vm(ask: Ask<PutVmVm>) -> Result<Answer<PutVmVm>> {
    let ([name], given) = (ask.at, ask.params);
    let wanted = Modify { xml: given.xml, restart: given.restart.0, force: given.force.0 };
    let modify = |api: ApiState| async move { vm::modify(api.store(), &name, &wanted).await };
    Ok(ask.mode.done(modified(&ask.api.carry_out(modify).await?)))
}

/// The sentence about other hardware.
pub(super) fn modified(modified: &vm::Modified) -> String {
    let restarted = if modified.restarted { " and is being restarted" } else { "" };
    let message = format!("VM `{}` was modified{restarted}", modified.name);
    with_warnings(message, &modified.warnings)
}

async fn post_vm_vm_check(ask: Ask<PostVmVmCheck>) -> Result<Answer<PostVmVmCheck>> {
    let ([name], given) = (ask.at, ask.params);
    let wanted = Modify { force: given.force.0, ..Modify::new(given.xml) };
    let cluster = ask.api.view();
    let slot = ask.api.checks().take(&ask.caller.description, "checks")?;
    let checked = slot.aside(move || vm::check_modify(&cluster, &name, &wanted)).await;
    let modified = checked.map_err(|why| refused(ChangeError::Refused(why)))?;
    let message = format!("VM `{}` can be modified so", modified.name);
    Ok(Answer::said(with_warnings(message, &modified.warnings)))
}

async fn delete_vm_vm(ask: Ask<DeleteVmVm>) -> Result<Answer<DeleteVmVm>> {
    let ([name], api) = (ask.at, ask.api);
    let storage = if ask.params.delete_disks.0 { Some(api.storage()?) } else { None };
    let remove = |api: ApiState| async move {
        let keep = api.settings().removed_volumes_stay;
        let volumes = storage.as_deref().map(|storage| VolumeRemoval { storage, keep });
        vm::remove(api.store(), api.clock().as_ref(), volumes, &name).await
    };
    let removed = api.carry_out_within(api.settings().limits.wait_time, remove).await?;
    let (name, volumes) = (&removed.name, with_volumes(&removed));
    let (way_back, definition) = (kept(&removed.kept), definition_of(&removed));
    let local = left_on_nodes(&removed);
    Ok(ask.mode.done(format!("VM `{name}` was removed{volumes}.{way_back}{definition}{local}")))
}

async fn get_vm_vm_removal(ask: Ask<GetVmVmRemoval>) -> Result<Answer<GetVmVmRemoval>> {
    let [name] = ask.at;
    let checked = vm::check_remove(&ask.api.view(), &name, ask.params.delete_disks.0);
    let removed = checked.map_err(|why| refused(ChangeError::Refused(why)))?;
    Ok(Answer::said(format!("VM `{}` would be removed{}", removed.name, with_volumes(&removed))))
}

fn with_volumes(removed: &vm::Removed) -> String {
    match removed.volumes.len() {
        0 => String::new(),
        1 => " with its volume".to_owned(),
        several => format!(" with its {several} volumes"),
    }
}

/// The sentence about the definition of a removed VM. Nobody can tell its UUID any more, by which a
/// backup knows it.
fn definition_of(removed: &vm::Removed) -> String {
    format!(
        " Its definition, of UUID {}, is only in backups of the records: \"One VM that was \
         removed\" in the manual says how it comes back.",
        removed.uuid
    )
}

/// The sentence about what the nodes keep of a removed VM, by its UUID and its name.
fn left_on_nodes(removed: &vm::Removed) -> String {
    removed.left_on_nodes().map(|left| format!(" Its {left}.")).unwrap_or_default()
}

async fn post_vm_vm_meta(ask: Ask<PostVmVmMeta>) -> Result<Answer<PostVmVmMeta>> {
    let ([name], given) = (ask.at, ask.params);
    let meta = Meta {
        node_limit: given.limit.map(|limit| limit.0),
        selector: given.selector.map(selector),
        autostart: given.autostart,
        profile: given.profile,
        migration_method: given.migration_method.map(method),
        max_downtime_ms: given.migration_max_downtime,
    };
    let message = format!("the metadata of VM `{name}` was changed");
    let set = |api: ApiState| async move { vm::set_meta(api.store(), &name, &meta).await };
    ask.api.carry_out(set).await?;
    Ok(ask.mode.done(message))
}

async fn post_vm_vm_tags(ask: Ask<PostVmVmTags>) -> Result<Answer<PostVmVmTags>> {
    let ([name], given) = (ask.at, ask.params);
    let (action, tag, protected) = (given.action, given.tag, given.protected.0);
    let message = match action {
        TagAction::Add => format!("tag `{tag}` was added to VM `{name}`"),
        TagAction::Remove => format!("tag `{tag}` was removed from VM `{name}`"),
    };
    let change = move |api: ApiState| async move {
        match action {
            TagAction::Add => vm::add_tag(api.store(), &name, &tag, protected).await,
            TagAction::Remove => vm::remove_tag(api.store(), &name, &tag).await,
        }
    };
    ask.api.carry_out(change).await?;
    Ok(ask.mode.done(message))
}

async fn post_vm_vm_rename(ask: Ask<PostVmVmRename>) -> Result<Answer<PostVmVmRename>> {
    let ([name], new_name, api) = (ask.at, ask.params.new_name, ask.api);
    let storage = api.storage()?;
    if ask.mode.is_dry() {
        let check = |api: ApiState| async move {
            let cluster = api.view();
            vm::check_rename(&cluster, storage.as_ref(), &name, &new_name)
                .await
                .map_err(ChangeError::Refused)
        };
        let renamed = api.carry_out(check).await?;
        return Ok(Answer::said(format!("VM `{}` would be called `{}`", renamed.from, renamed.to)));
    }
    let submitter = ask.caller.description.to_string();
    let wanted = vm::Rename { vm: name, to: new_name, submitter };
    let (limit, own) = (api.settings().limits.wait_time, api.clone());
    let rename = async move {
        let (clock, random) = (own.clock().as_ref(), own.random().as_ref());
        tokio::select! {
            biased;
            () = own.stopping().cancelled() => Err(not_waited_for(&wanted.vm)),
            done = vm::rename(own.store(), clock, random, storage.as_ref(), &wanted, limit) => {
                done.map_err(refused)
            }
        }
    };
    // The limit is kept inside; this one is for a store that hangs.
    let renamed = api.change_within(limit * 2, rename).await?;
    Ok(Answer::said(format!("VM `{}` is called `{}` now", renamed.from, renamed.to)))
}

fn not_waited_for(vm: &str) -> ApiError {
    let message =
        format!("the API is being stopped; what becomes of the renaming of VM `{vm}` is not known");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        .hint(Some("`pvc task list` shows it if it was begun; it is done to its end"))
}

fn state_request(word: StateWord) -> StateRequest {
    match word {
        StateWord::Start => StateRequest::Start,
        StateWord::Shutdown => StateRequest::Shutdown,
        StateWord::Stop => StateRequest::Stop,
        StateWord::Restart => StateRequest::Restart,
        StateWord::Disable => StateRequest::Disable,
    }
}

async fn post_vm_vm_state(ask: Ask<PostVmVmState>) -> Result<Answer<PostVmVmState>> {
    let ([name], given, api) = (ask.at, ask.params, ask.api);
    let request = state_request(given.state);
    let wanted = StateAsk {
        request,
        force: given.force.0,
        refuse_memory_overcommit: api.settings().refuse_memory_overcommit,
    };
    if ask.mode.is_dry() {
        let check =
            move |api: ApiState| async move { vm::check_state(api.store(), &name, wanted).await };
        let checked = api.carry_out(check).await?;
        let message = format!("VM `{}` would be {}", checked.name, request.participle());
        return Ok(Answer::said(with_warnings(message, &checked.warnings)));
    }
    let set = move |api: ApiState| async move { vm::set_state(api.store(), &name, wanted).await };
    let outcome = api.carry_out(set).await?;
    let (name, warnings) = (outcome.name.clone(), outcome.warnings.clone());
    if matches!(outcome.answer, Granted::ThenDisable(_) | Granted::AwaitStopThenDisable) {
        disable(&api, outcome).await?;
        return Ok(Answer::said(format!("VM `{name}` is disabled")));
    }
    if given.wait.0 {
        wait::for_state(&api, outcome.uuid, &name, request).await?;
        return Ok(Answer::said(with_warnings(reached(&name, request), &warnings)));
    }
    Ok(Answer::said(with_warnings(asked(&name, request), &warnings)))
}

/// Disables a VM when it has stopped; what is written by now stops it. Goes on without the client,
/// but not without the daemon.
async fn disable(api: &ApiState, outcome: StateOutcome) -> Result<()> {
    let (store, clock) = (api.store().clone(), api.clock().clone());
    let limit = api.settings().limits.wait_time;
    let stopping = api.stopping().clone();
    let finish = async move {
        tokio::select! {
            biased;
            () = stopping.cancelled() => Err(not_disabled(&outcome.name)),
            done = vm::finish_disable(&store, clock.as_ref(), &outcome, limit) => {
                done.map_err(refused)
            }
        }
    };
    // The limit is kept inside; this one is for a store that hangs.
    api.change_within(limit * 2, finish).await
}

fn not_disabled(vm: &str) -> ApiError {
    let message =
        format!("the API is being stopped; VM `{vm}` is being shut down, but not disabled");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).hint(Some("repeat it in a moment"))
}

fn asked(vm: &str, request: StateRequest) -> String {
    match request {
        StateRequest::Start => format!("VM `{vm}` is being started"),
        StateRequest::Restart => format!("VM `{vm}` is being restarted"),
        StateRequest::Shutdown => format!("VM `{vm}` is being shut down"),
        StateRequest::Stop => format!("VM `{vm}` is being stopped"),
        StateRequest::Disable => format!("VM `{vm}` is disabled"),
    }
}

fn reached(vm: &str, request: StateRequest) -> String {
    match request {
        StateRequest::Start => format!("VM `{vm}` runs"),
        StateRequest::Restart => format!("VM `{vm}` was restarted"),
        StateRequest::Shutdown => format!("VM `{vm}` was shut down"),
        StateRequest::Stop => format!("VM `{vm}` is stopped"),
        StateRequest::Disable => format!("VM `{vm}` is disabled"),
    }
}

fn movement(action: PlaceAction) -> Movement {
    match action {
        PlaceAction::Migrate => Movement::Migrate,
        PlaceAction::Unmigrate => Movement::Unmigrate,
        PlaceAction::Move => Movement::Move,
    }
}

async fn post_vm_vm_node(ask: Ask<PostVmVmNode>) -> Result<Answer<PostVmVmNode>> {
    let ([name], given, api) = (ask.at, ask.params, ask.api);
    let movement = movement(given.action);
    let (force, live_only) = (given.force.0, given.force_live.0);
    let wanted = Move { movement, node: given.node, force, live_only };
    if ask.mode.is_dry() {
        let plan = vm::plan_move(&api.view(), &name, &wanted)
            .map_err(|why| refused(ChangeError::Refused(why)))?;
        return Ok(Answer::planned(&view::vm::move_plan(&plan)));
    }
    let move_it = |api: ApiState| async move { vm::move_vm(api.store(), &name, &wanted).await };
    let moved = api.carry_out(move_it).await?;
    if given.wait.0 {
        wait::for_move(&api, &moved).await?;
        return Ok(Answer::said(format!("VM `{}` is on node `{}` now", moved.name, moved.to)));
    }
    Ok(Answer::said(format!("VM `{}` goes to node `{}`", moved.name, moved.to)))
}

async fn post_vm_vm_locks(ask: Ask<PostVmVmLocks>) -> Result<Answer<PostVmVmLocks>> {
    let ([name], caller) = (ask.at, ask.caller);
    let submit = |api: ApiState| async move {
        let (clock, random) = (api.clock().as_ref(), api.random().as_ref());
        vm::submit_flush_locks(api.store(), clock, random, &name, &caller.description).await
    };
    Ok(Answer::submitted(&ask.api.carry_out(submit).await?, ask.mode))
}

async fn device<O>(api: &ApiState, mode: Mode, ask: DeviceAsk) -> Result<Answer<O>>
where
    O: Operation<Reply = TaskRef, DryRun = Message>,
{
    let submit = move |api: ApiState| async move {
        let (clock, random) = (api.clock().as_ref(), api.random().as_ref());
        pvc_ops::device::submit_device(api.store(), clock, random, &ask).await
    };
    Ok(Answer::submitted(&api.carry_out(submit).await?, mode))
}

async fn post_vm_vm_device(ask: Ask<PostVmVmDevice>) -> Result<Answer<PostVmVmDevice>> {
    let ([vm], given) = (ask.at, ask.params);
    let (change, submitter) = (DeviceChange::Attach, ask.caller.description.to_string());
    let wanted = DeviceAsk { vm, change, xml: given.xml, force: given.force.0, submitter };
    device(&ask.api, ask.mode, wanted).await
}

async fn delete_vm_vm_device(ask: Ask<DeleteVmVmDevice>) -> Result<Answer<DeleteVmVmDevice>> {
    let ([vm], given) = (ask.at, ask.params);
    let (change, submitter) = (DeviceChange::Detach, ask.caller.description.to_string());
    let wanted = DeviceAsk { vm, change, xml: given.xml, force: false, submitter };
    device(&ask.api, ask.mode, wanted).await
}

#[cfg(test)]
mod tests {
    use pvc_api_types::param::Choice;

    use super::*;

    /// Each word with what `taken` says that it is taken for.
    fn all<T: Choice>(taken: impl Fn(T) -> String) -> Vec<(&'static str, String)> {
        let taken =
            |word: &&'static str| (*word, taken(T::parse(word).expect("it is one of them")));
        T::WORDS.iter().map(taken).collect()
    }

    #[test]
    fn each_word_is_taken_for_what_is_called_so() {
        let or_none = |word: Option<&str>| word.unwrap_or("none").to_owned();
        let taken = [
            all(|word| or_none(selector(word).as_ref().map(Selector::as_str))),
            all(|word| or_none(method(word).as_ref().map(MigrationMethod::as_str))),
            all(|word| state_request(word).as_str().to_owned()),
            all(|word| movement(word).as_str().to_owned()),
        ];
        for (word, taken) in taken.into_iter().flatten() {
            assert_eq!(word, taken);
        }
    }
}
