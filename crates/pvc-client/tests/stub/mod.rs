//! A tiny HTTP server on loopback that answers from a function and remembers what it was asked.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request as it arrived.
#[derive(Debug, Clone, Default)]
pub struct Received {
    pub method: String,
    /// Path and query; of a dry run those of the change.
    pub target: String,
    /// Whether it came by the path of a dry run.
    pub is_tried: bool,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// `GET /vm?limit=x`, without the prefix all requests share.
    pub fn line(&self) -> String {
        let target = self.target.strip_prefix("/api/v1").unwrap_or(&self.target);
        format!("{} {target}", self.method)
    }
}

/// Reply to a request.
pub struct Reply {
    pub status: u16,
    /// Lines beside those of every reply, each with its end.
    pub headers: String,
    pub body: String,
    /// Whether it is of a server that does not know the path of a dry run.
    is_old: bool,
}

impl Reply {
    pub fn with_headers(self, headers: &str) -> Self {
        Self { headers: headers.to_owned(), ..self }
    }

    pub fn of_an_old_server(self) -> Self {
        Self { is_old: true, ..self }
    }
}

pub fn ok(body: impl Into<String>) -> Reply {
    status(200, body)
}

pub fn status(status: u16, body: impl Into<String>) -> Reply {
    Reply { status, headers: String::new(), body: body.into(), is_old: false }
}

type Answers = dyn Fn(&Received, usize) -> Reply + Send + Sync;

/// The server; it lives as long as the test process.
pub struct Stub {
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Stub {
    /// Answers each request by `answers`, which also learns how many came before it.
    pub fn start(answers: impl Fn(&Received, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&received);
        let answers: Arc<Answers> = Arc::new(answers);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answers) = (Arc::clone(&log), Arc::clone(&answers));
                std::thread::spawn(move || serve(&stream, &log, &*answers));
            }
        });
        Self { address, received }
    }

    pub fn base(&self) -> String {
        format!("http://{}/api/v1", self.address)
    }

    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// The requests so far, one line each.
    pub fn lines(&self) -> Vec<String> {
        self.received().iter().map(Received::line).collect()
    }
}

fn serve(stream: &TcpStream, log: &Mutex<Vec<Received>>, answers: &Answers) {
    let mut reader = BufReader::new(stream);
    let Some(request) = read_request(&mut reader) else { return };
    let before = {
        let mut log = log.lock().unwrap();
        log.push(request.clone());
        log.len() - 1
    };
    let reply = answers(&request, before);
    let mut stream = stream;
    let mark = match request.is_tried && !reply.is_old {
        true => "x-pvc-dry-run: true\r\n",
        false => "",
    };
    let head = format!(
        "HTTP/1.1 {} Stub\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: \
         close\r\n{mark}{}\r\n",
        reply.status,
        reply.body.len(),
        reply.headers
    );
    let _ =
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(reply.body.as_bytes()));
}

fn read_request(reader: &mut impl BufRead) -> Option<Received> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let change = target.strip_prefix("/api/v1/dry-run/").map(|rest| format!("/api/v1/{rest}"));
    let mut request = Received {
        method,
        is_tried: change.is_some(),
        target: change.unwrap_or_else(|| target.to_owned()),
        ..Received::default()
    };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        request.headers.push((name.to_owned(), value.to_owned()));
    }
    let length =
        request.header("Content-Length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    request.body = String::from_utf8_lossy(&body).into_owned();
    Some(request)
}
