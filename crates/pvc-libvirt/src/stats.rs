//! Conversion from libvirt's figures, one flat list of names per guest, to the port's.

use std::collections::BTreeMap;

use pvc_ports::{Guest, GuestRun, GuestStats};

use crate::virt::{Param, Record};

/// The groups of figures that [`guest_stats`] reads.
pub(crate) const GROUPS: u32 = virt_sys::VIR_DOMAIN_STATS_STATE
    | virt_sys::VIR_DOMAIN_STATS_CPU_TOTAL
    | virt_sys::VIR_DOMAIN_STATS_BALLOON
    | virt_sys::VIR_DOMAIN_STATS_VCPU
    | virt_sys::VIR_DOMAIN_STATS_INTERFACE
    | virt_sys::VIR_DOMAIN_STATS_BLOCK;

/// Running guests only, and none that is busy: a held guest must not hold up the others' figures.
pub(crate) const WHICH: u32 = virt_sys::VIR_CONNECT_GET_ALL_DOMAINS_STATS_RUNNING
    | virt_sys::VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT;

/// All that are there, also busy ones: for figures that need no answer from QEMU.
pub(crate) const ACTIVE: u32 = virt_sys::VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE;

const BALLOON: [(&str, &str); 13] = [
    ("balloon.current", "actual"),
    ("balloon.swap_in", "swap_in"),
    ("balloon.swap_out", "swap_out"),
    ("balloon.major_fault", "major_fault"),
    ("balloon.minor_fault", "minor_fault"),
    ("balloon.unused", "unused"),
    ("balloon.available", "available"),
    ("balloon.usable", "usable"),
    ("balloon.last-update", "last_update"),
    ("balloon.disk_caches", "disk_caches"),
    ("balloon.hugetlb_pgalloc", "hugetlb_pgalloc"),
    ("balloon.hugetlb_pgfail", "hugetlb_pgfail"),
    ("balloon.rss", "rss"),
];
const CPU: [(&str, &str); 3] =
    [("cpu.time", "cpu_time"), ("cpu.user", "user_time"), ("cpu.system", "system_time")];
const DISK: [(&str, &str); 5] = [
    ("rd.reqs", "rd_req"),
    ("rd.bytes", "rd_bytes"),
    ("wr.reqs", "wr_req"),
    ("wr.bytes", "wr_bytes"),
    ("errors", "err"),
];
const INTERFACE: [(&str, &str); 8] = [
    ("rx.bytes", "rd_bytes"),
    ("rx.pkts", "rd_packets"),
    ("rx.errs", "rd_errors"),
    ("rx.drop", "rd_drops"),
    ("tx.bytes", "wr_bytes"),
    ("tx.pkts", "wr_packets"),
    ("tx.errs", "wr_errors"),
    ("tx.drop", "wr_drops"),
];

pub(crate) fn guest_stats(record: &Record) -> GuestStats {
    let params = &record.params;
    let pick = |names: &[(&str, &str)]| -> BTreeMap<String, u64> {
        names
            .iter()
            .filter_map(|(theirs, ours)| Some(((*ours).to_owned(), unsigned(params, theirs)?)))
            .collect()
    };
    let max_memory_kib = unsigned(params, "balloon.maximum").unwrap_or(0);
    GuestStats {
        max_memory_kib,
        memory_kib: unsigned(params, "balloon.current").unwrap_or(0).min(max_memory_kib),
        vcpus: unsigned(params, "vcpu.current")
            .and_then(|count| u32::try_from(count).ok())
            .unwrap_or(0),
        cpu_time_ns: unsigned(params, "cpu.time").unwrap_or(0),
        memory: pick(&BALLOON),
        cpu: pick(&CPU),
        disks: devices(params, "block", &DISK),
        interfaces: devices(params, "net", &INTERFACE),
    }
}

/// The figures of `kind.0`, `kind.1`, …, by the devices' names. One that libvirt cannot count is
/// -1, as in libvirt's older interface, from which the record's format comes.
fn devices(
    params: &BTreeMap<String, Param>,
    kind: &str,
    names: &[(&str, &str)],
) -> BTreeMap<String, BTreeMap<String, i64>> {
    let count = unsigned(params, &format!("{kind}.count")).unwrap_or(0);
    (0..count)
        .filter_map(|at| {
            let Some(Param::Text(name)) = params.get(&format!("{kind}.{at}.name")) else {
                return None;
            };
            let figures = names.iter().map(|(theirs, ours)| {
                let figure = unsigned(params, &format!("{kind}.{at}.{theirs}"));
                (
                    (*ours).to_owned(),
                    figure.map_or(-1, |figure| i64::try_from(figure).unwrap_or(i64::MAX)),
                )
            });
            Some((name.clone(), figures.collect()))
        })
        .collect()
}

