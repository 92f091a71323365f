//! The links of the networks of VMs: made, set right and removed. What is to be done is decided in
//! `pvc_model::guest_network::plan`; here it is done and logged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pvc_model::guest_network::plan::{self, LinkFinding, LinkStep, LinksPlan, Seen, Underlay};
use pvc_model::guest_network::{GuestNetworks, Vni};
use pvc_model::link::LinkAbilities;
use pvc_model::with_causes;
use pvc_ports::{Network, NetworkError};
use pvc_role::{Alarm, Context};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::said::{Complaints, Said, in_words};

/// Time between two looks at the links.
const INTERVAL: Duration = Duration::from_secs(5);

/// Time between two passes of which the first has left something to do.
const AGAIN: Duration = Duration::from_secs(1);

/// Time that the kernel may take for a look, and for a step.
const KERNEL: Duration = Duration::from_secs(10);

/// Time for which a network may be down before that is a fault.
const GRACE: Duration = Duration::from_secs(15);

const FAULT: &str = "GUEST_NETWORK";

/// Networks that stand on this node, by the last look.
pub type Standing = BTreeSet<Vni>;

/// Facts about the links of this node that others wait for.
#[derive(Debug, Clone, Default)]
pub struct Tell {
    pub standing: watch::Sender<Standing>,
    /// Abilities of the kernel, once they are found out.
    pub abilities: Arc<OnceLock<LinkAbilities>>,
}

/// Keeps the links as the records want them, until `end`. A managed network whose rules the packet
/// filter has not loaded, by `filtered`, is not made.
pub async fn run(
    context: Context,
    underlay: Underlay,
    mut filtered: watch::Receiver<BTreeSet<Vni>>,
    Tell { standing, abilities }: Tell,
    end: CancellationToken,
) {
    let mut keeper = Keeper::new(underlay, abilities);
    let mut turns = context.turns(&end);
    let mut rest = INTERVAL;
    loop {
        tokio::select! {
            biased;
            goes_on = turns.next_change(rest) => if !goes_on { return },
            Ok(()) = filtered.changed() => {}
        }
        filtered.mark_unchanged();
        let Some(left) = keeper.round(&context, &filtered, &standing).await else { continue };
        rest = if left { AGAIN } else { INTERVAL };
    }
}

/// Results of a pass.
#[derive(PartialEq)]
struct Wanted {
    networks: GuestNetworks,
    filtered: BTreeSet<Vni>,
}

/// The last pass.
struct Last {
    wanted: Wanted,
    at: Duration,
    /// Whether it left something to do.
    left: bool,
}

impl Last {
    fn rest(&self) -> Duration {
        if self.left { AGAIN } else { INTERVAL }
    }
}

struct Keeper {
    underlay: Underlay,
    abilities: Option<LinkAbilities>,
    found_out: Arc<OnceLock<LinkAbilities>>,
    last: Option<Last>,
    said: Said,
    alarm: Alarm,
}

/// Outcome of a pass.
#[derive(Default)]
struct Pass {
    findings: BTreeMap<Vni, BTreeSet<LinkFinding>>,
    /// Failures by network.
    failed: BTreeMap<Vni, String>,
    standing: Standing,
    did_something: bool,
    /// Whether the packet filter of a network was taken away before its turn.
    was_held_back: bool,
}

impl Keeper {
    fn new(underlay: Underlay, found_out: Arc<OnceLock<LinkAbilities>>) -> Keeper {
        let (said, alarm) = (Said::default(), Alarm::after(GRACE));
        Keeper { underlay, abilities: None, found_out, last: None, said, alarm }
    }

    /// Makes what is missing. Returns whether something is left to do; `None` if there was no
    /// reason to look.
    async fn round(
        &mut self,
        context: &Context,
        filtered: &watch::Receiver<BTreeSet<Vni>>,
        standing: &watch::Sender<Standing>,
    ) -> Option<bool> {
        let networks = GuestNetworks::of(&context.store.view());
        let wanted = Wanted { networks, filtered: filtered.borrow().clone() };
        let now = context.now();
        let is_known =
            |last: &Last| last.wanted == wanted && now.saturating_sub(last.at) < last.rest();
        // The store changes all the time.
        if self.last.as_ref().is_some_and(is_known) {
            return None;
        }
        let pass = match context.in_time(KERNEL, self.look_and_plan(context, &wanted)).await {
            Ok(plan) => take(context, plan, &wanted.filtered, filtered).await,
            Err(error) => {
                let text = format!("the links cannot be looked at: {}", in_words(error));
                let message = format!("node {}: networks of VMs: {text}", context.name());
                context.alarm_own(FAULT, &mut self.alarm, Some(message)).await;
                self.said.log_new(Complaints::from([("guest networks".to_owned(), text)]));
                return Some(true);
            }
        };
        standing.send_if_modified(|before| {
            let is_new = *before != pass.standing;
            before.clone_from(&pass.standing);
            is_new
        });
        let complaints = complaints(&wanted.networks, &pass);
        self.tell(context, &wanted.networks, &complaints, &pass).await;
        self.said.log_new(complaints);
        let waits = pass.findings.values().flatten().any(|found| *found == LinkFinding::Unfiltered);
        let left = pass.did_something || !pass.failed.is_empty() || waits || pass.was_held_back;
        self.last = Some(Last { wanted, at: now, left });
        Some(left)
    }

