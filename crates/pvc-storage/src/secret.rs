//! The key with which this node's hypervisor opens volumes, as libvirt keeps it: a secret with the
//! UUID that the disks of VMs name.
//!
//! The key goes from Ceph to libvirt through pipes; it stands in no argument and no log.

use std::time::Duration;

use pvc_model::storage::RbdAccess;
use pvc_ports::{Command, ExecError, StorageCluster};
use pvc_role::Context;
use tokio_util::sync::CancellationToken;

/// Time that libvirt may take for each command.
const DEADLINE: Duration = Duration::from_secs(10);

/// Time for which the start-up waits for the secret: on a cold start Ceph's monitors wait for each
/// other.
const AT_START: Duration = Duration::from_secs(15);

/// Time until the next attempt.
const RETRY: Duration = Duration::from_secs(10);

/// Reason for which libvirt's secret is not as it should be.
#[derive(Debug, thiserror::Error)]
enum SecretError {
    #[error(
        "Ceph has no user `client.{user}`; `ceph auth get-or-create client.{user} mon 'profile \
         rbd' osd 'profile rbd'` makes it"
    )]
    NoUser { user: String },
    #[error(transparent)]
    Storage(#[from] pvc_ports::StorageError),
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error("libvirt refused: {0}")]
    Refused(String),
}

/// Makes sure, at the start, that libvirt has some key, so that the first VM can be started. An
/// outdated one is replaced by [`run`].
pub async fn require(context: &Context) {
    let Some((cluster, access, uuid)) = wanted(context) else { return };
    if matches!(value(context, uuid).await, Ok(Some(_))) {
        return;
    }
    if let Err(error) = context.in_time(AT_START, ensure(context, cluster, access, uuid)).await {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "libvirt has no key for volumes yet; it is tried again"
        );
    }
}

/// Makes libvirt's key the one that Ceph has, once; tries until that worked, or until `end`.
pub async fn run(context: Context, end: CancellationToken) {
    end.run_until_cancelled(keep(&context)).await;
}

async fn keep(context: &Context) {
    let Some((cluster, access, uuid)) = wanted(context) else { return };
    let mut said = false;
    while let Err(error) = ensure(context, cluster, access, uuid).await {
        if !std::mem::replace(&mut said, true) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "it could not be made sure that libvirt has the right key for volumes; it is tried \
                 again"
            );
        }
        context.sleep(RETRY).await;
    }
}

/// The secret that the hypervisor of this node needs, if it needs one.
fn wanted(context: &Context) -> Option<(&dyn StorageCluster, &RbdAccess, &str)> {
    let cluster = context.ports.storage.cluster()?;
    let access = cluster.access();
    Some((cluster, access, access.secret.as_deref()?))
}

async fn ensure(
    context: &Context,
    cluster: &dyn StorageCluster,
    access: &RbdAccess,
    uuid: &str,
) -> Result<(), SecretError> {
    let key = cluster.hypervisor_key().await?;
    let key = key.ok_or_else(|| SecretError::NoUser { user: access.user.clone() })?;
    if value(context, uuid).await?.as_deref() == Some(key.as_str()) {
        return Ok(());
    }
    let xml = format!(
        "<secret ephemeral='no' private='no'><uuid>{uuid}</uuid>\
         <usage type='ceph'><name>client.{} secret</name></usage></secret>",
        access.user
    );
    virsh(context, &["secret-define", "--file", "/dev/stdin"], Some(xml)).await?;
    virsh(context, &["secret-set-value", "--secret", uuid, "--file", "/dev/stdin"], Some(key))
        .await?;
    tracing::info!(secret = uuid, "libvirt has the key for volumes now");
    Ok(())
}

