use std::fs::{File, FileType, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::Args;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::libc;
use pvc_api_types::operations::storage::{
    CompressionWord, GetStorageCephVolumePoolVolumeDownload, ImageFormatWord, VolumeDownload,
};
use pvc_api_types::param::Choice;
use pvc_client::Begin;
use serde_json::json;

use super::Which;
use super::transfer::{Progress, Watched};
use crate::choice::words;
use crate::context::Pvc;
use crate::interrupt;
use crate::outcome::{Exit, Failure, Outcome, plain_io};

/// Number of bytes that are read at a time.
const BLOCK: usize = 64 << 10;

/// Number of zeros in a row that are a hole of the file.
const HOLE: usize = 4 << 10;

/// Save the contents of a volume as an image file
///
/// No VM that uses the volume may run; a snapshot can be saved at any time. The file has
/// its name when all of it is there.
///
/// The server makes the image in the format that is asked for before it begins to send it, which
/// takes minutes for a large volume; a raw one it sends at once. It compresses as it sends. What
/// the name of the file ends with changes nothing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume download vms web1_root web1.raw
  pvc storage volume download vms web1_root web1.raw --snapshot before
  pvc storage volume download -f qcow2 vms web1_root web1.qcow2
  pvc storage volume download -f vmdk -c zstd vms web1_root web1.vmdk.zst
  pvc storage volume download -c gzip vms web1_data - | ssh backup 'cat > data.raw.gz'")]
pub struct Download {
    #[command(flatten)]
    volume: Which,

    /// The file, which must not exist; `-` is standard output
    #[arg(value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,

    /// Format of the image
    #[arg(short = 'f', long, default_value = "raw", value_parser = words::<ImageFormatWord>())]
    format: ImageFormatWord,

    /// The compression of the image
    #[arg(short = 'c', long, value_name = "HOW", default_value = "none")]
    #[arg(value_parser = words::<CompressionWord>())]
    compress: CompressionWord,

    /// The snapshot whose contents are meant
    #[arg(long)]
    snapshot: Option<String>,

    /// Also over a file that exists, or onto a device or into a pipe
    #[arg(long)]
    force: bool,
}

/// Destination of the contents.
enum Place {
    Output,
    /// A file that has its name when all of it is there.
    File(PathBuf),
    /// A device or a pipe, which is written as the contents come.
    Device(FileType),
}

impl Download {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let place = self.place()?;
        let (from, size) = self.begin(pvc)?;
        let is_output = matches!(place, Place::Output);
        let mut watched = Watched::new(from, size, pvc).with_sha256();
        let saved = match place {
            Place::Output => copy(&mut watched, &mut io::stdout().lock()),
            Place::File(file) => self.save(&mut watched, &file),
            Place::Device(kind) => self.write(&mut watched, kind, size),
        };
        watched.progress.end(saved.is_ok());
        saved?;
        let (bytes, checksum) = (watched.bytes, watched.sha256());
        if is_output {
            pvc.note(&format!("{bytes} bytes, SHA-256 {checksum}"));
            return Ok(());
        }
        let [pool, name] = self.volume.at();
        let file = self.file.display();
        let message = format!("Saved volume \"{pool}/{name}\" as `{file}`.");
        // The members that the reply to an upload has.
        let saved = json!({ "message": message, "file_bytes": bytes, "sha256": checksum });
        if !pvc.done_as_json(&saved) {
            pvc.out.line(message);
            pvc.out.line(format!("{bytes} bytes, SHA-256 {checksum}"));
        }
        Ok(())
    }

    /// Asks for the image, and waits until it comes; how many bytes it has, if that is known.
    fn begin(&self, pvc: &mut Pvc) -> Result<(impl Read + use<>, Option<u64>), Failure> {
        let Download { format, compress, .. } = *self;
        let is_raw = format == ImageFormatWord::Raw;
        // What a server does without being asked for.
        let params = VolumeDownload {
            snapshot: self.snapshot.clone(),
            image_format: Some(format).filter(|_| !is_raw),
            compression: Some(compress).filter(|way| *way != CompressionWord::None),
        };
        let client = pvc.take_client()?;
        let mut waiting = Progress::new(pvc, None);
        let begin = match is_raw {
            true => Begin::AtOnce,
            false => {
                let image = format!("Making an image in format {} on remote side", format.word());
                waiting.begin_waiting(&image);
                Begin::WhenMade
            }
        };
        let operation = GetStorageCephVolumePoolVolumeDownload;
        let begun = client.download(operation, self.volume.at(), &params, begin);
        waiting.end(begun.is_ok());
        Ok(begun?)
    }

    fn place(&self) -> Result<Place, Failure> {
        if self.file.as_os_str() == "-" {
            return match io::stdout().is_terminal() {
                false => Ok(Place::Output),
                true => Err(Failure::failed("a disk image is nothing for a terminal")
                    .hint("name a file, or redirect the output")),
            };
        }
        let unwritable = |error| self.unwritable(&error);
        let kind = match std::fs::metadata(&self.file) {
            Ok(found) => found.file_type(),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Place::File(self.file.clone()));
            }
            Err(error) => return Err(unwritable(error)),
        };
        if kind.is_dir() {
            return Err(Failure::failed(format!("`{}` is a directory", self.file.display())));
        }
        if !self.force {
            return Err(self.exists(&self.file));
        }
        match kind.is_file() {
            // A link stays, and what it shows is replaced.
            true => self.file.canonicalize().map(Place::File).map_err(unwritable),
            false => Ok(Place::Device(kind)),
        }
    }

    /// Refuses a disk that is too small for the image.
    fn require_room(&self, device: &mut File, size: u64) -> Outcome {
        let unwritable = |error| self.unwritable(&error);
        let room = device.seek(SeekFrom::End(0)).map_err(unwritable)?;
        device.rewind().map_err(unwritable)?;
        match room < size {
            true => Err(Failure::failed(format!(
                "`{}` has {room} bytes, and the image {size}",
                self.file.display()
            ))),
            false => Ok(()),
        }
    }

    fn exists(&self, path: &Path) -> Failure {
        Failure::failed(format!("`{}` exists already", path.display()))
            .hint("`--force` replaces the file; what ends with `.part` is left of a download")
    }

    fn unwritable(&self, error: &std::io::Error) -> Failure {
        Failure::failed(format!("cannot write `{}`: {}", self.file.display(), plain_io(error)))
    }

    /// Writes every byte, also zeros: what a device had is not known.
    fn write(&self, from: &mut impl Read, kind: FileType, size: Option<u64>) -> Outcome {
        let unwritable = |error| self.unwritable(&error);
        // A disk that the system uses is busy then.
        let flags = if kind.is_block_device() { libc::O_EXCL } else { 0 };
        let opened = OpenOptions::new().write(true).custom_flags(flags).open(&self.file);
        let mut device = opened.map_err(unwritable)?;
        if let Some(size) = size.filter(|_| kind.is_block_device()) {
            self.require_room(&mut device, size)?;
        }
        each_block(from, |block| device.write_all(block).map_err(unwritable))?;
        match device.sync_all() {
            // A pipe has nothing to bring to a disk.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            synced => synced.map_err(unwritable),
        }
    }

    /// Writes a file of another name, which gets its own when all of it is there.
    fn save(&self, from: &mut impl Read, file: &Path) -> Outcome {
        let mut part = file.to_owned().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        let made = interrupt::unfinished(&part).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => self.exists(&part),
            _ => self.unwritable(&error),
        });
        let (made, _meanwhile) = made?;
        let saved = self.fill(from, made, &part, file);
        if saved.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        saved
    }

    fn fill(&self, from: &mut impl Read, made: File, part: &Path, target: &Path) -> Outcome {
        let unwritable = |error| self.unwritable(&error);
        let mut file = BufWriter::with_capacity(BLOCK, made);
        let mut bytes = 0_u64;
        each_block(from, |block| {
            for piece in block.chunks(HOLE) {
                bytes += piece.len() as u64;
                match piece.iter().all(|byte| *byte == 0) {
                    true => file.seek(SeekFrom::Start(bytes)).map(drop),
                    false => file.write_all(piece),
                }
                .map_err(unwritable)?;
            }
            Ok(())
        })?;
        let file = file.into_inner().map_err(|error| self.unwritable(error.error()))?;
        if self.force {
            let replaced = std::fs::metadata(target).ok();
            replaced.map_or(Ok(()), |it| take_mode(&file, &it)).map_err(unwritable)?;
        }
        file.set_len(bytes).and_then(|()| file.sync_all()).map_err(unwritable)?;
        let named = match self.force {
            true => std::fs::rename(part, target),
            false => first_that_works(&NAMINGS, part, target),
        };
        named.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => self.exists(target),
            _ => self.unwritable(&error),
        })
    }
}