    async fn look_and_plan(
        &mut self,
        context: &Context,
        wanted: &Wanted,
    ) -> Result<LinksPlan, NetworkError> {
        let network = context.ports.network.as_ref();
        let abilities = match self.abilities {
            Some(abilities) => abilities,
            None => *self.abilities.insert(abilities(network, &self.found_out).await),
        };
        let links = network.links().await?;
        let mut settings = BTreeMap::new();
        for key in plan::settings(&wanted.networks, &self.underlay, &links) {
            if let Some(value) = network.setting(&key).await? {
                settings.insert(key, value);
            }
        }
        let (node, filtered) = (context.name().as_str(), &wanted.filtered);
        let seen = Seen { node, links: &links, abilities, settings: &settings, filtered };
        Ok(plan::plan(&wanted.networks, &self.underlay, &seen))
    }

    /// Tells operators of networks that stay down.
    async fn tell(
        &mut self,
        context: &Context,
        networks: &GuestNetworks,
        complaints: &Complaints,
        pass: &Pass,
    ) {
        let cut_off = |vni: &Vni| {
            let found = pass.findings.get(vni).into_iter().flatten();
            pass.failed.contains_key(vni) || found.into_iter().any(LinkFinding::cuts_off)
        };
        let mut down = pass.findings.keys().chain(pass.failed.keys()).filter(|vni| cut_off(vni));
        let first = down.next().map(|vni| {
            let why = complaints.get(&name(*vni)).cloned();
            (vni, why.unwrap_or_else(|| LinkFinding::Unfiltered.to_string()))
        });
        let first = first.map(|(vni, text)| {
            let more = match down.collect::<BTreeSet<_>>().len() {
                0 => String::new(),
                more => format!(" (and {more} others; the node's log names them)"),
            };
            format!("node {}: {} is down: {text}{more}", context.name(), name(*vni))
        });
        let first = first.or_else(|| {
            let (vni, bad) = networks.not_understood().next()?;
            let vni = pvc_model::shown(vni);
            Some(format!("node {}: network {vni} is none as it is recorded: {bad}", context.name()))
        });
        context.alarm_own(FAULT, &mut self.alarm, first).await;
    }
}

/// The abilities of the kernel. If they cannot be found out it has them all: what it cannot do is
/// said when it is to be done.
async fn abilities(network: &dyn Network, found_out: &OnceLock<LinkAbilities>) -> LinkAbilities {
    match network.abilities().await {
        Ok(abilities) => *found_out.get_or_init(|| abilities),
        Err(error) => {
            let why = with_causes(&error);
            tracing::warn!(
                "guest networks: the abilities of the kernel cannot be found out: {why}"
            );
            LinkAbilities { vlans: true, vxlans: true }
        }
    }
}

fn name(vni: Vni) -> String {
    format!("network {vni}")
}

/// Messages about the networks, by their names.
fn complaints(networks: &GuestNetworks, pass: &Pass) -> Complaints {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (vni, bad) in &networks.bad {
        all.entry(format!("network {}", pvc_model::shown(vni))).or_default().push(bad.to_string());
    }
    for (vni, findings) in &pass.findings {
        // A filter that is about to be loaded is no news; one that is not becomes a fault.
        let lasting = findings.iter().filter(|found| **found != LinkFinding::Unfiltered);
        let texts: Vec<String> =
            lasting.map(|found| format!("{found} ({})", found.hint())).collect();
        if !texts.is_empty() {
            all.entry(name(*vni)).or_default().extend(texts);
        }
    }
    for (vni, failed) in &pass.failed {
        all.entry(name(*vni)).or_default().push(failed.clone());
    }
    all.into_iter().map(|(name, texts)| (name, texts.join("; "))).collect()
}

/// Takes the steps of a plan. One that fails keeps back those of its own network. A network that is
/// not filtered any more when it comes to its turn, and was when the plan was made, has to wait for
/// the next one.
async fn take(
    context: &Context,
    plan: LinksPlan,
    planned: &BTreeSet<Vni>,
    filtered: &watch::Receiver<BTreeSet<Vni>>,
) -> Pass {
    let mut pass = Pass { findings: plan.findings, standing: plan.standing, ..Pass::default() };
    for (vni, steps) in plan.steps {
        if planned.contains(&vni) && !filtered.borrow().contains(&vni) {
            pass.was_held_back = true;
            continue;
        }
        for step in steps {
            match context.in_time(KERNEL, act(context.ports.network.as_ref(), &step)).await {
                Ok(()) => {
                    tracing::info!("{}: {step}", name(vni));
                    pass.did_something = true;
                }
                Err(error) => {
                    let why = format!("it failed to {step}: {}", in_words(error));
                    pass.failed.insert(vni, why);
                    break;
                }
            }
        }
    }
    pass
}

async fn act(network: &dyn Network, step: &LinkStep) -> Result<(), NetworkError> {
    match step {
        LinkStep::CreateVlan { link, lower, id } => network.create_vlan(link, lower, *id).await,
        LinkStep::CreateVxlan { link, vxlan } => network.create_vxlan(link, vxlan).await,
        LinkStep::CreateBridge { link } => network.create_bridge(link).await,
        LinkStep::Remove { link } => network.remove_link(link).await,
        LinkStep::SetMac { link, mac } => network.set_mac(link, *mac).await,
        LinkStep::SetAlias { link, alias } => network.set_alias(link, alias).await,
        LinkStep::ComputeChecksums { link } => match network.compute_checksums(link).await {
            // A kernel that leaves nobody the choice computes them itself.
            Err(NetworkError::Unsupported { .. }) => Ok(()),
            done => done,
        },
        LinkStep::SetMtu { link, mtu } => network.set_mtu(link, *mtu).await,
        LinkStep::SwitchOn { link } => network.set_up(link, true).await,
        LinkStep::SetMaster { link, master } => network.set_master(link, Some(master)).await,
        LinkStep::Set { key, value } => match network.set_setting(key, value).await {
            // A kernel without IPv6 has nothing to switch off.
            Err(NetworkError::NoSetting { .. }) => Ok(()),
            done => done,
        },
    }
}
