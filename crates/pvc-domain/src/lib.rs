//! Domain XML: a summary to read, a text to edit.
//!
//! What is edited is the operator's text itself. An edit finds its place in the parsed document and
//! replaces a few bytes of the text there, so that everything it is not about (comments,
//! namespaces, elements that only libvirt knows, order, white space, quotes) stays to the byte.
//!
//! ```text
//!  text ──summary()──▶ DomainSummary             what PVC shows and decides on; the fast path
//!   │  ──validate()──▶ all problems at once      what an operator may define
//!   └──Domain::parse─▶ Domain ──edits──▶ text    define, rename, add a disk, …
//!                         └──for_host()──▶ text  what the hypervisor of one host is given
//! ```
//!
//! Document types, and with them entities, are refused everywhere; so is a text that costs more to
//! parse than a domain XML is worth (`cost.rs`): by its size, depth, elements, attributes and
//! namespaces.

#![forbid(unsafe_code)]

mod check;
mod cost;
mod edit;
mod error;
mod hardware;
mod host;
mod new;
mod read;
mod text;
mod write;

pub use check::{Checked, VM_NAME_LIMIT, validate};
pub use cost::{MAX_XML_BYTES, check_cost};
pub use edit::{AddedDisk, Domain, NewDisk, NewNic, renamed_volume};
pub use error::{DomainError, EditError, Problem};
pub use hardware::{HardwareEdit, WhichNics};
pub use host::{ForHost, HostFunction, Volumes, device_for_host, with_alias};
pub use new::{Firmware, Machine, NewDomain, new_domain};
pub use read::{
    Device, LocalState, alias_of, count_devices, device_summary, has_alias, has_open_vnc,
    local_state, summary,
};
pub use write::{one_line_single_quotes, pretty};
