//! Reading and checking VM definitions.

use std::io::Read;
use std::path::Path;

use pvc_domain::{Domain, DomainError, EditError, Problem};

use crate::context::Pvc;
use crate::outcome::{Failure, plain_io};

/// The definition in `file`, or on standard input for `-`, checked as far as a client can. All
/// mistakes are reported at once; what is merely odd is warned of.
pub fn read(pvc: &Pvc, file: &Path) -> Result<String, Failure> {
    let bytes = read_bytes(file).map_err(|error| {
        Failure::usage(format!("cannot read `{}`: {}", file.display(), plain_io(&error)))
    })?;
    let text = String::from_utf8(bytes).map_err(|_| {
        Failure::failed(format!("`{}` is not UTF-8", file.display()))
            .hint("`iconv -t utf-8` converts it; remove its `<?xml … encoding=…?>` line, too")
    })?;
    checked(pvc, &file.display().to_string(), &text)
}

/// `text` without an XML declaration, which the API does not take, if it can be a definition.
pub fn checked(pvc: &Pvc, origin: &str, text: &str) -> Result<String, Failure> {
    let domain =
        Domain::parse(text).map_err(|error| unreadable(&error).context(format!("`{origin}`")))?;
    match pvc_domain::validate(domain.as_str()) {
        Ok(checked) => {
            for warning in checked.warnings {
                pvc.warn(&format!("`{origin}`: {warning}"));
            }
            Ok(domain.into_string())
        }
        Err(problems) => Err(refused(origin, &problems)),
    }
}

fn read_bytes(file: &Path) -> std::io::Result<Vec<u8>> {
    if file != Path::new("-") {
        return std::fs::read(file);
    }
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
}

fn refused(origin: &str, problems: &[Problem]) -> Failure {
    let lines: Vec<String> = problems.iter().map(|problem| format!("  {problem}")).collect();
    let count = if problems.len() == 1 {
        "a mistake".to_owned()
    } else {
        format!("{} mistakes", problems.len())
    };
    let failure = Failure::failed(format!("`{origin}` has {count}:\n{}", lines.join("\n")));
    match problems.iter().find_map(|problem| problem.hint.clone()) {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// The definition that the cluster holds, ready to be edited.
pub fn stored(vm: &str, xml: &str) -> Result<Domain, Failure> {
    Domain::parse(xml)
        .map_err(|error| unreadable(&error).context(format!("the stored definition of VM `{vm}`")))
}

/// The definition with an element on each line, for people.
pub fn pretty(xml: &str) -> Result<String, Failure> {
    pvc_domain::pretty(xml).map_err(|error| unreadable(&error))
}

fn unreadable(error: &DomainError) -> Failure {
    let failure = Failure::failed(error.to_string());
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// The failure that an edit's refusal is.
pub fn unedited(error: &EditError) -> Failure {
    let failure = match error.is_not_found() {
        true => Failure::not_found(error.to_string()),
        false => Failure::failed(error.to_string()),
    };
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
