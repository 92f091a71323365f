use pvc_api_types::operations::vm::GetVmVm;
use std::path::{Path, PathBuf};

use clap::Args;

use super::{Which, definition};
use crate::context::Pvc;
use crate::outcome::{Failure, Outcome, plain_io};

/// Show a VM's definition as libvirt domain XML
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  pvc vm dump web1 --file web1.xml")]
pub struct Dump {
    #[command(flatten)]
    vm: Which,

    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Dump {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let vm = pvc.client()?.read_only(GetVmVm, [&self.vm.domain], "VM")?.read()?;
        let xml = definition::pretty(&vm.xml)?;
        match self.file {
            Some(file) if file != Path::new("-") => std::fs::write(&file, xml).map_err(|error| {
                Failure::failed(format!("cannot write `{}`: {}", file.display(), plain_io(&error)))
            }),
            _ => {
                pvc.out.document(xml);
                Ok(())
            }
        }
    }
}
