//! Making a VM of an image: asked for here, done by a worker.

use pvc_domain::{EditError, Firmware, Machine, NewDomain, new_domain};
use pvc_model::cluster::Cluster;
use pvc_model::domain::{MOST_KEYS, Nic, NicKind, SshKey};
use pvc_model::guest_network::mac::free_mac;
use pvc_model::hold::check_not_held;
use pvc_model::image::{image_name, image_volume, images};
use pvc_model::job::creation::{SSH_KEYS_LIMIT, Seed, SeedFiles, USER_DATA_LIMIT, VmCreation};
use pvc_model::job::{JobSpec, JobVm, JobWork, worker_for};
use pvc_model::storage::{PoolName, VolumeId, VolumeName};
use pvc_model::vm::VmState;
use pvc_model::{BadName, NodeName, Uuid, shown};
use pvc_ports::{Clock, Random, Storage};
use pvc_store::{ChangeError, Changes, Expect, Store};

use super::define::{Define, DefineRefusal, Definition, check_new_name};
use super::hardware::{HardwareRefusal, bridge, octets};
use super::new_name::{NewNameRefusal, check_new_vm, require_name_of_nobody};
use crate::job::{JobRequest, submit};
use crate::refusal::{Kind, Refusal};
use crate::storage::{StorageRefusal, exists};

/// The most network cards that a new VM gets.
const NICS: usize = 16;

/// A VM to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Create {
    pub name: String,
    /// The image: its name, or `POOL/NAME` where several pools have one of that name.
    pub image: String,
    /// Use of the image.
    pub origin: Origin,
    pub vcpus: u32,
    pub memory_mib: u64,
    /// The size of the disk; without it that of the image.
    pub disk_bytes: Option<u64>,
    /// The networks it has a card in, each by its VNI, its description or its name.
    pub networks: Vec<String>,
    pub ssh_keys: Vec<String>,
    /// Its own user data, as cloud-init takes it.
    pub user_data: Option<String>,
    /// Whether it gets the disk with cloud-init's data at all.
    pub has_seed: bool,
    pub machine: Machine,
    pub firmware: Firmware,
    pub has_tpm: bool,
    pub node: Option<String>,
    pub autostart: bool,
    pub start: bool,
    /// Whether it is not started where that would take more memory than its node has.
    pub refuse_memory_overcommit: bool,
    /// Takes it also if it is plugged into a network between the nodes.
    pub force: bool,
    pub submitter: String,
}

/// Use of the image that a VM is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The first disk is a clone of it.
    System,
    /// A CD is a clone of it, from which a system is installed on an empty disk.
    Installer,
}

