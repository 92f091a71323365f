//! VMs in numbers.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use pvc_api_types::Vm;
use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::vm::VmRecord;

use super::page::{Page, Share};
use crate::view;

/// The number that stands for a VM's state. Dashboards know them; the list is what they know.
pub const STATES: [(&str, u32); 12] = [
    ("start", 0),
    ("migrate", 1),
    ("unmigrate", 2),
    ("provision", 3),
    ("disable", 4),
    ("shutdown", 5),
    ("restart", 6),
    ("stop", 7),
    ("fail", 8),
    ("import", 9),
    ("restore", 10),
    ("mirror", 99),
];

/// The number of a state; a state that dashboards do not know is shown as the one it resembles.
fn state_number(state: &str) -> u32 {
    let known = match state {
        "migrate-live" => "migrate",
        "delete" => "stop",
        other => other,
    };
    STATES.iter().find(|(word, _)| *word == known).map_or(8, |(_, number)| *number)
}

/// The samples of all VMs that somebody asked for, each made when its record has changed. Scrapers
/// come in pairs, and most VMs are what they were a moment ago.
#[derive(Default)]
pub struct VmShares {
    entries: BTreeMap<Uuid, Entry>,
}

/// A share, and the record it was made of. The record is not kept alive, but its address is not
/// given to another as long as this is here.
type Entry = (Weak<VmRecord>, Arc<Share>);

impl VmShares {
    fn of(&mut self, record: &Arc<VmRecord>) -> Arc<Share> {
        if let Some((known, share)) = self.entries.get(&record.uuid)
            && std::ptr::eq(known.as_ptr(), Arc::as_ptr(record))
        {
            return share.clone();
        }
        let share = Arc::new(share_of(&view::vm::vm_without_texts(record)));
        self.entries.insert(record.uuid, (Arc::downgrade(record), share.clone()));
        share
    }
}

/// Adds the metrics of all VMs, in the order of their names.
pub fn vms(page: &mut Page, cluster: &Cluster, known: &mut VmShares) {
    known.entries.retain(|uuid, _| cluster.vms.contains_key(uuid));
    let mut records: Vec<&Arc<VmRecord>> = cluster.vms.values().collect();
    records.sort_by(|a, b| a.name.cmp(&b.name));
    let shares: Vec<Arc<Share>> = records.into_iter().map(|record| known.of(record)).collect();
    page.gather(&page_of(&[]), &shares);
}

/// Samples that one VM adds to every page.
fn share_of(vm: &Vm) -> Share {
    let mut page = Page::bare();
    fill(&mut page, std::slice::from_ref(vm));
    page.into_share()
}

/// A page about `vms` alone.
fn page_of(vms: &[Vm]) -> Page {
    let mut page = Page::default();
    fill(&mut page, vms);
    page
}

/// Adds the same metrics in the same order, whatever VMs there are.
fn fill(page: &mut Page, vms: &[Vm]) {
    infos(page, vms);
    states(page, vms);
    figures(page, vms);
    networks(page, vms);
    disks(page, vms);
}

