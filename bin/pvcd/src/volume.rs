//! `pvcd volume`: a volume made from an image file of this machine, among the files of the daemon
//! of standalone mode, or in the cluster's Ceph and its records. The daemons may run meanwhile.

use anyhow::Context;
use pvc_config::Config;
use pvc_model::storage::VolumeId;
use pvc_ops::storage::record_volume;
use pvc_ports::{ImageFormat, Storage};

use crate::args::{Format, Volume};
use crate::ports;

pub async fn run(command: Volume, config: &Config) -> anyhow::Result<()> {
    let storage = ports::storage(config)?;
    let Volume::Import { volume, file, format, force } = command;
    let format = match format {
        Format::Raw => ImageFormat::Raw,
        Format::Qcow2 => ImageFormat::Qcow2,
    };
    let id = VolumeId::parse(&volume)?;
    storage.import(&id, &file, format, force).await?;
    say(&format!("volume `{volume}` is there, made from `{}`", file.display()))?;
    record(config, storage.as_ref(), &id).await
}

/// Records the volume, in a cluster; on one machine the daemon does.
async fn record(config: &Config, storage: &dyn Storage, volume: &VolumeId) -> anyhow::Result<()> {
    if storage.cluster().is_none() {
        return Ok(());
    }
    let recorded = async {
        let tree = ports::zookeeper(config).await?;
        let recorded = match ports::store(tree.clone()).await {
            Ok(store) => {
                let recorded = record_volume(&store, storage, volume).await;
                recorded.map(drop).map_err(anyhow::Error::from)
            }
            Err(error) => Err(error),
        };
        pvc_ports::Tree::close(&*tree).await;
        recorded
    };
    let what_then = || {
        let (pool, name) = (&volume.pool, &volume.volume);
        format!("it is not recorded; `pvc storage volume scan {pool} {name}` does that")
    };
    recorded.await.with_context(what_then)
}

/// Prints a line; a reader that has gone away is no error.
fn say(line: &str) -> anyhow::Result<()> {
    use std::io::Write;
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}