fn unsigned(params: &BTreeMap<String, Param>, name: &str) -> Option<u64> {
    match params.get(name)? {
        Param::Unsigned(value) => Some(*value),
        Param::Signed(value) => u64::try_from(*value).ok(),
        Param::Text(_) => None,
    }
}

/// The guest behind a record that has its state; `None` once it is no longer active.
pub(crate) fn guest(record: &Record) -> Option<Guest> {
    let number =
        |name| unsigned(&record.params, name).and_then(|number| u32::try_from(number).ok());
    let run = match number("state.state") {
        Some(virt_sys::VIR_DOMAIN_RUNNING | virt_sys::VIR_DOMAIN_BLOCKED) => GuestRun::Running,
        Some(virt_sys::VIR_DOMAIN_PAUSED) => match number("state.reason") {
            Some(virt_sys::VIR_DOMAIN_PAUSED_STARTING_UP) => GuestRun::Arriving,
            Some(virt_sys::VIR_DOMAIN_PAUSED_MIGRATION) => GuestRun::Leaving,
            _ => GuestRun::Paused,
        },
        Some(virt_sys::VIR_DOMAIN_PMSUSPENDED) => GuestRun::Paused,
        Some(virt_sys::VIR_DOMAIN_SHUTDOWN) => GuestRun::ShuttingDown,
        _ => GuestRun::Other,
    };
    (record.id >= 0).then(|| Guest {
        uuid: record.uuid,
        name: record.name.clone(),
        run,
        instance: record.id,
    })
}

/// Whether the guest of a record is held because another host sends it, or because this host does.
pub(crate) fn is_arriving(record: &Record) -> bool {
    let reason =
        unsigned(&record.params, "state.reason").and_then(|reason| u32::try_from(reason).ok());
    reason == Some(virt_sys::VIR_DOMAIN_PAUSED_MIGRATION)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(params: &[(&str, Param)]) -> Record {
        Record {
            uuid: uuid::Uuid::from_u128(1),
            name: "hello".to_owned(),
            id: 4,
            params: params
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
        }
    }

    #[test]
    fn figures_are_named_as_in_the_record() {
        let stats = guest_stats(&record(&[
            ("cpu.time", Param::Unsigned(50)),
            ("cpu.user", Param::Unsigned(30)),
            ("vcpu.current", Param::Unsigned(2)),
            ("balloon.current", Param::Unsigned(1024)),
            ("balloon.maximum", Param::Unsigned(2048)),
            ("balloon.last-update", Param::Unsigned(7)),
            ("block.count", Param::Unsigned(1)),
            ("block.0.name", Param::Text("sda".to_owned())),
            ("block.0.rd.reqs", Param::Unsigned(3)),
            ("net.count", Param::Unsigned(1)),
            ("net.0.name", Param::Text("vnet0".to_owned())),
            ("net.0.tx.drop", Param::Unsigned(9)),
        ]));
        assert_eq!(
            (stats.vcpus, stats.cpu_time_ns, stats.memory_kib, stats.max_memory_kib),
            (2, 50, 1024, 2048)
        );
        assert_eq!(stats.memory["last_update"], 7);
        assert_eq!(stats.cpu["user_time"], 30);
        assert_eq!(stats.disks["sda"]["rd_req"], 3);
        assert_eq!(stats.interfaces["vnet0"]["wr_drops"], 9);
    }

    #[test]
    fn a_guest_that_says_it_has_more_memory_than_it_may_has_what_it_may() {
        let stats = guest_stats(&record(&[
            ("balloon.current", Param::Unsigned(u64::MAX - 3)),
            ("balloon.maximum", Param::Unsigned(2048)),
        ]));
        assert_eq!((stats.memory_kib, stats.max_memory_kib), (2048, 2048));
    }

    #[test]
    fn what_libvirt_does_not_count_is_minus_one_for_devices_and_absent_elsewhere() {
        let stats = guest_stats(&record(&[
            ("block.count", Param::Unsigned(1)),
            ("block.0.name", Param::Text("sda".to_owned())),
        ]));
        assert_eq!(stats.disks["sda"]["err"], -1);
        assert!(stats.memory.is_empty() && stats.cpu.is_empty());
    }

    #[test]
    fn a_guest_that_waits_for_its_disk_counts_as_running() {
        let state = |number| {
            guest(&record(&[("state.state", Param::Signed(number))])).expect("it has an id").run
        };
        assert_eq!(state(2), GuestRun::Running);
        assert_eq!(state(3), GuestRun::Paused);
        assert_eq!(state(4), GuestRun::ShuttingDown);
        assert_eq!(state(6), GuestRun::Other);
    }

    #[test]
    fn a_guest_without_an_id_is_gone() {
        let gone = Record { id: -1, ..record(&[("state.state", Param::Signed(1))]) };
        assert_eq!(guest(&gone), None);
    }
}
