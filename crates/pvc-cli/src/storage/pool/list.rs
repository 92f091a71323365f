use clap::Args;
use pvc_api_types::Pool;
use pvc_api_types::operations::storage::{GetStorageCephPool, PoolFilter};

use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::outcome::Outcome;
use crate::output::{Table, units};
use crate::storage::age;

/// List the pools
///
/// LIMIT is a regular expression for the name. If one is given and no pool fits, the
/// command fails with exit code 3.
#[derive(Debug, Args)]
pub struct List {
    /// Only pools whose name fits
    limit: Option<String>,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.list.check()?;
        let answer = or_empty(pvc.client()?.read(
            GetStorageCephPool,
            [],
            &PoolFilter { limit: self.limit.clone() },
        ))?;
        let what = ("pool", "pvc storage pool list");
        // They stay in the API's order, which is that of Ceph's numbers.
        let pools: Option<Vec<Pool>> = self.list.read(pvc, &answer, self.limit.is_some(), what)?;
        let Some(pools) = pools else { return Ok(()) };
        self.list.print(pvc, &pools, |pool| pool.name.clone(), table)?;
        if !self.list.is_bare() {
            let answered_at = pools.iter().find_map(|pool| pool.answered_at);
            age::note(pvc, "figures", age::of(&answer, answered_at));
        }
        Ok(())
    }
}

fn table(pools: &[Pool]) -> Table {
    let traffic = [("OPS", 4), ("Data", 5)];
    let mut table = Table::new()
        .group(
            "Pools",
            &[
                ("ID", 3),
                ("Name", 5),
                ("Tier", 5),
                ("PGs", 4),
                ("Used", 5),
                ("Used%", 6),
                ("Free", 5),
            ],
        )
        .group("Objects", &[("Count", 6), ("Clones", 7), ("Copies", 7), ("Degraded", 9)])
        .group("Read", &traffic)
        .group("Write", &traffic)
        .important(&["Name", "Used%", "Free", "Used", "Tier", "PGs", "ID"]);
    for pool in pools {
        let number =
            |name: &str| pool.stats.get(name).and_then(serde_json::Value::as_f64).unwrap_or(0.0);
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
        let pools: Vec<Pool> =
            serde_json::from_str(include_str!("../../../tests/wire/pools.json")).unwrap();
        crate::golden::check("pool-list.txt", &(table(&pools).render(Paint::OFF) + "\n"));
    }
}
