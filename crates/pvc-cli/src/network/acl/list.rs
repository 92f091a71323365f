use clap::Args;
use pvc_api_types::operations::network::{AclFilter, GetNetworkVni, GetNetworkVniAcl};

use super::Direction;
use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::missing;
use crate::network::Which;
use crate::outcome::Outcome;
use crate::output::Table;

/// List the firewall rules of a network
///
/// Those for packets to the guests first, each direction in its order. LIMIT is a regular
/// expression for the description. If one is given and no rule fits, the command fails with
/// exit code 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network acl list web
  pvc network acl list 1001 --out -f csv")]
pub struct List {
    #[command(flatten)]
    network: Which,

    /// Only rules whose description fits
    limit: Option<String>,

    #[command(flatten)]
    direction: Direction,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.list.check()?;
        let filter = AclFilter { limit: self.limit.clone(), direction: self.direction.named() };
        let network = [self.network.network.as_str()];
        let answer = or_empty(pvc.client()?.read(GetNetworkVniAcl, network, &filter));
        let answer =
            answer.map_err(|error| missing::failure(pvc, error, GetNetworkVni, network))?;
        let what = ("rule", "pvc network acl list");
        let rules: Option<Vec<Rule>> = self.list.read(pvc, &answer, self.limit.is_some(), what)?;
        let Some(mut rules) = rules else { return Ok(()) };
        rules.sort_by(|one, other| {
            (&one.direction, one.order).cmp(&(&other.direction, other.order))
        });
        let bare = |rule: &Rule| format!("{}|{}|{}", rule.direction, rule.order, rule.rule);
        self.list.print(pvc, &rules, bare, table)
    }
}

type Rule = pvc_api_types::Acl;

fn table(rules: &[Rule]) -> Table {
    let columns = [("Direction", 10), ("Order", 6), ("Description", 12), ("Rule", 5)];
    let mut table = Table::new().group("ACLs", &columns).wrapping();
    for rule in rules {
        table.row(vec![
            rule.direction.as_str().into(),
            rule.order.to_string().into(),
            rule.description.as_str().into(),
            rule.rule.as_str().into(),
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
        let text = r#"[{"direction": "in", "order": 0, "description": "allow-ssh",
                        "rule": "tcp dport 22 accept"},
                       {"direction": "out", "order": 10, "description": "no-mail",
                        "rule": "tcp dport 25 drop"}]"#;
        let rules: Vec<Rule> = serde_json::from_str(text).unwrap();
        crate::golden::check("acl-list.txt", &(table(&rules).render(Paint::OFF) + "\n"));
    }
}
