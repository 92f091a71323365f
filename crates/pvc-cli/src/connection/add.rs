use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;

use super::store::{Entry, Store};
use crate::context::Pvc;
use crate::outcome::{Failure, Outcome, plain_io};

/// Store a connection to a cluster
///
/// Nothing is connected to; a connection of the same name is replaced. The address is
/// normally the cluster's upstream floating address, so that it always reaches the
/// primary node.
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
    name: String,

    /// What it is, for people
    #[arg(short, long, value_name = "TEXT", default_value = "N/A")]
    description: String,

    /// Host name or address of the API
    #[arg(short, long, value_name = "HOST")]
    address: String,

    /// Port of the API
    #[arg(short, long, default_value_t = 7370)]
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
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let api_key = self.key()?;
        let scheme = if self.ssl { "https" } else { "http" };
        let entry = Entry::remote(&self.description, &self.address, self.port, scheme, api_key.as_deref());
        let mut store = Store::open();
        store.entries.insert(self.name.clone(), entry);
        store.save()?;
        pvc.out.line(format!(
            "Added connection \"{}\" ({scheme}://{}:{}) to client database",
            self.name, self.address, self.port
        ));
        Ok(())
    }

    fn key(&self) -> Result<Option<String>, Failure> {
        match (self.api_key.as_deref(), &self.api_key_file) {
            (Some("-"), _) => read_key(Path::new("/dev/stdin")).map(Some),
            (None, Some(file)) => read_key(file).map(Some),
            (key, _) => Ok(key.map(str::to_owned)),
        }
    }
}

fn read_key(file: &Path) -> Result<String, Failure> {
    let mut key = String::new();
    std::fs::File::open(file).and_then(|mut file| file.read_to_string(&mut key)).map_err(|error| {
        Failure::failed(format!("cannot read the key from `{}`: {}", file.display(), plain_io(&error)))
    })?;
    let key = key.trim();
    if key.is_empty() {
        return Err(Failure::failed(format!("`{}` holds no key", file.display())));
    }
    Ok(key.to_owned())
}
