//! Guests on their way from one libvirtd to another.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn guests_move_between_two_libvirtds() {
    let (one, two) = Libvirt::pair();
    let fixture = MigrationFixture {
        guest: Box::new(|uuid, name| guest_xml(uuid, name, None)),
        hosts: (LOOPBACK.to_owned(), LOOPBACK.to_owned()),
        nobody: "127.0.0.2".to_owned(),
        time_limit: TIME_LIMIT,
    };
    migration_contract(Arc::new(one.hypervisor()), Arc::new(two.hypervisor()), fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_to_a_frozen_libvirtd_can_be_given_up_and_does_not_begin_later() {
    let (one, two) = Libvirt::pair();
    let hypervisor = one.hypervisor();
    run(&hypervisor, UUID, &guest_xml(UUID, "stays", None)).await;
    two.signal_libvirtd(Signal::SIGSTOP);
    let mut job = hypervisor.migrate(UUID, &to(LOOPBACK)).await.expect("it begins");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(job.progress().await.expect("an answer"), None);
    job.abort().await.expect("it is asked to end");
    two.signal_libvirtd(Signal::SIGCONT);
    job.outcome().await.expect_err("it was given up");
    let guests = hypervisor.guests().await.expect("guests");
    assert_eq!(guests[&UUID].run, GuestRun::Running);
    assert!(two.hypervisor().guests().await.expect("guests").is_empty());
    hypervisor.destroy(UUID).await.expect("it is destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_dies_on_the_way_leaves_the_guest_where_it_was() {
    let (one, two) = Libvirt::pair();
    let hypervisor = one.hypervisor();
    run(&hypervisor, UUID, &guest_xml(UUID, "returns", None)).await;
    let short = Migration { max_downtime: Duration::from_millis(77), ..to(LOOPBACK) };
    let mut job = hypervisor.migrate(UUID, &short).await.expect("it begins");
    // As soon as there is a QEMU to receive it, that stands still, and the copying with it.
    let pid_file = two.path("lv/run/qemu/returns.pid");
    // The file is there before its contents are.
    eventually("the other QEMU", || async { pid(&pid_file).map(drop) }).await;
    send(&pid_file, Signal::SIGSTOP);
    let early = tokio::time::timeout(Duration::from_secs(2), job.outcome()).await;
    send(&pid_file, Signal::SIGKILL);
    let outcome = match early {
        Ok(outcome) => outcome,
        Err(_) => job.outcome().await,
    };
    outcome.expect_err("the receiver was killed");
    assert_eq!(one.max_downtime("returns"), "77", "what QEMU was told");
    eventually("the guest running here", || async {
        (hypervisor.guests().await.ok()?.get(&UUID)?.run == GuestRun::Running).then_some(())
    })
    .await;
    hypervisor.destroy(UUID).await.expect("it is destroyed");
}

/// Shows the risk of a sender to a legacy peer: libvirt lets the guest go on here, although it runs
/// there.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_whose_arrival_was_not_announced_runs_on_both_sides_and_the_other_one_says_so() {
    let (mut one, two) = Libvirt::pair();
    let proxy =
        before_a_libvirtd_that_is_cut_off_at_the_finish(two.port.expect("it listens"), || {});
    one.target_uri = format!("qemu+tcp://{{host}}:{proxy}/system");
    let hypervisor = one.hypervisor();
    run(&hypervisor, UUID, &guest_xml(UUID, "twice", None)).await;
    let mut job = hypervisor.migrate(UUID, &to(LOOPBACK)).await.expect("it begins");
    job.outcome().await.expect_err("its end was not heard of");
    let there = hypervisor.state_at(LOOPBACK, UUID).await.expect("an answer");
    assert_eq!(there, Some(GuestRun::Running));
    assert_eq!(hypervisor.guests().await.expect("guests")[&UUID].run, GuestRun::Running);
    hypervisor.destroy(UUID).await.expect("it is destroyed");
    two.hypervisor().destroy(UUID).await.expect("it is destroyed");
}

/// The other libvirtd is cut off in the last call: what has come there stands still, and the guest
/// goes on here.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_was_sent_held_runs_on_one_side_when_its_arrival_was_not_announced() {
    let (mut one, two) = Libvirt::pair();
    let proxy =
        before_a_libvirtd_that_is_cut_off_at_the_finish(two.port.expect("it listens"), || {});
    one.target_uri = format!("qemu+tcp://{{host}}:{proxy}/system");
    let (hypervisor, there) = (one.hypervisor(), two.hypervisor());
    run(&hypervisor, UUID, &guest_xml(UUID, "once", None)).await;
    let mut job = hypervisor.migrate(UUID, &held()).await.expect("it begins");
    let both = async || (state_of(&hypervisor).await, state_of(&there).await);
    let ended = async {
        loop {
            let seen = both().await;
            assert_ne!(seen, (Some(GuestRun::Running), Some(GuestRun::Running)));
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        outcome = job.outcome() => drop(outcome.expect_err("its end was not heard of")),
        () = ended => {}
    }
    eventually("the guest running here", || async {
        (both().await == (Some(GuestRun::Running), Some(GuestRun::Paused))).then_some(())
    })
    .await;
    assert_eq!(
        hypervisor.state_at(LOOPBACK, UUID).await.expect("an answer"),
        Some(GuestRun::Paused)
    );
    let mut again = hypervisor.migrate(UUID, &held()).await.expect("it begins");
    again.outcome().await.expect_err("what has come there is in the way");
    assert_eq!(both().await, (Some(GuestRun::Running), Some(GuestRun::Paused)));
    there.destroy(UUID).await.expect("it is destroyed");
    hypervisor.destroy(UUID).await.expect("it is destroyed");
}

/// The libvirtd here dies between the last two steps: the guest is held on both sides, and whoever
/// knows where it belongs lets it go on there.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_was_sent_held_runs_nowhere_when_its_libvirtd_dies_before_the_end() {
    let (mut one, two) = Libvirt::pair();
    let pid_file = one.path("lv/libvirtd.pid");
    let die = move || send(&pid_file, Signal::SIGKILL);
    let proxy = before_a_libvirtd_that_is_cut_off_at_the_finish(two.port.expect("it listens"), die);
    one.target_uri = format!("qemu+tcp://{{host}}:{proxy}/system");
    let (hypervisor, there) = (one.hypervisor(), two.hypervisor());
    run(&hypervisor, UUID, &guest_xml(UUID, "nowhere", None)).await;
    let mut job = hypervisor.migrate(UUID, &held()).await.expect("it begins");
    job.outcome().await.expect_err("libvirtd is gone");
    one.start_again();
    let both = async || (state_of(&hypervisor).await, state_of(&there).await);
    eventually("libvirtd answering again", || async { hypervisor.guests().await.ok() }).await;
    assert_eq!(both().await, (Some(GuestRun::Leaving), Some(GuestRun::Paused)));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        both().await,
        (Some(GuestRun::Leaving), Some(GuestRun::Paused)),
        "nobody lets it go on"
    );
    there.destroy(UUID).await.expect("it is destroyed");
    hypervisor.resume(UUID).await.expect("it goes on");
    assert_eq!(both().await, (Some(GuestRun::Running), None));
    hypervisor.destroy(UUID).await.expect("it is destroyed");
}

