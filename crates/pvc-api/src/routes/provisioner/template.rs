//! Templates of VMs' sizes, networks and disks.

use pvc_api_types::operations::provisioner::{
    DeleteProvisionerTemplateNetworkTemplate, DeleteProvisionerTemplateNetworkTemplateNetVni,
    DeleteProvisionerTemplateStorageTemplate, DeleteProvisionerTemplateStorageTemplateDiskDiskId,
    DeleteProvisionerTemplateSystemTemplate, GetProvisionerTemplate, GetProvisionerTemplateNetwork,
    GetProvisionerTemplateNetworkTemplate, GetProvisionerTemplateNetworkTemplateNet,
    GetProvisionerTemplateNetworkTemplateNetVni, GetProvisionerTemplateStorage,
    GetProvisionerTemplateStorageTemplate, GetProvisionerTemplateStorageTemplateDisk,
    GetProvisionerTemplateStorageTemplateDiskDiskId, GetProvisionerTemplateSystem,
    GetProvisionerTemplateSystemTemplate, PostProvisionerTemplateNetwork,
    PostProvisionerTemplateNetworkTemplate, PostProvisionerTemplateNetworkTemplateNet,
    PostProvisionerTemplateNetworkTemplateNetVni, PostProvisionerTemplateStorage,
    PostProvisionerTemplateStorageTemplate, PostProvisionerTemplateStorageTemplateDisk,
    PostProvisionerTemplateStorageTemplateDiskDiskId, PostProvisionerTemplateSystem,
    PostProvisionerTemplateSystemTemplate, PutProvisionerTemplateSystemTemplate,
};
use pvc_api_types::{
    AllTemplates, NetworkTemplate, NetworkTemplateNet, StorageTemplate, StorageTemplateDisk,
    SystemTemplate,
};
use pvc_model::provisioner::{Catalog, Change, Class, NameLimit, NewDisk, SystemTemplateFields};
use pvc_model::shown;

use super::{catalog, change, found};
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::state::ApiState;
use crate::table::{Ask, Table};
use crate::view::provisioner as view;

pub fn add(table: Table) -> Table {
    table
        .add(get_provisioner_template)
        .add(get_provisioner_template_system)
        .add(post_provisioner_template_system)
        .add(get_provisioner_template_system_template)
        .add(post_provisioner_template_system_template)
        .add(put_provisioner_template_system_template)
        .add(delete_provisioner_template_system_template)
        .add(get_provisioner_template_network)
        .add(post_provisioner_template_network)
        .add(get_provisioner_template_network_template)
        .add(post_provisioner_template_network_template)
        .add(delete_provisioner_template_network_template)
        .add(get_provisioner_template_network_template_net)
        .add(post_provisioner_template_network_template_net)
        .add(get_provisioner_template_network_template_net_vni)
        .add(post_provisioner_template_network_template_net_vni)
        .add(delete_provisioner_template_network_template_net_vni)
        .add(get_provisioner_template_storage)
        .add(post_provisioner_template_storage)
        .add(get_provisioner_template_storage_template)
        .add(post_provisioner_template_storage_template)
        .add(delete_provisioner_template_storage_template)
        .add(get_provisioner_template_storage_template_disk)
        .add(post_provisioner_template_storage_template_disk)
        .add(get_provisioner_template_storage_template_disk_disk_id)
        .add(post_provisioner_template_storage_template_disk_disk_id)
        .add(delete_provisioner_template_storage_template_disk_disk_id)
}

fn system_templates(catalog: &Catalog, limit: NameLimit<'_>) -> Vec<SystemTemplate> {
    let wanted = catalog.system_templates.iter().filter(|one| limit.matches(&one.name));
    wanted.map(view::system_template).collect()
}

fn network_templates(catalog: &Catalog, limit: NameLimit<'_>) -> Vec<NetworkTemplate> {
    let wanted = catalog.network_templates.iter().filter(|one| limit.matches(&one.name));
    wanted.map(view::network_template).collect()
}

fn storage_templates(catalog: &Catalog, limit: NameLimit<'_>) -> Vec<StorageTemplate> {
    let wanted = catalog.storage_templates.iter().filter(|one| limit.matches(&one.name));
    wanted.map(view::storage_template).collect()
}

async fn get_provisioner_template(
    ask: Ask<GetProvisionerTemplate>,
) -> Result<Answer<GetProvisionerTemplate>> {
    let limit = NameLimit::new(ask.params.limit.as_deref());
    let kept = catalog(&ask.api).await?;
    Ok(Answer::json(&AllTemplates {
        system_templates: system_templates(&kept, limit),
        network_templates: network_templates(&kept, limit),
        storage_templates: storage_templates(&kept, limit),
    }))
}

