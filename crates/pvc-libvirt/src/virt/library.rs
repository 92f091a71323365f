//! libvirt's functions, in a library that is opened when it is first needed: it brings fifty others
//! along, which a daemon that never speaks with libvirt would keep in memory for nothing.
//!
//! Every function here is the one of its name in libvirt, and is not to be called before [`open`]
//! succeeded.

#![allow(non_snake_case, reason = "the names are libvirt's")]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulong, c_ulonglong, c_void};
use std::sync::OnceLock;

use libloading::{Library, library_filename};
use virt_sys::{
    virConnectCloseFunc, virConnectDomainEventGenericCallback, virConnectPtr,
    virDomainInterfacePtr, virDomainJobInfoPtr, virDomainPtr, virDomainStatsRecordPtr,
    virErrorFunc, virErrorPtr, virEventTimeoutCallback, virFreeCallback, virStreamPtr,
    virTypedParameterPtr,
};

use super::VirtError;

macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) $(-> $answer:ty)?;)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($kind),*) $(-> $answer)?,)*
        }

        fn load() -> Result<Functions, libloading::Error> {
            let name = format!("{}.0", library_filename("virt").to_string_lossy());
            // SAFETY: libvirt has no initializers that expect anything of the process, and the
            // types below are those that its header has had since the version that each function
            // came with.
            unsafe {
                let library = Box::leak(Box::new(Library::new(name)?));
                Ok(Functions { $($name: *library.get(stringify!($name))?,)* })
            }
        }

        $(
            /// # Safety
            /// As libvirt's function of this name demands.
            pub(super) unsafe fn $name($($argument: $kind),*) $(-> $answer)? {
                let functions = functions();
                // SAFETY: the caller's promise.
                unsafe { (functions.$name)($($argument),*) }
            }
        )*

        #[cfg(test)]
        #[test]
        fn the_types_are_those_of_the_header() {
            $(let _: unsafe extern "C" fn($($kind),*) $(-> $answer)? = virt_sys::$name;)*
        }
    };
}

/// The library, opened once and never closed: its threads outlive every connection.
static LIBRARY: OnceLock<Result<Functions, String>> = OnceLock::new();

/// Opens the library, if that was not done before.
pub(super) fn open() -> Result<(), VirtError> {
    let opened = LIBRARY.get_or_init(|| load().map_err(|error| error.to_string()));
    match opened {
        Ok(_) => Ok(()),
        Err(why) => Err(VirtError::ours(format!("libvirt's library cannot be used: {why}"))),
    }
}

fn functions() -> &'static Functions {
    let opened = LIBRARY.get().and_then(|opened| opened.as_ref().ok());
    opened.expect("the library is opened before the first call")
}

