use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{Command, Exec, ExecError, Output, Services, ServicesError, UnitState};

/// Exit code of `systemctl` for a unit that is not installed (systemctl(1), EXIT STATUS).
const NO_SUCH_UNIT: i32 = 5;

/// Time that `systemctl` may take. It is never told to wait for a unit.
const DEADLINE: Duration = Duration::from_secs(10);

/// systemd, asked through `systemctl`: it is there wherever systemd is, and says what a person
/// would see.
pub struct Systemctl {
    exec: Arc<dyn Exec>,
    /// Options before the command: `--user`, `--root`.
    options: Vec<String>,
}

impl Systemctl {
    pub fn new(exec: Arc<dyn Exec>) -> Self {
        Systemctl { exec, options: Vec::new() }
    }

    /// Adds options before each command.
    pub fn with_options(mut self, options: &[&str]) -> Self {
        self.options = options.iter().map(|option| (*option).to_owned()).collect();
        self
    }

    async fn run(&self, args: &[&str], unit: &str) -> Result<Output, ServicesError> {
        let mut all = self.options.clone();
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        // A unit whose name begins like an option is still a name.
        all.extend(["--".to_owned(), unit.to_owned()]);
        let command = Command {
            program: "systemctl".to_owned(),
            args: all,
            // What it says is read by this program first.
            env: vec![("LC_ALL".to_owned(), "C".to_owned())],
            stdin: None,
            deadline: DEADLINE,
        };
        self.exec.run(command).await.map_err(|error| match error {
            ExecError::TimedOut { deadline, .. } => ServicesError::TimedOut { deadline },
            error => ServicesError::Unreachable { why: reason(&error) },
        })
    }

    async fn order(
        &self,
        what: &'static str,
        args: &[&str],
        unit: &str,
    ) -> Result<(), ServicesError> {
        let output = self.run(args, unit).await?;
        if output.code == Some(0) {
            return Ok(());
        }
        let why = said(&output);
        // Units that are not installed are named in words, too.
        let is_missing = output.code == Some(NO_SUCH_UNIT)
            || why.contains("not found")
            || why.contains("does not exist");
        Err(match (is_missing, is_absent(&why)) {
            (_, true) => ServicesError::Unreachable { why },
            (true, _) => ServicesError::Missing { unit: unit.to_owned() },
            _ => ServicesError::Refused { what, unit: unit.to_owned(), why },
        })
    }
}

/// The error with its causes.
fn reason(error: &ExecError) -> String {
    match error {
        ExecError::Failed { source, .. } => format!("{error}: {source}"),
        error => error.to_string(),
    }
}

/// Returns what `systemctl` complained of, on one line.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match (lines.is_empty(), output.code) {
        (false, _) => lines.join("; "),
        (true, Some(code)) => format!("`systemctl` ended with status {code}"),
        (true, None) => "`systemctl` was killed".to_owned(),
    }
}

/// Whether there is no systemd to talk to.
fn is_absent(why: &str) -> bool {
    why.contains("has not been booted with systemd") || why.contains("Failed to connect to bus")
}

/// Reads the state from what `systemctl show` prints for `LoadState` and `ActiveState`.
fn state(shown: &str) -> Option<UnitState> {
    let value =
        |name: &str| shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let active = value("ActiveState")?;
    Some(match (active, value("LoadState")?) {
        ("active" | "reloading" | "refreshing", _) => UnitState::Active,
        ("activating", _) => UnitState::Starting,
        ("deactivating", _) => UnitState::Stopping,
        ("failed", _) => UnitState::Failed,
        (_, "not-found") => UnitState::Missing,
        _ => UnitState::Inactive,
    })
}

#[async_trait]
impl Services for Systemctl {
    async fn state(&self, unit: &str) -> Result<UnitState, ServicesError> {
        let output = self.run(&["show", "--property=LoadState,ActiveState"], unit).await?;
        let shown = String::from_utf8_lossy(&output.stdout);
        match state(&shown) {
            Some(state) if output.code == Some(0) => Ok(state),
            _ => Err(ServicesError::Unreachable { why: said(&output) }),
        }
    }

    async fn start(&self, unit: &str) -> Result<(), ServicesError> {
        self.order("start", &["start", "--no-block"], unit).await
    }

    async fn stop(&self, unit: &str) -> Result<(), ServicesError> {
        self.order("stop", &["stop", "--no-block"], unit).await
    }

    async fn restart(&self, unit: &str) -> Result<(), ServicesError> {
        self.order("restart", &["restart", "--no-block"], unit).await
    }

    async fn set_enabled(&self, unit: &str, enabled: bool) -> Result<(), ServicesError> {
        match enabled {
            true => self.order("enable", &["enable", "--quiet"], unit).await,
            false => self.order("disable", &["disable", "--quiet"], unit).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use pvc_testkit::ScriptedExec;

    use super::*;

    fn says(code: i32, stdout: &str, stderr: &str) -> (Arc<ScriptedExec>, Systemctl) {
        let output = Output { code: Some(code), stdout: stdout.into(), stderr: stderr.into() };
        let exec = Arc::new(ScriptedExec::new(move |command| {
            assert_eq!(command.program, "systemctl");
            Ok(output.clone())
        }));
        (exec.clone(), Systemctl::new(exec))
    }

    #[tokio::test]
    async fn a_unit_is_in_the_state_that_systemd_shows() {
        let cases = [
            ("loaded", "active", UnitState::Active),
            ("loaded", "reloading", UnitState::Active),
            ("loaded", "activating", UnitState::Starting),
            ("loaded", "deactivating", UnitState::Stopping),
            ("loaded", "inactive", UnitState::Inactive),
            ("masked", "inactive", UnitState::Inactive),
            ("loaded", "failed", UnitState::Failed),
            ("not-found", "inactive", UnitState::Missing),
            ("not-found", "active", UnitState::Active),
        ];
        for (load, active, wanted) in cases {
            let (_, systemctl) = says(0, &format!("LoadState={load}\nActiveState={active}\n"), "");
            assert_eq!(systemctl.state("frr.service").await.unwrap(), wanted, "{load} {active}");
        }
    }

    #[tokio::test]
    async fn starting_does_not_wait_for_the_unit_and_odd_names_stay_names() {
        let (exec, systemctl) = says(0, "", "");
        systemctl.start("-odd.service").await.unwrap();
        assert_eq!(exec.ran()[0].args, ["start", "--no-block", "--", "-odd.service"]);
    }

    #[tokio::test]
    async fn what_systemd_complains_of_is_distinguished() {
        let (_, systemctl) = says(5, "", "Failed to start x.service: Unit x.service not found.\n");
        let error = systemctl.start("x.service").await.unwrap_err();
        assert!(matches!(error, ServicesError::Missing { .. }), "{error}");
        let (_, systemctl) = says(1, "", "Failed to enable unit, unit x.service does not exist.\n");
        let error = systemctl.set_enabled("x.service", true).await.unwrap_err();
        assert!(matches!(error, ServicesError::Missing { .. }), "{error}");
        let (_, systemctl) = says(1, "", "Failed to start x.service: Unit x.service is masked.\n");
        let error = systemctl.start("x.service").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the service manager did not start `x.service`: Failed to start x.service: Unit \
             x.service is masked."
        );
        let (_, systemctl) = says(
            1,
            "",
            "System has not been booted with systemd as init system (PID 1). Can't operate.\n",
        );
        let error = systemctl.state("x.service").await.unwrap_err();
        assert!(matches!(error, ServicesError::Unreachable { .. }), "{error}");
    }
}
