//! The server on real sockets: what must not depend on how clients behave.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pvc_api::{
    ApiSettings, Limits, MetadataPorts, ServeError, TlsFiles, serve, serve_metadata_on, serve_on,
};
use pvc_contracts::tcp_port::free_port;
use pvc_store::synthetic::Shape;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::common::{self, Api, KEY, settings, with_vms};

struct Server {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
    api: Api,
}

async fn start(settings: ApiSettings) -> Server {
    let api = common::start(&Shape::with_vms(3).dump(), settings).await;
    // Nobody else listens there once it has stopped.
    let listener = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(serve_on(vec![listener], api.state.clone(), shutdown.clone()));
    Server { address, shutdown, task, api }
}

fn quick() -> ApiSettings {
    let limits = Limits {
        head_time: Duration::from_millis(300),
        body_time: Duration::from_millis(500),
        drain_time: Duration::from_secs(2),
        connections: 4,
        ..settings().limits
    };
    ApiSettings { limits, ..settings() }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends `text` and reads until the other side closes, or nothing more comes.
    async fn say(&self, text: &str) -> String {
        say(self.address, text).await
    }

    async fn get(&self, path: &str) -> String {
        get(self.address, path).await
    }
}

async fn say(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    read_all(&mut stream).await
}

async fn get(address: SocketAddr, path: &str) -> String {
    let head =
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\nConnection: close\r\n\r\n");
    say(address, &head).await
}

async fn read_all(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes)).await;
    read.expect("the connection ends within 20 s").ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads until `text` came.
async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    while !seen.contains(text) {
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut buffer)).await;
        let length = read.expect("an answer within 20 s").unwrap();
        assert!(length > 0, "the connection ended after: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    seen
}

#[tokio::test]
async fn it_serves_and_stops() {
    let server = start(settings()).await;
    let reply = server.get("/api/v1/vm/vm00001").await;
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.contains("\"vm00001\""), "{reply}");
    server.shutdown.cancel();
    server.task.await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_port_in_use_is_reported_with_its_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let api = with_vms(0).await;
    let taken = ApiSettings { listen: address, ..settings() };
    let error = serve(&taken, api.state, CancellationToken::new()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the API cannot listen on {address}: the address is in use")
    );
    assert!(error.hint().unwrap().contains(&address.port().to_string()));
}

