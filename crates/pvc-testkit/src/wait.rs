use std::time::Duration;

/// Polls `ready` every 10 ms until it holds.
///
/// # Panics
/// After `deadline`, saying `what` never came true.
pub async fn eventually(what: &str, deadline: Duration, mut ready: impl FnMut() -> bool) {
    eventually_some(what, deadline, || ready().then_some(())).await;
}

/// Waits as [`eventually`] does, for something that is there at the end.
pub async fn eventually_some<T>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> T {
    let end = tokio::time::Instant::now() + deadline;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "not within {deadline:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
