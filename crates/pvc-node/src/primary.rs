//! The primary role of this node: what [`pvc_model::primary`] decides, made true.
//!
//! ```text
//!  run        looks at the records and takes the next step
//!  exchange   one hand-over, in lock step with another coordinator
//!  role       the floating addresses, and the right to them
//!  guard      gives them up when the store falls silent
//!  peers      knows from own listening which of the other coordinators live
//!  database   moves the database's leader to the primary
//! ```

pub(crate) mod database;
mod exchange;
pub(crate) mod guard;
pub(crate) mod peers;
pub(crate) mod role;

use std::sync::Arc;
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::node::{CoordinatorState, DaemonState, NodeRecord, NodeRole};
use pvc_model::primary::handover::Ending;
use pvc_model::primary::{Holder, Own, PrimaryStep, Vacancy, holder, primary_step, vacancy};
use pvc_role::{Alarm, Superseded, Turns};
use pvc_store::lock::LockGuard;
use pvc_store::{ChangeError, Changes, ConfigChange, Expect, NodeChange};
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;
use exchange::Exchange;

/// Time that the store may take for a change.
const DEADLINE: Duration = Duration::from_secs(10);

/// Time for which a contender waits for the lock of those who contend, at first: as long as a
/// legacy peer does, so that a takeover, which holds the same lock, ends the contention.
const CONTEND: Duration = Duration::from_millis(400);

/// Time for which a candidate waits for that lock before it looks again whether it is still wanted.
const CANDIDATE: Duration = Duration::from_secs(20);

/// Time for which a daemon on its way out waits for somebody to take the role: less than systemd
/// waits for it.
const STEP_DOWN: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(100);

/// Time between two looks at whether the role of a silent node is free: nothing tells of that.
const WATCHFUL: Duration = Duration::from_millis(250);

/// Time for which a step that came to nothing is not tried again.
const REST: Duration = Duration::from_secs(1);

/// Works until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    role::adopt(&shared).await;
    let mut turns = shared.turns(&shutdown);
    let mut watcher = Watcher::new(&shared);
    let mut alarm = Alarm::default();
    let (mut done, mut rest) = (true, Duration::ZERO);
    while next_turn(&mut turns, done, rest).await {
        let view = shared.store.view();
        watcher.look(&shared, &view);
        done = pass(&shared, &view, watcher.vacant_for(&shared)).await;
        tell_what_lacks(&shared, &mut alarm).await;
        rest = match done {
            true if is_awaited(&shared, &view) => WATCHFUL,
            true => shared.settings.keepalive_interval.min(REST),
            false => REST,
        };
    }
}

/// A step that came to nothing is not tried again at each change.
async fn next_turn(turns: &mut Turns, done: bool, rest: Duration) -> bool {
    if done { turns.next_change(rest).await } else { turns.next(rest).await }
}

/// Whether the key names another coordinator of ours whose session has ended.
fn is_awaited(shared: &Shared, view: &Cluster) -> bool {
    let named = view.config.primary.as_ref().filter(|named| *named != shared.name());
    let named = named.and_then(|named| view.nodes.get(named)).filter(|node| node.runs_our_daemon());
    named.is_some_and(|node| !shared.role.peers().is_announced(&node.name))
}

/// Lets operators know of addresses that should be here and that the kernel refuses, at first and
/// now and then.
async fn tell_what_lacks(shared: &Shared, alarm: &mut Alarm) {
    let Some(lacks) = alarm.due(shared.role.lacks(), shared.now()) else { return };
    let node = shared.name();
    let message = format!(
        "node {node} is primary and lacks floating addresses, which are tried again every few \
         seconds ({lacks}). \
         `pvc node primary` gives the role to another node meanwhile"
    );
    shared.raise_own("FLOATING_ADDRESS", &message).await;
}

/// Remembers what changes too slowly to be seen in one view.
struct Watcher {
    vacancy: Option<Vacancy>,
    /// Node that the key named when it became vacant.
    named: Option<NodeName>,
    since: Duration,
    maintenance: bool,
}

impl Watcher {
    fn new(shared: &Shared) -> Self {
        let maintenance = shared.store.view().config.maintenance;
        Watcher { vacancy: None, named: None, since: shared.now(), maintenance }
    }

