//! Rows as records: each table is read whole, and what they make is put together without the
//! database.

use pvc_model::provisioner::{
    Catalog, Named, NetworkTemplate, Ova, OvaVolume, Profile, StorageTemplate, SystemTemplate,
    TemplateDisk, TemplateNet, split,
};
use pvc_ports::{DatabaseError, Rows, SqlValue, Statement, Transaction};

use crate::provisioner::FormerBenchmark;

/// Columns of a row, by name.
struct Row<'a> {
    rows: &'a Rows,
    at: usize,
}

impl Row<'_> {
    fn text(&self, column: &str) -> Option<String> {
        match self.rows.get(self.at, column) {
            Some(SqlValue::Text(text)) => Some(text.clone()),
            _ => None,
        }
    }

    fn number(&self, column: &str) -> Option<i64> {
        match self.rows.get(self.at, column) {
            Some(SqlValue::Integer(number)) => Some(*number),
            _ => None,
        }
    }

    fn is(&self, column: &str) -> bool {
        match self.rows.get(self.at, column) {
            Some(SqlValue::Boolean(is)) => *is,
            // SQLite has numbers for them.
            Some(SqlValue::Integer(number)) => *number != 0,
            _ => false,
        }
    }

    /// A column that cannot be empty.
    fn needed(&self, column: &str) -> String {
        self.text(column).unwrap_or_default()
    }

    fn id(&self, column: &str) -> i64 {
        self.number(column).unwrap_or_default()
    }

    /// A text that may be left out. PVC 1.0.3 keeps the word for nothing where it is told so.
    fn choice(&self, column: &str) -> Option<String> {
        let text = self.text(column)?;
        Some(text).filter(|text| !text.is_empty() && !text.eq_ignore_ascii_case("none"))
    }
}

