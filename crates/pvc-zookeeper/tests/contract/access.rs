//! Access to what a real ZooKeeper server keeps, and TLS to it.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_contracts::access_control::access_control_contract;
use pvc_contracts::zookeeper_server::ZookeeperServer;
use pvc_ports::{Access, AccessList, CreateMode, Op, SessionState, Tree, TreeError, TreeEvent};
use pvc_zookeeper::{Tls, ZookeeperOptions, ZookeeperTree};
use tempfile::TempDir;

async fn connect(address: &str, password: Option<&str>) -> ZookeeperTree {
    let options =
        ZookeeperOptions { password: password.map(Arc::from), ..ZookeeperOptions::default() };
    ZookeeperTree::connect(address, options).await.unwrap()
}

/// Creates it, again where no server has answered: it may have to start beside much else.
async fn create(tree: &ZookeeperTree, path: &str) {
    for _ in 0..10 {
        match tree.create(path, Bytes::from_static(b"x"), CreateMode::Persistent).await {
            Err(TreeError::Unreachable { .. }) => {}
            made => return drop(made.unwrap()),
        }
    }
    panic!("no server answers");
}

fn is_kept_from(found: Result<impl Sized, TreeError>) -> bool {
    matches!(found, Err(TreeError::NotAllowed { .. }))
}

/// Returns who may use `path`, as a client sees it that knows the password.
async fn access(tree: &ZookeeperTree, path: &str) -> Option<AccessList> {
    tree.access_control().unwrap().access(path).await.unwrap()
}

async fn set_access(tree: &ZookeeperTree, path: &str, access: Access) {
    tree.access_control().unwrap().set_access(path, access).await.unwrap();
}

