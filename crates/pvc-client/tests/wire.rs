//! Requests that the client puts on the wire, and what it makes of the answers.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed"
)]

mod stub;

use pvc_api_types::operations::cluster::{GetStatus, Maintenance, MaintenanceRequest, PostStatus};
use pvc_api_types::operations::vm::{
    DeleteVmVmDevice, DeviceRequest, GetVm, GetVmVm, MetaChange, PostVmVmMeta, PostVmVmState,
    StateChange, StateWord, VmFilter,
};
use pvc_api_types::param::Flag;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pvc_api_types::Vm;
use pvc_client::{Client, Error, Kind, Options, Payload, Submitted, Waiting};
use stub::{Stub, ok, status};

fn client(base: String) -> Client {
    Client::new(options(base))
}

fn options(base: String) -> Options {
    Options {
        base,
        api_key: Some("secret".to_owned()),
        user_agent: "pvc-client-cli/0.0.0".to_owned(),
        verify: true,
        advice: None,
        timeout: None,
        dry_run: false,
        observer: None,
        stale: None,
        gate: None,
    }
}

#[test]
fn a_read_carries_key_agent_and_parameters() {
    let stub = Stub::start(|_, _| ok("[]"));
    let filter =
        VmFilter { limit: Some("a b".to_owned()), negate: Flag(true), ..VmFilter::default() };
    client(stub.base()).read(GetVm, [], &filter).unwrap();
    let request = &stub.received()[0];
    assert_eq!(request.line(), "GET /vm?limit=a%20b&negate=True");
    assert_eq!(request.header("X-Api-Key"), Some("secret"));
    assert_eq!(request.header("User-Agent"), Some("pvc-client-cli/0.0.0"));
}

