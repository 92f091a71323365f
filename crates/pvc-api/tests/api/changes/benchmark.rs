//! Benchmarks of the storage are run by a task of the primary, and their results are kept.

use pvc_model::NodeName;
use pvc_model::job::JobWork;
use pvc_ports::{Database as _, Statement};
use serde_json::Value;

use super::*;

const NODE: &str = "pvchv1";

/// A worker that does nothing, so that tasks stay as they are.
async fn at_rest() -> Api {
    let api = with_vms(0).await;
    let kinds = json!({ "kinds": JobWork::KINDS });
    api.write("/pvcrs/workers/pvchv1", kinds.to_string()).await;
    api
}

#[tokio::test]
async fn a_benchmark_is_run_by_a_task_of_the_primary_and_its_result_is_kept() {
    let api = with_vms(0).await;
    api.get("/storage/ceph/benchmark").await.refused(404);
    api.start_worker(NODE);
    api.eventually("the worker is there", |view| view.workers.contains_key(&NodeName::new(NODE)))
        .await;
    let submitted = api.post("/storage/ceph/benchmark?pool=vms&name=new-disks").await;
    assert_eq!(submitted.status, 202, "{submitted:?}");
    let task = submitted.json();
    assert_eq!(task["task_name"], "storage.benchmark");
    assert_eq!(task["run_on"], "pvchv1 (primary)");
    api.eventually("it is done", |view| view.jobs.values().any(|job| job.progress.state.is_over()))
        .await;
    let found = api.get("/storage/ceph/benchmark?job=new-disks").await.ok();
    assert_eq!(found.as_array().map(Vec::len), Some(1), "{found}");
    assert_eq!(
        (&found[0]["id"], &found[0]["job"], &found[0]["test_format"]),
        (&json!(1), &json!("new-disks"), &json!(2))
    );
    let test = &found[0]["benchmark_result"]["rand_write_4K_lowdepth"];
    assert_eq!(test["jobs"][0]["write"]["iops"], 5.5, "{found}");
    assert!(test["avg_cpu_util_percent"]["ceph-osd"].is_number(), "{found}");
    api.get("/storage/ceph/benchmark?job=another").await.refused(404);

    let submitted = api.post("/storage/ceph/benchmark?pool=vms").await;
    assert_eq!(submitted.status, 202, "{submitted:?}");
    api.eventually("both are done", |view| {
        view.jobs.len() == 2 && view.jobs.values().all(|job| job.progress.state.is_over())
    })
    .await;
    let all = api.get("/storage/ceph/benchmark").await.ok();
    let name = all[0]["job"].as_str().unwrap();
    assert!(name.ends_with("_pvchv1") && name.contains('T'), "after time and node: {name}");
    assert_eq!(all[1]["job"], "new-disks", "the newest first");
    api.post("/storage/ceph/benchmark?pool=vms&name=new-disks").await.refused(400);
}

