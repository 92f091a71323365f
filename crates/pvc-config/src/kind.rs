//! Kinds of values: what a key may be, how it is read, and how that is told to people.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net};
use pvc_model::shown;

use crate::config::AddressSelection;
use crate::secret::{RawSection, Secret};
use crate::yaml::{Data, Node, Scalar};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Flag,
    Text,
    /// A short host name.
    NodeName,
    /// A host name or address of a service.
    Host,
    Domain,
    Directory,
    File,
    /// A file's name, joined to a directory given elsewhere unless absolute.
    FileName,
    Device,
    Mtu,
    Port,
    Seconds,
    /// A whole number from `min` on, of what `unit` says.
    Count {
        min: u64,
        unit: &'static str,
    },
    Address,
    Ipv4,
    /// A network with its mask, `10.0.0.0/24`.
    Network,
    /// An address with its network's mask, `10.0.0.250/24`.
    AddressInNetwork,
    Netmask,
    /// `by-id` or an address.
    Selection,
    /// The older format's: `None`, `by-id`, or an address with its mask.
    OldSelection,
    Choice(&'static [&'static str]),
    NodeNames,
    Hosts,
    /// Addresses and networks, of either family.
    Sources,
    Uuid,
    Secret,
    /// A section that is only passed on.
    Section,
}

pub(crate) enum Value {
    Flag(bool),
    Number(u64),
    Text(String),
    Path(PathBuf),
    Address(IpAddr),
    Ipv4(Ipv4Addr),
    Network(Ipv4Net),
    Prefix(u8),
    /// Selection with the mask it was written with, if any.
    Selection(AddressSelection, Option<u8>),
    Names(Vec<String>),
    Sources(Vec<IpNet>),
    Secret(Secret),
    Section(RawSection),
}

/// Reason why a value is not of its kind. `found` replaces the usual description of the value.
#[derive(Default)]
pub(crate) struct Mismatch {
    pub found: Option<String>,
    pub hint: Option<String>,
}

impl Mismatch {
    fn hint(hint: impl Into<String>) -> Self {
        Self { found: None, hint: Some(hint.into()) }
    }
}

type Read<T> = Result<T, Mismatch>;

impl Kind {
    /// Allowed values, as a noun.
    pub fn expected(self) -> String {
        let text = match self {
            Kind::Flag => "`true` or `false`",
            Kind::Text => "text",
            Kind::NodeName => "a short host name: letters, digits and hyphens, at most 63, no dots",
            Kind::Host => "a host name or an address",
            Kind::Domain => "a domain name",
            Kind::Directory => "the absolute path of a directory",
            Kind::File => "the absolute path of a file",
            Kind::FileName => "the name of a file",
            Kind::Device => "the name of a network device, at most 15 characters",
            Kind::Mtu => "a whole number of bytes from 68 to 65535",
            Kind::Port => "a port number from 1 to 65535",
            Kind::Seconds => "a whole number of seconds (1 or more)",
            Kind::Count { min, unit } => {
                return format!("a whole number of {unit} ({min} or more)");
            }
            Kind::Address => "an IP address",
            Kind::Ipv4 => "an IPv4 address",
            Kind::Network => "an IPv4 network with its mask, like `10.0.0.0/24`",
            Kind::AddressInNetwork => {
                "an IPv4 address with its network's mask, like `10.0.0.250/24`"
            }
            Kind::Netmask => "a prefix length from 1 to 32, or a netmask like `255.255.255.0`",
            Kind::Selection => "`by-id` or an IPv4 address without mask",
            Kind::OldSelection => {
                "`by-id`, `None`, or an IPv4 address with its mask, like `10.0.0.1/24`"
            }
            Kind::Choice(choices) => return one_of(choices),
            Kind::NodeNames => "a list of short host names",
            Kind::Hosts => "a list of host names or addresses",
            Kind::Sources => "a list of addresses or networks, like `10.0.0.0/24` or `2001:db8::7`",
            Kind::Uuid => "a UUID, like `2f6d7b2e-8f0c-4d53-9b0e-3c8a5c1f9a10`",
            Kind::Secret => "text",
            Kind::Section => "a section of keys",
        };
        text.into()
    }

    /// Whether a value must not be shown: it is a secret, or may be one that lost its key.
    pub fn is_secret(self) -> bool {
        matches!(self, Kind::Secret | Kind::Section)
    }

    /// Python computes with these as they are, so a quoted number stops a legacy peer.
    pub fn is_number_in_python(self) -> bool {
        matches!(self, Kind::Mtu | Kind::Seconds | Kind::Count { .. })
    }

