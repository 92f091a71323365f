//! Events and logs are followed.

use super::*;

#[test]
fn events_are_printed_as_they_come_and_gone_on_with_after_a_break() {
    let stub = Stub::start(|request, before| {
        let event = |id: &str| {
            format!(
                "id: a-{before}\nevent: vm\ndata: \
                 {{\"revision\":{before},\"kind\":\"vm\",\"id\":\"{id}\",\
                 \"change\":\"changed\"}}\n\n"
            )
        };
        match (before, request.target.as_str()) {
            (0, "/api/v1/events") => ok(format!(": hello\n\n{}", event("one"))),
            (1, "/api/v1/events?cursor=a-0") => ok(event("two")),
            _ => status(401, r#"{"message": "enough"}"#),
        }
    });
    let output = User::of(&stub).run(&["-q", "events"]);
    assert_eq!(out(&output), "vm       changed  one\nvm       changed  two\n", "{output:?}");
    assert_eq!(code(&output), 5, "what does not pass ends it");
}

#[test]
fn a_followed_log_gives_the_terminal_back_in_its_own_colours() {
    let stub = Stub::start(|_, _| ok(r#"{"name": "web1", "data": "\u001b[31mred login: "}"#));
    let user = User::of(&stub);
    let mut terminal = user.terminal("-q vm log web1 -f").spawn().unwrap();
    let mut keyboard = terminal.stdin.take().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while stub.lines().len() < 2 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    // The terminal turns this letter into the signal.
    keyboard.write_all(b"\x03").unwrap();
    let output = terminal.wait_with_output().unwrap();
    drop(keyboard);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("\x1b[31mred login: "), "{shown:?}");
    assert!(shown.trim_end_matches("^C").contains("\x1b[0m\r\n"), "{shown:?}");
    assert_eq!(output.status.code(), Some(130));
}

#[test]
fn ctrl_c_in_a_pager_is_the_pagers() {
    let stub = Stub::start(|_, _| ok(r#"{"name": "web1", "data": "login: "}"#));
    let user =
        User::of(&stub).with("PAGER", "trap '' INT; cat; read key < /dev/tty; echo left by $key");
    let mut terminal = user.terminal("-q vm log web1").spawn().unwrap();
    let mut keyboard = terminal.stdin.take().unwrap();
    let mut screen = BufReader::new(terminal.stdout.take().unwrap());
    let mut line = String::new();
    screen.read_line(&mut line).unwrap();
    assert_eq!(line, "login: \r\n");
    keyboard.write_all(b"\x03q\n").unwrap();
    let mut rest = String::new();
    screen.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("left by q"), "{rest:?}");
    assert_eq!(terminal.wait().unwrap().code(), Some(0));
}

#[test]
fn a_followed_log_prints_each_line_once_and_at_once() {
    let stub = Stub::start(|_, before| {
        let windows = ["boot\nbeat", "boot\nbeat", "boot\nbeat\nbeat", "beat\nbeat\ndone"];
        ok(serde_json::json!({"name": "web1", "data": windows[before.min(3)]}).to_string())
    });
    let user = User::of(&stub);
    let mut child = user.command(&["-q", "vm", "log", "web1", "-f"]).spawn().unwrap();
    let lines: Vec<String> =
        BufReader::new(child.stdout.take().unwrap()).lines().take(4).map(Result::unwrap).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(lines, ["boot", "beat", "beat", "done"]);
}

#[test]
fn a_log_is_printed_as_it_is_without_a_terminal() {
    let stub = Stub::start(|_, _| ok(r#"{"name": "web1", "data": "a\nb\nc"}"#));
    let output = User::of(&stub).run(&["-q", "vm", "log", "web1", "-l", "2"]);
    assert_eq!(out(&output), "b\nc\n");
    assert_eq!(stub.lines(), ["GET /vm/web1/console?lines=2"]);
}
