//! The provisioner: templates, userdata, scripts and profiles, of which VMs are made.

use crate::param::{Commas, Repeated};
use crate::{
    AllTemplates, NetworkTemplate, NetworkTemplateNet, Ova, Profile, Script, StorageTemplate,
    StorageTemplateDisk, SystemTemplate, Uploaded, Userdata,
};

params! {
    /// Filter of what is listed.
    #[derive(Default)]
    pub struct NameFilter {
        /// A part of the name; `^` before it binds it to the beginning, `$` behind it to the end.
        limit: Option<String>,
    }
}

params! {
    /// A system template to be added.
    pub struct SystemTemplateAddition {
        /// Name of the template.
        name: String,
        /// Number of vCPUs.
        vcpus: u32,
        /// Memory, in MiB.
        vram: u32,
        /// Whether there is a serial console.
        serial: bool,
        /// Whether there is VNC.
        vnc: bool,
        /// Address that VNC listens at.
        vnc_bind: Option<String>,
        /// Nodes that the VM may run on.
        node_limit: Commas,
        /// Figure by which a node is chosen: `mem`, `memprov`, `vcpus`, `load`, `vms` or `none`.
        node_selector: Option<String>,
        /// Whether the VM is started with its node.
        node_autostart: Option<bool>,
        /// Way in which the VM is moved: `live`, `shutdown` or `none`.
        migration_method: Option<String>,
        /// Longest standstill in a live migration, in milliseconds; 300 if not given.
        migration_max_downtime: Option<u32>,
    }
}

params! {
    /// A system template to be added, whose name stands in the path.
    pub struct SystemTemplateNew {
        /// Number of vCPUs.
        vcpus: u32,
        /// Memory, in MiB.
        vram: u32,
        /// Whether there is a serial console.
        serial: bool,
        /// Whether there is VNC.
        vnc: bool,
        /// Address that VNC listens at.
        vnc_bind: Option<String>,
        /// Nodes that the VM may run on.
        node_limit: Commas,
        /// Figure by which a node is chosen: `mem`, `memprov`, `vcpus`, `load`, `vms` or `none`.
        node_selector: Option<String>,
        /// Whether the VM is started with its node.
        node_autostart: Option<bool>,
        /// Way in which the VM is moved: `live`, `shutdown` or `none`.
        migration_method: Option<String>,
        /// Longest standstill in a live migration, in milliseconds; 300 if not given.
        migration_max_downtime: Option<u32>,
    }
}

params! {
    /// Fields of a system template; what is not given stays as it is.
    #[derive(Default)]
    pub struct SystemTemplateChange {
        /// Number of vCPUs.
        vcpus: Option<u32>,
        /// Memory, in MiB.
        vram: Option<u32>,
        /// Whether there is a serial console.
        serial: Option<bool>,
        /// Whether there is VNC.
        vnc: Option<bool>,
        /// Address that VNC listens at; an empty text clears it.
        vnc_bind: Option<String>,
        /// Nodes that the VM may run on; an empty text is all of them.
        node_limit: Option<Commas>,
        /// Figure by which a node is chosen: `mem`, `memprov`, `vcpus`, `load`, `vms` or `none`.
        node_selector: Option<String>,
        /// Whether the VM is started with its node.
        node_autostart: Option<bool>,
        /// Way in which the VM is moved: `live`, `shutdown` or `none`.
        migration_method: Option<String>,
        /// Longest standstill in a live migration, in milliseconds.
        migration_max_downtime: Option<u32>,
    }
}

operations! { "provisioner-template":
    /// The templates of all kinds.
    GetProvisionerTemplate {
        GET "/provisioner/template", Reader, read(NameFilter) -> AllTemplates
    }
}

operations! { "provisioner-template":
    /// The system templates.
    GetProvisionerTemplateSystem {
        GET "/provisioner/template/system", Reader, read(NameFilter) -> [SystemTemplate]
    }

    /// Adds a system template.
    PostProvisionerTemplateSystem {
        POST "/provisioner/template/system", Operator, change(SystemTemplateAddition)
    }

    /// A system template.
    GetProvisionerTemplateSystemTemplate {
        GET "/provisioner/template/system/{template}", Reader, read -> [SystemTemplate]
    }

    /// Adds a system template.
    PostProvisionerTemplateSystemTemplate {
        POST "/provisioner/template/system/{template}", Operator, change(SystemTemplateNew)
    }

    /// Changes a system template.
    PutProvisionerTemplateSystemTemplate {
        PUT "/provisioner/template/system/{template}", Operator, change(SystemTemplateChange)
    }

    /// Removes a system template that no profile uses.
    DeleteProvisionerTemplateSystemTemplate {
        DELETE "/provisioner/template/system/{template}", Operator, change
    }
}

