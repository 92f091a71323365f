//! The few functions of librados that send commands to monitors, and those that read the keys of
//! objects.
//!
//! The library is opened when it is first needed, so that a machine without Ceph builds and runs
//! everything else. Polling by the `ceph` program would cost a tenth of a second of CPU per
//! question.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::sync::OnceLock;

use libloading::{Library, library_filename};

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle, *const c_char) -> c_int;
type ReadConfig = unsafe extern "C" fn(Handle, *const c_char) -> c_int;
type SetConfig = unsafe extern "C" fn(Handle, *const c_char, *const c_char) -> c_int;
type Connect = unsafe extern "C" fn(Handle) -> c_int;
type Shutdown = unsafe extern "C" fn(Handle);
type Command = unsafe extern "C" fn(
    Handle,
    *const *const c_char,
    usize,
    *const c_char,
    usize,
    *mut *mut c_char,
    *mut usize,
    *mut *mut c_char,
    *mut usize,
) -> c_int;
type FreeBuffer = unsafe extern "C" fn(*mut c_char);
type Io = *mut c_void;
type ReadOp = *mut c_void;
type Keys = *mut c_void;

struct Librados {
    create: Create,
    read_config: ReadConfig,
    set_config: SetConfig,
    connect: Connect,
    shutdown: Shutdown,
    mon_command: Command,
    mgr_command: Command,
    free_buffer: FreeBuffer,
    latest_map: unsafe extern "C" fn(Handle) -> c_int,
    io_create: unsafe extern "C" fn(Handle, *const c_char, *mut Io) -> c_int,
    io_destroy: unsafe extern "C" fn(Io),
    op_create: unsafe extern "C" fn() -> ReadOp,
    op_release: unsafe extern "C" fn(ReadOp),
    op_operate: unsafe extern "C" fn(ReadOp, Io, *const c_char, c_int) -> c_int,
    op_keys: unsafe extern "C" fn(ReadOp, *const c_char, u64, *mut Keys, *mut c_uchar, *mut c_int),
    keys_next: unsafe extern "C" fn(Keys, *mut *mut c_char, *mut *mut c_char, *mut usize) -> c_int,
    keys_end: unsafe extern "C" fn(Keys),
}

/// The library, opened once and never closed: its threads outlive every handle.
fn library() -> Result<&'static Librados, RadosError> {
    static LIBRARY: OnceLock<Result<Librados, String>> = OnceLock::new();
    let opened = LIBRARY.get_or_init(|| open().map_err(|error| error.to_string()));
    opened.as_ref().map_err(|why| RadosError::NoLibrary { name: "librados", why: why.clone() })
}

