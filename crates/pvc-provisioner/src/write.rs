//! Edits as statements.

use pvc_model::provisioner::{
    Class, Edit, OVA, OvaVolume, Profile, SystemTemplate, TemplateDisk, joined,
};
use pvc_ports::{SqlValue, Statement};

const ADD_SYSTEM_TEMPLATE: &str = "INSERT INTO system_template (name, vcpu_count, vram_mb, serial, \
    vnc, vnc_bind, node_limit, node_selector, node_autostart, migration_method, \
    migration_max_downtime) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
const SET_SYSTEM_TEMPLATE: &str = "UPDATE system_template SET vcpu_count = $2, vram_mb = $3, \
    serial = $4, vnc = $5, vnc_bind = $6, node_limit = $7, node_selector = $8, \
    node_autostart = $9, migration_method = $10, migration_max_downtime = $11 WHERE id = $1";
const ADD_SYSTEM_TEMPLATE_OF_OVA: &str = "INSERT INTO system_template (ova, name, vcpu_count, \
    vram_mb, serial, vnc, vnc_bind, node_limit, node_selector, node_autostart, migration_method, \
    migration_max_downtime) VALUES ((SELECT id FROM ova WHERE name = $1), $1, $2, $3, $4, $5, $6, \
    $7, $8, $9, $10, $11)";

const ADD_NETWORK_TEMPLATE: &str =
    "INSERT INTO network_template (name, mac_template) VALUES ($1, $2)";
const ADD_NETWORK_TEMPLATE_OF_OVA: &str =
    "INSERT INTO network_template (ova, name) VALUES ((SELECT id FROM ova WHERE name = $1), $1)";
const ADD_NET: &str = "INSERT INTO network (network_template, vni) VALUES ($1, $2)";
const ADD_NET_OF_OVA: &str = "INSERT INTO network (network_template, vni) \
    VALUES ((SELECT id FROM network_template WHERE name = $1), $2)";
const REMOVE_NET: &str = "DELETE FROM network WHERE network_template = $1 AND vni = $2";
const REMOVE_NETS: &str = "DELETE FROM network WHERE network_template = $1";

const ADD_STORAGE_TEMPLATE: &str = "INSERT INTO storage_template (name) VALUES ($1)";
const ADD_DISK: &str = "INSERT INTO storage (storage_template, pool, disk_id, source_volume, \
    disk_size_gb, mountpoint, filesystem, filesystem_args) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
const REMOVE_DISK: &str = "DELETE FROM storage WHERE storage_template = $1 AND disk_id = $2";
const REMOVE_DISKS: &str = "DELETE FROM storage WHERE storage_template = $1";

const ADD_USERDATA: &str = "INSERT INTO userdata (name, userdata) VALUES ($1, $2)";
const SET_USERDATA: &str = "UPDATE userdata SET userdata = $2 WHERE id = $1";
const ADD_SCRIPT: &str = "INSERT INTO script (name, script) VALUES ($1, $2)";
const SET_SCRIPT: &str = "UPDATE script SET script = $2 WHERE id = $1";

const ADD_PROFILE: &str = "INSERT INTO profile (name, profile_type, system_template, \
    network_template, storage_template, userdata, script, ova, arguments) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
const SET_PROFILE: &str = "UPDATE profile SET profile_type = $2, system_template = $3, \
    network_template = $4, storage_template = $5, userdata = $6, script = $7, ova = $8, \
    arguments = $9 WHERE id = $1";
const ADD_PROFILE_OF_OVA: &str = "INSERT INTO profile (name, profile_type, system_template, \
    network_template, script, ova, arguments) VALUES ($1, $2, \
    (SELECT id FROM system_template WHERE name = $1), \
    (SELECT t.id FROM network_template t JOIN ova o ON t.ova = o.id WHERE o.name = $1), $3, \
    (SELECT id FROM ova WHERE name = $1), '')";

const ADD_OVA: &str = "INSERT INTO ova (name, ovf) VALUES ($1, $2)";
const ADD_OVA_VOLUME: &str = "INSERT INTO ova_volume (ova, pool, volume_name, volume_format, \
    disk_id, disk_size_gb) VALUES ((SELECT id FROM ova WHERE name = $1), $2, $3, $4, $5, $6)";
const REMOVE_OVA_VOLUMES: &str = "DELETE FROM ova_volume WHERE ova = $1";

