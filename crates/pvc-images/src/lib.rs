//! Disk images of many formats, as pieces of a raw disk.
//!
//! ```text
//!  a file, as it is sent ─▶ decompressed, on a thread ─▶ raw:   pieces, at once
//!        │ counted, hashed                               other: a file without a name
//!        ▼                                                      checked: header, `qemu-img check`, `map`
//!   compared with what was announced                            `qemu-img convert` ─▶ pieces
//! ```
//!
//! Whatever a file is made to do, it gets so much: 64 MiB for the window of a decoder, as many bytes
//! as the disk may have and a tenth more on disk, a time that grows with them, and for `qemu-img`,
//! which reads what is not raw, the rights of `nobody`, two files that have no name, and limits of
//! the kernel.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "files of an upload have no name, and their own bounds; a simulation has none"
)]

mod decode;
mod error;
mod qemu;
mod spool;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_model::disk_image::DiskFormat;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::decode::Decoder;
pub use crate::error::{ImageError, TakeError};

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

/// An image, as its sender describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    pub format: DiskFormat,
    /// Size of the file, in bytes, if it was said.
    pub file_bytes: Option<u64>,
    /// SHA-256 checksum of the file, if it was said.
    pub sha256: Option<[u8; 32]>,
    /// Whether a raw image may begin like one of another format.
    pub even_if_not_raw: bool,
    /// Size of the disk that the image is for, in bytes; it may be smaller.
    pub most_bytes: u64,
}

/// A file that has come, as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub file_bytes: u64,
    pub sha256: [u8; 32],
    /// Size of the disk that the image describes, in bytes.
    pub disk_bytes: u64,
}

/// Places that all who take images share.
#[derive(Debug, Clone)]
pub struct Places {
    /// For decoders: each has its window.
    decoders: Arc<Semaphore>,
    /// For `qemu-img`.
    conversions: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        Places { decoders: Arc::new(Semaphore::new(4)), conversions: Arc::new(Semaphore::new(2)) }
    }
}

/// Reads a whole image and gives `write` its disk: pieces of at most [`MOST_PIECE_BYTES`] with their
/// offsets, in order, one at a time. What is in no piece is zeros. Nothing of it is to count before
/// this returns. Files without a name are made in `spool`.
///
/// # Errors
/// Those of the source and of `write`, as they are, and what is wrong with the image.
///
/// # Cancellation
/// Dropping the future ends programs and threads that work for it, and leaves no file.
pub async fn take<S: Source, E>(
    source: &mut S,
    announced: &Announced,
    spool: &Path,
    places: &Places,
    mut write: impl AsyncFnMut(u64, Bytes) -> Result<(), E>,
) -> Result<Sent, TakeError<S::Error, E>> {
    let mut file = Counted { source, file_bytes: 0, hash: Sha256::new(), announced };
    let (begin, compression) = file.begin().await?;
    let _place = match compression {
        Some(_) => Some(places.decoders.acquire().await.expect("it is never closed")),
        None => None,
    };
    let decoder = Decoder::start(compression);
    let disk_bytes = match announced.format {
        DiskFormat::Raw => take_raw(&mut file, begin, decoder, announced, &mut write).await?,
        _ => take_other(&mut file, begin, decoder, announced, spool, places, &mut write).await?,
    };
    let (file_bytes, sha256) = file.finish()?;
    Ok(Sent { file_bytes, sha256, disk_bytes })
}

type Taken<T, S, E> = Result<T, TakeError<<S as Source>::Error, E>>;

/// The source, with what it has given.
struct Counted<'a, S> {
    source: &'a mut S,
    file_bytes: u64,
    hash: Sha256,
    announced: &'a Announced,
}

impl<S: Source> Counted<'_, S> {
    async fn next<E>(&mut self) -> Taken<Option<Bytes>, S, E> {
        let Some(bytes) = self.source.next().await.map_err(TakeError::Source)? else {
            return Ok(None);
        };
        self.file_bytes += bytes.len() as u64;
        if let Some(announced) = self.announced.file_bytes.filter(|all| *all < self.file_bytes) {
            return Err(ImageError::Longer { announced }.into());
        }
        self.hash.update(&bytes);
        Ok(Some(bytes))
    }

    /// The first bytes, and how the file is compressed.
    async fn begin<E>(&mut self) -> Taken<(Bytes, Option<decode::Compression>), S, E> {
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

    /// Size and checksum of the file, which are those that were announced.
    fn finish<E>(self) -> Taken<(u64, [u8; 32]), S, E> {
        let file_bytes = self.file_bytes;
        if let Some(announced) = self.announced.file_bytes.filter(|all| *all != file_bytes) {
            return Err(ImageError::Shorter { announced, file_bytes }.into());
        }
        let sha256: [u8; 32] = self.hash.finalize().into();
        if self.announced.sha256.is_some_and(|announced| announced != sha256) {
            return Err(ImageError::Checksum { sha256 }.into());
        }
        Ok((file_bytes, sha256))
    }
}

