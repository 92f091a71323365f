//! The facts that a script gets of its VM, in the shape of PVC 1.0.3 (`vm_data`).

use pvc_model::domain::bridge_of;
use pvc_model::job::provision::Provision;
use pvc_model::provisioner::{Recipe, RecipeDisks};
use serde_json::{Map, Value, json};

use super::ScriptSettings;

/// Texts that a script is told of, and that are kept by themselves.
pub struct Texts {
    pub script: String,
    /// The description of the OVA, if the disks are of one.
    pub ovf: Option<String>,
}

/// The script's job, but for paths.
pub fn facts(
    wanted: &Provision,
    recipe: &Recipe,
    texts: &Texts,
    settings: &ScriptSettings,
) -> Map<String, Value> {
    let uuid = wanted.vm.uuid.map(|uuid| uuid.to_string());
    let facts = json!({
        "vm_name": wanted.vm.name,
        "vm_profile": wanted.profile,
        "vm_id": vm_id(&wanted.vm.name, settings.numbers_vms),
        "vm_uuid": uuid,
        "vm_data": vm_data(recipe, texts, settings),
        "config": settings.config,
    });
    match facts {
        Value::Object(facts) => facts,
        _ => unreachable!("it was written as an object"),
    }
}

/// The digits at the end of a name, if they count.
fn vm_id(name: &str, counts: bool) -> u64 {
    let begin = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    // More digits than a number has are a name.
    if counts { name[begin..].parse().unwrap_or(0) } else { 0 }
}

fn vm_data(recipe: &Recipe, texts: &Texts, settings: &ScriptSettings) -> Value {
    let system = &recipe.system;
    let arguments: Map<String, Value> = recipe
        .arguments
        .iter()
        .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
        .collect();
    let mut data = json!({
        "system_details": {
            "id": system.id,
            "name": system.name,
            "vcpu_count": system.vcpus,
            "vram_mb": system.vram_mib,
            "serial": system.serial,
            "vnc": system.vnc,
            "vnc_bind": system.vnc_bind,
            "node_limit": system.node_limit,
            "node_selector": system.node_selector,
            "node_autostart": system.node_autostart,
            "migration_method": system.migration_method,
            "migration_max_downtime": system.migration_max_downtime,
            "ova": system.ova,
        },
        "mac_template": recipe.mac_template,
        "networks": networks(recipe),
        "volumes": volumes(recipe),
        "script": texts.script,
        "system_architecture": settings.architecture,
        "ceph_monitor_list": settings.monitors,
        "ceph_monitor_port": settings.monitor_port,
        "ceph_monitor_secret": settings.monitor_secret,
        "script_arguments": arguments,
    });
    // There at all only for an OVA: scripts look for it.
    if let Some((id, name)) = &recipe.ova {
        data["ova_details"] = json!({ "id": id, "name": name, "ovf": texts.ovf });
    }
    data
}

fn networks(recipe: &Recipe) -> Vec<Value> {
    let (template, nets) = &recipe.nets;
    let network = |net: &pvc_model::provisioner::TemplateNet| {
        json!({
            "id": net.id,
            "network_template": template,
            "vni": net.vni,
            "eth_bridge": bridge_of(&net.vni),
        })
    };
    nets.iter().map(network).collect()
}

