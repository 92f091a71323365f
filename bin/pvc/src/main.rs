//! The `pvc` command: everything is in `pvc-cli`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    pvc_cli::main(std::env::args_os().collect())
}
