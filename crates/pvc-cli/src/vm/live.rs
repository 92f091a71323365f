//! Changes of a VM's definition: what becomes of the guest that runs with the old one.

use clap::Args;
use pvc_api_types::Vm;
use pvc_api_types::operations::vm::{
    Attachment, DeleteVmVmDevice, DeviceRequest, GetVmVm, Modification, PostVmVmDevice, PutVmVm,
};
use pvc_api_types::param::{Added, Flag};
use pvc_domain::Domain;

use super::{ahead, definition};
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};
use crate::task::{self, TaskWait};

/// `-r / -R` and `-y`, for changes that a running guest sees only after a restart.
#[derive(Debug, Clone, Copy, Args)]
pub struct Restart {
    /// Restart the VM, so that it sees the change
    #[arg(short, long, overrides_with = "no_restart")]
    restart: bool,

    /// Do not restart the VM, and do not ask
    #[arg(short = 'R', long, overrides_with = "restart")]
    no_restart: bool,

    #[command(flatten)]
    yes: Yes,
}

/// `-l / -L`, for devices that can be plugged into a running guest.
#[derive(Debug, Clone, Copy, Args)]
pub struct Live {
    /// Change the running guest, too, which is the default
    #[arg(short, long, overrides_with = "no_live")]
    live: bool,

    /// Change the definition only
    #[arg(short = 'L', long, overrides_with = "live")]
    no_live: bool,
}

/// A VM about to be changed.
pub struct Edit {
    pub vm: Vm,
    pub domain: Domain,
    /// Whether what is refused for good reasons is done all the same.
    pub force: bool,
}

impl Edit {
    pub fn of(pvc: &mut Pvc, vm: &str) -> Result<Self, Failure> {
        let vm = pvc.client()?.read_only(GetVmVm, [vm], "VM")?.read()?;
        let domain = definition::stored(&vm.name, &vm.xml)?;
        Ok(Self { vm, domain, force: false })
    }

    /// Whether a restart can be asked of the VM.
    pub fn is_running(&self) -> bool {
        self.vm.state == "start"
    }

    /// Whether there is a guest that does not see the change before its next start.
    fn has_guest(&self) -> bool {
        self.is_running() || self.vm.state.contains("migrate")
    }

    /// Fails if the cluster would refuse the changed definition: a refusal comes before questions.
    pub fn check(&self, pvc: &mut Pvc) -> Outcome {
        Ok(ahead::check_modify(pvc.client()?, &self.vm.uuid, self.domain.as_str(), self.force)?)
    }

    /// Records the changed definition, and restarts the guest if that was decided. If not, it is
    /// told from when on the change holds.
    pub fn save(&self, pvc: &mut Pvc, decision: Decision) -> Outcome {
        self.record(pvc, decision == Decision::Restart)?;
        if pvc.dry_run || decision == Decision::Restart || !self.has_guest() {
            return Ok(());
        }
        pvc.out.flush();
        let name = &self.vm.name;
        let text =
            format!("VM `{name}` runs on as it was; the change takes effect at its next start");
        if decision == Decision::Undecided {
            pvc.warn(&text);
            pvc.hint(&format!(
                "`pvc vm restart {name}` restarts it; `--restart --yes` does it with the change"
            ));
        } else {
            pvc.note(&text);
        }
        Ok(())
    }

    fn modification(&self, xml: &str, restart: bool) -> Modification {
        let (restart, force) = (Flag(restart), Added(self.force));
        Modification { restart, force, xml: xml.to_owned() }
    }

    /// Records the changed definition.
    fn record(&self, pvc: &mut Pvc, restart: bool) -> Outcome {
        let change = self.modification(self.domain.as_str(), restart);
        let message = pvc.client()?.change(PutVmVm, [&self.vm.uuid], &change)?;
        pvc.done(message);
        Ok(())
    }

