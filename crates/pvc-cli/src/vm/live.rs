//! Changes of a VM's definition: what becomes of the guest that runs with the old one.

use clap::Args;
use pvc_api_types::Vm;
use pvc_domain::Domain;

use super::definition;
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
}

impl Edit {
    pub fn of(pvc: &mut Pvc, vm: &str) -> Result<Self, Failure> {
        let vm = pvc.client()?.vm(vm)?.read()?;
        let domain = definition::stored(&vm.name, &vm.xml)?;
        Ok(Self { vm, domain })
    }

    fn is_running(&self) -> bool {
        self.vm.state == "start"
    }

    /// Records the changed definition, and restarts the guest if `restart` says so.
    pub fn save(&self, pvc: &mut Pvc, restart: bool) -> Outcome {
        let message = pvc.client()?.modify_vm(&self.vm.uuid, self.domain.as_str(), restart)?;
        pvc.out.line(message);
        Ok(())
    }

    /// Records the changed definition; restarts the guest if that is wanted.
    pub fn apply(&self, pvc: &mut Pvc, restart: Restart) -> Outcome {
        let restart = self.decide(pvc, restart)?;
        self.save(pvc, restart)
    }

    /// Records the changed definition and, unless a restart is wanted, plugs the devices into the
    /// running guest; waits for that. What the guest does not take is taken back from the definition.
    pub fn plug_in(self, pvc: &mut Pvc, live: Live, restart: Restart, device: &str) -> Outcome {
        if !self.is_live(live, restart) {
            return self.apply(pvc, restart);
        }
        self.save(pvc, false)?;
        let task = pvc.client()?.attach_vm_device(&self.vm.uuid, device)?;
        match task::finish(pvc, &task, TaskWait::default()) {
            // Only a task that has ended tells that the guest has not taken the device.
            Err(failure) if failure.once_a_success => Err(self.taken_back(pvc, failure)),
            outcome => outcome,
        }
    }

    /// Records the definition as it was before the change.
    fn taken_back(&self, pvc: &mut Pvc, failure: Failure) -> Failure {
        let undone =
            pvc.client().is_ok_and(|client| client.modify_vm(&self.vm.uuid, &self.vm.xml, false).is_ok());
        failure.hint(if undone {
            "the definition is as it was; with `--no-live` it changes, and the guest with its next start"
        } else {
            "the definition is changed, and holds from the VM's next start on"
        })
    }

    /// Records the changed definition and, unless a restart is wanted, unplugs the devices from the
    /// running guest; waits for that.
    pub fn plug_out(self, pvc: &mut Pvc, live: Live, restart: Restart, devices: &[String]) -> Outcome {
        if !self.is_live(live, restart) {
            return self.apply(pvc, restart);
        }
        self.save(pvc, false)?;
        for device in devices {
            let task = pvc.client()?.detach_vm_device(&self.vm.uuid, device)?;
            task::finish(pvc, &task, TaskWait::default()).map_err(|failure| {
                failure.hint("the definition is changed, so the device is gone from the VM's next start on")
            })?;
        }
        Ok(())
    }

    /// Whether the running guest is to be changed, too.
    fn is_live(&self, live: Live, restart: Restart) -> bool {
        !live.no_live && !restart.restart && self.is_running()
    }

    /// Whether to restart. Asked only if the guest runs: a restart would start one that does not.
    fn decide(&self, pvc: &mut Pvc, wish: Restart) -> Result<bool, Failure> {
        if !self.is_running() || wish.no_restart {
            return Ok(false);
        }
        let name = &self.vm.name;
        if wish.restart {
            confirm::ask(pvc, wish.yes, &format!("Restart VM \"{name}\""))?;
            return Ok(true);
        }
        let restart = confirm::wants(pvc, &format!("Restart VM \"{name}\" to apply changes"));
        if !restart {
            pvc.note("Changes will be applied on next VM start/restart.");
        }
        Ok(restart)
    }
}
