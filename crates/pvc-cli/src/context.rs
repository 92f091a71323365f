//! Context of every command: the global options, the connection, the place to print.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use pvc_client::{Client, Exchange, Options};

use crate::connection::store::{self, Connection};
use crate::outcome::Failure;
use crate::output::{self, Output};

/// Options that stand before the first group. Each can also be set by the named variable.
#[derive(Debug, Clone, Default, Args)]
pub struct Global {
    /// The stored connection to use [env: PVC_CONNECTION; default: local]
    #[arg(short, long, value_name = "NAME", add = crate::completion::connections())]
    pub connection: Option<String>,

    /// Print endpoint, status and headers of each API call to standard error [env: PVC_DEBUG]
    #[arg(short = 'v', long)]
    pub debug: bool,

    /// Print no banner and no progress [env: PVC_QUIET]
    #[arg(short, long)]
    pub quiet: bool,

    /// Print nothing at all; the exit code tells [env: PVC_SILENT]
    #[arg(short, long)]
    pub silent: bool,

    /// Ask no questions [env: PVC_UNSAFE]
    #[arg(short = 'u', long = "unsafe")]
    pub unsafe_: bool,

    /// Use colours even if the output is no terminal [env: PVC_COLOUR]
    #[arg(long = "colour", visible_alias = "color")]
    pub colour: bool,

    /// Time that the API may take to begin its answer, such as 30s or 5m: without it 10s to read,
    /// and no limit to change something [env: PVC_TIMEOUT]
    #[arg(long, value_name = "TIME", value_parser = crate::time::parse_limit)]
    pub timeout: Option<Duration>,
}

impl Global {
    /// Adds what the environment says where the command line says nothing.
    pub fn with_environment(self) -> Result<Self, Failure> {
        let named = ["PVC_CONNECTION", "PVC_CLUSTER"].into_iter().find_map(text);
        Ok(Self {
            connection: self.connection.or(named),
            debug: self.debug || switch("PVC_DEBUG")?,
            quiet: self.quiet || switch("PVC_QUIET")?,
            silent: self.silent || switch("PVC_SILENT")?,
            unsafe_: self.unsafe_ || switch("PVC_UNSAFE")?,
            colour: self.colour || switch("PVC_COLOUR")?,
            timeout: match self.timeout {
                Some(timeout) => Some(timeout),
                None => timeout()?,
            },
        })
    }
}

/// A variable that is set to something.
fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A variable that is on or off; unset and empty are off.
fn switch(name: &str) -> Result<bool, Failure> {
    let Some(word) = text(name) else { return Ok(false) };
    match word.trim().to_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Ok(true),
        "0" | "false" | "f" | "no" | "n" | "off" => Ok(false),
        _ => Err(Failure::usage(format!(
            "the variable `{name}` is `{word}`, which is neither on nor off"
        ))
        .hint("allowed are 1, true, yes, on and 0, false, no, off")),
    }
}

/// The limit that the environment sets.
fn timeout() -> Result<Option<Duration>, Failure> {
    let parsed = text("PVC_TIMEOUT").map(|word| crate::time::parse_limit(&word)).transpose();
    parsed.map_err(|why| Failure::usage(format!("the variable `PVC_TIMEOUT` is no limit: {why}")))
}

/// Whether exit codes shall be those of PVC 1.0.3's client.
pub fn compatible_exit() -> bool {
    switch("PVC_COMPAT_EXIT").unwrap_or(false)
}

/// Whether help may be coloured, before any option has been read.
pub fn colour_wanted() -> bool {
    use std::io::IsTerminal;
    let force = switch("PVC_COLOUR").unwrap_or(false);
    crate::output::Paint::choose(force, std::io::stdout().is_terminal()).is_on()
}

/// The surroundings of a running command.
pub struct Pvc {
    pub global: Global,
    pub out: Output,
    /// Format in which the answer to a change is printed.
    pub answers: crate::answer::Format,
    /// Whether changes are only tried.
    pub dry_run: bool,
    client: Option<Client>,
}

impl Pvc {
    pub fn new(global: Global) -> Self {
        let out = Output::stdout(global.silent, global.colour);
        Self {
            global,
            out,
            answers: crate::answer::Format::default(),
            dry_run: false,
            client: None,
        }
    }