/// The program that sends it is killed between the last two steps: the guest is held on both sides,
/// and goes on wherever it is let.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_was_sent_held_runs_nowhere_when_its_sender_is_killed_before_the_end() {
    for is_handed_over in [false, true] {
        let (one, two) = Libvirt::pair();
        let (here, there) = (one.hypervisor(), two.hypervisor());
        run(&here, UUID, &guest_xml(UUID, "orphan", None)).await;
        let sender = Arc::new(Mutex::new(None::<Child>));
        let victim = sender.clone();
        // It must be dead before it can see that the other side is cut off, which it would take
        // for a reason to have the guest go on here.
        let kill = move || {
            let sender = victim.lock().expect("nobody panics with it").take();
            let mut sender = sender.expect("it is killed once");
            sender.kill().expect("it lives");
            sender.wait().expect("it ends");
        };
        let port = two.port.expect("it listens");
        let proxy = before_a_libvirtd_that_is_cut_off_at_the_finish(port, kill);
        let both = async || (state_of(&here).await, state_of(&there).await);
        let is_dead = || sender.lock().expect("nobody panics with it").is_none();
        *sender.lock().expect("nobody panics with it") = Some(spawn_sender(&one, proxy));
        while !is_dead() {
            assert_ne!(both().await, (Some(GuestRun::Running), Some(GuestRun::Running)));
            sleep(Duration::from_millis(20)).await;
        }
        let held = (Some(GuestRun::Leaving), Some(GuestRun::Paused));
        let is_held = || async { (both().await == held).then_some(()) };
        eventually("the guest held on both sides", is_held).await;
        sleep(Duration::from_secs(2)).await;
        assert_eq!(both().await, held, "nobody lets it go on");
        let seen_from_here = here.state_at(LOOPBACK, UUID).await.expect("an answer");
        assert_eq!(seen_from_here, Some(GuestRun::Paused), "as its next daemon asks");

        let (owner, other) = if is_handed_over { (&there, &here) } else { (&here, &there) };
        other.destroy(UUID).await.expect("what is worth nothing is ended");
        owner.resume(UUID).await.expect("it goes on");
        assert_eq!(state_of(owner).await, Some(GuestRun::Running));
        assert_eq!(state_of(other).await, None);
        owner.destroy(UUID).await.expect("it is destroyed");
    }
}

