//! Place of a tree, and made-up clusters to fill it with.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use pvc_contracts::zookeeper_server::ZookeeperServer;
use pvc_embedded::EmbeddedTree;
use pvc_linux::{OsRandom, SystemClock};
use pvc_ports::Tree;
use pvc_store::Store;
use pvc_store::synthetic::Shape;
use pvc_zookeeper::{ZookeeperOptions, ZookeeperTree};
use tempfile::TempDir;

/// The kinds of trees that PVC runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    Embedded,
    Zookeeper,
}

impl Kind {
    pub fn title(self) -> &'static str {
        match self {
            Kind::Embedded => "embedded tree",
            Kind::Zookeeper => "ZooKeeper",
        }
    }
}

/// Way in which a process reaches a tree. Its text is what child processes are given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Embedded(PathBuf),
    Zookeeper(String),
}

impl Source {
    pub async fn open(&self) -> Result<Arc<dyn Tree>> {
        Ok(match self {
            Source::Embedded(directory) => Arc::new(EmbeddedTree::open(directory)?),
            Source::Zookeeper(address) => {
                Arc::new(ZookeeperTree::connect(address, ZookeeperOptions::default()).await?)
            }
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Embedded(directory) => write!(f, "embedded:{}", directory.display()),
            Source::Zookeeper(address) => write!(f, "zookeeper:{address}"),
        }
    }
}

impl FromStr for Source {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("embedded", directory)) => Ok(Source::Embedded(directory.into())),
            Some(("zookeeper", address)) => Ok(Source::Zookeeper(address.to_owned())),
            _ => bail!("`{text}` is no tree: `embedded:DIRECTORY` or `zookeeper:ADDRESS`"),
        }
    }
}

/// A tree with a made-up cluster in it. Gone with the value.
pub struct Place {
    pub shape: Shape,
    pub source: Source,
    /// Dropped before the directory that it writes to.
    _server: Option<ZookeeperServer>,
    directory: TempDir,
}

impl Place {
    pub fn make(kind: Kind, shape: Shape) -> Result<Place> {
        let directory = tempfile::Builder::new().prefix("pvc-bench-").tempdir()?;
        let (source, server) = match kind {
            Kind::Embedded => (Source::Embedded(directory.path().join("tree")), None),
            Kind::Zookeeper => {
                let server =
                    ZookeeperServer::start(directory.path()).context("ZooKeeper does not start")?;
                (Source::Zookeeper(server.address()), Some(server))
            }
        };
        if let Source::Embedded(directory) = &source {
            std::fs::create_dir_all(directory)?;
        }
        runtime()?.block_on(fill(&source, &shape))?;
        Ok(Place { shape, source, _server: server, directory })
    }

    /// Directory of everything of it; an embedded tree is in the folder `tree`.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

async fn fill(source: &Source, shape: &Shape) -> Result<()> {
    let tree = source.open().await?;
    let store = open_store(tree.clone()).await?;
    store.load(&shape.dump()).await?;
    tree.close().await;
    Ok(())
}

pub async fn open_store(tree: Arc<dyn Tree>) -> Result<Store> {
    Ok(Store::open(tree, Arc::new(SystemClock), Arc::new(OsRandom)).await?)
}

/// A runtime of its own for each measurement: what it started ends with it.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_survives_the_way_to_a_child_process() {
        for source in
            [Source::Embedded("/tmp/a:b".into()), Source::Zookeeper("127.0.0.1:2181".into())]
        {
            assert_eq!(source.to_string().parse::<Source>().unwrap(), source);
        }
        assert!("redis:6379".parse::<Source>().is_err());
    }
}
