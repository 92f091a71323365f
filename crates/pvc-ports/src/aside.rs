//! Work that takes its time.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Does `work` where it keeps no other task of this process from its turn. It goes on if nobody
/// waits for it any more.
///
/// On a runtime of a single thread it is done at once, here: a simulated world has one, and what
/// happens in it must not depend on when another thread is through.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and nobody waits any more.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::aside;

    async fn is_done_here() -> bool {
        let here = std::thread::current().id();
        aside(move || std::thread::current().id() == here).await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn work_is_done_on_a_thread_of_its_own() {
        assert!(!is_done_here().await);
    }

    #[tokio::test]
    async fn where_there_is_one_thread_work_is_done_there() {
        assert!(is_done_here().await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    #[should_panic(expected = "a bug")]
    async fn a_panic_of_the_work_is_one_of_who_waits_for_it() {
        aside(|| panic!("a bug")).await
    }
}
