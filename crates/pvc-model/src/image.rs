//! Images: disks that the disks of new VMs are clones of.
//!
//! An image is a volume of its pool, called `image_NAME`. There is no record of its own: whoever
//! has the volume has the image, and PVC 1.0.3 lists, copies and removes it as any other.

use std::collections::BTreeSet;

use crate::cluster::Cluster;
use crate::name::{BadName, check_name};
use crate::storage::{VolumeId, VolumeName};

/// Begin of the name of a volume that is an image.
const PREFIX: &str = "image_";

/// The most characters that the name of an image has.
pub const IMAGE_NAME_LIMIT: usize = 60;

/// The name of the volume that is image `name`.
///
/// # Errors
/// If no image can be called so.
pub fn image_volume(name: &str) -> Result<VolumeName, BadName> {
    check_name("image", name, IMAGE_NAME_LIMIT)?;
    Ok(VolumeName::new(format!("{PREFIX}{name}")))
}

/// The images. A volume that a VM has as its disk is none, whatever it is called.
pub fn images(cluster: &Cluster) -> impl Iterator<Item = &VolumeId> {
    let used: BTreeSet<&VolumeId> =
        cluster.vms.values().flat_map(|vm| vm.named_volumes()).collect();
    cluster.volumes.keys().filter(move |id| image_name(id).is_some() && !used.contains(id))
}

/// Whether the disks of a VM of this name would be called as images are.
pub fn is_like_an_image(vm: &str) -> bool {
    vm.starts_with(PREFIX)
}

/// The name of the image that the volume is; `None` if it is none.
pub fn image_name(volume: &VolumeId) -> Option<&str> {
    let name = volume.volume.as_str().strip_prefix(PREFIX)?;
    check_name("image", name, IMAGE_NAME_LIMIT).ok().map(|()| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_an_image_by_its_name() {
        let id = |text| VolumeId::from_record(text).expect("well formed");
        assert_eq!(image_name(&id("vms/image_debian-12")), Some("debian-12"));
        for other in ["vms/web1_sda", "vms/image_", "vms/my_image_debian", "vms/image"] {
            assert_eq!(image_name(&id(other)), None, "{other}");
        }
        let volume = image_volume("debian-12").expect("a good name");
        assert_eq!(volume.as_str(), "image_debian-12");
        for bad in ["", "a/b", "a@b", "a b", "..", &"a".repeat(61)] {
            assert!(image_volume(bad).is_err(), "{bad}");
        }
    }
}
