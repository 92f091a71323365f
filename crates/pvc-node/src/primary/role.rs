//! The primary role on a node: the floating addresses, and the right to them.
//!
//! The right ends when the store may have given the role to somebody else, which this node cannot
//! see while it is cut off. So everything here asks how long ago the store was last heard, and the
//! kernel is told to take the addresses away by itself should this program not be there to do it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use futures::future::join_all;
use pvc_model::guest_network::GuestNetworks;
use pvc_model::link::IpNet;
use pvc_model::primary::handover::Duty;
use pvc_model::primary::{LEASE_MARGIN, Peers, must_let_go};
use pvc_model::with_causes;
use pvc_ports::NetworkError;
use tokio::sync::watch;

use crate::settings::{FloatingAddress, Gateway};
use crate::shared::Shared;

/// Every duty, in the order in which they are taken.
const DUTIES: [Duty; 5] =
    [Duty::Upstream, Duty::Inner, Duty::Metadata, Duty::Gateways, Duty::Services];

/// Time that the kernel may take for one address.
const KERNEL: Duration = Duration::from_secs(3);

/// Time after which a lease that the kernel was slow to grant is done again: see [`lease`].
const PROMPT: Duration = Duration::from_millis(500);

/// Number of addresses that are brought at once: a cluster may have hundreds of networks, and what
/// neighbours are told takes a socket and some milliseconds for each.
const AT_ONCE: usize = 32;

/// Number of times that an address that stays is asked to go.
const TRIES: u32 = 3;

#[derive(Debug, Default)]
struct State {
    taken: BTreeSet<Duty>,
    /// The addresses of these duties that the kernel refuses, with what it says.
    refused: BTreeMap<IpNet, String>,
    /// Duties that are to go: their addresses may still be here, and is not to be kept.
    leaving: BTreeSet<Duty>,
    /// The gateways that are here, or may be: which ones there should be changes.
    gateways: BTreeSet<Gateway>,
    /// Whether it is known what a former life left here.
    has_looked: bool,
    /// Whether this daemon is on its way out: it takes nothing any more.
    is_closed: bool,
    /// Time at which the last request was sent that the store has answered, if any has been;
    /// monotonic.
    answered: Option<Duration>,
    /// Number of times that the store was silent for so long that the right to the role was lost.
    lapses: u64,
}

/// The part of this node in the primary role.
#[derive(Debug)]
pub(crate) struct Role {
    state: Mutex<State>,
    session_timeout: Duration,
    /// State of the other coordinators, as this node has seen it.
    peers: Mutex<Peers>,
    /// Turn of whoever changes addresses, alone: one who lets go must not be overtaken by one who
    /// takes.
    turn: tokio::sync::Mutex<()>,
    /// Number of the current term as primary; 0 while there is none.
    pub term: watch::Sender<u64>,
    /// The last term for which the database's leader is here, or did not come here when asked to.
    pub database_settled: watch::Sender<u64>,
}

impl Role {
    pub fn new(session_timeout: Duration) -> Self {
        let (term, database_settled) = (watch::channel(0).0, watch::channel(0).0);
        let (state, turn) = (Mutex::default(), tokio::sync::Mutex::default());
        let peers = Mutex::new(Peers::new(session_timeout));
        Role { state, session_timeout, peers, turn, term, database_settled }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the state")
    }

    /// Whether it is known what a former life left here.
    pub fn has_looked(&self) -> bool {
        self.state().has_looked
    }

