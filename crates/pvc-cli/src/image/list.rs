use clap::Args;
use pvc_api_types::Image;
use pvc_api_types::operations::image::{GetImage, ImageFilter};
use pvc_api_types::operations::storage::GetStorageCephPoolPool;

use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::missing;
use crate::outcome::Outcome;
use crate::output::Table;

/// List the images
///
/// LIMIT is a regular expression for the name. If something is asked for and no image
/// fits, the command fails with exit code 3.
#[derive(Debug, Args)]
pub struct List {
    /// Only images whose name fits
    limit: Option<String>,

    /// Only images of this pool
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
        let filter = ImageFilter { limit, pool };
        let answer = or_empty(pvc.client()?.read(GetImage, [], &filter));
        let named = filter.pool.as_deref();
        let answer =
            answer.map_err(|error| missing::failure(pvc, error, GetStorageCephPoolPool, named))?;
        let what = ("image", "pvc image list");
        let images: Option<Vec<Image>> = self.list.read(pvc, &answer, narrowed, what)?;
        let Some(images) = images else { return Ok(()) };
        self.list.print(pvc, &images, |image| format!("{}/{}", image.pool, image.name), table)
    }
}

fn table(images: &[Image]) -> Table {
    let columns = [("Name", 5), ("Pool", 5), ("Size", 5), ("Volume", 7)];
    let mut table = Table::new().group("Images", &columns);
    for image in images {
        table.row(vec![
            image.name.as_str().into(),
            image.pool.as_str().into(),
            image.size.as_str().into(),
            image.volume.as_str().into(),
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
        let text = r#"[{"name": "debian-12", "pool": "vms", "volume": "image_debian-12",
            "size": "2G", "size_bytes": 2147483648}]"#;
        let images: Vec<Image> = serde_json::from_str(text).unwrap();
        crate::golden::check("image-list.txt", &(table(&images).render(Paint::OFF) + "\n"));
    }
}
