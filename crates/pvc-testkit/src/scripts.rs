use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::job::JobId;
use pvc_model::storage::VolumeId;
use pvc_ports::{
    BlockDeviceError, BlockDevices, ScriptFailure, ScriptJob, ScriptMessage, ScriptOrder,
    ScriptProcess, Scripts, ScriptsError, Storage, Unmapped, device_path,
};

use crate::Gate;

/// Act of a scripted script.
#[derive(Debug, Clone, PartialEq)]
pub enum ScriptAct {
    Send(ScriptMessage),
    /// Works for this time before it does the next.
    Work(Duration),
    /// Says nothing any more.
    Hang,
    /// Ends its process.
    Die,
    /// Takes nothing any more that it is told or answered.
    Deafen,
    /// Raises, unless its last call was carried out.
    Require,
}

/// ScriptActs of a script by phase, or after its start: `import`.
pub type ScriptActs = BTreeMap<&'static str, Vec<ScriptAct>>;

#[derive(Default)]
struct Inner {
    acts: ScriptActs,
    written: Option<fn(&ScriptJob) -> ScriptActs>,
    answers: Vec<ScriptOrder>,
    running: usize,
    missing_limits: Option<String>,
    gate: Option<Arc<Gate>>,
}

/// Scripts that do in each phase what they are told to, and remember what they are answered.
#[derive(Clone, Default)]
pub struct ScriptedScripts {
    inner: Arc<Mutex<Inner>>,
}

impl ScriptedScripts {
    /// Makes scripts that do nothing in any phase.
    pub fn new() -> Self {
        ScriptedScripts::default()
    }

    /// Makes scripts of which each does what is written for its job.
    pub fn written_by(written: fn(&ScriptJob) -> ScriptActs) -> Self {
        let scripts = ScriptedScripts::default();
        scripts.with(|inner| inner.written = Some(written));
        scripts
    }

    /// Sets what a script does in a phase, or after its start: `import`. It is at the end of a
    /// phase when it says so.
    pub fn set(&self, phase: &'static str, acts: impl Into<Vec<ScriptAct>>) {
        self.with(|inner| _ = inner.acts.insert(phase, acts.into()));
    }

    /// Sets the gate that a start passes, before it has an effect and before it returns.
    pub fn set_gate(&self, gate: Arc<Gate>) {
        self.with(|inner| inner.gate = Some(gate));
    }

    /// Sets what the processes that are started from now on say of limits that they do not have.
    pub fn set_missing_limits(&self, said: &str) {
        self.with(|inner| inner.missing_limits = Some(said.to_owned()));
    }

    /// Number of processes.
    pub fn running(&self) -> usize {
        self.with(|inner| inner.running)
    }

    /// Everything that scripts were told and answered.
    pub fn answers(&self) -> Vec<ScriptOrder> {
        self.with(|inner| inner.answers.clone())
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.inner.lock().expect("no test panics while holding it"))
    }

    /// The acts of a phase, of which the script's `own` come before those that are set.
    fn acts(&self, own: &ScriptActs, phase: &str, default: ScriptMessage) -> VecDeque<ScriptAct> {
        let set = own.get(phase).cloned();
        let set = set.or_else(|| self.with(|inner| inner.acts.get(phase).cloned()));
        set.unwrap_or_else(|| vec![ScriptAct::Send(default)]).into()
    }

    async fn pass(&self) {
        if let Some(gate) = self.with(|inner| inner.gate.clone()) {
            gate.pass().await;
        }
    }
}

#[async_trait]
impl Scripts for ScriptedScripts {
    async fn start(&self, job: &ScriptJob) -> Result<Box<dyn ScriptProcess>, ScriptsError> {
        self.pass().await;
        let written = self.with(|inner| {
            inner.running += 1;
            inner.written
        });
        let own = written.map(|written| written(job)).unwrap_or_default();
        let next = self.acts(&own, "import", ScriptMessage::Ready);
        let process = ScriptedScript {
            scripts: self.clone(),
            own,
            next,
            is_deaf: false,
            was_carried_out: true,
        };
        self.pass().await;
        Ok(Box::new(process))
    }

