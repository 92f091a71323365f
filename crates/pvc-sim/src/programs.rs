//! The programs that a host's daemon has started: they end with the host's power, and outlive a
//! daemon that is killed until the next one ends them.

use std::sync::Arc;

use async_trait::async_trait;
use pvc_ports::{Program, ProgramEnd, ProgramSignal, Programs, ProgramsError, RunningProgram};
use pvc_testkit::ScriptedPrograms;

use crate::process::Gate;

/// The programs of a host, as its daemon has them.
pub(crate) struct HostPrograms {
    pub gate: Gate,
    pub host: usize,
    pub inner: ScriptedPrograms,
}

#[async_trait]
impl Programs for HostPrograms {
    async fn start(&self, program: &Program) -> Result<Arc<dyn RunningProgram>, ProgramsError> {
        self.gate.pass().await;
        let inner = self.inner.start(program).await?;
        self.gate
            .world
            .with(|state| state.networks.program_started(&state.hosts, self.host, program));
        Ok(Arc::new(HostProgram { gate: self.gate.clone(), inner }))
    }

    async fn end_left_over(&self) -> Result<usize, ProgramsError> {
        self.gate.pass().await;
        self.inner.end_left_over().await
    }
}

struct HostProgram {
    gate: Gate,
    inner: Arc<dyn RunningProgram>,
}

#[async_trait]
impl RunningProgram for HostProgram {
    fn pid(&self) -> u32 {
        self.inner.pid()
    }

    async fn ended(&self) -> ProgramEnd {
        let end = self.inner.ended().await;
        self.gate.pass().await;
        end
    }

    async fn line(&self) -> Option<String> {
        self.gate.pass().await;
        self.inner.line().await
    }

    fn signal(&self, signal: ProgramSignal) {
        self.inner.signal(signal);
    }

    async fn kill(&self) -> Result<(), ProgramsError> {
        self.gate.pass().await;
        self.inner.kill().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pvc_contracts::programs::{ProgramsFixture, programs_contract};
    use pvc_testkit::ProgramManner;

    use super::*;
    use crate::daemons::gate;
    use crate::host::Daemon;
    use crate::state::World;

    /// A program of this file, which behaves so.
    fn program(programs: &ScriptedPrograms, name: &str, manner: ProgramManner) -> Program {
        programs.set_manner(name, manner);
        let (name, program) = (name.to_owned(), name.to_owned());
        Program { name, program, args: Vec::new(), env: Vec::new() }
    }

    fn says(lines: &[&str]) -> ProgramManner {
        let says = lines.iter().map(|line| (*line).to_owned()).collect();
        ProgramManner { says, ..ProgramManner::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn the_programs_of_a_simulated_host_keep_the_contract() {
        let (world, gates) = World::of_hosts(1);
        let inner = world.with(|state| state.hosts[0].programs.clone());
        let program = |name: &str, manner| program(&inner, name, manner);
        let exits = |status| Some(ProgramEnd::Exited(status));
        let ready = || says(&["ready"]);
        let hung_up = Some("reloaded".to_owned());
        let steady = ProgramManner { says_when_hung_up: hung_up, ..ready() };
        let failing = ProgramManner { ends: exits(3), ..says(&["one", "two"]) };
        let leaving = ProgramManner { children: 1, ends: exits(0), ..ready() };
        let chatty = ProgramManner { ends: exits(0), ..says(&["x"; 10_000]) };
        let fixture = ProgramsFixture {
            steady: program("/steady", steady),
            failing: program("/failing", failing),
            stubborn: program("/stubborn", ProgramManner { is_stubborn: true, ..ready() }),
            forking: program("/forking", ProgramManner { children: 1, ..ready() }),
            leaving: program("/leaving", leaving),
            chatty: program("/chatty", chatty),
            absent: program("/absent", ProgramManner { is_missing: true, ..ready() }),
            processes: {
                let inner = inner.clone();
                Box::new(move || inner.processes())
            },
            programs: Arc::new(HostPrograms {
                gate: gates[0].clone(),
                host: 0,
                inner: inner.clone(),
            }),
        };
        programs_contract(fixture).await;
    }

    /// A host whose daemon has started a program with a process that has left its group.
    async fn started() -> (World, Gate, ScriptedPrograms, Arc<dyn RunningProgram>) {
        let (world, gates) = World::of_hosts(1);
        let gate = gates[0].clone();
        let inner = world.with(|state| {
            let shutdown = tokio_util::sync::CancellationToken::new();
            state.hosts[0].daemon = Some(Daemon { pid: gate.pid, shutdown });
            state.hosts[0].programs.clone()
        });
        let forking =
            program(&inner, "/forking", ProgramManner { children: 1, ..says(&["ready"]) });
        let programs = HostPrograms { gate: gate.clone(), host: 0, inner: inner.clone() };
        let running = programs.start(&forking).await.unwrap();
        assert_eq!(inner.processes(), 2);
        (world, gate, inner, running)
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_loses_power_takes_its_programs_with_it() {
        let (world, _, inner, running) = started().await;
        world.with(|state| state.power_off(0, "somebody pulled the plug"));
        assert_eq!(inner.processes(), 0);
        let ended = tokio::time::timeout(Duration::from_secs(3600), running.ended()).await;
        assert!(ended.is_err(), "who has started it is gone as well");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_killed_daemon_leaves_runs_until_the_next_one_ends_it() {
        let (world, gate_of_first, inner, running) = started().await;
        world.with(|state| state.end_process(gate_of_first.pid));
        drop(running);
        assert_eq!(inner.processes(), 2);
        let gate = world.with(|state| {
            let pid = state.processes.start("the next daemon".to_owned(), Some(0));
            gate(state, pid)
        });
        let next = HostPrograms { gate, host: 0, inner: inner.clone() };
        assert_eq!(next.end_left_over().await.unwrap(), 2);
        assert_eq!(inner.processes(), 0);
        assert_eq!(next.end_left_over().await.unwrap(), 0);
    }
}
