//! Completions, with the VMs, nodes, tags, OSDs, pools, volumes, faults and tasks there are now.

use pvc_api_types::operations::fault::{FaultOrder, GetFaults, SortKey};
use pvc_api_types::operations::image::{GetImage, ImageFilter};
use pvc_api_types::operations::network::{GetNetwork, NetworkFilter};
use pvc_api_types::operations::node::{GetNode, NodeFilter};
use pvc_api_types::operations::osd::{GetStorageCephOsd, OsdFilter};
use pvc_api_types::operations::provisioner::{
    GetProvisionerOva, GetProvisionerProfile, GetProvisionerScript, GetProvisionerTemplateNetwork,
    GetProvisionerTemplateStorage, GetProvisionerTemplateSystem, GetProvisionerUserdata,
    NameFilter,
};
use pvc_api_types::operations::storage::{
    GetStorageCephPool, GetStorageCephSnapshot, GetStorageCephTrash, GetStorageCephVolume,
    PoolFilter, SnapshotFilter, TrashFilter, VolumeFilter,
};
use pvc_api_types::operations::task::{GetTasks, TaskChoice};
use pvc_api_types::operations::vm::{GetVm, VmFilter};
use pvc_api_types::param::Added;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::time::Duration;

use clap::{Args, ValueEnum};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{Bash, CompleteEnv, EnvCompleter, Fish, Zsh};
use pvc_api_types::{Fault, Network, Osd, StorageSnapshot, Volume};
use pvc_client::Client;
use pvc_model::node::{CoordinatorState, DaemonState, DomainState};

use crate::connection::store;
use crate::context::{self, Pvc};
use crate::outcome::{Exit, Failure, Outcome};
use crate::output::harmless;
use crate::tree;

/// The variable by which a shell's function asks for candidates.
const VARIABLE: &str = "_PVC_COMPLETE_SHELL";
/// The same of PVC 1.0.3's client.
const OLD_VARIABLE: &str = "_PVC_COMPLETE";
/// Time that candidates may take after a Tab: no answer is better than a late one.
const TIME_LIMIT: Duration = Duration::from_millis(800);

/// Print the completion function for a shell
///
/// It completes commands and options, and asks the cluster for the names of VMs and
/// nodes. If the cluster does not answer at once, there are no names.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc completion bash > /etc/bash_completion.d/pvc
  pvc completion zsh > \"${fpath[1]}/_pvc\"
  pvc completion fish > ~/.config/fish/completions/pvc.fish")]
pub struct Completion {
    /// The shell
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Completion {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let completer: &dyn EnvCompleter = match self.shell {
            Shell::Bash => &Bash,
            Shell::Zsh => &Zsh,
            Shell::Fish => &Fish,
        };
        let mut script = Vec::new();
        completer.write_registration(VARIABLE, "pvc", "pvc", "pvc", &mut script)?;
        pvc.out.document(String::from_utf8_lossy(&script));
        Ok(())
    }
}

/// Does what the variable of PVC 1.0.3's client asks for, if it is set: shells were set up to
/// evaluate `_PVC_COMPLETE=bash_source pvc`, or `source_bash` by still older packages. `None` if it
/// is not.
pub fn activated_the_old_way() -> Option<Result<&'static str, Failure>> {
    let word = std::env::var(OLD_VARIABLE).ok().filter(|word| !word.is_empty())?;
    Some(match word.as_str() {
        "bash_source" | "source_bash" | "source" => Ok("bash"),
        "zsh_source" | "source_zsh" => Ok("zsh"),
        "fish_source" | "source_fish" => Ok("fish"),
        // Asked by a function that was saved once. Who presses Tab can do nothing about it.
        question if question.contains("complete") => Err(Failure::quiet(Exit::Success)),
        _ => Err(Failure::usage(format!(
            "the variable `{OLD_VARIABLE}` is `{word}`, which asks for nothing known"
        ))
        .hint("`pvc completion bash`, `zsh` or `fish` prints the completion function")),
    })
}

