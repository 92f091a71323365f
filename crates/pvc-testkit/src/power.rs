use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{Bmc, Power, PowerError};

/// Behaviour of a BMC.
#[derive(Debug, Clone, Default)]
pub struct BmcManner {
    /// Whether the BMC cannot be reached.
    pub dead: bool,
    /// Time that the BMC takes for every answer.
    pub takes: Duration,
    /// The only password that the BMC accepts.
    pub password: Option<String>,
    /// Whether the BMC says that the power is off, whatever is so, and does nothing.
    pub lies: bool,
    /// Whether the BMC accepts every command and does nothing.
    pub ignores: bool,
    /// Time until the BMC, told to switch the power on, does so.
    pub wakes_after: Duration,
    /// Whether whoever talks to it falls over a bug of the adapter.
    pub panics: bool,
}

/// Request to a BMC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BmcAsk {
    IsOn,
    Switch(bool),
}

/// Consequence of a request, for whoever has time and the power itself to carry it out.
#[derive(Debug)]
pub struct BmcAnswer {
    /// Whether the power is on, or as it was told to be.
    pub said: Result<bool, PowerError>,
    /// The power becomes so, after this long.
    pub switches: Option<(bool, Duration)>,
    /// Time for which the caller asks on until `said` is clear.
    pub asks_on: Duration,
}

/// Time for which a program that has commanded a BMC asks on until the power is as it was told.
const SWITCHING: Duration = Duration::from_secs(10);

impl BmcManner {
    /// Whether the BMC lets in who comes by `bmc`.
    ///
    /// # Errors
    /// [`PowerError::Unusable`] if nobody answers, or a password is wrong.
    pub fn lets_in(&self, bmc: &Bmc) -> Result<(), PowerError> {
        let unusable =
            |why: &str| Err(PowerError::Unusable { host: bmc.host.clone(), why: why.to_owned() });
        match &self.password {
            _ if self.dead => unusable("no answer"),
            Some(password) if *password != bmc.password => unusable("wrong password"),
            _ => Ok(()),
        }
    }

    /// Answer of the BMC `host`, and what it does, for a server that `is_on` or not.
    pub fn answer(&self, host: &str, is_on: bool, ask: BmcAsk) -> BmcAnswer {
        let says = |on| BmcAnswer { said: Ok(on), switches: None, asks_on: Duration::ZERO };
        let shown = is_on && !self.lies;
        let wanted = match ask {
            BmcAsk::IsOn => return says(shown),
            BmcAsk::Switch(wanted) if wanted == shown => return says(true),
            BmcAsk::Switch(wanted) => wanted,
        };
        let ignored = || {
            let error = PowerError::Ignored { host: host.to_owned(), wanted };
            BmcAnswer { said: Err(error), switches: None, asks_on: SWITCHING }
        };
        if self.lies || self.ignores {
            return ignored();
        }
        let late = if wanted { self.wakes_after } else { Duration::ZERO };
        let answer = if late <= SWITCHING { says(true) } else { ignored() };
        BmcAnswer { switches: Some((wanted, late)), asks_on: late.min(SWITCHING), ..answer }
    }
}

#[derive(Default)]
struct Inner {
    off: BTreeMap<String, bool>,
    manners: BTreeMap<String, BmcManner>,
    calls: Vec<String>,
}

/// The BMCs of all servers, by host name. Servers are on until they are switched off.
#[derive(Default)]
pub struct ScriptedPower {
    inner: Arc<Mutex<Inner>>,
}

impl ScriptedPower {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn set_manner(&self, host: &str, manner: BmcManner) {
        self.with(|inner| inner.manners.insert(host.to_owned(), manner));
    }

    /// Switches the power as if somebody pulled the plug, or put it back.
    pub fn set_on(&self, host: &str, on: bool) {
        self.with(|inner| inner.off.insert(host.to_owned(), !on));
    }

    /// Whether the power is really on.
    pub fn is_really_on(&self, host: &str) -> bool {
        self.with(|inner| !inner.off.get(host).copied().unwrap_or_default())
    }

    /// Every call so far, as `status HOST`, `off HOST`, `on HOST`.
    pub fn calls(&self) -> Vec<String> {
        self.with(|inner| inner.calls.clone())
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.inner.lock().expect("no test panics while holding it"))
    }

    async fn ask(&self, call: &str, bmc: &Bmc, ask: BmcAsk) -> Result<bool, PowerError> {
        let manner = self.with(|inner| {
            inner.calls.push(format!("{call} {}", bmc.host));
            inner.manners.get(&bmc.host).cloned().unwrap_or_default()
        });
        tokio::time::sleep(manner.takes).await;
        assert!(!manner.panics, "a bug of the adapter");
        manner.lets_in(bmc)?;
        let answer = manner.answer(&bmc.host, self.is_really_on(&bmc.host), ask);
        if let Some((on, after)) = answer.switches {
            self.switch(&bmc.host, on, after);
        }
        tokio::time::sleep(answer.asks_on).await;
        answer.said
    }

    fn switch(&self, host: &str, on: bool, after: Duration) {
        if after.is_zero() {
            return self.set_on(host, on);
        }
        let (inner, host) = (Arc::clone(&self.inner), host.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            inner.lock().expect("no test panics while holding it").off.insert(host, !on);
        });
    }
}

#[async_trait]
impl Power for ScriptedPower {
    async fn is_on(&self, bmc: &Bmc) -> Result<bool, PowerError> {
        self.ask("status", bmc, BmcAsk::IsOn).await
    }

    async fn cut(&self, bmc: &Bmc) -> Result<(), PowerError> {
        self.ask("off", bmc, BmcAsk::Switch(false)).await.map(drop)
    }

    async fn switch_on(&self, bmc: &Bmc) -> Result<(), PowerError> {
        self.ask("on", bmc, BmcAsk::Switch(true)).await.map(drop)
    }
}
