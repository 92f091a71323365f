use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use pvc_ports::{Services, ServicesError, UnitState};

/// Behaviour of a unit when it is started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnitManner {
    /// The unit runs at once.
    #[default]
    Runs,
    /// The unit runs once its state has been asked for this often.
    RunsAfter(u32),
    /// The unit stays on its way.
    Hangs,
    Fails,
}

/// Something that somebody asked [`ScriptedServices`] to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnitCall {
    Start(String),
    Stop(String),
    Restart(String),
    Enable(String),
    Disable(String),
}

#[derive(Debug, Clone, Default)]
struct Unit {
    manner: UnitManner,
    enabled: bool,
    state: Option<UnitState>,
    asked: u32,
}

#[derive(Default)]
struct Inner {
    units: BTreeMap<String, Unit>,
    calls: Vec<UnitCall>,
    unreachable: bool,
}

/// A service manager whose units do as they are told by the test. A unit that it was not told of
/// does not exist.
#[derive(Default)]
pub struct ScriptedServices {
    inner: Mutex<Inner>,
}

impl ScriptedServices {
    /// Makes a service manager without any unit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Installs a unit that does not run.
    pub fn with(self, unit: &str, manner: UnitManner) -> Self {
        self.inner().units.insert(unit.to_owned(), Unit { manner, ..Unit::default() });
        self
    }

    /// Puts a unit into a state, as things outside of our power do.
    pub fn set_state(&self, unit: &str, state: UnitState) {
        self.inner().units.entry(unit.to_owned()).or_default().state = Some(state);
    }

    /// Sets whether the service manager is unreachable: while set, nobody answers.
    pub fn set_unreachable(&self, unreachable: bool) {
        self.inner().unreachable = unreachable;
    }

    /// Whether the unit is started when the machine boots.
    pub fn is_enabled(&self, unit: &str) -> bool {
        self.inner().units.get(unit).is_some_and(|unit| unit.enabled)
    }

    /// Everything that was asked for so far, in order.
    pub fn calls(&self) -> Vec<UnitCall> {
        self.inner().calls.clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no test panics while holding it")
    }

    fn unit<T>(
        &self,
        unit: &str,
        call: Option<UnitCall>,
        act: impl FnOnce(&mut Unit) -> T,
    ) -> Result<T, ServicesError> {
        let mut inner = self.inner();
        inner.calls.extend(call);
        if inner.unreachable {
            return Err(ServicesError::Unreachable { why: "it is not there".to_owned() });
        }
        let found = inner.units.get_mut(unit);
        found.map(act).ok_or_else(|| ServicesError::Missing { unit: unit.to_owned() })
    }
}

impl Unit {
    fn start(&mut self) {
        self.asked = 0;
        self.state = Some(match self.manner {
            UnitManner::Runs => UnitState::Active,
            UnitManner::RunsAfter(_) | UnitManner::Hangs => UnitState::Starting,
            UnitManner::Fails => UnitState::Failed,
        });
    }

    fn look(&mut self) -> UnitState {
        self.asked += 1;
        if let (UnitManner::RunsAfter(times), Some(UnitState::Starting)) =
            (self.manner, &self.state)
            && self.asked > times
        {
            self.state = Some(UnitState::Active);
        }
        self.state.clone().unwrap_or(UnitState::Inactive)
    }
}

#[async_trait]
impl Services for ScriptedServices {
    async fn state(&self, unit: &str) -> Result<UnitState, ServicesError> {
        match self.unit(unit, None, Unit::look) {
            Err(ServicesError::Missing { .. }) => Ok(UnitState::Missing),
            state => state,
        }
    }

    async fn start(&self, unit: &str) -> Result<(), ServicesError> {
        self.unit(unit, Some(UnitCall::Start(unit.to_owned())), |unit| {
            if unit.state != Some(UnitState::Active) {
                unit.start();
            }
        })
    }

    async fn stop(&self, unit: &str) -> Result<(), ServicesError> {
        self.unit(unit, Some(UnitCall::Stop(unit.to_owned())), |unit| {
            unit.state = Some(UnitState::Inactive)
        })
    }

    async fn restart(&self, unit: &str) -> Result<(), ServicesError> {
        self.unit(unit, Some(UnitCall::Restart(unit.to_owned())), Unit::start)
    }

    async fn set_enabled(&self, unit: &str, enabled: bool) -> Result<(), ServicesError> {
        let call = if enabled { UnitCall::Enable } else { UnitCall::Disable };
        self.unit(unit, Some(call(unit.to_owned())), |unit| unit.enabled = enabled)
    }
}
