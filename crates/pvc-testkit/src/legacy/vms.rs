//! VMs: the dispatcher and its actions (`spec/vm.md` §3 and §4).

use std::sync::Arc;
use std::time::Duration;

use pvc_model::Uuid;
use pvc_model::storage::VolumeId;
use pvc_ports::GuestRun;

use super::{LegacyPeer, Vm};

impl LegacyPeer {
    pub(super) fn key(vm: Uuid, key: &str) -> String {
        format!("/domains/{vm}/{key}")
    }

    pub(super) async fn set_state(&self, vm: Uuid, state: &str) {
        self.records.write(&[(Self::key(vm, "state"), state.to_owned())]).await;
    }

    /// State of the VM as the daemon remembers it.
    pub(super) fn known(&self, vm: Uuid) -> Vm {
        self.memory().vms.get(&vm).cloned().unwrap_or_default()
    }

    pub(super) fn remember<T>(&self, vm: Uuid, act: impl FnOnce(&mut Vm) -> T) -> T {
        act(self.memory().vms.entry(vm).or_default())
    }

    pub(super) fn begins(&self, vm: Uuid, action: &'static str) {
        self.remember(vm, |vm| vm.busy.insert(action));
    }

    pub(super) fn ends(&self, vm: Uuid, action: &'static str) {
        self.remember(vm, |vm| vm.busy.remove(action));
    }

    /// State of the guest; `None` if it is not here, or the hypervisor does not say.
    pub(super) async fn condition(&self, vm: Uuid) -> Option<GuestRun> {
        let guests = self.ports.hypervisor.guests().await.ok()?;
        guests.get(&vm).map(|guest| guest.run)
    }

    pub(super) async fn is_running(&self, vm: Uuid) -> bool {
        self.condition(vm).await == Some(GuestRun::Running)
    }

    async fn change_list(&self, change: impl FnOnce(&mut Vec<Uuid>)) {
        let (before, now) = {
            let running = &mut self.memory().running;
            let before = running.clone();
            change(running);
            (before, running.clone())
        };
        if before != now {
            self.records.write(&[(self.own("runningdomains"), listed(&now))]).await;
        }
    }

    pub(super) async fn add_to_list(&self, vm: Uuid) {
        self.change_list(|running| {
            if !running.contains(&vm) {
                running.push(vm);
            }
        })
        .await;
    }

    pub(super) async fn remove_from_list(&self, vm: Uuid) {
        self.change_list(|running| running.retain(|other| *other != vm)).await;
    }

    pub(super) fn list(&self) -> String {
        listed(&self.memory().running)
    }

    // --- The dispatcher: §3 ----------------------------------------------------------------------

    /// Acts on one event of a VM's state, in a thread of its own.
    pub(super) async fn dispatch(self: Arc<Self>, vm: Uuid) {
        self.dispatch_once(vm).await;
    }

    /// Acts as if there had been an event.
    pub(super) fn dispatch_again(self: &Arc<Self>, vm: Uuid) {
        tokio::spawn(self.clone().dispatch(vm));
    }

    pub(super) async fn dispatch_once(self: &Arc<Self>, vm: Uuid) {
        let read = async |key| self.records.text(&Self::key(vm, key)).await;
        let (state, node) = (read("state").await, read("node").await);
        let (last_node, method) = (read("lastnode").await, read("migration_method").await);
        let runs = self.known(vm).has_handle && self.is_running(vm).await;
        let is_busy = self.remember(vm, |vm| {
            (vm.state, vm.node, vm.method) = (state.clone(), node.clone(), method);
            let before = std::mem::replace(&mut vm.last_node, last_node);
            if vm.busy.is_empty() {
                vm.last_node_before = before;
            }
            !vm.busy.is_empty()
        });
        // The event is lost for good: the class of faults behind lessons C12 and C13.
        if is_busy {
            return;
        }
        let is_own = node == self.name();
        match (is_own, runs, state.as_str()) {
            (true, true, "start") => self.add_to_list(vm).await,
            (true, true, "migrate" | "migrate-live") => {
                self.add_to_list(vm).await;
                self.set_state(vm, "start").await;
            }
            (true, true, "restart") => self.restart(vm).await,
            (true, true, "shutdown") => self.shut_down(vm, false).await,
            (true, true, "stop") => self.stop(vm).await,
            (true, false, "start") => self.start_vm(vm).await,
            (true, false, "migrate" | "migrate-live") => self.receive(vm).await,
            (true, false, "restart") => self.set_state(vm, "start").await,
            // It stays in `shutdown` for ever, if that is what it is in.
            (true, false, "shutdown" | "stop") => self.remove_from_list(vm).await,
            (false, true, "migrate") => self.send(vm, false).await,
            (false, true, "migrate-live") => self.send(vm, true).await,
            (false, true, "shutdown") => self.shut_down(vm, false).await,
            (false, true, _) => self.terminate(vm).await,
            (true, _, _) | (false, false, _) => {}
        }
        if is_own {
            self.publish_display(vm).await;
        }
    }

    /// §6.
    pub(super) async fn publish_display(&self, vm: Uuid) {
        let display = self.ports.hypervisor.vnc(vm).await.ok().flatten();
        let display = display.map(|display| format!("{}:{}", display.listen, display.port));
        self.records.write(&[(Self::key(vm, "vnc"), display.unwrap_or_default())]).await;
    }

    // --- Actions: §4 -----------------------------------------------------------------------------

