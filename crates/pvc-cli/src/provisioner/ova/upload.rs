use std::fs::File;
use std::path::PathBuf;

use clap::Args;
use pvc_api_types::operations::provisioner::{OvaNew, PostProvisionerOvaOva};

use crate::context::Pvc;
use crate::outcome::{Exit, Failure, Outcome, plain_io};
use crate::storage::volume::{Watched, require_same};

/// Add an OVA from a file
///
/// Each of its disks becomes a volume of the pool, as a raw disk. A system template, a network
/// template if its networks are known here, and a profile get its name. The script of the
/// profile is `ova`, or else `default_ova`. All of it is added, or nothing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner ova upload appliance appliance.ova -p vms
  pvc provisioner ova upload appliance appliance.ova -p vms --dry-run")]
pub struct Upload {
    /// Name of the OVA, its templates and its profile
    name: String,

    /// The OVA
    #[arg(value_name = "FILENAME", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,

    /// Pool that gets its disks
    #[arg(short, long, add = crate::completion::pools())]
    pool: String,

    /// Send nothing; say whether it would be refused
    #[arg(long)]
    dry_run: bool,
}

impl Upload {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let (file, size) = self.open()?;
        let (operation, at) = (PostProvisionerOvaOva, [self.name.as_str()]);
        let params = OvaNew { pool: self.pool.clone(), ova_size: size };
        if self.dry_run {
            let tried = pvc.client()?.dry_run(operation, at, &params)?;
            let tried = tried.ok_or_else(pvc_client::Error::too_old_to_tell)?;
            pvc.done(tried.message);
            return Ok(());
        }
        let client = pvc.take_client()?;
        let mut watched = Watched::new(file, Some(size), pvc);
        watched.progress.begin_upload();
        // One disk is converted before the next is read.
        let pace = pvc_client::Pace::WithPauses;
        let sent = client.upload(operation, at, &params, &mut watched, Some(size), pace);
        watched.progress.end(sent.is_ok());
        if let Some(error) = watched.failed.take() {
            return Err(self.unreadable(&error));
        }
        let crc32 = watched.crc32();
        let reply = sent?;
        require_same(&reply, "", &crc32)?;
        if !pvc.done_as_json(&reply) {
            pvc.out.line(&reply.message);
            pvc.out.line(format!("CRC-32 of the file: {crc32}"));
        }
        Ok(())
    }

    /// The file, and how many bytes it has.
    fn open(&self) -> Result<(File, u64), Failure> {
        let unreadable = |error| Failure { exit: Exit::Usage, ..self.unreadable(&error) };
        let file = File::open(&self.file).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        match found.is_file() {
            true => Ok((file, found.len())),
            false => Err(Failure::usage(format!("`{}` is no file", self.file.display()))),
        }
    }

    fn unreadable(&self, error: &std::io::Error) -> Failure {
        Failure::failed(format!("cannot read `{}`: {}", self.file.display(), plain_io(error)))
    }
}
