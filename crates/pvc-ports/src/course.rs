use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// Course of an act on the storage that takes long: how far it is, and whether it is to stop.
/// Shared by who does it and who waits for it; cheap to clone.
#[derive(Debug, Clone)]
pub struct Course {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    stop: watch::Sender<bool>,
    bytes: AtomicU64,
    /// Bytes in all; 0 while nobody knows.
    of: AtomicU64,
    /// Volumes that are done, and their number in all, where volumes count and not bytes.
    volumes: watch::Sender<Option<(usize, usize)>>,
    confirmation: watch::Sender<Confirmation>,
}

/// State of the confirmation that the moment of which something is made may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confirmation {
    NotRequired,
    Required,
    Asked,
    Given,
    Refused,
}

const SENDER: &str = "this course has the sender";

impl Default for Course {
    /// Makes the course of an act of which nothing is done.
    fn default() -> Self {
        let (bytes, of) = (AtomicU64::new(0), AtomicU64::new(0));
        let confirmation = watch::Sender::new(Confirmation::NotRequired);
        let (stop, volumes) = (watch::Sender::new(false), watch::Sender::new(None));
        Course { state: Arc::new(State { stop, bytes, of, volumes, confirmation }) }
    }
}

impl Course {
    /// Says how many bytes there are to go through.
    pub fn announce(&self, bytes: u64) {
        self.state.of.store(bytes, Ordering::Relaxed);
    }

    /// Says how many of them are done.
    pub fn reach(&self, bytes: u64) {
        self.state.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns how many bytes are done.
    pub fn bytes(&self) -> u64 {
        self.state.bytes.load(Ordering::Relaxed)
    }

    /// Returns how many bytes there are in all, once that is known.
    pub fn of(&self) -> Option<u64> {
        Some(self.state.of.load(Ordering::Relaxed)).filter(|of| *of > 0)
    }

    /// Says how many of so many volumes are done, where each of them is one step.
    pub fn count(&self, volumes: usize, of: usize) {
        self.state.volumes.send_replace(Some((volumes, of)));
    }

    /// Returns how many volumes are done and how many there are in all, where they are counted.
    pub fn volumes(&self) -> Option<(usize, usize)> {
        *self.state.volumes.borrow()
    }

    /// Asks the act to stop. One that is nearly done may come to its end all the same.
    pub fn stop(&self) {
        self.state.stop.send_replace(true);
    }

    pub fn is_stopped(&self) -> bool {
        *self.state.stop.borrow()
    }

    /// Returns when the act is asked to stop.
    pub async fn stopped(&self) {
        let mut stop = self.state.stop.subscribe();
        stop.wait_for(|stop| *stop).await.expect(SENDER);
    }

    /// Demands that who makes something asks, by [`confirmed`](Course::confirmed), whether the
    /// moment of which it is made is one that may be kept: whoever demands it must answer.
    pub fn require_confirmation(&self) {
        self.state.confirmation.send_replace(Confirmation::Required);
    }

    /// Asks whether that moment may be kept, and returns the answer, if one is required. It may not
    /// if the act is asked to stop meanwhile.
    pub async fn confirmed(&self) -> bool {
        let mut answer = self.state.confirmation.subscribe();
        self.state.confirmation.send_if_modified(|now| {
            let is_required = *now == Confirmation::Required;
            if is_required {
                *now = Confirmation::Asked;
            }
            is_required
        });
        tokio::select! {
            biased;
            () = self.stopped() => false,
            answered = answer.wait_for(|now| *now != Confirmation::Asked) => {
                *answered.expect(SENDER) != Confirmation::Refused
            }
        }
    }

    /// Returns when somebody asks whether the moment may be kept.
    pub async fn confirmation_asked(&self) {
        let mut asked = self.state.confirmation.subscribe();
        asked.wait_for(|now| *now == Confirmation::Asked).await.expect(SENDER);
    }

    /// Answers whether it may.
    pub fn confirm(&self, is_kept: bool) {
        let answer = if is_kept { Confirmation::Given } else { Confirmation::Refused };
        self.state.confirmation.send_replace(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::Course;

    #[tokio::test]
    async fn who_waits_and_who_does_it_share_the_course() {
        let course = Course::default();
        assert_eq!((course.bytes(), course.of(), course.is_stopped()), (0, None, false));
        let doer = course.clone();
        doer.announce(8);
        doer.reach(3);
        assert_eq!((course.bytes(), course.of()), (3, Some(8)));
        assert_eq!(course.volumes(), None, "nobody counts them");
        doer.count(1, 2);
        assert_eq!(course.volumes(), Some((1, 2)));
        let ((), ()) = tokio::join!(doer.stopped(), async { course.stop() });
        assert!(doer.is_stopped());
        doer.stopped().await;
    }

    #[tokio::test]
    async fn a_moment_is_kept_if_nobody_demands_to_be_asked_or_he_says_so() {
        let course = Course::default();
        assert!(course.confirmed().await, "nobody demands it");
        for is_kept in [true, false] {
            course.require_confirmation();
            let answer = async {
                course.confirmation_asked().await;
                course.confirm(is_kept);
            };
            let (confirmed, ()) = tokio::join!(course.confirmed(), answer);
            assert_eq!(confirmed, is_kept);
        }
        course.require_confirmation();
        let (confirmed, ()) = tokio::join!(course.confirmed(), async { course.stop() });
        assert!(!confirmed, "it was asked to stop");
    }
}
