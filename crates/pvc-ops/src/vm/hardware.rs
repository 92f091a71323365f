//! Changing one part of a VM's hardware, and leaving the rest of its XML as it is.

use std::sync::Arc;

use pvc_domain::{Domain, DomainError, EditError, HardwareEdit, NewDisk, NewNic, WhichNics};
use pvc_model::cluster::Cluster;
use pvc_model::domain::{DiskSource, Nic, NicKind, bridge_of};
use pvc_model::guest_network::mac::free_mac;
use pvc_model::network_core::CoreNet;
use pvc_model::shown;
use pvc_model::sriov::{NoFunction, PciAddress, check_new_functions, vf_of};
use pvc_model::storage::{PoolName, VolumeId};
use pvc_model::vm::VmRecord;
use pvc_ports::{Random, Storage, StorageError, aside};
use pvc_store::{ChangeError, Changes, Store};

use super::define::{DefineRefusal, Hardware, Modified, NicRefusal, check_nics};
use crate::refusal::{Kind, Refusal, find_vm};

/// Change of the hardware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HardwareAsk {
    pub change: HardwareChange,
    /// Asks a started VM to restart, so that its guest has the change.
    pub restart: bool,
    /// Plugs it also into a network between the nodes, or in with the MAC address of another VM.
    pub force: bool,
}

/// A change of hardware, in an operator's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HardwareChange {
    /// In MiB.
    Memory(u64),
    /// Number of vCPUs, and as how many sockets, cores of each and threads of each; without that
    /// one socket has them all as its cores.
    Vcpus {
        vcpus: u32,
        topology: Option<(u32, u32, u32)>,
    },
    AddNic(NewCard),
    RemoveNics(WhichNics),
    AddDisk(NewDisk),
    /// By its target (`sda`), its volume (`pool/volume`) or its file.
    RemoveDisk(String),
}

/// A network interface to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCard {
    /// The VNI or the description of a network, the name of one that every cluster has, or with
    /// `sriov` a VF.
    pub network: String,
    pub sriov: Option<SriovMode>,
    /// A random one is drawn without it.
    pub mac: Option<String>,
    pub model: String,
}

/// Way in which a guest is given a VF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SriovMode {
    /// The function itself.
    Hostdev,
    /// Through a macvtap device.
    Macvtap,
}

