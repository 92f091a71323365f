//! Images of volumes that are sent and saved.

use std::fs;
use std::io::{Seek, SeekFrom};
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::*;

/// Names of the files in a folder.
fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn download(file: &Path) -> [String; 7] {
    let words = ["-q", "storage", "volume", "download", "vms", "data"].map(str::to_owned);
    let [a, b, c, d, e, f] = words;
    [a, b, c, d, e, f, file.display().to_string()]
}

fn words(line: &[String]) -> Vec<&str> {
    line.iter().map(String::as_str).collect()
}

/// A user whose server sends five of nine bytes and then nothing more, as long as the test lives.
fn user_of_a_server_that_stalls() -> User {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nimage").unwrap();
            open.push(stream);
        }
    });
    User::at(address)
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} is not so");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_download_that_is_ended_leaves_nothing_behind() {
    let user = user_of_a_server_that_stalls();
    for (name, number) in [("-INT", 2), ("-TERM", 15), ("-HUP", 1)] {
        let folder = tempfile::tempdir().unwrap();
        let line = download(&folder.path().join("disk.raw"));
        let mut child = user.command(&words(&line)).spawn().unwrap();
        eventually("the download has begun", || files(folder.path()) == ["disk.raw.part"]);
        let ended = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
        assert!(ended.success());
        let end = Instant::now() + Duration::from_secs(10);
        while child.try_wait().unwrap().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill().unwrap();
        let left = child.wait().unwrap();
        assert_eq!(left.signal(), Some(number), "{name} ends a download that stalls");
        assert_eq!(files(folder.path()), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn a_signal_that_is_to_be_ignored_does_not_end_a_download() {
    let user = user_of_a_server_that_stalls();
    let folder = tempfile::tempdir().unwrap();
    let line = download(&folder.path().join("disk.raw"));
    let own = user.command(&[]);
    let mut command = Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_pvc")).args(words(&line)).env_clear();
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the download has begun", || files(folder.path()) == ["disk.raw.part"]);
    for name in ["-HUP", "-TERM"] {
        Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    }
    assert_eq!(child.wait().unwrap().signal(), Some(15), "the first signal is ignored");
    assert_eq!(files(folder.path()), Vec::<String>::new());
}

#[test]
fn a_server_that_stalls_is_given_up_and_leaves_nothing_behind() {
    let user = user_of_a_server_that_stalls();
    let folder = tempfile::tempdir().unwrap();
    let line = download(&folder.path().join("disk.raw"));
    let output = user.run(&[&["--timeout", "1s"][..], &words(&line)].concat());
    assert_eq!(code(&output), 4, "{output:?}");
    assert!(err(&output).contains("the download broke off: nothing came for 1 seconds"));
    assert_eq!(files(folder.path()), Vec::<String>::new());
}

#[test]
fn a_download_replaces_no_file_unless_that_is_forced() {
    let stub = Stub::start(|_, _| ok("image"));
    let user = User::of(&stub);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk.raw");
    let line = download(&file);
    let saved = user.run(&words(&line));
    assert_eq!(code(&saved), 0, "{saved:?}");
    let checksum = "6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d";
    assert!(out(&saved).ends_with(&format!("5 bytes, SHA-256 {checksum}\n")), "{saved:?}");
    assert_eq!(fs::read(&file).unwrap(), b"image");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600, "it holds what a guest keeps");
    let asked = stub.lines().len();
    let refused = user.run(&words(&line));
    assert_eq!(code(&refused), 1);
    assert!(err(&refused).contains("hint: `--force` replaces the file"), "{refused:?}");
    assert_eq!(stub.lines().len(), asked, "nothing is asked for");
    fs::write(&file, "old and longer").unwrap();
    let forced = user.run(&[&words(&line)[..], &["--force"]].concat());
    assert_eq!(code(&forced), 0, "{forced:?}");
    assert_eq!(fs::read(&file).unwrap(), b"image");
    assert_eq!(files(folder.path()), ["disk.raw"]);
}

#[test]
fn a_device_a_pipe_and_a_link_stay_what_they_are() {
    let user = User::of(&Stub::start(|_, _| ok("image")));
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::os::unix::fs::symlink("/dev/null", at("null")).unwrap();
    fs::write(at("disk.raw"), "old").unwrap();
    std::os::unix::fs::symlink("disk.raw", at("link")).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    for name in ["null", "link", "pipe"] {
        let refused = user.run(&words(&download(&at(name))));
        assert_eq!(code(&refused), 1, "{refused:?}");
        assert!(err(&refused).contains("exists already"), "{refused:?}");
    }
    let refused = user.run(&[&words(&download(folder.path()))[..], &["--force"]].concat());
    assert!(err(&refused).contains("is a directory"), "{refused:?}");
    let pipe = at("pipe");
    let read = std::thread::spawn(move || fs::read(pipe).unwrap());
    for name in ["null", "link", "pipe"] {
        let forced = user.run(&[&words(&download(&at(name)))[..], &["--force"]].concat());
        assert_eq!(code(&forced), 0, "{forced:?}");
    }
    assert_eq!(read.join().unwrap(), b"image");
    assert_eq!(fs::read(at("disk.raw")).unwrap(), b"image", "what the link shows is replaced");
    let kind = |name: &str| fs::symlink_metadata(at(name)).unwrap().file_type();
    assert!(kind("null").is_symlink() && kind("link").is_symlink() && kind("pipe").is_fifo());
    assert_eq!(files(folder.path()), ["disk.raw", "link", "null", "pipe"]);
}

#[test]
fn zeros_are_holes_of_a_saved_file() {
    let image = |index: usize| match index >> 12 {
        0 | 40 | 255 => b'x',
        _ => 0,
    };
    let image: Vec<u8> = (0..1 << 20).chain([0, 0, 0]).map(image).collect();
    let text = String::from_utf8(image.clone()).unwrap();
    let user = User::of(&Stub::start(move |_, _| ok(text.clone())));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk.raw");
    let saved = user.run(&words(&download(&file)));
    assert_eq!(code(&saved), 0, "{saved:?}");
    assert!(fs::read(&file).unwrap() == image, "every byte is in its place");
    let taken = fs::metadata(&file).unwrap().blocks() * 512;
    assert!(taken <= 16 << 10, "{taken} bytes are taken by four blocks");
}

#[test]
fn a_format_and_a_compression_are_asked_for_by_their_words() {
    let stub = Stub::start(|_, _| ok("image"));
    let user = User::of(&stub);
    let folder = tempfile::tempdir().unwrap();
    for (options, query) in [
        (&[][..], ""),
        (&["-f", "raw", "-c", "none"], ""),
        (&["-f", "vmdk"], "?image_format=vmdk"),
        (&["--format", "qcow2", "--compress", "zstd"], "?image_format=qcow2&compression=zstd"),
        (&["-c", "xz", "--snapshot", "old"], "?snapshot=old&compression=xz"),
    ] {
        let line = download(&folder.path().join("disk"));
        let saved = user.run(&[&words(&line)[..], &["--force"], options].concat());
        assert_eq!(code(&saved), 0, "{saved:?}");
        let line = format!("GET /storage/ceph/volume/vms/data/download{query}");
        let asked = stub.lines().pop().unwrap();
        assert!(asked.trim_end() == line, "{asked} and not {line}");
    }
    let asked = stub.lines().len();
    for options in [["-f", "iso"], ["-c", "zip"]] {
        let line = download(&folder.path().join("disk"));
        assert_eq!(code(&user.run(&[&words(&line)[..], &options].concat())), 2);
    }
    assert_eq!(stub.lines().len(), asked);
}

#[test]
fn a_terminal_shows_what_a_download_waits_for() {
    let user = User::of(&Stub::start(|_, _| ok("image")));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk").display().to_string();
    let line = format!("storage volume download -f vhdx vms data {file}");
    let shown = user.on_a_terminal(&line);
    assert!(shown.contains("Making an image in format vhdx on remote side... done."), "{shown}");
    let refusing = r#"{"message": "it is in use"}"#;
    let user = User::of(&Stub::start(move |_, _| status(400, refusing)));
    let shown = user.on_a_terminal(&format!("{line} --force"));
    assert!(shown.contains("remote side... \r\nerror: it is in use"), "{shown:?}");
}

/// A user with an image of five bytes.
fn image(user: &User) -> PathBuf {
    let file = user.home.path().join("disk.raw");
    fs::write(&file, "image").unwrap();
    file
}

fn upload(user: &User, file: &Path) -> Output {
    let file = file.display().to_string();
    user.run(&["-q", "storage", "volume", "upload", "-y", "vms", "data", &file])
}

#[test]
fn a_file_that_cannot_be_read_is_not_sent() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    for file in [user.home.path().join("none"), user.home.path().to_owned()] {
        let failed = upload(&user, &file);
        assert_eq!(code(&failed), 2, "{failed:?}");
        assert!(err(&failed).contains(&file.display().to_string()), "{failed:?}");
    }
    assert_eq!(stub.lines(), Vec::<String>::new());
}

