//! The guests of a hypervisor as values. Whatever is asked of them is done at once, or refused as
//! the real ones refuse it: who waits for what, and what a guest does by itself, is for their
//! owner.

use std::collections::BTreeMap;
use std::ops::DerefMut;

use pvc_ports::{DeviceChange, Guest, GuestEvent, GuestRun, HypervisorError};
use tokio::sync::mpsc;
use uuid::Uuid;

/// A guest as its hypervisor keeps it.
#[derive(Debug, Clone)]
pub struct MemoryGuest {
    pub name: String,
    pub xml: String,
    pub run: GuestRun,
    /// The number of its start.
    pub instance: i32,
    /// Devices that were plugged in while the guest runs, by target.
    pub plugged: BTreeMap<String, String>,
}

/// A hypervisor, and its guests with whatever else their owner keeps of each.
pub struct MemoryHypervisor<G = Box<MemoryGuest>> {
    /// Whether the hypervisor is up. While it is not, every call fails; guests run on.
    pub is_up: bool,
    pub guests: BTreeMap<Uuid, G>,
    instances: i32,
    listeners: Vec<mpsc::UnboundedSender<GuestEvent>>,
}

impl<G> Default for MemoryHypervisor<G> {
    fn default() -> Self {
        MemoryHypervisor {
            is_up: true,
            guests: BTreeMap::new(),
            instances: 0,
            listeners: Vec::new(),
        }
    }
}

impl<G> MemoryHypervisor<G> {
    /// # Errors
    /// [`HypervisorError::Unreachable`] while it is not up.
    pub fn reached(&self) -> Result<(), HypervisorError> {
        match self.is_up {
            true => Ok(()),
            false => Err(unreachable()),
        }
    }

    pub fn set_up(&mut self, up: bool) {
        self.is_up = up;
        self.announce(GuestEvent::Resync);
    }

    pub fn events(&mut self) -> mpsc::UnboundedReceiver<GuestEvent> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.listeners.push(sender);
        receiver
    }

    pub fn announce(&mut self, event: GuestEvent) {
        self.listeners.retain(|listener| listener.send(event).is_ok());
    }

    /// Nobody listens any more.
    pub fn hang_up(&mut self) {
        self.listeners.clear();
    }

    /// A guest that is there.
    ///
    /// # Errors
    /// [`HypervisorError::NoGuest`] if it is not.
    pub fn guest(&mut self, uuid: Uuid) -> Result<&mut G, HypervisorError> {
        self.guests.get_mut(&uuid).ok_or(HypervisorError::NoGuest { uuid })
    }
}

impl<G: DerefMut<Target = MemoryGuest>> MemoryHypervisor<G> {
    /// Makes the record of a guest that is new here; the guest is not here yet.
    pub fn new_guest(&mut self, name: String, xml: String, run: GuestRun) -> MemoryGuest {
        self.instances += 1;
        MemoryGuest { name, xml, run, instance: self.instances, plugged: BTreeMap::new() }
    }

    pub fn shown(&self) -> BTreeMap<Uuid, Guest> {
        let shown = |(uuid, guest): (&Uuid, &G)| {
            let (name, run, instance) = (guest.name.clone(), guest.run, guest.instance);
            (*uuid, Guest { uuid: *uuid, name, run, instance })
        };
        self.guests.iter().map(shown).collect()
    }

    pub fn run(&self, uuid: Uuid) -> Option<GuestRun> {
        self.guests.get(&uuid).map(|guest| guest.run)
    }

    /// Whether this start of the guest is still there.
    pub fn is_there(&self, uuid: Uuid, instance: i32) -> bool {
        self.guests.get(&uuid).is_some_and(|guest| guest.instance == instance)
    }

    /// State of a guest that is to be let run; `None` if it runs already.
    ///
    /// # Errors
    /// [`HypervisorError::NoGuest`]; [`HypervisorError::Refused`] while it is on its way here.
    pub fn waits_to_run(&mut self, uuid: Uuid) -> Result<Option<GuestRun>, HypervisorError> {
        match self.guest(uuid)?.run {
            GuestRun::Running => Ok(None),
            GuestRun::Arriving => Err(refused("a migration has the guest")),
            other => Ok(Some(other)),
        }
    }

    /// Whether a guest can come here from another hypervisor.
    ///
    /// # Errors
    /// [`HypervisorError::Refused`] if it is here already.
    pub fn can_receive(&self, uuid: Uuid) -> Result<(), HypervisorError> {
        match self.guests.contains_key(&uuid) {
            true => Err(refused("the target has such a guest already")),
            false => Ok(()),
        }
    }

    /// # Errors
    /// [`HypervisorError::NoGuest`].
    pub fn live_xml(&mut self, uuid: Uuid) -> Result<String, HypervisorError> {
        let guest = self.guest(uuid)?;
        let plugged: String = guest.plugged.values().map(String::as_str).collect();
        Ok(guest.xml.replace("</devices>", &format!("{plugged}</devices>")))
    }

    /// Plugs in or pulls out what has this `target`.
    ///
    /// # Errors
    /// [`HypervisorError::NoGuest`]; [`HypervisorError::Refused`] if it is there, or not.
    pub fn device(
        &mut self,
        uuid: Uuid,
        change: DeviceChange,
        target: String,
        device: &str,
    ) -> Result<(), HypervisorError> {
        let plugged = &mut self.guest(uuid)?.plugged;
        match change {
            DeviceChange::Attach if plugged.contains_key(&target) => {
                return Err(refused(&format!("target {target} already exists")));
            }
            DeviceChange::Attach => drop(plugged.insert(target, device.to_owned())),
            DeviceChange::Detach => {
                let gone = plugged.remove(&target);
                gone.ok_or_else(|| refused(&format!("device {target} not found")))?;
            }
        }
        Ok(())
    }

    /// Plays the console: echoes what is typed, and answers `pong` to `ping`.
    ///
    /// # Errors
    /// [`HypervisorError::NoGuest`].
    pub fn console(&mut self, uuid: Uuid, input: &[u8]) -> Result<Vec<u8>, HypervisorError> {
        self.guest(uuid)?;
        let mut said = input.to_vec();
        if input.starts_with(b"ping") {
            said.extend_from_slice(b"pong\n");
        }
        Ok(said)
    }
}

pub(crate) fn refused(why: &str) -> HypervisorError {
    HypervisorError::Refused { why: why.to_owned() }
}

fn unreachable() -> HypervisorError {
    HypervisorError::Unreachable { why: "connection refused".to_owned() }
}
