use clap::Args;
use pvc_api_types::Vm;
use pvc_api_types::operations::vm::{PutVmVmVcpus, VcpuChange};
use pvc_api_types::param::Flag;
use pvc_domain::HardwareEdit;

use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};
use crate::vm::Which;
use crate::vm::live::{Edit, Hardware, Restart};

/// Give a VM another number of vCPUs
///
/// A running guest gets them with its next start; whether to restart it now is asked
/// unless `--restart` or `--no-restart` says.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  pvc vm vcpu set web1 8 --topology 2,4,1 --restart --yes")]
pub struct Set {
    #[command(flatten)]
    vm: Which,

    /// Number of vCPUs
    #[arg(value_parser = count)]
    vcpus: u32,

    /// Sockets, cores of each, threads of each; one socket with all as its cores if not given
    #[arg(short, long, value_name = "S,C,T", value_parser = topology)]
    topology: Option<Topology>,

    #[command(flatten)]
    restart: Restart,
}

fn count(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "a whole number, 1 or more, is needed".to_owned())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Topology(u32, u32, u32);

fn topology(text: &str) -> Result<Topology, String> {
    let counts: Vec<u32> = text.split(',').filter_map(|count| count.trim().parse().ok()).collect();
    match counts[..] {
        [sockets, cores, threads] if text.split(',').count() == 3 => {
            Ok(Topology(sockets, cores, threads))
        }
        _ => Err("three numbers with commas between are needed, as in 1,4,1".to_owned()),
    }
}

impl Set {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        Edit::of(pvc, &self.vm.domain, &self)?.apply(pvc, self.restart)
    }
}

impl Hardware for Set {
    type Operation = PutVmVmVcpus;
    const OPERATION: PutVmVmVcpus = PutVmVmVcpus;

    fn params(&self, restart: bool) -> VcpuChange {
        VcpuChange {
            vcpus: self.vcpus,
            sockets: self.topology.map(|Topology(sockets, ..)| sockets),
            cores: self.topology.map(|Topology(_, cores, _)| cores),
            threads: self.topology.map(|Topology(.., threads)| threads),
            restart: Flag(restart),
        }
    }

    fn edit(&self, _: &mut Pvc, _: &Vm) -> Result<HardwareEdit, Failure> {
        let topology =
            self.topology.map(|Topology(sockets, cores, threads)| (sockets, cores, threads));
        Ok(HardwareEdit::Vcpus { vcpus: self.vcpus, topology })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_is_three_numbers() {
        assert_eq!(topology("2,4,1"), Ok(Topology(2, 4, 1)));
        assert!(
            topology("2,4").is_err() && topology("2,4,x").is_err() && topology("1,x,4,1").is_err()
        );
    }
}
