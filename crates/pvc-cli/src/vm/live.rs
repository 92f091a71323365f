//! Changes of a VM's definition: what becomes of the guest that runs with the old one.

use clap::Args;
use pvc_api_types::operation::Operation;
use pvc_api_types::operations::vm::{
    Attachment, DeleteVmVmDevice, DeleteVmVmNetworks, DeleteVmVmVolumes, DeviceRequest, GetVmVm,
    Modification, NetworkRemoval, PostVmVmDevice, PutVmVm, VolumeRemoval,
};
use pvc_api_types::param::{Added, Flag};
use pvc_api_types::{Vm, VmHardware};
use pvc_client::{Client, Error};
use pvc_domain::{Device, Domain, HardwareEdit};

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

/// A change of hardware that the API has an operation for.
pub trait Hardware {
    type Operation: Operation<At = [String; 1], Reply = VmHardware, DryRun = VmHardware>;
    const OPERATION: Self::Operation;

    /// Parameters of the operation.
    fn params(&self, restart: bool) -> <Self::Operation as Operation>::Params;

    /// The same as an edit of the XML, for a server of PVC 1.0.3: what the API would look up is
    /// looked up there.
    fn edit(&self, pvc: &mut Pvc, vm: &Vm) -> Result<HardwareEdit, Failure>;

    /// Whether what is refused for good reasons is done all the same.
    fn force(&self) -> bool {
        false
    }
}

/// A [`Hardware`] of any operation.
trait Asked {
    fn dry_run(&self, client: &Client, vm: &str) -> Result<(), Error>;
    fn make(&self, client: &Client, vm: &str, restart: bool) -> Result<VmHardware, Error>;
}

impl<H: Hardware> Asked for H {
    fn dry_run(&self, client: &Client, vm: &str) -> Result<(), Error> {
        client.dry_run(H::OPERATION, [vm], &self.params(false)).map(drop)
    }

    fn make(&self, client: &Client, vm: &str, restart: bool) -> Result<VmHardware, Error> {
        client.change_to(H::OPERATION, [vm], &self.params(restart))
    }
}

/// Way in which a VM's definition is changed.
enum Way<'h> {
    /// By an operation of the server.
    Asked(&'h dyn Asked),
    /// Written as a whole, in which these devices came or went.
    Written { domain: Domain, devices: Vec<String> },
}

/// A VM about to be changed.
pub struct Edit<'h> {
    pub vm: Vm,
    way: Way<'h>,
    force: bool,
}

/// The VM, of which there must be one.
pub fn find(pvc: &mut Pvc, vm: &str) -> Result<Vm, Failure> {
    Ok(pvc.client()?.read_only(GetVmVm, [vm], "VM")?.read()?)
}

impl<'h> Edit<'h> {
    /// Another definition as a whole.
    pub fn written(vm: Vm, domain: Domain, force: bool) -> Self {
        Self { vm, way: Way::Written { domain, devices: Vec::new() }, force }
    }

    /// A change of hardware, by the server's operation if it has that.
    pub fn of<H: Hardware>(pvc: &mut Pvc, vm: &str, hardware: &'h H) -> Result<Self, Failure> {
        let vm = find(pvc, vm)?;
        let force = hardware.force();
        if pvc.client()?.serves(H::OPERATION)? {
            return Ok(Self { vm, way: Way::Asked(hardware), force });
        }
        let edit = hardware.edit(pvc, &vm)?;
        let mut domain = definition::stored(&vm.name, &vm.xml)?;
        let devices = domain.edit(&edit).map_err(|error| definition::unedited(&error))?;
        Ok(Self { vm, way: Way::Written { domain, devices }, force })
    }

    /// Whether a restart can be asked of the VM.
    pub fn is_running(&self) -> bool {
        self.vm.state == "start"
    }

    /// Whether there is a guest that does not see the change before its next start.
    fn has_guest(&self) -> bool {
        self.is_running() || self.vm.state.contains("migrate")
    }

