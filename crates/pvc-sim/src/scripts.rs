//! Scripts of the provisioner, whose processes stand still and end with their worker, and the
//! volumes that a host has mapped for them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_daemon::{ScriptSettings, ScriptTools};
use pvc_model::job::JobId;
use pvc_model::storage::VolumeId;
use pvc_ports::{
    BlockDeviceError, BlockDevices, Files, ScriptJob, ScriptMessage, ScriptOrder, ScriptProcess,
    Scripts, ScriptsError, Storage, Unmapped,
};
use pvc_provisioner::Provisioner;
use pvc_testkit::{MemoryDevices, MemoryVolumes, ScriptedScripts};
use serde_json::Map;

use crate::database::HostDatabase;
use crate::host::{Host, Hosts};
use crate::process::Gate;
use crate::profiles::{ProfileTables, script};
use crate::run::Run;
use crate::storage::MISSED;

/// The longest that a method of a script may take, and a script with all of them.
const PHASE_TIME: Duration = Duration::from_secs(300);
const WHOLE_TIME: Duration = Duration::from_secs(900);

/// The provisioner as a program of a host has it.
pub(crate) fn provisioner(gate: &Gate, host: usize) -> Provisioner {
    let inner = Arc::new(ProfileTables);
    Provisioner::new(Arc::new(HostDatabase { gate: gate.clone(), host, inner }))
}

/// Means of a host's worker to run scripts.
pub(crate) fn tools(
    gate: &Gate,
    host: usize,
    storage: Arc<dyn Storage>,
    files: Arc<dyn Files>,
) -> ScriptTools {
    ScriptTools {
        profiles: Some(Arc::new(provisioner(gate, host))),
        scripts: Arc::new(HostScripts {
            gate: gate.clone(),
            inner: ScriptedScripts::written_by(script),
        }),
        devices: Arc::new(HostDevices::new(gate, host, storage)),
        files,
        lists: pvc_api::script_list,
        settings: ScriptSettings {
            phase_time: PHASE_TIME,
            whole_time: WHOLE_TIME,
            memory_bytes: 1 << 30,
            removed_volumes_stay: Duration::ZERO,
            numbers_vms: true,
            architecture: "x86_64".to_owned(),
            monitors: Vec::new(),
            monitor_port: 6789,
            monitor_secret: String::new(),
            config: Map::new(),
        },
    }
}

/// Scripts that a worker of a host runs.
struct HostScripts {
    gate: Gate,
    inner: ScriptedScripts,
}

#[async_trait]
impl Scripts for HostScripts {
    async fn start(&self, job: &ScriptJob) -> Result<Box<dyn ScriptProcess>, ScriptsError> {
        self.gate.pass().await;
        let inner = self.inner.start(job).await;
        self.gate.pass().await;
        Ok(Box::new(HostScript { gate: self.gate.clone(), inner: inner? }))
    }

    async fn end_left_over(&self) -> Result<(), ScriptsError> {
        self.gate.pass().await;
        self.inner.end_left_over().await
    }
}

struct HostScript {
    gate: Gate,
    inner: Box<dyn ScriptProcess>,
}

#[async_trait]
impl ScriptProcess for HostScript {
    async fn next(&mut self) -> Result<ScriptMessage, ScriptsError> {
        let takes = self.gate.call(|state| state.run.chance.millis(5, 500)).await;
        self.gate.sleep(takes).await;
        self.inner.next().await
    }

    async fn tell(&mut self, order: ScriptOrder) -> Result<(), ScriptsError> {
        self.gate.pass().await;
        self.inner.tell(order).await
    }

    fn missing_limits(&self) -> Option<String> {
        self.inner.missing_limits()
    }

    async fn kill(self: Box<Self>) -> Result<(), ScriptsError> {
        self.gate.pass().await;
        self.inner.kill().await
    }
}

/// Block devices of a host, as a process there maps and unmaps them. They outlive it: the kernel
/// has them, and with them the volumes open.
struct HostDevices {
    gate: Gate,
    host: usize,
    inner: MemoryDevices,
}

