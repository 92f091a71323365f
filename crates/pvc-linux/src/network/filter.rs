//! PVC's own packet filter, through `nft`: it speaks the kernel's transactions, and what it prints
//! a person can read.

use std::io;
use std::time::Duration;

use pvc_model::host_filter::{TABLE, removal};
use pvc_ports::{Command, Exec as _, ExecError, NetworkError, Output};

use crate::LinuxExec;

/// Time that `nft` may take. It waits for nobody but other changes of the ruleset.
const DEADLINE: Duration = Duration::from_secs(10);

pub(super) async fn look() -> Result<Option<String>, NetworkError> {
    // Without the counters, which change with each packet.
    let what = "show PVC's packet filter";
    let output = match run(&["--stateless", "list", "table", "inet", TABLE], None, what).await {
        // Without it nobody made a filter that it would have to be asked about.
        Err(NetworkError::NoProgram { .. }) => return Ok(None),
        other => other?,
    };
    let said = String::from_utf8_lossy(&output.stderr);
    match output.code {
        Some(0) => Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned())),
        _ if said.contains("No such file or directory") => Ok(None),
        _ => Err(refused(what, &said)),
    }
}

pub(super) async fn load(ruleset: Option<&str>) -> Result<(), NetworkError> {
    let what =
        if ruleset.is_some() { "take PVC's packet filter" } else { "drop PVC's packet filter" };
    let text = ruleset.map_or_else(removal, str::to_owned);
    let output = match run(&["--file", "-"], Some(text.into_bytes()), what).await {
        Err(NetworkError::NoProgram { .. }) if ruleset.is_none() => return Ok(()),
        other => other?,
    };
    match output.code {
        Some(0) => Ok(()),
        _ => Err(refused(what, &String::from_utf8_lossy(&output.stderr))),
    }
}

async fn run(args: &[&str], stdin: Option<Vec<u8>>, what: &str) -> Result<Output, NetworkError> {
    let command = Command {
        program: "nft".to_owned(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        // What it says is read by this program.
        env: vec![("LC_ALL".to_owned(), "C".to_owned())],
        stdin,
        deadline: DEADLINE,
    };
    LinuxExec.run(command).await.map_err(|error| match error {
        ExecError::Missing { program } => NetworkError::NoProgram { program, package: "nftables" },
        ExecError::TimedOut { deadline, .. } => {
            NetworkError::TimedOut { what: what.to_owned(), seconds: deadline.as_secs() }
        }
        ExecError::Failed { source, .. } => NetworkError::Refused { what: what.to_owned(), source },
    })
}

/// The first line of what `nft` said: the rest shows the place in the text.
fn refused(what: &str, said: &str) -> NetworkError {
    let why = said.lines().next().unwrap_or("`nft` failed without saying why").trim().to_owned();
    NetworkError::Refused { what: what.to_owned(), source: io::Error::other(why) }
}
