//! `pvcd volume`: the volumes of this machine's guests from the shell, on the same files as the
//! daemon of standalone mode, or on the cluster's Ceph and in its records. The daemons may run
//! meanwhile.

use anyhow::Context;
use pvc_config::Config;
use pvc_model::size::{format_size, parse_size};
use pvc_model::storage::VolumeId;
use pvc_ops::volume::record_volume;
use pvc_ports::{ImageFormat, Storage};

use crate::args::{Format, Volume};
use crate::ports;

pub async fn run(command: Volume, config: &Config) -> anyhow::Result<()> {
    let storage = ports::storage(config)?;
    let storage = storage.as_ref();
    match command {
        Volume::List => list(storage).await,
        Volume::Create { volume, size, force } => {
            let id = VolumeId::parse(&volume)?;
            storage.create(&id, parse_size(&size)?, force).await?;
            say(&format!("volume `{volume}` is there"))?;
            record(config, storage, &id).await
        }
        Volume::Import { volume, file, format, force } => {
            let format = match format {
                Format::Raw => ImageFormat::Raw,
                Format::Qcow2 => ImageFormat::Qcow2,
            };
            let id = VolumeId::parse(&volume)?;
            storage.import(&id, &file, format, force).await?;
            say(&format!("volume `{volume}` is there, made from `{}`", file.display()))?;
            record(config, storage, &id).await
        }
        Volume::Record { volume } => record(config, storage, &VolumeId::parse(&volume)?).await,
        Volume::Remove { volume } => {
            let id = VolumeId::parse(&volume)?;
            storage.remove(&id).await?;
            say(&format!("volume `{volume}` is gone"))?;
            record(config, storage, &id).await
        }
    }
}

/// Makes the records say whether the volume is there, in a cluster; on one machine the daemon does.
async fn record(config: &Config, storage: &dyn Storage, volume: &VolumeId) -> anyhow::Result<()> {
    if storage.cluster().is_none() {
        return Ok(());
    }
    let recorded = async {
        let tree = ports::zookeeper(config).await?;
        let recorded = match ports::store(tree.clone()).await {
            Ok(store) => record_volume(&store, storage, volume).await.map_err(anyhow::Error::from),
            Err(error) => Err(error),
        };
        pvc_ports::Tree::close(&*tree).await;
        recorded
    };
    let what_then = || {
        format!("the cluster's records are not up to date; `pvcd volume record {volume}` does that")
    };
    recorded.await.with_context(what_then)
}

async fn list(storage: &dyn Storage) -> anyhow::Result<()> {
    for pool in storage.pools().await? {
        say(&format!("pool {}: {} free", pool.name, format_size(pool.free_bytes)))?;
        for volume in storage.volumes(&pool.name).await? {
            say(&format!(
                "{:<40} {:>16} bytes, {} snapshots",
                volume.id.to_string(),
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
