//! SR-IOV: cards get their functions and settings, and records tell of them and of who uses them.
//! What is to be done is decided in `pvc_model::sriov`; here it is done and logged.

use std::collections::BTreeMap;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::link::Links;
use pvc_model::node::NodeRecord;
use pvc_model::sriov::plan::{self, Card, CardStep, CardsPlan, CardsSeen, RecordStep};
use pvc_model::sriov::{SriovRecords, VfUse, uses_to_note};
use pvc_model::{Uuid, with_causes};
use pvc_ports::{NetworkError, Ports};
use pvc_role::{Alarm, Context};
use pvc_store::{Change, Changes};
use tokio_util::sync::CancellationToken;

use crate::said::{Complaints, Said, in_words};

/// Time between two looks at the cards.
const INTERVAL: Duration = Duration::from_secs(10);

/// Time between two passes of which the first has left something to do.
const AGAIN: Duration = Duration::from_secs(1);

/// Time that the kernel may take for a look at all cards.
const LOOK: Duration = Duration::from_secs(15);

/// Time that a step may take: a driver looks at each of a card's new functions.
const STEP: Duration = Duration::from_secs(60);

const STORE: Duration = Duration::from_secs(10);

/// Time for which a card may be other than it should be before that is a fault.
const GRACE: Duration = Duration::from_secs(60);

/// Time before a step is taken again that was taken and is not seen to have worked.
const TRY_AGAIN: Duration = Duration::from_secs(60);

const FAULT: &str = "SRIOV";

/// Makes the functions of the cards before anything is known of the store: guests that start with
/// the node have them then. What is wrong is logged, and tried again by [`run`].
pub async fn bring_up(cards: &[Card], ports: &Ports) {
    let look = async {
        let seen = look(ports, cards).await;
        seen.map_err(|error| with_causes(&error))
    };
    let looked = tokio::select! {
        biased;
        looked = look => looked,
        () = ports.clock.sleep(LOOK) => Err("the kernel does not answer".to_owned()),
    };
    let (seen, links) = match looked {
        Ok(looked) => looked,
        Err(why) => return tracing::warn!("SR-IOV cards cannot be looked at: {why}"),
    };
    let plan = plan::plan(cards, &seen, &links, None);
    for (card, steps) in plan.steps {
        for step in steps {
            let done = tokio::select! {
                biased;
                done = act(ports, &step) => done.map_err(|error| with_causes(&error)),
                () = ports.clock.sleep(STEP) => Err("it takes too long".to_owned()),
            };
            match done {
                Ok(()) => tracing::info!("SR-IOV card {card}: {step}"),
                Err(why) => {
                    tracing::warn!("SR-IOV card {card}: it failed to {step}: {why}");
                    break;
                }
            }
        }
    }
}

/// Keeps the cards and their records as they should be, until `end`.
pub async fn run(context: Context, cards: Vec<Card>, end: CancellationToken) {
    let mut keeper = Keeper::new(cards);
    let mut turns = context.turns(&end);
    let mut rest = INTERVAL;
    while turns.next_change(rest).await {
        let Some(left) = keeper.round(&context).await else { continue };
        rest = if left { AGAIN } else { INTERVAL };
    }
}

/// Records that a pass depends on, beside the cards.
#[derive(PartialEq)]
struct Wanted {
    records: SriovRecords,
    notes: Vec<VfUse>,
    /// The VMs with a function whose guests are here, or come and go: libvirt takes a function out
    /// of its VLAN.
    guests: Vec<Uuid>,
}

impl Wanted {
    fn of(view: &Cluster, node: &NodeRecord) -> Wanted {
        let records = node.sriov.clone();
        let guests = node.running.iter().chain(&node.working_on);
        let has_one = |vm: &&Uuid| records.vfs.iter().any(|vf| vf.used_by == Some(**vm));
        let guests = guests.filter(has_one).copied().collect();
        // As if no guest had one: each change of users is one of these.
        Wanted { notes: uses_to_note(view, node, |_| false), guests, records }
    }
}

struct Last {
    wanted: Wanted,
    at: Duration,
    left: bool,
}

struct Keeper {
    cards: Vec<Card>,
    last: Option<Last>,
    said: Said,
    alarm: Alarm,
    /// Steps that were taken, and when, for as long as the card does not show that they worked.
    taken: Vec<(CardStep, Duration)>,
}

impl Keeper {
    fn new(cards: Vec<Card>) -> Keeper {
        let (said, alarm) = (Said::default(), Alarm::after(GRACE));
        Keeper { cards, last: None, said, alarm, taken: Vec::new() }
    }

