//! VMs.

use super::node::Lines;
use crate::param::{Added, Commas, Flag, Or};
use crate::{
    Message, MovePlan, NetworkTrace, Vm, VmConsole, VmDisk, VmHardware, VmMemory, VmMeta,
    VmNetwork, VmNode, VmState, VmTags, VmVcpus,
};

choice! {
    /// The states that VMs can be listed by.
    pub enum ListedState {
        Start = "start",
        Restart = "restart",
        Shutdown = "shutdown",
        Stop = "stop",
        Disable = "disable",
        Fail = "fail",
        Migrate = "migrate",
        Unmigrate = "unmigrate",
        Provision = "provision",
        Import = "import",
        Restore = "restore",
        Mirror = "mirror",
    }
}

params! {
    /// Filter of the VMs to list.
    #[derive(Default)]
    pub struct VmFilter {
        /// A regular expression on the name, or a UUID.
        limit: Option<String>,
        /// Only those on this node.
        node: Option<String>,
        /// Only those in this state.
        state: Option<ListedState>,
        /// Only those with this tag.
        tag: Option<String>,
        /// Turns node, state and tag around.
        negate: Flag,
    }
}

choice! {
    /// Figure by which a target node is chosen.
    pub enum SelectorWord {
        Mem = "mem",
        Memprov = "memprov",
        Vcpus = "vcpus",
        Load = "load",
        Vms = "vms",
        None = "none",
    }
}

choice! {
    /// Way in which a VM may be moved.
    pub enum MethodWord { Live = "live", Shutdown = "shutdown", None = "none" }
}

params! {
    /// A new VM.
    pub struct Definition {
        /// The node to assign it to; without one it is chosen.
        node: Option<String>,
        /// The only nodes it may be placed on.
        limit: Commas,
        /// Figure by which a target node is chosen; `none` for the cluster's way.
        selector: Option<SelectorWord>,
        /// Whether it starts with its node.
        autostart: Flag,
        /// Way in which it may be moved; `none` for any way.
        migration_method: Option<MethodWord>,
        /// Milliseconds that it may stand still for a live migration.
        migration_max_downtime: Or<300>,
        /// Tags that can be removed.
        user_tags: Vec<String>,
        /// Tags that cannot be removed.
        protected_tags: Vec<String>,
        /// Takes it also if it is plugged into a network between the nodes, or has the MAC address
        /// of another VM in a network.
        force: Added,
        @form
        /// The libvirt domain XML, with name and UUID.
        xml: String,
    }
}

params! {
    /// Other hardware.
    pub struct Modification {
        /// Restarts a running guest, so that it gets the new hardware.
        restart: Flag,
        /// Takes it also if it is plugged into a network between the nodes, or has the MAC address
        /// of another VM in a network.
        force: Added,
        @form
        /// The libvirt domain XML, of the same name and UUID.
        xml: String,
    }
}

params! {
    /// Other hardware, to be judged.
    pub struct Proposal {
        /// Judge it as if the definition were changed with `force`.
        force: Added,
        @form
        /// The libvirt domain XML, of the same name and UUID.
        xml: String,
    }
}

params! {
    /// Choice of what is to go.
    #[derive(Default)]
    pub struct Removal {
        /// Removes the VM's volumes with their snapshots as well.
        delete_disks: Flag,
    }
}

params! {
    /// Changes of metadata. What is not given stays.
    #[derive(Default)]
    pub struct MetaChange {
        /// The only nodes it may be placed on; empty for any.
        limit: Option<Commas>,
        /// Figure by which a target node is chosen; `none` for the cluster's way.
        selector: Option<SelectorWord>,
        /// Whether it starts with its node.
        autostart: Option<bool>,
        /// The name of the provisioner's profile.
        profile: Option<String>,
        /// Way in which it may be moved; `none` for any way.
        migration_method: Option<MethodWord>,
        /// Milliseconds that it may stand still for a live migration.
        migration_max_downtime: Option<u32>,
    }
}

choice! {
    /// Action on a tag.
    pub enum TagAction { Add = "add", Remove = "remove" }
}

params! {
    /// A change of tags.
    pub struct TagChange {
        /// Action to take.
        action: TagAction,
        /// The tag.
        tag: String,
        /// Whether the tag cannot be removed.
        protected: Flag,
    }
}

params! {
    /// Another name.
    pub struct Rename {
        /// The name it is to have.
        new_name: String,
    }
}