params! {
    /// A network template to be added.
    pub struct NetworkTemplateAddition {
        /// Name of the template.
        name: String,
        /// Pattern of MAC addresses, with `{prefix}`, `{vmid}` and `{netid}`.
        mac_template: Option<String>,
    }
}

params! {
    /// A network template to be added, whose name stands in the path.
    pub struct NetworkTemplateNew {
        /// Pattern of MAC addresses, with `{prefix}`, `{vmid}` and `{netid}`.
        mac_template: Option<String>,
    }
}

params! {
    /// A network to be added to a network template.
    pub struct TemplateNetAddition {
        /// VNI, or `upstream`, `cluster` or `storage`.
        vni: String,
        /// Whether it may be there already.
        permit_duplicate: Option<bool>,
    }
}

params! {
    /// A network to be added to a network template, whose VNI stands in the path.
    #[derive(Default)]
    pub struct TemplateNetNew {
        /// Whether it may be there already.
        permit_duplicate: Option<bool>,
    }
}

operations! { "provisioner-template":
    /// The network templates.
    GetProvisionerTemplateNetwork {
        GET "/provisioner/template/network", Reader, read(NameFilter) -> [NetworkTemplate]
    }

    /// Adds a network template.
    PostProvisionerTemplateNetwork {
        POST "/provisioner/template/network", Operator, change(NetworkTemplateAddition)
    }

    /// A network template.
    GetProvisionerTemplateNetworkTemplate {
        GET "/provisioner/template/network/{template}", Reader, read -> [NetworkTemplate]
    }

    /// Adds a network template.
    PostProvisionerTemplateNetworkTemplate {
        POST "/provisioner/template/network/{template}", Operator, change(NetworkTemplateNew)
    }

    /// Removes a network template that no profile uses.
    DeleteProvisionerTemplateNetworkTemplate {
        DELETE "/provisioner/template/network/{template}", Operator, change
    }

    /// The networks of a network template.
    GetProvisionerTemplateNetworkTemplateNet {
        GET "/provisioner/template/network/{template}/net", Reader, read -> [NetworkTemplateNet]
    }

    /// Adds a network to a network template.
    ///
    /// A VM gets an interface for each. Whether there is a network of that VNI is looked at when
    /// a VM is made.
    PostProvisionerTemplateNetworkTemplateNet {
        POST "/provisioner/template/network/{template}/net", Operator, change(TemplateNetAddition)
    }

    /// A network of a network template.
    GetProvisionerTemplateNetworkTemplateNetVni {
        GET "/provisioner/template/network/{template}/net/{vni}", Reader,
        read -> NetworkTemplateNet
    }

    /// Adds a network to a network template.
    PostProvisionerTemplateNetworkTemplateNetVni {
        POST "/provisioner/template/network/{template}/net/{vni}", Operator,
        change(TemplateNetNew)
    }

    /// Removes a network from a network template, however often it is there.
    DeleteProvisionerTemplateNetworkTemplateNetVni {
        DELETE "/provisioner/template/network/{template}/net/{vni}", Operator, change
    }
}

params! {
    /// A storage template to be added.
    pub struct StorageTemplateAddition {
        /// Name of the template.
        name: String,
    }
}

params! {
    /// A disk to be added to a storage template.
    pub struct TemplateDiskAddition {
        /// Name of the device in the guest: `sda`.
        disk_id: String,
        /// Pool that its volume is made in.
        pool: String,
        /// Volume of the pool that it is a copy of; without a size, a filesystem and a mountpoint.
        source_volume: Option<String>,
        /// Size in GiB.
        disk_size: Option<u32>,
        /// Filesystem that is made on it: `ext4`.
        filesystem: Option<String>,
        /// Option for the program that makes the filesystem: `-L=root`.
        filesystem_arg: Repeated,
        /// Place where it is mounted in the guest.
        mountpoint: Option<String>,
    }
}

params! {
    /// A disk to be added to a storage template, whose name stands in the path.
    pub struct TemplateDiskNew {
        /// Pool that its volume is made in.
        pool: String,
        /// Volume of the pool that it is a copy of; without a size, a filesystem and a mountpoint.
        source_volume: Option<String>,
        /// Size in GiB.
        disk_size: Option<u32>,
        /// Filesystem that is made on it: `ext4`.
        filesystem: Option<String>,
        /// Option for the program that makes the filesystem: `-L=root`.
        filesystem_arg: Repeated,
        /// Place where it is mounted in the guest.
        mountpoint: Option<String>,
    }
}

