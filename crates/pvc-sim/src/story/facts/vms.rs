//! Facts about VMs and their guests.

use pvc_model::vm::{VmRecord, VmState};

use super::{Fact, Look, name_or_none, so};
use crate::cluster::vm_uuid;
use crate::operators::DISK_TARGET;
use crate::story::words::Form;

/// Fact about VMs and their guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::story) enum VmFact {
    /// Exactly once, on one of these if there are any.
    Runs(usize, Vec<usize>),
    RunsNowhere(usize),
    /// The VM is held there until it has been copied.
    ArrivesOn(usize, usize),
    VmIs(usize, Vec<VmState>),
    FailedBecause(usize, String),
    BelongsTo(usize, Vec<usize>),
    ReturnsTo(usize, usize),
    ReturnsNowhere(usize),
    /// The same instance of the guest since the story began, wherever it went.
    NeverRestarted(usize),
    Started(usize, u32),
    StartedAtMost(usize, u32),
    StartsWithItsNode(usize, bool),
    /// The guest, which runs, knows that its volume has so many MiB.
    GuestKnowsSize(usize, u64),
    IsCalled(usize, String),
    /// The running guest has the interface that operators plug in, or has not.
    HasInterface(usize, bool),
    /// The same of the disk.
    HasDisk(usize, bool),
    IsUndefined(usize),
    /// The VM was made of an image, with all of its volumes.
    NewVmIsWhole(String),
    NewVmRuns(String),
    /// Neither a record nor a volume is there of a VM with this name.
    NothingOfNewVm(String),
    /// The VM has so much memory, by its record, and by its guest if it runs.
    HasMemory(usize, u64),
    EveryVmRuns,
}

fn vm(fact: VmFact) -> Fact {
    Fact::Vm(fact)
}

pub(super) const FORMS: &[Form<Fact>] = &[
    Form { form: "VM runs", means: |f| vm(VmFact::Runs(f.vm(), Vec::new())) },
    Form { form: "VM runs on NODES", means: |f| vm(VmFact::Runs(f.vm(), f.nodes.clone())) },
    Form { form: "VM runs nowhere", means: |f| vm(VmFact::RunsNowhere(f.vm())) },
    Form { form: "VM was never restarted", means: |f| vm(VmFact::NeverRestarted(f.vm())) },
    Form { form: "VM was never started", means: |f| vm(VmFact::NeverRestarted(f.vm())) },
    Form { form: "VM was started COUNT times", means: |f| vm(VmFact::Started(f.vm(), f.count)) },
    Form {
        form: "VM was started at most COUNT times",
        means: |f| vm(VmFact::StartedAtMost(f.vm(), f.count)),
    },
    Form { form: "VM arrives on NODE", means: |f| vm(VmFact::ArrivesOn(f.vm(), f.node())) },
    Form { form: "VM was started once", means: |f| vm(VmFact::Started(f.vm(), 1)) },
    Form { form: "VM is VM-STATES", means: |f| vm(VmFact::VmIs(f.vm(), f.vm_states.clone())) },
    Form {
        form: "VM failed because TEXT",
        means: |f| vm(VmFact::FailedBecause(f.vm(), f.text.clone())),
    },
    Form { form: "VM belongs to NODES", means: |f| vm(VmFact::BelongsTo(f.vm(), f.nodes.clone())) },
    Form { form: "VM returns to NODE", means: |f| vm(VmFact::ReturnsTo(f.vm(), f.node())) },
    Form { form: "VM returns nowhere", means: |f| vm(VmFact::ReturnsNowhere(f.vm())) },
    Form {
        form: "VM starts with its node",
        means: |f| vm(VmFact::StartsWithItsNode(f.vm(), true)),
    },
    Form {
        form: "VM does not start with its node",
        means: |f| vm(VmFact::StartsWithItsNode(f.vm(), false)),
    },
    Form {
        form: "guest VM knows of COUNT MiB",
        means: |f| vm(VmFact::GuestKnowsSize(f.vm(), u64::from(f.count))),
    },
    Form { form: "VM is called TEXT", means: |f| vm(VmFact::IsCalled(f.vm(), f.text.clone())) },
    Form { form: "VM has an interface more", means: |f| vm(VmFact::HasInterface(f.vm(), true)) },
    Form { form: "VM has no interface more", means: |f| vm(VmFact::HasInterface(f.vm(), false)) },
    Form { form: "VM has a disk more", means: |f| vm(VmFact::HasDisk(f.vm(), true)) },
    Form { form: "VM has no disk more", means: |f| vm(VmFact::HasDisk(f.vm(), false)) },
    Form { form: "VM is undefined", means: |f| vm(VmFact::IsUndefined(f.vm())) },
    Form { form: "there is new vm TEXT", means: |f| vm(VmFact::NewVmIsWhole(f.text.clone())) },
    Form { form: "there runs new vm TEXT", means: |f| vm(VmFact::NewVmRuns(f.text.clone())) },
    Form {
        form: "nothing is there of new vm TEXT",
        means: |f| vm(VmFact::NothingOfNewVm(f.text.clone())),
    },
    Form { form: "VM has COUNT MiB", means: |f| vm(VmFact::HasMemory(f.vm(), u64::from(f.count))) },
    Form { form: "everything runs where it should", means: |_| vm(VmFact::EveryVmRuns) },
];

