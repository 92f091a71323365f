//! VMs, to change.

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use pvc_model::job::JobSpec;
use pvc_model::request::{Answer, StateRequest};
use pvc_model::vm::{MigrationMethod, Selector};
use pvc_ops::device::DeviceAsk;
use pvc_ops::vm::{self, Define, Meta, Modify, Move, Movement, StateAsk, StateOutcome};
use pvc_ports::DeviceChange;
use pvc_ports::aside;
use pvc_store::ChangeError;

use super::Api;
use super::at::AtVm;
use super::later::AtNewVm;
use crate::auth::Caller;
use crate::error::{ApiError, Result};
use crate::json;
use crate::openapi::{Changed, Submitted};
use crate::params::{Flag, Or, Params, choice, params};
use crate::refuse::refused;
use crate::state::ApiState;
use crate::view::{self, task};
use crate::wait;

/// A sentence, and what will work but likely not as intended.
fn with_warnings(message: String, warnings: &[String]) -> String {
    warnings.iter().fold(message, |message, warning| format!("{message}; note: {warning}"))
}

choice! {
    /// How a target node is chosen.
    pub enum SelectorWord {
        Mem = "mem", Memprov = "memprov", Vcpus = "vcpus", Load = "load", Vms = "vms", None = "none",
    }
}

impl SelectorWord {
    fn selector(self) -> Option<Selector> {
        match self {
            SelectorWord::Mem => Some(Selector::Mem),
            SelectorWord::Memprov => Some(Selector::Memprov),
            SelectorWord::Vcpus => Some(Selector::Vcpus),
            SelectorWord::Load => Some(Selector::Load),
            SelectorWord::Vms => Some(Selector::Vms),
            SelectorWord::None => None,
        }
    }
}

choice! {
    /// How a VM may be moved.
    pub enum MethodWord { Live = "live", Shutdown = "shutdown", None = "none" }
}

impl MethodWord {
    fn method(self) -> Option<MigrationMethod> {
        match self {
            MethodWord::Live => Some(MigrationMethod::Live),
            MethodWord::Shutdown => Some(MigrationMethod::Shutdown),
            MethodWord::None => None,
        }
    }
}

params! {
    /// A new VM.
    pub struct Definition {
        /// The only nodes it may be placed on.
        limit: Vec<String>,
        /// The node to assign it to; without one it is chosen.
        node: Option<String>,
        /// How a target node is chosen; `none` for the cluster's way.
        selector: Option<SelectorWord>,
        /// Whether it starts with its node.
        autostart: Flag,
        /// How it may be moved; `none` for any way.
        migration_method: Option<MethodWord>,
        /// Milliseconds that it may stand still for a live migration.
        migration_max_downtime: Or<300>,
        /// Tags that can be removed.
        user_tags: Vec<String>,
        /// Tags that cannot be removed.
        protected_tags: Vec<String>,
        /// Takes it also if it is plugged into a network between the nodes.
        force: Flag,
        @form
        /// The libvirt domain XML, with name and UUID.
        xml: String,
    }
}

async fn define(
    api: &ApiState,
    expected: Option<String>,
    definition: Definition,
) -> Result<Response> {
    let ask = Define {
        expected,
        node: definition.node,
        node_limit: definition.limit,
        selector: definition.selector.and_then(SelectorWord::selector),
        autostart: definition.autostart.0,
        migration_method: definition.migration_method.and_then(MethodWord::method),
        max_downtime_ms: definition.migration_max_downtime.0,
        user_tags: definition.user_tags,
        protected_tags: definition.protected_tags,
        force: definition.force.0,
        ..Define::new(definition.xml)
    };
    let defined = api.carry_out(|api| async move { vm::define(api.store(), &ask).await }).await?;
    let message = format!("VM `{}` was defined on node `{}`", defined.name, defined.node);
    Ok(json::done(with_warnings(message, &defined.warnings)))
}

/// Defines a VM.
#[utoipa::path(
    post, path = "/api/v1/vm", tag = "vm", params(Definition),
    request_body(content = Definition, content_type = "application/x-www-form-urlencoded"),
    responses(Changed)
)]
pub async fn post_vm(State(api): Api, Params(definition): Params<Definition>) -> Result<Response> {
    define(&api, None, definition).await
}

