use std::thread;
use std::time::{Duration, Instant};

use super::{Connection, VirtError, library};

/// libvirt's answer of a non-blocking stream that can neither give nor take right now.
const WOULD_BLOCK: i32 = -2;
const PAUSE: Duration = Duration::from_millis(10);

/// A stream of bytes from and to a guest's console; closed when dropped.
pub(super) struct Stream {
    pointer: virt_sys::virStreamPtr,
}

impl Stream {
    pub(super) fn new(connection: &Connection) -> Result<Self, VirtError> {
        // Blocking streams have no deadline, so ours does not block; the event thread fills it.
        // SAFETY: the connection is valid; the reference returned is ours.
        let pointer =
            unsafe { library::virStreamNew(connection.pointer(), virt_sys::VIR_STREAM_NONBLOCK) };
        if pointer.is_null() { Err(VirtError::last()) } else { Ok(Self { pointer }) }
    }

    pub(super) fn pointer(&self) -> virt_sys::virStreamPtr {
        self.pointer
    }

    /// Sends `input`, then collects what comes until `wait` is over, at most `limit` bytes.
    pub(super) fn converse(
        &self,
        input: &[u8],
        wait: Duration,
        limit: usize,
    ) -> Result<Vec<u8>, VirtError> {
        let until = Instant::now() + wait;
        let mut unsent = input;
        let mut received = Vec::new();
        while Instant::now() < until && received.len() < limit {
            let sent = self.send(unsent)?;
            unsent = &unsent[sent..];
            let mut buffer = [0_u8; 4096];
            match self.receive(&mut buffer)? {
                Received::Bytes(count) => received.extend_from_slice(&buffer[..count]),
                Received::Nothing => thread::sleep(PAUSE),
                Received::End => break,
            }
        }
        received.truncate(limit);
        Ok(received)
    }

    /// Sends some of `bytes`. Returns how many were taken.
    fn send(&self, bytes: &[u8]) -> Result<usize, VirtError> {
        if bytes.is_empty() {
            return Ok(0);
        }
        // SAFETY: `bytes` is readable for its length during the call.
        match unsafe { library::virStreamSend(self.pointer, bytes.as_ptr().cast(), bytes.len()) } {
            WOULD_BLOCK => Ok(0),
            count => usize::try_from(count).map_err(|_| VirtError::last()),
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> Result<Received, VirtError> {
        // SAFETY: `buffer` is writable for its length during the call.
        match unsafe {
            library::virStreamRecv(self.pointer, buffer.as_mut_ptr().cast(), buffer.len())
        } {
            WOULD_BLOCK => Ok(Received::Nothing),
            0 => Ok(Received::End),
            count => usize::try_from(count).map(Received::Bytes).map_err(|_| VirtError::last()),
        }
    }
}

enum Received {
    Bytes(usize),
    Nothing,
    End,
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the last use of the pointer. Aborting a stream that never opened is a harmless
        // error.
        unsafe {
            library::virStreamAbort(self.pointer);
            library::virStreamFree(self.pointer);
        }
    }
}
