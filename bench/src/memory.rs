//! Memory of the cache.

use anyhow::Result;

use crate::child::{self, Holder};
use crate::place::{Place, Source, open_store, runtime};
use crate::report::{Figure, Quantity, grouped};

/// Part of a daemon that a holder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Held {
    /// The connection to the tree; an embedded tree is all in memory.
    Tree,
    /// The connection and the cache.
    Store,
}

/// The memory of the cache of `place`, against the data that it caches.
pub fn cache(place: &Place) -> Result<Figure> {
    let without = measured(&place.source, "tree")?;
    let with = measured(&place.source, "store")?;
    let data: usize = place.shape.dump().iter().map(|(path, value)| path.len() + value.len()).sum();
    let name = format!("memory of the cache, {} VMs", grouped(place.shape.vms));
    Ok(Figure::new(name, Quantity::Bytes(with.saturating_sub(without)))
        .against("its paths and values", Quantity::Bytes(data as u64)))
}

fn measured(source: &Source, what: &str) -> Result<u64> {
    Holder::start(["hold", "--source", &source.to_string(), what])?.private_memory()
}

/// The holder's side.
pub fn hold(source: &Source, held: Held) -> Result<()> {
    runtime()?.block_on(async {
        let tree = source.open().await?;
        let store = match held {
            Held::Tree => None,
            Held::Store => Some(open_store(tree.clone()).await?),
        };
        println!("ready");
        tokio::task::spawn_blocking(child::wait_for_the_end).await?;
        drop(store);
        tree.close().await;
        Ok(())
    })
}
