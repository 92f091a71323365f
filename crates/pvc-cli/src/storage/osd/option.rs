use clap::Args;
use pvc_api_types::operations::osd::{OptionAction, OptionChange, PostStorageCephOption};

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Set an option of all OSDs
///
/// The options are Ceph's: with `noout` no OSD is taken out while it is down, which spares
/// the moving of data during work on a node.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  pvc storage osd set noout")]
pub struct Set {
    #[command(flatten)]
    option: Which,
}

/// Unset an option of all OSDs
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  pvc storage osd unset noout")]
pub struct Unset {
    #[command(flatten)]
    option: Which,
}

/// The option that a command is about.
#[derive(Debug, Args)]
struct Which {
    /// Name of the option in Ceph, such as noout
    #[arg(value_name = "OSD_PROPERTY")]
    option: String,
}

impl Set {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        change(pvc, self.option, OptionAction::Set)
    }
}

impl Unset {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        change(pvc, self.option, OptionAction::Unset)
    }
}

fn change(pvc: &mut Pvc, Which { option }: Which, action: OptionAction) -> Outcome {
    let change = OptionChange { option, action };
    let message = pvc.client()?.change(PostStorageCephOption, [], &change)?;
    pvc.done(message);
    Ok(())
}