    /// The server to talk to. The first call chooses it and says so on standard error.
    pub fn client(&mut self) -> Result<&Client, Failure> {
        if self.client.is_none() {
            let connection = self.connection()?;
            self.note(&format!("{}\n", banner(&connection)));
            let observer = if self.global.debug && !self.global.silent {
                Some(report as fn(&Exchange<'_>))
            } else {
                None
            };
            self.client = Some(Client::new(Options {
                observer,
                stale: (!self.global.silent).then_some(warn_of_stale as fn(Option<Duration>)),
                timeout: self.global.timeout,
                dry_run: self.dry_run,
                ..options(&connection)
            }));
        }
        Ok(self.client.as_ref().expect("set just above"))
    }

    /// The server to talk to, for a command that prints while it asks.
    pub fn take_client(&mut self) -> Result<Client, Failure> {
        self.client()?;
        Ok(self.client.take().expect("made just above"))
    }

    /// The connection that options and environment select.
    pub fn connection(&self) -> Result<Connection, Failure> {
        store::select(self.global.connection.as_deref())
    }

    /// Whether questions are skipped; `yes` is the command's own `-y`.
    pub fn unasked(&self, yes: bool) -> bool {
        yes || self.global.unsafe_ || self.dry_run
    }

    /// Whether chatter on standard error is welcome.
    pub fn chatty(&self) -> bool {
        !self.global.quiet && !self.global.silent
    }

    /// Says something on standard error that is neither data nor a mistake.
    pub fn note(&self, text: &str) {
        if self.chatty() {
            output::aside(text);
        }
    }

    /// The same without a newline, for progress.
    pub fn progress(&self, text: &str) {
        if self.chatty() {
            let mut stderr = std::io::stderr();
            let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
        }
    }

    /// Says something on standard error that must not be missed; only `--silent` hides it.
    pub fn warn(&self, text: &str) {
        if !self.global.silent {
            output::aside(format!("warning: {text}"));
        }
    }

    /// Says what to do about a warning.
    pub fn hint(&self, text: &str) {
        if !self.global.silent {
            output::aside(format!("hint: {text}"));
        }
    }
}

/// Returns what the client needs to reach a connection's server.
pub fn options(connection: &Connection) -> Options {
    let (connection, given) = (connection.clone().nearest(), text("PVC_API_KEY"));
    Options {
        base: connection.base(),
        gate: connection.gate().filter(|_| given.is_none()),
        api_key: given.or(connection.api_key),
        user_agent: concat!("pvc-client-cli/", env!("CARGO_PKG_VERSION")).to_owned(),
        verify: connection.verify,
        advice: connection.advice.map(str::to_owned),
        timeout: None,
        dry_run: false,
        observer: None,
        stale: None,
    }
}

/// A client for those who would rather know nothing than wait: completions and overviews.
pub fn hurried(connection: &Connection, within: Duration) -> Client {
    Client::hurried(options(connection), within)
}

fn banner(connection: &Connection) -> String {
    let unverified =
        if connection.scheme == "https" && !connection.verify { " (unverified)" } else { "" };
    format!(
        "Using connection \"{}\" - Host: \"{}\"  Scheme: \"{}{unverified}\"  Prefix: \"/api/v1\"",
        connection.name,
        connection.authority(),
        connection.scheme,
    )
}

/// Says that answers are as the API last saw the cluster: without its store it cannot know more.
fn warn_of_stale(age: Option<Duration>) {
    let age = age.map(|age| i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
    let since = match age {
        Some(seconds) => format!("as of {} ago", output::units::age(seconds)),
        None => "as the API last saw it".to_owned(),
    };
    output::aside(format!(
        "warning: the API cannot reach the cluster's store: what follows is {since}"
    ));
    output::aside("hint: is a majority of the coordinators' ZooKeeper servers running?");
}

/// Tells of one exchange on standard error, without keys: headers are those of the answer.
fn report(exchange: &Exchange<'_>) {
    let status = exchange.status.map_or_else(|| "none".to_owned(), |status| status.to_string());
    output::aside(format!("API endpoint: {} {}", exchange.method, exchange.uri));
    output::aside(format!("Response code: {status}"));
    output::aside("Response headers:");
    for (name, value) in &exchange.headers {
        output::aside(format!("  {name}: {value}"));
    }
    output::aside("");
}