/// Returns when what `tree` creates is for these.
async fn until_new_ones_are_for(tree: &ZookeeperTree, wanted: Access) {
    for number in 0..200 {
        let path = format!("/try-{wanted:?}-{number}");
        create(tree, &path).await;
        if access(tree, &path).await == Some(wanted.into()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("what is created is never for {wanted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_closed_is_kept_from_the_unauthenticated_and_members_notice_nothing() {
    let dir = TempDir::new().unwrap();
    let mut server = ZookeeperServer::start(dir.path()).unwrap();
    let address = server.address();
    let (one, two) =
        (connect(&address, Some("secret")).await, connect(&address, Some("secret")).await);
    let (unauthenticated, other) =
        (connect(&address, None).await, connect(&address, Some("wrong")).await);
    assert!(unauthenticated.access_control().is_none());
    create(&one, "/a").await;
    access_control_contract(&one).await;
    assert!(unauthenticated.get("/a").await.unwrap().is_some());

    for path in ["/", "/a"] {
        set_access(&one, path, Access::Members).await;
        assert_eq!(access(&one, path).await, Some(AccessList::Members), "{path}");
    }
    until_new_ones_are_for(&two, Access::Members).await;
    let op = |path: &str| Op::Create {
        path: path.to_owned(),
        data: Bytes::new(),
        mode: CreateMode::Persistent,
    };
    two.multi(vec![op("/a/b"), op("/a/c")]).await.unwrap();
    assert_eq!(access(&one, "/a/c").await, Some(AccessList::Members));
    for tree in [&unauthenticated, &other] {
        tree.until_refused().await;
        assert!(is_kept_from(tree.get("/a").await));
        assert!(is_kept_from(tree.get_many(&["/a".to_owned()]).await));
        assert!(is_kept_from(tree.children("/a").await));
        assert!(is_kept_from(tree.create("/d", Bytes::new(), CreateMode::Persistent).await));
    }
    assert!(is_kept_from(other.access_control().unwrap().access("/a").await));

    // A connection that is made again is a member's, too, before its watches are set.
    let mut watch = two.watch("/a").await.unwrap();
    let mut session = two.session();
    server.restart().unwrap();
    let connected = |state: &SessionState| matches!(state, SessionState::Connected { .. });
    while watch.recv().await != Some(TreeEvent::Resync) {}
    session.wait_for(connected).await.unwrap();
    create(&one, "/a/b/d").await;
    assert_eq!(watch.recv().await, Some(TreeEvent::Changed { path: "/a/b/d".to_owned() }));
    assert_eq!(access(&two, "/a/b/d").await, Some(AccessList::Members));

    set_access(&two, "/", Access::Anybody).await;
    until_new_ones_are_for(&one, Access::Anybody).await;
    // Half a tree is none: nobody decides on what he can read of it.
    assert!(is_kept_from(other.get_many(&["/".to_owned(), "/a".to_owned()]).await));
    create(&unauthenticated, "/e").await;
    assert!(is_kept_from(unauthenticated.get("/a").await), "what was closed is not open by that");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_spoken_to_over_tls_when_its_certificate_is_good_and_it_takes_ours() {
    let dir = TempDir::new().unwrap();
    for (name, host) in [("good", "localhost"), ("foreign", "localhost"), ("misnamed", "hv9")] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        make_certificates(&dir.path().join(name), host);
    }
    let file = |of: &str, name: &str| dir.path().join(of).join(name);
    let tls = |authority: &str, own: Option<&str>| {
        let own = own.map(|own| (file(own, "client.crt"), file(own, "client.key")));
        let own = own.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        ZookeeperOptions {
            tls: Some(Tls::load(&file(authority, "ca.pem"), own).unwrap()),
            connect_timeout: Duration::from_secs(2),
            ..ZookeeperOptions::default()
        }
    };
    let server =
        ZookeeperServer::start_with_tls(&dir.path().join("server"), &file("good", "")).unwrap();
    let address = server.secure_address().unwrap();
    let tree = ZookeeperTree::connect(&address, tls("good", Some("good"))).await.unwrap();
    let large = Bytes::from(vec![7; 3 << 20]);
    tree.create("/large", large.clone(), CreateMode::Persistent).await.unwrap();
    assert_eq!(tree.get("/large").await.unwrap().unwrap().data, large);
    tree.close().await;

    // The server knows us by our certificate as well: what is closed is not for everybody who has
    // it.
    let with_password = |password: &str| ZookeeperOptions {
        password: Some(password.into()),
        ..tls("good", Some("good"))
    };
    let member = ZookeeperTree::connect(&address, with_password("secret")).await.unwrap();
    for path in ["/", "/large"] {
        set_access(&member, path, Access::Members).await;
        assert_eq!(access(&member, path).await, Some(AccessList::Members), "{path}");
    }
    until_new_ones_are_for(&member, Access::Members).await;
    for options in [tls("good", Some("good")), with_password("wrong")] {
        let other = ZookeeperTree::connect(&address, options).await.unwrap();
        other.until_refused().await;
        assert!(is_kept_from(other.get("/large").await));
    }
    member.close().await;
    for (options, why) in [
        (tls("foreign", Some("good")), "somebody else has signed the server's certificate"),
        (tls("good", None), "the server asks for a certificate of ours"),
        (tls("good", Some("foreign")), "the server does not know who has signed ours"),
        (ZookeeperOptions { tls: None, ..tls("good", None) }, "that port speaks TLS alone"),
    ] {
        assert!(ZookeeperTree::connect(&address, options).await.is_err(), "{why}");
    }

    // Renewed files count from the next connection on; while they are of no use the last good ones
    // do.
    let own = dir.path().join("renewed");
    let copy = |from: &str| {
        for name in ["ca.pem", "client.crt", "client.key"] {
            std::fs::copy(file(from, name), own.join(name)).unwrap();
        }
    };
    std::fs::create_dir(&own).unwrap();
    copy("foreign");
    let options = tls("renewed", Some("renewed"));
    assert!(ZookeeperTree::connect(&address, options.clone()).await.is_err());
    copy("good");
    ZookeeperTree::connect(&address, options.clone()).await.unwrap();
    std::fs::write(own.join("client.key"), "half written").unwrap();
    ZookeeperTree::connect(&address, options).await.unwrap();
    drop(server);

    let misnamed =
        ZookeeperServer::start_with_tls(&dir.path().join("misnamed-server"), &file("misnamed", ""));
    let address = misnamed.as_ref().unwrap().secure_address().unwrap();
    let refused =
        ZookeeperTree::connect(&address, tls("misnamed", Some("misnamed"))).await.err().unwrap();
    assert!(refused.to_string().contains("localhost"), "{refused}");
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let dir = TempDir::new().unwrap();
    let text = dir.path().join("text.pem");
    std::fs::write(&text, "no certificate").unwrap();
    let said = |authority: &Path| Tls::load(authority, None).err().unwrap().to_string();
    assert!(said(&text).contains("text.pem` holds no certificate"), "{}", said(&text));
    let absent = dir.path().join("absent.pem");
    assert!(said(&absent).starts_with("cannot read `"), "{}", said(&absent));
}

/// Makes an authority, and what a server called `host` and a client show of themselves.
fn make_certificates(directory: &Path, host: &str) {
    const SCRIPT: &str = r#"
        set -e
        ec() { openssl req "$@" -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes; }
        ec -x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.pem
        for name in server client; do
            ec -subj "/CN=$1" -keyout $name.key -out $name.csr
            openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
                -out $name.crt -extfile <(printf 'subjectAltName=DNS:%s\n' "$1")
        done
        cat server.key server.crt >server.pem
    "#;
    let made = Command::new("bash")
        .args(["-c", SCRIPT, "make", host])
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(made.status.success(), "this needs openssl: {}", String::from_utf8_lossy(&made.stderr));
}
