//! The BMCs: reached by the upstream network, and as good or bad as BMCs are.

use std::ops::{Index, IndexMut};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{Bmc, Power, PowerError};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::daemons::ipmi;
use crate::host::{Host, Hosts};
use crate::nature::Mutation;
use crate::process::Gate;
use crate::state::State;

/// How long a program waits for a BMC that does not answer.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// How long it asks a BMC that took a command until the power is as it was told.
const SWITCHING: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BmcManner {
    Works,
    /// Every call takes so many seconds, with all that is asked in it.
    Slow(u64),
    Dead,
    /// It says that the power is off, whatever is so, and does nothing.
    LiesOff,
    /// It takes every command and does nothing.
    Ignores,
    /// It says that the power is off for so many seconds after it was told to switch it on.
    WakesLate(u64),
}

pub(crate) struct HostBmc {
    pub manner: BmcManner,
    /// Whether it has lied to others since the power was last gone.
    pub has_lied: bool,
}

/// The BMCs of all hosts, by the numbers of these.
pub(crate) struct Bmcs(Vec<HostBmc>);

/// The name under which the BMC of a host is reached.
pub(crate) fn bmc_name(host: &str) -> String {
    format!("bmc-{host}")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    IsOn,
    Switch(bool),
}

type Said = Result<bool, PowerError>;

/// What a BMC does with the power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    None,
    Off,
    On,
    OnAfter(Duration),
}

/// What comes of a command or a question.
struct Outcome {
    said: Said,
    effect: Effect,
    /// How long the caller asks on until that is clear.
    asks_on: Duration,
}

impl Bmcs {
    /// All of them work.
    pub fn of_hosts(hosts: usize) -> Bmcs {
        let works = |_| HostBmc { manner: BmcManner::Works, has_lied: false };
        Bmcs((0..hosts).map(works).collect())
    }

    /// The host whose BMC answers to this name and lets this user in. A wrong password looks like
    /// silence.
    fn reached(&self, hosts: &Hosts, from: usize, bmc: &Bmc) -> Option<usize> {
        let target = hosts.iter().position(|host| bmc_name(&host.name) == bmc.host)?;
        let key = ipmi(&hosts[target].name);
        let lets_in = (&key.username, &key.password) == (&bmc.user, &bmc.password);
        let answers = self[target].manner != BmcManner::Dead;
        (lets_in && answers && hosts[from].cables.upstream).then_some(target)
    }

    /// What the BMC of the host `target` says and does. With the deliberate flaw nothing is cut
    /// that it says is.
    fn act(&self, target: usize, host: &Host, ask: Ask, is_flawed: bool) -> Outcome {
        let (manner, is_on) = (self[target].manner, host.on);
        let says = |on| Outcome { said: Ok(on), effect: Effect::None, asks_on: Duration::ZERO };
        let does = |effect| Outcome { effect, ..says(true) };
        let ignored = |wanted| {
            let said = Err(PowerError::Ignored { host: bmc_name(&host.name), wanted });
            Outcome { said, effect: Effect::None, asks_on: SWITCHING }
        };
        match (ask, manner) {
            (Ask::IsOn, BmcManner::LiesOff) => says(false),
            (Ask::IsOn, _) => says(is_on),
            (Ask::Switch(false), BmcManner::LiesOff) => says(true),
            (Ask::Switch(true), BmcManner::LiesOff) => ignored(true),
            (Ask::Switch(wanted), BmcManner::Ignores) if is_on == wanted => says(true),
            (Ask::Switch(wanted), BmcManner::Ignores) => ignored(wanted),
            (Ask::Switch(false), _) if is_flawed => says(true),
            (Ask::Switch(false), _) => does(Effect::Off),
            (Ask::Switch(true), _) if is_on => says(true),
            (Ask::Switch(true), BmcManner::WakesLate(seconds)) => {
                let late = Duration::from_secs(seconds);
                let told = if late <= SWITCHING { says(true) } else { ignored(true) };
                Outcome { effect: Effect::OnAfter(late), asks_on: late.min(SWITCHING), ..told }
            }
            (Ask::Switch(true), _) => does(Effect::On),
        }
    }
}

impl Index<usize> for Bmcs {
    type Output = HostBmc;

    fn index(&self, host: usize) -> &HostBmc {
        &self.0[host]
    }
}

impl IndexMut<usize> for Bmcs {
    fn index_mut(&mut self, host: usize) -> &mut HostBmc {
        &mut self.0[host]
    }
}

