use clap::Args;
use pvc_api_types::SriovVf;
use pvc_api_types::operations::sriov::GetSriovVfNodeVf;
use pvc_api_types::operations::vm::GetVmVm;
use pvc_api_types::param::Nothing;
use pvc_client::Kind;

use super::Which;
use crate::context::Pvc;
use crate::format::{InfoFormat, MaybeJson};
use crate::outcome::{Failure, Outcome};
use crate::output::Paint;
use crate::output::labels::Labels;

/// Show a virtual function in detail
///
/// With its settings, its PCI address, and the VM that it is used by.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network sriov vf info hv1 ens1f0v3")]
pub struct Info {
    #[command(flatten)]
    which: Which,

    #[arg(short, long, value_enum, default_value_t = InfoFormat::Pretty, help = "How to print it")]
    format: InfoFormat,
}

impl Info {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let Which { node, vf } = &self.which;
        let vf = pvc.client()?.read_only(GetSriovVfNodeVf, [node, vf], "VF")?;
        if self.format.print_payload(pvc, &vf)? {
            return Ok(());
        }
        let vf = vf.read()?;
        let user = user(pvc, &vf)?;
        let text = view(&vf, node, &user, pvc.out.paint());
        pvc.out.text(text);
        Ok(())
    }
}

/// The VM that uses it, by its name if it is still there.
fn user(pvc: &mut Pvc, vf: &SriovVf) -> Result<String, Failure> {
    let uuid = vf.usage.domain.as_str();
    if uuid.is_empty() {
        return Ok("N/A".to_owned());
    }
    match pvc.client()?.read(GetVmVm, [uuid], &Nothing) {
        Err(error) if error.kind() == Kind::NotFound => Ok(uuid.to_owned()),
        Err(error) => Err(error.into()),
        Ok(found) => match found.only() {
            Some(vm) => Ok(format!("{} ({uuid})", vm.read()?.name)),
            None => Ok(uuid.to_owned()),
        },
    }
}

const WIDTH: usize = 20;

fn view(vf: &SriovVf, node: &str, user: &str, paint: Paint) -> String {
    let config = &vf.config;
    let rate = |text: &str, none: &str| match text {
        "" => "N/A".to_owned(),
        "0" => none.to_owned(),
        rate => format!("{rate} Mbit/s"),
    };
    let or_none = |text: &str| if text.is_empty() { "N/A".to_owned() } else { text.to_owned() };
    let mut lines = Labels::new(paint, WIDTH);
    lines.heading("SR-IOV VF information:");
    lines.blank();
    lines.line("PHY", &vf.phy);
    lines.line("PF", format!("{} @ {node}", vf.pf));
    lines.line("MTU", &vf.mtu);
    lines.line("MAC Address", &vf.mac);
    lines.blank();
    lines.line("vLAN ID", or_none(&config.vlan_id));
    lines.line("vLAN QOS priority", or_none(&config.vlan_qos));
    lines.line("Minimum TX rate", rate(&config.tx_rate_min, "none"));
    lines.line("Maximum TX rate", rate(&config.tx_rate_max, "no limit"));
    lines.line("Link state", or_none(&config.link_state));
    lines.line("Spoof checking", or_none(&config.spoof_check));
    lines.line("VF user trust", or_none(&config.trust));
    lines.line("Query RSS config", or_none(&config.query_rss));
    lines.blank();
    lines.line("PCIe domain", &vf.pci.domain);
    lines.line("PCIe bus", &vf.pci.bus);
    lines.line("PCIe slot", &vf.pci.slot);
    lines.line("PCIe function", &vf.pci.function);
    lines.blank();
    lines.line("VF Used", &vf.usage.used);
    lines.line("Using Domain", user);
    lines.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_shown_and_what_its_record_lacks_is_not_made_up() {
        let vfs: Vec<SriovVf> =
            serde_json::from_str(include_str!("../../../../tests/wire/vfs.json")).unwrap();
        let text = vfs.iter().map(|vf| view(vf, "hv1", "web1", Paint::OFF)).collect::<String>();
        crate::golden::check("sriov-vf-info.txt", &text);
    }
}
