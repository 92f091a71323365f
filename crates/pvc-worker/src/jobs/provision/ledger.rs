//! Things that a script has made, in the job's record before they are there.

use pvc_model::job::JobProgress;
use pvc_model::job::provision::MOST_MADE;
use pvc_model::storage::VolumeId;
use serde::{Deserialize, Serialize};

use super::super::text;
use crate::context::Context;
use crate::kind::{read, written};

/// A thing that a script makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Made {
    /// The record of the VM itself, which may not be there yet.
    Vm,
    /// The record of the VM, which was there.
    DefinedVm,
    Volume(MadeVolume),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MadeVolume {
    /// The name that it has while it is made.
    #[serde(with = "text::volume")]
    pub making: VolumeId,
    /// The name that the script gives it.
    #[serde(with = "text::volume")]
    pub name: VolumeId,
    /// Identity of it, once it is made: whatever else has one of its names is another's.
    pub identity: Option<String>,
}

/// Reason why something was not written down, and so may not be made.
#[derive(Debug, thiserror::Error)]
pub(in crate::jobs) enum NotNoted {
    #[error("a script makes at most {MOST_MADE} things")]
    TooMany,
    #[error("another worker has the job")]
    Lost,
}

/// Writes down what is made next, and returns its number.
pub(super) async fn note(context: &Context, made: &Made) -> Result<usize, NotNoted> {
    let number = context.progress().made.len();
    if number >= MOST_MADE {
        return Err(NotNoted::TooMany);
    }
    context.edit(|progress| progress.made.push(written(made)));
    recorded(context).await.map(|()| number)
}

/// Writes down what is known better by now.
pub(super) async fn amend(context: &Context, number: usize, made: &Made) -> Result<(), NotNoted> {
    context.edit(|progress| progress.made[number] = written(made));
    recorded(context).await
}

async fn recorded(context: &Context) -> Result<(), NotNoted> {
    match context.record_surely().await {
        true => Ok(()),
        false => Err(NotNoted::Lost),
    }
}

/// Everything that was written down, in its order. What another version has written, and this one
/// does not read, is left where it is.
pub(super) fn all(progress: &JobProgress) -> Vec<Made> {
    progress.made.iter().filter_map(|text| read(text).ok()).collect()
}