    pub fn read(self, node: &Node) -> Read<Value> {
        match self {
            Kind::NodeNames => list(node, node_name).map(Value::Names),
            Kind::Hosts => list(node, host).map(Value::Names),
            Kind::Sources => list(node, source).map(Value::Sources),
            Kind::Section => match &node.data {
                Data::Map(_) => Ok(Value::Section(RawSection::new(node.to_json()))),
                Data::Scalar(_) | Data::List(_) => Err(Mismatch::default()),
            },
            _ => self.read_scalar(node.scalar().ok_or_else(Mismatch::default)?),
        }
    }

    fn read_scalar(self, scalar: &Scalar) -> Read<Value> {
        let text = scalar.text.as_str();
        match self {
            Kind::Flag => flag(scalar).map(Value::Flag),
            Kind::Text => Ok(Value::Text(text.into())),
            Kind::NodeName => node_name(text).map(Value::Text),
            Kind::Host => host(text).map(Value::Text),
            Kind::Domain => domain(text).map(Value::Text),
            Kind::Directory | Kind::File => absolute(text).map(Value::Path),
            Kind::FileName => file_name(text).map(Value::Path),
            Kind::Device => device(text).map(Value::Text),
            Kind::Mtu => number(text, 68, 65535).map(Value::Number),
            Kind::Port => number(text, 1, 65535).map(Value::Number),
            Kind::Seconds => number(text, 1, MAX_SECONDS).map(Value::Number),
            Kind::Count { min, .. } => number(text, min, u64::from(u32::MAX)).map(Value::Number),
            Kind::Address => address(text).map(Value::Address),
            Kind::Ipv4 => ipv4(text).map(Value::Ipv4),
            Kind::Network => network(text).map(Value::Network),
            Kind::AddressInNetwork => with_mask(text).map(Value::Network),
            Kind::Netmask => netmask(text).map(Value::Prefix),
            Kind::Selection => selection(text),
            Kind::OldSelection => old_selection(text),
            Kind::Choice(choices) => choice(text, choices),
            Kind::Uuid => uuid(text).map(Value::Text),
            Kind::Secret => Ok(Value::Secret(Secret::new(text))),
            Kind::NodeNames | Kind::Hosts | Kind::Sources | Kind::Section => {
                Err(Mismatch::default())
            }
        }
    }
}

/// A year: longer is a slip, and far from overflowing anything.
const MAX_SECONDS: u64 = 366 * 24 * 3600;

/// Description of a value, as a clause that follows its key.
pub(crate) fn describe(node: &Node, secret: bool) -> String {
    match &node.data {
        _ if node.is_null() => "is empty".into(),
        Data::Scalar(scalar) if secret => {
            format!("is text of {} characters", scalar.text.chars().count())
        }
        Data::Scalar(scalar) if scalar.text.is_empty() => "is empty text".into(),
        Data::Scalar(scalar) if scalar.quoted => {
            format!("is the text `\"{}\"`", shown(&scalar.text))
        }
        Data::Scalar(scalar) => format!("is `{}`", shown(&scalar.text)),
        Data::List(items) => match items.len() {
            1 => "is a list of 1 item".into(),
            count => format!("is a list of {count} items"),
        },
        Data::Map(_) => "is a section of keys".into(),
    }
}

pub(crate) fn one_of(choices: &[&str]) -> String {
    let quoted: Vec<_> = choices.iter().map(|choice| format!("`{choice}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

fn flag(scalar: &Scalar) -> Read<bool> {
    if let Some(flag) = scalar.flag() {
        return Ok(flag);
    }
    let bare = Scalar { text: scalar.text.clone(), quoted: false };
    match bare.flag() {
        Some(flag) => Err(Mismatch::hint(format!(
            "write {flag} without quotes: in quotes it is text, which PVC 1.0.3 takes for \
             true"
        ))),
        None => Err(Mismatch::default()),
    }
}

/// A whole number the way YAML 1.1 and people agree on it; where they differ it is refused.
fn number(text: &str, min: u64, max: u64) -> Read<u64> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let octal = digits
        .strip_prefix("0o")
        .or_else(|| digits.strip_prefix('0'))
        .filter(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit() || c == '_'));
    if let Some(rest) = octal {
        let decimal = rest.trim_start_matches(['0', '_']);
        let value = u64::from_str_radix(&rest.replace('_', ""), 8);
        let meaning = match value {
            Ok(value) => format!(" and mean {value} in YAML 1.1"),
            Err(_) => String::new(),
        };
        let decimal = if decimal.is_empty() { "0" } else { decimal };
        return Err(Mismatch::hint(format!(
            "numbers that begin with 0 are octal{meaning}, which is seldom wanted: write {decimal} \
             for the decimal number"
        )));
    }
    let plain = digits.replace('_', "");
    let value = match plain.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => plain.chars().all(|c| c.is_ascii_digit()).then(|| plain.parse().ok()).flatten(),
    };
    match value {
        Some(value) if (min..=max).contains(&value) => Ok(value),
        Some(value) if value > max => Err(Mismatch::hint(format!("the largest value is {max}"))),
        Some(_) => Err(Mismatch::hint(format!("the smallest value is {min}"))),
        None => Err(number_hint(text)),
    }
}