#[derive(Debug, thiserror::Error)]
pub enum CreateRefusal {
    #[error(transparent)]
    Name(#[from] BadName),
    #[error(transparent)]
    NewName(#[from] NewNameRefusal),
    #[error("there is no image `{image}`")]
    NoImage { image: String },
    #[error("pools {pools} have an image `{image}` each")]
    Ambiguous { image: String, pools: String },
    #[error("image `{image}` has {has} bytes, and a disk of {wanted} bytes would not hold it")]
    TooSmall { image: String, has: u64, wanted: u64 },
    #[error("the disk to install on has no size")]
    NoSize,
    #[error("user data and SSH keys are for a system that is there, and this one is installed")]
    NotInstalled,
    #[error("volume `{volume}` exists already")]
    VolumeTaken { volume: VolumeId },
    #[error("SSH key {number}: {why}")]
    Key { number: usize, why: &'static str },
    #[error("{count} networks are too many: a new VM gets at most {NICS} cards")]
    TooManyNetworks { count: usize },
    #[error("SSH keys of {bytes} bytes are too many: at most {SSH_KEYS_LIMIT} are taken")]
    TooManyKeys { bytes: usize },
    #[error("user data of {bytes} bytes is too long: at most {USER_DATA_LIMIT} are taken")]
    UserData { bytes: usize },
    #[error("user data and SSH keys are for cloud-init, whose disk is left out")]
    NoSeed,
    #[error("no worker runs that can make VMs")]
    NoWorker,
    #[error(transparent)]
    Network(#[from] HardwareRefusal),
    #[error(transparent)]
    Edit(#[from] EditError),
    #[error(transparent)]
    Define(#[from] DefineRefusal),
    #[error(transparent)]
    Storage(#[from] StorageRefusal),
}

impl Refusal for CreateRefusal {
    fn kind(&self) -> Kind {
        match self {
            CreateRefusal::NoImage { .. } => Kind::NotFound,
            CreateRefusal::NewName(why) => why.kind(),
            CreateRefusal::VolumeTaken { .. } => Kind::Conflict,
            CreateRefusal::NoWorker => Kind::Unavailable,
            CreateRefusal::Network(why) => why.kind(),
            CreateRefusal::Define(why) => why.kind(),
            CreateRefusal::Storage(why) => why.kind(),
            _ => Kind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            CreateRefusal::NoImage { .. } => {
                "`pvc image list` shows the images; `pvc image add` makes one of a file"
            }
            CreateRefusal::Ambiguous { image, .. } => {
                return Some(format!("say which: `POOL/{image}`"));
            }
            CreateRefusal::NoSize => "say how large it is to be, such as `20G`",
            CreateRefusal::VolumeTaken { .. } => {
                "remove or rename that volume, or choose another name for the VM"
            }
            CreateRefusal::Key { .. } => {
                "a public key is one line that begins with its type, such as `ssh-ed25519`"
            }
            CreateRefusal::NewName(why) => return why.hint(),
            CreateRefusal::NoWorker => "start `pvcworkerd` on a node with this version of PVC",
            CreateRefusal::Network(why) => return why.hint(),
            CreateRefusal::Edit(why) => return why.hint().map(str::to_owned),
            CreateRefusal::Define(why) => return why.hint(),
            CreateRefusal::Storage(why) => return why.hint(),
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

/// Has a worker make a VM whose first disk is a clone of an image: all of it, or nothing. What
/// keeps it from being made now is refused here, before there is a task.
///
/// # Cancellation
/// May be dropped: what was submitted is done all the same.
pub async fn create(
    store: &Store,
    clock: &dyn Clock,
    random: &dyn Random,
    storage: &dyn Storage,
    ask: &Create,
) -> Result<JobSpec, ChangeError<CreateRefusal>> {
    check_words(ask).map_err(ChangeError::Refused)?;
    let view = store.fresh().await?;
    let planned = plan(&view, random, storage, ask).await.map_err(ChangeError::Refused)?;
    let Planned { creation, definition } = planned;
    submit(store, clock, random, |cluster| request(cluster, &creation, &definition, ask)).await
}

/// Refuses what would be wrong in every cluster.
fn check_words(ask: &Create) -> Result<(), CreateRefusal> {
    check_new_vm(&ask.name)?;
    if ask.networks.len() > NICS {
        return Err(CreateRefusal::TooManyNetworks { count: ask.networks.len() });
    }
    let bytes = ask.ssh_keys.iter().map(String::len).sum();
    if bytes > SSH_KEYS_LIMIT {
        return Err(CreateRefusal::TooManyKeys { bytes });
    }
    for (place, key) in ask.ssh_keys.iter().enumerate() {
        check_key(key).map_err(|why| CreateRefusal::Key { number: place + 1, why })?;
    }
    match &ask.user_data {
        Some(text) if text.len() > USER_DATA_LIMIT => {
            return Err(CreateRefusal::UserData { bytes: text.len() });
        }
        _ => {}
    }
    match (ask.origin, ask.disk_bytes) {
        (Origin::Installer, None | Some(0)) => return Err(CreateRefusal::NoSize),
        (Origin::Installer | Origin::System, _) => {}
    }
    if ask.user_data.is_none() && ask.ssh_keys.is_empty() {
        return Ok(());
    }
    match (ask.origin, ask.has_seed) {
        (Origin::Installer, _) => Err(CreateRefusal::NotInstalled),
        (Origin::System, false) => Err(CreateRefusal::NoSeed),
        (Origin::System, true) => Ok(()),
    }
}

/// Refuses what no `authorized_keys` has as a line of a key.
fn check_key(key: &str) -> Result<(), &'static str> {
    if key.contains("PRIVATE KEY") {
        return Err("this is a private key, which nobody but its owner should have");
    }
    if key.chars().any(char::is_control) {
        return Err("it is not one line of text");
    }
    let kind = key.split_ascii_whitespace().next().unwrap_or_default();
    let is_known = ["ssh-", "ecdsa-", "sk-"].iter().any(|begin| kind.starts_with(begin));
    match is_known && key.split_ascii_whitespace().nth(1).is_some() {
        true => Ok(()),
        false => Err("it has no type and no key behind it"),
    }
}

struct Planned {
    creation: VmCreation,
    definition: Definition,
}

async fn plan(
    view: &Cluster,
    random: &dyn Random,
    storage: &dyn Storage,
    ask: &Create,
) -> Result<Planned, CreateRefusal> {
    // A VM of that name has volumes that are called so, too: not they are what is in the way.
    require_name_of_nobody(view, &ask.name, None)?;
    check_new_name(view, &ask.name, Uuid::nil())?;
    let image = find_image(view, &ask.image)?;
    check_not_held(view, &image, None).map_err(StorageRefusal::from)?;
    let volumes = NewVolumes::named(&image, ask)?;
    let disk_bytes = checked_size(storage, &image, &volumes, ask).await?;
    let NewVolumes { disk, seed, medium } = volumes;
    let nics = nics(view, random, &ask.networks)?;
    let uuid = random.uuid();
    let disks: Vec<VolumeId> = std::iter::once(&disk).chain(&seed).cloned().collect();
    let xml = new_domain(&NewDomain {
        name: &ask.name,
        uuid,
        memory_mib: ask.memory_mib,
        vcpus: ask.vcpus,
        machine: ask.machine,
        firmware: ask.firmware,
        has_tpm: ask.has_tpm,
        disks: &disks,
        medium: medium.as_ref(),
        nics: &nics,
        ssh_keys: &served_keys(&ask.ssh_keys),
    })?;
    let files = || SeedFiles {
        user_data: ask.user_data.clone().unwrap_or_else(|| "#cloud-config\n".to_owned()),
        meta_data: meta_data(&ask.name, uuid, &ask.ssh_keys),
        network_config: network_config(&nics),
    };
    let creation = VmCreation {
        vm: JobVm { name: ask.name.clone(), uuid: Some(uuid) },
        xml,
        image,
        medium,
        disk,
        disk_bytes,
        seed: seed.map(|volume| Seed { volume, files: files() }),
        node: ask.node.as_ref().map(NodeName::new),
        autostart: ask.autostart,
        start: ask.start,
        refuse_memory_overcommit: ask.refuse_memory_overcommit,
        force: ask.force,
    };
    let definition = Definition::read(definition_of(&creation)).await?;
    Ok(Planned { creation, definition })
}

/// Volumes that a VM gets, in the pool of its image.
struct NewVolumes {
    disk: VolumeId,
    seed: Option<VolumeId>,
    /// The copy of the image, where that is an installer.
    medium: Option<VolumeId>,
}

impl NewVolumes {
    fn named(image: &VolumeId, ask: &Create) -> Result<NewVolumes, CreateRefusal> {
        let installs = ask.origin == Origin::Installer;
        let named = |disk: &str| beside(image, &ask.name, disk);
        Ok(NewVolumes {
            disk: named("sda")?,
            seed: (ask.has_seed && !installs).then(|| named("cidata")).transpose()?,
            medium: installs.then(|| named("iso")).transpose()?,
        })
    }
}

/// Size of the VM's disk, in bytes, for which the pool has room. None of the volumes is there yet.
async fn checked_size(
    storage: &dyn Storage,
    image: &VolumeId,
    volumes: &NewVolumes,
    ask: &Create,
) -> Result<u64, CreateRefusal> {
    let image_bytes = storage.volume(image).await.map_err(StorageRefusal::from)?.size_bytes;
    // What the disk has of the image.
    let has = if ask.origin == Origin::Installer { 0 } else { image_bytes };
    let wanted = ask.disk_bytes.unwrap_or(has);
    if wanted < has {
        return Err(CreateRefusal::TooSmall { image: shown(&ask.image), has, wanted });
    }
    for volume in std::iter::once(&volumes.disk).chain(&volumes.seed).chain(&volumes.medium) {
        if exists(storage, volume).await.map_err(StorageRefusal::from)? {
            return Err(CreateRefusal::VolumeTaken { volume: volume.clone() });
        }
    }
    let pool = storage.pool(&image.pool).await.map_err(StorageRefusal::from)?;
    pool.check_room(wanted - has, false).map_err(StorageRefusal::from)?;
    Ok(wanted)
}

/// The VM as it is recorded while it is made.
pub fn definition_of(creation: &VmCreation) -> Define {
    let VmCreation { vm, xml, node, autostart, start, force, .. } = creation;
    Define {
        expected: Some(vm.name.clone()),
        node: node.as_ref().map(ToString::to_string),
        autostart: *autostart,
        state: VmState::Provision,
        starts_later: *start,
        force: *force,
        ..Define::new(xml.as_str())
    }
}

/// The image by its name, or by that of its pool and its own.
fn find_image(cluster: &Cluster, image: &str) -> Result<VolumeId, CreateRefusal> {
    let missing = || CreateRefusal::NoImage { image: shown(image) };
    if let Some((pool, name)) = image.split_once('/') {
        let volume = VolumeId { pool: PoolName::new(pool), volume: image_volume(name)? };
        return images(cluster).any(|it| *it == volume).then_some(volume).ok_or_else(missing);
    }
    let mut found = images(cluster).filter(|volume| image_name(volume) == Some(image));
    let first = found.next().ok_or_else(missing)?;
    let others: Vec<String> = found.map(|volume| format!("`{}`", volume.pool)).collect();
    if others.is_empty() {
        return Ok(first.clone());
    }
    let pools = format!("`{}`, {}", first.pool, others.join(", "));
    Err(CreateRefusal::Ambiguous { image: shown(image), pools })
}

/// The volume in the pool of the image that is called after the VM.
fn beside(image: &VolumeId, vm: &str, disk: &str) -> Result<VolumeId, CreateRefusal> {
    let volume = VolumeName::parse(&format!("{vm}_{disk}"))?;
    Ok(VolumeId { pool: image.pool.clone(), volume })
}

fn nics(
    cluster: &Cluster,
    random: &dyn Random,
    networks: &[String],
) -> Result<Vec<Nic>, CreateRefusal> {
    let mut nics = Vec::new();
    for network in networks {
        nics.push(Nic {
            kind: NicKind::Bridge(bridge(cluster, network)?),
            mac: free_mac(cluster, &nics, || octets(random)),
            model: "virtio".to_owned(),
            target: None,
            is_exclusive: false,
            has_vlan: false,
        });
    }
    Ok(nics)
}

/// Keys that go into the definition, whose reader would leave the others out.
fn served_keys(given: &[String]) -> Vec<SshKey> {
    let mut keys: Vec<SshKey> =
        given.iter().filter_map(|key| SshKey::read(None, key)).take(MOST_KEYS).collect();
    SshKey::make_distinct(&mut keys);
    keys
}

/// JSON, which is YAML, so that nothing in a name or a key can be read as something else.
fn meta_data(name: &str, uuid: Uuid, ssh_keys: &[String]) -> String {
    serde_json::json!({
        "instance-id": uuid.to_string(),
        "local-hostname": name,
        "public-keys": ssh_keys,
    })
    .to_string()
}

/// Asks for an address by DHCP on each card, by netplan's version 2.
fn network_config(nics: &[Nic]) -> String {
    let card = |(place, nic): (usize, &Nic)| {
        let card = serde_json::json!({
            "match": { "macaddress": nic.mac },
            "dhcp4": true,
            // Only the first has to be there before the guest goes on.
            "optional": place > 0,
        });
        (format!("nic{place}"), card)
    };
    let cards: serde_json::Map<_, _> = nics.iter().enumerate().map(card).collect();
    serde_json::json!({ "version": 2, "ethernets": cards }).to_string()
}

/// The job, if the VM may be made in this cluster, with what must not change until it is submitted.
fn request(
    cluster: &Cluster,
    creation: &VmCreation,
    definition: &Definition,
    ask: &Create,
) -> Result<(JobRequest, Changes), CreateRefusal> {
    require_name_of_nobody(cluster, &creation.vm.name, None)?;
    // As it would be defined now; where it goes is decided when it is.
    definition.define(cluster)?;
    let work = JobWork::CreateVm(Box::new(creation.clone()));
    let node = worker_for(cluster, &work, None).ok_or(CreateRefusal::NoWorker)?;
    let mut expected = Changes::new();
    expected.expect(Expect::VmNames);
    let (run_on, submitter) = (node.to_string(), ask.submitter.clone());
    Ok((JobRequest { work, node, run_on, submitter }, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_line_of_a_known_type() {
        for good in [
            "ssh-ed25519 AAAAC3Nz user@host",
            "ecdsa-sha2-nistp256 AAAA",
            "sk-ssh-ed25519@openssh.com AAAA",
        ] {
            assert_eq!(check_key(good), Ok(()), "{good}");
        }
        for bad in ["", "ssh-ed25519", "AAAA", "ssh-rsa AAAA\nssh-rsa BBBB"] {
            assert!(check_key(bad).is_err(), "{bad}");
        }
        let private = check_key("-----BEGIN OPENSSH PRIVATE KEY-----").unwrap_err();
        assert!(private.contains("private key"), "{private}");
    }

    #[test]
    fn cloud_init_is_given_what_it_reads_and_nothing_breaks_out_of_it() {
        let keys = ["ssh-ed25519 AAAA \"}: #x".to_owned()];
        let meta: serde_json::Value =
            serde_json::from_str(&meta_data("web1", Uuid::nil(), &keys)).expect("JSON");
        assert_eq!(meta["local-hostname"], "web1");
        assert_eq!(meta["public-keys"][0], keys[0]);
        assert_eq!(meta.as_object().expect("an object").len(), 3);
        let nic = |mac: &str| Nic {
            kind: NicKind::Bridge("vmbr1001".to_owned()),
            mac: mac.to_owned(),
            model: "virtio".to_owned(),
            target: None,
            is_exclusive: false,
            has_vlan: false,
        };
        let nics = [nic("52:54:00:00:00:01"), nic("52:54:00:00:00:02")];
        let config: serde_json::Value = serde_json::from_str(&network_config(&nics)).expect("JSON");
        assert_eq!(config["version"], 2);
        assert_eq!(config["ethernets"]["nic0"]["match"]["macaddress"], "52:54:00:00:00:01");
        assert_eq!(config["ethernets"]["nic0"]["optional"], false);
        assert_eq!(config["ethernets"]["nic1"]["optional"], true);
    }
}
