use std::io;

use pvc_model::disk_image::{DiskFormat, TooLargeFor};

/// Something that is wrong with an image, or with the machine that is to read it.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("the file has more than the {announced} bytes that were announced")]
    Longer { announced: u64 },
    #[error("the file has {file_bytes} bytes, and {announced} were announced")]
    Shorter { announced: u64, file_bytes: u64 },
    #[error("the file has another checksum than was announced: {}", hexadecimal(sha256))]
    Checksum { sha256: [u8; 32] },
    #[error("the image describes a disk of 0 bytes")]
    Empty,
    #[error("the image begins like one in format {format}, and was sent as raw")]
    NotRaw { format: DiskFormat },
    #[error(
        "the raw image has {disk_bytes} of the {most_bytes} bytes of the volume and may be cut: it \
         was not said how many it has"
    )]
    MayBeCut { disk_bytes: u64, most_bytes: u64 },
    #[error("{}", too_large(*disk_bytes, *most_bytes))]
    TooLarge {
        /// `None` if that is not known.
        disk_bytes: Option<u64>,
        most_bytes: u64,
    },
    #[error("the file is no whole {kind} file: {why}")]
    Compressed { kind: &'static str, why: String },
    #[error("the file is no whole image in format {format}: {why}")]
    Bad { format: DiskFormat, why: String },
    #[error(
        "less than {} MiB are free in the directory in which images are read",
        least_bytes >> 20
    )]
    NoRoom { least_bytes: u64 },
    #[error(
        "the image needs up to {needed_bytes} bytes of room here, and {free_bytes} are free in the \
         directory for that beside the {} MiB that are left to others",
        least_bytes >> 20
    )]
    NoRoomFor {
        needed_bytes: u64,
        /// Without what is left to others.
        free_bytes: u64,
        least_bytes: u64,
    },
    #[error("the image could not be read within {seconds} s")]
    TimedOut { seconds: u64 },
    #[error("the decoder of the file broke off")]
    DecoderLost,
    #[error(transparent)]
    TooLargeFor(#[from] TooLargeFor),
    #[error("no image in format {format} could be made: {why}")]
    NotMade { format: DiskFormat, why: String },
    #[error("no image could be made within {seconds} s")]
    NotMadeInTime { seconds: u64 },
    #[error("the encoder of the file broke off")]
    EncoderLost,
    #[error("{doing} failed")]
    Io {
        doing: &'static str,
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    /// Whether the image is what is wrong, and not this machine.
    pub fn is_of_the_image(&self) -> bool {
        use ImageError::{DecoderLost, EncoderLost, Io, NoRoom, NoRoomFor, NotMade, NotMadeInTime};
        let is_ours = matches!(self, Io { .. } | NoRoom { .. } | NoRoomFor { .. } | DecoderLost);
        !is_ours && !matches!(self, NotMade { .. } | NotMadeInTime { .. } | EncoderLost)
    }

    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ImageError::NotRaw { .. } => {
                Some("say its format (`-f`); `--force` if it is meant as it is")
            }
            ImageError::MayBeCut { .. } => Some(
                "say what the file must be (`--file-size`, `--sha256`); `--force` if it is meant \
                 as it is",
            ),
            ImageError::TooLarge { disk_bytes: Some(_), .. } => {
                Some("`pvc storage volume resize` makes the volume larger")
            }
            ImageError::NoRoomFor { .. } => Some(
                "a raw image, also a compressed one (`-c zstd`), takes no room: `qemu-img convert` \
                 makes the one of the other on a machine that has room; `api.images.directory` \
                 names another directory, and `api.images.least_free_mib` says what is left to \
                 others",
            ),
            ImageError::NoRoom { .. } => Some(
                "`api.images.directory` names another directory, and `api.images.least_free_mib` \
                 says what is left to others",
            ),
            ImageError::Io { .. } | ImageError::NotMade { .. } => Some(
                "is `qemu-utils` installed, and is there room in the directory for images \
                 (`api.images.directory`)?",
            ),
            _ => None,
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn too_large(disk_bytes: Option<u64>, most_bytes: u64) -> String {
    match disk_bytes {
        Some(bytes) => {
            format!("the image is of a disk of {bytes} bytes, and the volume has {most_bytes}")
        }
        None => format!("the image is of more than the {most_bytes} bytes that the volume has"),
    }
}

pub(crate) fn io(doing: &'static str) -> impl Fn(io::Error) -> ImageError {
    move |source| ImageError::Io { doing, source }
}

/// Failure to take an image: of its source, of where its pieces go, or of the image.
#[derive(Debug, thiserror::Error)]
pub enum TakeError<S, W> {
    #[error("the source of the image failed")]
    Source(S),
    #[error("the disk could not be written")]
    Target(W),
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl<S, W> TakeError<S, W> {
    pub(crate) fn of_target(error: TargetError<W>) -> Self {
        match error {
            TargetError::Target(error) => TakeError::Target(error),
            TargetError::Image(error) => TakeError::Image(error),
        }
    }
}

/// Failure to give an image: of the disk that it is made of, or of the making.
#[derive(Debug, thiserror::Error)]
pub enum GiveError<E> {
    #[error("the disk could not be read")]
    Disk(#[source] E),
    #[error("the storage gave pieces that do not fit")]
    Misfit,
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// The half of a [`TakeError`] that reading can come to.
pub(crate) enum SourceError<S> {
    Source(S),
    Image(ImageError),
}

impl<S, W> From<SourceError<S>> for TakeError<S, W> {
    fn from(error: SourceError<S>) -> Self {
        match error {
            SourceError::Source(error) => TakeError::Source(error),
            SourceError::Image(error) => TakeError::Image(error),
        }
    }
}

/// The half of a [`TakeError`] that writing can come to.
pub(crate) enum TargetError<W> {
    Target(W),
    Image(ImageError),
}

impl<W> From<ImageError> for TargetError<W> {
    fn from(error: ImageError) -> Self {
        TargetError::Image(error)
    }
}
