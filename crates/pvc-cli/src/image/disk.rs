//! The size of the disk that an image file describes, as its beginning says.

use pvc_model::disk_image::DiskFormat;

/// Bytes at the beginning of a file that are looked at.
pub const HEAD_BYTES: usize = 512;

/// Format and size of the disk that a file describes, as its beginning says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub format: DiskFormat,
    /// Size of the disk in bytes; `None` if it is not at the beginning.
    pub disk_bytes: Option<u64>,
}

/// Reads the first [`HEAD_BYTES`] of a file, or all of a shorter one, of which `file_bytes` are
/// there in all. `None` if it is compressed: what is in it is seen by who unpacks it.
pub fn read(head: &[u8], file_bytes: Option<u64>) -> Option<Head> {
    const COMPRESSED: [&[u8]; 3] = [b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"];
    if COMPRESSED.iter().any(|magic| head.starts_with(magic)) {
        return None;
    }
    let big = |at| bytes(head, at).map(u64::from_be_bytes);
    let little = |at| bytes(head, at).map(u64::from_le_bytes);
    let (format, disk_bytes) = if head.starts_with(b"QFI\xfb") {
        (DiskFormat::Qcow2, big(24))
    } else if head.starts_with(b"KDMV") {
        (DiskFormat::Vmdk, little(12).and_then(|sectors| sectors.checked_mul(512)))
    } else if head.starts_with(b"vhdxfile") {
        (DiskFormat::Vhdx, None)
    } else if head.starts_with(b"conectix") {
        (DiskFormat::Vpc, big(48))
    } else if head.get(64..68) == Some(b"\x7f\x10\xda\xbe") {
        (DiskFormat::Vdi, little(368))
    } else if head.starts_with(b"QED\0") {
        (DiskFormat::Qed, little(48))
    } else {
        (DiskFormat::Raw, file_bytes)
    };
    Some(Head { format, disk_bytes: disk_bytes.filter(|bytes| *bytes > 0) })
}

fn bytes(head: &[u8], at: usize) -> Option<[u8; 8]> {
    head.get(at..at + 8)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(magic: &[u8], at: usize, number: [u8; 8]) -> Vec<u8> {
        let mut head = vec![0; HEAD_BYTES];
        head[..magic.len()].copy_from_slice(magic);
        head[at..at + 8].copy_from_slice(&number);
        head
    }

    #[test]
    fn a_file_says_its_format_and_the_size_of_its_disk() {
        let size: u64 = 10 << 30;
        let found = |head: &[u8]| read(head, Some(5 << 20)).expect("not compressed");
        let qcow2 = found(&head(b"QFI\xfb\0\0\0\x03", 24, size.to_be_bytes()));
        assert_eq!(qcow2, Head { format: DiskFormat::Qcow2, disk_bytes: Some(size) });
        let vmdk = found(&head(b"KDMV", 12, (size / 512).to_le_bytes()));
        assert_eq!(vmdk, Head { format: DiskFormat::Vmdk, disk_bytes: Some(size) });
        let vhdx = found(&head(b"vhdxfile", 24, [1; 8]));
        assert_eq!(vhdx, Head { format: DiskFormat::Vhdx, disk_bytes: None });
        let raw = found(&[0; 64]);
        assert_eq!(raw, Head { format: DiskFormat::Raw, disk_bytes: Some(5 << 20) });
        let mut vdi = head(b"<<<", 368, size.to_le_bytes());
        vdi[64..68].copy_from_slice(b"\x7f\x10\xda\xbe");
        assert_eq!(found(&vdi), Head { format: DiskFormat::Vdi, disk_bytes: Some(size) });
    }

    #[test]
    fn what_is_compressed_or_cut_or_made_to_hurt_says_nothing() {
        for magic in [&b"\x1f\x8b"[..], b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"] {
            assert_eq!(read(&head(magic, 24, [0; 8]), Some(1)), None);
        }
        let cut = read(b"QFI\xfb", Some(4)).expect("not compressed");
        assert_eq!(cut, Head { format: DiskFormat::Qcow2, disk_bytes: None });
        let huge = read(&head(b"KDMV", 12, [0xff; 8]), Some(512)).expect("not compressed");
        assert_eq!(huge.disk_bytes, None);
        assert_eq!(read(&[], None).expect("not compressed").disk_bytes, None);
    }
}
