//! VMs, to read.

use std::sync::Arc;
use std::time::Duration;

use pvc_api_types::operations::vm::{
    GetVm, GetVmVm, GetVmVmConsole, GetVmVmMeta, GetVmVmNode, GetVmVmState, GetVmVmTags,
    ListedState, VmFilter,
};
use pvc_api_types::{VmConsole, VmNode, VmState, VmTags};
use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::shown;
use pvc_model::vm::VmRecord;
use pvc_ports::aside;

use super::node::last_lines;
use crate::answer::{Answer, Encoded};
use crate::error::{ApiError, Result};
use crate::limit::Limit;
use crate::state::{ApiState, Logged};
use crate::table::{Ask, Table};
use crate::view;

pub fn add(table: Table) -> Table {
    table
        .add(get_vm)
        .add(get_vm_vm)
        .add(get_vm_vm_meta)
        .add(get_vm_vm_tags)
        .add(get_vm_vm_state)
        .add(get_vm_vm_node)
        .add(get_vm_vm_console)
}

fn includes(state: ListedState, record: &VmRecord) -> bool {
    use pvc_model::vm::VmState as Word;
    match state {
        ListedState::Start => record.state == Word::Start,
        ListedState::Restart => record.state == Word::Restart,
        ListedState::Shutdown => record.state == Word::Shutdown,
        ListedState::Stop => record.state == Word::Stop,
        ListedState::Disable => record.state == Word::Disable,
        // A state that nobody knows is shown as a failure.
        ListedState::Fail => matches!(record.state, Word::Fail | Word::Unknown(_)),
        ListedState::Migrate => matches!(record.state, Word::Migrate | Word::MigrateLive),
        ListedState::Unmigrate => record.state == Word::Unmigrate,
        ListedState::Provision => record.state == Word::Provision,
        ListedState::Import => record.state == Word::Import,
        ListedState::Restore => record.state == Word::Restore,
        ListedState::Mirror => record.state == Word::Mirror,
    }
}

fn matches(filter: &VmFilter, record: &VmRecord) -> bool {
    let negate = filter.negate.0;
    let on_node = |node: &String| record.node.as_ref().is_some_and(|is| is.as_str() == node);
    let tagged = |tag: &String| record.tags.iter().any(|is| is.name == *tag);
    filter.node.as_ref().is_none_or(|node| on_node(node) != negate)
        && filter.state.is_none_or(|state| includes(state, record) != negate)
        && filter.tag.as_ref().is_none_or(|tag| tagged(tag) != negate)
}

async fn get_vm(ask: Ask<GetVm>) -> Result<Answer<GetVm>> {
    let (api, filter) = (ask.api, ask.params);
    let cluster = api.view();
    if let Some(node) = filter.node.as_ref().filter(|node| cluster.node(node).is_none()) {
        return Err(ApiError::parameter("node", format!("there is no node `{}`", shown(node))));
    }
    let uuid = filter.limit.as_deref().and_then(|limit| Uuid::try_parse(limit).ok());
    let limit = Limit::new(filter.limit.as_deref().filter(|_| uuid.is_none()))?;
    let named = |record: &VmRecord| match uuid {
        Some(uuid) => record.uuid == uuid,
        None => limit.matches(&record.name),
    };
    let wanted = |record: &&Arc<VmRecord>| named(record) && matches(&filter, record);
    let mut records: Vec<&Arc<VmRecord>> = cluster.vms.values().filter(wanted).collect();
    records.sort_by(|a, b| a.name.cmp(&b.name));
    if records.len() == cluster.vms.len() && api.vms().begin_to_keep(api.clock().monotonic()) {
        tokio::spawn(keep_ready(api.clone()));
    }
    Ok(Answer::encoded(Encoded::vms(&api, &cluster, &records).await))
}

/// Shortest interval at which what has changed is made ready: thousands of VMs are looked through
/// for it.
const EVERY: Duration = Duration::from_millis(200);

/// Makes what changes of VMs at once, while lists of all VMs are asked for. Whoever asks every few
/// seconds then waits for next to nothing, also where a quarter of the VMs has changed meanwhile.
async fn keep_ready(api: ApiState) {
    let mut changed = api.store().changed();
    while api.vms().is_kept(api.clock().monotonic()) {
        let all = api.clone();
        aside(move || {
            let cluster = all.view();
            all.vms().ask(&cluster, cluster.vms.values()).iter().for_each(|vm| _ = vm.fragment());
        })
        .await;
        api.clock().sleep(EVERY).await;
        tokio::select! {
            biased;
            () = api.stopping().cancelled() => return,
            changed = changed.changed() => if changed.is_err() { return },
            () = api.clock().sleep(Duration::from_secs(1)) => {}
        }
    }
}