/// The daemon of a host asks a BMC for something. Nobody hears the answer once the `caller` is
/// gone.
fn ask_bmc(
    state: &mut State,
    from: usize,
    bmc: &Bmc,
    ask: Ask,
    caller: Weak<()>,
) -> oneshot::Receiver<Said> {
    let (answer, answered) = oneshot::channel();
    let Some(target) = state.bmcs.reached(&state.hosts, from, bmc) else {
        let (host, why) = (bmc.host.clone(), "no answer".to_owned());
        let unusable = PowerError::Unusable { host, why };
        state.run.later(TIME_LIMIT, move |_| drop(answer.send(Err(unusable))));
        return answered;
    };
    let takes = match state.bmcs[target].manner {
        BmcManner::Slow(seconds) => Duration::from_secs(seconds),
        _ => state.run.chance.millis(100, 1500),
    };
    if ask == Ask::Switch(false) {
        state.judge(|truth, sight| truth.of_cut(sight, from, target, caller));
    }
    // It acts in the middle, and answers at the end.
    state.run.later(takes / 2, move |state| {
        let bmc = &mut state.bmcs[target];
        bmc.has_lied |= bmc.manner == BmcManner::LiesOff && from != target;
        let is_flawed = state.run.nature.mutation == Some(Mutation::Unconfirmed);
        let outcome = state.bmcs.act(target, &state.hosts[target], ask, is_flawed);
        has_effect(state, target, outcome.effect);
        state.run.later(takes - takes / 2 + outcome.asks_on, move |state| {
            if ask == Ask::Switch(false) {
                state.truth.cut_over(target);
            }
            let _ = answer.send(outcome.said); // whoever asked may have gone
        });
    });
    answered
}

fn has_effect(state: &mut State, target: usize, effect: Effect) {
    match effect {
        Effect::None => {}
        Effect::Off => state.power_off(target, "by its BMC"),
        Effect::On => state.power_on(target, "by its BMC"),
        Effect::OnAfter(late) => {
            let life = state.hosts[target].life;
            state.run.later(late, move |state| {
                if state.hosts[target].life == life {
                    state.power_on(target, "by its BMC, late");
                }
            });
        }
    }
}

/// The BMCs as the daemon of one host reaches them.
pub(crate) struct HostPower {
    pub gate: Gate,
    pub host: usize,
}

impl HostPower {
    async fn ask(&self, bmc: &Bmc, ask: Ask) -> Said {
        // Whoever stops waiting ends the program that talks to the BMC.
        let caller = Arc::new(());
        let calls = Arc::downgrade(&caller);
        let answered = self.gate.call(|state| ask_bmc(state, self.host, bmc, ask, calls)).await;
        let said = self.gate.answer(answered).await;
        drop(caller);
        said
    }
}

#[async_trait]
impl Power for HostPower {
    async fn is_on(&self, bmc: &Bmc) -> Result<bool, PowerError> {
        self.ask(bmc, Ask::IsOn).await
    }

    async fn cut(&self, bmc: &Bmc) -> Result<(), PowerError> {
        self.ask(bmc, Ask::Switch(false)).await.map(drop)
    }

    async fn switch_on(&self, bmc: &Bmc) -> Result<(), PowerError> {
        self.ask(bmc, Ask::Switch(true)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use pvc_contracts::power::{PowerFixture, power_contract};

    use super::*;
    use crate::cluster::host_name;
    use crate::state::World;

    fn bmc(host: usize) -> Bmc {
        ipmi(&host_name(host)).bmc()
    }

    #[tokio::test(start_paused = true)]
    async fn the_simulated_bmcs_keep_the_contract() {
        let (world, gates) = World::of_hosts(5);
        world.with(|state| {
            state.bmcs[2].manner = BmcManner::Ignores;
            state.bmcs[3].manner = BmcManner::LiesOff;
            state.bmcs[4].manner = BmcManner::Dead;
        });
        let fixture = PowerFixture {
            bmc: bmc(1),
            is_really_on: Box::new(move || world.with(|state| state.hosts[1].on)),
            ignoring: bmc(2),
            lying: bmc(3),
            absent: bmc(4),
        };
        power_contract(Arc::new(HostPower { gate: gates[0].clone(), host: 0 }), fixture).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_bmc_that_wakes_late_is_waited_for_as_long_as_the_real_ones() {
        let (world, gates) = World::of_hosts(2);
        let bmcs = HostPower { gate: gates[0].clone(), host: 0 };
        for (seconds, is_in_time) in [(5, true), (20, false)] {
            world.with(|state| state.bmcs[1].manner = BmcManner::WakesLate(seconds));
            bmcs.cut(&bmc(1)).await.expect("it is cut as ever");
            assert_eq!(bmcs.switch_on(&bmc(1)).await.is_ok(), is_in_time, "{seconds}");
            assert_eq!(world.with(|state| state.hosts[1].on), is_in_time, "{seconds}");
        }
    }
}
