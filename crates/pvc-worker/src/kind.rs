//! Parts of a kind of jobs.

use async_trait::async_trait;
use pvc_model::job::course::{AfterLoss, Failure};
use pvc_model::refusal::Kind as RefusalKind;
use pvc_model::with_causes;
use pvc_ops::Refusal;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::Context;

/// A kind of jobs: which steps a job of it has, and what each of them does.
///
/// A worker may die at any moment, also in the middle of a step; so may a step's future be dropped.
/// What is recorded before the first step is begun are the steps themselves, and then after each
/// step that it is done. The next worker of the job looks whether the step in doubt is in effect,
/// and goes on from there ([`pvc_model::job::course`]).
#[async_trait]
pub(crate) trait Kind: Send + Sync + 'static {
    /// A step with all that it has to know. Recorded as JSON: a later version reads what an earlier
    /// one has written.
    type Step: Serialize + DeserializeOwned + Send + Sync;
    /// Result of a step, for the job's result. Recorded as well.
    type Fact: Serialize + DeserializeOwned + Send + Sync;
    /// Error of a step. One whose kind is not [`Unavailable`](RefusalKind::Unavailable) says that
    /// the step is not in effect; after one that is, that is looked at.
    type Error: Refusal;

    /// Treatment of a job whose worker was lost.
    const AFTER_LOSS: AfterLoss = AfterLoss::Continue;

    /// Number of stages that the progress counts in the place of the steps, if the kind says itself
    /// in which it is.
    fn stages(&self) -> Option<u32> {
        None
    }

    /// The steps of the job. Has no effect: if it fails, so has the job.
    async fn plan(&self, context: &Context) -> Result<Vec<Self::Step>, Self::Error>;

    /// Describes what the step does, for people.
    fn doing(&self, step: &Self::Step) -> String;

    /// Returns what the step has come to, if it is in effect already. Asked when that is not known.
    async fn look(
        &self,
        context: &Context,
        step: &Self::Step,
    ) -> Result<Option<Self::Fact>, Self::Error>;

    /// Does the step. A long one ends early when [`Context::cancelled`] is, with an error.
    async fn run(&self, context: &Context, step: &Self::Step) -> Result<Self::Fact, Self::Error>;

    /// Whether the step is a point of no return: what it did cannot be taken back, nor can what
    /// steps behind it do. It has nothing behind it but steps that can be repeated until they
    /// succeed.
    fn is_final(&self, _: &Self::Step) -> bool {
        false
    }

    /// Takes back what there is of the step: all, a part, or nothing. One that fails is repeated.
    /// Of a final step it is asked when that has had no effect at all.
    async fn undo(&self, context: &Context, step: &Self::Step) -> Result<(), Self::Error>;

    /// Sets right what the step may have done once more after another worker had brought the job to
    /// its good end: this one had stood still, and did not know.
    async fn make_good(&self, _: &Context, _: &Self::Step) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Describes what the job has done, at its end, when all its steps are done.
    fn result(&self, context: &Context, facts: &[Self::Fact]) -> String;
}

/// A kind as the runner knows it: steps and facts are texts, errors say why.
#[async_trait]
pub(crate) trait Steps: Send + Sync + 'static {
    fn after_loss(&self) -> AfterLoss;
    fn stages(&self) -> Option<u32> {
        None
    }
    async fn plan(&self, context: &Context) -> Result<Vec<String>, Failure>;
    fn doing(&self, step: &str) -> String;
    async fn look(&self, context: &Context, step: &str) -> Result<Option<String>, Failure>;
    async fn run(&self, context: &Context, step: &str) -> Result<String, Failure>;
    fn is_final(&self, _: &str) -> bool {
        false
    }
    async fn undo(&self, context: &Context, step: &str) -> Result<(), Failure>;
    async fn make_good(&self, _: &Context, _: &str) -> Result<(), Failure> {
        Ok(())
    }
    fn result(&self, context: &Context, facts: &[String]) -> String;
}

#[async_trait]
impl<K: Kind> Steps for K {
    fn after_loss(&self) -> AfterLoss {
        K::AFTER_LOSS
    }

    fn stages(&self) -> Option<u32> {
        Kind::stages(self)
    }

    async fn plan(&self, context: &Context) -> Result<Vec<String>, Failure> {
        let planned = Kind::plan(self, context).await.map_err(|error| failure(&error))?;
        Ok(planned.iter().map(written).collect())
    }

    fn doing(&self, step: &str) -> String {
        read(step).map_or_else(|failure| failure.why, |step| Kind::doing(self, &step))
    }

    async fn look(&self, context: &Context, step: &str) -> Result<Option<String>, Failure> {
        let found = Kind::look(self, context, &read(step)?).await;
        Ok(found.map_err(|error| failure(&error))?.as_ref().map(written))
    }

    async fn run(&self, context: &Context, step: &str) -> Result<String, Failure> {
        let fact = Kind::run(self, context, &read(step)?).await;
        Ok(written(&fact.map_err(|error| failure(&error))?))
    }

    /// A step that cannot be read is not taken back.
    fn is_final(&self, step: &str) -> bool {
        read(step).map_or(true, |step| Kind::is_final(self, &step))
    }

    async fn undo(&self, context: &Context, step: &str) -> Result<(), Failure> {
        Kind::undo(self, context, &read(step)?).await.map_err(|error| failure(&error))
    }

    async fn make_good(&self, context: &Context, step: &str) -> Result<(), Failure> {
        Kind::make_good(self, context, &read(step)?).await.map_err(|error| failure(&error))
    }

    fn result(&self, context: &Context, facts: &[String]) -> String {
        let facts: Result<Vec<K::Fact>, Failure> = facts.iter().map(|fact| read(fact)).collect();
        facts.map_or_else(|failure| failure.why, |facts| Kind::result(self, context, &facts))
    }
}

pub(crate) fn written<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("steps and facts are made of what JSON has")
}

pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|error| Failure {
        kind: RefusalKind::Unavailable,
        why: format!("the job's steps were recorded by another version of PVC: {error}"),
        hint: Some("the worker of that version can continue the job".to_owned()),
    })
}

pub(crate) fn failure(error: &dyn Refusal) -> Failure {
    Failure { kind: error.kind(), why: with_causes(error), hint: error.hint() }
}