    async fn end_left_over(&self) -> Result<(), ScriptsError> {
        Ok(())
    }
}

struct ScriptedScript {
    scripts: ScriptedScripts,
    own: ScriptActs,
    next: VecDeque<ScriptAct>,
    is_deaf: bool,
    /// Whether the last call was.
    was_carried_out: bool,
}

impl Drop for ScriptedScript {
    fn drop(&mut self) {
        self.scripts.with(|inner| inner.running -= 1);
    }
}

#[async_trait]
impl ScriptProcess for ScriptedScript {
    async fn next(&mut self) -> Result<ScriptMessage, ScriptsError> {
        if self.next.front() == Some(&ScriptAct::Deafen) {
            self.next.pop_front();
            self.is_deaf = true;
        }
        if self.next.front() == Some(&ScriptAct::Require) {
            self.next.pop_front();
            if !self.was_carried_out {
                self.next.clear();
                let (class, text) = ("ProvisioningError".to_owned(), "a call failed".to_owned());
                let failure = ScriptFailure { class, text, ..Default::default() };
                return Ok(ScriptMessage::Failed(failure));
            }
        }
        match self.next.pop_front() {
            Some(ScriptAct::Send(message)) => Ok(message),
            Some(ScriptAct::Work(time)) => {
                tokio::time::sleep(time).await;
                ScriptProcess::next(self).await
            }
            Some(ScriptAct::Die) => {
                Err(ScriptsError::Ended { how: "signal 9 ended it".to_owned() })
            }
            Some(ScriptAct::Hang | ScriptAct::Deafen | ScriptAct::Require) | None => {
                std::future::pending().await
            }
        }
    }

    async fn tell(&mut self, order: ScriptOrder) -> Result<(), ScriptsError> {
        if self.is_deaf {
            std::future::pending::<()>().await;
        }
        match &order {
            ScriptOrder::Run(phase) => {
                let done = ScriptMessage::Done(serde_json::Value::Null);
                self.next = self.scripts.acts(&self.own, phase.word(), done);
            }
            ScriptOrder::Returned(value) => self.was_carried_out = value[0] == true,
            ScriptOrder::Raised(_) => self.was_carried_out = false,
        }
        self.scripts.with(|inner| inner.answers.push(order));
        Ok(())
    }

    fn missing_limits(&self) -> Option<String> {
        self.scripts.with(|inner| inner.missing_limits.clone())
    }

    async fn kill(self: Box<Self>) -> Result<(), ScriptsError> {
        Ok(())
    }
}

/// A process, and its jobs that have a volume mapped.
type Mapped = (usize, BTreeSet<JobId>);

/// Volumes that are mapped on a node, by whichever of its processes.
#[derive(Clone, Default)]
pub struct MappedVolumes(Arc<Mutex<BTreeMap<VolumeId, Mapped>>>);

impl MappedVolumes {
    /// Lists their names.
    pub fn volumes(&self) -> Vec<VolumeId> {
        self.with(|mapped| mapped.keys().cloned().collect())
    }

    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<VolumeId, Mapped>) -> T) -> T {
        act(&mut self.0.lock().expect("no test panics while holding it"))
    }
}

/// Devices in memory: each process that has some holds its own handle.
#[derive(Clone)]
pub struct MemoryDevices {
    storage: Arc<dyn Storage>,
    process: usize,
    mapped: MappedVolumes,
    refusing: Arc<Mutex<BTreeSet<VolumeId>>>,
    is_stuck: Arc<AtomicBool>,
    is_former_alive: Arc<AtomicBool>,
    gate: Option<Arc<Gate>>,
}

