//! The hardware of VMs, part by part.

use pvc_api_types::operation::Operation;
use pvc_api_types::operations::vm::{
    BusWord, DeleteVmVmNetworks, DeleteVmVmVolumes, DiskWord, GetVmVmMemory, GetVmVmNetworks,
    GetVmVmVcpus, GetVmVmVolumes, PostVmVmNetworks, PostVmVmVolumes, PutVmVmMemory, PutVmVmVcpus,
    SriovWord, VcpuChange,
};
use pvc_api_types::param::Choice;
use pvc_api_types::{VmHardware, VmMemory};
use pvc_domain::{NewDisk, WhichNics};
use pvc_model::domain::DiskSource;
use pvc_model::shown;
use pvc_model::storage::VolumeId;
use pvc_ops::vm::{self, HardwareAsk, HardwareChange, NewCard, SriovMode};

use super::vm::find;
use super::vm_change::modified;
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::state::ApiState;
use crate::table::{Ask, Mode, Table};
use crate::view;

pub fn add(table: Table) -> Table {
    table
        .add(get_vm_vm_memory)
        .add(put_vm_vm_memory)
        .add(get_vm_vm_vcpus)
        .add(put_vm_vm_vcpus)
        .add(get_vm_vm_networks)
        .add(post_vm_vm_networks)
        .add(delete_vm_vm_networks)
        .add(get_vm_vm_volumes)
        .add(post_vm_vm_volumes)
        .add(delete_vm_vm_volumes)
}

async fn change<O>(
    api: &ApiState,
    mode: Mode,
    vm: String,
    change: HardwareChange,
    restart: bool,
    force: bool,
) -> Result<Answer<O>>
where
    O: Operation<Reply = VmHardware>,
{
    let wanted = HardwareAsk { change, restart, force };
    let make = |api: ApiState| async move {
        let near = if api.settings().storage_is_near { api.storage().ok() } else { None };
        let random = api.random().as_ref();
        vm::change_hardware(api.store(), random, near.as_deref(), &vm, &wanted).await
    };
    let changed = api.carry_out(make).await?;
    let message = mode.message(modified(&changed.modified));
    Ok(Answer::json(&VmHardware { message, devices: changed.devices }))
}

async fn get_vm_vm_memory(ask: Ask<GetVmVmMemory>) -> Result<Answer<GetVmVmMemory>> {
    let ([name], cluster) = (ask.at, ask.api.view());
    let vm = view::vm::vm_without_texts(find(&cluster, &name)?);
    Ok(Answer::json(&VmMemory { name: vm.name, memory: vm.memory }))
}

async fn put_vm_vm_memory(ask: Ask<PutVmVmMemory>) -> Result<Answer<PutVmVmMemory>> {
    let ([name], given) = (ask.at, ask.params);
    let memory = HardwareChange::Memory(given.memory);
    change(&ask.api, ask.mode, name, memory, given.restart.0, false).await
}

async fn get_vm_vm_vcpus(ask: Ask<GetVmVmVcpus>) -> Result<Answer<GetVmVmVcpus>> {
    let ([name], cluster) = (ask.at, ask.api.view());
    Ok(Answer::json(&view::vm::vcpus(find(&cluster, &name)?)))
}

async fn put_vm_vm_vcpus(ask: Ask<PutVmVmVcpus>) -> Result<Answer<PutVmVmVcpus>> {
    let ([name], given) = (ask.at, ask.params);
    let vcpus = HardwareChange::Vcpus { vcpus: given.vcpus, topology: topology(&given) };
    change(&ask.api, ask.mode, name, vcpus, given.restart.0, false).await
}

fn topology(given: &VcpuChange) -> Option<(u32, u32, u32)> {
    let parts = [given.sockets, given.cores, given.threads];
    let [sockets, cores, threads] = parts.map(|part| part.unwrap_or(1));
    parts.iter().any(Option::is_some).then_some((sockets, cores, threads))
}

async fn get_vm_vm_networks(ask: Ask<GetVmVmNetworks>) -> Result<Answer<GetVmVmNetworks>> {
    let ([name], cluster) = (ask.at, ask.api.view());
    Ok(Answer::json(&view::vm::vm_without_texts(find(&cluster, &name)?).networks))
}

async fn post_vm_vm_networks(ask: Ask<PostVmVmNetworks>) -> Result<Answer<PostVmVmNetworks>> {
    let ([name], given) = (ask.at, ask.params);
    let sriov = given.sriov.map(|word| match word {
        SriovWord::Hostdev => SriovMode::Hostdev,
        SriovWord::Macvtap => SriovMode::Macvtap,
    });
    let model = given.model.unwrap_or_else(|| "virtio".to_owned());
    let card = NewCard { network: given.network, sriov, mac: given.mac, model };
    let (restart, force) = (given.restart.0, given.force.0);
    change(&ask.api, ask.mode, name, HardwareChange::AddNic(card), restart, force).await
}

async fn delete_vm_vm_networks(ask: Ask<DeleteVmVmNetworks>) -> Result<Answer<DeleteVmVmNetworks>> {
    let ([name], given) = (ask.at, ask.params);
    let which = WhichNics { network: given.network, sriov: given.sriov.0, mac: given.mac };
    if which.network.is_none() && which.mac.is_none() {
        return Err(ApiError::refused("neither `network` nor `mac` was given"));
    }
    let removal = HardwareChange::RemoveNics(which);
    change(&ask.api, ask.mode, name, removal, given.restart.0, false).await
}

async fn get_vm_vm_volumes(ask: Ask<GetVmVmVolumes>) -> Result<Answer<GetVmVmVolumes>> {
    let ([name], cluster) = (ask.at, ask.api.view());
    Ok(Answer::json(&view::vm::vm_without_texts(find(&cluster, &name)?).disks))
}

async fn post_vm_vm_volumes(ask: Ask<PostVmVmVolumes>) -> Result<Answer<PostVmVmVolumes>> {
    let ([name], given) = (ask.at, ask.params);
    let source = match given.kind.unwrap_or(DiskWord::Rbd) {
        DiskWord::File => DiskSource::File(given.volume),
        DiskWord::Rbd => DiskSource::Volume(volume(&given.volume)?),
    };
    let bus = given.bus.map(|bus: BusWord| bus.word().to_owned());
    let disk = HardwareChange::AddDisk(NewDisk { source, target: given.disk_id, bus });
    change(&ask.api, ask.mode, name, disk, given.restart.0, false).await
}

fn volume(text: &str) -> Result<VolumeId> {
    VolumeId::from_record(text).ok_or_else(|| {
        let message = format!("`{}` is no volume; one is named `POOL/VOLUME`", shown(text));
        ApiError::parameter("volume", message)
    })
}

async fn delete_vm_vm_volumes(ask: Ask<DeleteVmVmVolumes>) -> Result<Answer<DeleteVmVmVolumes>> {
    let ([name], given) = (ask.at, ask.params);
    let removal = HardwareChange::RemoveDisk(given.volume);
    change(&ask.api, ask.mode, name, removal, given.restart.0, false).await
}
