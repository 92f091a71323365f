//! How full pools are and become, as `pvc storage util` shows it.

use pvc_api_types::PoolFullness;
use pvc_api_types::operations::storage_report::GetStorageCephFullness;
use pvc_client::Kind;

use crate::context::Pvc;
use crate::outcome::Failure;
use crate::output::{Cell, Colour, Table, units};

/// The table; `None` of a cluster that knows nothing of it, or has no pool.
pub fn read(pvc: &mut Pvc) -> Result<Option<Table>, Failure> {
    let pools = match pvc.client()?.read_soon(GetStorageCephFullness) {
        Ok(answer) => answer.read()?,
        // The cluster is of PVC 1.0.3, or of an earlier release.
        Err(error) if matches!(error.kind(), Kind::NotFound | Kind::NotYet) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    Ok((!pools.is_empty()).then(|| table(&pools)))
}

fn table(pools: &[PoolFullness]) -> Table {
    let mut table = Table::new()
        .group("Pools", &[("Name", 5), ("State", 6), ("Used%", 6), ("Free", 5)])
        .group("Volumes", &[("Count", 6), ("Snapshots", 10), ("Size", 5), ("Lacking", 8)])
        .group("Prediction", &[("A day", 6), ("Nearly full in", 15), ("Full in", 8)])
        .important(&["Name", "State", "Used%", "Free", "Full in", "Lacking"]);
    for pool in pools {
        table.row(row(pool));
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
        crate::golden::check("storage-util.txt", &(table(&pools).render(Paint::OFF) + "\n"));
    }

    #[test]
    fn states_are_coloured_by_how_bad_they_are() {
        let states = ["ok", "nearfull", "backfillfull", "full", "of-tomorrow"].map(state_colour);
        let (red, yellow) = (Colour::Red, Colour::Yellow);
        assert_eq!(states, [Colour::Green, yellow, red, red, Colour::Blue]);
    }
}
