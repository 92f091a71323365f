//! A disk as the file of an image.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_model::disk_image::{Compression, DiskFormat};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::decode::Part;
use crate::encode::Encoder;
use crate::error::{GiveError, ImageError};
use crate::spool::{Nameless, Spool};
use crate::{MOST_PIECE_BYTES, data_in, most_image_bytes, qemu};

/// The disk that is read.
#[async_trait]
pub trait Disk: Send {
    type Error: Send;

    fn size_bytes(&self) -> u64;

    /// The next piece that is not all zeros, as its offset in bytes and at most
    /// [`MOST_PIECE_BYTES`] bytes; `None` when there is no other. Pieces come in order and do not
    /// overlap.
    ///
    /// # Cancellation
    /// Dropping the future loses nothing: the piece comes again.
    async fn next(&mut self) -> Result<Option<(u64, Bytes)>, Self::Error>;
}

/// An image as it is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub format: DiskFormat,
    pub compression: Option<Compression>,
}

/// Leave to make an image, which [`Places::turn`](crate::Places::turn) gives. It is to be had
/// before the disk is opened, which nobody else can open then, or which has a snapshot that is
/// kept.
#[derive(Debug)]
pub struct Turn {
    pub(crate) wanted: Wanted,
    /// Of an image that is made whole: others wait until it is.
    pub(crate) place: Option<OwnedSemaphorePermit>,
    pub(crate) encoders: Arc<Semaphore>,
}

/// Makes the disk the file of an image, or begins to: one in a format other than raw is all made
/// when this returns, in a file without a name in `spool`, and the disk is not read any more. Any
/// other file is made as it is [read](Given::next).
///
/// # Errors
/// [`ImageError::TooLargeFor`] before anything is read. Those of the disk, as they are, and what is
/// wrong with this machine.
///
/// # Cancellation
/// Dropping the future ends programs that work for it, and leaves no file.
pub async fn give<D: Disk>(
    disk: D,
    turn: Turn,
    spool: &Spool,
) -> Result<Given<D>, GiveError<D::Error>> {
    let most_bytes = most_image_bytes(disk.size_bytes());
    give_within(disk, turn, most_bytes, spool).await
}

/// Same as [`give`], of an image that `qemu-img` may make so large, in bytes.
///
/// # Errors
/// [`ImageError::NotMade`] if it would be larger.
pub async fn give_within<D: Disk>(
    disk: D,
    turn: Turn,
    most_bytes: u64,
    spool: &Spool,
) -> Result<Given<D>, GiveError<D::Error>> {
    let Turn { wanted: Wanted { format, compression }, place, encoders } = turn;
    format.require_room(disk.size_bytes()).map_err(ImageError::from)?;
    let file = match format {
        DiskFormat::Raw => File::Disk(Pieces::new(disk)),
        _ => File::Image(make(disk, format, spool, most_bytes).await?),
    };
    drop(place);
    let encoding = compression.map(|compression| Encoding {
        encoder: Encoder::start(compression, encoders),
        next: None,
        is_read: false,
    });
    Ok(Given { flat: Flat::new(file), encoding })
}

/// The image of a disk, in a file of its own.
async fn make<D: Disk>(
    disk: D,
    format: DiskFormat,
    spool: &Spool,
    most_bytes: u64,
) -> Result<Image, GiveError<D::Error>> {
    let size_bytes = disk.size_bytes();
    if size_bytes == 0 {
        return Err(ImageError::Empty.into());
    }
    let raw = Nameless::new(spool).await?;
    // QEMU's disks are of whole sectors.
    raw.set_size(size_bytes.next_multiple_of(512)).await?;
    let mut pieces = Pieces::new(disk);
    while let Some((at, piece)) = pieces.next().await? {
        for (from, to) in data_in(&piece) {
            raw.write(at + from as u64, piece.slice(from..to)).await?;
        }
    }
    drop(pieces);
    let file = Nameless::new(spool).await?;
    qemu::make(&raw, size_bytes, format, &file, most_bytes).await?;
    let size_bytes = file.size().await?;
    Ok(Image { file, size_bytes, at: 0 })
}

/// The file of an image that is whole.
struct Image {
    file: Nameless,
    size_bytes: u64,
    at: u64,
}

/// Source of the bytes of a file.
enum File<D> {
    Disk(Pieces<D>),
    Image(Image),
}

impl<D: Disk> File<D> {
    fn size_bytes(&self) -> u64 {
        match self {
            File::Disk(pieces) => pieces.disk.size_bytes(),
            File::Image(image) => image.size_bytes,
        }
    }

    /// The next piece that is no hole, with its offset.
    async fn next(&mut self) -> Result<Option<(u64, Bytes)>, GiveError<D::Error>> {
        match self {
            File::Disk(pieces) => pieces.next().await,
            File::Image(image) => {
                let found = image.file.next_data(image.at).await?;
                if let Some((at, piece)) = &found {
                    image.at = at + piece.len() as u64;
                }
                Ok(found)
            }
        }
    }
}

