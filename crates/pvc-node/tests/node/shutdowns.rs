//! Guests are shut down, stopped and restarted.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_in_stop_also_for_a_guest_that_is_off_or_deaf() {
    let world = world().await;
    let obedient = world.define(1, VmState::Start).await;
    let deaf = world.define(2, VmState::Start).await;
    world.hypervisor.set_manner(deaf, Manner { ignores_shutdown: true, ..Manner::default() });
    let off = world.define(3, VmState::Stop).await;
    let _daemon = world.running().await;
    for vm in [obedient, deaf] {
        world.until_runs(vm).await;
    }
    for vm in [obedient, deaf, off] {
        world.request(vm, VmState::Shutdown).await;
    }
    world.pass(30).await;
    assert_eq!((world.state(obedient), world.state(off)), ("stop".to_owned(), "stop".to_owned()));
    assert_eq!(world.state(deaf), "shutdown");
    assert!((2..=3).contains(&world.hypervisor.count("shutdown", deaf)), "now and then");
    world.pass(160).await;
    assert_eq!((world.state(deaf).as_str(), world.hypervisor.is_there(deaf)), ("stop", false));
}

#[tokio::test(start_paused = true)]
async fn a_guest_whose_monitor_hangs_is_powered_off_when_its_time_is_over() {
    let world = world().await;
    let stuck = world.define(1, VmState::Start).await;
    world.hypervisor.set_manner(stuck, Manner { monitor_hangs: true, ..Manner::default() });
    let _daemon = world.running().await;
    world.until_runs(stuck).await;
    world.request(stuck, VmState::Shutdown).await;
    world.pass(200).await;
    assert_eq!((world.state(stuck).as_str(), world.hypervisor.is_there(stuck)), ("stop", false));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_can_be_taken_back_or_made_a_stop() {
    let world = world().await;
    let (kept, ended) =
        (world.define(1, VmState::Start).await, world.define(2, VmState::Start).await);
    for vm in [kept, ended] {
        world.hypervisor.set_manner(vm, Manner { ignores_shutdown: true, ..Manner::default() });
    }
    let _daemon = world.running().await;
    for vm in [kept, ended] {
        world.until_runs(vm).await;
        world.request(vm, VmState::Shutdown).await;
    }
    world.pass(10).await;
    world.request(kept, VmState::Start).await;
    world.request(ended, VmState::Stop).await;
    world.pass(600).await;
    assert!(world.hypervisor.is_there(kept));
    assert_eq!(world.hypervisor.count("destroy", kept), 0);
    assert!(!world.hypervisor.is_there(ended));
    world.request(ended, VmState::Stop).await;
    world.pass(10).await;
    assert_eq!(world.state(ended), "stop");
}

#[tokio::test(start_paused = true)]
async fn a_restart_gives_a_new_instance_and_ends_in_start() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let slow = Manner { shutdown_takes: Duration::from_secs(20), ..Manner::default() };
    world.hypervisor.set_manner(uuid, slow);
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
    world.request(uuid, VmState::Restart).await;
    world.until("it is another one", || world.hypervisor.instance(uuid) == Some(2)).await;
    world.pass(10).await;
    assert_eq!(world.state(uuid), "start");
    assert_eq!(world.hypervisor.count("destroy", uuid), 0);
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_was_only_booting_hears_the_next_press() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    world.hypervisor.set_manner(uuid, Manner { ignores_shutdown: true, ..Manner::default() });
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
    world.request(uuid, VmState::Shutdown).await;
    world.pass(10).await;
    world.hypervisor.set_manner(uuid, Manner::default());
    world.pass(15).await;
    assert_eq!(world.state(uuid), "stop");
    assert_eq!(world.hypervisor.count("destroy", uuid), 0);
}
