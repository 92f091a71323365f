//! The disk with cloud-init's data: a FAT file system called `CIDATA`, for the data source
//! `NoCloud` (docs.cloud-init.io, "NoCloud").

use std::io::{self, Cursor, Write};

use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use pvc_model::job::creation::SeedFiles;

/// Bytes of the disk: its files have some 50 KiB together at most.
const DISK_BYTES: usize = 1 << 20;

/// The disk, as the bytes of a raw image. The same files make the same bytes.
///
/// # Errors
/// If the files do not fit.
pub(super) fn disk(files: &SeedFiles) -> io::Result<Vec<u8>> {
    let mut image = Cursor::new(vec![0; DISK_BYTES]);
    let options = FormatVolumeOptions::new().volume_label(*b"CIDATA     ");
    fatfs::format_volume(&mut image, options)?;
    image.set_position(0);
    {
        let system = FileSystem::new(&mut image, FsOptions::new())?;
        let root = system.root_dir();
        let SeedFiles { user_data, meta_data, network_config } = files;
        let named = [
            ("user-data", user_data),
            ("meta-data", meta_data),
            ("network-config", network_config),
        ];
        for (name, contents) in named {
            root.create_file(name)?.write_all(contents.as_bytes())?;
        }
        drop(root);
        system.unmount()?;
    }
    Ok(image.into_inner())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn files(user_data: &str) -> SeedFiles {
        let text = str::to_owned;
        SeedFiles {
            user_data: text(user_data),
            meta_data: text("instance-id: 7\n"),
            network_config: text("version: 2\n"),
        }
    }

    #[test]
    fn cloud_init_finds_its_files_by_their_names_on_a_disk_of_this_label() {
        let mut made = Cursor::new(disk(&files("#cloud-config\n")).expect("they fit"));
        let system = FileSystem::new(&mut made, FsOptions::new()).expect("a file system");
        assert_eq!(system.volume_label_as_bytes(), b"CIDATA");
        let read = |name| {
            let mut text = String::new();
            let mut file = system.root_dir().open_file(name).expect("it is there");
            file.read_to_string(&mut text).expect("it can be read");
            text
        };
        assert_eq!(read("user-data"), "#cloud-config\n");
        assert_eq!(read("meta-data"), "instance-id: 7\n");
        assert_eq!(read("network-config"), "version: 2\n");
    }

    #[test]
    fn the_same_files_make_the_same_disk_and_the_largest_ones_fit() {
        let largest = "x".repeat(pvc_model::job::creation::USER_DATA_LIMIT);
        let made = disk(&files(&largest)).expect("they fit");
        assert_eq!(made.len(), DISK_BYTES);
        assert_eq!(made, disk(&files(&largest)).expect("they fit"));
        assert!(disk(&files(&"x".repeat(DISK_BYTES))).is_err(), "that is more than there is");
    }
}
