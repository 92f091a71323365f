use std::path::{Path, PathBuf};

use clap::Args;
use pvc_api_types::operations::vm::{FirmwareWord, MachineWord, PostVmVmCreate, VmCreation};
use pvc_api_types::param::{Flag, Or};
use pvc_model::job::creation::USER_DATA_LIMIT;
use pvc_model::size::parse_size;

use super::state;
use crate::choice::words;
use crate::context::Pvc;
use crate::outcome::{Exit, Failure, Outcome, plain_io};
use crate::storage::size;
use crate::task::{self, TaskWait};

/// Create a VM of an image
///
/// Its disk is a copy-on-write clone of the image, called `NAME_sda`, and is there at
/// once. A second, small disk gives cloud-init the VM's name, SSH keys, user data and
/// network configuration (DHCP on each card), also in networks without a metadata
/// service. `pvc image add` makes images.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc vm create web1 --image debian-12 --vcpus 2 --memory 2G --disk 20G --network 1001 \\
      --ssh-key ~/.ssh/id_ed25519.pub --start
  pvc vm create web2 --image debian-12 --user-data web.yaml --dry-run")]
pub struct Create {
    /// Name of the VM
    name: String,

    /// The image; `POOL/NAME` where several pools have one of that name
    #[arg(short, long, add = crate::completion::images())]
    image: String,

    /// Number of vCPUs
    #[arg(long, default_value_t = 1)]
    vcpus: u32,

    /// The memory, such as 2G; a bare number is MiB
    #[arg(short, long, default_value = "1G", value_parser = mebibytes)]
    memory: u32,

    /// Size of the disk, such as 20G; that of the image without it
    #[arg(short, long, value_parser = size::parse)]
    disk: Option<String>,

    /// A network that it has a card in, by VNI or description; may be given again
    #[arg(short, long = "network", value_name = "NETWORK", add = crate::completion::networks())]
    networks: Vec<String>,

    /// A file with public SSH keys for the image's usual user, one in each line; may be given again
    #[arg(long = "ssh-key", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    ssh_keys: Vec<PathBuf>,

    /// A file with user data for cloud-init
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    user_data: Option<PathBuf>,

    /// Leave out the disk with cloud-init's data
    #[arg(long)]
    no_cloud_init: bool,

    /// Chipset of the machine
    #[arg(long, default_value = "q35", value_parser = words::<MachineWord>())]
    machine: MachineWord,

    /// Boot it by UEFI; the nodes need the package `ovmf`
    #[arg(long)]
    uefi: bool,

    /// Give it a TPM 2.0; the nodes need the package `swtpm-tools`
    #[arg(long)]
    tpm: bool,

    /// The node to assign it to
    #[arg(short, long, value_name = "NODE", add = crate::completion::nodes())]
    target: Option<String>,

    /// Start it with its node, after a crash of the whole cluster or a flush
    #[arg(short, long)]
    autostart: bool,

    /// Start it when it is made; whoever waits for the task waits until it runs
    #[arg(short, long)]
    start: bool,

    /// Take it also if it is plugged into a network between the nodes
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    wait: TaskWait,
}

/// The memory in MiB.
fn mebibytes(text: &str) -> Result<u32, String> {
    let wrong = || "a number of MiB, or of G, is needed, as in 2048 or 2G".to_owned();
    let mib = match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().ok(),
        false => {
            let bytes = parse_size(text).ok().filter(|bytes| bytes % (1 << 20) == 0);
            bytes.and_then(|bytes| u32::try_from(bytes >> 20).ok())
        }
    };
    mib.filter(|mib| *mib > 0).ok_or_else(wrong)
}

impl Create {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let keys = self.ssh_keys.iter().map(|file| read(file)).collect::<Result<Vec<_>, _>>()?;
        let user_data = self.user_data.as_deref().map(read).transpose()?;
        let wanted = VmCreation {
            image: self.image,
            vcpus: Or(self.vcpus),
            memory: Or(self.memory),
            disk: self.disk,
            network: self.networks,
            machine: Some(self.machine),
            firmware: self.uefi.then_some(FirmwareWord::Uefi),
            tpm: Flag(self.tpm),
            no_cloud_init: Flag(self.no_cloud_init),
            node: self.target,
            autostart: Flag(self.autostart),
            start: Flag(self.start),
            force: Flag(self.force),
            ssh_keys: (!keys.is_empty()).then(|| keys.join("\n")),
            user_data,
        };
        let submitted = pvc.client()?.submit(PostVmVmCreate, [&self.name], &wanted);
        let named = || wanted.node.iter().map(String::as_str);
        let submitted = submitted.map_err(|error| crate::node::unknown(pvc, error, named()))?;
        let is_task = matches!(submitted, pvc_client::Submitted::Task(_));
        task::finish(pvc, submitted, self.wait)?;
        match self.start && is_task && self.wait.is_wanted() {
            true => state::until_it_runs(pvc, &self.name),
            false => Ok(()),
        }
    }
}

/// A small file of text.
fn read(file: &Path) -> Result<String, Failure> {
    use std::io::Read;
    let fail = |message: String| Failure { exit: Exit::Usage, ..Failure::failed(message) };
    let unreadable = |error: std::io::Error| {
        fail(format!("cannot read `{}`: {}", file.display(), plain_io(&error)))
    };
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(unreadable)?;
    let most = USER_DATA_LIMIT as u64 + 1;
    opened.take(most).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > USER_DATA_LIMIT {
        let most = USER_DATA_LIMIT;
        return Err(fail(format!("`{}` has more than {most} bytes", file.display())));
    }
    String::from_utf8(bytes).map_err(|_| fail(format!("`{}` is no text", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_number_of_mib_or_has_a_unit() {
        for (text, mib) in [("512", 512), ("2G", 2048), ("1536M", 1536), ("1.5G", 1536)] {
            assert_eq!(mebibytes(text), Ok(mib), "{text}");
        }
        for bad in ["0", "", "1K", "2Q", "-1", "9E"] {
            assert!(mebibytes(bad).is_err(), "{bad}");
        }
    }
}