/// The pieces of a disk, which are as they must be.
struct Pieces<D> {
    disk: D,
    /// End of the last one.
    at: u64,
}

impl<D: Disk> Pieces<D> {
    fn new(disk: D) -> Self {
        Pieces { disk, at: 0 }
    }

    async fn next(&mut self) -> Result<Option<(u64, Bytes)>, GiveError<D::Error>> {
        let Some((at, piece)) = self.disk.next().await.map_err(GiveError::Disk)? else {
            return Ok(None);
        };
        let end = at.checked_add(piece.len() as u64);
        let end = end.filter(|end| at >= self.at && *end <= self.disk.size_bytes());
        self.at = end.ok_or(GiveError::Misfit)?;
        Ok(Some((at, piece)))
    }
}

/// A file with its holes filled, in pieces one after the other.
struct Flat<D> {
    file: File<D>,
    at: u64,
    /// The piece before which zeros are missing.
    held: Option<(u64, Bytes)>,
    is_read: bool,
    zeros: Bytes,
}

impl<D: Disk> Flat<D> {
    fn new(file: File<D>) -> Self {
        let zeros = Bytes::from(vec![0; MOST_PIECE_BYTES]);
        Flat { file, at: 0, held: None, is_read: false, zeros }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, GiveError<D::Error>> {
        if self.held.is_none() && !self.is_read {
            self.held = self.file.next().await?;
            self.is_read = self.held.is_none();
        }
        let until = self.held.as_ref().map_or(self.file.size_bytes(), |held| held.0);
        let missing = usize::try_from(until.saturating_sub(self.at)).unwrap_or(MOST_PIECE_BYTES);
        let next = match missing {
            0 => self.held.take().map(|(_, piece)| piece),
            _ => Some(self.zeros.slice(..missing.min(MOST_PIECE_BYTES))),
        };
        self.at += next.as_ref().map_or(0, Bytes::len) as u64;
        Ok(next)
    }
}

/// A file on its way through an encoder.
struct Encoding {
    encoder: Encoder,
    /// The part that it is to get next.
    next: Option<Part>,
    /// Whether it has got all of it.
    is_read: bool,
}

/// The file of an image, as it is read.
pub struct Given<D> {
    flat: Flat<D>,
    encoding: Option<Encoding>,
}

impl<D: Disk> Given<D> {
    /// Size of the file, in bytes, unless that turns out only when it is compressed.
    pub fn size_bytes(&self) -> Option<u64> {
        self.encoding.is_none().then(|| self.flat.file.size_bytes())
    }