/// Answers a shell's question for candidates, if it is one.
pub fn answer(args: &[OsString]) -> bool {
    if std::env::var_os(VARIABLE).is_none_or(|shell| shell.is_empty()) {
        return false;
    }
    let directory = std::env::current_dir().ok();
    let completed = CompleteEnv::with_factory(tree::command)
        .var(VARIABLE)
        .bin("pvc")
        .completer("pvc")
        .try_complete(args.iter().cloned(), directory.as_deref());
    // A mistake here is nobody's who is typing a command line.
    let _ = std::io::stdout().flush();
    completed.unwrap_or(true)
}

/// The names of all VMs.
pub fn vms() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let names = || {
            Some(
                client()?
                    .read(GetVm, [], &VmFilter::default())
                    .ok()?
                    .read()
                    .ok()?
                    .into_iter()
                    .map(|vm| vm.name),
            )
        };
        candidates(names().into_iter().flatten())
    })
}

/// The names of all nodes.
pub fn nodes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let names = || {
            Some(
                client()?
                    .read(GetNode, [], &NodeFilter::default())
                    .ok()?
                    .read()
                    .ok()?
                    .into_iter()
                    .map(|node| node.name),
            )
        };
        candidates(names().into_iter().flatten())
    })
}

/// The descriptions of all networks, and the numbers of those that have none.
pub fn networks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let networks =
            || client()?.read(GetNetwork, [], &NetworkFilter::default()).ok()?.read().ok();
        let name = |network: Network| match network.description.is_empty() {
            true => network.vni.to_string(),
            false => network.description,
        };
        candidates(networks().into_iter().flatten().map(name))
    })
}

/// Declares candidates: the names in a list of the provisioner.
macro_rules! provisioned {
    ($($name:ident: $operation:ident),+) => {$(
        pub fn $name() -> ArgValueCandidates {
            ArgValueCandidates::new(|| {
                let filter = NameFilter::default();
                let all = || client()?.read($operation, [], &filter).ok()?.read().ok();
                candidates(all().into_iter().flatten().map(|one| one.name))
            })
        }
    )+};
}

provisioned! {
    ovas: GetProvisionerOva,
    profiles: GetProvisionerProfile,
    scripts: GetProvisionerScript,
    network_templates: GetProvisionerTemplateNetwork,
    storage_templates: GetProvisionerTemplateStorage,
    system_templates: GetProvisionerTemplateSystem,
    userdata: GetProvisionerUserdata
}

/// The names of all pools.
pub fn pools() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let pools =
            || client()?.read(GetStorageCephPool, [], &PoolFilter::default()).ok()?.read().ok();
        candidates(pools().into_iter().flatten().map(|pool| pool.name))
    })
}

/// The names of all images.
pub fn images() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let images = || client()?.read(GetImage, [], &ImageFilter::default()).ok()?.read().ok();
        candidates(images().into_iter().flatten().map(|image| image.name))
    })
}

/// The names of the volumes: of those in the pool that was typed, if one was.
pub fn volumes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let volumes = all_volumes().into_iter().map(|volume| [volume.pool, volume.name]);
        candidates(of_typed(volumes.collect(), &typed()).into_iter())
    })
}

/// The identifiers of the removed volumes: of those in the pool that was typed, if one was.
pub fn trashed() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let trashed =
            || client()?.read(GetStorageCephTrash, [], &TrashFilter::default()).ok()?.read().ok();
        let entries = trashed().into_iter().flatten().map(|entry| [entry.pool, entry.id]);
        candidates(of_typed(entries.collect(), &typed()).into_iter())
    })
}

/// The volumes as POOL/VOLUME.
pub fn volume_paths() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let path = |volume: Volume| format!("{}/{}", volume.pool, volume.name);
        candidates(all_volumes().into_iter().map(path))
    })
}

