mod get;
mod set;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Vcpu {
    Get(get::Get),
    Set(set::Set),
}

impl Vcpu {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Vcpu::Get(command) => command.run(pvc),
            Vcpu::Set(command) => command.run(pvc),
        }
    }
}
