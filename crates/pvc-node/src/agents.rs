//! Asks the agents in guests for their addresses, a few at a time, in a task of its own: a guest
//! answers when it likes, and nothing else waits for it. One that does not answer is left out for a
//! while: those that hang must not keep the addresses of the others from being known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pvc_model::Uuid;
use pvc_ports::{AgentAddress, HypervisorError};
use pvc_role::{Context, DeadlineError, Few};
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// Time between two rounds.
const EVERY: Duration = Duration::from_secs(60);

/// Time after which the hypervisor itself is given up; it does not wait so long for an agent.
const DEADLINE: Duration = Duration::from_secs(30);

/// Number of agents that are asked at once. Of questions that are late three cost the connection to
/// libvirt (`pvc-libvirt`, `MAX_LATE`), which others would have to make anew.
const AT_ONCE: usize = 2;

/// Number of rounds without an answer, one after the other, after which an agent is left out.
const UNANSWERED: u32 = 2;

/// Number of rounds for which an agent is left out.
const LEFT_OUT: u32 = 10;

/// Works until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut unresponsive = Unresponsive::default();
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = round(&shared, &mut unresponsive) => {}
        }
    }
}

/// Asks all of them but those that are left out, and rests.
async fn round(shared: &Shared, unresponsive: &mut Unresponsive) {
    let known = shared.guests.borrow().known.clone();
    shared.collected().addresses.retain(|uuid, _| known.contains_key(uuid));
    let guests = known.iter().map(|(uuid, facts)| (*uuid, facts.instance)).collect();
    let mut asked = Few::new(
        AT_ONCE,
        unresponsive.asked(guests).into_iter().map(|guest| {
            let context = shared.context.clone();
            async move { (guest, ask(&context, guest.0).await) }
        }),
    );
    let (mut answered, mut unanswered) = (Vec::new(), Vec::new());
    while let Some(ended) = asked.ended().await {
        let Ok((guest, answer)) = ended else { continue };
        match &answer {
            Ok(_) => answered.push(guest),
            Err(error) => {
                tracing::debug!(uuid = %guest.0, %error, "the agent in a guest says nothing");
                unanswered.extend(is_of_agent(error).then_some(guest));
            }
        }
        note(shared, guest.0, answer.unwrap_or_default());
    }
    unresponsive.note(answered, unanswered);
    shared.sleep(EVERY).await;
}

/// Notes the addresses of a guest: of one that does not answer, or is gone, none are known.
fn note(shared: &Shared, uuid: Uuid, said: Vec<AgentAddress>) {
    let mut collected = shared.collected();
    match said.is_empty() {
        true => _ = collected.addresses.remove(&uuid),
        false => _ = collected.addresses.insert(uuid, said),
    }
}

type AskError = DeadlineError<HypervisorError>;

async fn ask(context: &Context, uuid: Uuid) -> Result<Vec<AgentAddress>, AskError> {
    match context.ports.hypervisor.agents() {
        Some(agents) => context.in_time(DEADLINE, agents.addresses(uuid)).await,
        None => Ok(Vec::new()),
    }
}

/// Whether it may be the agent that does not answer.
fn is_of_agent(error: &AskError) -> bool {
    use HypervisorError::{NoGuest, Unreachable};
    !matches!(error, DeadlineError::Failed(NoGuest { .. } | Unreachable { .. }))
}

/// A guest: its VM, and which instance of it.
type Guest = (Uuid, i32);

/// Guests whose agents have not answered.
#[derive(Default)]
struct Unresponsive(BTreeMap<Guest, Missed>);

#[derive(Default)]
struct Missed {
    /// Number of rounds in which it was asked, and has not answered, one after the other.
    rounds: u32,
    /// Number of rounds for which it is left out.
    left_out: u32,
}

impl Unresponsive {
    /// Picks those of all `guests` that are asked in this round; who has not answered before comes
    /// last.
    fn asked(&mut self, guests: BTreeSet<Guest>) -> Vec<Guest> {
        self.0.retain(|guest, _| guests.contains(guest));
        let mut asked = Vec::new();
        for guest in guests {
            match self.0.get_mut(&guest).filter(|missed| missed.left_out > 0) {
                Some(missed) => missed.left_out -= 1,
                None => asked.push(guest),
            }
        }
        asked.sort_by_key(|guest| self.0.contains_key(guest));
        asked
    }