/// Makes a record of each row.
fn all<T>(rows: &Rows, record: impl Fn(Row<'_>) -> T) -> Vec<T> {
    (0..rows.rows.len()).map(|at| record(Row { rows, at })).collect()
}

/// The tables, without the texts of userdata and scripts.
const TABLES: [&str; 10] = [
    "SELECT id, name, vcpu_count, vram_mb, serial, vnc, vnc_bind, node_limit, node_selector, \
     node_autostart, migration_method, migration_max_downtime, ova FROM system_template \
     ORDER BY id",
    "SELECT id, name, mac_template, ova FROM network_template ORDER BY id",
    "SELECT id, network_template, vni FROM network ORDER BY id",
    "SELECT id, name, ova FROM storage_template ORDER BY id",
    "SELECT id, storage_template, pool, disk_id, source_volume, disk_size_gb, mountpoint, \
     filesystem, filesystem_args FROM storage ORDER BY id",
    "SELECT id, name FROM userdata ORDER BY id",
    "SELECT id, name FROM script ORDER BY id",
    "SELECT id, name FROM ova ORDER BY id",
    "SELECT id, ova, pool, volume_name, volume_format, disk_id, disk_size_gb FROM ova_volume \
     ORDER BY id",
    "SELECT id, name, profile_type, system_template, network_template, storage_template, \
     userdata, script, ova, arguments FROM profile ORDER BY id",
];

/// Reads everything but the texts of userdata and scripts.
pub async fn catalog(transaction: &mut dyn Transaction) -> Result<Catalog, DatabaseError> {
    let mut tables: [Rows; 10] = Default::default();
    for at in 0..TABLES.len() {
        tables[at] = transaction.run(Statement::new(TABLES[at])).await?;
    }
    let [systems, networks, nets, storages, disks, userdata, scripts, ovas, volumes, profiles] =
        &tables;
    Ok(Catalog {
        system_templates: all(systems, system_template),
        network_templates: network_templates(networks, nets),
        storage_templates: storage_templates(storages, disks),
        userdata: all(userdata, named),
        scripts: all(scripts, named),
        ovas: ovas_of(ovas, volumes),
        profiles: all(profiles, profile),
    })
}

pub fn former_benchmarks(rows: &Rows) -> Vec<FormerBenchmark> {
    all(rows, |row| FormerBenchmark {
        id: row.id("id"),
        job: row.needed("job"),
        format: row.id("test_format"),
        result: row.needed("result"),
    })
}

fn system_template(row: Row<'_>) -> SystemTemplate {
    SystemTemplate {
        id: row.id("id"),
        name: row.needed("name"),
        vcpus: row.id("vcpu_count"),
        vram_mib: row.id("vram_mb"),
        serial: row.is("serial"),
        vnc: row.is("vnc"),
        vnc_bind: row.text("vnc_bind"),
        node_limit: row.choice("node_limit"),
        node_selector: row.choice("node_selector"),
        node_autostart: row.is("node_autostart"),
        migration_method: row.choice("migration_method"),
        migration_max_downtime: row.number("migration_max_downtime"),
        ova: row.number("ova"),
    }
}

fn named(row: Row<'_>) -> Named {
    Named { id: row.id("id"), name: row.needed("name") }
}

fn network_templates(templates: &Rows, nets: &Rows) -> Vec<NetworkTemplate> {
    let mut templates = all(templates, |row| NetworkTemplate {
        id: row.id("id"),
        name: row.needed("name"),
        mac_template: row.text("mac_template"),
        ova: row.number("ova"),
        nets: Vec::new(),
    });
    let nets = all(nets, |row| {
        (row.id("network_template"), TemplateNet { id: row.id("id"), vni: row.needed("vni") })
    });
    for (template, net) in nets {
        if let Some(template) = templates.iter_mut().find(|one| one.id == template) {
            template.nets.push(net);
        }
    }
    templates
}

fn storage_templates(templates: &Rows, disks: &Rows) -> Vec<StorageTemplate> {
    let mut templates = all(templates, |row| StorageTemplate {
        id: row.id("id"),
        name: row.needed("name"),
        ova: row.number("ova"),
        disks: Vec::new(),
    });
    let disks = all(disks, |row| {
        let disk = TemplateDisk {
            id: row.id("id"),
            pool: row.needed("pool"),
            disk_id: row.needed("disk_id"),
            source_volume: row.text("source_volume"),
            size_gib: row.number("disk_size_gb"),
            mountpoint: row.text("mountpoint"),
            filesystem: row.text("filesystem"),
            filesystem_args: row.text("filesystem_args"),
        };
        (row.id("storage_template"), disk)
    });
    for (template, disk) in disks {
        if let Some(template) = templates.iter_mut().find(|one| one.id == template) {
            template.disks.push(disk);
        }
    }
    // Here, as each database has an order of texts of its own.
    for template in &mut templates {
        template.disks.sort_by(|one, other| one.disk_id.cmp(&other.disk_id));
    }
    templates
}

fn ovas_of(ovas: &Rows, volumes: &Rows) -> Vec<Ova> {
    let mut ovas =
        all(ovas, |row| Ova { id: row.id("id"), name: row.needed("name"), volumes: Vec::new() });
    let volumes = all(volumes, |row| {
        let volume = OvaVolume {
            id: row.id("id"),
            pool: row.needed("pool"),
            volume: row.needed("volume_name"),
            format: row.needed("volume_format"),
            disk_id: row.needed("disk_id"),
            size_gib: row.id("disk_size_gb"),
        };
        (row.id("ova"), volume)
    });
    for (ova, volume) in volumes {
        if let Some(ova) = ovas.iter_mut().find(|one| one.id == ova) {
            ova.volumes.push(volume);
        }
    }
    ovas
}

fn profile(row: Row<'_>) -> Profile {
    Profile {
        id: row.id("id"),
        name: row.needed("name"),
        source: row.needed("profile_type"),
        system_template: row.id("system_template"),
        network_template: row.number("network_template"),
        storage_template: row.number("storage_template"),
        userdata: row.number("userdata"),
        script: row.id("script"),
        ova: row.number("ova"),
        arguments: split(&row.needed("arguments")),
    }
}
