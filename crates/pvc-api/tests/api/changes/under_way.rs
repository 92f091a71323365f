//! Uploads and downloads under way are tasks, on every node.

use std::convert::Infallible;

use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures::{StreamExt, stream};
use pvc_model::job::transfer::TransferEnd;
use pvc_model::job::{Job, JobState, JobWork, StorageChange};
use pvc_model::storage::VolumeId;
use pvc_ports::{Storage, Tree};
use pvc_store::{Change, Changes};
use pvc_testkit::Gate;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use super::*;
use crate::common::request;

const SIZE: usize = 8 << 20;

fn data() -> VolumeId {
    VolumeId::parse("vms/data").unwrap()
}

/// The volume `vms/data` of 8 MiB, and a worker that looks after records.
async fn with_data(connection: Arc<dyn Tree>) -> Arc<Api> {
    let api = start_on(connection, &Shape::with_vms(1).dump(), settings()).await;
    api.post("/storage/ceph/volume/vms/data?size=8M").await.ok();
    let kinds = json!({ "kinds": JobWork::KINDS });
    api.write("/pvcrs/workers/pvchv1", kinds.to_string()).await;
    Arc::new(api)
}

async fn on_memory() -> Arc<Api> {
    with_data(EmbeddedTree::in_memory().connect()).await
}

/// An upload whose client sends what it is told to.
struct Uploading {
    sender: mpsc::Sender<Bytes>,
    reply: JoinHandle<Reply>,
}

impl Uploading {
    fn begin(api: &Arc<Api>) -> Self {
        let (sender, receiver) = mpsc::channel::<Bytes>(1);
        let body = stream::unfold(receiver, |mut receiver| async move {
            let piece = receiver.recv().await?;
            Some((Ok::<_, std::io::Error>(piece), receiver))
        });
        let path =
            format!("/storage/ceph/volume/vms/data/upload?image_format=raw&file_size={SIZE}");
        let asked = request(Method::POST, &path).header("Content-Type", "application/octet-stream");
        let (api, body) = (api.clone(), Body::from_stream(body));
        let reply = tokio::spawn(async move { api.send(asked.body(body).unwrap()).await });
        Uploading { sender, reply }
    }

    async fn send(&self, bytes: usize) {
        self.sender.send(Bytes::from(vec![b'x'; bytes])).await.unwrap();
    }

    async fn end(self) -> Reply {
        drop(self.sender);
        self.reply.await.unwrap()
    }
}

/// A download of `vms/data` whose client has taken a piece.
async fn download(api: &Api) -> (BodyDataStream, usize) {
    download_of(api, "data").await
}

async fn download_of(api: &Api, volume: &str) -> (BodyDataStream, usize) {
    let path = format!("/storage/ceph/volume/vms/{volume}/download");
    let asked = request(Method::GET, &path).body(Body::empty()).unwrap();
    let response = api.router.clone().oneshot(with_remote(asked)).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut body = response.into_body().into_data_stream();
    let first = body.next().await.unwrap().unwrap().len();
    (body, first)
}

fn with_remote(mut asked: axum::http::Request<Body>) -> axum::http::Request<Body> {
    let remote = std::net::SocketAddr::from(([192, 0, 2, 1], 4711));
    asked.extensions_mut().insert(axum::extract::ConnectInfo(remote));
    asked
}

impl Api {
    /// The one task, once it is as `is_ready` says.
    async fn task(&self, what: &str, is_ready: impl Fn(&Job) -> bool) -> Arc<Job> {
        self.eventually(what, |view| view.jobs.values().any(|job| is_ready(job))).await;
        self.store.view().jobs.values().next().unwrap().clone()
    }

    async fn over(&self) -> Arc<Job> {
        self.task("the task is over", |job| job.progress.state.is_over() && job.claim.is_none())
            .await
    }

    async fn nothing_changed(&self) {
        let left = self.storage.volumes(&data().pool).await.unwrap();
        let names: Vec<String> = left.iter().map(|volume| volume.id.volume.to_string()).collect();
        assert_eq!(names, ["data"], "nothing is left of what was begun");
        assert_eq!(self.storage.trashed(&data().pool).await.unwrap(), []);
        let begin = self.storage.with_volumes(|volumes| volumes.read(&data(), 0, 3)).unwrap();
        assert_eq!(begin, [0; 3]);
    }
}

