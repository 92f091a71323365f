//! The stored connections, and how one of them is chosen.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pvc_client::Gate;
use pvc_config::LocateError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::local;
use super::own::Users;
use super::place::{self, NoPlace};
use crate::outcome::{Failure, plain_io};
use crate::output::json;

/// Path of the daemon's configuration unless something else is said.
pub const DAEMON_CONFIG: &str = "/etc/pvc/pvc.conf";
/// The connection that is used when none is named.
pub const LOCAL: &str = "local";

/// A server and how to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    pub name: String,
    pub description: String,
    pub host: String,
    pub port: u16,
    pub scheme: String,
    pub api_key: Option<String>,
    /// Whether its certificate must be trusted.
    pub verify: bool,
    /// Advice if nobody answers, where more is known than the general.
    pub advice: Option<&'static str>,
    /// Users whose program is taken for its daemon, if it is this machine's own API, which listens
    /// on the loopback as well.
    pub own: Option<Users>,
}

impl Connection {
    /// `host:port`, with an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub fn base(&self) -> String {
        format!("{}://{}/api/v1", self.scheme, self.authority())
    }

    /// Best way to reach it from here: on the loopback if its API runs here, which also works while
    /// a floating address is nowhere; else at its address.
    pub fn nearest(self) -> Connection {
        let is_elsewhere = self.host.parse().is_ok_and(|ip: IpAddr| !ip.is_loopback());
        let listen_here = |users: &Users| users.listen_on_loopback(self.port);
        if is_elsewhere && self.own.as_ref().is_some_and(listen_here) {
            return Connection { host: "127.0.0.1".to_owned(), ..self };
        }
        self
    }

    /// Check before each request that the token of this machine's daemon goes to nobody else.
    pub fn gate(&self) -> Option<Gate> {
        let at: IpAddr = self.host.parse().ok()?;
        let (users, port) = (self.own.clone().filter(|_| self.api_key.is_some())?, self.port);
        Some(Arc::new(move || users.check(at, port)))
    }
}

/// An entry as it is stored. What is not known here is kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cfgfile: Option<String>,
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

impl Entry {
    pub fn remote(
        description: &str,
        host: &str,
        port: u16,
        scheme: &str,
        api_key: Option<&str>,
    ) -> Self {
        let members = [
            ("api_key", api_key.map_or(Value::Null, Value::from)),
            ("description", description.into()),
            ("host", host.into()),
            ("port", port.into()),
            ("scheme", scheme.into()),
        ];
        let rest = members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { cfgfile: None, rest }
    }

    fn local(cfgfile: &str) -> Self {
        Self { cfgfile: Some(cfgfile.to_owned()), rest: BTreeMap::new() }
    }

    /// The connection that the entry describes.
    pub fn resolve(&self, name: &str) -> Result<Connection, Failure> {
        match &self.cfgfile {
            Some(cfgfile) => match config_file(cfgfile) {
                Some(file) => local::read(name, &file),
                None => local::standalone(name),
            },
            None => self.resolve_remote(name),
        }
    }

    fn resolve_remote(&self, name: &str) -> Result<Connection, Failure> {
        let text = |member: &str| self.rest.get(member).and_then(Value::as_str);
        let port = match self.rest.get("port") {
            Some(Value::Number(port)) => port.as_u64().and_then(|port| u16::try_from(port).ok()),
            Some(Value::String(port)) => port.parse().ok(),
            _ => None,
        };
        let port = port.filter(|port| *port > 0);
        let broken = |what: &str| {
            Failure::failed(format!("the stored connection `{name}` has no {what}"))
                .hint(format!("store it again with `pvc connection add {name} --address ADDRESS`"))
        };
        Ok(Connection {
            name: name.to_owned(),
            description: text("description").unwrap_or("N/A").to_owned(),
            host: text("host").ok_or_else(|| broken("host"))?.to_owned(),
            port: port.ok_or_else(|| broken("port"))?,
            scheme: text("scheme").unwrap_or("http").to_owned(),
            api_key: text("api_key").filter(|key| !key.is_empty()).map(str::to_owned),
            verify: verification_wanted(),
            advice: None,
            own: None,
        })
    }
}

/// Only the exact word `True` asks for verification, as it has always been; it is the default.
fn verification_wanted() -> bool {
    std::env::var("PVC_CLIENT_VERIFY_SSL").map_or(true, |word| word == "True")
}

