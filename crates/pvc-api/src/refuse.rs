//! Refusals of the store or an operation, as replies.

use axum::http::StatusCode;
use pvc_model::with_causes;
use pvc_ops::{Kind, Refusal};
use pvc_ports::{DatabaseError, TreeError};
use pvc_provisioner::ProvisionerError;
use pvc_store::{ChangeError, StoreError};

use crate::error::ApiError;

/// A refusal of the store.
pub fn store_error(error: StoreError) -> ApiError {
    let status = match &error {
        StoreError::AlreadyInitialized | StoreError::NoPassword | StoreError::TooLarge { .. } => {
            StatusCode::BAD_REQUEST
        }
        StoreError::NotInitialized
        | StoreError::Unclear
        | StoreError::LockTimeout { .. }
        | StoreError::Tree(
            TreeError::Unreachable { .. }
            | TreeError::SessionExpired
            | TreeError::OutcomeUnknown
            | TreeError::DiskFull
            | TreeError::Closed,
        ) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    if status.is_server_error() {
        tracing::warn!(error = with_causes(&error), "a request failed because the store did");
    }
    ApiError::new(status, with_causes(&error)).hint(error.hint())
}

/// An ask that the provisioner has not carried out.
pub fn not_provisioned(error: ProvisionerError) -> ApiError {
    let hint = error.hint();
    let status = match &error {
        ProvisionerError::Refused(refusal) => {
            if let Some((parameter, why)) = refusal.parameter() {
                return ApiError::parameter(parameter, why).hint(hint);
            }
            status_of(refusal.kind())
        }
        ProvisionerError::Database(
            DatabaseError::Refused { .. } | DatabaseError::TooMany { .. } | DatabaseError::Failed,
        ) => StatusCode::INTERNAL_SERVER_ERROR,
        ProvisionerError::Database(_)
        | ProvisionerError::UnknownRevision { .. }
        | ProvisionerError::Unfinished { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    if status.is_server_error() {
        let error = with_causes(&error);
        tracing::warn!(error, "a request failed because the provisioner's database did");
    }
    ApiError::new(status, with_causes(&error)).hint(hint)
}

/// The status of a refusal.
fn status_of(kind: Kind) -> StatusCode {
    match kind {
        Kind::NotFound => StatusCode::NOT_FOUND,
        // Clients know 400 for whatever does not fit the present state.
        Kind::Invalid | Kind::Conflict => StatusCode::BAD_REQUEST,
        Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// An ask that was not carried out.
pub fn refused<R: Refusal>(error: ChangeError<R>) -> ApiError {
    match error {
        ChangeError::Refused(why) => {
            ApiError::new(status_of(why.kind()), with_causes(&why)).hint(why.hint())
        }
        ChangeError::Store(error) => store_error(error),
        ChangeError::Conflict { tries } => {
            let message =
                format!("the records were changed by somebody else {tries} times in a row");
            ApiError::new(StatusCode::CONFLICT, message).hint(Some("try it again"))
        }
    }
}
