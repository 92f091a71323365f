//! Ground of a role. A role is a piece of a node's work that goes on for as long as its daemon
//! runs: it keeps something of the machine, or of the cluster, as the records want it, and knows
//! the outside world by its ports alone.
//!
//! ```text
//!  Context    the node's name, its ports, the store, the clock; deadlines
//!  Turns      a pass at once, then after each rest, or when the store changes, until the end
//!  UnderWay   what passes have begun and do not wait for, and what became of it
//!  Few        many pieces of work, of which only so many go on at a time
//!  Alarm      since when something is so, whether operators were told, when they are told again
//!  raise…     a fault in the store, and taking it back (methods of `Context`)
//!  change     a change of records that is decided anew where they have changed (of `Context`)
//!  Tasks      roles that run beside each other: supervised, and ended together
//! ```
//!
//! Nothing here knows what a role is about.
//!
//! # How to write one
//!
//! 1. An `async fn run(context: Context, …, end: CancellationToken)` whose other arguments are what
//!    the configuration says. It is started anew after a panic, so what it remembers it can do
//!    without.
//! 2. A pass for each of its [`Turns`]: it looks, has a pure function of `pvc-model` decide, and
//!    acts. It is not told what changed: start-up, normal change and recovery are one path.
//! 3. Every call of a port has a deadline ([`Context::in_time`]). What may take long, or is done
//!    for many things, is [begun](UnderWay::begin) and [found under way](UnderWay::is_for) by the
//!    next pass.
//! 4. What operators should know goes through an [`Alarm`] into a fault: not at the first look, and
//!    not each time.
//! 5. Whoever runs the daemon adds it to its list: `tasks.supervise("unit", &context, …)`.
//!
//! A whole one, which tells of a unit of the service manager that does not run; its tests are in
//! `tests/example.rs`:
//!
//! ```
#![doc = include_str!("../tests/example/unit.rs")]
//! ```

#![forbid(unsafe_code)]

mod alarm;
mod change;
mod context;
mod faults;
mod few;
mod tasks;
mod turns;
mod under_way;

pub use alarm::Alarm;
pub use change::Superseded;
pub use context::{Context, DeadlineError};
pub use faults::{FaultReport, REFRESH};
pub use few::Few;
pub use tasks::{Panicked, Tasks, caught};
pub use turns::Turns;
pub use under_way::{Done, UnderWay};

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_embedded::EmbeddedTree;
    use pvc_model::NodeName;
    use pvc_ports::Ports;
    use pvc_store::Store;
    use pvc_testkit::{SeededRandom, TokioClock, ports};

    use crate::Context;

    /// Context of node `hv1` of a new cluster, on a machine on which nothing is installed.
    pub async fn context() -> Context {
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let tree = EmbeddedTree::in_memory().connect();
        let store = Store::open(tree, clock.clone(), random.clone()).await.unwrap();
        store.initialize(false).await.unwrap();
        Context::new(NodeName::new("hv1"), Ports { clock, random, ..ports() }, store)
    }
}