async fn get_provisioner_template_system(
    ask: Ask<GetProvisionerTemplateSystem>,
) -> Result<Answer<GetProvisionerTemplateSystem>> {
    let limit = NameLimit::new(ask.params.limit.as_deref());
    let templates = system_templates(&catalog(&ask.api).await?, limit);
    Ok(Answer::json(&found(Class::SystemTemplate, None, templates)?))
}

/// The members of both forms of an ask, under the names of the model.
macro_rules! new_system_template {
    ($given:ident) => {
        SystemTemplateFields {
            vcpus: Some($given.vcpus),
            vram_mib: Some($given.vram),
            serial: Some($given.serial),
            vnc: Some($given.vnc),
            vnc_bind: $given.vnc_bind,
            node_limit: Some($given.node_limit.0),
            node_selector: $given.node_selector,
            node_autostart: $given.node_autostart,
            migration_method: $given.migration_method,
            migration_max_downtime: $given.migration_max_downtime,
        }
    };
}

async fn post_provisioner_template_system(
    ask: Ask<PostProvisionerTemplateSystem>,
) -> Result<Answer<PostProvisionerTemplateSystem>> {
    let given = ask.params;
    let (name, fields) = (given.name, new_system_template!(given));
    change(&ask.api, ask.mode, Change::AddSystemTemplate { name, fields }).await
}

async fn get_provisioner_template_system_template(
    ask: Ask<GetProvisionerTemplateSystemTemplate>,
) -> Result<Answer<GetProvisionerTemplateSystemTemplate>> {
    let [name] = ask.at;
    let mut templates = system_templates(&catalog(&ask.api).await?, NameLimit::new(None));
    templates.retain(|template| template.name == name);
    Ok(Answer::json(&found(Class::SystemTemplate, Some(&name), templates)?))
}

async fn post_provisioner_template_system_template(
    ask: Ask<PostProvisionerTemplateSystemTemplate>,
) -> Result<Answer<PostProvisionerTemplateSystemTemplate>> {
    let ([name], given) = (ask.at, ask.params);
    let fields = new_system_template!(given);
    change(&ask.api, ask.mode, Change::AddSystemTemplate { name, fields }).await
}

async fn put_provisioner_template_system_template(
    ask: Ask<PutProvisionerTemplateSystemTemplate>,
) -> Result<Answer<PutProvisionerTemplateSystemTemplate>> {
    let ([name], given) = (ask.at, ask.params);
    let fields = SystemTemplateFields {
        vcpus: given.vcpus,
        vram_mib: given.vram,
        serial: given.serial,
        vnc: given.vnc,
        vnc_bind: given.vnc_bind,
        node_limit: given.node_limit.map(|nodes| nodes.0),
        node_selector: given.node_selector,
        node_autostart: given.node_autostart,
        migration_method: given.migration_method,
        migration_max_downtime: given.migration_max_downtime,
    };
    change(&ask.api, ask.mode, Change::ModifySystemTemplate { name, fields }).await
}

async fn delete_provisioner_template_system_template(
    ask: Ask<DeleteProvisionerTemplateSystemTemplate>,
) -> Result<Answer<DeleteProvisionerTemplateSystemTemplate>> {
    let ([name], class) = (ask.at, Class::SystemTemplate);
    change(&ask.api, ask.mode, Change::Remove { class, name }).await
}

async fn get_provisioner_template_network(
    ask: Ask<GetProvisionerTemplateNetwork>,
) -> Result<Answer<GetProvisionerTemplateNetwork>> {
    let limit = NameLimit::new(ask.params.limit.as_deref());
    let templates = network_templates(&catalog(&ask.api).await?, limit);
    Ok(Answer::json(&found(Class::NetworkTemplate, None, templates)?))
}

async fn post_provisioner_template_network(
    ask: Ask<PostProvisionerTemplateNetwork>,
) -> Result<Answer<PostProvisionerTemplateNetwork>> {
    let (name, mac_template) = (ask.params.name, ask.params.mac_template);
    change(&ask.api, ask.mode, Change::AddNetworkTemplate { name, mac_template }).await
}

/// The network template with this name.
async fn network_template(api: &ApiState, name: &str) -> Result<Vec<NetworkTemplate>> {
    let mut templates = network_templates(&catalog(api).await?, NameLimit::new(None));
    templates.retain(|template| template.name == name);
    found(Class::NetworkTemplate, Some(name), templates)
}

