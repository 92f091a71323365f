//! `pvcd volume`: the volumes of this machine's guests from the shell, on the same files as the daemon of
//! standalone mode, or on the cluster's Ceph. The daemons may run meanwhile.

use pvc_model::size::{format_size, parse_size};
use pvc_model::storage::VolumeId;
use pvc_ports::{ImageFormat, Storage};

use crate::args::{Format, Volume};

pub async fn run(command: Volume, storage: &dyn Storage) -> anyhow::Result<()> {
    match command {
        Volume::List => list(storage).await,
        Volume::Create { volume, size, force } => {
            storage.create(&VolumeId::parse(&volume)?, parse_size(&size)?, force).await?;
            say(&format!("volume `{volume}` is there"))
        }
        Volume::Import { volume, file, format, force } => {
            let format = match format {
                Format::Raw => ImageFormat::Raw,
                Format::Qcow2 => ImageFormat::Qcow2,
            };
            storage.import(&VolumeId::parse(&volume)?, &file, format, force).await?;
            say(&format!("volume `{volume}` is there, made from `{}`", file.display()))
        }
        Volume::Remove { volume } => {
            storage.remove(&VolumeId::parse(&volume)?).await?;
            say(&format!("volume `{volume}` is gone"))
        }
    }
}

async fn list(storage: &dyn Storage) -> anyhow::Result<()> {
    for pool in storage.pools().await? {
        say(&format!("pool {}: {} free", pool.name, format_size(pool.free_bytes)))?;
        for volume in storage.volumes(&pool.name).await? {
            say(&format!(
                "{:<40} {:>16} bytes, {} snapshots",
                volume.id,
                volume.size_bytes,
                volume.snapshots.len()
            ))?;
        }
    }
    Ok(())
}

/// Prints a line; a reader that has gone away is no error.
fn say(line: &str) -> anyhow::Result<()> {
    use std::io::Write;
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}