    /// Does what is to be done. Returns whether something is left; `None` if there was no reason to
    /// look.
    async fn round(&mut self, context: &Context) -> Option<bool> {
        let view = context.store.view();
        let node = view.nodes.get(context.name())?;
        if self.cards.is_empty() && node.sriov == SriovRecords::default() {
            return None;
        }
        let wanted = Wanted::of(&view, node);
        let now = context.now();
        let is_known = |last: &Last| {
            let rest = if last.left { AGAIN } else { INTERVAL };
            last.wanted == wanted && now.saturating_sub(last.at) < rest
        };
        // The store changes all the time.
        if self.last.as_ref().is_some_and(is_known) {
            return None;
        }
        let mut complaints = Complaints::new();
        let looked = context.in_time(LOOK, look(&context.ports, &self.cards)).await;
        let left = match looked {
            Err(error) => {
                let text = format!("the cards cannot be looked at: {}", in_words(error));
                complaints.insert("SR-IOV".to_owned(), text);
                true
            }
            Ok((seen, links)) => {
                let plan = plan::plan(&self.cards, &seen, &links, Some((&view, node)));
                let done;
                (complaints, done) = self.take(context, plan).await;
                // What was seen before they were made says nothing of them.
                let is_old = done.iter().any(|step| matches!(step, CardStep::MakeFunctions { .. }));
                let is_written = !is_old && self.record(context, &seen, &links).await;
                !done.is_empty() || !is_written
            }
        };
        self.tell(context, &complaints).await;
        self.said.log_new(complaints);
        self.last = Some(Last { wanted, at: now, left });
        Some(left)
    }

    /// Writes what the records should say. False if the store did not take it.
    async fn record(&self, context: &Context, seen: &CardsSeen, links: &Links) -> bool {
        let decide = |view: &Cluster| {
            let mut changes = Changes::new();
            if let Some(node) = view.nodes.get(context.name()) {
                for step in plan::records(&self.cards, seen, links, view, node) {
                    changes.push(change(node, step));
                }
            }
            Ok((changes, ()))
        };
        let failed = "records of SR-IOV cards are not written; it is tried again";
        let late = "the store does not take records of SR-IOV cards in time; it is tried again";
        context.change(STORE, decide, failed, late).await
    }

    /// Takes the steps of a plan. One that fails keeps the others of its card from nothing but a
    /// new number of functions: one setting that a card does not know is no reason to leave out the
    /// rest. One that was taken before and is wanted again is taken now and then only. Returns what
    /// is wrong, and the steps that were taken.
    async fn take(&mut self, context: &Context, plan: CardsPlan) -> (Complaints, Vec<CardStep>) {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (card, findings) in plan.findings {
            let texts = findings.iter().map(ToString::to_string);
            all.entry(about(&card)).or_default().extend(texts);
        }
        let before = std::mem::take(&mut self.taken);
        let mut done = Vec::new();
        for (card, steps) in plan.steps {
            for step in steps {
                let now = context.now();
                let at = before.iter().find(|(taken, _)| *taken == step).map(|(_, at)| *at);
                if let Some(at) = at {
                    let why = format!("it was told to {step}, and does not show it");
                    all.entry(about(&card)).or_default().push(why);
                    if now.saturating_sub(at) < TRY_AGAIN {
                        self.taken.push((step, at));
                        continue;
                    }
                }
                match context.in_time(STEP, act(&context.ports, &step)).await {
                    Ok(()) => {
                        tracing::info!("{}: {step}", about(&card));
                        self.taken.push((step.clone(), now));
                        done.push(step);
                    }
                    Err(error) => {
                        let why = format!("it failed to {step}: {}", in_words(error));
                        all.entry(about(&card)).or_default().push(why);
                        if matches!(step, CardStep::MakeFunctions { .. }) {
                            break;
                        }
                    }
                }
            }
        }
        let complaints = all.into_iter().map(|(about, texts)| (about, texts.join("; "))).collect();
        (complaints, done)
    }

    async fn tell(&mut self, context: &Context, complaints: &Complaints) {
        let first = complaints.iter().next().map(|(about, text)| {
            let more = match complaints.len() {
                1 => String::new(),
                all => format!(" (and {} others; the node's log names them)", all - 1),
            };
            format!("node {}: {about}: {text}{more}", context.name())
        });
        context.alarm_own(FAULT, &mut self.alarm, first).await;
    }
}