fn number_hint(text: &str) -> Mismatch {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    match text[digits.len()..].chars().next() {
        _ if digits.is_empty() => Mismatch::default(),
        Some(':') => Mismatch::hint(
            "a number with colons counts by sixties in YAML 1.1: write a plain number",
        ),
        Some('.') => Mismatch::hint(format!("write it without a fraction, for example {digits}")),
        Some(_) => Mismatch::hint(format!("write the number alone, without a unit: {digits}")),
        None => Mismatch::hint("the number is too large"),
    }
}

fn list<T>(node: &Node, item: fn(&str) -> Read<T>) -> Read<Vec<T>> {
    let items = match &node.data {
        Data::List(items) => items,
        Data::Scalar(_) => {
            return Err(Mismatch::hint(
                "write each on a line of its own, after a hyphen: `- name`",
            ));
        }
        Data::Map(_) => return Err(Mismatch::default()),
    };
    items
        .iter()
        .enumerate()
        .map(|(index, node)| {
            let wrong = |mismatch: Mismatch| Mismatch {
                found: Some(format!("has an item {} that {}", index + 1, describe(node, false))),
                ..mismatch
            };
            let scalar = node
                .scalar()
                .filter(|_| !node.is_null())
                .ok_or_else(|| wrong(Mismatch::default()))?;
            item(&scalar.text).map_err(wrong)
        })
        .collect()
}

pub(crate) fn is_node_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=63).contains(&text.len())
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn node_name(text: &str) -> Read<String> {
    if is_node_name(text) {
        return Ok(text.into());
    }
    match text.split_once('.') {
        Some((short, _)) if is_node_name(short) => {
            Err(Mismatch::hint(format!("nodes are known by their short names: write `{short}`")))
        }
        _ => Err(Mismatch::default()),
    }
}

fn is_domain(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    (1..=253).contains(&text.len()) && text.split('.').all(is_node_name)
}

fn domain(text: &str) -> Read<String> {
    if is_domain(text) { Ok(text.into()) } else { Err(Mismatch::default()) }
}

fn host(text: &str) -> Read<String> {
    if is_domain(text) || text.parse::<IpAddr>().is_ok() {
        Ok(text.into())
    } else if text.contains(':') {
        Err(Mismatch::hint("write the host alone: the port has a key of its own"))
    } else {
        Err(Mismatch::default())
    }
}

fn absolute(text: &str) -> Read<PathBuf> {
    if text.starts_with('/') && !text.contains('\0') {
        Ok(PathBuf::from(text))
    } else {
        Err(Mismatch::hint("begin the path with `/`"))
    }
}

fn file_name(text: &str) -> Read<PathBuf> {
    let path = PathBuf::from(text);
    let plain = !text.is_empty() && !text.ends_with('/') && !text.contains('\0');
    if plain && (path.is_absolute() || !text.contains('/')) {
        Ok(path)
    } else {
        Err(Mismatch::hint("name a file in `ceph_directory`, or give its absolute path"))
    }
}

fn device(text: &str) -> Read<String> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == ':';
    if text.is_empty() || text.len() > 15 || text.contains(bad) || text == "." || text == ".." {
        return Err(Mismatch::default());
    }
    Ok(text.into())
}

fn address(text: &str) -> Read<IpAddr> {
    match text.parse() {
        Ok(address) => Ok(address),
        Err(_) if text == "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        Err(_) => Err(address_hint(text)),
    }
}

fn ipv4(text: &str) -> Read<Ipv4Addr> {
    text.parse().map_err(|_| address_hint(text))
}

fn address_hint(text: &str) -> Mismatch {
    match text.split_once('/') {
        Some((address, _)) if address.parse::<IpAddr>().is_ok() => {
            Mismatch::hint(format!("write the address without its mask: `{address}`"))
        }
        _ if text.contains(':') && text.parse::<IpAddr>().is_ok() => {
            Mismatch::hint("PVC's own networks are IPv4; IPv6 is for the networks of the VMs")
        }
        _ => Mismatch::default(),
    }
}

