//! Why the store or an operation said no, as a reply.

use axum::http::StatusCode;
use pvc_ports::TreeError;
use pvc_store::{ChangeError, RestoreError, StoreError};

use crate::error::{ApiError, with_causes};

/// A refusal of the store.
pub fn store_error(error: StoreError) -> ApiError {
    let status = match &error {
        StoreError::AlreadyInitialized => StatusCode::BAD_REQUEST,
        StoreError::TooLarge { .. } => StatusCode::BAD_REQUEST,
        StoreError::NotInitialized
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

/// A change that was not made.
pub fn change_error<E: Into<ApiError>>(error: ChangeError<E>) -> ApiError {
    match error {
        ChangeError::Refused(why) => why.into(),
        ChangeError::Store(error) => store_error(error),
        ChangeError::Conflict { tries } => {
            let message = format!("the records were changed by somebody else {tries} times in a row");
            ApiError::new(StatusCode::CONFLICT, message).hint(Some("try it again"))
        }
    }
}

/// A restore that was not made, or not to its end.
pub fn restore_error(error: RestoreError) -> ApiError {
    let hint = error.hint();
    match error {
        RestoreError::Stopped { .. } => {
            let message = with_causes(&error);
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).hint(hint)
        }
        error => ApiError::refused(with_causes(&error)).hint(hint),
    }
}
