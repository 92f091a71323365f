//! Scripts that Python would not take: warned of, and kept all the same.

use crate::context::Pvc;
use crate::provisioner::program::ask;

/// The most bytes of a script that are looked at; the API takes no more.
const MOST_BYTES: usize = 256 << 10;

/// Reads the script and runs nothing of it. Beginnings of lines tell its own words from those of a
/// Python that is broken.
const PARSE: &str = "\
import ast, sys
try:
    ast.parse(sys.stdin.buffer.read())
except SyntaxError as error:
    version = 'Python %d.%d' % sys.version_info[:2]
    sys.exit('%s: line %s: %s' % (version, error.lineno, error.msg))
";

/// Warns of a script with a syntax error, where there is a Python: else it shows when a VM is made.
pub fn check(pvc: &Pvc, data: &str) {
    if data.len() > MOST_BYTES {
        return;
    }
    // In isolation: nothing of this directory, of the user's packages or of the environment is run.
    let args = ["-I", "-S", "-W", "ignore", "-c", PARSE];
    // One that cannot be asked is as one that is not installed: it is about a warning.
    let said = ask("python3", &args, data).ok().flatten().unwrap_or_default();
    if let Some(line) = said.iter().find(|line| line.starts_with("Python ")) {
        pvc.warn(&format!("the script has a syntax error, by {line}"));
    }
}