/// The names of the snapshots: of the pool and the volume that were typed, if they were.
pub fn snapshots() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let filter = SnapshotFilter::default();
        let all = || client()?.read(GetStorageCephSnapshot, [], &filter).ok()?.read().ok();
        let of_pool = |one: StorageSnapshot| [one.pool, format!("{}@{}", one.volume, one.snapshot)];
        let typed = typed();
        let below = of_typed(all().into_iter().flatten().map(of_pool).collect(), &typed);
        let of_volume = |path: String| {
            let (volume, name) = path.split_once('@')?;
            Some([volume.to_owned(), name.to_owned()])
        };
        candidates(of_typed(below.into_iter().filter_map(of_volume).collect(), &typed).into_iter())
    })
}

fn all_volumes() -> Vec<Volume> {
    let volumes =
        || client()?.read(GetStorageCephVolume, [], &VolumeFilter::default()).ok()?.read().ok();
    volumes().unwrap_or_default()
}

/// The names of those that lie in something that was typed; of all, if nothing of that was. Each
/// comes with what it lies in before its name.
fn of_typed(pairs: Vec<[String; 2]>, typed: &[String]) -> BTreeSet<String> {
    let is_typed = |[place, _]: &&[String; 2]| typed.contains(place);
    let any = pairs.iter().any(|pair| is_typed(&pair));
    let chosen = pairs.iter().filter(|pair| !any || is_typed(pair));
    chosen.map(|[_, name]| name.clone()).collect()
}

/// The words of the line that is being typed.
fn typed() -> Vec<String> {
    std::env::args_os().filter_map(|word| word.into_string().ok()).collect()
}

/// The tags that VMs have.
pub fn tags() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let vms = || client()?.read(GetVm, [], &VmFilter::default()).ok()?.read().ok();
        let tags = vms().into_iter().flatten().flat_map(|vm| vm.tags).map(|tag| tag.name);
        candidates(tags.collect::<BTreeSet<_>>().into_iter())
    })
}

/// The ids of the faults, with what they say.
pub fn faults() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let faults = || {
            client()?
                .read(GetFaults, [], &FaultOrder { sort_key: Some(SortKey::LastReported) })
                .ok()?
                .read()
                .ok()
        };
        let candidate = |fault: Fault| described(fault.id, &fault.message);
        faults().into_iter().flatten().filter_map(candidate).collect()
    })
}

/// The ids of the tasks that have not ended, with what they do.
pub fn tasks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| task_ids(TaskChoice::default()))
}

/// The same, and those that have ended.
pub fn recorded_tasks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| task_ids(TaskChoice { all: Added(true) }))
}

fn task_ids(choice: TaskChoice) -> Vec<CompletionCandidate> {
    let queues = || client()?.read(GetTasks, [], &choice).ok()?.read().ok();
    let Some(queues) = queues() else { return Vec::new() };
    let lists = [queues.active, queues.reserved, queues.scheduled];
    let tasks = lists.into_iter().flat_map(|workers| workers.into_values().flatten());
    let unfinished = tasks.map(|task| (task.id, task.name));
    let ended = queues.ended.into_iter().flatten().map(|task| (task.id, task.name));
    unfinished.chain(ended).filter_map(|(id, name)| described(id, &name)).collect()
}

/// The OSDs, by number.
pub fn osds() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let osds =
            || client()?.read(GetStorageCephOsd, [], &OsdFilter::default()).ok()?.read().ok();
        let candidate = |osd: Osd| described(osd.id, &format!("{} {}", osd.node, osd.device));
        osds().into_iter().flatten().filter_map(candidate).collect()
    })
}

/// The states that a node's daemon can be in.
pub fn daemon_states() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(DaemonState::ALL.iter().map(ToString::to_string)))
}

/// The parts that a coordinator can have.
pub fn coordinator_states() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(CoordinatorState::ALL.iter().map(ToString::to_string)))
}

/// Whether a node takes VMs.
pub fn domain_states() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(DomainState::ALL.iter().map(ToString::to_string)))
}

