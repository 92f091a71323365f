use std::fmt::Write as _;

use clap::Args;
use pvc_api_types::operations::vm::{GetVmVmTrace, TraceProtocol, TraceQuestion};
use pvc_api_types::{NetworkTrace, TraceWay};

use crate::choice::words;
use crate::context::Pvc;
use crate::format::{MaybeJson, TextFormat};
use crate::outcome::{Exit, Failure, Outcome};
use crate::output::{Colour, Paint, harmless};

/// Follow a packet of a VM
///
/// Which bridge, tunnel, gateway and firewall rule it meets, and where it ends; and the same
/// of the answer to it. The records are looked at, and nothing is sent. What may change the
/// end and is not known, such as a rule about a port when none is given, stands behind
/// `depends`, and what is taken for granted behind `assumed`.
///
/// The exit code is 0 if the packet and its answer arrive and depend on nothing, and 1 if
/// not; what is assumed is taken to be so. It is 3 if the VM or the target is not known.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network trace web1 8.8.8.8
  pvc network trace web1 db1 --protocol tcp --port 5432
  pvc network trace web1 10.20.2.10 --network web --protocol icmp")]
pub struct Trace {
    /// The VM that sends it
    #[arg(value_name = "VM", add = crate::completion::vms())]
    vm: String,

    /// Target of the packet: an address, or a VM
    #[arg(value_name = "TARGET", add = crate::completion::vms())]
    target: String,

    /// The network that the VM sends it into, by VNI or description
    ///
    /// Without it the one that the target is in, else the first of its networks that is
    /// PVC's own.
    #[arg(short, long, value_name = "NET", add = crate::completion::networks())]
    network: Option<String>,

    /// Its protocol; of ICMP an echo request
    #[arg(short, long, value_parser = words::<TraceProtocol>())]
    protocol: Option<TraceProtocol>,

    /// Its destination port, with `tcp` or `udp`
    #[arg(short = 'P', long, value_name = "PORT", requires = "protocol")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65535))]
    port: Option<u32>,

    #[arg(short, long, value_enum, default_value_t = TextFormat::Pretty, help = "How to print it")]
    format: TextFormat,
}

impl Trace {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let question = TraceQuestion {
            target: self.target,
            network: self.network,
            protocol: self.protocol,
            port: self.port,
        };
        let answer = pvc.client()?.read(GetVmVmTrace, [&self.vm], &question)?;
        let trace = answer.read()?;
        if !self.format.print_payload(pvc, &answer)? {
            let text = view(&trace, pvc.out.paint());
            pvc.out.text(text);
        }
        if trace.passes { Ok(()) } else { Err(Failure::quiet(Exit::Failed)) }
    }
}

fn view(trace: &NetworkTrace, paint: Paint) -> String {
    let target = match &trace.there.to {
        Some(address) if *address != trace.target => format!("{} ({address})", trace.target),
        _ => trace.target.clone(),
    };
    let heading = format!("{} to {target}:", trace.vm);
    let mut text = format!("{}\n", paint.bold(harmless(&heading, &[])));
    way(&mut text, &trace.there, paint);
    if let Some(back) = &trace.back {
        let _ = writeln!(text, "\n{}", paint.bold("The answer:"));
        way(&mut text, back, paint);
    }
    text
}

/// A line for each step, and the end last.
fn way(text: &mut String, way: &TraceWay, paint: Paint) {
    let mut line = |word: &str, what: String| {
        let _ = writeln!(text, "  {:<10}  {what}", harmless(word, &[]));
    };
    for step in &way.steps {
        line(&step.kind, harmless(&step.text, &[]));
    }
    for assumed in &way.assumed {
        line("assumed", harmless(assumed, &[]));
    }
    for unknown in &way.depends {
        line("depends", paint.colour(Colour::Yellow, harmless(unknown, &[])));
    }
    let colour = if way.end.arrives { Colour::Green } else { Colour::Red };
    line("end", paint.colour(colour, harmless(&way.end.text, &[])));
}

#[cfg(test)]
mod tests {
    use pvc_api_types::{TraceEnd, TraceStep};

    use super::*;

    #[test]
    fn the_view() {
        let step = |kind: &str, text: &str| TraceStep {
            kind: kind.to_owned(),
            text: text.to_owned(),
            ..TraceStep::default()
        };
        let there = TraceWay {
            to: Some("10.20.8.4".to_owned()),
            steps: vec![
                step(
                    "interface",
                    "`web1` by 52:54:00:00:00:01 in network 7 (`web`), 10.20.7.11 (lease)",
                ),
                step("masquerade", "\u{1b}[31mred"),
            ],
            end: TraceEnd {
                text: "delivered to VM `db1` on hv3".to_owned(),
                arrives: true,
                ..TraceEnd::default()
            },
            depends: vec!["a rule".to_owned()],
            assumed: vec!["a node".to_owned()],
            ..TraceWay::default()
        };
        let end = TraceEnd { text: "dropped on hv2".to_owned(), ..TraceEnd::default() };
        let back = Some(TraceWay { end, ..TraceWay::default() });
        let (vm, target) = ("web1".to_owned(), "db1".to_owned());
        let trace = NetworkTrace { vm, target, passes: false, there, back };
        crate::golden::check("network-trace.txt", &view(&trace, Paint::OFF));
    }
}