    /// Records the changed definition; restarts the guest if that is wanted.
    pub fn apply(&self, pvc: &mut Pvc, restart: Restart) -> Outcome {
        let decision = self.decide(pvc, restart)?;
        self.save(pvc, decision)
    }

    /// Records the changed definition and, unless a restart is wanted, plugs the devices into the
    /// running guest; waits for that. What the guest does not take is taken back from the
    /// definition.
    pub fn plug_in(self, pvc: &mut Pvc, live: Live, restart: Restart, device: &str) -> Outcome {
        if !self.is_live(live, restart) {
            return self.apply(pvc, restart);
        }
        self.record(pvc, false)?;
        let task = pvc.client()?.submit(
            PostVmVmDevice,
            [&self.vm.uuid],
            &Attachment { force: Added(self.force), xml: device.to_owned() },
        )?;
        match task::finish(pvc, task, TaskWait::default()) {
            // Only a task that has ended tells that the guest has not taken the device.
            Err(failure) if failure.once_a_success => Err(self.taken_back(pvc, failure)),
            outcome => outcome,
        }
    }

    /// Records the definition as it was before the change.
    fn taken_back(&self, pvc: &mut Pvc, failure: Failure) -> Failure {
        let undone = pvc.client().is_ok_and(|client| {
            let before = self.modification(&self.vm.xml, false);
            client.change(PutVmVm, [&self.vm.uuid], &before).is_ok()
        });
        failure.hint(if undone {
            "the definition is as it was; with `--no-live` it changes, and the guest with its next \
             start"
        } else {
            "the definition is changed, and holds from the VM's next start on"
        })
    }

    /// Records the changed definition and, unless a restart is wanted, unplugs the devices from the
    /// running guest; waits for that.
    pub fn plug_out(
        self,
        pvc: &mut Pvc,
        live: Live,
        restart: Restart,
        devices: &[String],
    ) -> Outcome {
        if !self.is_live(live, restart) {
            return self.apply(pvc, restart);
        }
        self.record(pvc, false)?;
        for device in devices {
            let task = pvc.client()?.submit(
                DeleteVmVmDevice,
                [&self.vm.uuid],
                &DeviceRequest { xml: device.clone() },
            )?;
            task::finish(pvc, task, TaskWait::default()).map_err(|failure| {
                failure.hint(
                    "the definition is changed, so the device is gone from the VM's next start on",
                )
            })?;
        }
        Ok(())
    }

    /// Whether the running guest is to be changed, too.
    fn is_live(&self, live: Live, restart: Restart) -> bool {
        !live.no_live && !restart.restart && self.is_running()
    }

    /// Whether to restart. Asked only if the guest runs: a restart would start one that does not.
    fn decide(&self, pvc: &mut Pvc, command: Restart) -> Result<Decision, Failure> {
        if !self.is_running() || command.no_restart {
            return Ok(if command.restart { Decision::Undecided } else { Decision::Later });
        }
        if command.restart && pvc.unasked(command.yes.yes) {
            return Ok(Decision::Restart);
        }
        self.check(pvc)?;
        if command.restart {
            confirm::ask(pvc, command.yes, &format!("Restart VM \"{}\"", self.vm.name))?;
            return Ok(Decision::Restart);
        }
        Ok(self.ask(pvc))
    }

    /// Asks whether to restart, which may be left open.
    pub fn ask(&self, pvc: &mut Pvc) -> Decision {
        match confirm::wants(pvc, &format!("Restart VM \"{}\" to apply changes", self.vm.name)) {
            Some(true) => Decision::Restart,
            Some(false) => Decision::Later,
            None => Decision::Undecided,
        }
    }
}

/// Decision about a guest whose definition changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Restart,
    /// Somebody has decided that it runs on.
    Later,
    /// Nobody has decided that it runs on: none was there to be asked, or it is on its way to
    /// another node and cannot be restarted now.
    Undecided,
}