    /// Ends taking anything of the role here. A takeover that is under way comes to nothing.
    pub fn close(&self) {
        self.state().is_closed = true;
    }

    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    pub fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().expect("nothing panics while it holds them")
    }

    /// Whether anything of the role is here, or may be.
    pub fn holds(&self) -> bool {
        !self.state().taken.is_empty()
    }

    /// Whether every duty of the role is done here, as far as the kernel lets it be.
    pub fn holds_all(&self) -> bool {
        let state = self.state();
        DUTIES.iter().all(|duty| state.taken.contains(duty) && !state.leaving.contains(duty))
    }

    /// Names the duties that should be here and are not, in words.
    pub fn lacks(&self) -> Option<String> {
        let state = self.state();
        let all: Vec<String> =
            state.refused.iter().map(|(address, why)| format!("{address}: {why}")).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Notes what came of bringing an address here. Whether that is news.
    fn note(&self, address: IpNet, done: &Result<(), NetworkError>) -> bool {
        let mut state = self.state();
        match done {
            Ok(()) => state.refused.remove(&address).is_some(),
            Err(error) => state.refused.insert(address, with_causes(error)).is_none(),
        }
    }

    /// The store has answered a request that was sent then. After too long a silence that gives
    /// nothing back: what was here may be somebody else's, and is to go until the role is taken
    /// again.
    pub fn store_answered(&self, sent: Duration) {
        let mut state = self.state();
        let silence = state.answered.map_or(Duration::ZERO, |last| sent.saturating_sub(last));
        if must_let_go(silence, self.session_timeout) {
            let taken = state.taken.clone();
            state.leaving.extend(taken);
            state.lapses += 1;
        }
        state.answered = state.answered.max(Some(sent));
    }

    /// Number of times that the right to the role was lost by not hearing from the store.
    pub fn lapses(&self) -> u64 {
        self.state().lapses
    }

    /// Duties of the role that this node has and may keep.
    fn kept(&self) -> BTreeSet<Duty> {
        let state = self.state();
        state.taken.difference(&state.leaving).copied().collect()
    }
}

/// Time for which this node has had no word from the store.
pub(crate) fn silent_for(shared: &Shared) -> Duration {
    shared.role.state().answered.map_or(Duration::MAX, |sent| shared.now().saturating_sub(sent))
}

/// Whether this node has lost the right to the role by not hearing from the store.
pub(crate) fn is_cut_off(shared: &Shared) -> bool {
    must_let_go(silent_for(shared), shared.settings.session_timeout)
}

/// Takes what is here already for taken: addresses of a former life. If the kernel does not say
/// what is here, it is to be asked again: see [`Role::has_looked`].
pub(crate) async fn adopt(shared: &Shared) {
    let _turn = shared.role.turn.lock().await;
    let links = match shared.within(KERNEL, shared.ports.network.links()).await {
        Some(Ok(links)) => links,
        Some(Err(error)) => {
            return tracing::warn!(%error, "it is not known which addresses were left here");
        }
        None => return tracing::warn!("the kernel does not say which addresses were left here"),
    };
    shared.role.state().has_looked = true;
    let is_here = |floating: &&FloatingAddress| {
        links.get(&floating.link).is_some_and(|link| link.addresses.contains(&floating.address))
    };
    let all = floating(shared);
    let found: Vec<&FloatingAddress> = all.iter().filter(is_here).collect();
    for floating in &found {
        tracing::info!(address = %floating.address, link = floating.link, "a floating address was \
                                                                           left here");
    }
    let mut state = shared.role.state();
    state.gateways.extend(found.iter().filter_map(|floating| floating.gateway()));
    state.taken.extend(found.iter().map(|floating| floating.duty));
}

/// Longest time for which the kernel keeps an address that it is not asked to keep any more.
pub(crate) fn longest_lease(shared: &Shared) -> Duration {
    shared.settings.session_timeout + LEASE_MARGIN
}

