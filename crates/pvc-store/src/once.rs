//! Messages that are said once in the log, however often their cause is seen.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Largest number of different messages that are said; of more than that nothing would be read.
const MOST: usize = 1_000;

/// Whether `what` is to be said now: nobody has said it since this process began.
pub(crate) fn is_new(what: &str) -> bool {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    said.len() < MOST && !said.contains(what) && said.insert(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_said_once_and_not_any_number_of_them() {
        assert!(is_new("a") && !is_new("a") && is_new("b"));
        let said = (0..2 * MOST).filter(|number| is_new(&format!("message {number}"))).count();
        assert!(said <= MOST && !is_new("c"));
    }
}
