use clap::Args;
use pvc_api_types::Volume;
use pvc_api_types::operations::storage::{
    GetStorageCephPoolPool, GetStorageCephVolume, VolumeFilter,
};

use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::missing;
use crate::outcome::Outcome;
use crate::output::Table;

/// List the volumes
///
/// LIMIT is a regular expression for the name. If something is asked for and no volume
/// fits, the command fails with exit code 3.
#[derive(Debug, Args)]
pub struct List {
    /// Only volumes whose name fits
    limit: Option<String>,

    /// Only volumes of this pool
    #[arg(short, long, add = crate::completion::pools())]
    pool: Option<String>,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.list.check()?;
        let (limit, pool) = (self.limit, self.pool);
        let narrowed = limit.is_some() || pool.is_some();
        let filter = VolumeFilter { limit, pool };
        let answer = or_empty(pvc.client()?.read(GetStorageCephVolume, [], &filter));
        let named = filter.pool.as_deref();
        let answer =
            answer.map_err(|error| missing::failure(pvc, error, GetStorageCephPoolPool, named))?;
        let what = ("volume", "pvc storage volume list");
        let volumes: Option<Vec<Volume>> = self.list.read(pvc, &answer, narrowed, what)?;
        let Some(mut volumes) = volumes else { return Ok(()) };
        volumes.sort_by(|one, other| (&one.pool, &one.name).cmp(&(&other.pool, &other.name)));
        self.list.print(pvc, &volumes, |volume| format!("{}/{}", volume.pool, volume.name), table)
    }
}

fn table(volumes: &[Volume]) -> Table {
    let mut table = Table::new().group("Volumes", &[("Name", 5), ("Pool", 5)]).group(
        "Details",
        &[("Size", 5), ("Objects", 8), ("Order", 6), ("Format", 7), ("Features", 10)],
    );
    for volume in volumes {
        let stats = &volume.stats;
        table.row(vec![
            volume.name.as_str().into(),
            volume.pool.as_str().into(),
            stats.size.as_str().into(),
            stats.objects.to_string().into(),
            stats.order.to_string().into(),
            stats.format.to_string().into(),
            stats.features.join(",").into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn the_table() {
        let text = r#"[{"name": "web1_sda", "pool": "vms", "stats": {"size": "10G", "objects": 2560, "order": 22,
            "format": 2, "features": ["layering", "exclusive-lock"]}}, {"name": "new", "pool": "ssd", "stats": {}}]"#;
        let volumes: Vec<Volume> = serde_json::from_str(text).unwrap();
        crate::golden::check("volume-list.txt", &(table(&volumes).render(Paint::OFF) + "\n"));
    }
}
