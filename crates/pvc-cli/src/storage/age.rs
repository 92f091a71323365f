//! Age of what is shown of the storage, which stays while the storage is silent.

use std::time::{SystemTime, UNIX_EPOCH};

use pvc_client::Payload;
use serde::de::DeserializeOwned;

use crate::context::Pvc;
use crate::output::units;

/// Seconds after which figures are called old: answers are recorded once a minute.
const OLD: u64 = 120;

/// The age in seconds of something that the storage answered at `answered_at`, as the server reads
/// its clock. Clocks of nodes differ: what comes from the future is new.
pub fn of<T: DeserializeOwned>(answer: &Payload<T>, answered_at: Option<u64>) -> Option<u64> {
    let own = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let now = answer.served_at().unwrap_or_else(own);
    answered_at.map(|at| now.saturating_sub(at))
}

/// An age as words that go on after what is as old.
pub fn words(seconds: u64) -> String {
    format!("as of {} ago", units::age(i64::try_from(seconds).unwrap_or(i64::MAX)))
}

/// Says it if `what` is old.
pub fn note(pvc: &Pvc, what: &str, age: Option<u64>) {
    if let Some(text) = note_text(what, age) {
        pvc.note(&text);
    }
}

fn note_text(what: &str, age: Option<u64>) -> Option<String> {
    let age = words(age.filter(|age| *age > OLD)?);
    Some(format!(
        "({what} {age}: the storage has not answered since, or no node has asked it; `pvc cluster \
         fault list` may say why)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_old_after_two_minutes() {
        for age in [None, Some(0), Some(120)] {
            assert_eq!(note_text("figures", age), None);
        }
        let note = note_text("figures", Some(300)).unwrap();
        assert!(note.starts_with("(figures as of 5 minutes ago: the storage has not"), "{note}");
        assert_eq!(words(u64::MAX).split(' ').next_back(), Some("ago"));
    }
}
