//! The provisioner: what VMs are made of, as its database keeps it.
//!
//! ```text
//!  profile ─┬─ system template    vCPUs, memory, consoles, where it may run
//!           ├─ network template ── its networks
//!           ├─ storage template ── its disks
//!           ├─ userdata            for cloud-init in the guest
//!           ├─ script              Python that builds the VM
//!           └─ OVA                 instead of a storage template
//!
//!  Change ─ decide(Cluster, Catalog) ─▶ Decision: the edits of rows, and a sentence about it
//! ```
//!
//! The records are as PVC 1.0.3 has them; what it has written may be against the rules of today,
//! and is shown as it is.

mod change;
mod decide;
mod limit;
mod recipe;
mod refusal;

use std::fmt;

pub use change::{Change, NewDisk, NewOva, NewProfile, ProfileFields, SystemTemplateFields};
pub use decide::{Decision, Edit, check_new_ova, decide, find_ova};
pub use limit::NameLimit;
pub use recipe::{Recipe, RecipeDisks, Room};
pub use refusal::ProvisionerRefusal;

/// Class of what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    SystemTemplate,
    NetworkTemplate,
    StorageTemplate,
    Userdata,
    Script,
    Ova,
    Profile,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::SystemTemplate => "system template",
            Class::NetworkTemplate => "network template",
            Class::StorageTemplate => "storage template",
            Class::Userdata => "userdata",
            Class::Script => "script",
            Class::Ova => "OVA",
            Class::Profile => "profile",
        })
    }
}

/// Everything that is kept, without the texts of userdata and scripts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    pub system_templates: Vec<SystemTemplate>,
    pub network_templates: Vec<NetworkTemplate>,
    pub storage_templates: Vec<StorageTemplate>,
    pub userdata: Vec<Named>,
    pub scripts: Vec<Named>,
    pub ovas: Vec<Ova>,
    pub profiles: Vec<Profile>,
}

/// Number and name of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub id: i64,
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemTemplate {
    pub id: i64,
    pub name: String,
    pub vcpus: i64,
    pub vram_mib: i64,
    /// Whether the guest has a serial console.
    pub serial: bool,
    pub vnc: bool,
    /// Address that VNC listens at.
    pub vnc_bind: Option<String>,
    /// Nodes that it may run on, with commas between them; all without.
    pub node_limit: Option<String>,
    pub node_selector: Option<String>,
    pub node_autostart: bool,
    pub migration_method: Option<String>,
    /// Downtime of a live migration, in milliseconds.
    pub migration_max_downtime: Option<i64>,
    /// Number of the OVA that it was made by.
    pub ova: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkTemplate {
    pub id: i64,
    pub name: String,
    /// Pattern of MAC addresses, for scripts.
    pub mac_template: Option<String>,
    pub ova: Option<i64>,
    /// In the order in which they were added.
    pub nets: Vec<TemplateNet>,
}

/// A network of a network template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateNet {
    pub id: i64,
    pub vni: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StorageTemplate {
    pub id: i64,
    pub name: String,
    pub ova: Option<i64>,
    /// By their identifiers.
    pub disks: Vec<TemplateDisk>,
}

/// A disk of a storage template.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateDisk {
    pub id: i64,
    pub pool: String,
    /// Name of the device in the guest: `sda`.
    pub disk_id: String,
    /// Volume of the pool that it is a copy of.
    pub source_volume: Option<String>,
    pub size_gib: Option<i64>,
    pub mountpoint: Option<String>,
    pub filesystem: Option<String>,
    /// Options for the program that makes the filesystem, with spaces between them.
    pub filesystem_args: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ova {
    pub id: i64,
    pub name: String,
    pub volumes: Vec<OvaVolume>,
}

/// A volume with a disk of an OVA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OvaVolume {
    /// Number of its row; 0 before it has one.
    pub id: i64,
    pub pool: String,
    pub volume: String,
    /// Format of the image in it: `vmdk`.
    pub format: String,
    pub disk_id: String,
    pub size_gib: i64,
}

impl OvaVolume {
    /// The volume as it was before it had a row.
    pub fn without_row(&self) -> Self {
        Self { id: 0, ..self.clone() }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    pub id: i64,
    pub name: String,
    /// Word for what its disks come from: [`PROVISIONER`] or [`OVA`].
    pub source: String,
    pub system_template: i64,
    pub network_template: Option<i64>,
    pub storage_template: Option<i64>,
    pub userdata: Option<i64>,
    pub script: i64,
    pub ova: Option<i64>,
    /// Arguments of the script, `NAME=VALUE` each.
    pub arguments: Vec<String>,
}

/// Source of a profile with a storage template.
pub const PROVISIONER: &str = "provisioner";

/// Source of a profile with an OVA.
pub const OVA: &str = "ova";

/// Text between two arguments of a profile, as they are kept.
const BETWEEN_ARGUMENTS: char = '|';

/// The arguments of a profile as they are kept in one text.
pub fn joined(arguments: &[String]) -> String {
    arguments.join(&BETWEEN_ARGUMENTS.to_string())
}

/// The arguments of a profile that a text is kept for.
pub fn split(text: &str) -> Vec<String> {
    let parts = text.split(BETWEEN_ARGUMENTS);
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Row with a number and a name of its own.
pub trait Row {
    fn id(&self) -> i64;
    fn name(&self) -> &str;
}

macro_rules! rows {
    ($($row:ty),+) => {$(
        impl Row for $row {
            fn id(&self) -> i64 {
                self.id
            }
            fn name(&self) -> &str {
                &self.name
            }
        }
    )+};
}

rows!(Named, SystemTemplate, NetworkTemplate, StorageTemplate, Ova, Profile);

impl Catalog {
    /// The rows of a class.
    fn rows(&self, class: Class) -> Box<dyn Iterator<Item = &dyn Row> + '_> {
        fn all<T: Row>(rows: &[T]) -> Box<dyn Iterator<Item = &dyn Row> + '_> {
            Box::new(rows.iter().map(|row| row as &dyn Row))
        }
        match class {
            Class::SystemTemplate => all(&self.system_templates),
            Class::NetworkTemplate => all(&self.network_templates),
            Class::StorageTemplate => all(&self.storage_templates),
            Class::Userdata => all(&self.userdata),
            Class::Script => all(&self.scripts),
            Class::Ova => all(&self.ovas),
            Class::Profile => all(&self.profiles),
        }
    }

    /// The number of what has a name, if there is such.
    pub fn id(&self, class: Class, name: &str) -> Option<i64> {
        self.rows(class).find(|row| row.name() == name).map(Row::id)
    }

    /// The name of what has a number, if there is such.
    pub fn name(&self, class: Class, id: i64) -> Option<&str> {
        self.rows(class).find(|row| row.id() == id).map(Row::name)
    }
}

impl Profile {
    /// The number of what a profile refers to.
    fn refers_to(&self, class: Class) -> Option<i64> {
        match class {
            Class::SystemTemplate => Some(self.system_template),
            Class::NetworkTemplate => self.network_template,
            Class::StorageTemplate => self.storage_template,
            Class::Userdata => self.userdata,
            Class::Script => Some(self.script),
            Class::Ova => self.ova,
            Class::Profile => None,
        }
    }
}
