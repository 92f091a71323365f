use clap::Args;
use pvc_api_types::operations::osd::{OsdStateChange, OsdStateWord, PostStorageCephOsdOsdidState};

use super::Which;
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Let an OSD hold data
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  pvc storage osd in 4")]
pub struct In {
    #[command(flatten)]
    osd: Which,
}

/// Move the data off an OSD
///
/// It stays an OSD, and `pvc storage osd in` has it hold data again.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  pvc storage osd out 4")]
pub struct Out {
    #[command(flatten)]
    osd: Which,
}

impl In {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        change(pvc, &self.osd, OsdStateWord::In)
    }
}

impl Out {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        change(pvc, &self.osd, OsdStateWord::Out)
    }
}

fn change(pvc: &mut Pvc, Which { osd }: &Which, state: OsdStateWord) -> Outcome {
    let change = OsdStateChange { state };
    let message = pvc.client()?.change(PostStorageCephOsdOsdidState, [osd], &change)?;
    pvc.done(message);
    Ok(())
}
