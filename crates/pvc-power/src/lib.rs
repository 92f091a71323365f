//! Servers are switched off and on through IPMI over LAN, by `ipmitool`.
//!
//! `ipmitool` and not a library: it is what every vendor tests against, and it knows the quirks of
//! twenty years of BMCs. Its password goes through the environment, where other users cannot read
//! it; arguments are for everybody to see.
//!
//! Times, measured with `ipmitool` 1.8.19: an answer takes 0.05 to 2 s. By itself it spends 6 s on
//! finding a cipher suite that both sides know, and 12 s and more on a BMC that is not there; so
//! the suite is given, and every call has a deadline. Which suite a BMC speaks is remembered.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{Bmc, Clock, Command, Exec, Power, PowerError};

/// The longest that one call of `ipmitool` may take.
const CALL: Duration = Duration::from_secs(8);

/// Time that a BMC may take until its power is as it was told.
const SWITCHING: Duration = Duration::from_secs(10);

/// Time between two questions meanwhile.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// HMAC-SHA256 with AES-128, what current BMCs speak; and HMAC-SHA1 with AES-128, which every IPMI
/// 2.0 BMC must. Source: IPMI 2.0 revision 1.1, table 22-20.
const CIPHER_SUITES: [&str; 2] = ["17", "3"];

/// BMCs that speak IPMI.
pub struct Ipmitool {
    exec: Arc<dyn Exec>,
    clock: Arc<dyn Clock>,
    /// The cipher suite that each BMC was last spoken to with.
    suites: Mutex<BTreeMap<String, &'static str>>,
}

impl Ipmitool {
    pub fn new(exec: Arc<dyn Exec>, clock: Arc<dyn Clock>) -> Self {
        Ipmitool { exec, clock, suites: Mutex::default() }
    }

    /// Runs `chassis power WORD` and returns what it printed.
    async fn power(&self, bmc: &Bmc, word: &str) -> Result<String, CallError> {
        let known = self.suites().get(&bmc.host).copied();
        let first = known.unwrap_or(CIPHER_SUITES[0]);
        let mut other = CIPHER_SUITES.into_iter().find(|suite| *suite != first);
        let mut suite = first;
        loop {
            match self.call(bmc, suite, word).await {
                Err(CallError::OtherSuite(why)) => {
                    suite = other.take().ok_or(CallError::Refused(why))?
                }
                Ok(said) => {
                    self.suites().insert(bmc.host.clone(), suite);
                    return Ok(said);
                }
                Err(trouble) => return Err(trouble),
            }
        }
    }

