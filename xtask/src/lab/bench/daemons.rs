//! Resources that PVC's daemons need while nothing happens.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};

use super::super::ask;
use super::super::{cgroup, node, pvc};
use super::report::{Budget, Figure, Quantity, Spread};
use super::{Bench, run_on};

const DAEMONS: [&str; 4] = ["pvcnoded", "pvcapid", "pvcworkerd", "pvchealthd"];

/// Time for which the processor's time is counted.
const WHILE: Duration = Duration::from_secs(30);

const MEMORY: Budget = Budget::Bytes(60_000_000);

/// A daemon of a node.
#[derive(Clone, Copy, Default)]
struct Use {
    /// Resident, what it shares with others counted whole.
    rss: u64,
    /// Resident, what it shares counted in parts.
    pss: u64,
    /// Processor time since it began, in hundredths of a second.
    ticks: u64,
}

/// Each node's daemons.
type Uses = BTreeMap<String, BTreeMap<String, Use>>;

pub fn at_rest(bench: &Bench) -> Result<Vec<Figure>> {
    measure(bench, "")
}

/// The same with a thousand VMs in the records, and none of them running.
pub fn with_many_vms(bench: &Bench) -> Result<Vec<Figure>> {
    let define = "
        set -o pipefail
        have=\" $(pvc --quiet vm list --format raw | tr '\\n' ' ')\"; export have
        define() {
            [[ $have == *\" many-$1 \"* ]] && return
            uuid=$(printf '00000000-0000-4000-a000-%012d' $1)
            sed -e \"s#<name>.*</name>#<name>many-$1</name>#\" \
            -e \"s#<uuid>.*</uuid>#<uuid>$uuid</uuid>#\" \\
                -e \"s#type='kvm'#type='qemu'#\" /var/lib/pvc-lab/hello.xml | pvc --quiet vm \
                define - >/dev/null
        }
        export -f define
        seq 1000 | xargs -P 4 -I {} bash -c 'define {}'";
    pvc::define_guests(&bench.lab, &[])?; // Brings their XML.
    run_on(bench, define)?;
    let vms = ask::json(&bench.lab, &bench.node(0), &["vm", "list"])?;
    let count = vms.as_array().map_or(0, Vec::len);
    let figures = if count < 1000 {
        Err(anyhow::anyhow!("only {count} VMs were defined"))
    } else {
        measure(bench, ", 1,000 VMs")
    };
    let undefine = "pvc --quiet vm list --format raw | grep ^many- | xargs -P 4 -I {} pvc --quiet \
                    --unsafe vm undefine {} >/dev/null";
    run_on(bench, undefine)?;
    figures
}

fn measure(bench: &Bench, suffix: &str) -> Result<Vec<Figure>> {
    let before = uses(bench);
    std::thread::sleep(WHILE);
    let after = uses(bench);
    ensure!(!after.is_empty(), "no daemon was found");
    let mut figures = Vec::new();
    for daemon in DAEMONS {
        let all: Vec<Use> = after.values().filter_map(|node| node.get(daemon)).copied().collect();
        if all.is_empty() {
            continue;
        }
        let most = |part: fn(&Use) -> u64| all.iter().map(part).max().unwrap_or(0);
        figures.push(
            Figure::new(
                format!("memory of {daemon}{suffix}, its share (PSS)"),
                Quantity::Bytes(most(|one| one.pss)),
            )
            .against("resident (RSS)", Quantity::Bytes(most(|one| one.rss))),
        );
        let ticks = after.iter().filter_map(|(node, daemons)| {
            let then = before.get(node)?.get(daemon)?;
            daemons.get(daemon)?.ticks.checked_sub(then.ticks)
        });
        let percent = ticks.max().unwrap_or(0) as f64 / WHILE.as_secs_f64();
        figures.push(Figure::new(
            format!("processor time of {daemon}{suffix}, % of a core"),
            Quantity::Count(percent),
        ));
    }
    let total = |part: fn(&Use) -> u64| {
        after.values().map(|node| node.values().map(part).sum::<u64>()).max().unwrap_or(0)
    };
    let name = format!("memory of a node's daemons{suffix}, on the fullest node");
    figures.push(
        Figure::new(name, Quantity::Bytes(total(|one| one.pss)))
            .against("resident (RSS), summed", Quantity::Bytes(total(|one| one.rss)))
            .budget(MEMORY),
    );
    Ok(figures)
}

/// The machine's own figures of all daemons in the lab.
fn uses(bench: &Bench) -> Uses {
    let mut uses = Uses::new();
    for each in bench.lab.nodes() {
        for pid in cgroup::pids(&bench.lab, &each) {
            if let Some((name, one)) = use_of(pid) {
                uses.entry(each.text.clone()).or_default().insert(name, one);
            }
        }
    }
    uses
}

fn use_of(pid: u32) -> Option<(String, Use)> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    let name = read("comm")?.trim().to_owned();
    if !DAEMONS.contains(&name.as_str()) {
        return None;
    }
    let memory = read("smaps_rollup")?;
    let stat = read("stat")?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let one = Use {
        rss: kilobytes(&memory, "Rss:")? * 1024,
        pss: kilobytes(&memory, "Pss:")? * 1024,
        ticks: ticks(11)? + ticks(12)?,
    };
    Some((name, one))
}

fn kilobytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Measures how long the keepalives take, by the nodes' journals: from the stamp until the figures
/// of the same are in the store, and on its way the node's guests and figures are looked up.
pub fn keepalives(bench: &Bench) -> Result<Vec<Figure>> {
    std::thread::sleep(WHILE);
    let mut took = Vec::new();
    let mut nodes = 0;
    for each in bench.lab.nodes() {
        let since = format!("@{}", seconds_ago(2 * WHILE)?);
        let script =
            format!("journalctl -q -u pvcnoded -o cat --since {since} | grep ' keepalive '");
        let text = node::ask(&bench.lab, &each, &script).context("a node has no journal")?;
        let before = took.len();
        took.extend(text.lines().filter_map(duration));
        nodes += usize::from(took.len() > before);
    }
    ensure!(nodes > 0, "no node logs its keepalives");
    let one =
        Figure::time(format!("keepalive, stamp and figures ({nodes} nodes)"), Spread::of(took));
    Ok(vec![one])
}

/// Time that a keepalive took as a line of the log says it.
fn duration(line: &str) -> Option<Duration> {
    let word = line.split_whitespace().find_map(|word| word.strip_prefix("took_ms="))?;
    Some(Duration::from_millis(word.parse().ok()?))
}

fn seconds_ago(time: Duration) -> Result<u64> {
    Ok((SystemTime::now() - time).duration_since(SystemTime::UNIX_EPOCH)?.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keepalive_says_how_long_it_took() {
        let line = "2026-11-22T03:00:00Z  INFO keepalive role=\"primary\" state=\"run\" \
                    domains=\"ready\" took_ms=7";
        assert_eq!(duration(line), Some(Duration::from_millis(7)));
        assert_eq!(duration("2026-11-22T03:00:00Z  INFO VMs: 3"), None);
    }

    #[test]
    fn memory_is_read_as_the_kernel_writes_it() {
        let text = "5582-7ffd ---p 00000000 00:00 0 [rollup]\nRss:               21344 \
                    kB\nPss:               12000 kB\n";
        assert_eq!(kilobytes(text, "Rss:"), Some(21_344));
        assert_eq!(kilobytes(text, "Pss:"), Some(12_000));
    }
}