choice! {
    /// State that a VM is to be in.
    pub enum StateWord {
        Start = "start",
        Shutdown = "shutdown",
        Stop = "stop",
        Restart = "restart",
        Disable = "disable",
    }
}

params! {
    /// A request for another state.
    pub struct StateChange {
        /// The state that is wanted.
        state: StateWord,
        /// Also for a mirror, and on a node without the memory for it; disables without a graceful
        /// shutdown.
        force: Flag,
        /// Reply when the state is reached.
        wait: Flag,
    }
}

choice! {
    /// Action on a VM's place.
    pub enum PlaceAction { Migrate = "migrate", Unmigrate = "unmigrate", Move = "move" }
}

params! {
    /// Another node.
    pub struct Placement {
        /// `move` for good, `migrate` to come back by `unmigrate`.
        action: PlaceAction,
        /// The target; chosen without one.
        node: Option<String>,
        /// Migrates a VM further that is migrated already, and takes a flushed node for its target.
        force: Flag,
        /// Reply when it is there.
        wait: Flag,
        /// Live or not at all.
        force_live: Flag,
    }
}

params! {
    /// A device to plug in.
    pub struct Attachment {
        /// Plugs it in also into a network between the nodes, or with the MAC address of another VM
        /// in the network.
        force: Added,
        @form
        /// Element of libvirt's domain XML, as below `<devices>`.
        xml: String,
    }
}

params! {
    /// A device.
    pub struct DeviceRequest {
        @form
        /// Element of libvirt's domain XML, as below `<devices>`.
        xml: String,
    }
}

choice! {
    /// Chipset of a VM's machine.
    pub enum MachineWord { Q35 = "q35", Pc = "pc" }
}

choice! {
    /// Firmware of a VM's machine.
    pub enum FirmwareWord { Bios = "bios", Uefi = "uefi" }
}

params! {
    /// A VM to make of an image.
    pub struct VmCreation {
        /// The image that its disk is a clone of: its name, or `POOL/NAME` where several pools have
        /// one of that name.
        image: Option<String>,
        /// The image, named likewise, that it has as a CD: a system is installed from it on an
        /// empty disk. Either this or `image` is given.
        iso: Option<String>,
        /// Number of vCPUs, 1 without it.
        vcpus: Or<1>,
        /// The memory in MiB, 1024 without it.
        memory: Or<1024>,
        /// The size of the disk, such as `20G`; without it that of `image`.
        disk: Option<String>,
        /// A network that it has a card in: a VNI, a description, `upstream`, `cluster` or
        /// `storage`. May be given again.
        network: Vec<String>,
        /// Chipset of the machine, `q35` without it.
        machine: Option<MachineWord>,
        /// Firmware of the machine, `bios` without it.
        firmware: Option<FirmwareWord>,
        /// Whether it has a TPM 2.0.
        tpm: Flag,
        /// Leaves out the disk with cloud-init's data.
        no_cloud_init: Flag,
        /// The node to assign it to; without one it is chosen.
        node: Option<String>,
        /// Whether it starts with its node.
        autostart: Flag,
        /// Starts it when it is made.
        start: Flag,
        /// Takes it also if it is plugged into a network between the nodes.
        force: Flag,
        @form
        /// Public SSH keys for the image's usual user, one in each line.
        ssh_keys: Option<String>,
        /// User data as cloud-init takes it.
        user_data: Option<String>,
    }
}

params! {
    /// Another amount of memory.
    pub struct MemoryChange {
        /// The memory in MiB, at least 1.
        memory: u64,
        /// Restarts a running guest, so that it gets it.
        restart: Flag,
    }
}

params! {
    /// Another number of vCPUs. Without a topology one socket has them all as its cores; of one
    /// that is given in part, the rest is 1.
    pub struct VcpuChange {
        /// Number of vCPUs, at least 1.
        vcpus: u32,
        /// Number of sockets.
        sockets: Option<u32>,
        /// Number of cores of each socket.
        cores: Option<u32>,
        /// Number of threads of each core.
        threads: Option<u32>,
        /// Restarts a running guest, so that it gets them.
        restart: Flag,
    }
}

choice! {
    /// Way in which a guest is given an SR-IOV VF.
    pub enum SriovWord { Hostdev = "hostdev", Macvtap = "macvtap" }
}