impl MemoryDevices {
    /// Makes those of a node with the volumes of this storage.
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        MemoryDevices::of_node(storage, MappedVolumes::default(), 0)
    }

    /// Makes the handle of a process on a node that has these volumes mapped, which reaches the
    /// storage in its own way.
    pub fn of_node(storage: Arc<dyn Storage>, mapped: MappedVolumes, process: usize) -> Self {
        MemoryDevices {
            storage,
            process,
            mapped,
            refusing: Arc::default(),
            is_stuck: Arc::default(),
            is_former_alive: Arc::default(),
            gate: None,
        }
    }

    /// Makes the handle of another process of the same node, whose calls pass the gate. The
    /// processes before it are no more.
    #[must_use]
    pub fn of_process(&self, process: usize, gate: Option<Arc<Gate>>) -> Self {
        MemoryDevices { process, gate, ..self.clone() }
    }

    /// Has the device of this volume stay, whoever unmaps it.
    pub fn refuse_to_unmap(&self, volume: &VolumeId) {
        let mut refusing = self.refusing.lock().expect("no test panics while holding it");
        refusing.insert(volume.clone());
    }

    /// Has the device of this volume unmapped again by whoever does it.
    pub fn allow_to_unmap(&self, volume: &VolumeId) {
        let mut refusing = self.refusing.lock().expect("no test panics while holding it");
        refusing.remove(volume);
    }

    /// Has whoever ends what is left over wait for it without end.
    pub fn stick(&self) {
        self.is_stuck.store(true, Ordering::Relaxed);
    }

    /// Has the processes before this one be still there, or be no more.
    pub fn set_former_alive(&self, is_alive: bool) {
        self.is_former_alive.store(is_alive, Ordering::Relaxed);
    }

    fn check(&self, volume: &VolumeId) -> Result<(), BlockDeviceError> {
        let refusing = self.refusing.lock().expect("no test panics while holding it");
        match refusing.contains(volume) {
            false => Ok(()),
            true => {
                let (volume, why) = (volume.clone(), "it is busy".to_owned());
                Err(BlockDeviceError::Refused { volume, act: "unmapped", why })
            }
        }
    }

    /// Ends the devices of these processes.
    fn end(&self, is_meant: impl Fn(usize) -> bool) -> Vec<Unmapped> {
        let of = |(volume, (process, _)): (&VolumeId, &Mapped)| {
            is_meant(*process).then(|| volume.clone())
        };
        let volumes: Vec<VolumeId> = self.with(|mapped| mapped.iter().filter_map(of).collect());
        let end = |volume: VolumeId| -> Unmapped {
            self.check(&volume)?;
            self.with(|mapped| mapped.remove(&volume));
            Ok(volume)
        };
        volumes.into_iter().map(end).collect()
    }

    /// The volumes that are mapped, by whomever.
    pub fn mapped(&self) -> Vec<VolumeId> {
        self.mapped.volumes()
    }

    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<VolumeId, Mapped>) -> T) -> T {
        self.mapped.with(act)
    }

    async fn pass(&self) {
        if let Some(gate) = &self.gate {
            gate.pass().await;
        }
    }
}

#[async_trait]
impl BlockDevices for MemoryDevices {
    async fn map(&self, volume: &VolumeId, job: &JobId) -> Result<PathBuf, BlockDeviceError> {
        self.pass().await;
        let path = device_path(volume);
        if !self.with(|mapped| mapped.contains_key(volume)) {
            self.storage.check_unused(volume).await?;
        }
        let is_own = self.with(|mapped| {
            let none = || (self.process, BTreeSet::new());
            let (process, jobs) = mapped.entry(volume.clone()).or_insert_with(none);
            *process == self.process && {
                jobs.insert(job.clone());
                true
            }
        });
        self.pass().await;
        match is_own {
            true => Ok(path),
            false => Err(BlockDeviceError::Taken { path }),
        }
    }

    async fn unmap(&self, volume: &VolumeId, job: &JobId) -> Result<(), BlockDeviceError> {
        self.pass().await;
        self.check(volume)?;
        self.with(|mapped| {
            if let Some((process, jobs)) = mapped.get_mut(volume)
                && *process == self.process
                && jobs.remove(job)
                && jobs.is_empty()
            {
                mapped.remove(volume);
            }
        });
        self.pass().await;
        Ok(())
    }

