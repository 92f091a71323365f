use clap::Args;
use pvc_api_types::operations::storage_report::GetStorageCephUtilization;

use super::{fullness, report};
use crate::context::Pvc;
use crate::format::{MaybeJson, PlainFormat, Shape, TextFormat};
use crate::outcome::Outcome;

/// Show how full the storage is
///
/// In Ceph's own words, as the primary node collected them last. On one machine alone:
/// what its pools hold and what is free beside them.
///
/// Below that, a table of what becomes of each pool: when it is nearly full and full if it
/// grows as in the last seven days, and what it would lack if all volumes were written
/// full. The last table has the snapshots that hold the most space. `--format json` is the
/// report alone.
#[derive(Debug, Args)]
pub struct Util {
    #[arg(short, long, value_enum, default_value_t = TextFormat::Pretty, help = "How to print it")]
    format: TextFormat,
}

impl Util {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let answer = pvc.client()?.read_soon(GetStorageCephUtilization)?;
        if self.format.print_payload(pvc, &answer)? {
            return Ok(());
        }
        report::print(pvc, "Storage utilization", &answer)?;
        for table in fullness::read(pvc)? {
            pvc.out.line("");
            Shape::default().print(pvc, PlainFormat::Pretty, table)?;
        }
        Ok(())
    }
}
