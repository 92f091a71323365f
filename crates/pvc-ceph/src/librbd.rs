//! The few functions of librbd, and of librados beside them, that look at images.
//!
//! A look by the `rbd` program costs a twentieth of a second, nearly all of it for the program to
//! start and to be let in; through a connection that is there it costs some milliseconds. The
//! library is opened when it is first needed, as librados is.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;

use libloading::{Library, library_filename};

use crate::rados::{Errno, IoContext, RadosError, checked};

type Io = *mut c_void;
type ImageHandle = *mut c_void;

/// `rbd_snap_info_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct SnapInfo {
    id: u64,
    size: u64,
    name: *const c_char,
}

/// `rbd_image_watcher_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct Watcher {
    address: *mut c_char,
    id: i64,
    cookie: u64,
}

/// `rbd_linked_image_spec_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct LinkedImage {
    pool_id: i64,
    pool_name: *mut c_char,
    pool_namespace: *mut c_char,
    image_id: *mut c_char,
    image_name: *mut c_char,
    trash: bool,
}

/// `rbd_image_spec_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct ImageSpec {
    id: *mut c_char,
    name: *mut c_char,
}

/// `rbd_trash_image_info_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct TrashInfo {
    id: *mut c_char,
    name: *mut c_char,
    source: c_int,
    deletion_time: i64,
    deferment_end_time: i64,
}

/// A function that fills an array, of which it is told the length. Where that is too short it fails
/// with [`RANGE`] and says what it needs.
type Fill<Of, T> = unsafe extern "C" fn(Of, *mut T, *mut usize) -> c_int;
type Clean<T> = unsafe extern "C" fn(*mut T, usize);

struct Librbd {
    open: unsafe extern "C" fn(Io, *const c_char, *mut ImageHandle, *const c_char) -> c_int,
    close: unsafe extern "C" fn(ImageHandle) -> c_int,
    size: unsafe extern "C" fn(ImageHandle, *mut u64) -> c_int,
    id: unsafe extern "C" fn(ImageHandle, *mut c_char, usize) -> c_int,
    snapshots: unsafe extern "C" fn(ImageHandle, *mut SnapInfo, *mut c_int) -> c_int,
    snapshots_end: unsafe extern "C" fn(*mut SnapInfo),
    namespace: unsafe extern "C" fn(ImageHandle, u64, *mut c_int) -> c_int,
    is_protected: unsafe extern "C" fn(ImageHandle, *const c_char, *mut c_int) -> c_int,
    watchers: Fill<ImageHandle, Watcher>,
    watchers_clean: Clean<Watcher>,
    children: Fill<ImageHandle, LinkedImage>,
    children_clean: Clean<LinkedImage>,
    list: Fill<Io, ImageSpec>,
    list_clean: Clean<ImageSpec>,
    trash: Fill<Io, TrashInfo>,
    trash_clean: Clean<TrashInfo>,
}

/// The library, opened once and never closed: its threads outlive every handle.
fn library() -> Result<&'static Librbd, RadosError> {
    static LIBRARY: OnceLock<Result<Librbd, String>> = OnceLock::new();
    let opened = LIBRARY.get_or_init(|| open().map_err(|error| error.to_string()));
    opened.as_ref().map_err(|why| RadosError::NoLibrary { name: "librbd", why: why.clone() })
}

fn open() -> Result<Librbd, libloading::Error> {
    let name = format!("{}.1", library_filename("rbd").to_string_lossy());
    // SAFETY: librbd has no initializers that expect anything of the process, and the types above
    // are those of `rbd/librbd.h`, unchanged since Ceph 14, the first with all of these functions.
    unsafe {
        let library = Box::leak(Box::new(Library::new(name)?));
        Ok(Librbd {
            open: *library.get(b"rbd_open_read_only")?,
            close: *library.get(b"rbd_close")?,
            size: *library.get(b"rbd_get_size")?,
            id: *library.get(b"rbd_get_id")?,
            snapshots: *library.get(b"rbd_snap_list")?,
            snapshots_end: *library.get(b"rbd_snap_list_end")?,
            namespace: *library.get(b"rbd_snap_get_namespace_type")?,
            is_protected: *library.get(b"rbd_snap_is_protected")?,
            watchers: *library.get(b"rbd_watchers_list")?,
            watchers_clean: *library.get(b"rbd_watchers_list_cleanup")?,
            children: *library.get(b"rbd_list_children3")?,
            children_clean: *library.get(b"rbd_linked_image_spec_list_cleanup")?,
            list: *library.get(b"rbd_list2")?,
            list_clean: *library.get(b"rbd_image_spec_list_cleanup")?,
            trash: *library.get(b"rbd_trash_list")?,
            trash_clean: *library.get(b"rbd_trash_list_cleanup")?,
        })
    }
}

