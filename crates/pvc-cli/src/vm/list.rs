use pvc_api_types::operations::network::{GetNetwork, NetworkFilter};
use pvc_api_types::operations::vm::{GetVm, ListedState, VmFilter};
use pvc_api_types::param::Flag;
use std::collections::BTreeSet;

use clap::Args;
use pvc_api_types::or_default;
use pvc_client::Client;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::choice::words;
use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::outcome::Outcome;
use crate::output::{Cell, Colour, Table, paint};

/// List the VMs
///
/// LIMIT is a regular expression for the name, which may fit anywhere unless it says `^`
/// or `$`, or a whole UUID. All options given have to fit; `--negate` turns node, state
/// and tag around, but not LIMIT. If something is asked for and no VM fits, the command
/// fails with exit code 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc vm list
  pvc vm list '^web' --state start
  pvc -q vm list --tag daily --negate -f raw")]
pub struct List {
    /// Only VMs whose name fits
    limit: Option<String>,

    /// Only VMs on this node
    #[arg(short, long, value_name = "NODE", add = crate::completion::nodes())]
    target: Option<String>,

    /// Only VMs in this state
    #[arg(short, long, value_parser = words::<ListedState>())]
    state: Option<ListedState>,

    /// Only VMs with this tag
    #[arg(short = 'g', long, add = crate::completion::tags())]
    tag: Option<String>,

    /// Show the VMs that are not on the node, not in the state, without the tag
    #[arg(short, long)]
    negate: bool,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.list.check()?;
        let filter = VmFilter {
            limit: self.limit,
            node: self.target,
            state: self.state,
            tag: self.tag,
            negate: Flag(self.negate),
        };
        let filtered = filter.limit.is_some()
            || filter.node.is_some()
            || filter.state.is_some()
            || filter.tag.is_some();
        let vms = or_empty(pvc.client()?.read(GetVm, [], &filter));
        let named = filter.node.iter().map(String::as_str);
        let vms = vms.map_err(|error| crate::node::unknown(pvc, error, named))?;
        let vms: Option<Vec<Row>> = self.list.read(pvc, &vms, filtered, ("VM", "pvc vm list"))?;
        let Some(mut vms) = vms else { return Ok(()) };
        vms.sort_by(|one, other| one.name.cmp(&other.name));
        let paint = pvc.out.paint();
        let known = if paint.is_on() && !self.list.is_bare() {
            known_networks(pvc.client()?)
        } else {
            None
        };
        self.list.print(pvc, &vms, |vm| vm.name.clone(), |vms| table(vms, known.as_ref()))
    }
}

/// Columns that the table shows of a VM. Definitions and statistics of a thousand VMs are not even
/// read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Row {
    #[serde(deserialize_with = "or_default")]
    name: String,
    #[serde(deserialize_with = "or_default")]
    state: String,
    #[serde(deserialize_with = "or_default")]
    tags: Vec<Tag>,
    #[serde(deserialize_with = "or_default")]
    snapshots: Vec<IgnoredAny>,
    #[serde(deserialize_with = "or_default")]
    networks: Vec<Network>,
    #[serde(deserialize_with = "or_default")]
    memory: i64,
    #[serde(deserialize_with = "or_default")]
    vcpu: i64,
    #[serde(deserialize_with = "or_default")]
    node: String,
    #[serde(deserialize_with = "or_default")]
    migrated: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Tag {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Network {
    vni: String,
}

/// The VNIs of the cluster, or `None` if that cannot be found out: then nothing is marked as
/// unknown.
pub fn known_networks(client: &Client) -> Option<BTreeSet<String>> {
    let networks = crate::format::or_empty(client.read(GetNetwork, [], &NetworkFilter::default()))
        .ok()?
        .read()
        .ok()?;
    Some(networks.into_iter().map(|network| network.vni.to_string()).collect())
}

/// Whether a VM's network exists. Only numbers name networks of the cluster; everything else is
/// a device or one of the three networks that every cluster has.
pub fn is_known(vni: &str, known: Option<&BTreeSet<String>>) -> bool {
    let managed = vni.parse::<u32>().is_ok();
    !managed || known.is_none_or(|known| known.contains(vni))
}

fn table(vms: &[Row], known: Option<&BTreeSet<String>>) -> Table {
    let mut table = Table::new()
        .group("VMs", &[("Name", 5), ("State", 6), ("Tags", 5), ("Snapshots", 10)])
        .group("Resources", &[("Networks", 9), ("RAM (M)", 8), ("vCPUs", 6)])
        .group("Node", &[("Current", 8), ("Migrated", 9)])
        .important(&[
            "Name", "State", "Current", "RAM (M)", "vCPUs", "Migrated", "Networks", "Tags",
        ]);
    for vm in vms {
        let tags: Vec<&str> = vm.tags.iter().map(|tag| tag.name.as_str()).collect();
        table.row(vec![
            vm.name.as_str().into(),
            Cell::coloured(&vm.state, paint::vm_state(&vm.state)),
            if tags.is_empty() { "N/A".to_owned() } else { tags.join(",") }.into(),
            vm.snapshots.len().to_string().into(),
            networks(&vm.networks, known),
            vm.memory.to_string().into(),
            vm.vcpu.to_string().into(),
            vm.node.as_str().into(),
            vm.migrated.as_str().into(),
        ]);
    }
    table
}

fn networks(networks: &[Network], known: Option<&BTreeSet<String>>) -> Cell {
    let mut cell = Cell::default();
    for (index, network) in networks.iter().enumerate() {
        if index > 0 {
            cell.push(",", None);
        }
        cell.push(&network.vni, (!is_known(&network.vni, known)).then_some(Colour::Red));
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    fn vms() -> Vec<Row> {
        serde_json::from_str(include_str!("../../tests/wire/vms.json")).unwrap()
    }

    #[test]
    fn the_table() {
        let text = table(&vms(), None).render(Paint::OFF) + "\n";
        crate::golden::check("vm-list.txt", &(text));
    }

    #[test]
    fn a_network_that_the_cluster_does_not_have_is_red() {
        let known = BTreeSet::from(["1001".to_owned()]);
        let text = table(&vms(), Some(&known)).render(Paint::ON) + "\n";
        crate::golden::check("vm-list-colour.txt", &(text));
    }
}
