//! Contents of volumes, in and out.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Method, StatusCode, Version};
use bytes::Bytes;
use pvc_api_types::Uploaded;
use pvc_api_types::operations::storage::{
    CompressionWord, GetStorageCephVolumePoolVolumeDownload, ImageFormatWord,
    PostStorageCephVolumePoolVolumeUpload, VolumeDownload, VolumeUpload,
};
use pvc_images::{
    Announced, GiveError, Given, ImageError, Sent, Source, TakeError, Target, Turn, Wanted,
};
use pvc_model::disk_image::{Compression, DiskFormat};
use pvc_model::job::JobWork;
use pvc_model::job::transfer::TransferEnd;
use pvc_model::storage::{SnapshotName, VolumeId};
use pvc_model::with_causes;
use pvc_ops::storage::{self, BegunContents, FillTarget, NewContents, StorageRefusal};
use pvc_ports::{Clock, StorageError};
use pvc_store::ChangeError;
use tokio::task::JoinHandle;

use super::{act, volume_id};
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::incoming::Incoming;
use crate::outgoing::{DiskOf, MOST_TIME};
use crate::refuse::refused;
use crate::slots::Slot;
use crate::state::ApiState;
use crate::table::{Ask, Table, ask};
use crate::under_way::Transfer;
use crate::{ahead, body, outgoing};

type Upload = PostStorageCephVolumePoolVolumeUpload;
type Download = GetStorageCephVolumePoolVolumeDownload;

pub fn add(table: Table) -> Table {
    table
        .add_raw(post_storage_ceph_volume_pool_volume_upload)
        .add_raw(get_storage_ceph_volume_pool_volume_download)
}

async fn post_storage_ceph_volume_pool_volume_upload(
    api: ApiState,
    request: Request,
) -> Result<Answer<Upload>> {
    let (head, mut file) = without_body(request);
    let admitted = match ask::<Upload>(api, head).await {
        Ok(asked) => admit(asked, &mut file).await,
        Err(refusal) => Err(refusal),
    };
    match admitted {
        Ok(Admitted { asked, begun: Some(begun) }) => take(asked, begun, file).await,
        Ok(Admitted { asked, begun: None }) => {
            body::turn_away(file.body);
            let message = asked.mode.message(message(&id(&asked)));
            Ok(Answer::json(&Uploaded { message, ..Uploaded::default() }))
        }
        Err(refusal) => {
            body::turn_away(file.body);
            Err(refusal)
        }
    }
}

/// An upload that may begin.
struct Admitted {
    asked: Ask<Upload>,
    /// Nothing in a dry run.
    begun: Option<Begun>,
}

/// Contents that are to be written, for this volume.
struct Begun {
    contents: InSlot,
    target: FillTarget,
}

/// Refuses what would be refused after the file has come, too, and begins the contents.
async fn admit(asked: Ask<Upload>, file: &mut File) -> Result<Admitted> {
    let api = asked.api.clone();
    if asked.mode.is_dry() {
        check(&asked).await?;
        return Ok(Admitted { asked, begun: None });
    }
    let slot = api.uploads().take(&asked.caller.description, "uploads")?;
    // Only now: what is taken ahead takes memory.
    let body = std::mem::take(&mut file.body);
    file.body = ahead::taken(&file.headers, body, api.clock().clone());
    announced(&asked.params, false, 0)?;
    let begun = begin(&api, &id(&asked), asked.params.force.0, slot).await?;
    Ok(Admitted { asked, begun: Some(begun) })
}

/// The body of a request, and the headers that say what it is.
pub(in crate::routes) struct File {
    pub headers: HeaderMap,
    pub body: Body,
}

/// Takes the body out of the request, whose parameters are in the query.
pub(in crate::routes) fn without_body(request: Request) -> (Request, File) {
    let (mut parts, body) = request.into_parts();
    let headers = parts.headers.clone();
    for about_the_body in [CONTENT_TYPE, CONTENT_LENGTH, TRANSFER_ENCODING] {
        parts.headers.remove(about_the_body);
    }
    (Request::from_parts(parts, Body::empty()), File { headers, body })
}

fn id(asked: &Ask<Upload>) -> VolumeId {
    let [pool, name] = &asked.at;
    volume_id(pool, name)
}

fn message(id: &VolumeId) -> String {
    format!("Wrote uploaded file to volume \"{id}\".")
}

