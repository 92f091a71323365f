//! Takes up the OSDs of a disk that its node does not know any more: it was installed anew.

use async_trait::async_trait;
use pvc_model::osd::{BlockDevice, Device, DeviceSpec, OsdId};
use serde::{Deserialize, Serialize};

use super::acts::{are_recorded, record, start};
use super::disk::{Disk, Known, find_disk};
use super::{Hands, Osd, OsdJobError, Result, fresh, named, own_record, recorded_state};
use crate::context::Context;
use crate::kind::Kind;

pub(crate) struct Refresh {
    pub osd: OsdId,
    pub device: DeviceSpec,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    Start(Osd),
    Record { osds: Vec<Osd>, disk: Disk },
}

#[async_trait]
impl Kind for Refresh {
    type Step = Step;
    /// The OSDs that the step has taken up.
    type Fact = Vec<Osd>;
    type Error = OsdJobError;

    async fn plan(&self, context: &Context) -> Result<Vec<Step>> {
        let hands = Hands::of(context)?;
        let view = fresh(context).await?;
        own_record(context, &view, self.osd)?;
        let (disk, now) = find_disk(context, hands, &self.device).await?;
        let known = Known::look(hands).await?;
        let mut osds = known.on(&now);
        if !osds.iter().any(|osd| osd.id == self.osd) {
            return Err(why_not(self.osd, &known, &now, disk.name));
        }
        osds.retain(|osd| {
            let record = view.osds.get(&osd.id.to_string());
            record.is_some_and(|record| record.node == context.tools.node.as_str())
        });
        for osd in &osds {
            let record = own_record(context, &view, osd.id)?;
            recorded_state(&known, osd.id, record)?;
        }
        let mut steps: Vec<Step> = osds.iter().copied().map(Step::Start).collect();
        steps.push(Step::Record { osds, disk });
        Ok(steps)
    }

    fn doing(&self, step: &Step) -> String {
        match step {
            Step::Start(osd) => format!("starting OSD {}", osd.id),
            Step::Record { disk, .. } => format!("recording that it is on device {}", disk.name),
        }
    }

    async fn look(&self, context: &Context, step: &Step) -> Result<Option<Vec<Osd>>> {
        match step {
            // One that runs is left alone.
            Step::Start(_) => Ok(None),
            Step::Record { osds, disk } => {
                let is_done = are_recorded(context, osds, &disk.name).await?;
                Ok(is_done.then(|| osds.clone()))
            }
        }
    }

    async fn run(&self, context: &Context, step: &Step) -> Result<Vec<Osd>> {
        match step {
            Step::Start(osd) => {
                start(context, *osd).await?;
                Ok(Vec::new())
            }
            Step::Record { osds, disk } => {
                record(context, osds, &disk.name, osds.len() > 1).await?;
                Ok(osds.clone())
            }
        }
    }

    /// Takes nothing back: an OSD that runs again has its data at hand, and the record that was
    /// written is the end of the job.
    async fn undo(&self, _: &Context, _: &Step) -> Result<()> {
        Ok(())
    }

    fn result(&self, context: &Context, facts: &[Vec<Osd>]) -> String {
        let ids: Vec<OsdId> = facts.iter().flatten().map(|osd| osd.id).collect();
        let (osds, node, device) = (named(&ids), &context.tools.node, &self.device);
        format!("{osds} run on node \"{node}\" from device {device}")
    }
}

/// Reason why the OSD on the disk cannot be taken up.
fn why_not(osd: OsdId, known: &Known, disk: &BlockDevice, device: Device) -> OsdJobError {
    match known.on_node.iter().find(|lvm| lvm.id == osd && lvm.is_on(disk)) {
        None => OsdJobError::NotThere { osd, device },
        Some(lvm) if lvm.cluster != known.cluster => {
            OsdJobError::OfAnotherCluster { osd, device, cluster: lvm.cluster }
        }
        Some(lvm) => OsdJobError::Unknown { osd, device, uuid: lvm.uuid },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{read, written};

    #[test]
    fn steps_and_facts_of_the_versions_before_are_read() {
        let osd = r#"{"id":"3","uuid":"2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1"}"#;
        let disk = r#"{"name":"/dev/sdb","size_bytes":7,"model":"","serial":"","content":""}"#;
        for text in [
            format!(r#"{{"start":{osd}}}"#),
            format!(r#"{{"record":{{"osds":[{osd}],"disk":{disk}}}}}"#),
        ] {
            let step: Step = read(&text).expect("as it was recorded");
            assert_eq!(written(&step), text);
        }
        let text = format!("[{osd}]");
        let fact: Vec<Osd> = read(&text).expect("as it was recorded");
        assert_eq!(written(&fact), text);
    }
}