params! {
    /// A network card to add.
    pub struct NetworkAddition {
        /// The VNI or description of the network, or `upstream`, `cluster` or `storage`; with
        /// `sriov` the VF.
        network: String,
        /// Its MAC address; a random one without it.
        mac: Option<String>,
        /// Model that the guest sees; `virtio` without it.
        model: Option<String>,
        /// Says that `network` is an SR-IOV VF of the VM's node, and how the guest is given it.
        sriov: Option<SriovWord>,
        /// Restarts a running guest, so that it gets it.
        restart: Flag,
        /// Adds it also to `cluster` or `storage`, on which the nodes speak to each other, or with
        /// the MAC address of another VM in the network.
        force: Flag,
    }
}

params! {
    /// Network cards to remove: all in a network, or the one with an address; with both given the
    /// one that fits both.
    #[derive(Default)]
    pub struct NetworkRemoval {
        /// The VNI of the network, or `upstream`, `cluster` or `storage`; with `sriov` the VF.
        network: Option<String>,
        /// The MAC address of the card.
        mac: Option<String>,
        /// Says that `network` is an SR-IOV VF.
        sriov: Flag,
        /// Restarts a running guest, so that it loses them.
        restart: Flag,
    }
}

choice! {
    /// Protocol of a packet; with `icmp` it is an echo request.
    pub enum TraceProtocol { Tcp = "tcp", Udp = "udp", Icmp = "icmp" }
}

params! {
    /// A packet to follow.
    pub struct TraceQuestion {
        /// Its target: an address, or a VM by name or UUID.
        target: String,
        /// The network that it leaves by, by VNI or description; without it the one that the target
        /// is in, or the first that is PVC's own.
        network: Option<String>,
        /// Its protocol; any without it.
        protocol: Option<TraceProtocol>,
        /// Its destination port, with `tcp` or `udp`; any without it.
        port: Option<u32>,
    }
}

choice! {
    /// Source of a disk: a volume of the storage, or a file of the node.
    pub enum DiskWord { Rbd = "rbd", File = "file" }
}

choice! {
    /// Bus that a disk is connected to.
    pub enum BusWord { Scsi = "scsi", Ide = "ide", Usb = "usb", Virtio = "virtio" }
}

params! {
    /// A disk to add.
    pub struct VolumeAddition {
        /// The volume as `POOL/VOLUME`, or the path of a file on the node.
        volume: String,
        /// Source of the disk; `rbd` without it.
        kind = "type": Option<DiskWord>,
        /// Target of the disk, such as `sdb`; the next free name without it.
        disk_id: Option<String>,
        /// Bus that it is connected to; that of the disk that it is modelled on without it.
        bus: Option<BusWord>,
        /// Restarts a running guest, so that it gets it.
        restart: Flag,
    }
}

params! {
    /// A disk to remove.
    pub struct VolumeRemoval {
        /// The volume as `POOL/VOLUME`, the path of the file, or what the guest calls it.
        volume: String,
        /// Restarts a running guest, so that it loses it.
        restart: Flag,
    }
}

