//! Certificates of the host: their end is a fault in time.

use pvc_model::certificate::CertificateUser;
use pvc_model::fault::FaultRecord;
use pvc_node::WatchedCertificates;

use super::*;

const FAULT: &str = "CERTIFICATE_HV1";

const PATH: &str = "/etc/pvc/tls/hv1.pem";

/// Certificates that end at 2026-12-25 12:00:00 UTC, 35 days after the clock of these tests begins,
/// and at 2029-03-01 00:00:00 UTC.
const LEAF: &[u8] = include_bytes!("certificates/leaf.pem");
const RENEWED: &[u8] = include_bytes!("certificates/renewed.pem");

const DAY: i64 = 24 * 60 * 60;

fn watched(path: &str, is_named: bool) -> WatchedCertificates {
    let used_by = CertificateUser::ZookeeperClient;
    WatchedCertificates { path: path.into(), used_by, is_named, unless: None }
}

/// A world whose node has certificates in these files, all of which the configuration names.
async fn world_with(paths: &[&str]) -> world::World {
    let mut world = world().await;
    world.settings.certificates = paths.iter().map(|path| watched(path, true)).collect();
    world
}

fn fault(world: &world::World) -> Option<Arc<FaultRecord>> {
    world.view().faults.get(FAULT).cloned()
}