impl Look<'_> {
    pub(super) fn vm_holds(&self, fact: &VmFact) -> Result<(), String> {
        match fact {
            VmFact::Runs(vm, on) => self.runs(*vm, on),
            VmFact::RunsNowhere(vm) => {
                so(self.cluster.runs_on(*vm).is_empty(), || self.where_is(*vm))
            }
            VmFact::ArrivesOn(vm, node) => so(self.arrives_on(*vm, *node), || self.where_is(*vm)),
            VmFact::StartedAtMost(vm, times) => {
                let started = self.times_started(*vm);
                so(started <= u64::from(*times), || format!("it was started {started} times"))
            }
            VmFact::NeverRestarted(vm) => self.started(*vm, 0),
            VmFact::Started(vm, times) => self.started(*vm, u64::from(*times)),
            VmFact::VmIs(vm, states) => self.record(
                *vm,
                |record| states.contains(&record.state),
                |record| record.state.to_string(),
            ),
            VmFact::FailedBecause(vm, text) => self.record(
                *vm,
                |record| record.state == VmState::Fail && record.failed_reason.contains(text),
                |record| format!("{}, because `{}`", record.state, record.failed_reason),
            ),
            VmFact::BelongsTo(vm, nodes) => self.belongs_to(*vm, nodes),
            VmFact::ReturnsTo(vm, node) => self.returns_to(*vm, *node),
            VmFact::ReturnsNowhere(vm) => self.record(
                *vm,
                |record| record.last_node.is_none(),
                |record| format!("to return to `{}`", name_or_none(record.last_node.as_ref())),
            ),
            VmFact::StartsWithItsNode(vm, wanted) => self.starts_with_its_node(*vm, *wanted),
            VmFact::GuestKnowsSize(vm, mib) => self.guest_knows_size(*vm, *mib),
            VmFact::IsCalled(vm, name) => {
                self.record(*vm, |record| record.name == *name, |record| record.name.clone())
            }
            VmFact::HasInterface(vm, wanted) => self.has_interface(*vm, *wanted),
            VmFact::HasDisk(vm, wanted) => self.has_disk(*vm, *wanted),
            VmFact::IsUndefined(vm) => {
                so(!self.cluster.view().vms.contains_key(&vm_uuid(*vm)), || {
                    "it has a record".to_owned()
                })
            }
            VmFact::NewVmIsWhole(name) => self.new_vm_is_whole(name),
            VmFact::NewVmRuns(name) => self.new_vm_runs(name),
            VmFact::NothingOfNewVm(name) => {
                let view = self.cluster.view();
                let left = self.cluster.world.with(|state| state.new_vms(&view).left(name));
                left.map_or(Ok(()), Err)
            }
            VmFact::HasMemory(vm, wanted) => self.has_memory(*vm, *wanted),
            VmFact::EveryVmRuns => self.every_vm_runs(),
        }
    }

    fn new_vm_is_whole(&self, name: &str) -> Result<(), String> {
        let view = self.cluster.view();
        let wrong = self.cluster.world.with(|state| state.new_vms(&view).not_whole(name));
        wrong.map_or(Ok(()), Err)
    }

    /// Whether it is whole, and runs where its record says, and nowhere else.
    fn new_vm_runs(&self, name: &str) -> Result<(), String> {
        self.new_vm_is_whole(name)?;
        let view = self.cluster.view();
        let record = view.vms.values().find(|record| record.name == name);
        let record = record.ok_or("it has no record")?;
        self.cluster.unsettled_vm(record, name).map_or(Ok(()), Err)?;
        so(record.state == VmState::Start, || format!("it is {}", record.state))
    }

    fn runs(&self, vm: usize, on: &[usize]) -> Result<(), String> {
        let runs_on = self.cluster.runs_on(vm);
        let is_so = match runs_on.as_slice() {
            [host] => on.is_empty() || on.contains(host),
            _ => false,
        };
        so(is_so, || self.where_is(vm))
    }

    fn started(&self, vm: usize, times: u64) -> Result<(), String> {
        let since = self.times_started(vm);
        so(since == times, || format!("it was started {since} times"))
    }

    fn times_started(&self, vm: usize) -> u64 {
        let uuid = vm_uuid(vm);
        let now = self
            .cluster
            .world
            .with(|state| state.truth.boots.get(&uuid).copied().unwrap_or_default());
        now - self.beginning.boots.get(&uuid).copied().unwrap_or_default()
    }

    fn arrives_on(&self, vm: usize, node: usize) -> bool {
        let uuid = vm_uuid(vm);
        self.cluster.world.with(|state| {
            state.hypervisors[node].guests.get(&uuid).is_some_and(|guest| guest.is_incoming)
        })
    }

    fn has_memory(&self, vm: usize, wanted: u64) -> Result<(), String> {
        let of_guests: Vec<u64> = self.cluster.world.with(|state| {
            let guests = state.hypervisors.iter().filter_map(|host| host.guests.get(&vm_uuid(vm)));
            guests.map(|guest| guest.memory_mib).collect()
        });
        if let Some(other) = of_guests.iter().find(|memory| **memory != wanted) {
            return Err(format!("its guest has {other} MiB"));
        }
        self.record(
            vm,
            |record| record.memory_mib() == wanted,
            |record| format!("one of {} MiB", record.memory_mib()),
        )
    }

    fn has_interface(&self, vm: usize, wanted: bool) -> Result<(), String> {
        let plugged: Vec<usize> = self.cluster.world.with(|state| {
            let guests = state.hypervisors.iter().filter_map(|host| host.guests.get(&vm_uuid(vm)));
            guests.map(|guest| guest.plugged.len()).collect()
        });
        let is_so = !plugged.is_empty() && plugged.iter().all(|more| *more == usize::from(wanted));
        so(is_so, || format!("its guests have {plugged:?} more"))
    }

    fn has_disk(&self, vm: usize, wanted: bool) -> Result<(), String> {
        let plugged: Vec<bool> = self.cluster.world.with(|state| {
            let guests = state.hypervisors.iter().filter_map(|host| host.guests.get(&vm_uuid(vm)));
            guests.map(|guest| guest.plugged.contains_key(DISK_TARGET)).collect()
        });
        let is_so = !plugged.is_empty() && plugged.iter().all(|has| *has == wanted);
        so(is_so, || format!("that its guests have it is {plugged:?}"))
    }

    /// Every VM in `start` runs on its node, and no other runs.
    fn every_vm_runs(&self) -> Result<(), String> {
        let view = self.cluster.view();
        for vm in 0..self.cluster.shape.vms.len() {
            let Some(record) = view.vms.get(&vm_uuid(vm)) else { continue };
            let hosts = self.cluster.runs_on(vm);
            let is_right = match (&record.state, hosts.as_slice()) {
                (VmState::Start, [host]) => {
                    record.node.as_ref().is_some_and(|node| node.as_str() == self.name(*host))
                }
                (VmState::Stop | VmState::Disable, []) => !record.autostart,
                _ => false,
            };
            so(is_right, || format!("{}: {}", self.cluster.shape.vms[vm].name, self.where_is(vm)))?;
        }
        Ok(())
    }

    fn belongs_to(&self, vm: usize, nodes: &[usize]) -> Result<(), String> {
        let is_one = |record: &VmRecord| {
            nodes.iter().any(|node| {
                record.node.as_ref().is_some_and(|own| own.as_str() == self.name(*node))
            })
        };
        self.record(vm, is_one, |record| {
            format!("of node `{}`", name_or_none(record.node.as_ref()))
        })
    }

    fn returns_to(&self, vm: usize, node: usize) -> Result<(), String> {
        self.record(
            vm,
            |record| record.last_node.as_ref().is_some_and(|last| last.as_str() == self.name(node)),
            |record| format!("to return to `{}`", name_or_none(record.last_node.as_ref())),
        )
    }

    fn starts_with_its_node(&self, vm: usize, wanted: bool) -> Result<(), String> {
        self.record(
            vm,
            |record| record.autostart == wanted,
            |record| {
                let is_so = if record.autostart { "to start" } else { "not to start" };
                format!("{} and marked {is_so} with its node", record.state)
            },
        )
    }

    fn guest_knows_size(&self, vm: usize, mib: u64) -> Result<(), String> {
        let known: Vec<u64> = self.cluster.world.with(|state| {
            let guests = state.hypervisors.iter().filter_map(|host| host.guests.get(&vm_uuid(vm)));
            guests.flat_map(|guest| guest.disk_bytes.values().copied()).collect()
        });
        so(known == [mib << 20], || format!("its guests know of {known:?} bytes"))
    }
}
