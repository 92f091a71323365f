//! Contents of a package: the files of `packaging/debian`, read.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Files of one package, as `packaging/debian/README.md` describes them.
#[derive(Debug, Default)]
pub struct Recipe {
    pub name: String,
    /// Pattern by which a file is found, and the directory it goes to.
    pub install: Vec<(String, PathBuf)>,
    /// Target of a link, and the link.
    pub links: Vec<(String, PathBuf)>,
    pub directories: Vec<PathBuf>,
    pub units: Vec<Unit>,
}

#[derive(Debug, PartialEq)]
pub struct Unit {
    pub name: String,
    /// Enabled when the package is first installed.
    pub enable: bool,
    /// Restarted after an upgrade where it runs, and stopped at removal.
    pub restart: bool,
}

impl Recipe {
    /// Reads the recipe of the package `name` from `directory`. A file that is not there says
    /// nothing.
    pub fn read(directory: &Path, name: &str) -> Result<Recipe> {
        let lines = |kind: &str| lines_of(&directory.join(format!("{name}.{kind}")));
        let pairs = |kind: &str| -> Result<Vec<(String, PathBuf)>> {
            lines(kind)?
                .iter()
                .map(|line| pair(line).with_context(|| format!("in `{name}.{kind}`")))
                .collect()
        };
        Ok(Recipe {
            name: name.to_owned(),
            install: pairs("install")?,
            links: pairs("links")?,
            directories: lines("dirs")?.into_iter().map(PathBuf::from).collect(),
            units: lines("units")?.iter().map(|line| Unit::parse(line)).collect::<Result<_>>()?,
        })
    }

    /// A maintainer script, with this package's names in it.
    pub fn script(&self, template: &str) -> String {
        let units = |wanted: fn(&Unit) -> bool| {
            let names =
                self.units.iter().filter(|unit| wanted(unit)).map(|unit| unit.name.as_str());
            names.collect::<Vec<_>>().join(" ")
        };
        template
            .replace("@PACKAGE@", &self.name)
            .replace("@ENABLE@", &units(|unit| unit.enable))
            .replace("@RESTART@", &units(|unit| unit.restart))
            .replace("@UNITS@", &units(|_| true))
    }
}

impl Unit {
    fn parse(line: &str) -> Result<Unit> {
        let mut words = line.split_whitespace();
        let name = words.next().context("a unit without a name")?.to_owned();
        let mut unit = Unit { name, enable: false, restart: false };
        for word in words {
            match word {
                "enable" => unit.enable = true,
                "restart" => unit.restart = true,
                other => {
                    bail!("`{other}` is nothing that can be done with the unit `{}`", unit.name)
                }
            }
        }
        Ok(unit)
    }
}

/// The binary packages that a `debian/control` describes.
pub fn packages(control: &str) -> Vec<&str> {
    control.lines().filter_map(|line| line.strip_prefix("Package: ")).map(str::trim).collect()
}

/// The lines of `cargo tree --format '{p}<TAB>{l}'` about crates that are not the project's own,
/// each once: name, version, licence.
pub fn foreign_crates(tree: &str) -> String {
    let lines = tree.lines().filter_map(|line| {
        let (package, licence) = line.split_once('\t')?;
        let mut words = package.split_whitespace();
        let (name, version) = (words.next()?, words.next()?);
        // A path in parentheses: a crate of this checkout. `(proc-macro)` is none.
        let ours = words.any(|word| word.starts_with("(/"));
        (!ours).then(|| format!("{name} {}: {licence}\n", version.trim_start_matches('v')))
    });
    lines.collect::<BTreeSet<_>>().into_iter().collect()
}

fn lines_of(file: &Path) -> Result<Vec<String>> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read `{}`", file.display()));
        }
    };
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

fn pair(line: &str) -> Result<(String, PathBuf)> {
    match line.split_whitespace().collect::<Vec<_>>()[..] {
        [from, to] => Ok((from.to_owned(), to.into())),
        _ => bail!("`{line}` is not two words"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::top;

    fn real(name: &str) -> Recipe {
        Recipe::read(&top().join("packaging/debian"), name).unwrap()
    }

    #[test]
    fn every_daemon_of_pvc_1_0_3_has_a_package_of_its_name() {
        let control = fs::read_to_string(top().join("packaging/debian/control")).unwrap();
        let names = packages(&control);
        for name in ["common", "node", "api", "worker"] {
            assert!(names.contains(&format!("pvc-daemon-{name}").as_str()), "{names:?}");
        }
        assert!(names.contains(&"pvc-client-cli"));
    }

    #[test]
    fn the_api_is_left_to_the_node_daemon_and_autoready_to_the_boot() {
        let unit = |name: &str, enable, restart| Unit { name: name.into(), enable, restart };
        assert_eq!(real("pvc-daemon-api").units, [unit("pvcapid.service", false, true)]);
        assert!(real("pvc-daemon-node").units.contains(&unit("pvcautoready.service", true, false)));
        // A restart of the target would restart everything.
        assert_eq!(real("pvc-daemon-common").units, [unit("pvc.target", true, false)]);
    }

    #[test]
    fn a_script_names_its_package_and_units() {
        let recipe = Recipe {
            name: "p".into(),
            units: vec![
                Unit::parse("a.service enable restart").unwrap(),
                Unit::parse("b.service enable").unwrap(),
            ],
            ..Recipe::default()
        };
        let script = recipe.script("@PACKAGE@: @ENABLE@ | @RESTART@ | @UNITS@");
        assert_eq!(script, "p: a.service b.service | a.service | a.service b.service");
    }

    #[test]
    fn words_that_mean_nothing_are_refused() {
        assert!(Unit::parse("a.service start").unwrap_err().to_string().contains("`start`"));
        assert!(pair("only-one").is_err());
        assert!(pair("one two three").is_err());
    }

    #[test]
    fn foreign_crates_are_listed_once_each_with_their_licence() {
        let tree = "pvcd v0.2.0 (/src/bin/pvcd)\tApache-2.0\nserde v1.0.1\tMIT OR Apache-2.0\n\
                    serde_derive v1.0.1 (proc-macro)\tMIT\nserde v1.0.1\tMIT OR Apache-2.0\n";
        assert_eq!(
            foreign_crates(tree),
            "serde 1.0.1: MIT OR Apache-2.0\nserde_derive 1.0.1: MIT\n"
        );
    }
}
