//! Image files, as far as volumes in memory are filled from them.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use pvc_model::qcow2;
use pvc_ports::{ImageFormat, StorageError};

use crate::contents::Contents;

/// The size of the disk that an image describes.
pub(crate) fn size_of(source: &Path, format: ImageFormat) -> Result<u64, StorageError> {
    let mut file = File::open(source).map_err(unread(source))?;
    let metadata = file.metadata().map_err(unread(source))?;
    if !metadata.is_file() {
        return Err(bad(source, format, "it is not a file"));
    }
    if format == ImageFormat::Raw {
        return Ok(metadata.len());
    }
    let mut header = [0; qcow2::HEADER];
    file.read_exact(&mut header)
        .map_err(|_| bad(source, format, "it is too short for a qcow2 image"))?;
    qcow2::virtual_size(&header).map_err(|why| bad(source, format, why))
}

/// Reads the contents of an image. `qemu-img` knows the other formats; it writes files alone, so
/// there is one for a moment.
pub(crate) fn contents_of(source: &Path, format: ImageFormat) -> Result<Contents, StorageError> {
    if format == ImageFormat::Raw {
        return std::fs::read(source).map(|image| Contents::of(&image)).map_err(unread(source));
    }
    let raw = source.with_added_extension("converted");
    qemu_img(source, &["check", "-q", "-f", "qcow2", "--"], &[source])?;
    let converted =
        qemu_img(source, &["convert", "-q", "-f", "qcow2", "-O", "raw", "--"], &[source, &raw]);
    let contents = converted.and_then(|()| contents_of(&raw, ImageFormat::Raw));
    let _ = std::fs::remove_file(&raw); // there is none if it failed early
    contents
}

fn qemu_img(source: &Path, words: &[&str], files: &[&Path]) -> Result<(), StorageError> {
    let output =
        Command::new("qemu-img").args(words).args(files).output().map_err(unread(source))?;
    // 3 is for room that is wasted inside the image, which harms nobody.
    match output.status.code() {
        Some(0 | 3) => Ok(()),
        _ => Err(bad(source, ImageFormat::Qcow2, String::from_utf8_lossy(&output.stderr))),
    }
}

fn unread(source: &Path) -> impl Fn(std::io::Error) -> StorageError {
    move |error| StorageError::Io {
        doing: format!("reading `{}`", source.display()),
        source: error,
    }
}

fn bad(source: &Path, format: ImageFormat, why: impl Into<String>) -> StorageError {
    StorageError::BadImage { source_path: source.display().to_string(), format, why: why.into() }
}