pub fn find<'a>(cluster: &'a Cluster, name_or_uuid: &str) -> Result<&'a Arc<VmRecord>> {
    cluster.vm(name_or_uuid).ok_or_else(|| {
        let message = format!("there is no VM `{}`", shown(name_or_uuid));
        ApiError::not_found(message).hint(Some("`pvc vm list` lists them"))
    })
}

async fn get_vm_vm(ask: Ask<GetVmVm>) -> Result<Answer<GetVmVm>> {
    let ([name], api) = (ask.at, ask.api);
    let cluster = api.view();
    let record = find(&cluster, &name)?;
    Ok(Answer::encoded(Encoded::vms(&api, &cluster, &[record]).await))
}

async fn get_vm_vm_state(ask: Ask<GetVmVmState>) -> Result<Answer<GetVmVmState>> {
    let [name] = ask.at;
    let state = view::vm::state(find(&ask.api.view(), &name)?);
    Ok(Answer::json(&VmState { name, state }))
}

async fn get_vm_vm_node(ask: Ask<GetVmVmNode>) -> Result<Answer<GetVmVmNode>> {
    let [name] = ask.at;
    let cluster = ask.api.view();
    let record = find(&cluster, &name)?;
    let (node, last_node) = (view::vm::node(record), view::vm::last_node(record));
    Ok(Answer::json(&VmNode { name, node, last_node }))
}

async fn get_vm_vm_meta(ask: Ask<GetVmVmMeta>) -> Result<Answer<GetVmVmMeta>> {
    let [name] = ask.at;
    Ok(Answer::json(&view::vm::meta(find(&ask.api.view(), &name)?, &name)))
}

async fn get_vm_vm_tags(ask: Ask<GetVmVmTags>) -> Result<Answer<GetVmVmTags>> {
    let [name] = ask.at;
    let tags = view::vm::tags(find(&ask.api.view(), &name)?);
    Ok(Answer::json(&VmTags { name, tags }))
}

async fn get_vm_vm_console(ask: Ask<GetVmVmConsole>) -> Result<Answer<GetVmVmConsole>> {
    let ([name], api) = (ask.at, ask.api);
    let uuid = find(&api.view(), &name)?.uuid;
    let data = last_lines(&api.log(Logged::Vm(uuid)).await?, ask.params.lines.0);
    Ok(Answer::json(&VmConsole { name, data }))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::body::Body;
    use axum::extract::ConnectInfo;
    use axum::http::{Request, StatusCode};
    use pvc_embedded::EmbeddedTree;
    use pvc_store::synthetic::Shape;
    use pvc_store::{Report, Store};
    use pvc_testkit::{SeededRandom, TokioClock, eventually};
    use tower::ServiceExt as _;

    use super::*;
    use crate::settings::ApiSettings;

    #[tokio::test]
    async fn what_changes_is_ready_before_the_next_who_asks_for_all_vms() {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(7)));
        let tree = EmbeddedTree::in_memory().connect();
        let store = Store::open(tree, clock.clone(), random.clone()).await.unwrap();
        store.load(&Shape::with_vms(20).dump()).await.unwrap();
        let settings =
            ApiSettings { tokens: None, ..ApiSettings::new("hv1".into(), address, vec![]) };
        let api = ApiState::new(store.clone(), clock, random, None, None, settings);
        let known = |uuid| {
            let view = store.view();
            let asked = api.vms().ask(&view, [&view.vms[&uuid]]);
            asked[0].is_made()
        };
        let uuid =
            store.fresh().await.unwrap().vms.values().find(|vm| !vm.stats.is_empty()).unwrap().uuid;
        assert!(!known(uuid));
        let request = Request::get("/api/v1/vm").extension(ConnectInfo(address));
        let request = request.header("Host", "localhost").body(Body::empty()).unwrap();
        let reply = crate::routes::router(api.clone()).oneshot(request).await.unwrap();
        assert_eq!(reply.status(), StatusCode::OK);
        assert!(known(uuid));
        store.report(vec![Report::VmStats(uuid, "{}".to_owned())]).await.unwrap();
        let view = store.fresh().await.unwrap();
        assert_eq!(&*view.vms[&uuid].stats, "{}", "it is another version now");
        eventually("it is made though nobody asks", Duration::from_secs(20), || known(uuid)).await;
    }
}
