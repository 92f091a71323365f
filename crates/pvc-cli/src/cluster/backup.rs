use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::context::Pvc;
use crate::outcome::{Failure, Outcome, plain_io};
use crate::output::json;

/// Save the cluster's records as JSON
///
/// Everything the cluster knows about nodes, VMs, networks and volumes is written to
/// standard output or to a file; the content of volumes is not part of it. The passwords
/// of the nodes' BMCs are left out: a restore keeps those that are there, and a node's
/// daemon writes its own at its start. A file is created readable by its owner alone.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc cluster backup --file cluster.json
  pvc -q cluster backup --secrets | gpg -e -r admin > cluster.json.gpg")]
pub struct Backup {
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Also save the passwords of the nodes' BMCs, in clear
    #[arg(long)]
    secrets: bool,
}

impl Backup {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let backup = json::pretty(&pvc.client()?.backup(self.secrets)?);
        match self.file {
            Some(file) if file != Path::new("-") => write(&file, &backup).map_err(|error| {
                Failure::failed(format!("cannot write `{}`: {}", file.display(), plain_io(&error)))
            }),
            _ => {
                pvc.out.line(backup);
                Ok(())
            }
        }
    }
}

/// Writes the file whole or not at all: half a backup is worse than the old one.
fn write(file: &Path, text: &str) -> std::io::Result<()> {
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    let mut options = std::fs::OpenOptions::new();
    let mut part = options.write(true).create(true).truncate(true).mode(0o600).open(&name)?;
    part.write_all(text.as_bytes())?;
    part.write_all(b"\n")?;
    part.sync_all()?;
    std::fs::rename(&name, file)
}
