//! Transfers as jobs: an API daemon begins them when a client asks, and nobody goes on with them.

use super::course::Failure;
use super::{JobProgress, JobState};
use crate::NodeName;
use crate::refusal::Kind;
use crate::transfer::Transferred;

/// The most characters that are recorded of a result, or of a reason.
const MOST_CHARACTERS: usize = 500;

/// End of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransferEnd {
    /// All of it has gone and was taken, with this result.
    Whole(String),
    /// Reason why it failed.
    Failed(String),
    /// Nobody takes or sends any more, and nobody said why.
    ClientGone,
    /// The API daemon has ended without a word, or was cut off from the store for too long. Then it
    /// records the transfer anew.
    DaemonGone,
}

impl JobProgress {
    /// Progress of a transfer by the API daemon of `node`, which has begun at `started_at`.
    pub fn of_transfer(node: NodeName, started_at: u64, gone: Transferred) -> Self {
        let (worker, started_at) = (Some(node), Some(started_at));
        let begun = JobProgress { state: JobState::Running, worker, started_at, ..Self::pending() };
        begun.transferred(gone, None)
    }

    /// Progress of a change of the storage by the API daemon of `node`, which has begun at
    /// `started_at`: nobody counts what has gone of it.
    pub fn of_change(node: NodeName, started_at: u64, doing: Option<&str>) -> Self {
        let (worker, started_at) = (Some(node), Some(started_at));
        let status = doing.unwrap_or_default().to_owned();
        JobProgress { state: JobState::Running, worker, started_at, status, ..Self::pending() }
    }

    /// The progress when so much has gone, and what is done with it now. Its steps are percent, for
    /// whoever draws a bar of them.
    #[must_use]
    pub fn transferred(self, gone: Transferred, doing: Option<&str>) -> Self {
        let (current, total) = gone.percent().map_or((0, 1), |percent| (percent, 100));
        let status = match doing {
            Some(doing) => format!("{gone}; {doing}"),
            None => gone.to_string(),
        };
        JobProgress { current, total, status, transferred: Some(gone), ..self }
    }

    /// The progress when so many of all volumes are gone.
    #[must_use]
    pub fn volumes_gone(self, gone: usize, of: usize) -> Self {
        let steps = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let status = format!("{gone} of {of} volumes are gone");
        JobProgress { current: steps(gone), total: steps(of.max(1)), status, ..self }
    }

    /// The end of a transfer. One that was whole before it could be cancelled is whole.
    #[must_use]
    pub fn transfer_ended(self, end: TransferEnd, is_cancelled: bool, ended_at: u64) -> Self {
        let gone = self.transferred.map(|gone| Transferred { bytes_per_second: None, ..gone });
        let ended = JobProgress { transferred: gone, ..self };
        let why = match end {
            TransferEnd::Whole(result) => {
                let all = JobProgress { current: ended.total, ..ended };
                return all.ended(JobState::Succeeded, cut(&result), ended_at);
            }
            _ if is_cancelled => {
                let gone = gone.unwrap_or_default();
                let status = format!("cancelled after {gone}");
                return ended.ended(JobState::Cancelled, status, ended_at);
            }
            TransferEnd::Failed(why) => cut(&why),
            TransferEnd::ClientGone => "the client went away".to_owned(),
            TransferEnd::DaemonGone => {
                "the API daemon that it went through is gone, or was cut off: nobody knows how it \
                 has ended"
                    .to_owned()
            }
        };
        let failure = Failure { kind: Kind::Unavailable, why: why.clone(), hint: None };
        let ended = JobProgress { failure: Some(failure), ..ended };
        ended.ended(JobState::Failed, why, ended_at)
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MOST_CHARACTERS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half() -> JobProgress {
        let gone = Transferred { bytes: 50, of: Some(100), bytes_per_second: Some(10) };
        JobProgress::of_transfer("hv1".into(), 7, gone)
    }

    #[test]
    fn a_transfer_is_at_its_percentage_by_the_daemon_of_its_node() {
        let half = half();
        assert_eq!((half.state, half.current, half.total), (JobState::Running, 50, 100));
        assert_eq!(half.status, "50B of 100B (50 %), 10B/s, 5 s left");
        assert_eq!((half.worker.clone(), half.started_at), (Some("hv1".into()), Some(7)));
        let gone = Transferred { bytes: 70, ..Transferred::default() };
        let unknown = half.transferred(gone, Some("the image is read"));
        assert_eq!((unknown.current, unknown.total), (0, 1), "nobody knows of how much");
        assert_eq!(unknown.status, "70B; the image is read");
    }

    #[test]
    fn a_removal_of_many_volumes_is_at_the_number_of_those_that_are_gone() {
        let begun = JobProgress::of_change("hv1".into(), 7, Some("the storage is at it"));
        let some = begun.clone().volumes_gone(3, 40);
        assert_eq!((some.current, some.total), (3, 40));
        assert_eq!(some.status, "3 of 40 volumes are gone");
        let none = begun.volumes_gone(0, 0);
        assert_eq!((none.current, none.total), (0, 1), "no bar is divided by nothing");
    }

    #[test]
    fn a_transfer_ends_whole_cancelled_or_for_a_reason() {
        use JobState::{Cancelled, Failed, Succeeded};
        use TransferEnd::{ClientGone, DaemonGone, Whole};
        let failed = || TransferEnd::Failed("no room".to_owned());
        let whole = || Whole("100 bytes".to_owned());
        let cancelled = "cancelled after 50B of 100B (50 %)";
        for (end, is_cancelled, state, status) in [
            (whole(), false, Succeeded, "100 bytes"),
            (whole(), true, Succeeded, "100 bytes"),
            (failed(), false, Failed, "no room"),
            (failed(), true, Cancelled, cancelled),
            (ClientGone, false, Failed, "the client went away"),
            (ClientGone, true, Cancelled, cancelled),
            (
                DaemonGone,
                false,
                Failed,
                "the API daemon that it went through is gone, or was cut off: nobody knows how it \
                 has ended",
            ),
        ] {
            let ended = half().transfer_ended(end, is_cancelled, 9);
            assert_eq!((ended.state, ended.status.as_str()), (state, status));
            assert_eq!((ended.ended_at, ended.failure.is_some()), (Some(9), state == Failed));
            assert_eq!(ended.current, if state == Succeeded { 100 } else { 50 });
            let speed = ended.transferred.expect("it is one").bytes_per_second;
            assert_eq!(speed, None, "nothing goes any more");
        }
    }

    #[test]
    fn of_a_long_reason_the_beginning_is_recorded() {
        let why = TransferEnd::Failed("ü".repeat(10_000));
        let ended = half().transfer_ended(why, false, 9);
        assert_eq!(ended.status.chars().count(), MOST_CHARACTERS + 1);
    }
}
