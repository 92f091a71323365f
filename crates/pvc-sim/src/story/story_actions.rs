//! Events that can happen in a story.

use super::words::{Filled, Form};
use crate::actions::{Action, Ask, OnlyWay, StartFailure};
use crate::guest_networks::NetworkAsk;
use crate::host::Net;
use crate::job_steps::Moment;
use crate::new_vms::NewVmAsk;
use crate::power::BmcManner;
use crate::storage_changes::{ChangeMoment, NewDb, StorageAsk};
use crate::uploads::{Flaw, Sending, UploadMoment};

/// Something that happens.
#[derive(Clone)]
pub(super) enum StoryAction {
    /// Nothing at all is one, too: a variant may want to say so.
    Does(Vec<Action>),
    ToEachNode(fn(usize) -> Action),
    /// Happens to whoever fences this node by then.
    ToFencerOf(usize, fn(usize) -> Action),
    /// Happens to the node on which this VM runs by then.
    ToNodeOf(usize, fn(usize) -> Action),
}

fn fault(action: Action) -> StoryAction {
    StoryAction::Does(vec![action])
}

fn ask(ask: Ask) -> StoryAction {
    fault(Action::Ask(ask))
}

fn network(change: NetworkAsk) -> StoryAction {
    ask(Ask::Network(change))
}

fn create(f: &Filled, start: bool) -> StoryAction {
    ask(Ask::NewVm(NewVmAsk::Create { name: f.text.clone(), start }))
}

fn provision(f: &Filled, start: bool) -> StoryAction {
    ask(Ask::NewVm(NewVmAsk::Provision { name: f.text.clone(), start }))
}

fn remove_network(f: &Filled, force: bool) -> StoryAction {
    network(NetworkAsk::Remove { vni: f.count, force })
}

/// The host of the network with this number is its gateway.
fn set_gateway(f: &Filled) -> StoryAction {
    let host = f.text.parse().unwrap_or_default();
    network(NetworkAsk::SetGateway { vni: f.count, host })
}

fn try_rule(f: &Filled) -> StoryAction {
    let seconds = u32::try_from(f.times[0].as_secs()).unwrap_or(u32::MAX);
    network(NetworkAsk::TryRule { vni: f.count, rule: f.text.clone(), seconds })
}

fn every_net(f: &Filled, action: fn(usize, Net) -> Action) -> StoryAction {
    StoryAction::Does(
        [Net::Cluster, Net::Upstream, Net::Storage].map(|net| action(f.node(), net)).to_vec(),
    )
}

