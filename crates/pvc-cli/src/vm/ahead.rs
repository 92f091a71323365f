//! Refusals of the cluster, said before somebody is asked.
//!
//! The API says whether it would refuse. For one that is too old to tell, the VM is looked at and
//! judged by the API's rule, as far as a look can tell. Only where a question follows: a request
//! that nobody is asked about is judged when it is made.

use clap::Args;
use pvc_api_types::operations::vm::{
    GetVm, GetVmVm, GetVmVmRemoval, PostVmVmCheck, PostVmVmRename, PostVmVmState, Proposal,
    Removal, Rename, StateChange, StateWord, VmFilter,
};
use pvc_api_types::param::{Added, Flag};
use pvc_api_types::{Vm, VmDisk};
use pvc_client::{Client, Error, Kind};
use pvc_domain::VM_NAME_LIMIT;
use pvc_model::check_name;
use pvc_model::request::{StateRequest, is_off, request_state};
use pvc_model::vm::VmState;

use crate::confirm::Yes;
use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};

/// `--dry-run`
#[derive(Debug, Clone, Copy, Args)]
pub struct DryRun {
    /// Change nothing; say whether it would be refused
    #[arg(long)]
    dry_run: bool,
}

impl DryRun {
    pub fn is_wanted(self) -> bool {
        self.dry_run
    }
}

/// `--dry-run`, of what has a place to choose.
#[derive(Debug, Clone, Copy, Args)]
pub struct Plan {
    /// Change nothing; say where the VM would go and why not elsewhere
    #[arg(long)]
    dry_run: bool,
}

impl Plan {
    pub fn is_wanted(self) -> bool {
        self.dry_run
    }
}

/// The API's word for a request.
pub fn word(request: StateRequest) -> StateWord {
    match request {
        StateRequest::Start => StateWord::Start,
        StateRequest::Restart => StateWord::Restart,
        StateRequest::Shutdown => StateWord::Shutdown,
        StateRequest::Stop => StateWord::Stop,
        StateRequest::Disable => StateWord::Disable,
    }
}

/// Whether the change would be refused; `None` if the server cannot tell.
pub fn check_state(
    client: &Client,
    vm: &str,
    change: &StateChange,
) -> Result<Option<String>, Error> {
    Ok(client.dry_run(PostVmVmState, [vm], change)?.map(|answer| answer.message))
}

/// Whether a renaming would be refused; `None` if the server cannot tell.
pub fn check_rename(client: &Client, vm: &str, new_name: &str) -> Result<Option<String>, Error> {
    let rename = Rename { new_name: new_name.to_owned() };
    Ok(client.dry_run(PostVmVmRename, [vm], &rename)?.map(|answer| answer.message))
}