    /// Takes note of a round. If nobody answers it may be libvirt, and nobody else is held up.
    fn note(&mut self, answered: Vec<Guest>, unanswered: Vec<Guest>) {
        if answered.is_empty() {
            return;
        }
        self.0.retain(|guest, _| !answered.contains(guest));
        for guest in unanswered {
            let missed = self.0.entry(guest).or_default();
            missed.rounds += 1;
            if missed.rounds >= UNANSWERED {
                missed.left_out = LEFT_OUT;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use pvc_ports::Ports;
    use pvc_testkit::{ScriptedHypervisor, eventually, ports};

    use crate::settings::tests::settings;
    use crate::shared::tests::in_memory;
    use crate::shared::{GuestFacts, Guests};

    use super::*;

    fn guest(number: u128) -> Guest {
        (Uuid::from_u128(number), 1)
    }

    #[test]
    fn who_does_not_answer_twice_is_left_out_for_ten_rounds_and_asked_once_again() {
        let (one, two, mut unresponsive) = (guest(1), guest(2), Unresponsive::default());
        let mut rounds = Vec::new();
        for _ in 0..25 {
            let asked = unresponsive.asked([one, two].into());
            rounds.push(asked.contains(&one));
            unresponsive.note(vec![two], asked.into_iter().filter(|guest| *guest == one).collect());
        }
        let times: Vec<usize> = (0..25).filter(|round| rounds[*round]).collect();
        assert_eq!(times, [0, 1, 12, 23]);
        let next = (one.0, 2);
        assert_eq!(unresponsive.asked([next, two].into()), [next, two], "it has been started anew");
        unresponsive.note(vec![two], vec![next]);
        assert_eq!(unresponsive.asked([next, two].into()), [two, next], "who answers comes first");
        unresponsive.note(vec![next, two], Vec::new());
        unresponsive.note(vec![two], vec![next]);
        assert_eq!(unresponsive.asked([next, two].into()), [two, next], "once since its answer");
    }

    #[test]
    fn where_nobody_answers_nobody_is_left_out() {
        let (one, mut unresponsive) = (guest(1), Unresponsive::default());
        for _ in 0..5 {
            assert_eq!(unresponsive.asked([one].into()), [one]);
            unresponsive.note(Vec::new(), vec![one]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn guests_whose_agents_hang_do_not_keep_the_addresses_of_others_from_being_known() {
        let hypervisor = Arc::new(ScriptedHypervisor::new());
        let ports = Ports { hypervisor: hypervisor.clone(), ..ports() };
        let shared = in_memory(settings("hv1"), ports).await;
        let facts = GuestFacts { instance: 1, name: "web".to_owned(), live: None, console: None };
        let guests = (1..=61).map(Uuid::from_u128);
        let known = guests.clone().map(|uuid| (uuid, facts.clone())).collect();
        shared.guests.send_replace(Guests { known, ..Guests::default() });
        guests.for_each(|uuid| hypervisor.set_agent(uuid, None));
        let talks = Uuid::from_u128(61);
        let says = |last: u8| AgentAddress {
            mac: "52:54:00:00:00:02".to_owned(),
            address: IpAddr::from([10, 0, 0, last]),
        };
        let is_known = |last| {
            let known = shared.collected().addresses.get(&talks).cloned();
            known.is_some_and(|known| known == [says(last)])
        };

        hypervisor.set_agent(talks, Some(vec![says(1)]));
        let end = CancellationToken::new();
        let task = tokio::spawn(run(shared.clone(), end.clone()));
        // Sixty, of which two are asked at once, each for as long as an agent may take.
        let turn = 30 * DEADLINE;
        eventually("it has had its turn", turn + EVERY, || is_known(1)).await;
        // In the second round all have not answered twice.
        shared.sleep(EVERY + turn + EVERY).await;
        for last in 2..6 {
            hypervisor.set_agent(talks, Some(vec![says(last)]));
            eventually("it is asked each minute", EVERY + DEADLINE, || is_known(last)).await;
        }
        end.cancel();
        task.await.unwrap();
    }
}
