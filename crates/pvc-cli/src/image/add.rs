use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;
use pvc_api_types::operations::image::{GetImage, ImageFilter};
use pvc_api_types::operations::storage::{
    DeleteStorageCephVolumePoolVolume, GetStorageCephPool, GetStorageCephPoolPool, PoolFilter,
    PostStorageCephVolume, PutStorageCephVolumePoolVolume, VolumeChange, VolumeCreation,
    VolumeDeletion,
};
use pvc_api_types::param::{Added, Flag};
use pvc_model::disk_image::DiskFormat;
use pvc_model::image::image_volume;

use super::disk::{self, HEAD_BYTES};
use crate::context::Pvc;
use crate::format::or_empty;
use crate::missing;
use crate::outcome::{Exit, Failure, Outcome, plain_io};
use crate::storage::size;
use crate::storage::volume::Upload;

/// Add an image
///
/// The file is the disk of an installed system, such as the cloud image of a
/// distribution: raw, qcow2, qed, vmdk, vdi, vpc or vhdx, each also compressed as gzip, xz
/// or zstd. Its format and the size of its disk are read from the file; where it does not
/// say them, `--format` and `--size` do.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc image add debian-12 debian-12-generic-amd64.qcow2
  pvc image add rocky-9 rocky.raw.xz --size 10G --pool ssd")]
pub struct Add {
    /// Name of the image
    name: String,

    /// The file
    #[arg(value_name = "IMAGE_FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,

    /// The pool that it is to lie in, which the disks of its VMs share; the only one, or `vms`
    #[arg(short, long, add = crate::completion::pools())]
    pool: Option<String>,

    /// Format of the file; without it as the file says
    #[arg(short = 'f', long, value_parser = crate::storage::volume::formats())]
    format: Option<String>,

    /// Size of the disk, such as 10G; without it as the file says
    #[arg(long, value_parser = size::parse)]
    size: Option<String>,

    /// SHA-256 checksum that the file must have, as 64 hexadecimal digits
    #[arg(long)]
    sha256: Option<String>,

    /// Also if the pool would be filled above 80 %
    #[arg(long)]
    force: bool,
}

