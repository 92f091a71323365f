//! Contract of every [`Scripts`], with scripts that do little.

use std::sync::Arc;
use std::time::Duration;

use pvc_ports::{
    ScriptJob, ScriptLevel, ScriptMessage, ScriptOrder, ScriptPhase, ScriptProcess, Scripts,
    ScriptsError,
};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Behaviour of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// `setup` logs `hello` and writes `written`; `create` returns `<domain/>`; `prepare` calls
    /// `ceph.map_volume` of volume `vms/x`, and logs the path in the answer.
    Steady,
    /// `setup` raises a `ProvisioningError` that says `wrong`.
    Failing,
    /// Its process ends in `setup`.
    Ending,
    /// `setup` does not end.
    Hanging,
}

/// Environment that the suite needs from whoever runs it.
pub struct ScriptsFixture {
    pub scripts: Arc<dyn Scripts>,
    /// Makes a script that behaves so.
    pub job: Box<dyn Fn(Manner) -> ScriptJob + Send + Sync>,
    /// Number of processes of scripts.
    pub processes: Box<dyn Fn() -> usize + Send + Sync>,
}

/// Time that anything may take.
const LONG: Duration = Duration::from_secs(60);

/// Runs the whole suite.
///
/// # Panics
/// When the scripts break the contract.
pub async fn scripts_contract(fixture: ScriptsFixture) {
    fixture.methods_run_one_by_one_and_calls_are_answered().await;
    fixture.a_method_that_raises_leaves_the_process_to_clean_up().await;
    fixture.a_process_that_ends_says_so().await;
    fixture.a_process_that_hangs_is_killed_or_dropped().await;
    fixture.scripts.end_left_over().await.expect("nothing is left over");
}

type Started = Box<dyn ScriptProcess>;

impl ScriptsFixture {
    async fn start(&self, manner: Manner) -> Started {
        let job = (self.job)(manner);
        let mut process = self.scripts.start(&job).await.expect("it can be started");
        assert_eq!(end(&mut process).await.0, ScriptMessage::Ready, "{manner:?}");
        assert!((self.processes)() > 0, "it runs");
        process
    }

    async fn none_is_left(&self) {
        let none = async {
            while (self.processes)() > 0 {
                #[allow(clippy::disallowed_methods, reason = "real processes end in real time")]
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(LONG, none).await.expect("no process is left");
    }

    async fn methods_run_one_by_one_and_calls_are_answered(&self) {
        let mut process = self.start(Manner::Steady).await;
        let (done, messages) = run(&mut process, ScriptPhase::Setup).await;
        assert_eq!(done, ScriptMessage::Done(Value::Null));
        let text = "hello".to_owned();
        assert!(
            messages.contains(&ScriptMessage::Log { level: ScriptLevel::Info, text }),
            "{messages:?}"
        );
        // Output comes by another way than messages do, and may be later.
        if !messages.contains(&ScriptMessage::Wrote("written".to_owned())) {
            let next = timeout(LONG, process.next()).await.expect("it comes");
            assert_eq!(next.expect("it runs"), ScriptMessage::Wrote("written".to_owned()));
        }
        let (done, _) = run(&mut process, ScriptPhase::Create).await;
        assert_eq!(done, ScriptMessage::Done(json!("<domain/>")));
        process.tell(ScriptOrder::Run(ScriptPhase::Prepare)).await.expect("it listens");
        let ScriptMessage::Call { function, arguments } = end(&mut process).await.0 else {
            panic!("it calls")
        };
        assert_eq!(function, "ceph.map_volume");
        let asked = (&arguments["pool"], &arguments["name"]);
        assert_eq!(asked, (&json!("vms"), &json!("x")));
        let answer = ScriptOrder::Returned(json!([true, "/dev/rbd/vms/x"]));
        process.tell(answer).await.expect("it listens");
        let (done, messages) = end(&mut process).await;
        assert_eq!(done, ScriptMessage::Done(Value::Null));
        let text = "/dev/rbd/vms/x".to_owned();
        assert!(
            messages.contains(&ScriptMessage::Log { level: ScriptLevel::Info, text }),
            "{messages:?}"
        );
        process.kill().await.expect("it dies");
        assert_eq!((self.processes)(), 0);
    }

    async fn a_method_that_raises_leaves_the_process_to_clean_up(&self) {
        let mut process = self.start(Manner::Failing).await;
        let (failed, _) = run(&mut process, ScriptPhase::Setup).await;
        let ScriptMessage::Failed(failure) = failed else { panic!("{failed:?}") };
        assert_eq!((failure.class.as_str(), failure.text.as_str()), ("ProvisioningError", "wrong"));
        let (done, _) = run(&mut process, ScriptPhase::Cleanup).await;
        assert_eq!(done, ScriptMessage::Done(Value::Null));
        process.kill().await.expect("it dies");
    }

    async fn a_process_that_ends_says_so(&self) {
        let mut process = self.start(Manner::Ending).await;
        process.tell(ScriptOrder::Run(ScriptPhase::Setup)).await.expect("it listens");
        let ended = timeout(LONG, process.next()).await.expect("it says something");
        assert!(matches!(ended, Err(ScriptsError::Ended { .. })), "{ended:?}");
        process.kill().await.expect("there is nothing to kill");
        self.none_is_left().await;
    }

    async fn a_process_that_hangs_is_killed_or_dropped(&self) {
        for is_dropped in [false, true] {
            let mut process = self.start(Manner::Hanging).await;
            process.tell(ScriptOrder::Run(ScriptPhase::Setup)).await.expect("it listens");
            match is_dropped {
                true => drop(process),
                false => process.kill().await.expect("it dies"),
            }
            self.none_is_left().await;
        }
    }
}

/// Runs a method; returns how it ends, and what came before.
pub async fn run(process: &mut Started, phase: ScriptPhase) -> (ScriptMessage, Vec<ScriptMessage>) {
    process.tell(ScriptOrder::Run(phase)).await.expect("it listens");
    end(process).await
}

/// Hears the script until it is done with something, or calls.
pub async fn end(process: &mut Started) -> (ScriptMessage, Vec<ScriptMessage>) {
    let mut messages = Vec::new();
    loop {
        let message = timeout(LONG, process.next()).await.expect("it says something");
        match message.expect("its process is there") {
            message @ (ScriptMessage::Log { .. } | ScriptMessage::Wrote(_)) => {
                messages.push(message)
            }
            end => return (end, messages),
        }
    }
}
