//! OSDs, and the options of all of them.

use pvc_api_types::operation::Operation;
use pvc_api_types::operations::osd::{
    DeleteStorageCephOsdOsdid, GetStorageCephOsd, GetStorageCephOsdOsdid,
    GetStorageCephOsdOsdidState, OptionAction, OsdStateWord, PostStorageCephOption,
    PostStorageCephOsd, PostStorageCephOsdOsdid, PostStorageCephOsdOsdidState,
    PostStorageCephOsddb, PutStorageCephOsdOsdid,
};
use pvc_api_types::param::Choice;
use pvc_api_types::{Message, Osd, TaskRef};
use pvc_model::job::JobSpec;
use pvc_model::storage::OsdRecord;
use pvc_ops::osd::{self, AddAsk, DbAsk, OsdRefusal, ReplaceAsk, Submission, find_osd};
use pvc_store::ChangeError;

use super::cluster::check_meant;
use crate::answer::Answer;
use crate::auth::Caller;
use crate::error::Result;
use crate::limit::Limit;
use crate::refuse::refused;
use crate::state::ApiState;
use crate::table::{Ask, Mode, Table};
use crate::view;

pub fn add(table: Table) -> Table {
    table
        .add(get_storage_ceph_osd)
        .add(post_storage_ceph_osd)
        .add(get_storage_ceph_osd_osdid)
        .add(post_storage_ceph_osd_osdid)
        .add(put_storage_ceph_osd_osdid)
        .add(delete_storage_ceph_osd_osdid)
        .add(get_storage_ceph_osd_osdid_state)
        .add(post_storage_ceph_osd_osdid_state)
        .add(post_storage_ceph_osddb)
        .add(post_storage_ceph_option)
}

async fn get_storage_ceph_osd(ask: Ask<GetStorageCephOsd>) -> Result<Answer<GetStorageCephOsd>> {
    let limit = Limit::new(ask.params.limit.as_deref())?;
    let cluster = ask.api.view();
    let wanted = |record: &&OsdRecord| limit.matches(&record.id);
    let records = cluster.osds.values().map(AsRef::as_ref).filter(wanted);
    let mut osds: Vec<Osd> = records.map(|record| view::osd::osd(record, &cluster)).collect();
    osds.sort_by_key(|osd| (osd.id.parse::<u64>().ok(), osd.id.clone()));
    Ok(Answer::json(&osds))
}

async fn get_storage_ceph_osd_osdid(
    ask: Ask<GetStorageCephOsdOsdid>,
) -> Result<Answer<GetStorageCephOsdOsdid>> {
    let ([id], cluster) = (ask.at, ask.api.view());
    let (_, record) = find_osd(&cluster, &id).map_err(not_found)?;
    Ok(Answer::json(&vec![view::osd::osd(record, &cluster)]))
}

async fn get_storage_ceph_osd_osdid_state(
    ask: Ask<GetStorageCephOsdOsdidState>,
) -> Result<Answer<GetStorageCephOsdOsdidState>> {
    let ([id], cluster) = (ask.at, ask.api.view());
    let (_, record) = find_osd(&cluster, &id).map_err(not_found)?;
    Ok(Answer::json(&view::osd::osd_state(record)))
}

fn not_found(why: OsdRefusal) -> crate::error::ApiError {
    refused(ChangeError::Refused(why))
}

/// Submits the job that `submit` asks for.
async fn submitted<O, F>(
    api: &ApiState,
    mode: Mode,
    caller: Caller,
    submit: impl FnOnce(Submitter) -> F,
) -> Result<Answer<O>>
where
    O: Operation<Reply = TaskRef, DryRun = Message>,
    F: Future<Output = Result<JobSpec, ChangeError<OsdRefusal>>> + Send + 'static,
{
    let job = api.carry_out(|api| submit(Submitter { api, caller })).await?;
    Ok(Answer::submitted(&job, mode))
}

/// Caller with what a submission needs.
struct Submitter {
    api: ApiState,
    caller: Caller,
}