pub(super) const FORMS: &[Form<StoryAction>] = &[
    // Machines.
    Form { form: "power off NODE", means: |f| fault(Action::PowerLoss(f.node())) },
    Form { form: "power on NODE", means: |f| fault(Action::PowerReturn(f.node())) },
    Form { form: "freeze NODE", means: |f| fault(Action::FreezeHost(f.node())) },
    Form { form: "thaw NODE", means: |f| fault(Action::ThawHost(f.node())) },
    Form { form: "power off every node", means: |_| StoryAction::ToEachNode(Action::PowerLoss) },
    Form { form: "power on every node", means: |_| StoryAction::ToEachNode(Action::PowerReturn) },
    Form { form: "cut NET network of NODE", means: |f| fault(Action::Unplug(f.node(), f.nets[0])) },
    Form { form: "heal NET network of NODE", means: |f| fault(Action::Plug(f.node(), f.nets[0])) },
    Form { form: "cut every network of NODE", means: |f| every_net(f, Action::Unplug) },
    Form { form: "heal every network of NODE", means: |f| every_net(f, Action::Plug) },
    Form {
        form: "cut cluster network of every node",
        means: |_| StoryAction::ToEachNode(|node| Action::Unplug(node, Net::Cluster)),
    },
    Form {
        form: "heal cluster network of every node",
        means: |_| StoryAction::ToEachNode(|node| Action::Plug(node, Net::Cluster)),
    },
    Form {
        form: "clock of NODE jumps by STEP",
        means: |f| fault(Action::StepClock(f.node(), f.step)),
    },
    // BMCs.
    Form { form: "bmc of NODE works", means: |f| fault(Action::Bmc(f.node(), BmcManner::Works)) },
    Form { form: "bmc of NODE is dead", means: |f| fault(Action::Bmc(f.node(), BmcManner::Dead)) },
    Form {
        form: "bmc of NODE answers after TIME",
        means: |f| fault(Action::Bmc(f.node(), BmcManner::Slow(f.times[0].as_secs()))),
    },
    Form {
        form: "bmc of NODE lies off",
        means: |f| fault(Action::Bmc(f.node(), BmcManner::LiesOff)),
    },
    Form {
        form: "bmc of NODE ignores commands",
        means: |f| fault(Action::Bmc(f.node(), BmcManner::Ignores)),
    },
    Form {
        form: "bmc of NODE takes TIME to switch on",
        means: |f| fault(Action::Bmc(f.node(), BmcManner::WakesLate(f.times[0].as_secs()))),
    },
    // Programs.
    Form { form: "kill daemon of NODE", means: |f| fault(Action::KillDaemon(f.node())) },
    Form { form: "stop daemon of NODE", means: |f| fault(Action::StopDaemon(f.node())) },
    Form { form: "start daemon of NODE", means: |f| fault(Action::StartDaemon(f.node())) },
    Form { form: "restart daemon of NODE", means: |f| fault(Action::RestartDaemon(f.node())) },
    Form { form: "upgrade daemon of NODE", means: |f| fault(Action::Upgrade(f.node())) },
    Form { form: "downgrade daemon of NODE", means: |f| fault(Action::Downgrade(f.node())) },
    Form { form: "freeze daemon of NODE", means: |f| fault(Action::FreezeDaemon(f.node())) },
    Form { form: "thaw daemon of NODE", means: |f| fault(Action::ThawDaemon(f.node())) },
    Form {
        form: "kill daemon of every node",
        means: |_| StoryAction::ToEachNode(Action::KillDaemon),
    },
    Form {
        form: "restart daemon of every node",
        means: |_| StoryAction::ToEachNode(Action::RestartDaemon),
    },
    Form {
        form: "thaw daemon of every node",
        means: |_| StoryAction::ToEachNode(Action::ThawDaemon),
    },
    Form { form: "kill api of NODE", means: |f| fault(Action::KillApi(f.node())) },
    Form { form: "stop api of NODE", means: |f| fault(Action::StopApi(f.node())) },
    Form { form: "start api of NODE", means: |f| fault(Action::StartApi(f.node())) },
    Form { form: "restart api of NODE", means: |f| fault(Action::RestartApi(f.node())) },
    Form {
        form: "restart api of every node",
        means: |_| StoryAction::ToEachNode(Action::RestartApi),
    },
    Form { form: "kill worker of NODE", means: |f| fault(Action::KillWorker(f.node())) },
    Form { form: "stop worker of NODE", means: |f| fault(Action::StopWorker(f.node())) },
    Form { form: "start worker of NODE", means: |f| fault(Action::StartWorker(f.node())) },
    Form { form: "restart worker of NODE", means: |f| fault(Action::RestartWorker(f.node())) },
    Form {
        form: "hypervisor of NODE goes down",
        means: |f| fault(Action::HypervisorDown(f.node())),
    },
    Form { form: "hypervisor of NODE comes up", means: |f| fault(Action::HypervisorUp(f.node())) },
    Form { form: "zookeeper of NODE goes down", means: |f| fault(Action::ServerDown(f.node())) },
    Form { form: "zookeeper of NODE comes up", means: |f| fault(Action::ServerUp(f.node())) },
    Form {
        form: "zookeeper of every node goes down",
        means: |_| StoryAction::ToEachNode(Action::ServerDown),
    },
    Form {
        form: "zookeeper of every node comes up",
        means: |_| StoryAction::ToEachNode(Action::ServerUp),
    },
    Form {
        form: "zookeeper of NODE lags by TIME",
        means: |f| {
            let late = u64::try_from(f.times[0].as_millis()).unwrap_or(u64::MAX);
            fault(Action::ServerLags(f.node(), late))
        },
    },
    Form { form: "zookeeper of NODE keeps up", means: |f| fault(Action::ServerKeepsUp(f.node())) },
    Form { form: "zookeeper takes no writes", means: |_| fault(Action::StoreTakesNoWrites) },
    Form { form: "zookeeper takes writes", means: |_| fault(Action::StoreTakesWrites) },
    Form { form: "layout of store becomes COUNT", means: |f| fault(Action::Layout(f.count)) },
    Form { form: "unknown keys appear", means: |_| fault(Action::UnknownKeys) },
    Form {
        form: "connection of NODE breaks after its next write",
        means: |f| fault(Action::BreakAfterWrite(f.node())),
    },
    Form { form: "disk of NODE fills", means: |f| fault(Action::DiskFills(f.node())) },
    Form { form: "disk of NODE has room", means: |f| fault(Action::DiskHasRoom(f.node())) },
    Form { form: "ceph falls silent", means: |_| fault(Action::CephSilent) },
    Form { form: "ceph answers", means: |_| fault(Action::CephAnswers) },
    Form { form: "database fails", means: |_| fault(Action::DatabaseFails) },
    Form { form: "database falls silent", means: |_| fault(Action::DatabaseSilent) },
    Form { form: "database answers", means: |_| fault(Action::DatabaseAnswers) },
    Form { form: "lock of VM is lost", means: |f| fault(Action::LoseLock(f.vm())) },
    // Whoever fences a node.
    Form {
        form: "power off fencer of NODE",
        means: |f| StoryAction::ToFencerOf(f.node(), Action::PowerLoss),
    },
    Form {
        form: "kill daemon of fencer of NODE",
        means: |f| StoryAction::ToFencerOf(f.node(), Action::KillDaemon),
    },
    Form {
        form: "restart daemon of fencer of NODE",
        means: |f| StoryAction::ToFencerOf(f.node(), Action::RestartDaemon),
    },
    Form {
        form: "freeze daemon of fencer of NODE",
        means: |f| StoryAction::ToFencerOf(f.node(), Action::FreezeDaemon),
    },
    Form {
        form: "cut cluster network of fencer of NODE",
        means: |f| StoryAction::ToFencerOf(f.node(), |fencer| Action::Unplug(fencer, Net::Cluster)),
    },
    Form {
        form: "cut upstream network of fencer of NODE",
        means: |f| {
            StoryAction::ToFencerOf(f.node(), |fencer| Action::Unplug(fencer, Net::Upstream))
        },
    },
    Form {
        form: "connection of fencer of NODE breaks after its next write",
        means: |f| StoryAction::ToFencerOf(f.node(), Action::BreakAfterWrite),
    },
    // Whoever runs a VM.
    Form {
        form: "power off node of VM",
        means: |f| StoryAction::ToNodeOf(f.vm(), Action::PowerLoss),
    },
    Form {
        form: "freeze node of VM",
        means: |f| StoryAction::ToNodeOf(f.vm(), Action::FreezeHost),
    },
    Form {
        form: "kill daemon of node of VM",
        means: |f| StoryAction::ToNodeOf(f.vm(), Action::KillDaemon),
    },
    // Guests and their volumes.
    Form { form: "guest VM crashes", means: |f| fault(Action::CrashGuest(f.vm())) },
    Form { form: "guest VM becomes deaf", means: |f| fault(Action::DeafenGuest(f.vm())) },
    Form { form: "guest VM calms down", means: |f| fault(Action::CalmGuest(f.vm())) },
    Form { form: "guest VM is paused", means: |f| fault(Action::PauseGuest(f.vm())) },
    Form { form: "guest VM is resumed", means: |f| fault(Action::ResumeGuest(f.vm())) },
    Form {
        form: "next COUNT starts of VM are refused",
        means: |f| fault(fail(f.vm(), None, f.count, StartFailure::Refused)),
    },
    Form {
        form: "next COUNT starts of VM are refused on NODE",
        means: |f| fault(fail(f.vm(), Some(f.node()), f.count, StartFailure::Refused)),
    },
    Form {
        form: "next COUNT starts of VM die",
        means: |f| fault(fail(f.vm(), None, f.count, StartFailure::Dies)),
    },
    Form {
        form: "next COUNT starts of VM die on NODE",
        means: |f| fault(fail(f.vm(), Some(f.node()), f.count, StartFailure::Dies)),
    },
    Form { form: "volume of VM is lost", means: |f| fault(Action::LoseVolume(f.vm())) },
    Form {
        form: "volume of VM is locked by an unknown client",
        means: |f| fault(Action::LockVolume(f.vm())),
    },
    // Jobs.
    Form {
        form: "next job stops before step COUNT",
        means: |f| fault(Action::JobStops(f.count, Moment::Before)),
    },
    Form {
        form: "next job stops inside step COUNT",
        means: |f| fault(Action::JobStops(f.count, Moment::Inside(1))),
    },
    Form {
        form: "next job stops behind NTH change of step COUNT",
        means: |f| fault(Action::JobStops(f.count, Moment::Inside(f.nth))),
    },
    Form {
        form: "next job stops after step COUNT",
        means: |f| fault(Action::JobStops(f.count, Moment::After)),
    },
    Form { form: "job goes on", means: |_| fault(Action::JobGoesOn) },
    // Uploads.
    Form {
        form: "next upload stops when volume is held",
        means: |_| fault(Action::UploadStops(UploadMoment::Held)),
    },
    Form {
        form: "next upload stops when volume is in trash",
        means: |_| fault(Action::UploadStops(UploadMoment::Trashed)),
    },
    Form {
        form: "next upload stops before new contents have name",
        means: |_| fault(Action::UploadStops(UploadMoment::Naming)),
    },
    Form {
        form: "next upload stops when new contents have name",
        means: |_| fault(Action::UploadStops(UploadMoment::Named)),
    },
    Form { form: "upload goes on", means: |_| fault(Action::UploadGoesOn) },
    // Other changes of the storage.
    Form {
        form: "next change of storage stops half way",
        means: |_| fault(Action::ChangeStops(ChangeMoment::HalfWay)),
    },
    Form {
        form: "next change of storage stops when it is done",
        means: |_| fault(Action::ChangeStops(ChangeMoment::Done)),
    },
    Form {
        form: "next download stops while it reads",
        means: |_| fault(Action::ChangeStops(ChangeMoment::Reading)),
    },
    Form { form: "change of storage goes on", means: |_| fault(Action::ChangeGoesOn) },
    Form {
        form: "osd COUNT has data that no other has",
        means: |f| fault(Action::OsdIsNeeded(f.count, 5)),
    },
    Form {
        form: "NODE loses disk TEXT",
        means: |f| fault(Action::DiskIsLost { host: f.node(), device: f.text.clone() }),
    },
    Form {
        form: "NODE gets disk TEXT",
        means: |f| fault(Action::DiskIsNew { host: f.node(), device: f.text.clone() }),
    },
    Form { form: "NODE forgets its osds", means: |f| fault(Action::ForgetOsds(f.node())) },
    Form { form: "disks of NODE swap their names", means: |f| fault(Action::SwapDisks(f.node())) },
    // Networks of VMs.
    Form {
        form: "packet filter of NODE is emptied",
        means: |f| fault(Action::FlushFirewall(f.node())),
    },
    Form {
        form: "tunnel of guest network COUNT is deleted on NODE",
        means: |f| fault(Action::LoseTunnel(f.node(), f.count)),
    },
    Form {
        form: "dhcp server of guest network COUNT crashes",
        means: |f| fault(Action::CrashServer(f.count)),
    },
    Form {
        form: "kernel of NODE refuses rule TEXT",
        means: |f| fault(Action::RefuseRules(f.node(), f.text.clone())),
    },
    Form { form: "kernel of NODE takes every rule", means: |f| fault(Action::TakeRules(f.node())) },
    // What operators ask for.
    Form { form: "network add COUNT", means: |f| network(NetworkAsk::Add { vni: f.count }) },
    Form {
        form: "network add bridged COUNT",
        means: |f| network(NetworkAsk::AddBridged { vni: f.count }),
    },
    Form { form: "network remove COUNT", means: |f| remove_network(f, false) },
    Form { form: "network remove COUNT by force", means: |f| remove_network(f, true) },
    Form { form: "network gateway COUNT to TEXT", means: set_gateway },
    Form {
        form: "network acl add COUNT TEXT",
        means: |f| {
            network(NetworkAsk::AddRule { vni: f.count, rule: f.text.clone(), first: false })
        },
    },
    Form {
        form: "network acl remove COUNT TEXT",
        means: |f| network(NetworkAsk::RemoveRule { vni: f.count, rule: f.text.clone() }),
    },
    Form { form: "network acl try COUNT for TIME TEXT", means: try_rule },
    Form {
        form: "network confirm COUNT",
        means: |f| network(NetworkAsk::Confirm { vni: f.count }),
    },
    Form {
        form: "network dhcp add COUNT VM",
        means: |f| network(NetworkAsk::Reserve { vni: f.count, vm: f.vm() }),
    },
    Form {
        form: "network dhcp remove COUNT VM",
        means: |f| network(NetworkAsk::Release { vni: f.count, vm: f.vm() }),
    },
    Form { form: "vm start VM", means: |f| ask(Ask::Start(f.vm())) },
    Form { form: "vm stop VM", means: |f| ask(Ask::Stop(f.vm())) },
    Form { form: "vm shutdown VM", means: |f| ask(Ask::Shutdown(f.vm())) },
    Form { form: "vm restart VM", means: |f| ask(Ask::Restart(f.vm())) },
    Form { form: "vm disable VM", means: |f| ask(Ask::Disable(f.vm())) },
    Form { form: "vm define VM", means: |f| ask(Ask::Define(f.vm())) },
    Form {
        form: "vm rename VM to TEXT",
        means: |f| ask(Ask::Rename { vm: f.vm(), to: f.text.clone() }),
    },
    Form {
        form: "vm modify VM to COUNT MiB",
        means: |f| ask(Ask::Modify { vm: f.vm(), memory_mib: u64::from(f.count) }),
    },
    Form { form: "vm create and start TEXT", means: |f| create(f, true) },
    Form { form: "vm create TEXT", means: |f| create(f, false) },
    Form { form: "provisioner create and start TEXT", means: |f| provision(f, true) },
    Form { form: "provisioner create TEXT", means: |f| provision(f, false) },
    Form { form: "vm undefine VM", means: |f| ask(Ask::Undefine(f.vm())) },
    Form { form: "storage volume remove VM", means: |f| ask(Ask::RemoveVolume(f.vm())) },
    Form { form: "storage trash restore VM", means: |f| ask(Ask::RestoreVolume(f.vm())) },
    Form { form: "storage volume upload VM", means: |f| upload(f, None) },
    Form { form: "storage volume upload VM in TIME", means: |f| upload(f, None) },
    Form {
        form: "storage volume upload VM in TIME and break off",
        means: |f| upload(f, Some(Flaw::BreaksOff)),
    },
    Form {
        form: "storage volume upload VM in TIME and hang up",
        means: |f| upload(f, Some(Flaw::HangsUp)),
    },
    Form {
        form: "storage volume upload VM in TIME and stall",
        means: |f| upload(f, Some(Flaw::Stalls)),
    },
    Form {
        form: "storage volume upload VM with a wrong size",
        means: |f| upload(f, Some(Flaw::WrongSize)),
    },
    Form {
        form: "storage volume upload VM with a wrong checksum",
        means: |f| upload(f, Some(Flaw::WrongChecksum)),
    },
    Form { form: "task cancel", means: |_| ask(Ask::CancelTask) },
    Form { form: "storage benchmark run", means: |_| ask(Ask::Benchmark) },
    Form {
        form: "storage osd create-db-vg NODE TEXT",
        means: |f| change(StorageAsk::AddDbGroup { host: f.node(), device: f.text.clone() }),
    },
    Form {
        form: "storage osd add with a database NODE TEXT",
        means: |f| add_osds(f, 1, Some(NewDb::OfSize)),
    },
    Form {
        form: "storage osd add with a database by ratio NODE TEXT",
        means: |f| add_osds(f, 1, Some(NewDb::OfRatio)),
    },
    Form {
        form: "storage osd add split in COUNT with databases by ratio NODE TEXT",
        means: |f| add_osds(f, f.count, Some(NewDb::OfRatio)),
    },
    Form {
        form: "storage osd add split in COUNT NODE TEXT",
        means: |f| add_osds(f, f.count, None),
    },
    Form { form: "storage osd add NODE TEXT", means: |f| add_osds(f, 1, None) },
    Form { form: "storage osd replace COUNT by force TEXT", means: |f| replace_osd(f, true) },
    Form { form: "storage osd replace COUNT TEXT", means: |f| replace_osd(f, false) },
    Form {
        form: "storage osd refresh COUNT TEXT",
        means: |f| change(StorageAsk::RefreshOsd { osd: f.count, device: f.text.clone() }),
    },
    Form {
        form: "storage osd remove COUNT",
        means: |f| change(StorageAsk::RemoveOsd { osd: f.count, force: false }),
    },
    Form {
        form: "storage osd remove COUNT by force",
        means: |f| change(StorageAsk::RemoveOsd { osd: f.count, force: true }),
    },
    Form {
        form: "storage volume snapshot add VM TEXT",
        means: |f| change(StorageAsk::AddSnapshot { vm: f.vm(), name: f.text.clone() }),
    },
    Form {
        form: "storage volume snapshot remove VM TEXT",
        means: |f| change(StorageAsk::RemoveSnapshot { vm: f.vm(), name: f.text.clone() }),
    },
    Form { form: "storage volume snapshot rename VM TEXT", means: rename_snapshot },
    Form {
        form: "storage volume snapshot rollback VM TEXT",
        means: |f| change(StorageAsk::RollBack { vm: f.vm(), name: f.text.clone() }),
    },
    Form { form: "storage volume clone VM to TEXT", means: |f| copy(f, false) },
    Form { form: "storage volume clone VM on write to TEXT", means: |f| copy(f, true) },
    Form {
        form: "storage volume flatten TEXT",
        means: |f| change(StorageAsk::Flatten { copy: f.text.clone() }),
    },
    Form {
        form: "storage volume resize VM to COUNT MiB",
        means: |f| change(StorageAsk::Resize { vm: f.vm(), mib: u64::from(f.count) }),
    },
    Form {
        form: "storage volume download VM",
        means: |f| change(StorageAsk::Download { vm: f.vm() }),
    },
    Form {
        form: "storage volume add TEXT",
        means: |f| change(StorageAsk::AddVolume { volume: f.text.clone() }),
    },
    Form {
        form: "storage pool add TEXT",
        means: |f| change(StorageAsk::AddPool { pool: f.text.clone() }),
    },
    Form {
        form: "storage pool set-pgs COUNT TEXT",
        means: |f| change(StorageAsk::SetPgs { pool: f.text.clone(), count: f.count }),
    },
    Form {
        form: "storage pool remove TEXT",
        means: |f| change(StorageAsk::RemovePool { pool: f.text.clone() }),
    },
    Form { form: "vm flush-locks VM", means: |f| ask(Ask::FlushLocks(f.vm())) },
    Form { form: "vm attach interface to VM", means: |f| ask(Ask::Attach(f.vm())) },
    Form { form: "vm detach interface from VM", means: |f| ask(Ask::Detach(f.vm())) },
    Form { form: "vm attach disk to VM", means: |f| ask(Ask::AttachDisk(f.vm())) },
    Form { form: "vm detach disk from VM", means: |f| ask(Ask::DetachDisk(f.vm())) },
    Form {
        form: "vm move VM",
        means: |f| ask(Ask::Move { vm: f.vm(), to: None, live_only: false }),
    },
    Form {
        form: "vm move VM to NODE",
        means: |f| ask(Ask::Move { vm: f.vm(), to: Some(f.node()), live_only: false }),
    },
    Form {
        form: "vm move VM to NODE live only",
        means: |f| ask(Ask::Move { vm: f.vm(), to: Some(f.node()), live_only: true }),
    },
    Form { form: "vm migrate VM", means: |f| ask(Ask::Migrate { vm: f.vm(), to: None }) },
    Form {
        form: "vm migrate VM to NODE",
        means: |f| ask(Ask::Migrate { vm: f.vm(), to: Some(f.node()) }),
    },
    Form { form: "vm unmigrate VM", means: |f| ask(Ask::Unmigrate(f.vm())) },
    Form {
        form: "vm meta VM method live",
        means: |f| ask(Ask::Method { vm: f.vm(), only: Some(OnlyWay::Live) }),
    },
    Form {
        form: "vm meta VM method shutdown",
        means: |f| ask(Ask::Method { vm: f.vm(), only: Some(OnlyWay::Shutdown) }),
    },
    Form { form: "vm meta VM method none", means: |f| ask(Ask::Method { vm: f.vm(), only: None }) },
    Form {
        form: "vm meta VM limit NODES",
        means: |f| ask(Ask::Limit { vm: f.vm(), to: f.nodes.clone() }),
    },
    Form { form: "vm meta VM no limit", means: |f| ask(Ask::Limit { vm: f.vm(), to: Vec::new() }) },
    Form { form: "node flush NODE", means: |f| ask(Ask::Flush(f.node())) },
    Form { form: "node ready NODE", means: |f| ask(Ask::Ready(f.node())) },
    Form { form: "node flush NODE and wait", means: |f| ask(Ask::FlushAndWait(f.node())) },
    Form { form: "node ready NODE and wait", means: |f| ask(Ask::ReadyAndWait(f.node())) },
    Form { form: "node primary NODE", means: |f| ask(Ask::Primary(f.node())) },
    Form { form: "node secondary NODE", means: |f| ask(Ask::Secondary(f.node())) },
    Form { form: "node confirm-off NODE", means: |f| ask(Ask::ConfirmOff(f.node())) },
    Form { form: "node remove NODE", means: |f| ask(Ask::RemoveNode(f.node())) },
    Form { form: "maintenance on", means: |_| ask(Ask::Maintenance(true)) },
    Form { form: "maintenance off", means: |_| ask(Ask::Maintenance(false)) },
    Form { form: "nothing", means: |_| StoryAction::Does(Vec::new()) },
];