async fn get_provisioner_template_network_template(
    ask: Ask<GetProvisionerTemplateNetworkTemplate>,
) -> Result<Answer<GetProvisionerTemplateNetworkTemplate>> {
    let [name] = ask.at;
    Ok(Answer::json(&network_template(&ask.api, &name).await?))
}

async fn post_provisioner_template_network_template(
    ask: Ask<PostProvisionerTemplateNetworkTemplate>,
) -> Result<Answer<PostProvisionerTemplateNetworkTemplate>> {
    let ([name], mac_template) = (ask.at, ask.params.mac_template);
    change(&ask.api, ask.mode, Change::AddNetworkTemplate { name, mac_template }).await
}

async fn delete_provisioner_template_network_template(
    ask: Ask<DeleteProvisionerTemplateNetworkTemplate>,
) -> Result<Answer<DeleteProvisionerTemplateNetworkTemplate>> {
    let ([name], class) = (ask.at, Class::NetworkTemplate);
    change(&ask.api, ask.mode, Change::Remove { class, name }).await
}

/// The networks of the network template with this name.
async fn nets(api: &ApiState, template: &str) -> Result<Vec<NetworkTemplateNet>> {
    let templates = network_template(api, template).await?;
    Ok(templates.into_iter().flat_map(|template| template.networks).collect())
}

async fn get_provisioner_template_network_template_net(
    ask: Ask<GetProvisionerTemplateNetworkTemplateNet>,
) -> Result<Answer<GetProvisionerTemplateNetworkTemplateNet>> {
    let [template] = ask.at;
    let nets = nets(&ask.api, &template).await?;
    if nets.is_empty() {
        let message = format!("network template `{}` has no networks", shown(&template));
        return Err(ApiError::not_found(message));
    }
    Ok(Answer::json(&nets))
}

async fn post_provisioner_template_network_template_net(
    ask: Ask<PostProvisionerTemplateNetworkTemplateNet>,
) -> Result<Answer<PostProvisionerTemplateNetworkTemplateNet>> {
    let ([template], given) = (ask.at, ask.params);
    let permit_duplicate = given.permit_duplicate.unwrap_or(false);
    change(&ask.api, ask.mode, Change::AddNet { template, vni: given.vni, permit_duplicate }).await
}

async fn get_provisioner_template_network_template_net_vni(
    ask: Ask<GetProvisionerTemplateNetworkTemplateNetVni>,
) -> Result<Answer<GetProvisionerTemplateNetworkTemplateNetVni>> {
    let [template, vni] = ask.at;
    let net = nets(&ask.api, &template).await?.into_iter().find(|net| net.vni == vni);
    let none = || {
        let (template, vni) = (shown(&template), shown(&vni));
        ApiError::not_found(format!("network template `{template}` has no network `{vni}`"))
    };
    Ok(Answer::json(&net.ok_or_else(none)?))
}

async fn post_provisioner_template_network_template_net_vni(
    ask: Ask<PostProvisionerTemplateNetworkTemplateNetVni>,
) -> Result<Answer<PostProvisionerTemplateNetworkTemplateNetVni>> {
    let [template, vni] = ask.at;
    let permit_duplicate = ask.params.permit_duplicate.unwrap_or(false);
    change(&ask.api, ask.mode, Change::AddNet { template, vni, permit_duplicate }).await
}

async fn delete_provisioner_template_network_template_net_vni(
    ask: Ask<DeleteProvisionerTemplateNetworkTemplateNetVni>,
) -> Result<Answer<DeleteProvisionerTemplateNetworkTemplateNetVni>> {
    let [template, vni] = ask.at;
    change(&ask.api, ask.mode, Change::RemoveNet { template, vni }).await
}

async fn get_provisioner_template_storage(
    ask: Ask<GetProvisionerTemplateStorage>,
) -> Result<Answer<GetProvisionerTemplateStorage>> {
    let limit = NameLimit::new(ask.params.limit.as_deref());
    let templates = storage_templates(&catalog(&ask.api).await?, limit);
    Ok(Answer::json(&found(Class::StorageTemplate, None, templates)?))
}

async fn post_provisioner_template_storage(
    ask: Ask<PostProvisionerTemplateStorage>,
) -> Result<Answer<PostProvisionerTemplateStorage>> {
    let name = ask.params.name;
    change(&ask.api, ask.mode, Change::AddStorageTemplate { name }).await
}