impl Submitter {
    fn submission(&self) -> Submission<'_> {
        Submission {
            store: self.api.store(),
            clock: self.api.clock().as_ref(),
            random: self.api.random().as_ref(),
            storage: self.api.storage().ok(),
            submitter: &self.caller.description,
        }
    }
}

async fn post_storage_ceph_osd(ask: Ask<PostStorageCephOsd>) -> Result<Answer<PostStorageCephOsd>> {
    let given = ask.params;
    let add = AddAsk {
        node: given.node,
        device: given.device,
        weight: given.weight,
        db: DbAsk { ratio: given.ext_db_ratio, size: given.ext_db_size },
        count: given.osd_count.unwrap_or(1),
        plan: given.plan.0,
    };
    let submit = |by: Submitter| async move { by.submission().add(&add).await };
    submitted(&ask.api, ask.mode, ask.caller, submit).await
}

async fn post_storage_ceph_osd_osdid(
    ask: Ask<PostStorageCephOsdOsdid>,
) -> Result<Answer<PostStorageCephOsdOsdid>> {
    let ([osd], given) = (ask.at, ask.params);
    check_meant(&given.really, "this destroys what is on the disks")?;
    let replace = ReplaceAsk {
        device: given.new_device,
        old_device: given.old_device,
        weight: given.weight,
        db: DbAsk { ratio: given.ext_db_ratio, size: given.ext_db_size },
        force: given.force.0,
    };
    let submit = |by: Submitter| async move { by.submission().replace(&osd, &replace).await };
    submitted(&ask.api, ask.mode, ask.caller, submit).await
}

async fn put_storage_ceph_osd_osdid(
    ask: Ask<PutStorageCephOsdOsdid>,
) -> Result<Answer<PutStorageCephOsdOsdid>> {
    let ([osd], device) = (ask.at, ask.params.device);
    let submit = |by: Submitter| async move { by.submission().refresh(&osd, &device).await };
    submitted(&ask.api, ask.mode, ask.caller, submit).await
}

async fn delete_storage_ceph_osd_osdid(
    ask: Ask<DeleteStorageCephOsdOsdid>,
) -> Result<Answer<DeleteStorageCephOsdOsdid>> {
    let ([osd], force) = (ask.at, ask.params.force.0);
    check_meant(&ask.params.really, "this destroys what is on the disk")?;
    let submit = move |by: Submitter| async move { by.submission().remove(&osd, force).await };
    submitted(&ask.api, ask.mode, ask.caller, submit).await
}

async fn post_storage_ceph_osddb(
    ask: Ask<PostStorageCephOsddb>,
) -> Result<Answer<PostStorageCephOsddb>> {
    let given = ask.params;
    let submit = |by: Submitter| async move {
        by.submission().add_db_group(&given.node, &given.device).await
    };
    submitted(&ask.api, ask.mode, ask.caller, submit).await
}

async fn post_storage_ceph_osd_osdid_state(
    ask: Ask<PostStorageCephOsdOsdidState>,
) -> Result<Answer<PostStorageCephOsdOsdidState>> {
    let ([osd], state) = (ask.at, ask.params.state);
    let storage = ask.api.storage()?;
    let is_in = state == OsdStateWord::In;
    let set = move |api: ApiState| async move {
        osd::set_in(api.store(), storage.as_ref(), &osd, is_in).await
    };
    let osd = ask.api.carry_out(set).await?;
    Ok(ask.mode.done(format!("OSD `{osd}` is {}", state.word())))
}

async fn post_storage_ceph_option(
    ask: Ask<PostStorageCephOption>,
) -> Result<Answer<PostStorageCephOption>> {
    let (option, action) = (ask.params.option, ask.params.action);
    let storage = ask.api.storage()?;
    let is_set = action == OptionAction::Set;
    let set = move |api: ApiState| async move {
        osd::set_flag(api.store(), storage.as_ref(), &option, is_set).await
    };
    let option = ask.api.carry_out(set).await?;
    Ok(ask.mode.done(format!("option `{option}` is {}", action.word())))
}