/// Defines a VM whose XML has this name or UUID.
#[utoipa::path(
    post, path = "/api/v1/vm/{vm}", tag = "vm",
    params(AtVm, Definition),
    request_body(content = Definition, content_type = "application/x-www-form-urlencoded"),
    responses(Changed)
)]
pub async fn post_vm_vm(
    State(api): Api,
    AtNewVm(name): AtNewVm,
    Params(definition): Params<Definition>,
) -> Result<Response> {
    define(&api, Some(name), definition).await
}

params! {
    /// Other hardware.
    pub struct Modification {
        /// Restarts a running guest, so that it gets the new hardware.
        restart: Flag,
        /// Takes it also if it is plugged into a network between the nodes.
        force: Flag,
        @form
        /// The libvirt domain XML, of the same name and UUID.
        xml: String,
    }
}

impl Modification {
    fn ask(self) -> Modify {
        Modify { xml: self.xml, restart: self.restart.0, force: self.force.0 }
    }
}

/// Replaces the definition of a VM. A running guest has it after its next start.
#[utoipa::path(
    put, path = "/api/v1/vm/{vm}", tag = "vm",
    params(AtVm, Modification),
    request_body(content = Modification, content_type = "application/x-www-form-urlencoded"),
    responses(Changed)
)]
pub async fn put_vm_vm(
    State(api): Api,
    AtVm(name): AtVm,
    Params(ask): Params<Modification>,
) -> Result<Response> {
    let modify = |api: ApiState| async move { vm::modify(api.store(), &name, &ask.ask()).await };
    let modified = api.carry_out(modify).await?;
    let restarted = if modified.restarted { " and is being restarted" } else { "" };
    let message = format!("VM `{}` was modified{restarted}", modified.name);
    Ok(json::done(with_warnings(message, &modified.warnings)))
}

params! {
    /// Other hardware, to be judged.
    pub struct Proposal {
        /// As if the definition were changed with `force`.
        force: Flag,
        @form
        /// The libvirt domain XML, of the same name and UUID.
        xml: String,
    }
}

/// Says whether a `PUT` of the same XML would be refused, and why. Nothing is changed.
#[utoipa::path(
    post, path = "/api/v1/vm/{vm}/check", tag = "vm",
    params(AtVm, Proposal),
    request_body(content = Proposal, content_type = "application/x-www-form-urlencoded"),
    responses(Changed)
)]
pub async fn post_vm_vm_check(
    State(api): Api,
    AtVm(name): AtVm,
    Params(ask): Params<Proposal>,
) -> Result<Response> {
    let ask = Modify { force: ask.force.0, ..Modify::new(ask.xml) };
    let cluster = api.view();
    let checked = aside(move || vm::check_modify(&cluster, &name, &ask)).await;
    let modified = checked.map_err(|why| refused(ChangeError::Refused(why)))?;
    let message = format!("VM `{}` can be modified so", modified.name);
    Ok(json::done(with_warnings(message, &modified.warnings)))
}

params! {
    /// What is to go.
    pub struct Removal {
        /// Removes the VM's volumes with their snapshots as well.
        delete_disks: Flag,
    }
}

/// Stops a VM and removes its record.
#[utoipa::path(
    delete,
    path = "/api/v1/vm/{vm}",
    tag = "vm",
    params(AtVm, Removal),
    responses(Changed)
)]
pub async fn delete_vm_vm(
    State(api): Api,
    AtVm(name): AtVm,
    Params(removal): Params<Removal>,
) -> Result<Response> {
    let storage = if removal.delete_disks.0 { Some(api.storage()?) } else { None };
    let remove = |api: ApiState| async move {
        vm::remove(api.store(), api.clock().as_ref(), storage.as_deref(), &name).await
    };
    let removed = api.carry_out_within(api.settings().limits.wait_time, remove).await?;
    Ok(json::done(format!("VM `{}` was removed{}", removed.name, with_volumes(&removed))))
}

/// Says whether a `DELETE` of the VM would be refused, and why. Nothing is changed. A path of its
/// own: a server that did not know a parameter for it would remove the VM.
#[utoipa::path(
    get,
    path = "/api/v1/vm/{vm}/removal",
    tag = "vm",
    params(AtVm, Removal),
    responses(Changed)
)]
pub async fn get_vm_vm_removal(
    State(api): Api,
    AtVm(name): AtVm,
    Params(removal): Params<Removal>,
) -> Result<Response> {
    let checked = vm::check_remove(&api.view(), &name, removal.delete_disks.0);
    let removed = checked.map_err(|why| refused(ChangeError::Refused(why)))?;
    Ok(json::done(format!("VM `{}` would be removed{}", removed.name, with_volumes(&removed))))
}

