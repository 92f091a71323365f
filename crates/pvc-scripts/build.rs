//! Embeds the Python modules below `python/` in the program.

#![allow(clippy::disallowed_methods, reason = "a build script is in the real world")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let python = root.join("python");
    println!("cargo::rerun-if-changed=python");
    let mut files = Vec::new();
    collect(&python, &mut files)?;
    files.sort();
    let mut text = "[\n".to_owned();
    for file in &files {
        let name = file.strip_prefix(&python).expect("it was found there");
        let (name, path) = (name.display().to_string(), file.display().to_string());
        writeln!(text, "({name:?}, include_str!({path:?})),").expect("a text takes it");
    }
    text.push_str("]\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("modules.rs"), text)
}

/// The modules below a directory; tests and what Python caches are none.
fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_left_out = name == "tests" || name == "__pycache__" || name.starts_with("test_");
        if path.is_dir() && !is_left_out {
            collect(&path, files)?;
        } else if name.ends_with(".py") && !is_left_out {
            files.push(path);
        }
    }
    Ok(())
}
