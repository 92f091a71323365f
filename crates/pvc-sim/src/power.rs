//! The BMCs: reached by the upstream network, and as good or bad as BMCs are. What they say and do
//! are the testkit's rules; how long that takes, and whose power it is, are the world's.

use std::ops::{Index, IndexMut};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{Bmc, Power, PowerError};
use pvc_testkit::BmcAsk;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::daemons::ipmi;
use crate::host::Hosts;
use crate::nature::Mutation;
use crate::process::Gate;
use crate::state::State;

/// Time for which a program waits for a BMC that does not answer.
const TIME_LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BmcManner {
    Works,
    /// Every call takes so many seconds, with all that is asked in it.
    Slow(u64),
    Dead,
    /// The BMC says that the power is off, whatever is so, and does nothing.
    LiesOff,
    /// The BMC takes every command and does nothing.
    Ignores,
    /// The BMC says that the power is off for so many seconds after it was told to switch it on.
    WakesLate(u64),
}

impl BmcManner {
    /// The same in the words of the testkit, for the BMC of this host.
    fn played(self, host: &str) -> pvc_testkit::BmcManner {
        let usual = pvc_testkit::BmcManner {
            password: Some(ipmi(host).password),
            ..pvc_testkit::BmcManner::default()
        };
        match self {
            BmcManner::Works => usual,
            BmcManner::Slow(seconds) => {
                pvc_testkit::BmcManner { takes: Duration::from_secs(seconds), ..usual }
            }
            BmcManner::Dead => pvc_testkit::BmcManner { dead: true, ..usual },
            BmcManner::LiesOff => pvc_testkit::BmcManner { lies: true, ..usual },
            BmcManner::Ignores => pvc_testkit::BmcManner { ignores: true, ..usual },
            BmcManner::WakesLate(seconds) => {
                pvc_testkit::BmcManner { wakes_after: Duration::from_secs(seconds), ..usual }
            }
        }
    }
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

type Said = Result<bool, PowerError>;

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
        let lets_in = self[target].manner.played(&hosts[target].name).lets_in(bmc).is_ok();
        (lets_in && hosts[from].cables.upstream).then_some(target)
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
    ask: BmcAsk,
    caller: Weak<()>,
) -> oneshot::Receiver<Said> {
    let (answer_sender, answered) = oneshot::channel();
    let Some(target) = state.bmcs.reached(&state.hosts, from, bmc) else {
        let (host, why) = (bmc.host.clone(), "no answer".to_owned());
        let unusable = PowerError::Unusable { host, why };
        state.run.later(TIME_LIMIT, move |_| drop(answer_sender.send(Err(unusable))));
        return answered;
    };
    let takes = match state.bmcs[target].manner {
        BmcManner::Slow(seconds) => Duration::from_secs(seconds),
        _ => state.run.chance.millis(100, 1500),
    };
    if ask == BmcAsk::Switch(false) {
        state.judge(|truth, sight| truth.of_cut(sight, from, target, caller));
    }
    // It acts in the middle, and answers at the end.
    state.run.later(takes / 2, move |state| {
        let bmc = &mut state.bmcs[target];
        bmc.has_lied |= bmc.manner == BmcManner::LiesOff && from != target;
        let (manner, known) = (bmc.manner, &state.hosts[target]);
        let bmc = bmc_name(&known.name);
        let answer = manner.played(&known.name).answer(&bmc, known.on, ask);
        // With the deliberate flaw nothing is cut that it says is.
        let is_flawed = state.run.nature.mutation == Some(Mutation::Unconfirmed);
        let cuts_nothing = is_flawed && ask == BmcAsk::Switch(false);
        if let Some((on, after)) = answer.switches.filter(|_| !cuts_nothing) {
            switch(state, target, on, after);
        }
        state.run.later(takes - takes / 2 + answer.asks_on, move |state| {
            if ask == BmcAsk::Switch(false) {
                state.truth.cut_over(target);
            }
            let _ = answer_sender.send(answer.said); // whoever asked may have gone
        });
    });
    answered
}

/// The power of a host becomes so, after a while if its BMC takes one.
fn switch(state: &mut State, host: usize, on: bool, after: Duration) {
    if !on {
        return state.power_off(host, "by its BMC");
    }
    if after.is_zero() {
        return state.power_on(host, "by its BMC");
    }
    let life = state.hosts[host].life;
    state.run.later(after, move |state| {
        if state.hosts[host].life == life {
            state.power_on(host, "by its BMC, late");
        }
    });
}

/// The BMCs as the daemon of one host reaches them.
pub(crate) struct HostPower {
    pub gate: Gate,
    pub host: usize,
}

impl HostPower {
    async fn ask(&self, bmc: &Bmc, ask: BmcAsk) -> Said {
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
        self.ask(bmc, BmcAsk::IsOn).await
    }

    async fn cut(&self, bmc: &Bmc) -> Result<(), PowerError> {
        self.ask(bmc, BmcAsk::Switch(false)).await.map(drop)
    }

    async fn switch_on(&self, bmc: &Bmc) -> Result<(), PowerError> {
        self.ask(bmc, BmcAsk::Switch(true)).await.map(drop)
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