/// Lets those read and write a file who may read and write the one that it replaces. Where the
/// group cannot be the same, no group may.
fn take_mode(file: &File, replaced: &Metadata) -> io::Result<()> {
    let is_same_group = file.metadata()?.gid() == replaced.gid()
        || std::os::unix::fs::fchown(file, None, Some(replaced.gid())).is_ok();
    let mode = replaced.mode() & if is_same_group { 0o666 } else { 0o606 };
    file.set_permissions(Permissions::from_mode(mode))
}

/// A way to give a file a name that another may have got meanwhile: that one stays.
type Naming = fn(&Path, &Path) -> io::Result<()>;

/// All that there are, as not every file system knows the first.
const NAMINGS: [Naming; 3] = [rename_beside, link, claim];

fn first_that_works(namings: &[Naming], from: &Path, to: &Path) -> io::Result<()> {
    let mut error = io::Error::from(ErrorKind::Unsupported);
    for naming in namings {
        match naming(from, to) {
            Ok(()) => return Ok(()),
            Err(exists) if exists.kind() == ErrorKind::AlreadyExists => return Err(exists),
            Err(other) => error = other,
        }
    }
    Err(error)
}

fn rename_beside(from: &Path, to: &Path) -> io::Result<()> {
    let renamed = renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE);
    renamed.map_err(io::Error::from)
}

