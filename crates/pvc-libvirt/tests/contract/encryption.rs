//! Guests that are encrypted on their way, and orders over TLS.

use super::*;

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
