//! Edits as statements.

use pvc_model::provisioner::{Class, Edit, OVA, Profile, SystemTemplate, joined};
use pvc_ports::{SqlValue, Statement};

/// The statement that an edit is.
pub fn statement(edit: Edit) -> Statement {
    match edit {
        Edit::AddSystemTemplate(new) => {
            let words = "INSERT INTO system_template (name, vcpu_count, vram_mb, serial, vnc, \
                         vnc_bind, node_limit, node_selector, node_autostart, migration_method, \
                         migration_max_downtime) \
                         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
            let name = new.name.clone();
            of_system_template(Statement::new(words).with(&*name), new)
        }
        Edit::SetSystemTemplate(changed) => {
            let words = "UPDATE system_template SET vcpu_count = $2, vram_mb = $3, serial = $4, \
                         vnc = $5, vnc_bind = $6, node_limit = $7, node_selector = $8, \
                         node_autostart = $9, migration_method = $10, \
                         migration_max_downtime = $11 WHERE id = $1";
            of_system_template(Statement::new(words).with(changed.id), changed)
        }
        Edit::AddNetworkTemplate { name, mac_template } => {
            let words = "INSERT INTO network_template (name, mac_template) VALUES ($1, $2)";
            Statement::new(words).with(&*name).with(mac_template.as_deref())
        }
        Edit::AddNet { template, vni } => {
            let words = "INSERT INTO network (network_template, vni) VALUES ($1, $2)";
            Statement::new(words).with(template).with(&*vni)
        }
        Edit::RemoveNets { template, vni: None } => {
            Statement::new("DELETE FROM network WHERE network_template = $1").with(template)
        }
        Edit::RemoveNets { template, vni: Some(vni) } => {
            let words = "DELETE FROM network WHERE network_template = $1 AND vni = $2";
            Statement::new(words).with(template).with(&*vni)
        }
        Edit::AddStorageTemplate { name } => {
            Statement::new("INSERT INTO storage_template (name) VALUES ($1)").with(&*name)
        }
        Edit::AddDisk { template, disk } => {
            let words = "INSERT INTO storage (storage_template, pool, disk_id, source_volume, \
                         disk_size_gb, mountpoint, filesystem, filesystem_args) \
                         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
            Statement::new(words)
                .with(template)
                .with(&*disk.pool)
                .with(&*disk.disk_id)
                .with(disk.source_volume.as_deref())
                .with(disk.size_gib)
                .with(disk.mountpoint.as_deref())
                .with(disk.filesystem.as_deref())
                .with(disk.filesystem_args.as_deref())
        }
        Edit::RemoveDisks { template, disk_id: None } => {
            Statement::new("DELETE FROM storage WHERE storage_template = $1").with(template)
        }
        Edit::RemoveDisks { template, disk_id: Some(disk_id) } => {
            let words = "DELETE FROM storage WHERE storage_template = $1 AND disk_id = $2";
            Statement::new(words).with(template).with(&*disk_id)
        }
        Edit::AddUserdata { name, text } => {
            let words = "INSERT INTO userdata (name, userdata) VALUES ($1, $2)";
            Statement::new(words).with(&*name).with(&*text)
        }
        Edit::SetUserdata { id, text } => {
            let words = "UPDATE userdata SET userdata = $2 WHERE id = $1";
            Statement::new(words).with(id).with(&*text)
        }
        Edit::AddScript { name, text } => {
            let words = "INSERT INTO script (name, script) VALUES ($1, $2)";
            Statement::new(words).with(&*name).with(&*text)
        }
        Edit::SetScript { id, text } => {
            let words = "UPDATE script SET script = $2 WHERE id = $1";
            Statement::new(words).with(id).with(&*text)
        }
        Edit::AddProfile(new) => {
            let words = "INSERT INTO profile (name, profile_type, system_template, \
                         network_template, storage_template, userdata, script, ova, arguments) \
                         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
            let (name, source) = (new.name.clone(), new.source.clone());
            of_profile(Statement::new(words).with(&*name).with(&*source), new)
        }
        Edit::SetProfile(changed) => {
            let words = "UPDATE profile SET profile_type = $2, system_template = $3, \
                         network_template = $4, storage_template = $5, userdata = $6, \
                         script = $7, ova = $8, arguments = $9 WHERE id = $1";
            let source = changed.source.clone();
            of_profile(Statement::new(words).with(changed.id).with(&*source), changed)
        }
        Edit::AddOva { name, ovf } => {
            let words = "INSERT INTO ova (name, ovf) VALUES ($1, $2)";
            Statement::new(words).with(&*name).with(&*ovf)
        }
        Edit::AddOvaVolume { ova, volume } => {
            let words = "INSERT INTO ova_volume (ova, pool, volume_name, volume_format, disk_id, \
                         disk_size_gb) \
                         VALUES ((SELECT id FROM ova WHERE name = $1), $2, $3, $4, $5, $6)";
            Statement::new(words)
                .with(&*ova)
                .with(&*volume.pool)
                .with(&*volume.volume)
                .with(&*volume.format)
                .with(&*volume.disk_id)
                .with(volume.size_gib)
        }
        Edit::AddSystemTemplateOfOva { ova, template } => {
            let words = "INSERT INTO system_template (ova, name, vcpu_count, vram_mb, serial, vnc, \
                         vnc_bind, node_limit, node_selector, node_autostart, migration_method, \
                         migration_max_downtime) \
                         VALUES ((SELECT id FROM ova WHERE name = $1), $1, $2, $3, $4, $5, $6, $7, \
                         $8, $9, $10, $11)";
            of_system_template(Statement::new(words).with(&*ova), template)
        }
        Edit::AddNetworkTemplateOfOva { ova } => {
            let words = "INSERT INTO network_template (ova, name) \
                         VALUES ((SELECT id FROM ova WHERE name = $1), $1)";
            Statement::new(words).with(&*ova)
        }
        Edit::AddNetOfOva { ova, vni } => {
            let words = "INSERT INTO network (network_template, vni) \
                         VALUES ((SELECT id FROM network_template WHERE name = $1), $2)";
            Statement::new(words).with(&*ova).with(&*vni)
        }
        Edit::AddProfileOfOva { ova, script } => {
            let words = "INSERT INTO profile (name, profile_type, system_template, \
                         network_template, script, ova, arguments) VALUES ($1, $2, \
                         (SELECT id FROM system_template WHERE name = $1), \
                         (SELECT t.id FROM network_template t JOIN ova o ON t.ova = o.id \
                         WHERE o.name = $1), $3, (SELECT id FROM ova WHERE name = $1), '')";
            Statement::new(words).with(&*ova).with(OVA).with(script)
        }
        Edit::RemoveOvaVolumes { ova } => {
            Statement::new("DELETE FROM ova_volume WHERE ova = $1").with(ova)
        }
        Edit::Remove { class, id } => Statement::new(removal(class)).with(id),
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

fn of_system_template(statement: Statement, template: SystemTemplate) -> Statement {
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

fn of_profile(statement: Statement, profile: Profile) -> Statement {
    statement
        .with(profile.system_template)
        .with(profile.network_template)
        .with(profile.storage_template)
        .with(profile.userdata)
        .with(profile.script)
        .with(profile.ova)
        .with(&*joined(&profile.arguments))
}
