//! Guests that end: they are destroyed, crash, or shut down.

use std::time::Duration;

use pvc_ports::{GuestEvent, HypervisorError};
use uuid::Uuid;

use super::{Around, Hypervisors};
use crate::guest_networks::port;
use crate::sriov::pass_through;

impl Hypervisors {
    /// A guest is gone. With `leaves_lock` its volumes stay locked: nobody was there to let go of
    /// them.
    pub fn end_guest(
        &mut self,
        around: &mut Around<'_>,
        host: usize,
        vm: Uuid,
        why: &str,
        leaves_lock: bool,
    ) {
        let Some(guest) = self.hosts[host].guests.remove(&vm) else { return };
        if guest.is_alive() || guest.is_incoming {
            self.hosts[host].had_guest = Some(around.run.now);
        }
        for place in 0..guest.bridges.len() {
            around.hosts[host].network.pull_out(&port(guest.client, place));
        }
        pass_through(&around.hosts[host].card, &guest.xml, false);
        match leaves_lock {
            true => around.ceph.client_died(around.run, guest.client),
            false => around.ceph.release(guest.client),
        }
        if guest.is_alive() {
            around
                .run
                .note(format!("{}: guest {} ends ({why})", around.hosts[host].name, guest.name));
        }
        self.hosts[host].announce(GuestEvent::Changed(vm));
    }

    /// The guest dies by itself, wherever it runs.
    pub fn crash_guest(&mut self, around: &mut Around<'_>, vm: Uuid) {
        let host = (0..self.hosts.len()).find(|host| self.hosts[*host].has_alive(vm));
        if let Some(host) = host.filter(|host| !around.hosts[*host].frozen) {
            let leaves_lock = around.run.chance.happens(300);
            self.end_guest(around, host, vm, "crash", leaves_lock);
        }
    }

    /// Requests the guest's shutdown, which it follows after a while, or not.
    pub(super) fn request_shutdown(
        &mut self,
        around: &mut Around<'_>,
        host: usize,
        vm: Uuid,
    ) -> Result<(), HypervisorError> {
        let Some(guest) = self.hosts[host].guests.get(&vm) else {
            return Err(HypervisorError::NoGuest { uuid: vm });
        };
        let (instance, manner) = (guest.instance, self.manner(vm));
        if !manner.ignores_shutdown && guest.is_alive() {
            around.later(Duration::from_millis(manner.shutdown_ms), move |hypervisors, around| {
                hypervisors.powers_off(around, host, vm, instance);
            });
        }
        Ok(())
    }

    fn powers_off(&mut self, around: &mut Around<'_>, host: usize, vm: Uuid, instance: i32) {
        if !self.hosts[host].is_there(vm, instance) {
            return;
        }
        if around.hosts[host].frozen {
            return around.later(Duration::from_secs(1), move |hypervisors, around| {
                hypervisors.powers_off(around, host, vm, instance)
            });
        }
        self.end_guest(around, host, vm, "shut down", false);
    }
}
