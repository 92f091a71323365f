//! The file of an OVA, as it comes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use pvc_images::{Announced, ImageError, Source, TakeError, Target};
use pvc_model::disk_image::{Compression, DiskFormat, HEADER};
use pvc_model::provisioner::{Change, NewOva, OvaVolume};
use pvc_model::shown;
use pvc_model::storage::VolumeId;
use pvc_ops::storage::{self, NewVolume, StorageRefusal};
use pvc_ova::{
    Appliance, Archive, DiskFile, MOST_TEXT, Made, Manifest, ManifestError, Member, OvfDisk,
    OvfError, Part, Sums, TarError, disk_id,
};
use pvc_ports::{StorageError, Upload};
use pvc_provisioner::Mode;
use pvc_store::ChangeError;

use super::Wanted;
use crate::error::{ApiError, Result};
use crate::incoming::Incoming;
use crate::refuse::store_error;
use crate::routes::provisioner::answered;
use crate::routes::storage::transfer::{InSlot, not_taken};
use crate::slots::Slot;
use crate::state::ApiState;
use crate::under_way::Transfer;

/// Number of times as long as for other changes that the storage has to begin a volume.
const BEGIN_TIMES: u32 = 3;

/// Number of disks that the storage has at work for an OVA at once: each may take a program.
const MOST_OPEN: usize = 8;

/// Everything of an OVA, with nothing that anybody sees yet.
pub struct Received {
    pub new: NewOva,
    pub volumes: Vec<NewVolume>,
    pub file_bytes: u64,
    pub crc32: u32,
    /// Size of all disks.
    pub disk_bytes: u64,
}

/// Refuses disks whose volumes could not be made.
pub async fn check_volumes(
    api: &ApiState,
    wanted: &Wanted,
    volumes: &[(VolumeId, u64)],
) -> Result<()> {
    let storage = api.storage()?;
    let view = api.ask(async { api.store().fresh().await.map_err(store_error) }).await?;
    let time = api.settings().limits.change_time;
    let checked = storage::check_volumes(&view, storage.as_ref(), volumes);
    let Ok(checked) = tokio::time::timeout(time, checked).await else {
        let message = format!(
            "the storage did not say within {} s whether there is a place for the disks",
            time.as_secs()
        );
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
            .hint(Some("`pvc storage status` shows how the storage is"))
            .retry_after(30));
    };
    checked.map_err(|error| {
        let is_there = matches!(error, StorageRefusal::Storage(StorageError::VolumeExists { .. }));
        let refusal = api.readers().refused(ChangeError::Refused(error));
        match is_there {
            true => refusal.hint(Some(format!(
                "if an upload of `{}` that was cut off has left it, `pvc storage volume remove` \
                 removes it",
                wanted.name
            ))),
            false => refusal,
        }
    })
}

/// Bytes of the request, as an archive.
struct Contents<'a> {
    incoming: Incoming,
    transfer: &'a Transfer,
    api: &'a ApiState,
    archive: Archive,
    rest: Bytes,
    most_bytes: u64,
    file_bytes: u64,
    crc32: crc32fast::Hasher,
}

impl Contents<'_> {
    async fn next(&mut self) -> Result<Option<Part>> {
        loop {
            if let Some(part) = self.archive.next(&mut self.rest).map_err(no_archive)? {
                return Ok(Some(part));
            }
            let Some(piece) = self.incoming.next(self.api.clock().as_ref()).await? else {
                self.archive.end().map_err(no_archive)?;
                return Ok(None);
            };
            self.file_bytes += piece.len() as u64;
            if self.file_bytes > self.most_bytes {
                let why = format!("the file has more than the {} bytes it says", self.most_bytes);
                return Err(ApiError::parameter("ova_size", why));
            }
            self.transfer.count(piece.len());
            self.crc32.update(&piece);
            self.rest = piece;
        }
    }

    /// The next bytes of the member that has begun; `None` at its end.
    async fn data(&mut self, sums: &mut Sums) -> Result<Option<Bytes>> {
        match self.next().await? {
            Some(Part::Data(bytes)) => {
                sums.update(&bytes);
                Ok(Some(bytes))
            }
            Some(Part::End) => Ok(None),
            // An archive has an end of each member that has begun.
            Some(Part::Begin(_)) | None => Err(ApiError::refused("the archive is broken")),
        }
    }

    /// A member that is a text.
    async fn text(&mut self, member: &Member, sums: &mut Sums) -> Result<Bytes> {
        if member.size > MOST_TEXT {
            let name = shown(&member.name);
            let message =
                format!("`{name}` has {} bytes, at most {MOST_TEXT} are taken", member.size);
            return Err(ApiError::refused(message));
        }
        let mut text = BytesMut::new();
        while let Some(bytes) = self.data(sums).await? {
            text.extend_from_slice(&bytes);
        }
        Ok(text.freeze())
    }

    async fn skip(&mut self, sums: &mut Sums) -> Result<()> {
        while self.data(sums).await?.is_some() {}
        Ok(())
    }
}