impl HostDevices {
    fn new(gate: &Gate, host: usize, storage: Arc<dyn Storage>) -> Self {
        let mapped = gate.world.with(|state| state.hosts[host].mapped.clone());
        let inner = MemoryDevices::of_node(storage, mapped, gate.pid);
        HostDevices { gate: gate.clone(), host, inner }
    }

    /// Takes notice of what is mapped no more.
    async fn closed(&self, volumes: &[VolumeId]) {
        self.gate.world.with(|state| {
            let life = state.hosts[self.host].life;
            let close = |volume| close_device(&mut state.ceph.volumes, self.host, life, volume);
            volumes.iter().for_each(close);
        });
        self.gate.after_effect().await;
    }

    async fn all_closed(&self, unmapped: Vec<Unmapped>) -> Vec<Unmapped> {
        let closed: Vec<VolumeId> =
            unmapped.iter().filter_map(|it| it.as_ref().ok()).cloned().collect();
        self.closed(&closed).await;
        unmapped
    }
}

#[async_trait]
impl BlockDevices for HostDevices {
    async fn map(&self, volume: &VolumeId, job: &JobId) -> Result<PathBuf, BlockDeviceError> {
        self.gate.pass().await;
        let path = self.inner.map(volume, job).await?;
        self.gate.world.with(|state| {
            let life = state.hosts[self.host].life;
            open_device(&mut state.ceph.volumes, self.host, life, volume);
        });
        self.gate.after_effect().await;
        Ok(path)
    }

    async fn unmap(&self, volume: &VolumeId, job: &JobId) -> Result<(), BlockDeviceError> {
        self.gate.pass().await;
        self.inner.unmap(volume, job).await?;
        if !self.inner.mapped().contains(volume) {
            self.closed(std::slice::from_ref(volume)).await;
        }
        Ok(())
    }

    async fn unmap_all(&self) -> Vec<Unmapped> {
        self.gate.pass().await;
        self.all_closed(self.inner.unmap_all().await).await
    }

    async fn unmap_left_over(&self) -> Vec<Unmapped> {
        self.gate.pass().await;
        self.all_closed(self.inner.unmap_left_over().await).await
    }
}

/// The name that Ceph has for the kernel of a host in one of its lives, as a user of the volume.
fn user(host: usize, life: u64, volume: &VolumeId) -> String {
    format!("the kernel of host {host} in life {life}, for {volume}")
}

fn open_device(volumes: &mut MemoryVolumes, host: usize, life: u64, volume: &VolumeId) {
    if volumes.volume(volume).is_ok() {
        volumes.open(volume, &user(host, life, volume));
    }
}

fn close_device(volumes: &mut MemoryVolumes, host: usize, life: u64, volume: &VolumeId) {
    volumes.close_all(&user(host, life, volume));
}

/// A host loses its power, and with it what it has mapped: Ceph misses it after a while.
pub(crate) fn devices_lost(run: &mut Run, host: usize, known: &Host) {
    let life = known.life;
    for volume in known.mapped.volumes() {
        run.later(MISSED, move |state| close_device(&mut state.ceph.volumes, host, life, &volume));
    }
}

/// A volume that is mapped on a host where no script is at work any more.
pub(crate) fn left_mapped(hosts: &Hosts) -> Option<String> {
    hosts.iter().find_map(|host| {
        let volume = host.mapped.volumes().into_iter().next()?;
        Some(format!("{} has volume {volume} mapped for a script that is no more", host.name))
    })
}

#[cfg(test)]
mod tests {
    use pvc_contracts::block_devices::{BlockDevicesFixture, block_devices_contract};
    use pvc_contracts::scripts::{Manner, ScriptsFixture, scripts_contract};
    use pvc_ports::{ScriptFailure, ScriptLevel};
    use pvc_testkit::{ScriptAct, ScriptActs};
    use serde_json::{Value, json};

    use super::*;
    use crate::daemons;
    use crate::state::World;
    use crate::storage::Volumes;

