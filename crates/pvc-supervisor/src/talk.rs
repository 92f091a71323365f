//! Lines that a program writes, into the log, within bounds.

use std::time::Duration;

/// Number of lines of one program that are logged in each [`WINDOW`].
const MOST_LINES: u32 = 200;

const WINDOW: Duration = Duration::from_secs(10);

/// Logs the lines of one program. A program that writes without end must not drown the log of its
/// daemon: what is too much is counted, and the count is logged.
pub struct Talk {
    name: String,
    since: Duration,
    lines: u32,
    left_out: u64,
}

impl Talk {
    pub fn new(name: &str, now: Duration) -> Self {
        Talk { name: name.to_owned(), since: now, lines: 0, left_out: 0 }
    }

    pub fn line(&mut self, line: &str, now: Duration) {
        if let Some(left_out) = self.count(now) {
            tracing::info!(program = self.name, "({left_out} lines were left out)");
        }
        if self.lines <= MOST_LINES {
            tracing::info!(program = self.name, "{line}");
        }
    }

    /// Counts a line at `now`. Returns how many were left out before, if a new window begins.
    fn count(&mut self, now: Duration) -> Option<u64> {
        let mut before = None;
        if now.saturating_sub(self.since) >= WINDOW {
            before = Some(std::mem::take(&mut self.left_out)).filter(|count| *count > 0);
            (self.since, self.lines) = (now, 0);
        }
        self.lines = self.lines.saturating_add(1);
        if self.lines > MOST_LINES {
            self.left_out += 1;
        }
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_lines_is_counted_and_a_trickle_is_not() {
        let mut talk = Talk::new("dnsmasq", Duration::ZERO);
        let first = Duration::from_secs(1);
        for _ in 0..MOST_LINES + 7 {
            assert_eq!(talk.count(first), None);
        }
        assert_eq!(talk.left_out, 7);
        assert_eq!(talk.count(WINDOW), Some(7));
        for second in 0..1000 {
            assert_eq!(talk.count(WINDOW + Duration::from_secs(second)), None);
        }
    }
}