    async fn start_vm(&self, vm: Uuid) {
        self.begins(vm, "start");
        // A hypervisor that does not answer leaves it busy for ever.
        if self.ports.hypervisor.ping().await.is_err() {
            return;
        }
        if self.is_running(vm).await {
            self.has_started(vm).await;
        } else if let Err(why) = self.create(vm).await {
            let failed =
                [(Self::key(vm, "state"), "fail".to_owned()), (Self::key(vm, "failedreason"), why)];
            self.records.write(&failed).await;
        } else {
            self.has_started(vm).await;
        }
        self.ends(vm, "start");
    }

    async fn has_started(&self, vm: Uuid) {
        self.remember(vm, |vm| vm.has_handle = true);
        self.add_to_list(vm).await;
        self.records.write(&[(Self::key(vm, "failedreason"), String::new())]).await;
    }

    async fn create(&self, vm: Uuid) -> Result<(), String> {
        self.free_own_locks(vm).await?;
        let xml = self.records.text(&Self::key(vm, "xml")).await;
        // Its libvirt calls make a guest that runs at once.
        let started = async {
            self.ports.hypervisor.start(vm, &xml).await?;
            self.ports.hypervisor.resume(vm).await
        };
        started.await.map_err(|error| error.to_string())
    }

    /// Frees the locks of its own earlier life. Those of another host are left alone: seed:003.
    async fn free_own_locks(&self, vm: Uuid) -> Result<(), String> {
        for volume in self.volumes(vm).await {
            let Ok(locks) = self.ports.storage.locks(&volume).await else { continue };
            for lock in locks {
                let owner = lock.address.split(':').next().unwrap_or_default();
                if owner != self.settings.storage_address {
                    return Err(format!(
                        "Could not safely free RBD lock {} ({owner}) on volume {volume}; stop VM \
                         and flush locks \
                         manually",
                        lock.id
                    ));
                }
                drop(self.ports.storage.break_lock(&volume, &lock).await);
            }
        }
        Ok(())
    }

    pub(super) async fn volumes(&self, vm: Uuid) -> Vec<VolumeId> {
        let listed = self.records.text(&Self::key(vm, "rbdlist")).await;
        listed.split(',').filter_map(VolumeId::from_record).collect()
    }

    async fn destroy_twice(&self, vm: Uuid) {
        drop(self.ports.hypervisor.destroy(vm).await);
        self.pause(200).await;
        if self.is_running(vm).await {
            drop(self.ports.hypervisor.destroy(vm).await);
        }
        self.remove_from_list(vm).await;
    }

    async fn stop(&self, vm: Uuid) {
        self.begins(vm, "stop");
        self.destroy_twice(vm).await;
        self.set_state(vm, "stop").await;
        self.ends(vm, "stop");
    }

    /// Ends the copy here of a VM that belongs elsewhere, without a word.
    async fn terminate(&self, vm: Uuid) {
        self.begins(vm, "stop");
        self.destroy_twice(vm).await;
        self.ends(vm, "stop");
    }

    /// Shuts the guest down. This is also the way of a migration that shuts the guest down: `stop`
    /// is what its receiver waits for.
    pub(super) async fn shut_down(self: &Arc<Self>, vm: Uuid, restarts: bool) {
        self.begins(vm, "shutdown");
        drop(self.ports.hypervisor.shutdown(vm).await);
        let end = self.ports.clock.monotonic() + self.settings.vm_shutdown_timeout;
        loop {
            self.pause(1000).await;
            let state = self.records.text(&Self::key(vm, "state")).await;
            if !matches!(state.as_str(), "shutdown" | "restart" | "migrate") {
                self.ends(vm, "shutdown");
                // The guest may still power itself off.
                return self.dispatch_again(vm);
            }
            if !self.is_running(vm).await {
                self.remove_from_list(vm).await;
                self.set_state(vm, "stop").await;
                break;
            }
            if self.ports.clock.monotonic() >= end {
                // Whoever hears of this is to destroy it; who is busy still does not.
                self.set_state(vm, "stop").await;
                break;
            }
        }
        self.ends(vm, "shutdown");
        if restarts {
            self.pause(1000).await;
            self.set_state(vm, "start").await;
        }
    }

    async fn restart(self: &Arc<Self>, vm: Uuid) {
        self.begins(vm, "restart");
        self.shut_down(vm, true).await;
        self.pause(200).await;
        self.start_vm(vm).await;
        self.add_to_list(vm).await;
        self.set_state(vm, "start").await;
        self.ends(vm, "restart");
    }

    /// Writes once more the state of each VM that should run here and does not:
    /// `spec/coordination.md` §4.
    pub(super) async fn revive_dead_vms(&self) {
        let listed: Vec<Uuid> = self.memory().running.clone();
        for vm in listed {
            let known = self.known(vm);
            let should = known.state == "start" && known.node == self.name() && known.has_handle;
            if should && !self.is_running(vm).await {
                self.set_state(vm, "start").await;
            }
        }
    }

    /// Lists from now on what the statistics find running.
    pub(super) async fn list_what_runs(&self) {
        let Ok(guests) = self.ports.hypervisor.guests().await else { return };
        let running =
            guests.values().filter(|guest| guest.run == GuestRun::Running).map(|guest| guest.uuid);
        let listed = &mut self.memory().running;
        for vm in running {
            if !listed.contains(&vm) {
                listed.push(vm);
            }
        }
    }

    /// Time for which it waits for its turn in a migration (`spec/vm.md` §5).
    pub(super) const TURN_TIME_LIMIT: Duration = Duration::from_secs(30);
}

fn listed(vms: &[Uuid]) -> String {
    vms.iter().map(Uuid::to_string).collect::<Vec<_>>().join(" ")
}
