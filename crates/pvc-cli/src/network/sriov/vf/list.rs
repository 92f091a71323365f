use clap::Args;
use pvc_api_types::SriovVf;
use pvc_api_types::operations::sriov::{GetSriovVfNode, VfFilter};

use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::network::list::flag;
use crate::outcome::Outcome;
use crate::output::Table;

/// List the virtual functions of a node
///
/// With the VM that each is used by. If PF is given and has none, the command fails with
/// exit code 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network sriov vf list hv1
  pvc network sriov vf list hv1 ens1f0 -f csv")]
pub struct List {
    /// The node
    #[arg(add = crate::completion::nodes())]
    node: String,

    /// Only those of this physical function
    pf: Option<String>,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.list.check()?;
        let filter = VfFilter { pf: self.pf.clone() };
        let answer = or_empty(pvc.client()?.read(GetSriovVfNode, [&self.node], &filter));
        let named = [self.node.as_str()];
        let answer = answer.map_err(|error| crate::node::unknown(pvc, error, named))?;
        let what = ("VF", "pvc network sriov vf list");
        let vfs: Option<Vec<SriovVf>> = self.list.read(pvc, &answer, self.pf.is_some(), what)?;
        let Some(vfs) = vfs else { return Ok(()) };
        self.list.print(pvc, &vfs, |vf| vf.phy.clone(), table)
    }
}

fn table(vfs: &[SriovVf]) -> Table {
    let columns =
        [("Device", 4), ("PF", 3), ("MTU", 4), ("MAC Address", 11), ("Used", 5), ("Domain", 5)];
    let mut table = Table::new().group("VFs", &columns);
    for vf in vfs {
        table.row(vec![
            vf.phy.as_str().into(),
            vf.pf.as_str().into(),
            vf.mtu.as_str().into(),
            vf.mac.as_str().into(),
            flag(if vf.usage.used == "True" { "True" } else { "False" }),
            vf.usage.domain.as_str().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn the_table() {
        let vfs: Vec<SriovVf> =
            serde_json::from_str(include_str!("../../../../tests/wire/vfs.json")).unwrap();
        crate::golden::check("sriov-vf-list.txt", &(table(&vfs).render(Paint::OFF) + "\n"));
    }
}
