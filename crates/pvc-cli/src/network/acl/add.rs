use clap::Args;
use pvc_api_types::operations::network::{AclCreation, PostNetworkVniAcl, Way};

use super::Direction;
use crate::context::Pvc;
use crate::network::Which;
use crate::network::confirm::ConfirmWithin;
use crate::outcome::Outcome;

/// Add a firewall rule
///
/// A rule is what nft takes as match and verdict. It is about packets to the guests unless
/// `--out` is given. The rules of a direction are gone through in their order, from 0 on; one
/// that is put among them moves those behind it. What nft would not take is refused.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network acl add web -d allow-ssh -r 'tcp dport 22 accept'
  pvc network acl add web --out -d no-mail -r 'tcp dport 25 drop' -o 0")]
pub struct Add {
    #[command(flatten)]
    network: Which,

    #[command(flatten)]
    direction: Direction,

    /// Name of the rule
    #[arg(short, long)]
    description: String,

    /// Match and verdict
    #[arg(short, long)]
    rule: String,

    /// Place among the rules of its direction [default: the last]
    #[arg(short, long)]
    order: Option<u32>,

    #[command(flatten)]
    confirm: ConfirmWithin,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        // PVC 1.0.3 takes any direction for `in`, and none for `out`, as others do.
        let direction = self.direction.named().unwrap_or(Way::In);
        let creation = AclCreation {
            description: self.description,
            rule: self.rule,
            direction: Some(direction).filter(|way| *way == Way::In),
            order: self.order,
            confirm: self.confirm.seconds(pvc, PostNetworkVniAcl)?,
        };
        let network = &self.network.network;
        let message = pvc.client()?.change(PostNetworkVniAcl, [network], &creation)?;
        pvc.done(message);
        Ok(())
    }
}
