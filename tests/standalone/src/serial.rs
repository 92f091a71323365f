//! A guest's serial line, as somebody who sits at it.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

/// An open line. QEMU waits for who listens and does not read: keep [`hear`](SerialLine::hear)ing.
#[derive(Debug)]
pub struct SerialLine {
    file: File,
    text: String,
}

impl SerialLine {
    pub fn open(terminal: &Path) -> SerialLine {
        let flags = OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(flags.bits()).open(terminal);
        let file = file
            .unwrap_or_else(|error| panic!("`{}` cannot be opened: {error}", terminal.display()));
        SerialLine { file, text: String::new() }
    }

    pub fn say(&mut self, line: &str) {
        self.file.write_all(format!("{line}\n").as_bytes()).expect("QEMU reads what is typed");
    }

    /// All text since the line was opened.
    pub fn hear(&mut self) -> &str {
        let mut buffer = [0; 1 << 16];
        loop {
            match self.file.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => self.text.push_str(&String::from_utf8_lossy(&buffer[..length])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("the serial line broke: {error}"),
            }
        }
        &self.text
    }
}