#[test]
fn a_server_has_the_operations_that_its_document_describes() {
    let has = r#"{"paths": {"/api/v1/status": {"post": {}}}}"#;
    let other = r#"{"paths": {"/api/v1/status": {"get": {}}}}"#;
    for (reply, expected) in [
        (ok(has), true),
        (ok(other), false),
        (ok("[]"), false),
        (ok("<html>"), false),
        (status(404, r#"{"message": "no such path"}"#), false),
    ] {
        let reply = (reply.status, reply.body);
        let stub = Stub::start(move |_, _| status(reply.0, reply.1.clone()));
        assert_eq!(client(stub.base()).serves(PostStatus).unwrap(), expected);
        assert_eq!(stub.lines(), ["GET /openapi.json"]);
    }
}

#[test]
fn a_change_is_tried_dry_where_the_server_knows_that_of_just_this_operation() {
    let knows = r#"{"paths": {"/api/v1/status": {"post": {"parameters": [{"name": "dry_run"}]}}}}"#;
    for (document, tried) in [(knows, true), (r#"{"paths": {}}"#, false)] {
        let stub = Stub::start(move |request, _| match request.line().as_str() {
            "GET /openapi.json" => ok(document),
            _ => ok(r#"{"message": "nothing was changed"}"#),
        });
        let dry = Client::new(Options { dry_run: true, ..options(stub.base()) });
        let on = MaintenanceRequest { state: Maintenance::On };
        assert_eq!(dry.change(PostStatus, [], &on).is_ok(), tried);
        let change = "POST /status?state=true&dry_run=True";
        assert_eq!(stub.lines().iter().any(|line| line == change), tried, "{:?}", stub.lines());
        assert_eq!(stub.lines().len(), 1 + usize::from(tried));
        assert!(stub.received()[1..].iter().all(|request| request.is_tried));
    }
}

#[test]
fn a_dry_run_changes_nothing_where_an_old_server_has_the_address_by_then() {
    let knows = r#"{"paths": {"/api/v1/status": {"post": {"parameters": [{"name": "dry_run"}]}}}}"#;
    let stub = Stub::start(move |request, _| match request.line().as_str() {
        "GET /openapi.json" => ok(knows),
        _ if request.is_tried => {
            status(404, r#"{"message": "The URL was not found."}"#).of_an_old_server()
        }
        _ => ok(r#"{"message": "it was changed"}"#),
    });
    let dry = Client::new(Options { dry_run: true, ..options(stub.base()) });
    let on = MaintenanceRequest { state: Maintenance::On };
    assert_eq!(dry.change(PostStatus, [], &on).unwrap_err().kind(), Kind::NotYet);
    assert_eq!(stub.lines().len(), 2, "{:?}", stub.lines());
}

#[test]
fn what_was_not_given_is_not_sent() {
    let stub = Stub::start(|_, _| ok(r#"{"message": "done"}"#));
    let metadata = MetaChange { autostart: Some(false), ..MetaChange::default() };
    client(stub.base()).change(PostVmVmMeta, ["web1"], &metadata).unwrap();
    assert_eq!(stub.lines(), ["POST /vm/web1/meta?autostart=False"]);
}

#[test]
fn a_device_is_detached_by_a_delete_with_a_body() {
    let task = r#"{"task_id": "0a1b2c3d", "task_name": "vm.device_detach", "run_on": "hv1"}"#;
    let stub = Stub::start(move |_, _| status(202, task));
    let device = DeviceRequest { xml: "<disk a='ü'/>".to_owned() };
    let submitted = client(stub.base()).submit(DeleteVmVmDevice, ["web1"], &device).unwrap();
    let Submitted::Task(task) = submitted else { panic!("{submitted:?}") };
    let request = &stub.received()[0];
    assert_eq!(task.task_id, "0a1b2c3d");
    assert_eq!(request.line(), "DELETE /vm/web1/device");
    assert_eq!(request.header("Content-Type"), Some("application/x-www-form-urlencoded"));
    assert_eq!(request.body, "xml=%3Cdisk%20a%3D%27%C3%BC%27%2F%3E");
}

#[test]
fn a_name_with_a_slash_stays_one_segment() {
    let stub = Stub::start(|_, _| ok("[]"));
    assert!(client(stub.base()).read_only(GetVmVm, ["../node"], "VM").is_err());
    assert_eq!(stub.lines(), ["GET /vm/..%2Fnode"]);
}

#[test]
fn a_read_is_tried_again_after_a_passing_failure() {
    let stub = Stub::start(|_, before| if before < 2 { status(503, "{}") } else { ok("[]") });
    assert!(client(stub.base()).read(GetVm, [], &VmFilter::default()).is_ok());
    assert_eq!(stub.lines().len(), 3);
}

#[test]
fn a_read_that_keeps_failing_is_given_up_after_three_tries() {
    let stub = Stub::start(|_, _| status(500, r#"{"message": "Internal Server Error"}"#));
    let error = client(stub.base()).read_soon(GetStatus).unwrap_err();
    assert_eq!(error.kind(), Kind::Server);
    assert_eq!(error.to_string(), "the server failed with status 500: Internal Server Error");
    assert_eq!(stub.lines().len(), 3);
}

#[test]
fn a_failure_that_was_answered_is_not_lost_to_a_second_try_that_is_not_answered_in_time() {
    let away = r#"{"message": "the database cannot be reached", "hint": "does it run?"}"#;
    let stub = Stub::start(move |_, before| {
        if before > 0 {
            std::thread::sleep(Duration::from_secs(5));
        }
        status(503, away)
    });
    let timeout = Some(Duration::from_secs(1));
    let hasty = Client::new(Options { timeout, ..options(stub.base()) });
    let error = hasty.read_soon(GetStatus).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the server failed with status 503: the database cannot be reached"
    );
    assert_eq!(error.hint().as_deref(), Some("does it run?"));
    assert_eq!(stub.lines().len(), 2);
}

#[test]
fn answers_that_are_as_the_server_last_saw_the_cluster_are_reported_once() {
    static REPORTED: Mutex<Vec<Option<Duration>>> = Mutex::new(Vec::new());
    fn report(age: Option<Duration>) {
        REPORTED.lock().unwrap().push(age);
    }
    let old = Some(Duration::from_secs(72));
    for (code, headers, expected) in [
        (200, "X-Pvc-Stale: true\r\nAge: 72\r\n", vec![old]),
        (404, "X-Pvc-Stale: true\r\nAge: 72\r\n", vec![old]),
        (200, "X-Pvc-Stale: true\r\n", vec![None]),
        // Of whatever is between.
        (200, "Age: 72\r\n", vec![]),
        (200, "", vec![]),
        // An error says what is wrong.
        (501, "X-Pvc-Stale: true\r\nAge: 72\r\n", vec![]),
    ] {
        let stub = Stub::start(move |_, _| status(code, "[]").with_headers(headers));
        let client = Client::new(Options { stale: Some(report), ..options(stub.base()) });
        for _ in 0..2 {
            let answer = client.read(GetVm, [], &VmFilter::default());
            assert_eq!(answer.is_ok(), code == 200);
        }
        let reported: Vec<_> = REPORTED.lock().unwrap().drain(..).collect();
        assert_eq!(reported, expected, "{code} {headers}");
    }
}

#[test]
fn a_change_is_never_repeated() {
    let stub = Stub::start(|_, _| status(503, "{}"));
    assert!(
        client(stub.base())
            .change(PostStatus, [], &MaintenanceRequest { state: Maintenance::On })
            .is_err()
    );
    assert_eq!(stub.lines().len(), 1);
}

#[test]
fn each_status_has_its_kind() {
    for (code, kind) in [
        (400, Kind::Refused),
        (401, Kind::Unauthorised),
        (404, Kind::NotFound),
        (501, Kind::NotYet),
        (409, Kind::Refused),
    ] {
        let stub = Stub::start(move |_, _| status(code, r#"{"message": "because"}"#));
        let error = client(stub.base()).read_soon(GetStatus).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, "because"));
    }
}

#[test]
fn both_shapes_of_a_parameter_error_become_a_sentence() {
    let stub = Stub::start(|_, _| status(400, r#"{"message": {"lines": "must be a number"}}"#));
    assert_eq!(
        client(stub.base()).read_soon(GetStatus).unwrap_err().to_string(),
        "lines: must be a number"
    );
    let stub = Stub::start(|_, _| {
        status(400, r#"{"message": "lines: must be a number", "hint": "try 10"}"#)
    });
    assert_eq!(
        client(stub.base()).read_soon(GetStatus).unwrap_err().hint().as_deref(),
        Some("try 10")
    );
}

#[test]
fn a_server_that_is_no_pvc_api_is_recognised() {
    let stub = Stub::start(|_, _| ok("<html>It works!</html>"));
    assert_eq!(
        client(stub.base()).read_soon(GetStatus).unwrap().read().unwrap_err().kind(),
        Kind::BadAnswer
    );
    let stub = Stub::start(|_, _| status(404, "<html>not here</html>"));
    assert_eq!(client(stub.base()).read_soon(GetStatus).unwrap_err().kind(), Kind::BadAnswer);
}

#[test]
fn a_web_page_is_named_as_what_it_is() {
    let page = "<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head></html>";
    let stub = Stub::start(move |_, _| ok(page));
    let error = client(stub.base()).read_soon(GetStatus).unwrap().read().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the server's answer is a web page (`502 Bad Gateway`), not JSON"
    );
    let stub = Stub::start(move |_, _| status(404, page));
    let error = client(stub.base()).read_soon(GetStatus).unwrap_err();
    let words = "the server's answer is a web page (`502 Bad Gateway`) with status 404, not JSON";
    assert_eq!((error.kind(), error.to_string().as_str()), (Kind::BadAnswer, words));
}

/// A listener that takes connections, and does with each what `serve` does.
fn listener(serve: impl Fn(std::net::TcpStream) + Send + 'static) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    address.to_string()
}

#[test]
fn an_answer_says_when_it_was_served_by_the_servers_own_clock() {
    let served_at = |date: &'static str| {
        let address = listener(move |mut stream| {
            use std::io::{Read, Write};
            let _ = stream.read(&mut [0; 4096]);
            let headers = "Content-Length: 2\r\nConnection: close";
            let _ = write!(stream, "HTTP/1.1 200 OK\r\n{date}{headers}\r\n\r\n[]");
        });
        let client = client(format!("http://{address}/api/v1"));
        client.read(GetVm, [], &VmFilter::default()).unwrap().served_at()
    };
    assert_eq!(served_at("Date: Fri, 27 Nov 2026 09:01:32 GMT\r\n"), Some(1_795_770_092));
    for none in ["", "Date: yesterday\r\n", "Date: Thu, 01 Jan 1960 00:00:00 GMT\r\n"] {
        assert_eq!(served_at(none), None, "{none}");
    }
}

#[test]
fn a_server_that_speaks_tls_where_http_was_expected_is_named_as_such() {
    let (provider, none) = (rustls::crypto::aws_lc_rs::default_provider(), NoCertificate);
    let config = rustls::ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(std::sync::Arc::new(none));
    let config = std::sync::Arc::new(config);
    let address = listener(move |mut stream| {
        let mut server = rustls::ServerConnection::new(config.clone()).unwrap();
        let _ = server.complete_io(&mut stream);
    });
    let error = client(format!("http://{address}/api/v1")).read_soon(GetStatus).unwrap_err();
    let words = format!(
        "the server at `http://{address}/api/v1` speaks TLS, and was spoken to in plain HTTP"
    );
    assert_eq!((error.kind(), error.to_string()), (Kind::Unreachable, words));
    assert!(error.hint().unwrap().contains("`--ssl`"));
}

#[derive(Debug)]
struct NoCertificate;

impl rustls::server::ResolvesServerCert for NoCertificate {
    fn resolve(
        &self,
        _: rustls::server::ClientHello<'_>,
    ) -> Option<std::sync::Arc<rustls::sign::CertifiedKey>> {
        None
    }
}

#[test]
fn a_server_that_speaks_http_where_tls_was_expected_is_named_as_such() {
    let address = listener(|mut stream| {
        let mut hello = [0; 64];
        let _ = std::io::Read::read(&mut stream, &mut hello);
        let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let error = client(format!("https://{address}/api/v1")).read_soon(GetStatus).unwrap_err();
    let words = format!(
        "the server at `https://{address}/api/v1` speaks plain HTTP, and was spoken to in TLS"
    );
    assert_eq!((error.kind(), error.to_string()), (Kind::Unreachable, words));
    assert!(error.hint().unwrap().contains("`--no-ssl`"));
}

#[test]
fn a_server_that_accepts_and_is_silent_is_given_up_in_time() {
    let kept = std::sync::Mutex::new(Vec::new());
    let address = listener(move |stream| kept.lock().unwrap().push(stream));
    let timeout = Some(Duration::from_millis(300));
    let base = format!("http://{address}/api/v1");
    let begun = std::time::Instant::now();
    let client = Client::new(Options { timeout, ..options(base.clone()) });
    let error = client.read_soon(GetStatus).unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable);
    assert_eq!(
        error.to_string(),
        format!("`{base}` accepts connections, but has not answered within 0.3 s")
    );
    assert!(client.read(GetVm, [], &VmFilter::default()).is_err());
    let error =
        client.change(PostStatus, [], &MaintenanceRequest { state: Maintenance::On }).unwrap_err();
    assert!(
        matches!(error, Error::Lost { changing: true, .. }),
        "it may have been done: {error:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn a_key_that_cannot_be_sent_is_not_called_unreachable() {
    let stub = Stub::start(|_, _| ok("{}"));
    let api_key = Some("secret\n".to_owned());
    let error =
        Client::new(Options { api_key, ..options(stub.base()) }).read_soon(GetStatus).unwrap_err();
    assert_eq!(error.kind(), Kind::Unauthorised);
    assert!(error.to_string().contains("cannot be sent") && stub.lines().is_empty(), "{error}");
    assert!(!error.to_string().contains("secret"));
}

#[test]
fn a_server_that_must_not_be_asked_gets_neither_key_nor_request() {
    let stub = Stub::start(|_, _| ok("{}"));
    let gate: pvc_client::Gate = Arc::new(|| Err(std::io::Error::other("another user's")));
    let client = Client::new(Options { gate: Some(gate), ..options(stub.base()) });
    let error = client.read_soon(GetStatus).unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable);
    assert!(client.change(PostStatus, [], &MaintenanceRequest { state: Maintenance::On }).is_err());
    assert!(stub.lines().is_empty(), "{:?}", stub.lines());
}

#[test]
fn a_server_that_points_elsewhere_does_not_have_the_key_taken_there() {
    let elsewhere = Stub::start(|_, _| ok("{}"));
    let location = format!("Location: {}/status\r\n", elsewhere.base());
    let stub = Stub::start(move |_, _| status(302, "").with_headers(&location));
    let hurried = Client::hurried(options(stub.base()), Duration::from_secs(20));
    for client in [client(stub.base()), hurried] {
        let error = client.read_soon(GetStatus).unwrap_err();
        assert_eq!(error.kind(), Kind::BadAnswer, "{error}");
    }
    assert_eq!(stub.lines().len(), 2);
    assert!(elsewhere.lines().is_empty(), "{:?}", elsewhere.received());
}

#[test]
fn a_closed_port_is_unreachable_and_says_so() {
    let free = format!("127.0.0.1:{}", pvc_contracts::tcp_port::free_port());
    let error = client(format!("http://{free}/api/v1")).read_soon(GetStatus).unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable);
    assert!(error.to_string().contains(&free), "{error}");
    assert!(error.hint().is_some());
}

#[test]
fn a_stated_limit_ends_the_waiting() {
    let stub = Stub::start(|_, _| {
        std::thread::sleep(Duration::from_secs(30));
        ok("{}")
    });
    let wait = Some(Waiting::AtMost(Duration::from_millis(50)));
    let request = StateChange { state: StateWord::Start, force: Flag(false), wait: Flag(true) };
    let error =
        client(stub.base()).change_waiting(PostVmVmState, ["web1"], &request, wait).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    assert_eq!(stub.lines(), ["POST /vm/web1/state?state=start&force=False&wait=True"]);
}

#[test]
fn an_answer_lost_on_the_way_is_not_called_unreachable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}/api/v1", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut first = [0; 16];
            let _ = std::io::Read::read(&mut &stream, &mut first);
        }
    });
    let error = client(base)
        .change(PostStatus, [], &MaintenanceRequest { state: Maintenance::On })
        .unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
}

#[test]
fn a_backup_is_decoded_twice() {
    let stub = Stub::start(|_, _| ok(r#""{\"/\": \"\", \"/schema/version\": \"15\"}""#));
    assert_eq!(client(stub.base()).backup(false).unwrap()["/schema/version"], "15");
}

#[test]
fn an_unknown_member_survives_to_the_raw_payload() {
    let stub = Stub::start(|_, _| ok(r#"[{"name": "web1", "new_in_2030": [1]}]"#));
    let vm: Payload<Vm> = client(stub.base()).read_only(GetVmVm, ["web1"], "VM").unwrap();
    assert_eq!(vm.read().unwrap().name, "web1");
    assert_eq!(vm.value().unwrap()["new_in_2030"][0], 1);
}
