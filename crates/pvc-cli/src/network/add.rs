use clap::Args;
use pvc_api_types::operations::network::{NetworkCreation, NetworkWord, PostNetwork};

use super::options::{Options, is_single, too_old, too_old_for_one};
use crate::choice::words;
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Add a network
///
/// A bridged network is a VLAN of the switches that the nodes are plugged into, with VNI
/// as its number. A managed one is PVC's own: the primary is its gateway, gives addresses
/// and names to its guests, and filters what goes in and out.
///
/// VNI `auto` is the next free number, which the answer names: of managed networks from
/// 1000 on, of bridged ones from 2 on.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network add 100 -p bridged -d office
  pvc network add auto -p managed -d web -i 10.20.1.0/24 -g 10.20.1.1 \\
      --dhcp --dhcp-start 10.20.1.100 --dhcp-end 10.20.1.199
  pvc network add 1002 -p managed -d web6 -i6 2001:db8:1::/64 --dry-run")]
pub struct Add {
    /// Number of the network, or `auto`
    #[arg(value_name = "VNI")]
    vni: String,

    /// Name of the network
    #[arg(short, long)]
    description: String,

    /// Kind of the network
    #[arg(short = 'p', long = "type", value_parser = words::<NetworkWord>())]
    kind: NetworkWord,

    #[command(flatten)]
    options: Options,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let options = self.options;
        let is_new = self.vni == "auto" || options.are_new();
        let is_single = is_single(options.dns_servers.as_ref());
        // PVC 1.0.3 would make a network whose number is no number, and could list none then.
        if (is_new || is_single) && !pvc.client()?.takes(PostNetwork, "masquerade")? {
            return Err(match is_new {
                true => too_old("the VNI `auto`, `--masquerade` and `--spoof-guard`"),
                false => too_old_for_one(),
            });
        }
        let (dhcp, masquerade) = (options.dhcp(), options.masquerade());
        let spoof_guard = options.spoof_guard();
        let creation = NetworkCreation {
            vni: self.vni,
            description: self.description,
            nettype: self.kind,
            mtu: options.mtu,
            domain: options.domain,
            name_servers: options.dns_servers,
            ip4_network: options.ipnet,
            ip4_gateway: options.gateway,
            ip6_network: options.ipnet6,
            ip6_gateway: options.gateway6,
            dhcp4: dhcp,
            dhcp4_start: options.dhcp_start,
            dhcp4_end: options.dhcp_end,
            masquerade,
            spoof_guard,
        };
        let made = pvc.client()?.change_to(PostNetwork, [], &creation)?;
        if !pvc.done_as_json(&made) {
            pvc.out.line(&made.message);
        }
        Ok(())
    }
}