type Text = (&'static str, &'static str, &'static str, fn(&Vm) -> String);

const TEXTS: [Text; 10] = [
    ("uuid", "uuid", "UUID", |vm| vm.uuid.clone()),
    ("description", "description", "description", |vm| vm.description.clone()),
    ("profile", "profile", "profile", |vm| vm.profile.clone()),
    ("failed_reason", "failed_reason", "reason of failure", |vm| {
        or(vm.failed_reason.clone(), "N/A")
    }),
    ("node_limit", "node_limit", "node limit", |vm| {
        or(vm.node_limit.clone().unwrap_or_default().join(","), "None")
    }),
    ("node_selector", "node_selector", "node selector", |vm| set(&vm.node_selector)),
    ("migration_method", "migration_method", "migration method", |vm| set(&vm.migration_method)),
    ("active_node", "node", "active node", |vm| vm.node.clone()),
    ("machine_type", "machine_type", "machine type", |vm| vm.machine.clone()),
    ("vcpu_topology", "topology", "vCPU topology", |vm| vm.vcpu_topology.clone()),
];

/// `text`, or the word that dashboards have for its absence: to Prometheus an empty label is none.
fn or(text: String, word: &str) -> String {
    if text.is_empty() { word.to_owned() } else { text }
}

/// A setting, or the word for that of the cluster.
fn set(setting: &Option<String>) -> String {
    let given = setting.as_deref().filter(|word| !matches!(*word, "" | "none" | "None"));
    given.unwrap_or("Default").to_owned()
}

fn infos(page: &mut Page, vms: &[Vm]) {
    for (name, label, help, text) in TEXTS {
        page.gauge(&format!("pvc_vm_{name}"), format_args!("PVC VM {help}"), |samples| {
            vms.iter().for_each(|vm| samples.info(&[("vm", &vm.name), (label, &text(vm))]));
        });
    }
    page.gauge("pvc_vm_tags", "PVC VM tags", |samples| {
        for vm in vms {
            vm.tags.iter().for_each(|tag| samples.info(&[("vm", &vm.name), ("tag", &tag.name)]));
        }
    });
}

fn yes(yes: bool) -> f64 {
    if yes { 1.0 } else { 0.0 }
}

fn states(page: &mut Page, vms: &[Vm]) {
    page.gauge("pvc_vm_state", "PVC VM state", |samples| {
        for vm in vms {
            samples.add(&[("vm", &vm.name), ("state", &vm.state)], state_number(&vm.state).into());
        }
    });
    page.gauge("pvc_vm_autostart", "PVC VM autostart", |samples| {
        for vm in vms {
            let word = if vm.node_autostart { "True" } else { "False" };
            samples.add(&[("vm", &vm.name), ("autostart", word)], yes(vm.node_autostart));
        }
    });
    page.gauge("pvc_vm_migrated", "PVC VM away from its node", |samples| {
        for vm in vms {
            let last_node = or(vm.last_node.clone(), "No");
            samples.add(&[("vm", &vm.name), ("last_node", &last_node)], yes(vm.migrated != "no"));
        }
    });
    page.gauge("pvc_vm_serial_console", "PVC VM with serial console", |samples| {
        vms.iter().for_each(|vm| samples.add(&[("vm", &vm.name)], yes(!vm.console.is_empty())));
    });
    page.gauge("pvc_vm_vnc_console", "PVC VM with VNC console", |samples| {
        vms.iter().for_each(|vm| samples.add(&[("vm", &vm.name)], yes(vm.vnc.listen.is_some())));
    });
    page.gauge("pvc_vm_vnc_listen_address", "PVC VM VNC address", |samples| {
        for vm in vms {
            samples.info(&[
                ("vm", &vm.name),
                ("address", vm.vnc.listen.as_deref().unwrap_or_default()),
            ]);
        }
    });
    page.gauge("pvc_vm_vnc_listen_port", "PVC VM VNC port", |samples| {
        for vm in vms {
            samples.info(&[("vm", &vm.name), ("port", vm.vnc.port.as_deref().unwrap_or_default())]);
        }
    });
}

/// Figures of a guest's memory that the hypervisor counts.
const MEMORY: [&str; 12] = [
    "actual",
    "rss",
    "unused",
    "available",
    "usable",
    "disk_caches",
    "swap_in",
    "swap_out",
    "major_fault",
    "minor_fault",
    "hugetlb_pgalloc",
    "hugetlb_pgfail",
];

fn figures(page: &mut Page, vms: &[Vm]) {
    let mut add = |name: &str, help: &str, figure: &dyn Fn(&Vm) -> f64| {
        page.gauge(&format!("pvc_vm_{name}"), format_args!("PVC VM {help}"), |samples| {
            vms.iter().for_each(|vm| samples.add(&[("vm", &vm.name)], figure(vm)));
        });
    };
    add("vcpus", "vCPUs", &|vm| vm.vcpu as f64);
    for kind in ["cpu", "user", "system"] {
        let member = format!("{kind}_time");
        let nanoseconds = |vm: &Vm| vm.vcpu_stats.get(&member).copied().unwrap_or_default();
        add(&format!("vcpus_{member}"), &format!("{kind} time in milliseconds"), &|vm| {
            nanoseconds(vm) / 1e6
        });
        add(&format!("vcpus_{member}_seconds"), &format!("{kind} time in seconds"), &|vm| {
            nanoseconds(vm) / 1e9
        });
    }
    add("memory", "memory in MiB", &|vm| vm.memory as f64);
    for member in MEMORY {
        add(&format!("memory_stats_{member}"), &format!("memory statistic {member}"), &|vm| {
            vm.memory_stats.get(member).copied().unwrap_or_default()
        });
    }
}

type NicFigure = (&'static str, &'static str, fn(&pvc_api_types::VmNetwork) -> f64);

const NIC_FIGURES: [NicFigure; 8] = [
    ("rd_packets", "received packets", |nic| nic.rd_packets as f64),
    ("rd_bits", "received bits", |nic| nic.rd_bytes as f64 * 8.0),
    ("rd_errors", "receive errors", |nic| nic.rd_errors as f64),
    ("rd_drops", "dropped received packets", |nic| nic.rd_drops as f64),
    ("wr_packets", "sent packets", |nic| nic.wr_packets as f64),
    ("wr_bits", "sent bits", |nic| nic.wr_bytes as f64 * 8.0),
    ("wr_errors", "send errors", |nic| nic.wr_errors as f64),
    ("wr_drops", "dropped sent packets", |nic| nic.wr_drops as f64),
];

fn networks(page: &mut Page, vms: &[Vm]) {
    let nics = || vms.iter().flat_map(|vm| vm.networks.iter().map(move |nic| (vm, nic)));
    page.gauge("pvc_vm_network_macaddr", "PVC VM network MAC address", |samples| {
        for (vm, nic) in nics() {
            let mac = nic.mac.as_deref().unwrap_or_default();
            samples.info(&[("vm", &vm.name), ("vni", &nic.vni), ("macaddr", mac)]);
        }
    });
    page.gauge("pvc_vm_network_model", "PVC VM network model", |samples| {
        for (vm, nic) in nics() {
            let model = nic.model.as_deref().unwrap_or_default();
            samples.info(&[("vm", &vm.name), ("vni", &nic.vni), ("model", model)]);
        }
    });
    for (name, help, figure) in NIC_FIGURES {
        page.gauge(
            &format!("pvc_vm_network_{name}"),
            format_args!("PVC VM network {help}"),
            |samples| {
                for vm in vms {
                    // Two NICs on one network would be one series given twice, which scrapers
                    // refuse.
                    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
                    vm.networks
                        .iter()
                        .for_each(|nic| *sums.entry(&nic.vni).or_default() += figure(nic));
                    sums.iter().for_each(|(vni, sum)| {
                        samples.add(&[("vm", &vm.name), ("vni", vni)], *sum)
                    });
                }
            },
        );
    }
}

type DiskFigure = (&'static str, &'static str, fn(&pvc_api_types::VmDisk) -> f64);

const DISK_FIGURES: [DiskFigure; 4] = [
    ("rd_req", "read requests", |disk| disk.rd_req as f64),
    ("rd_bytes", "read bytes", |disk| disk.rd_bytes as f64),
    ("wr_req", "write requests", |disk| disk.wr_req as f64),
    ("wr_bytes", "written bytes", |disk| disk.wr_bytes as f64),
];

fn disks(page: &mut Page, vms: &[Vm]) {
    for (name, help, figure) in DISK_FIGURES {
        page.gauge(&format!("pvc_vm_disk_{name}"), format_args!("PVC VM disk {help}"), |samples| {
            for vm in vms {
                disks_of(vm).values().for_each(|disk| {
                    samples.add(&[("vm", &vm.name), ("disk", &disk.dev)], figure(disk));
                });
            }
        });
    }
    page.gauge("pvc_vm_disk_source", "PVC VM disk volume or path", |samples| {
        for vm in vms {
            disks_of(vm).values().for_each(|disk| {
                samples.info(&[("vm", &vm.name), ("disk", &disk.dev), ("source", &disk.name)]);
            });
        }
    });
}

/// The disks by their device in the guest. Two of one name would be one series given twice, which
/// scrapers refuse.
fn disks_of(vm: &Vm) -> BTreeMap<&str, &pvc_api_types::VmDisk> {
    let named = vm.disks.iter().filter(|disk| !disk.name.is_empty() && !disk.dev.is_empty());
    named.map(|disk| (disk.dev.as_str(), disk)).collect()
}

#[cfg(test)]
mod tests {
    use pvc_api_types::operations::vm::ListedState;
    use pvc_api_types::param::Choice;
    use pvc_model::vm::VmState;

    use super::*;

    #[test]
    fn the_states_that_have_a_number_are_those_that_vms_are_listed_by() {
        let mut numbered = STATES.map(|(word, _)| word);
        let mut listed = ListedState::WORDS.to_vec();
        numbered.sort_unstable();
        listed.sort_unstable();
        assert_eq!(numbered.as_slice(), listed);
    }

    fn vm(name: &str) -> Vm {
        let tag = pvc_api_types::VmTag { name: "web".into(), ..Default::default() };
        let disk = |name: &str, dev: &str| pvc_api_types::VmDisk {
            name: name.into(),
            dev: dev.into(),
            rd_req: 7,
            ..Default::default()
        };
        let disks = if name == "a" {
            vec![]
        } else {
            vec![disk(&format!("vms/{name}"), "sda"), disk("x\"y", "sdb")]
        };
        Vm { name: name.into(), tags: vec![tag], disks, ..Vm::default() }
    }

    #[test]
    fn a_page_gathered_from_shares_is_the_page_made_at_once() {
        let vms = ["a", "b", "c"].map(vm);
        let shares: Vec<Arc<Share>> = vms.iter().map(|vm| Arc::new(share_of(vm))).collect();
        let mut page = Page::default();
        page.figure("before", "What comes first", 1.0);
        page.gather(&page_of(&[]), &shares);
        let mut expected = Page::default();
        expected.figure("before", "What comes first", 1.0);
        let text = page.finish();
        assert!(
            text.contains(r#"pvc_vm_disk_source{vm="b",disk="sdb",source="x\"y"} 1"#),
            "{text}"
        );
        assert_eq!(text, expected.finish() + &page_of(&vms).finish());
    }

    fn record(number: u128, name: &str) -> Arc<VmRecord> {
        Arc::new(VmRecord {
            uuid: Uuid::from_u128(number),
            name: name.into(),
            state: VmState::Stop,
            state_version: 0,
            incarnation: 1,
            node: None,
            last_node: None,
            failed_reason: String::new(),
            xml: "".into(),
            domain: Err("nobody wrote any".into()),
            profile: None,
            recorded_volumes: vec![],
            stats: "".into(),
            vnc: String::new(),
            autostart: false,
            migration_method: None,
            max_downtime_ms: 300,
            selector: None,
            node_limit: vec![],
            tags: vec![],
            snapshots: vec![],
            moving: None,
            defects: vec![],
        })
    }

    #[test]
    fn the_samples_of_a_vm_are_made_again_only_when_its_record_has_changed() {
        let vms_at_first = [record(1, "b"), record(2, "a")].map(|record| (record.uuid, record));
        let mut cluster = Cluster { vms: vms_at_first.into(), ..Cluster::default() };
        let mut known = VmShares::default();
        let mut show = |cluster: &Cluster| {
            let mut page = Page::default();
            vms(&mut page, cluster, &mut known);
            let shares = known.entries.iter().map(|(uuid, (_, share))| (*uuid, share.clone()));
            (page.finish(), shares.collect::<BTreeMap<_, _>>())
        };
        let (text, first) = show(&cluster);
        let [a, b] =
            ["a", "b"].map(|name| text.find(&format!("pvc_vm_vcpus{{vm=\"{name}\"}}")).unwrap());
        assert!(a < b, "in the order of their names: {text}");

        let [one, two] = [1, 2].map(Uuid::from_u128);
        cluster.vms.insert(one, record(1, "c"));
        let (text, second) = show(&cluster);
        assert!(
            !Arc::ptr_eq(&first[&one], &second[&one]) && Arc::ptr_eq(&first[&two], &second[&two])
        );
        assert!(text.contains("pvc_vm_vcpus{vm=\"c\"}") && !text.contains("vm=\"b\""), "{text}");

        cluster.vms.remove(&two);
        let (text, third) = show(&cluster);
        assert!(
            third.keys().eq([&one]) && !text.contains("vm=\"a\""),
            "nothing stays of a VM that is gone"
        );
    }
}
