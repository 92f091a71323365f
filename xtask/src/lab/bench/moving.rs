//! The primary role and VMs, moved by an operator.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::super::ask;
use super::super::layout::NodeName;
use super::super::node;
use super::super::process::wait_until;
use super::report::{Budget, Figure, Quantity, Spread};
use super::{Bench, GUESTS, LIMIT};
use crate::run;

/// Goes round the coordinators under a ping.
pub fn hand_over(bench: &Bench) -> Result<Vec<Figure>> {
    let (mut times, mut gaps, mut away) = (Vec::new(), Vec::new(), Vec::new());
    let (mut sent, mut worst) = (0, 0);
    for _ in 0..bench.runs {
        let primary = ask::primary(&bench.lab, &bench.node(0))?;
        let nodes = bench.lab.nodes();
        let to = nodes
            .iter()
            .take(3)
            .find(|node| node.text != primary)
            .context("nobody could take it")?;
        let (ping, api) = (ask::Ping::start(&bench.lab)?, ask::watch_api(&bench.lab));
        let begun = Instant::now();
        bench.pvc(to, &format!("node primary {to} --wait"))?;
        wait_until("one node has the floating address", LIMIT, || {
            Ok(ask::holders(&bench.lab) == [to.text.clone()])
        })?;
        times.push(begun.elapsed());
        wait_until("the API answers", LIMIT, || Ok(ask::api_answers(&bench.lab)))?;
        // What is lost late is lost, too.
        std::thread::sleep(Duration::from_secs(1));
        let pinged = ping.end()?;
        away.push(api.end());
        gaps.push(pinged.gap);
        sent += pinged.sent;
        worst = worst.max(pinged.lost);
    }
    let name = format!("pings lost at 0.025 s, worst of {} ({sent} pings)", bench.runs);
    Ok(vec![
        Figure::new(name, Quantity::Count(f64::from(worst))).budget(Budget::Count(1.0)),
        Figure::time("longest gap between two answers to a ping", Spread::of(gaps)),
        Figure::time("API away from the floating address", Spread::of(away))
            .budget(Budget::P50(Duration::from_secs(3))),
        Figure::time("`pvc node primary --wait`", Spread::of(times)),
    ])
}

/// A guest beside PVC's, equal to one of them, which `virsh` alone moves.
struct Twin<'a> {
    bench: &'a Bench,
    at: NodeName,
}

const TWIN: &str = "bench-twin";

impl<'a> Twin<'a> {
    /// The twin of the first guest, running on `at`.
    fn start(bench: &'a Bench, at: &NodeName) -> Result<Self> {
        let original = GUESTS[0];
        let script = format!(
            "set -e
            rbd --no-progress rm vms/{TWIN}_sda 2>/dev/null || true
            rbd --no-progress import /var/lib/pvc-lab/hello.img vms/{TWIN}_sda
            virsh dumpxml --migratable {original} | sed -e 's/{original}/{TWIN}/g' -e \
            's#<uuid>.*</uuid>##' >/tmp/twin.xml
            virsh create /tmp/twin.xml"
        );
        ask::clear_console(&bench.lab, TWIN);
        shell(bench, at, &script)?;
        wait_until("the twin counts", LIMIT, || {
            Ok(ask::last_beat(&bench.lab, TWIN, &at.text).is_some())
        })?;
        Ok(Self { bench, at: at.clone() })
    }

    /// Moves it as an operator without PVC would.
    fn migrate(&mut self, to: &NodeName) -> Result<Taken> {
        let command = format!("virsh --quiet migrate --live {TWIN} qemu+tcp://{to}/system");
        let from = std::mem::replace(&mut self.at, to.clone());
        timed(self.bench, TWIN, &from, to, || shell(self.bench, &from, &command))
    }
}

impl Drop for Twin<'_> {
    fn drop(&mut self) {
        let script = format!("virsh destroy {TWIN}; rbd --no-progress rm vms/{TWIN}_sda");
        if let Err(error) = shell(self.bench, &self.at, &script) {
            eprintln!("the twin may still be there: {error:#}");
        }
    }
}

fn shell(bench: &Bench, node: &NodeName, script: &str) -> Result<()> {
    let words = ["bash", "-c", script].map(String::from);
    run::output(&mut node::inside(&bench.lab, node, &words)?).map(drop)
}

