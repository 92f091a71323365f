//! Disk images of many formats, as pieces of a raw disk: taken by [`take`], and made by [`give`].
//!
//! ```text
//!  a file, as it is sent ─▶ decompressed, on a thread ─▶ raw:   pieces, at once
//!        │ counted, summed                               other: a file without a name
//!        ▼                                                      checked: header, `check`, `map`
//!   compared with what was announced                            `qemu-img convert` ─▶ pieces
//! ```
//!
//! ```text
//!  pieces of a disk ─▶ raw:   with its holes filled, at once  ─▶ as it is, or compressed,
//!                      other: a file without a name              on a thread
//!                             `qemu-img convert` ─▶ another
//! ```
//!
//! Whatever a file is made to do, it gets so much: 80 MiB for a decoder, on disk as
//! many bytes as the volume may have and a tenth more, a time that grows with them, and for
//! `qemu-img`, which reads what is not raw, the rights of `nobody`, two files that have no name,
//! and limits of the kernel.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "files of an upload have no name, and their own bounds; a simulation has none"
)]

mod decode;
mod encode;
mod error;
mod give;
mod qemu;
mod share;
mod spool;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_model::disk_image::DiskFormat;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::decode::{Decoder, Part};
pub use crate::error::{GiveError, ImageError, TakeError};
use crate::error::{SourceError, TargetError};
pub use crate::give::{Disk, Given, Turn, Wanted, give, give_within};
use crate::qemu::Checked;
use crate::share::Shared;
use crate::spool::Nameless;
pub use crate::spool::{Spool, require_room_for};

/// The most memory of one `qemu-img`, in bytes; three may run at once: see [`Places`].
pub const MOST_QEMU_BYTES: usize = 2 << 30;

/// The most bytes of one piece.
pub const MOST_PIECE_BYTES: usize = 1 << 20;

/// Blocks of as many zeros are in no piece.
const BLOCK_BYTES: usize = 64 << 10;

/// The file, as it comes.
#[async_trait]
pub trait Source: Send {
    type Error: Send;

    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Self::Error>;
}

/// The disk that is written.
#[async_trait]
pub trait Target: Send {
    type Error: Send;

    /// Writes a piece at this offset, in bytes.
    async fn write(&mut self, at: u64, bytes: Bytes) -> Result<(), Self::Error>;
}

/// An image, as its sender describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    pub format: DiskFormat,
    /// Size of the file, in bytes, if it was said.
    pub file_bytes: Option<u64>,
    /// SHA-256 checksum of the file, if it was said. It is made only then: without help of the
    /// processor it takes longer than the rest of an upload.
    pub sha256: Option<[u8; 32]>,
    /// Whether it was known how long the file is before it was sent, said or not: it is of a file
    /// on a disk, and is not of the output of a program that may have failed.
    pub has_known_end: bool,
    /// Whether a raw image is taken also if it begins like one of another format, or may be cut.
    pub is_meant_so: bool,
    /// Size of the disk that the image is for, in bytes; it may be smaller.
    pub most_bytes: u64,
}

impl Announced {
    /// Refuses a raw image that may be the begin of one. Nothing in it says where it ends, and a
    /// pipe ends well also when whoever writes into it has died.
    fn require_whole(&self, disk_bytes: u64) -> Result<(), ImageError> {
        let Announced { format, file_bytes, sha256, has_known_end, is_meant_so, most_bytes } = self;
        let is_known = *has_known_end || file_bytes.is_some() || sha256.is_some();
        match *format == DiskFormat::Raw && disk_bytes < *most_bytes && !is_known && !is_meant_so {
            true => Err(ImageError::MayBeCut { disk_bytes, most_bytes: *most_bytes }),
            false => Ok(()),
        }
    }
}

/// A file that has come, as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub file_bytes: u64,
    /// CRC-32 checksum, as of gzip and zip.
    pub crc32: u32,
    /// SHA-256 checksum, if one was announced.
    pub sha256: Option<[u8; 32]>,
    /// Size of the disk that the image describes, in bytes.
    pub disk_bytes: u64,
}

