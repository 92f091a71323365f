//! Last answer of the storage, whose time is kept in the store beside what it answered.

use pvc_model::answered::{AnsweredRecord, Question};
use pvc_role::Context;
use pvc_store::Report;

/// Moments of the last answers, as this process knows them while it is the one who asks.
#[derive(Default)]
pub(crate) struct Answered(Option<AnsweredRecord>);

impl Answered {
    /// Notes which questions that were asked at `at` were answered. Returns what is to be written.
    pub fn note(
        &mut self,
        context: &Context,
        at: u64,
        outcomes: impl IntoIterator<Item = (Question, bool)>,
    ) -> Option<Report> {
        let written = context.store.view().answered.clone();
        let known = self.0.get_or_insert_with(|| {
            AnsweredRecord::taken_over(context.name().clone(), written.as_deref())
        });
        for (question, is_answered) in outcomes {
            known.note(question, at, is_answered);
        }
        known.is_due(written.as_deref()).then(|| Report::StorageAnswered(known.clone()))
    }

    /// Forgets them: another node asks now.
    pub fn forget(&mut self) {
        self.0 = None;
    }
}
