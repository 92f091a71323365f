//! Consoles and log lines reach the store.

use std::path::PathBuf;

use super::world::{Daemon, World};
use super::*;

/// Returns once the recorded console ends with `text`.
async fn until_console(world: &World, vm: Uuid, text: &str) {
    for _ in 0..2000 {
        if has_console(world, vm, text).await {
            return;
        }
        world.clock_passes(100).await;
    }
    panic!("{text:?} never arrived: {:?}", world.operator.console_log(vm).await);
}

async fn has_console(world: &World, vm: Uuid, text: &str) -> bool {
    world.operator.console_log(vm).await.unwrap().unwrap_or_default().ends_with(text)
}

/// Number of times that `path` was written.
async fn writes(world: &World, path: &str) -> u64 {
    let entry = world.operator.tree().get(path).await.unwrap();
    entry.map_or(0, |entry| u64::try_from(entry.stat.version).unwrap())
}

async fn console_writes(world: &World, vm: Uuid) -> u64 {
    writes(world, &format!("/domains/{vm}/consolelog")).await
}

fn console(vm: Uuid) -> PathBuf {
    Path::new(CONSOLES).join(format!("vm{}.log", vm.as_u128()))
}

/// Defines and starts guests on a daemon whose store takes no larger request than ZooKeeper does
/// unless told otherwise.
async fn with_guests(world: &World, count: u128) -> (Daemon, Vec<Uuid>) {
    let mut guests = Vec::new();
    for number in 1..=count {
        guests.push(world.define(number, VmState::Start).await);
    }
    let daemon = world.running().await;
    daemon.connection.limit_requests(0xf_ffff);
    for guest in &guests {
        world.until_runs(*guest).await;
    }
    (daemon, guests)
}

#[tokio::test(start_paused = true)]
async fn the_consoles_of_many_guests_arrive_though_they_are_more_than_one_request_takes() {
    let world = world().await;
    let (_daemon, guests) = with_guests(&world, 20).await;
    let text = format!("{}the end\n", "x".repeat(200 << 10));
    guests.iter().for_each(|guest| world.files.insert(&console(*guest), text.as_bytes()));
    for guest in guests {
        until_console(&world, guest, "the end\n").await;
    }
}

#[tokio::test(start_paused = true)]
async fn guests_that_print_without_end_keep_to_a_pace_and_hold_up_no_other() {
    const SIZE: usize = 200 << 10;
    let world = world().await;
    let (_daemon, mut guests) = with_guests(&world, 20).await;
    let quiet = guests.remove(0);
    let begun = world.now();
    for turn in 0..150 {
        let text = [vec![b'x'; SIZE], format!("{turn}").into_bytes()].concat();
        guests.iter().for_each(|guest| world.files.insert(&console(*guest), &text));
        match turn {
            140 => world.files.insert(&console(quiet), b"login:"),
            145 => assert!(has_console(&world, quiet, "login:").await, "after ten seconds"),
            _ => {}
        }
        world.pass(2).await;
    }
    let mut bytes = 0;
    for guest in &guests {
        let written = console_writes(&world, *guest).await;
        assert!(written > 0, "nobody is passed over: {guest}");
        bytes += written * SIZE as u64;
    }
    // What nobody has written in the two minutes before may come on top, and one console.
    let most = 65_536 * ((world.now() - begun).as_secs() + 120) + SIZE as u64;
    assert!(bytes <= most, "{bytes} of {most}");
    for guest in guests {
        until_console(&world, guest, "149").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_prints_a_line_now_and_then_never_waits_for_more_than_two_seconds() {
    let world = world().await;
    let (_daemon, guests) = with_guests(&world, 1).await;
    let mut text = "a line of a log that is as long as lines are, more or less\n".repeat(100);
    for number in 0..50 {
        text.push_str(&format!("line {number}\n"));
        world.files.insert(&console(guests[0]), text.as_bytes());
        world.pass(3).await;
        assert!(has_console(&world, guests[0], &format!("line {number}\n")).await, "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_starts_writes_no_console_that_is_recorded_already() {
    let world = world().await;
    let (daemon, guests) = with_guests(&world, 1).await;
    world.files.insert(&console(guests[0]), b"Linux version 6.12\n");
    until_console(&world, guests[0], "6.12\n").await;
    let before = console_writes(&world, guests[0]).await;
    daemon.stop().await;
    let _daemon = world.running().await;
    world.pass(20).await;
    assert_eq!(console_writes(&world, guests[0]).await, before);
    world.files.insert(&console(guests[0]), b"Linux version 6.12\nlogin:");
    until_console(&world, guests[0], "login:").await;
    assert_eq!(console_writes(&world, guests[0]).await, before + 1);
}

#[tokio::test(start_paused = true)]
async fn consoles_reach_the_store_with_junk_rotation_and_a_limited_rate() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let path = Path::new(CONSOLES).join("vm1.log");
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
    world.files.insert(&path, b"Linux version 6.12\n\xff\x00login:");
    let arrives = async |text: &str| until_console(&world, uuid, text).await;
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

#[tokio::test(start_paused = true)]
async fn a_log_with_lines_without_end_keeps_to_a_pace_and_has_the_newest() {
    const SIZE: usize = 5000;
    let world = world().await;
    let (sender, receiver) = tokio::sync::mpsc::channel(10);
    let daemon = world.start_as(|node| node.with_log(Some(receiver))).await;
    let runs = || world.node().is_some_and(|node| node.daemon_state == DaemonState::Run);
    world.until("it runs", runs).await;
    let (line, path) = ("x".repeat(SIZE), "/logs/hv1/messages");
    let (mut begun, mut before) = (Duration::ZERO, 0);
    for number in 0..1200 {
        if number == 100 {
            (begun, before) = (world.now(), writes(&world, path).await);
        }
        sender.send(format!("{line}{number}")).await.unwrap();
        world.clock_passes(500).await;
    }
    let bytes = (writes(&world, path).await - before) * 50 * SIZE as u64;
    let most = 16_384 * ((world.now() - begun).as_secs() + 120) + 50 * SIZE as u64;
    assert!(0 < bytes && bytes <= most, "{bytes} of {most}");
    daemon.stop().await;
    let log = world.operator.node_log(&NodeName::new("hv1")).await.unwrap().unwrap();
    assert!(log.ends_with("x1199") && log.lines().count() == 50, "{}", log.len());
}
