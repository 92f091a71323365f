//! Tests against what speaks the protocol of a real BMC: `ipmi_sim`, as the lab uses it.

#![allow(clippy::disallowed_methods, reason = "a test waits in real time")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use pvc_contracts::power::{PowerFixture, power_contract};
use pvc_linux::LinuxExec;
use pvc_ports::{Bmc, Power};
use pvc_power::Ipmitool;
use pvc_testkit::TokioClock;

/// A BMC on the loopback whose power is a file.
struct Simulator {
    folder: tempfile::TempDir,
    process: Child,
    /// An address of the loopback net that nobody else has: IPMI has one port.
    address: String,
}

const PASSWORD: &str = "a'b$dx";

impl Simulator {
    /// `program` is what switches: it is called as `PROGRAM get|set power [0|1]` beside the file
    /// `power`.
    fn start(program: &str) -> Simulator {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        static COUNT: AtomicU8 = AtomicU8::new(1);
        let pid = std::process::id();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let address = format!("127.{}.{}.{count}", 100 + pid % 100, pid / 100 % 250);
        let script = folder.path().join("switch");
        write("power", "1\n");
        write("switch", &format!("#!/bin/sh\ncd {}\n{program}\n", folder.path().display()));
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        write(
            "emu",
            "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02\nmc_enable \
             0x20\n",
        );
        let methods = "none md2 md5 straight";
        write(
            "lan",
            &format!(
                "name \"t\"\nset_working_mc 0x20\n startlan 1\n  addr {address} 623\n  priv_limit \
                 admin\n  \
                 allowed_auths_admin {methods}\n  guid a123456789abcdefa123456789abcdef\n endlan\n \
                 chassis_control \"{}\"\n user 2 true \"admin\" \"{PASSWORD}\" admin 10 \
                 {methods}\n",
                script.display()
            ),
        );
        let process = Command::new("ipmi_sim")
            .args(["-n", "-c", "lan", "-f", "emu", "-s", "state"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ipmi_sim is installed by packaging/install/packages.sh test");
        Simulator { folder, process, address }
    }

    fn bmc(&self) -> Bmc {
        Bmc { host: self.address.clone(), user: "admin".to_owned(), password: PASSWORD.to_owned() }
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn ipmitool() -> Ipmitool {
    Ipmitool::new(Arc::new(LinuxExec), Arc::new(TokioClock::new()))
}

/// Script of a BMC that switches as it is told.
const OBEDIENT: &str = r#"case "$1 $2" in
"get power") echo "power:$(cat power)";;
"set power") echo "$3" >power;;
esac"#;

/// Waits until the simulator answers.
async fn started(program: &str) -> Simulator {
    let simulator = Simulator::start(program);
    for _ in 0..50 {
        if ipmitool().is_on(&simulator.bmc()).await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    simulator
}

/// Script of a BMC that says the same whatever it is told.
fn stubborn(on: u8) -> String {
    format!(r#"case "$1" in get) echo power:{on};; esac"#)
}

#[tokio::test]
async fn ipmitool_keeps_the_contract() {
    let [good, ignoring, lying] =
        [started(OBEDIENT).await, started(&stubborn(1)).await, started(&stubborn(0)).await];
    let power = good.folder.path().join("power");
    let fixture = PowerFixture {
        bmc: good.bmc(),
        is_really_on: Box::new(move || std::fs::read_to_string(&power).unwrap().trim() == "1"),
        ignoring: ignoring.bmc(),
        lying: lying.bmc(),
        absent: Bmc { host: "127.99.99.99".to_owned(), ..good.bmc() },
    };
    power_contract(Arc::new(ipmitool()), fixture).await;
}
