//! PVC on the lab's nodes: the project's own packages, a cluster that begins, nodes that take VMs.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cluster::progress;
use super::layout::{Lab, NodeName};
use super::process::wait_until;
use super::{each_node, node};
use crate::{package, run};

/// A start of the node daemon waits for its services and its peers.
const LIMIT: Duration = Duration::from_secs(300);

/// Packs the project as it is now, or takes the packages in `PVC_LAB_PACKAGES`, and hands them to
/// the lab.
pub fn pack(lab: &Lab, release: bool) -> Result<()> {
    let own = lab.directory.join("shared/packages");
    let _ = fs::remove_dir_all(&own);
    fs::create_dir_all(&own)?;
    let packages = match std::env::var_os("PVC_LAB_PACKAGES") {
        Some(made) => PathBuf::from(made),
        None => {
            // A version of its own each time, or dpkg would take a new build for the old one.
            let output = lab.directory.join("packages");
            let _ = fs::remove_dir_all(&output);
            let mut arguments = vec!["--revision".into(), format!("lab{}", seconds_since_1970()?)];
            arguments.extend(["--output".into(), output.display().to_string()]);
            if !release {
                arguments.push("--debug".into());
            }
            package::run_with(&arguments)?;
            output
        }
    };
    let mut count = 0;
    for entry in
        fs::read_dir(&packages).with_context(|| format!("cannot read `{}`", packages.display()))?
    {
        let path = entry?.path();
        if let (Some("deb"), Some(name)) =
            (path.extension().and_then(|e| e.to_str()), path.file_name())
        {
            fs::copy(&path, own.join(name))?;
            count += 1;
        }
    }
    ensure!(count > 0, "there is no package in `{}`", packages.display());
    let build = match (std::env::var_os("PVC_LAB_PACKAGES"), release) {
        (Some(_), _) => "foreign",
        (None, true) => "release",
        (None, false) => "debug",
    };
    Ok(fs::write(lab.directory.join("build"), build)?)
}

/// Build that the packages were made from: a `release` build, a `debug` build, or a `foreign` one.
pub fn build(lab: &Lab) -> Option<String> {
    fs::read_to_string(lab.directory.join("build")).ok()
}

fn seconds_since_1970() -> Result<u64> {
    Ok(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs())
}

/// Installs what [`pack`] handed over on a running node, as an operator would: daemons that run are
/// restarted by the packages, those that do not are left so.
pub fn install(lab: &Lab, node: &NodeName) -> Result<()> {
    let script = "dpkg --install --force-confold /var/lib/pvc-lab/packages/*.deb";
    let words = ["bash", "-c", script].map(String::from);
    let output =
        node::inside(lab, node, &words)?.env("DEBIAN_FRONTEND", "noninteractive").output()?;
    fs::write(
        lab.part(&node.text).join("install.log"),
        [&output.stdout[..], &output.stderr[..]].concat(),
    )?;
    ensure!(
        output.status.success(),
        "`{node}` does not take the packages; `{}` says why",
        lab.part(&node.text).join("install.log").display()
    );
    Ok(fs::write(lab.part(&node.text).join("installed"), "")?)
}

/// Writes the names of a new node, its place in the cluster's configuration and its route into what
/// this node has. Arguments: its name and its number.
const INTRODUCE: &str = r#"
    set -e
    new=$1 number=$2
    grep -qw "$new.cluster.lab" /etc/hosts ||
        printf '10.99.%d.%d %s\n' 1 "$number" "$new.cluster.lab $new" 0 "$number" \
            "$new.upstream.lab" 2 "$number" "$new.storage.lab" >>/etc/hosts
    grep -q "^  all_nodes: .*$new" /etc/pvc/pvc.conf ||
        sed -i "s/^\(  all_nodes: \[.*\)\]/\1, $new]/" /etc/pvc/pvc.conf
    pvcnoded --check-config /etc/pvc/pvc.conf >/dev/null
    # Its packet filter is to let the new node in.
    systemctl restart pvcnoded
"#;