/// Refuses what could not be taken.
async fn check(asked: &Ask<Upload>) -> Result<()> {
    announced(&asked.params, false, 0)?;
    let (api, storage) = (&asked.api, asked.api.storage()?);
    let (id, force) = (id(asked), asked.params.force.0);
    let checked = storage::check_fill(api.store(), storage.as_ref(), &id, force);
    let checked = async { checked.await.map_err(|error| api.readers().refused(error)) };
    api.ask(checked).await.map(drop)
}

/// The file as it is announced, for a volume of this size.
fn announced(given: &VolumeUpload, has_known_end: bool, most_bytes: u64) -> Result<Announced> {
    let format = given.image_format.parse();
    let format = format.map_err(|why| ApiError::parameter("image_format", format!("{why}")))?;
    let sha256 = given.sha256.as_deref().map(checksum).transpose()?;
    let (file_bytes, is_meant_so) = (given.file_size, given.force.0);
    Ok(Announced { format, file_bytes, sha256, has_known_end, is_meant_so, most_bytes })
}

/// A SHA-256 checksum in hexadecimal digits.
fn checksum(text: &str) -> Result<[u8; 32]> {
    let bad = || ApiError::parameter("sha256", "is not 64 hexadecimal digits");
    let digits = Some(text).filter(|text| text.len() == 64 && text.is_ascii()).ok_or_else(bad)?;
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).map_err(|_| bad())?;
    }
    Ok(bytes)
}

/// Takes the file, and gives the volume its contents.
async fn take(
    asked: Ask<Upload>,
    Begun { contents, target }: Begun,
    file: File,
) -> Result<Answer<Upload>> {
    let id = id(&asked);
    let Ask { api, params: given, mode, caller, .. } = asked;
    // Who sends a file with its length, as clients of PVC 1.0.3 do, has all of it.
    let has_known_end = file.headers.contains_key(CONTENT_LENGTH);
    let announced = announced(&given, has_known_end, target.size_bytes)?;
    let clock = api.clock().clone();
    let of = given.file_size.or(length(&file.headers));
    let incoming = Incoming::open(&file.headers, file.body, clock.as_ref()).await?;
    let work = JobWork::Upload { volume: id.clone() };
    let mut transfer = Transfer::begin(&api, work, &caller.description);
    of.inspect(|bytes| transfer.announce(*bytes));
    let mut file = FileOf { incoming, clock: clock.as_ref(), transfer: &transfer };
    let (spool, places) = (&api.settings().spool, api.images().of(&caller.description));
    let mut disk = Filled { upload: Box::new(contents) };
    let taking = pvc_images::take(&mut file, &announced, spool, &places, &mut disk);
    let taken = transfer.stop().run_until_cancelled(taking).await;
    let sent = match taken {
        Some(Ok(sent)) => sent,
        Some(Err(error)) => {
            file.incoming.turn_away();
            return Err(transfer.failed(not_taken(error)));
        }
        None => {
            file.incoming.turn_away();
            return Err(transfer.stopped());
        }
    };
    let whole = clock.monotonic();
    match transfer.stop().run_until_cancelled(api.reached_within(MOST_AWAY)).await {
        Some(Ok(())) => {}
        Some(Err(error)) => return Err(transfer.failed(error)),
        None => return Err(transfer.stopped()),
    }
    transfer.say(Some("the volume gets its new contents"));
    let reply = uploaded(mode.message(message(&id)), &sent);
    let result = as_said(&reply);
    let (volume, keep) = (id.clone(), api.settings().removed_volumes_stay);
    let may_wait = MOST_AWAY.saturating_sub(clock.monotonic().saturating_sub(whole));
    act(&api, |api, on| async move {
        let (random, clock) = (api.random().as_ref(), api.clock().as_ref());
        let new = NewContents { upload: disk.upload, target, keep, may_wait };
        let filled = storage::fill_volume(api.store(), &*on, random, clock, &volume, new).await;
        transfer.end(match &filled {
            Ok(_) => TransferEnd::Whole(result),
            Err(error) => TransferEnd::Failed(with_causes(error)),
        });
        filled
    })
    .await?;
    Ok(Answer::json(&reply))
}

/// Time for which an upload that has come whole waits for a store that is away. A client that hears
/// nothing gives up after two minutes.
pub(in crate::routes) const MOST_AWAY: Duration = Duration::from_secs(100);

/// Number of times as long as for other changes that the storage has to begin a volume: it makes
/// one, opens it, and has looked for room before.
const BEGIN_TIMES: u32 = 3;

