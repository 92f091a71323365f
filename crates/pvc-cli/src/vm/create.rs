use std::path::{Path, PathBuf};

use clap::Args;
use pvc_api_types::operations::vm::{
    FirmwareWord, GetVmVm, MachineWord, PostVmVmCreate, VmCreation,
};
use pvc_api_types::param::{Flag, Or};
use pvc_model::image::IMAGE_NAME_LIMIT;
use pvc_model::job::creation::USER_DATA_LIMIT;
use pvc_model::size::parse_size;

use super::{addresses, state};
use crate::choice::words;
use crate::context::Pvc;
use crate::outcome::{Exit, Failure, Outcome, plain_io};
use crate::provisioner::userdata::check::check;
use crate::storage::size;
use crate::task::{self, TaskWait};

/// Create a VM of an image, or to install a system on
///
/// With `--image` its disk is a copy-on-write clone of the image, called `NAME_sda`, and
/// is there at once. A second, small disk gives cloud-init the VM's name, SSH keys, user
/// data and network configuration (DHCP on each card), also in networks without a
/// metadata service. `pvc image add` makes images.
///
/// With `--from-iso` its disk is empty, and it boots from the ISO image until there is a
/// system on the disk. The file is kept as an image, which the next VM can have as well.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc vm create web1 --image debian-12 --vcpus 2 --memory 2G --disk 20G --network 1001 \\
      --ssh-key ~/.ssh/id_ed25519.pub --start
  pvc vm create web2 --image debian-12 --user-data web.yaml --dry-run
  pvc vm create win1 --from-iso ./installer.iso --disk 40G --memory 4G --uefi --start
  pvc vm create win2 --from-iso installer --disk 40G --memory 4G --uefi --start")]
#[command(group = clap::ArgGroup::new("origin").required(true))]
pub struct Create {
    /// Name of the VM
    name: String,

    /// The image; `POOL/NAME` where several pools have one of that name
    #[arg(short, long, group = "origin", add = crate::completion::images())]
    image: Option<String>,

    /// The ISO image to install from: a file (`./NAME`, `NAME.iso`), or the name of an image
    #[arg(long, value_name = "FILE_OR_IMAGE", group = "origin", requires = "disk",
          conflicts_with_all = ["ssh_keys", "user_data", "no_cloud_init"],
          value_hint = clap::ValueHint::FilePath)]
    from_iso: Option<PathBuf>,

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
        let iso = self.from_iso.as_deref().map(|given| iso(pvc, &self.name, given)).transpose()?;
        let installs = iso.is_some();
        let wanted = VmCreation {
            image: self.image,
            iso,
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
        if let Some(data) = &wanted.user_data {
            check(pvc, data);
        }
        let submitted = pvc.client()?.submit(PostVmVmCreate, [&self.name], &wanted);
        let named = || wanted.node.iter().map(String::as_str);
        let submitted = submitted.map_err(|error| crate::node::unknown(pvc, error, named()))?;
        let is_task = matches!(submitted, pvc_client::Submitted::Task(_));
        task::finish(pvc, submitted, self.wait)?;
        match self.start && is_task && self.wait.is_wanted() {
            true => state::until_it_runs(pvc, &self.name)?,
            false => return Ok(()),
        }
        match installs {
            true => say_where_its_screen_is(pvc, &self.name),
            false => addresses::say(pvc, &self.name),
        }
    }
}

/// The image to install from. A file becomes one first.
fn iso(pvc: &mut Pvc, vm: &str, given: &Path) -> Result<String, Failure> {
    let text = given.to_str().ok_or_else(|| Failure::usage("the image's name is no UTF-8 text"))?;
    if !is_file(text) {
        return Ok(text.to_owned());
    }
    if pvc.dry_run {
        let message = "a dry run uploads nothing, and of what is not there nothing can be said";
        let hint = "name an image: `pvc image add` makes one of the file";
        return Err(Failure::usage(message).hint(hint));
    }
    // Before gigabytes are sent.
    if pvc.client()?.read_only(GetVmVm, [vm], "VM").is_ok() {
        return Err(Failure::failed(format!("there is a VM `{vm}` already")));
    }
    let name = image_name(given);
    let pool = crate::image::add_iso(pvc, &name, given).map_err(|failure| match failure.exit {
        Exit::Failed if failure.message.ends_with(" already") => {
            failure.hint(format!("`--from-iso {name}` installs from that one"))
        }
        _ => failure,
    })?;
    Ok(format!("{pool}/{name}"))
}

/// Whether a file is meant, and no image.
fn is_file(text: &str) -> bool {
    let begins = ["/", "./", "../"].iter().any(|begin| text.starts_with(begin));
    begins || text.to_ascii_lowercase().ends_with(".iso")
}

/// The name of an image that is called as the file is, as far as it can be.
fn image_name(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let fitting = |letter: char| match letter {
        letter if letter.is_ascii_alphanumeric() || "._-".contains(letter) => letter,
        _ => '-',
    };
    let name: String = stem.chars().map(fitting).take(IMAGE_NAME_LIMIT).collect();
    name.trim_start_matches(|letter: char| !letter.is_ascii_alphanumeric()).to_owned()
}

/// Says where an installer's questions are asked, and the commands that get there.
fn say_where_its_screen_is(pvc: &mut Pvc, name: &str) -> Outcome {
    let vm = pvc.client()?.read_only(GetVmVm, [name], "VM")?.read()?;
    let mut lines = Vec::new();
    if let (Some(listen), Some(port)) = (&vm.vnc.listen, &vm.vnc.port) {
        let node = &vm.node;
        lines.push(format!("Its screen is VNC at {listen}:{port} on node \"{node}\"."));
        if ["127.0.0.1", "localhost"].contains(&listen.as_str()) {
            lines.push(format!(
                "From elsewhere: `ssh -L {port}:127.0.0.1:{port} {node}`, then VNC at \
                 127.0.0.1:{port}."
            ));
        }
    }
    lines.push(format!("Its serial console: `pvc vm log {name} -f`."));
    pvc.done(lines.join("\n"));
    Ok(())
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
    fn an_image_is_called_as_its_file_as_far_as_it_can_be() {
        for (file, name) in [
            ("./debian-12.5.0-amd64-netinst.iso", "debian-12.5.0-amd64-netinst"),
            ("/tmp/Win Server (2022).ISO", "Win-Server--2022-"),
            ("_x.iso", "x"),
        ] {
            assert_eq!(image_name(Path::new(file)), name, "{file}");
        }
        assert_eq!(image_name(Path::new(&"a".repeat(200))).len(), IMAGE_NAME_LIMIT);
    }

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
