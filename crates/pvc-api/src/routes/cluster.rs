//! The cluster as a whole.

use pvc_api_types::operations::cluster::{
    AccessWord, GetBackup, GetStatus, GetStatusPrimaryNode, GetStoreAccess, Maintenance,
    PostInitialize, PostRestore, PostStatus, PostStoreAccess,
};
use pvc_api_types::{PrimaryNode, StoreAccess};
use pvc_ops::{cluster, storage};
use pvc_ports::{Access, AccessList};
use pvc_store::KnownPassword;

use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::refuse::store_error;
use crate::state::ApiState;
use crate::table::{Ask, Table};
use crate::view::status;

pub fn add(table: Table) -> Table {
    table
        .add(get_status_primary_node)
        .add(get_status)
        .add(post_status)
        .add(post_initialize)
        .add(get_backup)
        .add(post_restore)
        .add(get_store_access)
        .add(post_store_access)
}

async fn get_status(ask: Ask<GetStatus>) -> Result<Answer<GetStatus>> {
    let api = ask.api;
    Ok(Answer::encoded(api.status().get(&api.view(), status::status).into()))
}

async fn post_status(ask: Ask<PostStatus>) -> Result<Answer<PostStatus>> {
    let on = ask.params.state == Maintenance::On;
    let set = move |api: ApiState| async move { cluster::set_maintenance(api.store(), on).await };
    ask.api.carry_out(set).await?;
    Ok(ask.mode.done(match on {
        true => "the cluster is in maintenance",
        false => "the cluster is no longer in maintenance",
    }))
}

async fn get_status_primary_node(
    ask: Ask<GetStatusPrimaryNode>,
) -> Result<Answer<GetStatusPrimaryNode>> {
    Ok(match &ask.api.view().config.primary {
        Some(primary) => Answer::json(&PrimaryNode { primary_node: primary.to_string() }),
        None => Answer::empty(),
    })
}

/// Refuses what nobody has said to be meant; `lost` says what that comes to.
pub fn check_meant(really: &str, lost: &str) -> Result<()> {
    match really {
        "yes" => Ok(()),
        _ => Err(ApiError::parameter("yes-i-really-mean-it", format!("must be `yes`: {lost}"))),
    }
}

async fn post_initialize(ask: Ask<PostInitialize>) -> Result<Answer<PostInitialize>> {
    check_meant(&ask.params.really, "this destroys records")?;
    let overwrite = ask.params.overwrite.0;
    let initialize =
        move |api: ApiState| async move { cluster::initialize(api.store(), overwrite).await };
    ask.api.carry_out(initialize).await?;
    Ok(ask.mode.done("the cluster was initialized"))
}

async fn get_backup(ask: Ask<GetBackup>) -> Result<Answer<GetBackup>> {
    let (api, secrets) = (ask.api, ask.params.secrets.0);
    let dump =
        api.ask(async { cluster::backup(api.store(), secrets).await.map_err(store_error) }).await?;
    Ok(Answer::json(&cluster::dump_text(&dump)).not_kept())
}

async fn post_restore(ask: Ask<PostRestore>) -> Result<Answer<PostRestore>> {
    check_meant(&ask.params.really, "this destroys records")?;
    // Writing a large tree takes its time; it is not to be given up half-way.
    let time = ask.api.settings().limits.change_time * 10;
    let (dump, force) = (ask.params.cluster_data, ask.params.force.0);
    let restore =
        move |api: ApiState| async move { cluster::restore(api.store(), &dump, force).await };
    let restored = ask.api.carry_out_within(time, restore).await?;
    let notes = cluster::notes(&restored).into_iter().chain(note_of_trash(&ask.api).await);
    let notes: String = notes.map(|note| format!("; note: {note}")).collect();
    Ok(ask.mode.done(format!("{} records were restored{notes}", restored.keys)))
}

/// The note about disks of restored VMs that are only in the trash; none if the storage does not
/// answer in time: the records are restored all the same.
async fn note_of_trash(api: &ApiState) -> Option<String> {
    if api.store().is_dry() {
        return None;
    }
    let (view, on) = (api.view(), api.storage().ok()?);
    let found = api.ask(async { Ok(storage::only_in_trash(&view, &*on).await.ok()) }).await;
    cluster::note_of_trash(&found.ok()??)
}

fn access_word(access: AccessList) -> &'static str {
    match access {
        AccessList::Anybody => "anybody",
        AccessList::Members => "members",
        AccessList::Other => "other",
    }
}

async fn get_store_access(ask: Ask<GetStoreAccess>) -> Result<Answer<GetStoreAccess>> {
    let looked = ask.api.protection().await?;
    let (protection, passwords) = &*looked;
    let nodes = |with| -> Vec<String> {
        let found = passwords.iter().filter(|(_, found)| **found == with);
        found.map(|(node, _)| node.to_string()).collect()
    };
    Ok(Answer::json(&StoreAccess {
        access: access_word(protection.access).to_owned(),
        open: protection.open,
        closed: protection.closed,
        others: protection.others.len(),
        without_password: nodes(KnownPassword::Unproven),
        other_password: nodes(KnownPassword::Another),
    }))
}

async fn post_store_access(ask: Ask<PostStoreAccess>) -> Result<Answer<PostStoreAccess>> {
    let access = match ask.params.access {
        AccessWord::Anybody => Access::Anybody,
        AccessWord::Members => Access::Members,
    };
    let force = ask.params.force.0;
    // Each key is asked for, some of them changed, twice.
    let time = ask.api.settings().limits.change_time * 10;
    let protect =
        move |api: ApiState| async move { cluster::protect(api.store(), access, force).await };
    let protection = ask.api.carry_out_within(time, protect).await?;
    let (open, closed) = (protection.open, protection.closed);
    Ok(ask.mode.done(match access {
        Access::Members => {
            format!("the store is closed: all {closed} keys are for those who know the password")
        }
        Access::Anybody => {
            format!("the store is open: whoever reaches ZooKeeper may use all {open} keys")
        }
    }))
}
