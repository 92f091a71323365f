use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::time::Duration;

use pvc_ports::{Migration, MigrationProgress};
use uuid::Uuid;

use super::stream::Stream;
use super::{Connection, Kind, VirtError, c_text, free, library, owned_text};

/// A reference to a guest, running or not.
pub(crate) struct Domain {
    pointer: virt_sys::virDomainPtr,
}

impl Domain {
    /// # Safety
    /// `pointer` is null after a call that failed, or a reference that nobody else gives back.
    pub(super) unsafe fn own(pointer: virt_sys::virDomainPtr) -> Result<Self, VirtError> {
        if pointer.is_null() { Err(VirtError::last()) } else { Ok(Self { pointer }) }
    }

    pub(crate) fn is_active(&self) -> Result<bool, VirtError> {
        // SAFETY: the reference to the guest is ours until `self` is dropped.
        match unsafe { library::virDomainIsActive(self.pointer) } {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(VirtError::last()),
        }
    }

    pub(crate) fn is_paused(&self) -> Result<bool, VirtError> {
        let mut state = 0;
        // SAFETY: the state is written during the call only; null: nobody wants the reason.
        done(unsafe {
            library::virDomainGetState(self.pointer, &raw mut state, ptr::null_mut(), 0)
        })?;
        Ok(state.cast_unsigned() == virt_sys::VIR_DOMAIN_PAUSED)
    }

    pub(crate) fn resume(&self) -> Result<(), VirtError> {
        // SAFETY: the reference to the guest is ours until `self` is dropped.
        done(unsafe { library::virDomainResume(self.pointer) })
    }

    /// Whether the metadata of the guest as it is now have an element of the namespace `uri`.
    pub(crate) fn has_metadata(&self, uri: &str) -> Result<bool, VirtError> {
        let (kind, uri) = (virt_sys::VIR_DOMAIN_METADATA_ELEMENT.cast_signed(), c_text(uri)?);
        // SAFETY: the text, if there is one, is ours.
        let element = unsafe {
            owned_text(library::virDomainGetMetadata(
                self.pointer,
                kind,
                uri.as_ptr(),
                virt_sys::VIR_DOMAIN_AFFECT_LIVE,
            ))
        };
        match element {
            Err(error) if error.kind() == Kind::NoMetadata => Ok(false),
            other => other.map(|_| true),
        }
    }

    /// Removes the element of the namespace `uri` from the metadata, if it is there.
    pub(crate) fn remove_metadata(&self, uri: &str) -> Result<(), VirtError> {
        let (kind, uri) = (virt_sys::VIR_DOMAIN_METADATA_ELEMENT.cast_signed(), c_text(uri)?);
        // SAFETY: `uri` is a C text that outlives the call; null removes the element.
        let removed = done(unsafe {
            library::virDomainSetMetadata(
                self.pointer,
                kind,
                ptr::null(),
                ptr::null(),
                uri.as_ptr(),
                virt_sys::VIR_DOMAIN_AFFECT_LIVE,
            )
        });
        match removed {
            Err(error) if error.kind() == Kind::NoMetadata => Ok(()),
            other => other,
        }
    }

    pub(crate) fn press_power_button(&self) -> Result<(), VirtError> {
        // SAFETY: the reference to the guest is ours until `self` is dropped.
        done(unsafe {
            library::virDomainShutdownFlags(
                self.pointer,
                virt_sys::VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN,
            )
        })
    }

    pub(crate) fn destroy(&self) -> Result<(), VirtError> {
        // SAFETY: the reference to the guest is ours until `self` is dropped.
        done(unsafe { library::virDomainDestroyFlags(self.pointer, 0) })
    }

    /// The XML of the guest as it is now, without secrets.
    pub(crate) fn xml(&self) -> Result<String, VirtError> {
        // SAFETY: the reference to the guest is ours; so is the text, which nobody else frees.
        unsafe { owned_text(library::virDomainGetXMLDesc(self.pointer, 0)) }
    }

    /// Plugs a device into the running guest.
    pub(crate) fn attach(&self, device: &str) -> Result<(), VirtError> {
        let device = c_text(device)?;
        // SAFETY: the reference to the guest is ours, and the text outlives the call.
        done(unsafe {
            library::virDomainAttachDeviceFlags(
                self.pointer,
                device.as_ptr(),
                virt_sys::VIR_DOMAIN_AFFECT_LIVE,
            )
        })
    }

    /// Asks the running guest to let a device go, and waits a little for it.
    pub(crate) fn detach(&self, device: &str) -> Result<(), VirtError> {
        let device = c_text(device)?;
        // SAFETY: the reference to the guest is ours, and the text outlives the call.
        done(unsafe {
            library::virDomainDetachDeviceFlags(
                self.pointer,
                device.as_ptr(),
                virt_sys::VIR_DOMAIN_AFFECT_LIVE,
            )
        })
    }

