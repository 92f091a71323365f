use clap::Args;
use pvc_api_types::operations::node::GetNodeNode;
use pvc_api_types::{HealthDetail, Node, NodeFence, NodeHypervisor, NodeWait};

use super::Which;
use crate::context::Pvc;
use crate::format::{InfoFormat, MaybeJson};
use crate::outcome::Outcome;
use crate::output::labels::Labels;
use crate::output::{Paint, paint, units};

/// Show a node in detail
#[derive(Debug, Args)]
pub struct Info {
    #[command(flatten)]
    node: Which,

    #[arg(short, long, value_enum, default_value_t = InfoFormat::Pretty, help = "How to print it")]
    format: InfoFormat,
}

impl Info {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let node = pvc.client()?.read_only(GetNodeNode, [&self.node.name()], "node")?;
        if self.format.print_payload(pvc, &node)? {
            return Ok(());
        }
        let text = view(&node.read()?, self.format == InfoFormat::Long, pvc.out.paint());
        pvc.out.text(text);
        Ok(())
    }
}

fn view(node: &Node, long: bool, paint: Paint) -> String {
    let mut lines = Labels::new(paint, 23);
    let health = node.health.percent();
    let shown = health.map_or_else(|| node.health.to_string(), |percent| format!("{percent}%"));
    lines.line("Name", &node.name);
    lines.line("PVC Version", &node.pvc_version);
    lines.line("Health", paint.colour(paint::node_health(health), shown));
    lines.lines("Health Plugin Details", &plugins(&node.health_details, long, paint));
    lines.blank();
    let (daemon, coordinator, domain) =
        (&node.daemon_state, &node.coordinator_state, &node.domain_state);
    lines.line("Daemon State", paint.colour(paint::daemon_state(daemon), daemon));
    lines.line(
        "Coordinator State",
        paint.colour(paint::coordinator_state(coordinator), coordinator),
    );
    lines.line("Domain State", paint.colour(paint::domain_state(domain), domain));
    if !node.waits_for.is_empty() {
        lines.lines("Waits for", &waits(&node.waits_for));
    }
    if long {
        lines.line("Architecture", &node.arch);
        lines.line("Operating System", &node.os);
        lines.line("Kernel Version", &node.kernel);
    }
    if let Some(hypervisor) = &node.hypervisor {
        lines.line("Guests run with", accelerator(hypervisor));
        if long {
            let versions =
                format!("libvirt {}, QEMU {}", hypervisor.libvirt_version, hypervisor.qemu_version);
            lines.line("Hypervisor", versions);
        }
    }
    match node.vlans {
        Some(true) if long => lines.line("Bridged networks", "VLANs of the kernel"),
        Some(false) => {
            lines.line("Bridged networks", "none: this kernel has no VLANs (8021q)");
        }
        Some(true) | None => {}
    }
    if let Some(fence) = &node.fence {
        lines.blank();
        lines.lines("Last fence", &last_fence(fence));
    }
    lines.blank();
    lines.line("Active VM Count", node.domains_count.to_string());
    lines.line("Host CPUs", node.vcpu.total.to_string());
    lines.line("vCPUs", node.vcpu.allocated.to_string());
    lines.line("Load", units::load(node.load));
    lines.line("Total RAM (MiB)", node.memory.total.to_string());
    lines.line("Used RAM (MiB)", node.memory.used.to_string());
    lines.line("Free RAM (MiB)", node.memory.free.to_string());
    lines.line("Allocated RAM (MiB)", node.memory.allocated.to_string());
    lines.line("Provisioned RAM (MiB)", node.memory.provisioned.to_string());
    lines.finish()
}

/// VMs that a flush or a return waits for, and why.
fn waits(waits: &[NodeWait]) -> Vec<String> {
    let line = |wait: &NodeWait| {
        let percent = wait.percent.map_or_else(String::new, |percent| format!(", {percent} %"));
        format!("VM `{}`: {}{percent}", wait.name, wait.reason)
    };
    waits.iter().map(line).collect()
}

/// Lines about the last fence: who took the node for dead, when, how its death is known, and what
/// became of its VMs.
fn last_fence(fence: &NodeFence) -> Vec<String> {
    let mut lines = vec![format!("{} took it for dead at {}", fence.by, fence.suspected_at)];
    if fence.failed_attempts > 0 {
        lines.push(format!(
            "{} attempts failed, the last one: {}",
            fence.failed_attempts, fence.last_failure
        ));
    }
    match fence.proven_at.as_str() {
        "" => lines.push("its death is not proven; its VMs are not started elsewhere".to_owned()),
        at => lines.push(format!("proven at {at}: {}; power {}", fence.proof, fence.power)),
    }
    lines.extend(fence.recovered.iter().map(|vm| format!("recovered: {vm}")));
    lines.extend(fence.stranded.iter().map(|vm| format!("waits for a place: {vm}")));
    lines
}

