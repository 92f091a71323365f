//! Formats of disk images, and what must be known of one before a program may open it.

use std::fmt;
use std::str::FromStr;

use crate::qcow2;

/// The format of a disk image, by the words of PVC 1.0.3's API and QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFormat {
    Raw,
    Qcow2,
    Qed,
    Vmdk,
    Vdi,
    /// VHD, of Virtual PC.
    Vpc,
    Vhdx,
}

impl DiskFormat {
    pub const ALL: [DiskFormat; 7] = [
        DiskFormat::Raw,
        DiskFormat::Qcow2,
        DiskFormat::Qed,
        DiskFormat::Vmdk,
        DiskFormat::Vdi,
        DiskFormat::Vpc,
        DiskFormat::Vhdx,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            DiskFormat::Raw => "raw",
            DiskFormat::Qcow2 => "qcow2",
            DiskFormat::Qed => "qed",
            DiskFormat::Vmdk => "vmdk",
            DiskFormat::Vdi => "vdi",
            DiskFormat::Vpc => "vpc",
            DiskFormat::Vhdx => "vhdx",
        }
    }

    /// End of the name of a file in this format, as it is usual.
    pub fn ending(self) -> &'static str {
        match self {
            DiskFormat::Vpc => "vhd",
            _ => self.as_str(),
        }
    }

    /// Refuses a disk of more bytes than programs of others take in this format, or QEMU makes.
    pub fn require_room(self, disk_bytes: u64) -> Result<(), TooLargeFor> {
        const GIB: u64 = 1 << 30;
        let most_bytes = match self {
            DiskFormat::Raw | DiskFormat::Qcow2 => return Ok(()),
            // A VMDK of one file has its data within 2 TiB of it, beside its tables.
            DiskFormat::Vmdk | DiskFormat::Vpc => 2040 * GIB,
            DiskFormat::Qed => 63 * 1024 * GIB,
            DiskFormat::Vhdx => 64 * 1024 * GIB,
            DiskFormat::Vdi => 511 * 1024 * GIB,
        };
        match disk_bytes > most_bytes {
            true => Err(TooLargeFor { format: self, disk_bytes, most_bytes }),
            false => Ok(()),
        }
    }

    /// The format that a file with this beginning is of; `None` if it may be any raw disk. A VHD of
    /// a fixed size begins as the disk does.
    pub fn of_beginning(beginning: &[u8]) -> Option<DiskFormat> {
        let is_vdi = beginning.get(64..68) == Some(&0xbeda_107f_u32.to_le_bytes());
        let magics: [(&[u8], DiskFormat); 6] = [
            (b"QFI\xfb", DiskFormat::Qcow2),
            (b"QED\0", DiskFormat::Qed),
            (b"KDMV", DiskFormat::Vmdk),
            (b"# Disk DescriptorFile", DiskFormat::Vmdk),
            (b"conectix", DiskFormat::Vpc),
            (b"vhdxfile", DiskFormat::Vhdx),
        ];
        let found = magics.into_iter().find(|(magic, _)| beginning.starts_with(magic));
        found.map(|(_, format)| format).or(is_vdi.then_some(DiskFormat::Vdi))
    }
}

impl fmt::Display for DiskFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that names no format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is no format of disk images; raw, qcow2, qed, vmdk, vdi, vpc and vhdx are")]
pub struct UnknownFormat {
    pub word: String,
}

/// A disk that is too large for a format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "an image in format {format} is of a disk of at most {most_bytes} bytes, and this one has \
     {disk_bytes}"
)]
pub struct TooLargeFor {
    pub format: DiskFormat,
    pub disk_bytes: u64,
    pub most_bytes: u64,
}

impl FromStr for DiskFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        let found = DiskFormat::ALL.into_iter().find(|format| format.as_str() == text);
        found.ok_or_else(|| UnknownFormat { word: crate::shown(text) })
    }
}

/// Way in which a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    Gzip,
    Xz,
    Zstd,
}

impl Compression {
    pub const ALL: [Compression; 3] = [Compression::Gzip, Compression::Xz, Compression::Zstd];

    pub fn as_str(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Xz => "xz",
            Compression::Zstd => "zstd",
        }
    }

    /// End of the name of a file that is compressed so.
    pub fn ending(self) -> &'static str {
        match self {
            Compression::Gzip => "gz",
            Compression::Xz => "xz",
            Compression::Zstd => "zst",
        }
    }

    /// Number of bytes from its beginning that must be known of a file.
    pub const BEGINNING: usize = 6;

    /// The way in which a file with this beginning is compressed.
    pub fn of_beginning(beginning: &[u8]) -> Option<Compression> {
        let magics: [(&[u8], Compression); 3] = [
            (&[0x1f, 0x8b, 8], Compression::Gzip),
            (&[0xfd, b'7', b'z', b'X', b'Z', 0], Compression::Xz),
            (&[0x28, 0xb5, 0x2f, 0xfd], Compression::Zstd),
        ];
        magics.into_iter().find(|(magic, _)| beginning.starts_with(magic)).map(|(_, one)| one)
    }
}

/// Number of bytes from its beginning that [`check_header`] looks at.
pub const HEADER: usize = 512;

/// Refuses an image that a program would look for other files for, or that is of another format.
/// A file shorter than a header is filled up with zeros.
pub fn check_header(format: DiskFormat, header: &[u8; HEADER]) -> Result<(), String> {
    let found = DiskFormat::of_beginning(header);
    match format {
        DiskFormat::Raw => Ok(()),
        // A VHD of a fixed size has its header at its end.
        DiskFormat::Vpc if found.is_none() => Ok(()),
        _ if found != Some(format) => Err(match found {
            Some(other) => format!("it begins like an image in format {other}"),
            None => format!("it does not begin like an image in format {format}"),
        }),
        DiskFormat::Qcow2 => {
            let begin = header.first_chunk().expect("a header has more bytes than that of qcow2");
            qcow2::virtual_size(begin).map(drop)
        }
        DiskFormat::Qed => check_qed(header),
        DiskFormat::Vmdk => check_vmdk(header),
        DiskFormat::Vdi | DiskFormat::Vpc | DiskFormat::Vhdx => Ok(()),
    }
}

