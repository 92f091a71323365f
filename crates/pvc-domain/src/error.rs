//! Errors of a domain XML, and of an edit.

use std::fmt;

/// Reason why a text cannot be read as a domain XML.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DomainError {
    #[error("the XML has {bytes} bytes, at most {limit} are taken")]
    TooLarge { bytes: usize, limit: usize },
    #[error("the XML has elements nested more than {limit} deep")]
    TooDeep { limit: usize },
    #[error("the XML has more than {limit} elements")]
    TooManyElements { limit: usize },
    #[error("the XML has an element with more than {limit} attributes")]
    TooManyAttributes { limit: usize },
    #[error("the XML declares more than {limit} namespaces")]
    TooManyNamespaces { limit: usize },
    #[error("the XML has a document type; these are refused because of what entities can do")]
    DocumentType,
    #[error("line {line}, column {column}: not well-formed XML: {why}")]
    NotXml { line: u32, column: u32, why: String },
    #[error("the outermost element is `<{found}>`, it must be `<{expected}>`")]
    WrongRoot { found: String, expected: String },
    #[error("`<{element}>` is missing")]
    Missing { element: &'static str },
    #[error("`<{element}>` is `{found}`, {expected} is needed")]
    Invalid { element: &'static str, found: String, expected: &'static str },
}

impl DomainError {
    /// Advice about what to do, if more can be said than the message does.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            DomainError::TooLarge { .. } => {
                Some("a domain XML has a few kilobytes; remove comments and data from it")
            }
            DomainError::TooManyNamespaces { .. } => Some(
                "declare a namespace once, at `<domain>`, and not at each element that uses it",
            ),
            DomainError::DocumentType => {
                Some("remove the `<!DOCTYPE …>` line and write out what its entities stand for")
            }
            DomainError::NotXml { .. } => {
                Some("`virt-xml-validate FILE domain` and `xmllint FILE` show such mistakes, too")
            }
            DomainError::Missing { element: "uuid" } => {
                Some("add `<uuid>…</uuid>`; `uuidgen` makes one")
            }
            DomainError::Missing { element: "memory" } => {
                Some("add `<memory unit='MiB'>1024</memory>`")
            }
            DomainError::Missing { element: "vcpu" } => Some("add `<vcpu>1</vcpu>`"),
            _ => None,
        }
    }
}

/// A mistake in a domain XML, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Counted from 1; 0 if it has no place (something is missing).
    pub line: u32,
    pub column: u32,
    pub what: String,
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}, column {}: ", self.line, self.column)?;
        }
        f.write_str(&self.what)
    }
}

/// Reason why an edit was not made. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("the VM has no `<devices>`")]
    NoDevices,
    #[error("{what} `{value}` contains a character that XML does not allow")]
    NotAllowed { what: &'static str, value: String },
    #[error("disk `{target}` exists already")]
    TargetTaken { target: String },
    #[error("`{target}` is not a disk name such as `sda`")]
    BadTarget { target: String },
    #[error("`{path}` is not the absolute path of a file")]
    BadPath { path: String },
    #[error("all disk names from `{prefix}a` to `{prefix}z` are taken")]
    NoTargetLeft { prefix: String },
    #[error("`{source_name}` is attached to this VM already, as `{target}`")]
    SourceTaken { source_name: String, target: String },
    #[error("the VM has no disk `{disk}`")]
    NoDisk { disk: String },
    #[error("`{address}` is not a MAC address of a network interface")]
    BadMac { address: String },
    #[error("`{model}` is not a model of a network interface")]
    BadModel { model: String },
    #[error("MAC address `{address}` is used by this VM already")]
    MacTaken { address: String },
    #[error("the VM has no network interface {what}")]
    NoNic { what: String },
    #[error(
        "a topology of {sockets} sockets, {cores} cores and {threads} threads has {product} vCPUs, \
         not {vcpus}"
    )]
    TopologyMismatch { sockets: u32, cores: u32, threads: u32, product: u64, vcpus: u32 },
    #[error("{what} cannot be set alone, as the VM has `<{element}>`; edit the XML instead")]
    NotAlone { what: &'static str, element: &'static str },
    #[error("{what} must be at least 1")]
    Zero { what: &'static str },
    #[error("this kind of disk or interface cannot be added here; edit the XML instead")]
    UnknownKind,
    #[error("a device is one XML element, such as `<disk>…</disk>`")]
    NotOneDevice,
    #[error(transparent)]
    Domain(#[from] DomainError),
}

impl EditError {
    /// Whether what was named is not in the VM.
    pub fn is_not_found(&self) -> bool {
        matches!(self, EditError::NoDisk { .. } | EditError::NoNic { .. })
    }

    /// Advice about what to do, if more can be said than the message does.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            EditError::NoDevices => Some("add `<devices>` with an emulator and a console"),
            EditError::BadTarget { .. } => Some("`sd`, `vd`, `hd` or `xvd` and one letter or two"),
            EditError::BadModel { .. } => Some("letters, digits, `-` and `_`, such as `virtio`"),
            EditError::BadMac { .. } => Some(
                "six pairs of hexadecimal digits with `:` between, the second digit even: \
                 `52:54:00:12:34:56`",
            ),
            EditError::TopologyMismatch { .. } => {
                Some("sockets times cores times threads must be the number of vCPUs")
            }
            EditError::Domain(error) => error.hint(),
            _ => None,
        }
    }
}
