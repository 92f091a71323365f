//! Waiting for a state: the client's request sleeps until the view shows what it waits for.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use pvc_model::cluster::Cluster;

use crate::error::{ApiError, Result};
use crate::state::ApiState;

/// What a look at the view says about a wait.
pub enum Look<T> {
    Done(T),
    NotYet,
}

/// Returns when `look` says so; it is asked now and after every change that this process sees.
///
/// # Errors
/// 503 when the daemon stops or too many wait already, 504 when it takes too long; otherwise what
/// `look` says. Dropping the future ends the wait.
pub async fn until<T>(
    api: &ApiState,
    what: &str,
    mut look: impl FnMut(&Cluster) -> Result<Look<T>>,
) -> Result<T> {
    let _place = Arc::clone(api.waits()).try_acquire_owned().map_err(|_| crowded())?;
    let limit = api.settings().limits.wait_time;
    let mut changed = api.store().changed();
    let deadline = api.clock().sleep(limit);
    tokio::pin!(deadline);
    loop {
        changed.borrow_and_update();
        if let Look::Done(outcome) = look(&api.view())? {
            return Ok(outcome);
        }
        tokio::select! {
            biased;
            () = api.stopping().cancelled() => return Err(stopping(what)),
            () = &mut deadline => return Err(too_long(what, limit)),
            changed = changed.changed() => changed.map_err(|_| stopping(what))?,
        }
    }
}

fn crowded() -> ApiError {
    let message = "too many requests are waiting for a state already; the change itself was made";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_after(5)
}

fn stopping(what: &str) -> ApiError {
    let message =
        format!("the API is being stopped; the change was made, but nobody waits for {what} any more");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

fn too_long(what: &str, limit: Duration) -> ApiError {
    let message = format!("{what} did not come within {} s; the change itself was made", limit.as_secs());
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, message)
        .hint(Some("look at the VM with `pvc vm info` and at its node's log with `pvc node log`"))
}