    fn look(&mut self, shared: &Shared, view: &Cluster) {
        let maintenance = view.config.maintenance;
        if std::mem::replace(&mut self.maintenance, maintenance) != maintenance {
            tracing::info!(maintenance, "the cluster's maintenance mode changed");
        }
        let found = vacancy(view, &peers::seen(shared, view));
        let named = view.config.primary.as_ref();
        // A named node whose daemon starts and fails in turn is one vacancy, not many.
        if self.named.as_ref() != named || found.is_some() != self.vacancy.is_some() {
            self.since = shared.now();
            self.named = named.cloned();
        }
        if self.vacancy != found {
            if let Some(Vacancy::NoCoordinator(name)) = &found {
                tracing::warn!(%name, "the primary is to be a node that is no coordinator of this \
                                       cluster");
            }
            if let Some(Vacancy::Undecided(name)) = &found
                && let Some(DaemonState::Unknown(state)) =
                    view.nodes.get(name).map(|node| node.daemon_state.clone())
            {
                tracing::warn!(
                    %name,
                    %state,
                    "the primary's daemon is in a state that this version does not know; the role \
                     stays there \
                     while the daemon lives"
                );
            }
            self.vacancy = found;
        }
    }

    fn vacant_for(&self, shared: &Shared) -> Duration {
        match self.vacancy {
            Some(_) => shared.now().saturating_sub(self.since),
            None => Duration::ZERO,
        }
    }
}

fn decide(shared: &Shared, view: &Cluster, vacant_for: Duration) -> PrimaryStep {
    let peers = peers::seen(shared, view);
    let own = Own {
        name: shared.name(),
        holds: shared.role.holds(),
        // Whoever has just gone on after too long a silence may not have noticed yet.
        holds_all: shared.role.holds_all() && !role::is_cut_off(shared),
        vacant_for,
        time_limit: shared.settings.keepalive_interval * 2,
        peers: &peers,
    };
    primary_step(view, &own)
}

/// Takes one step. Returns `false` if it came to nothing and would again at once.
async fn pass(shared: &Shared, view: &Cluster, vacant_for: Duration) -> bool {
    if !shared.is_connected() {
        return true;
    }
    match decide(shared, view, vacant_for) {
        PrimaryStep::Nothing => {
            if view
                .nodes
                .get(shared.name())
                .is_some_and(|own| own.coordinator_state == CoordinatorState::Primary)
            {
                publish(shared).await;
            }
            true
        }
        PrimaryStep::Become(state) => become_state(shared, state, vacant_for).await,
        PrimaryStep::Drop => {
            tracing::warn!("this node is not primary; it gives up what it has of the role");
            give_up(shared).await
        }
        PrimaryStep::Contend => contend(shared, vacant_for).await,
        PrimaryStep::Reclaim => {
            claim(shared, vacant_for, "nobody came forward; this node stays primary").await
        }
        PrimaryStep::TakeOver => take_over(shared, vacant_for).await,
        PrimaryStep::HandOver => hand_over(shared, vacant_for).await,
    }
}

/// Takes, at start-up of a coordinator, the role if nobody has it.
pub(crate) async fn claim_if_vacant(shared: &Shared) {
    if shared.settings.role != NodeRole::Coordinator {
        return;
    }
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        if vacancy(cluster, &peers::seen(shared, cluster)) != Some(Vacancy::Asked) {
            return Err(Superseded);
        }
        changes.config(ConfigChange::Primary(Some(shared.name().clone())));
        Ok((changes, ()))
    };
    if changed(shared, decide).await {
        tracing::info!("nobody was primary; this node claims the role");
    }
}

/// Time to try for the lock of those who contend. Where ZooKeeper is slow nobody gets it in the
/// usual time, however often all of them try: the longer nobody is primary, the longer they wait.
fn contend_for(vacant_for: Duration) -> Duration {
    (vacant_for / 8).clamp(CONTEND, CANDIDATE / 2)
}

/// Claims the role against others who do the same: one of them has the lock, and only the first
/// write counts.
async fn contend(shared: &Shared, vacant_for: Duration) -> bool {
    let Ok(lock) = shared.store.role_locks().candidate(contend_for(vacant_for)).await else {
        tracing::debug!("another coordinator contends for the primary role");
        return false;
    };
    let won = claim(shared, vacant_for, "nobody is primary; this node claims the role").await;
    lock.release().await;
    won
}

