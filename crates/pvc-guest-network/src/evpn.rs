//! FRR's configuration: PVC's part of it is written when what it says changes, and FRR reads it
//! anew without letting sessions go. What it says is decided in `pvc_model::guest_network::evpn`.

use std::path::Path;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::guest_network::evpn::{
    EvpnError, EvpnSettings, Forwarding, block, merged, unknown_coordinators, with_bgp,
};
use pvc_model::with_causes;
use pvc_ports::{
    Command, ExecError, FileAccess, FileOwner, FilesError, NetworkError, ServicesError, UnitState,
};
use pvc_role::{Alarm, Context};
use tokio_util::sync::CancellationToken;

const FILE: &str = "/etc/frr/frr.conf";
/// A file that is to be FRR's, once FRR has looked at it.
const CANDIDATE: &str = "/etc/frr/frr.conf.pvc";
const DAEMONS: &str = "/etc/frr/daemons";
const UNIT: &str = "frr.service";

/// The largest file that is looked at, in bytes.
const MOST_BYTES: u64 = 4 << 20;

/// Program that `systemctl reload` runs, of the package frr-pythontools.
const RELOADS: &str = "/usr/lib/frr/frr-reload.py";

/// Time that FRR may take to be reloaded or restarted.
const FOLLOW: Duration = Duration::from_secs(60);

/// Time after which a file is tried again that FRR did not take.
const AGAIN: Duration = Duration::from_secs(300);

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(10);

/// Time that FRR's shell may take to look at a file.
const CHECK: Duration = Duration::from_secs(10);

const FAULT: &str = "EVPN";

/// Time for which it may be wrong before that is a fault.
const GRACE: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Plan(#[from] EvpnError),
    #[error("FRR is not installed here: there is no `{0}`")]
    Missing(&'static str),
    #[error("`{FILE}` is not text")]
    NoText,
    #[error("FRR does not take what PVC would write: {0}")]
    Refused(String),
    #[error("FRR does not run")]
    Down,
    #[error("FRR could not be {0}: {1}")]
    Order(&'static str, String),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("no address is known of the coordinators {0}")]
    Unknown(String),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error(transparent)]
    Services(#[from] ServicesError),
}

impl Trouble {
    fn hint(&self) -> Option<String> {
        match self {
            Trouble::Plan(error) => Some(error.hint().to_owned()),
            Trouble::Missing(_) => Some(
                "`apt install frr frr-pythontools`, and `systemctl restart pvcnoded` if \
                 `/etc/frr` was not there"
                    .to_owned(),
            ),
            Trouble::Unknown(_) => Some("they say it themselves once their daemons run".to_owned()),
            Trouble::Services(error) => error.hint(),
            Trouble::Exec(_) | Trouble::Refused(_) => {
                Some(format!("`vtysh -C -f {CANDIDATE}` says more"))
            }
            Trouble::Down | Trouble::Order(..) => Some(format!("see `systemctl status {UNIT}`")),
            Trouble::Files(_) | Trouble::Network(_) | Trouble::NoText => None,
        }
    }
}

/// Keeps the configuration as it should be, until `end`.
pub async fn run(context: Context, settings: EvpnSettings, end: CancellationToken) {
    let mut alarm = Alarm::after(GRACE);
    // A former life may have written the file and gone no further.
    let mut keeper = Keeper { settings, owed: Some(Order::Reload), refused: None, is_down: false };
    let mut turns = context.turns(&end);
    while turns.next(INTERVAL).await {
        let done = keeper.round(&context).await;
        let words = done.err().map(|trouble| {
            let hint = trouble.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("EVPN: {}{hint}", with_causes(&trouble))
        });
        let message = words.as_ref().map(|words| format!("node {}: {words}", context.name()));
        if context.alarm_own(FAULT, &mut alarm, message).await {
            tracing::error!("{}", words.unwrap_or_default());
        }
    }
}

struct Keeper {
    settings: EvpnSettings,
    /// Order that FRR has not followed yet.
    owed: Option<Order>,
    refused: Option<RefusedFile>,
    /// Whether FRR did not run at the last look.
    is_down: bool,
}

/// A file that FRR does not take, and when it said so: it is not asked the same all the time.
struct RefusedFile {
    file: String,
    why: String,
    at: Duration,
}

/// Something that systemd is asked to do with FRR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    /// Reads its file anew, and keeps what did not change; it is started if it does not run.
    Reload,
    Restart,
}

impl Order {
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Order::Reload => ("reload-or-restart", "reloaded"),
            Order::Restart => ("restart", "restarted"),
        }
    }
}

