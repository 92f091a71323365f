//! A safe layer over the part of libvirt's C interface that PVC uses: all `unsafe` of the crate is
//! below here, and nothing below here knows tokio, deadlines or ports.
//!
//! Every function blocks and may block for ever; who calls it decides on which thread that is.
//!
//! Memory rules: each wrapper owns exactly one reference, given back in `Drop`, which neither
//! panics nor reports. What a callback needs is boxed and freed by libvirt through the callback's
//! own free function. libvirt is thread-safe and multiplexes calls on one connection, so wrappers
//! are `Send` and `Sync`; its *errors* belong to the thread, so each is read right where the call
//! failed.

#![allow(
    clippy::disallowed_methods,
    reason = "these threads are this crate's own and wait on real time; no simulation comes here"
)]

mod connection;
mod domain;
mod error;
mod event_loop;
mod library;
mod stream;

pub(crate) use connection::{Connection, DomainEvent, Then};
pub(crate) use domain::{AgentInterface, Domain, Param, Record};
pub(crate) use error::{Kind, VirtError};

use std::ffi::{CStr, CString, c_char, c_void};

/// `text` for C. A zero byte inside cannot be passed on and is a mistake of whoever sent it.
fn c_text(text: &str) -> Result<CString, VirtError> {
    CString::new(text).map_err(|_| VirtError::ours("a text for libvirt contains a zero byte"))
}

/// A text that C allocated with `malloc` and handed over.
///
/// # Safety
/// `text` is null or such a text, and nobody else frees it.
unsafe fn owned_text(text: *mut c_char) -> Result<String, VirtError> {
    if text.is_null() {
        return Err(VirtError::last());
    }
    // SAFETY: not null, so by this function's contract a C text that is ours to read and free.
    unsafe {
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        free(text.cast());
        Ok(copy)
    }
}

unsafe extern "C" {
    /// C's own, for what libvirt has allocated and handed over.
    fn free(memory: *mut c_void);
}
