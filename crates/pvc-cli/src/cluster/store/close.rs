use clap::Args;
use pvc_api_types::operations::cluster::{AccessRequest, AccessWord, PostStoreAccess};
use pvc_api_types::param::Flag;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Close the records to whoever does not know their password
///
/// The password is `database.zookeeper.password` in the configuration of every node;
/// set it there first, and restart PVC's daemons node by node. A daemon that was
/// started before ends when the records are closed, and begins anew. A cluster in
/// which a node of PVC 1.0.3 is left cannot be closed: that node would be locked out.
/// Nor are they closed while a node knows another password than the API that is asked;
/// `pvc cluster store show` names it.
///
/// Patroni's keys in the same ZooKeeper stay as they are. Those of other programs are
/// closed to them.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  pvc cluster store show
  pvc cluster store close")]
pub struct Close {
    /// Close them although nodes are locked out by that which have shown no password
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    yes: Yes,
}

impl Close {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let sentence = "Close the records of this cluster to whoever does not know their password";
        let wanted = AccessRequest { access: AccessWord::Members, force: Flag(self.force) };
        confirm::change(pvc, self.yes, sentence, PostStoreAccess, [], &wanted)
    }
}
