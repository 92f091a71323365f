//! The adapter on a real libvirtd, which each test starts for itself with all its state in a
//! directory of its own; see `packaging/install/libvirt.sh`.

#![allow(clippy::disallowed_methods, reason = "a test waits, in real or in paused time")]

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pvc_contracts::hypervisor::{
    HypervisorFixture, MigrationFixture, SPARE_BYTES, hypervisor_contract, migration_contract,
};
use pvc_libvirt::{DomainType, LibvirtHypervisor, LibvirtOptions};
use pvc_ports::{GuestEvent, GuestRun, Hypervisor, HypervisorError, Migration};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

const TIME_LIMIT: Duration = Duration::from_secs(90);
const UUID: Uuid = Uuid::from_u128(0x6c69_6276_6972_4474_8000_0000_0000_0001);

#[tokio::test(flavor = "multi_thread")]
async fn libvirt_keeps_the_hypervisor_contract() {
    let libvirt = Libvirt::start();
    let (disk, spare) = (libvirt.path("hello.img"), libvirt.path("spare.img"));
    fs::copy(hello_image(), &disk).expect("a copy of the guest's disk");
    File::create(&spare).and_then(|file| file.set_len(SPARE_BYTES)).expect("a spare disk");
    let fixture = HypervisorFixture {
        guest: Box::new(move |uuid, name| guest_xml(uuid, name, Some(&disk))),
        spare_disk: format!(
            "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{}'/>\
             <target dev='sdb' bus='scsi'/></disk>",
            spare.display()
        ),
        time_limit: TIME_LIMIT,
    };
    hypervisor_contract(Arc::new(libvirt.hypervisor()), fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_outlives_libvirtd_and_is_manageable_when_it_is_back() {
    let libvirt = Libvirt::start();
    let hypervisor = libvirt.hypervisor();
    let mut events = hypervisor.events();
    run(&hypervisor, UUID, &guest_xml(UUID, "survivor", None)).await;
    let before = hypervisor.guests().await.expect("guests")[&UUID].clone();

    libvirt.kill_libvirtd();
    let error = eventually("an error about the lost connection", || async {
        hypervisor.guests().await.err()
    })
    .await;
    assert!(matches!(error, HypervisorError::Unreachable { .. }), "{error:?}");
    while events.try_recv().is_ok() {}

    libvirt.start_again();
    let after =
        eventually("libvirtd answering again", || async { hypervisor.guests().await.ok() }).await;
    assert_eq!(after.get(&UUID), Some(&before), "the same guest, in the same run");
    let resync = eventually("the hint to look at everything", || {
        let event = events.try_recv().ok();
        async move { event }
    });
    assert_eq!(resync.await, GuestEvent::Resync);
    hypervisor.live_xml(UUID).await.expect("its XML");
    eventually("the end of the guest", || async {
        match hypervisor.destroy(UUID).await {
            Ok(()) | Err(HypervisorError::NoGuest { .. }) => Some(()),
            // libvirtd 11.3 dies at times when it ends a guest that it has found again
            // ("qemu-event: segfault", with a null pointer of its own). Elsewhere systemd starts it
            // anew, and whoever was refused tries again.
            Err(HypervisorError::Unreachable { .. }) => {
                libvirt.start_again();
                None
            }
            Err(error) => panic!("{error}"),
        }
    })
    .await;
    let gone =
        eventually("the guests that are left", || async { hypervisor.guests().await.ok() }).await;
    assert!(!gone.contains_key(&UUID));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_libvirtd_that_dies_in_the_middle_of_a_start_leaves_no_guest_that_cannot_be_managed() {
    let libvirt = Libvirt::start();
    let hypervisor = Arc::new(libvirt.hypervisor());
    hypervisor.ping().await.expect("connected");
    let starting = {
        let hypervisor = hypervisor.clone();
        tokio::spawn(async move { hypervisor.start(UUID, &guest_xml(UUID, "half", None)).await })
    };
    // As early as QEMU is there, and before libvirtd has finished with it.
    eventually("a pid file of QEMU, or the end of the start", || async {
        (starting.is_finished() || libvirt.path("lv/run/qemu/half.pid").exists()).then_some(())
    })
    .await;
    libvirt.kill_libvirtd();
    let _ = starting.await.expect("the call returns"); // started or not: both may be
    libvirt.start_again();
    // libvirtd ends what it finds half started, a moment after it is back: what wants the guest to
    // run must look again, as the node does.
    eventually("the guest running", || async {
        // One that was whole already is kept, and was never let run.
        if !hypervisor.guests().await.ok()?.contains_key(&UUID) {
            hypervisor.start(UUID, &guest_xml(UUID, "half", None)).await.ok()?;
        }
        hypervisor.resume(UUID).await.ok()?;
        let guests = hypervisor.guests().await.ok()?;
        (guests.get(&UUID)?.run == GuestRun::Running).then_some(())
    })
    .await;
    hypervisor.destroy(UUID).await.expect("it is destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_waits_to_be_let_run_is_known_as_such_by_whoever_comes_next() {
    let libvirt = Libvirt::start();
    libvirt
        .hypervisor()
        .start(UUID, &guest_xml(UUID, "waits", None))
        .await
        .expect("the guest is made");
    // The daemon that made it has died, and so has libvirtd.
    libvirt.kill_libvirtd();
    libvirt.start_again();
    let hypervisor = libvirt.hypervisor();
    let run = async |of: &LibvirtHypervisor| Some(of.guests().await.ok()?.get(&UUID)?.run);
    eventually("the guest as it was", || async {
        (run(&hypervisor).await? == GuestRun::Created).then_some(())
    })
    .await;
    hypervisor.resume(UUID).await.expect("it is let run");
    assert_eq!(run(&hypervisor).await, Some(GuestRun::Running));
    libvirt.virsh(&["suspend", "waits"]);
    assert_eq!(run(&hypervisor).await, Some(GuestRun::Paused), "an operator's pause is one");
    hypervisor.resume(UUID).await.expect("it goes on");
    assert_eq!(run(&hypervisor).await, Some(GuestRun::Running));
    hypervisor.destroy(UUID).await.expect("it is destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_an_operator_lets_run_loses_its_mark_when_it_is_looked_at() {
    let libvirt = Libvirt::start();
    let hypervisor = libvirt.hypervisor();
    hypervisor.start(UUID, &guest_xml(UUID, "marked", None)).await.expect("the guest is made");
    libvirt.virsh(&["resume", "marked"]);
    hypervisor.live_xml(UUID).await.expect("its XML");
    assert!(!hypervisor.live_xml(UUID).await.expect("its XML").contains("never-ran"));
    libvirt.virsh(&["suspend", "marked"]);
    assert_eq!(hypervisor.guests().await.expect("guests")[&UUID].run, GuestRun::Paused);
    hypervisor.destroy(UUID).await.expect("it is destroyed");
}

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
    eventually("the other QEMU", || async {
        two.path("lv/run/qemu/returns.pid").exists().then_some(())
    })
    .await;
    send(&two.path("lv/run/qemu/returns.pid"), Signal::SIGSTOP);
    let early = tokio::time::timeout(Duration::from_secs(2), job.outcome()).await;
    send(&two.path("lv/run/qemu/returns.pid"), Signal::SIGKILL);
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
async fn a_guest_whose_arrival_was_not_heard_of_runs_on_both_sides_and_the_other_one_says_so() {
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
async fn a_guest_that_was_sent_held_runs_on_one_side_when_its_arrival_was_not_heard_of() {
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
        .args(["--exact", "the_sender_that_the_test_above_kills", "--ignored", "--nocapture"])
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

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_is_to_be_encrypted_is_refused_where_nothing_is_set_up_for_it() {
    let (one, _two) = Libvirt::pair();
    let hypervisor = one.hypervisor();
    run(&hypervisor, UUID, &guest_xml(UUID, "secret", None)).await;
    let encrypted = Migration { encrypted: true, ..to(LOOPBACK) };
    let mut job = hypervisor.migrate(UUID, &encrypted).await.expect("it begins");
    let error = job.outcome().await.expect_err("there is no certificate");
    assert!(error.to_string().contains("credentials"), "{error}");
    assert_eq!(hypervisor.guests().await.expect("guests")[&UUID].run, GuestRun::Running);
    hypervisor.destroy(UUID).await.expect("it is destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_is_encrypted_on_its_way() {
    let certificates = tempfile::tempdir().expect("a directory");
    make_certificates(certificates.path());
    let (one, two) = Libvirt::pair_with(Some(certificates.path()), None);
    let hypervisor = one.hypervisor();
    run(&hypervisor, UUID, &guest_xml(UUID, "secret", None)).await;
    let encrypted = Migration { encrypted: true, ..to(LOOPBACK) };
    let mut job = hypervisor.migrate(UUID, &encrypted).await.expect("it begins");
    job.outcome().await.expect("it arrives");
    let there = two.hypervisor();
    assert_eq!(there.guests().await.expect("guests")[&UUID].run, GuestRun::Running);
    there.destroy(UUID).await.expect("it is destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_given_to_another_libvirt_over_tls_and_taken_from_nobody_whom_it_does_not_know()
{
    let (known, foreign) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    for certificates in [&known, &foreign] {
        make_certificates(certificates.path());
    }
    let (one, two) = Libvirt::pair_with(None, Some(known.path()));
    let hypervisor = one.hypervisor();
    run(&hypervisor, UUID, &guest_xml(UUID, "ordered", None)).await;
    let mut job = hypervisor.migrate(UUID, &to(LOOPBACK)).await.expect("it begins");
    job.outcome().await.expect("it arrives");
    assert_eq!(
        hypervisor.state_at(LOOPBACK, UUID).await.expect("it says so"),
        Some(GuestRun::Running)
    );
    let port = two.port.expect("it listens");
    for uri in [
        format!("qemu+tls://{{host}}:{port}/system?pkipath={}", foreign.path().display()),
        format!("qemu+tcp://{{host}}:{port}/system"),
    ] {
        let mut unauthenticated = Libvirt::prepare();
        unauthenticated.target_uri = uri;
        let asked = unauthenticated.hypervisor().state_at(LOOPBACK, UUID).await;
        assert!(
            matches!(
                asked,
                Err(HypervisorError::Unreachable { .. } | HypervisorError::TimedOut { .. })
            ),
            "{asked:?}"
        );
    }
    two.hypervisor().destroy(UUID).await.expect("it is destroyed");
}

/// An authority, and what it says of 127.0.0.1, as server and as client; by QEMU's names for them
/// and by libvirt's.
fn make_certificates(directory: &Path) {
    let script = r#"
        set -eu
        cd "$1"
        new() {
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" \
                -keyout "$2-key.pem" "${@:3}"
        }
        new authority ca -x509 -days 2 -out ca-cert.pem
        new 127.0.0.1 server -out server.csr
        openssl x509 -req -in server.csr -CA ca-cert.pem -CAkey ca-key.pem -days 2 \
            -out server-cert.pem -extfile <(echo "subjectAltName=IP:127.0.0.1")
        cp server-key.pem client-key.pem
        cp server-cert.pem client-cert.pem
        for name in ca-cert server-cert server-key client-cert client-key; do
            cp $name.pem "${name/-/}.pem"
        done
        chmod 755 . && chmod 644 ./*
    "#;
    let made = Command::new("bash")
        .args(["-c", script, "certificates"])
        .arg(directory)
        .output()
        .expect("bash");
    assert!(made.status.success(), "this needs openssl: {}", String::from_utf8_lossy(&made.stderr));
}

/// Makes a guest and lets it run.
async fn run(hypervisor: &LibvirtHypervisor, uuid: Uuid, xml: &str) {
    hypervisor.start(uuid, xml).await.expect("the guest is made");
    hypervisor.resume(uuid).await.expect("the guest is let run");
}

const LOOPBACK: &str = "127.0.0.1";

fn to(host: &str) -> Migration {
    Migration {
        host: host.to_owned(),
        max_downtime: Duration::from_millis(300),
        held: false,
        encrypted: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_libvirtd_that_hangs_costs_its_callers_their_deadline_and_nothing_more() {
    let libvirt = Libvirt::start();
    let hypervisor = libvirt.hypervisor();
    hypervisor.ping().await.expect("connected");
    libvirt.signal_libvirtd(Signal::SIGSTOP);
    let begun = Instant::now();
    let error = hypervisor.ping().await.expect_err("nobody answers");
    assert!(matches!(error, HypervisorError::TimedOut { seconds: 3 }), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // More calls than there are threads: the connection is given up, and nobody waits for ever.
    let pings = (0..8).map(|_| hypervisor.ping());
    for answer in futures_of(pings).await {
        answer.expect_err("nobody answers");
    }
    libvirt.signal_libvirtd(Signal::SIGCONT);
    eventually("an answer", || async { hypervisor.ping().await.ok() }).await;
    hypervisor.guests().await.expect("guests");
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_are_reported_although_one_guest_does_not_answer() {
    let libvirt = Libvirt::start();
    let hypervisor = libvirt.hypervisor();
    let healthy = Uuid::from_u128(UUID.as_u128() + 1);
    run(&hypervisor, UUID, &guest_xml(UUID, "frozen", None)).await;
    run(&hypervisor, healthy, &guest_xml(healthy, "healthy", None)).await;
    send(&libvirt.path("lv/run/qemu/frozen.pid"), Signal::SIGSTOP);
    let stats = hypervisor.stats().await.expect("figures");
    assert!(stats[&healthy].memory.contains_key("rss"), "with what QEMU knows: {stats:?}");
    assert_eq!(
        hypervisor.guests().await.expect("guests").len(),
        2,
        "the list needs no answer from QEMU"
    );
    hypervisor.destroy(UUID).await.expect("a frozen guest is destroyed all the same");
    hypervisor.destroy(healthy).await.expect("it is destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_libvirtd_that_comes_later_is_found() {
    let libvirt = Libvirt::prepare();
    let hypervisor = libvirt.hypervisor();
    let error = hypervisor.ping().await.expect_err("it is not there yet");
    assert!(matches!(error, HypervisorError::Unreachable { .. }), "{error:?}");
    libvirt.start_again();
    eventually("an answer", || async { hypervisor.ping().await.ok() }).await;
}

/// Whether QEMU runs the probe's guest for the libvirtd below `directory`.
fn probe_runs(directory: &Path) -> bool {
    let directory = directory.display().to_string();
    let processes = fs::read_dir("/proc").expect("/proc is there").flatten();
    let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| {
        let line = String::from_utf8_lossy(&line);
        line.contains("pvc-kvm-probe") && line.contains("qemu") && line.contains(&directory)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_that_nobody_waits_for_any_more_leaves_no_guest() {
    let libvirt = Libvirt::start();
    let hypervisor = libvirt.probing_hypervisor();
    let disk = libvirt.path("pvc-kvm-probe.img");
    // While the guest is being created, and while it runs.
    let moments: [&dyn Fn() -> bool; 2] =
        [&|| disk.exists(), &|| probe_runs(libvirt.directory.path())];
    for has_come in moments {
        let the_moment = async {
            while !has_come() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            biased;
            () = the_moment => {}
            // Where KVM works, the guest may have ended before anybody saw it.
            facts = hypervisor.facts() => assert_eq!(facts.expect("facts").domain_type, "kvm"),
        }
        // On a machine that is busy the creation may be waited for longer than whoever drops the
        // probe waits.
        let is_gone =
            || async { (!probe_runs(libvirt.directory.path()) && !disk.exists()).then_some(()) };
        eventually("no guest and no disk", is_gone).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probe_decides_between_kvm_and_emulation_and_is_remembered() {
    let libvirt = Libvirt::start();
    let hypervisor = libvirt.probing_hypervisor();
    let facts = hypervisor.facts().await.expect("facts");
    assert_eq!(facts.kvm_refused.is_none(), facts.domain_type == "kvm", "{facts:?}");
    assert!(
        hypervisor.guests().await.expect("guests").is_empty(),
        "the probe is no guest of anybody's"
    );
    assert!(!libvirt.path("pvc-kvm-probe.img").exists(), "the probe leaves nothing behind");
    let begun = Instant::now();
    assert_eq!(libvirt.probing_hypervisor().facts().await.expect("facts again"), facts);
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "remembered, not probed again: {:?}",
        begun.elapsed()
    );
    // What the probe says is true: a guest of that type starts here.
    let xml = guest_xml(UUID, "probed", None)
        .replace("type='qemu'", &format!("type='{}'", facts.domain_type));
    run(&hypervisor, UUID, &xml).await;
    hypervisor.destroy(UUID).await.expect("it is destroyed");
}

// --- A libvirtd of the test's own ---------------------------------------------------------------

/// Ends libvirtd and all its guests when dropped.
struct Libvirt {
    directory: TempDir,
    /// Port at which it listens for others, if it does, and port of those.
    port: Option<u16>,
    target_uri: String,
    certificates: Option<PathBuf>,
    /// Certificates with which it speaks TLS to others, if it does.
    control: Option<PathBuf>,
}

impl Libvirt {
    fn prepare() -> Self {
        // A socket's path is short; the usual place for temporary files may not be.
        let directory =
            tempfile::Builder::new().prefix("pvc-lv.").tempdir_in("/tmp").expect("a directory");
        let target_uri = LibvirtOptions::TARGET_URI.to_owned();
        Self { directory, port: None, target_uri, certificates: None, control: None }
    }

    /// Two that send each other guests, as if each were on a host of its own.
    fn pair() -> (Self, Self) {
        Self::pair_with(None, None)
    }

    /// Starts a pair with certificates for the guests on their way, and for the orders that they
    /// give each other.
    fn pair_with(certificates: Option<&Path>, control: Option<&Path>) -> (Self, Self) {
        let (mut one, mut two) = (Self::prepare(), Self::prepare());
        let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let [first, second] =
            free.map(|listener| listener.local_addr().expect("its address").port());
        (one.port, two.port) = (Some(first), Some(second));
        let uri = |port: u16| match control {
            None => format!("qemu+tcp://{{host}}:{port}/system"),
            Some(own) => format!("qemu+tls://{{host}}:{port}/system?pkipath={}", own.display()),
        };
        (one.target_uri, two.target_uri) = (uri(second), uri(first));
        for libvirt in [&mut one, &mut two] {
            libvirt.certificates = certificates.map(Path::to_owned);
            libvirt.control = control.map(Path::to_owned);
            libvirt.start_with_what_is_known();
        }
        (one, two)
    }

    /// Starts a libvirt. What it finds out about QEMU takes it seconds, so the tests pass it on to
    /// each other; it checks by itself whether it still holds.
    fn start() -> Self {
        let libvirt = Self::prepare();
        libvirt.start_with_what_is_known();
        libvirt
    }

    fn start_with_what_is_known(&self) {
        let known = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libvirt-capabilities");
        let own = self.path("lv/cache/qemu/capabilities");
        copy_files(&known, &own);
        self.start_again();
        copy_files(&own, &known);
    }

    fn start_again(&self) {
        self.script("start");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn hypervisor(&self) -> LibvirtHypervisor {
        self.adapter(Some(DomainType::Qemu))
    }

    fn probing_hypervisor(&self) -> LibvirtHypervisor {
        self.adapter(None)
    }

    fn adapter(&self, domain_type: Option<DomainType>) -> LibvirtHypervisor {
        LibvirtHypervisor::new(LibvirtOptions {
            uri: self.script("uri"),
            scratch: self.directory.path().to_owned(),
            verdict: Some(self.path("verdict")),
            domain_type,
            target_uri: self.target_uri.clone(),
        })
    }

    /// Milliseconds for which the guest may stand still for a migration, as its QEMU knows it.
    fn max_downtime(&self, guest: &str) -> String {
        let uri = self.script("uri");
        let asked =
            Command::new("virsh").args(["-c", &uri, "migrate-getmaxdowntime", guest]).output();
        String::from_utf8(asked.expect("virsh runs").stdout).expect("text").trim().to_owned()
    }

    fn virsh(&self, arguments: &[&str]) {
        let uri = self.script("uri");
        let done =
            Command::new("virsh").args(["-c", &uri]).args(arguments).output().expect("virsh runs");
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn kill_libvirtd(&self) {
        self.signal_libvirtd(Signal::SIGKILL);
    }

    fn signal_libvirtd(&self, signal: Signal) {
        send(&self.path("lv/libvirtd.pid"), signal);
    }

    fn command(&self, script: PathBuf) -> Command {
        let mut command = Command::new(script);
        command.envs(self.port.map(|port| ("PVC_LIBVIRT_PORT", port.to_string())));
        command.envs(self.certificates.as_ref().map(|directory| ("PVC_QEMU_CERTS", directory)));
        command.envs(self.control.as_ref().map(|directory| ("PVC_LIBVIRT_CERTS", directory)));
        command
    }

    fn script(&self, command: &str) -> String {
        let script = repository().join("packaging/install/libvirt.sh");
        let output = self
            .command(script)
            .arg(command)
            .arg(self.path("lv"))
            .output()
            .expect("the script runs");
        assert!(
            output.status.success(),
            "these tests need libvirt, QEMU and root (packaging/install/packages.sh run):\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        // A stopped process does not see that it should end.
        if let Some(libvirtd) = pid(&self.path("lv/libvirtd.pid")) {
            let _ = kill(libvirtd, Signal::SIGCONT);
        }
        let script = repository().join("packaging/install/libvirt.sh");
        let _ = Command::new(script).arg("purge").arg(self.path("lv")).output();
    }
}

/// Copies what is there; the files are whole at every moment for whoever reads them meanwhile.
fn copy_files(from: &Path, to: &Path) {
    let Ok(entries) = fs::read_dir(from) else { return };
    fs::create_dir_all(to).expect("a directory");
    for entry in entries.flatten() {
        let part = to.join(format!("part.{}", std::process::id()));
        fs::copy(entry.path(), &part).expect("a copy");
        fs::rename(part, to.join(entry.file_name())).expect("its name");
    }
}

fn pid(file: &Path) -> Option<Pid> {
    fs::read_to_string(file).ok()?.trim().parse().ok().map(Pid::from_raw)
}

fn send(pid_file: &Path, signal: Signal) {
    let pid = pid(pid_file).expect("a pid");
    kill(pid, signal).expect("the process lives");
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The image of `examples/hello`, built once per target directory.
fn hello_image() -> PathBuf {
    let image = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hello.img");
    let sources = ["build", "init"].map(|name| repository().join("examples/hello").join(name));
    let built = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    if built(&image).is_none_or(|image| sources.iter().any(|source| built(source) > Some(image))) {
        let output =
            Command::new(&sources[0]).arg("--image").arg(&image).output().expect("the build runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    image
}

fn guest_xml(uuid: Uuid, name: &str, disk: Option<&Path>) -> String {
    let disk = disk.map_or_else(String::new, |disk| {
        format!(
            "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{}'/>\
             <target dev='sda' bus='scsi'/></disk>",
            disk.display()
        )
    });
    format!(
        "<domain type='qemu'><name>{name}</name><uuid>{uuid}</uuid><memory \
         unit='MiB'>160</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64' machine='pc'>hvm</type><boot \
         dev='hd'/></os><features><acpi/><apic/></features>\
         <on_reboot>restart</on_reboot><devices><emulator>/usr/bin/qemu-system-x86_64</emulator>\
         <controller type='usb' model='none'/><controller type='scsi' model='virtio-scsi'/>{disk}\
         <serial type='pty'/><console type='pty'/>\
         <graphics type='vnc' port='-1' autoport='yes' listen='127.0.0.1'/><video><model \
         type='vga'/></video>\
         </devices></domain>"
    )
}

async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let until = Instant::now() + TIME_LIMIT;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < until, "waited {TIME_LIMIT:?} for {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// All of `calls` at the same time.
async fn futures_of<F: Future>(calls: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = calls.map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = pending.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (call, slot) in pending.iter_mut().zip(&mut done) {
            if slot.is_none()
                && let std::task::Poll::Ready(output) = call.as_mut().poll(context)
            {
                *slot = Some(output);
            }
        }
        if done.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    done.into_iter().flatten().collect()
}
