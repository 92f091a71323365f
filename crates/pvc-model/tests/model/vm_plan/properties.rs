//! Rules that hold for every world.

use super::*;

fn any_state() -> impl Strategy<Value = VmState> {
    prop_oneof![
        20 => proptest::sample::select(VmState::ALL.to_vec()),
        1 => Just(VmState::from_record("")),
        1 => Just(VmState::from_record("\u{fffd}odd")),
    ]
}

fn any_world() -> impl Strategy<Value = World> {
    let place = proptest::sample::select(vec![None, Some("hv1"), Some("hv2"), Some("gone")]);
    let condition = proptest::sample::select(vec![
        Condition::Running,
        Condition::Paused,
        Condition::Created,
        Condition::Arriving,
        Condition::Leaving,
        Condition::ShuttingDown,
        Condition::Other,
    ]);
    let one = (any_state(), place, proptest::option::of(condition), any::<bool>(), any::<bool>());
    (proptest::collection::vec(one, 0..6), 0..3_usize, any::<bool>()).prop_map(
        |(vms, strays, alone)| {
            let mut world = World::new(if alone { &["hv1"] } else { &["hv1", "hv2"] });
            for (number, (state, on, guest, busy, broken)) in vms.into_iter().enumerate() {
                let uuid = world.put(vm(number as u128 + 1, state, on));
                if broken {
                    world.edit(uuid, |record| record.domain = Err("broken".to_owned()));
                }
                if let Some(condition) = guest {
                    world.run(uuid);
                    world.guests.get_mut(&uuid).unwrap().condition = condition;
                }
                world.histories.entry(uuid).or_default().busy = busy;
            }
            for number in 0..strays {
                world.run(Uuid::from_u128(100 + number as u128));
            }
            world
        },
    )
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let vms: Vec<_> =
            self.cluster.vms.values().map(|vm| (&vm.name, &vm.state, &vm.node)).collect();
        f.debug_struct("World").field("vms", &vms).field("guests", &self.guests).finish()
    }
}

proptest! {
    #[test]
    fn no_plan_does_what_no_record_orders(mut world in any_world()) {
        let plan = world.after(0);
        for (index, planned) in plan.steps.iter().enumerate() {
            let record = world.cluster.vms.get(&planned.vm);
            prop_assert!(record.is_some(), "a step for a guest that no record knows");
            let record = record.unwrap();
            prop_assert!(!world.histories[&planned.vm].busy, "a step beside another");
            prop_assert!(record.node.is_some(), "a step without a node");
            if planned.step == Step::Start {
                prop_assert!(record.is_assigned_to(&world.me));
                prop_assert!(!world.guests.contains_key(&planned.vm));
                prop_assert_eq!(&record.state, &VmState::Start);
            }
            if matches!(planned.step, Step::Destroy(_) | Step::RequestShutdown { .. }) {
                prop_assert!(world.guests.contains_key(&planned.vm));
                prop_assert!(plan.steps[..index].iter().all(|earlier| earlier.step != Step::Start));
            }
        }
        let mut vms: Vec<Uuid> = plan.steps.iter().map(|planned| planned.vm).collect();
        vms.sort();
        vms.dedup();
        prop_assert_eq!(vms.len(), plan.steps.len(), "two steps for one VM");
    }

    #[test]
    fn a_world_that_obeys_comes_to_rest_with_everything_as_recorded(mut world in any_world()) {
        for history in world.histories.values_mut() {
            history.busy = false;
        }
        for guest in world.guests.values_mut() {
            guest.condition = Condition::Running;
        }
        for _ in 0..6 {
            let plan = world.after(1);
            world.obey(&plan);
        }
        prop_assert_eq!(world.after(1).steps, vec![]);
        for record in world.cluster.vms.values().filter(|vm| vm.is_assigned_to(&world.me)) {
            let runs = world.guests.contains_key(&record.uuid);
            match record.state {
                VmState::Start => prop_assert!(runs),
                VmState::Stop => prop_assert!(!runs),
                VmState::Restart | VmState::Shutdown => {
                    prop_assert!(false, "it hangs in {}", record.state);
                }
                _ => {}
            }
        }
    }
}
