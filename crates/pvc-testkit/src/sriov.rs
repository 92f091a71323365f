use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use pvc_model::sriov::plan::{CardSeen, FunctionSeen};
use pvc_model::sriov::settings::{VfLinkState, VfSetting, VfSettings};
use pvc_model::sriov::{PciAddress, vf_name};
use pvc_ports::{NetworkError, Sriov};

#[derive(Default)]
struct Inner {
    /// Interfaces; those that are of no such card can have no functions.
    cards: BTreeMap<String, CardSeen>,
    refuses: bool,
    changes: Vec<String>,
}

/// Cards of a machine without cards.
#[derive(Default)]
pub struct MemorySriov {
    inner: Mutex<Inner>,
}

impl MemorySriov {
    /// Without any card.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a card that can have `most` functions and has none yet; with 0 it is an ordinary one.
    pub fn insert(&self, card: &str, most: u32) {
        let new = CardSeen { most_functions: most, functions: Vec::new() };
        self.inner().cards.insert(card.to_owned(), new);
    }

    pub fn remove(&self, card: &str) {
        self.inner().cards.remove(card);
    }

    /// Gives a function to a guest, or takes it back.
    pub fn pass_through(&self, card: &str, index: u32, to_guest: bool) {
        let link = (!to_guest).then(|| vf_name(card, index));
        self.function(card, index, |function| function.link = link);
    }

    /// Has a function forget its settings, as a reset of the card does.
    pub fn reset(&self, card: &str, index: u32) {
        self.function(card, index, |function| function.settings = usual());
    }

    /// Refuses every change from now on.
    pub fn set_refusing(&self, refuses: bool) {
        self.inner().refuses = refuses;
    }

    /// The settings of a function; `None` if there is none.
    pub fn settings(&self, card: &str, index: u32) -> Option<VfSettings> {
        let inner = self.inner();
        let mut functions = inner.cards.get(card)?.functions.iter();
        functions.find(|function| function.index == index).map(|found| found.settings.clone())
    }

    /// Changes since they were asked for last, in words.
    pub fn take_changes(&self) -> Vec<String> {
        std::mem::take(&mut self.inner().changes)
    }

    fn function(&self, card: &str, index: u32, change: impl FnOnce(&mut FunctionSeen)) {
        let mut inner = self.inner();
        let mut functions =
            inner.cards.get_mut(card).into_iter().flat_map(|card| &mut card.functions);
        if let Some(function) = functions.find(|function| function.index == index) {
            change(function);
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no test panics while holding it")
    }
}

/// Settings of a new function.
fn usual() -> VfSettings {
    VfSettings {
        vlan: Some((0, 0)),
        rates: Some((0, 0)),
        spoof_check: Some(true),
        link_state: Some(VfLinkState::Auto),
        trust: Some(false),
        query_rss: Some(false),
    }
}

fn refused(what: String) -> NetworkError {
    NetworkError::Refused { what, source: io::Error::from(io::ErrorKind::Unsupported) }
}

#[async_trait]
impl Sriov for MemorySriov {
    async fn card(&self, card: &str) -> Result<Option<CardSeen>, NetworkError> {
        Ok(self.inner().cards.get(card).cloned())
    }

    async fn make_functions(&self, card: &str, count: u32) -> Result<(), NetworkError> {
        let mut inner = self.inner();
        let what = format!("make {count} functions of `{card}`");
        let refuses = inner.refuses;
        let found = inner
            .cards
            .get_mut(card)
            .ok_or_else(|| NetworkError::NoLink { link: card.to_owned() })?;
        if found.most_functions == 0 {
            let what = format!("functions of `{card}` (SR-IOV)");
            return Err(NetworkError::Unsupported { what });
        }
        if found.functions.len() == count as usize {
            return Ok(());
        }
        if refuses || count > found.most_functions || !found.functions.is_empty() {
            return Err(refused(what));
        }
        let function = |index: u32| {
            let low = u8::try_from(index).unwrap_or(u8::MAX);
            FunctionSeen {
                index,
                pci: PciAddress { domain: 0, bus: 0x3b, slot: 2 + low / 8, function: low % 8 },
                link: Some(vf_name(card, index)),
                mac: Some([2, 0, 0, 0, 0, low]),
                settings: usual(),
            }
        };
        found.functions = (0..count).map(function).collect();
        inner.changes.push(what);
        Ok(())
    }

    async fn set_function(
        &self,
        card: &str,
        index: u32,
        setting: &VfSetting,
    ) -> Result<(), NetworkError> {
        let mut inner = self.inner();
        let what = format!("{setting}, function {index} of `{card}`");
        let refuses = inner.refuses;
        let found = inner
            .cards
            .get_mut(card)
            .ok_or_else(|| NetworkError::NoLink { link: card.to_owned() })?;
        let function = found.functions.iter_mut().find(|function| function.index == index);
        let function = function.filter(|_| !refuses).ok_or_else(|| refused(what.clone()))?;
        let settings = &mut function.settings;
        match setting {
            VfSetting::Vlan { id, qos } => settings.vlan = Some((*id, *qos)),
            VfSetting::Rates { min, max } => settings.rates = Some((*min, *max)),
            VfSetting::SpoofCheck(flag) => settings.spoof_check = Some(*flag),
            VfSetting::LinkState(state) => settings.link_state = Some(state.clone()),
            VfSetting::Trust(flag) => settings.trust = Some(*flag),
            VfSetting::QueryRss(flag) => settings.query_rss = Some(*flag),
        }
        inner.changes.push(what);
        Ok(())
    }
}