/// Works where a rename would replace, as over NFS.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::hard_link(from, to)?;
    std::fs::remove_file(from)
}

/// Replaces only what it has made itself.
fn claim(from: &Path, to: &Path) -> io::Result<()> {
    File::create_new(to)?;
    let renamed = std::fs::rename(from, to);
    if renamed.is_err() {
        // The failure is told that the name was claimed for.
        let _ = std::fs::remove_file(to);
    }
    renamed
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> Outcome {
    each_block(from, |block| to.write_all(block).map_err(Failure::from))?;
    Ok(to.flush()?)
}

/// Reads to the end, in blocks of [`BLOCK`] bytes but for the last.
fn each_block(from: &mut impl Read, mut each: impl FnMut(&[u8]) -> Outcome) -> Outcome {
    let mut block = vec![0; BLOCK];
    loop {
        let mut length = 0;
        while length < BLOCK {
            match from.read(&mut block[length..]) {
                Ok(0) => break,
                Ok(read) => length += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let message = format!("the download broke off: {}", plain_io(&error));
                    return Err(Failure::new(Exit::Unreachable, message)
                        .hint("`pvc task list --all` may say why the server broke it off"));
                }
            }
        }
        if length == 0 {
            return Ok(());
        }
        each(&block[..length])?;
        if length < BLOCK {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn unsupported(_: &Path, _: &Path) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }

    #[test]
    fn an_image_is_its_owners_alone_unless_it_replaces_a_file_that_others_may_read() {
        let folder = tempfile::tempdir().unwrap();
        let (part, file) = (folder.path().join("disk.part"), folder.path().join("disk"));
        let (made, _meanwhile) = interrupt::unfinished(&part).unwrap();
        let mode = || made.metadata().unwrap().mode() & 0o7777;
        assert_eq!(mode(), 0o600, "whatever the umask is");
        fs::write(&file, "old").unwrap();
        for (of, becomes) in [(0o640, 0o640), (0o600, 0o600), (0o4755, 0o644), (0o444, 0o444)] {
            fs::set_permissions(&file, Permissions::from_mode(of)).unwrap();
            take_mode(&made, &fs::metadata(&file).unwrap()).unwrap();
            assert_eq!(mode(), becomes, "{of:o}");
        }
    }

    #[test]
    fn a_file_gets_its_name_on_every_file_system_and_replaces_none() {
        for (index, naming) in NAMINGS.into_iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            fs::write(at("part"), "new").unwrap();
            fs::write(at("other"), "old").unwrap();
            let refused = first_that_works(&[unsupported, naming], &at("part"), &at("other"));
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::AlreadyExists, "way {index}");
            assert_eq!(fs::read(at("other")).unwrap(), b"old", "way {index}");
            first_that_works(&[unsupported, naming], &at("part"), &at("disk")).unwrap();
            assert_eq!(fs::read(at("disk")).unwrap(), b"new", "way {index}");
            assert!(!at("part").exists(), "way {index}");
        }
        let nowhere = Path::new("/nonexistent/part");
        let refused = first_that_works(&[unsupported], nowhere, nowhere).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    }
}
