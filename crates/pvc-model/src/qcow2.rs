//! Facts that must be known of a qcow2 image before any program may open it.
//!
//! An image can name other files of this host that a program opening it would read (a backing file,
//! an external data file). An image from elsewhere that does is refused by its header alone.

const MAGIC: &[u8; 4] = b"QFI\xfb";

/// Number of bytes from its beginning that must be known of an image.
pub const HEADER: usize = 80;

/// Incompatible features: "dirty" and "corrupt" are repaired or refused by qemu-img; extended L2
/// entries and another compression are harmless. The external data file (bit 2) is not.
const HARMLESS_FEATURES: u64 = 0b1_1011;
const EXTERNAL_DATA_FILE: u64 = 0b100;

/// The size in bytes of the disk that an image with this beginning describes; or why it is refused.
pub fn virtual_size(header: &[u8; HEADER]) -> Result<u64, String> {
    if &header[..4] != MAGIC {
        return Err("it does not begin like a qcow2 image".to_owned());
    }
    let version = u32_at(header, 4);
    if !(2..=3).contains(&version) {
        return Err(format!("qcow2 version {version} is not known; 2 and 3 are"));
    }
    if u64_at(header, 8) != 0 {
        return Err("it has a backing file; flatten it with `qemu-img convert -O qcow2`".to_owned());
    }
    if u32_at(header, 32) != 0 {
        return Err("it is encrypted; decrypt it with `qemu-img convert`".to_owned());
    }
    let features = if version >= 3 { u64_at(header, 72) } else { 0 };
    if features & EXTERNAL_DATA_FILE != 0 {
        return Err(
            "its data is in another file; flatten it with `qemu-img convert -O qcow2`".to_owned()
        );
    }
    if features & !HARMLESS_FEATURES != 0 {
        return Err(format!(
            "it uses features {:#x} that are not known here",
            features & !HARMLESS_FEATURES
        ));
    }
    Ok(u64_at(header, 24))
}

fn u32_at(header: &[u8; HEADER], at: usize) -> u32 {
    header[at..at + 4].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

fn u64_at(header: &[u8; HEADER], at: usize) -> u64 {
    header[at..at + 8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u32, backing: u64, crypt: u32, features: u64) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(MAGIC);
        header[4..8].copy_from_slice(&version.to_be_bytes());
        header[8..16].copy_from_slice(&backing.to_be_bytes());
        header[24..32].copy_from_slice(&12345_u64.to_be_bytes());
        header[32..36].copy_from_slice(&crypt.to_be_bytes());
        header[72..80].copy_from_slice(&features.to_be_bytes());
        header
    }

    #[test]
    fn an_image_that_stands_alone_is_accepted() {
        assert_eq!(virtual_size(&header(3, 0, 0, 0)), Ok(12345));
        assert_eq!(virtual_size(&header(2, 0, 0, 0)), Ok(12345));
        assert_eq!(virtual_size(&header(3, 0, 0, 0b1_0001)), Ok(12345));
    }

    #[test]
    fn an_image_that_names_other_files_or_unknown_features_is_refused() {
        for bad in [
            header(3, 4096, 0, 0),
            header(3, 0, 2, 0),
            header(3, 0, 0, 0b100),
            header(3, 0, 0, 1 << 40),
            header(4, 0, 0, 0),
        ] {
            assert!(virtual_size(&bad).is_err());
        }
        let mut raw = header(3, 0, 0, 0);
        raw[0] = 0;
        assert!(virtual_size(&raw).is_err());
    }
}
