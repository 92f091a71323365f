//! The provisioner's records, as they go over the wire.

use pvc_api_types as wire;
use pvc_model::provisioner::{
    Catalog, Class, NetworkTemplate, Ova, Profile, StorageTemplate, SystemTemplate,
};

/// The word for what a profile has none of.
const NONE: &str = "N/A";

pub fn system_template(template: &SystemTemplate) -> wire::SystemTemplate {
    let template = template.clone();
    wire::SystemTemplate {
        id: template.id,
        name: template.name,
        vcpu_count: template.vcpus,
        vram_mb: template.vram_mib,
        serial: template.serial,
        vnc: template.vnc,
        vnc_bind: template.vnc_bind,
        node_limit: template.node_limit,
        node_selector: template.node_selector,
        node_autostart: template.node_autostart,
        migration_method: template.migration_method,
        ova: template.ova,
        migration_max_downtime: template.migration_max_downtime,
    }
}

pub fn network_template(template: &NetworkTemplate) -> wire::NetworkTemplate {
    let net = |net: &pvc_model::provisioner::TemplateNet| wire::NetworkTemplateNet {
        id: net.id,
        network_template: template.id,
        vni: net.vni.clone(),
    };
    wire::NetworkTemplate {
        id: template.id,
        name: template.name.clone(),
        mac_template: template.mac_template.clone(),
        ova: template.ova,
        networks: template.nets.iter().map(net).collect(),
    }
}

pub fn storage_template(template: &StorageTemplate) -> wire::StorageTemplate {
    let disk = |disk: &pvc_model::provisioner::TemplateDisk| {
        let disk = disk.clone();
        wire::StorageTemplateDisk {
            id: disk.id,
            storage_template: template.id,
            pool: disk.pool,
            disk_id: disk.disk_id,
            source_volume: disk.source_volume,
            disk_size_gb: disk.size_gib,
            mountpoint: disk.mountpoint,
            filesystem: disk.filesystem,
            filesystem_args: disk.filesystem_args,
        }
    };
    wire::StorageTemplate {
        id: template.id,
        name: template.name.clone(),
        ova: template.ova,
        disks: template.disks.iter().map(disk).collect(),
    }
}

pub fn ova(ova: &Ova) -> wire::Ova {
    let volume = |volume: &pvc_model::provisioner::OvaVolume| {
        let volume = volume.clone();
        wire::OvaVolume {
            pool: volume.pool,
            volume_name: volume.volume,
            volume_format: volume.format,
            disk_id: volume.disk_id,
            disk_size_gb: volume.size_gib,
        }
    };
    wire::Ova {
        id: ova.id,
        name: ova.name.clone(),
        volumes: ova.volumes.iter().map(volume).collect(),
    }
}

pub fn profile(catalog: &Catalog, profile: &Profile) -> wire::Profile {
    let name = |class, id: Option<i64>| {
        id.and_then(|id| catalog.name(class, id)).unwrap_or(NONE).to_owned()
    };
    let mut arguments = profile.arguments.clone();
    if arguments.is_empty() {
        // As PVC 1.0.3 splits the empty text.
        arguments.push(String::new());
    }
    wire::Profile {
        id: profile.id,
        name: profile.name.clone(),
        r#type: profile.source.clone(),
        system_template: name(Class::SystemTemplate, Some(profile.system_template)),
        network_template: name(Class::NetworkTemplate, profile.network_template),
        storage_template: name(Class::StorageTemplate, profile.storage_template),
        userdata: name(Class::Userdata, profile.userdata),
        script: name(Class::Script, Some(profile.script)),
        ova: name(Class::Ova, profile.ova),
        arguments,
    }
}
