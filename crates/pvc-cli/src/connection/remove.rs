use clap::Args;

use super::store::Store;
use crate::context::Pvc;
use crate::outcome::Outcome;

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
        store.entry(&self.name)?;
        store.entries.remove(&self.name);
        store.save()?;
        pvc.out.line(format!("Removed connection \"{}\" from client database", self.name));
        Ok(())
    }
}