/// Has a running `node` know of another one, as an operator would, and its daemon started again
/// under its guests. May be repeated.
pub fn introduce(lab: &Lab, node: &NodeName, new: &NodeName) -> Result<()> {
    let number = new.number.to_string();
    let words = ["bash", "-c", INTRODUCE, "introduce", &new.text, &number].map(String::from);
    let output = node::inside(lab, node, &words)?.output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    ensure!(output.status.success(), "`{node}` could not be told of `{new}`: {}", said.trim());
    Ok(())
}

/// Starts PVC on every node that does not run it yet.
pub fn start(lab: &Lab) -> Result<()> {
    each_node(&lab.nodes(), |each| {
        let words = ["systemctl", "start", "--no-block", "pvc.target"].map(String::from);
        run::run(&mut node::inside(lab, each, &words)?)
    })
}

/// Number of failed starts of the node daemon by systemd after which nobody waits for it.
const FAILED_STARTS: u32 = 10;

/// Whether the node daemon runs, or may still come to it.
///
/// # Errors
/// If it ended again and again: what it said last.
pub fn starts(lab: &Lab, node: &NodeName) -> Result<()> {
    let restarts = node::ask(lab, node, "systemctl show --property=NRestarts --value pvcnoded");
    let restarts: u32 = restarts.and_then(|count| count.parse().ok()).unwrap_or(0);
    let said = "journalctl -u pvcnoded -t pvcnoded -o cat -n 1";
    ensure!(
        restarts < FAILED_STARTS,
        "PVC's node daemon does not start on `{node}`: {}",
        node::ask(lab, node, said).unwrap_or_default()
    );
    Ok(())
}

/// Waits until the nodes' daemons work together and every node takes VMs. A new cluster is begun by
/// its first node, which they wait for.
pub fn wait(lab: &Lab, begun: Instant) -> Result<()> {
    let Some(first) = lab.nodes().first().cloned() else { return Ok(()) };
    wait_until("the cluster has a store", LIMIT, || {
        Ok(node::ask(lab, &first, INITIALIZE).is_some())
    })?;
    progress(begun, "the cluster has a store");
    for each in lab.nodes() {
        wait_until(&format!("the daemon of `{each}` runs"), LIMIT, || {
            starts(lab, &each)?;
            Ok(node::ask(lab, &each, "systemctl is-active pvcnoded").is_some())
        })?;
    }
    progress(begun, "the nodes' daemons run");
    for each in lab.nodes() {
        let ready = format!("pvc --quiet --connection local node ready {each} --wait");
        wait_until(&format!("`{each}` takes VMs"), LIMIT, || {
            Ok(node::ask(lab, &first, &ready).is_some())
        })?;
    }
    progress(begun, "the nodes take VMs");
    Ok(())
}

/// Defines a VM of each name, through the first node that can be asked.
pub fn define_guests(lab: &Lab, names: &[&str]) -> Result<()> {
    let shared = lab.directory.join("shared");
    let image = shared.join("hello.img");
    if !image.exists() {
        run::run(run::command("examples/hello/build").arg("--image").arg(&image))?;
    }
    fs::copy(run::top().join("examples/hello/hello.xml"), shared.join("hello.xml"))?;
    let nodes = lab.nodes();
    let node = nodes.iter().find(|node| node::answers(lab, node)).context("no node is on")?;
    for name in names {
        let words = ["/usr/local/lib/pvc-lab/guest", name].map(String::from);
        run::run(&mut node::inside(lab, node, &words)?)?;
    }
    Ok(())
}

/// State of the node daemon as systemd says it, where it is installed and can be asked.
pub fn state(lab: &Lab, node: &NodeName) -> Option<String> {
    if !lab.part(&node.text).join("installed").exists() || !node::answers(lab, node) {
        return None;
    }
    node::ask(lab, node, "systemctl is-active pvcnoded || true")
}

/// Begins a cluster unless there is one: one with nodes, or one that refuses to be begun again. It
/// succeeds when there is one with nodes.
const INITIALIZE: &str = "
    pvc='pvc --quiet --unsafe --connection local'
    has_nodes() { $pvc cluster status --format json | jq --exit-status '.nodes.total > 0'; }
    systemctl start pvcapid && { has_nodes || { $pvc cluster init; false; }; }
";