fn with_volumes(removed: &vm::Removed) -> String {
    match removed.volumes.len() {
        0 => String::new(),
        1 => " with its volume".to_owned(),
        several => format!(" with its {several} volumes"),
    }
}

params! {
    /// Changes of metadata. What is not given stays.
    pub struct MetaChange {
        /// The only nodes it may be placed on; empty for any.
        limit: Option<Vec<String>>,
        /// How a target node is chosen; `none` for the cluster's way.
        selector: Option<SelectorWord>,
        /// Whether it starts with its node.
        autostart: Option<bool>,
        /// The name of the provisioner's profile.
        profile: Option<String>,
        /// How it may be moved; `none` for any way.
        migration_method: Option<MethodWord>,
        /// Milliseconds that it may stand still for a live migration.
        migration_max_downtime: Option<u32>,
    }
}

/// Changes what the cluster does with a VM by itself.
#[utoipa::path(
    post,
    path = "/api/v1/vm/{vm}/meta",
    tag = "vm",
    params(AtVm, MetaChange),
    responses(Changed)
)]
pub async fn post_vm_vm_meta(
    State(api): Api,
    AtVm(name): AtVm,
    Params(given): Params<MetaChange>,
) -> Result<Response> {
    let meta = Meta {
        node_limit: given.limit,
        selector: given.selector.map(SelectorWord::selector),
        autostart: given.autostart,
        profile: given.profile,
        migration_method: given.migration_method.map(MethodWord::method),
        max_downtime_ms: given.migration_max_downtime,
    };
    let message = format!("the metadata of VM `{name}` was changed");
    api.carry_out(|api| async move { vm::set_meta(api.store(), &name, &meta).await }).await?;
    Ok(json::done(message))
}

choice! {
    /// What to do with a tag.
    pub enum TagAction { Add = "add", Remove = "remove" }
}

params! {
    /// A change of tags.
    pub struct TagChange {
        /// What to do.
        action: TagAction,
        /// The tag.
        tag: String,
        /// Whether the tag cannot be removed.
        protected: Flag,
    }
}

/// Adds a tag to a VM, or removes it.
#[utoipa::path(
    post,
    path = "/api/v1/vm/{vm}/tags",
    tag = "vm",
    params(AtVm, TagChange),
    responses(Changed)
)]
pub async fn post_vm_vm_tags(
    State(api): Api,
    AtVm(name): AtVm,
    Params(TagChange { action, tag, protected }): Params<TagChange>,
) -> Result<Response> {
    let message = match action {
        TagAction::Add => format!("tag `{tag}` was added to VM `{name}`"),
        TagAction::Remove => format!("tag `{tag}` was removed from VM `{name}`"),
    };
    let change = move |api: ApiState| async move {
        match action {
            TagAction::Add => vm::add_tag(api.store(), &name, &tag, protected.0).await,
            TagAction::Remove => vm::remove_tag(api.store(), &name, &tag).await,
        }
    };
    api.carry_out(change).await?;
    Ok(json::done(message))
}

params! {
    /// Another name.
    pub struct Rename {
        /// The name it is to have.
        new_name: String,
        /// Change nothing, and reply whether it would be refused.
        dry_run: Flag,
    }
}

/// Gives a VM another name, and its volumes that are named after it.
#[utoipa::path(
    post,
    path = "/api/v1/vm/{vm}/rename",
    tag = "vm",
    params(AtVm, Rename),
    responses(Changed)
)]
pub async fn post_vm_vm_rename(
    State(api): Api,
    AtVm(name): AtVm,
    Extension(caller): Extension<Caller>,
    Params(Rename { new_name, dry_run }): Params<Rename>,
) -> Result<Response> {
    let storage = api.storage()?;
    if dry_run.0 {
        let check = |api: ApiState| async move {
            let cluster = api.view();
            vm::check_rename(&cluster, storage.as_ref(), &name, &new_name)
                .await
                .map_err(ChangeError::Refused)
        };
        let renamed = api.carry_out(check).await?;
        return Ok(json::done(format!("VM `{}` would be called `{}`", renamed.from, renamed.to)));
    }
    let submitter = caller.description.to_string();
    let ask = vm::Rename { vm: name, to: new_name, submitter };
    let (limit, own) = (api.settings().limits.wait_time, api.clone());
    let rename = async move {
        let (clock, random) = (own.clock().as_ref(), own.random().as_ref());
        tokio::select! {
            biased;
            () = own.stopping().cancelled() => Err(not_waited_for(&ask.vm)),
            done = vm::rename(own.store(), clock, random, storage.as_ref(), &ask, limit) => {
                done.map_err(refused)
            }
        }
    };
    // The limit is kept inside; this one is for a store that hangs.
    let renamed = api.change_within(limit * 2, rename).await?;
    Ok(json::done(format!("VM `{}` is called `{}` now", renamed.from, renamed.to)))
}