    async fn call(&self, bmc: &Bmc, suite: &str, word: &str) -> Result<String, CallError> {
        let args = [
            "-I", "lanplus", "-C", suite, "-N", "1", "-R", "2", "-H", &bmc.host, "-U", &bmc.user,
            "-E",
        ];
        let command = Command {
            program: "ipmitool".to_owned(),
            args: args.into_iter().chain(["chassis", "power", word]).map(str::to_owned).collect(),
            env: vec![("IPMI_PASSWORD".to_owned(), bmc.password.clone())],
            stdin: None,
            deadline: CALL,
        };
        let output =
            self.exec.run(command).await.map_err(|error| CallError::Silent(error.to_string()))?;
        if output.code == Some(0) {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let why = error_line(&said, &bmc.password);
        Err(match () {
            () if said.contains("open session response") => CallError::OtherSuite(why),
            () if said.contains("Unable to establish") => CallError::Silent(why),
            () => CallError::Refused(why),
        })
    }

    fn suites(&self) -> MutexGuard<'_, BTreeMap<String, &'static str>> {
        self.suites.lock().expect("nothing panics while it holds the suites")
    }

    /// Tells the BMC to switch, and asks until it has.
    async fn switch(&self, bmc: &Bmc, on: bool) -> Result<(), PowerError> {
        let result = match self.power(bmc, if on { "on" } else { "off" }).await {
            // Each question would be waited for as long again, and the next attempt is sure to
            // come.
            Err(CallError::Silent(why)) => return Err(unusable(bmc, why)),
            // Some BMCs refuse to switch off what is off: what counts is what they say afterwards.
            result => result,
        };
        let deadline = self.clock.monotonic() + SWITCHING;
        while self.is_on(bmc).await? != on {
            if self.clock.monotonic() >= deadline {
                result.map_err(|error| error.about(bmc))?;
                return Err(PowerError::Ignored { host: bmc.host.clone(), wanted: on });
            }
            self.clock.sleep(ASK_EVERY).await;
        }
        Ok(())
    }
}

/// Reason for which a call of `ipmitool` failed.
enum CallError {
    /// Nobody answered, or not in time; a wrong password looks the same.
    Silent(String),
    /// The BMC does not speak this cipher suite.
    OtherSuite(String),
    Refused(String),
}

impl CallError {
    fn about(self, bmc: &Bmc) -> PowerError {
        let (CallError::Silent(why) | CallError::OtherSuite(why) | CallError::Refused(why)) = self;
        unusable(bmc, why)
    }
}

#[async_trait]
impl Power for Ipmitool {
    async fn is_on(&self, bmc: &Bmc) -> Result<bool, PowerError> {
        let said = self.power(bmc, "status").await.map_err(|trouble| trouble.about(bmc))?;
        match said.to_ascii_lowercase().as_str() {
            "chassis power is on" => Ok(true),
            "chassis power is off" => Ok(false),
            _ => Err(unusable(bmc, format!("it says `{}`", short(&said)))),
        }
    }

    async fn cut(&self, bmc: &Bmc) -> Result<(), PowerError> {
        self.switch(bmc, false).await
    }

    async fn switch_on(&self, bmc: &Bmc) -> Result<(), PowerError> {
        self.switch(bmc, true).await
    }
}

fn unusable(bmc: &Bmc, why: String) -> PowerError {
    PowerError::Unusable { host: bmc.host.clone(), why }
}

/// Returns what `ipmitool` complained about, in one line. It never prints the password; if a
/// version does, nobody sees it here.
fn error_line(text: &str, password: &str) -> String {
    let line =
        text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it does not say why");
    let line = if password.is_empty() { line.to_owned() } else { line.replace(password, "…") };
    short(&line)
}

fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use pvc_ports::{ExecError, Output};
    use pvc_testkit::{ScriptedExec, TokioClock};

    use super::*;

    fn bmc() -> Bmc {
        Bmc {
            host: "10.0.0.1".to_owned(),
            user: "admin".to_owned(),
            password: "a'b \"c\" $d".to_owned(),
        }
    }

    fn refused(text: &str) -> Output {
        Output { code: Some(1), stdout: Vec::new(), stderr: text.as_bytes().to_vec() }
    }

    fn ipmitool(
        script: impl Fn(&[&str]) -> Result<Output, ExecError> + Send + Sync + 'static,
    ) -> (Ipmitool, Arc<ScriptedExec>) {
        let exec = Arc::new(ScriptedExec::new(move |command| {
            script(&command.args.iter().map(String::as_str).collect::<Vec<_>>())
        }));
        (Ipmitool::new(exec.clone(), Arc::new(TokioClock::new())), exec)
    }

