//! Abilities of this kernel with links, found out in a network namespace that is thrown away.

use std::io;

use nix::sched::{CloneFlags, unshare};
use pvc_model::link::{LinkAbilities, Vxlan};
use pvc_ports::{Network as _, NetworkError};
use tokio::sync::oneshot;

use super::LinuxNetwork;

const BRIDGE: &str = "bridge";

pub async fn find_out() -> Result<LinkAbilities, NetworkError> {
    let (reply, answer) = oneshot::channel();
    let failed = |source| {
        let what = "give a thread a network of its own".to_owned();
        NetworkError::Refused { what, source }
    };
    // A thread of its own, because its namespace lasts as long as it does.
    let thread = std::thread::Builder::new().name("link abilities".to_owned());
    let started = thread.spawn(move || {
        let found = unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| failed(errno.into()));
        let found = found.and_then(|()| {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().map_err(failed)?.block_on(by_trying())
        });
        // Nobody may wait any more.
        let _ = reply.send(found);
    });
    started.map_err(failed)?;
    answer.await.unwrap_or_else(|_| Err(failed(io::Error::other("the thread has panicked"))))
}

async fn by_trying() -> Result<LinkAbilities, NetworkError> {
    let network = LinuxNetwork::new();
    network.create_bridge(BRIDGE).await?;
    let vxlan = Vxlan { id: 1, local: None, lower: None, port: 4789, learning: false };
    Ok(LinkAbilities {
        vlans: is_able(network.create_vlan("vlan", BRIDGE, 1).await)?,
        vxlans: is_able(network.create_vxlan("vxlan", &vxlan).await)?,
    })
}

fn is_able(tried: Result<(), NetworkError>) -> Result<bool, NetworkError> {
    match tried {
        Ok(()) => Ok(true),
        Err(NetworkError::Unsupported { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
