//! A mutant, as cargo-mutants lists it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::list::{LIST, List};
use crate::run;

#[derive(Debug, Clone, Deserialize)]
pub struct Mutant {
    pub name: String,
    pub file: String,
    /// `None`: outside all functions.
    pub function: Option<Function>,
    /// The text that is changed.
    pub span: Span,
    pub replacement: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Function {
    /// With its arrow; empty if there is none.
    pub return_type: String,
    /// From its first doc comment or attribute to its last brace.
    pub span: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Span {
    pub start: Place,
    /// Behind the last character.
    pub end: Place,
}

/// Place in a text, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Place {
    pub line: usize,
    /// In characters.
    pub column: usize,
}

impl Mutant {
    /// The name without line and column, which change with every edit above.
    pub fn name(&self) -> String {
        let change = self.name.strip_prefix(&self.file).and_then(|rest| rest.split_once(": "));
        change.map_or_else(|| self.name.clone(), |(_, change)| format!("{}: {change}", self.file))
    }
}

/// All mutants of the rules as they are in the checkout `top`.
pub fn list(list: &List, top: &Path) -> Result<Vec<Mutant>> {
    check_tool(&list.version)?;
    let mut tool = run::cargo();
    tool.current_dir(top).args(["mutants", "--package", &list.package, "--list", "--json"]);
    tool.args(list.files.iter().flat_map(|file| ["--file", file]));
    serde_json::from_slice(&run::output(&mut tool)?).context("what the tool lists is no list")
}

fn check_tool(version: &str) -> Result<()> {
    let found = run::cargo().args(["mutants", "--version"]).output();
    let found = found.ok().filter(|output| output.status.success());
    let found = found.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let wanted = format!("cargo-mutants {version}");
    ensure!(
        found.as_ref() == Some(&wanted),
        "{} is installed, and {LIST} is written for {wanted}: `cargo install --locked \
         cargo-mutants@{version}` brings it",
        found.map_or_else(|| "no cargo-mutants".to_owned(), |found| format!("`{found}`"))
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tool_lists_is_understood() {
        let text = r#"[{"diff": "-", "file": "a.rs", "function": {"function_name": "f",
            "return_type": "-> bool", "span": {"start": {"line": 1, "column": 1},
            "end": {"line": 3, "column": 2}}}, "genre": "UnaryOperator",
            "name": "a.rs:1:2: delete ! in f", "package": "a", "replacement": "",
            "span": {"start": {"line": 1, "column": 2}, "end": {"line": 1, "column": 3}}},
            {"diff": "-", "file": "a.rs", "function": null, "genre": "UnaryOperator",
            "name": "a.rs:9:2: delete -", "package": "a", "replacement": "",
            "span": {"start": {"line": 9, "column": 2}, "end": {"line": 9, "column": 3}}}]"#;
        let [first, second] = &serde_json::from_str::<Vec<Mutant>>(text).unwrap()[..] else {
            panic!("two were listed")
        };
        assert_eq!(first.name(), "a.rs: delete ! in f");
        assert_eq!(first.function.as_ref().unwrap().span.end, Place { line: 3, column: 2 });
        assert_eq!((second.name().as_str(), &second.function), ("a.rs: delete -", &None));
    }
}