/// The names of the stored connections.
pub fn connections() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(store::names().into_iter()))
}

fn candidates(names: impl Iterator<Item = String>) -> Vec<CompletionCandidate> {
    names.filter_map(candidate).collect()
}

/// Characters that are themselves in every shell, wherever they stand in a word, beside letters and
/// digits.
const PLAIN: &str = "._-:/@+,=%";

/// A candidate for the shell. `None` for a name that is not [`PLAIN`]: Bash puts it into the line
/// unquoted, so that it would be many words or a command, and a terminal would obey it; and for one
/// that would be an option there.
fn candidate(name: String) -> Option<CompletionCandidate> {
    let is_plain = |letter: char| letter.is_alphanumeric() || PLAIN.contains(letter);
    let is_name = !name.starts_with('-') && name.chars().all(is_plain);
    is_name.then(|| CompletionCandidate::new(name))
}

/// The same with what is said of it, of which shells show one line.
fn described(name: String, text: &str) -> Option<CompletionCandidate> {
    let line = harmless(text.lines().next().unwrap_or_default(), &[]);
    Some(candidate(name)?.help(Some(line.into())))
}

/// The cluster that the command line being typed is about.
fn client() -> Option<Client> {
    let typed: Vec<OsString> = std::env::args_os().collect();
    let environment =
        ["PVC_CONNECTION", "PVC_CLUSTER"].into_iter().find_map(|name| std::env::var(name).ok());
    let name = typed_connection(&typed).or(environment).filter(|name| !name.is_empty());
    let connection = store::select(name.as_deref()).ok()?;
    Some(context::hurried(&connection, TIME_LIMIT))
}

/// The value of `-c` among the words typed so far.
fn typed_connection(words: &[OsString]) -> Option<String> {
    let at = words
        .iter()
        .position(|word| word == OsStr::new("-c") || word == OsStr::new("--connection"))?;
    words.get(at + 1)?.to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_pool_that_was_typed_if_there_is_one() {
        let pairs = [["vms", "web1_sda"], ["vms", "db1_sda"], ["ssd", "web1_sda"], ["ssd", "x"]];
        let pairs = pairs.map(|pair| pair.map(str::to_owned)).to_vec();
        let offered = |line: &str| {
            let typed: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let names: Vec<String> = of_typed(pairs.clone(), &typed).into_iter().collect();
            names.join(" ")
        };
        assert_eq!(offered("pvc storage volume info ssd "), "web1_sda x");
        assert_eq!(offered("pvc storage volume snapshot list -o "), "db1_sda web1_sda x");
    }

    #[test]
    fn nothing_of_a_server_reaches_the_shell_that_a_shell_or_a_terminal_would_obey() {
        let obeyed = ["we\nb", "we\x0bb", "\x1b[2Jweb", "we\u{9b}2Jb", "web\x7f"];
        let words = ["a;b", "$(x)", "`x`", "${x}", "a b", "*", "~x", "a'b", "a\"b", "a\\b", "a|b"];
        let signs = ["a&b", "a<b", "a>b", "a?", "[a]", "{a,b}", "!a", "#a", "^a", "--force", "-y"];
        let plain = ["web1", "wéb2", "vms/web1_sda@2026-11-29T21:54:01+00:00", "a.b,c=d%e"];
        let names = plain.into_iter().chain(obeyed).chain(words).chain(signs).map(str::to_owned);
        let offered = candidates(names);
        let offered: Vec<_> = offered.iter().map(|it| it.get_value().to_string_lossy()).collect();
        assert_eq!(offered, plain);
        assert!(described("we\tb".to_owned(), "a fault").is_none());
        let fault = described("NODE_FLUSH".to_owned(), "hv1\x1b]52;c;eA==\x07\nsecond").unwrap();
        let text = fault.get_help().map(ToString::to_string);
        assert_eq!(text.as_deref(), Some("hv1\u{fffd}]52;c;eA==\u{fffd}"));
    }
}
