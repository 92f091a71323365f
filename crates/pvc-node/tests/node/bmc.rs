//! The BMC of the host is asked and recorded.

use super::*;

/// A world whose node has a BMC of this manner.
async fn world_with_bmc(manner: BmcManner) -> world::World {
    let mut world = world().await;
    world.power.set_manner("hv1-ipmi", manner);
    let (hostname, username) = ("hv1-ipmi".to_owned(), "admin".to_owned());
    world.settings.ipmi =
        Some(pvc_store::Ipmi { hostname, username, password: "secret".to_owned() });
    world
}

#[tokio::test(start_paused = true)]
async fn the_own_bmc_is_asked_at_the_start_and_a_dead_one_does_not_stop_the_start() {
    for dead in [false, true] {
        let world = world_with_bmc(BmcManner { dead, ..BmcManner::default() }).await;
        let _daemon = world.running().await;
        world.pass(60).await;
        assert_eq!(world.power.calls(), ["status hv1-ipmi"]);
        assert_eq!(world.node().unwrap().ipmi_hostname, "hv1-ipmi");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bmc_that_says_off_is_out_of_the_record_until_the_daemon_starts_anew() {
    let lies = BmcManner { lies: true, ..BmcManner::default() };
    let world = world_with_bmc(lies.clone()).await;
    let daemon = world.running().await;
    assert_eq!(world.node().unwrap().ipmi_hostname, "", "before it says that it runs");
    let message = world.until_fault("BMC_UNUSABLE_HV1").await;
    assert!(message.contains("it says that the power is off while the node runs"), "{message}");
    // It may be that another machine was switched on.
    world.power.set_manner("hv1-ipmi", BmcManner::default());
    world.pass(700).await;
    assert_eq!(world.node().unwrap().ipmi_hostname, "");
    daemon.stop().await;
    let _daemon = world.running().await;
    world
        .until("it is recorded", || {
            let recorded = world.operator.ipmi(&"hv1".into()).unwrap_or_default();
            (&*recorded.hostname, &*recorded.password) == ("hv1-ipmi", "secret")
        })
        .await;
    world.power.set_manner("hv1-ipmi", lies);
    world.until("it is found out", || world.node().unwrap().ipmi_hostname.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_bmc_that_says_off_for_a_moment_stays_in_the_record() {
    let world = world_with_bmc(BmcManner::default()).await;
    let _daemon = world.running().await;
    world.power.set_manner("hv1-ipmi", BmcManner { lies: true, ..BmcManner::default() });
    world.until("it has said so once", || world.power.calls().len() == 2).await;
    world.power.set_manner("hv1-ipmi", BmcManner::default());
    world.pass(60).await;
    assert_eq!(world.power.calls().len(), 3, "it was asked once more");
    assert_eq!(world.node().unwrap().ipmi_hostname, "hv1-ipmi");
    assert!(world.view().faults.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_bmc_that_stays_silent_is_a_fault_before_it_is_needed() {
    let world = world_with_bmc(BmcManner::default()).await;
    let _daemon = world.running().await;
    world.power.set_manner("hv1-ipmi", BmcManner { dead: true, ..BmcManner::default() });
    world.pass(330).await;
    assert!(world.view().faults.is_empty(), "it may have been busy");
    let message = world.until_fault("BMC_UNUSABLE_HV1").await;
    assert!(message.starts_with("the BMC `hv1-ipmi` of node hv1 cannot be used: "), "{message}");
    assert_eq!(world.node().unwrap().ipmi_hostname, "hv1-ipmi", "others may reach it");
}