impl Add {
    /// An image that is the file to the byte.
    pub fn raw(name: String, file: PathBuf) -> Self {
        let format = Some(DiskFormat::Raw.as_str().to_owned());
        Add { name, file, pool: None, format, size: None, sha256: None, force: false }
    }

    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.add(pvc).map(drop)
    }

    /// Adds the image, and returns its pool.
    pub fn add(self, pvc: &mut Pvc) -> Result<String, Failure> {
        let volume = image_volume(&self.name).map_err(|bad| Failure::usage(bad.to_string()))?;
        let (format, bytes) = self.disk()?;
        let pool = self.pool(pvc)?;
        let filter = ImageFilter { limit: None, pool: Some(pool.clone()) };
        let images = or_empty(pvc.client()?.read(GetImage, [], &filter));
        let images = images.map_err(|error| {
            missing::failure(pvc, error, GetStorageCephPoolPool, [pool.as_str()])
        })?;
        let images = images.read()?;
        if images.iter().any(|image| image.name == self.name) {
            let message = format!("pool `{pool}` has an image `{}` already", self.name);
            let hint = "`pvc image remove` removes it; or choose another name";
            return Err(Failure::failed(message).hint(hint));
        }
        // It is an image when it is whole: until then it is called otherwise.
        let making = format!("new_{}", volume.as_str());
        let new = VolumeCreation {
            volume: making.clone(),
            pool: pool.clone(),
            size: bytes,
            force: Flag(self.force),
        };
        let begun = pvc.client()?.change(PostStorageCephVolume, [], &new);
        begun.map_err(|error| {
            let failure = missing::failure(pvc, error, GetStorageCephPoolPool, [pool.as_str()]);
            let left = format!(
                "`pvc storage volume remove --purge {pool} {making}` removes what an earlier \
                 attempt has left"
            );
            if failure.hint.is_none() { failure.hint(left) } else { failure }
        })?;
        if pvc.dry_run {
            let name = &self.name;
            pvc.done(format!("nothing was sent; \"{name}\" can be added to pool \"{pool}\""));
            return Ok(pool);
        }
        let made = self.fill(pvc, &pool, &making, &format, volume.as_str());
        if made.is_err() {
            let deletion = VolumeDeletion { force: Added(false), purge: Added(true) };
            let at = [pool.as_str(), making.as_str()];
            if let Err(error) =
                pvc.client()?.change(DeleteStorageCephVolumePoolVolume, at, &deletion)
            {
                pvc.warn(&format!("volume `{pool}/{making}` is left: {error}"));
            }
        }
        made?;
        pvc.done(format!("Added image \"{}\" to pool \"{pool}\".", self.name));
        Ok(pool)
    }

    fn fill(&self, pvc: &mut Pvc, pool: &str, making: &str, format: &str, name: &str) -> Outcome {
        let upload =
            Upload::of([pool, making], &self.file, format, self.sha256.clone(), self.force);
        upload.send(pvc)?;
        let change =
            VolumeChange { new_size: None, new_name: Some(name.to_owned()), force: Added(false) };
        pvc.client()?.change(PutStorageCephVolumePoolVolume, [pool, making], &change)?;
        Ok(())
    }

    /// The format of the file, and the size of its disk as the API takes it.
    fn disk(&self) -> Result<(String, String), Failure> {
        let (head, file_bytes) = begin(&self.file).map_err(|error| {
            let message = format!("cannot read `{}`: {}", self.file.display(), plain_io(&error));
            Failure { exit: Exit::Usage, ..Failure::failed(message) }
        })?;
        let found = disk::read(&head, file_bytes);
        let format = match (&self.format, found) {
            (Some(format), _) => format.clone(),
            (None, Some(found)) => found.format.as_str().to_owned(),
            (None, None) => DiskFormat::Raw.as_str().to_owned(),
        };
        let said = found.filter(|found| found.format.as_str() == format);
        let bytes = said.and_then(|found| found.disk_bytes).map(|bytes| format!("{bytes}B"));
        let size = self.size.clone().or(bytes).ok_or_else(|| {
            let message = format!("`{}` does not say how large its disk is", self.file.display());
            Failure::usage(message).hint("say it: `--size 10G`, and `--format` if it is not raw")
        })?;
        Ok((format, size))
    }

    /// The pool that is named; without that the only one, or the one of VMs.
    fn pool(&self, pvc: &mut Pvc) -> Result<String, Failure> {
        if let Some(pool) = &self.pool {
            return Ok(pool.clone());
        }
        let pools = or_empty(pvc.client()?.read(GetStorageCephPool, [], &PoolFilter::default()))?;
        let names: Vec<String> = pools.read()?.into_iter().map(|pool| pool.name).collect();
        match names.as_slice() {
            [only] => Ok(only.clone()),
            names if names.iter().any(|name| name == "vms") => Ok("vms".to_owned()),
            [] => {
                Err(Failure::failed("there is no pool")
                    .hint("`pvc storage pool add vms 64` makes one"))
            }
            _ => Err(Failure::usage("there are several pools")
                .hint(format!("name one of them by `--pool`: {}", names.join(", ")))),
        }
    }
}

/// The first bytes of a file, and how many it has, if that is known.
fn begin(file: &Path) -> std::io::Result<(Vec<u8>, Option<u64>)> {
    let file = File::open(file)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(std::io::ErrorKind::IsADirectory.into());
    }
    let mut head = Vec::new();
    let is_block = metadata.file_type().is_block_device();
    if !metadata.is_file() && !is_block {
        let why = "it is read twice, and a pipe comes but once: save it in a file";
        return Err(std::io::Error::other(why));
    }
    let bytes = metadata.is_file().then_some(metadata.len());
    file.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok((head, bytes))
}
