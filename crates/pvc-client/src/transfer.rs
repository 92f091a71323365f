//! Files, in and out: as they are read or come, in pieces.

use std::io::{self, Read};
use std::time::Duration;

use pvc_api_types::operation::{Method, OctetStream, Operation};
use serde::de::DeserializeOwned;
use ureq::Body;
use ureq::http::header::TRANSFER_ENCODING;
use ureq::http::{Response, StatusCode};

use crate::answered::{self, Answered};
use crate::client::{Answer, CONNECT, Client, Late, Limits, WORK, request};
use crate::error::Error;
use crate::payload::Payload;
use crate::unhurried;

/// Time without a byte after which a file is given up, as on the server.
const SILENCE: Duration = Duration::from_secs(120);

/// Time that the server may take to make a file: it gives up after 23 hours. Nothing is heard of
/// one that has lost its power.
const MADE: Duration = Duration::from_secs(25 * 3600);

/// A boundary that no file contains but by a wonder of 128 bits, which changes with the process and
/// the moment.
fn boundary() -> String {
    use std::hash::{BuildHasher, Hasher};
    let word = || std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("pvc-{:016x}{:016x}", word(), word())
}

impl Client {
    /// Sends a file as the part `file` of a form, which PVC 1.0.3 takes as well, and reads the
    /// reply. The size of the file, in bytes, is announced if it is known. A file that the server
    /// answers in its midst is not read to its end.
    ///
    /// # Errors
    /// As for every change. What `file` cannot read is [`Error::Lost`].
    pub fn upload<O, const N: usize>(
        &self,
        _: O,
        at: [&str; N],
        params: &O::Params,
        file: impl Read,
        size: Option<u64>,
        pace: Pace,
    ) -> Result<O::Reply, Error>
    where
        O: Operation<At = [String; N]>,
        O::Reply: DeserializeOwned,
    {
        let outgoing = request::<O, N>(at, params);
        let uri = format!("{}{}", self.options.base, outgoing.path);
        let boundary = boundary();
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; \
             filename=\"filename\"\r\nContent-Type: application/octet-stream\r\n\r\n"
        );
        let tail = format!("\r\n--{boundary}--\r\n");
        let length = size.map(|size| size + (head.len() + tail.len()) as u64);
        let body = head.as_bytes().chain(file).chain(tail.as_bytes());
        let kind = format!("multipart/form-data; boundary={boundary}");
        let mut asked = self
            .asked(O::METHOD, &uri)?
            .header("Content-Type", kind)
            // A refusal comes before the file goes.
            .header("Expect", "100-continue");
        if let Some(length) = length {
            asked = asked.header("Content-Length", length.to_string());
        }
        let first = self.options.timeout.unwrap_or(WORK);
        let limits = Limits { first, body: WORK, late: Late::Unknown };
        let answered = Answered::default();
        let mut body = answered.unless(body, length);
        let agent = answered::agent(self.agent.config().clone(), answered);
        let response = asked
            .body(ureq::SendBody::from_reader(&mut body))
            .map_err(ureq::Error::from)
            .and_then(|asked| {
                let configured = agent
                    .configure_request(asked)
                    .timeout_connect(Some(CONNECT))
                    .timeout_recv_response(Some(limits.first))
                    .timeout_recv_body(Some(limits.body))
                    .timeout_per_write(Some(self.longest_pause(pace)));
                agent.run(configured.build())
            })
            .map_err(|error| self.failed(error, limits))?;
        let answer = Answer::read(response).map_err(|source| self.broken(source))?;
        Payload::new(answer.expect(StatusCode::OK)?).read()
    }

    /// Asks for bytes; returns them as they come, and how many they are, if that is said. They may
    /// be made first, for as long as that takes.
    ///
    /// # Errors
    /// As for every read. A server with whose reply it cannot be told where the bytes end is not
    /// understood.
    pub fn download<O, const N: usize>(
        &self,
        _: O,
        at: [&str; N],
        params: &O::Params,
        begin: Begin,
    ) -> Result<(impl Read + use<O, N>, Option<u64>), Error>
    where
        O: Operation<At = [String; N], Reply = OctetStream>,
    {
        let uri = format!("{}{}", self.options.base, request::<O, N>(at, params).path);
        let silence = self.silence();
        let first = match begin {
            Begin::AtOnce => silence,
            Begin::WhenMade => self.longest_pause(Pace::WithPauses),
        };
        let limits = Limits { first, body: WORK, late: Late::Unread };
        let agent = unhurried::agent(self.agent.config().clone());
        let response = self
            .asked(Method::Get, &uri)?
            .body(())
            .map_err(ureq::Error::from)
            .and_then(|asked| {
                let configured = agent
                    .configure_request(asked)
                    .timeout_connect(Some(CONNECT))
                    .timeout_recv_response(Some(limits.first))
                    .timeout_recv_body(Some(limits.body))
                    .timeout_per_read(Some(silence));
                agent.run(configured.build())
            })
            .map_err(|error| self.failed(error, limits))?;
        if response.status() != StatusCode::OK {
            return match Answer::read(response) {
                Ok(answer) => Err(answer.refusal()),
                Err(source) => Err(self.broken(source)),
            };
        }
        let size = response.body().content_length();
        if size.is_none() && !is_chunked(&response) {
            let what = "does not say how many bytes come".to_owned();
            return Err(Error::BadAnswer { what, source: None });
        }
        Ok((Whole { from: response.into_body().into_reader(), left: size, silence }, size))
    }

    /// Time without a byte of a file after which it is given up.
    fn silence(&self) -> Duration {
        self.longest_pause(Pace::Steady)
    }

    /// Time that the server may take nothing of a file for, or make one.
    fn longest_pause(&self, pace: Pace) -> Duration {
        self.options.timeout.unwrap_or(match pace {
            Pace::Steady => SILENCE,
            Pace::WithPauses => MADE,
        })
    }
}

