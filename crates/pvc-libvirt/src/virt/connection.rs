use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::{mem, ptr};

use uuid::Uuid;

use super::{Domain, VirtError, c_text, domain, event_loop, library, owned_text};

/// Seconds between two questions to a silent peer for a sign of life, and number of answers that
/// may be missing.
const KEEPALIVE_SECONDS: c_int = 5;
const KEEPALIVE_MISSES: c_uint = 3;

/// Message of the event loop's thread while a connection lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DomainEvent {
    Changed(Uuid),
    /// libvirt closed the connection. It may also end without this: ask [`Connection::is_alive`].
    Closed,
}

type Listener = Box<dyn Fn(DomainEvent) + Send + Sync>;

/// A connection to a libvirt daemon.
pub(crate) struct Connection {
    pointer: virt_sys::virConnectPtr,
    callbacks: Vec<c_int>,
    closes: bool,
}

// SAFETY: libvirt's connections may be used from any thread and from many at once.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

/// Treatment of a guest when it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// The guest runs, and libvirt ends it when the connection is closed, by whatever that happens.
    RunWhileConnected,
    /// The guest's CPUs wait.
    Hold,
}

impl Connection {
    /// Connects. What happens to guests is told to `listener`, on libvirt's event thread.
    pub(crate) fn open(
        uri: &str,
        listener: impl Fn(DomainEvent) + Send + Sync + Clone + 'static,
    ) -> Result<Self, VirtError> {
        event_loop::ensure()?;
        let uri = c_text(uri)?;
        // SAFETY: `uri` is a C text that outlives the call.
        let pointer = unsafe { library::virConnectOpen(uri.as_ptr()) };
        if pointer.is_null() {
            return Err(VirtError::last());
        }
        let mut connection = Self { pointer, callbacks: Vec::new(), closes: false };
        connection.keep_alive()?;
        connection.listen_for_close(Box::new(listener.clone()))?;
        // SAFETY: libvirt calls a lifecycle callback with exactly this signature, whatever the
        // generic type says that all callbacks are registered under.
        let lifecycle = unsafe {
            mem::transmute::<
                virt_sys::virConnectDomainEventCallback,
                virt_sys::virConnectDomainEventGenericCallback,
            >(Some(on_lifecycle))
        };
        connection.listen(
            virt_sys::VIR_DOMAIN_EVENT_ID_LIFECYCLE,
            lifecycle,
            Box::new(listener.clone()),
        )?;
        connection.listen(
            virt_sys::VIR_DOMAIN_EVENT_ID_REBOOT,
            Some(on_event),
            Box::new(listener),
        )?;
        Ok(connection)
    }

    fn keep_alive(&self) -> Result<(), VirtError> {
        // SAFETY: the connection is open as long as `self` lives; so in all calls below.
        let done = unsafe {
            library::virConnectSetKeepAlive(self.pointer, KEEPALIVE_SECONDS, KEEPALIVE_MISSES)
        };
        if done < 0 { Err(VirtError::last()) } else { Ok(()) }
    }

    fn listen(
        &mut self,
        event: virt_sys::virDomainEventID,
        callback: virt_sys::virConnectDomainEventGenericCallback,
        listener: Listener,
    ) -> Result<(), VirtError> {
        let opaque = boxed(listener);
        // SAFETY: `opaque` stays valid until libvirt calls `free_listener` with it.
        let id = unsafe {
            library::virConnectDomainEventRegisterAny(
                self.pointer,
                ptr::null_mut(),
                event.cast_signed(),
                callback,
                opaque,
                Some(free_listener),
            )
        };
        if id < 0 {
            let error = VirtError::last();
            // SAFETY: libvirt did not take the box, so it is still ours.
            unsafe { free_listener(opaque) };
            return Err(error);
        }
        self.callbacks.push(id);
        Ok(())
    }

    fn listen_for_close(&mut self, listener: Listener) -> Result<(), VirtError> {
        let opaque = boxed(listener);
        // SAFETY: as in `listen`.
        let done = unsafe {
            library::virConnectRegisterCloseCallback(
                self.pointer,
                Some(on_close),
                opaque,
                Some(free_listener),
            )
        };
        if done < 0 {
            let error = VirtError::last();
            // SAFETY: as in `listen`.
            unsafe { free_listener(opaque) };
            return Err(error);
        }
        self.closes = true;
        Ok(())
    }

    /// Whether the connection still stands, as far as this side knows. Asks nobody, never blocks
    /// long.
    pub(crate) fn is_alive(&self) -> bool {
        // SAFETY: see `keep_alive`.
        unsafe { library::virConnectIsAlive(self.pointer) == 1 }
    }

    /// libvirt's version, from the daemon itself: 11.3.0 is 11003000.
    pub(crate) fn libvirt_version(&self) -> Result<u64, VirtError> {
        let mut version: c_ulong = 0;
        // SAFETY: `version` is written during the call only.
        let done = unsafe { library::virConnectGetLibVersion(self.pointer, &raw mut version) };
        if done < 0 { Err(VirtError::last()) } else { Ok(version) }
    }

