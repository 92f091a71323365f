//! Starting the command line, against starting a program that does nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};

use crate::http::{ApiServer, Client, KEY};
use crate::measure::{Scale, timed};
use crate::place::Place;
use crate::report::{Budget, Figure, Quantity, Spread, grouped};

const NOTHING: &str = "/bin/true";
const TIME: Budget = Budget::P50(Duration::from_millis(5));
const MEMORY: Budget = Budget::Bytes(10_000_000);

/// Starts in one go, before the other things that are compared have their turn.
const TURN: usize = 10;

/// The figures of `pvc`, which speaks to the API of `place`.
pub fn figures(place: &Place, pvc: &Path, scale: &Scale) -> Result<Vec<Figure>> {
    ensure!(
        pvc.exists(),
        "`{}` is not built; `cargo build --release -p pvc` makes it",
        pvc.display()
    );
    let pvc = pvc.to_str().context("the path of `pvc` is not UTF-8 text")?;
    let server = ApiServer::start(&place.source)?;
    let home = tempfile::Builder::new().prefix("pvc-bench-").tempdir()?;
    write_connection(home.path(), server.api_port)?;
    let programs = Programs { home: home.path().to_owned() };
    let [nothing, help, list] =
        [vec![NOTHING], vec![pvc, "--help"], vec![pvc, "-q", "-c", "bench", "vm", "list"]];

    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let mut requests = Vec::new();
    for _ in 0..scale.starts.div_ceil(TURN) {
        let rounds = scale.starts.min(TURN);
        let (turn, _) = programs.start(rounds, &[&nothing, &help, &list])?;
        for (all, turn) in times.iter_mut().zip(turn) {
            all.extend(turn);
        }
        for _ in 0..rounds {
            let (time, done) =
                timed(|| Client::connect(server.api_port)?.get("/api/v1/vm").map(<[u8]>::len));
            done?;
            requests.push(time);
        }
    }
    let memory = |program: &[&str]| {
        Ok::<_, anyhow::Error>(Quantity::Bytes(programs.start(3, &[program])?.1))
    };
    let [of_nothing, of_help, of_list] = [memory(&nothing)?, memory(&help)?, memory(&list)?];

    let [nothing, help, list] = times.map(Spread::of);
    let request = Spread::of(requests);
    let vms = grouped(place.shape.vms);
    let to_nothing = |figure: Figure| figure.against(NOTHING, Quantity::Time(nothing));
    let to_its_memory = |figure: Figure| figure.against(NOTHING, of_nothing.clone()).budget(MEMORY);
    Ok(vec![
        to_nothing(Figure::time("`pvc --help`", help)).budget(TIME),
        to_nothing(Figure::time(format!("`pvc vm list`, {vms} VMs, with the request"), list)),
        to_nothing(Figure::time(
            format!("`pvc vm list`, {vms} VMs, without the request"),
            list.without(request),
        ))
        .budget(TIME),
        Figure::time("the request alone, on a new connection", request),
        to_its_memory(Figure::new("memory of `pvc --help`", of_help)),
        to_its_memory(Figure::new(format!("memory of `pvc vm list`, {vms} VMs"), of_list)),
    ])
}

/// A stored connection to the measured API, called `bench`.
fn write_connection(home: &Path, port: u16) -> Result<()> {
    let store = json!({
        "bench": {
            "api_key": KEY,
            "description": "benchmark",
            "host": "127.0.0.1",
            "port": port,
            "scheme": "http",
        }
    });
    Ok(std::fs::write(home.join("pvc.json"), format!("{store:#}\n"))?)
}

/// Starts programs by way of a small process: the kernel counts the memory of the one who starts a
/// program as that program's, until it has begun.
struct Programs {
    home: PathBuf,
}

impl Programs {
    /// Starts each of `programs` `rounds` times, in turn. Their times, and the most memory that any
    /// of them took.
    fn start(&self, rounds: usize, programs: &[&[&str]]) -> Result<(Vec<Vec<Duration>>, u64)> {
        let output = Command::new(std::env::current_exe()?)
            .arg("start")
            .arg(rounds.to_string())
            .arg(json!(programs).to_string())
            .env("PVC_CLIENT_DIR", &self.home)
            .env_remove("PVC_CONNECTION")
            .stderr(Stdio::inherit())
            .output()?;
        ensure!(output.status.success(), "the programs could not be measured");
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let times: Vec<Vec<u64>> = serde_json::from_value(said["nanoseconds"].clone())?;
        let memory = said["memory"].as_u64().context("no memory was measured")?;
        let times =
            times.into_iter().map(|times| times.into_iter().map(Duration::from_nanos).collect());
        Ok((times.collect(), memory))
    }
}

/// The small process's side.
pub fn start(rounds: usize, programs: &str) -> Result<()> {
    let programs: Vec<Vec<String>> = serde_json::from_str(programs)?;
    let mut times: Vec<Vec<u64>> = vec![Vec::new(); programs.len()];
    for _ in 0..rounds {
        for (program, times) in programs.iter().zip(&mut times) {
            let (time, done) = timed(|| run(program));
            done?;
            times.push(u64::try_from(time.as_nanos())?);
        }
    }
    let kib = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss();
    println!("{}", json!({ "nanoseconds": times, "memory": kib * 1024 }));
    Ok(())
}

fn run(program: &[String]) -> Result<()> {
    let (name, arguments) = program.split_first().context("a program has a name")?;
    let mut command = Command::new(name);
    let output = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = output.with_context(|| format!("`{name}` cannot be started"))?;
    if !status.success() {
        bail!("`{}` failed: {status}", program.join(" "));
    }
    Ok(())
}