fn not_waited_for(vm: &str) -> ApiError {
    let message =
        format!("the API is being stopped; what becomes of the renaming of VM `{vm}` is not known");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        .hint(Some("`pvc task list` shows it if it was begun; it is done to its end"))
}

choice! {
    /// What a VM is to be.
    pub enum StateWord {
        Start = "start", Shutdown = "shutdown", Stop = "stop", Restart = "restart", Disable = "disable",
    }
}

impl StateWord {
    fn request(self) -> StateRequest {
        match self {
            StateWord::Start => StateRequest::Start,
            StateWord::Shutdown => StateRequest::Shutdown,
            StateWord::Stop => StateRequest::Stop,
            StateWord::Restart => StateRequest::Restart,
            StateWord::Disable => StateRequest::Disable,
        }
    }
}

params! {
    /// A wish for another state.
    pub struct StateChange {
        /// The state that is wanted.
        state: StateWord,
        /// Also for a mirror, and on a node without the memory for it; disables without a graceful
        /// shutdown.
        force: Flag,
        /// Reply when the state is reached.
        wait: Flag,
        /// Change nothing, and reply whether it would be refused.
        dry_run: Flag,
    }
}

/// Starts or stops a VM.
#[utoipa::path(
    post,
    path = "/api/v1/vm/{vm}/state",
    tag = "vm",
    params(AtVm, StateChange),
    responses(Changed)
)]
pub async fn post_vm_vm_state(
    State(api): Api,
    AtVm(name): AtVm,
    Params(StateChange { state, force, wait, dry_run }): Params<StateChange>,
) -> Result<Response> {
    let request = state.request();
    let ask = StateAsk {
        request,
        force: force.0,
        refuse_memory_overcommit: api.settings().refuse_memory_overcommit,
    };
    if dry_run.0 {
        let check =
            move |api: ApiState| async move { vm::check_state(api.store(), &name, ask).await };
        let checked = api.carry_out(check).await?;
        let message = format!("VM `{}` would be {}", checked.name, request.participle());
        return Ok(json::done(with_warnings(message, &checked.warnings)));
    }
    let set = move |api: ApiState| async move { vm::set_state(api.store(), &name, ask).await };
    let outcome = api.carry_out(set).await?;
    let (name, warnings) = (outcome.name.clone(), outcome.warnings.clone());
    if matches!(outcome.answer, Answer::ThenDisable(_) | Answer::AwaitStopThenDisable) {
        disable(&api, outcome).await?;
        return Ok(json::done(format!("VM `{name}` is disabled")));
    }
    if wait.0 {
        wait::for_state(&api, outcome.uuid, &name, request).await?;
        return Ok(json::done(with_warnings(reached(&name, request), &warnings)));
    }
    Ok(json::done(with_warnings(asked(&name, request), &warnings)))
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
            done = vm::finish_disable(&store, clock.as_ref(), &outcome, limit) => done.map_err(refused),
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

choice! {
    /// What to do with a VM's place.
    pub enum PlaceAction { Migrate = "migrate", Unmigrate = "unmigrate", Move = "move" }
}

params! {
    /// Another node.
    pub struct Placement {
        /// `move` for good, `migrate` to come back by `unmigrate`.
        action: PlaceAction,
        /// The target; chosen without one.
        node: Option<String>,
        /// Migrates a VM further that is migrated already, and takes a flushed node for its target.
        force: Flag,
        /// Reply when it is there.
        wait: Flag,
        /// Live or not at all.
        force_live: Flag,
        /// Change nothing, and reply where the VM would go and how every node does.
        dry_run: Flag,
    }
}

/// Moves a VM to another node.
#[utoipa::path(
    post,
    path = "/api/v1/vm/{vm}/node",
    tag = "vm",
    params(AtVm, Placement),
    responses(Changed)
)]
pub async fn post_vm_vm_node(
    State(api): Api,
    AtVm(name): AtVm,
    Params(given): Params<Placement>,
) -> Result<Response> {
    let movement = match given.action {
        PlaceAction::Migrate => Movement::Migrate,
        PlaceAction::Unmigrate => Movement::Unmigrate,
        PlaceAction::Move => Movement::Move,
    };
    let ask =
        Move { movement, node: given.node, force: given.force.0, live_only: given.force_live.0 };
    if given.dry_run.0 {
        let plan = vm::plan_move(&api.view(), &name, &ask)
            .map_err(|why| refused(ChangeError::Refused(why)))?;
        return Ok(json::ok(&view::vm::move_plan(&plan)));
    }
    let moved =
        api.carry_out(|api| async move { vm::move_vm(api.store(), &name, &ask).await }).await?;
    if given.wait.0 {
        wait::for_move(&api, &moved).await?;
        return Ok(json::done(format!("VM `{}` is on node `{}` now", moved.name, moved.to)));
    }
    Ok(json::done(format!("VM `{}` goes to node `{}`", moved.name, moved.to)))
}