operations! { "vm":
    /// The VMs by name.
    GetVm { GET "/vm", Reader, read(VmFilter) -> [Vm] }

    /// Defines a VM.
    PostVm { POST "/vm", Operator, change(Definition) }

    /// A VM, by name or UUID.
    GetVmVm { GET "/vm/{vm}", Reader, read -> [Vm] }

    /// Defines a VM whose XML has this name or UUID.
    PostVmVm { POST "/vm/{vm}", Operator, change(Definition) }

    /// Replaces the definition of a VM. A running guest has it after its next start.
    PutVmVm { PUT "/vm/{vm}", Operator, change(Modification) }

    /// Stops a VM and removes its record.
    DeleteVmVm { DELETE "/vm/{vm}", Operator, change(Removal) }

    /// Settings for what the cluster does with a VM by itself.
    GetVmVmMeta { GET "/vm/{vm}/meta", Reader, read -> VmMeta }

    /// Changes what the cluster does with a VM by itself.
    PostVmVmMeta { POST "/vm/{vm}/meta", Operator, change(MetaChange) }

    /// The tags of a VM.
    GetVmVmTags { GET "/vm/{vm}/tags", Reader, read -> VmTags }

    /// Adds a tag to a VM, or removes it.
    PostVmVmTags { POST "/vm/{vm}/tags", Operator, change(TagChange) }

    /// The state of a VM.
    GetVmVmState { GET "/vm/{vm}/state", Reader, read -> VmState }

    /// Starts or stops a VM.
    PostVmVmState { POST "/vm/{vm}/state", Operator, change(StateChange) }

    /// Node of a VM.
    GetVmVmNode { GET "/vm/{vm}/node", Reader, read -> VmNode }

    /// Moves a VM to another node.
    PostVmVmNode {
        POST "/vm/{vm}/node", Operator, change(Placement),
        dry_run: MovePlan,
        "Change nothing, and reply where the VM would go and how every node does."
    }

    /// The end of a VM's serial console.
    GetVmVmConsole { GET "/vm/{vm}/console", Reader, read(Lines) -> VmConsole }

    /// Says whether a `PUT` of the same XML would be refused, and why. Nothing is changed.
    PostVmVmCheck { POST "/vm/{vm}/check", Reader, read(Proposal) -> Message }

    /// Says whether a `DELETE` of the VM would be refused, and why. Nothing is changed. A path of
    /// its own: a server that did not know a parameter for it would remove the VM.
    GetVmVmRemoval { GET "/vm/{vm}/removal", Reader, read(Removal) -> Message }

    /// The memory of a VM.
    GetVmVmMemory { GET "/vm/{vm}/memory", Reader, read -> VmMemory }

    /// Gives a VM another amount of memory. A running guest has it after its next start.
    PutVmVmMemory { PUT "/vm/{vm}/memory", Operator, change(MemoryChange) -> VmHardware }

    /// The vCPUs of a VM.
    GetVmVmVcpus { GET "/vm/{vm}/vcpus", Reader, read -> VmVcpus }

    /// Gives a VM another number of vCPUs. A running guest has them after its next start.
    PutVmVmVcpus { PUT "/vm/{vm}/vcpus", Operator, change(VcpuChange) -> VmHardware }

    /// The network cards of a VM.
    GetVmVmNetworks { GET "/vm/{vm}/networks", Reader, read -> [VmNetwork] }

    /// Adds a network card to the definition of a VM. A running guest has it after its next start,
    /// or when the device of the reply is plugged in (`POST /vm/{vm}/device`).
    PostVmVmNetworks {
        POST "/vm/{vm}/networks", Operator, change(NetworkAddition) -> VmHardware
    }

    /// Removes network cards from the definition of a VM. A running guest loses them with its next
    /// start, or when the devices of the reply are unplugged (`DELETE /vm/{vm}/device`).
    DeleteVmVmNetworks {
        DELETE "/vm/{vm}/networks", Operator, change(NetworkRemoval) -> VmHardware
    }

    /// The way that a packet of a VM takes, by the records, and that of the answer to it: which
    /// bridge, tunnel, gateway and rule it meets, and where it ends. Nothing is sent.
    GetVmVmTrace { GET "/vm/{vm}/trace", Reader, read(TraceQuestion) -> NetworkTrace }

    /// The disks of a VM.
    GetVmVmVolumes { GET "/vm/{vm}/volumes", Reader, read -> [VmDisk] }

    /// Adds a disk to the definition of a VM. A running guest has it after its next start, or when
    /// the device of the reply is plugged in (`POST /vm/{vm}/device`).
    PostVmVmVolumes { POST "/vm/{vm}/volumes", Operator, change(VolumeAddition) -> VmHardware }

    /// Removes a disk from the definition of a VM; the volume itself is kept. A running guest loses
    /// it with its next start, or when the device of the reply is unplugged
    /// (`DELETE /vm/{vm}/device`).
    DeleteVmVmVolumes { DELETE "/vm/{vm}/volumes", Operator, change(VolumeRemoval) -> VmHardware }

    /// Makes a VM with this name, whose disk is a copy-on-write clone of an image: all of it, or
    /// nothing.
    PostVmVmCreate { POST "/vm/{vm}/create", Operator, task(VmCreation) }

    /// Breaks the locks that a dead host left on a VM's volumes.
    PostVmVmLocks { POST "/vm/{vm}/locks", Operator, task }

    /// Gives a VM another name, and its volumes that are named after it.
    PostVmVmRename { POST "/vm/{vm}/rename", Operator, change(Rename) }

    /// Plugs a device into a running guest.
    PostVmVmDevice { POST "/vm/{vm}/device", Operator, task(Attachment) }

    /// Unplugs a device from a running guest.
    DeleteVmVmDevice { DELETE "/vm/{vm}/device", Operator, task(DeviceRequest) }
}
