use pvc_api_types::operations::provisioner::PostProvisionerCreate;
use pvc_ops::provision::{ProvisionAsk, ProvisionRefusal, provision};
use pvc_store::ChangeError;

use super::catalog;
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::refuse::{not_provisioned, refused};
use crate::state::ApiState;
use crate::table::{Ask, Table};

pub fn add(table: Table) -> Table {
    table.add(post_provisioner_create)
}

async fn post_provisioner_create(
    ask: Ask<PostProvisionerCreate>,
) -> Result<Answer<PostProvisionerCreate>> {
    let (given, api) = (ask.params, &ask.api);
    let (storage, catalog) = (api.storage()?, catalog(api).await?);
    let define = given.define_vm.unwrap_or(true);
    let wanted = ProvisionAsk {
        name: given.name,
        profile: given.profile,
        define,
        start: given.start_vm.unwrap_or(define),
        arguments: given.arg.0,
        refuse_memory_overcommit: api.settings().refuse_memory_overcommit,
        submitter: ask.caller.description.to_string(),
    };
    let submit = |api: ApiState| async move {
        let (clock, random) = (api.clock().as_ref(), api.random().as_ref());
        provision(api.store(), clock, random, storage.as_ref(), &catalog, &wanted)
            .await
            .map_err(said)
    };
    let submit = submit(api.clone());
    let job = api.change_within(api.settings().limits.change_time, submit).await?;
    Ok(Answer::submitted(&job, ask.mode))
}

/// A wrong parameter is answered as elsewhere.
fn said(error: ChangeError<ProvisionRefusal>) -> ApiError {
    match error {
        ChangeError::Refused(ProvisionRefusal::Recipe(why)) => not_provisioned(why.into()),
        other => refused(other),
    }
}
