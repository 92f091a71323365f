use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::firewall::{TableName, check_rules, commands};
use pvc_model::guest_network::rules::old::OldRules;
use pvc_model::guest_network::rules::table;
use pvc_ports::{Command, Exec, ExecError, Firewall, FirewallError, Output};

/// Time that `nft` may take. It waits for nobody but other changes of the ruleset.
const DEADLINE: Duration = Duration::from_secs(10);

/// The packet filter of the kernel, through `nft`: it speaks the kernel's transactions, and what it
/// prints a person can read.
#[derive(Clone)]
pub struct NftFirewall {
    exec: Arc<dyn Exec>,
}

impl NftFirewall {
    pub fn new(exec: Arc<dyn Exec>) -> Self {
        NftFirewall { exec }
    }

    async fn run(
        &self,
        args: &[&str],
        stdin: Option<String>,
        what: &'static str,
        table: &TableName,
    ) -> Result<Output, FirewallError> {
        let command = Command {
            program: "nft".to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            env: vec![
                // What it says is read by this program.
                ("LC_ALL".to_owned(), "C".to_owned()),
                // Rules name no hosts. What nft takes for one all the same is not waited for long.
                ("RES_OPTIONS".to_owned(), "timeout:1 attempts:1".to_owned()),
                ("LOCALDOMAIN".to_owned(), String::new()),
            ],
            stdin: stdin.map(String::into_bytes),
            deadline: DEADLINE,
        };
        self.exec.run(command).await.map_err(|error| match error {
            ExecError::Missing { program } => {
                FirewallError::NoProgram { program, package: "nftables" }
            }
            ExecError::TimedOut { deadline, .. } => {
                FirewallError::TimedOut { what, table: table.clone(), deadline }
            }
            ExecError::Failed { program, source } => FirewallError::Failed { program, source },
        })
    }

    /// Has `nft` read the commands that make or remove the table.
    async fn load(
        &self,
        args: &[&str],
        what: &'static str,
        table: &TableName,
        rules: Option<&str>,
    ) -> Result<(), FirewallError> {
        if let Some(rules) = rules {
            check_rules(rules)
                .map_err(|source| FirewallError::BadRules { table: table.clone(), source })?;
        }
        let output = self.run(args, Some(commands(table, rules)), what, table).await?;
        match output.code {
            Some(0) => Ok(()),
            _ => Err(refused(what, table, &output)),
        }
    }
}

/// With the first line of what `nft` said: the rest shows the place in the text.
fn refused(what: &'static str, table: &TableName, output: &Output) -> FirewallError {
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().next().unwrap_or("`nft` failed without saying why").trim().to_owned();
    FirewallError::Refused { what, table: table.clone(), why }
}

#[async_trait]
impl Firewall for NftFirewall {
    async fn table(&self, table: &TableName) -> Result<Option<String>, FirewallError> {
        let what = "show";
        let name = table.to_string();
        let mut args = vec!["--stateless", "list", "table"];
        args.extend(name.split(' '));
        let output = match self.run(&args, None, what, table).await {
            // Without it nobody made a table that it would have to be asked about.
            Err(FirewallError::NoProgram { .. }) => return Ok(None),
            other => other?,
        };
        match output.code {
            Some(0) => Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned())),
            _ if String::from_utf8_lossy(&output.stderr).contains("No such file or directory") => {
                Ok(None)
            }
            _ => Err(refused(what, table, &output)),
        }
    }

    async fn check(&self, table: &TableName, rules: &str) -> Result<(), FirewallError> {
        self.load(&["--check", "--file", "-"], "check", table, Some(rules)).await
    }

    async fn apply(&self, table: &TableName, rules: Option<&str>) -> Result<(), FirewallError> {
        let what = if rules.is_some() { "load" } else { "drop" };
        match self.load(&["--file", "-"], what, table, rules).await {
            Err(FirewallError::NoProgram { .. }) if rules.is_none() => Ok(()),
            done => done,
        }
    }

    async fn remove_old_rules(&self) -> Result<bool, FirewallError> {
        let said = |output: &Output| {
            let said = String::from_utf8_lossy(&output.stderr);
            said.lines().next().unwrap_or("`nft` failed without saying why").trim().to_owned()
        };
        let run = async |args: &[&str], stdin: Option<String>| {
            self.run(args, stdin, "change", &table()).await.map_err(|error| match error {
                FirewallError::TimedOut { deadline, .. } => {
                    let why = format!("`nft` did not end within {} s", deadline.as_secs());
                    FirewallError::OldRules { why }
                }
                other => other,
            })
        };
        let list = ["--stateless", "--handle", "list", "table", "inet", "filter"];
        let listed = match run(&list, None).await {
            Err(FirewallError::NoProgram { .. }) => return Ok(false),
            listed => listed?,
        };
        // Without the table there are no rules in it.
        let old = match listed.code {
            Some(0) => OldRules::find(&String::from_utf8_lossy(&listed.stdout)),
            _ if said(&listed).contains("No such file or directory") => return Ok(false),
            _ => return Err(FirewallError::OldRules { why: said(&listed) }),
        };
        if old.is_empty() {
            return Ok(false);
        }
        let done = run(&["--file", "-"], Some(old.commands())).await?;
        if done.code != Some(0) {
            return Err(FirewallError::OldRules { why: said(&done) });
        }
        let done = run(&["--file", "-"], Some(old.chain_commands())).await?;
        if done.code != Some(0) {
            let why = said(&done);
            tracing::warn!("empty chains of PVC 1.0.3 stay in the table `inet filter`: {why}");
        }
        Ok(true)
    }
}
