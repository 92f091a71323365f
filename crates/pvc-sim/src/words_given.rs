//! The last word about whatever operators add and remove, as it was given to them.

use std::collections::BTreeMap;

use crate::operators::Answer;

/// Word that was given to operators about its subject: a network, a snapshot, a pool.
#[derive(Default)]
struct Word {
    under_way: u32,
    /// Several asks were under way at once, or one was never answered for certain: nobody knows
    /// which of them came last, or whether one is still to come.
    is_open: bool,
    is_there: Option<bool>,
}

/// The words about all subjects of a kind.
pub(crate) struct WordsGiven<T>(BTreeMap<T, Word>);

impl<T> Default for WordsGiven<T> {
    fn default() -> Self {
        WordsGiven(BTreeMap::new())
    }
}

impl<T: Ord> WordsGiven<T> {
    /// Somebody asks for something about these.
    pub fn asked(&mut self, subjects: impl IntoIterator<Item = T>) {
        for subject in subjects {
            let word = self.0.entry(subject).or_default();
            word.is_open |= word.under_way > 0;
            word.under_way += 1;
        }
    }

    /// Each of these is there, or is not, if what was asked for is done by this answer.
    pub fn answered(&mut self, goals: impl IntoIterator<Item = (T, bool)>, answer: &Answer) {
        for (subject, is_there) in goals {
            let word = self.0.entry(subject).or_default();
            word.under_way = word.under_way.saturating_sub(1);
            match answer {
                Some(Ok(())) => word.is_there = Some(is_there),
                Some(Err(refusal)) if refusal.is_final => {}
                Some(Err(_)) | None => word.is_open = true,
            }
        }
    }

    /// Nothing is promised any more of the subjects that are meant.
    pub fn leave_open(&mut self, is_meant: impl Fn(&T) -> bool) {
        let meant = self.0.iter_mut().filter(|(subject, _)| is_meant(subject));
        meant.for_each(|(_, word)| word.is_open = true);
    }

    /// Whether nobody knows what came of the last asks for it.
    pub fn is_open(&self, subject: &T) -> bool {
        self.0.get(subject).is_some_and(|word| word.is_open)
    }

    /// The subjects of which the last word is known, and whether it was that they are there.
    pub fn settled(&self) -> impl Iterator<Item = (&T, bool)> {
        let known = self.0.iter().filter(|(_, word)| !word.is_open);
        known.filter_map(|(subject, word)| Some((subject, word.is_there?)))
    }
}