fn accelerator(hypervisor: &NodeHypervisor) -> String {
    match (hypervisor.accelerator.as_str(), &hypervisor.kvm_refused) {
        ("kvm", _) => "KVM".to_owned(),
        (_, Some(why)) => format!("software emulation, which is slow: {why}"),
        (_, None) => "software emulation, which is slow".to_owned(),
    }
}

/// Results of the health plugins; from day to day only of those that found something.
fn plugins(details: &[HealthDetail], all: bool, paint: Paint) -> Vec<String> {
    let width = details.iter().map(|detail| detail.name.len()).max().unwrap_or(0);
    let line = |detail: &HealthDetail| {
        let padding = width - detail.name.len();
        let name = paint.colour(paint::fault(detail.health_delta, false), &detail.name);
        format!("{name}{:padding$}  -{}%  {}", "", detail.health_delta, detail.message)
    };
    details.iter().filter(|detail| all || detail.health_delta > 0).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        let nodes: Vec<Node> =
            serde_json::from_str(include_str!("../../tests/wire/nodes.json")).unwrap();
        nodes.into_iter().nth(1).unwrap()
    }

    #[test]
    fn the_daily_view() {
        crate::golden::check("node-info.txt", &(view(&node(), false, Paint::OFF)));
    }

    #[test]
    fn the_long_view() {
        crate::golden::check("node-info-long.txt", &(view(&node(), true, Paint::OFF)));
    }

    #[test]
    fn what_a_flush_waits_for_is_reported_with_its_reason() {
        let wait = |name: &str, reason: &str, percent| NodeWait {
            name: name.to_owned(),
            action: "move".to_owned(),
            reason: reason.to_owned(),
            percent,
        };
        let waits_for = vec![
            wait("web1", "it is being moved to node `hv3`", Some(43)),
            wait("db1", "it is being restarted", None),
        ];
        let text = view(&Node { waits_for, ..node() }, false, Paint::OFF);
        assert!(
            text.contains(
                "Waits for:             VM `web1`: it is being moved to node `hv3`, 43 %\n\
                 \x20                      VM `db1`: it is being restarted\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_kernel_without_vlans_is_reported_and_one_with_them_at_length() {
        let line = |vlans, long| {
            let text = view(&Node { vlans, ..node() }, long, Paint::OFF);
            text.lines().find(|line| line.starts_with("Bridged networks")).map(str::to_owned)
        };
        let none = "Bridged networks:      none: this kernel has no VLANs (8021q)";
        assert_eq!(line(Some(false), false).as_deref(), Some(none));
        assert_eq!((line(Some(true), false), line(None, true)), (None, None));
        let some = "Bridged networks:      VLANs of the kernel";
        assert_eq!(line(Some(true), true).as_deref(), Some(some));
    }

    #[test]
    fn the_last_fence_is_reported_with_its_proof_or_without() {
        let fence = NodeFence {
            by: "pvchv1".to_owned(),
            suspected_at: "2026-11-20 03:00:30".to_owned(),
            proven_at: String::new(),
            proof: String::new(),
            failed_attempts: 3,
            last_failure: "the BMC at `10.0.0.3` cannot be used: no answer".to_owned(),
            recovered: Vec::new(),
            stranded: Vec::new(),
            power: "untouched".to_owned(),
        };
        assert_eq!(
            last_fence(&fence),
            [
                "pvchv1 took it for dead at 2026-11-20 03:00:30",
                "3 attempts failed, the last one: the BMC at `10.0.0.3` cannot be used: no answer",
                "its death is not proven; its VMs are not started elsewhere"
            ]
        );
        let fence = NodeFence {
            proven_at: "2026-11-20 03:01:02".to_owned(),
            proof: "its BMC said twice that the power is off".to_owned(),
            failed_attempts: 0,
            recovered: vec!["web1 on pvchv2".to_owned()],
            power: "switched on".to_owned(),
            ..fence
        };
        assert_eq!(
            last_fence(&fence)[1..],
            [
                "proven at 2026-11-20 03:01:02: its BMC said twice that the power is off; power \
                 switched on",
                "recovered: web1 on pvchv2"
            ]
        );
    }

    #[test]
    fn scripts_find_the_domain_state_as_the_last_word_of_its_line() {
        let text = view(&node(), false, Paint::OFF);
        let line = text.lines().find(|line| line.starts_with("Domain State")).unwrap();
        assert_eq!(line.split_whitespace().last(), Some("flushed"));
    }
}
