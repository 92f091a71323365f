//! VMs are defined: what is recorded, what is refused, and whose memory it is.

use super::*;

#[tokio::test]
async fn a_vm_is_defined_with_all_that_is_recorded_of_it() {
    let world = World::with_nodes(&["hv1"]).await;
    let ask = Define {
        node_limit: vec!["hv1".into()],
        selector: Some(Selector::Load),
        user_tags: vec!["daily".into(), "web".into()],
        protected_tags: vec!["daily".into()],
        max_downtime_ms: 500,
        expected: Some("web1".into()),
        ..Define::new(xml("web1", UUID))
    };
    let defined = vm::define(&world.store, &ask).await.unwrap();
    assert_eq!((defined.name.as_str(), defined.node.as_str()), ("web1", "hv1"));
    assert_eq!(defined.warnings, Vec::<String>::new());
    let record = world.vm();
    assert_eq!((&record.state, record.max_downtime_ms), (&VmState::Stop, 500));
    assert!(record.xml.starts_with("<domain type='kvm'>\n  <!-- web1's own -->"), "{}", record.xml);
    assert_eq!(record.recorded_volumes, [id("vms/web1_sda")]);
    assert_eq!(record.node_limit, [NodeName::new("hv1")]);
    let tags: Vec<_> = record.tags.iter().map(|tag| (tag.name.as_str(), tag.protected)).collect();
    assert_eq!(tags, [("daily", true), ("web", false)]);
    assert_eq!(record.defects, Vec::<String>::new());
}

#[tokio::test]
async fn a_screen_that_everybody_reaches_without_a_password_is_taken_and_warned_of() {
    let world = World::with_nodes(&["hv1"]).await;
    let screen = "<graphics type='vnc' port='-1' listen='0.0.0.0'/><console";
    let open = xml("web1", UUID).replace("<console", screen);
    let defined = vm::define(&world.store, &Define::new(open.clone())).await.unwrap();
    let larger = open.replace(">512<", ">1024<");
    let modified = modify(&world, "web1", &larger, false).await.unwrap();
    for warnings in [defined.warnings, modified.warnings] {
        let [warning] = warnings.as_slice() else { panic!("one warning: {warnings:?}") };
        assert!(warning.contains("display on `0.0.0.0` asks for no password"), "{warning}");
    }
}

#[tokio::test]
async fn a_definition_that_cannot_be_is_refused_and_leaves_nothing() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let before = world.store.view().revision;
    let with = |change: fn(&mut Define)| {
        let mut ask = Define::new(xml("db1", OTHER));
        change(&mut ask);
        ask
    };
    for (ask, expected) in [
        (with(|ask| ask.xml = "<domain>".into()), "the domain XML cannot be taken"),
        (with(|ask| ask.xml = xml("web1", OTHER)), "a VM called `web1` exists already"),
        (
            with(|ask| ask.xml = xml("db1", UUID)),
            "a VM with UUID `2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1` exists already: `web1`",
        ),
        (with(|ask| ask.xml = xml(&OTHER.to_string(), OTHER)), "is written like a UUID"),
        (with(|ask| ask.node = Some("hv9".into())), "there is no node `hv9`"),
        (with(|ask| ask.node_limit = vec!["hv9".into()]), "there is no node `hv9`"),
        (with(|ask| ask.user_tags = vec!["a/b".into()]), "tag `a/b` can have"),
        (
            with(|ask| ask.expected = Some("web2".into())),
            "the XML is that of VM `db1`, not of `web2`",
        ),
        (
            with(|ask| ask.xml = ask.xml.replace("'MiB'>512", "'GiB'>512")),
            "has 16000 MiB of memory in all",
        ),
        (
            with(|ask| ask.xml = ask.xml.replace("<vcpu>1", "<vcpu>6")),
            "of which a VM may have 5 (all but 3)",
        ),
    ] {
        let refusal = refused(vm::define(&world.store, &ask).await);
        assert!(refusal.to_string().contains(expected), "{expected}: {refusal}");
    }
    assert_eq!(world.store.view().revision, before);
    let large = with(|ask| ask.xml = ask.xml.replace("<vcpu>1", "<vcpu>6"));
    let hint = refused(vm::define(&world.store, &large).await).hint().unwrap();
    assert_eq!(hint, "give the VM at most 5 vCPUs, or choose a node with more CPUs");
}

