//! Whether what a cluster stands on is there: ZooKeeper, Ceph, Patroni, libvirt, FRR, the BMCs.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::layout::{Lab, NodeName};
use super::process::wait_until;
use super::{bmc, node, pvc};

/// A busy machine may take long; a lab that never comes up should still say so.
const LIMIT: Duration = Duration::from_secs(300);

/// A thing that a cluster needs: what to say when it is there, on which nodes, and the question.
struct Part {
    name: &'static str,
    on: On,
    question: &'static str,
    /// Text that the answer holds when all is well.
    wanted: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Every,
    Coordinators,
    /// Only the first coordinator.
    First,
}

const PARTS: [Part; 6] = [
    Part {
        name: "ZooKeeper has a quorum",
        on: On::Coordinators,
        question: "echo srvr | nc -N -w 2 $(hostname) 2181 | grep Mode",
        wanted: "Mode", // leader, follower, standalone
    },
    Part {
        name: "Ceph's monitors have a quorum",
        on: On::First,
        question: "ceph --connect-timeout 5 quorum_status | jq -r 'if (.quorum | length) == \
                   (.monmap.mons | length) then \"all\" else \"some\" end'",
        wanted: "all",
    },
    Part {
        name: "Ceph's OSDs are up",
        on: On::First,
        question: "ceph --connect-timeout 5 osd stat --format json | jq -r 'if .num_up_osds == \
                   .num_osds and .num_osds > 0 then \"all\" else \"some\" end'",
        wanted: "all",
    },
    Part {
        name: "Ceph is clean",
        on: On::First,
        question: "ceph --connect-timeout 5 pg stat --format json | jq -r \
                   '[.pg_summary.num_pg_by_state[] | select(.name != \"active+clean\")] | length'",
        wanted: "0",
    },
    Part {
        name: "libvirt answers on TCP",
        on: On::Every,
        question: "virsh --quiet --connect qemu+tcp://$(hostname)/system uri",
        wanted: "qemu+tcp",
    },
    Part {
        name: "Patroni has a leader",
        on: On::First,
        // Not whether Patroni calls it `running`: after a demotion in which it started the database
        // twice, it calls its leader `start failed` for as long as that runs.
        question: "leader=$(curl --silent --max-time 2 http://$(hostname):8008/cluster | jq -r \
                   '.members[] | select(.role == \"leader\") | .host'); [[ -n $leader ]] && \
                   pg_isready --host $leader",
        wanted: "accepting connections",
    },
];

/// Waits until all nodes have booted and their BMCs answer.
pub fn wait_for_boot(lab: &Lab, begun: Instant) -> Result<()> {
    let nodes = lab.nodes();
    for each in &nodes {
        wait_until(&format!("`{each}` has booted"), LIMIT, || {
            Ok(matches!(node::state(lab, each).as_str(), "running" | "degraded"))
        })?;
    }
    progress(begun, "the nodes have booted");
    for each in &nodes {
        // One that does not answer on a busy machine is asked again.
        wait_until(&format!("the BMC of `{each}` answers"), Duration::from_secs(60), || {
            Ok(bmc::power_status(lab, each).is_ok())
        })?;
    }
    progress(begun, "the BMCs answer");
    Ok(())
}

/// Waits until everything that PVC builds upon is there, saying when each part is, for as long as
/// `may_come` does not object on any node.
pub fn wait_for_services(
    lab: &Lab,
    begun: Instant,
    may_come: impl Fn(&NodeName) -> Result<()>,
) -> Result<()> {
    let nodes = lab.nodes();
    for part in &PARTS {
        if part.name.starts_with("Ceph's OSDs") {
            register_osds(lab)?;
        }
        for each in part.asked(&nodes) {
            wait_until(&format!("{} (seen from `{each}`)", part.name), LIMIT, || {
                may_come(each)?;
                Ok(part.holds(lab, each))
            })?;
        }
        progress(begun, part.name);
    }
    Ok(())
}

impl Part {
    fn asked<'a>(&self, nodes: &'a [NodeName]) -> Vec<&'a NodeName> {
        let coordinators = || nodes.iter().filter(|node| node.is_coordinator());
        match self.on {
            On::Every => nodes.iter().collect(),
            On::Coordinators => coordinators().collect(),
            On::First => coordinators().take(1).collect(),
        }
    }

    fn holds(&self, lab: &Lab, node: &NodeName) -> bool {
        node::ask(lab, node, self.question).is_some_and(|answer| answer.contains(self.wanted))
    }
}

pub fn progress(begun: Instant, what: &str) {
    println!("{:6.1} s  {what}", begun.elapsed().as_secs_f64());
}

/// Tells Ceph of the OSDs it should expect, under the ids that their files were made with, and
/// gives it a pool for volumes. Young monitors refuse both for a moment.
fn register_osds(lab: &Lab) -> Result<()> {
    let Some(first) = lab.nodes().first().cloned() else { return Ok(()) };
    let nodes = lab.nodes();
    let coordinators = nodes.iter().filter(|node| node.is_coordinator());
    let ids: Vec<String> = coordinators.map(|node| (node.number - 1).to_string()).collect();
    let script = format!("/usr/local/lib/pvc-lab/storage {}", ids.join(" "));
    wait_until("Ceph takes its OSDs and a pool", LIMIT, || {
        Ok(node::ask(lab, &first, &script).is_some())
    })
}

/// Prints one line per node and one per part, as they are now.
pub fn status(lab: &Lab) -> Result<()> {
    ensure!(lab.is_up(), "the lab `{}` is down; `cargo xtask lab up` brings it up", lab.name);
    for each in lab.nodes() {
        let cut = super::switch::cut_networks(lab, &each);
        let cut =
            if cut.is_empty() { String::new() } else { format!(", cut from {}", cut.join(", ")) };
        let bmc = bmc::fault(lab, &each).name();
        let pvc = match pvc::state(lab, &each) {
            Some(state) => format!(", PVC {state}"),
            None => String::new(),
        };
        println!("{each}  {}{pvc}{cut}; BMC {} {bmc}", node::state(lab, &each), each.bmc_address());
    }
    // Whoever is asked may be the one that is off: the first that is not.
    let alive: Vec<NodeName> = lab.nodes().into_iter().filter(|each| is_well(lab, each)).collect();
    for part in &PARTS {
        let asked = part.asked(&alive);
        let holds = !asked.is_empty() && asked.iter().all(|each| part.holds(lab, each));
        println!("{} {}", if holds { "yes" } else { "no " }, part.name);
    }
    Ok(())
}

fn is_well(lab: &Lab, node: &NodeName) -> bool {
    matches!(node::state(lab, node).as_str(), "running" | "degraded")
}