    pub(crate) fn resize_disk(&self, target: &str, bytes: u64) -> Result<(), VirtError> {
        let target = c_text(target)?;
        // SAFETY: the reference to the guest is ours, and the text outlives the call.
        done(unsafe {
            library::virDomainBlockResize(
                self.pointer,
                target.as_ptr(),
                bytes,
                virt_sys::VIR_DOMAIN_BLOCK_RESIZE_BYTES,
            )
        })
    }

    /// Asks the agent in the guest for its network interfaces. Each of its two answers may take
    /// `seconds`.
    pub(crate) fn agent_interfaces(
        &self,
        seconds: c_int,
    ) -> Result<Vec<AgentInterface>, VirtError> {
        // Without this an agent that never answers is waited for as long as the guest is there.
        // SAFETY: the reference to the guest is ours until `self` is dropped.
        done(unsafe { library::virDomainAgentSetResponseTimeout(self.pointer, seconds, 0) })?;
        let mut list = ptr::null_mut();
        // SAFETY: the reference to the guest is ours, and the list is written during the call only.
        let count = unsafe {
            library::virDomainInterfaceAddresses(
                self.pointer,
                &raw mut list,
                virt_sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT,
                0,
            )
        };
        let Ok(count) = usize::try_from(count) else { return Err(VirtError::last()) };
        let mut interfaces = Vec::new();
        for at in 0..count {
            // SAFETY: libvirt has filled so many places of the list, each with an interface that is
            // ours, and freed once, here.
            unsafe {
                let interface = *list.add(at);
                if at < MOST_INTERFACES {
                    interfaces.push(AgentInterface::read(&*interface));
                }
                library::virDomainInterfaceFree(interface);
            }
        }
        // SAFETY: the list is null or ours, and its places are freed.
        unsafe { free(list.cast()) };
        Ok(interfaces)
    }

    /// Sets how long the guest may stand still for the last copy of a migration.
    pub(crate) fn set_max_downtime(&self, most: Duration) -> Result<(), VirtError> {
        let milliseconds = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        // SAFETY: the reference to the guest is ours until `self` is dropped.
        done(unsafe { library::virDomainMigrateSetMaxDowntime(self.pointer, milliseconds, 0) })
    }

    /// Moves the running guest to `target`, whose QEMU is sent the copy at `uri`. Returns when it
    /// is whole there and gone here.
    pub(crate) fn migrate(
        &self,
        target: &Connection,
        uri: &str,
        migration: &Migration,
    ) -> Result<(), VirtError> {
        let uri = c_text(uri)?;
        let tls = if migration.encrypted { virt_sys::VIR_MIGRATE_TLS } else { 0 };
        let held = if migration.held { virt_sys::VIR_MIGRATE_PAUSED } else { 0 };
        let (mut params, mut count, mut room) = (ptr::null_mut(), 0, 0);
        // SAFETY: libvirt grows the list and copies name and text; it is freed once, below. Both
        // connections are open for the time of the call, and the reference to the guest over there
        // is ours.
        unsafe {
            let added = library::virTypedParamsAddString(
                &raw mut params,
                &raw mut count,
                &raw mut room,
                virt_sys::VIR_MIGRATE_PARAM_URI.as_ptr(),
                uri.as_ptr(),
            );
            let moved = done(added).and_then(|()| {
                Domain::own(library::virDomainMigrate3(
                    self.pointer,
                    target.pointer(),
                    params,
                    count.cast_unsigned(),
                    virt_sys::VIR_MIGRATE_LIVE | tls | held,
                ))
            });
            library::virTypedParamsFree(params, count);
            moved.map(drop)
        }
    }

    /// Returns the progress of the job that runs on the guest, if one does.
    pub(crate) fn job_progress(&self) -> Result<Option<MigrationProgress>, VirtError> {
        // SAFETY: a record of numbers; libvirt fills it.
        let mut info: virt_sys::virDomainJobInfo = unsafe { std::mem::zeroed() };
        // SAFETY: the reference to the guest is ours, and `info` is written during the call only.
        done(unsafe { library::virDomainGetJobInfo(self.pointer, &raw mut info) })?;
        let runs = matches!(
            info.type_.cast_unsigned(),
            virt_sys::VIR_DOMAIN_JOB_BOUNDED | virt_sys::VIR_DOMAIN_JOB_UNBOUNDED
        );
        Ok(runs.then_some(MigrationProgress {
            elapsed: Duration::from_millis(info.timeElapsed),
            total: info.dataTotal,
            processed: info.dataProcessed,
            remaining: info.dataRemaining,
        }))
    }

    /// Ends the job that runs on the guest.
    pub(crate) fn abort_job(&self) -> Result<(), VirtError> {
        // SAFETY: the reference to the guest is ours until `self` is dropped.
        done(unsafe { library::virDomainAbortJob(self.pointer) })
    }