/// The daemon configuration that an entry means: its own, unless that is the default, which is
/// found as daemons started from here find theirs. `None` if there is none at all, but a standalone
/// daemon, which needs none, has been at work here.
fn config_file(stored: &str) -> Option<PathBuf> {
    if stored != DAEMON_CONFIG {
        return Some(stored.into());
    }
    match pvc_config::Config::locate(|name| std::env::var_os(name)) {
        Ok(path) | Err(LocateError::NamedFileMissing { path, .. }) => Some(path),
        Err(_) if local::standalone_state().is_dir() => None,
        Err(_) => Some(stored.into()),
    }
}

/// The store: a file of entries by name.
#[derive(Debug)]
pub struct Store {
    place: Result<PathBuf, NoPlace>,
    pub entries: BTreeMap<String, Entry>,
    /// Set if the file held something that is no store; it is kept aside before the first write.
    unreadable: bool,
}

impl Store {
    /// Opens the store of this user. If there is none yet, or none to be trusted, it holds `local`
    /// alone; nothing is created before the first [`save`](Self::save).
    pub fn open() -> Self {
        Self::open_at(place::of_this_user())
    }

    fn open_at(place: Result<PathBuf, NoPlace>) -> Self {
        let text = place.as_deref().ok().and_then(|path| std::fs::read_to_string(path).ok());
        let (mut entries, unreadable) = match text.as_deref().map(serde_json::from_str) {
            Some(Ok(entries)) => (entries, false),
            Some(Err(_)) => (BTreeMap::new(), true),
            None => (BTreeMap::<String, Entry>::new(), false),
        };
        if Path::new(DAEMON_CONFIG).exists() || !entries.contains_key(LOCAL) {
            entries.insert(LOCAL.to_owned(), Entry::local(DAEMON_CONFIG));
        }
        Self { place, entries, unreadable }
    }

    /// Reason why what is stored is not used, if somebody other than this user may have written it.
    pub fn why_unused(&self) -> Option<&NoPlace> {
        self.place.as_ref().err().filter(|why| **why != NoPlace::Unnamed)
    }

    /// Writes the store, whole or not at all, readable by its owner alone.
    pub fn save(&self) -> Result<(), Failure> {
        let path = match &self.place {
            Ok(path) => path,
            Err(why) => return Err(why.failure()),
        };
        self.write(path).map_err(|error| {
            Failure::failed(format!("cannot write `{}`: {}", path.display(), plain_io(&error)))
                .hint("`PVC_CLIENT_DIR` names another directory for the stored connections")
        })
    }

    fn write(&self, path: &Path) -> std::io::Result<()> {
        let directory = path.parent().unwrap_or(Path::new("."));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        if self.unreadable {
            std::fs::copy(path, path.with_extension("json.unreadable"))?;
        }
        let mut file = tempfile::Builder::new()
            .prefix(".pvc.json.")
            .permissions(Permissions::from_mode(permissions()))
            .tempfile_in(directory)?;
        file.write_all(json::stored(&self.entries).as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map(drop).map_err(|error| error.error)
    }

    /// The entry of that name.
    pub fn entry(&self, name: &str) -> Result<&Entry, Failure> {
        self.entries.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.entries.keys().map(String::as_str).collect();
            let failure = Failure::not_found(format!("no connection `{name}` is stored"));
            match &self.place {
                Err(why) => failure.hint(why.to_string()),
                Ok(_) => failure.hint(format!("stored are: {}", names.join(", "))),
            }
        })
    }
}

/// The connection of that name, or `local`.
pub fn select(name: Option<&str>) -> Result<Connection, Failure> {
    let store = Store::open();
    let name = name.unwrap_or(LOCAL);
    store.entry(name)?.resolve(name)
}

/// The names of all stored connections.
pub fn names() -> Vec<String> {
    Store::open().entries.into_keys().collect()
}

