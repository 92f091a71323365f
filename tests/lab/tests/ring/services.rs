//! The service manager of a real node does what the node daemon takes for granted of one.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use pvc_contracts::services::{ServicesFixture, services_contract};
use pvc_lab_tests::Lab;
use pvc_linux::Systemctl;
use pvc_ports::{Command, Exec, ExecError, Output};

const NODE: &str = "pvchv3";

/// Runs programs on a node of the lab.
struct OnNode(Mutex<Lab>);

#[async_trait]
impl Exec for OnNode {
    async fn run(&self, command: Command) -> Result<Output, ExecError> {
        let words = ["exec", NODE, "--", command.program.as_str()];
        let arguments = command.args.iter().map(String::as_str);
        let words: Vec<&str> = words.into_iter().chain(arguments).collect();
        let ran = self.0.lock().expect("no story panics in here").does(&words);
        Ok(Output { code: Some(ran.code), stdout: ran.stdout.into(), stderr: ran.stderr.into() })
    }
}

const UNITS: &str = "cd /etc/systemd/system
unit() { printf '[Service]\\n%s\\n[Install]\\nWantedBy=multi-user.target\\n' \"$2\" \
>pvc-contract-$1.service; }
unit good $'ExecStart=/bin/sleep infinity'
unit hanging $'Type=notify\\nTimeoutStartSec=infinity\\nExecStart=/bin/sleep infinity'
unit failing $'Type=oneshot\\nExecStart=/bin/false'
systemctl daemon-reload";

const NO_UNITS: &str = "systemctl stop 'pvc-contract-*'
rm -f /etc/systemd/system/pvc-contract-* /etc/systemd/system/*/pvc-contract-*
systemctl daemon-reload
systemctl reset-failed 'pvc-contract-*' || true";

#[test]
fn systemd_keeps_the_contract_of_services() {
    let lab = Lab::whole();
    lab.on(NODE, NO_UNITS).ok();
    lab.on(NODE, UNITS).ok();
    let node = Arc::new(OnNode(Mutex::new(lab)));
    let unit = |name: &str| format!("pvc-contract-{name}.service");
    let fixture =
        ServicesFixture { good: unit("good"), hanging: unit("hanging"), failing: unit("failing") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let contract = services_contract(Arc::new(Systemctl::new(node.clone())), fixture);
    runtime.expect("a runtime can be built").block_on(contract);
    node.0.lock().expect("the contract was kept").on(NODE, NO_UNITS).ok();
}