async fn until_delta(world: &world::World, delta: i64) -> Arc<FaultRecord> {
    let is_so = || fault(world).is_some_and(|fault| fault.delta == delta);
    world.until(&format!("the fault takes {delta} points"), is_so).await;
    fault(world).expect("it was just there")
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_a_fault_that_becomes_worse_until_it_is_renewed() {
    let world = world_with(&[PATH]).await;
    world.files.insert(Path::new(PATH), LEAF);
    let _daemon = world.running().await;
    world.pass(60).await;
    assert_eq!(fault(&world), None, "it ends in 35 days");
    world.clock.step_wall(6 * DAY);
    world.pass(3600).await;
    let message = until_delta(&world, 2).await.message.clone();
    let words = "certificates of node hv1: `/etc/pvc/tls/hv1.pem` (client of ZooKeeper) ends on \
                 2026-12-25 12:00:00 UTC, in 28 days. ";
    assert!(message.starts_with(words), "{message}");

    let mut changes = Changes::new();
    changes.push(Change::AckFault { id: FAULT.to_owned(), at: "2026-11-26 14:00:00".to_owned() });
    world.change(changes).await;
    world.pass(600).await;
    assert!(until_delta(&world, 2).await.acknowledged, "it is as bad as before");
    world.clock.step_wall(22 * DAY);
    assert!(!until_delta(&world, 10).await.acknowledged, "it is worse");
    world.clock.step_wall(7 * DAY);
    let message = until_delta(&world, 50).await.message.clone();
    assert!(message.contains("has ended on 2026-12-25 12:00:00 UTC"), "{message}");

    world.files.insert(Path::new(PATH), RENEWED);
    world.until("it is renewed", || fault(&world).is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_looked_at_where_a_link_leads() {
    let world = world_with(&["/etc/pvc/live/api.pem"]).await;
    let link = Path::new("/etc/pvc/live/api.pem");
    world.files.insert(Path::new("/etc/pvc/archive/api1.pem"), LEAF);
    world.files.insert_link(link, Path::new("/etc/pvc/archive/api1.pem"));
    world.clock.step_wall(36 * DAY);
    let _daemon = world.running().await;
    let message = world.until_fault(FAULT).await;
    assert!(
        message.contains("`/etc/pvc/live/api.pem` (client of ZooKeeper) has ended"),
        "{message}"
    );
    world.files.insert(Path::new("/etc/pvc/archive/api2.pem"), RENEWED);
    world.files.insert_link(link, Path::new("/etc/pvc/archive/api2.pem"));
    world.until("it leads to a good one", || fault(&world).is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_read_is_named_with_the_reason_and_without_its_contents() {
    let paths = [
        "/absent.pem",
        "/garbage.pem",
        "/broken.pem",
        "/huge.pem",
        "/key.pem",
        "/broken-key.pem",
        "/key-as-certificate.pem",
        "/fifo.pem",
    ];
    let mut world = world_with(&paths).await;
    world.settings.certificates.push(watched("/of/nobody.pem", false));
    let key = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
    world.files.insert(Path::new("/garbage.pem"), &[0xff; 4096]);
    world.files.insert(Path::new("/broken.pem"), &LEAF[..LEAF.len() / 2]);
    world.files.insert_sparse(Path::new("/huge.pem"), 1 << 30);
    world.files.insert(Path::new("/key.pem"), key);
    // Without the newlines that belong into it, and with a certificate's first and last line.
    let broken = b"-----BEGIN PRIVATE KEY-----c2VjcmV0-----END PRIVATE KEY----\n";
    let misnamed = b"-----BEGIN CERTIFICATE-----\n*c2VjcmV0\n-----END CERTIFICATE-----\n";
    world.files.insert(Path::new("/broken-key.pem"), broken);
    world.files.insert(Path::new("/key-as-certificate.pem"), misnamed);
    world.files.insert_fifo(Path::new("/fifo.pem"));
    let _daemon = world.running().await;
    let message = world.until_fault(FAULT).await;
    for words in [
        "`/absent.pem` (client of ZooKeeper) could not be judged: it does not exist",
        "`/garbage.pem` (client of ZooKeeper) holds no certificate",
        "`/broken.pem` (client of ZooKeeper) could not be judged: it is broken",
        "`/huge.pem` (client of ZooKeeper) could not be judged: it has more than 1048576 bytes",
        "`/key.pem` (client of ZooKeeper) holds no certificate",
        "`/broken-key.pem` (client of ZooKeeper) holds no certificate",
        "`/key-as-certificate.pem` (client of ZooKeeper) could not be judged: it is broken",
        "`/fifo.pem` (client of ZooKeeper) could not be judged: ",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    assert!(!message.contains("c2VjcmV0") && !message.contains("nobody"), "{message}");
    assert_eq!(until_delta(&world, 2).await.delta, 2);
    for path in paths {
        world.files.insert(Path::new(path), RENEWED);
    }
    world.until("all are good", || fault(&world).is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_just_being_replaced_is_no_fault() {
    let world = world_with(&[PATH]).await;
    world.files.insert(Path::new(PATH), &LEAF[..100]);
    let _daemon = world.running().await;
    world.files.insert(Path::new(PATH), LEAF);
    world.pass(60).await;
    assert_eq!(fault(&world), None);
}

#[tokio::test(start_paused = true)]
async fn a_fault_of_a_file_that_is_used_no_more_is_taken_back() {
    let mut world = world_with(&[PATH]).await;
    let daemon = world.running().await;
    world.until_fault(FAULT).await;
    daemon.stop().await;
    world.settings.certificates.clear();
    let _daemon = world.running().await;
    world.until("nobody looks at it", || fault(&world).is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn an_acknowledged_fault_is_shown_again_when_another_file_becomes_worse() {
    let world = world_with(&[PATH, "/absent.pem"]).await;
    world.files.insert(Path::new(PATH), LEAF);
    let _daemon = world.running().await;
    world.until_fault(FAULT).await;
    world.pass(600).await;
    let mut changes = Changes::new();
    changes.push(Change::AckFault { id: FAULT.to_owned(), at: "2026-11-20 14:00:00".to_owned() });
    world.change(changes).await;
    world.pass(600).await;
    assert!(until_delta(&world, 2).await.acknowledged, "nothing is worse");
    world.clock.step_wall(6 * DAY);
    let is_shown = || fault(&world).is_some_and(|fault| !fault.acknowledged);
    world.until("the other one ends in 28 days", is_shown).await;
    assert_eq!(until_delta(&world, 2).await.delta, 2, "it takes what it took");
}

#[tokio::test(start_paused = true)]
async fn a_file_that_hangs_is_named_and_hides_no_other() {
    let world = world_with(&["/hangs.pem", PATH]).await;
    world.files.insert(Path::new(PATH), LEAF);
    world.files.set_hanging(|path| path == Path::new("/hangs.pem"));
    world.clock.step_wall(36 * DAY);
    let _daemon = world.running().await;
    let message = world.until_fault(FAULT).await;
    for words in [
        "`/etc/pvc/tls/hv1.pem` (client of ZooKeeper) has ended",
        "`/hangs.pem` (client of ZooKeeper) could not be judged: it could not be read within 10 s",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_that_leads_nowhere_is_a_fault_at_a_known_place_too() {
    let mut world = world().await;
    world.settings.certificates = vec![watched("/etc/pki/CA/cacert.pem", false)];
    world.files.insert_link(Path::new("/etc/pki/CA/cacert.pem"), Path::new("/gone.pem"));
    let _daemon = world.running().await;
    let message = world.until_fault(FAULT).await;
    assert!(message.contains("it is a link that leads nowhere"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_file_whose_place_another_directory_takes_is_left_out_of_account() {
    let mut world = world().await;
    let unless = Some("/etc/pki/libvirt-migrate".into());
    let path = "/etc/pki/qemu/server-cert.pem";
    world.settings.certificates = vec![WatchedCertificates { unless, ..watched(path, false) }];
    world.files.insert(Path::new(path), LEAF);
    world.clock.step_wall(36 * DAY);
    let _daemon = world.running().await;
    world.until_fault(FAULT).await;
    world.files.insert(Path::new("/etc/pki/libvirt-migrate/server-cert.pem"), RENEWED);
    world.until("moves use the other one", || fault(&world).is_none()).await;
}
