//! Places that callers share, so that none of them keeps all others from theirs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places of which each caller gets some at most.
#[derive(Debug, Clone)]
pub struct Shared {
    all: Arc<Semaphore>,
    each: usize,
    callers: Arc<Mutex<BTreeMap<String, Weak<Semaphore>>>>,
}

/// A place, which is free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Shared {
    /// Makes `all` places, of which one caller gets `each` at most.
    pub fn new(all: usize, each: usize) -> Self {
        Shared { all: Arc::new(Semaphore::new(all)), each, callers: Arc::default() }
    }

    /// Waits for a place: first for one of the caller's own, so that whoever has taken all of these
    /// stands in nobody's way.
    ///
    /// # Cancellation
    /// Dropping the future gives up the place in the queue.
    pub async fn take(&self, caller: &str) -> Place {
        let own = self.own(caller).acquire_owned().await.expect("it is never closed");
        let of_all = self.all.clone().acquire_owned().await.expect("it is never closed");
        Place { _own: own, _of_all: of_all }
    }

    /// The places of a caller. They are known for as long as somebody has one, or waits for it.
    fn own(&self, caller: &str) -> Arc<Semaphore> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        callers.retain(|_, own| own.strong_count() > 0);
        if let Some(own) = callers.get(caller).and_then(Weak::upgrade) {
            return own;
        }
        let own = Arc::new(Semaphore::new(self.each));
        callers.insert(caller.to_owned(), Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Place that is there at once.
    fn taken(places: &Shared, caller: &str) -> Option<Place> {
        match pin!(places.take(caller)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(place) => Some(place),
            Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn one_caller_does_not_get_all_places_and_who_is_gone_is_forgotten() {
        let places = Shared::new(3, 2);
        let first = [taken(&places, "a"), taken(&places, "a")];
        assert!(first.iter().all(Option::is_some) && taken(&places, "a").is_none());
        let second = taken(&places, "b").expect("it waits for nobody");
        assert!(taken(&places, "b").is_none() && taken(&places, "c").is_none(), "all are taken");
        drop(first);
        assert!(taken(&places, "c").is_some() && taken(&places, "a").is_some());
        drop(second);
        assert!(taken(&places, "c").is_some());
        assert_eq!(places.callers.lock().expect("nobody panics").len(), 1);
    }
}
