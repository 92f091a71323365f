use clap::Args;
use pvc_api_types::operations::cluster::{Initialization, PostInitialize};
use pvc_api_types::param::Flag;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Create the records of a new cluster
///
/// This is done once. The node daemons of a new cluster wait for it: the first one
/// starts the API, which it is asked of. With `--overwrite` the records of an existing
/// cluster are destroyed: every VM, network and volume that it knows is forgotten, and
/// nothing but a backup brings them back.
#[derive(Debug, Args)]
pub struct Init {
    /// Destroy the records of an existing cluster
    #[arg(short, long)]
    overwrite: bool,

    #[command(flatten)]
    yes: Yes,
}

impl Init {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let sentence = if self.overwrite {
            "DESTROY all records of this cluster and create new ones"
        } else {
            "Create the records of a new cluster"
        };
        let wanted = Initialization { really: "yes".to_owned(), overwrite: Flag(self.overwrite) };
        confirm::change(pvc, self.yes, sentence, PostInitialize, [], &wanted)
    }
}