/// Hardware that was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    pub modified: Modified,
    /// The elements of the devices that came or went: what a running guest has to be given, or to
    /// lose.
    pub devices: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HardwareRefusal {
    /// Refused as any other definition.
    #[error(transparent)]
    Define(#[from] DefineRefusal),
    #[error(transparent)]
    Edit(#[from] EditError),
    #[error("the stored definition of VM `{vm}`")]
    Unreadable { vm: String, source: DomainError },
    #[error("no network `{network}` in the cluster")]
    NoNetwork { network: String },
    #[error("there is no pool `{pool}`")]
    NoPool { pool: PoolName },
    #[error("no volume `{volume}`")]
    NoVolume { volume: VolumeId },
    /// Whether there is such a volume cannot be told.
    #[error("{0}")]
    Storage(String),
}

impl Refusal for HardwareRefusal {
    fn kind(&self) -> Kind {
        match self {
            HardwareRefusal::Define(refusal) => refusal.kind(),
            HardwareRefusal::NoNetwork { .. } | HardwareRefusal::NoVolume { .. } => Kind::NotFound,
            HardwareRefusal::Edit(error) if error.is_not_found() => Kind::NotFound,
            HardwareRefusal::Edit(_)
            | HardwareRefusal::Unreadable { .. }
            | HardwareRefusal::NoPool { .. } => Kind::Invalid,
            HardwareRefusal::Storage(_) => Kind::Unavailable,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            HardwareRefusal::Define(refusal) => return refusal.hint(),
            HardwareRefusal::Edit(error) => error.hint()?,
            HardwareRefusal::Unreadable { source, .. } => source.hint()?,
            HardwareRefusal::NoNetwork { .. } => {
                "`pvc network list` shows the networks; `upstream`, `cluster` and `storage` always \
                 exist"
            }
            HardwareRefusal::NoVolume { .. } => {
                "create it first: `pvc storage volume add POOL VOLUME SIZE`"
            }
            HardwareRefusal::NoPool { .. } | HardwareRefusal::Storage(_) => return None,
        };
        Some(hint.to_owned())
    }
}

/// Changes the hardware of VM `vm` in its record. A guest that runs is as it was until its next
/// start, or until [`Changed::devices`] are attached to it or detached from it.
///
/// `near` is asked for a volume that no record tells of: on a machine alone, the volumes are what
/// its storage has.
pub async fn change_hardware(
    store: &Store,
    random: &dyn Random,
    near: Option<&dyn Storage>,
    vm: &str,
    ask: &HardwareAsk,
) -> Result<Changed, ChangeError<HardwareRefusal>> {
    let view = store.view();
    let record = find_vm(&view, vm).map_err(|why| refused(DefineRefusal::from(why)))?.clone();
    let added = match &ask.change {
        HardwareChange::AddDisk(NewDisk { source: DiskSource::Volume(volume), .. }) => {
            Some(volume.clone())
        }
        _ => None,
    };
    if let Some(volume) = &added {
        check_volume(&view, near, volume).await.map_err(ChangeError::Refused)?;
    }
    // Each try is about the same card.
    let drawn = free_mac(&view, &[], || octets(random));
    let mut edit = resolve(&view, &record, &drawn, ask).map_err(ChangeError::Refused)?;
    let (present, wanted) = (record.clone(), edit.clone());
    let edited = aside(move || Edited::of(&present, &wanted)).await;
    let mut edited = edited.map_err(ChangeError::Refused)?;
    store
        .change(|cluster| {
            let present = find_vm(cluster, vm).map_err(DefineRefusal::from)?;
            // A network may be gone meanwhile, or have another number.
            let wanted = resolve(cluster, present, &drawn, ask)?;
            if present.xml != edited.from || wanted != edit {
                // Somebody else has changed it meanwhile: this is changed in what is there now.
                edited = Edited::of(present, &wanted)?;
                edit = wanted;
            }
            let (changes, modified): (Changes, Modified) =
                edited.hardware.replace(cluster, vm, ask.restart, ask.force)?;
            Ok((changes, Changed { modified, devices: edited.devices.clone() }))
        })
        .await
}

fn refused(why: impl Into<HardwareRefusal>) -> ChangeError<HardwareRefusal> {
    ChangeError::Refused(why.into())
}

/// Hardware with the change in it.
struct Edited {
    /// XML that it was made from.
    from: Arc<str>,
    hardware: Hardware,
    devices: Vec<String>,
}

impl Edited {
    fn of(record: &VmRecord, edit: &HardwareEdit) -> Result<Self, HardwareRefusal> {
        let mut domain = Domain::parse(&record.xml)
            .map_err(|source| HardwareRefusal::Unreadable { vm: record.name.clone(), source })?;
        let devices = domain.edit(edit)?;
        let hardware = Hardware::read(domain.as_str())?;
        Ok(Edited { from: record.xml.clone(), hardware, devices })
    }
}

/// Random part of a MAC address.
pub(super) fn octets(random: &dyn Random) -> [u8; 3] {
    let [one, two, three, ..] = random.next_u64().to_be_bytes();
    [one, two, three]
}

/// The change as an edit of the XML. `drawn` is the MAC address of a card for which none is given.
fn resolve(
    cluster: &Cluster,
    vm: &VmRecord,
    drawn: &str,
    ask: &HardwareAsk,
) -> Result<HardwareEdit, HardwareRefusal> {
    Ok(match ask.change.clone() {
        HardwareChange::Memory(mib) => HardwareEdit::Memory(mib),
        HardwareChange::Vcpus { vcpus, topology } => HardwareEdit::Vcpus { vcpus, topology },
        HardwareChange::AddNic(card) => {
            HardwareEdit::AddNic(nic(cluster, vm, drawn, card, ask.force)?)
        }
        HardwareChange::RemoveNics(which) => HardwareEdit::RemoveNics(by_number(cluster, which)),
        HardwareChange::AddDisk(disk) => HardwareEdit::AddDisk(disk),
        HardwareChange::RemoveDisk(which) => HardwareEdit::RemoveDisk(which),
    })
}

fn nic(
    cluster: &Cluster,
    vm: &VmRecord,
    drawn: &str,
    card: NewCard,
    force: bool,
) -> Result<NewNic, HardwareRefusal> {
    let NewCard { network, sriov, mac, model } = card;
    let kind = match sriov {
        Some(SriovMode::Hostdev) => NicKind::Hostdev(network),
        Some(SriovMode::Macvtap) => NicKind::Direct(network),
        None => NicKind::Bridge(bridge(cluster, &network)?),
    };
    let mac = mac.unwrap_or_else(|| drawn.to_owned());
    let is_exclusive = sriov.is_some();
    let new = Nic { kind, mac, model, target: None, is_exclusive, has_vlan: false };
    check_nics(&[], std::slice::from_ref(&new), force).map_err(DefineRefusal::from)?;
    let pci = function_of(cluster, vm, &new).map_err(NicRefusal::from);
    let pci = pci.map_err(DefineRefusal::from)?.map(PciAddress::parts);
    Ok(NewNic { kind: new.kind, mac: new.mac, model: new.model, pci })
}

/// Address of the function that an interface takes on the VM's node; `None` if it takes none.
fn function_of(
    cluster: &Cluster,
    vm: &VmRecord,
    nic: &Nic,
) -> Result<Option<PciAddress>, NoFunction> {
    let Some(function) = vf_of(nic) else { return Ok(None) };
    let node = vm.node.as_ref().and_then(|name| cluster.nodes.get(name));
    let missing = || NoFunction::Missing {
        node: vm.node.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string),
        function: shown(function),
    };
    let node = node.ok_or_else(missing)?;
    check_new_functions(cluster, node, vm.uuid, [nic])?;
    let address = node.sriov.vf(function).and_then(|vf| vf.pci.address());
    address.map(Some).ok_or_else(missing)
}

/// The same cards, of a network that is named by its description: in the XML it is a number.
fn by_number(cluster: &Cluster, which: WhichNics) -> WhichNics {
    let named = which.network.as_ref().filter(|_| !which.sriov);
    let record = named.and_then(|network| cluster.network(network));
    let network = record.map(|record| record.vni.clone()).or(which.network);
    WhichNics { network, ..which }
}

/// The bridge of a network that there is.
pub(super) fn bridge(cluster: &Cluster, network: &str) -> Result<String, HardwareRefusal> {
    if CoreNet::named(network).is_some() {
        return Ok(bridge_of(network));
    }
    match cluster.network(network) {
        Some(record) => Ok(bridge_of(&record.vni)),
        None => Err(HardwareRefusal::NoNetwork { network: shown(network) }),
    }
}

async fn check_volume(
    cluster: &Cluster,
    near: Option<&dyn Storage>,
    volume: &VolumeId,
) -> Result<(), HardwareRefusal> {
    if cluster.volumes.contains_key(volume) {
        return Ok(());
    }
    match near {
        None => {}
        Some(storage) => match storage.volume(volume).await {
            Ok(_) => return Ok(()),
            Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => {}
            Err(error) => {
                return Err(HardwareRefusal::Storage(pvc_model::with_causes(&error)));
            }
        },
    }
    if !cluster.pools.contains_key(&volume.pool) {
        return Err(HardwareRefusal::NoPool { pool: volume.pool.clone() });
    }
    Err(HardwareRefusal::NoVolume { volume: volume.clone() })
}
