use std::ffi::CStr;
use std::fmt;

use super::library;

/// Error of libvirt about the last call that failed on this thread.
#[derive(Debug, Clone)]
pub(crate) struct VirtError {
    code: u32,
    domain: u32,
    message: String,
}

/// Kinds of errors, as far as callers distinguish them.
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
    /// The guest has no such metadata.
    NoMetadata,
    Other,
}

impl VirtError {
    /// The error of the call that just failed on this very thread.
    pub(super) fn last() -> Self {
        // SAFETY: the pointer is null or points into this thread's storage until the next call.
        unsafe {
            let error = library::virGetLastError();
            if error.is_null() {
                return Self::ours("libvirt failed without saying why");
            }
            let message = if (*error).message.is_null() {
                "libvirt failed without saying why".to_owned()
            } else {
                CStr::from_ptr((*error).message).to_string_lossy().into_owned()
            };
            Self {
                code: (*error).code.cast_unsigned(),
                domain: (*error).domain.cast_unsigned(),
                message,
            }
        }
    }

    /// An error found before libvirt was asked.
    pub(crate) fn ours(message: impl Into<String>) -> Self {
        Self {
            code: virt_sys::VIR_ERR_INVALID_ARG,
            domain: virt_sys::VIR_FROM_NONE,
            message: message.into(),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.code {
            virt_sys::VIR_ERR_NO_DOMAIN => Kind::NoDomain,
            virt_sys::VIR_ERR_OPERATION_INVALID => Kind::NotRunning,
            virt_sys::VIR_ERR_OPERATION_TIMEOUT => Kind::Busy,
            virt_sys::VIR_ERR_DOM_EXIST => Kind::Exists,
            virt_sys::VIR_ERR_NO_DOMAIN_METADATA => Kind::NoMetadata,
            virt_sys::VIR_ERR_NO_CONNECT
            | virt_sys::VIR_ERR_INVALID_CONN
            | virt_sys::VIR_ERR_RPC => Kind::Connection,
            // A socket that broke under a call is reported as an internal or system error of the
            // RPC layer.
            _ if self.domain == virt_sys::VIR_FROM_RPC => Kind::Connection,
            _ => Kind::Other,
        }
    }

    /// Whether a start failed because QEMU was ended from outside. A QEMU that gives up by itself
    /// says why before it ends, and libvirt repeats that.
    pub(crate) fn is_death(&self) -> bool {
        let may_be = [virt_sys::VIR_ERR_INTERNAL_ERROR, virt_sys::VIR_ERR_OPERATION_FAILED];
        may_be.contains(&self.code)
            && last_words(&self.message).is_some_and(|words| words.is_empty())
    }
}

/// Messages of libvirt when QEMU ends while it is started; what QEMU printed, if anything, follows.
const ENDINGS: [&str; 5] = [
    "unexpectedly closed the monitor",
    "process exited while connecting to monitor",
    "End of file from qemu monitor",
    "domain is no longer running",
    "guest unexpectedly quit",
];

/// Lines that QEMU prints while all is well, or because of a signal.
const NO_REASONS: [&str; 3] = [": warning: ", "char device redirected to", "terminating on signal"];

/// The reasons that QEMU gave before it ended, if `message` says that it ended.
fn last_words(message: &str) -> Option<Vec<&str>> {
    let rest =
        ENDINGS.iter().find_map(|ending| message.split_once(ending).map(|(_, rest)| rest))?;
    // Since libvirt 9: "QEMU unexpectedly closed the monitor (vm='web1'): …".
    let rest = match rest.strip_prefix(" (vm='").and_then(|rest| rest.split_once("')")) {
        Some((_, rest)) => rest,
        None => rest,
    };
    let is_reason =
        |line: &&str| !line.is_empty() && !NO_REASONS.iter().any(|no| line.contains(no));
    Some(rest.trim_start_matches([':', ' ']).lines().map(str::trim).filter(is_reason).collect())
}

impl fmt::Display for VirtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.trim_end_matches('\n'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u32, message: &str) -> VirtError {
        VirtError { code, domain: virt_sys::VIR_FROM_QEMU, message: message.to_owned() }
    }

    #[test]
    fn a_qemu_that_ends_without_a_word_was_killed() {
        let internal = virt_sys::VIR_ERR_INTERNAL_ERROR;
        for message in [
            "internal error: QEMU unexpectedly closed the monitor (vm='web1')",
            "internal error: QEMU unexpectedly closed the monitor (vm='web1'): \
             2026-11-20T10:00:00.1Z \
             qemu-system-x86_64: terminating on signal 15 from pid 77 (<unknown process>)",
            "internal error: process exited while connecting to monitor: 2026-11-20T10:00:00.1Z \
             qemu-system-x86_64: warning: TCG doesn't support requested feature\n",
            "internal error: qemu unexpectedly closed the monitor",
        ] {
            assert!(error(internal, message).is_death(), "{message}");
        }
        assert!(
            error(
                virt_sys::VIR_ERR_OPERATION_FAILED,
                "operation failed: domain is no longer running"
            )
            .is_death()
        );
    }

    #[test]
    fn a_qemu_that_says_why_it_ends_refused() {
        for message in [
            "internal error: QEMU unexpectedly closed the monitor (vm='web1'): \
             2026-11-20T10:00:00.1Z \
             qemu-system-x86_64: -blockdev {\"driver\":\"file\"}: Could not open '/x': No such \
             file or directory",
            "internal error: process exited while connecting to monitor: 2026-11-20T10:00:00.1Z \
             qemu-system-x86_64: warning: one\n2026-11-20T10:00:00.2Z qemu-system-x86_64: cannot \
             set up guest memory",
            "internal error: unable to execute QEMU command 'cont': x",
        ] {
            assert!(!error(virt_sys::VIR_ERR_INTERNAL_ERROR, message).is_death(), "{message}");
        }
        let refusal = "unsupported configuration: QEMU unexpectedly closed the monitor";
        assert!(!error(virt_sys::VIR_ERR_CONFIG_UNSUPPORTED, refusal).is_death());
    }
}
