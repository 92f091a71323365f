//! Sources of a configuration, and the ways to ask for one.

#![allow(clippy::disallowed_methods, reason = "the configuration is read before any port is there")]

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use pvc_model::shown;

use crate::assemble;
use crate::config::{Api, Config, Format, NodeId, NodeIdentity};
use crate::keys;
use crate::kind::is_node_name;
use crate::problem::{ConfigErrors, Problem, Severity, render};
use crate::reader::{Reader, state_directory};
use crate::yaml::{self, Document, Place};

const DEFAULT_PATH: &str = "/etc/pvc/pvc.conf";
const OLD_DEFAULT_PATH: &str = "/etc/pvc/pvcnoded.yaml";
const DEFAULT_STATE: &str = "/var/lib/pvc";

/// Real files have some kilobytes; what is larger is something else.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Facts that the file does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The host name, short or with its domain.
    pub hostname: String,
    /// The state directory of standalone mode, unless the file names one.
    pub state_directory: PathBuf,
    /// Standalone mode even without a section `standalone` in the file.
    pub standalone: bool,
}

impl Machine {
    /// Asks this machine for its host name, and for the state directory that `PVC_STATE` names.
    pub fn this() -> io::Result<Self> {
        let hostname = fs::read_to_string("/proc/sys/kernel/hostname")?;
        Ok(Self::named(hostname.trim(), |name| std::env::var_os(name)))
    }

    /// A machine of the given host name, with the variables that `env` knows.
    pub fn named(hostname: &str, env: impl Fn(&str) -> Option<OsString>) -> Self {
        let state = env("PVC_STATE").filter(|state| !state.is_empty());
        let state = state.map_or_else(|| PathBuf::from(DEFAULT_STATE), PathBuf::from);
        Self { hostname: hostname.into(), state_directory: absolute(&state), standalone: false }
    }

    /// The same machine in standalone mode.
    pub fn standalone(self) -> Self {
        Self { standalone: true, ..self }
    }

    fn identity(&self) -> NodeIdentity {
        let (name, domain) = self.hostname.split_once('.').unwrap_or((&self.hostname, ""));
        NodeIdentity { name: name.into(), domain: domain.into(), id: NodeId::of(name) }
    }
}

/// `path` below the present directory. Only the present directory being gone leaves it relative.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// No configuration file was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocateError {
    #[error("`{variable}` names `{}`, which does not exist", path.display())]
    NamedFileMissing { variable: &'static str, path: PathBuf },
    #[error("no configuration: neither `/etc/pvc/pvc.conf` nor `/etc/pvc/pvcnoded.yaml` exists")]
    NoFile,
}

impl LocateError {
    pub fn hint(&self) -> String {
        match self {
            LocateError::NamedFileMissing { variable, .. } => {
                format!("set `{variable}` to the path of the configuration file")
            }
            LocateError::NoFile => {
                "write one (a sample comes with the package), or name another file with \
                 `PVC_CONFIG_FILE`; \
                 to try PVC on one machine without any, run `pvc-standalone`"
                    .into()
            }
        }
    }
}