    /// Types `input` on the guest's first serial console and returns what came within `wait`, at
    /// most `limit` bytes. Refused while somebody else has the console open.
    pub(crate) fn converse(
        &self,
        connection: &Connection,
        input: &[u8],
        wait: Duration,
        limit: usize,
    ) -> Result<Vec<u8>, VirtError> {
        let stream = Stream::new(connection)?;
        // SAFETY: null stands for the first console; guest and stream are valid.
        done(unsafe {
            library::virDomainOpenConsole(self.pointer, ptr::null(), stream.pointer(), 0)
        })?;
        stream.converse(input, wait, limit)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: gives back the one reference that `own` took.
        unsafe { library::virDomainFree(self.pointer) };
    }
}

fn done(answer: c_int) -> Result<(), VirtError> {
    if answer < 0 { Err(VirtError::last()) } else { Ok(()) }
}

/// # Safety
/// `domain` is a valid guest.
pub(super) unsafe fn uuid_of(domain: virt_sys::virDomainPtr) -> Result<Uuid, VirtError> {
    let mut bytes = [0_u8; 16];
    // SAFETY: by contract; libvirt writes exactly 16 bytes.
    done(unsafe { library::virDomainGetUUID(domain, bytes.as_mut_ptr()) })?;
    Ok(Uuid::from_bytes(bytes))
}

/// The most interfaces of a guest, and addresses of one, that are read.
const MOST_INTERFACES: usize = 64;
const MOST_ADDRESSES: usize = 64;

/// The longest text of a MAC address or an IP address that is read, in bytes.
const LONGEST_ADDRESS: usize = 64;

/// A network interface as the agent in a guest describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentInterface {
    pub(crate) mac: Option<String>,
    pub(crate) addresses: Vec<String>,
}

impl AgentInterface {
    /// # Safety
    /// `interface` is one that libvirt has filled and that is not freed yet.
    unsafe fn read(interface: &virt_sys::virDomainInterface) -> Self {
        let number = usize::try_from(interface.naddrs).unwrap_or(0).min(MOST_ADDRESSES);
        // SAFETY: by contract: so many addresses follow, and each text is null or zero-terminated.
        unsafe {
            let address = |at| short_text((*interface.addrs.add(at)).addr);
            Self {
                mac: short_text(interface.hwaddr),
                addresses: (0..number).filter_map(address).collect(),
            }
        }
    }
}

/// # Safety
/// `text` is null or zero-terminated.
unsafe fn short_text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: by contract.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    let short = (bytes.len() <= LONGEST_ADDRESS).then_some(bytes)?;
    std::str::from_utf8(short).ok().map(str::to_owned)
}

/// A figure about a guest.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Param {
    Signed(i64),
    Unsigned(u64),
    Text(String),
}

/// The figures about one guest.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
    /// libvirt's number of this run of the guest; -1 if it does not run.
    pub(crate) id: i32,
    pub(crate) params: BTreeMap<String, Param>,
}

impl Record {
    /// # Safety
    /// `record` is a record of a list that is not freed yet.
    pub(super) unsafe fn read(record: virt_sys::virDomainStatsRecordPtr) -> Self {
        // SAFETY: by contract. Name, id and UUID are kept on this side: no call leaves the process.
        unsafe {
            let domain = (*record).dom;
            let name = library::virDomainGetName(domain);
            let params = (0..usize::try_from((*record).nparams).unwrap_or(0))
                .filter_map(|at| read_param(&*(*record).params.add(at)))
                .collect();
            Self {
                uuid: uuid_of(domain).unwrap_or(Uuid::nil()),
                name: if name.is_null() {
                    String::new()
                } else {
                    CStr::from_ptr(name).to_string_lossy().into_owned()
                },
                id: library::virDomainGetID(domain).cast_signed(),
                params,
            }
        }
    }
}

/// # Safety
/// `param` was filled by libvirt, so that its type says which value is valid.
unsafe fn read_param(param: &virt_sys::virTypedParameter) -> Option<(String, Param)> {
    // SAFETY: by contract; the name is zero-terminated.
    unsafe {
        let name = CStr::from_ptr(param.field.as_ptr()).to_str().ok()?.to_owned();
        let value = match param.type_.cast_unsigned() {
            virt_sys::VIR_TYPED_PARAM_INT => Param::Signed(i64::from(param.value.i)),
            virt_sys::VIR_TYPED_PARAM_UINT => Param::Unsigned(u64::from(param.value.ui)),
            virt_sys::VIR_TYPED_PARAM_LLONG => Param::Signed(param.value.l),
            virt_sys::VIR_TYPED_PARAM_ULLONG => Param::Unsigned(param.value.ul),
            virt_sys::VIR_TYPED_PARAM_BOOLEAN => Param::Unsigned(u64::from(param.value.b != 0)),
            virt_sys::VIR_TYPED_PARAM_STRING if !param.value.s.is_null() => {
                Param::Text(CStr::from_ptr(param.value.s).to_string_lossy().into_owned())
            }
            _ => return None,
        };
        Some((name, value))
    }
}
