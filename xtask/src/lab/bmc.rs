//! The BMCs: one `ipmi_sim` per node in the switch room, and the program it asks for the power.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::layout::{Lab, NodeName};
use super::process::{Process, wait_until};
use super::{node, switch};

/// Password of a new BMC.
const FACTORY_PASSWORD: &str = "factory";

pub const USER: &str = "admin";

/// Every kind of character that a shell or a splitter of words trips over. `ipmi_sim` takes 16 at
/// most. Its configuration cannot hold this: each new simulator is told over the network, as an
/// operator would.
pub const PASSWORD: &str = r#"o'Neil "$1" \o/"#;

const SLOWNESS: Duration = Duration::from_secs(30);

/// Fault of a BMC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    None,
    /// The BMC does not answer at all.
    Dead,
    /// The BMC answers about the power after [`SLOWNESS`].
    Slow,
    /// The BMC says that the power is off while it is on.
    Lies,
    /// The BMC does not do what it is told, nor say how the power is.
    Refuses,
    /// The BMC switches off, but not on again.
    RefusesOn,
}

const FAULTS: [(&str, Fault); 6] = [
    ("ok", Fault::None),
    ("dead", Fault::Dead),
    ("slow", Fault::Slow),
    ("lies", Fault::Lies),
    ("refuses", Fault::Refuses),
    ("refuses-on", Fault::RefusesOn),
];

impl Fault {
    /// # Errors
    /// If there is no fault of that name.
    pub fn named(name: &str) -> Result<Self> {
        match FAULTS.iter().find(|(known, _)| *known == name) {
            Some((_, fault)) => Ok(*fault),
            None => bail!(
                "a BMC can be one of: {}; not `{name}`",
                FAULTS.map(|(known, _)| known).join(", ")
            ),
        }
    }

    pub fn name(self) -> &'static str {
        FAULTS.iter().find(|(_, fault)| *fault == self).map_or("ok", |(name, _)| name)
    }
}

/// Starts `node`'s BMC if it does not run.
pub fn start(lab: &Lab, node: &NodeName) -> Result<()> {
    let home = home(lab, node);
    let set_up = home.join("told");
    if let Some(process) = Process::read(&home.join("pid")) {
        if set_up.exists() {
            return Ok(());
        }
        process.kill()?; // An earlier start was interrupted.
    }
    let _ = fs::remove_file(&set_up);
    // It remembers its password, and would not be told anew.
    let _ = fs::remove_dir_all(home.join("state"));
    fs::create_dir_all(home.join("state"))?;
    let mut control = fs::File::create(home.join("control"))?;
    std::io::Write::write_all(&mut control, control_script(lab, node).as_bytes())?;
    control.set_permissions(fs::Permissions::from_mode(0o755))?;
    drop(control);
    fs::write(home.join("lan.conf"), configuration(lab, node))?;
    fs::write(home.join("commands"), COMMANDS)?;
    let mut simulator = switch::inside(lab, "ipmi_sim");
    simulator.arg("-n").arg("-c").arg(home.join("lan.conf"));
    simulator.arg("-f").arg(home.join("commands")).arg("-s").arg(home.join("state"));
    let process = Process::spawn(
        &simulator,
        &lab.logs("switch").join(format!("bmc-{node}.log")),
        &home.join("pid"),
    )?;
    wait_until(&format!("the BMC of `{node}` answers"), Duration::from_secs(30), || {
        ensure!(
            process.is_alive(),
            "the BMC of `{node}` ended at once; see {}",
            lab.logs("switch").display()
        );
        let mut change = ipmitool(lab, node, FACTORY_PASSWORD);
        Ok(change.args(["user", "set", "password", "2", PASSWORD, "16"]).output()?.status.success())
    })?;
    fs::write(set_up, "")?;
    set_fault(lab, node, fault(lab, node))
}

pub fn stop(lab: &Lab, node: &NodeName) -> Result<()> {
    let file = home(lab, node).join("pid");
    if let Some(process) = Process::read(&file) {
        process.kill()?;
    }
    let _ = fs::remove_file(file);
    Ok(())
}

