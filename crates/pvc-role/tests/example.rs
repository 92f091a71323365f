//! The role that the documentation of this crate shows.

#[path = "example/unit.rs"]
mod unit;

use std::sync::Arc;
use std::time::Duration;

use pvc_embedded::EmbeddedTree;
use pvc_model::NodeName;
use pvc_ports::{Ports, UnitState};
use pvc_role::{Context, Tasks};
use pvc_store::Store;
use pvc_testkit::{ScriptedServices, SeededRandom, TokioClock, UnitManner, eventually, ports};

const UNIT: &str = "chrony.service";

#[tokio::test(start_paused = true)]
async fn a_unit_that_stays_down_is_a_fault_until_it_runs_again() {
    let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
    let tree = EmbeddedTree::in_memory().connect();
    let store = Store::open(tree, clock.clone(), random.clone()).await.unwrap();
    store.initialize(false).await.unwrap();
    let services = Arc::new(ScriptedServices::new().with(UNIT, UnitManner::Runs));
    let ports = Ports { services: services.clone(), clock, random, ..ports() };
    let context = Context::new(NodeName::new("hv1"), ports, store);
    let mut tasks = Tasks::new(&context);
    tasks.supervise("unit", &context, |context, end| unit::run(context, UNIT.to_owned(), end));

    let is_fault = || context.store.view().faults.contains_key("UNIT_DOWN_HV1");
    context.sleep(Duration::from_secs(55)).await;
    assert!(!is_fault(), "it may be restarted");
    let time_limit = Duration::from_secs(60);
    eventually("it is a fault", time_limit, is_fault).await;
    services.set_state(UNIT, UnitState::Active);
    eventually("it is none any more", time_limit, || !is_fault()).await;
    tasks.end("the role").await;
}