fn network(text: &str) -> Read<Ipv4Net> {
    let net = with_mask(text)?;
    if net.addr() == net.network() {
        Ok(net)
    } else {
        Err(Mismatch::hint(format!("the network of that address is `{}`", net.trunc())))
    }
}

fn with_mask(text: &str) -> Read<Ipv4Net> {
    let Some((address, mask)) = text.split_once('/') else {
        return Err(match text.parse::<Ipv4Addr>() {
            Ok(_) => Mismatch::hint(format!("add the mask, for example `{}/24`", shown(text))),
            Err(_) => Mismatch::default(),
        });
    };
    let prefix = netmask(mask)?;
    let address = ipv4(address)?;
    Ipv4Net::new(address, prefix).map_err(|_| Mismatch::default())
}

fn netmask(text: &str) -> Read<u8> {
    if let Ok(mask) = text.parse::<Ipv4Addr>() {
        return ipnet::ipv4_mask_to_prefix(mask).ok().filter(|prefix| *prefix > 0).ok_or_else(
            || Mismatch::hint("a netmask is ones followed by zeros, like `255.255.255.0`"),
        );
    }
    let text = text.strip_prefix('/').unwrap_or(text);
    number(text, 1, 32).map(|prefix| u8::try_from(prefix).expect("at most 32"))
}

fn selection(text: &str) -> Read<Value> {
    if text.eq_ignore_ascii_case("by-id") || text.eq_ignore_ascii_case("by_id") {
        return Ok(Value::Selection(AddressSelection::ById, None));
    }
    ipv4(text).map(|address| Value::Selection(AddressSelection::Static(address), None))
}

fn old_selection(text: &str) -> Read<Value> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(Value::Selection(AddressSelection::Unassigned, None));
    }
    if text.contains('/') {
        let net = with_mask(text)?;
        return Ok(Value::Selection(AddressSelection::Static(net.addr()), Some(net.prefix_len())));
    }
    selection(text)
}

/// A single address stands for itself alone.
fn source(text: &str) -> Read<IpNet> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    address
        .or_else(|_| text.parse::<IpNet>().map(|net| net.trunc()))
        .map_err(|_| Mismatch::default())
}

fn choice(text: &str, choices: &'static [&'static str]) -> Read<Value> {
    if let Some(choice) = choices.iter().find(|choice| choice.eq_ignore_ascii_case(text)) {
        return Ok(Value::Text((*choice).into()));
    }
    match crate::problem::misspelling(text, choices.iter().copied()) {
        Some(choice) => Err(Mismatch::hint(format!("did you mean `{choice}`?"))),
        None => Err(Mismatch::default()),
    }
}

fn uuid(text: &str) -> Read<String> {
    let groups: Vec<_> = text.split('-').collect();
    let lengths: Vec<_> = groups.iter().map(|group| group.len()).collect();
    let hex = groups.iter().all(|group| group.chars().all(|c| c.is_ascii_hexdigit()));
    if hex && lengths == [8, 4, 4, 4, 12] {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(Mismatch::default())
    }
}

/// A Rust type that holds one of the values; `None` would mean that the table and the code
/// disagree.
pub(crate) trait Typed: Sized {
    fn typed(value: Value) -> Option<Self>;
}

macro_rules! typed {
    ($($variant:ident($value:ident) => $type:ty: $convert:expr;)*) => {$(
        impl Typed for $type {
            fn typed(value: Value) -> Option<Self> {
                match value {
                    Value::$variant($value) => $convert,
                    _ => None,
                }
            }
        }
    )*};
}

typed! {
    Flag(flag) => bool: Some(flag);
    Number(number) => u32: u32::try_from(number).ok();
    Number(number) => u16: u16::try_from(number).ok();
    Number(number) => std::time::Duration: Some(std::time::Duration::from_secs(number));
    Text(text) => String: Some(text);
    Path(path) => PathBuf: Some(path);
    Address(address) => IpAddr: Some(address);
    Ipv4(address) => Ipv4Addr: Some(address);
    Network(network) => Ipv4Net: Some(network);
    Prefix(prefix) => u8: Some(prefix);
    Names(names) => Vec<String>: Some(names);
    Sources(sources) => Vec<IpNet>: Some(sources);
    Secret(secret) => Secret: Some(secret);
    Section(section) => RawSection: Some(section);
}

impl Typed for (AddressSelection, Option<u8>) {
    fn typed(value: Value) -> Option<Self> {
        match value {
            Value::Selection(selection, mask) => Some((selection, mask)),
            _ => None,
        }
    }
}
