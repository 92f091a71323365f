//! Templates, userdata, scripts and profiles of the provisioner.

wire! {
    /// Size, consoles and place of VMs.
    pub struct SystemTemplate {
        /// Number of the template.
        pub id: i64,
        pub name: String,
        pub vcpu_count: i64,
        /// Memory, in MiB.
        pub vram_mb: i64,
        /// Whether there is a serial console.
        pub serial: bool,
        pub vnc: bool,
        /// Address that VNC listens at.
        pub vnc_bind: Option<String>,
        /// Nodes that the VM may run on, with commas between them.
        pub node_limit: Option<String>,
        pub node_selector: Option<String>,
        pub node_autostart: bool,
        pub migration_method: Option<String>,
        /// Number of the OVA that the template was made by.
        pub ova: Option<i64>,
        /// Longest standstill in a live migration, in milliseconds.
        pub migration_max_downtime: Option<i64>,
    }

    /// Networks of VMs.
    pub struct NetworkTemplate {
        /// Number of the template.
        pub id: i64,
        pub name: String,
        /// Pattern of MAC addresses, with `{prefix}`, `{vmid}` and `{netid}`.
        pub mac_template: Option<String>,
        /// Number of the OVA that the template was made by.
        pub ova: Option<i64>,
        pub networks: Vec<NetworkTemplateNet>,
    }

    /// A network of a network template.
    pub struct NetworkTemplateNet {
        /// Number of the network among those of all templates.
        pub id: i64,
        /// Number of the template.
        pub network_template: i64,
        /// VNI, or `upstream`, `cluster` or `storage`.
        pub vni: String,
    }

    /// Disks of VMs.
    pub struct StorageTemplate {
        /// Number of the template.
        pub id: i64,
        pub name: String,
        /// Number of the OVA that the template was made by.
        pub ova: Option<i64>,
        pub disks: Vec<StorageTemplateDisk>,
    }

    /// A disk of a storage template.
    pub struct StorageTemplateDisk {
        /// Number of the disk among those of all templates.
        pub id: i64,
        /// Number of the template.
        pub storage_template: i64,
        pub pool: String,
        /// Name of the device in the guest: `sda`.
        pub disk_id: String,
        /// Volume of the pool that the disk is a copy of.
        pub source_volume: Option<String>,
        /// Size in GiB.
        pub disk_size_gb: Option<i64>,
        pub mountpoint: Option<String>,
        pub filesystem: Option<String>,
        /// Options for the program that makes the filesystem, with spaces between them.
        pub filesystem_args: Option<String>,
    }

    /// The templates of all kinds.
    pub struct AllTemplates {
        pub system_templates: Vec<SystemTemplate>,
        pub network_templates: Vec<NetworkTemplate>,
        pub storage_templates: Vec<StorageTemplate>,
    }

    /// Data for cloud-init in a guest.
    pub struct Userdata {
        /// Number of the userdata.
        pub id: i64,
        pub name: String,
        pub userdata: String,
    }

    /// A Python program that builds VMs.
    pub struct Script {
        /// Number of the script.
        pub id: i64,
        pub name: String,
        pub script: String,
    }

    /// All that a VM is made of, by name; what there is none of is `N/A`.
    pub struct Profile {
        /// Number of the profile.
        pub id: i64,
        pub name: String,
        /// Source of the disks: `provisioner` or `ova`.
        pub r#type: String,
        pub system_template: String,
        pub network_template: String,
        pub storage_template: String,
        pub userdata: String,
        pub script: String,
        pub ova: String,
        /// Arguments of the script, `NAME=VALUE` each; one empty text if there are none.
        pub arguments: Vec<String>,
    }

    /// A VM as another hypervisor has given it away, with its disks as volumes.
    pub struct Ova {
        /// Number of the OVA.
        pub id: i64,
        pub name: String,
        pub volumes: Vec<OvaVolume>,
    }

    /// A volume with a disk of an OVA.
    pub struct OvaVolume {
        pub pool: String,
        pub volume_name: String,
        /// Format of the image in the volume: `raw`, or another if PVC 1.0.3 has added the OVA.
        pub volume_format: String,
        /// Name of the device in the guest: `sda`.
        pub disk_id: String,
        /// Size of the disk in GiB, rounded up.
        pub disk_size_gb: i64,
    }
}