    /// Fails if the cluster would refuse the change: a refusal comes before questions.
    pub fn check(&self, pvc: &mut Pvc) -> Outcome {
        let (client, uuid) = (pvc.client()?, &self.vm.uuid);
        Ok(match &self.way {
            Way::Asked(asked) => asked.dry_run(client, uuid),
            Way::Written { domain, .. } => {
                ahead::check_modify(client, uuid, domain.as_str(), self.force)
            }
        }?)
    }

    /// Records the change, and restarts the guest if that was decided. If not, it is told from when
    /// on the change holds.
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

    /// Records the change. Returns the devices that came or went.
    fn record(&self, pvc: &mut Pvc, restart: bool) -> Result<Vec<String>, Failure> {
        let (client, uuid) = (pvc.client()?, &self.vm.uuid);
        let made = match &self.way {
            Way::Asked(asked) => asked.make(client, uuid, restart)?,
            Way::Written { domain, devices } => {
                let message = self.write(client, domain.as_str(), restart)?;
                VmHardware { message, devices: devices.clone() }
            }
        };
        pvc.done(made.message);
        Ok(made.devices)
    }

    fn write(&self, client: &Client, xml: &str, restart: bool) -> Result<String, Error> {
        let (restart, force) = (Flag(restart), Added(self.force));
        let change = Modification { restart, force, xml: xml.to_owned() };
        client.change(PutVmVm, [&self.vm.uuid], &change)
    }

    /// Records the change; restarts the guest if that is wanted.
    pub fn apply(&self, pvc: &mut Pvc, restart: Restart) -> Outcome {
        let decision = self.decide(pvc, restart)?;
        self.save(pvc, decision)
    }

    /// Records the change and, unless a restart is wanted, plugs the devices into the running
    /// guest; waits for that. What the guest does not take is taken back from the definition.
    pub fn plug_in(self, pvc: &mut Pvc, live: Live, restart: Restart) -> Outcome {
        if !self.is_live(live, restart) {
            return self.apply(pvc, restart);
        }
        for device in self.record(pvc, false)? {
            let attachment = Attachment { force: Added(self.force), xml: device.clone() };
            let task = pvc.client()?.submit(PostVmVmDevice, [&self.vm.uuid], &attachment)?;
            task::finish(pvc, task, TaskWait::default()).map_err(|failure| {
                // Only a task that has ended tells that the guest has not taken the device.
                if failure.once_a_success {
                    self.taken_back(pvc, &device, failure)
                } else {
                    failure
                }
            })?;
        }
        Ok(())
    }

    /// Takes the device out of the definition again.
    fn taken_back(&self, pvc: &mut Pvc, device: &str, failure: Failure) -> Failure {
        let undone = pvc.client().is_ok_and(|client| self.take_back(client, device).is_ok());
        failure.hint(if undone {
            "the definition is as it was; with `--no-live` it changes, and the guest with its next \
             start"
        } else {
            "the definition is changed, and holds from the VM's next start on"
        })
    }

    fn take_back(&self, client: &Client, device: &str) -> Result<(), Error> {
        let uuid = &self.vm.uuid;
        if let Way::Written { .. } = self.way {
            return self.write(client, &self.vm.xml, false).map(drop);
        }
        match pvc_domain::device_summary(device) {
            Ok(Device::Nic(nic)) => {
                let removal = NetworkRemoval { mac: Some(nic.mac), ..NetworkRemoval::default() };
                client.change_to(DeleteVmVmNetworks, [uuid], &removal).map(drop)
            }
            Ok(Device::Disk(disk)) => {
                let removal = VolumeRemoval { volume: disk.target, restart: Flag(false) };
                client.change_to(DeleteVmVmVolumes, [uuid], &removal).map(drop)
            }
            _ => Err(Error::BadAnswer { what: "names an unknown device".to_owned(), source: None }),
        }
    }

    /// Records the change and, unless a restart is wanted, unplugs the devices from the running
    /// guest; waits for that.
    pub fn plug_out(self, pvc: &mut Pvc, live: Live, restart: Restart) -> Outcome {
        if !self.is_live(live, restart) {
            return self.apply(pvc, restart);
        }
        for xml in self.record(pvc, false)? {
            let task =
                pvc.client()?.submit(DeleteVmVmDevice, [&self.vm.uuid], &DeviceRequest { xml })?;
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