fn permissions() -> u32 {
    let wanted = std::env::var("PVC_CLIENT_DB_PERMS").ok();
    wanted.and_then(|octal| u32::from_str_radix(&octal, 8).ok()).unwrap_or(0o600)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(text: Option<&str>) -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pvc.json");
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let store = Store::open_at(Ok(path));
        (directory, store)
    }

    #[test]
    fn a_missing_store_holds_the_local_connection_and_is_created_by_a_write_alone() {
        let (directory, store) = store(None);
        assert_eq!(store.entries[LOCAL].cfgfile.as_deref(), Some(DAEMON_CONFIG));
        let file = directory.path().join("pvc.json");
        assert!(!file.exists());
        store.save().unwrap();
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            "{\n    \"local\": {\n        \"cfgfile\": \"/etc/pvc/pvc.conf\"\n    }\n}"
        );
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn the_directory_of_a_new_store_is_its_owners_alone() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("a/pvc");
        Store::open_at(Ok(directory.join("pvc.json"))).save().unwrap();
        assert_eq!(std::fs::metadata(directory).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_store_with_others_alone_has_the_local_connection_beside_them() {
        let (_directory, store) = store(Some(r#"{"c": {"host": "h", "port": 80}}"#));
        assert!(store.entries.contains_key("c") && store.entries.contains_key(LOCAL));
    }

    #[test]
    fn without_a_place_nothing_is_read_or_written() {
        let store = Store::open_at(Err(NoPlace::Unnamed));
        assert!(store.entries.contains_key(LOCAL) && store.why_unused().is_none());
        let failure = store.save().unwrap_err();
        assert!(failure.hint.unwrap().contains("PVC_CLIENT_DIR"));
    }

    #[test]
    fn a_place_that_is_not_trusted_is_named_where_a_connection_is_missed() {
        let store = Store::open_at(Err(NoPlace::Foreign { path: "/x".into(), owner: 7 }));
        assert_eq!(store.entries.len(), 1);
        assert!(store.entry("office").unwrap_err().hint.unwrap().contains("`/x`"));
        assert!(store.save().unwrap_err().message.contains("`/x`"));
    }

    #[test]
    fn a_stored_port_that_is_none_is_a_mistake() {
        let (_directory, store) = store(Some(r#"{"c": {"host": "h", "port": 0}}"#));
        assert!(store.entry("c").unwrap().resolve("c").unwrap_err().message.contains("no port"));
    }

    #[test]
    fn a_null_key_is_no_key() {
        let (_directory, store) = store(Some(
            r#"{"c": {"api_key": null, "description": "N/A", "host": "10.0.0.1", "port": 7370, "scheme": "http"}}"#,
        ));
        let connection = store.entry("c").unwrap().resolve("c").unwrap();
        assert_eq!((connection.api_key, connection.port), (None, 7370));
    }

    #[test]
    fn an_unreadable_store_counts_as_empty_but_is_kept_aside_before_it_is_replaced() {
        let (directory, store) = store(Some("not json"));
        assert_eq!(store.entries.len(), 1);
        assert_eq!(std::fs::read_to_string(directory.path().join("pvc.json")).unwrap(), "not json");
        store.save().unwrap();
        assert_eq!(
            std::fs::read_to_string(directory.path().join("pvc.json.unreadable")).unwrap(),
            "not json"
        );
    }

    #[test]
    fn members_that_nobody_here_knows_survive_a_save() {
        let (directory, store) =
            store(Some(r#"{"c": {"host": "h", "port": "80", "colour": "red"}}"#));
        store.save().unwrap();
        let saved = std::fs::read_to_string(directory.path().join("pvc.json")).unwrap();
        assert!(saved.contains(r#""colour": "red""#), "{saved}");
    }

    #[test]
    fn a_stored_connection_without_a_host_says_how_to_mend_it() {
        let (_directory, store) = store(Some(r#"{"c": {"port": 80}}"#));
        let failure = store.entry("c").unwrap().resolve("c").unwrap_err();
        assert!(failure.message.contains("no host") && failure.hint.is_some());
    }

    #[test]
    fn the_daemons_token_goes_to_no_program_of_another_user_and_a_stored_one_where_it_says() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let stored = Entry::remote("N/A", "127.0.0.1", port, "http", Some("secret"));
        let stored = stored.resolve("x").unwrap();
        assert!(stored.gate().is_none());
        let of = |users| Connection { own: Some(users), ..stored.clone() };
        of(Users::of(None)).gate().unwrap()().unwrap();
        let problem = of(Users(Vec::new())).gate().unwrap()().unwrap_err();
        assert!(problem.to_string().ends_with("is not given the token"), "{problem}");
        assert!(Connection { api_key: None, ..of(Users(Vec::new())) }.gate().is_none());
    }

    #[test]
    fn an_address_of_version_six_is_put_into_brackets() {
        let entry = Entry::remote("N/A", "fd00::1", 7370, "https", None);
        assert_eq!(entry.resolve("x").unwrap().base(), "https://[fd00::1]:7370/api/v1");
    }
}