/// Writes the own name, if the rules still say so by then.
async fn claim(shared: &Shared, vacant_for: Duration, why: &'static str) -> bool {
    let change = |cluster: &Cluster| {
        let mut changes = Changes::new();
        if !matches!(
            decide(shared, cluster, vacant_for),
            PrimaryStep::Contend | PrimaryStep::Reclaim
        ) {
            return Err(Superseded);
        }
        changes.config(ConfigChange::Primary(Some(shared.name().clone())));
        Ok((changes, ()))
    };
    let claimed = changed(shared, change).await;
    if claimed {
        tracing::info!("{why}");
    }
    claimed
}

async fn become_state(shared: &Shared, state: CoordinatorState, vacant_for: Duration) -> bool {
    let step = PrimaryStep::Become(state.clone());
    begin(shared, &step, state, vacant_for).await
}

/// Writes `state` as the own one, if `step` is still the one to take.
async fn begin(
    shared: &Shared,
    step: &PrimaryStep,
    state: CoordinatorState,
    vacant_for: Duration,
) -> bool {
    let change = |cluster: &Cluster| match decide(shared, cluster, vacant_for) == *step {
        true => Ok((own_state(shared, &state), ())),
        false => Err(Superseded),
    };
    let written = changed(shared, change).await;
    if written {
        log_part(&state);
    }
    written
}

fn own_state(shared: &Shared, state: &CoordinatorState) -> Changes {
    let mut changes = Changes::new();
    changes.node(shared.name(), NodeChange::Coordinator(state.clone())).expect(Expect::Primary);
    changes
}

fn log_part(state: &CoordinatorState) {
    tracing::info!(role = state.as_str(), "this node's part in the coordination changed");
}

/// Takes the role over from whoever has it, or from nobody.
async fn take_over(shared: &Shared, vacant_for: Duration) -> bool {
    let sent = shared.now();
    if !matches!(shared.within(DEADLINE, shared.store.fresh()).await, Some(Ok(_))) {
        return false;
    }
    shared.role.store_answered(sent);
    if !begin(shared, &PrimaryStep::TakeOver, CoordinatorState::Takeover, vacant_for).await {
        return false;
    }
    let Some(claim) = claim_to_take_over(shared).await else {
        return settle(shared, CoordinatorState::Secondary, None).await;
    };
    // Whoever had the lock before has written what it is now; the own view may not show it yet.
    let Some(Ok(view)) = shared.within(DEADLINE, shared.store.fresh()).await else {
        claim.release().await;
        settle(shared, CoordinatorState::Secondary, None).await;
        return false;
    };
    shared.role.peers().claimed();
    drop(peers::seen(shared, &view));
    // A daemon that has just been started anew may have announced itself since that was last asked.
    peers::ask(shared).await;
    let Some(peer) = who_has_it(shared, &claim).await else {
        claim.release().await;
        return settle(shared, CoordinatorState::Secondary, None).await;
    };
    let repairs = match &peer {
        Some(peer) => puts_its_name_back(shared, peer).await,
        None => false,
    };
    tracing::info!(from = peer.as_ref().map(NodeName::as_str), "takes over the primary role");
    let ending = Exchange::candidate(shared, peer.clone(), repairs, &claim).run().await;
    let done = conclude_takeover(shared, ending, peer).await;
    claim.release().await;
    done
}

