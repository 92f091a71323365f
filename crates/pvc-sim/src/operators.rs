//! Operators: what they ask for goes to the API of a coordinator, as requests of HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, header};
use futures::StreamExt as _;
use serde_json::Value;
use tower::ServiceExt as _;

use crate::actions::{Ask, OnlyWay};
use crate::guest_networks::{self, NetworkAsk};
use crate::new_vms::{IMAGE, NewVmAsk};
use crate::process::Gate;
use crate::profiles::PROFILE;
use crate::storage_changes::{NewDb, POOL, StorageAsk};
use crate::uploads::File;

/// Time for which an operator waits for an answer.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The same time for something that is asked for with `--wait`.
const LONG_TIME_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Time that eight tests take, with a worker that dies in one of them.
const BENCHMARK_TIME_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Time between two looks at a task until it has ended.
const LOOK: Duration = Duration::from_secs(1);

/// More than any reply has.
const REPLY_BYTES: usize = 16 << 20;

/// Device that operators plug in and out.
const DEVICE: &str = "<interface type='bridge'><mac address='52:54:00:00:00:01'/>\
                      <source bridge='brupstream'/></interface>";

/// Target of the disk that operators plug in and out.
pub(crate) const DISK_TARGET: &str = "sdz";

const DISK: &str = "<disk type='network' device='disk'><source protocol='rbd' name='vms/extra'/>\
                    <target dev='sdz' bus='scsi'/></disk>";

/// Result of a request: why it was refused, or `None` if there was no answer in time.
pub(crate) type Answer = Option<Result<(), Refusal>>;

/// Reason for which something is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub why: String,
    /// Whether nothing has been changed, and nothing will be.
    pub is_final: bool,
}

impl Refusal {
    pub fn new(why: impl Into<String>) -> Refusal {
        Refusal { why: why.into(), is_final: true }
    }
}

pub(crate) fn said(answer: &Answer) -> String {
    match answer {
        Some(Ok(())) => "done".to_owned(),
        Some(Err(refusal)) => refusal.why.clone(),
        None => "no answer in time".to_owned(),
    }
}

/// Kind of the answer, for counting.
pub(crate) fn kind_of(answer: &Answer) -> &'static str {
    match answer {
        Some(Ok(())) => "answered: done",
        Some(Err(_)) => "answered: refused",
        None => "answered by nobody in time",
    }
}

/// The handlers of an API, and how many requests they have at the moment.
#[derive(Clone)]
pub(crate) struct Desk {
    pub router: Router,
    pub in_flight: Arc<AtomicUsize>,
}

/// The API on one coordinator, as it is reached from outside.
#[derive(Clone)]
pub(crate) struct Counter {
    pub gate: Gate,
    pub host: usize,
    pub desk: Desk,
}