fn volumes(recipe: &Recipe) -> Vec<Value> {
    match &recipe.disks {
        RecipeDisks::Template(template, disks) => {
            let volume = |disk: &pvc_model::provisioner::TemplateDisk| {
                json!({
                    "id": disk.id,
                    "storage_template": template,
                    "pool": disk.pool,
                    "disk_id": disk.disk_id,
                    "source_volume": disk.source_volume,
                    "disk_size_gb": disk.size_gib,
                    "mountpoint": disk.mountpoint,
                    "filesystem": disk.filesystem,
                    "filesystem_args": disk.filesystem_args,
                })
            };
            disks.iter().map(volume).collect()
        }
        RecipeDisks::Ova(volumes) => {
            let ova = recipe.ova.as_ref().map(|(id, _)| id);
            let volume = |of: &pvc_model::provisioner::OvaVolume| {
                json!({
                    "id": of.id,
                    "ova": ova,
                    "pool": of.pool,
                    "volume_name": of.volume,
                    "volume_format": of.format,
                    "disk_id": of.disk_id,
                    "disk_size_gb": of.size_gib,
                })
            };
            volumes.iter().map(volume).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pvc_model::Uuid;
    use pvc_model::job::JobVm;
    use pvc_model::provisioner::{OvaVolume, SystemTemplate, TemplateDisk, TemplateNet};

    use super::*;

    fn settings() -> ScriptSettings {
        ScriptSettings {
            phase_time: Duration::from_secs(1),
            whole_time: Duration::from_secs(1),
            memory_bytes: 1,
            removed_volumes_stay: Duration::ZERO,
            numbers_vms: true,
            architecture: "x86_64".to_owned(),
            monitors: vec!["hv1.storage".to_owned()],
            monitor_port: 6789,
            monitor_secret: "secret-uuid".to_owned(),
            config: Map::new(),
        }
    }

    /// A row in which no column is empty but that of the OVA.
    fn system() -> SystemTemplate {
        let text = |text: &str| Some(text.to_owned());
        SystemTemplate {
            id: 1,
            name: "small".to_owned(),
            vcpus: 2,
            vram_mib: 512,
            serial: true,
            vnc: true,
            vnc_bind: text("127.0.0.1"),
            node_limit: text("hv1,hv2"),
            node_selector: text("mem"),
            node_autostart: true,
            migration_method: text("live"),
            migration_max_downtime: Some(200),
            ova: None,
        }
    }

    fn recipe(disks: RecipeDisks) -> Recipe {
        let net = |vni: &str| TemplateNet { id: 4, vni: vni.to_owned() };
        Recipe {
            profile: "web".to_owned(),
            system: system(),
            mac_template: Some("{prefix}:{vmid}".to_owned()),
            nets: (7, vec![net("1001"), net("storage")]),
            disks,
            script: "noop".to_owned(),
            ova: None,
            arguments: vec![("a".to_owned(), "1=2".to_owned())],
        }
    }

    fn texts() -> Texts {
        Texts { script: "pass".to_owned(), ovf: Some("<Envelope/>".to_owned()) }
    }

    #[test]
    fn a_script_gets_what_pvc_1_0_3_gave_it() {
        let disk = TemplateDisk {
            id: 3,
            pool: "vms".to_owned(),
            disk_id: "sda".to_owned(),
            size_gib: Some(4),
            filesystem: Some("ext4".to_owned()),
            filesystem_args: Some(String::new()),
            ..Default::default()
        };
        let recipe = recipe(RecipeDisks::Template(9, vec![disk]));
        let wanted = Provision {
            vm: JobVm { name: "web12".to_owned(), uuid: Some(Uuid::from_u128(7)) },
            profile: "web".to_owned(),
            define: true,
            start: true,
            refuse_memory_overcommit: false,
            arguments: Vec::new(),
        };
        let got = facts(&wanted, &recipe, &texts(), &settings());
        let system_details = json!({
            "id": 1,
            "name": "small",
            "vcpu_count": 2,
            "vram_mb": 512,
            "serial": true,
            "vnc": true,
            "vnc_bind": "127.0.0.1",
            "node_limit": "hv1,hv2",
            "node_selector": "mem",
            "node_autostart": true,
            "migration_method": "live",
            "migration_max_downtime": 200,
            "ova": null,
        });
        let volume = json!({
            "id": 3,
            "storage_template": 9,
            "pool": "vms",
            "disk_id": "sda",
            "source_volume": null,
            "disk_size_gb": 4,
            "mountpoint": null,
            "filesystem": "ext4",
            "filesystem_args": "",
        });
        let network = |vni: &str, bridge: &str| {
            let (id, template) = (4, 7);
            json!({"id": id, "network_template": template, "vni": vni, "eth_bridge": bridge})
        };
        // No more either: scripts take a profile with `ova_details` for that of an OVA.
        let vm_data = json!({
            "system_details": system_details,
            "mac_template": "{prefix}:{vmid}",
            "networks": [network("1001", "vmbr1001"), network("storage", "brstorage")],
            "volumes": [volume],
            "script": "pass",
            "system_architecture": "x86_64",
            "ceph_monitor_list": ["hv1.storage"],
            "ceph_monitor_port": 6789,
            "ceph_monitor_secret": "secret-uuid",
            "script_arguments": {"a": "1=2"},
        });
        let expected = json!({
            "vm_name": "web12",
            "vm_profile": "web",
            "vm_id": 12,
            "vm_uuid": "00000000-0000-0000-0000-000000000007",
            "vm_data": vm_data,
            "config": {},
        });
        assert_eq!(Value::Object(got), expected);
    }

    #[test]
    fn the_volumes_of_an_ova_stand_in_the_place_of_the_disks() {
        let volume = OvaVolume {
            id: 5,
            pool: "vms".to_owned(),
            volume: "ova_o_sda".to_owned(),
            format: "vmdk".to_owned(),
            disk_id: "sda".to_owned(),
            size_gib: 20,
        };
        let of_ova = recipe(RecipeDisks::Ova(vec![volume]));
        let of_ova = Recipe { ova: Some((3, "o".to_owned())), ..of_ova };
        let data = vm_data(&of_ova, &texts(), &settings());
        let row = json!({
            "id": 5,
            "ova": 3,
            "pool": "vms",
            "volume_name": "ova_o_sda",
            "volume_format": "vmdk",
            "disk_id": "sda",
            "disk_size_gb": 20,
        });
        assert_eq!(data["volumes"], json!([row]), "all columns of the table");
        assert_eq!(data["ova_details"], json!({"id": 3, "name": "o", "ovf": "<Envelope/>"}));
    }

    #[test]
    fn the_number_of_a_vm_is_at_the_end_of_its_name_if_it_counts() {
        let cases = [("web12", 12), ("web", 0), ("12", 12), ("a1b", 0), (&"9".repeat(40), 0)];
        for (name, id) in cases {
            assert_eq!((vm_id(name, true), vm_id(name, false)), (id, 0), "{name}");
        }
    }
}