fn no_archive(error: TarError) -> ApiError {
    let hint = match &error {
        TarError::NoArchive => Some("`tar -tf FILE` shows what is in an OVA"),
        TarError::Kind { .. } => {
            Some("`tar --format=gnu --hard-dereference -cf FILE NAME.ovf DISK …` makes one anew")
        }
        _ => None,
    };
    ApiError::refused(error.to_string()).hint(hint)
}

fn no_manifest(error: ManifestError) -> ApiError {
    ApiError::refused(error.to_string())
}

fn not_described(error: OvfError) -> ApiError {
    let hint = match &error {
        OvfError::Systems { .. } => Some("`ovftool` and `VBoxManage export` make an OVA of one VM"),
        OvfError::DocumentType => {
            Some("remove the `<!DOCTYPE …>` line and write out what its entities stand for")
        }
        _ => None,
    };
    ApiError::refused(format!("the description of the OVA: {error}")).hint(hint)
}

/// An OVA that is described, and as much of it as has come.
struct Described {
    ovf: String,
    appliance: Appliance,
    /// Each with its volume once that is written.
    volumes: Vec<Option<NewVolume>>,
    /// The places of those whose writing was not ended, in their order.
    open: VecDeque<usize>,
}

impl Described {
    /// Keeps the volume of a disk, which is written, until all disks get their names. It stays
    /// open, as what nobody has open is a leftover after a day; of many disks the latest alone do.
    async fn keep(&mut self, at: usize, volume: NewVolume) -> Result<()> {
        self.volumes[at] = Some(volume);
        self.open.push_back(at);
        if self.open.len() <= MOST_OPEN {
            return Ok(());
        }
        let oldest = self.open.pop_front().and_then(|at| self.volumes[at].as_mut());
        let Some(NewVolume { upload, .. }) = oldest else { return Ok(()) };
        upload.finish().await.map_err(|error| not_taken(TakeError::Target(error)))
    }

    /// The place of the disk with this file, and what is said of the file.
    fn disk_of(&self, name: &str) -> Option<(usize, DiskFile)> {
        let disks = self.appliance.disks.iter().enumerate();
        disks
            .filter_map(|(at, disk)| Some((at, disk.file.clone()?)))
            .find(|(_, file)| file.name == name)
    }
}

/// Takes an OVA.
pub struct Receiver<'a> {
    api: &'a ApiState,
    wanted: &'a Wanted,
    slot: Arc<Slot>,
    contents: Contents<'a>,
    described: Option<Described>,
    manifest: Option<Manifest>,
    /// The checksums of each file that has come.
    made: BTreeMap<String, Made>,
}

impl<'a> Receiver<'a> {
    pub fn new(
        api: &'a ApiState,
        wanted: &'a Wanted,
        slot: Slot,
        transfer: &'a Transfer,
        incoming: Incoming,
    ) -> Self {
        let most_bytes = wanted.most_bytes;
        let contents = Contents {
            incoming,
            transfer,
            api,
            archive: Archive::new(most_bytes),
            rest: Bytes::new(),
            most_bytes,
            file_bytes: 0,
            crc32: crc32fast::Hasher::new(),
        };
        let (described, manifest, made) = (None, None, BTreeMap::new());
        Receiver { api, wanted, slot: Arc::new(slot), contents, described, manifest, made }
    }

    /// Takes all of it.
    ///
    /// # Errors
    /// What is wrong with it, or with the storage.
    pub async fn receive(&mut self) -> Result<()> {
        while let Some(part) = self.contents.next().await? {
            if let Part::Begin(member) = part {
                self.member(member).await?;
            }
        }
        let Some(described) = &mut self.described else {
            return Err(ApiError::refused(
                "the archive has no description (`.ovf`), so it is no OVA",
            ));
        };
        let mut empty = Vec::new();
        for (at, disk) in described.appliance.disks.iter().enumerate() {
            match (&described.volumes[at], &disk.file) {
                (Some(_), _) => {}
                (None, None) => empty.push((at, disk.size_bytes)),
                (None, Some(file)) => {
                    let name = shown(&file.name);
                    let message = format!("`{name}`, a disk of the OVA, is not in the archive");
                    return Err(ApiError::refused(message));
                }
            }
        }
        for (at, size_bytes) in empty {
            let volume = self.wanted.volume(&disk_id(at));
            let new = begin(self.api, volume, self.slot.clone(), size_bytes).await?;
            described.keep(at, new).await?;
        }
        Ok(())
    }