/// A request that is not answered yet.
struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    fn of(desk: &Desk) -> InFlight {
        desk.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(desk.in_flight.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Names of things.
pub(crate) struct Names {
    pub hosts: Vec<String>,
    pub vms: Vec<String>,
    /// The volume of each VM, `POOL/VOLUME`, and the same in the trash, `POOL/ID`.
    pub volumes: Vec<String>,
    pub trashed: Vec<String>,
    /// The file that the request sends.
    pub file: Option<File>,
    /// The task that is not over, if there is one.
    pub task: String,
    /// XML that the request brings along.
    pub xml: String,
}

/// A request to the API.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    method: Method,
    path: String,
    query: BTreeMap<&'static str, String>,
    /// The members of a form in its body.
    form: Vec<(&'static str, String)>,
    /// The file that is its body instead.
    file: Option<File>,
}

impl Asked {
    fn new(method: Method, path: String) -> Asked {
        let path = format!("/api/v1/{path}");
        Asked { method, path, query: BTreeMap::new(), form: Vec::new(), file: None }
    }

    fn post(path: String) -> Asked {
        Asked::new(Method::POST, path)
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Asked {
        self.query.insert(name, value.into());
        self
    }

    fn with_any(self, name: &'static str, value: Option<&String>) -> Asked {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    fn with_xml(mut self, xml: &str) -> Asked {
        self.form.push(("xml", xml.to_owned()));
        self
    }

    fn with_file(self, file: Option<File>) -> Asked {
        let query = file.iter().flat_map(File::query);
        let announced = query.fold(self, |asked, (name, value)| asked.with(name, value));
        Asked { file, ..announced }
    }

    fn request(&self) -> Request<Body> {
        let query = encoded(self.query.iter().map(|(name, value)| (*name, value.as_str())));
        let form = encoded(self.form.iter().map(|(name, value)| (*name, value.as_str())));
        let request =
            Request::builder().method(self.method.clone()).uri(format!("{}?{query}", self.path));
        let request = match self.file {
            None => request
                .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(Body::from(form)),
            Some(file) => {
                let request = request.header(header::CONTENT_TYPE, file.content_type());
                let request = match file.length() {
                    Some(length) => request.header(header::CONTENT_LENGTH, length),
                    None => request,
                };
                request.body(Body::from_stream(file.body()))
            }
        };
        request.expect("names and encoded texts make a request")
    }
}

fn encoded<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

/// The request that `ask` is.
fn asked(ask: &Ask, names: &Names) -> Asked {
    let vm = |vm: &usize| format!("vm/{}", names.vms[*vm]);
    let node = |host: &usize| format!("node/{}", names.hosts[*host]);
    let state = |which: &usize, state: &str| {
        Asked::post(format!("{}/state", vm(which))).with("state", state)
    };
    let place = |which: &usize, action: &str, to: Option<usize>| {
        let to = to.map(|host| &names.hosts[host]);
        Asked::post(format!("{}/node", vm(which))).with("action", action).with_any("node", to)
    };
    let duty = |host: &usize, duty: &str| {
        Asked::post(format!("{}/domain-state", node(host))).with("state", duty)
    };
    let part = |host: &usize, part: &str| {
        Asked::post(format!("{}/coordinator-state", node(host))).with("state", part)
    };
    match ask {
        Ask::Start(which) => state(which, "start"),
        Ask::Stop(which) => state(which, "stop"),
        Ask::Shutdown(which) => state(which, "shutdown"),
        Ask::Restart(which) => state(which, "restart"),
        Ask::Disable(which) => state(which, "disable"),
        Ask::Define(_) => Asked::post("vm".to_owned()).with_xml(&names.xml),
        Ask::Modify { vm: which, .. } => Asked::new(Method::PUT, vm(which)).with_xml(&names.xml),
        Ask::Rename { vm: which, to } => {
            Asked::post(format!("{}/rename", vm(which))).with("new_name", to)
        }
        Ask::Undefine(which) => Asked::new(Method::DELETE, vm(which)),
        Ask::RemoveVolume(which) => {
            let path = format!("storage/ceph/volume/{}", names.volumes[*which]);
            Asked::new(Method::DELETE, path).with("force", "true")
        }
        Ask::RestoreVolume(which) => {
            Asked::post(format!("storage/ceph/trash/{}/restore", names.trashed[*which]))
        }
        Ask::Upload { vm, .. } => {
            let path = format!("storage/ceph/volume/{}/upload", names.volumes[*vm]);
            Asked::post(path).with_file(names.file)
        }
        Ask::Storage(ask) => asked_of_storage(ask, names),
        Ask::Network(ask) => asked_of_network(ask),
        Ask::NewVm(ask) => asked_of_new_vm(ask),
        Ask::Benchmark => Asked::post("storage/ceph/benchmark".to_owned()).with("pool", "vms"),
        Ask::CancelTask => Asked::new(Method::DELETE, format!("tasks/{}", names.task)),
        Ask::FlushLocks(which) => Asked::post(format!("{}/locks", vm(which))),
        Ask::Attach(which) => Asked::post(format!("{}/device", vm(which))).with_xml(DEVICE),
        Ask::Detach(which) => {
            Asked::new(Method::DELETE, format!("{}/device", vm(which))).with_xml(DEVICE)
        }
        Ask::AttachDisk(which) => Asked::post(format!("{}/device", vm(which))).with_xml(DISK),
        Ask::DetachDisk(which) => {
            Asked::new(Method::DELETE, format!("{}/device", vm(which))).with_xml(DISK)
        }
        Ask::Move { vm, to, live_only } => {
            place(vm, "move", *to).with("force_live", live_only.to_string())
        }
        Ask::Migrate { vm, to } => place(vm, "migrate", *to),
        Ask::Method { vm: which, only } => {
            let method = match only {
                Some(OnlyWay::Live) => "live",
                Some(OnlyWay::Shutdown) => "shutdown",
                None => "none",
            };
            Asked::post(format!("{}/meta", vm(which))).with("migration_method", method)
        }
        Ask::Limit { vm: which, to } => {
            let to: Vec<&str> = to.iter().map(|host| names.hosts[*host].as_str()).collect();
            Asked::post(format!("{}/meta", vm(which))).with("limit", to.join(","))
        }
        Ask::Unmigrate(which) => place(which, "unmigrate", None),
        Ask::Flush(host) => duty(host, "flush"),
        Ask::Ready(host) => duty(host, "ready"),
        Ask::FlushAndWait(host) => duty(host, "flush").with("wait", "true"),
        Ask::ReadyAndWait(host) => duty(host, "ready").with("wait", "true"),
        Ask::Primary(host) => part(host, "primary"),
        Ask::Secondary(host) => part(host, "secondary"),
        Ask::ConfirmOff(host) => Asked::post(format!("{}/confirm-off", node(host))),
        Ask::RemoveNode(host) => Asked::new(Method::DELETE, node(host)),
        Ask::Maintenance(on) => Asked::post("status".to_owned()).with("state", on.to_string()),
    }
}

/// Words with which whoever removes something says that it is meant.
const MEANT: (&str, &str) = ("yes-i-really-mean-it", "yes");

/// Size of each database of an OSD, and its part of what the OSD has for its data.
const DB_SIZE: &str = "10G";
const DB_RATIO: &str = "0.05";

fn asked_of_storage(ask: &StorageAsk, names: &Names) -> Asked {
    let below = |rest: &str| format!("storage/ceph/{rest}");
    let osd = |osd: &u32| below(&format!("osd/{osd}"));
    let volume = |vm: &usize| below(&format!("volume/{}", names.volumes[*vm]));
    let snapshot =
        |vm: &usize, name: &str| below(&format!("snapshot/{}/{name}", names.volumes[*vm]));
    let pool = |pool: &str| below(&format!("pool/{pool}"));
    let copy = |copy: &str| below(&format!("volume/{POOL}/{copy}"));
    match ask {
        StorageAsk::AddDbGroup { host, device } => {
            let asked = Asked::post(below("osddb")).with("node", &names.hosts[*host]);
            asked.with("device", device)
        }
        StorageAsk::AddOsds { host, device, count, db } => {
            let asked = Asked::post(below("osd")).with("node", &names.hosts[*host]);
            let asked = asked.with("device", device).with("weight", "1");
            let asked = asked.with("osd_count", count.to_string());
            match db {
                Some(NewDb::OfSize) => asked.with("ext_db_size", DB_SIZE),
                Some(NewDb::OfRatio) => asked.with("ext_db_ratio", DB_RATIO),
                None => asked,
            }
        }
        StorageAsk::ReplaceOsd { osd: which, device, force } => {
            let asked = Asked::post(osd(which)).with("new_device", device);
            asked.with(MEANT.0, MEANT.1).with("force", force.to_string())
        }
        StorageAsk::RefreshOsd { osd: which, device } => {
            Asked::new(Method::PUT, osd(which)).with("device", device)
        }
        StorageAsk::RemoveOsd { osd: which, force } => {
            let asked = Asked::new(Method::DELETE, osd(which)).with(MEANT.0, MEANT.1);
            asked.with("force", force.to_string())
        }
        StorageAsk::AddSnapshot { vm, name } => Asked::post(snapshot(vm, name)),
        StorageAsk::RenameSnapshot { vm, name, to } => {
            Asked::new(Method::PUT, snapshot(vm, name)).with("new_name", to)
        }
        StorageAsk::RemoveSnapshot { vm, name } => Asked::new(Method::DELETE, snapshot(vm, name)),
        StorageAsk::RollBack { vm, name } => {
            Asked::post(format!("{}/rollback", snapshot(vm, name)))
        }
        StorageAsk::Clone { vm, to, is_on_write } => {
            let asked = Asked::post(format!("{}/clone", volume(vm))).with("new_volume", to);
            asked.with("copy_on_write", is_on_write.to_string())
        }
        StorageAsk::Flatten { copy: which } => Asked::post(format!("{}/flatten", copy(which))),
        StorageAsk::RemoveCopy { copy: which } => Asked::new(Method::DELETE, copy(which)),
        StorageAsk::Resize { vm, mib } => {
            let bytes = mib << 20;
            Asked::new(Method::PUT, volume(vm)).with("new_size", bytes.to_string())
        }
        StorageAsk::Download { vm } => Asked::new(Method::GET, format!("{}/download", volume(vm))),
        StorageAsk::AddPool { pool: which } => {
            let asked = Asked::post(pool(which)).with("pgs", "32");
            asked.with("replcfg", "copies=3,mincopies=2")
        }
        StorageAsk::SetPgs { pool: which, count } => {
            Asked::new(Method::PUT, pool(which)).with("pgs", count.to_string())
        }
        StorageAsk::AddVolume { volume } => {
            Asked::post(below(&format!("volume/{volume}"))).with("size", "1G")
        }
        StorageAsk::RemovePool { pool: which } => {
            Asked::new(Method::DELETE, pool(which)).with(MEANT.0, MEANT.1)
        }
    }
}

/// Memory of a new VM, in MiB.
const NEW_VM_MIB: &str = "512";

fn asked_of_new_vm(ask: &NewVmAsk) -> Asked {
    let vm = |rest: &str| Asked::post(format!("vm/{}/{rest}", ask.name()));
    match ask {
        NewVmAsk::Create { start, .. } => vm("create")
            .with("image", IMAGE)
            .with("memory", NEW_VM_MIB)
            .with("start", start.to_string()),
        NewVmAsk::Provision { name, start } => Asked::post("provisioner/create".to_owned())
            .with("name", name)
            .with("profile", PROFILE)
            .with("start_vm", start.to_string()),
        NewVmAsk::Start { .. } => vm("state").with("state", "start"),
        NewVmAsk::FlushLocks { .. } => vm("locks"),
    }
}

fn asked_of_network(ask: &NetworkAsk) -> Asked {
    let vni = ask.vni();
    let network = format!("network/{vni}");
    let rule = |rule: &str| format!("{network}/acl/{}", guest_networks::rule_name(rule));
    let lease = |vm: usize| format!("{network}/lease/{}", guest_networks::mac(vm));
    match ask {
        NetworkAsk::Add { .. } => {
            let [start, end] = guest_networks::dhcp_range(vni);
            Asked::post(network)
                .with("description", format!("net{vni}"))
                .with("nettype", "managed")
                .with("ip4_network", guest_networks::ip4_network(vni))
                .with("ip4_gateway", guest_networks::host_of(vni, 1))
                .with("dhcp4", "true")
                .with("dhcp4_start", start)
                .with("dhcp4_end", end)
        }
        NetworkAsk::AddBridged { .. } => {
            Asked::post(network).with("description", format!("net{vni}")).with("nettype", "bridged")
        }
        NetworkAsk::Remove { force, .. } => {
            Asked::new(Method::DELETE, network).with("force", force.to_string())
        }
        NetworkAsk::SetGateway { host, .. } => Asked::new(Method::PUT, network)
            .with("ip4_gateway", guest_networks::host_of(vni, *host)),
        NetworkAsk::SetDhcp { on, .. } => {
            Asked::new(Method::PUT, network).with("dhcp4", on.to_string())
        }
        NetworkAsk::AddRule { rule: text, first, .. } => {
            let direction = guest_networks::rule_direction(text).as_str();
            let asked = Asked::post(rule(text)).with("rule", text).with("direction", direction);
            if *first { asked.with("order", "0") } else { asked }
        }
        NetworkAsk::TryRule { rule: text, seconds, .. } => Asked::post(rule(text))
            .with("rule", text)
            .with("direction", guest_networks::rule_direction(text).as_str())
            .with("confirm", seconds.to_string()),
        NetworkAsk::Confirm { .. } => Asked::post(format!("{network}/confirm")),
        NetworkAsk::RemoveRule { rule: text, .. } => Asked::new(Method::DELETE, rule(text)),
        NetworkAsk::Reserve { vm, .. } => Asked::post(lease(*vm))
            .with("ipaddress", guest_networks::reserved_address(vni, *vm))
            .with("hostname", format!("vm{vm}")),
        NetworkAsk::Release { vm, .. } => Asked::new(Method::DELETE, lease(*vm)),
    }
}

impl Counter {
    /// Asks, and hears what becomes of it; of a task, when it has ended.
    pub async fn ask(&self, ask: &Ask, names: &Names) -> Answer {
        let time_limit = match ask {
            // These wait until the guest is off, or the node has done it.
            Ask::FlushAndWait(_)
            | Ask::ReadyAndWait(_)
            | Ask::Disable(_)
            | Ask::Undefine(_)
            | Ask::Rename { .. }
            | Ask::NewVm(NewVmAsk::Create { .. } | NewVmAsk::Provision { .. }) => LONG_TIME_LIMIT,
            Ask::Upload { .. } => {
                names.file.and_then(|file| file.leaves_after()).unwrap_or(LONG_TIME_LIMIT)
            }
            Ask::Benchmark => BENCHMARK_TIME_LIMIT,
            // Tasks, which may wait for the data of an OSD.
            Ask::Storage(
                StorageAsk::AddDbGroup { .. }
                | StorageAsk::AddOsds { .. }
                | StorageAsk::ReplaceOsd { .. }
                | StorageAsk::RefreshOsd { .. }
                | StorageAsk::RemoveOsd { .. },
            ) => LONG_TIME_LIMIT,
            _ => TIME_LIMIT,
        };
        in_time(time_limit, async {
            let reads = matches!(ask, Ask::Storage(StorageAsk::Download { .. }));
            let reply = self.send(&asked(ask, names), reads).await?;
            match reply["task_id"].as_str() {
                Some(task) => self.until_over(task).await,
                None => Ok(()),
            }
        })
        .await
    }

    /// Sends a request. Returns what the API replies, or why it refuses. Of what is only read, as a
    /// file, the begin will do: whoever asks for it goes away then.
    async fn send(&self, asked: &Asked, is_file: bool) -> Result<Value, Refusal> {
        // A process that stands still takes nothing, and gives nothing.
        self.gate.pass().await;
        if !self.is_open() {
            let why = "the API on this host is being stopped: connection refused".to_owned();
            return Err(Refusal { why, is_final: false });
        }
        let _taken = InFlight::of(&self.desk);
        let response = self.desk.router.clone().oneshot(asked.request()).await;
        let Ok(response) = response;
        let status = response.status();
        if is_file && status.is_success() {
            let begin = response.into_body().into_data_stream().next().await;
            let is_read = begin.is_none_or(|piece| piece.is_ok());
            let why = "the contents did not come".to_owned();
            return if is_read { Ok(Value::Null) } else { Err(Refusal { why, is_final: false }) };
        }
        let body = to_bytes(response.into_body(), REPLY_BYTES).await;
        let body = body.map_err(|error| Refusal { why: error.to_string(), is_final: false })?;
        self.gate.pass().await;
        let reply: Value = serde_json::from_slice(&body).unwrap_or_default();
        match status.is_client_error() || status.is_server_error() {
            false => Ok(reply),
            true => {
                let why = reply["message"].as_str().unwrap_or(status.as_str()).to_owned();
                // A server that asked the store and had no answer does not know.
                let is_final = status.is_client_error() || why.ends_with("nothing was changed");
                Err(Refusal { why, is_final })
            }
        }
    }

    /// Whether its process still takes requests.
    fn is_open(&self) -> bool {
        self.gate.world.with(|state| {
            let api = state.hosts[self.host].api.as_ref();
            api.is_some_and(|api| api.daemon.pid == self.gate.pid && api.desk.is_some())
        })
    }

    async fn until_over(&self, task: &str) -> Result<(), Refusal> {
        self.gate.world.with(|state| state.jobs.answered(task, None));
        loop {
            let status =
                self.send(&Asked::new(Method::GET, format!("tasks/{task}")), false).await?;
            match status["state"].as_str() {
                Some("SUCCESS") => {
                    self.gate.world.with(|state| state.jobs.answered(task, Some(true)));
                    return Ok(());
                }
                Some("PENDING" | "RUNNING") => self.gate.sleep(LOOK).await,
                _ => {
                    self.gate.world.with(|state| state.jobs.answered(task, Some(false)));
                    let why = status["status"].as_str().unwrap_or("the task is gone").to_owned();
                    return Err(Refusal { why, is_final: false });
                }
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the simulation owns time")]
pub(crate) async fn in_time<T>(time_limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(time_limit, work).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uploads::Sending;

    fn names() -> Names {
        Names {
            hosts: vec!["hv1".into(), "hv2".into()],
            vms: vec!["web1".into()],
            volumes: vec!["vms/web1_sda".to_owned()],
            trashed: vec!["vms/1a".to_owned()],
            file: Some(File { upload: 1, sending: Sending::default() }),
            task: "0123abcd".to_owned(),
            xml: "<domain/>".into(),
        }
    }

    fn line(ask: &Ask) -> String {
        let request = asked(ask, &names()).request();
        format!("{} {}", request.method(), request.uri())
    }

    #[test]
    fn an_ask_is_a_request_to_the_api() {
        for (ask, wanted) in [
            (Ask::Start(0), "POST /api/v1/vm/web1/state?state=start"),
            (Ask::Define(0), "POST /api/v1/vm?"),
            (Ask::Modify { vm: 0, memory_mib: 512 }, "PUT /api/v1/vm/web1?"),
            (
                Ask::Rename { vm: 0, to: "web2".to_owned() },
                "POST /api/v1/vm/web1/rename?new_name=web2",
            ),
            (Ask::Undefine(0), "DELETE /api/v1/vm/web1?"),
            (Ask::RemoveVolume(0), "DELETE /api/v1/storage/ceph/volume/vms/web1_sda?force=true"),
            (Ask::RestoreVolume(0), "POST /api/v1/storage/ceph/trash/vms/1a/restore?"),
            (
                Ask::Upload { vm: 0, sending: Sending::default() },
                "POST /api/v1/storage/ceph/volume/vms/web1_sda/upload?file_size=3145728\
                 &image_format=raw",
            ),
            (
                Ask::Storage(StorageAsk::AddOsds {
                    host: 1,
                    device: "/dev/sdb".to_owned(),
                    count: 2,
                    db: Some(NewDb::OfSize),
                }),
                "POST /api/v1/storage/ceph/osd?device=%2Fdev%2Fsdb&ext_db_size=10G&node=hv2\
                 &osd_count=2&weight=1",
            ),
            (
                Ask::Storage(StorageAsk::AddOsds {
                    host: 1,
                    device: "/dev/sdb".to_owned(),
                    count: 1,
                    db: Some(NewDb::OfRatio),
                }),
                "POST /api/v1/storage/ceph/osd?device=%2Fdev%2Fsdb&ext_db_ratio=0.05&node=hv2\
                 &osd_count=1&weight=1",
            ),
            (
                Ask::Storage(StorageAsk::RemoveOsd { osd: 3, force: false }),
                "DELETE /api/v1/storage/ceph/osd/3?force=false&yes-i-really-mean-it=yes",
            ),
            (
                Ask::Storage(StorageAsk::RollBack { vm: 0, name: "s1".to_owned() }),
                "POST /api/v1/storage/ceph/snapshot/vms/web1_sda/s1/rollback?",
            ),
            (
                Ask::Storage(StorageAsk::Resize { vm: 0, mib: 2 }),
                "PUT /api/v1/storage/ceph/volume/vms/web1_sda?new_size=2097152",
            ),
            (
                Ask::Network(NetworkAsk::Remove { vni: 1001, force: true }),
                "DELETE /api/v1/network/1001?force=true",
            ),
            (
                Ask::Network(NetworkAsk::Reserve { vni: 1001, vm: 0 }),
                "POST /api/v1/network/1001/lease/52:54:00:01:00:00?hostname=vm0\
                 &ipaddress=10.20.1.200",
            ),
            (
                Ask::NewVm(NewVmAsk::Create { name: "shop".to_owned(), start: true }),
                "POST /api/v1/vm/shop/create?image=debian&memory=512&start=true",
            ),
            (
                Ask::NewVm(NewVmAsk::Provision { name: "shop".to_owned(), start: false }),
                "POST /api/v1/provisioner/create?name=shop&profile=small&start_vm=false",
            ),
            (
                Ask::NewVm(NewVmAsk::FlushLocks { name: "shop".to_owned() }),
                "POST /api/v1/vm/shop/locks?",
            ),
            (
                Ask::Storage(StorageAsk::SetPgs { pool: "data".to_owned(), count: 64 }),
                "PUT /api/v1/storage/ceph/pool/data?pgs=64",
            ),
            (Ask::DetachDisk(0), "DELETE /api/v1/vm/web1/device?"),
            (Ask::CancelTask, "DELETE /api/v1/tasks/0123abcd?"),
            (Ask::Benchmark, "POST /api/v1/storage/ceph/benchmark?pool=vms"),
            (
                Ask::Move { vm: 0, to: Some(1), live_only: true },
                "POST /api/v1/vm/web1/node?action=move&force_live=true&node=hv2",
            ),
            (Ask::Limit { vm: 0, to: vec![0, 1] }, "POST /api/v1/vm/web1/meta?limit=hv1%2Chv2"),
            (Ask::Method { vm: 0, only: None }, "POST /api/v1/vm/web1/meta?migration_method=none"),
            (Ask::FlushAndWait(1), "POST /api/v1/node/hv2/domain-state?state=flush&wait=true"),
            (Ask::RemoveNode(1), "DELETE /api/v1/node/hv2?"),
            (Ask::Maintenance(false), "POST /api/v1/status?state=false"),
        ] {
            assert_eq!(line(&ask), wanted);
        }
    }
}