fn bytes_of(job: &Job) -> u64 {
    job.progress.transferred.unwrap_or_default().bytes
}

#[tokio::test(start_paused = true)]
async fn an_upload_under_way_says_how_far_it_is_and_ends_when_its_task_is_cancelled() {
    let api = on_memory().await;
    let upload = Uploading::begin(&api);
    upload.send(SIZE / 4).await;
    let task = api.task("a quarter has come", |job| bytes_of(job) == SIZE as u64 / 4).await;
    let id = task.spec.id.to_string();
    assert!(task.claim.is_some());
    let queues = api.get("/tasks").await.ok();
    let listed = &queues["active"]["pvcapid@pvchv1"][0];
    let arguments = json!({"pool": "vms", "volume": "data", "run_on": "pvchv1"});
    for (member, value) in [
        ("id", json!(id)),
        ("name", json!("storage.upload")),
        ("kwargs", arguments.clone()),
        ("submitter", json!("admin")),
        ("hostname", json!("pvcapid@pvchv1")),
    ] {
        assert_eq!(listed[member], value, "{listed}");
    }
    upload.send(SIZE / 4).await;
    api.task("half has come", |job| bytes_of(job) == SIZE as u64 / 2).await;
    let shown = api.get(&format!("/tasks/{id}")).await.ok();
    let stage = (&shown["state"], &shown["current"], &shown["total"]);
    assert_eq!(stage, (&json!("RUNNING"), &json!(50), &json!(100)));
    assert!(shown["status"].as_str().unwrap().starts_with("4096K of 8192K (50 %), "), "{shown}");
    let log = api.get(&format!("/tasks/{id}/log")).await.ok();
    let of = (&log["kwargs"], &log["submitter"], &log["worker"]);
    assert_eq!(of, (&arguments, &json!("admin"), &json!("pvchv1")));
    let gone = &log["transferred"];
    assert_eq!((&gone["bytes"], &gone["of"]), (&json!(SIZE / 2), &json!(SIZE)));
    let rate = gone["bytes_per_second"].as_u64().unwrap();
    assert_eq!(gone["seconds_left"], json!((SIZE as u64 / 2).div_ceil(rate)), "{gone}");

    api.delete(&format!("/tasks/{id}")).await.ok();
    let message = upload.reply.await.unwrap().refused(400);
    assert_eq!(message, format!("it was cancelled, as task `{id}`"));
    let ended = api.over().await;
    assert_eq!(ended.progress.state, JobState::Cancelled);
    let all = api.get("/tasks?all=true").await.ok();
    let ended = &all["ended"][0];
    assert_eq!((&ended["id"], &ended["state"]), (&json!(id), &json!("CANCELLED")));
    assert_eq!(ended["status"], "cancelled after 4096K of 8192K (50 %)");
    assert_eq!(ended["worker"], "pvcapid@pvchv1");
    api.nothing_changed().await;
    let again = api.delete(&format!("/tasks/{id}")).await;
    assert_eq!(again.status, 200, "asking twice is fine: {}", again.text());
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_ends_leaves_its_size_and_checksum_for_a_day() {
    let api = on_memory().await;
    let upload = Uploading::begin(&api);
    upload.send(SIZE / 2).await;
    api.task("it is seen", |job| bytes_of(job) > 0).await;
    upload.send(SIZE / 2).await;
    let reply = upload.end().await.ok();
    let ended = api.over().await;
    let checksum = reply["crc32"].as_str().unwrap();
    assert_eq!(ended.progress.state, JobState::Succeeded);
    assert_eq!(ended.progress.status, format!("{SIZE} bytes, CRC-32 {checksum}"));
    assert_eq!((ended.progress.current, ended.progress.total), (100, 100));
    let late = api.delete(&format!("/tasks/{}", ended.spec.id)).await.refused(400);
    assert_eq!(late, format!("task `{}` is over", ended.spec.id));
}

#[tokio::test(start_paused = true)]
async fn a_transfer_that_breaks_off_says_why() {
    let api = on_memory().await;
    let upload = Uploading::begin(&api);
    upload.send(SIZE / 2).await;
    api.task("it is seen", |job| bytes_of(job) > 0).await;
    let message = upload.end().await.refused(400);
    let ended = api.over().await;
    assert_eq!((ended.progress.state, &ended.progress.status), (JobState::Failed, &message));

    let upload = Uploading::begin(&api);
    upload.send(SIZE / 2).await;
    api.eventually("another is seen", |view| view.jobs.len() == 2).await;
    upload.reply.abort();
    api.eventually("it is over", |view| {
        view.jobs.values().any(|job| job.progress.status == "the client went away")
    })
    .await;
    api.nothing_changed().await;
}

#[tokio::test(start_paused = true)]
async fn a_download_under_way_is_a_task_and_breaks_off_when_that_is_cancelled() {
    let api = on_memory().await;
    let (mut body, first) = download(&api).await;
    let task = api.task("it is seen", |job| bytes_of(job) == first as u64).await;
    assert_eq!(task.spec.work, JobWork::Download { volume: data(), snapshot: None });
    assert_eq!(task.progress.transferred.unwrap().of, Some(SIZE as u64));
    api.delete(&format!("/tasks/{}", task.spec.id)).await.ok();
    let mut taken = first;
    let broken = loop {
        match body.next().await {
            Some(Ok(piece)) => taken += piece.len(),
            other => break other,
        }
    };
    assert!(taken < SIZE && broken.is_some_and(|end| end.is_err()), "it never looks whole");
    let ended = api.over().await;
    assert_eq!(ended.progress.state, JobState::Cancelled, "{:?}", ended.progress);

    let (body, _) = download(&api).await;
    api.eventually("another is seen", |view| view.jobs.len() == 2).await;
    drop(body);
    api.eventually("it is over", |view| {
        view.jobs.values().any(|job| job.progress.status == "the client went away")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_volume_in_a_download_names_who_reads_it_and_which_task() {
    let api = on_memory().await;
    let (body, first) = download(&api).await;
    let path = "/storage/ceph/volume/vms/data/download";
    let refused = api.get(path).await.refused(400);
    assert!(refused.starts_with("volume `vms/data` is being downloaded by `"), "{refused}");
    assert!(refused.ends_with('`') && !refused.contains("task"), "{refused}");
    let task = api.task("it is seen", |job| bytes_of(job) == first as u64).await;
    let words = format!("by `{}`, as task `{}`", task.spec.submitter, task.spec.id);
    let upload = "/storage/ceph/volume/vms/data/upload?image_format=raw&dry_run=true";
    for refused in [api.get(path).await, api.post(upload).await] {
        let refused = refused.refused(400);
        assert!(refused.ends_with(&words), "{refused}");
    }
    drop(body);
    api.over().await;
    let _again = download(&api).await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_takes_long_says_how_far_it_is_and_can_be_cancelled() {
    let api = on_memory().await;
    for path in ["clone?new_volume=copy", "flatten"] {
        let gate = Gate::closing_at(0);
        api.storage.set_gate(gate.clone());
        let client = tokio::spawn({
            let api = api.clone();
            async move { api.post(&format!("/storage/ceph/volume/vms/data/{path}")).await }
        });
        let is_half = |job: &Job| job.progress.current == 50;
        let task = api.task("it is seen", is_half).await;
        assert!(
            task.progress.status.starts_with("4096K of 8192K (50 %)"),
            "{}",
            task.progress.status
        );
        let shown = api.get(&format!("/tasks/{}", task.spec.id)).await.ok();
        assert_eq!((&shown["current"], &shown["total"]), (&json!(50), &json!(100)), "{shown}");
        api.delete(&format!("/tasks/{}", task.spec.id)).await.ok();
        // It is heard before the storage goes on: that is asked how the volume is then.
        tokio::time::sleep(Duration::from_secs(1)).await;
        gate.open();
        let said = client.await.unwrap().refused(400);
        assert_eq!(said, "it was cancelled before it was done");
        let ended = api.over().await.progress.clone();
        assert_eq!(ended.state, JobState::Cancelled);
        assert_eq!(ended.status, "cancelled after 4096K of 8192K (50 %)");
        assert_eq!(api.storage.volumes(&data().pool).await.unwrap().len(), 1);
        let id = task.spec.id.clone();
        let forget = |_: &pvc_model::cluster::Cluster| {
            let mut changes = Changes::new();
            changes.push(Change::RemoveJob(id.clone()));
            Ok::<_, Infallible>((changes, ()))
        };
        api.store.change(forget).await.unwrap();
    }
    // Where it was, it can be asked for again.
    api.post("/storage/ceph/volume/vms/data/clone?new_volume=copy").await.ok();
}

/// A change goes on when its client has given up.
#[tokio::test(start_paused = true)]
async fn a_change_of_the_storage_that_takes_long_goes_on_when_its_client_has_gone() {
    let api = on_memory().await;
    let gate = Gate::closing_at(0);
    api.storage.set_gate(gate.clone());
    let client = tokio::spawn({
        let api = api.clone();
        async move { api.post("/storage/ceph/volume/vms/data/clone?new_volume=copy").await }
    });
    let task = api.task("it is seen", |job| job.progress.state == JobState::Running).await;
    let of = "vms/data to copy".to_owned();
    let work = JobWork::ChangeStorage { change: StorageChange::CloneVolume, of };
    assert_eq!(task.spec.work, work);
    client.abort();
    gate.open();
    let ended = api.over().await.progress.clone();
    assert_eq!((ended.state, &*ended.status), (JobState::Succeeded, "done"));
    let copy = VolumeId::parse("vms/copy").unwrap();
    assert_eq!(api.storage.volume(&copy).await.unwrap().size_bytes, SIZE as u64);
    let all = api.get("/tasks?all=true").await.ok();
    assert_eq!(all["ended"][0]["name"], "storage.clone_volume");

    // One that fails says why, to whoever looks at it later.
    let gate = Gate::closing_at(0);
    api.storage.set_gate(gate.clone());
    let path = "/storage/ceph/volume/vms/data/clone?new_volume=copy";
    let (again, ()) = tokio::join!(api.post(path), async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        gate.open();
    });
    let said = again.refused(400);
    api.eventually("it is over", |view| {
        view.jobs.values().any(|job| job.progress.status.contains(&said))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_the_storage_cannot_stop_is_not_cancelled() {
    let api = on_memory().await;
    let gate = Gate::closing_at(0);
    api.storage.set_gate(gate.clone());
    let client = tokio::spawn({
        let api = api.clone();
        async move { api.put("/storage/ceph/volume/vms/data?new_size=16M").await }
    });
    let task = api.task("it is seen", |job| job.progress.state == JobState::Running).await;
    assert_eq!(task.progress.status, "the storage is at it");
    let refused = api.delete(&format!("/tasks/{}", task.spec.id)).await.refused(400);
    assert!(refused.contains("cannot be cancelled"), "{refused}");
    gate.open();
    client.await.unwrap().ok();
    assert_eq!(api.over().await.progress.state, JobState::Succeeded);
}

/// Each has the gate closed at the call that goes through the volume.
#[tokio::test(start_paused = true)]
async fn a_change_that_cannot_be_cancelled_says_how_far_it_is() {
    let api = on_memory().await;
    let snapshot = "/storage/ceph/snapshot/vms/data/s";
    api.post(snapshot).await.ok();
    for volume in ["other", "trashed"] {
        api.post(&format!("/storage/ceph/volume/vms/{volume}?size=8M")).await.ok();
    }
    api.delete("/storage/ceph/volume/vms/trashed").await.ok();
    let trash = api.get("/storage/ceph/trash").await.ok();
    let trashed = format!("/storage/ceph/trash/vms/{}", trash[0]["id"].as_str().unwrap());
    api.post("/storage/ceph/pool?pool=spare&pgs=8&replcfg=copies=3,mincopies=2").await.ok();
    for volume in ["one", "two"] {
        api.post(&format!("/storage/ceph/volume/spare/{volume}?size=1M")).await.ok();
    }
    let pool = "/storage/ceph/pool/spare?yes-i-really-mean-it=yes";
    let rollback = format!("{snapshot}/rollback");
    let shrink = "/storage/ceph/volume/vms/data?new_size=4M&force=true";
    let removal = "/storage/ceph/volume/vms/other?purge=true";
    let (half, few) = ("4096K of 8192K (50 %)", "2048K of 4096K (50 %)");
    for (method, path, call, status) in [
        (Method::POST, rollback.as_str(), 2, half),
        (Method::PUT, shrink, 2, few),
        (Method::DELETE, removal, 0, half),
        (Method::DELETE, trashed.as_str(), 2, half),
        // Behind two looks and the removal of the first volume.
        (Method::DELETE, pool, 6, "1 of 2 volumes are gone"),
    ] {
        let gate = Gate::closing_at(call);
        api.storage.set_gate(gate.clone());
        let client = tokio::spawn({
            let asked = request(method, path).body(Body::empty()).unwrap();
            let api = api.clone();
            async move { api.send(asked).await }
        });
        let is_on_its_way = |job: &Job| job.progress.current > 0;
        let task = api.task(path, is_on_its_way).await;
        assert!(task.progress.status.starts_with(status), "{path}: {}", task.progress.status);
        let id = task.spec.id.clone();
        let refused = api.delete(&format!("/tasks/{id}")).await.refused(400);
        assert!(refused.contains("cannot be cancelled"), "{refused}");
        gate.open();
        client.await.unwrap().ok();
        let ended = api.over().await.progress.clone();
        assert_eq!((ended.state, &*ended.status), (JobState::Succeeded, "done"), "{path}");
        let forget = |_: &pvc_model::cluster::Cluster| {
            let mut changes = Changes::new();
            changes.push(Change::RemoveJob(id.clone()));
            Ok::<_, Infallible>((changes, ()))
        };
        api.store.change(forget).await.unwrap();
    }
}

/// A server of a body with a length does not ask for more once that has gone.
#[tokio::test(start_paused = true)]
async fn a_download_is_whole_when_all_bytes_have_gone() {
    for asks_for_the_end in [true, false] {
        let api = on_memory().await;
        let (mut body, mut taken) = download(&api).await;
        api.task("it is seen", |job| bytes_of(job) > 0).await;
        while taken < SIZE {
            taken += body.next().await.unwrap().unwrap().len();
        }
        if asks_for_the_end {
            assert!(body.next().await.is_none());
        }
        drop(body);
        let ended = api.over().await.progress.clone();
        assert_eq!((ended.state, &*ended.status), (JobState::Succeeded, "8388608 bytes sent"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_transfer_writes_nothing_and_a_longer_one_seldom() {
    let api = on_memory().await;
    let upload = Uploading::begin(&api);
    upload.send(SIZE / 2).await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    upload.send(SIZE / 2).await;
    upload.end().await.ok();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(api.store.view().jobs.is_empty());

    let upload = Uploading::begin(&api);
    for _ in 0..SIZE >> 16 {
        upload.send(1 << 16).await;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    upload.end().await.ok();
    let path = format!("/tasks/{}/progress", api.over().await.spec.id);
    let writes = api.tree.get(&path).await.unwrap().unwrap().stat.version;
    assert!((4..=6).contains(&writes), "{writes} after the first, in 32 s");
}

#[tokio::test(start_paused = true)]
async fn without_a_worker_that_would_forget_it_nothing_is_recorded() {
    let api = on_memory().await;
    let legacy = json!({ "kinds": ["vm.flush_locks"] });
    api.write("/pvcrs/workers/pvchv1", legacy.to_string()).await;
    let upload = Uploading::begin(&api);
    upload.send(SIZE / 2).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(api.store.view().jobs.is_empty());
    upload.send(SIZE / 2).await;
    upload.end().await.ok();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_does_not_hold_up_a_transfer_and_gets_its_end_when_it_is_back() {
    let connection = FlakyTree::new(EmbeddedTree::in_memory().connect());
    let api = with_data(connection.clone()).await;
    let (mut seen, mut first) = download(&api).await;
    api.task("it is seen", |job| bytes_of(job) > 0).await;
    api.post("/storage/ceph/volume/vms/other?size=8M").await.ok();
    let (mut unseen, mut second) = download_of(&api, "other").await;
    connection.cut();
    tokio::time::sleep(Duration::from_secs(30)).await;
    for (body, taken) in [(&mut seen, &mut first), (&mut unseen, &mut second)] {
        while let Some(piece) = body.next().await {
            *taken += piece.unwrap().len();
        }
        assert_eq!(*taken, SIZE);
    }
    connection.mend();
    let ended = api.over().await;
    assert_eq!(ended.progress.state, JobState::Succeeded);
    assert_eq!(api.store.fresh().await.unwrap().jobs.len(), 1, "the other is over already");
}

/// A worker finds that nobody has the record any more, and ends it.
async fn end_as_a_worker(api: &Api, job: &Job) {
    let ended = job.progress.clone().transfer_ended(TransferEnd::DaemonGone, false, 9);
    let mut changes = Changes::new();
    changes.push(Change::JobProgress(job.spec.id.clone(), ended));
    api.store.change(|_| Ok::<_, Infallible>((changes.clone(), ()))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_transfer_whose_daemon_loses_its_session_is_recorded_anew_and_can_be_cancelled() {
    let connection = Arc::new(EmbeddedTree::in_memory().connect_concrete());
    let api = with_data(connection.clone()).await;
    let upload = Uploading::begin(&api);
    upload.send(SIZE / 2).await;
    let lost = api.task("it is seen", |job| bytes_of(job) > 0).await;
    connection.expire().await;
    api.task("nobody has it", |job| job.claim.is_none()).await;
    end_as_a_worker(&api, &lost).await;
    // Its client is silent: nothing changes but whose it is.
    api.eventually("it is recorded anew", |view| view.jobs.len() == 2).await;
    let view = api.store.view();
    let anew = view.jobs.values().find(|job| job.spec.id != lost.spec.id).unwrap();
    assert!(anew.claim.is_some() && !anew.progress.state.is_over(), "{anew:?}");
    assert_eq!((bytes_of(anew), &anew.spec.work), (SIZE as u64 / 2, &lost.spec.work));
    assert_eq!(anew.progress.started_at, lost.progress.started_at);
    let id = anew.spec.id.clone();
    api.delete(&format!("/tasks/{id}")).await.ok();
    let message = upload.reply.await.unwrap().refused(400);
    assert_eq!(message, format!("it was cancelled, as task `{id}`"));
    api.eventually("it is over", |view| {
        let job = &view.jobs[&id];
        job.progress.state == JobState::Cancelled && job.claim.is_none()
    })
    .await;
    api.nothing_changed().await;
}

#[tokio::test(start_paused = true)]
async fn a_transfer_that_ends_when_its_record_is_lost_leaves_its_end_in_another() {
    let connection = Arc::new(EmbeddedTree::in_memory().connect_concrete());
    let api = with_data(connection.clone()).await;
    let upload = Uploading::begin(&api);
    upload.send(SIZE / 2).await;
    let lost = api.task("it is seen", |job| bytes_of(job) > 0).await;
    connection.expire().await;
    end_as_a_worker(&api, &lost).await;
    upload.send(SIZE / 2).await;
    upload.end().await.ok();
    api.eventually("its end is recorded", |view| {
        view.jobs.values().any(|job| job.progress.state == JobState::Succeeded)
    })
    .await;
    let view = api.store.fresh().await.unwrap();
    assert_eq!(view.jobs.len(), 2);
    assert_eq!(view.jobs[&lost.spec.id].progress.state, JobState::Failed);
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_has_come_whole_waits_for_a_store_that_is_away() {
    for (away, is_taken) in [(60, true), (600, false)] {
        let connection = FlakyTree::new(EmbeddedTree::in_memory().connect());
        let api = with_data(connection.clone()).await;
        let upload = Uploading::begin(&api);
        upload.send(SIZE / 2).await;
        api.task("it is seen", |job| bytes_of(job) > 0).await;
        connection.cut();
        tokio::time::sleep(Duration::from_secs(5)).await;
        upload.send(SIZE / 2).await;
        let reply = tokio::spawn(upload.end());
        tokio::time::sleep(Duration::from_secs(away)).await;
        assert_eq!(reply.is_finished(), !is_taken);
        connection.mend();
        let reply = reply.await.unwrap();
        let ended = api.over().await.progress.clone();
        if is_taken {
            reply.ok();
            assert_eq!(ended.state, JobState::Succeeded, "{ended:?}");
            let begin = api.storage.with_volumes(|volumes| volumes.read(&data(), 0, 3)).unwrap();
            assert_eq!(begin, [b'x'; 3]);
        } else {
            let message = reply.refused(503);
            assert!(message.contains("store has not been reachable for 10"), "{message}");
            assert_eq!((ended.state, ended.status), (JobState::Failed, message));
            api.nothing_changed().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_stops_says_so_of_its_transfers() {
    let api = on_memory().await;
    let upload = Uploading::begin(&api);
    upload.send(SIZE / 2).await;
    api.task("it is seen", |job| bytes_of(job) > 0).await;
    api.state.stopping().cancel();
    assert_eq!(upload.reply.await.unwrap().refused(503), "the daemon stops");
    api.state.changes_done().await;
    let ended = api.store.fresh().await.unwrap().jobs.values().next().unwrap().clone();
    let end = (ended.progress.state, ended.progress.status.as_str(), ended.claim);
    assert_eq!(end, (JobState::Failed, "the daemon stops", None));
}
