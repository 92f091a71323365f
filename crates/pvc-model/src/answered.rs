//! Age of what is shown of the storage: when each question about it was answered last.
//!
//! What is recorded of the storage stays while it is silent, and is written only when it changes.
//! So neither its words nor the time of their writing say how old they are. Whoever asks the
//! storage keeps this beside them: seconds of its own clock.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::NodeName;
use crate::cluster::Cluster;

/// Seconds after which a later answer is written, as long as the storage answers.
pub const REWRITTEN_AFTER: u64 = 60;

/// A question that is asked of the storage again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    Status,
    Health,
    /// Fill of the storage, in words.
    Usage,
    /// Figures of the pools.
    Pools,
    /// Figures of the OSDs.
    Osds,
}

impl Question {
    pub const ALL: [Question; 5] =
        [Question::Status, Question::Health, Question::Usage, Question::Pools, Question::Osds];

    pub fn as_str(self) -> &'static str {
        match self {
            Question::Status => "status",
            Question::Health => "health",
            Question::Usage => "usage",
            Question::Pools => "pools",
            Question::Osds => "OSDs",
        }
    }

    pub fn parse(word: &str) -> Option<Question> {
        Question::ALL.into_iter().find(|question| question.as_str() == word)
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Moments of the last answers, and who has asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnsweredRecord {
    pub by: NodeName,
    /// Seconds since the epoch at which the question was asked that was answered last.
    pub at: BTreeMap<Question, u64>,
    /// Questions that were not answered when they were asked last.
    pub silent: BTreeSet<Question>,
}

impl AnsweredRecord {
    /// The record of a node that asks for the first time: what another was told before stays.
    pub fn taken_over(by: NodeName, before: Option<&AnsweredRecord>) -> AnsweredRecord {
        let at = before.map(|record| record.at.clone()).unwrap_or_default();
        AnsweredRecord { by, at, silent: BTreeSet::new() }
    }

    /// Notes whether a question that was asked at `at` was answered.
    pub fn note(&mut self, question: Question, at: u64, is_answered: bool) {
        if is_answered {
            self.at.insert(question, at);
            self.silent.remove(&question);
        } else {
            self.silent.insert(question);
        }
    }

    /// Tells whether it is to be written over what is `written`: at once if another node asks now,
    /// or the storage falls silent or answers again, and otherwise now and then.
    pub fn is_due(&self, written: Option<&AnsweredRecord>) -> bool {
        let Some(written) = written else { return true };
        let is_late = |(question, at): (&Question, &u64)| {
            // A clock that was set back counts as well.
            written.at.get(question).is_none_or(|then| at.abs_diff(*then) >= REWRITTEN_AFTER)
        };
        (&self.by, &self.silent) != (&written.by, &written.silent) || self.at.iter().any(is_late)
    }
}

/// The moment at which the question was asked whose answer is recorded, in seconds since the epoch
/// of the clock of who asked it; `None` if nobody knows.
///
/// The primary asks. While that is a legacy peer, what one of ours has left says nothing about what
/// is recorded since.
pub fn answered_at(cluster: &Cluster, question: Question) -> Option<u64> {
    let record = cluster.answered.as_ref()?;
    let is_of_primary = cluster.config.primary.as_ref().is_none_or(|name| *name == record.by);
    record.at.get(&question).copied().filter(|_| is_of_primary)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn record(by: &str, at: u64, silent: &[Question]) -> AnsweredRecord {
        AnsweredRecord {
            by: NodeName::new(by),
            at: BTreeMap::from([(Question::Status, at), (Question::Pools, 1000)]),
            silent: silent.iter().copied().collect(),
        }
    }

    #[test]
    fn answers_are_written_once_a_minute_and_a_silence_with_its_end_at_once() {
        let (none, status): (&[Question], &[Question]) = (&[], &[Question::Status]);
        let before = record("hv1", 1000, none);
        for (known, is_due) in [
            (record("hv1", 1000, none), false),
            (record("hv1", 1059, none), false),
            (record("hv1", 1060, none), true),
            (record("hv1", 941, none), false),
            (record("hv1", 940, none), true),
            (record("hv1", 1005, status), true),
            (record("hv2", 1000, none), true),
        ] {
            assert_eq!(known.is_due(Some(&before)), is_due, "{known:?}");
            assert!(known.is_due(None));
        }
        let silent = record("hv1", 1000, status);
        assert!(record("hv1", 1005, none).is_due(Some(&silent)), "it answers again");
        assert!(!silent.is_due(Some(&silent)), "and while it is silent nothing is written");
        let mut more = before.clone();
        more.note(Question::Osds, 1001, true);
        assert!(more.is_due(Some(&before)), "nothing was known of them");
    }

    #[test]
    fn an_answer_moves_its_stamp_and_silence_leaves_it() {
        let mut known = AnsweredRecord::taken_over(NodeName::new("hv1"), None);
        known.note(Question::Status, 5, true);
        known.note(Question::Pools, 5, true);
        known.note(Question::Status, 9, false);
        known.note(Question::Pools, 9, true);
        assert_eq!(known.at, BTreeMap::from([(Question::Status, 5), (Question::Pools, 9)]));
        assert_eq!(known.silent, BTreeSet::from([Question::Status]));
        known.note(Question::Status, 12, true);
        assert_eq!((known.at[&Question::Status], known.silent.len()), (12, 0));

        let other = AnsweredRecord::taken_over(NodeName::new("hv2"), Some(&known));
        assert_eq!((other.by.as_str(), &other.at), ("hv2", &known.at));
        assert!(other.is_due(Some(&known)), "whoever asks now says so");
    }

    #[test]
    fn what_a_legacy_primary_has_collected_has_no_known_age() {
        let mut cluster = Cluster::default();
        assert_eq!(answered_at(&cluster, Question::Status), None);
        cluster.answered = Some(Arc::new(record("hv1", 7, &[])));
        for (primary, expected) in [(None, Some(7)), (Some("hv1"), Some(7)), (Some("hv2"), None)] {
            cluster.config.primary = primary.map(NodeName::new);
            assert_eq!(answered_at(&cluster, Question::Status), expected, "{primary:?}");
        }
        cluster.config.primary = None;
        assert_eq!(answered_at(&cluster, Question::Osds), None);
    }

    #[test]
    fn a_question_has_one_word() {
        for question in Question::ALL {
            assert_eq!(Question::parse(question.as_str()), Some(question));
        }
        assert_eq!(Question::parse("osds"), None);
    }
}
