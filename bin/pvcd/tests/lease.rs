//! The program as dnsmasq calls it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};

/// Runs the program with the words, as dnsmasq does, and answers `answer`. Returns its message to
/// the daemon, and how it ended.
fn called_with(words: &[&str], answer: &str) -> (String, Output) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("it's a socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let answer = answer.to_owned();
    let daemon = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut message = String::new();
        stream.read_to_string(&mut message).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        message
    });
    let called = Command::new(env!("CARGO_BIN_EXE_pvcd"))
        .args(words)
        .env_clear()
        .env("PVC_LEASE_SOCKET", &socket)
        .env("PVC_LEASE_NETWORK", "1001")
        .env("DNSMASQ_LEASE_EXPIRES", "1731672000")
        .output()
        .unwrap();
    (daemon.join().unwrap(), called)
}

/// No word of dnsmasq's is one of the daemon's roles or options.
#[test]
fn the_environment_says_that_dnsmasq_calls_whatever_it_says() {
    let (message, called) = called_with(&["init"], "ok\n1 2 3 4 *\n");
    assert_eq!(message, "2\u{0}1001\u{0}1731672000\u{0}\u{0}\u{0}\u{0}init\u{0}");
    assert!(called.status.success());
    assert_eq!(called.stdout, b"1 2 3 4 *\n");
    for words in [&["old", "52:54:00:00:00:01", "10.20.1.100", "--help"][..], &["node"], &[]] {
        let (message, called) = called_with(words, "ok\n");
        let words: String = words.iter().map(|word| format!("{word}\u{0}")).collect();
        assert_eq!(message, format!("2\u{0}1001\u{0}1731672000\u{0}\u{0}\u{0}\u{0}{words}"));
        assert!(called.status.success() && called.stdout.is_empty());
    }
    let (_, refused) = called_with(&["init"], "");
    assert_eq!(refused.status.code(), Some(1));
}
