use clap::Args;
use pvc_api_types::Node;
use pvc_api_types::operations::node::{GetNode, NodeFilter};

use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::outcome::Outcome;
use crate::output::{Cell, Table, paint, units};

/// List the nodes
///
/// LIMIT is a regular expression for the name; it may fit anywhere unless it says `^` or
/// `$`. Of the state options any one is enough. If something is asked for and no node
/// fits, the command fails with exit code 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc node list
  pvc node list -vs flushed -f raw")]
pub struct List {
    /// Only nodes whose name fits
    limit: Option<String>,

    /// Only nodes in this daemon state, such as `run`; also `-ds`
    #[arg(long, value_name = "STATE", add = crate::completion::daemon_states())]
    daemon_state: Option<String>,

    /// Only nodes in this coordinator state, such as `primary`; also `-cs`
    #[arg(long, value_name = "STATE", add = crate::completion::coordinator_states())]
    coordinator_state: Option<String>,

    /// Only nodes in this domain state, such as `ready`; also `-vs`
    #[arg(long, value_name = "STATE", add = crate::completion::domain_states())]
    domain_state: Option<String>,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.list.check()?;
        let filter = NodeFilter {
            limit: self.limit,
            daemon_state: self.daemon_state,
            coordinator_state: self.coordinator_state,
            domain_state: self.domain_state,
        };
        let filtered = filter.limit.is_some()
            || filter.daemon_state.is_some()
            || filter.coordinator_state.is_some()
            || filter.domain_state.is_some();
        let answer = or_empty(pvc.client()?.read(GetNode, [], &filter))?;
        let what = ("node", "pvc node list");
        let Some(mut nodes) = self.list.read::<_, Node>(pvc, &answer, filtered, what)? else {
            return Ok(());
        };
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        self.list.print(pvc, &nodes, |node| node.name.clone(), table)
    }
}

fn table(nodes: &[Node]) -> Table {
    let mut table = Table::new()
        .group("Nodes", &[("Name", 5), ("Version", 8), ("Health", 7)])
        .group("States", &[("Daemon", 7), ("Coordinator", 12), ("Domain", 7)])
        .group("Resources", &[("VMs", 4), ("vCPUs", 6), ("Load", 5)])
        .group("Memory (M)", &[("Total", 6), ("Used", 5), ("Free", 5), ("Alloc", 6), ("Prov", 5)])
        .important(&[
            "Name",
            "Daemon",
            "Domain",
            "Coordinator",
            "Health",
            "VMs",
            "Free",
            "Total",
            "Load",
            "Used",
        ]);
    for node in nodes {
        table.row(row(node));
    }
    table
}

fn row(node: &Node) -> Vec<Cell> {
    let health = node.health.percent();
    let shown = health.map_or_else(|| node.health.to_string(), |percent| format!("{percent}%"));
    let memory = &node.memory;
    // More than there is: nothing is wrong yet, but not all of it can be used at once.
    let promised = |amount: i64| {
        if amount > memory.total {
            Cell::coloured(amount.to_string(), crate::output::Colour::Yellow)
        } else {
            amount.to_string().into()
        }
    };
    vec![
        node.name.as_str().into(),
        node.pvc_version.as_str().into(),
        Cell::coloured(shown, paint::node_health(health)),
        Cell::coloured(&node.daemon_state, paint::daemon_state(&node.daemon_state)),
        Cell::coloured(&node.coordinator_state, paint::coordinator_state(&node.coordinator_state)),
        Cell::coloured(&node.domain_state, paint::domain_state(&node.domain_state)),
        node.domains_count.to_string().into(),
        node.vcpu.allocated.to_string().into(),
        units::load(node.load).into(),
        memory.total.to_string().into(),
        memory.used.to_string().into(),
        memory.free.to_string().into(),
        promised(memory.allocated),
        promised(memory.provisioned),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    fn nodes() -> Vec<Node> {
        serde_json::from_str(include_str!("../../tests/wire/nodes.json")).unwrap()
    }

    #[test]
    fn the_table() {
        let text = table(&nodes()).render(Paint::OFF) + "\n";
        crate::golden::check("node-list.txt", &(text));
    }

    #[test]
    fn the_table_in_colours_has_the_same_columns() {
        let text = table(&nodes()).render(Paint::ON) + "\n";
        crate::golden::check("node-list-colour.txt", &(text));
    }

    #[test]
    fn no_node_is_a_heading_alone() {
        assert_eq!(table(&[]).render(Paint::OFF).lines().count(), 2);
    }
}