/// Has all of the file decoded, and gives `each` what comes out, in pieces of [`MOST_PIECE_BYTES`]
/// but for the last. Returns how much came out, in bytes.
async fn decode<S: Source, E>(
    file: &mut Counted<'_, S>,
    begin: Bytes,
    decoder: Decoder,
    mut each: impl AsyncFnMut(u64, Bytes) -> Taken<(), S, E>,
) -> Taken<u64, S, E> {
    let Decoder { input, mut output } = decoder;
    let feed = async {
        let mut next = Some(begin);
        while let Some(bytes) = next {
            // A decoder that is gone has said why.
            if !bytes.is_empty() && input.send(bytes).await.is_err() {
                break;
            }
            next = file.next::<E>().await?;
        }
        drop(input);
        Ok::<(), TakeError<S::Error, E>>(())
    };
    let drain = async {
        let mut at = 0_u64;
        while let Some(piece) = output.recv().await {
            let piece = piece.map_err(TakeError::Image)?;
            let length = piece.len() as u64;
            each(at, piece).await?;
            at += length;
        }
        Ok::<u64, TakeError<S::Error, E>>(at)
    };
    // Whoever fails first ends both: a sender is not waited for whose file is refused.
    let ((), at) = tokio::try_join!(feed, drain)?;
    Ok(at)
}

async fn take_raw<S: Source, E>(
    file: &mut Counted<'_, S>,
    begin: Bytes,
    decoder: Decoder,
    announced: &Announced,
    write: &mut impl AsyncFnMut(u64, Bytes) -> Result<(), E>,
) -> Taken<u64, S, E> {
    let most_bytes = announced.most_bytes;
    let disk_bytes = decode(file, begin, decoder, async |at, piece| {
        if at == 0 && !announced.even_if_not_raw {
            require_raw(&piece)?;
        }
        if at + piece.len() as u64 > most_bytes {
            return Err(ImageError::TooLarge { disk_bytes: None, most_bytes }.into());
        }
        write_data(at, &piece, write).await
    })
    .await?;
    match disk_bytes {
        0 => Err(ImageError::Empty.into()),
        _ => Ok(disk_bytes),
    }
}

fn require_raw(begin: &[u8]) -> Result<(), ImageError> {
    match DiskFormat::of_beginning(begin) {
        None => Ok(()),
        Some(format) => Err(ImageError::NotRaw { format }),
    }
}

/// Writes what is no block of zeros.
async fn write_data<F, E>(
    at: u64,
    piece: &Bytes,
    write: &mut impl AsyncFnMut(u64, Bytes) -> Result<(), E>,
) -> Result<(), TakeError<F, E>> {
    for (from, to) in data_in(piece) {
        write(at + from as u64, piece.slice(from..to)).await.map_err(TakeError::Write)?;
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

async fn take_other<S: Source, E>(
    file: &mut Counted<'_, S>,
    begin: Bytes,
    decoder: Decoder,
    announced: &Announced,
    spool: &Path,
    places: &Places,
    write: &mut impl AsyncFnMut(u64, Bytes) -> Result<(), E>,
) -> Taken<u64, S, E> {
    let (format, most_bytes) = (announced.format, announced.most_bytes);
    // What a format needs beside the data of the disk.
    let most_image = most_bytes.saturating_add(most_bytes / 10).saturating_add(64 << 20);
    let image = spool::Nameless::new(spool).await?;
    let image_bytes = decode(file, begin, decoder, async |at, piece| {
        if at + piece.len() as u64 > most_image {
            return Err(ImageError::TooLarge { disk_bytes: None, most_bytes }.into());
        }
        if at == 0 {
            check_header(format, &piece)?;
        }
        image.write(at, piece).await.map_err(TakeError::Image)
    })
    .await?;
    if image_bytes == 0 {
        return Err(ImageError::Empty.into());
    }
    let _place = places.conversions.acquire().await.expect("it is never closed");
    let disk_bytes = qemu::check(&image, format, image_bytes).await?;
    if disk_bytes == 0 {
        return Err(ImageError::Empty.into());
    }
    if disk_bytes > most_bytes {
        return Err(ImageError::TooLarge { disk_bytes: Some(disk_bytes), most_bytes }.into());
    }
    let disk = spool::Nameless::new(spool).await?;
    qemu::convert(&image, format, &disk, disk_bytes).await?;
    // Its room is given back before the disk is read.
    drop(image);
    let mut at = 0;
    while let Some((offset, piece)) = disk.next_data(at).await? {
        at = offset + piece.len() as u64;
        write_data(offset, &piece, write).await?;
    }
    Ok(disk_bytes)
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
