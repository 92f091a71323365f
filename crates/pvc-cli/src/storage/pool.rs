use clap::Args;
use pvc_api_types::Pool;

use crate::context::Pvc;
use crate::format::{ListFormat, MaybeJson, Shape};
use crate::outcome::{Failure, Outcome};
use crate::output::{Table, units};

/// List the pools
///
/// LIMIT is a regular expression for the name. If one is given and no pool fits, the
/// command fails with exit code 3.
#[derive(Debug, Args)]
pub struct List {
    /// Only pools whose name fits
    limit: Option<String>,

    #[arg(short, long, value_enum, default_value_t = ListFormat::Pretty, help = "How to print it")]
    format: ListFormat,

    #[command(flatten)]
    shape: Shape,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.shape.check(self.format)?;
        let pools = crate::format::or_empty(pvc.client()?.pools(self.limit.as_deref()))?;
        if self.limit.is_some() && pools.is_empty() {
            return Err(Failure::not_found("no pool fits").hint("`pvc storage pool list` shows all of them"));
        }
        if self.format.print_payload(pvc, &pools)? {
            return Ok(());
        }
        let mut pools = pools.read()?;
        pools.sort_by(|one, other| one.name.cmp(&other.name));
        if self.format == ListFormat::Raw {
            pools.iter().for_each(|pool| pvc.out.line(&pool.name));
        } else {
            self.shape.print(pvc, self.format, table(&pools))?;
        }
        Ok(())
    }
}

fn table(pools: &[Pool]) -> Table {
    let traffic = [("OPS", 4), ("Data", 5)];
    let mut table = Table::new()
        .group(
            "Pools",
            &[("ID", 3), ("Name", 5), ("Tier", 5), ("PGs", 4), ("Used", 5), ("Used%", 6), ("Free", 5)],
        )
        .group("Objects", &[("Count", 6), ("Clones", 7), ("Copies", 7), ("Degraded", 9)])
        .group("Read", &traffic)
        .group("Write", &traffic)
        .important(&["Name", "Used%", "Free", "Used", "Tier", "PGs", "ID"]);
    for pool in pools {
        let number = |name: &str| pool.stats.get(name).and_then(serde_json::Value::as_f64).unwrap_or(0.0);
        let whole = |name: &str| number(name) as i64;
        let bytes = |name: &str| units::bytes(whole(name)).into();
        let count = |name: &str| units::objects(whole(name)).into();
        table.row(vec![
            whole("id").to_string().into(),
            pool.name.as_str().into(),
            pool.tier.as_str().into(),
            pool.pgs.as_str().into(),
            bytes("used_bytes"),
            units::percent(number("used_percent") * 100.0).into(),
            bytes("free_bytes"),
            count("num_objects"),
            count("num_object_clones"),
            count("num_object_copies"),
            count("num_objects_degraded"),
            count("read_ops"),
            bytes("read_bytes"),
            count("write_ops"),
            bytes("write_bytes"),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn the_table_and_a_pool_without_figures() {
        let pools: Vec<Pool> = serde_json::from_str(include_str!("../../tests/wire/pools.json")).unwrap();
        crate::golden::check("pool-list.txt", &(table(&pools).render(Paint::OFF) + "\n"));
    }
}
