//! `cargo xtask package`: Debian packages, made with dpkg's own tools from `packaging/debian`.

mod recipe;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::generated;
use crate::run::{cargo, command, output, run, target, top};
use recipe::Recipe;
use tree::Tree;

/// Epoch above every version that the project of PVC 1.0.3 will ever have: its packages carry the
/// same names, and `apt upgrade` must not take a node back unasked.
const EPOCH: &str = "1";

#[derive(Debug, PartialEq)]
struct Options {
    debug: bool,
    /// Pack what was built last.
    no_build: bool,
    revision: String,
    output: PathBuf,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Options> {
        let mut options = Options {
            debug: false,
            no_build: false,
            revision: "1".to_owned(),
            output: target().join("debian"),
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().with_context(|| format!("`{argument}` needs a value"));
            match argument.as_str() {
                "--debug" => options.debug = true,
                "--no-build" => options.no_build = true,
                "--revision" => options.revision = revision(value()?)?,
                "--output" => options.output = top().join(value()?),
                other => bail!("`{other}` is not something `cargo xtask package` knows"),
            }
        }
        Ok(options)
    }
}

/// The part of a version after its `-`, as Debian's policy allows it.
fn revision(text: &str) -> Result<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '~');
    if text.is_empty() || !text.chars().all(allowed) {
        bail!("the revision `{text}` is not made of letters, digits, `.`, `+` and `~`");
    }
    Ok(text.to_owned())
}

/// Makes every package, from a release build unless `--debug` is given, and prints where they are.
pub fn run_with(arguments: &[String]) -> Result<()> {
    let options = Options::parse(arguments)?;
    let programs = target().join(if options.debug { "debug" } else { "release" });
    if !options.no_build {
        build(options.debug)?;
    }
    let version = format!("{EPOCH}:{}-{}", env!("CARGO_PKG_VERSION"), options.revision);

    // Of its own for each run, and removed in the end: two may run at the same time.
    fs::create_dir_all(&options.output)
        .with_context(|| format!("cannot create `{}`", options.output.display()))?;
    let work = Work(options.output.join(format!("work.{}", std::process::id())));
    let built = work.gather(&programs, &version).and_then(|()| work.pack(&options, &version));
    drop(work);
    for package in built? {
        println!("{}", package.display());
    }
    Ok(())
}

fn build(debug: bool) -> Result<()> {
    let mut cargo = cargo();
    cargo.args([
        "build",
        "--quiet",
        "--package",
        "pvcd",
        "--package",
        "pvc",
        "--package",
        "pvc-sim",
    ]);
    if !debug {
        cargo.arg("--release");
    }
    run(&mut cargo)
}

/// Directory in which packages are put together.
struct Work(PathBuf);

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Work {
    /// Gathers what is made before it is packed: `bin/`, `man/`, `completions/`, `doc/`; and what
    /// dpkg's tools want to find below `debian/`.
    fn gather(&self, programs: &Path, version: &str) -> Result<()> {
        let made = self.0.join("made");
        for directory in ["bin", "doc"] {
            fs::create_dir_all(made.join(directory))?;
        }
        for program in ["pvcd", "pvc", "pvc-sim"] {
            let to = made.join("bin").join(program);
            fs::copy(programs.join(program), &to)
                .with_context(|| format!("cannot copy `{program}` to `{}`", to.display()))?;
        }
        let pvc = || generated::apart(command(made.join("bin/pvc")));
        output(pvc().arg("man").arg(made.join("man")))?;
        generated::write_completions(pvc, &made.join("completions"))?;
        fs::write(made.join("doc/crates.txt"), crates()?)?;

        let debian = self.0.join("debian");
        fs::create_dir_all(&debian)?;
        fs::copy(top().join("packaging/debian/control"), debian.join("control"))?;
        fs::write(debian.join("changelog"), changelog(version)?)?;
        Ok(())
    }

    /// Packs everything that `control` names; returns the packages.
    fn pack(&self, options: &Options, version: &str) -> Result<Vec<PathBuf>> {
        let control = fs::read_to_string(self.0.join("debian/control"))?;
        let mut packages = Vec::new();
        for name in recipe::packages(&control) {
            let recipe = Recipe::read(&top().join("packaging/debian"), name)?;
            let root = Tree::new(&self.0, &recipe).fill(version)?;
            self.describe(name, &root)?;
            packages.push(self.build_package(name, &root, options, version)?);
        }
        Ok(packages)
    }

    /// Writes the package's `DEBIAN/control`, with what its programs need of which libraries.
    fn describe(&self, name: &str, root: &Path) -> Result<()> {
        let substitutions = format!("debian/{name}.substvars");
        let programs = tree::programs(root)?;
        if programs.is_empty() {
            fs::write(self.0.join(&substitutions), "")?;
        } else {
            let mut shlibdeps = self.tool("dpkg-shlibdeps");
            shlibdeps.arg(format!("-T{substitutions}"));
            run(shlibdeps.args(programs.iter().map(|program| format!("-e{}", program.display()))))?;
        }
        let mut gencontrol = self.tool("dpkg-gencontrol");
        gencontrol.args([format!("-p{name}"), format!("-T{substitutions}")]);
        // A variable that debhelper would set; nothing of ours has a place in it.
        gencontrol.arg("-Vmisc:Depends=");
        run(gencontrol.arg(format!("-P{}", root.display())))
    }

    fn build_package(
        &self,
        name: &str,
        root: &Path,
        options: &Options,
        version: &str,
    ) -> Result<PathBuf> {
        let architecture = output(command("dpkg").arg("--print-architecture"))?;
        let architecture = String::from_utf8(architecture)?.trim().to_owned();
        // By custom the epoch is not in the name.
        let plain = version.split_once(':').map_or(version, |(_, plain)| plain);
        let file = format!("{name}_{plain}_{architecture}.deb");
        let packed = self.0.join(&file);
        let mut pack = self.tool("dpkg-deb");
        pack.arg("--root-owner-group");
        // Programs with all their symbols, packed for a test that unpacks them at once.
        if options.debug {
            pack.args(["-Zzstd", "-z1"]);
        } else {
            pack.arg("-Zxz");
        }
        output(pack.arg("--build").arg(root).arg(&packed))?;
        let finished = options.output.join(&file);
        remove_others(&options.output, name, &file)?;
        fs::rename(&packed, &finished)
            .with_context(|| format!("cannot write `{}`", finished.display()))?;
        Ok(finished)
    }

    fn tool(&self, program: &str) -> Command {
        let mut tool = command(program);
        tool.current_dir(&self.0).env("SOURCE_DATE_EPOCH", commit_time());
        tool
    }
}

