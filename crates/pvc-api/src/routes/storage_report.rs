//! Reports on the storage as a whole.

use pvc_api_types::operations::storage_report::{
    GetStorageCephFullness, GetStorageCephStatus, GetStorageCephUtilization,
};

use crate::answer::Answer;
use crate::error::Result;
use crate::table::{Ask, Table};
use crate::view::storage_report as view;

pub fn add(table: Table) -> Table {
    table
        .add(get_storage_ceph_status)
        .add(get_storage_ceph_utilization)
        .add(get_storage_ceph_fullness)
}

async fn get_storage_ceph_status(
    ask: Ask<GetStorageCephStatus>,
) -> Result<Answer<GetStorageCephStatus>> {
    Ok(Answer::json(&view::status(&ask.api.view())))
}

async fn get_storage_ceph_utilization(
    ask: Ask<GetStorageCephUtilization>,
) -> Result<Answer<GetStorageCephUtilization>> {
    Ok(Answer::json(&view::utilization(&ask.api.view())))
}

async fn get_storage_ceph_fullness(
    ask: Ask<GetStorageCephFullness>,
) -> Result<Answer<GetStorageCephFullness>> {
    Ok(Answer::json(&view::fullness(&ask.api.view())))
}