/// Namespace of the snapshots that users make.
const OF_USERS: c_int = 0;

/// Source of what a user moved to the trash.
const BY_USER: c_int = 0;

/// The array is too short.
const RANGE: c_int = -34;

/// Places of an array that is asked for first; most need no second try.
const FIRST: usize = 64;

/// A snapshot that a user made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundSnapshot {
    pub id: u64,
    pub name: String,
    pub size: u64,
    pub is_protected: bool,
}

/// An image that stands on a snapshot of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundClone {
    pub pool: String,
    pub image: String,
    pub is_in_trash: bool,
}

/// An image in the trash. Times are in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundInTrash {
    pub id: String,
    pub name: String,
    pub is_by_user: bool,
    pub deleted_at: i64,
    pub kept_until: i64,
}

/// Names of the images of a pool, as its directory has them.
pub(crate) fn names(io: &IoContext<'_>) -> Result<Vec<String>, RadosError> {
    let library = library()?;
    let none = ImageSpec { id: std::ptr::null_mut(), name: std::ptr::null_mut() };
    let list = List { fill: library.list, clean: library.list_clean };
    // SAFETY: the strings of an entry live as long as the list.
    list.of(io.handle(), none, |entry| unsafe { text(entry.name) })
}

/// All that is in the trash of a pool but for what is on its way out.
pub(crate) fn trash(io: &IoContext<'_>) -> Result<Vec<FoundInTrash>, RadosError> {
    let library = library()?;
    let none = TrashInfo {
        id: std::ptr::null_mut(),
        name: std::ptr::null_mut(),
        source: 0,
        deletion_time: 0,
        deferment_end_time: 0,
    };
    let list = List { fill: library.trash, clean: library.trash_clean };
    // SAFETY: as above.
    list.of(io.handle(), none, |entry| unsafe {
        FoundInTrash {
            id: text(entry.id),
            name: text(entry.name),
            is_by_user: entry.source == BY_USER,
            deleted_at: entry.deletion_time,
            kept_until: entry.deferment_end_time,
        }
    })
}

/// An image that is open to be looked at: it has no watcher by that, and takes no lock.
pub(crate) struct Image<'a> {
    library: &'static Librbd,
    handle: ImageHandle,
    io: PhantomData<&'a IoContext<'a>>,
}

impl<'a> Image<'a> {
    pub fn open(io: &'a IoContext<'_>, name: &str) -> Result<Self, RadosError> {
        let library = library()?;
        let name = crate::rados::text(name)?;
        let mut handle: ImageHandle = std::ptr::null_mut();
        // SAFETY: the context is valid, `name` lives through the call, and no snapshot is meant.
        let code = unsafe {
            (library.open)(io.handle(), name.as_ptr(), &raw mut handle, std::ptr::null())
        };
        did(code)?;
        Ok(Image { library, handle, io: PhantomData })
    }

    pub fn size_bytes(&self) -> Result<u64, RadosError> {
        let mut size = 0;
        // SAFETY: the handle is valid until this is dropped, as in all calls below.
        did(unsafe { (self.library.size)(self.handle, &raw mut size) })?;
        Ok(size)
    }

    pub fn id(&self) -> Result<String, RadosError> {
        // The longest that Ceph makes has 24 letters.
        let mut id = [0_u8; 256];
        // SAFETY: it writes no more than it is told that there is.
        did(unsafe { (self.library.id)(self.handle, id.as_mut_ptr().cast(), id.len()) })?;
        let id = CStr::from_bytes_until_nul(&id);
        id.map(lossy).map_err(|_| refused("an identifier has no end"))
    }

