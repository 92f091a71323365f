//! Slots for what many may ask for at once: so many for all callers, and half of them for each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use pvc_ports::aside;

use crate::error::{ApiError, Result};

#[derive(Debug)]
pub struct Slots {
    most: usize,
    /// Seconds after which it is worth asking for one again.
    retry_after: u64,
    taken: Mutex<BTreeMap<String, usize>>,
}

/// A slot, which is free again when this is dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    caller: String,
}

impl Slots {
    /// Slots for what goes on for minutes.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Slots { most, retry_after: 30, taken: Mutex::default() })
    }

    /// Slots for what is over in a moment.
    pub fn brief(most: usize) -> Arc<Self> {
        Arc::new(Slots { most, retry_after: 1, taken: Mutex::default() })
    }

    /// Takes a slot for a caller; `what` is what it is for, in the plural.
    pub fn take(self: &Arc<Self>, caller: &str, what: &str) -> Result<Slot> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.values().sum();
        let own = taken.get(caller).copied().unwrap_or(0);
        if all >= self.most || own >= self.most.div_ceil(2) {
            let message = format!("{all} {what} are under way, {own} of them yours: no more now");
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
                .retry_after(self.retry_after));
        }
        *taken.entry(caller.to_owned()).or_default() += 1;
        Ok(Slot { slots: self.clone(), caller: caller.to_owned() })
    }
}

impl Slot {
    pub fn caller(&self) -> &str {
        &self.caller
    }

    /// Does `work` [aside], in this slot until it has ended: it goes on if nobody waits for it any
    /// more.
    pub async fn aside<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> T {
        aside(move || {
            let _slot = self;
            work()
        })
        .await
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_does_not_get_all_places() {
        let slots = Slots::new(4);
        let first: Vec<_> = (0..2).map(|_| slots.take("a", "uploads").unwrap()).collect();
        let refused = slots.take("a", "uploads").unwrap_err();
        assert_eq!(refused.body.message, "2 uploads are under way, 2 of them yours: no more now");
        assert_eq!(refused.retry_after, Some(30));
        let _second: Vec<_> = (0..2).map(|_| slots.take("b", "uploads").unwrap()).collect();
        assert_eq!(slots.take("c", "uploads").unwrap_err().status, 503);
        drop(first);
        assert!(slots.take("a", "uploads").is_ok());
        assert!(slots.take("c", "uploads").is_ok(), "that slot was free again at once");
    }
}
