//! libvirt's event loop: one per process, and it must be there before the first connection is
//! opened, or connections have neither keepalive nor events and the daemon drops them as dead.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::{ptr, thread, time::Duration};

use super::{VirtError, library};

/// Starts the event loop's thread, once per process; it runs until the process ends.
pub(super) fn ensure() -> Result<(), VirtError> {
    static STARTED: OnceLock<Result<(), VirtError>> = OnceLock::new();
    STARTED.get_or_init(start).clone()
}

fn start() -> Result<(), VirtError> {
    library::open()?;
    // SAFETY: called once, before any other use of libvirt; both callbacks are plain functions
    // without state.
    unsafe {
        library::virSetErrorFunc(ptr::null_mut(), Some(stay_silent));
        if library::virInitialize() < 0 || library::virEventRegisterDefaultImpl() < 0 {
            return Err(VirtError::last());
        }
        // Without any timer an idle loop sleeps for ever in poll(2) and would not notice that it
        // failed.
        if library::virEventAddTimeout(1000, Some(tick), ptr::null_mut(), None) < 0 {
            return Err(VirtError::last());
        }
    }
    thread::Builder::new().name("libvirt-events".to_owned()).spawn(run).map(|_| ()).map_err(
        |error| {
            VirtError::ours(format!(
                "the thread for libvirt's events could not be started: {error}"
            ))
        },
    )
}

fn run() {
    loop {
        // SAFETY: the default implementation was registered; only this thread runs it.
        if unsafe { library::virEventRunDefaultImpl() } < 0 {
            tracing::warn!(error = %VirtError::last(), "libvirt's event loop failed once");
            thread::sleep(Duration::from_secs(1));
        }
    }
}

unsafe extern "C" fn tick(_timer: c_int, _opaque: *mut c_void) {}

/// libvirt would otherwise print each error on stderr; ours are returned.
unsafe extern "C" fn stay_silent(_opaque: *mut c_void, _error: virt_sys::virErrorPtr) {}
