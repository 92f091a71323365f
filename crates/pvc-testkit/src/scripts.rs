use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use pvc_model::job::JobId;
use pvc_model::storage::VolumeId;
use pvc_ports::{
    BlockDeviceError, BlockDevices, ScriptJob, ScriptMessage, ScriptOrder, ScriptProcess, Scripts,
    ScriptsError, Storage, Unmapped, device_path,
};

use crate::Gate;

/// Act of a scripted script.
#[derive(Debug, Clone, PartialEq)]
pub enum ScriptAct {
    Send(ScriptMessage),
    /// Says nothing any more.
    Hang,
    /// Ends its process.
    Die,
    /// Takes nothing any more that it is told or answered.
    Deafen,
}

#[derive(Default)]
struct Inner {
    acts: BTreeMap<&'static str, Vec<ScriptAct>>,
    answers: Vec<ScriptOrder>,
    running: usize,
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

    /// Sets what a script does in a phase, or after its start: `import`. It is at the end of a
    /// phase when it says so.
    pub fn set(&self, phase: &'static str, acts: impl Into<Vec<ScriptAct>>) {
        self.with(|inner| _ = inner.acts.insert(phase, acts.into()));
    }

    /// Sets the gate that a start passes, before it has an effect and before it returns.
    pub fn set_gate(&self, gate: Arc<Gate>) {
        self.with(|inner| inner.gate = Some(gate));
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

    fn acts(&self, phase: &str, default: ScriptMessage) -> VecDeque<ScriptAct> {
        let set = self.with(|inner| inner.acts.get(phase).cloned());
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
    async fn start(&self, _: &ScriptJob) -> Result<Box<dyn ScriptProcess>, ScriptsError> {
        self.pass().await;
        self.with(|inner| inner.running += 1);
        let next = self.acts("import", ScriptMessage::Ready);
        let process = ScriptedScript { scripts: self.clone(), next, is_deaf: false };
        self.pass().await;
        Ok(Box::new(process))
    }

    async fn end_left_over(&self) -> Result<(), ScriptsError> {
        Ok(())
    }
}

struct ScriptedScript {
    scripts: ScriptedScripts,
    next: VecDeque<ScriptAct>,
    is_deaf: bool,
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
        match self.next.pop_front() {
            Some(ScriptAct::Send(message)) => Ok(message),
            Some(ScriptAct::Die) => {
                Err(ScriptsError::Ended { how: "signal 9 ended it".to_owned() })
            }
            Some(ScriptAct::Hang | ScriptAct::Deafen) | None => std::future::pending().await,
        }
    }

    async fn tell(&mut self, order: ScriptOrder) -> Result<(), ScriptsError> {
        if self.is_deaf {
            std::future::pending::<()>().await;
        }
        if let ScriptOrder::Run(phase) = &order {
            let done = ScriptMessage::Done(serde_json::Value::Null);
            self.next = self.scripts.acts(phase.word(), done);
        }
        self.scripts.with(|inner| inner.answers.push(order));
        Ok(())
    }

    fn missing_limits(&self) -> Option<String> {
        None
    }

    async fn kill(self: Box<Self>) -> Result<(), ScriptsError> {
        Ok(())
    }
}

/// A process, and its jobs that have a volume mapped.
type Mapped = (usize, BTreeSet<JobId>);

/// Devices in memory: each process that has some holds its own handle.
#[derive(Clone)]
pub struct MemoryDevices {
    storage: Arc<dyn Storage>,
    process: usize,
    mapped: Arc<Mutex<BTreeMap<VolumeId, Mapped>>>,
    refusing: Arc<Mutex<BTreeSet<VolumeId>>>,
    gate: Option<Arc<Gate>>,
}

impl MemoryDevices {
    /// Makes those of a node with the volumes of this storage.
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        let (mapped, refusing) = Default::default();
        MemoryDevices { storage, process: 0, mapped, refusing, gate: None }
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

    /// The volumes that are mapped, by whomever.
    pub fn mapped(&self) -> Vec<VolumeId> {
        self.with(|mapped| mapped.keys().cloned().collect())
    }

    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<VolumeId, Mapped>) -> T) -> T {
        act(&mut self.mapped.lock().expect("no test panics while holding it"))
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
            self.storage.volume(volume).await?;
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
        let own = self.process;
        self.with(|mapped| {
            mapped.extract_if(.., |_, (of, _)| *of == own).map(|(id, _)| Ok(id)).collect()
        })
    }

    async fn unmap_left_over(&self) -> Vec<Unmapped> {
        let own = self.process;
        self.with(|mapped| {
            mapped.extract_if(.., |_, (of, _)| *of != own).map(|(id, _)| Ok(id)).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use pvc_contracts::scripts::{Manner, ScriptsFixture, scripts_contract};
    use pvc_ports::{ScriptFailure, ScriptLevel};
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
}
