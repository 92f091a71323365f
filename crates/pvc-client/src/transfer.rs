//! Files, in and out: as they are read or come, in pieces.

use std::io::{self, Read};

use pvc_api_types::operation::{Method, OctetStream, Operation};
use serde::de::DeserializeOwned;
use ureq::http::{HeaderValue, Request, StatusCode};

use crate::client::{Answer, Client, Late, Limits, WORK, request, unsendable_key};
use crate::error::Error;
use crate::payload::Payload;

/// A boundary that no file contains but by a wonder of 128 bits, which changes with the process and
/// the moment.
fn boundary() -> String {
    use std::hash::{BuildHasher, Hasher};
    let word = || std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("pvc-{:016x}{:016x}", word(), word())
}

impl Client {
    /// Sends a file as the part `file` of a form, which PVC 1.0.3 takes as well, and reads the
    /// reply. The size of the file, in bytes, is announced if it is known.
    ///
    /// # Errors
    /// As for every change. What `file` cannot read is [`Error::Lost`].
    pub fn upload<O, const N: usize>(
        &self,
        _: O,
        at: [&str; N],
        params: &O::Params,
        mut file: impl Read,
        size: Option<u64>,
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
        let around = (head.len() + tail.len()) as u64;
        let mut body = head.as_bytes().chain(file.by_ref()).chain(tail.as_bytes());
        let kind = format!("multipart/form-data; boundary={boundary}");
        let mut asked = Request::builder()
            .method(O::METHOD.as_str())
            .uri(&uri)
            .header("Content-Type", kind)
            // A refusal comes before the file goes.
            .header("Expect", "100-continue");
        if let Some(size) = size {
            asked = asked.header("Content-Length", (size + around).to_string());
        }
        if let Some(key) = &self.options.api_key {
            asked = asked
                .header("X-Api-Key", HeaderValue::from_str(key).map_err(|_| unsendable_key())?);
        }
        let limits = Limits { first: WORK, body: WORK, late: Late::Unknown };
        let response = asked
            .body(ureq::SendBody::from_reader(&mut body))
            .map_err(ureq::Error::from)
            .and_then(|asked| self.go(asked, limits))
            .map_err(|error| self.failed(error, limits))?;
        let answer = Answer::read(response).map_err(|source| self.broken(source))?;
        Payload::new(answer.expect(StatusCode::OK)?).read()
    }

    /// Asks for bytes; returns them as they come, and how many they are.
    ///
    /// # Errors
    /// As for every read. A server that does not say how many bytes come is not understood.
    pub fn download<O, const N: usize>(
        &self,
        _: O,
        at: [&str; N],
        params: &O::Params,
    ) -> Result<(impl Read + use<O, N>, u64), Error>
    where
        O: Operation<At = [String; N], Reply = OctetStream>,
    {
        let uri = format!("{}{}", self.options.base, request::<O, N>(at, params).path);
        let limits = Limits { first: WORK, body: WORK, late: Late::Unread };
        let response = self.ask(Method::Get, &uri, None, limits)?;
        if response.status() != StatusCode::OK {
            return match Answer::read(response) {
                Ok(answer) => Err(answer.refusal()),
                Err(source) => Err(self.broken(source)),
            };
        }
        let size = response.body().content_length().ok_or_else(|| Error::BadAnswer {
            what: "does not say how many bytes come".to_owned(),
            source: None,
        })?;
        Ok((Whole { from: response.into_body().into_reader(), left: size }, size))
    }
}

/// Bytes that must come to their announced end.
struct Whole<R> {
    from: R,
    left: u64,
}

impl<R: Read> Read for Whole<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        if read == 0 && self.left > 0 && !into.is_empty() {
            let words = format!("the connection ended {} bytes before the end", self.left);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, words));
        }
        self.left = self.left.saturating_sub(read as u64);
        Ok(read)
    }
}
