use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;
use pvc_api_types::Uploaded;
use pvc_api_types::operations::storage::{PostStorageCephVolumePoolVolumeUpload, VolumeUpload};
use pvc_api_types::param::Added;
use pvc_model::disk_image::DiskFormat;

use super::Which;
use super::transfer::Watched;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::{Exit, Failure, Outcome, plain_io};
use crate::storage::size;

/// Fill a volume from an image file
///
/// The volume keeps its size, and has the disk of the image at its beginning and zeros
/// after it. Until the whole file has come and was checked, nothing changes. What the
/// volume had before is in the trash of its pool then (`pvc storage trash list`). No VM
/// that uses it may run, and it may have no snapshots.
///
/// Any image may be compressed as gzip, xz or zstd. A raw image that comes through a pipe
/// may have been cut where it begins: one smaller than the volume needs `--file-size` or
/// `--sha256`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume upload -f qcow2 vms web1_root disk.qcow2
  pvc storage volume upload vms web1_data data.raw.zst
  ssh old cat /dev/vg/data | pvc storage volume upload --yes vms web1_data -
  curl -f https://site/disk.raw | pvc storage volume upload --yes --sha256 $SUM vms web1_data -")]
pub struct Upload {
    #[command(flatten)]
    volume: Which,

    /// The image; `-` is standard input
    #[arg(value_name = "IMAGE_FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,

    /// Format of the image
    #[arg(short = 'f', long, default_value = "raw", value_parser = formats())]
    format: String,

    /// Size that the file must have, in bytes
    #[arg(long, value_name = "BYTES", value_parser = size::bytes)]
    file_size: Option<u64>,

    /// SHA-256 checksum that the file must have, as 64 hexadecimal digits
    #[arg(long)]
    sha256: Option<String>,

    /// Also if the pool would be filled above 80 %, and a raw image that begins like another or
    /// may be cut
    #[arg(long)]
    force: bool,

    /// Send nothing; say whether it would be refused
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    yes: Yes,
}

pub fn formats() -> PossibleValuesParser {
    PossibleValuesParser::new(DiskFormat::ALL.map(DiskFormat::as_str))
}

/// A file that is to be sent, and what is said of it.
struct Wanted {
    image: File,
    /// Number of bytes, if that is known.
    size: Option<u64>,
    params: VolumeUpload,
}