/// Removes packages of the same name and another version: whoever installs `*.deb` means the last.
fn remove_others(directory: &Path, name: &str, but: &str) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let file = entry.file_name();
        let file = file.to_string_lossy();
        if file.starts_with(&format!("{name}_")) && file.ends_with(".deb") && file != but {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Time of the last commit, in seconds since 1970: what is packed from the same commit gets the
/// same times. Without git, the time of now.
fn commit_time() -> String {
    let git = command("git").args(["log", "-1", "--format=%ct"]).output();
    let committed = git
        .ok()
        .filter(|git| git.status.success())
        .and_then(|git| String::from_utf8(git.stdout).ok());
    let now = || std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs()).to_string();
    committed.map(|time| time.trim().to_owned()).filter(|time| !time.is_empty()).unwrap_or_else(now)
}

fn changelog(version: &str) -> Result<String> {
    let date = output(command("date").args(["-u", "-R", "-d", &format!("@{}", commit_time())]))?;
    let control = fs::read_to_string(top().join("packaging/debian/control"))?;
    let maintainer = control.lines().find_map(|line| line.strip_prefix("Maintainer: "));
    let maintainer = maintainer.context("`packaging/debian/control` names no maintainer")?;
    Ok(format!(
        "pvc ({version}) stable; urgency=medium\n\n  \
         * What an operator notices is in changelog.gz, beside this file.\n\n \
         -- {maintainer}  {}\n",
        String::from_utf8(date)?.trim()
    ))
}

/// Every crate that is part of the programs, with its licence.
fn crates() -> Result<String> {
    let mut tree = cargo();
    tree.args(["tree", "--package", "pvcd", "--package", "pvc", "--package", "pvc-sim"]);
    tree.args(["--edges", "normal", "--prefix", "none"]);
    let tree = output(tree.args(["--no-dedupe", "--format", "{p}\t{l}"]))?;
    Ok(recipe::foreign_crates(&String::from_utf8(tree)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options> {
        Options::parse(&arguments.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_release_build_is_packed_unless_asked_otherwise() {
        let options = parse(&[]).unwrap();
        assert_eq!((options.debug, options.revision.as_str()), (false, "1"));
        let options = parse(&["--debug", "--no-build", "--revision", "2~try"]).unwrap();
        assert_eq!(
            (options.debug, options.no_build, options.revision.as_str()),
            (true, true, "2~try")
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (arguments, because) in [
            (["--fast", ""].as_slice(), "`--fast` is not something `cargo xtask package` knows"),
            (&["--revision"], "`--revision` needs a value"),
            (
                &["--revision", "a b"],
                "the revision `a b` is not made of letters, digits, `.`, `+` and `~`",
            ),
        ] {
            assert_eq!(parse(arguments).unwrap_err().to_string(), because);
        }
    }

    #[test]
    fn only_other_versions_of_the_same_package_are_removed() {
        let directory = std::env::temp_dir().join(format!("xtask-package.{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        for file in ["pvc_1_amd64.deb", "pvc_2_amd64.deb", "pvc-daemon_1_amd64.deb", "pvc_1.txt"] {
            fs::write(directory.join(file), "").unwrap();
        }
        remove_others(&directory, "pvc", "pvc_2_amd64.deb").unwrap();
        let mut left: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(left, ["pvc-daemon_1_amd64.deb", "pvc_1.txt", "pvc_2_amd64.deb"]);
    }
}
