//! `pvc cluster what-if` and the program beside it.

use super::*;

/// `pvc` beside a `pvc-sim` that keeps what it is told and says `reply`.
fn with_simulator(user: &User, reply: &str) -> tempfile::TempDir {
    let place = tempfile::tempdir_in(user.home.path()).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_pvc"), place.path().join("pvc")).unwrap();
    let program = place.path().join("pvc-sim");
    let script =
        format!("#!/bin/sh\ncat >$0.input\necho \"$@\" >$0.arguments\ncat <<'END'\n{reply}\nEND\n");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    place
}

fn run_there(user: &User, place: &tempfile::TempDir, args: &[&str]) -> Output {
    let own = user.command(args);
    let environment = own.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let mut command = Command::new(place.path().join("pvc"));
    command.args(args).env_clear().envs(environment).stdin(Stdio::null()).output().unwrap()
}

const WHAT_IF: &str = include_str!("../../../../crates/pvc-cli/tests/wire/what-if.json");

#[test]
fn what_if_asks_the_program_beside_it_about_a_backup_made_at_that_moment() {
    let stub = Stub::start(|request, _| match request.path() {
        "/api/v1/backup" => ok(r#""{\"/schema/version\": \"15\"}""#),
        _ => status(404, "{}"),
    });
    let user = User::of(&stub);
    let place = with_simulator(&user, WHAT_IF.trim_end());
    let output =
        run_there(&user, &place, &["-q", "cluster", "what-if", "node", "hv3", "--death", "hang"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(out(&output).starts_with("If node `"), "{output:?}");
    let kept =
        |what: &str| std::fs::read_to_string(place.path().join(format!("pvc-sim.{what}"))).unwrap();
    assert_eq!(kept("input"), r#"{"/schema/version":"15"}"#);
    let arguments =
        "what-if - --node hv3 --death hang --keepalive-interval 5 --fence-intervals 6\n";
    assert_eq!(kept("arguments"), arguments);
    assert_eq!(stub.lines(), ["GET /backup"], "nothing is changed");

    let json = run_there(&user, &place, &["-q", "cluster", "what-if", "node", "hv3", "-f", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&out(&json)).unwrap();
    let reply: serde_json::Value = serde_json::from_str(WHAT_IF).unwrap();
    assert_eq!(answer, reply["answer"]);
}

#[test]
fn what_if_of_a_file_needs_no_cluster() {
    let user = User::without_connection();
    let place = with_simulator(&user, WHAT_IF.trim_end());
    let file = user.home.path().join("cluster.json");
    std::fs::write(&file, "{}").unwrap();
    let file = file.to_str().unwrap();
    let output = run_there(&user, &place, &["cluster", "what-if", "node", "hv3", "--from", file]);
    assert_eq!(code(&output), 0, "{output:?}");
    let gone =
        run_there(&user, &place, &["cluster", "what-if", "node", "hv3", "--from", "/nonexistent"]);
    assert_eq!(
        (code(&gone), err(&gone).as_str()),
        (2, "error: cannot read `/nonexistent`: no such file or directory\n")
    );
}

#[test]
fn what_if_says_what_the_program_refuses_and_that_it_is_missing() {
    let user = User::without_connection();
    let refused = r#"{"refused": {"not_found": true, "message": "there is no node `hv9`", "hint": "the nodes are: hv1"}}"#;
    let place = with_simulator(&user, refused);
    let line = ["cluster", "what-if", "node", "hv9", "--from", "/dev/null"];
    let output = run_there(&user, &place, &line);
    let said = "error: `/dev/null`: there is no node `hv9`\nhint: the nodes are: hv1\n";
    assert_eq!((code(&output), err(&output).as_str()), (3, said));

    let place = with_simulator(&user, "no JSON");
    let output = run_there(&user, &place, &line);
    assert_eq!(code(&output), 1);
    assert!(err(&output).starts_with("error: `pvc-sim` gave no answer: "), "{output:?}");

    std::fs::remove_file(place.path().join("pvc-sim")).unwrap();
    let output = run_there(&user, &place, &line);
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("is missing\nhint: it belongs to `"), "{output:?}");
}