#[tokio::test]
async fn benchmarks_of_pvc_1_0_3_are_shown_after_ours_and_ours_without_its_database() {
    let api = with_vms(0).await;
    api.get("/storage/ceph/benchmark").await.refused(404);
    for (job, format, result) in [
        ("flat", 0, r#"{"seq_read": {"bandwidth": "1"}}"#),
        ("plain", 1, r#"{"seq_read": {"jobs": []}}"#),
        ("odd", 2, "no JSON"),
        ("left", 2, "Running"),
    ] {
        let words = "INSERT INTO storage_benchmarks (job, test_format, result) VALUES ($1, $2, $3)";
        let row = Statement::new(words).with(job).with(i64::from(format)).with(result);
        let mut transaction = api.database.begin().await.unwrap();
        transaction.run(row).await.unwrap();
        transaction.commit().await.unwrap();
    }
    let shown = |list: &Value| -> Vec<(String, i64, Value)> {
        let one = |it: &Value| {
            (
                it["job"].as_str().unwrap().to_owned(),
                it["test_format"].as_i64().unwrap(),
                it["benchmark_result"].clone(),
            )
        };
        list.as_array().unwrap().iter().map(one).collect()
    };
    let flat = ("flat".to_owned(), 0, json!({ "seq_read": { "bandwidth": "1" } }));
    let found = shown(&api.get("/storage/ceph/benchmark").await.ok());
    assert_eq!(
        found,
        [
            ("left".to_owned(), 2, json!("Running")),
            ("odd".to_owned(), 2, json!({})),
            ("plain".to_owned(), 1, json!({ "seq_read": { "jobs": [] } })),
            flat.clone(),
        ]
    );
    assert_eq!(shown(&api.get("/storage/ceph/benchmark?job=flat").await.ok()), [flat]);
    api.start_worker(NODE);
    api.eventually("the worker is there", |view| view.workers.contains_key(&NodeName::new(NODE)))
        .await;
    let submitted = api.post("/storage/ceph/benchmark?pool=vms&name=new").await;
    assert_eq!(submitted.status, 202, "{submitted:?}");
    api.eventually("it is done", |view| view.jobs.values().any(|job| job.progress.state.is_over()))
        .await;
    let found = shown(&api.get("/storage/ceph/benchmark").await.ok());
    assert_eq!((found.len(), found[0].0.as_str()), (5, "new"));
    api.database.set_dead(true);
    let found = shown(&api.get("/storage/ceph/benchmark").await.ok());
    assert_eq!((found.len(), found[0].0.as_str()), (1, "new"));
    let away = api.get("/storage/ceph/benchmark?job=flat").await.refused(503);
    assert!(away.contains("cannot be reached"), "{away}");
}

#[tokio::test]
async fn benchmarks_of_pvc_1_0_3_are_read_once_for_all_who_ask_at_once() {
    let api = with_vms(0).await;
    api.get("/storage/ceph/benchmark").await.refused(404);
    let before = api.database.begun();
    let asked = (0..40).map(|_| api.get("/storage/ceph/benchmark"));
    for reply in futures::future::join_all(asked).await {
        reply.refused(404);
    }
    let begun = api.database.begun() - before;
    assert!((1..10).contains(&begun), "{begun}");
}

#[tokio::test]
async fn a_benchmark_that_cannot_be_is_refused() {
    let api = at_rest().await;
    api.post("/storage/ceph/benchmark").await.refused(400);
    let words = api.post("/storage/ceph/benchmark?pool=none").await.refused(404);
    assert!(words.contains("there is no pool `none`"), "{words}");
    api.post("/storage/ceph/benchmark?pool=vms&name=..%2fx").await.refused(400);
    let first = api.post("/storage/ceph/benchmark?pool=vms").await;
    assert_eq!(first.status, 202, "{first:?}");
    let words = api.post("/storage/ceph/benchmark?pool=vms").await.refused(400);
    assert!(words.contains("is measured by task"), "{words}");
}

#[tokio::test]
async fn without_a_worker_that_can_a_benchmark_is_refused() {
    let api = with_vms(0).await;
    let words = api.post("/storage/ceph/benchmark?pool=vms").await.refused(400);
    assert!(words.contains("no worker of node `pvchv1`"), "{words}");
}

#[tokio::test]
async fn a_volume_is_made_copied_renamed_or_restored_to_no_name_of_benchmarks() {
    let api = with_vms(0).await;
    for volume in ["data", "old"] {
        api.post(&format!("/storage/ceph/volume/vms/{volume}?size=1M")).await.ok();
    }
    api.delete("/storage/ceph/volume/vms/old").await.ok();
    let trash = api.get("/storage/ceph/trash").await.ok();
    let trashed = format!("/storage/ceph/trash/vms/{}", trash[0]["id"].as_str().unwrap());
    let volume = "/storage/ceph/volume/vms";
    for name in ["pvcbenchmark", "pvcbenchmark-00000001"] {
        let made = api.post(&format!("{volume}/{name}?size=1M")).await;
        let copied = api.post(&format!("{volume}/data/clone?new_volume={name}")).await;
        let renamed = api.put(&format!("{volume}/data?new_name={name}")).await;
        let restored = api.post(&format!("{trashed}/restore?new_name={name}")).await;
        for refused in [made, copied, renamed, restored] {
            let words = refused.refused(400);
            assert!(words.contains("benchmarks make and remove"), "{words}");
        }
    }
    let listed = api.get("/storage/ceph/volume").await.ok();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    // Of a snapshot it is a name as any other.
    api.post("/storage/ceph/snapshot/vms/data/pvcbenchmark").await.ok();
}

#[tokio::test]
async fn a_benchmark_at_work_is_listed_as_such() {
    let api = at_rest().await;
    let submitted = api.post("/storage/ceph/benchmark?pool=vms&name=new-disks").await;
    let record = json!({
        "name": "new-disks", "job": submitted.json()["task_id"], "volume": "vms/pvcbenchmark",
        "test_format": 2, "result": null,
    });
    api.write("/pvcrs/benchmarks/1", record.to_string()).await;
    let found = api.get("/storage/ceph/benchmark").await.ok();
    assert_eq!(found[0]["benchmark_result"], "Running");
}

#[tokio::test]
async fn a_result_that_cannot_be_read_and_one_without_a_task_are_shown_as_such() {
    let api = with_vms(0).await;
    let record = |result: Option<&str>| {
        json!({
            "name": "odd", "job": "00000001", "volume": "vms/pvcbenchmark", "test_format": 2,
            "result": result,
        })
        .to_string()
    };
    api.write("/pvcrs/benchmarks/1", record(Some("no JSON"))).await;
    let found = api.get("/storage/ceph/benchmark").await.ok();
    assert_eq!(found[0]["benchmark_result"], json!({}));
    api.write("/pvcrs/benchmarks/1", record(None)).await;
    api.get("/storage/ceph/benchmark").await.refused(404);
}