    /// QEMU's version, counted like libvirt's.
    pub(crate) fn hypervisor_version(&self) -> Result<u64, VirtError> {
        let mut version: c_ulong = 0;
        // SAFETY: as above.
        let done = unsafe { library::virConnectGetVersion(self.pointer, &raw mut version) };
        if done < 0 { Err(VirtError::last()) } else { Ok(version) }
    }

    /// Returns what guests of this host's own architecture may have, as XML.
    pub(crate) fn domain_capabilities(&self, domain_type: &str) -> Result<String, VirtError> {
        let domain_type = c_text(domain_type)?;
        // SAFETY: null stands for the host's defaults; the result is ours.
        unsafe {
            owned_text(library::virConnectGetDomainCapabilities(
                self.pointer,
                ptr::null(),
                ptr::null(),
                ptr::null(),
                domain_type.as_ptr(),
                0,
            ))
        }
    }

    pub(crate) fn lookup(&self, uuid: Uuid) -> Result<Domain, VirtError> {
        let text = c_text(&uuid.hyphenated().to_string())?;
        // SAFETY: `text` outlives the call; the reference returned is ours.
        unsafe { Domain::own(library::virDomainLookupByUUIDString(self.pointer, text.as_ptr())) }
    }

    /// Creates a transient guest.
    pub(crate) fn create(&self, xml: &str, then: Then) -> Result<Domain, VirtError> {
        let xml = c_text(xml)?;
        let flags = match then {
            Then::RunWhileConnected => virt_sys::VIR_DOMAIN_START_AUTODESTROY,
            Then::Hold => virt_sys::VIR_DOMAIN_START_PAUSED,
        };
        // SAFETY: as in `lookup`.
        unsafe { Domain::own(library::virDomainCreateXML(self.pointer, xml.as_ptr(), flags)) }
    }

    /// The asked-for groups of figures of many guests, in one call.
    pub(crate) fn all_stats(
        &self,
        groups: c_uint,
        which: c_uint,
    ) -> Result<Vec<domain::Record>, VirtError> {
        let mut list: *mut virt_sys::virDomainStatsRecordPtr = ptr::null_mut();
        // SAFETY: on success `list` is an array of that many records, ours until it is freed below.
        unsafe {
            let count =
                library::virConnectGetAllDomainStats(self.pointer, groups, &raw mut list, which);
            let Ok(count) = usize::try_from(count) else { return Err(VirtError::last()) };
            let records = (0..count).map(|at| domain::Record::read(*list.add(at))).collect();
            library::virDomainStatsRecordListFree(list);
            Ok(records)
        }
    }

    pub(super) fn pointer(&self) -> virt_sys::virConnectPtr {
        self.pointer
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the last use of the pointer; callbacks are taken off before it is closed. Errors
        // are of no use here: the connection may well be dead already.
        unsafe {
            for id in &self.callbacks {
                library::virConnectDomainEventDeregisterAny(self.pointer, *id);
            }
            if self.closes {
                library::virConnectUnregisterCloseCallback(self.pointer, Some(on_close));
            }
            library::virConnectClose(self.pointer);
        }
    }
}

// --- Callbacks, all on the event thread ---------------------------------------------------------

fn boxed(listener: Listener) -> *mut c_void {
    Box::into_raw(Box::new(listener)).cast()
}

unsafe extern "C" fn free_listener(opaque: *mut c_void) {
    // SAFETY: `opaque` was made by `boxed` and is freed once, by libvirt or by the failed
    // registration.
    drop(unsafe { Box::from_raw(opaque.cast::<Listener>()) });
}

/// # Safety
/// `opaque` was made by `boxed` and not freed yet: true inside a callback.
unsafe fn tell(opaque: *mut c_void, event: DomainEvent) {
    // SAFETY: see above. A panic must not travel through libvirt's C frames.
    let listener = unsafe { &*opaque.cast::<Listener>() };
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| listener(event)));
}

unsafe extern "C" fn on_event(
    _connection: virt_sys::virConnectPtr,
    domain: virt_sys::virDomainPtr,
    opaque: *mut c_void,
) {
    // SAFETY: libvirt lends a valid guest for the time of the call.
    if let Ok(uuid) = unsafe { domain::uuid_of(domain) } {
        // SAFETY: inside a callback.
        unsafe { tell(opaque, DomainEvent::Changed(uuid)) };
    }
}

unsafe extern "C" fn on_lifecycle(
    connection: virt_sys::virConnectPtr,
    domain: virt_sys::virDomainPtr,
    _event: c_int,
    _detail: c_int,
    opaque: *mut c_void,
) -> c_int {
    // SAFETY: the same promises as ours.
    unsafe { on_event(connection, domain, opaque) };
    0
}

unsafe extern "C" fn on_close(
    _connection: virt_sys::virConnectPtr,
    _reason: c_int,
    opaque: *mut c_void,
) {
    // SAFETY: inside a callback.
    unsafe { tell(opaque, DomainEvent::Closed) };
}