/// Places that all who take and give images share.
#[derive(Debug, Clone)]
pub struct Places {
    /// Name of whoever takes one.
    caller: String,
    /// For decoders: each has its window.
    decoders: Shared,
    /// For `qemu-img`, and for disks that are kept for it: some to read images, and one to make
    /// them, so that neither waits for the other. To read one may take days.
    readers: Shared,
    makers: Arc<Semaphore>,
    /// For encoders, for a piece at a time: each has a core for itself.
    encoders: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Places {
            caller: String::new(),
            decoders: Shared::new(4, 2),
            readers: Shared::new(2, 1),
            makers: places(1),
            encoders: places(2),
        }
    }
}

impl Places {
    /// The same places as a caller takes them, who does not get all of them.
    #[must_use]
    pub fn of(&self, caller: &str) -> Self {
        Places { caller: caller.to_owned(), ..self.clone() }
    }

    /// Waits until the image may be made, one after the other; whoever makes none does not wait.
    ///
    /// # Cancellation
    /// Dropping the future gives up the place in the queue.
    pub async fn turn(&self, wanted: Wanted) -> Turn {
        let place = match wanted.format {
            DiskFormat::Raw => None,
            _ => {
                let place = self.makers.clone().acquire_owned().await;
                Some(place.expect("it is never closed"))
            }
        };
        Turn { wanted, place, encoders: self.encoders.clone() }
    }
}

/// Reads a whole image and writes its disk: pieces of at most [`MOST_PIECE_BYTES`] with their
/// offsets, in order, one at a time. What is in no piece is zeros. Nothing of it is to count before
/// this returns. Files without a name are made in `spool`.
///
/// # Errors
/// Those of the source and of the target, as they are, and what is wrong with the image.
///
/// # Cancellation
/// Dropping the future ends programs and threads that work for it, and leaves no file.
pub async fn take<S: Source, W: Target>(
    source: &mut S,
    announced: &Announced,
    spool: &Spool,
    places: &Places,
    target: &mut W,
) -> Taken<Sent, S, W> {
    let mut file = Counted::new(source, announced);
    let (begin, compression) = file.begin().await?;
    let _place = match compression {
        Some(_) => Some(places.decoders.take(&places.caller).await),
        None => None,
    };
    let decoder = Decoder::start(compression);
    let disk_bytes = match announced.format {
        DiskFormat::Raw => {
            let mut disk = RawDisk { announced, target };
            decode::<S, W>(&mut file, begin, decoder, &mut disk).await?
        }
        _ => {
            let image = Image { announced, file: Nameless::new(spool).await? };
            let mut sink = ImageSink::<W> { image: &image, of: std::marker::PhantomData };
            let image_bytes = decode::<S, W>(&mut file, begin, decoder, &mut sink).await?;
            if image_bytes == 0 {
                return Err(ImageError::Empty.into());
            }
            let _place = places.readers.take(&places.caller).await;
            let (disk, disk_bytes) = image.convert(image_bytes, spool).await?;
            copy(&disk, target).await.map_err(TakeError::of_target)?;
            disk_bytes
        }
    };
    if disk_bytes == 0 {
        return Err(ImageError::Empty.into());
    }
    let sent = file.finish(disk_bytes)?;
    announced.require_whole(disk_bytes)?;
    Ok(sent)
}

type Taken<T, S, W> = Result<T, TakeError<<S as Source>::Error, <W as Target>::Error>>;

/// The source, with what it has given.
struct Counted<'a, S> {
    source: &'a mut S,
    file_bytes: u64,
    crc32: crc32fast::Hasher,
    sha256: Option<Sha256>,
    announced: &'a Announced,
}