fn number<const N: usize>(header: &[u8; HEADER], at: usize) -> [u8; N] {
    header[at..at + N].try_into().expect("as many bytes as were taken")
}

/// Feature bit 0 of qed is a backing file.
fn check_qed(header: &[u8; HEADER]) -> Result<(), String> {
    match u64::from_le_bytes(number(header, 16)) & 1 {
        0 => Ok(()),
        _ => Err("it has a backing file; flatten it with `qemu-img convert`".to_owned()),
    }
}

/// A VMDK of one file has a sparse header, with the size of the disk in it; where that is 0, a text
/// inside names files with the data.
fn check_vmdk(header: &[u8; HEADER]) -> Result<(), String> {
    if !header.starts_with(b"KDMV") {
        return Err("its data is in other files; convert it to one file first".to_owned());
    }
    match u64::from_le_bytes(number(header, 12)) {
        0 => Err("it describes a disk of 0 bytes".to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(begin: &[u8]) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..begin.len()].copy_from_slice(begin);
        header
    }

    #[test]
    fn a_word_names_a_format_or_is_refused() {
        for format in DiskFormat::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        let error = "iso".parse::<DiskFormat>().unwrap_err();
        assert!(error.to_string().starts_with("`iso` is no format of disk images; raw, "));
    }

    #[test]
    fn a_disk_is_too_large_for_some_formats() {
        const TIB: u64 = 1 << 40;
        for (format, fits, too_large) in [
            (DiskFormat::Raw, u64::MAX, None),
            (DiskFormat::Qcow2, u64::MAX, None),
            (DiskFormat::Qed, 63 * TIB, Some(63 * TIB + 1)),
            (DiskFormat::Vmdk, 2040 << 30, Some(2 * TIB)),
            (DiskFormat::Vdi, 511 * TIB, Some(512 * TIB)),
            (DiskFormat::Vpc, 2040 << 30, Some((2040 << 30) + 512)),
            (DiskFormat::Vhdx, 64 * TIB, Some(65 * TIB)),
        ] {
            assert_eq!(format.require_room(fits), Ok(()), "{format}");
            if let Some(disk_bytes) = too_large {
                let refused = format.require_room(disk_bytes).unwrap_err();
                let words = format!("of at most {fits} bytes, and this one has {disk_bytes}");
                assert!(refused.to_string().ends_with(&words), "{refused}");
            }
        }
    }

    #[test]
    fn a_format_is_known_by_its_beginning() {
        let mut vdi = [0; 68];
        vdi[64..].copy_from_slice(&[0x7f, 0x10, 0xda, 0xbe]);
        for (begin, format) in [
            (&b"QFI\xfb\0\0\0\x03"[..], Some(DiskFormat::Qcow2)),
            (b"QED\0", Some(DiskFormat::Qed)),
            (b"KDMV\x03", Some(DiskFormat::Vmdk)),
            (b"# Disk DescriptorFile\nversion=1", Some(DiskFormat::Vmdk)),
            (b"conectix", Some(DiskFormat::Vpc)),
            (b"vhdxfile", Some(DiskFormat::Vhdx)),
            (&vdi, Some(DiskFormat::Vdi)),
            (b"QFI", None),
            (b"", None),
        ] {
            assert_eq!(DiskFormat::of_beginning(begin), format);
        }
    }

    #[test]
    fn an_image_that_names_other_files_is_refused() {
        let mut qed = header(b"QED\0");
        qed[16] = 1;
        assert!(check_header(DiskFormat::Qed, &qed).unwrap_err().contains("backing file"));
        let text = header(b"# Disk DescriptorFile\nRW 1 FLAT \"/etc/shadow\" 0\n");
        assert!(check_header(DiskFormat::Vmdk, &text).unwrap_err().contains("other files"));
        let empty = check_header(DiskFormat::Vmdk, &header(b"KDMV")).unwrap_err();
        assert_eq!(empty, "it describes a disk of 0 bytes");
        let mut backed = header(b"QFI\xfb\0\0\0\x03");
        backed[15] = 1;
        assert!(check_header(DiskFormat::Qcow2, &backed).unwrap_err().contains("backing file"));
    }

    #[test]
    fn an_image_of_another_format_is_refused() {
        for (format, begin, why) in [
            (DiskFormat::Qcow2, &b"KDMV"[..], "it begins like an image in format vmdk"),
            (DiskFormat::Vdi, b"", "it does not begin like an image in format vdi"),
            (DiskFormat::Vpc, b"QED\0", "it begins like an image in format qed"),
        ] {
            assert_eq!(check_header(format, &header(begin)), Err(why.to_owned()));
        }
        assert_eq!(check_header(DiskFormat::Vpc, &header(b"a disk")), Ok(()));
    }

    #[test]
    fn a_compression_is_known_by_its_beginning() {
        assert_eq!(Compression::of_beginning(&[0x1f, 0x8b, 8, 0]), Some(Compression::Gzip));
        assert_eq!(Compression::of_beginning(b"\xfd7zXZ\0"), Some(Compression::Xz));
        assert_eq!(Compression::of_beginning(b"\x28\xb5\x2f\xfd"), Some(Compression::Zstd));
        assert_eq!(Compression::of_beginning(b"\x1f\x8b"), None);
    }
}