impl Keeper {
    async fn round(&mut self, context: &Context) -> Result<(), Trouble> {
        let view = context.store.view();
        let files = &context.ports.files;
        for needed in [DAEMONS, RELOADS] {
            if files.look(Path::new(needed)).await?.is_none() {
                return Err(Trouble::Missing(needed));
            }
        }
        if self.write(context, &view).await? {
            self.owed = self.owed.max(Some(Order::Reload));
        }
        if switch_bgp_on(context).await? {
            self.owed = Some(Order::Restart);
        }
        if let Some(order) = self.owed {
            give(context, order).await?;
            self.owed = None;
        }
        let was_down = self.is_down;
        self.is_down = context.ports.services.state(UNIT).await? != UnitState::Active;
        if self.is_down {
            self.owed = Some(Order::Reload);
        }
        // One that was just started runs if it still does at the next look.
        if self.is_down || was_down {
            return Err(Trouble::Down);
        }
        let unknown = unknown_coordinators(&self.settings, &view);
        match unknown.is_empty() {
            true => Ok(()),
            false => {
                let names: Vec<String> = unknown.iter().map(|name| format!("`{name}`")).collect();
                Err(Trouble::Unknown(names.join(", ")))
            }
        }
    }

    /// Writes the file if it is not as it should be. Whether it was not.
    async fn write(&mut self, context: &Context, view: &Cluster) -> Result<bool, Trouble> {
        let files = &context.ports.files;
        let there = match files.look(Path::new(FILE)).await? {
            Some(_) => files.read(Path::new(FILE), MOST_BYTES).await?,
            None => Vec::new(),
        };
        let there = String::from_utf8(there).map_err(|_| Trouble::NoText)?;
        let forwarding = forwarding(context).await?;
        let block = block(&self.settings, view, forwarding);
        let wanted = merged(&there, &block, self.settings.asn)?;
        if wanted == there {
            self.refused = None;
            files.remove(Path::new(CANDIDATE)).await?;
            return Ok(false);
        }
        let now = context.now();
        let is_same = |refused: &&RefusedFile| {
            refused.file == wanted && now.saturating_sub(refused.at) < AGAIN
        };
        if let Some(refused) = self.refused.as_ref().filter(is_same) {
            return Err(Trouble::Refused(refused.why.clone()));
        }
        let owner = FileOwner { user: "frr".to_owned(), group: "frr".to_owned() };
        let access = FileAccess { mode: 0o640, owner: Some(owner) };
        files.replace(Path::new(CANDIDATE), wanted.as_bytes(), &access).await?;
        let checked = context.ports.exec.run(check()).await?;
        if checked.code != Some(0) {
            let said = [&checked.stdout, &checked.stderr]
                .map(|text| String::from_utf8_lossy(text).into_owned());
            let why = pvc_model::shown(said.concat().trim());
            self.refused = Some(RefusedFile { file: wanted, why: why.clone(), at: now });
            return Err(Trouble::Refused(why));
        }
        files.replace(Path::new(FILE), wanted.as_bytes(), &access).await?;
        files.remove(Path::new(CANDIDATE)).await?;
        tracing::info!("FRR's configuration was written");
        Ok(true)
    }
}

/// The call of FRR's shell that looks at the candidate and changes nothing.
fn check() -> Command {
    command("vtysh", &["-C", "-f", CANDIDATE], CHECK)
}

fn command(program: &str, args: &[&str], deadline: Duration) -> Command {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    Command { program: program.to_owned(), args, env: Vec::new(), stdin: None, deadline }
}

/// Has FRR do it, and waits until it has.
async fn give(context: &Context, order: Order) -> Result<(), Trouble> {
    let (verb, done) = order.words();
    let output = context.ports.exec.run(command("systemctl", &[verb, UNIT], FOLLOW)).await?;
    match output.code {
        Some(0) => Ok(()),
        _ => {
            let why = pvc_model::shown(String::from_utf8_lossy(&output.stderr).trim());
            Err(Trouble::Order(done, why))
        }
    }
}