    /// The next bytes; `None` when they were all, and the disk has said that it was read to its
    /// end.
    ///
    /// # Cancellation
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Bytes>, GiveError<D::Error>> {
        let Given { flat, encoding } = self;
        let Some(Encoding { encoder, next, is_read }) = encoding else { return flat.next().await };
        loop {
            if next.is_none() && !*is_read {
                let piece = flat.next().await?;
                *is_read = piece.is_none();
                *next = Some(piece.map_or(Part::End, Part::Bytes));
            }
            tokio::select! {
                biased;
                made = encoder.output.recv() => {
                    return match made.unwrap_or(Err(ImageError::EncoderLost))? {
                        Part::Bytes(bytes) => Ok(Some(bytes)),
                        Part::End => Ok(None),
                    };
                }
                place = encoder.input.reserve(), if next.is_some() => {
                    // An encoder that takes no more says why.
                    if let (Some(part), Ok(place)) = (next.take(), place) {
                        place.send(part);
                    } else {
                        *is_read = true;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::path::Path;

    use super::*;
    use crate::{Announced, Places, Source, Target, take};

    /// A place of which nothing is left to others.
    fn spool(directory: &Path) -> Spool {
        Spool { directory: directory.to_owned(), least_free_bytes: Some(0) }
    }

    /// A place for what is made of no image.
    fn nowhere() -> Spool {
        spool(Path::new("/nonexistent"))
    }

    /// A disk of these pieces, which may turn out at its end not to have been read whole.
    struct Scripted {
        size_bytes: u64,
        pieces: VecDeque<(u64, Bytes)>,
        is_lost: bool,
    }

    #[async_trait]
    impl Disk for Scripted {
        type Error = &'static str;

        fn size_bytes(&self) -> u64 {
            self.size_bytes
        }

        async fn next(&mut self) -> Result<Option<(u64, Bytes)>, &'static str> {
            match self.pieces.pop_front() {
                None if self.is_lost => Err("lost"),
                next => Ok(next),
            }
        }
    }

    fn scripted(size_bytes: u64, pieces: &[(u64, &'static [u8])]) -> Scripted {
        let piece = |(at, bytes): &(u64, &'static [u8])| (*at, Bytes::from_static(bytes));
        Scripted { size_bytes, pieces: pieces.iter().map(piece).collect(), is_lost: false }
    }

    const WAYS: [Option<Compression>; 4] =
        [None, Some(Compression::Gzip), Some(Compression::Xz), Some(Compression::Zstd)];

    /// The raw image of the disk, to its end or to a failure.
    async fn given(
        disk: Scripted,
        compression: Option<Compression>,
    ) -> (Vec<u8>, Result<(), GiveError<&'static str>>) {
        let wanted = Wanted { format: DiskFormat::Raw, compression };
        let turn = Places::default().turn(wanted).await;
        let mut given = give(disk, turn, &nowhere()).await.expect("it is read");
        let announced = given.size_bytes();
        let mut file = Vec::new();
        loop {
            match given.next().await {
                Ok(Some(piece)) => file.extend_from_slice(&piece),
                Ok(None) => {
                    assert!(announced.is_none_or(|size| size == file.len() as u64));
                    assert_eq!(announced.is_none(), compression.is_some());
                    return (file, Ok(()));
                }
                Err(error) => return (file, Err(error)),
            }
        }
    }

    /// A file that was given, and is taken; its disk, whose last zeros are in no piece.
    struct Back(VecDeque<Bytes>, Vec<u8>);

    #[async_trait]
    impl Source for Back {
        type Error = &'static str;

        async fn next(&mut self) -> Result<Option<Bytes>, &'static str> {
            Ok(self.0.pop_front())
        }
    }

    #[async_trait]
    impl Target for Back {
        type Error = &'static str;

        async fn write(&mut self, at: u64, bytes: Bytes) -> Result<(), &'static str> {
            self.1.resize(usize::try_from(at).expect("a small disk"), 0);
            self.1.extend_from_slice(&bytes);
            Ok(())
        }
    }

    async fn disk_of(file: Vec<u8>) -> Result<Vec<u8>, String> {
        let announced = Announced {
            format: DiskFormat::Raw,
            file_bytes: None,
            sha256: None,
            has_known_end: true,
            is_meant_so: false,
            most_bytes: 64 << 20,
        };
        let mut source = Back(VecDeque::from([Bytes::from(file)]), Vec::new());
        let mut target = Back(VecDeque::new(), Vec::new());
        let (spool, places) = (nowhere(), Places::default());
        let taken = take(&mut source, &announced, &spool, &places, &mut target).await;
        let sent = taken.map_err(|error| error.to_string())?;
        target.1.resize(usize::try_from(sent.disk_bytes).expect("a small disk"), 0);
        Ok(target.1)
    }

    #[tokio::test]
    async fn what_is_in_no_piece_is_zeros() {
        for compression in WAYS {
            for (size, pieces) in [
                (5 << 20, &[(1 << 20, &b"middle"[..])][..]),
                (6, &[(0, b"all"), (3, b"of")]),
                (70_000, &[(69_998, b"at")]),
            ] {
                let (file, end) = given(scripted(size, pieces), compression).await;
                end.expect("it is whole");
                let disk = disk_of(file).await.expect("it can be taken");
                assert_eq!(disk.len() as u64, size, "{compression:?}");
                let mut wanted = vec![0; disk.len()];
                for (at, bytes) in pieces {
                    let at = usize::try_from(*at).expect("a small disk");
                    wanted[at..at + bytes.len()].copy_from_slice(bytes);
                }
                assert!(disk == wanted, "{compression:?} of {size} bytes");
            }
        }
    }

    #[tokio::test]
    async fn a_disk_that_fails_at_its_end_makes_no_whole_file() {
        for compression in WAYS {
            for pieces in [&[(0, &b"all"[..]), (3, b"of")][..], &[(2, b"end")], &[]] {
                let lost = Scripted { is_lost: true, ..scripted(5, pieces) };
                let (file, end) = given(lost, compression).await;
                assert!(matches!(end, Err(GiveError::Disk("lost"))), "{compression:?}: {end:?}");
                if compression.is_some() {
                    disk_of(file).await.expect_err("a file that is cut is refused");
                }
            }
        }
    }

    #[tokio::test]
    async fn pieces_that_do_not_fit_end_it() {
        for pieces in [&[(4, &b"xy"[..])][..], &[(2, b"b"), (0, b"a")], &[(u64::MAX, b"x")]] {
            for compression in WAYS {
                let (_, end) = given(scripted(5, pieces), compression).await;
                assert!(matches!(end, Err(GiveError::Misfit)), "{pieces:?}: {end:?}");
            }
            let folder = tempfile::tempdir().expect("a temporary folder");
            let disk = scripted(5, pieces);
            let made = make(disk, DiskFormat::Qcow2, &spool(folder.path()), 1 << 20).await;
            assert!(matches!(made, Err(GiveError::Misfit)));
        }
    }

    #[tokio::test]
    async fn something_goes_out_for_zeros_before_long() {
        for compression in [Compression::Gzip, Compression::Xz, Compression::Zstd] {
            let Encoder { input, mut output } =
                Encoder::start(compression, Arc::new(Semaphore::new(1)));
            let zeros = Bytes::from(vec![0; MOST_PIECE_BYTES]);
            let feed = async move {
                for _ in 0..48 {
                    input.send(Part::Bytes(zeros.clone())).await.expect("it takes them");
                }
                input.send(Part::End).await.expect("it takes them");
            };
            let drain = async {
                let mut count = 0;
                while let Part::Bytes(_) = output.recv().await.expect("an end").expect("no error") {
                    count += 1;
                }
                count
            };
            let ((), count) = tokio::join!(feed, drain);
            assert!(count >= 48 / 8, "{compression:?}: {count} pieces for 48 MiB");
        }
    }

    #[tokio::test]
    async fn an_encoder_whose_input_just_ends_makes_no_whole_file() {
        for compression in [Compression::Gzip, Compression::Xz, Compression::Zstd] {
            let Encoder { input, mut output } =
                Encoder::start(compression, Arc::new(Semaphore::new(1)));
            input.send(Part::Bytes(Bytes::from_static(b"disk"))).await.expect("it takes them");
            drop(input);
            while let Some(part) = output.recv().await {
                assert_ne!(part.expect("no error"), Part::End, "{compression:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_disk_that_is_too_large_for_the_format_is_not_read() {
        let disk = scripted(3 << 40, &[]);
        let wanted = Wanted { format: DiskFormat::Vpc, compression: None };
        let refused = give(disk, Places::default().turn(wanted).await, &nowhere()).await.err();
        let Some(GiveError::Image(error)) = refused else { panic!("it is too large") };
        assert!(error.is_of_the_image() && error.to_string().contains("in format vpc"), "{error}");
    }
    /// Outcome of the future, if it is there at once.
    fn polled<T>(future: &mut std::pin::Pin<Box<impl Future<Output = T>>>) -> Option<T> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(outcome) => Some(outcome),
            std::task::Poll::Pending => None,
        }
    }

    const QCOW2: Wanted = Wanted { format: DiskFormat::Qcow2, compression: None };

    #[tokio::test]
    async fn one_image_is_made_at_a_time_and_what_is_made_of_none_does_not_wait() {
        let (places, raw) = (Places::default(), Wanted { format: DiskFormat::Raw, ..QCOW2 });
        let first = places.turn(QCOW2).await;
        let (mut second, mut third) = (Box::pin(places.turn(QCOW2)), Box::pin(places.turn(QCOW2)));
        assert!(polled(&mut second).is_none() && polled(&mut third).is_none());
        drop((places.turn(raw).await, places.turn(raw).await));
        drop(second);
        drop(first);
        assert!(polled(&mut third).is_some(), "whoever gave up is out of the queue");
    }

    #[tokio::test]
    async fn an_upload_does_not_wait_for_an_image_in_the_making() {
        let places = Places::default();
        let _making = places.turn(QCOW2).await;
        assert!(polled(&mut Box::pin(places.readers.take("somebody"))).is_some());
    }

    #[tokio::test]
    async fn a_turn_ends_when_the_image_is_made_or_fails() {
        let places = Places::default();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let spool = spool(folder.path());
        let lost = Scripted { is_lost: true, ..scripted(5, &[]) };
        let failed = give(lost, places.turn(QCOW2).await, &spool).await;
        assert!(matches!(failed.err(), Some(GiveError::Disk("lost"))));
        let made = give(scripted(512, &[]), places.turn(QCOW2).await, &spool).await;
        let _sent_for_long = made.expect("it is made");
        assert!(polled(&mut Box::pin(places.turn(QCOW2))).is_some());
    }

    #[tokio::test]
    async fn so_many_pieces_are_compressed_at_a_time_as_there_are_places() {
        let places = Arc::new(Semaphore::new(1));
        let taken = places.clone().acquire_owned().await.expect("it is never closed");
        let Encoder { input, mut output } = Encoder::start(Compression::Zstd, places.clone());
        input.send(Part::Bytes(Bytes::from_static(b"disk"))).await.expect("it takes them");
        // There is room for this once the encoder has the piece, for which it waits.
        input.send(Part::End).await.expect("it takes them");
        output.try_recv().expect_err("nothing comes out meanwhile");
        drop(taken);
        while output.recv().await.expect("an end").expect("no error") != Part::End {}
        let again = places.acquire().await.expect("an encoder that is done has none");
        drop(again);
    }
}