operations! { "provisioner-template":
    /// The storage templates.
    GetProvisionerTemplateStorage {
        GET "/provisioner/template/storage", Reader, read(NameFilter) -> [StorageTemplate]
    }

    /// Adds a storage template.
    PostProvisionerTemplateStorage {
        POST "/provisioner/template/storage", Operator, change(StorageTemplateAddition)
    }

    /// A storage template.
    GetProvisionerTemplateStorageTemplate {
        GET "/provisioner/template/storage/{template}", Reader, read -> [StorageTemplate]
    }

    /// Adds a storage template.
    PostProvisionerTemplateStorageTemplate {
        POST "/provisioner/template/storage/{template}", Operator, change
    }

    /// Removes a storage template that no profile uses.
    DeleteProvisionerTemplateStorageTemplate {
        DELETE "/provisioner/template/storage/{template}", Operator, change
    }

    /// The disks of a storage template.
    GetProvisionerTemplateStorageTemplateDisk {
        GET "/provisioner/template/storage/{template}/disk", Reader,
        read(NameFilter) -> [StorageTemplateDisk]
    }

    /// Adds a disk to a storage template.
    PostProvisionerTemplateStorageTemplateDisk {
        POST "/provisioner/template/storage/{template}/disk", Operator,
        change(TemplateDiskAddition)
    }

    /// A disk of a storage template.
    GetProvisionerTemplateStorageTemplateDiskDiskId {
        GET "/provisioner/template/storage/{template}/disk/{disk_id}", Reader,
        read -> StorageTemplateDisk
    }

    /// Adds a disk to a storage template.
    PostProvisionerTemplateStorageTemplateDiskDiskId {
        POST "/provisioner/template/storage/{template}/disk/{disk_id}", Operator,
        change(TemplateDiskNew)
    }

    /// Removes a disk from a storage template.
    DeleteProvisionerTemplateStorageTemplateDiskDiskId {
        DELETE "/provisioner/template/storage/{template}/disk/{disk_id}", Operator, change
    }
}

params! {
    /// A text to be kept.
    pub struct TextAddition {
        /// Name of it.
        name: String,
        @form
        /// The text.
        data: String,
    }
}

params! {
    /// A text to be kept under the name that stands in the path.
    pub struct TextBody {
        @form
        /// The text.
        data: String,
    }
}

operations! { "provisioner-userdata":
    /// The userdata for cloud-init in guests.
    GetProvisionerUserdata {
        GET "/provisioner/userdata", Operator, read(NameFilter) -> [Userdata]
    }

    /// Adds userdata.
    PostProvisionerUserdata { POST "/provisioner/userdata", Operator, change(TextAddition) }

    /// Userdata.
    GetProvisionerUserdataUserdata {
        GET "/provisioner/userdata/{userdata}", Operator, read -> [Userdata]
    }

    /// Adds userdata.
    PostProvisionerUserdataUserdata {
        POST "/provisioner/userdata/{userdata}", Operator, change(TextBody)
    }

    /// Replaces userdata.
    PutProvisionerUserdataUserdata {
        PUT "/provisioner/userdata/{userdata}", Operator, change(TextBody)
    }

    /// Removes userdata that no profile uses.
    DeleteProvisionerUserdataUserdata {
        DELETE "/provisioner/userdata/{userdata}", Operator, change
    }
}

operations! { "provisioner-script":
    /// The scripts that build VMs.
    GetProvisionerScript { GET "/provisioner/script", Operator, read(NameFilter) -> [Script] }

    /// Adds a script, which is run as root on a node when a VM is made.
    PostProvisionerScript { POST "/provisioner/script", Administrator, change(TextAddition) }

    /// A script.
    GetProvisionerScriptScript {
        GET "/provisioner/script/{script}", Operator, read -> [Script]
    }

    /// Adds a script, which is run as root on a node when a VM is made.
    PostProvisionerScriptScript {
        POST "/provisioner/script/{script}", Administrator, change(TextBody)
    }

    /// Replaces a script.
    PutProvisionerScriptScript {
        PUT "/provisioner/script/{script}", Administrator, change(TextBody)
    }

    /// Removes a script that no profile uses.
    DeleteProvisionerScriptScript {
        DELETE "/provisioner/script/{script}", Administrator, change
    }
}

choice! {
    /// Source of a VM's disks.
    pub enum ProfileType { Provisioner = "provisioner", Ova = "ova" }
}

params! {
    /// A profile to be added.
    pub struct ProfileAddition {
        /// Name of the profile.
        name: String,
        /// Source of the disks: a storage template, or an OVA.
        profile_type: ProfileType,
        /// Name of a system template.
        system_template: String,
        /// Name of a network template; needed unless the disks are those of an OVA.
        network_template: Option<String>,
        /// Name of a storage template; needed unless the disks are those of an OVA.
        storage_template: Option<String>,
        /// Name of a userdata.
        userdata: Option<String>,
        /// Name of a script.
        script: String,
        /// Name of an OVA.
        ova: Option<String>,
        /// Argument of the script: `NAME=VALUE`.
        arg: Repeated,
    }
}

