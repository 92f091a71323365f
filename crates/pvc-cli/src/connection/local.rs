//! The connection to this machine's own daemon, read from the daemon's configuration.
//!
//! Only the section that says where the API listens is read. The rest of the file may be as wrong
//! as it likes: whoever repairs it needs a working client.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use pvc_config::Api;

use super::own::Users;
use super::store::Connection;
use crate::outcome::{Failure, plain_io};

/// The configuration of a daemon is there.
const CONFIGURED: &str = "is the daemon of this machine running? `systemctl status pvcapid` tells, \
                          and \
     `systemctl start pvcapid` starts it; one of a source checkout is started by `./run` there";
/// A standalone daemon without a configuration has been at work here.
const STANDALONE: &str = "the standalone daemon of this machine does not answer: `./run` in the \
                          source checkout starts it";
const NO_DAEMON: &str = "no daemon is configured there: `./run` in the source checkout starts one \
                         on this machine. For a \
     cluster elsewhere `pvc connection add NAME --address HOST` stores a connection, and `pvc -c \
     NAME …` uses it";
const NOT_ALLOWED: &str = "the daemon's configuration holds keys, so it is root's; a connection of \
                           your own is \
     stored by `pvc connection add NAME --address HOST` and used by `pvc -c NAME …`";

const NOT_IN_GROUP: &str = "the token commands this machine, so it is root's, and that of the \
                            group `pvc` if there was \
     one when the daemon made it";

/// The connection to the API that the daemon configured in `file` serves.
pub fn read(name: &str, file: &Path) -> Result<Connection, Failure> {
    std::fs::File::open(file).map_err(|error| {
        Failure::failed(format!(
            "no connection: cannot read `{}`: {}",
            file.display(),
            plain_io(&error)
        ))
        .hint(if error.kind() == ErrorKind::PermissionDenied {
            NOT_ALLOWED
        } else {
            NO_DAEMON
        })
    })?;
    let api = pvc_config::read_api(file).map_err(|mistakes| {
        let first = mistakes.errors.first().map(|problem| problem.message()).unwrap_or_default();
        Failure::failed(format!("no connection: `{}` cannot be used: {first}", file.display()))
            .hint("`pvcnoded --check-config FILE` shows every mistake in it")
    })?;
    serves(name, Some(file), &api, CONFIGURED)
}

/// The connection to a standalone daemon that runs without a configuration.
pub fn standalone(name: &str) -> Result<Connection, Failure> {
    let config = pvc_config::Config::standalone(&standalone_state(), "standalone");
    serves(name, None, &config.api, STANDALONE)
}

/// Directory in which a standalone daemon keeps what it knows.
pub fn standalone_state() -> PathBuf {
    std::env::var_os("PVC_STATE")
        .filter(|path| !path.is_empty())
        .map_or("/var/lib/pvc".into(), PathBuf::from)
}

fn serves(
    name: &str,
    file: Option<&Path>,
    api: &Api,
    advice: &'static str,
) -> Result<Connection, Failure> {
    let address = api.local_address();
    let configured = api.authentication.tokens.first().filter(|_| api.authentication.enabled);
    let api_key = match &api.token_file {
        Some(file) => made(file)?,
        None => configured.map(|token| token.token.reveal().to_owned()),
    };
    Ok(Connection {
        name: name.to_owned(),
        description: file
            .map_or_else(|| "pvc-standalone".to_owned(), |file| file.display().to_string()),
        host: address.ip().to_string(),
        port: address.port(),
        scheme: if api.tls.is_some() { "https" } else { "http" }.to_owned(),
        api_key,
        verify: false,
        advice: Some(advice),
        own: Some(Users::of(api.token_file.as_deref().or(file))),
    })
}

