//! The stream of what changes.

use std::io::{BufRead, BufReader, Read};

use pvc_api_types::Event;
use pvc_api_types::operations::event::{Cursor, GetEvents};

use crate::client::Client;
use crate::error::Error;

/// No line of the stream comes near this; whatever does is none of its events.
const LONGEST_LINE: u64 = 1 << 20;

impl Client {
    /// Calls `seen` for each event until the stream ends, which it does when the API does. `cursor`
    /// is where to go on, and is moved along; without one the stream begins now.
    ///
    /// # Errors
    /// As for every read. A stream that breaks is [`Error::Lost`]; the cursor says where to go on.
    pub fn events(
        &self,
        cursor: &mut Option<String>,
        mut seen: impl FnMut(&Event, &str),
    ) -> Result<(), Error> {
        let stream = self.stream(GetEvents, [], &Cursor { cursor: cursor.clone() })?;
        let mut reader = BufReader::new(stream);
        let mut data = String::new();
        loop {
            let mut line = Vec::new();
            let read = reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
            if read.map_err(|source| self.broken(source))? == 0 {
                return Ok(());
            }
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            match line
                .split_once(':')
                .map_or((line, ""), |(name, value)| (name, value.trim_start()))
            {
                ("id", value) => *cursor = Some(value.to_owned()),
                ("data", value) => data.push_str(value),
                ("", _) if line.is_empty() => {
                    if let Ok(event) = serde_json::from_str(&data) {
                        seen(&event, &data);
                    }
                    data.clear();
                }
                _ => {}
            }
            if data.len() as u64 > LONGEST_LINE {
                return Err(Error::BadAnswer {
                    what: "is no stream of events".to_owned(),
                    source: None,
                });
            }
        }
    }
}
