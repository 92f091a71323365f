//! Looks what adding OSDs would do to which disk, and does nothing. What it finds is its log.

use async_trait::async_trait;
use pvc_model::osd::{AddOsds, BlockDevice, LvmName, OsdPlan, plan_add};
use pvc_model::shown;
use pvc_model::size::format_size;

use super::disk::{Known, check_free_disk, find_disk};
use super::{Hands, OsdJobError, Result, named};
use crate::context::Context;
use crate::kind::Kind;

pub(crate) struct Plan {
    pub new: AddOsds,
}

#[async_trait]
impl Kind for Plan {
    /// Steps there are none: all that it does is to look.
    type Step = ();
    type Fact = ();
    type Error = OsdJobError;

    async fn plan(&self, context: &Context) -> Result<Vec<()>> {
        // A worker that died at this may have said a part of it.
        context.edit(|progress| progress.log.clear());
        let hands = Hands::of(context)?;
        let (_, disk) = find_disk(context, hands, &self.new.device).await?;
        describe(&disk).into_iter().for_each(|line| context.log(line));
        let known = Known::look(hands).await?;
        let group = hands.disks.volume_group(&LvmName::db_group()).await?;
        let plan = plan_add(&self.new, &disk, known.osds(), group.as_ref())?;
        check_free_disk(context, &disk, &known).await?;
        course(&plan).into_iter().for_each(|line| context.log(line));
        Ok(Vec::new())
    }

    fn doing(&self, (): &()) -> String {
        "looking".to_owned()
    }

    async fn look(&self, _: &Context, (): &()) -> Result<Option<()>> {
        Ok(Some(()))
    }

    async fn run(&self, _: &Context, (): &()) -> Result<()> {
        Ok(())
    }

    async fn undo(&self, _: &Context, (): &()) -> Result<()> {
        Ok(())
    }

    fn result(&self, _: &Context, _: &[()]) -> String {
        "nothing has been done".to_owned()
    }
}

/// The disk as it is now, line by line.
fn describe(disk: &BlockDevice) -> Vec<String> {
    let known = |what: &str, text: &str| {
        let text = text.trim();
        (!text.is_empty()).then(|| format!("{what} {}", shown(text)))
    };
    let model = format!("{} {}", disk.vendor.trim(), disk.model.trim());
    let facts = [known("model", &model), known("serial number", &disk.serial)];
    let facts: Vec<String> = facts.into_iter().flatten().chain([size(disk.size_bytes)]).collect();
    let mut lines = vec![format!("device {}: {}", disk.device, facts.join(", "))];
    if let Some(table) = &disk.partition_table {
        lines.push(format!("partition table: {}", shown(table)));
    }
    for part in &disk.partitions {
        let content = if part.content.is_empty() { "nothing known" } else { &part.content };
        lines.push(format!(
            "partition {}: {}, {}",
            part.device,
            size(part.size_bytes),
            shown(content)
        ));
    }
    lines.extend(known("content:", &disk.content));
    lines.extend(disk.groups.iter().map(|group| format!("volume group: {group}")));
    lines.extend(disk.mounted_at.iter().map(|at| format!("mounted at: {}", shown(at))));
    let used = disk.holders.iter();
    lines.extend(used.map(|by| format!("used by: {} ({})", shown(&by.name), shown(&by.kind))));
    if lines.len() == 1 {
        lines.push("nothing is on it".to_owned());
    }
    lines
}

/// Course that it would take, line by line.
fn course(plan: &OsdPlan) -> Vec<String> {
    let mut lines = vec![format!("device {} would be erased", plan.disk.device)];
    if !plan.erased.is_empty() {
        lines.push(format!("leftovers would be erased with it: {}", named(&plan.erased)));
    }
    let (count, weight) = (plan.count, plan.weight);
    let osds = if count == 1 { "1 OSD".to_owned() } else { format!("{count} OSDs") };
    let (class, each) = (plan.class.name(), size(plan.block_bytes));
    lines.push(format!("{osds} would be made, of class {class}, weight {weight}, {each} each"));
    lines.push(match plan.db {
        Some(db) => format!(
            "databases of {} each would be made in the volume group osd-db, which has {} free",
            size(db.bytes),
            size(db.free_bytes)
        ),
        None => "databases would lie beside the data".to_owned(),
    });
    lines
}

fn size(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", format_size(bytes))
}

#[cfg(test)]
mod tests {
    use pvc_model::osd::{Device, DeviceSpec, Holder, Partition};

    use super::*;

    fn device(name: &str) -> Device {
        Device::parse(name).expect("below `/dev`")
    }

    fn asked() -> AddOsds {
        let device = DeviceSpec::parse("/dev/sdb").expect("below `/dev`");
        AddOsds { device, weight: 1.0, db: None, count: 2 }
    }

    #[test]
    fn a_disk_is_described_with_all_that_is_on_it() {
        let blank = BlockDevice::blank(device("/dev/sdb"), 10 << 30);
        assert_eq!(
            describe(&blank),
            ["device /dev/sdb: 10G (10737418240 bytes)", "nothing is on it"]
        );
        let part = |number: u32, content: &str| Partition {
            device: device(&format!("/dev/sdb{number}")),
            size_bytes: 1 << 30,
            content: content.to_owned(),
        };
        let full = BlockDevice {
            vendor: "ATA     ".to_owned(),
            model: "Samsung SSD".to_owned(),
            serial: "S\u{7}1".to_owned(),
            partition_table: Some("gpt".to_owned()),
            partitions: vec![part(1, "ext4"), part(2, "")],
            mounted_at: vec!["/srv".to_owned()],
            holders: vec![Holder { kind: "raid1".to_owned(), name: "md0".to_owned() }],
            ..blank
        };
        assert_eq!(
            describe(&full),
            [
                "device /dev/sdb: model ATA Samsung SSD, serial number S\u{fffd}1, 10G \
                 (10737418240 bytes)",
                "partition table: gpt",
                "partition /dev/sdb1: 1024M (1073741824 bytes), ext4",
                "partition /dev/sdb2: 1024M (1073741824 bytes), nothing known",
                "mounted at: /srv",
                "used by: md0 (raid1)",
            ]
        );
    }

    #[test]
    fn a_plan_says_what_would_be_lost_and_made() {
        let nobody = Known { cluster: uuid::Uuid::nil(), states: Vec::new(), on_node: Vec::new() };
        let disk = BlockDevice::blank(device("/dev/sdb"), 100 << 30);
        let plan = plan_add(&asked(), &disk, nobody.osds(), None).expect("a blank disk");
        assert_eq!(
            course(&plan),
            [
                "device /dev/sdb would be erased",
                "2 OSDs would be made, of class ssd, weight 1, 50G (53682896896 bytes) each",
                "databases would lie beside the data",
            ]
        );
    }
}