/// Begins the contents. That goes on if nobody waits any more, and then they are discarded.
async fn begin(api: &ApiState, id: &VolumeId, force: bool, slot: Slot) -> Result<Begun> {
    let (of, id, storage) = (api.clone(), id.clone(), api.storage()?);
    let begin = async move {
        let begun = storage::begin_fill(of.store(), storage.as_ref(), &id, force).await;
        let BegunContents { upload, target } =
            begun.map_err(|error| of.readers().refused(error))?;
        Ok(Begun { contents: InSlot::new(upload, Arc::new(slot)), target })
    };
    let time = api.settings().limits.change_time * BEGIN_TIMES;
    api.outcome_within(time, begin).await?.unwrap_or_else(|| {
        let message =
            format!("the storage did not begin a volume for it within {} s", time.as_secs());
        Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message))
    })
}

/// Contents in the making that have a slot until they are the volume's, or nothing is left of
/// them: whoever lets uploads fail one after the other would fill the pool otherwise.
pub(in crate::routes) struct InSlot {
    /// Nothing once this has come to its end.
    upload: Option<Box<dyn pvc_ports::Upload>>,
    slot: Option<Arc<Slot>>,
}

impl InSlot {
    /// Contents in a slot, which others may share.
    pub fn new(upload: Box<dyn pvc_ports::Upload>, slot: Arc<Slot>) -> Self {
        InSlot { upload: Some(upload), slot: Some(slot) }
    }

    fn upload(&mut self) -> &mut dyn pvc_ports::Upload {
        &mut **self.upload.as_mut().expect("only what consumes it takes it out")
    }

    fn begin_discard(&mut self) -> Option<JoinHandle<()>> {
        let (upload, slot) = (self.upload.take()?, self.slot.take());
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        Some(runtime.spawn(async move {
            upload.discard().await;
            drop(slot);
        }))
    }
}

impl Drop for InSlot {
    fn drop(&mut self) {
        self.begin_discard();
    }
}

#[async_trait]
impl pvc_ports::Upload for InSlot {
    async fn write(&mut self, at: u64, bytes: Bytes) -> Result<(), StorageError> {
        self.upload().write(at, bytes).await
    }

    async fn finish(&mut self) -> Result<(), StorageError> {
        self.upload().finish().await
    }

    async fn commit(mut self: Box<Self>) -> Result<(), StorageError> {
        let upload = self.upload.take().expect("only what consumes it takes it out");
        upload.commit().await
    }

    async fn discard(mut self: Box<Self>) {
        if let Some(discarded) = self.begin_discard() {
            // A panic in it has been told of.
            let _ = discarded.await;
        }
    }
}

fn uploaded(message: String, sent: &Sent) -> Uploaded {
    let Sent { file_bytes, crc32, sha256, disk_bytes } = *sent;
    let sha256 = sha256.map(|sha256| hexadecimal(&sha256)).unwrap_or_default();
    Uploaded { message, file_bytes, crc32: hexadecimal(&crc32.to_be_bytes()), sha256, disk_bytes }
}

/// The file in words: `5 bytes, CRC-32 1c291ca3`.
fn as_said(file: &Uploaded) -> String {
    let Uploaded { file_bytes, crc32, sha256, .. } = file;
    let said = format!("{file_bytes} bytes, CRC-32 {crc32}");
    if sha256.is_empty() { said } else { format!("{said}, SHA-256 {sha256}") }
}

pub(in crate::routes) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of the body, if they were announced: of a form some hundred more than its file has.
pub(in crate::routes) fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The file of a request, as an image is taken from.
struct FileOf<'a> {
    incoming: Incoming,
    clock: &'a dyn Clock,
    transfer: &'a Transfer,
}

#[async_trait]
impl Source for FileOf<'_> {
    type Error = ApiError;

    async fn next(&mut self) -> Result<Option<Bytes>> {
        let piece = self.incoming.next(self.clock).await?;
        match &piece {
            Some(piece) => self.transfer.count(piece.len()),
            None => self.transfer.say(Some("the image is read")),
        }
        Ok(piece)
    }
}

/// The contents in the making, as an image is written to.
struct Filled {
    upload: Box<dyn pvc_ports::Upload>,
}

#[async_trait]
impl Target for Filled {
    type Error = StorageError;

    async fn write(&mut self, at: u64, bytes: Bytes) -> Result<(), StorageError> {
        self.upload.write(at, bytes).await
    }
}

pub(in crate::routes) fn not_taken(error: TakeError<ApiError, StorageError>) -> ApiError {
    match error {
        TakeError::Source(refusal) => refusal,
        TakeError::Target(error) => refused(ChangeError::Refused(StorageRefusal::from(error))),
        TakeError::Image(error) => of_image(&error),
    }
}