/// Forwarding as the kernel does it now: FRR's file says the same, so that FRR changes nothing.
async fn forwarding(context: &Context) -> Result<Forwarding, NetworkError> {
    let network = &context.ports.network;
    let ip4 = network.setting("net/ipv4/ip_forward").await?;
    let ip6 = network.setting("net/ipv6/conf/all/forwarding").await?;
    let is_on = |value: Option<String>| value.is_some_and(|value| value != "0");
    Ok(Forwarding { ip4: is_on(ip4), ip6: is_on(ip6) })
}

/// Switches FRR's BGP daemon on, if it is off. Whether it was.
async fn switch_bgp_on(context: &Context) -> Result<bool, Trouble> {
    let files = &context.ports.files;
    let text = files.read(Path::new(DAEMONS), MOST_BYTES).await?;
    let Some(wanted) = with_bgp(&String::from_utf8_lossy(&text)) else { return Ok(false) };
    let owner = FileOwner { user: "frr".to_owned(), group: "frr".to_owned() };
    let access = FileAccess { mode: 0o640, owner: Some(owner) };
    files.replace(Path::new(DAEMONS), wanted.as_bytes(), &access).await?;
    tracing::info!("FRR's BGP daemon was switched on");
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use pvc_embedded::EmbeddedTree;
    use pvc_model::NodeName;
    use pvc_ports::{Files as _, Output, Ports};
    use pvc_store::Store;
    use pvc_testkit::{
        MemoryFiles, ScriptedExec, ScriptedServices, SeededRandom, TokioClock, UnitManner,
        eventually, ports,
    };

    use super::*;

    const OWN: &str = "frr defaults datacenter\nrouter ospf\n";
    const SOON: Duration = Duration::from_secs(60);
    const LONG: Duration = Duration::from_secs(250);

    struct World {
        context: Context,
        files: Arc<MemoryFiles>,
        services: Arc<ScriptedServices>,
        exec: Arc<ScriptedExec>,
        /// Whether systemd does nothing now.
        refused_orders: Arc<Mutex<bool>>,
        end: CancellationToken,
    }

    /// A node with FRR, whose shell takes what does not have these words.
    async fn world(file: &str, refused: &'static str) -> World {
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let tree = EmbeddedTree::in_memory().connect();
        let store = Store::open(tree, clock.clone(), random.clone()).await.unwrap();
        store.initialize(false).await.unwrap();
        let files = Arc::new(MemoryFiles::new());
        files.insert_user("frr");
        files.insert(Path::new(DAEMONS), b"zebra=yes\nbgpd=no\n");
        files.insert(Path::new(RELOADS), b"");
        files.insert(Path::new(FILE), file.as_bytes());
        let services = Arc::new(ScriptedServices::new().with(UNIT, UnitManner::Runs));
        let refused_orders = Arc::new(Mutex::new(false));
        let (read, units, refuses) = (files.clone(), services.clone(), refused_orders.clone());
        let exec = Arc::new(ScriptedExec::new(move |command: &Command| {
            let code = if command.program == "systemctl" {
                let refuses = *refuses.lock().unwrap();
                if !refuses {
                    units.set_state(UNIT, UnitState::Active);
                }
                i32::from(refuses)
            } else {
                let text = String::from_utf8(read.contents(Path::new(CANDIDATE)).unwrap()).unwrap();
                i32::from(!refused.is_empty() && text.contains(refused)) * 2
            };
            let stdout = b"line 2: % Unknown command[25]: x".to_vec();
            Ok(Output { code: Some(code), stdout, stderr: b"frr-reload.py failed".to_vec() })
        }));
        let ports = Ports {
            clock,
            random,
            files: files.clone(),
            exec: exec.clone(),
            services: services.clone(),
            ..ports()
        };
        let context = Context::new(NodeName::new("hv1"), ports, store);
        let end = CancellationToken::new();
        World { context, files, services, exec, refused_orders, end }
    }

    fn settings() -> EvpnSettings {
        let (hv1, hv2) = (NodeName::new("hv1"), NodeName::new("hv2"));
        EvpnSettings {
            asn: 65500,
            routers: [].into(),
            router_asn: 65500,
            own: "10.0.0.1".parse().unwrap(),
            network: "10.0.0.0/24".parse().unwrap(),
            coordinators: [hv1, hv2.clone()].into(),
            configured: [
                (NodeName::new("hv1"), "10.0.0.1".parse().unwrap()),
                (hv2, "10.0.0.2".parse().unwrap()),
            ]
            .into(),
            is_coordinator: true,
        }
    }

    impl World {
        fn file(&self, path: &str) -> String {
            String::from_utf8(self.files.contents(Path::new(path)).unwrap()).unwrap()
        }

        fn start(&self) {
            tokio::spawn(run(self.context.clone(), settings(), self.end.clone()));
        }

        fn fault(&self) -> Option<String> {
            let view = self.context.store.view();
            view.faults.get("EVPN_HV1").map(|fault| fault.message.clone())
        }

        /// Words that systemd was told about FRR.
        fn orders(&self) -> Vec<String> {
            let all = self.exec.ran().into_iter().filter(|ran| ran.program == "systemctl");
            all.map(|ran| ran.args[0].clone()).collect()
        }

        fn is_written(&self) -> bool {
            self.file(FILE).contains("neighbor 10.0.0.2 peer-group pvc-nodes")
        }

        async fn has_fault(&self, words: &str) {
            eventually("there is a fault", LONG, || self.fault().is_some()).await;
            assert!(self.fault().unwrap().contains(words), "{:?}", self.fault());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn frr_reads_it_once_and_what_the_operator_wrote_stays() {
        let world = world(OWN, "").await;
        world.start();
        eventually("the file is written", SOON, || world.is_written()).await;
        assert!(world.file(FILE).starts_with(OWN));
        eventually("BGP is switched on", SOON, || world.orders() == ["restart"]).await;
        assert_eq!(world.file(DAEMONS), "zebra=yes\nbgpd=yes\n");
        world.context.sleep(SOON).await;
        assert_eq!(world.orders(), ["restart"], "nothing has changed since");
        world.files.insert(Path::new(FILE), OWN.as_bytes());
        eventually("somebody's edit is undone", SOON, || world.is_written()).await;
        let both = ["restart", "reload-or-restart"];
        eventually("FRR reads it", SOON, || world.orders() == both).await;
        assert_eq!(world.fault(), None);
        assert!(world.files.contents(Path::new(CANDIDATE)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reload_that_does_not_work_is_a_fault_and_tried_until_it_does() {
        let world = world(OWN, "").await;
        world.start();
        eventually("it begins", SOON, || world.orders() == ["restart"]).await;
        *world.refused_orders.lock().unwrap() = true;
        world.files.insert(Path::new(FILE), OWN.as_bytes());
        eventually("somebody's edit is undone", SOON, || world.is_written()).await;
        world.has_fault("frr-reload.py failed").await;
        *world.refused_orders.lock().unwrap() = false;
        let tried = world.orders().len();
        eventually("the fault is over", SOON, || world.fault().is_none()).await;
        assert_eq!(world.orders().len(), tried + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn frr_that_does_not_run_is_started_and_a_fault_if_it_does_not_stay() {
        let world = world(OWN, "").await;
        world.start();
        eventually("it is started", SOON, || world.orders().len() == 1).await;
        world.services.set_state(UNIT, UnitState::Failed);
        eventually("it is started again", SOON, || world.orders().len() == 2).await;
        assert_eq!(world.fault(), None);
        let (services, context) = (world.services.clone(), world.context.clone());
        tokio::spawn(async move {
            loop {
                services.set_state(UNIT, UnitState::Failed);
                context.sleep(Duration::from_millis(100)).await;
            }
        });
        world.has_fault("does not run").await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_frr_does_not_take_is_no_file_and_a_fault() {
        for (file, refused, why, times) in [
            (OWN, "advertise-all-vni", "Unknown command", 1),
            ("router bgp 65000\n", "", "65000", 0),
        ] {
            let world = world(file, refused).await;
            world.start();
            world.has_fault(why).await;
            assert_eq!(world.file(FILE), file);
            assert_eq!(world.orders(), Vec::<String>::new());
            assert_eq!(world.exec.ran().len(), times, "it is not asked the same all the time");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_without_the_program_that_reloads_is_left_as_it_is() {
        let world = world(OWN, "").await;
        world.files.remove(Path::new(RELOADS)).await.unwrap();
        world.start();
        world.has_fault("frr-pythontools").await;
        assert_eq!(world.file(FILE), OWN);
    }
}