impl<'a, S: Source> Counted<'a, S> {
    fn new(source: &'a mut S, announced: &'a Announced) -> Self {
        let (crc32, sha256) = (crc32fast::Hasher::new(), announced.sha256.map(|_| Sha256::new()));
        Counted { source, file_bytes: 0, crc32, sha256, announced }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, SourceError<S::Error>> {
        let Some(bytes) = self.source.next().await.map_err(SourceError::Source)? else {
            return Ok(None);
        };
        self.file_bytes += bytes.len() as u64;
        if let Some(announced) = self.announced.file_bytes.filter(|all| *all < self.file_bytes) {
            return Err(SourceError::Image(ImageError::Longer { announced }));
        }
        self.crc32.update(&bytes);
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(&bytes);
        }
        Ok(Some(bytes))
    }

    /// The first bytes, and how the file is compressed.
    async fn begin(
        &mut self,
    ) -> Result<(Bytes, Option<decode::Compression>), SourceError<S::Error>> {
        let mut begin = Vec::new();
        while begin.len() < decode::Compression::BEGINNING {
            match self.next().await? {
                Some(bytes) => begin.extend_from_slice(&bytes),
                None => break,
            }
        }
        let compression = decode::Compression::of_beginning(&begin);
        Ok((begin.into(), compression))
    }

    /// The file as it was, which is as it was announced.
    fn finish(self, disk_bytes: u64) -> Result<Sent, ImageError> {
        let file_bytes = self.file_bytes;
        if let Some(announced) = self.announced.file_bytes.filter(|all| *all != file_bytes) {
            return Err(ImageError::Shorter { announced, file_bytes });
        }
        let sha256 = self.sha256.map(|hash| hash.finalize().into());
        if let Some(sha256) = sha256.filter(|sha256| self.announced.sha256 != Some(*sha256)) {
            return Err(ImageError::Checksum { sha256 });
        }
        Ok(Sent { file_bytes, crc32: self.crc32.finalize(), sha256, disk_bytes })
    }
}

/// Has all of the file decoded, and gives `sink` what comes out, in pieces of whole blocks but for
/// the last. Returns how much came out, in bytes.
async fn decode<S: Source, W: Target>(
    file: &mut Counted<'_, S>,
    begin: Bytes,
    decoder: Decoder,
    sink: &mut dyn Target<Error = TargetError<W::Error>>,
) -> Taken<u64, S, W> {
    let Decoder { input, mut output } = decoder;
    let feed = async {
        let input = input;
        let mut next = Some(begin);
        while let Some(bytes) = next {
            // A decoder that is gone has said why.
            if !bytes.is_empty() && input.send(Part::Bytes(bytes)).await.is_err() {
                return Ok(false);
            }
            next = file.next().await?;
        }
        Ok::<_, TakeError<S::Error, W::Error>>(input.send(Part::End).await.is_ok())
    };
    let drain = async {
        let mut at = 0_u64;
        loop {
            match output.recv().await.unwrap_or(Err(ImageError::DecoderLost))? {
                Part::Bytes(piece) => {
                    let length = piece.len() as u64;
                    sink.write(at, piece).await.map_err(TakeError::of_target)?;
                    at += length;
                }
                Part::End => return Ok::<_, TakeError<S::Error, W::Error>>(at),
            }
        }
    };
    // Whoever fails first ends both: a sender is not waited for whose file is refused.
    match tokio::try_join!(feed, drain)? {
        (true, at) => Ok(at),
        (false, _) => Err(ImageError::DecoderLost.into()),
    }
}

/// A raw disk, whose pieces go where they belong.
struct RawDisk<'a, W> {
    announced: &'a Announced,
    target: &'a mut W,
}

#[async_trait]
impl<W: Target> Target for RawDisk<'_, W> {
    type Error = TargetError<W::Error>;

    async fn write(&mut self, at: u64, piece: Bytes) -> Result<(), Self::Error> {
        let Announced { most_bytes, is_meant_so, .. } = *self.announced;
        let found = DiskFormat::of_beginning(&piece);
        if let Some(format) = found.filter(|_| at == 0 && !is_meant_so) {
            return Err(ImageError::NotRaw { format }.into());
        }
        if at + piece.len() as u64 > most_bytes {
            return Err(ImageError::TooLarge { disk_bytes: None, most_bytes }.into());
        }
        write_data(at, &piece, self.target).await
    }
}

