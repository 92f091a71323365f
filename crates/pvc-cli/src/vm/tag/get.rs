use clap::Args;
use pvc_api_types::operations::vm::GetVmVmTags;
use pvc_api_types::param::Nothing;

use crate::context::Pvc;
use crate::format::{ListFormat, MaybeJson, Shape};
use crate::outcome::Outcome;
use crate::vm::Which;

/// Show the tags of a VM
#[derive(Debug, Args)]
pub struct Get {
    #[command(flatten)]
    vm: Which,

    #[arg(short, long, value_enum, default_value_t = ListFormat::Pretty, help = "How to print it")]
    format: ListFormat,

    #[command(flatten)]
    shape: Shape,
}

impl Get {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.shape.check(self.format)?;
        let tags = pvc.client()?.read(GetVmVmTags, [&self.vm.domain], &Nothing)?;
        if self.format.print_payload(pvc, &tags)? {
            return Ok(());
        }
        let tags = tags.read()?.tags;
        if self.format == ListFormat::Raw {
            tags.iter().for_each(|tag| pvc.out.line(&tag.name));
        } else if tags.is_empty() && self.format == ListFormat::Pretty {
            pvc.out.line("No tags found.");
        } else {
            self.shape.print(pvc, self.format, super::table(&tags))?;
        }
        Ok(())
    }
}