fn open() -> Result<Librados, libloading::Error> {
    let name = format!("{}.2", library_filename("rados").to_string_lossy());
    // SAFETY: librados has no initializers that expect anything of the process, and the types above
    // are those of `rados/librados.h`, unchanged since its version 2.
    unsafe {
        let library = Box::leak(Box::new(Library::new(name)?));
        Ok(Librados {
            create: *library.get(b"rados_create")?,
            read_config: *library.get(b"rados_conf_read_file")?,
            set_config: *library.get(b"rados_conf_set")?,
            connect: *library.get(b"rados_connect")?,
            shutdown: *library.get(b"rados_shutdown")?,
            mon_command: *library.get(b"rados_mon_command")?,
            mgr_command: *library.get(b"rados_mgr_command")?,
            free_buffer: *library.get(b"rados_buffer_free")?,
            latest_map: *library.get(b"rados_wait_for_latest_osdmap")?,
            io_create: *library.get(b"rados_ioctx_create")?,
            io_destroy: *library.get(b"rados_ioctx_destroy")?,
            op_create: *library.get(b"rados_create_read_op")?,
            op_release: *library.get(b"rados_release_read_op")?,
            op_operate: *library.get(b"rados_read_op_operate")?,
            op_keys: *library.get(b"rados_read_op_omap_get_keys2")?,
            keys_next: *library.get(b"rados_omap_get_next")?,
            keys_end: *library.get(b"rados_omap_get_end")?,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RadosError {
    #[error("{name} cannot be used: {why}")]
    NoLibrary { name: &'static str, why: String },
    /// Nothing of this name is there now.
    #[error("there is no such pool")]
    NoPool,
    #[error("`{path}` is not a Ceph configuration that can be used ({errno})")]
    BadConfig { path: String, errno: Errno },
    #[error("Ceph's monitors cannot be reached ({0})")]
    Unreachable(Errno),
    #[error("Ceph refused: {said}")]
    Refused { errno: Errno, said: String },
}

/// An error number as librados returns it, without its sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub i32);

impl Errno {
    pub const NOT_FOUND: Errno = Errno(2);
    pub const IO: Errno = Errno(5);
    pub const TIMED_OUT: Errno = Errno(110);
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// Output of a command, and what was said beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub output: Vec<u8>,
    pub said: String,
}

/// The daemons that a command is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receiver {
    Monitors,
    /// The active manager.
    Manager,
}

/// A connection with a cluster. Every call blocks, for as long as the configuration's deadlines let
/// it.
pub(crate) struct Rados {
    library: &'static Librados,
    handle: Handle,
}

// SAFETY: a handle of librados belongs to no thread.
unsafe impl Send for Rados {}

// SAFETY: librados lets any number of threads use a handle at once that is connected, as this is.
unsafe impl Sync for Rados {}

impl Rados {
    /// Connects as `user`; `settings` go over what the file `config` says.
    pub fn connect(
        config: &Path,
        user: &str,
        settings: &[(&str, String)],
    ) -> Result<Rados, RadosError> {
        let library = library()?;
        let mut handle: Handle = std::ptr::null_mut();
        let user = text(user)?;
        // SAFETY: `handle` is written before it is read, and `user` lives through the call.
        checked(unsafe { (library.create)(&raw mut handle, user.as_ptr()) })
            .map_err(|errno| refused(errno, "a connection could not be prepared"))?;
        let rados = Rados { library, handle };
        let path = text(&config.to_string_lossy())?;
        // SAFETY: the handle is valid until `rados` is dropped, as in all calls below.
        checked(unsafe { (library.read_config)(rados.handle, path.as_ptr()) })
            .map_err(|errno| RadosError::BadConfig { path: config.display().to_string(), errno })?;
        for (name, value) in settings {
            let (option, value) = (text(name)?, text(value)?);
            // SAFETY: both strings live through the call.
            checked(unsafe { (library.set_config)(rados.handle, option.as_ptr(), value.as_ptr()) })
                .map_err(|errno| refused(errno, &format!("option `{name}` is not known")))?;
        }
        // SAFETY: see above.
        checked(unsafe { (library.connect)(rados.handle) }).map_err(RadosError::Unreachable)?;
        Ok(rados)
    }

    /// Sends one command, in Ceph's JSON. The monitors pass on most of those for the manager.
    pub fn command(&self, to: Receiver, command: &str) -> Result<Answer, RadosError> {
        let send = match to {
            Receiver::Monitors => self.library.mon_command,
            Receiver::Manager => self.library.mgr_command,
        };
        let command = text(command)?;
        let commands = [command.as_ptr()];
        let (mut output, mut said) = (Buffer::new(self.library), Buffer::new(self.library));
        // SAFETY: the array and the string in it live through the call; both buffers are written by
        // it and freed by their own drop.
        let code = unsafe {
            send(
                self.handle,
                commands.as_ptr(),
                commands.len(),
                c"".as_ptr(),
                0,
                &raw mut output.at,
                &raw mut output.length,
                &raw mut said.at,
                &raw mut said.length,
            )
        };
        let said_text = String::from_utf8_lossy(said.bytes()).trim().to_owned();
        match checked(code) {
            Ok(()) => Ok(Answer { output: output.bytes().to_vec(), said: said_text }),
            Err(errno) => Err(refused(errno, &said_text)),
        }
    }
}

impl Drop for Rados {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle, and it is not used again.
        unsafe { (self.library.shutdown)(self.handle) }
    }
}

impl Rados {
    /// The objects of a pool, of those there are at this moment: a connection hears of pools that
    /// come and go only when it asks.
    pub fn pool(&self, name: &str) -> Result<IoContext<'_>, RadosError> {
        let name = text(name)?;
        // SAFETY: the handle is valid until this is dropped.
        checked(unsafe { (self.library.latest_map)(self.handle) })
            .map_err(|errno| refused(errno, ""))?;
        let mut io: Io = std::ptr::null_mut();
        // SAFETY: as above; `name` lives through the call.
        let code = unsafe { (self.library.io_create)(self.handle, name.as_ptr(), &raw mut io) };
        checked(code).map_err(|errno| match errno {
            Errno::NOT_FOUND => RadosError::NoPool,
            errno => refused(errno, ""),
        })?;
        Ok(IoContext { rados: self, handle: io })
    }
}

/// The objects of a pool.
pub(crate) struct IoContext<'a> {
    rados: &'a Rados,
    handle: Io,
}

/// Keys that are asked for at once. Ceph gives no more by itself.
const KEYS: u64 = 1000;

impl IoContext<'_> {
    pub fn handle(&self) -> *mut c_void {
        self.handle
    }

    /// The keys of an object, in their order.
    pub fn keys(&self, object: &str) -> Result<Vec<Vec<u8>>, RadosError> {
        let (library, object) = (self.rados.library, text(object)?);
        let mut all: Vec<Vec<u8>> = Vec::new();
        loop {
            let after = CString::new(all.last().cloned().unwrap_or_default());
            let after = after.map_err(|_| refused(Errno::IO, "a key has a zero byte in it"))?;
            let (mut keys, mut more, mut did): (Keys, c_uchar, c_int) =
                (std::ptr::null_mut(), 0, 0);
            // SAFETY: all that is written to, and both texts, live until the operation is released.
            let code = unsafe {
                let op = (library.op_create)();
                let (keys, more, did) = (&raw mut keys, &raw mut more, &raw mut did);
                (library.op_keys)(op, after.as_ptr(), KEYS, keys, more, did);
                let code = (library.op_operate)(op, self.handle, object.as_ptr(), 0);
                (library.op_release)(op);
                code
            };
            let found = KeysOf { library, keys };
            checked(code).and_then(|()| checked(did)).map_err(|errno| refused(errno, ""))?;
            let before = all.len();
            found.read_into(&mut all)?;
            if more == 0 || all.len() == before {
                return Ok(all);
            }
        }
    }
}

