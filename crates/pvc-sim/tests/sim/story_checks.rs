//! Stories that are told wrongly: what must fail does, and says why.

use std::fs;
use std::process::{Command, Output};

/// Plays a story of these words.
fn play(scenario: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("README.md"), "A story.\n").unwrap();
    fs::write(folder.path().join("scenario.toml"), scenario).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pvc-sim"));
    let Output { status, stdout, stderr } =
        command.arg("story").arg(folder.path()).output().unwrap();
    (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

const QUIET: &str = "
    [[vm]]
    name = \"web\"
    on = \"pvchv2\"
";

/// A story with a VM on pvchv2 that loses its power, in which `more` must hold.
fn power_loss(fenced: &str, more: &str, finally: &str) -> (Option<i32>, String) {
    play(&format!(
        "fenced = [{fenced}]\n{more}\n{QUIET}
        [[happens]]
        do = \"power off pvchv2\"
        [finally]
        holds = [\"{finally}\"]"
    ))
}

#[test]
fn a_story_that_is_true_passes() {
    let (code, said) = power_loss("\"pvchv2\"", "", "web runs on pvchv1 or pvchv3");
    assert_eq!((code, said.as_str()), (Some(0), ""));
}

#[test]
fn what_does_not_hold_in_the_end_fails_the_story_with_what_is_so() {
    let (code, said) = power_loss("\"pvchv2\"", "", "web is disable");
    assert_eq!(code, Some(1));
    assert!(
        said.contains("expected: within 300 s: web is disable\nis so:    it is start\n"),
        "{said}"
    );
    assert!(said.contains("-- power off pvchv2"), "the end of the log: {said}");
}

#[test]
fn what_holds_and_must_never_fails_the_story_at_that_moment() {
    let (code, said) = power_loss("\"pvchv2\"", "never = [\"web runs nowhere\"]", "web runs");
    assert_eq!(code, Some(1));
    assert!(said.contains("expected: never: web runs nowhere"), "{said}");
    let (code, said) = power_loss("\"pvchv2\"", "always = [\"pvchv2 is on\"]", "web runs");
    assert_eq!(code, Some(1));
    assert!(said.contains("expected: at all times: pvchv2 is on\nis so:    it is off, "), "{said}");
}

#[test]
fn a_fence_that_is_not_reported_fails_the_story_and_so_does_one_that_does_not_come() {
    let (code, said) = power_loss("", "", "web runs on pvchv1");
    assert_eq!(code, Some(1));
    assert!(said.contains("expected: nobody is fenced\nis so:    pvchv2 is"), "{said}");
    let (code, said) = power_loss("\"pvchv2\", \"pvchv3\"", "", "web runs on pvchv1 or pvchv3");
    assert_eq!(code, Some(1));
    assert!(said.contains("expected: pvchv3 is fenced\nis so:    it never was"), "{said}");
}

#[test]
fn an_ask_has_the_answer_that_is_expected_or_the_story_fails() {
    let asks = |answer: &str| {
        let what = "do = \"vm restart web\"\n".to_owned() + answer;
        play(&format!(
            "{QUIET}state = \"stop\"\n[[happens]]\n{what}\n[finally]\nholds = [\"web runs \
             nowhere\"]"
        ))
    };
    let (code, said) = asks("");
    assert_eq!(code, Some(1));
    assert!(said.contains("expected: `vm restart web` is done\nis so:    VM"), "{said}");
    assert_eq!(asks("answer = \"refused: not `start`\"").0, Some(0));
    assert_eq!(asks("answer = \"refused: it is raining\"").0, Some(1));
    assert_eq!(asks("answer = \"nothing\"").0, Some(1));
}

#[test]
fn what_an_operator_chose_of_fencing_is_what_the_daemons_do() {
    let chosen = |choice: &str, fenced: &str, finally: &str| {
        power_loss(fenced, &format!("world.{choice}"), finally)
    };
    assert_eq!(
        chosen("fence_intervals = 6", "\"pvchv2\"", "web runs on pvchv1 or pvchv3").0,
        Some(0)
    );
    let (code, said) = chosen("fence_intervals = 0", "\"pvchv2\"", "pvchv2 is off");
    assert!(
        code == Some(1) && said.contains("expected: pvchv2 is fenced\nis so:    it never was"),
        "{said}"
    );
    let (code, said) =
        chosen("successful_fence = \"none\"", "\"pvchv2\"", "web runs on pvchv1 or pvchv3");
    assert!(code == Some(1) && said.contains("is so:    it runs"), "{said}");
}

#[test]
fn who_writes_where_nobody_knows_what_it_means_and_who_connects_anew_is_found() {
    let quiet = |what: &str, holds: &str| {
        play(&format!(
            "{QUIET}[[happens]]\ndo = \"{what}\"\n[finally]\nwithin = \"20s\"\nholds = \
             [\"{holds}\"]"
        ))
    };
    assert_eq!(quiet("unknown keys appear", "unknown keys are untouched").0, Some(0));
    let (code, said) = quiet("restart worker of pvchv1", "nobody connected anew");
    assert!(code == Some(1) && said.contains("new connections"), "{said}");
    let (code, said) = quiet("nothing", "web has 512 MiB");
    assert!(code == Some(1) && said.contains("its guest has 1024 MiB"), "{said}");
    let (code, said) = quiet("nothing", "pvchv2 has no figures");
    assert!(code == Some(1) && said.contains("its record says"), "{said}");
}

#[test]
fn a_story_that_is_known_to_fail_must() {
    let (code, said) = power_loss("\"pvchv2\"", "known = \"it rains\"", "web is disable");
    assert_eq!(code, Some(3));
    assert!(said.contains("known:    it rains"), "{said}");
    let (code, said) = power_loss("\"pvchv2\"", "known = \"it rains\"", "web runs");
    assert_eq!(code, Some(1));
    assert!(said.contains("take `known` away"), "{said}");
}

#[test]
fn the_ground_truth_holds_without_being_asked_for() {
    // Power switches that say "off" without having cut anything, in this world.
    let (code, said) = play(
        "fenced = [\"pvchv2\"]
        world.mutation = \"unconfirmed\"
        [[vm]]
        name = \"web\"
        on = \"pvchv2\"
        [[happens]]
        do = \"cut the cluster network of pvchv2\"
        [finally]
        holds = []
        stays = \"3m\"",
    );
    assert_eq!(code, Some(1));
    assert!(said.contains("expected: I3 holds") || said.contains("expected: I1 holds"), "{said}");
}

/// Plays a story that is true in a world with a deliberate flaw.
fn play_flawed(name: &str, variant: &str, mutation: &str) -> (Option<i32>, String) {
    let file = format!("{}/../../scenarios/{name}/scenario.toml", env!("CARGO_MANIFEST_DIR"));
    let scenario = fs::read_to_string(file).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("README.md"), "A story.\n").unwrap();
    let flawed = format!("world.mutation = \"{mutation}\"\n{scenario}");
    fs::write(folder.path().join("scenario.toml"), flawed).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pvc-sim"));
    command.arg("story").arg(folder.path()).args(["--variant", variant]);
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

#[test]
fn stories_that_are_true_find_a_broken_safety_logic() {
    for (name, variant, mutation, found) in [
        ("the-fencer-is-killed", "after-the-mark", "unconfirmed", "expected: I3 holds"),
        ("cut-off-until-it-is-fenced", "hypervisor-all", "unconfirmed", "expected: I3 holds"),
        ("a-clock-is-an-hour-off", "victim-ahead", "wall-clock", "expected: I8 holds"),
        ("a-clock-is-an-hour-off", "primary-ahead", "wall-clock", "expected: I8 holds"),
    ] {
        let (code, said) = play_flawed(name, variant, mutation);
        assert!(
            code == Some(1) && said.contains(found),
            "{name}/{variant} with {mutation}: {said}"
        );
    }
}

#[test]
fn what_is_wrong_in_the_file_is_reported_with_its_line_and_what_is_known() {
    for (scenario, why) in [
        (
            "[finaly]\nholds = []",
            "scenario.toml:1: unknown field `finaly`, expected one of `primary`, `fenced`",
        ),
        (
            "[finally]\nholds = [\n  \"all is wel\",\n]",
            "scenario.toml:3: `all is wel` is no fact. Closest are:\n  all is well",
        ),
        (
            "[finally]\nholds = [\"pvchv9 is on\"]",
            "scenario.toml:2: `pvchv9 is on`: `pvchv9` is no node; there are pvchv1, pvchv2, \
             pvchv3",
        ),
        (
            "[[happens]]\ndo = \"cut the storage network of hv1\"\n[finally]\nholds = []",
            "scenario.toml:2: `cut the storage network of hv1`: `hv1` is no node; there are \
             pvchv1, pvchv2, pvchv3",
        ),
        (
            "[[happens]]\nat = \"soon\"\ndo = \"nothing\"\n[finally]\nholds = []",
            "scenario.toml:2: `soon` is no time",
        ),
        (
            "[[vm]]\nname = \"web\"\nmemory = \"much\"\n[finally]\nholds = []",
            ":3: `much` is no amount of memory",
        ),
        (
            "[[vm]]\nname = \"web\"\nmemory = \"99999999999 GiB\"\n[finally]\nholds = []",
            ":3: `99999999999 GiB` is no amount of memory",
        ),
        (
            "[[vm]]\nname = \"my vm\"\n[finally]\nholds = []",
            ":2: VM name `my vm` contains a space; letters, digits, `.`, `-` and `_` are allowed",
        ),
        ("[[node]]\nname = \"\"\n[finally]\nholds = []", ":2: a node name cannot be empty"),
        (
            "[[vm]]\nname = \"9a3b6a7e-1111-4222-8333-444455556666\"\n[finally]\nholds = []",
            ":2: `9a3b6a7e-1111-4222-8333-444455556666` is a UUID and no name",
        ),
        (
            "[[vm]]\nname = \"web\"\ncount = 0\n[finally]\nholds = []",
            ":3: `count` is 1 to 1000, not 0",
        ),
        (
            "[[vm]]\nname = \"web\"\non = \"pvchv1\"\nlimit = [\"pvchv2\"]\n[finally]\nholds = []",
            ":3: `pvchv1` is none of its `limit`",
        ),
        (
            "[world]\nsuccessful_fence = \"maybe\"\n[finally]\nholds = []",
            ":2: `maybe` is no fence action; there are migrate, none",
        ),
        (
            "[[vm]]\nname = \"pvchv1\"\n[finally]\nholds = []",
            "`pvchv1` is the name of more than one thing",
        ),
        (
            "[finally]\nholds = [\"{vm} runs\"]",
            ":2: `{vm} runs`: no variant says what is in braces",
        ),
        (
            "[finally]\nholds = []\n[[variant]]\nname = \"x\"\na = \"y\"",
            "no sentence uses `{a}` of variant x",
        ),
        (
            "[[happens]]\ndo = \"nothing\"\nanswer = \"42\"\n[finally]\nholds = []",
            ":3: `42` is no answer",
        ),
        ("holds = [", "scenario.toml:1: "),
    ] {
        let (code, said) = play(scenario);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(why), "{said}\nis not: {why}");
    }
}

/// A story whose operator plugs an interface into a VM, with its job standing still inside.
fn attachment(back: &str, finally: &str) -> (Option<i32>, String) {
    play(&format!(
        "{QUIET}[[happens]]\ndo = \"next job stops inside step 1; vm attach interface to web\"
        answer = \"anything\"
        [[happens]]\nafter = \"job stands still; web has an interface more\"\nwithin = \"20s\"
        do = \"{back}\"\n[finally]\nwithin = \"20s\"\nholds = [{finally}]"
    ))
}

#[test]
fn a_job_that_stands_still_is_not_over_before_it_goes_on_or_another_worker_has_it() {
    let over = "\"every job is over\"";
    assert_eq!(attachment("job goes on", over), (Some(0), String::new()));
    assert_eq!(attachment("kill worker of pvchv2", over), (Some(0), String::new()));
    let (code, said) = attachment("nothing", over);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("(vm.device_attach of web) is Running"), "{said}");
    let (code, said) = attachment("nothing", "");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("expected: every job is over, and done or undone"), "{said}");
}

