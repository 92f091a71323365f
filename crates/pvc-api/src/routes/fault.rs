//! Faults: to read, to acknowledge, to delete.

use pvc_api_types::operation::Operation;
use pvc_api_types::operations::fault::{
    DeleteFaults, DeleteFaultsFaultId, GetFaults, GetFaultsFaultId, PutFaults, PutFaultsFaultId,
    SortKey,
};
use pvc_api_types::{Fault, Message};
use pvc_ops::fault::{self, Which};
use pvc_store::local_time;

use crate::answer::Answer;
use crate::error::Result;
use crate::state::ApiState;
use crate::table::{Ask, Table};
use crate::view;

pub fn add(table: Table) -> Table {
    table
        .add(get_faults)
        .add(put_faults)
        .add(delete_faults)
        .add(get_faults_fault_id)
        .add(put_faults_fault_id)
        .add(delete_faults_fault_id)
}

fn sort(faults: &mut [Fault], key: SortKey) {
    match key {
        SortKey::FirstReported => faults.sort_by(|a, b| b.first_reported.cmp(&a.first_reported)),
        SortKey::LastReported => faults.sort_by(|a, b| b.last_reported.cmp(&a.last_reported)),
        SortKey::AcknowledgedAt => faults.sort_by(|a, b| a.acknowledged_at.cmp(&b.acknowledged_at)),
        SortKey::Status => faults.sort_by(|a, b| a.status.cmp(&b.status)),
        SortKey::HealthDelta => faults.sort_by_key(|fault| fault.health_delta),
        SortKey::Message => faults.sort_by(|a, b| a.message.cmp(&b.message)),
    }
}

async fn get_faults(ask: Ask<GetFaults>) -> Result<Answer<GetFaults>> {
    let cluster = ask.api.view();
    let mut faults: Vec<Fault> =
        cluster.faults.values().map(|record| view::fault::fault(record)).collect();
    sort(&mut faults, ask.params.sort_key.unwrap_or(SortKey::LastReported));
    Ok(Answer::json(&faults))
}

async fn put_faults(ask: Ask<PutFaults>) -> Result<Answer<PutFaults>> {
    acknowledge(ask, Which::All).await
}

async fn delete_faults(ask: Ask<DeleteFaults>) -> Result<Answer<DeleteFaults>> {
    delete(ask, Which::All).await
}

async fn get_faults_fault_id(ask: Ask<GetFaultsFaultId>) -> Result<Answer<GetFaultsFaultId>> {
    let [id] = ask.at;
    let cluster = ask.api.view();
    let found = cluster.faults.get(&id).map(|record| view::fault::fault(record));
    Ok(Answer::json(&found.into_iter().collect()))
}

async fn put_faults_fault_id(ask: Ask<PutFaultsFaultId>) -> Result<Answer<PutFaultsFaultId>> {
    let [id] = ask.at.clone();
    acknowledge(ask, Which::One(id)).await
}

async fn delete_faults_fault_id(
    ask: Ask<DeleteFaultsFaultId>,
) -> Result<Answer<DeleteFaultsFaultId>> {
    let [id] = ask.at.clone();
    delete(ask, Which::One(id)).await
}

async fn acknowledge<O>(ask: Ask<O>, which: Which) -> Result<Answer<O>>
where
    O: Operation<Reply = Message>,
{
    let now = local_time(ask.api.clock().wall());
    let message = format!("{} acknowledged", described(&which));
    let acknowledge =
        |api: ApiState| async move { fault::acknowledge(api.store(), &which, &now).await };
    ask.api.carry_out(acknowledge).await?;
    Ok(ask.mode.done(message))
}

async fn delete<O>(ask: Ask<O>, which: Which) -> Result<Answer<O>>
where
    O: Operation<Reply = Message>,
{
    let message = format!("{} deleted", described(&which));
    let delete = |api: ApiState| async move { fault::delete(api.store(), &which).await };
    ask.api.carry_out(delete).await?;
    Ok(ask.mode.done(message))
}

fn described(which: &Which) -> String {
    match which {
        Which::All => "all faults were".to_owned(),
        Which::One(id) => format!("fault `{id}` was"),
    }
}
