//! The provisioner's tables: one profile, which nobody changes, and what its script does.
//!
//! The tables answer what the provisioner reads, in its words. SQLite would have a thread of its
//! own, for which the world's time does not wait.

use async_trait::async_trait;
use pvc_ports::{
    Database, DatabaseError, Rows, ScriptJob, ScriptMessage, SqlDialect, SqlValue, Statement,
    Transaction,
};
use pvc_provisioner::schema::HEAD;
use pvc_testkit::{ScriptAct, ScriptActs};
use serde_json::{Map, Value, json};

use crate::new_vms::IMAGE;
use crate::storage_changes::POOL;

/// The profile that VMs are made from.
pub(crate) const PROFILE: &str = "small";

/// Memory of such a VM, in MiB.
const MEMORY_MIB: i64 = 512;

/// The tables of the provisioner.
pub(crate) struct ProfileTables;

type Cells = Vec<(&'static str, SqlValue)>;

/// The rows of a table, as far as somebody asks for them.
fn table(name: &str) -> Vec<Cells> {
    let text = |text: &str| SqlValue::from(text);
    let named = |name: &str| vec![("id", SqlValue::Integer(1)), ("name", text(name))];
    let with = |mut row: Cells, more: Cells| {
        row.extend(more);
        vec![row]
    };
    match name {
        "sqlite_master" => {
            ["alembic_version", "system_template"].map(|name| vec![("name", text(name))]).into()
        }
        "alembic_version" => vec![vec![("name", text(HEAD))]],
        "system_template" => {
            let size = vec![("vcpu_count", SqlValue::Integer(1)), ("vram_mb", MEMORY_MIB.into())];
            with(named("small"), size)
        }
        "network_template" => vec![named("none")],
        "storage_template" => vec![named("two")],
        "storage" => {
            let disk = |id: i64, disk: &str, more: (&'static str, SqlValue)| {
                let of = ("storage_template", SqlValue::Integer(1));
                vec![("id", id.into()), of, ("pool", text(POOL)), ("disk_id", text(disk)), more]
            };
            // The columns of both rows are the same.
            let source = text(&format!("image_{IMAGE}"));
            let mut sized: Cells = disk(1, "sda", ("disk_size_gb", SqlValue::Integer(1)));
            let mut copied: Cells = disk(2, "sdb", ("disk_size_gb", SqlValue::Null));
            sized.push(("source_volume", SqlValue::Null));
            copied.push(("source_volume", source));
            vec![sized, copied]
        }
        "script" => with(named("two"), vec![("text", text("pass"))]),
        "profile" => {
            let parts = ["system_template", "network_template", "storage_template", "script"];
            let parts = parts.map(|part| (part, SqlValue::Integer(1)));
            let kind = ("profile_type", text("provisioner"));
            with(named(PROFILE), parts.into_iter().chain([kind]).collect())
        }
        _ => Vec::new(),
    }
}

/// The name of the table that a statement reads.
fn read_by(words: &str) -> &str {
    let rest = words.split_once(" FROM ").map_or("", |(_, rest)| rest);
    rest.split(' ').next().unwrap_or_default()
}

#[async_trait]
impl Database for ProfileTables {
    fn dialect(&self) -> SqlDialect {
        SqlDialect::Sqlite
    }

    async fn begin(&self) -> Result<Box<dyn Transaction>, DatabaseError> {
        Ok(Box::new(ProfileTables))
    }
}

#[async_trait]
impl Transaction for ProfileTables {
    async fn run(&mut self, statement: Statement) -> Result<Rows, DatabaseError> {
        let found = table(read_by(statement.words));
        let columns = found.first().into_iter().flatten().map(|(name, _)| (*name).to_owned());
        let columns = columns.collect();
        let values = |row: Cells| row.into_iter().map(|(_, value)| value).collect();
        Ok(Rows { columns, rows: found.into_iter().map(values).collect() })
    }

    async fn commit(self: Box<Self>) -> Result<(), DatabaseError> {
        Ok(())
    }
}

/// Ends of the names of the volumes that the script makes: one new, the other a copy of the image.
pub(crate) const DISKS: [&str; 2] = ["sda", "sdb"];

/// The script of the profile: it makes both volumes, has one of them mapped while it installs, and
/// raises when a call is not carried out.
pub(crate) fn script(job: &ScriptJob) -> ScriptActs {
    let fact = |name: &str| job.facts.get(name).and_then(Value::as_str).unwrap_or_default();
    let (name, uuid) = (fact("vm_name"), fact("vm_uuid"));
    let [sda, sdb] = DISKS.map(|disk| format!("{name}_{disk}"));
    let add = json!({"pool": POOL, "name": sda, "size": "1G", "force_flag": true});
    let image = format!("image_{IMAGE}");
    let copy = json!({"pool": POOL, "name_src": image, "name_new": sdb, "force_flag": true});
    let mapped = json!({"pool": POOL, "name": sda});
    let done = |value: Value| ScriptAct::Send(ScriptMessage::Done(value));
    let require = || ScriptAct::Require;
    ScriptActs::from([
        ("create", vec![done(xml(name, uuid).into())]),
        (
            "prepare",
            vec![
                call("ceph.add_volume", add),
                require(),
                call("ceph.clone_volume", copy),
                require(),
                done(Value::Null),
            ],
        ),
        ("install", vec![call("ceph.map_volume", mapped.clone()), require(), done(Value::Null)]),
        // After a failure there may be none that is mapped.
        ("cleanup", vec![call("ceph.unmap_volume", mapped), done(Value::Null)]),
    ])
}

fn call(function: &str, arguments: Value) -> ScriptAct {
    let arguments: Map<String, Value> = arguments.as_object().cloned().unwrap_or_default();
    ScriptAct::Send(ScriptMessage::Call { function: function.to_owned(), arguments })
}

fn xml(name: &str, uuid: &str) -> String {
    let disk = |end: &str| {
        format!(
            "<disk type='network' device='disk'><driver name='qemu'/><source protocol='rbd' \
             name='{POOL}/{name}_{end}'/><target dev='{end}' bus='scsi'/></disk>"
        )
    };
    format!(
        "<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid><memory \
         unit='MiB'>{MEMORY_MIB}</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64' machine='pc'>hvm</type></os><devices>\
         <emulator>/usr/bin/kvm</emulator>{}\
         <serial type='pty'/><console type='pty'/></devices></domain>",
        DISKS.map(disk).concat()
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_model::provisioner::Recipe;
    use pvc_provisioner::Provisioner;

    use super::*;

    #[tokio::test]
    async fn the_provisioner_finds_the_profile_with_all_that_belongs_to_it() {
        let provisioner = Provisioner::new(Arc::new(ProfileTables));
        let catalog = provisioner.catalog().await.unwrap();
        let recipe = Recipe::find(&catalog, PROFILE, &[]).unwrap();
        assert_eq!((recipe.system.vcpus, recipe.system.vram_mib), (1, MEMORY_MIB));
        assert_eq!(recipe.room().len(), DISKS.len());
        let scripts = pvc_model::provisioner::Class::Script;
        let found = provisioner.texts(scripts, Some(&recipe.script)).await.unwrap();
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn the_script_describes_a_vm_with_the_volumes_that_it_makes() {
        let uuid = "0b0c3fd2-7a6f-4f7e-9e55-0d3e4ac1f7b1";
        let domain = pvc_domain::summary(&xml("web", uuid)).unwrap();
        let volumes: Vec<String> = domain.volumes().iter().map(ToString::to_string).collect();
        assert_eq!((domain.name.as_str(), domain.memory_mib), ("web", 512));
        assert_eq!(volumes, ["vms/web_sda", "vms/web_sdb"]);
    }
}