/// The token that the daemon made; `None` if it has not run yet.
fn made(file: &Path) -> Result<Option<String>, Failure> {
    match std::fs::read_to_string(file) {
        Ok(token) => Ok(Some(token.trim().to_owned()).filter(|token| !token.is_empty())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let message =
                format!("no connection: cannot read `{}`: {}", file.display(), plain_io(&error));
            let failure = Failure::failed(message);
            Err(if error.kind() == ErrorKind::PermissionDenied {
                failure.hint(NOT_IN_GROUP)
            } else {
                failure
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standalone_daemon_without_configuration_is_on_loopback_with_the_token_that_it_made() {
        let state = tempfile::tempdir().unwrap();
        let config = pvc_config::Config::standalone(state.path(), "standalone");
        let connection = || serves("local", None, &config.api, STANDALONE).unwrap();
        assert_eq!(connection().base().as_str(), "http://127.0.0.1:7370/api/v1");
        assert_eq!(connection().api_key, None, "it has not run yet");
        std::fs::write(state.path().join("api-token"), "0123456789abcdef\n").unwrap();
        assert_eq!(connection().api_key.as_deref(), Some("0123456789abcdef"));
    }

    #[test]
    fn a_configuration_of_one_machine_without_a_token_leads_to_the_one_that_was_made() {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join("api-token"), "0123456789abcdef").unwrap();
        let connection =
            read(&format!("standalone: {{state_directory: {}}}\n", state.path().display()))
                .unwrap();
        assert_eq!(connection.api_key.as_deref(), Some("0123456789abcdef"));
        std::fs::remove_file(state.path().join("api-token")).unwrap();
        std::fs::create_dir(state.path().join("api-token")).unwrap();
        let failure =
            read(&format!("standalone: {{state_directory: {}}}\n", state.path().display()))
                .unwrap_err();
        assert!(failure.message.starts_with("no connection: cannot read `"), "{}", failure.message);
    }

    fn read(text: &str) -> Result<Connection, Failure> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        super::read("local", file.path())
    }

    #[test]
    fn address_scheme_and_first_token_come_from_the_daemon() {
        let connection = read(
            "api:\n  listen:\n    address: 0.0.0.0\n    port: 7370\n  ssl: {enabled: yes, \
             certificate: /c.pem, private_key: /k.pem}\n  authentication:\n    enabled: \
             yes\n    source: token\n    secret_key: \"0123456789abcdef\"\n  token:\n    - \
             {description: first, token: abcdefghijklmnop}\n    - {description: second, token: \
             qrstuvwxyzabcdef}\n",
        )
        .unwrap();
        assert_eq!(connection.base(), "https://127.0.0.1:7370/api/v1");
        assert_eq!(connection.api_key.as_deref(), Some("abcdefghijklmnop"));
        assert!(!connection.verify);
    }

    #[test]
    fn a_wrong_section_elsewhere_does_not_matter() {
        let api = "api: {listen: {address: 10.1.1.1, port: 7370}, authentication: {enabled: no}, \
                   ssl: {enabled: no}}";
        let connection = read(&format!("{api}\ncluster: 7\nsystem: [1, {{x: }}]\n")).unwrap();
        assert_eq!(connection.base(), "http://10.1.1.1:7370/api/v1");
        assert_eq!(connection.api_key, None);
    }

    #[test]
    fn an_api_on_a_floating_address_is_reached_on_the_loopback_while_it_runs_here() {
        let port = pvc_contracts::tcp_port::free_port();
        let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        let at = |ip: &str| {
            let listen = format!("{{listen: {{address: {ip}, port: {port}}}");
            read(&format!("api: {listen}, authentication: {{enabled: no}}, ssl: {{enabled: no}}}}"))
                .unwrap()
        };
        assert_eq!(
            at("10.1.1.1").base(),
            format!("http://10.1.1.1:{port}/api/v1"),
            "as it is listed"
        );
        assert_eq!(at("10.1.1.1").nearest().base(), format!("http://127.0.0.1:{port}/api/v1"));
        assert_eq!(at("127.0.0.2").nearest().host, "127.0.0.2", "it listens there alone");
        drop(listener);
        assert_eq!(at("10.1.1.1").nearest().host, "10.1.1.1", "a hypervisor has no API of its own");
    }

    #[test]
    fn a_file_without_an_api_section_is_no_connection() {
        let failure = read("node: {}\n").unwrap_err();
        assert!(failure.message.contains("cannot be used"), "{}", failure.message);
    }

    #[test]
    fn what_is_no_yaml_is_no_connection_either() {
        assert!(read("api: [\n").is_err());
    }
}
