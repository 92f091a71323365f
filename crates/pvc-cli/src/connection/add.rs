use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;

use super::store::{Entry, LOCAL, Store};
use crate::context::Pvc;
use crate::outcome::{Failure, Outcome, plain_io};

/// Store a connection to a cluster
///
/// Nothing is connected to. Another connection of the same name is only replaced with
/// `--force`. `local` is always there and cannot be stored. The address is normally the
/// cluster's upstream floating address, so that it always reaches the primary node.
///
/// A key on the command line can be read by other users of this machine while the
/// command runs: prefer `--api-key-file`, or `-k -` to read it from standard input.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc connection add office --address 10.0.0.250 --api-key-file key.txt
  pvc connection add office -a pvc.example.org --ssl -k - < key.txt")]
pub struct Add {
    /// The name to store it under
    #[arg(value_parser = name)]
    name: String,

    /// Description for people
    #[arg(short, long, value_name = "TEXT", default_value = "N/A", value_parser = description)]
    description: String,

    /// Host name or address of the API
    #[arg(short, long, value_name = "HOST", value_parser = address)]
    address: String,

    /// Port of the API
    #[arg(short, long, default_value_t = 7370, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,

    /// The key; `-` reads it from standard input
    #[arg(short = 'k', long, value_name = "KEY", conflicts_with = "api_key_file")]
    api_key: Option<String>,

    /// A file that holds the key
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Connect by HTTPS
    #[arg(short, long, overrides_with = "no_ssl")]
    ssl: bool,

    /// Connect by HTTP, which is the default
    #[arg(short = 'S', long, overrides_with = "ssl")]
    no_ssl: bool,

    /// Replace the connection that has the name
    #[arg(long)]
    force: bool,
}

/// Letters that a name may hold beside letters and digits. None of them means anything to a shell,
/// a path or a Prometheus label.
const PUNCTUATION: &str = "._-@:+";
const LONGEST_NAME: usize = 64;
/// Number of characters of a host name at most, as the domain name system has it.
const LONGEST_HOST: usize = 253;

fn name(text: &str) -> Result<String, String> {
    if text == LOCAL {
        return Err(format!(
            "`{LOCAL}` is this machine's own daemon, read from its configuration; choose another \
             name"
        ));
    }
    let count = text.chars().count();
    if count > LONGEST_NAME {
        return Err(format!("a name has up to {LONGEST_NAME} letters, and this one has {count}"));
    }
    let allowed = |letter: char| letter.is_alphanumeric() || PUNCTUATION.contains(letter);
    if !text.starts_with(char::is_alphanumeric) || !text.chars().all(allowed) {
        return Err(format!(
            "a name begins with a letter or a digit and consists of letters, digits and \
             `{PUNCTUATION}`"
        ));
    }
    Ok(text.to_owned())
}

fn description(text: &str) -> Result<String, String> {
    if text.contains(char::is_control) {
        return Err("a description is one line of text without control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// A host name, or an address of either version; brackets around the newer one are taken off.
fn address(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<IpAddr>().is_ok() {
        return Ok(bare.to_owned());
    }
    if text.contains("://") {
        return Err("only the host is needed: `--ssl` says https, `--port` the port".to_owned());
    }
    if text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        return Err("only the host is needed: `--port` says the port".to_owned());
    }
    let in_hosts = |letter: char| letter.is_alphanumeric() || "._-".contains(letter);
    if !text.starts_with(char::is_alphanumeric)
        || !text.chars().all(in_hosts)
        || text.len() > LONGEST_HOST
    {
        return Err("it is neither a host name nor an address".to_owned());
    }
    Ok(text.to_owned())
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let api_key = self.key()?;
        let scheme = if self.ssl { "https" } else { "http" };
        let entry =
            Entry::remote(&self.description, &self.address, self.port, scheme, api_key.as_deref());
        let mut store = Store::open();
        if store.entries.get(&self.name).is_some_and(|stored| *stored != entry) && !self.force {
            return Err(Failure::failed(format!("there is a connection `{}` already", self.name))
                .hint(
                    "`pvc connection list` shows it; another name keeps it, `--force` replaces it",
                ));
        }
        store.entries.insert(self.name.clone(), entry);
        store.save()?;
        let added = store.entry(&self.name)?.resolve(&self.name)?;
        pvc.out.line(format!(
            "Added connection \"{}\" ({scheme}://{}) to client database",
            self.name,
            added.authority()
        ));
        Ok(())
    }

    fn key(&self) -> Result<Option<String>, Failure> {
        let key = match (self.api_key.as_deref(), &self.api_key_file) {
            (Some("-"), _) => Some(read_key(Path::new("/dev/stdin"))?),
            (None, Some(file)) => Some(read_key(file)?),
            (key, _) => key.map(str::to_owned),
        };
        if key.as_ref().is_some_and(|key| !key.chars().all(|letter| letter.is_ascii_graphic())) {
            return Err(Failure::usage(
                "the key holds what no key does: a space, a line break or the like",
            ));
        }
        Ok(key)
    }
}

fn read_key(file: &Path) -> Result<String, Failure> {
    let mut key = String::new();
    std::fs::File::open(file).and_then(|mut file| file.read_to_string(&mut key)).map_err(
        |error| {
            Failure::usage(format!(
                "cannot read the key from `{}`: {}",
                file.display(),
                plain_io(&error)
            ))
        },
    )?;
    let key = key.trim();
    if key.is_empty() {
        return Err(Failure::failed(format!("`{}` holds no key", file.display())));
    }
    Ok(key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_short_word_and_not_the_one_that_is_taken() {
        for fine in ["office", "prod-2.example", "Zürich", "1"] {
            assert_eq!(name(fine), Ok(fine.to_owned()));
        }
        let long = "x".repeat(65);
        for odd in ["", "local", "a b/..", "..", "-x", "a\nb", "a\x1b[31m", &long] {
            assert!(name(odd).is_err(), "{odd:?}");
        }
        assert!(name("local").unwrap_err().contains("choose another name"));
    }

    #[test]
    fn an_address_is_a_host_and_nothing_more() {
        for (text, host) in [
            ("10.0.0.1", "10.0.0.1"),
            ("pvc.example.org", "pvc.example.org"),
            ("[fd00::1]", "fd00::1"),
        ] {
            assert_eq!(address(text), Ok(host.to_owned()));
        }
        for odd in ["", "a b", "host/path", "http://x", "x:7370", "[::1]:80", "a\0b", "-h"] {
            assert!(address(odd).is_err(), "{odd:?}");
        }
        assert!(address("https://x").unwrap_err().contains("--ssl"));
        assert!(address("x:7370").unwrap_err().contains("--port"));
    }

    #[test]
    fn a_description_is_one_line() {
        assert!(description("Büro, 2nd floor").is_ok() && description("").is_ok());
        assert!(description("a\tb").is_err());
    }
}
