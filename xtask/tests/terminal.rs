//! Behaviour of xtask where one types it.

use std::process::{Command, Stdio};

#[test]
fn nobody_hears_of_a_reader_that_went_away() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let ended = xtask.arg("--help").stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert_eq!(ended.status.code(), Some(141));
}
