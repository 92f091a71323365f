//! Images: disks that the disks of new VMs are clones of.

mod add;
mod disk;
mod info;
mod list;
mod remove;

use std::path::Path;

use clap::{Args, Subcommand};
use pvc_api_types::Image as Found;
use pvc_api_types::operations::image::{GetImage, ImageFilter};
use pvc_api_types::operations::storage::GetStorageCephPoolPool;

use crate::context::Pvc;
use crate::format::or_empty;
use crate::missing;
use crate::outcome::{Failure, Outcome};

/// Manage images
///
/// An image is the disk of an installed system. `pvc vm create --image` makes VMs of it,
/// whose disks are copy-on-write clones: they are there at once, and take room for what
/// they write. An image is kept as the volume `image_NAME` of its pool.
#[derive(Debug, Subcommand)]
pub enum Image {
    Add(add::Add),
    Info(info::Info),
    List(list::List),
    Remove(remove::Remove),
}

impl Image {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Image::Add(command) => command.run(pvc),
            Image::Info(command) => command.run(pvc),
            Image::List(command) => command.run(pvc),
            Image::Remove(command) => command.run(pvc),
        }
    }
}

/// Adds an ISO image of that name, to the only pool or the one of VMs, which is returned.
pub fn add_iso(pvc: &mut Pvc, name: &str, file: &Path) -> Result<String, Failure> {
    add::Add::raw(name.to_owned(), file.to_owned()).add(pvc)
}

/// The image that a command is about.
#[derive(Debug, Args)]
struct Which {
    /// The image
    #[arg(add = crate::completion::images())]
    name: String,

    /// The pool that it lies in, where several have one of that name
    #[arg(short, long, add = crate::completion::pools())]
    pool: Option<String>,
}

impl Which {
    fn find(&self, pvc: &mut Pvc) -> Result<Found, Failure> {
        let filter = ImageFilter { limit: None, pool: self.pool.clone() };
        let found = or_empty(pvc.client()?.read(GetImage, [], &filter));
        let named = self.pool.as_deref();
        let found =
            found.map_err(|error| missing::failure(pvc, error, GetStorageCephPoolPool, named))?;
        let mut found = found.read()?;
        found.retain(|image| image.name == self.name);
        match found.len() {
            0 => Err(Failure::not_found(format!("there is no image `{}`", self.name))
                .hint("`pvc image list` shows the images")),
            1 => Ok(found.remove(0)),
            _ => {
                let pools: Vec<&str> = found.iter().map(|image| image.pool.as_str()).collect();
                let message = format!("several pools have an image `{}`", self.name);
                let hint = format!("name one of them by `--pool`: {}", pools.join(", "));
                Err(Failure::usage(message).hint(hint))
            }
        }
    }
}
