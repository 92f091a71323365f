use clap::Args;
use pvc_api_types::SriovPf;
use pvc_api_types::operations::sriov::GetSriovPfNode;
use pvc_api_types::param::Nothing;

use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::outcome::Outcome;
use crate::output::Table;

/// List the physical functions of a node
///
/// The cards whose virtual functions the node hands out to VMs, by its configuration.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network sriov pf list hv1")]
pub struct List {
    /// The node
    #[arg(add = crate::completion::nodes())]
    node: String,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.list.check()?;
        let answer = or_empty(pvc.client()?.read(GetSriovPfNode, [&self.node], &Nothing));
        let named = [self.node.as_str()];
        let answer = answer.map_err(|error| crate::node::unknown(pvc, error, named))?;
        let what = ("PF", "pvc network sriov pf list");
        let pfs: Option<Vec<SriovPf>> = self.list.read(pvc, &answer, false, what)?;
        let Some(pfs) = pfs else { return Ok(()) };
        self.list.print(pvc, &pfs, |pf| pf.phy.clone(), table)
    }
}

fn table(pfs: &[SriovPf]) -> Table {
    let mut table = Table::new().group("PFs", &[("Device", 6), ("MTU", 4), ("VFs", 4)]);
    for pf in pfs {
        table.row(vec![pf.phy.as_str().into(), pf.mtu.as_str().into(), pf.vfs.join(", ").into()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn the_table() {
        let text = r#"[{"phy": "ens1f0", "mtu": "9000", "vfs": ["ens1f0v0", "ens1f0v1"]},
                       {"phy": "ens1f1", "mtu": "1500", "vfs": []}]"#;
        let pfs: Vec<SriovPf> = serde_json::from_str(text).unwrap();
        crate::golden::check("sriov-pf-list.txt", &(table(&pfs).render(Paint::OFF) + "\n"));
    }
}
