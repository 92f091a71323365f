//! A client that costs next to nothing: one connection kept open, one request at a time.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// Line between the fields of a form.
const BOUNDARY: &str = "pvc-bench-0123456789abcdef";

pub struct Client {
    stream: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Client {
    pub fn connect(port: u16) -> Result<Client> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        Ok(Client { stream: BufReader::with_capacity(64 << 10, stream), body: Vec::new() })
    }

    /// The body of the reply to `GET path`.
    ///
    /// # Errors
    /// If the reply is anything but 200: a refusal is made faster than an answer.
    pub fn get(&mut self, path: &str) -> Result<&[u8]> {
        self.request("GET", path)
    }

    pub fn post(&mut self, path: &str) -> Result<&[u8]> {
        self.request("POST", path)
    }

    /// Sends the file at `image` as the only field of a form.
    pub fn post_file(&mut self, path: &str, image: &Path) -> Result<&[u8]> {
        let mut file = File::open(image)?;
        let begin = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; \
             filename=\"image\"\r\n\r\n"
        );
        let end = format!("\r\n--{BOUNDARY}--\r\n");
        let length = begin.len() as u64 + file.metadata()?.len() + end.len() as u64;
        let stream = self.stream.get_mut();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: {}\r\nContent-Type: \
             multipart/form-data; boundary={BOUNDARY}\r\nContent-Length: {length}\r\n\r\n{begin}",
            super::KEY
        );
        stream.write_all(request.as_bytes())?;
        std::io::copy(&mut file, stream)?;
        stream.write_all(end.as_bytes())?;
        self.reply("POST", path)
    }

    fn request(&mut self, method: &str, path: &str) -> Result<&[u8]> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: {}\r\nContent-Length: \
             0\r\n\r\n",
            super::KEY
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.reply(method, path)
    }

    fn reply(&mut self, method: &str, path: &str) -> Result<&[u8]> {
        let head = self.head()?;
        self.body.resize(head.length, 0);
        self.stream.read_exact(&mut self.body)?;
        if head.status != 200 {
            bail!(
                "`{method} {path}` was answered {}: {}",
                head.status,
                String::from_utf8_lossy(&self.body)
            );
        }
        Ok(&self.body)
    }

    fn head(&mut self) -> Result<Head> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.with_context(|| format!("`{}` is no reply of HTTP", line.trim()))?;
        let mut length = None;
        loop {
            line.clear();
            ensure!(
                self.stream.read_line(&mut line)? > 0,
                "the connection was closed inside a reply"
            );
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse()?);
            }
        }
        Ok(Head { status, length: length.context("the reply does not say its length")? })
    }
}

struct Head {
    status: u16,
    length: usize,
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers each request on one connection with the next of `replies`.
    fn answering(replies: [&'static str; 2]) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut requests = BufReader::new(stream);
            for reply in replies {
                let mut line = String::new();
                while line != "\r\n" {
                    line.clear();
                    requests.read_line(&mut line).unwrap();
                }
                requests.get_mut().write_all(reply.as_bytes()).unwrap();
            }
        });
        port
    }

    #[test]
    fn one_connection_carries_one_reply_after_the_other() {
        let port = answering([
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ]);
        let mut client = Client::connect(port).unwrap();
        assert_eq!(client.get("/").unwrap(), b"one");
        assert_eq!(client.get("/").unwrap(), b"");
    }

    #[test]
    fn a_refusal_is_not_measured() {
        let port = answering(["HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno", ""]);
        let error = Client::connect(port).unwrap().get("/api").map(<[u8]>::len).unwrap_err();
        assert_eq!(error.to_string(), "`GET /api` was answered 404: no");
    }
}
