//! A pool is measured by one request after a question, and what comes of it is read by two.

use super::*;

/// A server with the recorded benchmarks, which takes another.
fn server(request: &Received, _: usize) -> Reply {
    match (request.method.as_str(), request.path()) {
        ("GET", "/api/v1/storage/ceph/benchmark") => {
            let all: Vec<serde_json::Value> = serde_json::from_str(BENCHMARKS).unwrap();
            let is_wanted = |one: &&serde_json::Value| {
                let name = one["job"].as_str().unwrap();
                !request.line().contains("job=") || request.line().contains(&format!("job={name}"))
            };
            let found: Vec<_> = all.iter().filter(is_wanted).collect();
            match found.is_empty() {
                true => status(404, r#"{"message": "there is no benchmark"}"#),
                false => ok(serde_json::json!(found).to_string()),
            }
        }
        ("GET", "/api/v1/tasks/0a1b2c3d") => {
            ok(r#"{"state": "SUCCESS", "current": 1, "total": 1, "status": "it is done"}"#)
        }
        ("POST", _) => {
            let task =
                r#"{"task_id": "0a1b2c3d", "task_name": "storage.benchmark", "run_on": "hv1"}"#;
            status(202, task)
        }
        _ => status(404, r#"{"message": "nothing of that name"}"#),
    }
}

fn run(user: &User, line: &str) -> Output {
    let words: Vec<&str> =
        ["-q", "storage", "benchmark"].into_iter().chain(line.split(' ')).collect();
    user.answering("n\n", &words)
}

#[test]
fn a_pool_is_measured_after_a_yes_by_one_request() {
    let stub = Stub::start(server);
    let user = User::of(&stub);
    assert!(out(&run(&user, "run vms")).ends_with("Aborted.\n"));
    assert_eq!(changes(&stub), Vec::<String>::new());
    let output = run(&user, "run vms --name disks -y");
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(out(&output).ends_with("SUCCESS: it is done\n"), "{output:?}");
    assert_eq!(changes(&stub), ["POST /storage/ceph/benchmark?pool=vms&name=disks"]);
}

#[test]
fn benchmarks_are_listed_drawn_and_set_beside_each_other() {
    let stub = Stub::start(server);
    let user = User::of(&stub);
    let listed = run(&user, "list -f raw");
    assert!(out(&listed).contains("new-disks\n2024-11-14T12:00:00_hv1\n"), "{listed:?}");
    let shown = run(&user, "info new-disks");
    assert!(code(&shown) == 0 && out(&shown).contains('█'), "{shown:?}");
    let compared = run(&user, "info new-disks --compare 20201114120000");
    assert!(code(&compared) == 0 && out(&compared).contains("20201114120000"), "{compared:?}");
    let absent = run(&user, "info none");
    assert_eq!(code(&absent), 3, "{absent:?}");
    assert!(err(&absent).contains("there is no benchmark"), "{absent:?}");
    assert_eq!(changes(&stub), Vec::<String>::new());
}