    /// Everything that was taken, once all of it was.
    pub fn into_received(self) -> Received {
        let described = self.described.expect("without it nothing was taken");
        let new = new_ova(self.wanted, &described.ovf, &described.appliance);
        Received {
            new,
            volumes: described.volumes.into_iter().flatten().collect(),
            file_bytes: self.contents.file_bytes,
            crc32: self.contents.crc32.finalize(),
            disk_bytes: described.appliance.disks.iter().map(|disk| disk.size_bytes).sum(),
        }
    }

    /// Lets go of what is still sent.
    pub fn turn_away(self) {
        self.contents.incoming.turn_away();
    }

    async fn member(&mut self, member: Member) -> Result<()> {
        if self.made.contains_key(&member.name) {
            let name = shown(&member.name);
            return Err(ApiError::refused(format!("the archive has `{name}` twice")));
        }
        let mut sums = Sums::of(&member.name, self.manifest.as_ref());
        let ending = member.name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
        match (ending.as_str(), &self.described) {
            ("ovf", None) => self.describe(&member, &mut sums).await?,
            ("ovf", Some(_)) => {
                return Err(ApiError::refused("the archive has two descriptions (`.ovf`)"));
            }
            ("mf", _) => self.note_manifest(&member, &mut sums).await?,
            ("cert", _) => self.contents.skip(&mut sums).await?,
            (_, None) => {
                let name = shown(&member.name);
                let message =
                    format!("`{name}` comes before the description (`.ovf`) in the archive");
                let hint =
                    "`tar --format=gnu -cf FILE NAME.ovf DISK …` makes one in which it is first";
                return Err(ApiError::refused(message).hint(Some(hint)));
            }
            (_, Some(described)) => match described.disk_of(&member.name) {
                Some((at, file)) => self.disk(at, &file, &member, &mut sums).await?,
                None => self.contents.skip(&mut sums).await?,
            },
        }
        let made = sums.finish();
        if let Some(manifest) = &self.manifest {
            manifest.check(&member.name, &made).map_err(no_manifest)?;
        }
        self.made.insert(member.name, made);
        Ok(())
    }

    async fn note_manifest(&mut self, member: &Member, sums: &mut Sums) -> Result<()> {
        let text = self.contents.text(member, sums).await?;
        if self.manifest.is_some() {
            return Err(ApiError::refused("the archive has two manifests (`.mf`)"));
        }
        let manifest = Manifest::parse(&text).map_err(no_manifest)?;
        for (name, made) in &self.made {
            manifest.check(name, made).map_err(no_manifest)?;
        }
        self.manifest = Some(manifest);
        Ok(())
    }

    /// Reads the description, and refuses it if what it describes could not be added.
    async fn describe(&mut self, member: &Member, sums: &mut Sums) -> Result<()> {
        let text = self.contents.text(member, sums).await?;
        let (text, appliance) = pvc_ports::aside(move || {
            let appliance = pvc_ova::describe(&text)?;
            let text = String::from_utf8(text.to_vec()).map_err(|_| OvfError::NoText)?;
            Ok((text, appliance))
        })
        .await
        .map_err(not_described)?;
        let new = new_ova(self.wanted, &text, &appliance);
        let (cluster, change) = (self.api.view(), Change::AddOva(new));
        let tried = self.api.provisioner()?.change(&cluster, &change, Mode::DryRun);
        answered(self.api, tried).await?;
        let sizes = appliance.disks.iter().enumerate();
        let sizes: Vec<(VolumeId, u64)> =
            sizes.map(|(at, disk)| (self.wanted.volume(&disk_id(at)), disk.size_bytes)).collect();
        check_volumes(self.api, self.wanted, &sizes).await?;
        let volumes = appliance.disks.iter().map(|_| None).collect();
        let open = VecDeque::new();
        self.described = Some(Described { ovf: text, appliance, volumes, open });
        Ok(())
    }

    /// Takes the image of a disk.
    async fn disk(
        &mut self,
        at: usize,
        file: &DiskFile,
        member: &Member,
        sums: &mut Sums,
    ) -> Result<()> {
        let name = shown(&member.name);
        if let Some(said) = file.size_bytes.filter(|said| *said != member.size) {
            let message = format!(
                "`{name}` has {} bytes in the archive, and {said} are described",
                member.size
            );
            return Err(ApiError::refused(message));
        }
        let size_bytes = match &self.described {
            Some(described) => described.appliance.disks[at].size_bytes,
            None => 0,
        };
        let volume =
            begin(self.api, self.wanted.volume(&disk_id(at)), self.slot.clone(), size_bytes)
                .await?;
        let mut source =
            ImageOf { contents: &mut self.contents, sums, begun: None, is_over: false };
        let format = source.format(file.format).await?;
        let announced = Announced {
            format,
            file_bytes: Some(member.size),
            sha256: None,
            has_known_end: true,
            is_meant_so: false,
            most_bytes: size_bytes,
        };
        let mut target = Written(volume);
        let places = self.api.images().of(self.slot.caller());
        let spool = &self.api.settings().spool;
        let taken = pvc_images::take(&mut source, &announced, spool, &places, &mut target).await;
        taken.map_err(|error| of_disk(&name, error))?;
        let Written(volume) = target;
        match &mut self.described {
            Some(described) => described.keep(at, volume).await,
            None => Ok(()),
        }
    }
}

