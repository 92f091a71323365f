//! Arguments of the daemons. One program, installed under several names: the name it is called by
//! is the role.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};

/// Every PVC daemon in one program
///
/// Installed as `pvcnoded`, `pvcapid`, `pvcworkerd` and `pvc-standalone` it plays that role; as
/// `pvcd` it takes the role as its first word.
#[derive(Debug, Parser)]
#[command(
    name = "pvcd",
    version,
    disable_help_subcommand = true,
    after_help = "\
Environment:
  PVC_CONFIG_FILE     the configuration file (default /etc/pvc/pvc.conf)
  PVCD_CONFIG_FILE    the same, as older installations name it
  PVC_STATE           the state directory of standalone mode (default /var/lib/pvc)

Exit status:
  0  stopped as asked    1  could not start, or had to stop    2  wrong command line"
)]
pub struct Arguments {
    #[command(subcommand)]
    pub role: Role,
}

#[derive(Debug, Subcommand)]
pub enum Role {
    /// The node daemon: runs this server's VMs and says that it is alive
    Node(Start),
    /// The HTTP API
    Api(Start),
    /// The worker: does the jobs of this node
    Worker(Start),
    /// All roles and the store in one process, on one machine
    Standalone(StandaloneStart),
}

#[derive(Debug, Args)]
pub struct Start {
    /// Read this configuration file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Only check FILE: print every mistake in it and leave
    ///
    /// Needs no service. Exit status 0 if the file can be used.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub check_config: Option<PathBuf>,

    /// Print the version and leave
    #[arg(long)]
    pub version: bool,
}

#[derive(Debug, Args)]
pub struct StandaloneStart {
    #[command(flatten)]
    pub start: Start,

    /// Go on from the newest dump of the records that can be used, if their file is damaged
    ///
    /// The damaged file is put aside. What was changed since the dump is lost. A start without this
    /// option says which dump that is, and changes nothing.
    #[arg(long)]
    pub recover: bool,
}

impl Arguments {
    /// The arguments of this process, with the role taken from the program's name where that says
    /// it.
    pub fn from_process() -> Self {
        Arguments::parse_from(with_role(std::env::args_os().collect()))
    }
}

/// The name by which this program was called.
pub fn program() -> String {
    let called = std::env::args_os().next();
    let name =
        called.as_deref().map(Path::new).and_then(Path::file_name).and_then(|name| name.to_str());
    name.unwrap_or("pvcd").to_owned()
}

fn with_role(mut args: Vec<OsString>) -> Vec<OsString> {
    let name = args.first().map(Path::new).and_then(Path::file_name).and_then(|name| name.to_str());
    let role = match name {
        Some("pvcnoded") => Some("node"),
        Some("pvcapid") => Some("api"),
        Some("pvcworkerd") => Some("worker"),
        Some("pvc-standalone") => Some("standalone"),
        _ => None,
    };
    if let Some(role) = role {
        args.insert(1, role.into());
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Arguments {
        Arguments::parse_from(with_role(args.iter().map(OsString::from).collect()))
    }

    #[test]
    fn the_name_of_the_program_is_its_role() {
        assert!(matches!(parse(&["/usr/bin/pvcnoded"]).role, Role::Node(_)));
        assert!(matches!(
            parse(&["pvcapid", "--version"]).role,
            Role::Api(Start { version: true, .. })
        ));
        assert!(matches!(parse(&["pvcd", "standalone"]).role, Role::Standalone(_)));
    }

    /// Volumes were handled by `pvcd volume` before `pvc storage volume` was there.
    #[test]
    fn a_daemon_has_no_command_for_volumes() {
        let refused = Arguments::try_parse_from(["pvcd", "volume", "list"]).unwrap_err();
        assert_eq!(refused.kind(), clap::error::ErrorKind::InvalidSubcommand, "{refused}");
    }

    #[test]
    fn a_configuration_can_be_checked_without_starting() {
        let Role::Node(start) = parse(&["pvcnoded", "--check-config", "x.conf"]).role else {
            panic!("the node role")
        };
        assert_eq!(start.check_config, Some(PathBuf::from("x.conf")));
    }
}