fn upload(f: &Filled, flaw: Option<Flaw>) -> StoryAction {
    let takes = f.times.first().copied().unwrap_or_default();
    let takes_ms = u64::try_from(takes.as_millis()).unwrap_or(u64::MAX);
    ask(Ask::Upload { vm: f.vm(), sending: Sending { takes_ms, flaw } })
}

fn change(change: StorageAsk) -> StoryAction {
    ask(Ask::Storage(change))
}

fn add_osds(f: &Filled, count: u32, db: Option<NewDb>) -> StoryAction {
    change(StorageAsk::AddOsds { host: f.node(), device: f.text.clone(), count, db })
}

fn replace_osd(f: &Filled, force: bool) -> StoryAction {
    change(StorageAsk::ReplaceOsd { osd: f.count, device: f.text.clone(), force })
}

/// Of `old to new`.
fn rename_snapshot(f: &Filled) -> StoryAction {
    let (name, to) = f.text.split_once(" to ").unwrap_or((f.text.as_str(), f.text.as_str()));
    let (name, to) = (name.to_owned(), to.to_owned());
    change(StorageAsk::RenameSnapshot { vm: f.vm(), name, to })
}

fn copy(f: &Filled, is_on_write: bool) -> StoryAction {
    change(StorageAsk::Clone { vm: f.vm(), to: f.text.clone(), is_on_write })
}

fn fail(vm: usize, host: Option<usize>, times: u32, how: StartFailure) -> Action {
    Action::FailStarts { vm, host, times, how }
}