#[test]
fn a_dry_run_of_a_new_image_sends_nothing_and_asks_what_would_be_refused() {
    for (refuses, exit) in [(false, 0), (true, 1)] {
        let stub = Stub::start(move |request, _| match (request.method.as_str(), request.path()) {
            ("GET", "/api/v1/openapi.json") => ok(DOCUMENT),
            ("GET", "/api/v1/storage/ceph/pool/vms") => ok(r#"[{"name": "vms"}]"#),
            ("GET", _) => ok("[]"),
            _ if refuses => status(400, r#"{"message": "it would fill the pool"}"#),
            _ => message("nothing was changed"),
        });
        let user = User::of(&stub);
        let file = image(&user).display().to_string();
        let line = ["-q", "image", "add", "debian", &file, "-p", "vms", "--dry-run"];
        let output = user.run(&line);
        assert_eq!(code(&output), exit, "{output:?}");
        let said = "nothing was sent; \"debian\" can be added to pool \"vms\"\n";
        assert_eq!(out(&output), if refuses { "" } else { said });
        let tried = "POST /storage/ceph/volume?volume=new_image_debian&pool=vms&size=5B\
                     &force=False&dry_run=True";
        assert_eq!(changes(&stub), [tried]);
        assert!(stub.received().iter().all(|one| one.method == "GET" || one.is_tried));
    }
}

#[test]
fn an_old_server_does_not_get_the_size_of_a_raw_image() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let uploaded = upload(&user, &image(&user));
    assert_eq!(code(&uploaded), 0, "{uploaded:?}");
    let line = "POST /storage/ceph/volume/vms/data/upload?image_format=raw";
    assert!(changes(&stub)[0].starts_with(line), "{:?}", stub.lines());
    assert!(!changes(&stub)[0].contains("file_size"), "{:?}", stub.lines());
}

/// A server that takes everything of this release, and says that it was done.
fn new_server() -> Stub {
    Stub::start(|request, _| match request.method.as_str() {
        "GET" => ok(DOCUMENT),
        _ => message("done"),
    })
}

#[test]
fn the_size_of_what_comes_through_a_pipe_can_be_said_and_holds() {
    let line = ["-q", "storage", "volume", "upload", "-y", "vms", "data", "-"];
    let sized = |size: &'static str| [&line[..], &["--file-size", size]].concat();
    for (args, said) in [(line.to_vec(), None), (sized("5"), Some("file_size=5"))] {
        let stub = new_server();
        let uploaded = User::of(&stub).answering("image", &args);
        assert_eq!(code(&uploaded), 0, "{uploaded:?}");
        let asked = &changes(&stub)[0];
        assert_eq!(asked.contains("file_size"), said.is_some(), "{asked}");
        assert!(asked.contains(said.unwrap_or_default()), "{asked}");
    }
    for (size, why) in [("6", "it ends after 5 of 6 bytes"), ("4", "it goes on after 4 bytes")] {
        let failed = User::of(&new_server()).answering("image", &sized(size));
        assert_eq!(code(&failed), 1, "{failed:?}");
        assert!(err(&failed).contains(&format!("cannot read `-`: {why}")), "{failed:?}");
    }
}

#[test]
fn a_file_has_its_size_also_as_standard_input_where_it_stands() {
    let stub = new_server();
    let user = User::of(&stub);
    let line = ["-q", "storage", "volume", "upload", "-y", "vms", "data", "-"];
    let mut file = fs::File::open(image(&user)).unwrap();
    file.seek(SeekFrom::Start(2)).unwrap();
    let uploaded = user.command(&line).stdin(file).output().unwrap();
    assert_eq!(code(&uploaded), 0, "{uploaded:?}");
    assert!(changes(&stub)[0].contains("file_size=3"), "{:?}", stub.lines());
    let file = fs::File::open(image(&user)).unwrap();
    let wrong = [&line[..], &["--file-size", "9"]].concat();
    let refused = user.command(&wrong).stdin(file).output().unwrap();
    assert!(err(&refused).contains("`-` has 5 bytes, and not 9"), "{refused:?}");
    assert_eq!(changes(&stub).len(), 1, "{:?}", stub.lines());
}

#[test]
fn an_image_on_standard_input_answers_no_question() {
    let stub = new_server();
    let user = User::of(&stub);
    let line = ["-q", "storage", "volume", "upload", "vms", "data", "-"];
    for image in ["y\nimage", "n\nimage"] {
        let refused = user.answering(image, &line);
        assert_eq!(code(&refused), 1, "{refused:?}");
        assert!(err(&refused).contains("hint: say `--yes`"), "{refused:?}");
    }
    assert!(changes(&stub).is_empty(), "{:?}", stub.lines());
}

#[test]
fn a_terminal_shows_what_becomes_of_an_upload_and_nothing_else_does() {
    let user = User::of(&new_server());
    let line = format!("storage volume upload -y vms data {}", image(&user).display());
    let shown = user.on_a_terminal(&line);
    let words =
        ["Uploading file (total size 5B)...", "Parsing file on remote side... done.", "done"];
    let mut rest = &shown[..];
    for words in words {
        let (_, after) =
            rest.split_once(words).unwrap_or_else(|| panic!("no `{words}` in {shown}"));
        rest = after;
    }
    assert!(!user.on_a_terminal(&format!("-q {line}")).contains("Uploading"));
    let plain = user.run(&line.split(' ').collect::<Vec<_>>());
    assert!(!err(&plain).contains("Uploading"), "{plain:?}");
    let refusing = Stub::start(|request, _| match request.method.as_str() {
        "GET" => ok(DOCUMENT),
        _ => status(400, r#"{"message": "it was cut"}"#),
    });
    let user = User::of(&refusing);
    let line = format!("storage volume upload -y vms data {}", image(&user).display());
    let shown = user.on_a_terminal(&line);
    assert!(shown.contains("remote side... \r\nerror: it was cut"), "{shown:?}");
}

/// Reads what a terminal shows until a second line of progress is there, and ends what runs in it.
/// Returns the latest line.
fn second_progress(mut terminal: Child) -> String {
    let mut screen = BufReader::new(terminal.stdout.take().unwrap());
    let (mut shown, mut lines) = (Vec::new(), Vec::new());
    while lines.len() < 2 {
        let read = screen.read_until(b'K', &mut shown).unwrap();
        assert!(read > 0, "it has ended: {}", String::from_utf8_lossy(&shown));
        let text = String::from_utf8_lossy(&shown).into_owned();
        let parts = text.split('\r').filter_map(|part| part.strip_suffix("\x1b[K"));
        lines = parts.filter(|part| !part.is_empty()).map(str::to_owned).collect();
    }
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    lines.pop().unwrap()
}

/// Whether a line says of how much how much is there, how fast it goes, and for how long yet.
fn says_all(line: &str, of: &str) -> bool {
    let parts: Vec<&str> = line.split(", ").collect();
    let [gone, speed, left] = parts[..] else { return false };
    gone.contains(of) && speed.ends_with("/s") && left.ends_with(" left")
}

#[test]
fn a_terminal_shows_how_fast_an_upload_goes_and_for_how_long_yet() {
    let user = User::of(&new_server());
    let pvc = env!("CARGO_BIN_EXE_pvc");
    let typed = format!(
        "while head -c 100 /dev/zero; do sleep 0.05; done | \
         {pvc} storage volume upload -y --file-size 1000000 vms data -"
    );
    let line = second_progress(user.typed(&typed).spawn().unwrap());
    assert!(says_all(&line, " of 977K (0 %)"), "{line}");
}

/// A user whose server sends a byte of a thousand twenty times a second.
fn user_of_a_slow_server() -> User {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
        let head = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
        let mut went = head.is_ok();
        while went {
            went = stream.write_all(b"x").is_ok();
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    User::at(address)
}

#[test]
fn a_terminal_shows_how_fast_a_download_goes_and_for_how_long_yet() {
    let user = user_of_a_slow_server();
    let file = user.home.path().join("disk").display().to_string();
    let line = format!("storage volume download vms data {file}");
    let line = second_progress(user.terminal(&line).spawn().unwrap());
    assert!(says_all(&line, "B of 1000B ("), "{line}");
}

#[test]
fn a_checksum_that_differs_fails_the_upload() {
    let right = "6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d";
    let zeros = "0".repeat(64);
    for (checksum, value, fails) in [
        ("sha256", right, false),
        ("sha256", &zeros, true),
        ("crc32", "c53d045f", false),
        ("crc32", "00000000", true),
    ] {
        let reply = format!(r#"{{"message": "done", "{checksum}": "{value}"}}"#);
        let stub = Stub::start(move |request, _| match request.method.as_str() {
            "GET" => ok(DOCUMENT),
            _ => ok(reply.clone()),
        });
        let user = User::of(&stub);
        let file = image(&user).display().to_string();
        // A server makes SHA-256 only of what was announced, and so does the client.
        let announced = ["--sha256", right];
        let announced = if checksum == "sha256" { &announced[..] } else { &[] };
        let line = ["-q", "storage", "volume", "upload", "-y", "vms", "data", &file];
        let uploaded = user.run(&[&line[..], announced].concat());
        assert_eq!(code(&uploaded) != 0, fails, "{uploaded:?}");
        assert!(changes(&stub)[0].contains("file_size=5"), "{:?}", stub.lines());
        assert_eq!(err(&uploaded).contains("the server got another file"), fails, "{uploaded:?}");
    }
}
