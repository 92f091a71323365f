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
    WatchedCertificates { path: path.into(), used_by, is_named }
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
    let paths =
        ["/absent.pem", "/garbage.pem", "/broken.pem", "/huge.pem", "/key.pem", "/fifo.pem"];
    let mut world = world_with(&paths).await;
    world.settings.certificates.push(watched("/of/nobody.pem", false));
    let key = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
    world.files.insert(Path::new("/garbage.pem"), &[0xff; 4096]);
    world.files.insert(Path::new("/broken.pem"), &LEAF[..LEAF.len() / 2]);
    world.files.insert_sparse(Path::new("/huge.pem"), 1 << 30);
    world.files.insert(Path::new("/key.pem"), key);
    world.files.insert_fifo(Path::new("/fifo.pem"));
    let _daemon = world.running().await;
    let message = world.until_fault(FAULT).await;
    for words in [
        "`/absent.pem` (client of ZooKeeper) cannot be used: it does not exist",
        "`/garbage.pem` (client of ZooKeeper) holds no certificate",
        "`/broken.pem` (client of ZooKeeper) cannot be used: it is broken",
        "`/huge.pem` (client of ZooKeeper) cannot be used: it has more than 65536 bytes",
        "`/key.pem` (client of ZooKeeper) holds no certificate",
        "`/fifo.pem` (client of ZooKeeper) cannot be used: ",
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
