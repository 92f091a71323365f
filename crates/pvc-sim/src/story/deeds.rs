//! What can happen in a story.

use super::words::Form;
use crate::actions::{Action, Ask, StartFailure};
use crate::power::BmcManner;

fn ask(ask: Ask) -> Option<Action> {
    Some(Action::Ask(ask))
}

/// `None`: nothing happens, which a variant may want to say.
pub(super) const FORMS: &[Form<Option<Action>>] = &[
    // Machines.
    Form { form: "power off NODE", means: |f| Some(Action::PowerLoss(f.node())) },
    Form { form: "power on NODE", means: |f| Some(Action::PowerReturn(f.node())) },
    Form { form: "freeze NODE", means: |f| Some(Action::FreezeHost(f.node())) },
    Form { form: "thaw NODE", means: |f| Some(Action::ThawHost(f.node())) },
    Form { form: "cut NET network of NODE", means: |f| Some(Action::Unplug(f.node(), f.nets[0])) },
    Form { form: "heal NET network of NODE", means: |f| Some(Action::Plug(f.node(), f.nets[0])) },
    Form { form: "clock of NODE jumps by STEP", means: |f| Some(Action::StepClock(f.node(), f.step)) },
    // BMCs.
    Form { form: "bmc of NODE works", means: |f| Some(Action::Bmc(f.node(), BmcManner::Works)) },
    Form { form: "bmc of NODE is dead", means: |f| Some(Action::Bmc(f.node(), BmcManner::Dead)) },
    Form {
        form: "bmc of NODE answers after TIME",
        means: |f| Some(Action::Bmc(f.node(), BmcManner::Slow(f.times[0].as_secs()))),
    },
    Form { form: "bmc of NODE lies off", means: |f| Some(Action::Bmc(f.node(), BmcManner::LiesOff)) },
    Form { form: "bmc of NODE ignores commands", means: |f| Some(Action::Bmc(f.node(), BmcManner::Ignores)) },
    // Programs.
    Form { form: "kill daemon of NODE", means: |f| Some(Action::KillDaemon(f.node())) },
    Form { form: "stop daemon of NODE", means: |f| Some(Action::StopDaemon(f.node())) },
    Form { form: "start daemon of NODE", means: |f| Some(Action::StartDaemon(f.node())) },
    Form { form: "restart daemon of NODE", means: |f| Some(Action::RestartDaemon(f.node())) },
    Form { form: "freeze daemon of NODE", means: |f| Some(Action::FreezeDaemon(f.node())) },
    Form { form: "thaw daemon of NODE", means: |f| Some(Action::ThawDaemon(f.node())) },
    Form { form: "hypervisor of NODE goes down", means: |f| Some(Action::HypervisorDown(f.node())) },
    Form { form: "hypervisor of NODE comes up", means: |f| Some(Action::HypervisorUp(f.node())) },
    Form { form: "zookeeper of NODE goes down", means: |f| Some(Action::ServerDown(f.node())) },
    Form { form: "zookeeper of NODE comes up", means: |f| Some(Action::ServerUp(f.node())) },
    Form {
        form: "connection of NODE breaks after its next write",
        means: |f| Some(Action::BreakAfterWrite(f.node())),
    },
    Form { form: "ceph falls silent", means: |_| Some(Action::CephSilent) },
    Form { form: "ceph answers", means: |_| Some(Action::CephAnswers) },
    // Guests and their volumes.
    Form { form: "guest VM crashes", means: |f| Some(Action::CrashGuest(f.vm())) },
    Form { form: "guest VM becomes deaf", means: |f| Some(Action::DeafenGuest(f.vm())) },
    Form { form: "guest VM calms down", means: |f| Some(Action::CalmGuest(f.vm())) },
    Form { form: "guest VM is paused", means: |f| Some(Action::PauseGuest(f.vm())) },
    Form { form: "guest VM is resumed", means: |f| Some(Action::ResumeGuest(f.vm())) },
    Form {
        form: "next COUNT starts of VM are refused",
        means: |f| Some(fail(f.vm(), None, f.count, StartFailure::Refused)),
    },
    Form {
        form: "next COUNT starts of VM are refused on NODE",
        means: |f| Some(fail(f.vm(), Some(f.node()), f.count, StartFailure::Refused)),
    },
    Form {
        form: "next COUNT starts of VM die",
        means: |f| Some(fail(f.vm(), None, f.count, StartFailure::Dies)),
    },
    Form {
        form: "next COUNT starts of VM die on NODE",
        means: |f| Some(fail(f.vm(), Some(f.node()), f.count, StartFailure::Dies)),
    },
    Form { form: "volume of VM is lost", means: |f| Some(Action::LoseVolume(f.vm())) },
    Form { form: "volume of VM is locked by a stranger", means: |f| Some(Action::LockVolume(f.vm())) },
    // What operators ask for.
    Form { form: "vm start VM", means: |f| ask(Ask::Start(f.vm())) },
    Form { form: "vm stop VM", means: |f| ask(Ask::Stop(f.vm())) },
    Form { form: "vm shutdown VM", means: |f| ask(Ask::Shutdown(f.vm())) },
    Form { form: "vm restart VM", means: |f| ask(Ask::Restart(f.vm())) },
    Form { form: "vm disable VM", means: |f| ask(Ask::DisableAndWait(f.vm())) },
    Form { form: "vm undefine VM", means: |f| ask(Ask::Undefine(f.vm())) },
    Form { form: "vm flush-locks VM", means: |f| Some(Action::FlushLocks(f.vm())) },
    Form { form: "vm move VM", means: |f| ask(Ask::Move { vm: f.vm(), to: None, live_only: false }) },
    Form {
        form: "vm move VM to NODE",
        means: |f| ask(Ask::Move { vm: f.vm(), to: Some(f.node()), live_only: false }),
    },
    Form {
        form: "vm move VM to NODE live only",
        means: |f| ask(Ask::Move { vm: f.vm(), to: Some(f.node()), live_only: true }),
    },
    Form { form: "vm migrate VM", means: |f| ask(Ask::Migrate { vm: f.vm(), to: None }) },
    Form { form: "vm migrate VM to NODE", means: |f| ask(Ask::Migrate { vm: f.vm(), to: Some(f.node()) }) },
    Form { form: "vm unmigrate VM", means: |f| ask(Ask::Unmigrate(f.vm())) },
    Form { form: "node flush NODE", means: |f| ask(Ask::Flush(f.node())) },
    Form { form: "node ready NODE", means: |f| ask(Ask::Ready(f.node())) },
    Form { form: "node primary NODE", means: |f| ask(Ask::Primary(f.node())) },
    Form { form: "node secondary NODE", means: |f| ask(Ask::Secondary(f.node())) },
    Form { form: "maintenance on", means: |_| ask(Ask::Maintenance(true)) },
    Form { form: "maintenance off", means: |_| ask(Ask::Maintenance(false)) },
    Form { form: "nothing", means: |_| None },
];

fn fail(vm: usize, host: Option<usize>, times: u32, how: StartFailure) -> Action {
    Action::FailStarts { vm, host, times, how }
}
