//! The `pvc` command: everything is in `pvc-cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    pvc_cli::main(std::env::args_os().collect())
}