    /// The snapshots that users made.
    pub fn snapshots(&self) -> Result<Vec<FoundSnapshot>, RadosError> {
        let mut places = c_int::try_from(FIRST).unwrap_or(c_int::MAX);
        let none = SnapInfo { id: 0, size: 0, name: std::ptr::null() };
        let (array, count) = loop {
            let length = usize::try_from(places).map_err(|_| refused("a list has no length"))?;
            // The end is an entry without a name.
            let mut array = vec![none; length + 1];
            // SAFETY: it writes no more entries than it is told that there are places.
            let count = unsafe {
                (self.library.snapshots)(self.handle, array.as_mut_ptr(), &raw mut places)
            };
            match usize::try_from(count) {
                Ok(count) if count <= length => break (array, count),
                Ok(_) => return Err(refused("a list is longer than its array")),
                Err(_)
                    if count == RANGE && usize::try_from(places).is_ok_and(|now| now > length) => {}
                Err(_) => did(count)?,
            }
        };
        let all = Snapshots { library: self.library, array };
        let mut found = Vec::new();
        for entry in &all.array[..count] {
            let mut namespace = 0;
            // SAFETY: a number is written.
            let code =
                unsafe { (self.library.namespace)(self.handle, entry.id, &raw mut namespace) };
            did(code)?;
            if namespace != OF_USERS {
                continue;
            }
            let mut is_protected = 0;
            // SAFETY: the name lives as long as the list.
            let code = unsafe {
                (self.library.is_protected)(self.handle, entry.name, &raw mut is_protected)
            };
            did(code)?;
            // SAFETY: as above.
            let name = unsafe { text(entry.name) };
            let is_protected = is_protected != 0;
            found.push(FoundSnapshot { id: entry.id, name, size: entry.size, is_protected });
        }
        Ok(found)
    }

    /// Addresses of those who have the image open; we are none of them.
    pub fn watchers(&self) -> Result<Vec<String>, RadosError> {
        let none = Watcher { address: std::ptr::null_mut(), id: 0, cookie: 0 };
        let list = List { fill: self.library.watchers, clean: self.library.watchers_clean };
        // SAFETY: as above.
        list.of(self.handle, none, |entry| unsafe { text(entry.address) })
    }

    /// Images that stand on any of the snapshots.
    pub fn clones(&self) -> Result<Vec<FoundClone>, RadosError> {
        let none = LinkedImage {
            pool_id: 0,
            pool_name: std::ptr::null_mut(),
            pool_namespace: std::ptr::null_mut(),
            image_id: std::ptr::null_mut(),
            image_name: std::ptr::null_mut(),
            trash: false,
        };
        let list = List { fill: self.library.children, clean: self.library.children_clean };
        // SAFETY: as above.
        list.of(self.handle, none, |entry| unsafe {
            FoundClone {
                pool: text(entry.pool_name),
                image: text(entry.image_name),
                is_in_trash: entry.trash,
            }
        })
    }
}

impl Drop for Image<'_> {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle, and it is not used again. One that cannot be closed
        // well is closed all the same.
        let _ = unsafe { (self.library.close)(self.handle) };
    }
}

/// Names of snapshots that librbd gave us.
struct Snapshots {
    library: &'static Librbd,
    /// With an entry without a name at its end.
    array: Vec<SnapInfo>,
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        // SAFETY: the names came from librbd, up to the entry that has none, and are freed once.
        unsafe { (self.library.snapshots_end)(self.array.as_mut_ptr()) }
    }
}

/// A list of librbd's: what fills it, and what frees it.
struct List<Of, T> {
    fill: Fill<Of, T>,
    clean: Clean<T>,
}

impl<Of: Copy, T: Copy> List<Of, T> {
    /// Has the list filled, and reads its entries.
    fn of<R>(&self, of: Of, none: T, read: impl Fn(&T) -> R) -> Result<Vec<R>, RadosError> {
        let mut places = FIRST;
        loop {
            let mut array = vec![none; places];
            let mut count = places;
            // SAFETY: `of` is the handle that the function is for, and it writes no more entries
            // than it is told that there are places.
            let code = unsafe { (self.fill)(of, array.as_mut_ptr(), &raw mut count) };
            if code == RANGE && count > places {
                places = count;
                continue;
            }
            // Some say how many there are by what they return.
            did(code.min(0))?;
            let found = array.get(..count).ok_or_else(|| refused("a list is too long"))?;
            let read = found.iter().map(read).collect();
            // SAFETY: the entries came from librbd and are freed once.
            unsafe { (self.clean)(array.as_mut_ptr(), count) };
            return Ok(read);
        }
    }
}

/// The text of librbd's, if there is one.
///
/// # Safety
/// It is null or ends with a zero byte.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller says so.
    lossy(unsafe { CStr::from_ptr(text) })
}

fn lossy(text: &CStr) -> String {
    text.to_string_lossy().into_owned()
}

fn did(code: c_int) -> Result<(), RadosError> {
    checked(code).map_err(|errno| RadosError::Refused { errno, said: errno.to_string() })
}

fn refused(said: &str) -> RadosError {
    RadosError::Refused { errno: Errno::IO, said: said.to_owned() }
}
