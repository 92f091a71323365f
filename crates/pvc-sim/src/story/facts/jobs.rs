//! Facts about jobs.

use super::{Fact, Look, so};
use crate::jobs::unfinished;
use crate::story::words::Form;

/// Fact about jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::story) enum JobFact {
    /// A worker has come to where the next job was to stop.
    JobStandsStill,
    EveryJobIsOver,
    /// A line of a job's log has these words.
    JobSays(String),
}

fn job(fact: JobFact) -> Fact {
    Fact::Job(fact)
}

pub(super) const FORMS: &[Form<Fact>] = &[
    Form { form: "job stands still", means: |_| job(JobFact::JobStandsStill) },
    Form { form: "job says TEXT", means: |f| job(JobFact::JobSays(f.text.clone())) },
    Form { form: "every job is over", means: |_| job(JobFact::EveryJobIsOver) },
];

impl Look<'_> {
    pub(super) fn job_holds(&self, fact: &JobFact) -> Result<(), String> {
        match fact {
            JobFact::JobStandsStill => {
                let stands = self.cluster.world.with(|state| state.job_steps.stands_still());
                so(stands, || "none does".to_owned())
            }
            JobFact::EveryJobIsOver => {
                let open: Vec<String> = unfinished(&self.cluster.view()).collect();
                so(open.is_empty(), || open.join("; "))
            }
            JobFact::JobSays(text) => {
                let view = self.cluster.view();
                let lines: Vec<&String> =
                    view.jobs.values().flat_map(|job| &job.progress.log).collect();
                so(lines.iter().any(|line| line.contains(text)), || format!("they say {lines:?}"))
            }
        }
    }
}