impl Drop for IoContext<'_> {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle, and it is not used again.
        unsafe { (self.rados.library.io_destroy)(self.handle) }
    }
}

/// Keys that librados gave us.
struct KeysOf {
    library: &'static Librados,
    keys: Keys,
}

impl KeysOf {
    fn read_into(&self, all: &mut Vec<Vec<u8>>) -> Result<(), RadosError> {
        if self.keys.is_null() {
            return Ok(());
        }
        loop {
            let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
            let mut length = 0;
            // SAFETY: the iterator is valid until this is dropped, and so is what it points to.
            let code = unsafe {
                let (key, value) = (&raw mut key, &raw mut value);
                (self.library.keys_next)(self.keys, key, value, &raw mut length)
            };
            checked(code).map_err(|errno| refused(errno, ""))?;
            if key.is_null() {
                return Ok(());
            }
            // SAFETY: as above; a key ends with a zero byte.
            all.push(unsafe { CStr::from_ptr(key) }.to_bytes().to_vec());
        }
    }
}

impl Drop for KeysOf {
    fn drop(&mut self) {
        if !self.keys.is_null() {
            // SAFETY: it came from librados and is freed once.
            unsafe { (self.library.keys_end)(self.keys) }
        }
    }
}

/// Memory that librados gave us.
struct Buffer {
    library: &'static Librados,
    at: *mut c_char,
    length: usize,
}

impl Buffer {
    fn new(library: &'static Librados) -> Self {
        Buffer { library, at: std::ptr::null_mut(), length: 0 }
    }

    fn bytes(&self) -> &[u8] {
        if self.at.is_null() {
            return &[];
        }
        // SAFETY: librados wrote `length` bytes at `at`, which stay until they are freed on drop.
        unsafe { std::slice::from_raw_parts(self.at.cast::<u8>(), self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.at.is_null() {
            // SAFETY: it came from librados and is freed once.
            unsafe { (self.library.free_buffer)(self.at) }
        }
    }
}

pub(crate) fn text(text: &str) -> Result<CString, RadosError> {
    CString::new(text).map_err(|_| refused(Errno(22), "a text has a zero byte in it"))
}

fn refused(errno: Errno, said: &str) -> RadosError {
    let said = if said.is_empty() { errno.to_string() } else { said.to_owned() };
    RadosError::Refused { errno, said }
}

/// Zero alone is success: a missed deadline is a negative number, but of a command to a
/// manager a positive one (`ETIMEDOUT`, librados 16).
pub(crate) fn checked(code: c_int) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(Errno(code.saturating_abs())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_was_missed_is_no_success_whatever_its_sign() {
        assert_eq!(checked(0), Ok(()));
        assert_eq!((checked(-110), checked(110)), (Err(Errno::TIMED_OUT), Err(Errno::TIMED_OUT)));
    }

    #[test]
    fn a_configuration_that_is_not_there_is_named() {
        let error = Rados::connect(Path::new("/nonexistent/ceph.conf"), "admin", &[]).err();
        match error {
            // On a machine without Ceph that is all there is to say.
            Some(RadosError::NoLibrary { why, .. }) => assert!(why.contains("librados"), "{why}"),
            Some(error) => assert_eq!(
                error.to_string(),
                "`/nonexistent/ceph.conf` is not a Ceph configuration that can be used (No such \
                 file or directory (os error 2))"
            ),
            None => panic!("there is nothing to connect to"),
        }
    }

    #[test]
    fn a_zero_byte_reaches_no_library() {
        assert!(text("a\0b").is_err());
        assert_eq!(text("a").unwrap().as_bytes(), b"a");
    }
}