#[tokio::test]
async fn two_gigabytes_are_refused_at_once_and_the_client_hears_why() {
    let server = start(settings()).await;
    let mut stream = server.connect().await;
    let head = format!(
        "POST /api/v1/status HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\nContent-Length: \
         2147483648\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\n"
    );
    let begun = Instant::now();
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let sender = tokio::spawn(async move {
        let chunk = vec![b'a'; 1 << 16];
        let mut sent = 0_usize;
        while sent < 1 << 31 && writer.write_all(&chunk).await.is_ok() {
            sent += chunk.len();
        }
        sent
    });
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    while !seen.contains("larger than 1 MiB") {
        let length = reader.read(&mut buffer).await.expect("the reply comes before any reset");
        assert!(length > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    assert!(seen.starts_with("HTTP/1.1 413"), "{seen}");
    let sent = tokio::time::timeout(Duration::from_secs(20), sender).await.unwrap().unwrap();
    assert!(sent < 64 << 20, "{sent} bytes were taken");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn a_client_that_is_slow_with_its_head_or_body_is_let_go() {
    let server = start(quick()).await;
    let begun = Instant::now();
    let mut silent = server.connect().await;
    let mut torn = server.connect().await;
    torn.write_all(b"GET /api/v1/ HTTP/1.1\r\nHost: ").await.unwrap();
    assert_eq!(read_all(&mut silent).await, "");
    let reply = read_all(&mut torn).await;
    assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 408"), "{reply}");
    let slow = format!(
        "POST /api/v1/status HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\nContent-Length: 10\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\nsta"
    );
    assert!(server.say(&slow).await.starts_with("HTTP/1.1 408"));
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn beyond_the_limit_of_connections_others_are_not_disturbed() {
    let server = start(quick()).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut stream = server.connect().await;
        let head =
            format!("GET /api/v1/vm/none HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {KEY}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        read_until(&mut stream, "there is no VM").await;
        held.push(stream);
    }
    assert_eq!(read_all(&mut server.connect().await).await, "", "the fifth is closed");
    held[0].write_all(b"GET /api/v1/ HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    read_until(&mut held[0], "PVC API").await;
    held.pop();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !server.get("/api/v1/").await.contains("PVC API") {
        assert!(Instant::now() < deadline, "a place that was left is not given again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn clients_without_a_key_leave_places_to_others_and_are_let_go() {
    let limits = Limits {
        connections: 100,
        connections_each: 3,
        unauthenticated_time: Duration::from_secs(1),
        ..settings().limits
    };
    let server = start(ApiSettings { limits, ..settings() }).await;
    // Each loopback address is a client of its own.
    let from = |address: &str| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(address.parse().unwrap(), 0)).unwrap();
        socket.connect(server.address)
    };
    let login = "POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\
                 Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken=";
    let mut slow = Vec::new();
    for _ in 0..3 {
        let mut stream = server.connect().await;
        stream.write_all(login.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    // The fourth of one address is served, and the oldest that never showed a key is closed.
    let ask =
        format!("GET /api/v1/vm/none HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {KEY}\r\n\r\n");
    let mut known = server.connect().await;
    known.write_all(ask.as_bytes()).await.unwrap();
    read_until(&mut known, "there is no VM").await;
    assert_eq!(read_all(&mut slow.remove(0)).await, "");
    // Those that stand idle are no match for one that is known, however many come.
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(server.connect().await);
    }
    known.write_all(ask.as_bytes()).await.unwrap();
    read_until(&mut known, "there is no VM").await;
    let mut again = server.connect().await;
    again.write_all(ask.as_bytes()).await.unwrap();
    read_until(&mut again, "there is no VM").await;
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut stream = from("127.0.0.3").await.unwrap();
        stream.write_all(login.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let mut other = from("127.0.0.2").await.unwrap();
    let head = "GET /api/v1/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    other.write_all(head.as_bytes()).await.unwrap();
    assert!(read_all(&mut other).await.contains("PVC API"));
    for mut stream in slow {
        assert!(read_until(&mut stream, "HTTP/1.1 408").await.contains("408"));
    }
}

#[tokio::test]
async fn stopping_ends_streams_at_once_and_lets_requests_finish() {
    let server = start(settings()).await;
    let mut stream = server.connect().await;
    let ask = format!("GET /api/v1/events HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.unwrap();
    read_until(&mut stream, "events of the cluster").await;
    let mut upload = server.connect().await;
    let head = format!(
        "POST /api/v1/status HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\nContent-Length: 10\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nExpect: 100-continue\r\n\r\n"
    );
    upload.write_all(head.as_bytes()).await.unwrap();
    read_until(&mut upload, "100 Continue").await;
    let begun = Instant::now();
    server.shutdown.cancel();
    read_all(&mut stream).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "the stream ends by itself");
    upload.write_all(b"state=true").await.unwrap();
    let reply = read_all(&mut upload).await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    assert!(server.api.store.view().config.maintenance);
    server.task.await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(8));
}

#[tokio::test]
async fn a_request_that_never_ends_does_not_keep_the_daemon_from_stopping() {
    let limits = Limits { drain_time: Duration::from_millis(300), ..settings().limits };
    let server = start(ApiSettings { limits, ..settings() }).await;
    let mut upload = server.connect().await;
    let head = format!(
        "POST /api/v1/status HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\nContent-Length: 10\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nExpect: 100-continue\r\n\r\n"
    );
    upload.write_all(head.as_bytes()).await.unwrap();
    read_until(&mut upload, "100 Continue").await;
    server.shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(10), server.task)
        .await
        .expect("it stops")
        .unwrap()
        .unwrap();
}

/// Makes a certificate for `localhost` with the `openssl` program.
fn make_certificate(dir: &Path) -> TlsFiles {
    let files = TlsFiles { certificate: dir.join("cert.pem"), key: dir.join("key.pem") };
    let status = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ])
        .arg("-keyout")
        .arg(&files.key)
        .arg("-out")
        .arg(&files.certificate)
        .output()
        .expect("the program `openssl` is installed");
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    files
}

/// Makes one exchange over TLS, trusting the certificate in `files`; with the protocol that was
/// agreed on.
fn ask_over_tls(
    address: SocketAddr,
    files: &TlsFiles,
) -> std::io::Result<(String, Option<Vec<u8>>)> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName};
    use std::io::{Read, Write};

    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.certificate).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream =
        rustls::StreamOwned::new(connection, std::net::TcpStream::connect(address).unwrap());
    stream.write_all(b"GET /api/v1/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    Ok((String::from_utf8(reply).unwrap(), stream.conn.alpn_protocol().map(<[u8]>::to_vec)))
}

#[tokio::test]
async fn under_tls_only_http_1_1_is_spoken() {
    let dir = tempfile::tempdir().unwrap();
    let files = make_certificate(dir.path());
    let server = start(ApiSettings { tls: Some(files.clone()), ..settings() }).await;
    let address = server.address;
    let (reply, protocol) =
        tokio::task::spawn_blocking(move || ask_over_tls(address, &files)).await.unwrap().unwrap();
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("PVC API"), "{reply}");
    assert_eq!(protocol.as_deref(), Some(&b"http/1.1"[..]));
    assert!(!server.get("/api/v1/").await.contains("PVC API"), "plain HTTP is not answered");
    server.shutdown.cancel();
    server.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_is_reported_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let files = make_certificate(dir.path());
    let other = tempfile::tempdir().unwrap();
    let foreign = make_certificate(other.path());
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let cases = [
        TlsFiles { certificate: dir.path().join("missing.pem"), ..files.clone() },
        TlsFiles { certificate: empty, ..files.clone() },
        TlsFiles { key: files.certificate.clone(), ..files.clone() },
        TlsFiles { key: foreign.key, ..files },
    ];
    for tls in cases {
        let api =
            common::start(&Shape::with_vms(0).dump(), ApiSettings { tls: Some(tls), ..settings() })
                .await;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let error =
            serve_on(vec![listener], api.state, CancellationToken::new()).await.unwrap_err();
        let cause =
            std::error::Error::source(&error).expect("the file is named in the cause").to_string();
        assert!(cause.contains(".pem"), "{cause}");
    }
}

