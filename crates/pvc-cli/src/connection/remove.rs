use clap::Args;

use super::store::{LOCAL, Store};
use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};

/// Forget a stored connection
#[derive(Debug, Args)]
pub struct Remove {
    /// The stored connection
    #[arg(add = crate::completion::connections())]
    name: String,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let mut store = Store::open();
        if store.entry(&self.name)?.cfgfile.is_some() && self.name == LOCAL {
            return Err(Failure::failed(format!("the connection `{LOCAL}` cannot be removed"))
                .hint(
                    "it is read from the configuration of this machine's daemon and always there",
                ));
        }
        store.entries.remove(&self.name);
        store.save()?;
        pvc.out.line(format!("Removed connection \"{}\" from client database", self.name));
        Ok(())
    }
}