/// The storage template with this name.
async fn storage_template(api: &ApiState, name: &str) -> Result<Vec<StorageTemplate>> {
    let mut templates = storage_templates(&catalog(api).await?, NameLimit::new(None));
    templates.retain(|template| template.name == name);
    found(Class::StorageTemplate, Some(name), templates)
}

async fn get_provisioner_template_storage_template(
    ask: Ask<GetProvisionerTemplateStorageTemplate>,
) -> Result<Answer<GetProvisionerTemplateStorageTemplate>> {
    let [name] = ask.at;
    Ok(Answer::json(&storage_template(&ask.api, &name).await?))
}

async fn post_provisioner_template_storage_template(
    ask: Ask<PostProvisionerTemplateStorageTemplate>,
) -> Result<Answer<PostProvisionerTemplateStorageTemplate>> {
    let [name] = ask.at;
    change(&ask.api, ask.mode, Change::AddStorageTemplate { name }).await
}

async fn delete_provisioner_template_storage_template(
    ask: Ask<DeleteProvisionerTemplateStorageTemplate>,
) -> Result<Answer<DeleteProvisionerTemplateStorageTemplate>> {
    let ([name], class) = (ask.at, Class::StorageTemplate);
    change(&ask.api, ask.mode, Change::Remove { class, name }).await
}

/// The disks of the storage template with this name.
async fn disks(api: &ApiState, template: &str) -> Result<Vec<StorageTemplateDisk>> {
    let templates = storage_template(api, template).await?;
    Ok(templates.into_iter().flat_map(|template| template.disks).collect())
}

async fn get_provisioner_template_storage_template_disk(
    ask: Ask<GetProvisionerTemplateStorageTemplateDisk>,
) -> Result<Answer<GetProvisionerTemplateStorageTemplateDisk>> {
    let [template] = ask.at;
    let limit = NameLimit::new(ask.params.limit.as_deref());
    let mut disks = disks(&ask.api, &template).await?;
    disks.retain(|disk| limit.matches(&disk.disk_id));
    if disks.is_empty() {
        let message = format!("storage template `{}` has no such disks", shown(&template));
        return Err(ApiError::not_found(message));
    }
    Ok(Answer::json(&disks))
}

/// The members of both forms of an ask, under the names of the model.
macro_rules! new_disk {
    ($given:ident, $disk_id:expr) => {
        NewDisk {
            disk_id: $disk_id,
            pool: $given.pool,
            source_volume: $given.source_volume,
            size_gib: $given.disk_size,
            filesystem: $given.filesystem,
            filesystem_args: $given.filesystem_arg.0,
            mountpoint: $given.mountpoint,
        }
    };
}

async fn post_provisioner_template_storage_template_disk(
    ask: Ask<PostProvisionerTemplateStorageTemplateDisk>,
) -> Result<Answer<PostProvisionerTemplateStorageTemplateDisk>> {
    let ([template], given) = (ask.at, ask.params);
    let disk = new_disk!(given, given.disk_id);
    change(&ask.api, ask.mode, Change::AddDisk { template, disk }).await
}

async fn get_provisioner_template_storage_template_disk_disk_id(
    ask: Ask<GetProvisionerTemplateStorageTemplateDiskDiskId>,
) -> Result<Answer<GetProvisionerTemplateStorageTemplateDiskDiskId>> {
    let [template, disk_id] = ask.at;
    let disk = disks(&ask.api, &template).await?.into_iter().find(|disk| disk.disk_id == disk_id);
    let none = || {
        let (template, disk_id) = (shown(&template), shown(&disk_id));
        ApiError::not_found(format!("storage template `{template}` has no disk `{disk_id}`"))
    };
    Ok(Answer::json(&disk.ok_or_else(none)?))
}

async fn post_provisioner_template_storage_template_disk_disk_id(
    ask: Ask<PostProvisionerTemplateStorageTemplateDiskDiskId>,
) -> Result<Answer<PostProvisionerTemplateStorageTemplateDiskDiskId>> {
    let ([template, disk_id], given) = (ask.at, ask.params);
    let disk = new_disk!(given, disk_id);
    change(&ask.api, ask.mode, Change::AddDisk { template, disk }).await
}

async fn delete_provisioner_template_storage_template_disk_disk_id(
    ask: Ask<DeleteProvisionerTemplateStorageTemplateDiskDiskId>,
) -> Result<Answer<DeleteProvisionerTemplateStorageTemplateDiskDiskId>> {
    let [template, disk_id] = ask.at;
    change(&ask.api, ask.mode, Change::RemoveDisk { template, disk_id }).await
}
