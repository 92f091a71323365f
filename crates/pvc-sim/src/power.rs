//! The BMCs: reached by the upstream network, and as good or bad as BMCs are.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{Bmc, Power, PowerError};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::process::Gate;
use crate::state::{Mutation, State};

/// How long a program waits for a BMC that does not answer.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BmcManner {
    Works,
    /// Every answer takes so many seconds.
    Slow(u64),
    Dead,
    /// It says that the power is off, whatever is so.
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
    fn ask_bmc(&mut self, from: usize, name: &str, ask: Ask, caller: Weak<()>) -> oneshot::Receiver<Said> {
        let (answer, answered) = oneshot::channel();
        let target = self.hosts.iter().position(|host| bmc_name(&host.name) == name);
        let reaches = self.hosts[from].cables.upstream;
        let target = target.filter(|target| reaches && self.hosts[*target].bmc != BmcManner::Dead);
        let Some(target) = target else {
            let unusable = PowerError::Unusable { host: name.to_owned(), why: "no answer".to_owned() };
            self.later(PATIENCE, move |_| drop(answer.send(Err(unusable))));
            return answered;
        };
        let takes = match self.hosts[target].bmc {
            BmcManner::Slow(seconds) => Duration::from_secs(seconds),
            _ => self.chance.millis(100, 1500),
        };
        if ask == Ask::Switch(false) {
            self.truth_of_cut(from, target, caller);
        }
        let name = name.to_owned();
        // It acts in the middle, and answers at the end.
        self.later(takes / 2, move |state| {
            let said = state.bmc_acts(target, &name, ask);
            state.later(takes - takes / 2, move |state| {
                if ask == Ask::Switch(false) {
                    state.truth.cut_over(target);
                }
                let _ = answer.send(said); // whoever asked may have gone
            });
        });
        answered
    }

    fn bmc_acts(&mut self, target: usize, name: &str, ask: Ask) -> Said {
        let manner = self.hosts[target].bmc;
        if manner == BmcManner::LiesOff {
            self.hosts[target].bmc_lied = true;
        }
        match (ask, manner) {
            (Ask::IsOn, BmcManner::LiesOff) => Ok(false),
            (Ask::IsOn, _) => Ok(self.hosts[target].on),
            (Ask::Switch(_), BmcManner::LiesOff) => Ok(true),
            (Ask::Switch(wanted), BmcManner::Ignores) => match self.hosts[target].on == wanted {
                true => Ok(true),
                false => Err(PowerError::Ignored { host: name.to_owned(), wanted }),
            },
            (Ask::Switch(false), _) if self.nature.mutation == Some(Mutation::Unconfirmed) => Ok(true),
            (Ask::Switch(false), _) => {
                self.power_off(target, "by its BMC");
                Ok(true)
            }
            (Ask::Switch(true), BmcManner::WakesLate(seconds)) => {
                let life = self.hosts[target].life;
                self.later(Duration::from_secs(seconds), move |state| {
                    if state.hosts[target].life == life {
                        state.power_on(target, "by its BMC, late");
                    }
                });
                Ok(true)
            }
            (Ask::Switch(true), _) => {
                self.power_on(target, "by its BMC");
                Ok(true)
            }
        }
    }
}

impl Bmcs {
    async fn ask(&self, bmc: &Bmc, ask: Ask) -> Said {
        // Whoever stops waiting ends the program that talks to the BMC.
        let caller = Arc::new(());
        let calls = Arc::downgrade(&caller);
        let answered = self.gate.call(|state| state.ask_bmc(self.host, &bmc.host, ask, calls)).await;
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
