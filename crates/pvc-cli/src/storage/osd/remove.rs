use clap::Args;
use pvc_api_types::operations::osd::{DeleteStorageCephOsdOsdid, OsdRemoval};
use pvc_api_types::param::Added;

use super::{Way, Which};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove an OSD for good
///
/// Its data is moved to the other OSDs first, which may take hours; `pvc task cancel` takes
/// the removal back as long as that lasts. Then the OSD is destroyed, and its disk is wiped
/// if no other OSD is on it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage osd remove 4
  pvc storage osd remove 4 --no-wait --yes")]
pub struct Remove {
    #[command(flatten)]
    osd: Which,

    /// Do not wait for its data to be elsewhere, and pass over what fails: it may be lost
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    way: Way,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let (Which { osd }, force) = (self.osd, self.force);
        let sentence = match force {
            true => format!("Destroy OSD \"{osd}\" at once, though its data may be nowhere else"),
            false => format!("Remove and destroy OSD \"{osd}\""),
        };
        let removal = OsdRemoval { really: "yes".to_owned(), force: Added(force) };
        self.way.submit(pvc, (DeleteStorageCephOsdOsdid, [&osd]), &removal, &sentence)
    }
}