params! {
    /// A profile to be added, whose name stands in the path.
    pub struct ProfileNew {
        /// Source of the disks: a storage template, or an OVA.
        profile_type: ProfileType,
        /// Name of a system template.
        system_template: String,
        /// Name of a network template; needed unless the disks are those of an OVA.
        network_template: Option<String>,
        /// Name of a storage template; needed unless the disks are those of an OVA.
        storage_template: Option<String>,
        /// Name of a userdata.
        userdata: Option<String>,
        /// Name of a script.
        script: String,
        /// Name of an OVA.
        ova: Option<String>,
        /// Argument of the script: `NAME=VALUE`.
        arg: Repeated,
    }
}

params! {
    /// Fields of a profile; what is not given stays as it is, and an empty text clears.
    #[derive(Default)]
    pub struct ProfileChange {
        /// Name of a system template.
        system_template: Option<String>,
        /// Name of a network template.
        network_template: Option<String>,
        /// Name of a storage template.
        storage_template: Option<String>,
        /// Name of a userdata.
        userdata: Option<String>,
        /// Name of a script.
        script: Option<String>,
        /// Argument of the script, `NAME=VALUE`, in the place of all there were.
        arg: Option<Repeated>,
    }
}

operations! { "provisioner-profile":
    /// The profiles.
    GetProvisionerProfile { GET "/provisioner/profile", Operator, read(NameFilter) -> [Profile] }

    /// Adds a profile.
    PostProvisionerProfile { POST "/provisioner/profile", Operator, change(ProfileAddition) }

    /// A profile.
    GetProvisionerProfileProfile {
        GET "/provisioner/profile/{profile}", Operator, read -> [Profile]
    }

    /// Adds a profile.
    PostProvisionerProfileProfile {
        POST "/provisioner/profile/{profile}", Operator, change(ProfileNew)
    }

    /// Changes a profile.
    PutProvisionerProfileProfile {
        PUT "/provisioner/profile/{profile}", Operator, change(ProfileChange)
    }

    /// Removes a profile.
    DeleteProvisionerProfileProfile {
        DELETE "/provisioner/profile/{profile}", Operator, change
    }
}

params! {
    /// An OVA to be added.
    pub struct OvaAddition {
        /// Name of the pool that gets the disks.
        pool: String,
        /// Name of the OVA, of its templates and of its profile.
        name: String,
        /// The size of the file that is sent, in bytes: a larger one is refused.
        ova_size: u64,
    }
}

params! {
    /// An OVA to be added, whose name stands in the path.
    pub struct OvaNew {
        /// Name of the pool that gets the disks.
        pool: String,
        /// The size of the file that is sent, in bytes: a larger one is refused.
        ova_size: u64,
    }
}

operations! { "provisioner-ova":
    /// The OVAs.
    GetProvisionerOva { GET "/provisioner/ova", Reader, read(NameFilter) -> [Ova] }

    /// Adds an OVA: a volume for each of its disks, and templates and a profile of its name.
    ///
    /// The OVA is the part `file` of a multipart form, or the body itself as
    /// `application/octet-stream`, and its description is the first file in it. It is read as it
    /// comes. All of it is added, or nothing.
    PostProvisionerOva {
        POST "/provisioner/ova", Operator, upload(OvaAddition) -> Uploaded
    }

    /// An OVA.
    GetProvisionerOvaOva { GET "/provisioner/ova/{ova}", Reader, read -> [Ova] }

    /// Adds an OVA: a volume for each of its disks, and templates and a profile of its name.
    ///
    /// The OVA is the part `file` of a multipart form, or the body itself as
    /// `application/octet-stream`, and its description is the first file in it. It is read as it
    /// comes. All of it is added, or nothing.
    PostProvisionerOvaOva {
        POST "/provisioner/ova/{ova}", Operator, upload(OvaNew) -> Uploaded
    }

    /// Removes an OVA with its templates, its profiles and its volumes, which go to the trash.
    DeleteProvisionerOvaOva { DELETE "/provisioner/ova/{ova}", Operator, change }
}

params! {
    /// A VM to be made from a profile.
    pub struct Creation {
        /// Name of the VM.
        name: String,
        /// Name of the profile.
        profile: String,
        /// Whether the VM is recorded, as the script describes it; it is unless said otherwise.
        define_vm: Option<bool>,
        /// Whether it is started when it is made; one that is recorded is unless said otherwise.
        start_vm: Option<bool>,
        /// Argument of the script, `NAME=VALUE`, which counts more than that of the profile.
        arg: Repeated,
    }
}

operations! { "provisioner-create":
    /// Makes a VM by the script of a profile: all of it, or nothing.
    PostProvisionerCreate { POST "/provisioner/create", Operator, task(Creation) }
}
