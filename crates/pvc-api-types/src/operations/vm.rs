//! VMs.

use super::node::Lines;
use crate::param::{Added, Commas, Flag, Or};
use crate::{Message, MovePlan, Vm, VmConsole, VmMeta, VmNode, VmState, VmTags};

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
    /// How a target node is chosen.
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
    /// How a VM may be moved.
    pub enum MethodWord { Live = "live", Shutdown = "shutdown", None = "none" }
}

params! {
    /// A new VM.
    pub struct Definition {
        /// The node to assign it to; without one it is chosen.
        node: Option<String>,
        /// The only nodes it may be placed on.
        limit: Commas,
        /// How a target node is chosen; `none` for the cluster's way.
        selector: Option<SelectorWord>,
        /// Whether it starts with its node.
        autostart: Flag,
        /// How it may be moved; `none` for any way.
        migration_method: Option<MethodWord>,
        /// Milliseconds that it may stand still for a live migration.
        migration_max_downtime: Or<300>,
        /// Tags that can be removed.
        user_tags: Vec<String>,
        /// Tags that cannot be removed.
        protected_tags: Vec<String>,
        /// Takes it also if it is plugged into a network between the nodes.
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
        /// Takes it also if it is plugged into a network between the nodes.
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
        /// How a target node is chosen; `none` for the cluster's way.
        selector: Option<SelectorWord>,
        /// Whether it starts with its node.
        autostart: Option<bool>,
        /// The name of the provisioner's profile.
        profile: Option<String>,
        /// How it may be moved; `none` for any way.
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
        /// Plugs it in also into a network between the nodes.
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

    /// Breaks the locks that a dead host left on a VM's volumes.
    PostVmVmLocks { POST "/vm/{vm}/locks", Operator, task }

    /// Gives a VM another name, and its volumes that are named after it.
    PostVmVmRename { POST "/vm/{vm}/rename", Operator, change(Rename) }

    /// Plugs a device into a running guest.
    PostVmVmDevice { POST "/vm/{vm}/device", Operator, task(Attachment) }

    /// Unplugs a device from a running guest.
    DeleteVmVmDevice { DELETE "/vm/{vm}/device", Operator, task(DeviceRequest) }
}
