use std::ffi::CStr;
use std::fmt;

/// What libvirt said about the last call that failed on this thread.
#[derive(Debug, Clone)]
pub(crate) struct VirtError {
    code: u32,
    domain: u32,
    message: String,
}

/// As much as a caller distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The connection is gone or was never there.
    Connection,
    /// No such guest.
    NoDomain,
    /// The guest is there but not running.
    NotRunning,
    /// libvirt itself waited for the guest too long.
    Busy,
    /// The thing exists already.
    Exists,
    Other,
}

impl VirtError {
    /// The error of the call that just failed on this very thread.
    pub(super) fn last() -> Self {
        // SAFETY: the pointer is null or points into this thread's storage until the next call.
        unsafe {
            let error = virt_sys::virGetLastError();
            if error.is_null() {
                return Self::ours("libvirt failed without saying why");
            }
            let message = if (*error).message.is_null() {
                "libvirt failed without saying why".to_owned()
            } else {
                CStr::from_ptr((*error).message).to_string_lossy().into_owned()
            };
            Self { code: (*error).code.cast_unsigned(), domain: (*error).domain.cast_unsigned(), message }
        }
    }

    /// An error found before libvirt was asked.
    pub(crate) fn ours(message: impl Into<String>) -> Self {
        Self { code: virt_sys::VIR_ERR_INVALID_ARG, domain: virt_sys::VIR_FROM_NONE, message: message.into() }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.code {
            virt_sys::VIR_ERR_NO_DOMAIN => Kind::NoDomain,
            virt_sys::VIR_ERR_OPERATION_INVALID => Kind::NotRunning,
            virt_sys::VIR_ERR_OPERATION_TIMEOUT => Kind::Busy,
            virt_sys::VIR_ERR_DOM_EXIST => Kind::Exists,
            virt_sys::VIR_ERR_NO_CONNECT | virt_sys::VIR_ERR_INVALID_CONN | virt_sys::VIR_ERR_RPC => {
                Kind::Connection
            }
            // A socket that broke under a call is reported as an internal or system error of the RPC layer.
            _ if self.domain == virt_sys::VIR_FROM_RPC => Kind::Connection,
            _ => Kind::Other,
        }
    }
}

impl fmt::Display for VirtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.trim_end_matches('\n'))
    }
}