impl Upload {
    /// The upload of `file` to a volume of which nobody needs what it has.
    pub fn of(
        [pool, name]: [&str; 2],
        file: &Path,
        format: &str,
        sha256: Option<String>,
        force: bool,
    ) -> Self {
        Upload {
            volume: Which { pool: pool.to_owned(), name: name.to_owned() },
            file: file.to_owned(),
            format: format.to_owned(),
            file_size: None,
            sha256,
            force,
            dry_run: false,
            yes: Yes::default(),
        }
    }

    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let [pool, name] = self.volume.at();
        let wanted = self.wanted(pvc)?;
        let operation = PostStorageCephVolumePoolVolumeUpload;
        if self.dry_run {
            let tried = pvc.client()?.dry_run(operation, [pool, name], &wanted.params)?;
            let tried = tried.ok_or_else(pvc_client::Error::too_old_to_tell)?;
            pvc.done(tried.message);
            return Ok(());
        }
        if !pvc.unasked(self.yes.yes) {
            if self.is_input() {
                return Err(Failure::failed("the image comes where a question would be answered")
                    .hint("say `--yes`, or name a file"));
            }
            pvc.client()?.dry_run(operation, [pool, name], &wanted.params)?;
        }
        let sentence = format!(
            "Replace the contents of volume \"{name}\" of pool \"{pool}\" by `{}`",
            self.file.display()
        );
        confirm::ask(pvc, self.yes, &sentence)?;
        let (reply, said) = self.transfer(pvc, wanted)?;
        if !pvc.done_as_json(&reply) {
            pvc.out.line(&reply.message);
            pvc.out.line(said);
        }
        Ok(())
    }

    /// Sends the file without a question. Returns the reply, and a line about its checksum.
    pub fn send(&self, pvc: &mut Pvc) -> Result<(Uploaded, String), Failure> {
        let wanted = self.wanted(pvc)?;
        self.transfer(pvc, wanted)
    }

    fn wanted(&self, pvc: &mut Pvc) -> Result<Wanted, Failure> {
        let (image, size) = self.open()?;
        let operation = PostStorageCephVolumePoolVolumeUpload;
        // PVC 1.0.3 compares the size of a raw image with a text.
        let says_size = self.format != "raw" || pvc.client()?.takes(operation, "sha256")?;
        let params = VolumeUpload {
            image_format: self.format.clone(),
            file_size: size.filter(|_| says_size),
            sha256: self.sha256.clone(),
            force: Added(self.force),
        };
        Ok(Wanted { image, size, params })
    }

    fn transfer(&self, pvc: &mut Pvc, wanted: Wanted) -> Result<(Uploaded, String), Failure> {
        let Wanted { image, size, params } = wanted;
        let operation = PostStorageCephVolumePoolVolumeUpload;
        let client = pvc.take_client()?;
        let mut watched = Watched::new(image, size, pvc);
        if self.sha256.is_some() {
            watched = watched.with_sha256();
        }
        watched.progress.begin_upload();
        let (at, pace) = (self.volume.at(), pvc_client::Pace::Steady);
        let sent = client.upload(operation, at, &params, &mut watched, size, pace);
        watched.progress.end(sent.is_ok());
        if let Some(error) = watched.failed.take() {
            return Err(self.unreadable(&error));
        }
        let (sha256, crc32) = (watched.sha256(), watched.crc32());
        let reply = sent?;
        require_same(&reply, &sha256, &crc32)?;
        let said = match sha256.is_empty() {
            true => format!("CRC-32 of the file: {crc32}"),
            false => format!("SHA-256 of the file: {sha256}"),
        };
        Ok((reply, said))
    }

    fn is_input(&self) -> bool {
        self.file.as_os_str() == "-"
    }

    /// The file, and how many bytes it has, if that is known.
    fn open(&self) -> Result<(File, Option<u64>), Failure> {
        let opened = match self.is_input() {
            // The descriptor itself: what is read of it is read by nobody else.
            true => std::io::stdin().as_fd().try_clone_to_owned().map(File::from),
            false => File::open(&self.file),
        };
        // As of every file that a command line names.
        let unreadable = |error| Failure { exit: Exit::Usage, ..self.unreadable(&error) };
        let mut file = opened.map_err(unreadable)?;
        let kind = file.metadata().map_err(unreadable)?.file_type();
        if kind.is_dir() {
            return Err(Failure::usage(format!("`{}` is a directory", self.file.display())));
        }
        let size = match kind.is_file() || kind.is_block_device() {
            true => Some(rest(&mut file).map_err(unreadable)?),
            false => None,
        };
        match (self.file_size, size) {
            (Some(wanted), Some(size)) if wanted != size => Err(Failure::failed(format!(
                "`{}` has {size} bytes, and not {wanted}",
                self.file.display()
            ))),
            (wanted, size) => Ok((file, wanted.or(size))),
        }
    }

    fn unreadable(&self, error: &std::io::Error) -> Failure {
        Failure::failed(format!("cannot read `{}`: {}", self.file.display(), plain_io(error)))
    }
}

/// Compares the checksums of the reply with those of what was sent. Either side has only those that
/// it made.
pub fn require_same(reply: &Uploaded, sha256: &str, crc32: &str) -> Outcome {
    for (got, sent) in [(&*reply.sha256, sha256), (&*reply.crc32, crc32)] {
        if !got.is_empty() && !sent.is_empty() && got != sent {
            let message = format!(
                "the server got another file than was sent: its checksum is {got}, and not {sent}"
            );
            return Err(Failure::new(Exit::Server, message));
        }
    }
    Ok(())
}

/// Number of bytes from where the file stands to its end.
fn rest(file: &mut File) -> std::io::Result<u64> {
    let at = file.stream_position()?;
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(at))?;
    Ok(end.saturating_sub(at))
}
