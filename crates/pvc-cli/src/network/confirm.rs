use clap::Args;
use pvc_api_types::operation::Operation;
use pvc_api_types::operations::network::PostNetworkVniConfirm;
use pvc_api_types::param::Nothing;

use super::Which;
use super::options::too_old;
use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};

/// Confirm a change of a network
///
/// Keeps a change that was made with `--confirm`, of a network or of one of its firewall
/// rules, which is taken back otherwise.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network modify web -g 10.20.1.254 --confirm 60s
  pvc network confirm web")]
pub struct Confirm {
    #[command(flatten)]
    network: Which,
}

impl Confirm {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let network = &self.network.network;
        let message = pvc.client()?.change(PostNetworkVniConfirm, [network], &Nothing)?;
        pvc.done(message);
        Ok(())
    }
}

/// Whether a change stays only if it is confirmed.
#[derive(Debug, Args)]
pub struct ConfirmWithin {
    /// Take the change back after so many seconds, 5s to 3600s, unless `pvc network confirm`
    /// keeps it: in case it cuts you off
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    confirm: Option<u32>,
}

impl ConfirmWithin {
    /// The seconds, if the server takes changes back.
    pub fn seconds<O: Operation>(
        self,
        pvc: &mut Pvc,
        operation: O,
    ) -> Result<Option<u32>, Failure> {
        match self.confirm {
            Some(_) if !pvc.client()?.takes(operation, "confirm")? => Err(too_old("`--confirm`")),
            seconds => Ok(seconds),
        }
    }
}

fn seconds(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('s').unwrap_or(text).parse().ok();
    number.ok_or_else(|| "give seconds, such as `60s`".to_owned())
}
