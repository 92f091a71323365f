use clap::Args;
use pvc_api_types::operations::sriov::{LinkStateWord, PutSriovVfNodeVf, VfChange};
use pvc_api_types::param::Parameters;

use super::Which;
use crate::choice::words;
use crate::context::Pvc;
use crate::network::options::either;
use crate::outcome::{Failure, Outcome};

/// Change a virtual function
///
/// What is not given stays as it is. The node sets the card within seconds, also while a
/// guest uses the function, and sets it again whenever it has forgotten it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network sriov vf set hv1 ens1f0v3 --vlan-id 100
  pvc network sriov vf set hv1 ens1f0v3 --tx-max 1000 --trust --dry-run")]
pub struct Set {
    #[command(flatten)]
    which: Which,

    /// VLAN of its frames: 1 to 4094, or 0 for none
    #[arg(long, value_name = "ID")]
    vlan_id: Option<u32>,

    /// Priority of frames in that VLAN: 0 to 7
    #[arg(long, value_name = "PRIORITY")]
    qos_prio: Option<u32>,

    /// The least rate at which it may send, in Mbit/s
    #[arg(long, value_name = "MBIT")]
    tx_min: Option<u32>,

    /// The highest rate at which it may send, in Mbit/s; 0 for no limit
    #[arg(long, value_name = "MBIT")]
    tx_max: Option<u32>,

    /// State of its link: that of the card's, or always on or off
    #[arg(long, value_name = "STATE", value_parser = words::<LinkStateWord>())]
    link_state: Option<LinkStateWord>,

    /// Have the card drop what its guest sends from another MAC address
    #[arg(long, overrides_with = "no_spoof_check")]
    spoof_check: bool,

    /// Let its guest send from any MAC address
    #[arg(long, overrides_with = "spoof_check")]
    no_spoof_check: bool,

    /// Let its guest change its MAC address and hear what is for others
    #[arg(long, overrides_with = "no_trust")]
    trust: bool,

    /// Keep its guest to its own MAC address
    #[arg(long, overrides_with = "trust")]
    no_trust: bool,

    /// Let its guest ask how the card spreads what it receives
    #[arg(long, overrides_with = "no_query_rss")]
    query_rss: bool,

    /// Do not answer its guest how the card spreads what it receives
    #[arg(long, overrides_with = "query_rss")]
    no_query_rss: bool,
}

impl Set {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let change = VfChange {
            vlan_id: self.vlan_id,
            vlan_qos: self.qos_prio,
            tx_rate_min: self.tx_min,
            tx_rate_max: self.tx_max,
            link_state: self.link_state,
            spoof_check: either(self.spoof_check, self.no_spoof_check),
            trust: either(self.trust, self.no_trust),
            query_rss: either(self.query_rss, self.no_query_rss),
        };
        if change.write() == VfChange::default().write() {
            return Err(Failure::usage("nothing is to be changed")
                .hint("`pvc network sriov vf set --help` lists what can be"));
        }
        let Which { node, vf } = &self.which;
        let message = pvc.client()?.change(PutSriovVfNodeVf, [node, vf], &change)?;
        pvc.done(message);
        Ok(())
    }
}
