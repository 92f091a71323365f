//! Removes an OSD for good.
//!
//! Its record goes last. Whatever happens before, the OSD is in the list, and can be removed again.
//! One of a fenced node is removed by another node, which cannot erase its disk: to its daemon, if
//! the node is ever on again, the cluster does not speak.

use async_trait::async_trait;
use pvc_model::cluster::Cluster;
use pvc_model::osd::OsdId;
use pvc_ops::osd::OsdRefusal;
use pvc_store::{Change, Changes};
use serde::{Deserialize, Serialize};

use super::disk::Known;
use super::leave::{Leaving, bring_back, erase};
use super::{
    Hands, Osd, OsdJobError, Result, fresh, recorded_state, recorded_uuid, removed_record,
    unless_gone,
};
use crate::context::Context;
use crate::kind::Kind;

pub(crate) struct Remove {
    pub osd: OsdId,
    /// Does not wait for anything, and passes over a disk that fails.
    pub force: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    Drain(Leaving),
    Stop(Leaving),
    Destroy(Leaving),
    Erase(Osd),
    /// Has the cluster forget the OSD, with its number.
    Purge(Osd),
    /// Removes the record, which may have another UUID than the OSD.
    Forget(Osd),
}

#[async_trait]
impl Kind for Remove {
    type Step = Step;
    type Fact = ();
    type Error = OsdJobError;

    async fn plan(&self, context: &Context) -> Result<Vec<Step>> {
        let hands = Hands::of(context)?;
        let view = fresh(context).await?;
        let (record, is_away) = removed_record(context, &view, self.osd)?;
        let known = Known::look(hands).await?;
        let state = recorded_state(&known, self.osd, record)?;
        let uuid = state.and_then(|state| state.uuid).unwrap_or_else(|| recorded_uuid(record));
        let osd = Osd { id: self.osd, uuid };
        let leaving = match is_away {
            true => Leaving::of_fenced_node(osd, state),
            false => Leaving::look(hands, osd, state).await?,
        };
        let is_alive = state.is_some_and(|state| state.uuid.is_some());
        let mut steps = Vec::new();
        if is_alive {
            steps.push(Step::Drain(leaving.clone()));
        }
        if !is_away && (is_alive || leaving.runs()) {
            steps.push(Step::Stop(leaving.clone()));
        }
        if is_alive {
            steps.push(Step::Destroy(leaving));
        }
        if is_away {
            context.log(format!(
                "node `{}` is fenced: the cluster forgets OSD {}, and its disk is not erased",
                record.node, self.osd
            ));
        } else {
            steps.push(Step::Erase(osd));
        }
        if state.is_some() {
            steps.push(Step::Purge(osd));
        }
        steps.push(Step::Forget(Osd { id: self.osd, uuid: recorded_uuid(record) }));
        Ok(steps)
    }

    fn doing(&self, step: &Step) -> String {
        let osd = self.osd;
        match step {
            Step::Drain(_) => format!("moving the data of OSD {osd} to others"),
            Step::Stop(_) => format!("stopping OSD {osd}"),
            Step::Destroy(_) => format!("destroying OSD {osd}"),
            Step::Erase(_) => format!("erasing what is left of OSD {osd}"),
            Step::Purge(_) => format!("having the cluster forget OSD {osd}"),
            Step::Forget(_) => format!("removing the record of OSD {osd}"),
        }
    }

    /// All of them can be repeated.
    async fn look(&self, _: &Context, _: &Step) -> Result<Option<()>> {
        Ok(None)
    }

    async fn run(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Drain(leaving) => leaving.drain(context, !self.force).await,
            Step::Stop(leaving) => leaving.stop(context).await,
            Step::Destroy(leaving) => leaving.destroy(context, self.force).await,
            Step::Erase(osd) => erase(context, *osd, self.force).await,
            Step::Purge(osd) => purge(context, *osd).await,
            Step::Forget(osd) => forget(context, *osd).await,
        }
    }

    fn is_final(&self, step: &Step) -> bool {
        !matches!(step, Step::Drain(_) | Step::Stop(_))
    }

    async fn undo(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Drain(leaving) => leaving.take_in(context).await,
            Step::Stop(leaving) => leaving.start_again(context).await,
            Step::Destroy(leaving) => leaving.stay(context).await,
            Step::Erase(_) | Step::Purge(_) | Step::Forget(_) => Ok(()),
        }
    }

    /// Its number may be another's by now.
    async fn make_good(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Drain(leaving) | Step::Destroy(leaving) if leaving.is_away() => {
                leaving.take_another_in(context).await
            }
            Step::Drain(_) | Step::Stop(_) | Step::Destroy(_) => {
                bring_back(context, self.osd).await
            }
            Step::Erase(_) | Step::Purge(_) | Step::Forget(_) => Ok(()),
        }
    }

    fn result(&self, _: &Context, _: &[()]) -> String {
        format!("OSD {} is removed", self.osd)
    }
}

/// Has the cluster forget a destroyed OSD, unless its number was given to another since.
async fn purge(context: &Context, osd: Osd) -> Result<()> {
    let hands = Hands::of(context)?;
    let known = Known::look(hands).await?;
    if known.state(osd.id).is_some_and(|state| state.uuid.is_some()) {
        return Ok(());
    }
    hands.ceph.crush_remove(osd.id).await?;
    Ok(unless_gone(hands.ceph.purge(osd.id, true).await)?)
}

/// Removes the record, unless it is that of another OSD by now.
async fn forget(context: &Context, osd: Osd) -> Result<()> {
    let id = osd.id.to_string();
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        if cluster.osds.get(&id).is_some_and(|record| recorded_uuid(record) == osd.uuid) {
            changes.push(Change::RemoveOsd(id.clone()));
        }
        Ok::<_, OsdRefusal>((changes, ()))
    };
    Ok(context.change(decide).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{read, written};

    #[test]
    fn steps_and_facts_of_the_versions_before_are_read() {
        let osd = r#""id":"3","uuid":"2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1""#;
        for step in ["drain", "stop", "destroy"] {
            let text = format!(r#"{{"{step}":{{{osd},"was_in":true,"was_running":false}}}}"#);
            let read: Step = read(&text).expect("as it was recorded");
            assert_eq!(written(&read), text);
        }
        for step in ["erase", "purge", "forget"] {
            let text = format!(r#"{{"{step}":{{{osd}}}}}"#);
            let read: Step = read(&text).expect("as it was recorded");
            assert_eq!(written(&read), text);
        }
        read::<<Remove as Kind>::Fact>("null").expect("as it was recorded");
    }
}
