//! Debian's archive, for tests whose networks lead nowhere.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

/// Threads that stay in the network of whoever began them, and ask from there what they are asked
/// in others.
#[derive(Debug)]
pub struct Archive {
    /// Path of the archive on its host.
    path: String,
    listeners: Sender<TcpListener>,
}

impl Archive {
    /// Asks from the network that the calling thread is in now, whatever network it has later.
    pub fn from_here() -> Archive {
        let (host, path) = mirror();
        let (listeners, served) = mpsc::channel::<TcpListener>();
        // It stays in the network of the thread that makes it, and so do those that it makes.
        thread::spawn(move || {
            for listener in served {
                let host = host.clone();
                thread::spawn(move || serve(&listener, &host));
            }
        });
        Archive { path, listeners }
    }

    /// Serves whoever comes to `listener`, of whichever network. Returns the archive's address for
    /// them, as apt takes it.
    pub fn at(&self, listener: TcpListener) -> String {
        let address = listener.local_addr().expect("it is bound");
        self.listeners.send(listener).expect("the thread waits for it");
        format!("http://{address}{}", self.path)
    }
}

/// Host and path of the archive that this machine's own packages come from by HTTP.
fn mirror() -> (String, String) {
    let files = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
    let files = files.map(|file| file.path()).chain([PathBuf::from("/etc/apt/sources.list")]);
    let texts: Vec<String> = files.filter_map(|file| fs::read_to_string(file).ok()).collect();
    let lines = texts.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#'));
    let mut addresses = lines.flat_map(str::split_whitespace).filter_map(|word| {
        let (host, path) = word.strip_prefix("http://")?.trim_end_matches('/').split_once('/')?;
        path.ends_with("debian").then(|| (host.to_owned(), format!("/{path}")))
    });
    addresses.next().unwrap_or_else(|| ("deb.debian.org".to_owned(), "/debian".to_owned()))
}

fn serve(listener: &TcpListener, host: &str) {
    for asked in listener.incoming().flatten() {
        let host = host.to_owned();
        thread::spawn(move || pass(asked, &host));
    }
}

/// Passes one request on to the archive under its name, and the reply back.
fn pass(mut asked: TcpStream, host: &str) -> io::Result<()> {
    let mut archive = match host.contains(':') {
        true => TcpStream::connect(host)?,
        false => TcpStream::connect((host, 80))?,
    };
    for stream in [&asked, &archive] {
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    }
    let mut head = BufReader::new(asked.try_clone()?.take(64 << 10));
    loop {
        let mut line = String::new();
        head.read_line(&mut line)?;
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        match name.as_str() {
            "host" => write!(archive, "Host: {host}\r\n")?,
            // Then the reply ends with the connection.
            "connection" => {}
            _ if line.trim().is_empty() => break write!(archive, "Connection: close\r\n\r\n")?,
            _ => archive.write_all(line.as_bytes())?,
        }
    }
    io::copy(&mut archive, &mut asked)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback is up");
        let address = listener.local_addr().expect("it is bound");
        (listener, address)
    }

    #[test]
    fn a_request_goes_on_under_the_archives_name_and_is_the_last_of_its_connection() {
        let ((archive, at), (proxy, near)) = (listener(), listener());
        let host = at.to_string();
        thread::spawn({
            let host = host.clone();
            move || serve(&proxy, &host)
        });
        let mut asked = TcpStream::connect(near).expect("it listens");
        let request = "GET /debian/x HTTP/1.1\r\nHost: here\r\nConnection: keep-alive\r\n\r\n";
        asked.write_all(request.as_bytes()).expect("it reads");

        let (mut archive, _) = archive.accept().expect("it is asked");
        let expected =
            format!("GET /debian/x HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let mut passed = vec![0; expected.len()];
        archive.read_exact(&mut passed).expect("all of it is passed on");
        assert_eq!(String::from_utf8_lossy(&passed), expected);
        archive.write_all(b"HTTP/1.1 200 OK\r\n\r\nit").expect("it is read");
        drop(archive);

        let mut answer = String::new();
        asked.read_to_string(&mut answer).expect("it ends");
        assert_eq!(answer, "HTTP/1.1 200 OK\r\n\r\nit");
    }
}
