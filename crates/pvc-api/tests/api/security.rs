//! Security: who gets in, what is logged, how much one client may take.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request};
use futures::StreamExt;
use pvc_api::{ApiSettings, Limits, Names, TlsFiles, Token};
use pvc_model::role::Role;
use pvc_store::synthetic::Shape;
use serde_json::json;
use tokio::time::Instant;

use crate::common::{KEY, empty, request, settings, start, with_vms};

fn with_key(key: &str) -> Request<Body> {
    Request::get("/api/v1/vm").header("X-Api-Key", key).body(Body::empty()).unwrap()
}

fn with_cookie(cookie: &str) -> Request<Body> {
    Request::get("/api/v1/vm").header("Cookie", cookie).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn only_a_known_key_opens_the_door() {
    let api = with_vms(1).await;
    assert_eq!(api.send(with_key(KEY)).await.status, 200);
    assert_eq!(api.send(with_key("another-key")).await.status, 200);
    for wrong in ["", "correct", "correct-horse-battery-staple ", &"x".repeat(8000)] {
        let message = api.send(with_key(wrong)).await.refused(401);
        assert_eq!(message, "the key is not one that this API knows", "{wrong:.10}");
    }
    let nothing = Request::get("/api/v1/vm").body(Body::empty()).unwrap();
    assert_eq!(api.send(nothing).await.refused(401), "no key was given");
}

#[tokio::test]
async fn q25_who_is_not_let_in_learns_nothing_about_parameters_and_sends_no_body() {
    let api = with_vms(1).await;
    let bad = Request::get("/api/v1/vm?state=odd&limit=(").body(Body::empty()).unwrap();
    assert_eq!(api.send(bad).await.status, 401);
    let body = Body::from_stream(futures::stream::poll_fn(
        |_| -> std::task::Poll<Option<Result<bytes::Bytes, std::io::Error>>> {
            panic!("the body was read")
        },
    ));
    let upload = Request::post("/api/v1/restore")
        .header("Content-Type", "application/x-www-form-urlencoded");
    assert_eq!(api.send(upload.body(body).unwrap()).await.status, 401);
}

#[tokio::test(start_paused = true)]
async fn q26_who_keeps_guessing_waits_longer_each_time_and_others_do_not() {
    let api = with_vms(1).await;
    let begun = Instant::now();
    for _ in 0..3 {
        api.send(with_key("wrong")).await.refused(401);
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    api.send(with_key("wrong")).await.refused(401);
    api.send(with_key("wrong")).await.refused(401);
    assert!(begun.elapsed() >= Duration::from_millis(750), "{:?}", begun.elapsed());
    let begun = Instant::now();
    assert_eq!(api.send(with_key(KEY)).await.status, 200);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_address_that_guesses_in_parallel_is_asked_to_come_back_later() {
    let api = Arc::new(with_vms(1).await);
    let guesses = (0..40).map(|_| {
        let api = api.clone();
        async move { api.send(with_key("wrong")).await }
    });
    let replies = futures::future::join_all(guesses).await;
    let refused = replies.iter().filter(|reply| reply.status == 429).count();
    assert!((20..37).contains(&refused), "{refused}");
    let reply = replies.iter().find(|reply| reply.status == 429).unwrap();
    assert_eq!(reply.headers["retry-after"], "4");
}

#[tokio::test(start_paused = true)]
async fn who_has_the_right_key_never_waits_for_those_who_guess_at_the_same_address() {
    let api = Arc::new(with_vms(1).await);
    let guesses = (0..40).map(|_| {
        let api = api.clone();
        tokio::spawn(async move { api.send(with_key("wrong")).await.status })
    });
    let guesses: Vec<_> = guesses.collect();
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(api.send(with_key(KEY)).await.status, 200);
        assert_eq!(api.form(Method::POST, "/login", "token", KEY).await.status, 200);
        tokio::task::yield_now().await;
    }
    assert_eq!(begun.elapsed(), Duration::ZERO, "and the guesses are still held");
    assert!(!guesses.iter().all(tokio::task::JoinHandle::is_finished));
}

fn open_to_everybody() -> ApiSettings {
    ApiSettings { tokens: None, ..settings() }
}

/// A request that switches maintenance on.
fn maintenance(headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::post("/api/v1/status?state=true");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
}

#[tokio::test]
async fn a_web_page_of_another_site_can_do_nothing_also_where_no_key_is_asked_for() {
    let api = start(&Shape::with_vms(1).dump(), open_to_everybody()).await;
    for foreign in [
        &[("host", "127.0.0.1:7370"), ("origin", "http://evil.example")][..],
        &[("host", "127.0.0.1:7370"), ("origin", "null")],
        &[
            ("host", "127.0.0.1:7370"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "no-cors"),
        ],
        // DNS rebinding: the page and this server have one name, which is not ours.
        &[("host", "evil.example:7370"), ("origin", "http://evil.example:7370")],
        &[("host", "evil.example:7370")],
    ] {
        let reply = api.send(maintenance(foreign)).await;
        assert_eq!(reply.status, 403, "{foreign:?}: {}", reply.text());
    }
    let read =
        Request::get("/api/v1/vm").header("host", "evil.example").body(Body::empty()).unwrap();
    assert_eq!(
        api.send(read).await.refused(403),
        "the name `evil.example` is not one of this server"
    );
    assert!(!api.store.view().config.maintenance);
    api.send(maintenance(&[("host", "localhost:7370")])).await.ok();
    assert!(api.store.view().config.maintenance);
}

#[tokio::test]
async fn by_the_names_of_its_nodes_and_those_that_are_set_the_api_is_reached_without_a_key() {
    let names = Names { own: vec!["pvc.example.org".into()], domains: vec!["pvc.local".into()] };
    let api = start(&Shape::with_vms(1).dump(), ApiSettings { names, ..open_to_everybody() }).await;
    let node = api.store.view().nodes.keys().next().unwrap().to_string();
    for (host, status) in [
        ("pvc.example.org:7370".to_owned(), 200),
        (format!("{node}.pvc.local:7370"), 200),
        (node.clone(), 200),
        (format!("{node}.evil.example"), 403),
        ("nobody.pvc.local".to_owned(), 403),
        ("pvc.local".to_owned(), 403),
    ] {
        let read = Request::get("/api/v1/vm").header("host", &host).body(Body::empty()).unwrap();
        assert_eq!(api.send(read).await.status, status, "{host}");
    }
}

/// A browser sends a form without asking first (a request that CORS calls simple), with a file and
/// the session of who looks at the page.
#[tokio::test]
async fn a_form_with_a_file_from_a_foreign_page_is_refused_before_a_byte_of_it_is_used() {
    let upload = "/api/v1/storage/ceph/volume/vms/data/upload?image_format=raw";
    for settings in [open_to_everybody(), settings()] {
        let api = start(&Shape::with_vms(1).dump(), settings).await;
        for page in [("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")] {
            let body = Body::from_stream(futures::stream::poll_fn(
                |_| -> std::task::Poll<Option<Result<bytes::Bytes, std::io::Error>>> {
                    panic!("the body was read")
                },
            ));
            let form = Request::post(upload)
                .header("host", "127.0.0.1:7370")
                .header(page.0, page.1)
                .header("X-Api-Key", KEY)
                .header("Content-Type", "multipart/form-data; boundary=b");
            let reply = api.send(form.body(body).unwrap()).await;
            let words = reply.refused(403);
            assert_eq!(words, "the request was sent by a web page of another site", "{page:?}");
        }
    }
}

#[tokio::test]
async fn no_page_of_another_site_is_allowed_to_read_an_answer() {
    let api = start(&Shape::with_vms(1).dump(), open_to_everybody()).await;
    let (own, foreign) = ("http://127.0.0.1:7370", "http://evil.example");
    for (method, path, origin, statuses) in [
        (Method::GET, "/vm", None, [200, 200]),
        (Method::GET, "/vm", Some(own), [200, 200]),
        (Method::GET, "/vm", Some(foreign), [403, 403]),
        (Method::OPTIONS, "/vm", Some(own), [200, 405]),
        (Method::OPTIONS, "/vm", Some(foreign), [403, 405]),
        (Method::OPTIONS, "/storage/ceph/volume/vms/data/upload", Some(foreign), [403, 405]),
    ] {
        let asked = Request::builder()
            .method(method.clone())
            .uri(format!("/api/v1{path}"))
            .header("host", "127.0.0.1:7370")
            .header("access-control-request-method", "POST");
        let asked = origin.into_iter().fold(asked, |asked, origin| asked.header("origin", origin));
        let reply = api.send(asked.body(Body::empty()).unwrap()).await;
        let status = reply.status.as_u16();
        assert!(statuses.contains(&status), "{method} {path} {origin:?}: {status}");
        let allowed: Vec<&str> = reply
            .headers
            .keys()
            .map(|name| name.as_str())
            .filter(|name| name.starts_with("access-control-"))
            .collect();
        assert_eq!(allowed, [""; 0], "{method} {path} {origin:?}");
    }
}

#[tokio::test]
async fn a_right_key_is_enough_under_any_name_but_not_from_a_foreign_page() {
    let api = with_vms(1).await;
    let named = |key| {
        let request =
            Request::get("/api/v1/vm").header("host", "vip.example.org").header("x-api-key", key);
        request.body(Body::empty()).unwrap()
    };
    assert_eq!(api.send(named(KEY)).await.status, 200);
    assert_eq!(api.send(named("wrong")).await.status, 401);
    let page = maintenance(&[
        ("host", "127.0.0.1"),
        ("origin", "http://evil.example"),
        ("x-api-key", KEY),
    ]);
    assert_eq!(api.send(page).await.status, 403);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_key_is_refused_as_slowly_under_a_foreign_name_as_under_one_of_ours() {
    let api = with_vms(1).await;
    for host in ["localhost", "evil.example"] {
        let began = Instant::now();
        for _ in 0..6 {
            let request =
                Request::get("/api/v1/vm").header("host", host).header("x-api-key", "wrong");
            assert_eq!(api.send(request.body(Body::empty()).unwrap()).await.status, 401, "{host}");
        }
        assert!(began.elapsed() >= Duration::from_millis(250 + 500 + 1000), "{host}");
    }
}

#[tokio::test]
async fn q02_a_session_is_a_random_word_that_ends_at_logout() {
    let api = with_vms(1).await;
    let login = async |token: &str| api.form(Method::POST, "/login", "token", token).await;
    let reply = login(KEY).await;
    assert!(reply.ok()["message"].is_string());
    let cookie = reply.headers["set-cookie"].to_str().unwrap().to_owned();
    for part in ["session=", "Path=/", "HttpOnly", "SameSite=Strict", "Max-Age=28800"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure") && !cookie.contains(KEY));
    let pair = cookie.split(';').next().unwrap().to_owned();
    assert!(pair.len() >= "session=".len() + 32);
    assert_eq!(api.send(with_cookie(&pair)).await.status, 200);
    let forged = format!("{}0", &pair[..pair.len() - 1]);
    assert_eq!(api.send(with_cookie(&forged)).await.status, 401);

    let logout =
        Request::post("/api/v1/logout").header("Cookie", &pair).body(Body::empty()).unwrap();
    let reply = api.send(logout).await;
    assert!(reply.headers["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(api.send(with_cookie(&pair)).await.status, 401);
}

#[tokio::test]
async fn q29_a_login_with_a_wrong_token_is_refused_and_one_without_is_a_mistake() {
    let api = empty().await;
    let reply = api.form(Method::POST, "/login", "token", "c").await;
    reply.refused(401);
    assert!(!reply.headers.contains_key("set-cookie"));
    assert!(
        api.form(Method::POST, "/login", "other", "x").await.refused(400).starts_with("token: ")
    );
    let query = Request::post(format!("/api/v1/login?token={KEY}")).body(Body::empty()).unwrap();
    assert!(
        api.send(query).await.refused(400).starts_with("token: "),
        "a token in the address is not taken"
    );
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_when_nobody_uses_it() {
    let api = with_vms(1).await;
    let reply = api.form(Method::POST, "/login", "token", KEY).await;
    let pair = reply.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    tokio::time::advance(Duration::from_secs(7 * 3600)).await;
    assert_eq!(api.send(with_cookie(&pair)).await.status, 200);
    tokio::time::advance(Duration::from_secs(7 * 3600)).await;
    assert_eq!(api.send(with_cookie(&pair)).await.status, 200, "its use prolongs it");
    tokio::time::advance(Duration::from_secs(8 * 3600 + 1)).await;
    assert_eq!(api.send(with_cookie(&pair)).await.status, 401);
}

#[tokio::test]
async fn under_tls_the_session_never_travels_in_the_clear() {
    let tls = TlsFiles { certificate: "unused".into(), key: "unused".into() };
    let api = start(&Shape::with_vms(0).dump(), ApiSettings { tls: Some(tls), ..settings() }).await;
    let reply = api.form(Method::POST, "/login", "token", KEY).await;
    assert!(reply.headers["set-cookie"].to_str().unwrap().ends_with("; Secure"));
}

#[tokio::test]
async fn without_authentication_everything_is_open_and_logging_in_leads_home() {
    let api = start(&Shape::with_vms(1).dump(), ApiSettings { tokens: None, ..settings() }).await;
    let get = Request::get("/api/v1/vm").body(Body::empty()).unwrap();
    assert_eq!(api.send(get).await.status, 200);
    for path in ["/login", "/logout"] {
        let reply =
            api.send(Request::post(format!("/api/v1{path}")).body(Body::empty()).unwrap()).await;
        assert_eq!(
            (reply.status.as_u16(), &reply.headers["location"]),
            (302, &"/api/v1/".parse().unwrap())
        );
    }
}

#[tokio::test]
async fn metrics_can_be_switched_off() {
    let api = start(&Shape::with_vms(0).dump(), ApiSettings { metrics: false, ..settings() }).await;
    api.get("/metrics/health").await.refused(404);
}

#[tokio::test]
async fn parameters_come_from_query_and_form_alike_also_with_delete() {
    let api = with_vms(3).await;
    let kind = "multipart/form-data; boundary=b";
    let body = "--b\r\nContent-Disposition: form-data; name=\"state\"\r\n\r\ntrue\r\n--b--\r\n";
    let multipart =
        request(Method::POST, "/status").header("Content-Type", kind).body(Body::from(body));
    assert_eq!(
        api.send(multipart.unwrap()).await.ok(),
        json!({"message": "the cluster is in maintenance"})
    );
    assert_eq!(api.get("/status").await.ok()["maintenance"], "true");
    api.form(Method::POST, "/status", "state", "false").await.ok();
    assert_eq!(api.get("/status").await.ok()["maintenance"], "false");
    assert!(
        api.post("/status?state=perhaps")
            .await
            .refused(400)
            .starts_with("state: `perhaps` is not one of")
    );
    let both = api.form(Method::POST, "/status?state=true", "state", "false").await;
    assert_eq!(both.refused(400), "state: was given 2 times, one value is taken");
    let json_body =
        request(Method::POST, "/status?state=true").header("Content-Type", "application/json");
    assert_eq!(api.send(json_body.body(Body::from("{\"state\":1}")).unwrap()).await.status, 200);
}

#[tokio::test]
async fn a_body_that_is_no_form_is_refused_with_a_reason() {
    let api = with_vms(0).await;
    let torn = "--b\r\nContent-Disposition: form-data; name=\"state\"\r\n\r\ntr";
    let kind = "multipart/form-data; boundary=b";
    let reply = api
        .send(
            request(Method::POST, "/status")
                .header("Content-Type", kind)
                .body(Body::from(torn))
                .unwrap(),
        )
        .await;
    assert!(reply.refused(400).starts_with("the multipart body cannot be read"));
    let unbounded = request(Method::POST, "/status").header("Content-Type", "multipart/form-data");
    api.send(unbounded.body(Body::from("x")).unwrap()).await.refused(400);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_announced_or_not() {
    let api = with_vms(0).await;
    let kind = "application/x-www-form-urlencoded";
    let announced = request(Method::POST, "/status")
        .header("Content-Type", kind)
        .header("Content-Length", 2_u64 << 30);
    let endless = || {
        Body::from_stream(futures::stream::repeat_with(|| {
            Ok::<_, std::io::Error>(vec![b'a'; 1 << 16])
        }))
    };
    let reply = api.send(announced.body(endless()).unwrap()).await;
    assert_eq!(reply.refused(413), "the request body is larger than 1 MiB");
    let chunked =
        request(Method::POST, "/status").header("Content-Type", kind).body(endless()).unwrap();
    api.send(chunked).await.refused(413);
    let larger = "a".repeat(2 << 20);
    api.form(Method::POST, "/restore?yes-i-really-mean-it=yes", "cluster_data", &larger)
        .await
        .refused(400);
    let far_larger = "a".repeat(9 << 20);
    api.form(Method::POST, "/restore?yes-i-really-mean-it=yes", "cluster_data", &far_larger)
        .await
        .refused(413);
}

/// Settings with 1 MiB for all bodies, and one more key, `third-key`.
fn with_little_memory(role: Role) -> ApiSettings {
    let limits = Limits { bodies_bytes: 1 << 20, ..settings().limits };
    let mut tokens = settings().tokens.unwrap();
    tokens.push(Token { description: "third".into(), secret: "third-key".into(), role });
    ApiSettings { limits, tokens: Some(tokens), ..settings() }
}

/// A form that begins with so many KiB, and then nothing more comes.
fn unfinished(kib: usize) -> Body {
    let begin = futures::stream::iter([Ok::<_, std::io::Error>(vec![b'a'; kib << 10])]);
    Body::from_stream(begin.chain(futures::stream::pending()))
}

/// A request with a form.
fn form(key: &str, path: &str, body: Body) -> Request<Body> {
    let request = Request::post(format!("/api/v1{path}")).header("X-Api-Key", key);
    request.header("Content-Type", "application/x-www-form-urlencoded").body(body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn bodies_beyond_the_memory_for_all_of_them_are_refused_until_others_are_gone() {
    let settings = with_little_memory(Role::Administrator);
    let api = start(&Shape::with_vms(1).dump(), settings).await;
    let post = async |key: &str, body: Body| api.send(form(key, "/status", body)).await;
    let large = || Body::from("a".repeat(200 << 10));
    let others = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let reply = post("third-key", large()).await;
        assert_eq!(reply.headers["Retry-After"], "5");
        assert!(reply.refused(503).contains("take all the memory"));
        post("third-key", Body::from("a=b")).await.refused(400);
        // There is room, but not for who has half of all.
        post(KEY, Body::from("a".repeat(20 << 10))).await.refused(503);
        post("third-key", Body::from("a".repeat(20 << 10))).await.refused(400);
        api.get("/vm").await.ok();
    };
    // Most of the memory.
    tokio::select! {
        biased;
        reply = post(KEY, unfinished(500)) => panic!("{reply:?}"),
        reply = post("another-key", unfinished(400)) => panic!("{reply:?}"),
        () = others => {}
    }
    post("third-key", large()).await.refused(400);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_may_only_read_leaves_others_the_memory_for_their_bodies() {
    let settings = with_little_memory(Role::Reader);
    let api = start(&Shape::with_vms(1).dump(), settings).await;
    // It changes nothing, and has a body all the same.
    let check =
        async |kib: usize| api.send(form("third-key", "/vm/vm00000/check", unfinished(kib))).await;
    let others = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        check(100).await.refused(503);
        let large = Body::from("a".repeat(500 << 10));
        api.send(form(KEY, "/status", large)).await.refused(400);
    };
    tokio::select! {
        biased;
        reply = check(200) => panic!("{reply:?}"),
        () = others => {}
    }
}

/// Restores with the limits that the daemon has: the other tests have smaller ones, to be quick.
#[tokio::test]
async fn a_restore_may_have_64_mib_and_no_byte_more() {
    let limits = Limits::default();
    let api = start(&Shape::with_vms(0).dump(), ApiSettings { limits, ..settings() }).await;
    let send = async |bytes: usize| {
        let key = "cluster_data=";
        let text = format!("{key}{}", "a".repeat(bytes - key.len()));
        let request = request(Method::POST, "/restore?yes-i-really-mean-it=yes")
            .header("Content-Type", "application/x-www-form-urlencoded");
        api.send(request.body(Body::from(text)).unwrap()).await
    };
    let said = send(64 << 20).await.refused(400);
    assert!(!said.contains("larger"), "it is no backup, and was read: {said}");
    let said = send((64 << 20) + 1).await.refused(413);
    assert_eq!(said, "the request body is larger than 64 MiB");
}

#[tokio::test]
async fn a_multipart_body_has_the_same_limits_as_any_other() {
    let api = with_vms(0).await;
    let send = async |megabytes: usize| {
        let part = "--x\r\nContent-Disposition: form-data; name=\"cluster_data\"\r\n\r\n";
        let body = format!("{part}{}\r\n--x--\r\n", "a".repeat(megabytes << 20));
        let request = request(Method::POST, "/restore?yes-i-really-mean-it=yes");
        api.send(
            request
                .header("Content-Type", "multipart/form-data; boundary=x")
                .body(Body::from(body))
                .unwrap(),
        )
        .await
    };
    assert_eq!(send(7).await.status, 400, "it is no backup, and was read");
    assert_eq!(send(9).await.status, 413);
}

#[tokio::test]
async fn what_is_no_text_is_refused_and_not_recorded_as_something_else() {
    let api = with_vms(1).await;
    for path in ["/vm/vm00000/meta?profile=%ff%fe", "/vm/vm00000/meta?profile=a%c3"] {
        assert_eq!(api.post(path).await.refused(400), "the parameters are not UTF-8 text");
    }
    let form = request(Method::POST, "/vm/vm00000/meta")
        .header("Content-Type", "application/x-www-form-urlencoded");
    assert_eq!(api.send(form.body(Body::from(&b"profile=\xff"[..])).unwrap()).await.status, 400);
    let part = b"--x\r\nContent-Disposition: form-data; name=\"profile\"\r\n\r\n\xff\r\n--x--\r\n";
    let multipart = request(Method::POST, "/vm/vm00000/meta")
        .header("Content-Type", "multipart/form-data; boundary=x");
    assert_eq!(
        api.send(multipart.body(Body::from(&part[..])).unwrap()).await.refused(400),
        "profile: is not UTF-8 text"
    );
    api.post("/vm/vm00000/meta?profile=%c3%bc%20%25ff+%EF%BF%BD").await.ok();
    assert_eq!(
        api.store.view().vm("vm00000").unwrap().profile.as_deref(),
        Some("\u{fc} %ff \u{fffd}")
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_that_trickles_in_is_given_up() {
    let api = with_vms(0).await;
    let slow = futures::stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Some((Ok::<_, std::io::Error>("a"), ()))
    });
    let kind = "application/x-www-form-urlencoded";
    let slow =
        request(Method::POST, "/status").header("Content-Type", kind).body(Body::from_stream(slow));
    let begun = Instant::now();
    api.send(slow.unwrap()).await.refused(408);
    assert!(begun.elapsed() < Limits::default().body_time + Duration::from_secs(1));
}

/// Collects what is logged.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// The line about a request to this route.
    #[track_caller]
    pub fn line(&self, route: &str) -> String {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let found = text.lines().find(|line| line.contains(route));
        found.unwrap_or_else(|| panic!("{route} is in no line of {text}")).to_owned()
    }

    /// The lines that have this in them.
    pub fn lines_with(&self, part: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
    }

    #[track_caller]
    pub fn assert_silent_about(&self, secret: &str) {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        assert!(!text.contains(secret), "{text}");
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Log of everything until the second is dropped.
pub fn logged(level: tracing::Level) -> (Log, tracing::subscriber::DefaultGuard) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    (log, tracing::subscriber::set_default(subscriber))
}

#[tokio::test(start_paused = true)]
async fn what_the_unauthenticated_are_refused_is_logged_once_a_second() {
    let (log, _guard) = logged(tracing::Level::INFO);
    let api = with_vms(1).await;
    let lines = || String::from_utf8(log.0.lock().unwrap().clone()).unwrap().lines().count();
    let before = lines();
    for _ in 0..500 {
        api.send(Request::get("/api/v1/vm").body(Body::empty()).unwrap()).await.refused(401);
        api.get("/nowhere").await;
        api.send(Request::get("/nowhere").body(Body::empty()).unwrap()).await;
    }
    let anonymous = Request::get("/api/v1/vm").body(Body::empty()).unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    api.send(anonymous).await.refused(401);
    assert_eq!(lines() - before, 2);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(text.lines().last().unwrap().contains("left_out=1499"), "{text}");
    // A change by somebody with a key is always told.
    for _ in 0..5 {
        api.send(request(Method::POST, "/status?state=true").body(Body::empty()).unwrap())
            .await
            .ok();
    }
    assert_eq!(lines() - before, 7);
}

#[tokio::test(start_paused = true)]
async fn what_a_reader_is_refused_is_logged_once_a_second_with_the_beginning_of_its_path() {
    let token = |key: &str, role| Token { description: key.into(), secret: key.into(), role };
    let tokens = vec![token("wall", Role::Reader), token("ops", Role::Operator)];
    let settings = ApiSettings { tokens: Some(tokens), ..settings() };
    let api = start(&Shape::with_vms(1).dump(), settings).await;
    let (log, _guard) = logged(tracing::Level::INFO);
    let long = format!("/api/v1/vm/{}", "x".repeat(60_000));
    for key in ["wall", "ops"] {
        for _ in 0..100 {
            let ask = Request::get(&long).header("X-Api-Key", key).body(Body::empty());
            api.send(ask.unwrap()).await.refused(404);
        }
    }
    let lines = log.lines_with("caller=");
    let of = |key: &str| lines.iter().filter(|line| line.contains(key)).count();
    assert_eq!((of("\"wall\""), of("\"ops\"")), (1, 100));
    assert!(lines.iter().all(|line| line.len() < 1024), "{}", lines[0]);
    assert!(lines[0].contains("xxx… (60011 bytes)"), "{}", lines[0]);
}

#[tokio::test]
async fn the_access_log_says_who_did_what_and_keeps_secrets() {
    let (log, _guard) = logged(tracing::Level::DEBUG);
    let api = with_vms(1).await;
    api.get("/vm/vm00000?limit=secret-in-query").await.ok();
    api.form(Method::POST, "/login", "token", KEY).await.ok();
    api.send(
        Request::get("/api/v1/vm").header("X-Api-Key", "wrong-secret").body(Body::empty()).unwrap(),
    )
    .await;
    api.get("/path-that-holds-a-secret").await;
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let line = text.lines().find(|line| line.contains("vm00000")).expect("the request is logged");
    for part in
        ["GET", "/api/v1/vm/{vm}", "status=200", "caller=\"admin\"", "192.0.2.1", "milliseconds="]
    {
        assert!(line.contains(part), "{part} in {line}");
    }
    assert!(!text.contains("secret") && !text.contains(KEY), "{text}");
}

#[tokio::test]
async fn a_backup_is_json_inside_of_json_and_can_be_restored() {
    let api = with_vms(3).await;
    let reply = api.get("/backup").await;
    let inner = reply.ok().as_str().expect("a text").to_owned();
    let dump: std::collections::BTreeMap<String, String> = serde_json::from_str(&inner).unwrap();
    assert_eq!(dump["/config"], "synthetic");
    let other = empty().await;
    assert_eq!(other.get("/backup").await.refused(503), "the store holds no cluster");
    assert!(
        other
            .post("/restore?cluster_data=%7B%7D")
            .await
            .refused(400)
            .starts_with("yes-i-really-mean-it: ")
    );
    for text in [inner, reply.text()] {
        other
            .form(Method::POST, "/restore?yes-i-really-mean-it=yes", "cluster_data", &text)
            .await
            .ok();
        assert_eq!(other.get("/vm").await.ok().as_array().unwrap().len(), 3);
    }
    for bad in [
        "",
        "[]",
        "{\"/a\": 1}",
        "{}",
        "{\"/schema/version\": \"14\"}",
        "{\"/schema/version\": \"15\", \"a\": \"\"}",
    ] {
        other
            .form(Method::POST, "/restore?yes-i-really-mean-it=yes", "cluster_data", bad)
            .await
            .refused(400);
    }
}

#[tokio::test]
async fn a_restore_says_what_is_otherwise_than_it_was_then() {
    let api = with_vms(1).await;
    let uuid = api.store.view().vm("vm00000").unwrap().uuid;
    api.write("/config/maintenance", "true").await;
    api.write(&format!("/domains/{uuid}/state"), "provision").await;
    let reply = api.get("/backup").await;
    let inner = reply.ok().as_str().expect("a text").to_owned();
    let other = empty().await;
    let path = "/restore?yes-i-really-mean-it=yes";
    let reply = other.form(Method::POST, path, "cluster_data", &inner).await.ok();
    let message = reply["message"].as_str().unwrap().to_owned();
    assert!(message.contains("; note: the cluster is in maintenance"), "{message}");
    assert!(message.contains("removed then, `vm00000`: look at"), "{message}");
    assert_eq!(other.get("/vm/vm00000/state").await.ok()["state"], "disable");
}

#[tokio::test]
async fn q23_a_cluster_that_is_restored_from_a_backup_with_its_secrets_can_fence() {
    let api = with_vms(0).await;
    api.write("/nodes/pvchv1/ipmihostname", "hv1-bmc").await;
    api.write("/nodes/pvchv1/ipmiusername", "root").await;
    api.write("/nodes/pvchv1/ipmipassword", "calvin").await;
    let reply = api.get("/backup?secrets=true").await;
    assert_eq!(reply.headers["cache-control"], "no-store");
    let inner = reply.ok().as_str().expect("a text").to_owned();
    let restore = async |text: &str| {
        let other = empty().await;
        let path = "/restore?yes-i-really-mean-it=yes";
        let message =
            other.form(Method::POST, path, "cluster_data", text).await.ok()["message"].to_string();
        (other.tree.get("/nodes/pvchv1/ipmipassword").await.unwrap(), message)
    };
    let (password, message) = restore(&inner).await;
    assert_eq!(password.unwrap().data, "calvin");
    assert!(!message.contains("note"), "{message}");
    let reply = api.get("/backup").await;
    assert!(!reply.text().contains("calvin"));
    let bare = reply.ok().as_str().expect("a text").to_owned();
    let (password, message) = restore(&bare).await;
    assert_eq!(password.expect("PVC 1.0.3 expects the key").data, "");
    assert!(message.contains("`pvchv1`") && message.contains("cannot be fenced"), "{message}");
    // Where there is a password, it stays.
    let really = "/restore?yes-i-really-mean-it=yes";
    let message =
        api.form(Method::POST, really, "cluster_data", &bare).await.ok()["message"].to_string();
    assert!(!message.contains("note"), "{message}");
    assert_eq!(api.tree.get("/nodes/pvchv1/ipmipassword").await.unwrap().unwrap().data, "calvin");
}

#[tokio::test]
async fn q45_a_cluster_is_initialized_once_and_overwritten_only_when_requested() {
    let api = empty().await;
    assert!(
        api.post("/initialize?yes-i-really-mean-it=maybe")
            .await
            .refused(400)
            .contains("must be `yes`")
    );
    api.post("/initialize?yes-i-really-mean-it=yes").await.ok();
    assert!(api.store.view().config.initialized);
    let again = api.post("/initialize?yes-i-really-mean-it=yes&overwrite=False").await;
    assert!(again.refused(400).contains("holds a cluster already"));
    api.post("/initialize?yes-i-really-mean-it=yes&overwrite=yes").await.ok();
}

#[tokio::test]
async fn a_link_on_a_page_of_another_site_leads_to_pages_and_to_no_download() {
    let api = start(&Shape::with_vms(1).dump(), open_to_everybody()).await;
    api.post("/storage/ceph/volume/vms/data?size=1M").await.ok();
    let download = "/api/v1/storage/ceph/volume/vms/data/download";
    for (path, site, status) in [
        ("/api/v1/vm", "cross-site", 200),
        (download, "same-origin", 200),
        (download, "none", 200),
        (download, "same-site", 403),
        (download, "cross-site", 403),
        ("/api/v1/storage/ceph/volume/vms/d%61ta/download?image_format=vdi", "cross-site", 403),
    ] {
        let link = Request::get(path)
            .header("host", "127.0.0.1:7370")
            .header("sec-fetch-site", site)
            .header("sec-fetch-mode", "navigate");
        let reply = api.send(link.body(Body::empty()).unwrap()).await;
        assert_eq!(reply.status, status, "{path} from {site}: {}", reply.text());
    }
}

/// Every role below that of an operation, and those from it on.
#[tokio::test]
async fn each_operation_is_refused_to_the_roles_below_its_own_before_anything_of_it_is_read() {
    let roles = [Role::Reader, Role::Operator, Role::Administrator];
    let token = |role: &Role| Token {
        description: role.as_str().to_owned(),
        secret: format!("key-of-a-{}", role.as_str()),
        role: *role,
    };
    let tokens = Some(roles.iter().map(token).collect());
    let api = start(&Shape::with_vms(1).dump(), ApiSettings { tokens, ..settings() }).await;
    let document = api.get("/openapi.json").await.ok();
    let mut refusals = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let needed = operation["x-pvc-role"].as_str().unwrap();
            for role in roles.iter().filter(|role| role.as_str() != needed) {
                let is_enough = Role::of_token(needed).is_none_or(|needed| *role > needed);
                if is_enough && method != "get" {
                    continue;
                }
                // A stream does not end, and what is unknown is refused before that is looked at.
                let path = path.replace('{', "no-such-").replace('}', "");
                if is_enough && path.ends_with("/events") {
                    continue;
                }
                let ask = Request::builder()
                    .method(method.to_uppercase().as_str())
                    .uri(&path)
                    .header("X-Api-Key", format!("key-of-a-{}", role.as_str()));
                let reply = api.send(ask.body(Body::empty()).unwrap()).await;
                assert_eq!(reply.status == 403, !is_enough, "{method} {path}: {}", reply.text());
                if !is_enough {
                    let words = format!(
                        "the token has the role `{}`, and this needs `{needed}`",
                        role.as_str()
                    );
                    assert_eq!(reply.refused(403), words, "{method} {path}");
                    refusals += 1;
                }
            }
        }
    }
    assert!(refusals > 100, "{refusals}");
}

#[tokio::test]
async fn a_browsers_session_has_the_role_of_the_token_it_was_opened_with() {
    let reader = Token {
        description: "wall".to_owned(),
        secret: "the-screen-on-the-wall".to_owned(),
        role: Role::Reader,
    };
    let settings = ApiSettings { tokens: Some(vec![reader]), ..settings() };
    let api = start(&Shape::with_vms(1).dump(), settings).await;
    let login = Request::post("/api/v1/login")
        .header("Content-Type", "application/x-www-form-urlencoded")
        .body(Body::from("token=the-screen-on-the-wall"));
    let reply = api.send(login.unwrap()).await;
    let cookie = reply.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap();
    let with_session = |method: Method, path: &str| {
        Request::builder().method(method).uri(path).header("Cookie", cookie).body(Body::empty())
    };
    let read = api.send(with_session(Method::GET, "/api/v1/vm").unwrap()).await;
    assert_eq!(read.status, 200, "{}", read.text());
    let stop = with_session(Method::POST, "/api/v1/vm/app0/state?state=stop");
    api.send(stop.unwrap()).await.refused(403);
}