#[test]
fn a_story_has_a_variant_for_every_combination() {
    let each = |words: &str| {
        play(&format!(
            "[[vm]]\nname = \"{{vm}}\"\n[finally]\nholds = [\"{{vm}} {{does}}\"]
            [[variant]]\nname = \"x\"\nvm = \"web\"\n[[variant]]\nname = \"y\"\nvm = \"db\"
            [[each.end]]\nname = \"a\"\ndoes = \"runs\"\n[[each.end]]\nname = \"b\"\n{words}"
        ))
    };
    let (code, said) = each("does = \"runs nowhere\"");
    assert!(code == Some(2) && said.contains("with one of: x-a, x-b, y-a, y-b"), "{said}");
    let (code, said) = each("vm = \"mail\"");
    assert!(code == Some(2) && said.contains("`vm` of `each.end` is said before"), "{said}");
}

#[test]
fn a_history_of_hosts_that_a_seed_does_not_have_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("history");
    fs::write(&file, "{\"at\": 1000, \"do\": {\"PowerLoss\": 99}}\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pvc-sim"));
    command.args(["one", "--seed", "1", "--history"]).arg(&file);
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.starts_with("error: PowerLoss(99): seed 1 has "), "{said}");
}

#[test]
fn a_step_that_would_come_too_late_is_an_error() {
    let steps = "
        [[happens]]
        at = \"20s\"
        do = \"power off pvchv2\"
        [[happens]]
        at = \"10s\"
        do = \"power on pvchv2\"
        [finally]
        holds = [\"all is well\"]";
    let (code, said) = play(steps);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("scenario.toml:6: `10s` is over when its turn comes"), "{said}");
}