/// Whether a removal would be refused; `None` if the server cannot tell, or there is no such VM.
pub fn check_delete(
    client: &Client,
    vm: &str,
    delete_disks: bool,
) -> Result<Option<String>, Error> {
    let removal = Removal { delete_disks: Flag(delete_disks) };
    match client.read(GetVmVmRemoval, [vm], &removal).and_then(|answer| answer.read()) {
        Ok(answer) => Ok(Some(answer.message)),
        Err(error) if matches!(error.kind(), Kind::NotFound | Kind::BadAnswer) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether another definition would be refused, for who asks somebody before it. A server that
/// cannot tell does not know the path, and is taken for one that would not refuse.
pub fn check_modify(client: &Client, vm: &str, xml: &str, force: bool) -> Result<(), Error> {
    let proposal = Proposal { force: Added(force), xml: xml.to_owned() };
    match client.read(PostVmVmCheck, [vm], &proposal) {
        Err(error) if !matches!(error.kind(), Kind::NotFound | Kind::BadAnswer) => Err(error),
        _ => Ok(()),
    }
}

/// Prints what the server says it would do.
pub fn tell(
    pvc: &mut Pvc,
    check: impl FnOnce(&Client) -> Result<Option<String>, Error>,
) -> Outcome {
    let message = check(pvc.client()?)?.ok_or_else(Error::too_old_to_tell)?;
    pvc.done(message);
    Ok(())
}

/// Fails as `request` would.
pub fn state(pvc: &mut Pvc, yes: Yes, vm: &str, request: StateRequest, force: bool) -> Outcome {
    if pvc.unasked(yes.yes) {
        return Ok(());
    }
    let change = StateChange { state: word(request), force: Flag(force), wait: Flag(false) };
    if check_state(pvc.client()?, vm, &change)?.is_some() {
        return Ok(());
    }
    let vm = pvc.client()?.read_only(GetVmVm, [vm], "VM")?.read()?;
    judge(&vm, request, force)
}

fn judge(vm: &Vm, request: StateRequest, force: bool) -> Outcome {
    // A state that a later release knows is judged by that release.
    let Some(state) = known_state(vm) else { return Ok(()) };
    let why = match request_state(&state, request, force) {
        Ok(_) => return Ok(()),
        Err(why) => why,
    };
    Err(Failure::failed(format!("VM `{}` cannot be {}: {why}", vm.name, request.participle()))
        .hint(why.hint()))
}

fn known_state(vm: &Vm) -> Option<VmState> {
    Some(VmState::from_record(&vm.state)).filter(|state| VmState::ALL.contains(state))
}

/// Fails as a renaming would.
pub fn rename(pvc: &mut Pvc, yes: Yes, vm: &str, to: &str) -> Outcome {
    if pvc.unasked(yes.yes) {
        return Ok(());
    }
    if check_rename(pvc.client()?, vm, to)?.is_some() {
        return Ok(());
    }
    check_name("VM", to, VM_NAME_LIMIT).map_err(|bad| Failure::failed(bad.to_string()))?;
    let vm = pvc.client()?.read_only(GetVmVm, [vm], "VM")?.read()?;
    if known_state(&vm).is_some_and(|state| !is_off(&state)) {
        let text = "it can be renamed in `stop`, `disable` and `mirror`";
        return Err(Failure::failed(format!(
            "VM `{}` is in state `{}`; {text}",
            vm.name, vm.state
        ))
        .hint(format!("`pvc vm shutdown --wait {}` stops it", vm.name)));
    }
    match pvc.client()?.read_only(GetVmVm, [to], "VM") {
        // A UUID finds a VM as well; that it is no name is for the API to say.
        Ok(found) if found.read()?.name == to => {
            Err(Failure::failed(format!("a VM called `{to}` exists already")))
        }
        Err(error) if error.kind() != Kind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Fails as a removal would, with the volumes or without.
pub fn removal(pvc: &mut Pvc, yes: Yes, vm: &str, with_volumes: bool) -> Outcome {
    if pvc.unasked(yes.yes) {
        return Ok(());
    }
    if check_delete(pvc.client()?, vm, with_volumes)?.is_some() {
        return Ok(());
    }
    let vm = pvc.client()?.read_only(GetVmVm, [vm], "VM")?.read()?;
    if !with_volumes {
        return Ok(());
    }
    let all = pvc.client()?.read(GetVm, [], &VmFilter::default())?.read()?;
    match shared(&vm, &all) {
        None => Ok(()),
        Some((volume, other)) => Err(Failure::failed(format!(
            "volume `{volume}` of VM `{}` is used by VM `{other}`, too",
            vm.name
        ))
        .hint("`pvc vm undefine` removes the VM and leaves all volumes")),
    }
}

/// A volume of the VM that another VM has, and that VM.
fn shared<'a>(vm: &'a Vm, all: &'a [Vm]) -> Option<(&'a str, &'a str)> {
    let is_volume = |disk: &&VmDisk| disk.r#type == "rbd";
    let volumes = || vm.disks.iter().filter(is_volume);
    all.iter().filter(|other| other.uuid != vm.uuid).find_map(|other| {
        let has = |volume: &&VmDisk| {
            other.disks.iter().filter(is_volume).any(|theirs| theirs.name == volume.name)
        };
        Some((volumes().find(has)?.name.as_str(), other.name.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(name: &str, state: &str, disk: &str) -> Vm {
        let disk = VmDisk { r#type: "rbd".to_owned(), name: disk.to_owned(), ..VmDisk::default() };
        let (name, state) = (name.to_owned(), state.to_owned());
        Vm { uuid: format!("uuid of {name}"), name, state, disks: vec![disk], ..Vm::default() }
    }

    #[test]
    fn a_request_is_judged_by_the_rule_of_the_api() {
        let refused =
            |state: &str, request, force| judge(&vm("web1", state, ""), request, force).err();
        let words = refused("stop", StateRequest::Restart, false).unwrap();
        assert_eq!(
            words.message,
            "VM `web1` cannot be restarted: the VM is in state `stop`, not `start`"
        );
        assert!(words.hint.unwrap().contains("`pvc vm start`"));
        assert!(refused("start", StateRequest::Restart, false).is_none());
        assert!(refused("mirror", StateRequest::Stop, false).is_some());
        assert!(refused("mirror", StateRequest::Stop, true).is_none());
        assert!(refused("teleport", StateRequest::Shutdown, false).is_none(), "not ours to judge");
    }

    #[test]
    fn a_volume_that_two_vms_have_is_found() {
        let all =
            [vm("web1", "stop", "vms/a"), vm("web2", "stop", "vms/b"), vm("web3", "stop", "vms/a")];
        assert_eq!(shared(&all[0], &all), Some(("vms/a", "web3")));
        assert_eq!(shared(&all[1], &all), None);
    }
}
