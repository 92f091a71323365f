//! The rules of `vm::plan`, one line each, and what must hold for all of them together.

mod deaths;
mod held;
mod properties;
mod states;
mod stops;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use pvc_model::cluster::Cluster;
use pvc_model::fence::FenceNote;
use pvc_model::hold::{Held, Purpose, VolumeHold};
use pvc_model::node::{DaemonNote, DaemonState, DomainState, NodeRecord};
use pvc_model::storage::{SnapshotName, VolumeId};
use pvc_model::vm::moving::{MoveNote, MovePhase};
use pvc_model::vm::plan::{
    Answered, Condition, Finding, History, Plan, Planned, Seen, Step, View, WhyDestroy,
    is_moved_by_another, observe, plan,
};
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};

use crate::records::{domain, move_note, node, vm};

const TIMEOUT: Duration = Duration::from_secs(180);

/// A node, its cluster, its guests and its memory.
struct World {
    me: NodeName,
    cluster: Cluster,
    guests: BTreeMap<Uuid, Seen>,
    histories: BTreeMap<Uuid, History>,
    now: Duration,
    instances: i32,
}

impl World {
    fn new(nodes: &[&str]) -> Self {
        let mut cluster = Cluster::default();
        for name in nodes {
            cluster.nodes.insert(NodeName::new(name), Arc::new(node(name)));
        }
        World {
            me: NodeName::new("hv1"),
            cluster,
            guests: BTreeMap::new(),
            histories: BTreeMap::new(),
            now: Duration::from_secs(1000),
            instances: 0,
        }
    }

    fn put(&mut self, record: VmRecord) -> Uuid {
        let uuid = record.uuid;
        self.cluster.vms.insert(uuid, Arc::new(record));
        uuid
    }

    fn edit(&mut self, uuid: Uuid, edit: impl FnOnce(&mut VmRecord)) {
        edit(Arc::make_mut(self.cluster.vms.get_mut(&uuid).unwrap()));
    }

    fn node(&mut self, name: &str) -> &mut NodeRecord {
        Arc::make_mut(self.cluster.nodes.get_mut(name).unwrap())
    }

    fn request(&mut self, uuid: Uuid, state: VmState) {
        self.edit(uuid, |record| {
            record.state = state;
            record.state_version += 1;
        });
    }

    fn run(&mut self, uuid: Uuid) {
        self.instances += 1;
        let seen = Seen {
            name: "guest".to_owned(),
            condition: Condition::Running,
            instance: self.instances,
        };
        self.guests.insert(uuid, seen);
    }

    fn after(&mut self, seconds: u64) -> Plan {
        self.now += Duration::from_secs(seconds);
        let view = View {
            node: &self.me,
            cluster: &self.cluster,
            guests: &self.guests,
            now: self.now,
            shutdown_timeout: TIMEOUT,
        };
        observe(&view, &mut self.histories);
        plan(&view, &self.histories)
    }

    /// Does what the plan says in a world where every guest obeys at once.
    fn obey(&mut self, plan: &Plan) {
        for Planned { vm, step, .. } in &plan.steps {
            let history = self.histories.entry(*vm).or_default();
            match step {
                Step::Start => history.started(self.now),
                Step::RequestShutdown { instance, .. } => {
                    history.shutdown_requested(*instance, 0, self.now)
                }
                Step::Destroy(_) => history.ending(),
                _ => {}
            }
            match step {
                Step::Start => self.run(*vm),
                Step::RequestShutdown { .. } | Step::Destroy(_) => drop(self.guests.remove(vm)),
                Step::Write(state) => self.request(*vm, state.clone()),
                Step::Fail(_) => self.request(*vm, VmState::Fail),
                Step::ClearFailure => self.edit(*vm, |record| record.failed_reason.clear()),
                Step::Send(_) => {
                    self.guests.remove(vm);
                    self.request(*vm, VmState::Start);
                }
                Step::Receive => {
                    self.run(*vm);
                    self.request(*vm, VmState::Start);
                }
                Step::Resume => self.guests.get_mut(vm).unwrap().condition = Condition::Running,
            }
        }
    }
}

fn steps(plan: &Plan) -> Vec<Step> {
    plan.steps.iter().map(|planned| planned.step.clone()).collect()
}

fn findings(plan: &Plan) -> Vec<Finding> {
    plan.findings.values().map(|(_, finding)| finding.clone()).collect()
}

/// The first thing done about a VM in `state`, assigned to `on`, running here or not.
fn first(
    nodes: &[&str],
    state: VmState,
    on: Option<&str>,
    runs: bool,
) -> (Vec<Step>, Vec<Finding>) {
    let mut world = World::new(nodes);
    let uuid = world.put(vm(1, state, on));
    if runs {
        world.run(uuid);
    }
    let plan = world.after(0);
    (steps(&plan), findings(&plan))
}
