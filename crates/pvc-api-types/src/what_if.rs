//! Answers of `pvc-sim what-if` that `pvc cluster what-if --format json` prints.
//!
//! It goes over no network, but from one program to another and to scripts, and is kept stable like
//! the API.

use crate::vm::MoveCandidate;

wire! {
    /// Reply of the program: an answer, or why there is none.
    pub struct WhatIfReply {
        pub answer: Option<WhatIf>,
        pub refused: Option<WhatIfRefusal>,
    }

    /// Reason why nothing was predicted.
    pub struct WhatIfRefusal {
        /// Whether what was asked about does not exist.
        pub not_found: bool,
        pub message: String,
        /// Empty if there is none.
        pub hint: String,
    }

    /// Prediction of what happens if a node dies.
    pub struct WhatIf {
        pub cluster: String,
        pub node: String,
        /// `power` or `hang`.
        pub death: String,
        /// The answer in a sentence.
        pub summary: String,
        /// Whether every VM that ran there runs again, by the plan.
        pub recovered: bool,
        pub was_primary: bool,
        pub coordinators: WhatIfCoordinators,
        /// Reasons why nobody makes up for it; empty: somebody does.
        pub hindrances: Vec<String>,
        /// VMs in the order in which they choose: those of much memory first.
        pub vms: Vec<WhatIfVm>,
        /// VMs that are assigned to the node and not to run.
        pub off: Vec<String>,
        /// The nodes that are left.
        pub nodes: Vec<WhatIfNode>,
        /// Events that really happened in the simulated cluster; `null` if none could be made.
        pub simulation: Option<WhatIfRun>,
        /// Reason why there is no simulation; empty if there is one.
        pub not_simulated: String,
        pub assumptions: Vec<String>,
        /// Records that could not be read.
        pub defects: Vec<String>,
    }

    /// The coordinators, each of which is a server of the store.
    pub struct WhatIfCoordinators {
        pub all: usize,
        pub left: usize,
        pub quorum: bool,
    }

    /// Fate of one VM.
    pub struct WhatIfVm {
        pub name: String,
        pub memory_mib: u64,
        /// `start stay wait elsewhere down`
        pub fate: String,
        /// The node it runs on then; empty if on none.
        pub to: String,
        pub reason: String,
        /// Each node as a place for it; empty if none is looked for.
        pub nodes: Vec<MoveCandidate>,
        /// Things that may keep it from running there, and that nobody looks at.
        pub cautions: Vec<String>,
    }

    /// A node that is left.
    pub struct WhatIfNode {
        pub name: String,
        pub daemon_state: String,
        pub domain_state: String,
        pub memory_total_mib: u64,
        pub memory_free_mib: u64,
        pub memory_free_after_mib: u64,
        pub vms: usize,
        pub vms_after: usize,
        /// Whether this one may die, too, before the first is back.
        pub may_die_next: bool,
        /// Things that would not be made up for then; empty if it may.
        pub next: String,
    }

    /// Events in the simulated cluster. Times are seconds since the death; `null`: it did not
    /// happen.
    pub struct WhatIfRun {
        /// Time for which it was watched.
        pub watched_s: f64,
        pub suspected_s: Option<f64>,
        /// Time at which it was proven dead.
        pub fenced_s: Option<f64>,
        /// Node that did that.
        pub fenced_by: String,
        pub proof: String,
        /// Reason why it could not be, if it was tried.
        pub fence_failure: String,
        /// Another node had the primary role and all floating addresses.
        pub primary_s: Option<f64>,
        pub primary: String,
        /// Time at which its VMs were dealt with.
        pub recovered_s: Option<f64>,
        pub vms: Vec<WhatIfRan>,
        /// Differences between what the simulated cluster did and what the plan says.
        pub differences: Vec<String>,
    }

    /// A VM in the simulated cluster.
    pub struct WhatIfRan {
        pub name: String,
        /// Node on which it ran; empty if nowhere.
        pub node: String,
        pub seconds: Option<f64>,
        /// State in its record in the end.
        pub state: String,
        /// Reason why it was in `fail`, if so.
        pub failed_reason: String,
    }
}
