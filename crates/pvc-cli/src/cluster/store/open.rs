use clap::Args;
use pvc_api_types::operations::cluster::{AccessRequest, AccessWord, PostStoreAccess};
use pvc_api_types::param::Flag;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Open the records to whoever reaches ZooKeeper
///
/// This is needed before a node goes back to PVC 1.0.3, and before the password is
/// changed. The passwords of the nodes' BMCs are among the records.
#[derive(Debug, Args)]
pub struct Open {
    #[command(flatten)]
    yes: Yes,
}

impl Open {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let sentence = "Open the records of this cluster to whoever reaches ZooKeeper";
        let wanted = AccessRequest { access: AccessWord::Anybody, force: Flag(false) };
        confirm::change(pvc, self.yes, sentence, PostStoreAccess, [], &wanted)
    }
}
