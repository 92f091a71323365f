//! Calls by which a script changes other VMs than its own.

use super::*;

/// The XML of a VM that no task makes.
fn other_xml(name: &str, uuid: Uuid) -> String {
    xml().replace("web1", name).replace(&UUID.to_string(), &uuid.to_string())
}

/// Arguments of `vm.define_vm`, as the script's module sends them.
fn definition(xml: &str) -> Value {
    json!({
        "config_data": xml,
        "target_node": null,
        "node_limit": ["hv1"],
        "node_selector": "load",
        "node_autostart": true,
        "migration_method": "none",
        "migration_max_downtime": 500,
        "profile": "small",
        "tags": [{"name": "kept", "type": "user", "protected": true}, "plain"],
        "initial_state": "stop",
    })
}

fn of_vm(function: &str, vm: &str) -> ScriptAct {
    call(function, json!({ "domain": vm }))
}

#[tokio::test(start_paused = true)]
async fn a_script_defines_starts_ends_and_removes_other_vms() {
    let world = World::new(Case::Provision).await;
    world.storage.insert("vms/other_sda");
    let tpm = "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm></devices>";
    let with_tpm = other_xml("other", OTHER).replace("</devices>", tpm);
    let calls = vec![
        call("vm.define_vm", definition(&other_xml("kept", Uuid::from_u128(78)))),
        call("vm.define_vm", definition(&with_tpm)),
        of_vm("vm.start_vm", "other"),
        of_vm("vm.shutdown_vm", "other"),
        of_vm("vm.stop_vm", &OTHER.to_string()),
        of_vm("vm.remove_vm", "other"),
        of_vm("vm.start_vm", "kept"),
        of_vm("vm.undefine_vm", "web1"),
    ];
    let (number, answers) = (calls.len(), world.answers_to(calls).await);
    let is_done = |answer: &Result<Value, String>| answer.as_ref().is_ok_and(|it| it[0] == true);
    assert!(answers.len() == number && answers.iter().all(is_done), "{answers:?}");
    let said = answers[5].as_ref().expect("it is done")[1].to_string();
    assert!(said.contains("with 1 volumes, of which 1 are in the trash"), "{said}");

    let view = world.store.fresh().await.expect("the tree is open");
    let kept = view.vm("kept").expect("it was defined");
    assert_eq!((&kept.state, kept.max_downtime_ms), (&VmState::Start, 500));
    assert_eq!((&kept.selector, &kept.migration_method), (&Some(Selector::Load), &None));
    let tags: Vec<_> = kept.tags.iter().map(|tag| (tag.name.as_str(), tag.protected)).collect();
    assert_eq!((tags, kept.autostart), (vec![("kept", true), ("plain", false)], true));
    assert!(view.vm("other").is_none() && view.vm("web1").is_none());
    // With its volumes went one of them alone.
    assert!(world.storage.volume(&id("vms/other_sda")).await.is_err());
    assert!(world.storage.volume(&id("vms/web1_sda")).await.is_ok());
    let log = world.progress().log.join("\n");
    for line in [
        "has defined VM \"kept\"",
        "\"other\" is shut down",
        "has removed VM \"web1\" and 0 volumes",
        "has removed VM \"other\" and 1 volumes; its TPM stays on nodes where it has run",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
    assert!(!log.contains("0 volumes;"), "nothing of VM `web1` stays: {log}");
}

#[tokio::test(start_paused = true)]
async fn what_a_script_asks_of_other_vms_is_checked_as_requests_are() {
    let world = World::new(Case::Provision).await;
    world.write(|changes| _ = changes.vm(UUID, VmChange::State(VmState::Start))).await;
    let defining = |key: &str, value: Value| {
        let mut given = definition(&other_xml("other", OTHER));
        given[key] = value;
        call("vm.define_vm", given)
    };
    let of_xml = |xml: &str| defining("config_data", xml.into());
    let refused = [
        (of_xml(&other_xml("other", NEW)), "is the one that this task makes"),
        (of_xml(&other_xml("new", OTHER)), "is being made by task"),
        (of_xml(&other_xml("web1", OTHER)), "exists already"),
        (of_xml(&other_xml("other", UUID)), "exists already"),
        (of_xml("<domain>"), "cannot be taken"),
        (defining("initial_state", "start".into()), "`start_vm` starts it"),
        (defining("node_selector", "best".into()), "`none` or one of mem"),
        (defining("target_node", "hv9".into()), "no node `hv9`"),
        (defining("migration_max_downtime", "soon".into()), "`soon` is not a whole number"),
        (defining("migration_max_downtime", json!(-1)), "`-1` is not a whole number"),
        (of_vm("vm.start_vm", "absent"), "no VM `absent`"),
        (of_vm("vm.remove_vm", "web1"), "is not off"),
        (of_vm("vm.undefine_vm", "web1"), "is not off"),
        (of_vm("vm.remove_vm", "absent"), "no VM `absent`"),
    ];
    let raised = [
        (defining("tags", json!([1])), "no list of tags"),
        (defining("migration_max_downtime", json!([1])), "no text"),
        (defining("node_limit", json!({})), "no list of texts"),
        (call("vm.define_vm", json!({})), "no text"),
        (call("vm.start_vm", json!({})), "no text"),
    ];
    let ((refused, reasons), (raised, causes)): ((Vec<_>, Vec<_>), (Vec<_>, Vec<_>)) =
        (refused.into_iter().unzip(), raised.into_iter().unzip());
    let number = refused.len();
    let answers = world.answers_to(refused.into_iter().chain(raised).collect()).await;
    let (refused, raised) = answers.split_at(number);
    for (answer, why) in refused.iter().zip(reasons) {
        let answer = answer.as_ref().expect("it is a pair");
        let said = answer[1].as_str().expect("a message");
        assert!(answer[0] == false && said.contains(why), "{why}: {said}");
    }
    assert_eq!(raised.len(), causes.len());
    for (answer, why) in raised.iter().zip(causes) {
        assert!(answer.as_ref().is_err_and(|said| said.contains(why)), "{why}: {answer:?}");
    }
    let view = world.store.fresh().await.expect("the tree is open");
    assert!(view.vm("other").is_none());
    assert_eq!(view.vm("web1").expect("it is left alone").state, VmState::Start);
}

#[tokio::test(start_paused = true)]
async fn no_guest_gets_a_volume_that_the_script_has_mapped_nor_is_its_own_vm_touched() {
    let world = World::new(Case::Provision).await;
    let map = |function: &str, name: &str| call(function, json!({"pool": "vms", "name": name}));
    let with_own = other_xml("other", OTHER).replace("other_sda", "new_sda");
    let mapped = "is being worked on by the script of task";
    let own = "is the one that this task makes";
    let calls = vec![
        (map("ceph.map_volume", "new_sda"), None),
        (map("ceph.map_volume", "web1_sdb"), None),
        (of_vm("vm.start_vm", "web1"), Some(mapped)),
        (of_vm("vm.remove_vm", "web1"), Some(mapped)),
        (call("vm.define_vm", definition(&with_own)), None),
        (of_vm("vm.start_vm", "other"), Some(mapped)),
        (of_vm("vm.start_vm", "new"), Some(own)),
        (of_vm("vm.stop_vm", &NEW.to_string()), Some(own)),
        (of_vm("vm.undefine_vm", "new"), Some(own)),
        (of_vm("vm.remove_vm", "new"), Some(own)),
        (map("ceph.unmap_volume", "web1_sdb"), None),
        (of_vm("vm.start_vm", "web1"), None),
        (map("ceph.map_volume", "web1_sdb"), Some("not off")),
    ];
    let (calls, reasons): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
    let answers = world.answers_in("install", ScriptPhase::Install, calls).await;
    assert_eq!(answers.len(), reasons.len(), "{answers:?}");
    for (answer, why) in answers.iter().zip(reasons) {
        let answer = answer.as_ref().expect("it is a pair");
        let said = answer[1].as_str().expect("a message");
        let is_right = why.map_or(answer[0] == true, |why| said.contains(why));
        assert!(is_right, "{why:?}: {answer}");
    }
    let view = world.store.fresh().await.expect("the tree is open");
    assert_eq!(view.vm("new").expect("it was made").state, VmState::Stop);
    assert_eq!(view.vm("web1").expect("it is there").state, VmState::Start);
}

/// The worker stands still, another one takes the job to its end, then the first one goes on.
#[tokio::test(start_paused = true)]
async fn a_worker_that_has_lost_its_task_and_does_not_know_changes_no_other_vm() {
    at_calls!(call_number, 1, {
        let world = World::new(Case::Provision).await;
        let define = call("vm.define_vm", definition(&other_xml("other", OTHER)));
        let calls = [define, of_vm("vm.start_vm", "other"), of_vm("vm.start_vm", "web1")];
        let acts: Vec<_> = calls.into_iter().chain([done(Value::Null)]).collect();
        world.scripts.set("setup", acts);
        let slow = world.worker("hv1", call_number).await;
        let stops = world.stops(&slow).await;
        let owner = Op::Delete { path: format!("/tasks/{}/owner", world.job), version: None };
        // Before it is claimed and after it has ended there is none.
        let _ = world.tree.connect().multi(vec![owner]).await;
        world.healthy_worker("hv1").await;
        let end = world.end().await;
        let states = async || {
            let view = world.store.fresh().await.expect("the tree is open");
            ["other", "web1"].map(|vm| view.vm(vm).map(|vm| vm.state.clone()))
        };
        let before = states().await;
        slow.gate.open();
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(states().await, before, "slow at call {call_number}: {end:?}");
        stops
    });
}
