use super::{Class, OvaVolume};

/// Change that an operator asks for, of what the provisioner keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    AddSystemTemplate {
        name: String,
        fields: SystemTemplateFields,
    },
    ModifySystemTemplate {
        name: String,
        fields: SystemTemplateFields,
    },
    AddNetworkTemplate {
        name: String,
        mac_template: Option<String>,
    },
    /// Adds a network to a network template.
    AddNet {
        template: String,
        vni: String,
        permit_duplicate: bool,
    },
    /// Removes a network from a network template, however often it is there.
    RemoveNet {
        template: String,
        vni: String,
    },
    AddStorageTemplate {
        name: String,
    },
    AddDisk {
        template: String,
        disk: NewDisk,
    },
    RemoveDisk {
        template: String,
        disk_id: String,
    },
    /// Adds a userdata or a script.
    AddText {
        class: Class,
        name: String,
        text: String,
    },
    /// Replaces the text of a userdata or a script.
    ModifyText {
        class: Class,
        name: String,
        text: String,
    },
    AddProfile(NewProfile),
    ModifyProfile {
        name: String,
        fields: ProfileFields,
    },
    AddOva(NewOva),
    /// Removes one of a class; an OVA with its volumes, its templates and its profiles, as far as
    /// they are kept here.
    Remove {
        class: Class,
        name: String,
    },
}

/// An OVA whose volumes there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewOva {
    pub name: String,
    /// The description in it, as it came.
    pub ovf: String,
    pub volumes: Vec<OvaVolume>,
    pub vcpus: u32,
    pub vram_mib: u64,
    /// Whether it has a screen, which is VNC then, and no serial console.
    pub has_graphics: bool,
    /// The name of the network of each interface.
    pub networks: Vec<String>,
}

/// Fields of a system template; `None` leaves one as it is, and an empty text clears it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemTemplateFields {
    pub vcpus: Option<u32>,
    pub vram_mib: Option<u32>,
    pub serial: Option<bool>,
    pub vnc: Option<bool>,
    pub vnc_bind: Option<String>,
    /// Names of nodes.
    pub node_limit: Option<Vec<String>>,
    pub node_selector: Option<String>,
    pub node_autostart: Option<bool>,
    pub migration_method: Option<String>,
    /// In milliseconds.
    pub migration_max_downtime: Option<u32>,
}

/// A disk to be added to a storage template. An empty text is as none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewDisk {
    pub disk_id: String,
    pub pool: String,
    pub source_volume: Option<String>,
    pub size_gib: Option<u32>,
    pub filesystem: Option<String>,
    pub filesystem_args: Vec<String>,
    pub mountpoint: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewProfile {
    pub name: String,
    /// Word for what its disks come from.
    pub source: String,
    pub fields: ProfileFields,
    /// Name of an OVA.
    pub ova: Option<String>,
}

/// Fields of a profile, by name; `None` leaves one as it is, and an empty text clears it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProfileFields {
    pub system_template: Option<String>,
    pub network_template: Option<String>,
    pub storage_template: Option<String>,
    pub userdata: Option<String>,
    pub script: Option<String>,
    /// Arguments of the script, `NAME=VALUE` each.
    pub arguments: Option<Vec<String>>,
}