impl Config {
    /// The file to read: what `PVC_CONFIG_FILE` or else `PVCD_CONFIG_FILE` names, or
    /// `/etc/pvc/pvc.conf`, or `/etc/pvc/pvcnoded.yaml` where only that exists.
    pub fn locate(env: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, LocateError> {
        locate(env, |path| path.exists())
    }

    /// Reads a file for this machine.
    pub fn read(path: &Path) -> Result<Config, ConfigErrors> {
        let machine = Machine::this().map_err(|error| {
            ConfigErrors::whole_file(
                "/proc/sys/kernel/hostname",
                format!("cannot be read: {error}"),
                None,
            )
        })?;
        Self::read_for(path, &machine)
    }

    /// Reads a file for the given machine.
    pub fn read_for(path: &Path, machine: &Machine) -> Result<Config, ConfigErrors> {
        let file = path.display().to_string();
        let text = read_file(path, &file)?;
        let mut config = Self::parse_for(&text, &file, machine)?;
        config.warnings.extend(open_to_everybody(path, &file));
        Ok(config)
    }

    /// Reads `text`, which came from `file`, for a machine of the given host name.
    pub fn parse(text: &str, file: &str, hostname: &str) -> Result<Config, ConfigErrors> {
        Self::parse_for(text, file, &Machine::named(hostname, |_| None))
    }

    /// Reads `text`, which came from `file`, for the given machine.
    pub fn parse_for(text: &str, file: &str, machine: &Machine) -> Result<Config, ConfigErrors> {
        let document = parse_document(text, file)?;
        let mut reader = Reader::new(file, &document.root, format_of(&document));
        note_faults(&mut reader, &document);
        reader.standalone = machine.standalone || document.root.entry(keys::STANDALONE).is_some();
        if document.root.is_null() && !reader.standalone {
            let hint = "a sample comes with the package; standalone mode needs no file";
            return Err(ConfigErrors::whole_file(file, "is empty".into(), Some(hint.into())));
        }
        reader.state = state_directory(&document.root, &machine.state_directory);
        let node = identity(&mut reader, machine);
        reader.node.clone_from(&node.name);
        let config = assemble::config(&mut reader, node);
        let warnings = only_warnings(reader.into_problems())?;
        Ok(Config { warnings, ..config })
    }

    /// The configuration of standalone mode without any file: API on 127.0.0.1:7370 with a token
    /// that the daemon makes, everything kept in `state_directory`, this machine the only node.
    pub fn standalone(state_directory: &Path, hostname: &str) -> Config {
        let machine = Machine {
            hostname: usable_host_name(hostname),
            state_directory: absolute(state_directory),
            standalone: true,
        };
        Self::parse_for("", "built-in defaults", &machine)
            .expect("the standalone defaults are complete and valid")
    }
}

/// The API's settings in a file, for a client on the same machine. Mistakes elsewhere do not matter
/// to it.
pub fn read_api(path: &Path) -> Result<Api, ConfigErrors> {
    let file = path.display().to_string();
    let text = read_file(path, &file)?;
    let document = parse_document(&text, &file)?;
    let mut reader = Reader::new(&file, &document.root, format_of(&document));
    reader.standalone = document.root.entry(keys::STANDALONE).is_some();
    let machine = Machine::named("", |name| std::env::var_os(name));
    reader.state = state_directory(&document.root, &machine.state_directory);
    let api = assemble::api(&mut reader);
    only_warnings(reader.into_problems())?;
    Ok(api)
}

/// Output of `--check-config`, and whether the file can be used.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    file: String,
    outcome: Result<Config, ConfigErrors>,
}

/// Checks a file as a machine of the given host name would read it.
pub fn check(path: &Path, hostname: &str) -> Report {
    let machine = Machine::named(hostname, |name| std::env::var_os(name));
    Report { file: path.display().to_string(), outcome: Config::read_for(path, &machine) }
}

impl Report {
    /// 0 for a usable file, with or without warnings; 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        u8::from(self.outcome.is_err())
    }

    pub fn outcome(&self) -> &Result<Config, ConfigErrors> {
        &self.outcome
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (errors, warnings): (&[Problem], &[Problem]) = match &self.outcome {
            Ok(config) => (&[], &config.warnings),
            Err(errors) => (&errors.errors, &errors.warnings),
        };
        if !errors.is_empty() || !warnings.is_empty() {
            writeln!(f, "{}", render(errors.iter().chain(warnings)))?;
        }
        match &self.outcome {
            Ok(config) => {
                write!(f, "{}: good for {}{}", self.file, role(config), tail(warnings.len()))
            }
            Err(_) => {
                write!(f, "{}: {}{}", self.file, count(errors.len(), "error"), tail(warnings.len()))
            }
        }
    }
}

fn role(config: &Config) -> String {
    let role = match (&config.standalone, config.is_coordinator()) {
        (Some(_), _) => "standalone machine",
        (None, true) => "coordinator",
        (None, false) => "hypervisor",
    };
    let cluster = match (&config.standalone, &config.cluster.name) {
        (None, Some(name)) => format!(" of cluster `{name}`"),
        (Some(_), _) | (None, None) => String::new(),
    };
    format!("{role} `{}`{cluster}", config.node.name)
}

