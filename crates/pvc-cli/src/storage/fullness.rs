//! Fill of pools now and later, as `pvc storage util` shows it.

use pvc_api_types::operations::storage_report::GetStorageCephFullness;
use pvc_api_types::{PoolFullness, SnapshotUsage};
use pvc_client::{Kind, Payload};

use crate::context::Pvc;
use crate::outcome::Failure;
use crate::output::{Cell, Colour, Table, units};
use crate::time::utc;

/// Number of snapshots that are shown.
const MOST_SNAPSHOTS: usize = 20;

/// The answer of the cluster; `None` of one that knows nothing of it.
pub fn answer(pvc: &mut Pvc) -> Result<Option<Payload<Vec<PoolFullness>>>, Failure> {
    match pvc.client()?.read_soon(GetStorageCephFullness) {
        Ok(answer) => Ok(Some(answer)),
        // The cluster is of PVC 1.0.3, or of an earlier release.
        Err(error) if matches!(error.kind(), Kind::NotFound | Kind::NotYet) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn known(pvc: &mut Pvc) -> Result<Vec<PoolFullness>, Failure> {
    Ok(answer(pvc)?.map(|answer| answer.read()).transpose()?.unwrap_or_default())
}

/// The table of what becomes of each pool, which may have no rows.
pub fn pools(pvc: &mut Pvc) -> Result<Table, Failure> {
    Ok(table(&known(pvc)?))
}

/// The tables; none of a cluster that knows nothing of it, or has no pool.
pub fn read(pvc: &mut Pvc) -> Result<Vec<Table>, Failure> {
    let pools = known(pvc)?;
    let tables = [table(&pools), snapshots(&pools)];
    Ok(tables.into_iter().filter(|table| !table.is_empty()).collect())
}

fn table(pools: &[PoolFullness]) -> Table {
    let mut table = Table::new()
        .group("Pools", &[("Name", 5), ("State", 6), ("Used%", 6), ("Free", 5)])
        .group("Volumes", &[("Count", 6), ("Snapshots", 10), ("Size", 5), ("Lacking", 8)])
        .group(
            "Prediction",
            &[("A day", 6), ("Nearly full in", 15), ("Backfill full in", 17), ("Full in", 8)],
        )
        .important(&["Name", "State", "Used%", "Free", "Full in", "Lacking"]);
    for pool in pools {
        table.row(row(pool));
    }
    table
}

/// Snapshots that hold the most of all pools, and how many there are of which that is not known.
fn snapshots(pools: &[PoolFullness]) -> Table {
    let mut table = Table::new()
        .group("Snapshots", &[("Pool", 5), ("Volume", 7), ("Snapshot", 9)])
        .group("Space", &[("Held", 5), ("Own", 5), ("Seen", 5)])
        .important(&["Volume", "Snapshot", "Held"]);
    let mut largest: Vec<(&String, &SnapshotUsage)> = Vec::new();
    for pool in pools {
        largest.extend(pool.largest_snapshots.iter().map(|usage| (&pool.pool, usage)));
    }
    largest.sort_by_key(|(_, usage)| std::cmp::Reverse(usage.bytes));
    for (pool, usage) in largest.into_iter().take(MOST_SNAPSHOTS) {
        table.row(vec![
            pool.as_str().into(),
            usage.volume.as_str().into(),
            usage.snapshot.as_str().into(),
            bytes(usage.bytes).into(),
            usage.own_bytes.map_or_else(|| "?".to_owned(), bytes).into(),
            utc(usage.looked_at).into(),
        ]);
    }
    for pool in pools {
        let (count, seen) = match (pool.snapshots_looked_at, pool.snapshots_unknown) {
            (Some(at), Some(unknown)) => (unknown, utc(at)),
            _ => (pool.snapshots, "never".to_owned()),
        };
        if count > 0 {
            let count = format!("({count} unknown)");
            let unknown = || Cell::coloured("?", Colour::Yellow);
            let name = pool.pool.as_str().into();
            table.row(vec![name, "".into(), count.into(), unknown(), unknown(), seen.into()]);
        }
    }
    table
}

fn row(pool: &PoolFullness) -> Vec<Cell> {
    let lacking = match pool.overcommitted_bytes {
        0 => "-".into(),
        lacking => Cell::coloured(bytes(lacking), Colour::Yellow),
    };
    vec![
        pool.pool.as_str().into(),
        Cell::coloured(&pool.state, state_colour(&pool.state)),
        units::percent(pool.used_percent).into(),
        bytes(pool.free_bytes).into(),
        pool.volumes.to_string().into(),
        pool.snapshots.to_string().into(),
        bytes(pool.provisioned_bytes).into(),
        lacking,
        growth(pool.growth_bytes_per_day).into(),
        time(pool.nearfull_in, pool.growth_bytes_per_day),
        time(pool.backfillfull_in, pool.growth_bytes_per_day),
        time(pool.full_in, pool.growth_bytes_per_day),
    ]
}

fn state_colour(state: &str) -> Colour {
    match state {
        "ok" => Colour::Green,
        "nearfull" => Colour::Yellow,
        "backfillfull" | "full" => Colour::Red,
        _ => Colour::Blue,
    }
}

fn bytes(bytes: u64) -> String {
    units::bytes(i64::try_from(bytes).unwrap_or(i64::MAX))
}

fn growth(per_day: Option<i64>) -> String {
    match per_day {
        None => "?".to_owned(),
        Some(0) => "0".to_owned(),
        Some(per_day) => {
            let sign = if per_day < 0 { '-' } else { '+' };
            format!("{sign}{}", bytes(per_day.unsigned_abs()))
        }
    }
}

/// A time that is left: `?` while the history is too short to say, `-` if it never comes to that.
fn time(seconds: Option<u64>, growth: Option<i64>) -> Cell {
    const WEEK: u64 = 7 * 24 * 60 * 60;
    match seconds {
        Some(0) => Cell::coloured("now", Colour::Red),
        Some(seconds) => {
            let text = units::age(i64::try_from(seconds).unwrap_or(i64::MAX));
            if seconds <= WEEK { Cell::coloured(text, Colour::Yellow) } else { text.into() }
        }
        None if growth.is_none() => "?".into(),
        None => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn a_pool_is_shown_with_what_becomes_of_it() {
        let pools: Vec<PoolFullness> =
            serde_json::from_str(include_str!("../../tests/wire/fullness.json")).unwrap();
        let tables = [table(&pools), snapshots(&pools)].map(|table| table.render(Paint::OFF));
        crate::golden::check("storage-util.txt", &(tables.join("\n\n") + "\n"));
    }

    #[test]
    fn without_snapshots_nothing_is_said_of_them() {
        let pool = PoolFullness { pool: "vms".to_owned(), ..PoolFullness::default() };
        assert!(snapshots(std::slice::from_ref(&pool)).is_empty());
        // A cluster of an earlier release does not tell what they hold.
        assert!(!snapshots(&[PoolFullness { snapshots: 1, ..pool }]).is_empty());
    }

    #[test]
    fn states_are_coloured_by_how_bad_they_are() {
        let states = ["ok", "nearfull", "backfillfull", "full", "of-tomorrow"].map(state_colour);
        let (red, yellow) = (Colour::Red, Colour::Yellow);
        assert_eq!(states, [Colour::Green, yellow, red, red, Colour::Blue]);
    }
}
