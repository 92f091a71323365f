//! Makes the volume group for the databases of OSDs of a disk.

use async_trait::async_trait;
use pvc_model::osd::{BlockDevice, DeviceSpec, LvmName, VolumeGroup, may_zap};
use pvc_model::size::format_size;
use pvc_ports::OsdError;
use serde::{Deserialize, Serialize};

use super::disk::{Disk, Known, check_free_disk, find_disk, zap};
use super::{Hands, OsdJobError, Result};
use crate::context::Context;
use crate::kind::Kind;

pub(crate) struct AddDbGroup {
    pub device: DeviceSpec,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Step {
    disk: Disk,
}

#[async_trait]
impl Kind for AddDbGroup {
    type Step = Step;
    /// Size of the group, in bytes.
    type Fact = u64;
    type Error = OsdJobError;

    async fn plan(&self, context: &Context) -> Result<Vec<Step>> {
        let hands = Hands::of(context)?;
        if db_group(hands).await?.is_some() {
            return Err(OsdError::GroupExists { group: LvmName::db_group() }.into());
        }
        let (disk, now) = find_disk(context, hands, &self.device).await?;
        check_free_disk(context, &now, &Known::look(hands).await?).await?;
        Ok(vec![Step { disk }])
    }

    fn doing(&self, Step { disk }: &Step) -> String {
        format!("making the volume group for databases of device {}", disk.name)
    }

    async fn look(&self, context: &Context, _: &Step) -> Result<Option<u64>> {
        Ok(db_group(Hands::of(context)?).await?.map(|group| group.size_bytes))
    }

    async fn run(&self, context: &Context, Step { disk }: &Step) -> Result<u64> {
        let hands = Hands::of(context)?;
        let _alone = context.tools.disks.lock().await;
        let group = LvmName::db_group();
        if db_group(hands).await?.is_some() {
            return Err(OsdError::GroupExists { group }.into());
        }
        let now = disk.now(hands).await?;
        let known = Known::look(hands).await?;
        match is_begun(&now) {
            true => may_zap(&now, known.osds())?,
            false => check_free_disk(context, &now, &known).await?,
        }
        if !now.groups.is_empty() {
            zap(hands, &now).await?;
        }
        let partition = hands.disks.partition(&now.device).await?;
        hands.disks.create_volume_group(&group, &partition).await?;
        let made = db_group(hands).await?.ok_or(OsdError::NoGroup { group })?;
        Ok(made.size_bytes)
    }

    async fn undo(&self, context: &Context, Step { disk }: &Step) -> Result<()> {
        let hands = Hands::of(context)?;
        let _alone = context.tools.disks.lock().await;
        let now = match disk.now(hands).await {
            Err(OsdJobError::AnotherDisk { .. }) => return Ok(()),
            now => now?,
        };
        let is_whole = now.groups == [LvmName::db_group()] && now.holders.is_empty();
        if is_whole || (is_begun(&now) && !now.partitions.is_empty()) {
            zap(hands, &now).await?;
        }
        Ok(())
    }

    fn result(&self, context: &Context, facts: &[u64]) -> String {
        let size = format_size(facts.iter().sum());
        let node = &context.tools.node;
        format!("node \"{node}\" has the volume group osd-db, of {size}")
    }
}

async fn db_group(hands: Hands<'_>) -> Result<Option<VolumeGroup>> {
    Ok(hands.disks.volume_group(&LvmName::db_group()).await?)
}

/// Whether the disk is as the step may have left it: with a partition that nothing is on. It had
/// none when the job was planned.
fn is_begun(disk: &BlockDevice) -> bool {
    let is_empty = |content: &str| matches!(content, "" | "LVM2_member");
    disk.is_disk
        && is_empty(&disk.content)
        && disk.mounted_at.is_empty()
        && disk.holders.is_empty()
        && disk.groups.is_empty()
        && disk.partitions.len() <= 1
        && disk.partitions.iter().all(|part| is_empty(&part.content))
}

#[cfg(test)]
mod tests {
    use pvc_model::osd::{Device, Partition};

    use super::*;
    use crate::kind::{read, written};

    #[test]
    fn steps_and_facts_of_the_versions_before_are_read() {
        let text =
            r#"{"disk":{"name":"/dev/sdb","size_bytes":7,"model":"","serial":"","content":""}}"#;
        let step: Step = read(text).expect("as it was recorded");
        assert_eq!(written(&step), text);
        let bytes: u64 = read("7").expect("as it was recorded");
        assert_eq!(written(&bytes), "7");
    }

    #[test]
    fn a_disk_that_somebody_else_has_partitioned_is_none_that_was_begun() {
        let part = |content: &str| Partition {
            device: Device::parse("/dev/sdb1").expect("below `/dev`"),
            size_bytes: 1,
            content: content.to_owned(),
        };
        let blank = BlockDevice::blank(Device::parse("/dev/sdb").expect("below `/dev`"), 2);
        let with = |partitions| BlockDevice { partitions, ..blank.clone() };
        for (disk, wanted) in [
            (blank.clone(), true),
            (with(vec![part("")]), true),
            (with(vec![part("LVM2_member")]), true),
            (with(vec![part("ext4")]), false),
            (BlockDevice { content: "crypto_LUKS".to_owned(), ..blank.clone() }, false),
            (with(vec![part(""), part("")]), false),
            (BlockDevice { mounted_at: vec!["/".to_owned()], ..with(vec![part("")]) }, false),
            (BlockDevice { groups: vec![LvmName::db_group()], ..with(vec![part("")]) }, false),
        ] {
            assert_eq!(is_begun(&disk), wanted, "{disk:?}");
        }
    }
}
