//! Building the test programs of the scratch tree, and why that failed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::list::List;
use crate::run;

pub enum Built {
    /// The crate's test programs.
    Programs(Vec<PathBuf>),
    Errors(Vec<CompileError>),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct CompileError {
    /// Such as `E0308`.
    pub code: Option<String>,
    /// File and line of what is wrong, and of the macro calls that it came from.
    pub places: Vec<(String, usize)>,
    /// The text for people.
    pub text: String,
}

/// Builds in `target`, which is this tree's alone.
pub fn build(list: &List, tree: &Path, target: &Path) -> Result<Built> {
    let mut build = run::cargo();
    build.current_dir(tree).args(["test", "--quiet", "--no-run", "--lib", "--tests"]);
    build.args(["--package", &list.package, "--message-format", "json"]);
    build.env("CARGO_TARGET_DIR", target);
    // Nobody debugs it, and the tests run thousands of times.
    build.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    build.env("CARGO_INCREMENTAL", "0");
    // A mutant may be bad style: it is for the tests to refuse it.
    build.env("RUSTFLAGS", "--cap-lints=allow");
    let output = build.output().context("cargo cannot be started")?;
    let messages = read(&String::from_utf8(output.stdout)?)?;
    if output.status.success() {
        let programs = messages.into_iter().filter_map(|message| message.executable);
        return Ok(Built::Programs(programs.collect()));
    }
    let errors = messages.into_iter().filter_map(|it| it.message).filter_map(error);
    let errors: Vec<_> = errors.collect();
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!errors.is_empty(), "cannot build in `{}`: {}", tree.display(), said.trim());
    Ok(Built::Errors(errors))
}

#[derive(Debug, Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    message: Option<Diagnostic>,
}

#[derive(Debug, Deserialize)]
struct Diagnostic {
    level: String,
    code: Option<Code>,
    spans: Vec<Span>,
    rendered: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Code {
    code: String,
}

#[derive(Debug, Deserialize)]
struct Span {
    file_name: String,
    line_start: usize,
    is_primary: bool,
    /// The macro call that the span came from.
    expansion: Option<Box<Expansion>>,
}

#[derive(Debug, Deserialize)]
struct Expansion {
    span: Span,
}

/// Reads what cargo writes, a message in each line.
fn read(text: &str) -> Result<Vec<Message>> {
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// The error that is said to be somewhere. "Aborting due to 3 errors" is nowhere.
fn error(diagnostic: Diagnostic) -> Option<CompileError> {
    let Diagnostic { level, code, spans, rendered } = diagnostic;
    let primary = spans.iter().filter(|span| span.is_primary);
    let places: Vec<_> = primary.flat_map(places).collect();
    (level == "error" && !places.is_empty()).then(|| CompileError {
        code: code.map(|it| it.code),
        places,
        text: rendered.unwrap_or_default(),
    })
}

fn places(span: &Span) -> impl Iterator<Item = (String, usize)> {
    let calls = std::iter::successors(Some(span), |span| {
        span.expansion.as_ref().map(|expansion| &expansion.span)
    });
    calls.map(|span| (span.file_name.clone(), span.line_start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_where_its_primary_span_is_and_where_the_macro_was_called() {
        let span = |file: &str, line: usize, is_primary: bool, expansion: &str| {
            format!(
                r#"{{"file_name": "{file}", "line_start": {line}, "is_primary": {is_primary},
                "expansion": {expansion}}}"#
            )
        };
        let call = format!(r#"{{"span": {}}}"#, span("a.rs", 7, false, "null"));
        let spans = [span("core.rs", 3, true, &call), span("a.rs", 1, false, "null")].join(", ");
        let line = format!(
            r#"{{"reason": "compiler-message", "message": {{"level": "error", "rendered": "why",
            "code": {{"code": "E0308", "explanation": null}}, "spans": [{spans}]}}}}"#
        )
        .replace('\n', " ");
        let text = format!(
            "{line}\n{}\n{}\n\nnoise\n",
            line.replace("\"error\"", "\"warning\""),
            r#"{"message": {"level": "error", "code": null, "spans": [], "rendered": "aborting"}}"#
        );
        let messages = read(&text).unwrap();
        assert_eq!(messages.len(), 3);
        let errors: Vec<_> =
            messages.into_iter().filter_map(|it| it.message).filter_map(error).collect();
        let places = vec![("core.rs".to_owned(), 3), ("a.rs".to_owned(), 7)];
        let code = Some("E0308".to_owned());
        assert_eq!(errors, [CompileError { code, places, text: "why".to_owned() }]);
    }

    #[test]
    fn the_test_programs_are_what_cargo_calls_executable() {
        let text = r#"{"reason": "compiler-artifact", "executable": null}
            {"reason": "compiler-artifact", "executable": "/t/model-1"}
            {"reason": "build-finished", "success": true}"#;
        let text: String = text.lines().map(|line| line.trim().to_owned() + "\n").collect();
        let programs = read(&text).unwrap().into_iter().filter_map(|it| it.executable);
        assert_eq!(programs.collect::<Vec<_>>(), [PathBuf::from("/t/model-1")]);
    }
}