/// Times that a move took.
struct Taken {
    /// Time until whoever ordered it had the prompt back.
    command: Duration,
    /// Time until the QEMU that it left had ended.
    process: Duration,
}

fn timed(
    bench: &Bench,
    guest: &str,
    from: &NodeName,
    to: &NodeName,
    order: impl FnOnce() -> Result<()>,
) -> Result<Taken> {
    let (lab, name, left) = (bench.lab.clone(), guest.to_owned(), from.text.clone());
    let begun = Instant::now();
    let gone = ask::Beside::start(None, move |gone: &mut Option<Duration>| {
        if gone.is_none() && !ask::running_on(&lab, &name).contains(&left) {
            *gone = Some(begun.elapsed());
        }
    });
    order()?;
    let command = begun.elapsed();
    wait_until(&format!("{guest} runs on {to} alone"), LIMIT, || {
        Ok(ask::running_on(&bench.lab, guest) == [to.text.clone()])
    })?;
    std::thread::sleep(Duration::from_millis(200));
    let process = gone.end().context("its QEMU was not seen to end")?;
    Ok(Taken { command, process })
}

/// The same guest moved by PVC and by `virsh`, in turn, between the same nodes; then five at once.
pub fn migration_and_flush(bench: &Bench) -> Result<Vec<Figure>> {
    let (here, there) = (bench.node(0), bench.node(1));
    bench.cast(&GUESTS[..1], &here)?;
    let mut twin = Twin::start(bench, &here)?;
    let (mut by_pvc, mut by_virsh) = (Vec::new(), Vec::new());
    for _ in 0..bench.runs {
        for (from, to) in [(&here, &there), (&there, &here)] {
            by_virsh.push(twin.migrate(to)?);
            let command = format!("vm move {} --target {to} --wait", GUESTS[0]);
            by_pvc.push(timed(bench, GUESTS[0], from, to, || bench.pvc(from, &command).map(drop))?);
        }
    }
    drop(twin);
    let commands = |all: &[Taken]| Spread::of(all.iter().map(|taken| taken.command).collect());
    let processes = |all: &[Taken]| Spread::of(all.iter().map(|taken| taken.process).collect());
    let (plain, plain_process) = (commands(&by_virsh), processes(&by_virsh));
    let tenth_more = Budget::P50(plain_process.p50.mul_f64(1.1));
    let mut figures = vec![
        Figure::time(
            "live migration, from the order until the QEMU that it left has ended",
            processes(&by_pvc),
        )
        .against("`virsh migrate --live`", Quantity::Time(plain_process))
        .budget(tenth_more),
        Figure::time("live migration, `pvc vm move --wait`", commands(&by_pvc))
            .against("`virsh migrate --live`", Quantity::Time(plain)),
    ];
    figures.extend(flush(bench, &here, commands(&by_pvc))?);
    Ok(figures)
}

fn flush(bench: &Bench, node: &NodeName, one: Spread) -> Result<Vec<Figure>> {
    let witness = bench.node(1);
    let (mut out, mut back) = (Vec::new(), Vec::new());
    bench.cast(&GUESTS, node)?;
    for _ in 0..bench.runs.min(3) {
        let begun = Instant::now();
        bench.pvc(&witness, &format!("node flush {node} --wait"))?;
        out.push(begun.elapsed());
        let left = ask::guests(&bench.lab).into_iter().any(|guest| guest.node == node.text);
        ensure!(!left, "a guest was left on the flushed node");
        let begun = Instant::now();
        bench.pvc(&witness, &format!("node ready {node} --wait"))?;
        back.push(begun.elapsed());
        for guest in GUESTS {
            wait_until(&format!("{guest} is home"), LIMIT, || {
                Ok(ask::running_on(&bench.lab, guest) == [node.text.clone()])
            })?;
        }
    }
    let five =
        || Quantity::Time(Spread { p50: one.p50 * 5, p99: one.p99 * 5, samples: one.samples });
    Ok(vec![
        Figure::time("flush of 5 VMs, `pvc node flush --wait`", Spread::of(out))
            .against("five moves one by one", five()),
        Figure::time("their return, `pvc node ready --wait`", Spread::of(back))
            .against("five moves one by one", five()),
    ])
}
