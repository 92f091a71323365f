//! Reads of the cluster's records that a script asks for.

use pvc_model::{shown, with_causes};
use pvc_ports::{TreeError, check_path};
use pvc_store::is_for_scripts;
use serde_json::{Value, json};

use super::build::Session;
use super::calls::{Arguments, CallError, Failed};

/// The longest value that is given to a script, in bytes: more than any record of the layout has.
const MOST_BYTES: usize = 1 << 20;

/// Serves `zk.read`, `zk.exists` and `zk.children`, which return no pair.
///
/// # Errors
/// The key is none, or of no record that is open to scripts; the tree does not answer.
pub(super) async fn read(
    session: &Session<'_>,
    function: &str,
    given: &Arguments<'_>,
) -> Result<Value, CallError> {
    let key = given.text("key").map_err(|failed| match failed {
        Failed::Call(why) => why,
        Failed::Refused(why) => CallError::Raised(why.0),
    })?;
    if check_path(&key).is_err() {
        return Err(CallError::Raised(format!("`{}` is no path of a record", shown(&key))));
    }
    if !is_for_scripts(&key) {
        let why = "is not for scripts: secrets, what tasks were given, and what is no record of \
                   nodes, VMs, networks or storage are not";
        return Err(CallError::Raised(format!("`{}` {why}", shown(&key))));
    }
    let raised = |error: TreeError| CallError::Raised(with_causes(&error));
    let tree = session.context.tools.store.tree();
    if function == "zk.children" {
        let names = tree.children(&key).await.map_err(raised)?;
        let below =
            |name: &String| is_for_scripts(&format!("{}/{name}", key.trim_end_matches('/')));
        return Ok(json!(names.map(|names| {
            let mut open: Vec<String> = names.into_iter().filter(below).collect();
            open.sort();
            open
        })));
    }
    let entry = tree.get(&key).await.map_err(raised)?;
    match (function, entry) {
        ("zk.exists", entry) => Ok(json!(entry.is_some())),
        (_, None) => Ok(Value::Null),
        (_, Some(entry)) if entry.data.len() > MOST_BYTES => {
            Err(CallError::Raised(format!("`{}` is larger than 1 MiB", shown(&key))))
        }
        (_, Some(entry)) => Ok(json!(String::from_utf8_lossy(&entry.data))),
    }
}

/// Refusal of `zk.write` and `zk.delete`.
pub(super) fn not_written() -> CallError {
    CallError::Raised(
        "scripts do not write records: the functions of `daemon_lib.ceph` and `daemon_lib.vm` \
         change them, with their checks"
            .to_owned(),
    )
}
