//! Whether a node's copy of the cluster's own database follows, and what is done when it does not.
//!
//! ```text
//!   well ──not well──▶ watched ──1 min──▶ a fault ──2 min──▶ restarted, once
//!     ▲                   │                   │                  │
//!     └──── well: at once, or after a restart when it was well for 10 minutes ─┘
//! ```

use std::time::Duration;

/// State of a member of the database, as its manager reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Whether its copy takes writes.
    pub leads: bool,
    /// State, in the manager's word, or that its copy is ahead of the leader, for which the manager
    /// has none; `None` if the cluster of the database does not know the member, or the manager not
    /// the cluster.
    pub state: Option<String>,
    /// Time at which the manager last had contact with ZooKeeper, since the epoch by this machine's
    /// clock, if it says so.
    pub last_contact: Option<Duration>,
}

/// Reason why a member is unhealthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub why: String,
    /// Whether a new start of its manager may help and does no harm.
    pub restart: bool,
}

/// Time that a manager may be without ZooKeeper while this node has it.
const LONGEST_SILENCE: Duration = Duration::from_secs(90);

impl Member {
    /// Returns what is wrong with the member at `wall`, since the epoch. One that leads is never
    /// started again: it may be the only one that is well. Neither is one that is still being made,
    /// which would begin anew, or that somebody has stopped.
    pub fn trouble(&self, wall: Duration) -> Option<Trouble> {
        let restart = !self.leads;
        if let Some(silence) =
            self.last_contact.map(|at| wall.saturating_sub(at)).filter(|s| *s > LONGEST_SILENCE)
        {
            let why = format!(
                "its Patroni has had no contact with ZooKeeper for {} s",
                silence.as_secs()
            );
            return Some(Trouble { why, restart });
        }
        match self.state.as_deref() {
            Some("running" | "streaming" | "in archive recovery") => None,
            Some(state @ ("start failed" | "crashed")) => {
                Some(Trouble { why: format!("its state is `{state}`"), restart })
            }
            Some(state) => Some(Trouble { why: format!("its state is `{state}`"), restart: false }),
            // One that has heard of ZooKeeper lately makes the database's cluster just now, or
            // waits until another has.
            None => {
                let restart = restart && self.last_contact.is_none();
                Some(Trouble { why: "the database's cluster does not know it".to_owned(), restart })
            }
        }
    }
}

/// Time that something is wrong before it is a fault.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Time that something is wrong before the manager is started again.
const RESTART_AFTER: Duration = Duration::from_secs(120);

/// Time that a member is well before the next trouble is another.
const WELL: Duration = Duration::from_secs(600);

/// Interval at which a fault that goes on is raised again.
const REFRESH: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    Nothing,
    /// Raise the fault, or keep it up.
    Raise(String),
    /// Raise it, and start the manager again.
    Restart(String),
}

/// Memory of a member between two looks. All times are monotonic.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    unwell: Option<Duration>,
    well: Option<Duration>,
    raised_at: Option<Duration>,
    restarted: bool,
}

impl Watch {
    /// Nothing can be known: this node has no ZooKeeper itself, or the manager is not to run.
    pub fn pause(&mut self) {
        (self.unwell, self.well) = (None, None);
    }

    pub fn look(&mut self, trouble: Option<Trouble>, now: Duration) -> Act {
        let Some(trouble) = trouble else {
            (self.unwell, self.raised_at) = (None, None);
            let well = *self.well.get_or_insert(now);
            self.restarted &= now.saturating_sub(well) < WELL;
            return Act::Nothing;
        };
        self.well = None;
        let lasts = now.saturating_sub(*self.unwell.get_or_insert(now));
        if lasts >= RESTART_AFTER && trouble.restart && !self.restarted {
            (self.restarted, self.raised_at) = (true, Some(now));
            return Act::Restart(trouble.why);
        }
        let is_due = self.raised_at.is_none_or(|at| now.saturating_sub(at) >= REFRESH);
        if lasts < TIME_LIMIT || !is_due {
            return Act::Nothing;
        }
        self.raised_at = Some(now);
        Act::Raise(trouble.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn member(leads: bool, state: &str) -> Member {
        Member { leads, state: Some(state.to_owned()), last_contact: Some(seconds(1000)) }
    }

    #[test]
    fn a_member_that_does_not_stream_or_hears_nothing_is_in_trouble_and_a_leader_is_not_restarted()
    {
        let restart =
            |member: &Member, wall| member.trouble(seconds(wall)).map(|trouble| trouble.restart);
        for (member, wall, expected) in [
            (member(false, "streaming"), 1010, None),
            (member(false, "running"), 1010, None),
            (member(true, "running"), 1010, None),
            (Member { last_contact: None, ..member(false, "running") }, 9000, None),
            (member(false, "running"), 900, None),
            // Its manager lost its session and loops; what it says of the cluster is what it last
            // knew.
            (member(false, "running"), 1100, Some(true)),
            (member(true, "running"), 1100, Some(false)),
            (member(false, "start failed"), 1010, Some(true)),
            (member(true, "start failed"), 1010, Some(false)),
            (member(false, "creating replica"), 1010, Some(false)),
            // As in a cluster that is being made, which took more than two minutes on a busy
            // machine.
            (Member { state: None, ..member(false, "") }, 1010, Some(false)),
            (Member { state: None, ..member(false, "") }, 1100, Some(true)),
            (Member { state: None, last_contact: None, ..member(false, "") }, 1010, Some(true)),
        ] {
            assert_eq!(restart(&member, wall), expected, "{member:?} {wall}");
        }
    }

    fn acts(looks: impl IntoIterator<Item = (u64, bool, bool)>) -> Vec<(u64, &'static str)> {
        let mut watch = Watch::default();
        let look = |(at, is_well, restart): (u64, bool, bool)| {
            let trouble = (!is_well).then(|| Trouble { why: "odd".to_owned(), restart });
            match watch.look(trouble, seconds(at)) {
                Act::Nothing => None,
                Act::Raise(_) => Some((at, "raise")),
                Act::Restart(_) => Some((at, "restart")),
            }
        };
        looks.into_iter().filter_map(look).collect()
    }

    #[test]
    fn trouble_that_lasts_is_reported_and_ended_by_one_restart_and_no_second() {
        let long = (0..1000).step_by(10).map(|at| (at, false, true));
        assert_eq!(acts(long), [(60, "raise"), (120, "restart"), (420, "raise"), (720, "raise")]);
        let leads = (0..400).step_by(10).map(|at| (at, false, false));
        assert_eq!(acts(leads), [(60, "raise"), (360, "raise")]);
        let short = (0..1000).step_by(10).map(|at| (at, at % 50 == 0, true));
        assert_eq!(acts(short), []);
    }

    #[test]
    fn what_comes_back_soon_is_the_same_trouble_and_later_another() {
        let restarts = |well_until: u64| {
            let looks = (0..well_until + 200).step_by(10);
            let looks = looks.map(|at| (at, (130..well_until).contains(&at), true));
            acts(looks).into_iter().filter(|(_, act)| *act == "restart").count()
        };
        assert_eq!(restarts(300), 1);
        assert_eq!(restarts(900), 2);
    }
}