#[tokio::test]
async fn a_new_certificate_is_taken_on_sighup_and_a_broken_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let files = make_certificate(dir.path());
    let server = start(ApiSettings { tls: Some(files.clone()), ..settings() }).await;
    let address = server.address;
    let works = |files: TlsFiles| async move {
        tokio::task::spawn_blocking(move || ask_over_tls(address, &files)).await.unwrap().is_ok()
    };
    let hang_up =
        || Command::new("kill").args(["-HUP", &std::process::id().to_string()]).status().unwrap();
    assert!(works(files.clone()).await);

    // The files of the running server now hold another certificate.
    make_certificate(dir.path());
    assert!(!works(files.clone()).await, "it is not used before it is asked for");
    hang_up();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !works(files.clone()).await {
        assert!(Instant::now() < deadline, "the new certificate is not used");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    std::fs::write(&files.key, "broken").unwrap();
    hang_up();
    assert!(works(files).await);
}

#[tokio::test]
async fn a_floating_address_is_listened_on_before_it_is_here_and_the_loopback_meanwhile() {
    let elsewhere: SocketAddr = "192.0.2.7:0".parse().unwrap(); // for documentation; nobody has it
    let fixed = ApiSettings { listen: elsewhere, ..settings() };
    assert!(matches!(pvc_api::listen(&fixed), Err(ServeError::Listen { .. })));
    let settings = ApiSettings { floating: true, ..fixed };
    // Another test may have the port on the loopback that nobody has there.
    let on_both = |listeners: &Vec<TcpListener>| listeners.len() > 1;
    let listeners =
        (0..20).map(|_| pvc_api::listen(&settings).unwrap()).find(on_both).expect("a free port");
    let addresses: Vec<SocketAddr> =
        listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    assert_eq!(addresses[0].ip(), elsewhere.ip());
    let port = addresses[0].port();
    assert!(addresses.contains(&SocketAddr::from(([127, 0, 0, 1], port))), "{addresses:?}");
    let api = common::start(&Shape::with_vms(0).dump(), settings).await;
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(serve_on(listeners, api.state.clone(), shutdown.clone()));
    for &address in &addresses[1..] {
        let reply = get(address, "/api/v1/openapi.json").await;
        assert!(reply.starts_with("HTTP/1.1 200"), "{address}: {reply}");
    }
    shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(20), task)
        .await
        .expect("all of them end")
        .unwrap()
        .unwrap();
}