/// The lock of the one who takes over; `None` if it was not to be had, or is not wanted any more.
async fn claim_to_take_over(shared: &Shared) -> Option<LockGuard> {
    let unwanted = async {
        let mut changes = shared.store.changed();
        while shared.store.view().config.primary.as_ref() == Some(shared.name()) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    let locks = shared.store.role_locks();
    tokio::select! {
        biased;
        claim = locks.candidate(CANDIDATE) => claim.ok(),
        () = unwanted => None,
    }
}

/// Finds who has the role, if anybody: waits until that is known for sure. `None` if this node is
/// not to have it any more, or lost its claim.
async fn who_has_it(shared: &Shared, claim: &LockGuard) -> Option<Option<NodeName>> {
    let mut said = false;
    loop {
        let view = shared.store.view();
        if claim.lost() || view.config.primary.as_ref().is_some_and(|name| name != shared.name()) {
            return None;
        }
        let unclear = {
            let peers = peers::seen(shared, &view);
            match holder(&view, shared.name(), &peers) {
                Holder::One(holder) => return Some(Some(holder.clone())),
                Holder::Unclear(node) => Some(node.clone()),
                Holder::Nobody => peers.doubtful(&view, shared.name()).cloned(),
            }
        };
        match unclear {
            None if shared.is_connected() => return Some(None),
            Some(node) if !std::mem::replace(&mut said, true) => {
                tracing::info!(%node, "waits until that node has none of the role's addresses \
                                       left");
            }
            _ => {}
        }
        shared.sleep(POLL).await;
    }
}

/// Whether a holder is a legacy peer, which takes every change of the key for a mistake for as long
/// as its keepalive finds it primary.
async fn puts_its_name_back(shared: &Shared, peer: &NodeName) -> bool {
    matches!(shared.within(DEADLINE, shared.store.has_our_daemon(peer)).await, Some(Ok(false)))
}

async fn conclude_takeover(
    shared: &Shared,
    ending: Option<Ending>,
    peer: Option<NodeName>,
) -> bool {
    use CoordinatorState::{Primary, Relinquish, Secondary};
    match ending {
        Some(Ending::Primary) => settle(shared, Primary, None).await,
        Some(Ending::HandOn) => settle(shared, Relinquish, None).await,
        Some(Ending::Abandoned { .. }) if shared.role.holds() && !give_up(shared).await => false,
        Some(Ending::Abandoned { give_back: true }) => {
            tracing::error!(
                peer = peer.as_ref().map(NodeName::as_str),
                "the old primary lives and does not let go; the role stays with it"
            );
            let name = peer.map(|to| Rename { from: shared.name().clone(), to });
            settle(shared, Secondary, name).await
        }
        Some(Ending::Abandoned { give_back: false }) => {
            tracing::info!("another node is to be primary; the takeover is broken off");
            settle(shared, Secondary, None).await
        }
        Some(Ending::Secondary | Ending::Stayed { .. }) | None => {
            if give_up(shared).await {
                settle(shared, Secondary, None).await;
            }
            false
        }
    }
}

/// Gives up all of the role, which is not this node's. What the kernel refuses to give up it takes
/// away by itself when its lease is over. Whether all of it went: until then the record is not to
/// say so, for others take it then.
async fn give_up(shared: &Shared) -> bool {
    let over = shared.now() + role::longest_lease(shared);
    while !role::leave_all(shared).await {
        if shared.is_named_primary(&shared.store.view()) || shared.now() >= over {
            return false;
        }
        shared.sleep(exchange::LEAVE_AGAIN).await;
    }
    true
}

/// Gives the role to whom the key names.
async fn hand_over(shared: &Shared, vacant_for: Duration) -> bool {
    let lapses = shared.role.lapses();
    if !begin(shared, &PrimaryStep::HandOver, CoordinatorState::Relinquish, vacant_for).await
        && shared.record().is_none_or(|own| own.coordinator_state != CoordinatorState::Relinquish)
    {
        return false;
    }
    let to = shared.store.view().config.primary.clone();
    tracing::info!(to = to.as_ref().map(NodeName::as_str), "gives up the primary role");
    match Exchange::holder(shared, lapses).run().await {
        Some(Ending::Stayed { reclaim }) => {
            tracing::warn!(
                to = to.as_ref().map(NodeName::as_str),
                "the role was not taken over; this node stays primary"
            );
            let name =
                to.filter(|_| reclaim).map(|from| Rename { from, to: shared.name().clone() });
            settle(shared, CoordinatorState::Primary, name).await
        }
        Some(_) => settle(shared, CoordinatorState::Secondary, None).await,
        None if give_up(shared).await => settle(shared, CoordinatorState::Secondary, None).await,
        None => false,
    }
}

/// Removes, at the start, what a former life of this daemon left here, unless this node is still
/// the one that is to have it. What that life was taking or giving away goes in any case: the other
/// one of the two waits for it only as long as the kernel keeps it by itself. Before the record
/// says anything, because others believe the record.
pub(crate) async fn find_what_is_left(shared: &Shared) {
    role::adopt(shared).await;
    drop_unless(shared, |view| {
        use CoordinatorState::{Relinquish, Takeover};
        let moved = |own: &NodeRecord| matches!(own.coordinator_state, Takeover | Relinquish);
        shared.is_named_primary(view)
            && view.nodes.get(shared.name()).is_some_and(|own| !moved(own))
    })
    .await;
}

/// Lets go of what is here if the key names another, or this node cannot know.
pub(crate) async fn drop_if_not_named(shared: &Shared) {
    drop_unless(shared, |view| shared.is_named_primary(view)).await;
}

async fn drop_unless(shared: &Shared, is_own: impl FnOnce(&Cluster) -> bool) {
    let sent = shared.now();
    let keeps = match shared.within(DEADLINE, shared.store.fresh()).await {
        Some(Ok(view)) => {
            shared.role.store_answered(sent);
            is_own(&view)
        }
        _ => false,
    };
    if shared.role.holds() && !keeps {
        tracing::warn!("this node is not primary; it gives up what it has of the role");
        role::leave_all(shared).await;
    }
}

/// Gives the role up when the start failed: the record will say that this daemon has ended, and
/// nobody renews anything.
pub(crate) async fn let_go(shared: &Shared) {
    if shared.role.holds() {
        role::leave_all(shared).await;
    }
}

/// Gives, on the way out, the role to whoever contends for it, if anybody can, and waits until it
/// is gone. Without a successor it is let go of all the same, and the record says so: whoever comes
/// later takes it at once.
pub(crate) async fn step_down(shared: &Shared) {
    // A takeover may be waiting for what another node has left: nobody would let go of what it
    // took.
    shared.role.close();
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        let can_succeed = |other: &NodeRecord| {
            other.name != *shared.name()
                && other.role == NodeRole::Coordinator
                && other.daemon_state == DaemonState::Run
        };
        let is_named = cluster.config.primary.as_ref() == Some(shared.name());
        let has_successor = cluster.nodes.values().any(|other| can_succeed(other));
        if is_named && has_successor {
            changes.config(ConfigChange::Primary(None));
        }
        Ok((changes, has_successor))
    };
    let has_successor = match shared.within(DEADLINE, shared.store.change(decide)).await {
        Some(Ok(has_successor)) => has_successor,
        Some(Err::<_, ChangeError<Superseded>>(_)) | None => {
            tracing::warn!("the primary role could not be given back");
            let_go(shared).await;
            return;
        }
    };
    if has_successor && shared.within(STEP_DOWN, until_idle(shared)).await.is_none() {
        tracing::warn!("nobody has taken the primary role over");
    }
    if shared.role.holds() && role::leave_on_the_way_out(shared).await {
        settle(shared, CoordinatorState::Secondary, None).await;
    }
}