/// Asks `ipmitool` in the switch room about the power.
pub fn power_status(lab: &Lab, node: &NodeName) -> Result<String> {
    let output = ipmitool(lab, node, PASSWORD).args(["chassis", "power", "status"]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
}

fn ipmitool(lab: &Lab, node: &NodeName, password: &str) -> Command {
    let mut ipmitool = switch::inside(lab, "ipmitool");
    // Without a cipher suite named it looks for one, for ten seconds.
    ipmitool.args(["-I", "lanplus", "-C", "3", "-N", "1", "-R", "2", "-U", USER, "-E"]);
    ipmitool.args(["-H", &node.bmc_address().to_string()]).env("IPMITOOL_PASSWORD", password);
    ipmitool
}

pub fn fault(lab: &Lab, node: &NodeName) -> Fault {
    let name = fs::read_to_string(home(lab, node).join("fault")).unwrap_or_default();
    Fault::named(name.trim()).unwrap_or(Fault::None)
}

/// Breaks or mends `node`'s BMC.
pub fn set_fault(lab: &Lab, node: &NodeName, fault: Fault) -> Result<()> {
    let home = home(lab, node);
    fs::create_dir_all(&home)?;
    fs::write(home.join("fault"), fault.name())?;
    let signal = if fault == Fault::Dead { "STOP" } else { "CONT" };
    Process::read(&home.join("pid")).map_or(Ok(()), |process| process.signal(signal))
}

fn home(lab: &Lab, node: &NodeName) -> PathBuf {
    lab.part("switch").join(format!("bmc-{node}"))
}

/// The program that `ipmi_sim` calls as `PROGRAM ADDRESS get|set WHAT [VALUE] …`.
fn control_script(lab: &Lab, node: &NodeName) -> String {
    format!(
        "#!/bin/sh\nshift\nPVC_LAB_DIR='{}' PVC_LAB='{}' exec '{}' lab chassis {node} \"$@\"\n",
        lab.home.display(),
        lab.name,
        lab.directory.join("xtask").display(),
    )
}

fn configuration(lab: &Lab, node: &NodeName) -> String {
    let methods = "none md2 md5 straight";
    format!(
        "name \"{node}\"\n\
         set_working_mc 0x20\n\
         startlan 1\n\
         addr {address} 623\n\
         priv_limit admin\n\
         allowed_auths_callback {methods}\n\
         allowed_auths_user {methods}\n\
         allowed_auths_operator {methods}\n\
         allowed_auths_admin {methods}\n\
         guid a123456789abcdefa12345678900000{number}\n\
         endlan\n\
         chassis_control \"{control} 0x20\"\n\
         user 2 true \"{USER}\" \"{FACTORY_PASSWORD}\" admin 10 {methods}\n",
        address = node.bmc_address(),
        number = node.number,
        control = home(lab, node).join("control").display(),
    )
}

const COMMANDS: &str = "\
mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable 0x20 1000 0x0a
mc_enable 0x20
";

/// Answers `ipmi_sim` for `node`'s chassis. It waits for us and hears nobody else meanwhile, so
/// what takes time is begun and left alone.
pub fn chassis(lab: &Lab, node: &NodeName, arguments: &[String]) -> Result<()> {
    let deadline = Instant::now() + SLOWNESS;
    while fault(lab, node) == Fault::Slow && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    let fault = fault(lab, node);
    ensure!(fault != Fault::Refuses, "this BMC refuses everything");
    match arguments.split_first() {
        Some((verb, what)) if verb == "get" => {
            what.iter().for_each(|what| println!("{what}:{}", get(lab, node, fault, what)));
            Ok(())
        }
        Some((verb, settings)) if verb == "set" => {
            settings.chunks(2).try_for_each(|setting| match setting {
                [what, value] => set(lab, node, fault, what, value),
                _ => bail!("`{}` without a value", setting.join(" ")),
            })
        }
        // `check` asks whether something can be set at all.
        _ => Ok(()),
    }
}

fn get(lab: &Lab, node: &NodeName, fault: Fault, what: &str) -> &'static str {
    match what {
        "power" if fault != Fault::Lies && node::is_on(lab, node) => "1",
        "power" => "0",
        _ => "default",
    }
}

fn set(lab: &Lab, node: &NodeName, fault: Fault, what: &str, value: &str) -> Result<()> {
    let order = match (what, value) {
        ("power", "0") => "off",
        ("power", _) => {
            ensure!(fault != Fault::RefusesOn, "this BMC does not switch on");
            "on"
        }
        ("reset", _) => "reset",
        _ => return Ok(()),
    };
    let mut later = Command::new("setsid");
    later.arg(std::env::current_exe()?).args(["lab", "power", &node.text, order]);
    let log = lab.logs("switch").join(format!("bmc-{node}.log"));
    let log = fs::File::options().create(true).append(true).open(log)?;
    later.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    later.spawn().context("the order cannot be carried out")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_as_odd_as_can_be_within_what_ipmi_sim_takes() {
        assert!(PASSWORD.len() <= 16);
        assert!(["'", "\"", " ", "$", "\\"].iter().all(|odd| PASSWORD.contains(odd)));
    }

    #[test]
    fn faults_are_called_by_their_names() {
        for (name, fault) in FAULTS {
            assert_eq!(Fault::named(name).unwrap(), fault);
            assert_eq!(fault.name(), name);
        }
        assert!(Fault::named("tired").is_err());
    }
}
