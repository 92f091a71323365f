//! The primary role: who gets it, and how it goes over (`spec/coordination.md` §2 and §3).

use std::sync::Arc;
use std::time::Duration;

use pvc_model::primary::handover::Duty;

use super::LegacyPeer;
use super::records::Kind;

const KEY: &str = "/config/primary_node";
const SYNC: &str = "/config/primary_node/sync_lock";

/// A reader that waits longer goes on without its lock.
const READ: Option<Duration> = Some(Duration::from_secs(5));

impl LegacyPeer {
    async fn role(&self) -> String {
        self.records.text(&self.own("routerstate")).await
    }

    pub(super) async fn become_role(&self, role: &str) {
        self.records.write(&[(self.own("routerstate"), role.to_owned())]).await;
    }

    /// §2, in the callback thread. `version` is what the event was about.
    pub(super) async fn primary_is(&self, named: &str, version: i32) {
        if self.memory().primary.replace(named.to_owned()).as_deref() == Some(named) {
            return;
        }
        if !self.settings.is_coordinator {
            return self.become_role("client").await;
        }
        let role = self.role().await;
        let serves = matches!(role.as_str(), "primary" | "takeover" | "relinquish");
        if named == "none" {
            if !serves && self.records.text(&self.own("daemonstate")).await == "run" {
                self.contend(version).await;
            }
        } else if named == self.name() {
            if role == "secondary" {
                self.pause(500).await;
                self.become_role("takeover").await;
            }
        } else if role == "primary" {
            self.pause(500).await;
            self.become_role("relinquish").await;
        }
    }

    /// Contends for the role. Whoever is late, or finds that the key has changed since, keeps
    /// quiet.
    async fn contend(&self, version: i32) {
        let time_limit = Some(Duration::from_millis(400));
        let Some(lock) = self.records.lock(KEY, Kind::Exclusive, time_limit).await else { return };
        let now = self.records.entry(KEY).await.map(|entry| entry.stat.version);
        if now == Some(version) {
            self.records.write(&[(KEY.to_owned(), self.name().to_owned())]).await;
        }
        self.records.release(Some(lock)).await;
    }

    /// Handles a change of its own `routerstate`: two of its values begin a thread.
    pub(super) async fn own_role_is(self: &Arc<Self>, role: &str) {
        if !self.settings.is_coordinator {
            return;
        }
        match role {
            "takeover" => drop(tokio::spawn(self.clone().take_over())),
            "relinquish" => {
                let state = self.records.text(&self.own("daemonstate")).await;
                if matches!(state.as_str(), "run" | "shutdown") {
                    tokio::spawn(self.clone().relinquish());
                } else {
                    self.become_role("secondary").await;
                }
            }
            _ => {}
        }
    }

    /// §3, the candidate's column. Each address comes before the holder lets go of it.
    async fn take_over(self: Arc<Self>) {
        let claim = self.records.lock(KEY, Kind::Exclusive, None).await;
        let first = self.records.lock(SYNC, Kind::Write, None).await;
        self.pause(1000).await;
        self.rewrite_key().await;
        self.records.release(first).await;
        self.pause(100).await;
        let second = self.records.lock(SYNC, Kind::Read, READ).await;
        self.records.release(second).await;
        for (sleep, duty) in [
            (500, Duty::Upstream),
            (200, Duty::Inner),
            (200, Duty::Metadata),
            (200, Duty::Gateways),
            (200, Duty::Services),
        ] {
            let lock = self.records.lock(SYNC, Kind::Write, None).await;
            self.pause(sleep).await;
            self.add_addresses(duty).await;
            self.records.release(lock).await;
        }
        self.pause(2000).await;
        self.records.release(claim).await;
        self.become_role("primary").await;
    }

    /// §3, the holder's column.
    async fn relinquish(self: Arc<Self>) {
        self.pause(200).await;
        let first = self.records.lock(SYNC, Kind::Read, READ).await;
        self.records.release(first).await;
        let second = self.records.lock(SYNC, Kind::Write, None).await;
        self.pause(200).await;
        self.pause(150).await; // DNS aggregator and dnsmasq end
        self.rewrite_key().await;
        self.records.release(second).await;
        self.pause(100).await;
        for duty in [Duty::Upstream, Duty::Inner, Duty::Metadata, Duty::Gateways, Duty::Services] {
            let lock = self.records.lock(SYNC, Kind::Read, READ).await;
            self.remove_addresses(duty).await;
            self.records.release(lock).await;
        }
        self.pause(2000).await;
        self.become_role("secondary").await;
    }

    async fn rewrite_key(&self) {
        self.records.write(&[(SYNC.to_owned(), String::new())]).await;
    }

    /// Adds the addresses of a duty. Failures are not looked at.
    async fn add_addresses(&self, duty: Duty) {
        for (_, link, address) in self.settings.floating.iter().filter(|(of, ..)| *of == duty) {
            drop(self.ports.network.add_address(link, *address).await);
            drop(self.ports.network.announce(link, address.addr()).await);
            self.pause(40).await; // two packets, in the foreground
        }
    }

    async fn remove_addresses(&self, duty: Duty) {
        for (_, link, address) in self.settings.floating.iter().filter(|(of, ..)| *of == duty) {
            self.pause(10).await; // a program each
            drop(self.ports.network.remove_address(link, *address).await);
        }
    }

    /// Step 3 of a keepalive: a primary that the key does not name puts its name back, also over
    /// what an operator asked for a moment ago ([T8], lesson B12).
    pub(super) async fn repair_key(&self) {
        if self.role().await == "primary" && self.records.text(KEY).await != self.name() {
            self.records.write(&[(KEY.to_owned(), self.name().to_owned())]).await;
        }
    }

    /// Makes it primary by decree, with everything that goes with it.
    pub async fn become_primary_at_once(&self) {
        for duty in [Duty::Upstream, Duty::Inner, Duty::Metadata, Duty::Gateways, Duty::Services] {
            self.add_addresses(duty).await;
        }
        let values = [
            (KEY.to_owned(), self.name().to_owned()),
            (self.own("routerstate"), "primary".to_owned()),
        ];
        self.records.write(&values).await;
    }
}
