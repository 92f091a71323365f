//! Guests that are made, and let run.

use std::time::Duration;

use pvc_ports::{GuestEvent, GuestRun, HypervisorError};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{Around, Hypervisors, away, refused};
use crate::actions::StartFailure;
use crate::storage::Lock;

/// A guest that is being made.
struct Coming {
    host: usize,
    /// The life of the host in which that was asked for.
    life: u64,
    vm: Uuid,
    xml: String,
    dies: bool,
    failure: Option<StartFailure>,
    answer: oneshot::Sender<Result<(), HypervisorError>>,
}

/// The next starts of a VM that come to nothing.
pub(crate) struct FailingStarts {
    /// `None`: anywhere.
    pub host: Option<usize>,
    pub times: u32,
    pub how: StartFailure,
}

impl FailingStarts {
    /// Reason for which the next start on `host` comes to nothing; `None` if it does not.
    fn take(&mut self, host: usize) -> Option<StartFailure> {
        if self.times == 0 || self.host.is_some_and(|only| only != host) {
            return None;
        }
        self.times -= 1;
        Some(self.how)
    }
}

impl Hypervisors {
    /// Begins to make a guest, whether its caller waits for it or has ended meanwhile. Returns the
    /// time that it takes in all, and the answer, which comes in the middle of that.
    pub(super) fn begin_start(
        &mut self,
        around: &mut Around<'_>,
        host: usize,
        vm: Uuid,
        xml: String,
    ) -> (Duration, oneshot::Receiver<Result<(), HypervisorError>>) {
        let (answer, answered) = oneshot::channel();
        let manner = self.manner(vm);
        let takes = Duration::from_millis(manner.start_ms);
        let dies = around.run.chance.happens(manner.dies_at_start);
        let failure = self.failing.get_mut(&vm).and_then(|failing| failing.take(host));
        let life = around.hosts[host].life;
        let coming = Coming { host, life, vm, xml, dies, failure, answer };
        around.later(takes / 2, move |hypervisors, around| hypervisors.comes_up(around, coming));
        (takes, answered)
    }

    /// Completes the making of a guest, or fails it.
    fn comes_up(&mut self, around: &mut Around<'_>, coming: Coming) {
        let known = &around.hosts[coming.host];
        if known.life != coming.life {
            return;
        }
        if known.frozen {
            return around.later(Duration::from_secs(1), move |hypervisors, around| {
                hypervisors.comes_up(around, coming)
            });
        }
        let made = match coming.failure {
            _ if !self.hosts[coming.host].is_up => Err(away()),
            Some(StartFailure::Refused) => Err(refused("internal error: the story wants it so")),
            Some(StartFailure::Dies) => {
                Err(HypervisorError::Died { why: "killed by the story".to_owned() })
            }
            None if coming.dies => {
                Err(HypervisorError::Died { why: "killed by chance".to_owned() })
            }
            None => self.start_guest(around, coming.host, coming.vm, &coming.xml),
        };
        let _ = coming.answer.send(made); // whoever asked for it may have ended
    }

    /// Makes a guest that waits to be let run, or says why not.
    pub fn start_guest(
        &mut self,
        around: &mut Around<'_>,
        host: usize,
        vm: Uuid,
        xml: &str,
    ) -> Result<(), HypervisorError> {
        if self.hosts[host].guests.contains_key(&vm) {
            return Ok(());
        }
        let domain = pvc_domain::summary(xml).map_err(|error| refused(&error.to_string()))?;
        if domain.uuid != vm {
            return Err(refused("the XML describes another guest"));
        }
        let name = domain.name.clone();
        around.log_file(host, &name)?;
        for volume in domain.volumes() {
            if around.ceph.volumes.locks(&volume).is_err() {
                let why = format!("error opening image {volume}: No such file or directory");
                around.run.note(format!(
                    "{}: guest {name} does not start: {why}",
                    around.hosts[host].name
                ));
                return Err(refused(&why));
            }
        }
        around.bridges(host, xml)?;
        around.functions(&self.hosts[host], host, xml)?;
        self.new_guest(around, host, vm, name, xml.to_owned(), GuestRun::Created);
        self.hosts[host].announce(GuestEvent::Changed(vm));
        Ok(())
    }

    /// Locks the volumes that a guest writes to, as soon as it runs. Those that guests share are
    /// not locked.
    fn take_volumes(
        &mut self,
        around: &mut Around<'_>,
        host: usize,
        vm: Uuid,
    ) -> Result<(), HypervisorError> {
        let guest = self.hosts[host].guest(vm)?;
        let (client, name) = (guest.client, guest.name.clone());
        let domain =
            pvc_domain::summary(&guest.xml).map_err(|error| refused(&error.to_string()))?;
        for volume in domain.own_volumes() {
            let (ceph, now) = (&*around.ceph, around.run.now);
            if let Some(wrong) = ceph.uploads.wrong_about_start(&ceph.volumes, volume, now) {
                let what = format!("VM {name} starts on {}: {wrong}", around.hosts[host].name);
                around.truth.violate(around.run, "uploads", what);
            }
            if let Err(why) = around.ceph.take(volume, &Lock { client, host }) {
                around.run.note(format!(
                    "{}: guest {name} does not start: {why}",
                    around.hosts[host].name
                ));
                around.ceph.release(client);
                return Err(refused(&why));
            }
        }
        Ok(())
    }

    /// Lets a guest run that was made, or is held, by whomever. One that is not whole yet is its
    /// migration's.
    pub fn resume_guest(
        &mut self,
        around: &mut Around<'_>,
        host: usize,
        vm: Uuid,
    ) -> Result<(), HypervisorError> {
        let Some(was) = self.hosts[host].waits_to_run(vm)? else { return Ok(()) };
        if was == GuestRun::Leaving && self.migrations.has(vm, host) {
            return Err(refused("a migration has the guest"));
        }
        let guest = self.hosts[host].guest(vm)?;
        let (name, client) = (guest.name.clone(), guest.client);
        let (is_incoming, is_stale) = (guest.is_incoming, guest.is_stale);
        if is_stale {
            let here = around.hosts[host].name.clone();
            let what =
                format!("VM {name} goes on at {here} with memory that is older than its volumes");
            around.truth.violate(around.run, "I1", what);
        }
        if was == GuestRun::Created {
            around.judge(self, |truth, sight| truth.of_start(sight, host, vm, false));
            self.take_volumes(around, host, vm)?;
            around
                .run
                .note(format!("{}: guest {name} runs (client.{client})", around.hosts[host].name));
            *around.truth.boots.entry(vm).or_default() += 1;
            let now = around.run.now;
            self.hosts[host].guest(vm)?.since = now;
        } else {
            if is_incoming || was == GuestRun::Leaving {
                around.judge(self, |truth, sight| truth.of_start(sight, host, vm, true));
            }
            around.run.note(format!("{}: guest {name} goes on", around.hosts[host].name));
        }
        self.goes_on(host, vm);
        Ok(())
    }

    /// Lets the guest run: what other hosts hold of it is worth nothing any more.
    pub(super) fn goes_on(&mut self, host: usize, vm: Uuid) {
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            if let Some(copy) =
                self.hosts[other].guests.get_mut(&vm).filter(|copy| copy.is_incoming)
            {
                copy.is_stale = true;
            }
        }
        if let Some(guest) = self.hosts[host].guests.get_mut(&vm) {
            (guest.run, guest.is_incoming) = (GuestRun::Running, false);
        }
        self.hosts[host].announce(GuestEvent::Changed(vm));
    }
}
