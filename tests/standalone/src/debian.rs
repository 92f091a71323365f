//! The Debian that stories have the example script install, and its data for cloud-init.

/// Packages besides those of debootstrap: what a guest needs that boots, asks for its data, and
/// tells its addresses.
const PACKAGES: &str =
    "linux-image-cloud-amd64,grub-pc,dbus,cloud-init,systemd-resolved,qemu-guest-agent";

/// Words that cloud-init shows on the serial console of that Debian when all is done. No login is
/// waited for: without KVM the serial port may take the guest longer than systemd waits.
pub const CLOUD_INIT_IS_DONE: &str = " finished at ";

/// Words behind `pvc provisioner` that make the profile `debian` and all that it consists of: with
/// a disk of this size, a card in network 1001, and the script and the userdata of these files. The
/// archive to install from is for whoever makes a VM of it.
pub fn debian_profile(disk_gib: u32, script: &str, userdata: &str) -> Vec<String> {
    vec![
        "template system add debian -u 1 -m 768 -s".to_owned(),
        "template network add debian".to_owned(),
        "template network vni add debian 1001".to_owned(),
        "template storage add debian".to_owned(),
        format!("template storage disk add debian sda -p vms -s {disk_gib} -f ext4 -m /"),
        format!("userdata add debian {userdata}"),
        format!("script add debootstrap {script}"),
        format!(
            "profile add debian -s debian -n debian -t debian -u debian -x debootstrap \
             -a deb_release=bookworm -a deb_packages={PACKAGES}"
        ),
    ]
}

/// Userdata by which a guest says on its serial console whose they are, and on which host.
pub fn debian_userdata(whose: &str) -> String {
    let says = format!("echo \"userdata {whose} on $(hostname)\" > /dev/ttyS0");
    format!("#cloud-config\nruncmd:\n  - [sh, -c, '{says}']\n")
}
