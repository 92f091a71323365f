//! Serves the API over a made-up cluster in memory: `cargo run -p pvc-api --example synthetic --
//! 17370 1000` listens on port 17370 with 1,000 VMs and the key `synthetic`. Nobody plays the
//! nodes.

use std::sync::Arc;

use pvc_api::{ApiSettings, ApiState, Token, serve};
use pvc_embedded::EmbeddedTree;
use pvc_model::role::Role;
use pvc_store::Store;
use pvc_store::synthetic::Shape;
use pvc_testkit::{MemoryFirewall, MemoryStorage, SeededRandom, TokioClock};
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    tracing_subscriber::fmt().with_env_filter(std::env::var("RUST_LOG").unwrap_or_default()).init();
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u16>());
    let port = numbers.next().transpose()?.unwrap_or(17370);
    let vms = numbers.next().transpose()?.unwrap_or(1000);
    let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
    let store =
        Store::open(EmbeddedTree::in_memory().connect(), clock.clone(), random.clone()).await?;
    store.initialize(false).await?;
    store.load(&Shape::with_vms(vms.into()).dump()).await?;
    let token = Token {
        description: "synthetic".into(),
        secret: "synthetic".into(),
        role: Role::Administrator,
    };
    let settings = ApiSettings::new("pvchv1".into(), ([127, 0, 0, 1], port).into(), vec![token]);
    let storage = Arc::new(MemoryStorage::new());
    let firewall = Arc::new(MemoryFirewall::new());
    let state =
        ApiState::new(store, clock, random, Some(storage), Some(firewall), settings.clone());
    let stop = CancellationToken::new();
    let on_interrupt = stop.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            on_interrupt.cancel();
        }
    });
    serve(&settings, state, stop).await?;
    Ok(())
}
