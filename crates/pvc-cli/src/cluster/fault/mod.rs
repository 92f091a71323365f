mod ack;
mod ack_all;
mod delete;
mod delete_all;
mod list;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Fault {
    Ack(ack::Ack),
    AckAll(ack_all::AckAll),
    Delete(delete::Delete),
    DeleteAll(delete_all::DeleteAll),
    List(list::List),
}

impl Fault {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Fault::Ack(command) => command.run(pvc),
            Fault::AckAll(command) => command.run(pvc),
            Fault::Delete(command) => command.run(pvc),
            Fault::DeleteAll(command) => command.run(pvc),
            Fault::List(command) => command.run(pvc),
        }
    }
}
