use std::time::Duration;

use crate::REFRESH;

/// Timer that decides when operators are told of something that should not be: once it has been so
/// for a while, and again now and then for as long as it lasts. Times are monotonic.
#[derive(Debug, Clone)]
pub struct Alarm {
    after: Duration,
    every: Duration,
    since: Option<Duration>,
    reported: Option<Duration>,
}

/// Goes off at once, and again as often as faults are renewed.
impl Default for Alarm {
    fn default() -> Self {
        Alarm::after(Duration::ZERO)
    }
}

impl Alarm {
    /// Goes off when it has been so for `after`, and again as often as faults are renewed.
    pub const fn after(after: Duration) -> Self {
        Alarm::new(after, REFRESH)
    }

    /// Goes off when it has been so for `after`, and again each `every`.
    pub const fn new(after: Duration, every: Duration) -> Self {
        Alarm { after, every, since: None, reported: None }
    }

    /// Begins the alarm: it is so since `at`, if that was not known. Returns whether it is news.
    pub fn begin(&mut self, at: Duration) -> bool {
        let is_news = self.since.is_none();
        self.since.get_or_insert(at);
        is_news
    }

    /// Ends the alarm. Returns whether it was on.
    pub fn end(&mut self) -> bool {
        self.reported = None;
        self.since.take().is_some()
    }

    /// Whether it goes on, and operators were told.
    pub fn was_reported(&self) -> bool {
        self.reported.is_some()
    }

    /// Takes in whether it is so `now`. Returns what is to be told of it, if it is time for that.
    pub fn due<T>(&mut self, found: Option<T>, now: Duration) -> Option<T> {
        let Some(found) = found else {
            self.end();
            return None;
        };
        self.begin(now);
        let is_over =
            |from: Option<Duration>, long| from.is_none_or(|from| now.saturating_sub(from) >= long);
        if !is_over(self.since, self.after) || !is_over(self.reported, self.every) {
            return None;
        }
        self.reported = Some(now);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_lasts_is_reported_after_a_while_and_now_and_then() {
        let mut alarm = Alarm::new(at(15), at(300));
        assert_eq!(alarm.due(Some("down"), at(100)), None);
        assert_eq!(alarm.due(None::<&str>, at(110)), None, "it was mended in between");
        assert_eq!(alarm.due(Some("down"), at(120)), None);
        assert_eq!(alarm.due(Some("down"), at(135)), Some("down"));
        assert_eq!(alarm.due(Some("down still"), at(140)), None);
        assert_eq!(alarm.due(Some("down still"), at(435)), Some("down still"));
    }

    #[test]
    fn what_is_to_be_reported_at_once_is() {
        let mut alarm = Alarm::new(Duration::ZERO, at(300));
        assert_eq!(alarm.due(Some(()), at(100)), Some(()));
        assert!(alarm.was_reported());
        assert_eq!(alarm.due(Some(()), at(399)), None);
        assert!(alarm.end() && !alarm.was_reported() && !alarm.end());
        assert_eq!(alarm.due(Some(()), at(399)), Some(()), "it began anew");
    }

    #[test]
    fn what_was_so_before_it_was_seen_counts_from_then() {
        let mut alarm = Alarm::new(at(15), at(60));
        assert!(alarm.begin(at(100)));
        assert!(!alarm.begin(at(110)), "that is known");
        assert_eq!(alarm.due(Some(()), at(115)), Some(()));
    }
}
