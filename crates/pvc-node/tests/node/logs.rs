//! Consoles and log lines reach the store.

use super::*;

#[tokio::test(start_paused = true)]
async fn consoles_reach_the_store_with_junk_rotation_and_a_limited_rate() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let path = Path::new(CONSOLES).join("vm1.log");
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
    world.files.insert(&path, b"Linux version 6.12\n\xff\x00login:");
    let arrives = async |text: &str| {
        for _ in 0..2000 {
            if world.operator.console_log(uuid).await.unwrap().unwrap_or_default().ends_with(text) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{text:?} never arrived: {:?}", world.operator.console_log(uuid).await);
    };
    arrives("6.12\n\u{fffd}\u{fffd}login:").await;
    world.files.insert(&path, b"after the rotation\n");
    arrives("after the rotation\n").await;
    world.files.insert(&path, b"Kernel panic");
    world.request(uuid, VmState::Stop).await;
    arrives("Kernel panic").await;
}

#[tokio::test(start_paused = true)]
async fn a_console_without_end_is_cut_also_while_the_store_is_away() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let path = Path::new(CONSOLES).join("vm1.log");
    let daemon = world.running().await;
    world.until_runs(uuid).await;
    world.files.insert(&path, b"Linux version 6.12\n");
    while world.operator.console_log(uuid).await.unwrap().is_none_or(|log| log.is_empty()) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    daemon.connection.cut();
    for turn in ["first", "second"] {
        let end = format!("the {turn} end\n");
        world.files.insert(&path, &[vec![b'x'; 9 << 20], end.clone().into_bytes()].concat());
        let is_cut = || {
            let kept = world.files.contents(&path).unwrap();
            kept.len() < 1 << 20 && kept.ends_with(end.as_bytes())
        };
        world.until("its end is kept", is_cut).await;
    }
}

#[tokio::test(start_paused = true)]
async fn log_lines_reach_the_store_in_order_and_the_last_ones_at_the_end() {
    let world = world().await;
    let (sender, receiver) = tokio::sync::mpsc::channel(10);
    let daemon = world.start_as(|node| node.with_log(Some(receiver))).await;
    world
        .until("it runs", || world.node().is_some_and(|node| node.daemon_state == DaemonState::Run))
        .await;
    for number in 0..60 {
        sender.send(format!("line {number}")).await.unwrap();
    }
    world.pass(5).await;
    sender.send("the last one".to_owned()).await.unwrap();
    daemon.stop().await;
    let log = world.operator.node_log(&NodeName::new("hv1")).await.unwrap().unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 50);
    assert_eq!((lines[0], lines[49]), ("line 11", "the last one"));
}
