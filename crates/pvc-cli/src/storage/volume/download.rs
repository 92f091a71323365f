use std::fs::File;
use std::io::{BufWriter, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use pvc_api_types::operations::storage::{GetStorageCephVolumePoolVolumeDownload, VolumeDownload};
use serde_json::json;

use super::Which;
use super::transfer::Watched;
use crate::context::Pvc;
use crate::interrupt;
use crate::outcome::{Exit, Failure, Outcome, plain_io};

/// Number of bytes that are read at a time.
const BLOCK: usize = 64 << 10;

/// Number of zeros in a row that are a hole of the file.
const HOLE: usize = 4 << 10;

/// Save the contents of a volume as a raw image file
///
/// No VM that uses the volume may run; a snapshot can be saved at any time. The file has
/// its name when all of it is there.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume download vms web1_root web1.raw
  pvc storage volume download vms web1_root web1.raw --snapshot before
  pvc storage volume download vms web1_data - | zstd > data.raw.zst")]
pub struct Download {
    #[command(flatten)]
    volume: Which,

    /// The file, which must not exist; `-` is standard output
    #[arg(value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,

    /// The snapshot whose contents are meant
    #[arg(long)]
    snapshot: Option<String>,

    /// Also over a file that exists
    #[arg(long)]
    force: bool,
}

impl Download {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let is_output = self.file.as_os_str() == "-";
        if is_output && std::io::stdout().is_terminal() {
            return Err(Failure::failed("a disk image is nothing for a terminal")
                .hint("name a file, or redirect the output"));
        }
        if !is_output && !self.force && self.file.exists() {
            return Err(self.exists(&self.file));
        }
        if pvc.dry_run {
            pvc.done("Nothing is saved in a dry run.");
            return Ok(());
        }
        let params = VolumeDownload { snapshot: self.snapshot.clone() };
        let client = pvc.take_client()?;
        let operation = GetStorageCephVolumePoolVolumeDownload;
        let (from, size) = client.download(operation, self.volume.at(), &params)?;
        let mut watched = Watched::new(from, Some(size), pvc);
        let saved = match is_output {
            true => copy(&mut watched, &mut std::io::stdout().lock()),
            false => self.save(&mut watched),
        };
        watched.progress.end();
        saved?;
        let (bytes, checksum) = (watched.bytes, watched.checksum());
        if is_output {
            pvc.note(&format!("{bytes} bytes, SHA-256 {checksum}"));
            return Ok(());
        }
        let [pool, name] = self.volume.at();
        let file = self.file.display();
        let message = format!("Saved volume \"{pool}/{name}\" as `{file}`.");
        let value = json!({ "message": message, "file_bytes": bytes, "sha256": checksum });
        if !pvc.done_as_json(&value) {
            pvc.out.line(message);
            pvc.out.line(format!("{bytes} bytes, SHA-256 {checksum}"));
        }
        Ok(())
    }

    fn exists(&self, path: &Path) -> Failure {
        Failure::failed(format!("`{}` exists already", path.display()))
            .hint("`--force` replaces the file; what ends with `.part` is left of a download")
    }

    fn unwritable(&self, error: &std::io::Error) -> Failure {
        Failure::failed(format!("cannot write `{}`: {}", self.file.display(), plain_io(error)))
    }

    /// Writes a file of another name, which gets its own when all of it is there.
    fn save(&self, from: &mut impl Read) -> Outcome {
        let mut part = self.file.clone().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        let made = interrupt::unfinished(&part).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => self.exists(&part),
            _ => self.unwritable(&error),
        });
        let (file, _meanwhile) = made?;
        let saved = self.fill(from, file, &part);
        if saved.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        saved
    }

    fn fill(&self, from: &mut impl Read, file: File, part: &Path) -> Outcome {
        let unwritable = |error| self.unwritable(&error);
        let mut file = BufWriter::with_capacity(BLOCK, file);
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
        file.set_len(bytes).and_then(|()| file.sync_all()).map_err(unwritable)?;
        if self.force {
            std::fs::rename(part, &self.file).map_err(unwritable)
        } else {
            // A link does not replace what has come to be there meanwhile.
            std::fs::hard_link(part, &self.file).map_err(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => self.exists(&self.file),
                _ => self.unwritable(&error),
            })?;
            std::fs::remove_file(part).map_err(unwritable)
        }
    }
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
                    return Err(Failure::new(Exit::Unreachable, message));
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
