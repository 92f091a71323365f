//! Debian's archive, for nodes whose networks lead nowhere.

use std::fs::File;
use std::net::TcpListener;
use std::thread;

use nix::sched::{CloneFlags, setns};
use pvc_standalone_tests::Archive;

use crate::{Lab, OUTSIDE};

impl Lab {
    /// Has the switch room pass requests of nodes on to Debian's archive while this story is told.
    /// Returns the archive's address for nodes.
    pub fn archive(&self) -> String {
        let archive = Archive::from_here();
        let room = format!("/run/netns/{}switch", self.prefix());
        // The socket stays in the network in which it is made, as this thread does in its own.
        let listener = thread::spawn(move || {
            let room = File::open(&room).unwrap_or_else(|error| panic!("`{room}`: {error}"));
            setns(room, CloneFlags::CLONE_NEWNET).expect("these tests run as root");
            TcpListener::bind((OUTSIDE, 0)).expect("the switch room has its address")
        });
        archive.at(listener.join().expect("the lab has a switch room"))
    }
}
