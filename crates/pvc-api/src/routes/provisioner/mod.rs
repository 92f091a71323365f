//! The provisioner: templates, userdata, scripts, OVAs and profiles, and VMs that are made of them.

mod create;
mod ova;
mod profile;
mod template;
mod text;

use std::time::Duration;

use axum::http::StatusCode;
use pvc_api_types::Message;
use pvc_api_types::operation::Operation;
use pvc_model::provisioner::{Catalog, Change, Class};
use pvc_model::shown;
use pvc_provisioner::{Mode as Making, ProvisionerError};

use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::refuse::not_provisioned;
use crate::state::ApiState;
use crate::table::{Mode, Table};

pub fn add(table: Table) -> Table {
    [template::add, text::add, profile::add, ova::add, create::add]
        .into_iter()
        .fold(table, |table, add| add(table))
}

/// Number of times as long as for others that a change is waited for: its commit has a deadline of
/// its own, after which it is told that nobody knows what became of it.
const CHANGE_TIMES: u32 = 2;

/// Answer of the provisioner's database, which is waited for no longer than a change may take.
async fn answered<T>(
    api: &ApiState,
    work: impl Future<Output = Result<T, ProvisionerError>>,
) -> Result<T> {
    let time = api.settings().limits.change_time;
    match tokio::time::timeout(time, work).await {
        Ok(done) => done.map_err(not_provisioned),
        Err(_) => Err(late(time, "")),
    }
}

/// The refusal after this time, and what is to be said of it besides.
pub(in crate::routes) fn late(time: Duration, besides: &str) -> ApiError {
    let seconds = time.as_secs();
    let message = format!("the provisioner's database did not answer within {seconds} s{besides}");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        .hint(Some("does it run? On coordinators `patronictl list` shows its members"))
        .retry_after(5)
}

/// Everything but the texts of userdata and scripts.
async fn catalog(api: &ApiState) -> Result<Catalog> {
    answered(api, api.provisioner()?.catalog()).await
}

/// Makes a change; the reply is the sentence about it.
async fn change<O: Operation<Reply = Message>>(
    api: &ApiState,
    mode: Mode,
    change: Change,
) -> Result<Answer<O>> {
    let making = if mode.is_dry() { Making::DryRun } else { Making::Do };
    let (cluster, provisioner) = (api.view(), api.provisioner()?.clone());
    // To its end, also when the client goes away: what became of a commit is known then.
    let work = api.to_its_end(async move { provisioner.change(&cluster, &change, making).await });
    let time = api.settings().limits.change_time * CHANGE_TIMES;
    match tokio::time::timeout(time, work).await {
        Ok(done) => Ok(mode.done(done.map_err(not_provisioned)?)),
        Err(_) => Err(late(time, "; the change may still be made")),
    }
}

/// A list as PVC 1.0.3 answers it: one with nothing in it is not found.
fn found<T>(class: Class, name: Option<&str>, list: Vec<T>) -> Result<Vec<T>> {
    match (list.is_empty(), name) {
        (false, _) => Ok(list),
        (true, Some(name)) => {
            Err(ApiError::not_found(format!("there is no {class} `{}`", shown(name))))
        }
        (true, None) => Err(ApiError::not_found(format!("there is no {class}"))),
    }
}
