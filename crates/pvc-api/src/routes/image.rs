//! Images, and VMs that are made of them.

use pvc_api_types::Image;
use pvc_api_types::operations::image::GetImage;
use pvc_api_types::operations::vm::{FirmwareWord, MachineWord, PostVmVmCreate};
use pvc_domain::{Firmware, Machine};
use pvc_model::image::images;
use pvc_model::storage::PoolName;
use pvc_ops::vm::{self, Create, Origin};

use super::storage::size;
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::limit::Limit;
use crate::state::ApiState;
use crate::table::{Ask, Table};
use crate::view::storage::image;

pub fn add(table: Table) -> Table {
    table.add(get_image).add(post_vm_vm_create)
}

async fn get_image(ask: Ask<GetImage>) -> Result<Answer<GetImage>> {
    let limit = Limit::new(ask.params.limit.as_deref())?;
    let cluster = ask.api.view();
    let only = ask.params.pool.map(PoolName::new);
    if let Some(name) = only.as_ref().filter(|name| !cluster.pools.contains_key(name)) {
        return Err(ApiError::parameter("pool", format!("there is no pool `{name}`")));
    }
    let of_pool = images(&cluster).filter(|id| only.as_ref().is_none_or(|only| id.pool == *only));
    let records = of_pool.filter_map(|id| cluster.volumes.get(id));
    let mut images: Vec<Image> = records.filter_map(|record| image(record)).collect();
    images.retain(|image| limit.matches(&image.name));
    images.sort_by(|a, b| (&a.name, &a.pool).cmp(&(&b.name, &b.pool)));
    Ok(Answer::json(&images))
}

async fn post_vm_vm_create(ask: Ask<PostVmVmCreate>) -> Result<Answer<PostVmVmCreate>> {
    let ([name], given) = (ask.at, ask.params);
    let disk_bytes = given.disk.as_deref().map(|text| size("disk", text)).transpose()?;
    let (image, origin) = match (given.image, given.iso) {
        (Some(image), None) => (image, Origin::System),
        (None, Some(image)) => (image, Origin::Installer),
        (None, None) => return Err(ApiError::parameter("image", "is missing, and so is `iso`")),
        (Some(_), Some(_)) => {
            return Err(ApiError::parameter("iso", "is given beside `image`: it is one of them"));
        }
    };
    let wanted = Create {
        name,
        image,
        origin,
        vcpus: given.vcpus.0,
        memory_mib: given.memory.0.into(),
        disk_bytes,
        networks: given.network,
        ssh_keys: keys(given.ssh_keys.as_deref().unwrap_or_default()),
        user_data: given.user_data,
        has_seed: !given.no_cloud_init.0,
        machine: match given.machine {
            Some(MachineWord::Pc) => Machine::Pc,
            Some(MachineWord::Q35) | None => Machine::Q35,
        },
        firmware: match given.firmware {
            Some(FirmwareWord::Uefi) => Firmware::Uefi,
            Some(FirmwareWord::Bios) | None => Firmware::Bios,
        },
        has_tpm: given.tpm.0,
        node: given.node,
        autostart: given.autostart.0,
        start: given.start.0,
        refuse_memory_overcommit: ask.api.settings().refuse_memory_overcommit,
        force: given.force.0,
        submitter: ask.caller.description.to_string(),
    };
    let storage = ask.api.storage()?;
    let submit = |api: ApiState| async move {
        let (clock, random) = (api.clock().as_ref(), api.random().as_ref());
        vm::create(api.store(), clock, random, storage.as_ref(), &wanted).await
    };
    Ok(Answer::submitted(&ask.api.carry_out(submit).await?, ask.mode))
}

/// The keys of a text such as a file `authorized_keys`: its lines, but for comments and empty ones.
fn keys(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}