/// Returns when this node has nothing of the role any more.
async fn until_idle(shared: &Shared) {
    use CoordinatorState::{Client, Secondary};
    let idle = || {
        !shared.role.holds()
            && shared.record().is_none_or(|own| matches!(own.coordinator_state, Secondary | Client))
    };
    while !idle() {
        shared.sleep(POLL).await;
    }
}

/// Node that the key is to name, instead of the one that the hand-over found there.
struct Rename {
    from: NodeName,
    to: NodeName,
}

/// Writes the state in which a hand-over ended, whatever the key says by now: it is a fact. The key
/// is changed with it only if nobody has asked for something else since.
async fn settle(shared: &Shared, state: CoordinatorState, primary: Option<Rename>) -> bool {
    let change = |cluster: &Cluster| {
        let mut changes = Changes::new();
        if cluster.nodes.get(shared.name()).is_none_or(|own| own.coordinator_state != state) {
            changes.node(shared.name(), NodeChange::Coordinator(state.clone()));
        }
        if let Some(Rename { to, .. }) =
            primary.as_ref().filter(|rename| cluster.config.primary.as_ref() == Some(&rename.from))
        {
            changes.config(ConfigChange::Primary(Some(to.clone())));
        }
        Ok((changes, ()))
    };
    let written = changed(shared, change).await;
    if written {
        log_part(&state);
    }
    written
}

/// Publishes what the primary publishes for the whole cluster.
async fn publish(shared: &Shared) {
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        let (settings, config) = (&shared.settings, &cluster.config);
        if let Some(selector) =
            settings.selector.as_ref().filter(|own| config.selector.as_ref() != Some(own))
        {
            changes.config(ConfigChange::Selector(selector.clone()));
        }
        if let Some(ip) = settings.upstream_ip.as_ref().filter(|own| config.upstream_ip != **own) {
            changes.config(ConfigChange::UpstreamIp(ip.clone()));
        }
        Ok::<_, Superseded>((changes, ()))
    };
    changed(shared, decide).await;
}

/// Whether the change was made.
async fn changed(
    shared: &Shared,
    decide: impl FnMut(&Cluster) -> Result<(Changes, ()), Superseded> + Send,
) -> bool {
    let failed = "the primary role could not be settled";
    shared.change(DEADLINE, decide, failed, "the primary role could not be settled in time").await
}