/// Takes a duty: its addresses come here, and the neighbours are told. `false` if this node has no
/// right to it, or the kernel refused.
pub(crate) async fn take(shared: &Shared, duty: Duty) -> bool {
    let _turn = shared.role.turn.lock().await;
    if is_cut_off(shared) || shared.role.is_closed() {
        return false;
    }
    {
        let mut state = shared.role.state();
        state.taken.insert(duty);
        state.leaving.remove(&duty);
    }
    if duty == Duty::Services {
        shared.role.term.send_modify(|term| *term += 1);
    }
    let floating = addresses(shared, duty);
    let (mut all, mut brought) = (true, Vec::new());
    for some in floating.chunks(AT_ONCE) {
        // Those of many networks take their time, in which the right to them may end.
        if is_cut_off(shared) {
            all = false;
            break;
        }
        brought.extend(join_all(some.iter().map(|floating| bring(shared, floating))).await);
    }
    for (floating, brought) in floating.iter().zip(brought) {
        // The bridge of a network may not be there yet: then its gateway comes after it.
        if duty == Duty::Gateways && matches!(brought, Err(NetworkError::NoLink { .. })) {
            continue;
        }
        shared.role.note(floating.address, &brought);
        all &= log_result(floating, "taken", brought);
    }
    all
}

/// Lets go of a duty. `false` if something of it could not be made to go: then the kernel takes it
/// away when its lease is over.
pub(crate) async fn leave(shared: &Shared, duty: Duty) -> bool {
    let _turn = shared.role.turn.lock().await;
    leave_in_turn(shared, duty).await
}

/// Tries again what did not go when this node let go of it: nothing of that is kept, and nobody is
/// to take the rest for the whole.
pub(crate) async fn leave_what_stays(shared: &Shared) {
    let _turn = shared.role.turn.lock().await;
    let leaving = shared.role.state().leaving.clone();
    for duty in leaving {
        leave_in_turn(shared, duty).await;
    }
}

/// Gives up a duty; for whoever has the turn.
async fn leave_in_turn(shared: &Shared, duty: Duty) -> bool {
    shared.role.state().leaving.insert(duty);
    let gone = leave_now(shared, duty).await || is_gone(shared, duty).await;
    if gone {
        let mut state = shared.role.state();
        state.taken.remove(&duty);
        state.leaving.remove(&duty);
    }
    gone
}

/// Whether the kernel has nothing of a duty: it may refuse to remove what its lease has taken away,
/// and it takes nothing away while it does not answer at all.
async fn is_gone(shared: &Shared, duty: Duty) -> bool {
    let links = shared.within(KERNEL, shared.ports.network.links()).await;
    let Some(Ok(links)) = links else { return false };
    let held = held(shared, duty);
    let is_here = |floating: &FloatingAddress| {
        links.get(&floating.link).is_some_and(|link| link.addresses.contains(&floating.address))
    };
    if held.iter().any(is_here) {
        return false;
    }
    let mut state = shared.role.state();
    for floating in held {
        state.refused.remove(&floating.address);
        floating.gateway().iter().for_each(|gateway| _ = state.gateways.remove(gateway));
    }
    true
}

/// Lets go of everything, services first.
pub(crate) async fn leave_all(shared: &Shared) -> bool {
    let mut all = true;
    for duty in DUTIES.iter().rev() {
        all &= leave(shared, *duty).await;
    }
    all
}

/// Lets go of everything at the end of the daemon, services first. In standalone mode nobody else
/// can have the gateways: guests keep them until this node is back, or the kernel takes them away.
pub(crate) async fn leave_on_the_way_out(shared: &Shared) -> bool {
    let stays = |duty: Duty| {
        let is_alone = shared.settings.standalone && shared.settings.guest_networks.is_some();
        is_alone && matches!(duty, Duty::Gateways | Duty::Metadata)
    };
    let mut all = true;
    for duty in DUTIES.into_iter().rev().filter(|duty| !stays(*duty)) {
        all &= leave(shared, duty).await;
    }
    all
}

async fn leave_now(shared: &Shared, duty: Duty) -> bool {
    if duty == Duty::Services {
        shared.role.term.send_if_modified(|term| std::mem::take(term) != 0);
    }
    let mut all = true;
    for floating in held(shared, duty) {
        let gone = log_result(&floating, "removed", remove(shared, &floating).await);
        let mut state = shared.role.state();
        state.refused.remove(&floating.address);
        if let Some(gateway) = floating.gateway().filter(|_| gone) {
            state.gateways.remove(&gateway);
        }
        all &= gone;
    }
    all
}

