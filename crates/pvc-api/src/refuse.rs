//! Refusals of the store or an operation, as replies.

use axum::http::StatusCode;
use pvc_model::with_causes;
use pvc_ops::{Kind, Refusal};
use pvc_ports::TreeError;
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

/// An ask that was not carried out.
pub fn refused<R: Refusal>(error: ChangeError<R>) -> ApiError {
    match error {
        ChangeError::Refused(why) => {
            let status = match why.kind() {
                Kind::NotFound => StatusCode::NOT_FOUND,
                // Clients know 400 for whatever does not fit the present state.
                Kind::Invalid | Kind::Conflict => StatusCode::BAD_REQUEST,
                Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            };
            ApiError::new(status, with_causes(&why)).hint(why.hint())
        }
        ChangeError::Store(error) => store_error(error),
        ChangeError::Conflict { tries } => {
            let message =
                format!("the records were changed by somebody else {tries} times in a row");
            ApiError::new(StatusCode::CONFLICT, message).hint(Some("try it again"))
        }
    }
}
