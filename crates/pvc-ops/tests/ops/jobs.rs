//! Work that takes long is recorded for a worker.

use super::*;

#[tokio::test]
async fn jobs_are_recorded_for_the_node_of_the_vm_and_can_be_cancelled() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let (store, clock) = (&world.store, world.clock.as_ref());
    let spec = vm::submit_flush_locks(store, clock, &world.random, "web1", "tests").await.unwrap();
    assert_eq!(
        (spec.work.name(), spec.node.as_str(), spec.run_on.as_str()),
        ("vm.flush_locks", "hv1", "hv1")
    );
    let recorded = store.view().jobs[&spec.id].spec.clone();
    let vm = JobVm { name: "web1".into(), uuid: Some(UUID) };
    assert_eq!(recorded.work, JobWork::FlushLocks { vm });
    job::cancel(store, clock, spec.id.as_str()).await.unwrap();
    job::cancel(store, clock, spec.id.as_str()).await.unwrap();
    assert!(store.view().jobs[&spec.id].cancel_requested);
    assert_eq!(refused(job::cancel(store, clock, "nonsense").await).kind(), Kind::NotFound);

    let attach = async |xml: &str| {
        let (vm, xml, submitter) = ("web1".to_owned(), xml.to_owned(), "tests".to_owned());
        let ask =
            device::DeviceAsk { vm, change: DeviceChange::Attach, xml, force: false, submitter };
        device::submit_device(store, clock, &world.random, &ask).await
    };
    assert_eq!(attach("<interface type='bridge'/>").await.unwrap().work.name(), "vm.device_attach");
    assert_eq!(refused(attach("<interface").await).kind(), Kind::Invalid);
    let function =
        refused(attach("<interface type='direct'><source dev='ens1f0v3'/></interface>").await);
    assert!(matches!(function, device::DeviceRefusal::Nic(_)), "{function}");
    world.state(VmState::Start).await;
    let busy = refused(vm::submit_flush_locks(store, clock, &world.random, "web1", "tests").await);
    assert_eq!(busy.kind(), Kind::Conflict);
}