/// A process of its own that sends the guest from `libvirt` to the one behind `port`.
fn spawn_sender(libvirt: &Libvirt, port: u16) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "moves::the_sender_that_the_test_above_kills",
            "--ignored",
            "--nocapture",
        ])
        .env("PVC_TEST_FROM", libvirt.script("uri"))
        .env("PVC_TEST_TO", format!("qemu+tcp://{{host}}:{port}/system"))
        .spawn()
        .expect("this program runs")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test above, which kills it"]
async fn the_sender_that_the_test_above_kills() {
    let said = |name| std::env::var(name).expect("the test above says so");
    let hypervisor = LibvirtHypervisor::new(LibvirtOptions {
        uri: said("PVC_TEST_FROM"),
        scratch: std::env::temp_dir(),
        verdict: None,
        domain_type: Some(DomainType::Qemu),
        target_uri: said("PVC_TEST_TO"),
    });
    let mut job = hypervisor.migrate(UUID, &held()).await.expect("it begins");
    let outcome = job.outcome().await;
    panic!("it was to be killed before it hears of the end: {outcome:?}");
}

async fn state_of(hypervisor: &LibvirtHypervisor) -> Option<GuestRun> {
    hypervisor.guests().await.expect("guests").get(&UUID).map(|guest| guest.run)
}

fn held() -> Migration {
    Migration { held: true, ..to(LOOPBACK) }
}

/// The port of a proxy that passes everything on but the answer to the last call of a migration to
/// that side, at which `at_finish` happens.
fn before_a_libvirtd_that_is_cut_off_at_the_finish(
    port: u16,
    at_finish: impl Fn() + Clone + Send + 'static,
) -> u16 {
    /// `REMOTE_PROC_DOMAIN_MIGRATE_FINISH3` and `…_FINISH3_PARAMS` of libvirt's protocol.
    const FINISH: [u32; 2] = [217, 306];
    const REPLY: u32 = 1;
    let listener = TcpListener::bind((LOOPBACK, 0)).expect("a free port");
    let proxy = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect((LOOPBACK, port)).expect("libvirtd listens");
            let (mut from, mut to) =
                (client.try_clone().expect("a handle"), server.try_clone().expect("a handle"));
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            let at_finish = at_finish.clone();
            std::thread::spawn(move || {
                let (mut server, mut client) = (server, client);
                // Each message: its length, program, version, procedure, type, and more.
                let mut head = [0; 20];
                while server.read_exact(&mut head).is_ok() {
                    let word = |at: usize| {
                        u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"))
                    };
                    if FINISH.contains(&word(12)) && word(16) == REPLY {
                        at_finish();
                        break;
                    }
                    let mut rest = vec![0; word(0) as usize - head.len()];
                    if server
                        .read_exact(&mut rest)
                        .and_then(|()| client.write_all(&[&head[..], &rest].concat()))
                        .is_err()
                    {
                        break;
                    }
                }
                let _ = (server.shutdown(Shutdown::Both), client.shutdown(Shutdown::Both));
            });
        }
    });
    proxy
}