/// Keeps what this node has a right to: the kernel is told that it may stay, and what somebody
/// removed comes back.
pub(crate) async fn renew(shared: &Shared) {
    let _turn = shared.role.turn.lock().await;
    if is_cut_off(shared) {
        return;
    }
    let Some(Ok(links)) = shared.within(KERNEL, shared.ports.network.links()).await else { return };
    let kept = shared.role.kept();
    let all = floating(shared);
    leave_former_gateways(shared, &all).await;
    // What need not be here any more is no lack.
    let is_wanted = |address: &IpNet| all.iter().any(|floating| floating.address == *address);
    shared.role.state().refused.retain(|address, _| is_wanted(address));
    for floating in all.iter().filter(|floating| kept.contains(&floating.duty)) {
        let link = links.get(&floating.link);
        let gateway = floating.gateway();
        let is_held = gateway.as_ref().is_none_or(|of| shared.role.state().gateways.contains(of));
        if gateway.is_some() && link.is_none() {
            continue;
        }
        if link.is_some_and(|link| link.addresses.contains(&floating.address)) {
            let renewed = lease(shared, floating).await;
            if renewed.is_err() {
                log_result(floating, "renewed", renewed);
            }
        } else {
            let brought = bring(shared, floating).await;
            // What the kernel keeps refusing is tried each time, and told once: see `Role::lacks`.
            if shared.role.note(floating.address, &brought) || brought.is_ok() {
                let FloatingAddress { address, link, .. } = floating;
                if is_held {
                    tracing::warn!(%address, link, "a floating address was gone");
                }
                log_result(floating, if is_held { "put back" } else { "taken" }, brought);
            }
        }
    }
}

/// Lets go of the gateways of networks that have none any more, or another.
async fn leave_former_gateways(shared: &Shared, all: &[FloatingAddress]) {
    for gateway in former_gateways(shared, all.iter()) {
        let floating = FloatingAddress::of_network(gateway.clone());
        if log_result(&floating, "removed", remove(shared, &floating).await) {
            let mut state = shared.role.state();
            state.gateways.remove(&gateway);
            state.refused.remove(&floating.address);
        }
    }
}

/// Every address of the role: those of the cluster, and the gateways of its networks. That of the
/// metadata is a cloud provider's as well: it is taken while guests have a gateway by which they
/// could ask.
fn floating(shared: &Shared) -> Vec<FloatingAddress> {
    let mut all = shared.settings.floating.clone();
    if shared.settings.guest_networks.is_some() {
        let standing = all.len();
        for network in GuestNetworks::of(&shared.store.view()).networks {
            let gateways = network.gateways().into_iter();
            let link = network.vni.bridge();
            all.extend(gateways.map(|net| FloatingAddress::of_network((link.clone(), net))));
        }
        if all.len() == standing {
            all.retain(|floating| floating.duty != Duty::Metadata);
        }
    }
    all
}

/// The addresses that go with a duty now.
fn addresses(shared: &Shared, duty: Duty) -> Vec<FloatingAddress> {
    floating(shared).into_iter().filter(|floating| floating.duty == duty).collect()
}

/// The addresses that go with a duty, and those that went with it when they were brought here.
fn held(shared: &Shared, duty: Duty) -> Vec<FloatingAddress> {
    let (mut all, others): (Vec<_>, Vec<_>) =
        floating(shared).into_iter().partition(|floating| floating.duty == duty);
    if duty == Duty::Gateways {
        let former = former_gateways(shared, all.iter().chain(&others));
        all.extend(former.into_iter().map(FloatingAddress::of_network));
    }
    all
}