functions! {
    fn virConnectClose(conn: virConnectPtr) -> c_int;
    fn virConnectDomainEventDeregisterAny(conn: virConnectPtr, callback_id: c_int) -> c_int;
    fn virConnectDomainEventRegisterAny(
        conn: virConnectPtr, dom: virDomainPtr, event_id: c_int,
        cb: virConnectDomainEventGenericCallback, opaque: *mut c_void, freecb: virFreeCallback
    ) -> c_int;
    fn virConnectGetAllDomainStats(
        conn: virConnectPtr, stats: c_uint, ret_stats: *mut *mut virDomainStatsRecordPtr,
        flags: c_uint
    ) -> c_int;
    fn virConnectGetDomainCapabilities(
        conn: virConnectPtr, emulatorbin: *const c_char, arch: *const c_char,
        machine: *const c_char, virttype: *const c_char, flags: c_uint
    ) -> *mut c_char;
    fn virConnectGetLibVersion(conn: virConnectPtr, lib_ver: *mut c_ulong) -> c_int;
    fn virConnectGetVersion(conn: virConnectPtr, hv_ver: *mut c_ulong) -> c_int;
    fn virConnectIsAlive(conn: virConnectPtr) -> c_int;
    fn virConnectOpen(name: *const c_char) -> virConnectPtr;
    fn virConnectRegisterCloseCallback(
        conn: virConnectPtr, cb: virConnectCloseFunc, opaque: *mut c_void, freecb: virFreeCallback
    ) -> c_int;
    fn virConnectSetKeepAlive(conn: virConnectPtr, interval: c_int, count: c_uint) -> c_int;
    fn virConnectUnregisterCloseCallback(conn: virConnectPtr, cb: virConnectCloseFunc) -> c_int;
    fn virDomainAbortJob(dom: virDomainPtr) -> c_int;
    fn virDomainAgentSetResponseTimeout(
        domain: virDomainPtr, timeout: c_int, flags: c_uint
    ) -> c_int;
    fn virDomainAttachDeviceFlags(domain: virDomainPtr, xml: *const c_char, flags: c_uint) -> c_int;
    fn virDomainBlockResize(
        dom: virDomainPtr, disk: *const c_char, size: c_ulonglong, flags: c_uint
    ) -> c_int;
    fn virDomainCreateXML(
        conn: virConnectPtr, xml_desc: *const c_char, flags: c_uint
    ) -> virDomainPtr;
    fn virDomainDestroyFlags(domain: virDomainPtr, flags: c_uint) -> c_int;
    fn virDomainDetachDeviceFlags(domain: virDomainPtr, xml: *const c_char, flags: c_uint) -> c_int;
    fn virDomainFree(domain: virDomainPtr) -> c_int;
    fn virDomainGetID(domain: virDomainPtr) -> c_uint;
    fn virDomainGetJobInfo(dom: virDomainPtr, info: virDomainJobInfoPtr) -> c_int;
    fn virDomainGetMetadata(
        domain: virDomainPtr, type_: c_int, uri: *const c_char, flags: c_uint
    ) -> *mut c_char;
    fn virDomainGetName(domain: virDomainPtr) -> *const c_char;
    fn virDomainGetState(
        domain: virDomainPtr, state: *mut c_int, reason: *mut c_int, flags: c_uint
    ) -> c_int;
    fn virDomainGetUUID(domain: virDomainPtr, uuid: *mut c_uchar) -> c_int;
    fn virDomainGetXMLDesc(domain: virDomainPtr, flags: c_uint) -> *mut c_char;
    fn virDomainInterfaceAddresses(
        dom: virDomainPtr, ifaces: *mut *mut virDomainInterfacePtr, source: c_uint, flags: c_uint
    ) -> c_int;
    fn virDomainInterfaceFree(iface: virDomainInterfacePtr);
    fn virDomainIsActive(dom: virDomainPtr) -> c_int;
    fn virDomainLookupByUUIDString(conn: virConnectPtr, uuid: *const c_char) -> virDomainPtr;
    fn virDomainMigrate3(
        domain: virDomainPtr, dconn: virConnectPtr, params: virTypedParameterPtr, nparams: c_uint,
        flags: c_uint
    ) -> virDomainPtr;
    fn virDomainMigrateSetMaxDowntime(
        domain: virDomainPtr, downtime: c_ulonglong, flags: c_uint
    ) -> c_int;
    fn virDomainOpenConsole(
        dom: virDomainPtr, dev_name: *const c_char, st: virStreamPtr, flags: c_uint
    ) -> c_int;
    fn virDomainResume(domain: virDomainPtr) -> c_int;
    fn virDomainSetMetadata(
        domain: virDomainPtr, type_: c_int, metadata: *const c_char, key: *const c_char,
        uri: *const c_char, flags: c_uint
    ) -> c_int;
    fn virDomainShutdownFlags(domain: virDomainPtr, flags: c_uint) -> c_int;
    fn virDomainStatsRecordListFree(stats: *mut virDomainStatsRecordPtr);
    fn virEventAddTimeout(
        frequency: c_int, cb: virEventTimeoutCallback, opaque: *mut c_void, ff: virFreeCallback
    ) -> c_int;
    fn virEventRegisterDefaultImpl() -> c_int;
    fn virEventRunDefaultImpl() -> c_int;
    fn virGetLastError() -> virErrorPtr;
    fn virInitialize() -> c_int;
    fn virSetErrorFunc(user_data: *mut c_void, handler: virErrorFunc);
    fn virStreamAbort(st: virStreamPtr) -> c_int;
    fn virStreamFree(st: virStreamPtr) -> c_int;
    fn virStreamNew(conn: virConnectPtr, flags: c_uint) -> virStreamPtr;
    fn virStreamRecv(st: virStreamPtr, data: *mut c_char, nbytes: usize) -> c_int;
    fn virStreamSend(st: virStreamPtr, data: *const c_char, nbytes: usize) -> c_int;
    fn virTypedParamsAddString(
        params: *mut virTypedParameterPtr, nparams: *mut c_int, maxparams: *mut c_int,
        name: *const c_char, value: *const c_char
    ) -> c_int;
    fn virTypedParamsFree(params: virTypedParameterPtr, nparams: c_int);
}
