use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{Bmc, Power, PowerError};

/// How a BMC behaves.
#[derive(Debug, Clone, Default)]
pub struct BmcManner {
    /// It cannot be reached.
    pub dead: bool,
    /// It takes so long for every answer.
    pub takes: Duration,
    /// It lets nobody in who has another password than this.
    pub password: Option<String>,
    /// It says that the power is off, whatever is so, and does nothing.
    pub lies: bool,
    /// It accepts every command and does nothing.
    pub ignores: bool,
    /// Whoever talks to it falls over a bug of the adapter.
    pub panics: bool,
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
    inner: Mutex<Inner>,
}

impl ScriptedPower {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn set_manner(&self, host: &str, manner: BmcManner) {
        self.with(|inner| inner.manners.insert(host.to_owned(), manner));
    }

    /// As if somebody pulled the plug, or put it back.
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

    async fn reached(&self, call: &str, bmc: &Bmc) -> Result<BmcManner, PowerError> {
        let manner = self.with(|inner| {
            inner.calls.push(format!("{call} {}", bmc.host));
            inner.manners.get(&bmc.host).cloned().unwrap_or_default()
        });
        tokio::time::sleep(manner.takes).await;
        assert!(!manner.panics, "a bug of the adapter");
        let unusable =
            |why: &str| PowerError::Unusable { host: bmc.host.clone(), why: why.to_owned() };
        if manner.dead {
            return Err(unusable("no answer"));
        }
        match &manner.password {
            Some(password) if *password != bmc.password => Err(unusable("wrong password")),
            _ => Ok(manner),
        }
    }

    async fn switch(&self, call: &str, bmc: &Bmc, on: bool) -> Result<(), PowerError> {
        let manner = self.reached(call, bmc).await?;
        if !manner.lies && !manner.ignores {
            self.set_on(&bmc.host, on);
        }
        match self.says(bmc, &manner) == on {
            true => Ok(()),
            false => Err(PowerError::Ignored { host: bmc.host.clone(), wanted: on }),
        }
    }

    fn says(&self, bmc: &Bmc, manner: &BmcManner) -> bool {
        !manner.lies && self.is_really_on(&bmc.host)
    }
}

#[async_trait]
impl Power for ScriptedPower {
    async fn is_on(&self, bmc: &Bmc) -> Result<bool, PowerError> {
        let manner = self.reached("status", bmc).await?;
        Ok(self.says(bmc, &manner))
    }

    async fn cut(&self, bmc: &Bmc) -> Result<(), PowerError> {
        self.switch("off", bmc, false).await
    }

    async fn switch_on(&self, bmc: &Bmc) -> Result<(), PowerError> {
        self.switch("on", bmc, true).await
    }
}