/// The statement that an edit is.
pub fn statement(edit: Edit) -> Statement {
    let of = Statement::new;
    match edit {
        Edit::AddSystemTemplate(new) => {
            of_system_template(of(ADD_SYSTEM_TEMPLATE).with(&*new.name), &new)
        }
        Edit::SetSystemTemplate(changed) => {
            of_system_template(of(SET_SYSTEM_TEMPLATE).with(changed.id), &changed)
        }
        Edit::AddSystemTemplateOfOva { ova, template } => {
            of_system_template(of(ADD_SYSTEM_TEMPLATE_OF_OVA).with(&*ova), &template)
        }
        Edit::AddNetworkTemplate { name, mac_template } => {
            of(ADD_NETWORK_TEMPLATE).with(&*name).with(mac_template.as_deref())
        }
        Edit::AddNetworkTemplateOfOva { ova } => of(ADD_NETWORK_TEMPLATE_OF_OVA).with(&*ova),
        Edit::AddNet { template, vni } => of(ADD_NET).with(template).with(&*vni),
        Edit::AddNetOfOva { ova, vni } => of(ADD_NET_OF_OVA).with(&*ova).with(&*vni),
        Edit::RemoveNets { template, vni } => match vni {
            Some(vni) => of(REMOVE_NET).with(template).with(&*vni),
            None => of(REMOVE_NETS).with(template),
        },
        Edit::AddStorageTemplate { name } => of(ADD_STORAGE_TEMPLATE).with(&*name),
        Edit::AddDisk { template, disk } => of_disk(of(ADD_DISK).with(template), &disk),
        Edit::RemoveDisks { template, disk_id } => match disk_id {
            Some(disk_id) => of(REMOVE_DISK).with(template).with(&*disk_id),
            None => of(REMOVE_DISKS).with(template),
        },
        Edit::AddUserdata { name, text } => of(ADD_USERDATA).with(&*name).with(&*text),
        Edit::SetUserdata { id, text } => of(SET_USERDATA).with(id).with(&*text),
        Edit::AddScript { name, text } => of(ADD_SCRIPT).with(&*name).with(&*text),
        Edit::SetScript { id, text } => of(SET_SCRIPT).with(id).with(&*text),
        Edit::AddProfile(new) => of_profile(of(ADD_PROFILE).with(&*new.name), &new),
        Edit::SetProfile(changed) => of_profile(of(SET_PROFILE).with(changed.id), &changed),
        Edit::AddProfileOfOva { ova, script } => {
            of(ADD_PROFILE_OF_OVA).with(&*ova).with(OVA).with(script)
        }
        Edit::AddOva { name, ovf } => of(ADD_OVA).with(&*name).with(&*ovf),
        Edit::AddOvaVolume { ova, volume } => {
            of_ova_volume(of(ADD_OVA_VOLUME).with(&*ova), &volume)
        }
        Edit::RemoveOvaVolumes { ova } => of(REMOVE_OVA_VOLUMES).with(ova),
        Edit::Remove { class, id } => of(removal(class)).with(id),
    }
}

fn removal(class: Class) -> &'static str {
    match class {
        Class::SystemTemplate => "DELETE FROM system_template WHERE id = $1",
        Class::NetworkTemplate => "DELETE FROM network_template WHERE id = $1",
        Class::StorageTemplate => "DELETE FROM storage_template WHERE id = $1",
        Class::Userdata => "DELETE FROM userdata WHERE id = $1",
        Class::Script => "DELETE FROM script WHERE id = $1",
        Class::Ova => "DELETE FROM ova WHERE id = $1",
        Class::Profile => "DELETE FROM profile WHERE id = $1",
    }
}

fn of_system_template(statement: Statement, template: &SystemTemplate) -> Statement {
    statement
        .with(template.vcpus)
        .with(template.vram_mib)
        .with(SqlValue::Boolean(template.serial))
        .with(SqlValue::Boolean(template.vnc))
        .with(template.vnc_bind.as_deref())
        .with(template.node_limit.as_deref())
        .with(template.node_selector.as_deref())
        .with(SqlValue::Boolean(template.node_autostart))
        .with(template.migration_method.as_deref())
        .with(template.migration_max_downtime)
}

fn of_disk(statement: Statement, disk: &TemplateDisk) -> Statement {
    statement
        .with(&*disk.pool)
        .with(&*disk.disk_id)
        .with(disk.source_volume.as_deref())
        .with(disk.size_gib)
        .with(disk.mountpoint.as_deref())
        .with(disk.filesystem.as_deref())
        .with(disk.filesystem_args.as_deref())
}

fn of_ova_volume(statement: Statement, volume: &OvaVolume) -> Statement {
    statement
        .with(&*volume.pool)
        .with(&*volume.volume)
        .with(&*volume.format)
        .with(&*volume.disk_id)
        .with(volume.size_gib)
}

fn of_profile(statement: Statement, profile: &Profile) -> Statement {
    statement
        .with(&*profile.source)
        .with(profile.system_template)
        .with(profile.network_template)
        .with(profile.storage_template)
        .with(profile.userdata)
        .with(profile.script)
        .with(profile.ova)
        .with(&*joined(&profile.arguments))
}
