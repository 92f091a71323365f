//! The HTTP API as any client sees it.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;
use ureq::http::{Method, Request};

/// Answer to a call.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub text: String,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// The `message` of the answer, be it text or an object.
    #[track_caller]
    pub fn message(&self) -> String {
        match &self.json()["message"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    #[track_caller]
    pub fn ok(self) -> Answer {
        assert!((200..300).contains(&self.status), "{self:?}");
        self
    }

    /// A refusal that says why, with one of these statuses.
    #[track_caller]
    pub fn refused(&self, allowed: &[u16]) -> String {
        assert!(allowed.contains(&self.status), "not one of {allowed:?}: {self:?}");
        let message = self.message();
        assert!(message.len() > 8 && message != "null", "no message that helps: {self:?}");
        message
    }
}

/// A client with a token.
#[derive(Debug, Clone)]
pub struct Api {
    pub port: u16,
    pub token: String,
}

type Fields<'a> = &'a [(&'a str, &'a str)];

impl Api {
    pub fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &[], &[])
    }

    pub fn post(&self, path: &str, query: Fields<'_>) -> Answer {
        self.call("POST", path, query, &[])
    }

    /// Makes one call below `/api/v1`, with parameters in the query and a form as the body. A
    /// client that waits longer than two minutes fails the test.
    pub fn call(&self, method: &str, path: &str, query: Fields<'_>, form: Fields<'_>) -> Answer {
        self.try_call(method, path, query, form)
            .unwrap_or_else(|error| panic!("{method} {path} was not answered: {error}"))
    }

    /// Calls as [`call`](Api::call) does, where there may be no answer at all.
    pub fn try_call(
        &self,
        method: &str,
        path: &str,
        query: Fields<'_>,
        form: Fields<'_>,
    ) -> Result<Answer, ureq::Error> {
        let mut uri = format!("http://127.0.0.1:{}/api/v1{path}", self.port);
        if !query.is_empty() {
            let separator = if path.contains('?') { '&' } else { '?' };
            uri.push(separator);
            uri.push_str(&encoded(query));
        }
        let mut request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).expect("tests use proper methods"))
            .uri(uri)
            .header("X-Api-Key", &self.token);
        if !form.is_empty() {
            request = request.header("Content-Type", "application/x-www-form-urlencoded");
        }
        let request = request.body(encoded(form)).expect("tests make proper requests");
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .timeout_connect(Some(Duration::from_secs(5)))
            .timeout_global(Some(Duration::from_secs(120)))
            .max_redirects(0)
            .build()
            .into();
        let mut response = agent.run(request)?;
        let status = response.status().as_u16();
        let text = response.body_mut().with_config().limit(256 << 20).read_to_string()?;
        Ok(Answer { status, text })
    }

    /// Sends a head as it is, then `body` until it ends or the server answers, and returns the
    /// answer and how many bytes of the body went out. For what no proper client would send.
    pub fn raw(&self, head: &str, mut body: impl Read) -> io::Result<(Answer, u64)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.write_all(head.as_bytes())?;
        stream.set_read_timeout(Some(Duration::from_millis(1)))?;
        let mut answer = Vec::new();
        let mut sent = 0;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let length = body.read(&mut buffer)?;
            if length == 0 || stream.write_all(&buffer[..length]).is_err() {
                break;
            }
            sent += length as u64;
            if read_some(&mut stream, &mut answer)? {
                break;
            }
        }
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        // A server that has refused may cut the connection while we still send.
        while !is_whole(&answer) {
            if !read_some(&mut stream, &mut answer)? {
                break;
            }
        }
        Ok((parse(&answer), sent))
    }
}

/// Whether something came.
fn read_some(stream: &mut TcpStream, answer: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    match stream.read(&mut buffer) {
        Ok(0) => Ok(false),
        Ok(length) => {
            answer.extend_from_slice(&buffer[..length]);
            Ok(true)
        }
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
        {
            Ok(false)
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !answer.is_empty() => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    length.is_some_and(|length| body.len() >= length)
}

fn parse(answer: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    Answer { status, text: body.to_owned() }
}

fn encoded(fields: Fields<'_>) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}
