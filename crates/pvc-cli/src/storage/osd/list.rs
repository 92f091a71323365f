use clap::Args;
use pvc_api_types::Osd;
use pvc_api_types::operations::osd::{GetStorageCephOsd, OsdFilter};

use super::{figure, is, number};
use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::outcome::Outcome;
use crate::output::{Cell, Colour, Table, units};
use crate::storage::age;

/// List the OSDs
///
/// LIMIT is a regular expression for the number. If one is given and no OSD fits, the
/// command fails with exit code 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage osd list
  pvc storage osd list --sort -util% -f csv")]
pub struct List {
    /// Only OSDs whose number fits
    limit: Option<String>,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.list.check()?;
        let filter = OsdFilter { limit: self.limit.clone() };
        let answer = or_empty(pvc.client()?.read(GetStorageCephOsd, [], &filter))?;
        let what = ("OSD", "pvc storage osd list");
        let osds: Option<Vec<Osd>> = self.list.read(pvc, &answer, self.limit.is_some(), what)?;
        let Some(mut osds) = osds else { return Ok(()) };
        osds.sort_by_key(|osd| (osd.id.parse::<u64>().ok(), osd.id.clone()));
        let name = |osd: &Osd| format!("{}:{}:{}", osd.id, osd.node, osd.device);
        self.list.print(pvc, &osds, name, table)?;
        if !self.list.is_bare() {
            let answered_at = osds.iter().find_map(|osd| osd.answered_at);
            age::note(pvc, "figures", age::of(&answer, answered_at));
        }
        Ok(())
    }
}

fn table(osds: &[Osd]) -> Table {
    let traffic = [("OPS", 4), ("Data", 5)];
    let mut table = Table::new()
        .group("OSDs", &[("ID", 3), ("Node", 5), ("Block", 6), ("DB Block", 9)])
        .group("State", &[("Up", 4), ("In", 4)])
        .group(
            "Details",
            &[
                ("Size", 5),
                ("PGs", 4),
                ("Wt", 3),
                ("ReWt", 5),
                ("Used", 5),
                ("Free", 6),
                ("Util%", 6),
            ],
        )
        .group("Read", &traffic)
        .group("Write", &traffic)
        .important(&["ID", "Node", "Up", "In", "Util%", "Size", "Free", "Used", "Block", "PGs"]);
    for osd in osds {
        let split = if osd.is_split { " [s]" } else { "" };
        let database = if osd.db_device.is_empty() { "N/A" } else { &osd.db_device };
        table.row(vec![
            osd.id.as_str().into(),
            osd.node.as_str().into(),
            format!("{}{split}", osd.device).into(),
            database.into(),
            yes(is(osd, "up")),
            yes(is(osd, "in")),
            number(osd, "kb", size).into(),
            figure(osd, "pgs").into(),
            figure(osd, "weight").into(),
            figure(osd, "reweight").into(),
            figure(osd, "used").into(),
            figure(osd, "avail").into(),
            number(osd, "utilization", units::percent).into(),
            figure(osd, "rd_ops").into(),
            figure(osd, "rd_data").into(),
            figure(osd, "wr_ops").into(),
            figure(osd, "wr_data").into(),
        ]);
    }
    table
}

fn yes(is_so: bool) -> Cell {
    match is_so {
        true => Cell::coloured("Yes", Colour::Green),
        false => Cell::coloured("No", Colour::Red),
    }
}

/// A size given in KiB.
pub fn size(kib: f64) -> String {
    units::bytes((kib * 1024.0) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn the_table_with_an_osd_that_nobody_has_looked_at_yet() {
        let osds: Vec<Osd> =
            serde_json::from_str(include_str!("../../../tests/wire/osds.json")).unwrap();
        crate::golden::check("osd-list.txt", &(table(&osds).render(Paint::OFF) + "\n"));
    }
}
