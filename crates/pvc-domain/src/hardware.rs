//! Changes of a VM's hardware as values, for whoever makes them: the API in the record, a client of
//! a PVC 1.0.3 server in the XML that it then sends back.

use crate::{Domain, EditError, NewDisk, NewNic};

/// A change of one part of the hardware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HardwareEdit {
    /// In MiB.
    Memory(u64),
    /// Number of vCPUs, and as how many sockets, cores of each and threads of each; without that
    /// one socket has them all as its cores.
    Vcpus {
        vcpus: u32,
        topology: Option<(u32, u32, u32)>,
    },
    AddNic(NewNic),
    RemoveNics(WhichNics),
    AddDisk(NewDisk),
    /// By its target (`sda`), its volume (`pool/volume`) or its file.
    RemoveDisk(String),
}

/// The network interfaces in a network, or the one with an address; with both given the one that
/// fits both. With neither, none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WhichNics {
    /// A network as [`Nic::vni`](pvc_model::domain::Nic::vni) says it, or with `sriov` a VF.
    pub network: Option<String>,
    /// Only those that are on a VF, in either of the two ways in which a guest is given one.
    pub sriov: bool,
    pub mac: Option<String>,
}

impl Domain {
    /// Makes the change. Returns the elements of the devices that came or went, as they are
    /// attached to a running guest or detached from it; none for what a guest has from its start.
    ///
    /// # Errors
    /// If it cannot be made of this domain. Nothing is changed then.
    pub fn edit(&mut self, edit: &HardwareEdit) -> Result<Vec<String>, EditError> {
        match edit {
            HardwareEdit::Memory(mib) => self.set_memory_mib(*mib).map(|()| Vec::new()),
            HardwareEdit::Vcpus { vcpus, topology } => {
                let topology = topology.unwrap_or((1, *vcpus, 1));
                self.set_vcpus(*vcpus, Some(topology)).map(|()| Vec::new())
            }
            HardwareEdit::AddNic(nic) => self.add_nic(nic).map(|nic| vec![nic]),
            HardwareEdit::RemoveNics(which) => self.remove_nics(which),
            HardwareEdit::AddDisk(disk) => self.add_disk(disk).map(|disk| vec![disk.xml]),
            HardwareEdit::RemoveDisk(which) => self.remove_disk(which).map(|disk| vec![disk]),
        }
    }
}