#[test]
fn the_loopback_is_listened_on_once_and_not_at_any_price() {
    let at = |address: &str| ApiSettings { listen: address.parse().unwrap(), ..settings() };
    for address in ["127.0.0.1:0", "127.0.0.2:0", "0.0.0.0:0", "[::]:0", "[::1]:0"] {
        assert_eq!(pvc_api::listen(&at(address)).unwrap().len(), 1, "{address}");
    }
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = SocketAddr::new("192.0.2.7".parse().unwrap(), other.local_addr().unwrap().port());
    let settings = ApiSettings { listen: address, floating: true, ..settings() };
    let addresses: Vec<_> = pvc_api::listen(&settings)
        .unwrap()
        .iter()
        .map(|listener| listener.local_addr().unwrap())
        .collect();
    assert_eq!(
        addresses[0], address,
        "somebody else's port on the loopback keeps the API from nothing"
    );
    assert!(!addresses[1..].iter().any(SocketAddr::is_ipv4), "{addresses:?}");
}

/// The metadata of a guest that asks from the loopback: a reservation says that it is there.
#[tokio::test]
async fn metadata_are_served_to_a_guest_while_this_node_has_the_services() {
    let api = with_vms(3).await;
    let (name, vni, mac, uuid, xml) = {
        let view = api.store.view();
        let vm = view.vms.values().next().unwrap().clone();
        let nic = vm.domain.as_ref().unwrap().nics[0].clone();
        (vm.name.clone(), nic.vni(), nic.mac, vm.uuid, vm.xml.to_string())
    };
    let network = format!("/networks/{vni}");
    api.write(&format!("{network}/nettype"), "managed").await;
    api.write(&format!("{network}/ip4_network"), "127.0.0.0/24").await;
    let other = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let address = other.local_addr().unwrap();
    let (trouble, mut reported) = tokio::sync::watch::channel(None);
    let ports = MetadataPorts {
        store: api.store.clone(),
        clock: Arc::new(pvc_testkit::TokioClock::new()),
        random: Arc::new(pvc_testkit::SeededRandom::new(1)),
        is_token_required: false,
        provisioner: Some(pvc_provisioner::Provisioner::new(Arc::new(api.database.clone()))),
        trouble: Arc::new(trouble),
    };
    let (term, seen) = tokio::sync::watch::channel(0);
    let end = CancellationToken::new();
    let task = tokio::spawn(serve_metadata_on(address, ports, seen, end.clone()));
    tokio::task::yield_now().await;
    term.send(3).unwrap();
    let in_use = reported.wait_for(Option::is_some).await.unwrap().clone();
    assert!(in_use.unwrap().contains("in use"));
    term.send(0).unwrap();
    drop(other);
    assert!(TcpStream::connect(address).await.is_err(), "this node has no services");
    term.send(3).unwrap();
    let served = async || {
        while TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), served()).await.unwrap();
    assert_eq!(*reported.borrow(), None);
    let path = "/latest/meta-data/name";
    let unknown = get(address, path).await;
    assert!(unknown.starts_with("HTTP/1.1 404"), "{unknown}");
    let reservation = format!("{network}/dhcp4_reservations/{mac}");
    api.write(&format!("{reservation}/ipaddr"), "127.0.0.1").await;
    let guest = get(address, path).await;
    assert!(guest.starts_with("HTTP/1.1 200") && guest.ends_with(&name), "{guest}");

    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA me@here";
    let keys = format!(
        "<metadata><p:ssh-keys xmlns:p='urn:pvc:vm'><p:ssh-key>{key}</p:ssh-key></p:ssh-keys>\
         </metadata><devices>"
    );
    api.write(&format!("/domains/{uuid}/xml"), xml.replace("<devices>", &keys)).await;
    let public = get(address, "/latest/meta-data/public-keys/0/openssh-key").await;
    assert!(
        public.starts_with("HTTP/1.1 200") && public.ends_with(&format!("{key}\n")),
        "{public}"
    );

    let userdata = async || get(address, "/latest/user-data").await;
    let ends_with = |reply: &str, text: &str| {
        reply.starts_with("HTTP/1.1 200") && reply.ends_with(&format!("\r\n\r\n{text}"))
    };
    api.post(&format!("/vm/{name}/meta?profile=web")).await.ok();
    assert!(ends_with(&userdata().await, ""), "there is no such profile");
    api.with_templates("small").await;
    let parts = "profile_type=provisioner&system_template=small&network_template=small\
                 &storage_template=small&userdata=small&script=small";
    api.post(&format!("/provisioner/profile/web?{parts}")).await.ok();
    assert!(ends_with(&userdata().await, "#cloud-config"), "{}", userdata().await);
    api.database.set_dead(true);
    let away = userdata().await;
    assert!(away.starts_with("HTTP/1.1 503"), "who is told of none does not ask again: {away}");
    assert!(get(address, path).await.starts_with("HTTP/1.1 200"), "the rest is told");
    api.database.set_dead(false);

    let put = "PUT /latest/api/token HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
    let ttl = "X-aws-ec2-metadata-token-ttl-seconds: 60\r\n";
    let given = say(address, &format!("{put}{ttl}\r\n")).await;
    assert!(given.contains("x-aws-ec2-metadata-token-ttl-seconds: 60"), "{given}");
    let token = given.rsplit("\r\n").next().unwrap().to_owned();
    let showing = |token: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-aws-ec2-metadata-token: {token}\r\n\r\n")
    };
    assert!(say(address, &showing(&token)).await.starts_with("HTTP/1.1 200"));
    assert!(say(address, &showing("1")).await.starts_with("HTTP/1.1 401"));
    let passed_on = say(address, &format!("{put}{ttl}X-Forwarded-For: 1.2.3.4\r\n\r\n")).await;
    assert!(passed_on.starts_with("HTTP/1.1 403"), "{passed_on}");
    let large = format!("GET {path} HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let large = say(address, &large).await;
    assert!(large.starts_with("HTTP/1.1 431"), "{large}");
    let half = say(address, "GET / HTTP/1.1\r\nHost: ").await;
    assert!(!half.starts_with("HTTP/1.1 2"), "it is closed in time: {half}");

    term.send(0).unwrap();
    let over = async || {
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), over()).await.unwrap();
    end.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn where_a_token_is_required_a_guest_finds_nothing_without_one() {
    let api = with_vms(3).await;
    let (name, vni, mac) = {
        let view = api.store.view();
        let vm = view.vms.values().next().unwrap().clone();
        let nic = vm.domain.as_ref().unwrap().nics[0].clone();
        (vm.name.clone(), nic.vni(), nic.mac)
    };
    let network = format!("/networks/{vni}");
    api.write(&format!("{network}/nettype"), "managed").await;
    api.write(&format!("{network}/ip4_network"), "127.0.0.0/24").await;
    api.write(&format!("{network}/dhcp4_reservations/{mac}/ipaddr"), "127.0.0.1").await;
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (trouble, _reported) = tokio::sync::watch::channel(None);
    let ports = MetadataPorts {
        store: api.store.clone(),
        clock: Arc::new(pvc_testkit::TokioClock::new()),
        random: Arc::new(pvc_testkit::SeededRandom::new(1)),
        is_token_required: true,
        provisioner: None,
        trouble: Arc::new(trouble),
    };
    let (_term, seen) = tokio::sync::watch::channel(1);
    let end = CancellationToken::new();
    let task = tokio::spawn(serve_metadata_on(address, ports, seen, end.clone()));
    let served = async || {
        while TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), served()).await.unwrap();
    for path in ["/latest/meta-data/name", "/latest/meta-data/", "/latest/user-data"] {
        let reply = get(address, path).await;
        assert!(reply.starts_with("HTTP/1.1 401") && !reply.contains(&name), "{path}: {reply}");
    }
    let put = "PUT /latest/api/token HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
               X-aws-ec2-metadata-token-ttl-seconds: 60\r\n\r\n";
    let given = say(address, put).await;
    assert!(given.starts_with("HTTP/1.1 200"), "{given}");
    let token = given.rsplit("\r\n").next().unwrap();
    let shows = format!(
        "GET /latest/meta-data/name HTTP/1.1\r\nHost: x\r\nX-aws-ec2-metadata-token: \
         {token}\r\n\r\n"
    );
    let answer = say(address, &shows).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(&name), "{answer}");
    end.cancel();
    task.await.unwrap();
}
