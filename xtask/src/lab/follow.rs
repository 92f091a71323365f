//! Report of what a cluster does about a node that has lost its power, while it happens.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::ask::{self, text};
use super::layout::{Lab, NodeName};
use super::node;

/// A node that is fenced and comes back takes about two minutes.
const LIMIT: Duration = Duration::from_secs(300);

const PAUSE: Duration = Duration::from_millis(200);

/// Calls `pull` and prints from then on what changes, with the seconds since, until `node` takes
/// part again.
pub fn without_power(lab: &Lab, node: &NodeName, pull: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut others = lab.nodes().into_iter().filter(|other| other != node);
    let witness =
        others.find(|other| node::answers(lab, other)).context("no other node could tell of it")?;
    let mut before = facts(lab, &witness, node)?;
    pull()?;
    let begun = Instant::now();
    let say = |what: &str| println!("{:>7.1} s  {what}", begun.elapsed().as_secs_f64());
    say(&format!("{node} has no power"));
    let mut is_given_up = false;
    while begun.elapsed() < LIMIT {
        // Whoever is asked may just have lost its connection to the store.
        if let Ok(now) = facts(lab, &witness, node) {
            now.difference(&before).for_each(|fact| say(fact));
            let runs = now.contains(&is(node, "run"));
            if runs && is_given_up {
                return Ok(());
            }
            is_given_up |= !runs;
            before = now;
        }
        std::thread::sleep(PAUSE);
    }
    println!("not told any further: `pvc node info {node}` says how it stands");
    Ok(())
}

/// Facts of now, a line each.
fn facts(lab: &Lab, witness: &NodeName, node: &NodeName) -> Result<BTreeSet<String>> {
    let record = ask::json(lab, witness, &["node", "info", &node.text])?;
    let mut facts = BTreeSet::from([is(node, text(&record, "daemon_state"))]);
    let fence = &record["fence"];
    for (field, what) in
        [("by", "taken for dead by"), ("proof", "proven dead:"), ("power", "its power is")]
    {
        let said = text(fence, field);
        if !said.is_empty() {
            let of = text(fence, "suspected_at");
            facts.insert(format!("{node}: {what} {said} (the fence of {of})"));
        }
    }
    facts.extend(
        ask::guests(lab).into_iter().map(|guest| format!("{} runs on {}", guest.name, guest.node)),
    );
    facts.extend(
        ask::holders(lab).into_iter().map(|holder| format!("{} is on {holder}", ask::FLOATING)),
    );
    Ok(facts)
}

fn is(node: &NodeName, state: &str) -> String {
    format!("{node} is `{state}`")
}
