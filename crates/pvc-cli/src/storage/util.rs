use clap::Args;
use pvc_api_types::PoolFullness;
use pvc_api_types::operations::storage_report::GetStorageCephUtilization;
use pvc_client::Payload;
use serde_json::Value;

use super::{fullness, report};
use crate::context::Pvc;
use crate::format::{Form, MaybeJson, PlainFormat, Shape};
use crate::outcome::{Failure, Outcome};

/// Show how full the storage is
///
/// In Ceph's own words, as the primary node collected them last. On one machine alone:
/// what its pools hold and what is free beside them.
///
/// Below that, a table of what becomes of each pool: when it is nearly full and full if it
/// grows as in the last seven days, and what it would lack if all volumes were written
/// full. The last table has the snapshots that hold the most space. In JSON all of this
/// is in `pools`, beside the report; CSV and YAML are the table of the pools.
#[derive(Debug, Args)]
pub struct Util {
    #[arg(short, long, value_enum, default_value_t = PlainFormat::Pretty, help = "How to print it")]
    format: PlainFormat,
}

impl Util {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let shape = Shape::default();
        if let Some(Form::Csv | Form::Yaml) = self.format.form() {
            let pools = fullness::pools(pvc)?;
            return shape.print(pvc, self.format, pools);
        }
        let answer = pvc.client()?.read_soon(GetStorageCephUtilization)?;
        if self.format.json().is_some() {
            let whole = with_pools(answer.value()?, fullness::answer(pvc)?)?;
            self.format.print(pvc, &whole);
            return Ok(());
        }
        report::print(pvc, "Storage utilization", &answer)?;
        for table in fullness::read(pvc)? {
            pvc.out.line("");
            shape.print(pvc, PlainFormat::Pretty, table)?;
        }
        Ok(())
    }
}

/// The report with what becomes of each pool, if the cluster knows that.
fn with_pools(
    mut report: Value,
    pools: Option<Payload<Vec<PoolFullness>>>,
) -> Result<Value, Failure> {
    if let (Some(members), Some(pools)) = (report.as_object_mut(), pools) {
        members.insert("pools".to_owned(), pools.value()?);
    }
    Ok(report)
}