#[tokio::test]
async fn of_two_definitions_with_one_name_one_is_made() {
    let world = World::with_nodes(&["hv1"]).await;
    let (first, second) = (Define::new(xml("web1", UUID)), Define::new(xml("web1", OTHER)));
    let outcomes =
        tokio::join!(vm::define(&world.store, &first), vm::define(&world.store, &second));
    let made = [outcomes.0.is_ok(), outcomes.1.is_ok()];
    assert!(made[0] != made[1], "{outcomes:?}");
    assert_eq!(world.store.view().vms.len(), 1);
}

#[tokio::test]
async fn without_a_node_the_reason_is_reported_for_each() {
    let world = World::with_nodes(&["hv1"]).await;
    node::set_domain_state(&world.store, "hv1", DomainRequest::Flush).await.unwrap();
    let refusal = refused(vm::define(&world.store, &Define::new(xml("web1", UUID))).await);
    assert_eq!(
        refusal.to_string(),
        "no node can take the VM: `hv1` is in domain state `flush`, not `ready`"
    );
    assert!(refusal.hint().unwrap().contains("pvc node ready"));
}

/// A VM of 10,000 MiB on nodes that have 15,000 MiB free, to run at once.
fn large(number: u128) -> Define {
    let text =
        xml(&format!("large{number}"), Uuid::from_u128(number)).replace("'MiB'>512", "'MiB'>10000");
    Define { state: VmState::Start, ..Define::new(text) }
}

#[tokio::test]
async fn what_is_promised_to_one_vm_is_not_promised_to_the_next() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    for (number, node) in [(1, "hv1"), (2, "hv2")] {
        assert_eq!(vm::define(&world.store, &large(number)).await.unwrap().node.as_str(), node);
    }
    let refusal = refused(vm::define(&world.store, &large(3)).await);
    assert_eq!(
        refusal.to_string(),
        "no node can take the VM: `hv1` has 5000 MiB of memory free, and the VM needs 10000 MiB; \
         `hv2` has 5000 MiB of memory free, and the VM needs 10000 MiB"
    );
    let off = Define { state: VmState::Stop, ..large(3) };
    vm::define(&world.store, &off).await.unwrap();
}

#[tokio::test]
async fn who_is_faster_gets_the_memory_and_the_slower_chooses_again() {
    for faster_migrates in [false, true] {
        let world = World::with_nodes(&["hv1", "hv2", "hv3"]).await;
        let full = NodeFigures {
            memory_total_mib: 16_000,
            memory_free_mib: 1000,
            ..NodeFigures::default()
        };
        world.store.report(vec![Report::Figures("hv1".into(), full)]).await.unwrap();
        let here = Define { node: Some("hv1".to_owned()), ..large(1) };
        vm::define(&world.store, &here).await.unwrap();
        world.running("hv1", &[Uuid::from_u128(1)]).await;

        let (slow, connection) = world.slow_process().await;
        let faster = world.store.clone();
        connection.before_next_multi(async move {
            if faster_migrates {
                vm::move_vm(&faster, "large1", &moving(Movement::Migrate, None)).await.unwrap();
            } else {
                vm::define(&faster, &large(3)).await.unwrap();
            }
        });
        let defined = vm::define(&slow, &large(2)).await.unwrap();
        assert_eq!(
            defined.node.as_str(),
            "hv3",
            "hv2 was promised meanwhile, migrates: {faster_migrates}"
        );
    }
}
