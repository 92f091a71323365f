use clap::Args;
use pvc_api_types::operations::network::{GetNetworkVni, NetworkChange, PutNetworkVni};
use pvc_api_types::param::Parameters;

use super::Which;
use super::confirm::ConfirmWithin;
use super::options::{Options, is_single, too_old, too_old_for_one};
use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};

/// Change a network
///
/// What is not given stays as it is, and an empty text clears: `--ipnet6 ''` ends IPv6 in
/// the network, `--mtu ''` has it follow the nodes again. The number and the kind of a
/// network stay. The guests are not asked: what they have got from DHCP they keep until
/// it ends.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network modify web --masquerade
  pvc network modify 1001 --dhcp --dhcp-start 10.20.1.100 --dhcp-end 10.20.1.199
  pvc network modify 1001 -i6 '' --dry-run")]
pub struct Modify {
    #[command(flatten)]
    network: Which,

    /// Another name of the network
    #[arg(short, long)]
    description: Option<String>,

    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    confirm: ConfirmWithin,
}

impl Modify {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let options = self.options;
        let is_new = options.are_new();
        let (dhcp, masquerade) = (options.dhcp(), options.masquerade());
        let spoof_guard = options.spoof_guard();
        let mut change = NetworkChange {
            description: self.description,
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
            confirm: None,
        };
        if change.write() == NetworkChange::default().write() {
            return Err(Failure::usage("nothing is to be changed")
                .hint("`pvc network modify --help` lists what can be"));
        }
        change.confirm = self.confirm.seconds(pvc, PutNetworkVni)?;
        let mut network = self.network.network;
        if !pvc.client()?.takes(PutNetworkVni, "masquerade")? {
            if is_new {
                return Err(too_old("`--masquerade` and `--spoof-guard`"));
            }
            network = complete(pvc, &network, &mut change)?;
        }
        let message = pvc.client()?.change(PutNetworkVni, [&network], &change)?;
        pvc.done(message);
        Ok(())
    }
}

/// Adds to a change what PVC 1.0.3 has to be given with each: the DNS servers, which it clears
/// else. Returns the VNI, as it changes nothing of a network that is named by its description.
fn complete(pvc: &mut Pvc, network: &str, change: &mut NetworkChange) -> Result<String, Failure> {
    let present = pvc.client()?.read_only(GetNetworkVni, [network], "network")?.read()?;
    if change.name_servers.is_none() {
        let servers: Vec<String> =
            present.name_servers.into_iter().filter(|name| !name.is_empty()).collect();
        change.name_servers = Some(servers).filter(|servers| !servers.is_empty());
    }
    match is_single(change.name_servers.as_ref()) {
        true => Err(too_old_for_one()),
        false => Ok(present.vni.to_string()),
    }
}
