use clap::Args;
use pvc_api_types::operations::osd::{OsdReplacement, PostStorageCephOsdOsdid};
use pvc_api_types::param::Added;

use super::{Databases, Way, Which};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Move an OSD to another disk of its node
///
/// It keeps its number, and so do the OSDs that share its disk and go with it. All that is
/// on the new disk is lost, and on the old one, if it is still there. Its data is moved to
/// the other OSDs first. Where they cannot hold it, because there are too few nodes, that
/// never ends: `--force` goes on without, and the data is copied to the new disk from the
/// other copies.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage osd replace 4 /dev/sdf
  pvc storage osd replace 4 detect:MZ7KH:960GB:2 --old-device /dev/sdc --yes")]
pub struct Replace {
    #[command(flatten)]
    osd: Which,

    /// Absolute path of the new disk, or detect:NAME:SIZE:ID
    new_device: String,

    /// The old disk, if it has another name than the recorded one by now
    #[arg(short, long, value_name = "DEVICE")]
    old_device: Option<String>,

    /// Weight of each OSD; that of before if not given
    #[arg(short, long)]
    weight: Option<f64>,

    #[command(flatten)]
    databases: Databases,

    /// Do not wait for its data to be elsewhere: there may be one copy less of it for a while
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    way: Way,
}

impl Replace {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let Which { osd } = self.osd;
        let replacement = OsdReplacement {
            new_device: self.new_device,
            really: "yes".to_owned(),
            old_device: self.old_device,
            weight: self.weight,
            ext_db_ratio: self.databases.ext_db_ratio,
            ext_db_size: self.databases.ext_db_size,
            force: Added(self.force),
        };
        let device = &replacement.new_device;
        let at_once = match self.force {
            true => " at once, though their data may be nowhere else",
            false => "",
        };
        let sentence = format!(
            "Destroy all data on \"{device}\" and move OSD \"{osd}\" and those that share its disk \
             to it{at_once}"
        );
        self.way.submit(pvc, (PostStorageCephOsdOsdid, [&osd]), &replacement, &sentence)
    }
}
