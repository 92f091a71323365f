//! Files that the client sends and takes, and servers that refuse, end or fall silent in the midst.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed"
)]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use pvc_api_types::Uploaded;
use pvc_api_types::operations::storage::{
    GetStorageCephVolumePoolVolumeDownload, PostStorageCephVolumePoolVolumeUpload, VolumeDownload,
    VolumeUpload,
};
use pvc_api_types::param::Added;
use pvc_client::{Begin, Client, Error, Options, Pace};

const GO_ON: &str = "HTTP/1.1 100 Continue\r\n\r\n";

/// A server for one connection: its base, and what `serve` makes of the connection.
fn server<T: Send + 'static>(
    serve: impl FnOnce(Connection) -> T + Send + 'static,
) -> (String, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}/api/v1", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let stream = listener.accept().unwrap().0;
        serve(Connection { reader: BufReader::new(stream.try_clone().unwrap()), stream })
    });
    (base, served)
}

struct Connection {
    reader: BufReader<TcpStream>,
    stream: TcpStream,
}

impl Connection {
    /// The lines before the body.
    fn head(&mut self) -> Vec<String> {
        let lines = self.reader.by_ref().lines().map(Result::unwrap);
        lines.take_while(|line| !line.is_empty()).collect()
    }

    fn say(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut taken = vec![0; bytes];
        self.reader.read_exact(&mut taken).unwrap();
        taken
    }
}

fn header<'a>(head: &'a [String], name: &str) -> Option<&'a str> {
    let pairs = head.iter().filter_map(|line| line.split_once(": "));
    pairs.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
}

fn reply(status: u16, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} Stub\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

fn client(base: String, timeout: Option<Duration>) -> Client {
    Client::new(Options {
        base,
        api_key: Some("secret".to_owned()),
        user_agent: "pvc-client-cli/0.0.0".to_owned(),
        verify: true,
        advice: None,
        timeout,
        dry_run: false,
        observer: None,
        stale: None,
        gate: None,
    })
}

fn upload(client: &Client, file: impl Read, size: Option<u64>) -> Result<Uploaded, Error> {
    let params = VolumeUpload {
        image_format: "qcow2".to_owned(),
        file_size: size,
        sha256: None,
        force: Added(false),
    };
    let operation = PostStorageCephVolumePoolVolumeUpload;
    client.upload(operation, ["vms", "data"], &params, file, size, Pace::Steady)
}

/// Bytes that come of a download, to its end.
fn download(client: &Client) -> Result<io::Result<Vec<u8>>, Error> {
    let operation = GetStorageCephVolumePoolVolumeDownload;
    let (mut from, size) =
        client.download(operation, ["vms", "data"], &VolumeDownload::default(), Begin::AtOnce)?;
    let mut bytes = Vec::new();
    let read = from.read_to_end(&mut bytes);
    let is_whole = |bytes: &Vec<u8>| size.is_none_or(|size| size == bytes.len() as u64);
    Ok(read.map(|_| bytes).inspect(|bytes| assert!(is_whole(bytes), "{size:?}")))
}

const DONE: &str = r#"{"message": "done", "file_bytes": 5, "sha256": ""}"#;

#[test]
fn a_file_goes_as_the_part_that_pvc_1_0_3_reads() {
    let (base, served) = server(|mut connection| {
        let head = connection.head();
        connection.say(GO_ON);
        let length = header(&head, "Content-Length").unwrap().parse().unwrap();
        let body = String::from_utf8(connection.take(length)).unwrap();
        connection.say(&reply(200, DONE));
        (head, body)
    });
    let uploaded = upload(&client(base, None), &b"image"[..], Some(5)).unwrap();
    assert_eq!(uploaded.message, "done");
    let (head, body) = served.join().unwrap();
    let line = "POST /api/v1/storage/ceph/volume/vms/data/upload?image_format=qcow2&file_size=5";
    assert_eq!(head[0], format!("{line} HTTP/1.1"));
    assert_eq!(header(&head, "X-Api-Key"), Some("secret"));
    assert_eq!(header(&head, "Transfer-Encoding"), None);
    let kind = header(&head, "Content-Type").unwrap();
    let boundary = kind.strip_prefix("multipart/form-data; boundary=").unwrap();
    assert_eq!(
        body,
        format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; \
             filename=\"filename\"\r\nContent-Type: application/octet-stream\r\n\r\nimage\r\n\
             --{boundary}--\r\n"
        )
    );
}

#[test]
fn a_file_of_unknown_size_goes_in_chunks() {
    let (base, served) = server(|mut connection| {
        let head = connection.head();
        connection.say(GO_ON);
        let mut image = Vec::new();
        loop {
            let mut length = String::new();
            connection.reader.read_line(&mut length).unwrap();
            let length = usize::from_str_radix(length.trim_end(), 16).unwrap();
            image.extend(connection.take(length));
            connection.take(2);
            if length == 0 {
                break;
            }
        }
        connection.say(&reply(200, DONE));
        (head, image)
    });
    upload(&client(base, None), io::repeat(b'x').take(3 << 20), None).unwrap();
    let (head, body) = served.join().unwrap();
    assert_eq!(header(&head, "Transfer-Encoding"), Some("chunked"));
    assert_eq!(header(&head, "Content-Length"), None);
    assert!(body.ends_with(b"--\r\n"));
    assert!(body.len() > 3 << 20 && body.len() < (3 << 20) + 1000, "{}", body.len());
}