/// The key that libvirt has; `None` if it has none.
async fn value(context: &Context, uuid: &str) -> Result<Option<String>, SecretError> {
    match virsh(context, &["secret-get-value", "--secret", uuid], None).await {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        // That it has none, and that it cannot say, look the same here; to define it will tell.
        Err(SecretError::Refused(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn virsh(
    context: &Context,
    args: &[&str],
    stdin: Option<String>,
) -> Result<String, SecretError> {
    let args = ["--quiet", "--connect", "qemu:///system"].iter().chain(args);
    let command = Command {
        program: "virsh".to_owned(),
        args: args.map(|arg| (*arg).to_owned()).collect(),
        env: Vec::new(),
        stdin: stdin.map(String::into_bytes),
        deadline: DEADLINE,
    };
    let output = context.ports.exec.run(command).await?;
    match output.code {
        Some(0) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        _ => Err(SecretError::Refused(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use pvc_embedded::EmbeddedTree;
    use pvc_model::NodeName;
    use pvc_ports::{Output, Ports};
    use pvc_store::Store;
    use pvc_testkit::{
        MemoryStorage, ScriptedCluster, ScriptedExec, SeededRandom, TokioClock, ports,
    };

    use super::*;

    const UUID: &str = "c416032b-2ce9-457f-a5dc-18704a3485f4";

    /// A libvirt with one secret, or none yet.
    fn libvirt(value: Option<&str>) -> ScriptedExec {
        let value = Mutex::new(value.map(str::to_owned));
        ScriptedExec::new(move |command| {
            let mut value = value.lock().unwrap();
            let refused =
                Output { code: Some(1), stdout: Vec::new(), stderr: b"error: no secret".to_vec() };
            Ok(match command.args[3].as_str() {
                "secret-get-value" => value.as_deref().map_or(refused, ScriptedExec::success),
                "secret-set-value" => {
                    *value = command.stdin.clone().map(|bytes| String::from_utf8(bytes).unwrap());
                    ScriptedExec::success("")
                }
                _ => ScriptedExec::success(""),
            })
        })
    }

    async fn node(exec: Arc<ScriptedExec>, key: Option<&str>) -> (Context, Arc<ScriptedCluster>) {
        let secret = Some(UUID.to_owned());
        let access =
            RbdAccess { monitors: Vec::new(), port: 6789, user: "libvirt".to_owned(), secret };
        let cluster = Arc::new(ScriptedCluster::new(access));
        cluster.say(|said| said.key = key.map(str::to_owned));
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let store =
            Store::open(EmbeddedTree::in_memory().connect(), clock.clone(), random).await.unwrap();
        let storage = Arc::new(MemoryStorage::of_cluster(cluster.clone()));
        let ports = Ports { storage, exec, clock, ..ports() };
        (Context::new(NodeName::new("hv1"), ports, store), cluster)
    }

    fn words(exec: &ScriptedExec) -> Vec<String> {
        exec.ran().into_iter().map(|command| command.args[3].clone()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_libvirt_without_the_key_gets_it_through_a_pipe() {
        let exec = Arc::new(libvirt(None));
        let (context, _) = node(exec.clone(), Some("AQkey==")).await;
        require(&context).await;
        let ran = exec.ran();
        assert_eq!(words(&exec)[2..], ["secret-define", "secret-set-value"]);
        assert!(ran.iter().all(|command| !command.args.join(" ").contains("AQkey")), "{ran:?}");
        let xml = String::from_utf8(ran[2].stdin.clone().unwrap()).unwrap();
        assert!(xml.contains(UUID) && xml.contains("client.libvirt secret"), "{xml}");
        keep(&context).await;
        assert_eq!(words(&exec)[4..], ["secret-get-value"], "the right key is left alone");
    }

    #[tokio::test(start_paused = true)]
    async fn an_outdated_key_is_replaced_once_ceph_answers_and_holds_up_no_start() {
        let exec = Arc::new(libvirt(Some("AQold==")));
        let (context, cluster) = node(exec.clone(), None).await;
        cluster.say(|said| said.hangs = true);
        require(&context).await;
        assert_eq!(words(&exec), ["secret-get-value"]);
        cluster.say(|said| (said.hangs, said.key) = (false, None));
        let kept = tokio::spawn({
            let context = context.clone();
            async move { keep(&context).await }
        });
        context.sleep(Duration::from_secs(60)).await;
        assert!(!kept.is_finished(), "Ceph has no such user yet");
        cluster.say(|said| said.key = Some("AQnew==".to_owned()));
        kept.await.unwrap();
        assert_eq!(exec.ran().last().unwrap().stdin.as_deref(), Some(b"AQnew==".as_slice()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cold_start_does_not_wait_for_ceph_for_ever() {
        let exec = Arc::new(libvirt(None));
        let (context, cluster) = node(exec, None).await;
        cluster.say(|said| said.hangs = true);
        let before = context.now();
        require(&context).await;
        assert!(context.now() - before <= AT_START);
    }
}