fn of_image(error: &ImageError) -> ApiError {
    let status = match error.is_of_the_image() {
        true => StatusCode::BAD_REQUEST,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    ApiError::new(status, with_causes(error)).hint(error.hint())
}

async fn get_storage_ceph_volume_pool_volume_download(
    api: ApiState,
    request: Request,
) -> Result<Answer<Download>> {
    if request.method() == Method::HEAD {
        let message = "a download has no `HEAD`: an image would be made only to be measured";
        return Err(ApiError::method(message, "GET"));
    }
    let has_chunks = request.version() > Version::HTTP_10;
    let ask = ask::<Download>(api, request).await?;
    let ([pool, name], api) = (ask.at, ask.api);
    let id = volume_id(&pool, &name);
    let wanted = wanted(&ask.params);
    if wanted.compression.is_some() && !has_chunks {
        let message = "a compressed download that breaks off would look whole by HTTP/1.0";
        let hint = "HTTP/1.1 says where it ends; what is not compressed has a `Content-Length`";
        return Err(ApiError::refused(message).hint(Some(hint)));
    }
    let snapshot = ask.params.snapshot.map(SnapshotName::new);
    let slot = api.downloads().take(&ask.caller.description, "downloads")?;
    let kept_as = file_name(&name, snapshot.as_ref(), wanted);
    let work = JobWork::Download { volume: id.clone(), snapshot: snapshot.clone() };
    let transfer = Transfer::begin(&api, work, &ask.caller.description);
    let stop = transfer.stop().clone();
    let begun = give(&api, &id, snapshot.as_ref(), wanted, &transfer);
    let file = match stop.run_until_cancelled(begun).await {
        Some(Ok(file)) => file,
        Some(Err(error)) => return Err(transfer.failed(error)),
        None => return Err(transfer.stopped()),
    };
    transfer.say(None);
    let size = file.size_bytes();
    size.inspect(|size| transfer.announce(*size));
    let body = outgoing::body(file, api.clock().clone(), stop, slot);
    Ok(Answer::bytes(size, &kept_as, transfer.through(body)))
}

/// The image that is asked for.
fn wanted(params: &VolumeDownload) -> Wanted {
    let format = match params.image_format.unwrap_or(ImageFormatWord::Raw) {
        ImageFormatWord::Raw => DiskFormat::Raw,
        ImageFormatWord::Qcow2 => DiskFormat::Qcow2,
        ImageFormatWord::Qed => DiskFormat::Qed,
        ImageFormatWord::Vmdk => DiskFormat::Vmdk,
        ImageFormatWord::Vdi => DiskFormat::Vdi,
        ImageFormatWord::Vpc => DiskFormat::Vpc,
        ImageFormatWord::Vhdx => DiskFormat::Vhdx,
    };
    let compression = match params.compression.unwrap_or(CompressionWord::None) {
        CompressionWord::None => None,
        CompressionWord::Gzip => Some(Compression::Gzip),
        CompressionWord::Xz => Some(Compression::Xz),
        CompressionWord::Zstd => Some(Compression::Zstd),
    };
    Wanted { format, compression }
}

/// Time that a download waits at most until its image may be made.
const MOST_WAIT: Duration = Duration::from_secs(600);

/// Makes the image, which a client that goes away ends, or begins to. Nobody is kept from the
/// volume before it is read.
async fn give(
    api: &ApiState,
    volume: &VolumeId,
    snapshot: Option<&SnapshotName>,
    wanted: Wanted,
    transfer: &Transfer,
) -> Result<Given<DiskOf>> {
    let (spool, storage) = (&api.settings().spool, api.storage()?);
    let is_made = wanted.format != DiskFormat::Raw;
    let data_bytes = match is_made {
        true => Some(data_bytes(api, volume, snapshot, wanted).await?),
        false => None,
    };
    let turn = turn(api, wanted, transfer).await?;
    if let Some(data_bytes) = data_bytes {
        let has_room = pvc_images::require_room_for(data_bytes, spool).await;
        has_room.map_err(|error| of_image(&error))?;
    }
    let begun = storage::download(api.store(), storage.as_ref(), volume, snapshot);
    let download =
        api.ask(async { begun.await.map_err(|error| api.readers().refused(error)) }).await?;
    // A snapshot keeps nobody from its volume.
    let reading = snapshot.is_none().then(|| transfer.reads(api, volume));
    let disk = DiskOf::new(download, reading);
    transfer.say(is_made.then_some("making the image"));
    tokio::select! {
        biased;
        given = pvc_images::give(disk, turn, spool) => given.map_err(not_given),
        () = api.clock().sleep(MOST_TIME) => {
            let hours = MOST_TIME.as_secs() / 3600;
            let message = format!("no image was made of it within {hours} hours");
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message))
        }
    }
}