/// Pace at which the server takes the bytes of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    Steady,
    /// Between two pieces it may work for hours with what it has.
    WithPauses,
}

/// Moment at which the bytes of a download begin to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    AtOnce,
    /// After the server has made the file.
    WhenMade,
}

/// Whether a last chunk says where the body ends.
fn is_chunked(response: &Response<Body>) -> bool {
    let coding = response.headers().get(TRANSFER_ENCODING);
    coding.is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
}

/// Bytes that must come to their announced end.
struct Whole<R> {
    from: R,
    /// Number of bytes that are left; `None` if chunks say where the end is.
    left: Option<u64>,
    /// Time that the next of them may take.
    silence: Duration,
}

impl<R: Read> Read for Whole<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into).map_err(|error| match is_timeout(&error) {
            true => {
                let words = format!("nothing came for {} seconds", self.silence.as_secs_f64());
                io::Error::new(io::ErrorKind::TimedOut, words)
            }
            false => error,
        })?;
        if let Some(left) = self.left.filter(|left| read == 0 && *left > 0 && !into.is_empty()) {
            let words = format!("the connection ended {left} bytes before the end");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, words));
        }
        self.left = self.left.map(|left| left.saturating_sub(read as u64));
        Ok(read)
    }
}

fn is_timeout(error: &io::Error) -> bool {
    let source = error.get_ref().and_then(|source| source.downcast_ref());
    matches!(source, Some(ureq::Error::Timeout(_))) || error.kind() == io::ErrorKind::TimedOut
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Options;

    #[test]
    fn a_server_that_works_with_what_it_has_is_waited_for() {
        let client = |timeout| {
            Client::new(Options {
                base: "http://127.0.0.1:1/api/v1".to_owned(),
                api_key: None,
                user_agent: "test".to_owned(),
                verify: true,
                advice: None,
                timeout,
                dry_run: false,
                observer: None,
                stale: None,
                gate: None,
            })
        };
        assert_eq!(client(None).longest_pause(Pace::Steady), SILENCE);
        assert!(client(None).longest_pause(Pace::WithPauses) > Duration::from_secs(24 * 3600));
        let said = Duration::from_secs(5);
        assert_eq!(client(Some(said)).longest_pause(Pace::WithPauses), said);
    }
}