fn tail(warnings: usize) -> String {
    if warnings == 0 { String::new() } else { format!(", {}", count(warnings, "warning")) }
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn locate(
    env: impl Fn(&str) -> Option<OsString>,
    exists: impl Fn(&Path) -> bool,
) -> Result<PathBuf, LocateError> {
    for variable in ["PVC_CONFIG_FILE", "PVCD_CONFIG_FILE"] {
        if let Some(path) = env(variable).filter(|value| !value.is_empty()).map(PathBuf::from) {
            return if exists(&path) {
                Ok(path)
            } else {
                Err(LocateError::NamedFileMissing { variable, path })
            };
        }
    }
    let paths = [DEFAULT_PATH, OLD_DEFAULT_PATH].map(PathBuf::from);
    paths.into_iter().find(|path| exists(path)).ok_or(LocateError::NoFile)
}

fn read_file(path: &Path, file: &str) -> Result<String, ConfigErrors> {
    let whole = |found: String, hint: Option<&str>| {
        ConfigErrors::whole_file(file, found, hint.map(Into::into))
    };
    let unreadable = |error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                Some("the file holds passwords: only root and the group it belongs to may read it")
            }
            io::ErrorKind::NotFound => Some("check the path; a sample comes with the package"),
            _ => None,
        };
        whole(format!("cannot be read: {error}"), hint)
    };
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if metadata.is_dir() {
        return Err(whole("is a directory, expected a configuration file".into(), None));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(whole("is larger than 4 MiB: it cannot be a configuration".into(), None));
    }
    let bytes = fs::read(path).map_err(unreadable)?;
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        whole(
            format!("is not UTF-8 text: line {line} holds other bytes"),
            Some("save the file as UTF-8"),
        )
    })
}

fn open_to_everybody(path: &Path, file: &str) -> Option<Problem> {
    let mode = fs::metadata(path).ok()?.permissions().mode();
    (mode & 0o004 != 0).then(|| Problem {
        severity: Severity::Warning,
        file: file.into(),
        place: None,
        key: None,
        found: "is readable by everybody on this machine, and it may hold passwords".into(),
        allowed: None,
        hint: Some(format!("chmod 0640 {file}")),
    })
}

fn parse_document(text: &str, file: &str) -> Result<Document, ConfigErrors> {
    yaml::parse(text).map_err(|fault| {
        let mut errors = ConfigErrors::whole_file(file, fault.what, fault.hint);
        errors.errors[0].place = Some(fault.place);
        errors
    })
}

fn format_of(document: &Document) -> Format {
    if document.root.entry("pvc").is_some() { Format::PvcnodedYaml } else { Format::PvcConf }
}

fn note_faults(reader: &mut Reader<'_>, document: &Document) {
    for fault in &document.faults {
        reader.push(
            Severity::Error,
            fault.place,
            None,
            fault.what.clone(),
            None,
            fault.hint.clone(),
        );
    }
}

/// The node's name: that of the machine, or what the older format says.
fn identity(reader: &mut Reader<'_>, machine: &Machine) -> NodeIdentity {
    let mut identity = machine.identity();
    if reader.format == Format::PvcnodedYaml
        && let Some(name) = reader.get::<String>("node")
    {
        if name != identity.name {
            let found =
                format!("is `{name}`, and this machine is called `{}`", shown(&identity.name));
            let hint = "1.0 tells the name from the host name: make them agree before you change \
                        to pvc.conf";
            reader.warn_at("node", keys::At::default(), found, hint);
        }
        identity.id = NodeId::of(&name);
        identity.name = name;
    }
    if !is_node_name(&identity.name) {
        let found = format!(
            "this machine's host name, `{}`, cannot be a node's name",
            shown(&identity.name)
        );
        let hint = "set one of letters, digits and hyphens: hostnamectl set-hostname hv1";
        reader.push(Severity::Error, Place::START, None, found, None, Some(hint.into()));
    }
    identity
}

/// The host name with what no node's name may have replaced, so that trying PVC needs no new one.
fn usable_host_name(hostname: &str) -> String {
    let short = hostname.split('.').next().unwrap_or_default();
    let replaced: String =
        short.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(63).collect();
    let name = replaced.trim_matches('-');
    if name.is_empty() { "localhost".into() } else { name.into() }
}

/// The warnings, if nothing worse was noted.
fn only_warnings(problems: Vec<Problem>) -> Result<Vec<Problem>, ConfigErrors> {
    let (errors, warnings): (Vec<_>, Vec<_>) =
        problems.into_iter().partition(|problem| problem.severity == Severity::Error);
    if errors.is_empty() { Ok(warnings) } else { Err(ConfigErrors { errors, warnings }) }
}