    /// A script that behaves as its text says.
    fn behaved(job: &ScriptJob) -> ScriptActs {
        let log = |text: &str| {
            let (level, text) = (ScriptLevel::Info, text.to_owned());
            ScriptAct::Send(ScriptMessage::Log { level, text })
        };
        let done = |value: Value| ScriptAct::Send(ScriptMessage::Done(value));
        let (class, text) = ("ProvisioningError".to_owned(), "wrong".to_owned());
        let failure = ScriptFailure { class, text, ..Default::default() };
        let wrote = ScriptAct::Send(ScriptMessage::Wrote("written".to_owned()));
        let named = json!({"pool": "vms", "name": "x"});
        let (function, arguments) =
            ("ceph.map_volume".to_owned(), named.as_object().cloned().unwrap());
        let call = ScriptAct::Send(ScriptMessage::Call { function, arguments });
        let setup = match job.script.as_str() {
            "Failing" => vec![ScriptAct::Send(ScriptMessage::Failed(failure))],
            "Ending" => vec![ScriptAct::Die],
            "Hanging" => vec![ScriptAct::Hang],
            _ => vec![log("hello"), wrote, done(Value::Null)],
        };
        ScriptActs::from([
            ("setup", setup),
            ("create", vec![done(json!("<domain/>"))]),
            ("prepare", vec![call, log("/dev/rbd/vms/x"), done(Value::Null)]),
        ])
    }

    #[tokio::test(start_paused = true)]
    async fn the_simulated_scripts_keep_the_contract() {
        let (_, gates) = World::of_hosts(1);
        let inner = ScriptedScripts::written_by(behaved);
        let counting = inner.clone();
        let job = |manner: Manner| ScriptJob {
            name: "1".to_owned(),
            script: format!("{manner:?}"),
            facts: Map::new(),
            memory_bytes: 1,
        };
        scripts_contract(ScriptsFixture {
            scripts: Arc::new(HostScripts { gate: gates[0].clone(), inner }),
            job: Box::new(job),
            processes: Box::new(move || counting.running()),
        })
        .await;
    }

    fn id(text: &str) -> VolumeId {
        VolumeId::from_record(text).expect("a volume's name")
    }

    /// Devices of another process of the first host.
    fn devices(world: &World) -> HostDevices {
        let gate = world.with(|state| {
            let pid = state.processes.start("a worker".to_owned(), Some(0));
            daemons::gate(state, pid)
        });
        let storage = Arc::new(Volumes { gate: gate.clone(), host: 0 });
        HostDevices::new(&gate, 0, storage)
    }

    fn with_volumes(volumes: [&str; 2]) -> World {
        let (world, _) = World::of_hosts(1);
        world.with(|state| {
            volumes.iter().for_each(|volume| state.ceph.volumes.insert(&id(volume)));
        });
        world
    }

    #[tokio::test(start_paused = true)]
    async fn the_simulated_devices_keep_the_contract() {
        let volumes = ["vms/a", "vms/b"];
        let world = with_volumes(volumes);
        let seen = world.clone();
        block_devices_contract(BlockDevicesFixture {
            process: Box::new(move || Arc::new(devices(&world))),
            volumes: volumes.map(id),
            absent: id("vms/absent"),
            is_mapped: Box::new(move |volume| {
                seen.with(|state| state.hosts[0].mapped.volumes().contains(volume))
            }),
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_is_mapped_is_in_use_until_it_is_unmapped_or_its_host_is_missed() {
        let world = with_volumes(["vms/a", "vms/b"]);
        let [a, b] = ["vms/a", "vms/b"].map(id);
        let is_used = |volume: &VolumeId| {
            world.with(|state| state.ceph.volumes.check_unused(volume).is_err())
        };
        let (first, job) = (devices(&world), JobId::from_bits(1));
        first.map(&a, &job).await.unwrap();
        first.map(&b, &job).await.unwrap();
        first.unmap(&a, &job).await.unwrap();
        assert_eq!([is_used(&a), is_used(&b)], [false, true]);
        world.with(|state| state.end_process(first.gate.pid));
        assert!(is_used(&b), "the kernel has it");
        assert!(world.with(|state| left_mapped(&state.hosts)).is_some());
        world.with(|state| state.power_off(0, "a test"));
        assert_eq!(world.with(|state| left_mapped(&state.hosts)), None);
        assert!(is_used(&b), "Ceph does not know yet");
        devices(&world).gate.sleep(MISSED + Duration::from_secs(1)).await;
        assert!(!is_used(&b));
    }
}
