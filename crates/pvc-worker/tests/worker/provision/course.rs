//! Course of a task that makes a VM: what it checks once more, its stages, its log and its end.

use super::*;

#[tokio::test(start_paused = true)]
async fn what_has_gone_since_a_vm_was_asked_for_is_refused_before_its_script_begins() {
    for (gone, said) in [
        ("room", "bytes are needed"),
        ("node", "`hv1` is in domain state `flushed`, not `ready`"),
        ("memory", "`hv1` has 100 MiB of memory free, and the VM needs 512 MiB"),
    ] {
        let world = World::new(Case::Provision).await;
        match gone {
            "room" => {
                let vms = PoolName::new("vms");
                world.storage.with_volumes(|volumes| volumes.fill_pool(&vms, 100));
            }
            "node" => {
                let flushed = || NodeChange::Domain(DomainState::Flushed);
                let change = || Change::Node(NodeName::new("hv1"), flushed());
                world.write(|changes| _ = changes.push(change())).await;
            }
            _ => {
                let figures = vec![figures_of("hv1", 100, 0.0)];
                world.store.report(figures).await.expect("the tree is open");
            }
        }
        world.healthy_worker("hv1").await;
        let end = world.end().await;
        assert_eq!(end.state, JobState::Failed, "{gone}: {end:?}");
        assert!(end.status.contains(said), "{gone}: {}", end.status);
        assert_eq!(world.scripts.answers(), [], "{gone}: no script has begun");
        world.assert_nothing_left(gone).await;
    }
}