    #[tokio::test]
    async fn the_power_is_what_the_bmc_says_and_nothing_else() {
        for (said, is_on) in
            [("Chassis Power is on\n", Some(true)), ("chassis power is off", Some(false))]
        {
            let (ipmitool, _) = ipmitool(|_| Ok(ScriptedExec::success(said)));
            assert_eq!(ipmitool.is_on(&bmc()).await.ok(), is_on);
        }
        for garbage in ["", "off", "Chassis Power is offline", "\u{1b}[2J\0Chassis Power is on"] {
            let (ipmitool, _) = ipmitool(move |_| Ok(ScriptedExec::success(garbage)));
            assert!(ipmitool.is_on(&bmc()).await.is_err(), "{garbage:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn garbage_instead_of_an_answer_is_neither_on_nor_off_and_is_reported_in_one_short_line()
    {
        let garbage =
            format!("\u{1b}[2J\0{}\nChassis Power is off\n", "\u{fffd}\r\n#".repeat(10_000));
        for (code, said) in
            [(0, garbage.clone()), (1, garbage.clone()), (0, "power:off".to_owned())]
        {
            let (ipmitool, exec) = ipmitool(move |_| {
                let bytes = said.clone().into_bytes();
                Ok(Output { code: Some(code), stdout: bytes.clone(), stderr: bytes })
            });
            for error in [
                ipmitool.is_on(&bmc()).await.unwrap_err(),
                ipmitool.cut(&bmc()).await.expect_err("nothing says that it is off"),
            ] {
                let message = error.to_string();
                assert!(matches!(error, PowerError::Unusable { .. }), "{message}");
                assert!(
                    message.chars().count() < 300 && !message.contains(char::is_control),
                    "{message:?}"
                );
            }
            assert!(exec.ran().len() <= 4, "it is not asked again and again");
        }
    }

    #[tokio::test]
    async fn the_password_is_in_the_environment_alone_and_in_no_error() {
        let (ipmitool, exec) = ipmitool(|_| Ok(refused("bad password a'b \"c\" $d\n")));
        let error = ipmitool.is_on(&bmc()).await.unwrap_err();
        for text in [error.to_string(), format!("{error:?}"), format!("{:?}", bmc())] {
            assert!(!text.contains("$d"), "{text}");
        }
        for command in exec.ran() {
            assert!(!command.args.iter().any(|arg| arg.contains("$d")));
            assert_eq!(command.env, [("IPMI_PASSWORD".to_owned(), "a'b \"c\" $d".to_owned())]);
        }
    }

    #[tokio::test]
    async fn an_old_bmc_is_spoken_to_with_the_suite_it_knows_from_the_second_time_on_at_once() {
        let (ipmitool, exec) = ipmitool(|args| match args.contains(&"3") && args[3] == "3" {
            true => Ok(ScriptedExec::success("Chassis Power is on")),
            false => {
                Ok(refused("Error in open session response message : no matching cipher suite"))
            }
        });
        assert!(ipmitool.is_on(&bmc()).await.unwrap());
        assert_eq!(exec.ran().len(), 2);
        assert!(ipmitool.is_on(&bmc()).await.unwrap());
        assert_eq!(exec.ran().len(), 3);
    }

    #[tokio::test]
    async fn a_bmc_that_is_not_there_is_tried_once() {
        let (ipmitool, exec) = ipmitool(|_| {
            Err(ExecError::TimedOut { program: "ipmitool".to_owned(), deadline: CALL })
        });
        let error = ipmitool.cut(&bmc()).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the BMC at `10.0.0.1` cannot be used: `ipmitool` did not end within 8 s"
        );
        assert_eq!(exec.ran().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_bmc_that_ignores_the_command_or_lies_about_it_is_found_out() {
        let (ipmitool, _) = ipmitool(|args| match args.last() {
            Some(&"status") => Ok(ScriptedExec::success("Chassis Power is on")),
            _ => Ok(ScriptedExec::success("Chassis Power Control: Down/Off")),
        });
        let error = ipmitool.cut(&bmc()).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the BMC at `10.0.0.1` was told to switch the power off, but says that it is on"
        );
    }

    #[tokio::test]
    async fn off_is_off_also_if_the_bmc_refuses_to_switch_off_what_is_off() {
        let (ipmitool, _) = ipmitool(|args| match args.last() {
            Some(&"status") => Ok(ScriptedExec::success("Chassis Power is off")),
            _ => Ok(refused(
                "Set Chassis Power Control to Down/Off failed: Command not supported in present \
                 state",
            )),
        });
        ipmitool.cut(&bmc()).await.unwrap();
    }
}
