//! Course of a task that makes a VM: what it checks once more, its stages, its log and its end.

use pvc_model::job::JobSpec;
use pvc_model::provisioner::TemplateNet;
use pvc_ports::ScriptLevel;
use pvc_store::NewNode;

use super::*;
use crate::crashes::hv1;

impl World {
    /// A job whose VM is not to be recorded.
    async fn defining_nothing() -> World {
        let world = World::new(Case::Provision).await;
        let usual = || world.job.clone();
        world.write(|changes| _ = changes.push(Change::RemoveJob(usual()))).await;
        let spec = || JobSpec {
            id: world.job.clone(),
            work: JobWork::Provision(Box::new(Provision { define: false, ..wanted() })),
            node: "hv1".into(),
            run_on: "hv1".into(),
            submitter: "tests".into(),
            submitted_at: 1,
        };
        world.write(|changes| _ = changes.push(Change::SubmitJob(spec()))).await;
        world
    }

    /// Asserts that both volumes of the script are there.
    async fn assert_both_volumes(&self) {
        for volume in VOLUMES {
            assert!(self.storage.volume(&id(volume)).await.is_ok(), "{volume}");
        }
    }
}

/// Asserts that the log has these lines, in this order.
#[track_caller]
fn assert_logged(log: &[String], lines: &[&str]) {
    let mut rest = log.iter();
    for line in lines {
        assert!(rest.any(|known| known == line), "`{line}` in {log:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_gone_since_a_vm_was_asked_for_is_refused_before_its_script_begins() {
    for (gone, said) in [
        ("room", "bytes are needed"),
        ("node", "`hv1` is in domain state `flushed`, not `ready`"),
        ("memory", "`hv1` has 100 MiB of memory free, and the VM needs 512 MiB"),
        ("profile", "there is no profile `small`"),
        ("script", "profile `small` has no script"),
        ("network", "there is no network `4242`"),
    ] {
        let world = World::new(Case::Provision).await;
        match gone {
            "room" => {
                let vms = PoolName::new("vms");
                world.storage.with_volumes(|volumes| volumes.fill_pool(&vms, 100));
            }
            "node" => {
                let flushed = || NodeChange::Domain(DomainState::Flushed);
                let change = || Change::Node(NodeName::new("hv1"), flushed());
                world.write(|changes| _ = changes.push(change())).await;
            }
            "memory" => {
                let figures = vec![figures_of("hv1", 100, 0.0)];
                world.store.report(figures).await.expect("the tree is open");
            }
            "profile" => world.profiles.alter(|kept| kept.profiles.clear()),
            "script" => world.profiles.alter(|kept| kept.scripts.clear()),
            _ => world.profiles.alter(|kept| {
                let net = TemplateNet { id: 1, vni: "4242".to_owned() };
                kept.network_templates[0].nets.push(net);
            }),
        }
        world.healthy_worker("hv1").await;
        let end = world.end().await;
        assert_eq!(end.state, JobState::Failed, "{gone}: {end:?}");
        assert!(end.status.contains(said), "{gone}: {}", end.status);
        assert_eq!(world.scripts.answers(), [], "{gone}: no script has begun");
        world.assert_nothing_left(gone).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_says_in_which_of_its_eleven_stages_it_is() {
    for (stage, method) in (4..).zip(["setup", "create", "prepare", "install", "cleanup"]) {
        let world = World::new(Case::Provision).await;
        world.scripts.set(method, [ScriptAct::Hang]);
        world.healthy_worker("hv1").await;
        world.until(async || world.progress().current == stage).await;
        let progress = world.progress();
        assert_eq!(progress.total, 11);
        assert_eq!(progress.status, format!("running the script's {method}()"));
        world.cancel().await;
        assert_eq!(world.end().await.state, JobState::Cancelled, "{method}");
        world.assert_nothing_left(method).await;
    }
    let world = World::new(Case::Provision).await;
    world.healthy_worker("hv1").await;
    let end = world.end().await;
    assert_eq!((end.state, end.current, end.total), (JobState::Succeeded, 11, 11));
    let stages = [
        "collecting the configuration of the VM",
        "checking the configuration against the cluster",
        "loading the script and preparing its root directory",
        "running the script's setup()",
        "running the script's create()",
        "VM \"new\" is defined, and assigned to node hv1",
        "running the script's prepare()",
        "running the script's install()",
        "running the script's cleanup()",
        "removing the script's root directory and devices",
        "completing VM \"new\"",
    ];
    assert_logged(&end.log, &stages);
}

#[tokio::test(start_paused = true)]
async fn what_a_script_says_and_prints_is_in_the_log_of_its_task_in_its_order() {
    let world = World::new(Case::Provision).await;
    world.scripts.set_missing_limits("its memory has no limit");
    let says = |level, text: &str| {
        let text = text.to_owned();
        ScriptAct::Send(ScriptMessage::Log { level, text })
    };
    let prints = |line: &str| ScriptAct::Send(ScriptMessage::Wrote(line.to_owned()));
    let acts = [
        says(ScriptLevel::Info, "said"),
        prints("printed"),
        says(ScriptLevel::Warning, "odd"),
        prints("of a command"),
        says(ScriptLevel::Error, "bad"),
        done(Value::Null),
    ];
    world.scripts.set("setup", acts);
    world.healthy_worker("hv1").await;
    let end = world.end().await;
    assert_eq!(end.state, JobState::Succeeded, "{end:?}");
    let lines = [
        "warning: its memory has no limit",
        "said",
        "printed",
        "warning: odd",
        "of a command",
        "error: bad",
    ];
    assert_logged(&end.log, &lines);
}

#[tokio::test(start_paused = true)]
async fn a_new_vm_goes_to_the_node_that_the_selector_of_its_template_prefers() {
    for (load_of_hv1, load_of_hv2, best) in [(0.5, 2.0, "hv1"), (2.0, 0.5, "hv2")] {
        let world = World::new(Case::Provision).await;
        world.profiles.alter(|kept| kept.system_templates[0].node_limit = None);
        let hv2 = || NewNode { name: NodeName::new("hv2"), ..hv1() };
        world.write(|changes| _ = changes.push(Change::AddNode(Box::new(hv2())))).await;
        world.write(|changes| runs(changes, "hv2")).await;
        let loads = [("hv1", load_of_hv1), ("hv2", load_of_hv2)];
        let reports = loads.map(|(node, load)| figures_of(node, 8192, load));
        world.store.report(reports.into()).await.expect("the tree is open");
        world.healthy_worker("hv1").await;
        let end = world.end().await;
        assert_eq!(end.state, JobState::Succeeded, "{end:?}");
        let view = world.store.fresh().await.expect("the tree is open");
        let vm = view.vm("new").expect("it was made");
        assert_eq!(vm.node, Some(NodeName::new(best)));
        assert!(vm.node_limit.is_empty(), "{:?}", vm.node_limit);
    }
}

#[tokio::test(start_paused = true)]
async fn a_script_whose_vm_is_not_to_be_defined_makes_volumes_and_no_vm() {
    let world = World::defining_nothing().await;
    world.healthy_worker("hv1").await;
    let end = world.end().await;
    assert_eq!(end.state, JobState::Succeeded, "{end:?}");
    assert_eq!(end.status, "the script of profile \"small\" has run; no VM is defined");
    let view = world.store.fresh().await.expect("the tree is open");
    assert!(view.vm("new").is_none());
    world.assert_both_volumes().await;
    assert_eq!((world.scripts.running(), world.devices.mapped()), (0, vec![]));

    let world = World::defining_nothing().await;
    world.scripts.set("install", [ScriptAct::Hang]);
    world.healthy_worker("hv1").await;
    world.until(async || world.progress().current == 7).await;
    world.assert_both_volumes().await;
    world.cancel().await;
    assert_eq!(world.end().await.state, JobState::Cancelled);
    world.assert_nothing_left("cancelled").await;
}

/// A script may make a volume by a program such as `rbd`, and have it recorded (`zk_only`).
#[tokio::test(start_paused = true)]
async fn a_volume_that_a_script_has_made_by_itself_is_recorded_and_not_taken_back() {
    let by_hand = id("vms/byhand");
    let lasts = [(done(Value::Null), JobState::Succeeded), (failed(), JobState::Failed)];
    for (last, expected) in lasts {
        let world = World::new(Case::Provision).await;
        world.storage.insert("vms/byhand");
        let add = |name: &str| {
            let arguments = json!({"pool": "vms", "name": name, "size": "1G", "zk_only": true});
            call("ceph.add_volume", arguments)
        };
        world.scripts.set("setup", [add("byhand"), add("absent"), done(Value::Null)]);
        world.scripts.set("install", [last]);
        world.healthy_worker("hv1").await;
        let end = world.end().await;
        assert_eq!(end.state, expected, "{end:?}");
        let answers = world.scripts.answers();
        let is_done = |answer: &ScriptOrder| match answer {
            ScriptOrder::Returned(value) => Some(value[0] == true),
            _ => None,
        };
        let of_setup: Vec<bool> = answers.iter().filter_map(is_done).take(2).collect();
        assert_eq!(of_setup, [true, false], "{answers:?}");
        world.assert_nothing_left("but what is the script's own").await;
        let view = world.store.fresh().await.expect("the tree is open");
        assert!(view.volumes.contains_key(&by_hand), "{end:?}");
        assert!(!view.volumes.contains_key(&id("vms/absent")), "{end:?}");
        assert!(world.storage.volume(&by_hand).await.is_ok(), "{end:?}");
    }
}

/// A task says what it cannot take back yet, with the reason, and waits for it.
#[tokio::test(start_paused = true)]
async fn a_volume_that_the_storage_does_not_remove_is_named_and_keeps_its_task_until_it_does() {
    let world = World::hanging().await;
    world.healthy_worker("hv1").await;
    world.until_mapped().await;
    let opened = id(VOLUMES[1]);
    world.storage.with_volumes(|volumes| volumes.open(&opened, "somebody"));
    world.cancel().await;
    let said = "volume `vms/new_sdb` is in use by `somebody`; it will be tried again";
    world.until(async || world.progress().status == said).await;
    let progress = world.progress();
    assert!(!progress.state.is_over(), "{progress:?}");
    assert_logged(&progress.log, &[said]);
    world.storage.with_volumes(|volumes| volumes.close_all("somebody"));
    assert_eq!(world.end().await.state, JobState::Cancelled);
    world.assert_nothing_left("when nobody has it open any more").await;
}
