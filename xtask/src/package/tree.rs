//! The files of one package, as they will lie on a node, with `DEBIAN/` beside them.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::recipe::Recipe;
use crate::run::{command, output, run, top};

pub struct Tree<'a> {
    /// Directory in which everything is made; see `Work`.
    work: &'a Path,
    recipe: &'a Recipe,
    root: PathBuf,
}

impl<'a> Tree<'a> {
    pub fn new(work: &'a Path, recipe: &'a Recipe) -> Self {
        Tree { work, recipe, root: work.join(&recipe.name) }
    }

    /// Puts everything in its place; returns the tree's root.
    pub fn fill(self, version: &str) -> Result<PathBuf> {
        self.directory("DEBIAN")?;
        for directory in &self.recipe.directories {
            self.directory(directory)?;
        }
        for (from, to) in &self.recipe.install {
            for file in self.found(from)? {
                self.install(&file, to)?;
            }
        }
        self.documents(version)?;
        self.compress()?;
        for (target, link) in &self.recipe.links {
            let link = self.parent_made(link)?;
            symlink(target, &link).with_context(|| format!("cannot link `{}`", link.display()))?;
        }
        self.maintainer_scripts()?;
        self.lists()?;
        // Whatever the umask of whoever builds.
        run(command("chmod").args(["--recursive", "u=rwX,go=rX"]).arg(&self.root))?;
        Ok(self.root)
    }

    /// The files that `from` names: below what was just made, or in the checkout. `*` in the last
    /// part stands for anything.
    fn found(&self, from: &str) -> Result<Vec<PathBuf>> {
        let made =
            ["bin/", "man/", "completions/", "doc/"].iter().any(|kind| from.starts_with(kind));
        let path = if made { self.work.join("made").join(from) } else { top().join(from) };
        let Some((_, ending)) = from.split_once('*') else { return Ok(vec![path]) };
        let directory = path.parent().context("a file is in a directory")?;
        let files = files_below(directory)?;
        let files: Vec<_> =
            files.into_iter().filter(|file| file.to_string_lossy().ends_with(ending)).collect();
        anyhow::ensure!(!files.is_empty(), "nothing is like `{}`", path.display());
        Ok(files)
    }

    fn install(&self, file: &Path, directory: &Path) -> Result<()> {
        let name = file.file_name().with_context(|| format!("`{}` is no file", file.display()))?;
        let program = directory.ends_with("bin") || directory.ends_with("sbin");
        self.write(&directory.join(name), &read(file)?, if program { 0o755 } else { 0o644 })
    }

    /// Writes what Debian's policy wants to find in every package.
    fn documents(&self, version: &str) -> Result<()> {
        let doc = Path::new("usr/share/doc").join(&self.recipe.name);
        self.write(
            &doc.join("copyright"),
            &read(&top().join("packaging/debian/copyright"))?,
            0o644,
        )?;
        self.write(&doc.join("changelog"), &read(&top().join("CHANGELOG.md"))?, 0o644)?;
        let debian = super::changelog(version)?;
        self.write(&doc.join("changelog.Debian"), debian.as_bytes(), 0o644)?;
        let overrides = Path::new("usr/share/lintian/overrides").join(&self.recipe.name);
        self.write(&overrides, &read(&top().join("packaging/debian/lintian-overrides"))?, 0o644)
    }

    /// Man pages and changelogs.
    fn compress(&self) -> Result<()> {
        let manuals = |file: &PathBuf| file.starts_with(self.root.join("usr/share/man"));
        let changes = |file: &PathBuf| {
            file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("changelog"))
        };
        let files =
            files_below(&self.root)?.into_iter().filter(|file| manuals(file) || changes(file));
        run(command("gzip").args(["-9n", "--"]).args(files))
    }

    fn maintainer_scripts(&self) -> Result<()> {
        if self.recipe.units.is_empty() {
            return Ok(());
        }
        for name in ["postinst", "prerm", "postrm"] {
            let template = top().join("packaging/debian/scripts").join(name);
            let template = String::from_utf8(read(&template)?)?;
            self.write(
                &Path::new("DEBIAN").join(name),
                self.recipe.script(&template).as_bytes(),
                0o755,
            )?;
        }
        Ok(())
    }

    /// Writes the list of the files that are the administrator's to change, and the checksums of
    /// all the others.
    fn lists(&self) -> Result<()> {
        let of_tree: Vec<PathBuf> = files_below(&self.root)?
            .into_iter()
            .filter_map(|file| file.strip_prefix(&self.root).map(Path::to_owned).ok())
            .filter(|file| !file.starts_with("DEBIAN"))
            .collect();
        let (settings, others): (Vec<_>, Vec<_>) =
            of_tree.iter().partition(|file| file.starts_with("etc"));
        if !settings.is_empty() {
            let lines: String =
                settings.iter().map(|file| format!("/{}\n", file.display())).collect();
            self.write(Path::new("DEBIAN/conffiles"), lines.as_bytes(), 0o644)?;
        }
        let sums = output(command("md5sum").current_dir(&self.root).arg("--").args(others))?;
        self.write(Path::new("DEBIAN/md5sums"), &sums, 0o644)
    }

    fn directory(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = self.root.join(path);
        fs::create_dir_all(&path).with_context(|| format!("cannot create `{}`", path.display()))
    }

    /// The place of `path` in the tree, whose directory then exists.
    fn parent_made(&self, path: &Path) -> Result<PathBuf> {
        self.directory(path.parent().unwrap_or(Path::new("")))?;
        Ok(self.root.join(path))
    }

    fn write(&self, path: &Path, content: &[u8], mode: u32) -> Result<()> {
        let path = self.parent_made(path)?;
        let written = fs::write(&path, content)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)));
        written.with_context(|| format!("cannot write `{}`", path.display()))
    }
}

/// The programs below `root` that dpkg can ask for their libraries.
pub fn programs(root: &Path) -> Result<Vec<PathBuf>> {
    let mut programs = Vec::new();
    for file in files_below(root)? {
        let mut magic = [0; 4];
        let opened =
            fs::File::open(&file).with_context(|| format!("cannot read `{}`", file.display()))?;
        if opened.take(4).read(&mut magic)? == 4 && magic == *b"\x7fELF" {
            programs.push(file);
        }
    }
    Ok(programs)
}

/// Every file below `directory`, in order; links are none.
fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(directory)
        .with_context(|| format!("cannot read `{}`", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read `{}`", file.display()))
}
