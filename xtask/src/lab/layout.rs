//! Names of a lab and the places of its parts.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::run;

/// A lab: a name, a directory, and nodes. Everything it makes outside of its directory (network
/// namespaces, cgroups, hosts' names) carries its name, so that labs do not meet.
#[derive(Clone)]
pub struct Lab {
    pub name: String,
    /// `target/lab`, where labs share the base system.
    pub home: PathBuf,
    pub directory: PathBuf,
}

/// Cable of a node, one of three, named by what hangs on its other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    pub name: &'static str,
    /// The device in the node.
    pub device: &'static str,
    pub number: u8,
    pub mtu: u16,
}

/// Each node's cables, in the order of their devices.
pub const NETWORKS: [Network; 3] = [
    Network { name: "upstream", device: "ens4", number: 0, mtu: 1500 },
    Network { name: "cluster", device: "ens5", number: 1, mtu: 9000 },
    Network { name: "storage", device: "ens6", number: 2, mtu: 9000 },
];

/// Largest number of nodes: their names, addresses and BMCs have one digit for the number.
const MOST_NODES: u8 = 9;

/// A node's name and its number, from which its addresses follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeName {
    pub text: String,
    pub number: u8,
}

impl NodeName {
    /// Whether it has a part in ZooKeeper, Ceph and the database: the first three do.
    pub fn is_coordinator(&self) -> bool {
        self.number <= 3
    }

    pub fn numbered(number: u8) -> Self {
        Self { text: format!("pvchv{number}"), number }
    }

    /// Address at which the node's BMC listens, in the upstream network.
    pub fn bmc_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 99, 0, 200 + self.number)
    }
}

impl std::fmt::Display for NodeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Lab {
    /// The lab that `PVC_LAB` names, or `lab`, below `PVC_LAB_DIR`, or `target/lab`.
    ///
    /// # Errors
    /// If the name cannot be part of a namespace's name.
    pub fn from_environment() -> Result<Self> {
        let name = std::env::var("PVC_LAB").unwrap_or_else(|_| "lab".into());
        let is_plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        ensure!(
            is_plain && (1..=12).contains(&name.len()) && name != "base",
            "a lab's name is 1 to 12 lowercase letters and digits, and not `base`: `{name}`"
        );
        let home = match std::env::var_os("PVC_LAB_DIR") {
            Some(directory) => std::path::absolute(directory)?,
            None => run::target().join("lab"),
        };
        let directory = home.join(&name);
        Ok(Self { name, home, directory })
    }

    /// The nodes this lab was made with, or would be.
    pub fn nodes(&self) -> Vec<NodeName> {
        let count = fs::read_to_string(self.directory.join("count")).ok();
        let count = count.and_then(|count| count.trim().parse().ok()).unwrap_or(3);
        (1..=count).map(NodeName::numbered).collect()
    }

    /// Says how many nodes the lab has, or will have.
    ///
    /// # Errors
    /// If their addresses would not fit.
    pub fn set_count(&self, count: u8) -> Result<()> {
        ensure!(
            (1..=MOST_NODES).contains(&count),
            "a lab has 1 to {MOST_NODES} nodes, not {count}"
        );
        fs::create_dir_all(&self.directory)?;
        Ok(fs::write(self.directory.join("count"), count.to_string())?)
    }

    /// # Errors
    /// If the lab has no node of that name.
    pub fn node(&self, name: &str) -> Result<NodeName> {
        let nodes = self.nodes();
        let known: Vec<&str> = nodes.iter().map(|node| node.text.as_str()).collect();
        match nodes.iter().find(|node| node.text == name) {
            Some(node) => Ok(node.clone()),
            None => bail!("there is no node `{name}`; there are: {}", known.join(", ")),
        }
    }

    /// Name of a namespace or a cgroup of this lab. Two checkouts may each have a lab of one name.
    pub fn named(&self, part: &str) -> String {
        format!("{}{part}", self.prefix())
    }

    /// Prefix of the names of all namespaces and cgroups of this lab.
    pub fn prefix(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.directory.hash(&mut hasher);
        format!("pvc-{}-{:04x}-", self.name, hasher.finish() & 0xffff)
    }

    /// The directory of one node or of the switch room.
    pub fn part(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn logs(&self, name: &str) -> PathBuf {
        self.directory.join("logs").join(name)
    }

    /// Whether the lab is meant to be up. Power comes back by a BMC's order only as long as it is.
    pub fn is_up(&self) -> bool {
        self.directory.join("up").exists()
    }

    /// Waits until nobody else works on `part` and keeps others away as long as the file lives.
    pub fn lock(&self, part: &Path) -> Result<File> {
        fs::create_dir_all(part).with_context(|| format!("cannot create `{}`", part.display()))?;
        let path = part.join("lock");
        let file =
            File::create(&path).with_context(|| format!("cannot create `{}`", path.display()))?;
        file.lock().with_context(|| format!("cannot lock `{}`", path.display()))?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lab() -> Lab {
        Lab { name: "t".into(), home: "/nowhere".into(), directory: "/nowhere/t".into() }
    }

    #[test]
    fn labs_of_one_name_in_two_checkouts_do_not_meet() {
        let other = Lab { directory: "/elsewhere/t".into(), ..lab() };
        assert_eq!(lab().named("switch"), lab().named("switch"));
        assert_ne!(lab().named("switch"), other.named("switch"));
    }

    #[test]
    fn a_lab_has_three_nodes_unless_it_was_made_with_more() {
        let names: Vec<String> = lab().nodes().iter().map(ToString::to_string).collect();
        assert_eq!(names, ["pvchv1", "pvchv2", "pvchv3"]);
    }

    #[test]
    fn a_lab_can_have_as_many_nodes_as_there_are_digits() {
        let directory = std::env::temp_dir().join(format!("pvc-lab-count-{}", std::process::id()));
        let lab = Lab { directory: directory.clone(), ..lab() };
        assert!(lab.set_count(0).is_err() && lab.set_count(10).is_err());
        lab.set_count(5).unwrap();
        let coordinators = lab.nodes().into_iter().filter(NodeName::is_coordinator).count();
        assert_eq!((lab.nodes().len(), coordinators), (5, 3));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn an_unknown_node_is_refused_and_the_nodes_are_named() {
        let error = lab().node("pvchv9").unwrap_err().to_string();
        assert_eq!(error, "there is no node `pvchv9`; there are: pvchv1, pvchv2, pvchv3");
    }

    #[test]
    fn each_bmc_has_its_own_address() {
        assert_eq!(NodeName::numbered(2).bmc_address().to_string(), "10.99.0.202");
    }
}
