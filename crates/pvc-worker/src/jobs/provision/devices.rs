//! Volumes that a script has as devices, which nobody else uses meanwhile.
//!
//! Each is held, from before it is mapped until after it is unmapped: by the script, or at the end
//! of its process. If the worker dies, the kernel ends the script; what that had mapped the next
//! worker of the node unmaps, and lets go of. Whoever takes the job back elsewhere waits for that,
//! or until the node is proven dead: a worker that is only cut off goes on, and its script too.

use std::path::PathBuf;

use pvc_model::cluster::Cluster;
use pvc_model::job::JobId;
use pvc_model::storage::VolumeId;
use pvc_model::with_causes;
use pvc_ops::storage::{self, StillMapped, StorageRefusal};
use pvc_ports::{BlockDeviceError, Course, StorageError};

use super::build::Session;
use super::calls::{Arguments, Done, Failed, Refused};
use super::{ProvisionError, Result, ScriptTools};
use crate::context::{Context, Tools, Unwritten};

/// Gives the script a volume as a device.
pub(super) async fn map(session: &mut Session<'_>, given: &Arguments<'_>, course: &Course) -> Done {
    let volume = given.volume("name")?;
    let (context, own) = (session.context, session.uuid());
    let is_new = !session.mapped.contains(&volume);
    if is_new {
        // From here on it may be held.
        session.mapped.push(volume.clone());
    }
    let job = (&context.job, &context.tools.node);
    let decide = |cluster: &Cluster| {
        let changes = storage::hold_mapped(cluster, &volume, job, own)?;
        Ok::<_, StorageRefusal>((changes, ()))
    };
    let mapped = match context.change(decide).await {
        Ok(()) => map_when_free(context, session.tools, &volume, course).await,
        Err(why) => {
            // Nothing was written, or the end of the process looks after it.
            if let (true, Unwritten::Refused(_)) = (is_new, &why) {
                session.mapped.retain(|mapped| *mapped != volume);
            }
            return Err(why.into());
        }
    };
    match mapped {
        Ok(path) => Ok(path.display().to_string()),
        Err(error) => {
            if is_new && end(context, Some(session.tools), &volume).await.is_ok() {
                session.mapped.retain(|mapped| *mapped != volume);
            }
            Err(Failed::Refused(Refused(with_causes(&error))))
        }
    }
}

/// Maps the volume; one that somebody else has, when earlier processes of this node cannot be
/// that any more, unless the call is to end first.
async fn map_when_free(
    context: &Context,
    tools: &ScriptTools,
    volume: &VolumeId,
    course: &Course,
) -> Result<PathBuf, BlockDeviceError> {
    let left_over = &context.tools.left_over;
    loop {
        let may_be_left = left_over.may_be(volume);
        let mapped = tools.devices.map(volume, &context.job).await;
        let is_taken = matches!(
            &mapped,
            Err(BlockDeviceError::Taken { .. }
                | BlockDeviceError::Storage(StorageError::InUse { .. }))
        );
        if !(is_taken && may_be_left) {
            return mapped;
        }
        context.log(format!(
            "volume {volume} may still be mapped by an earlier worker of this node: the script \
             waits for it"
        ));
        tokio::select! {
            biased;
            () = course.stopped() => return mapped,
            () = left_over.until_gone(volume) => {}
        }
    }
}

/// Takes the device back from the script.
pub(super) async fn unmap(session: &mut Session<'_>, given: &Arguments<'_>) -> Done {
    let volume = given.volume("name")?;
    if !session.mapped.contains(&volume) {
        let why = format!("this script has not mapped volume `{volume}`");
        return Err(Failed::Refused(Refused(why)));
    }
    end(session.context, Some(session.tools), &volume).await?;
    session.mapped.retain(|mapped| *mapped != volume);
    Ok(format!("Unmapped RBD volume \"{volume}\"."))
}

/// Unmaps a volume that the job has mapped here, if it has, and lets go of it.
pub(super) async fn end(
    context: &Context,
    tools: Option<&ScriptTools>,
    volume: &VolumeId,
) -> Result<()> {
    unmap_here(context, tools, volume).await?;
    context.tools.store.fresh().await.map_err(Unwritten::Store)?;
    let_go(&context.tools, volume, &context.job, true).await
}

/// Does the same with all volumes that are held for the job. One that stays held keeps none of the
/// others.
///
/// # Errors
/// While one may still be mapped by an earlier process of this node, or on another one.
pub(super) async fn end_all(context: &Context) -> Result<()> {
    let tools = &context.tools;
    let view = tools.store.fresh().await.map_err(Unwritten::Store)?;
    let mut ended = Ok(());
    for volume in storage::mapped_by(&view, &context.job) {
        let done = match unmap_here(context, tools.scripts.as_deref(), &volume).await {
            Ok(()) => {
                let is_ended = !tools.left_over.may_be(&volume);
                let_go(tools, &volume, &context.job, is_ended).await
            }
            Err(error) => Err(error),
        };
        if done.is_ok() {
            context.log(format!("volume {volume} is let go of"));
        }
        ended = ended.and(done);
    }
    ended
}

/// Unmaps a volume that a job which this process does no more has mapped here, if it has, and lets
/// go of it. Earlier processes do not have it any more.
pub(super) async fn end_former(
    (tools, scripts): (&Tools, &ScriptTools),
    volume: &VolumeId,
    job: &JobId,
) -> Result<()> {
    scripts.devices.unmap(volume, job).await.map_err(ProvisionError::from)?;
    tools.store.fresh().await.map_err(Unwritten::Store)?;
    let_go(tools, volume, job, true).await
}

/// Unmaps a volume that the job has mapped here, if it has.
pub(super) async fn unmap_here(
    context: &Context,
    tools: Option<&ScriptTools>,
    volume: &VolumeId,
) -> Result<()> {
    if let Some(tools) = tools {
        let unmapped = tools.devices.unmap(volume, &context.job).await;
        unmapped.map_err(ProvisionError::from)?;
    }
    Ok(())
}

/// Lets go of a volume, if the view knows that it is held for the job. Also if another worker has
/// that by now: what goes is the job's own. `is_ended` whether nothing of it is left on this node.
async fn let_go(tools: &Tools, volume: &VolumeId, job: &JobId, is_ended: bool) -> Result<()> {
    let here = is_ended.then_some(&tools.node);
    let decide = |cluster: &Cluster| {
        let changes = storage::let_go_of_mapped(cluster, volume, job, here)?;
        Ok::<_, StillMapped>((changes, ()))
    };
    let done = tools.store.change(decide).await;
    done.map_err(|error| error.map_refused(ProvisionError::from).into())
}
