//! The BMCs: reached by the upstream network, and as good or bad as BMCs are.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{Bmc, Power, PowerError};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::daemons::ipmi;
use crate::process::Gate;
use crate::state::{Mutation, State};

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

/// The BMCs as the daemon of one host reaches them.
pub(crate) struct Bmcs {
    pub gate: Gate,
    pub host: usize,
}

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

impl State {
    /// The host whose BMC answers to this name and lets this user in. A wrong password looks like
    /// silence.
    fn reached_bmc(&self, from: usize, bmc: &Bmc) -> Option<usize> {
        let target = self.hosts.iter().position(|host| bmc_name(&host.name) == bmc.host)?;
        let key = ipmi(&self.hosts[target].name);
        let lets_in = (&key.username, &key.password) == (&bmc.user, &bmc.password);
        let answers = self.hosts[target].bmc != BmcManner::Dead;
        (lets_in && answers && self.hosts[from].cables.upstream).then_some(target)
    }

    fn ask_bmc(
        &mut self,
        from: usize,
        bmc: &Bmc,
        ask: Ask,
        caller: Weak<()>,
    ) -> oneshot::Receiver<Said> {
        let (answer, answered) = oneshot::channel();
        let (name, target) = (&bmc.host, self.reached_bmc(from, bmc));
        let Some(target) = target else {
            let unusable = PowerError::Unusable { host: name.clone(), why: "no answer".to_owned() };
            self.later(TIME_LIMIT, move |_| drop(answer.send(Err(unusable))));
            return answered;
        };
        let takes = match self.hosts[target].bmc {
            BmcManner::Slow(seconds) => Duration::from_secs(seconds),
            _ => self.chance.millis(100, 1500),
        };
        if ask == Ask::Switch(false) {
            self.truth_of_cut(from, target, caller);
        }
        let name = name.clone();
        // It acts in the middle, and answers at the end.
        self.later(takes / 2, move |state| {
            if state.hosts[target].bmc == BmcManner::LiesOff && from != target {
                state.hosts[target].bmc_lied = true;
            }
            let (said, after) = state.bmc_acts(target, &name, ask);
            state.later(takes - takes / 2 + after, move |state| {
                if ask == Ask::Switch(false) {
                    state.truth.cut_over(target);
                }
                let _ = answer.send(said); // whoever asked may have gone
            });
        });
        answered
    }

    /// What comes of a command or a question, and how long the caller asks on until that is clear.
    fn bmc_acts(&mut self, target: usize, name: &str, ask: Ask) -> (Said, Duration) {
        let manner = self.hosts[target].bmc;
        let done = (Ok(true), Duration::ZERO);
        let ignored =
            |wanted| (Err(PowerError::Ignored { host: name.to_owned(), wanted }), SWITCHING);
        match (ask, manner) {
            (Ask::IsOn, BmcManner::LiesOff) => (Ok(false), Duration::ZERO),
            (Ask::IsOn, _) => (Ok(self.hosts[target].on), Duration::ZERO),
            (Ask::Switch(false), BmcManner::LiesOff) => done,
            (Ask::Switch(true), BmcManner::LiesOff) => ignored(true),
            (Ask::Switch(wanted), BmcManner::Ignores) => match self.hosts[target].on == wanted {
                true => done,
                false => ignored(wanted),
            },
            (Ask::Switch(false), _) if self.nature.mutation == Some(Mutation::Unconfirmed) => done,
            (Ask::Switch(false), _) => {
                self.power_off(target, "by its BMC");
                done
            }
            (Ask::Switch(true), _) if self.hosts[target].on => done,
            (Ask::Switch(true), BmcManner::WakesLate(seconds)) => {
                let life = self.hosts[target].life;
                self.later(Duration::from_secs(seconds), move |state| {
                    if state.hosts[target].life == life {
                        state.power_on(target, "by its BMC, late");
                    }
                });
                let late = Duration::from_secs(seconds);
                if late <= SWITCHING { (Ok(true), late) } else { ignored(true) }
            }
            (Ask::Switch(true), _) => {
                self.power_on(target, "by its BMC");
                done
            }
        }
    }
}

impl Bmcs {
    async fn ask(&self, bmc: &Bmc, ask: Ask) -> Said {
        // Whoever stops waiting ends the program that talks to the BMC.
        let caller = Arc::new(());
        let calls = Arc::downgrade(&caller);
        let answered = self.gate.call(|state| state.ask_bmc(self.host, bmc, ask, calls)).await;
        let said = self.gate.answer(answered).await;
        drop(caller);
        said
    }
}

#[async_trait]
impl Power for Bmcs {
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
            state.hosts[2].bmc = BmcManner::Ignores;
            state.hosts[3].bmc = BmcManner::LiesOff;
            state.hosts[4].bmc = BmcManner::Dead;
        });
        let fixture = PowerFixture {
            bmc: bmc(1),
            is_really_on: Box::new(move || world.with(|state| state.hosts[1].on)),
            ignoring: bmc(2),
            lying: bmc(3),
            absent: bmc(4),
        };
        power_contract(Arc::new(Bmcs { gate: gates[0].clone(), host: 0 }), fixture).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_bmc_that_wakes_late_is_waited_for_as_long_as_the_real_ones() {
        let (world, gates) = World::of_hosts(2);
        let bmcs = Bmcs { gate: gates[0].clone(), host: 0 };
        for (seconds, is_in_time) in [(5, true), (20, false)] {
            world.with(|state| state.hosts[1].bmc = BmcManner::WakesLate(seconds));
            bmcs.cut(&bmc(1)).await.expect("it is cut as ever");
            assert_eq!(bmcs.switch_on(&bmc(1)).await.is_ok(), is_in_time, "{seconds}");
            assert_eq!(world.with(|state| state.hosts[1].on), is_in_time, "{seconds}");
        }
    }
}
