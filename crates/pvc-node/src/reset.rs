//! A node that has lost the store for `suicide_intervals` gives its VMs up.
//!
//! It does so for its own VMs' sake, which others may start as soon as its death is proven. That it
//! does is no such proof: whether a silent node resets itself, and whether it has, nobody can see
//! from outside. A node without running VMs has nothing to give up and never resets itself (I5).

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use pvc_model::Uuid;
use pvc_model::attention::Attention;
use pvc_ports::{Command, GuestRun};
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Time that asking for the guests may take, and ending them: the reset ends those that are left.
const END_GUESTS: Duration = Duration::from_secs(10);

/// Time that the reset itself may take until the next way is tried.
const RESET: Duration = Duration::from_secs(30);

/// Programs that reset the machine, in the order in which they are tried. Twice `--force`: at once,
/// without stopping services, which would wait for a store that is not there. It waits for what is
/// to be written to disks first, which a storage that is not there never takes; the kernel itself
/// waits for nothing.
const RESETS: [(&str, &[&str]); 2] = [
    ("systemctl", &["reboot", "--force", "--force"]),
    ("sh", &["-c", "echo b > /proc/sysrq-trigger"]),
];

/// Watches the own keepalive until `shutdown`; after `limit` without one that could be written,
/// resets.
pub(crate) async fn run(shared: Arc<Shared>, limit: Duration, shutdown: CancellationToken) {
    let stamped = shared.stamped.subscribe();
    let (mut attention, mut last_stamp, mut silent) =
        (Attention::default(), *stamped.borrow(), Duration::ZERO);
    attention.look(shared.now());
    while shared.rest(LOOK, &shutdown).await {
        let (stamp, passed) = (*stamped.borrow(), attention.look(shared.now()));
        silent = if stamp == last_stamp { silent + passed } else { Duration::ZERO };
        last_stamp = stamp;
        // In maintenance somebody may have stopped the store on purpose.
        if silent < limit || shared.store.view().config.maintenance {
            continue;
        }
        let guests = running(&shared).await;
        if !guests.is_empty() {
            give_up(&shared, &guests, silent).await;
        }
    }
}

/// The guests here that have a record: as the hypervisor says, or as it last said. One that was
/// made and never let run is none: without the store nobody lets it run.
async fn running(shared: &Shared) -> Vec<Uuid> {
    let recorded = shared.store.view();
    match shared.within(END_GUESTS, shared.ports.hypervisor.guests()).await {
        Some(Ok(guests)) => {
            let ran = guests.into_values().filter(|guest| guest.run != GuestRun::Created);
            ran.map(|guest| guest.uuid).filter(|vm| recorded.vms.contains_key(vm)).collect()
        }
        _ => shared.guests.borrow().known.keys().copied().collect(),
    }
}

/// Ends the guests, then the machine.
async fn give_up(shared: &Shared, guests: &[Uuid], silent: Duration) {
    tracing::error!(
        vms = guests.len(),
        "no keepalive could be written for {} s (`suicide_intervals`): others may start the VMs of \
         this node, so they \
         are ended here and the machine is reset",
        silent.as_secs()
    );
    let end = |vm: &Uuid| {
        let vm = *vm;
        async move {
            if let Err(error) = shared.ports.hypervisor.destroy(vm).await {
                tracing::error!(%vm, %error, "a guest could not be ended; the reset ends it");
            }
        }
    };
    shared.within(END_GUESTS, join_all(guests.iter().map(end))).await;
    for (program, args) in RESETS {
        let command = Command {
            program: program.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            env: Vec::new(),
            stdin: None,
            deadline: RESET,
        };
        match shared.ports.exec.run(command).await {
            Ok(output) if output.code == Some(0) => shared.sleep(RESET).await,
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                tracing::error!(program, why, "the machine could not be reset");
            }
            Err(error) => tracing::error!(program, %error, "the machine could not be reset"),
        }
    }
}