fn change(node: &NodeRecord, step: RecordStep) -> Change {
    let node = node.name.clone();
    match step {
        RecordStep::PutPf(pf) => Change::PutPf(node, pf),
        RecordStep::RemovePf(pf) => Change::RemovePf(node, pf),
        RecordStep::PutVf(vf) => Change::PutVf(node, Box::new(vf)),
        RecordStep::RemoveVf(vf) => Change::RemoveVf(node, vf),
        RecordStep::Note(note) => Change::UseVf(node, note),
    }
}

async fn look(ports: &Ports, cards: &[Card]) -> Result<(CardsSeen, Links), NetworkError> {
    let mut seen = CardsSeen::new();
    for card in cards {
        seen.insert(card.name.clone(), ports.sriov.card(&card.name).await?);
    }
    Ok((seen, ports.network.links().await?))
}

fn about(card: &str) -> String {
    format!("SR-IOV card {card}")
}

async fn act(ports: &Ports, step: &CardStep) -> Result<(), NetworkError> {
    match step {
        CardStep::MakeFunctions { card, count } => ports.sriov.make_functions(card, *count).await,
        CardStep::SetMtu { link, mtu } => ports.network.set_mtu(link, *mtu).await,
        CardStep::SwitchOn { link } => ports.network.set_up(link, true).await,
        CardStep::Set { card, index, setting } => {
            ports.sriov.set_function(card, *index, setting).await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_embedded::EmbeddedTree;
    use pvc_model::NodeName;
    use pvc_model::node::NodeRole;
    use pvc_model::sriov::settings::{VfFields, change};
    use pvc_model::vm::VmState;
    use pvc_store::{Ipmi, NewNode, NewVm, Report, Store, VmChange};
    use pvc_testkit::{MemoryNetwork, MemorySriov, SeededRandom, TokioClock, ports};

    use super::*;

    struct World {
        context: Context,
        cards: Arc<MemorySriov>,
        network: Arc<MemoryNetwork>,
    }

    const VM: Uuid = Uuid::from_u128(1);

    /// Node `hv1` with a card `ens1` of at most eight functions, none of which is there yet.
    async fn world() -> World {
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let tree = EmbeddedTree::in_memory().connect();
        let store = Store::open(tree, clock.clone(), random.clone()).await.unwrap();
        store.initialize(false).await.unwrap();
        let cards = Arc::new(MemorySriov::new());
        cards.insert("ens1", 8);
        let network = Arc::new(MemoryNetwork::new().with_device("ens1"));
        let (sriov, links) = (cards.clone(), network.clone());
        let ports = Ports { clock, random, sriov, network: links, ..ports() };
        let context = Context::new(NodeName::new("hv1"), ports, store);
        for name in ["hv1", "hv2"] {
            let node = NewNode {
                name: NodeName::new(name),
                role: NodeRole::Coordinator,
                cpus: 4,
                kernel: "6.1".to_owned(),
                os: "Debian".to_owned(),
                arch: "x86_64".to_owned(),
                version: "0.2.0".to_owned(),
                ipmi: Ipmi::default(),
                keepalive: 0,
            };
            let changes = || {
                let mut changes = Changes::new();
                changes.push(Change::AddNode(Box::new(node.clone())));
                changes
            };
            write(&context, changes).await;
        }
        World { context, cards, network }
    }

    async fn write(context: &Context, changes: impl Fn() -> Changes + Send + Sync) {
        let done = context.store.change(|_| Ok::<_, pvc_role::Superseded>((changes(), ()))).await;
        done.unwrap();
    }

    fn two() -> Vec<Card> {
        vec![Card { name: "ens1".to_owned(), mtu: Some(9000), functions: 2 }]
    }

    impl World {
        /// Passes until nothing is left to do.
        async fn settle(&self, keeper: &mut Keeper) {
            let mut still = 0;
            for _ in 0..8 {
                keeper.last = None;
                let left = keeper.round(&self.context).await == Some(true);
                still = if left { 0 } else { still + 1 };
                // What one pass has recorded the next one sets.
                if still == 2 {
                    return;
                }
            }
            panic!("something is left to do: {:?}", keeper.said.said());
        }

        fn sriov(&self) -> SriovRecords {
            self.context.record().unwrap().sriov.clone()
        }

        async fn define(&self, function: &str) {
            let nic = format!(
                "<interface type='hostdev'><mac address='52:54:00:00:00:01'/>\
                 <sriov_device>{function}</sriov_device></interface>"
            );
            let new = NewVm {
                uuid: VM,
                name: "web1".to_owned(),
                state: VmState::Start,
                node: Some(NodeName::new("hv1")),
                xml: format!(
                    "<domain type='kvm'><name>web1</name><uuid>{VM}</uuid>\
                     <memory unit='MiB'>512</memory><vcpu>1</vcpu>\
                     <os><type arch='x86_64' machine='pc'>hvm</type></os>\
                     <devices><emulator>/usr/bin/kvm</emulator>{nic}<console type='pty'/>\
                     </devices></domain>"
                ),
                profile: None,
                volumes: Vec::new(),
                autostart: false,
                migration_method: None,
                max_downtime_ms: 300,
                selector: None,
                node_limit: Vec::new(),
                tags: Vec::new(),
            };
            let changes = || {
                let mut changes = Changes::new();
                changes.push(Change::DefineVm(Box::new(new.clone())));
                changes
            };
            write(&self.context, changes).await;
        }

        async fn change_vm(&self, change: VmChange) {
            let changes = || {
                let mut changes = Changes::new();
                changes.vm(VM, change.clone());
                changes
            };
            write(&self.context, changes).await;
        }

        async fn runs_here(&self, vms: &[Uuid]) {
            let report = Report::Running(self.context.name().clone(), vms.to_vec());
            self.context.store.report(vec![report]).await.unwrap();
            self.context.store.fresh().await.unwrap();
        }

        fn noted(&self) -> Vec<Option<Uuid>> {
            self.sriov().vfs.iter().map(|vf| vf.used_by.filter(|_| vf.used)).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn functions_are_made_recorded_and_set_and_set_again_when_the_card_forgets() {
        let world = world().await;
        bring_up(&two(), &world.context.ports).await;
        assert_eq!(world.cards.take_changes(), ["make 2 functions of `ens1`"]);
        for link in ["ens1v0", "ens1v1"] {
            world.network.insert_device(link);
        }
        let mut keeper = Keeper::new(two());
        world.settle(&mut keeper).await;
        let links = world.context.ports.network.links().await.unwrap();
        assert!(links.values().filter(|link| link.name.starts_with("ens1")).all(|l| l.mtu == 9000));
        let records = world.sriov();
        let names: Vec<&str> = records.vfs.iter().map(|vf| vf.name.as_str()).collect();
        assert_eq!(names, ["ens1v0", "ens1v1"]);
        assert_eq!((records.pfs[0].mtu.as_str(), records.pfs[0].vfcount.as_str()), ("9000", "2"));
        assert_eq!(records.vfs[1].pci.address().unwrap().to_string(), "0000:3b:02.1");
        assert_eq!(world.cards.take_changes(), [""; 0], "they are as they were recorded");

        let node = world.context.record().unwrap();
        let fields = VfFields { vlan_id: Some(100), trust: Some(true), ..VfFields::default() };
        let (_, config) = change(&node, "ens1v1", &fields).unwrap();
        let changes = || {
            let (node, vf) = (node.name.clone(), "ens1v1".to_owned());
            let mut changes = Changes::new();
            changes.push(Change::ConfigureVf { node, vf, config: config.clone() });
            changes
        };
        write(&world.context, changes).await;
        world.settle(&mut keeper).await;
        let set = [
            "set its VLAN to 100 with priority 0, function 1 of `ens1`",
            "switch trust in it on, function 1 of `ens1`",
        ];
        assert_eq!(world.cards.take_changes(), set);
        world.cards.reset("ens1", 1);
        world.cards.pass_through("ens1", 1, true);
        world.settle(&mut Keeper::new(two())).await;
        assert_eq!(world.cards.take_changes(), set, "also while a guest has it");
        assert_eq!(world.sriov().vfs.len(), 2, "and its record is not lost");
    }

    impl World {
        /// Two functions that are recorded; the second is to be in VLAN 100.
        async fn with_vlan(&self, keeper: &mut Keeper) {
            keeper.round(&self.context).await;
            for link in ["ens1v0", "ens1v1"] {
                self.network.insert_device(link);
            }
            self.settle(keeper).await;
            let node = self.context.record().unwrap();
            let fields = VfFields { vlan_id: Some(100), ..VfFields::default() };
            let (_, config) = change(&node, "ens1v1", &fields).unwrap();
            let changes = || {
                let (node, vf) = (node.name.clone(), "ens1v1".to_owned());
                let mut changes = Changes::new();
                changes.push(Change::ConfigureVf { node, vf, config: config.clone() });
                changes
            };
            write(&self.context, changes).await;
            self.settle(keeper).await;
            self.cards.take_changes();
        }

        async fn pass(&self, keeper: &mut Keeper) -> Vec<String> {
            keeper.last = None;
            keeper.round(&self.context).await;
            self.cards.take_changes()
        }
    }

    const SET: &str = "set its VLAN to 100 with priority 0, function 1 of `ens1`";

    #[tokio::test(start_paused = true)]
    async fn what_is_recorded_of_functions_survives_a_card_that_has_none_for_a_moment() {
        let world = world().await;
        let mut keeper = Keeper::new(two());
        world.with_vlan(&mut keeper).await;
        let recorded = world.sriov();
        world.cards.insert("ens1", 8);
        assert_eq!(world.pass(&mut keeper).await, ["make 2 functions of `ens1`"]);
        assert_eq!(world.sriov(), recorded);
        assert_eq!(world.pass(&mut keeper).await, [SET]);
        assert_eq!(world.sriov(), recorded);
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_that_does_not_last_is_said_and_taken_now_and_then_only() {
        let world = world().await;
        let mut keeper = Keeper::new(two());
        world.with_vlan(&mut keeper).await;
        world.cards.reset("ens1", 1);
        assert_eq!(world.pass(&mut keeper).await, [SET]);
        world.cards.reset("ens1", 1);
        for _ in 0..3 {
            assert_eq!(world.pass(&mut keeper).await, [""; 0]);
            let said = &keeper.said.said()["SR-IOV card ens1"];
            assert!(said.contains("does not show it"), "{said}");
        }
        world.context.sleep(TRY_AGAIN).await;
        assert_eq!(world.pass(&mut keeper).await, [SET]);
        world.pass(&mut keeper).await;
        assert!(keeper.said.said().is_empty(), "this time it has");
    }

    #[tokio::test(start_paused = true)]
    async fn who_uses_a_function_follows_the_vm_wherever_it_goes() {
        let world = world().await;
        let mut keeper = Keeper::new(two());
        keeper.round(&world.context).await;
        for link in ["ens1v0", "ens1v1"] {
            world.network.insert_device(link);
        }
        world.settle(&mut keeper).await;
        world.define("ens1v1").await;
        world.settle(&mut keeper).await;
        assert_eq!(world.noted(), [None, Some(VM)]);
        assert_eq!(world.sriov().vfs[1].mac, "52:54:00:00:00:01");
        world.change_vm(VmChange::State(VmState::Stop)).await;
        world.settle(&mut keeper).await;
        assert_eq!(world.noted(), [None, Some(VM)], "a VM that is off keeps it");

        // A flush, a fence, a move: whoever writes the node, and however far it has come.
        world.runs_here(&[VM]).await;
        world.change_vm(VmChange::Node(NodeName::new("hv2"))).await;
        world.settle(&mut keeper).await;
        assert_eq!(world.noted(), [None, Some(VM)], "its guest is still here");
        world.runs_here(&[]).await;
        world.settle(&mut keeper).await;
        assert_eq!(world.noted(), [None, None]);
        assert_eq!(world.sriov().vfs[1].mac, "02:00:00:00:00:01");
        // The move was called off.
        world.change_vm(VmChange::Node(NodeName::new("hv1"))).await;
        world.settle(&mut keeper).await;
        assert_eq!(world.noted(), [None, Some(VM)]);
        let removal = || {
            let mut changes = Changes::new();
            changes.push(Change::RemoveVm(VM));
            changes
        };
        write(&world.context, removal).await;
        world.settle(&mut keeper).await;
        assert_eq!(world.noted(), [None, None]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_card_refuses_is_a_fault_after_a_while_and_hinders_nothing_else() {
        let world = world().await;
        let mut keeper = Keeper::new(two());
        keeper.round(&world.context).await;
        for link in ["ens1v0", "ens1v1"] {
            world.network.insert_device(link);
        }
        world.settle(&mut keeper).await;
        let mut cards = two();
        cards.push(Card { name: "ens9".to_owned(), mtu: None, functions: 1 });
        world.network.insert_device("eth0");
        world.cards.insert("eth0", 0);
        cards.push(Card { name: "eth0".to_owned(), mtu: None, functions: 1 });
        let mut keeper = Keeper::new(cards);
        world.settle(&mut keeper).await;
        let said: Vec<&String> = keeper.said.said().keys().collect();
        assert_eq!(said, ["SR-IOV card ens9", "SR-IOV card eth0"]);
        assert_eq!(world.context.store.view().faults.len(), 0);
        world.context.sleep(GRACE).await;
        world.settle(&mut keeper).await;
        let view = world.context.store.view();
        let fault = view.faults.values().next().expect("operators are told");
        assert!(fault.message.contains("no such network interface"), "{}", fault.message);
        let mut keeper = Keeper::new(two());
        world.settle(&mut keeper).await;
        assert!(world.context.store.view().faults.values().all(|f| f.message != fault.message));
        assert_eq!(world.sriov().pfs.len(), 1, "a card that is not configured is forgotten");
    }
}