/// A file that nobody may read.
struct Unread;

impl Read for Unread {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        panic!("the file is read, though it is refused")
    }
}

#[test]
fn a_file_that_is_refused_beforehand_is_not_read() {
    let (base, served) = server(|mut connection| {
        connection.head();
        connection.say(&reply(409, r#"{"message": "volume `data` is in use"}"#));
    });
    let refused = upload(&client(base, None), Unread, Some(1 << 40)).unwrap_err();
    assert_eq!(refused.to_string(), "volume `data` is in use");
    served.join().unwrap();
}

/// Refuses after 64 KiB of the file, without reading the rest: the connection is reset.
fn refuse_midway(mut connection: Connection) {
    connection.head();
    connection.say(GO_ON);
    connection.take(64 << 10);
    connection.say(&reply(400, r#"{"message": "the image is damaged"}"#));
}

#[test]
fn a_refusal_in_the_midst_of_a_file_is_read() {
    let all = 1 << 30;
    for size in [Some(all), None] {
        let (base, served) = server(refuse_midway);
        let file = io::repeat(b'x').take(all);
        let refused = upload(&client(base, None), file, size).unwrap_err();
        assert_eq!(refused.to_string(), "the image is damaged", "{size:?}: {refused:?}");
        served.join().unwrap();
    }
}

#[test]
fn what_is_left_of_a_refused_file_is_not_read() {
    let all = 1 << 40;
    for size in [Some(all), None] {
        let (base, served) = server(refuse_midway);
        let mut file = io::repeat(b'x').take(all);
        upload(&client(base, None), &mut file, size).unwrap_err();
        assert!(all - file.limit() < 1 << 30, "{} bytes were read", all - file.limit());
        served.join().unwrap();
    }
}

#[test]
fn a_connection_that_is_lost_in_the_midst_of_a_file_is_no_refusal() {
    let (base, served) = server(|mut connection| {
        connection.head();
        connection.say(GO_ON);
        connection.take(64 << 10);
    });
    let lost = upload(&client(base, None), io::repeat(b'x').take(1 << 28), Some(1 << 28));
    assert!(matches!(lost, Err(Error::Lost { changing: true, .. })), "{lost:?}");
    served.join().unwrap();
}

#[test]
fn a_server_that_takes_no_more_of_a_file_is_given_up() {
    let (base, served) = server(|mut connection| {
        connection.head();
        connection.say(GO_ON);
        connection
    });
    let timeout = Some(Duration::from_millis(300));
    let lost = upload(&client(base, timeout), io::repeat(b'x').take(1 << 28), Some(1 << 28));
    assert!(matches!(lost, Err(Error::Lost { changing: true, .. })), "{lost:?}");
    drop(served.join().unwrap());
}

#[test]
fn a_download_has_as_many_bytes_as_were_announced() {
    let (base, served) = server(|mut connection| {
        let head = connection.head();
        connection.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nimage");
        head
    });
    assert_eq!(download(&client(base, None)).unwrap().unwrap(), b"image");
    let line = "GET /api/v1/storage/ceph/volume/vms/data/download HTTP/1.1";
    assert_eq!(served.join().unwrap()[0], line);
}

#[test]
fn a_download_that_ends_early_is_an_error() {
    let (base, served) = server(|mut connection| {
        connection.head();
        connection.say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nimage");
    });
    let error = download(&client(base, None)).unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error:?}");
    served.join().unwrap();
}

#[test]
fn a_download_of_unknown_size_is_not_begun() {
    let (base, served) = server(|mut connection| {
        connection.head();
        connection.say("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nimage");
    });
    let error = download(&client(base, None)).unwrap_err();
    assert!(matches!(error, Error::BadAnswer { .. }), "{error:?}");
    served.join().unwrap();
}

#[test]
fn a_server_that_falls_silent_in_a_download_is_given_up() {
    let (base, served) = server(|mut connection| {
        connection.head();
        connection.say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nimage");
        connection
    });
    let timeout = Some(Duration::from_millis(300));
    let error = download(&client(base, timeout)).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "nothing came for 0.3 seconds");
    drop(served.join().unwrap());
}

/// Bytes of a download whose reply is this.
fn downloaded(reply: &'static str) -> Result<io::Result<Vec<u8>>, Error> {
    let (base, served) = server(move |mut connection| {
        connection.head();
        connection.say(reply);
    });
    let downloaded = download(&client(base, None));
    served.join().unwrap();
    downloaded
}

#[test]
fn a_download_in_chunks_has_an_end_or_is_cut() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nimage\r\n0\r\n\r\n";
    assert_eq!(downloaded(chunked).unwrap().unwrap(), b"image");
    let head = chunked.find("5\r\n").unwrap();
    for end in head..chunked.len() - 4 {
        let cut = downloaded(&chunked[..end]).unwrap();
        assert!(cut.is_err(), "{:?} is taken for whole", &chunked[..end]);
    }
}

#[test]
fn an_image_that_is_made_first_may_take_its_time_but_not_longer_than_is_said() {
    let (base, served) = server(|mut connection| {
        connection.head();
        connection
    });
    let client = client(base, Some(Duration::from_millis(300)));
    let operation = GetStorageCephVolumePoolVolumeDownload;
    let params = VolumeDownload::default();
    let late = client.download(operation, ["vms", "data"], &params, Begin::WhenMade).err();
    assert!(matches!(late, Some(Error::Silent { .. })), "{late:?}");
    drop(served.join().unwrap());
}
