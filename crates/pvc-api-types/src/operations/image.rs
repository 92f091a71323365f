//! Images: disks that the disks of new VMs are clones of.

use crate::Image;

params! {
    /// Filter of the images to list.
    #[derive(Default)]
    pub struct ImageFilter {
        /// A regular expression on the name.
        limit: Option<String>,
        /// Only those in this pool.
        pool: Option<String>,
    }
}

operations! { "image":
    /// The images by name. An image is a volume called `image_NAME`: it is made by an upload to
    /// such a volume, and removed as any other.
    GetImage { GET "/image", Reader, read(ImageFilter) -> [Image] }
}
