//! The live-migration handshake, both sides: `spec/vm.md` §5, with its two margins of some
//! milliseconds.

use std::sync::Arc;
use std::time::Duration;

use pvc_model::Uuid;
use pvc_ports::{GuestRun, Migration};

use super::LegacyPeer;
use super::records::{Held, Kind};

/// Result of sending a guest.
enum Sent {
    Gone,
    /// The guest stays. `in_turn`: phase B had begun, and the lock of it is not given back.
    Stays {
        in_turn: Option<Held>,
    },
}

impl LegacyPeer {
    /// Sends the guest to the node that its record names.
    pub(super) async fn send(self: &Arc<Self>, vm: Uuid, live_only: bool) {
        self.begins(vm, "migrate");
        let to = self.records.text(&Self::key(vm, "node")).await;
        let node = self.records.lock(&Self::key(vm, "node"), Kind::Exclusive, None).await;
        // Waits here until the API that asked for it has let go.
        let state = self.records.lock(&Self::key(vm, "state"), Kind::Exclusive, None).await;
        let home = self.known(vm).last_node_before;
        match self.send_locked(vm, &to, live_only).await {
            Sent::Gone => {
                self.remove_from_list(vm).await;
                self.records.release(node).await;
                self.records.release(state).await;
            }
            Sent::Stays { in_turn } => {
                // [T7]: the lock of the turn stays until this daemon ends.
                drop(in_turn);
                let abort =
                    [("state", "start"), ("node", self.name()), ("lastnode", home.as_str())];
                let abort = abort.map(|(key, value)| (Self::key(vm, key), value.to_owned()));
                self.records.write(&abort).await;
                self.records.release(node).await;
                self.records.release(state).await;
            }
        }
        self.ends(vm, "migrate");
    }

    /// Checks 1 and 2: whether the record still asks for a move away from here.
    fn is_still_sent(&self, vm: Uuid) -> bool {
        let known = self.known(vm);
        known.node != known.last_node && known.node != self.name()
    }

    async fn send_locked(self: &Arc<Self>, vm: Uuid, to: &str, live_only: bool) -> Sent {
        if !self.is_still_sent(vm) {
            return Sent::Stays { in_turn: None };
        }
        self.pause(500).await;
        let turn = Self::key(vm, "migrate_sync_lock");
        let Some(turn) =
            self.records.lock(&turn, Kind::Exclusive, Some(Self::TURN_TIME_LIMIT)).await
        else {
            return Sent::Stays { in_turn: None };
        };
        // Check 3: another request was heard of meanwhile.
        if !self.is_still_sent(vm) || self.known(vm).node != to {
            return Sent::Stays { in_turn: Some(turn) };
        }
        let method = self.known(vm).method;
        let (live, shutdown) = match (method.as_str(), live_only) {
            ("shutdown", false) => (false, true),
            ("shutdown", true) => (false, false),
            ("live", _) | (_, true) => (true, false),
            _ => (true, true),
        };
        if live && self.send_live(vm, to).await {
            self.records.release(Some(turn)).await;
            return Sent::Gone;
        }
        if shutdown {
            self.shut_down(vm, false).await;
            self.records.release(Some(turn)).await;
            return Sent::Gone;
        }
        Sent::Stays { in_turn: Some(turn) }
    }

    /// Makes up to three attempts to send the guest live.
    async fn send_live(&self, vm: Uuid, to: &str) -> bool {
        let max_downtime = self.records.text(&Self::key(vm, "migration_max_downtime")).await;
        // A missing one is the text `None`, which virsh refuses.
        let Ok(max_downtime) = max_downtime.parse().map(Duration::from_millis) else {
            return false;
        };
        let host = match self.settings.cluster_domain.as_str() {
            "" => to.to_owned(),
            domain => format!("{to}.{domain}"),
        };
        for attempt in 0..3 {
            if attempt > 0 {
                self.pause(500).await;
            }
            let migration =
                Migration { host: host.clone(), max_downtime, held: false, encrypted: false };
            if let Ok(mut job) = self.ports.hypervisor.migrate(vm, &migration).await
                && job.outcome().await.is_ok()
            {
                return true;
            }
        }
        false
    }

    /// Receives the guest, and says so; or finds out that nobody sends it.
    pub(super) async fn receive(self: &Arc<Self>, vm: Uuid) {
        self.begins(vm, "receive");
        let path = Self::key(vm, "migrate_sync_lock");
        self.records.write(&[(path.clone(), vm.to_string())]).await;
        // Phase A. Who does not get the turn never hears of this VM again.
        let Some(turn) =
            self.records.lock(&path, Kind::Exclusive, Some(Self::TURN_TIME_LIMIT)).await
        else {
            return;
        };
        self.pause(1000).await;
        self.records.release(Some(turn)).await;
        // Phase C, at once: before the sender, if that one is late ([T6]).
        let turn = self.records.lock(&path, Kind::Exclusive, None).await;
        let state = self.records.text(&Self::key(vm, "state")).await;
        let mut starts = false;
        match self.condition(vm).await {
            Some(GuestRun::Running) => {
                self.remember(vm, |vm| vm.has_handle = true);
                self.add_to_list(vm).await;
                self.set_state(vm, "start").await;
            }
            Some(_) => {
                self.remember(vm, |vm| vm.has_handle = true);
                let reason = "Failed to receive migration".to_owned();
                let failed = [
                    (Self::key(vm, "state"), "fail".to_owned()),
                    (Self::key(vm, "failedreason"), reason),
                ];
                self.records.write(&failed).await;
            }
            // The sender has shut it down.
            None if state == "stop" => {
                self.set_state(vm, "start").await;
                starts = true;
            }
            None => {}
        }
        self.records.release(turn).await;
        self.records.write(&[(path, String::new())]).await;
        self.ends(vm, "receive");
        if starts {
            // Its own write, which it would otherwise hear of while it is busy.
            self.dispatch_again(vm);
        } else {
            self.publish_display(vm).await;
        }
    }

    /// Whether it still listens to what is said of the VM.
    pub fn hears_of(&self, vm: Uuid) -> bool {
        self.known(vm).busy.is_empty()
    }
}
