//! The map: what [`OsdMap`](pvc_ports::OsdMap) says.

use std::collections::BTreeSet;

use pvc_model::Uuid;
use pvc_model::osd::{OsdFlag, OsdId, OsdState, Safety};
use pvc_ports::{OsdError, UnitState};

use super::{Mapped, MemoryOsds};

impl MemoryOsds {
    pub fn cluster_uuid(&self) -> Uuid {
        self.cluster
    }

    pub fn osd_ids(&self) -> BTreeSet<OsdId> {
        self.map.keys().copied().collect()
    }

    pub fn osd_states(&mut self) -> Vec<OsdState> {
        self.those_that_live_say_so();
        self.map.values().map(|mapped| mapped.state.clone()).collect()
    }

    pub fn osd_in(&mut self, id: OsdId) -> Result<(), OsdError> {
        self.mapped(id).map(|mapped| mapped.state.is_in = true)
    }

    pub fn osd_out(&mut self, id: OsdId) -> Result<(), OsdError> {
        self.mapped(id).map(|mapped| mapped.state.is_in = false)
    }

    pub fn osd_down(&mut self, id: OsdId) -> Result<(), OsdError> {
        self.mapped(id).map(|mapped| mapped.state.is_up = false)
    }

    pub fn safe_to_destroy(&mut self, id: OsdId) -> Result<Safety, OsdError> {
        let held = [OsdFlag::NoBackfill, OsdFlag::NoRebalance, OsdFlag::NoRecover];
        let moves = held.iter().all(|flag| !self.flags.contains(flag));
        let mapped = self.mapped(id)?;
        let needed = mapped.needed;
        if !mapped.state.is_in && moves {
            mapped.needed = needed.saturating_sub(1);
        }
        Ok(match needed {
            0 => Safety::Safe,
            needed => Safety::NotYet(unsafe_because(id, needed)),
        })
    }

    pub fn destroy(&mut self, id: OsdId, force: bool) -> Result<(), OsdError> {
        if self.mapped(id)?.state.uuid.is_none() {
            return Ok(());
        }
        self.require_end(id, force)?;
        let mapped = self.mapped(id)?;
        (mapped.state.uuid, mapped.state.is_in, mapped.needed) = (None, false, 0);
        Ok(())
    }

    pub fn purge(&mut self, id: OsdId, force: bool) -> Result<(), OsdError> {
        if self.map.contains_key(&id) {
            self.require_end(id, force)?;
            self.map.remove(&id);
        }
        Ok(())
    }

    pub fn reserve(&mut self, id: OsdId, uuid: Uuid) -> Result<(), OsdError> {
        match self.map.get(&id).map(|mapped| mapped.state.uuid) {
            Some(None) => Ok(()),
            Some(Some(found)) if found == uuid => self.destroy(id, true),
            Some(Some(_)) => Err(OsdError::NumberTaken { osd: id }),
            None => {
                self.enter(id, uuid);
                self.destroy(id, true)
            }
        }
    }

    pub fn crush_add(&mut self, id: OsdId, weight: f64, host: &str) -> Result<(), OsdError> {
        self.mapped(id).map(|mapped| mapped.place = Some((host.to_owned(), weight)))
    }

    pub fn crush_remove(&mut self, id: OsdId) {
        if let Some(mapped) = self.map.get_mut(&id) {
            mapped.place = None;
        }
    }

    pub fn flags(&self) -> BTreeSet<OsdFlag> {
        self.flags.clone()
    }

    pub fn set_flag(&mut self, flag: OsdFlag) {
        self.flags.insert(flag);
    }

    pub fn unset_flag(&mut self, flag: OsdFlag) {
        self.flags.remove(&flag);
    }

    fn mapped(&mut self, id: OsdId) -> Result<&mut Mapped, OsdError> {
        self.map.get_mut(&id).ok_or(OsdError::NoOsd { osd: id })
    }

    /// Refuses the end of an OSD that is up, or whose data is not safe without it.
    fn require_end(&mut self, id: OsdId, force: bool) -> Result<(), OsdError> {
        self.those_that_live_say_so();
        let Mapped { state, needed, .. } = self.mapped(id)?.clone();
        if !force && needed > 0 {
            return Err(OsdError::NotSafe { osd: id, why: unsafe_because(id, needed) });
        }
        if state.is_up {
            return Err(OsdError::NotSafe { osd: id, why: format!("osd.{id} is not `down`") });
        }
        if needed > 0 {
            self.lost.insert(id);
        }
        Ok(())
    }

    /// A daemon that hears that it is down although it runs says that it is up.
    fn those_that_live_say_so(&mut self) {
        if self.flags.contains(&OsdFlag::NoUp) {
            return;
        }
        let daemons = self.nodes.values().flat_map(|node| &node.daemons);
        let running = daemons.filter(|(_, state)| **state == UnitState::Active);
        for (id, _) in running {
            if let Some(mapped) = self.map.get_mut(id).filter(|osd| osd.state.uuid.is_some()) {
                mapped.state.is_up = true;
            }
        }
    }
}

/// The words of Ceph.
fn unsafe_because(id: OsdId, needed: u64) -> String {
    format!("OSD(s) {id} have {needed} pgs currently mapped to them")
}