/// Gateways that are here, or may be, and are not among those that should.
fn former_gateways<'a>(
    shared: &Shared,
    now: impl Iterator<Item = &'a FloatingAddress>,
) -> BTreeSet<Gateway> {
    let mut former = shared.role.state().gateways.clone();
    now.filter_map(FloatingAddress::gateway).for_each(|now| _ = former.remove(&now));
    former
}

async fn bring(shared: &Shared, floating: &FloatingAddress) -> Result<(), NetworkError> {
    lease(shared, floating).await?;
    shared.role.state().gateways.extend(floating.gateway());
    let address: IpAddr = floating.address.addr();
    if floating.duty == Duty::Metadata {
        return Ok(()); // it is for this machine's own guests, and on a link without neighbours
    }
    let announced = bounded(
        shared,
        "announce an address",
        shared.ports.network.announce(&floating.link, address),
    );
    if let Err(error) = announced.await {
        // The address is here all the same; neighbours find it when what they remember grows old.
        tracing::warn!(%error, %address, link = floating.link, "an address could not be \
                                                                announced");
    }
    Ok(())
}

async fn lease(shared: &Shared, floating: &FloatingAddress) -> Result<(), NetworkError> {
    let begun = shared.now();
    tell_kernel(shared, floating).await?;
    // The kernel counts from the moment at which it does it. If that came late, or this program
    // stood still on the way, it may keep the address for longer than it should.
    if shared.now().saturating_sub(begun) <= PROMPT {
        return Ok(());
    }
    if is_cut_off(shared) {
        return remove(shared, floating).await;
    }
    tell_kernel(shared, floating).await
}

async fn tell_kernel(shared: &Shared, floating: &FloatingAddress) -> Result<(), NetworkError> {
    let right = shared.settings.session_timeout.saturating_sub(silent_for(shared));
    let work =
        shared.ports.network.lease_address(&floating.link, floating.address, right + LEASE_MARGIN);
    bounded(shared, "add an address", work).await
}

async fn remove(shared: &Shared, floating: &FloatingAddress) -> Result<(), NetworkError> {
    let mut tries = 1;
    loop {
        let work = shared.ports.network.remove_address(&floating.link, floating.address);
        match bounded(shared, "remove an address", work).await {
            Err(NetworkError::NoLink { .. }) => return Ok(()),
            Err(_) if tries < TRIES => tries += 1,
            done => return done,
        }
    }
}

async fn bounded(
    shared: &Shared,
    what: &str,
    work: impl Future<Output = Result<(), NetworkError>>,
) -> Result<(), NetworkError> {
    let late = || NetworkError::TimedOut { what: what.to_owned(), seconds: KERNEL.as_secs() };
    shared.within(KERNEL, work).await.unwrap_or_else(|| Err(late()))
}

fn log_result(floating: &FloatingAddress, done: &str, result: Result<(), NetworkError>) -> bool {
    let FloatingAddress { address, link, .. } = floating;
    match result {
        Ok(()) => {
            tracing::info!(%address, link, "a floating address was {done}");
            true
        }
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, %address, link, "a floating address could not be {done}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Found by a seed: a primary that stood still for half a minute went on, wrote its keepalive,
    /// and put the addresses back that were somebody else's by then.
    #[test]
    fn what_was_held_through_too_long_a_silence_is_not_kept_when_the_store_answers_again() {
        for (silence, is_kept) in [(9, true), (10, false), (34, false)] {
            let role = Role::new(SESSION);
            role.store_answered(at(100));
            role.state().taken.extend(DUTIES);
            role.store_answered(at(100 + silence));
            assert_eq!(!role.kept().is_empty(), is_kept, "after {silence} s");
            assert_eq!(role.holds_all(), is_kept, "after {silence} s");
            assert!(role.holds(), "it is still to go");
        }
    }

    #[test]
    fn what_a_former_life_left_is_kept_when_the_store_answers_for_the_first_time() {
        let role = Role::new(SESSION);
        role.state().taken.extend(DUTIES);
        role.store_answered(at(100));
        assert!(role.holds_all());
    }
}