    async fn unmap_all(&self) -> Vec<Unmapped> {
        self.end(|process| process == self.process)
    }

    async fn unmap_left_over(&self) -> Vec<Unmapped> {
        if self.is_stuck.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.is_former_alive.load(Ordering::Relaxed) {
            let place = PathBuf::from("/run/pvc/scripts/1");
            return vec![Err(BlockDeviceError::Alive { place })];
        }
        self.end(|process| process != self.process)
    }
}

#[cfg(test)]
mod tests {
    use pvc_contracts::scripts::{Manner, ScriptsFixture, scripts_contract};
    use pvc_ports::ScriptLevel;
    use serde_json::{Map, Value, json};

    use super::*;

    fn act(scripts: &ScriptedScripts, manner: Manner) {
        let log = |text: &str| {
            let (level, text) = (ScriptLevel::Info, text.to_owned());
            ScriptAct::Send(ScriptMessage::Log { level, text })
        };
        let done = |value: Value| ScriptAct::Send(ScriptMessage::Done(value));
        let wrote = ScriptAct::Send(ScriptMessage::Wrote("written".to_owned()));
        let (class, text) = ("ProvisioningError".to_owned(), "wrong".to_owned());
        let failure = ScriptFailure { class, text, ..Default::default() };
        let Value::Object(arguments) = json!({"pool": "vms", "name": "x"}) else {
            unreachable!("it is an object")
        };
        let function = "ceph.map_volume".to_owned();
        let call = ScriptAct::Send(ScriptMessage::Call { function, arguments });
        scripts.set("create", [done(json!("<domain/>"))]);
        scripts.set("prepare", [call, log("/dev/rbd/vms/x"), done(Value::Null)]);
        scripts.set(
            "setup",
            match manner {
                Manner::Steady => vec![log("hello"), wrote, done(Value::Null)],
                Manner::Failing => vec![ScriptAct::Send(ScriptMessage::Failed(failure))],
                Manner::Ending => vec![ScriptAct::Die],
                Manner::Hanging => vec![ScriptAct::Hang],
            },
        );
    }

    #[tokio::test]
    async fn the_double_keeps_the_contract() {
        let scripts = ScriptedScripts::new();
        let (acting, counting) = (scripts.clone(), scripts.clone());
        let job = move |manner| {
            act(&acting, manner);
            let (name, script) = ("1".to_owned(), String::new());
            ScriptJob { name, script, facts: Map::new(), memory_bytes: 1 }
        };
        scripts_contract(ScriptsFixture {
            scripts: Arc::new(scripts),
            job: Box::new(job),
            processes: Box::new(move || counting.running()),
        })
        .await;
    }

    #[tokio::test]
    async fn a_script_raises_where_it_requires_a_call_that_was_not_carried_out() {
        let written = |job: &ScriptJob| {
            let value = Value::from(job.name.as_str());
            let done = ScriptAct::Send(ScriptMessage::Done(value));
            ScriptActs::from([("setup", vec![ScriptAct::Require, done])])
        };
        let scripts = ScriptedScripts::written_by(written);
        let (name, script) = ("7".to_owned(), String::new());
        let job = ScriptJob { name, script, facts: Map::new(), memory_bytes: 1 };
        let mut process = scripts.start(&job).await.unwrap();
        assert_eq!(process.next().await.unwrap(), ScriptMessage::Ready);
        for (answer, is_done) in [(json!([true, "made"]), true), (json!([false, "no"]), false)] {
            process.tell(ScriptOrder::Returned(answer)).await.unwrap();
            process.tell(ScriptOrder::Run(pvc_ports::ScriptPhase::Setup)).await.unwrap();
            match process.next().await.unwrap() {
                ScriptMessage::Done(value) => assert!(is_done && value == "7", "{value}"),
                other => {
                    assert!(!is_done && matches!(other, ScriptMessage::Failed(_)), "{other:?}")
                }
            }
        }
    }
}