/// An image in a format that `qemu-img` reads when all of it is there.
struct Image<'a> {
    announced: &'a Announced,
    file: Nameless,
}

impl Image<'_> {
    async fn keep(&self, at: u64, piece: Bytes) -> Result<(), ImageError> {
        let Announced { format, most_bytes, .. } = *self.announced;
        if at + piece.len() as u64 > most_image_bytes(most_bytes) {
            return Err(ImageError::TooLarge { disk_bytes: None, most_bytes });
        }
        if at == 0 {
            check_header(format, &piece)?;
        }
        self.file.write(at, piece).await
    }

    /// The disk of the image, and its size in bytes.
    async fn convert(self, image_bytes: u64, spool: &Spool) -> Result<(Nameless, u64), ImageError> {
        let Announced { format, most_bytes, .. } = *self.announced;
        let checked = qemu::check(&self.file, format, image_bytes, most_bytes).await?;
        let Checked { disk_bytes, data_bytes } = checked;
        let disk = Nameless::new(spool).await?;
        // A small file may be the image of much data: all of it is written in seconds.
        disk.require_room(data_bytes).await?;
        if disk_bytes > 0 {
            qemu::convert(&self.file, format, &disk, disk_bytes).await?;
        }
        Ok((disk, disk_bytes))
    }
}

/// The most bytes of an image of a disk: what a format needs beside the data of the disk.
fn most_image_bytes(disk_bytes: u64) -> u64 {
    disk_bytes.saturating_add(disk_bytes / 10).saturating_add(64 << 20)
}

/// The image, as the sink of what is decoded.
struct ImageSink<'a, W> {
    image: &'a Image<'a>,
    of: std::marker::PhantomData<fn() -> W>,
}

#[async_trait]
impl<W: Target> Target for ImageSink<'_, W> {
    type Error = TargetError<W::Error>;

    async fn write(&mut self, at: u64, piece: Bytes) -> Result<(), Self::Error> {
        Ok(self.image.keep(at, piece).await?)
    }
}

async fn copy<W: Target>(disk: &Nameless, target: &mut W) -> Result<(), TargetError<W::Error>> {
    let mut at = 0;
    while let Some((offset, piece)) = disk.next_data(at).await? {
        at = offset + piece.len() as u64;
        write_data(offset, &piece, target).await?;
    }
    Ok(())
}

/// Writes what is no block of zeros.
async fn write_data<W: Target>(
    at: u64,
    piece: &Bytes,
    target: &mut W,
) -> Result<(), TargetError<W::Error>> {
    for (from, to) in data_in(piece) {
        let written = target.write(at + from as u64, piece.slice(from..to)).await;
        written.map_err(TargetError::Target)?;
    }
    Ok(())
}

/// Runs of blocks that are not all zeros, as offsets in the piece.
fn data_in(piece: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (block, bytes) in piece.chunks(BLOCK_BYTES).enumerate() {
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        let (from, to) = (block * BLOCK_BYTES, block * BLOCK_BYTES + bytes.len());
        match runs.last_mut().filter(|run| run.1 == from) {
            Some(run) => run.1 = to,
            None => runs.push((from, to)),
        }
    }
    runs
}

fn check_header(format: DiskFormat, begin: &[u8]) -> Result<(), ImageError> {
    use pvc_model::disk_image::{HEADER, check_header};
    let mut header = [0; HEADER];
    let length = begin.len().min(HEADER);
    header[..length].copy_from_slice(&begin[..length]);
    check_header(format, &header).map_err(|why| ImageError::Bad { format, why })
}

#[cfg(test)]
mod tests;