/// The reply to a request that became a job.
fn submitted(spec: &JobSpec) -> Response {
    let mut response = json::reply(StatusCode::ACCEPTED, &task::reference(spec));
    let location = HeaderValue::from_str(&format!("/api/v1/tasks/{}", spec.id));
    let location = location.expect("an identifier of hexadecimal digits makes a header value");
    response.headers_mut().insert(header::LOCATION, location);
    response
}

/// Breaks the locks that a dead host left on a VM's volumes.
#[utoipa::path(
    post,
    path = "/api/v1/vm/{vm}/locks",
    tag = "vm",
    params(AtVm),
    responses(Submitted)
)]
pub async fn post_vm_vm_locks(
    State(api): Api,
    AtVm(name): AtVm,
    Extension(caller): Extension<Caller>,
) -> Result<Response> {
    let submit = |api: ApiState| async move {
        let (clock, random) = (api.clock().as_ref(), api.random().as_ref());
        vm::submit_flush_locks(api.store(), clock, random, &name, &caller.description).await
    };
    Ok(submitted(&api.carry_out(submit).await?))
}

params! {
    /// A device to plug in.
    pub struct Attachment {
        /// Plugs it in also into a network between the nodes.
        force: Flag,
        @form
        /// One element of libvirt's domain XML, as below `<devices>`.
        xml: String,
    }
}

params! {
    /// A device.
    pub struct DeviceRequest {
        @form
        /// One element of libvirt's domain XML, as below `<devices>`.
        xml: String,
    }
}

async fn device(api: &ApiState, ask: DeviceAsk) -> Result<Response> {
    let submit = move |api: ApiState| async move {
        let (clock, random) = (api.clock().as_ref(), api.random().as_ref());
        pvc_ops::device::submit_device(api.store(), clock, random, &ask).await
    };
    Ok(submitted(&api.carry_out(submit).await?))
}

/// Plugs a device into a running guest.
#[utoipa::path(
    post, path = "/api/v1/vm/{vm}/device", tag = "vm",
    params(AtVm, Attachment),
    request_body(content = Attachment, content_type = "application/x-www-form-urlencoded"),
    responses(Submitted)
)]
pub async fn post_vm_vm_device(
    State(api): Api,
    AtVm(name): AtVm,
    Extension(caller): Extension<Caller>,
    Params(Attachment { force, xml }): Params<Attachment>,
) -> Result<Response> {
    let (change, submitter) = (DeviceChange::Attach, caller.description.to_string());
    device(&api, DeviceAsk { vm: name, change, xml, force: force.0, submitter }).await
}

/// Unplugs a device from a running guest.
#[utoipa::path(
    delete, path = "/api/v1/vm/{vm}/device", tag = "vm",
    params(AtVm),
    request_body(content = DeviceRequest, content_type = "application/x-www-form-urlencoded"),
    responses(Submitted)
)]
pub async fn delete_vm_vm_device(
    State(api): Api,
    AtVm(name): AtVm,
    Extension(caller): Extension<Caller>,
    Params(DeviceRequest { xml }): Params<DeviceRequest>,
) -> Result<Response> {
    let (change, submitter) = (DeviceChange::Detach, caller.description.to_string());
    device(&api, DeviceAsk { vm: name, change, xml, force: false, submitter }).await
}
