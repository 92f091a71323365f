//! A client that costs next to nothing: one connection kept open, one request at a time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;

use anyhow::{Context, Error, Result, anyhow, ensure};

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

    /// Takes the reply to `GET path` and forgets it, a part at a time; returns its length in bytes.
    pub fn download(&mut self, path: &str) -> Result<u64> {
        self.send("GET", path)?;
        let head = self.head()?;
        if head.status != 200 {
            return Err(self.refusal("GET", path, &head));
        }
        let announced = head.length as u64;
        let length = io::copy(&mut (&mut self.stream).take(announced), &mut io::sink())?;
        ensure!(length == announced, "`GET {path}` ended after {length} of {announced} bytes");
        Ok(length)
    }

    /// Sends the file at `image` as the only field of a form.
    pub fn post_file(&mut self, path: &str, image: &Path) -> Result<&[u8]> {
        let sent = self.send_file(path, File::open(image)?);
        let answered = self.reply("POST", path);
        match sent {
            Ok(()) => answered,
            // A server that refuses a file answers in its midst, and closes the connection: why it
            // did so says more than the broken pipe.
            Err(error) => {
                let why = answered.err().unwrap_or_else(|| anyhow!("it was answered 200"));
                Err(why.context(format!("`{}` did not go whole: {error}", image.display())))
            }
        }
    }

    fn send_file(&mut self, path: &str, mut file: File) -> Result<()> {
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
        io::copy(&mut file, stream)?;
        stream.write_all(end.as_bytes())?;
        Ok(())
    }

    fn request(&mut self, method: &str, path: &str) -> Result<&[u8]> {
        self.send(method, path)?;
        self.reply(method, path)
    }

    fn send(&mut self, method: &str, path: &str) -> Result<()> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: {}\r\nContent-Length: \
             0\r\n\r\n",
            super::KEY
        );
        Ok(self.stream.get_mut().write_all(request.as_bytes())?)
    }

    fn reply(&mut self, method: &str, path: &str) -> Result<&[u8]> {
        let head = self.head()?;
        if head.status != 200 {
            return Err(self.refusal(method, path, &head));
        }
        self.read_body(&head)?;
        Ok(&self.body)
    }

    /// The error of a reply that is anything but 200.
    fn refusal(&mut self, method: &str, path: &str, head: &Head) -> Error {
        if let Err(error) = self.read_body(head) {
            return error.into();
        }
        let said = String::from_utf8_lossy(&self.body);
        anyhow!("`{method} {path}` was answered {}: {said}", head.status)
    }

    fn read_body(&mut self, head: &Head) -> io::Result<()> {
        self.body.resize(head.length, 0);
        self.stream.read_exact(&mut self.body)
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

    #[test]
    fn the_reason_of_a_refusal_in_the_midst_of_a_file_is_read() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = Client::connect(listener.local_addr().unwrap().port()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        // More than the buffers of both ends.
        File::create(&image).unwrap().set_len(256 << 20).unwrap();
        let refusing = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 400 No\r\ncontent-length: 6\r\n\r\nno, no").unwrap();
        });
        let refused = client.post_file("/api", &image).map(<[u8]>::len).unwrap_err();
        refusing.join().unwrap();
        let said = format!("{refused:#}");
        assert!(said.contains("did not go whole"), "{said}");
        assert!(said.ends_with("`POST /api` was answered 400: no, no"), "{said}");
    }

    #[test]
    fn a_download_is_counted_and_must_be_whole() {
        let port = answering([
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        ]);
        let mut client = Client::connect(port).unwrap();
        assert_eq!(client.download("/").unwrap(), 3);
        let error = client.download("/").unwrap_err();
        assert_eq!(error.to_string(), "`GET /` ended after 5 of 9 bytes");
    }
}
