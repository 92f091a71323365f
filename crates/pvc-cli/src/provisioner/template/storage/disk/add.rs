use clap::Args;
use pvc_api_types::operations::provisioner::{
    PostProvisionerTemplateStorageTemplateDiskDiskId, TemplateDiskNew,
};
use pvc_api_types::param::Repeated;

use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};

/// Add a disk to a storage template
///
/// It is a new volume of a size, with a filesystem if one is given, or a copy of another
/// volume of its pool.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner template storage disk add web sda -p vms -s 10 -f ext4 -m / --fsarg L=root
  pvc provisioner template storage disk add web sdb -p vms -i golden")]
pub struct Add {
    /// Name of the template
    #[arg(value_name = "NAME", add = crate::completion::storage_templates())]
    name: String,

    /// Name of the device in the guest: sda
    #[arg(value_name = "DISK")]
    disk: String,

    /// Pool that its volume is made in
    #[arg(short, long, add = crate::completion::pools())]
    pool: String,

    /// Volume of the pool that it is a copy of
    #[arg(short = 'i', long, value_name = "VOLUME", add = crate::completion::volumes())]
    source_volume: Option<String>,

    /// Size in GiB
    #[arg(short, long)]
    size: Option<u32>,

    /// Filesystem to make on it: ext4
    #[arg(short, long)]
    filesystem: Option<String>,

    /// Option for the program that makes the filesystem, as `L=root`; may be repeated
    #[arg(long, value_name = "KEY=VALUE", allow_hyphen_values = true)]
    fsarg: Vec<String>,

    /// Place where it is mounted in the guest
    #[arg(short, long)]
    mountpoint: Option<String>,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let has_more =
            self.size.is_some() || self.filesystem.is_some() || self.mountpoint.is_some();
        if self.source_volume.is_some() && has_more {
            let message = "a copy of a volume has its size, its filesystem and what is in it from \
                           there";
            return Err(
                Failure::usage(message).hint("leave out `--source-volume`, or all of the others")
            );
        }
        let new = TemplateDiskNew {
            pool: self.pool,
            source_volume: self.source_volume,
            disk_size: self.size,
            filesystem: self.filesystem,
            filesystem_arg: Repeated(self.fsarg.iter().map(|arg| dashed(arg)).collect()),
            mountpoint: self.mountpoint,
        };
        let operation = PostProvisionerTemplateStorageTemplateDiskDiskId;
        let message = pvc.client()?.change(operation, [&self.name, &self.disk], &new)?;
        pvc.done(message);
        Ok(())
    }
}

/// An option with its dashes: one before a letter, two before a word.
fn dashed(arg: &str) -> String {
    let key = arg.split('=').next().unwrap_or(arg);
    match (key.starts_with('-'), key.chars().count()) {
        (true, _) => arg.to_owned(),
        (false, 1) => format!("-{arg}"),
        (false, _) => format!("--{arg}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_a_filesystem_gets_its_dashes() {
        for (given, sent) in
            [("L=root", "-L=root"), ("quiet=1", "--quiet=1"), ("-L=x", "-L=x"), ("q", "-q")]
        {
            assert_eq!(dashed(given), sent);
        }
    }
}