/// Begins the volume of a disk. That goes on if nobody waits any more, and then it is
/// discarded.
async fn begin(
    api: &ApiState,
    volume: VolumeId,
    slot: Arc<Slot>,
    size_bytes: u64,
) -> Result<NewVolume> {
    let (of, storage) = (api.clone(), api.storage()?);
    let begin = async move {
        let begun = storage::begin_volume(of.store(), storage.as_ref(), &volume, size_bytes);
        let NewVolume { volume, upload } =
            begun.await.map_err(|error| of.readers().refused(error))?;
        let upload: Box<dyn Upload> = Box::new(InSlot::new(upload, slot));
        Ok(NewVolume { volume, upload })
    };
    let time = api.settings().limits.change_time * BEGIN_TIMES;
    api.outcome_within(time, begin).await?.unwrap_or_else(|| {
        let message =
            format!("the storage did not begin a volume for a disk within {} s", time.as_secs());
        Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message))
    })
}

/// The reason why an image is not taken, with the name of its file.
fn of_disk(name: &str, error: TakeError<ApiError, StorageError>) -> ApiError {
    let hint = match &error {
        TakeError::Image(ImageError::TooLarge { .. }) => {
            Some("the capacity of the disk in the description is less than what the image has")
        }
        TakeError::Image(_) => None,
        _ => return not_taken(error),
    };
    let refusal = not_taken(error);
    let message = format!("`{name}`, a disk of the OVA: {}", refusal.body.message);
    let hint = hint.map(str::to_owned).or(refusal.body.hint);
    ApiError::new(refusal.status, message).hint(hint)
}

/// The records of the OVA that is described.
fn new_ova(wanted: &Wanted, ovf: &str, appliance: &Appliance) -> NewOva {
    let volume = |(at, disk): (usize, &OvfDisk)| {
        let disk_id = disk_id(at);
        let size_gib = disk.size_bytes.div_ceil(1 << 30);
        OvaVolume {
            id: 0,
            pool: wanted.pool.to_string(),
            volume: wanted.volume(&disk_id).volume.to_string(),
            format: DiskFormat::Raw.to_string(),
            disk_id,
            size_gib: i64::try_from(size_gib).expect("a disk has a PiB at most"),
        }
    };
    NewOva {
        name: wanted.name.clone(),
        ovf: ovf.to_owned(),
        volumes: appliance.disks.iter().enumerate().map(volume).collect(),
        vcpus: appliance.vcpus,
        vram_mib: appliance.memory_mib,
        has_graphics: appliance.has_graphics,
        networks: appliance.networks.clone(),
    }
}

/// A member of the archive, as an image is taken from.
struct ImageOf<'a, 'b> {
    contents: &'a mut Contents<'b>,
    sums: &'a mut Sums,
    /// The beginning, which was looked at.
    begun: Option<Bytes>,
    is_over: bool,
}

impl ImageOf<'_, '_> {
    /// The format of the image: what it begins like counts more than what is said.
    async fn format(&mut self, said: DiskFormat) -> Result<DiskFormat> {
        let mut begin = BytesMut::new();
        while begin.len() < HEADER {
            match self.contents.data(self.sums).await? {
                Some(bytes) => begin.extend_from_slice(&bytes),
                None => {
                    self.is_over = true;
                    break;
                }
            }
        }
        let found = match Compression::of_beginning(&begin) {
            None => DiskFormat::of_beginning(&begin),
            Some(_) => None,
        };
        self.begun = Some(begin.freeze()).filter(|begin| !begin.is_empty());
        Ok(found.unwrap_or(said))
    }
}

#[async_trait]
impl Source for ImageOf<'_, '_> {
    type Error = ApiError;

    async fn next(&mut self) -> Result<Option<Bytes>> {
        if let Some(begun) = self.begun.take() {
            return Ok(Some(begun));
        }
        if self.is_over {
            return Ok(None);
        }
        let piece = self.contents.data(self.sums).await?;
        self.is_over = piece.is_none();
        let doing = if self.is_over { Some("a disk is read") } else { None };
        self.contents.transfer.say(doing);
        Ok(piece)
    }
}

/// The volume of a disk, as an image is written to.
struct Written(NewVolume);

#[async_trait]
impl Target for Written {
    type Error = StorageError;

    async fn write(&mut self, at: u64, bytes: Bytes) -> Result<(), StorageError> {
        self.0.upload.write(at, bytes).await
    }
}