/// Waits until the image may be made.
async fn turn(api: &ApiState, wanted: Wanted, transfer: &Transfer) -> Result<Turn> {
    transfer.say((wanted.format != DiskFormat::Raw).then_some("waits for its turn"));
    tokio::select! {
        biased;
        turn = api.images().turn(wanted) => Ok(turn),
        () = api.clock().sleep(MOST_WAIT) => {
            let minutes = MOST_WAIT.as_secs() / 60;
            let message = format!("other images were being made for {minutes} minutes: try again");
            let hint = "a raw image, also a compressed one, does not wait";
            let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message);
            Err(error.hint(Some(hint)).retry_after(60))
        }
    }
}

/// The most bytes of data that are in the volume, or were at the snapshot.
async fn data_bytes(
    api: &ApiState,
    volume: &VolumeId,
    snapshot: Option<&SnapshotName>,
    wanted: Wanted,
) -> Result<u64> {
    let storage = api.storage()?;
    let refusal = |error| refused(ChangeError::Refused(StorageRefusal::from(error)));
    let found = api.ask(async { storage.volume(volume).await.map_err(refusal) }).await?;
    let at = found.snapshots.iter().find(|at| Some(&at.name) == snapshot);
    let size_bytes = at.map_or(found.size_bytes, |at| at.size_bytes);
    let too_large = |error| of_image(&ImageError::from(error));
    wanted.format.require_room(size_bytes).map_err(too_large)?;
    // What is used now says nothing of what was.
    let used_bytes = found.used_bytes.filter(|_| snapshot.is_none());
    Ok(used_bytes.map_or(size_bytes, |used| used.min(size_bytes)))
}

fn not_given(error: GiveError<StorageError>) -> ApiError {
    match error {
        GiveError::Disk(error) => refused(ChangeError::Refused(StorageRefusal::from(error))),
        GiveError::Misfit => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        GiveError::Image(error) => of_image(&error),
    }
}

/// The name under which a browser keeps the contents.
fn file_name(volume: &str, snapshot: Option<&SnapshotName>, wanted: Wanted) -> String {
    let Wanted { format, compression } = wanted;
    let moment = snapshot.map_or_else(String::new, |snapshot| format!("@{snapshot}"));
    let packed = compression.map_or_else(String::new, |way| format!(".{}", way.ending()));
    format!("{volume}{moment}.{}{packed}", format.ending())
}

#[cfg(test)]
mod tests {
    use pvc_ports::Upload;
    use tokio::sync::Notify;

    use super::InSlot;
    use super::*;
    use crate::slots::Slots;

    /// An upload that is committed at once, and discarded when it is told to.
    struct Slow(Arc<Notify>);

    #[async_trait]
    impl Upload for Slow {
        async fn write(&mut self, _: u64, _: Bytes) -> Result<(), StorageError> {
            Ok(())
        }

        async fn finish(&mut self) -> Result<(), StorageError> {
            Ok(())
        }

        async fn commit(self: Box<Self>) -> Result<(), StorageError> {
            Ok(())
        }

        async fn discard(self: Box<Self>) {
            self.0.notified().await;
        }
    }

    async fn settle() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_slot_is_taken_until_nothing_is_left_of_an_upload_that_failed() {
        let (slots, may_end) = (Slots::new(1), Arc::new(Notify::new()));
        let begun = || {
            let slot = slots.take("a", "uploads").expect("it is free");
            Box::new(InSlot::new(Box::new(Slow(may_end.clone())), Arc::new(slot)))
        };
        drop(begun());
        settle().await;
        assert_eq!(slots.take("a", "uploads").unwrap_err().status, 503);
        may_end.notify_one();
        settle().await;
        begun().commit().await.unwrap();
        let discarding = tokio::spawn(begun().discard());
        settle().await;
        assert_eq!(slots.take("a", "uploads").unwrap_err().status, 503);
        discarding.abort();
        settle().await;
        assert_eq!(slots.take("a", "uploads").unwrap_err().status, 503, "it goes on");
        may_end.notify_one();
        settle().await;
        slots.take("a", "uploads").unwrap();
    }
}
