//! `detect:NAME:SIZE:ID`: a disk by what it is, not by the name that the kernel gave it.

use std::fmt;

use super::device::{BlockDevice, Device};

/// Reason why a text does not name a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadDevice {
    #[error("device `{shown}` is not below `/dev`")]
    NotBelowDev { shown: String },
    #[error("the name of device `{shown}` has {bytes} bytes, at most {limit} are allowed")]
    TooLong { shown: String, bytes: usize, limit: usize },
    #[error("device `{shown}` contains `{found}`, which no device's name does")]
    Forbidden { shown: String, found: String },
    #[error("device `{shown}` makes a detour: no part of it may be empty, `.` or `..`")]
    Detour { shown: String },
    #[error("`{shown}` has not the form `detect:NAME:SIZE:ID`, as in `detect:INTEL SSD:800GB:0`")]
    NotDetect { shown: String },
    #[error("`{shown}` names no disk: the part before the size is empty")]
    NoName { shown: String },
    #[error(
        "size `{size}` in `{shown}` is not understood: a number and a unit are expected, such as \
         `800GB`, `1.92TB` or `894GiB`"
    )]
    BadSize { shown: String, size: String },
    #[error("`{id}` in `{shown}` is not a number of a disk: `0` is the first that matches")]
    BadIndex { shown: String, id: String },
}

impl BadDevice {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            BadDevice::NotBelowDev { .. } => Some(
                "a device is an absolute path such as `/dev/sdb` or `/dev/disk/by-path/…`, or \
                 `detect:NAME:SIZE:ID`"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// Most characters in the name that a disk is looked for by, and its highest number.
const MOST_NAME: usize = 100;
const MOST_INDEX: usize = 1000;

/// A disk by a part of its name, its size as on its label, and its number among those that match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detect {
    pub name: String,
    pub size_bytes: u64,
    pub index: usize,
    text: String,
}

/// A device as an operator names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceSpec {
    Path(Device),
    Detect(Detect),
}

impl DeviceSpec {
    /// Reads a path below `/dev`, or `detect:NAME:SIZE:ID`.
    pub fn parse(text: &str) -> Result<Self, BadDevice> {
        match text.strip_prefix("detect:") {
            Some(rest) => Detect::parse(text, rest).map(DeviceSpec::Detect),
            None => Device::parse(text).map(DeviceSpec::Path),
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSpec::Path(device) => device.fmt(f),
            DeviceSpec::Detect(detect) => f.write_str(&detect.text),
        }
    }
}

impl Detect {
    /// `rest` is `text` after `detect:`. The name may have colons and spaces in it.
    fn parse(text: &str, rest: &str) -> Result<Self, BadDevice> {
        let shown = || crate::shown(text);
        let mut parts = rest.rsplitn(3, ':');
        let (Some(id), Some(size), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(BadDevice::NotDetect { shown: shown() });
        };
        let name = plain(name);
        if name.is_empty() {
            return Err(BadDevice::NoName { shown: shown() });
        }
        if name.chars().count() > MOST_NAME || text.chars().any(char::is_control) {
            return Err(BadDevice::NotDetect { shown: shown() });
        }
        let size_bytes = label_bytes(size)
            .ok_or_else(|| BadDevice::BadSize { shown: shown(), size: crate::shown(size) })?;
        let is_number = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        let index = id.parse().ok().filter(|index| is_number && *index <= MOST_INDEX);
        let index =
            index.ok_or_else(|| BadDevice::BadIndex { shown: shown(), id: crate::shown(id) })?;
        Ok(Detect { name, size_bytes, index, text: text.to_owned() })
    }

    /// Whether the disk is called so and has this size, within 3 percent.
    fn matches(&self, disk: &BlockDevice) -> bool {
        let called = plain(&format!("{} {} {}", disk.vendor, disk.model, disk.revision));
        let (wanted, has) = (u128::from(self.size_bytes), u128::from(disk.size_bytes));
        disk.is_disk && called.contains(&self.name) && wanted.abs_diff(has) * 100 <= wanted * 3
    }
}

/// The text in small letters, its words set apart by one space each: the kernel's tools write
/// some disks' spaces as `_`.
fn plain(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c == '_').filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Bytes of a size as it stands on a disk's label: multiples of 1000, or of 1024 with `i` (`GiB`).
/// A bare number is bytes.
fn label_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let starts_and_ends =
        number.starts_with(|c: char| c.is_ascii_digit()) && !number.ends_with('.');
    let unit = unit.trim_start().to_ascii_lowercase();
    let (letter, base) = match unit.as_str() {
        "" | "b" => ("", 1000_u32),
        other => match (other.strip_suffix("ib"), other.strip_suffix('b')) {
            (Some(letter), _) => (letter, 1024),
            (None, Some(letter)) => (letter, 1000),
            (None, None) => match other.strip_suffix('i') {
                Some(letter) => (letter, 1024),
                None => (other, 1000),
            },
        },
    };
    let power = match letter {
        "" if base == 1000 => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        "e" => 6,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok().filter(|_| starts_and_ends)?;
    let bytes = bytes * f64::from(base).powi(power);
    (bytes >= 1.0 && bytes < u64::MAX as f64).then_some(bytes as u64)
}

/// Reason why no disk is the one that was meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoDevice {
    #[error("no disk matches `{spec}`")]
    NoMatch { spec: String, disks: Vec<String> },
    #[error(
        "`{spec}` asks for number {index} of the disks that match, and there is {}: {}",
        count(matched),
        list(matched)
    )]
    BeyondMatches { spec: String, index: usize, matched: Vec<Device> },
}

impl NoDevice {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            NoDevice::NoMatch { disks, .. } if disks.is_empty() => {
                Some("the node has no disk at all".to_owned())
            }
            NoDevice::NoMatch { disks, .. } => {
                Some(format!("the node has these disks: {}", disks.join("; ")))
            }
            NoDevice::BeyondMatches { .. } => Some("the first that matches is number 0".to_owned()),
        }
    }
}

fn count(matched: &[Device]) -> String {
    match matched.len() {
        1 => "only number 0".to_owned(),
        count => format!("no more than numbers 0 to {}", count - 1),
    }
}

fn list(devices: &[Device]) -> String {
    devices.iter().map(|device| format!("`{device}`")).collect::<Vec<_>>().join(", ")
}

/// The device that `spec` names among those of a node. A path is taken as it is.
///
/// Disks are numbered as PVC 1.0.3 does: those on a SCSI bus by their addresses; if none of them
/// matches, the others by the kernel's names.
///
/// # Errors
/// [`NoDevice`] if nothing matches, or fewer than the number asks for.
pub fn find(spec: &DeviceSpec, devices: &[BlockDevice]) -> Result<Device, NoDevice> {
    let detect = match spec {
        DeviceSpec::Path(device) => return Ok(device.clone()),
        DeviceSpec::Detect(detect) => detect,
    };
    let matched = matched(detect, devices);
    if let Some(found) = matched.get(detect.index) {
        return Ok(found.clone());
    }
    let (spec, index) = (spec.to_string(), detect.index);
    match matched.is_empty() {
        true => Err(NoDevice::NoMatch { spec, disks: described(devices) }),
        false => Err(NoDevice::BeyondMatches { spec, index, matched }),
    }
}

/// Words about which disk `spec` means and which others match, for whoever has not named it by a
/// path.
pub fn choice(spec: &DeviceSpec, devices: &[BlockDevice]) -> Option<String> {
    let DeviceSpec::Detect(detect) = spec else { return None };
    let matched = matched(detect, devices);
    let found = matched.get(detect.index)?;
    Some(match &matched[..] {
        [_] => format!("`{spec}` is `{found}`, and no other disk matches"),
        all => format!("`{spec}` is `{found}`; {} disks match: {}", all.len(), list(all)),
    })
}

fn matched(detect: &Detect, devices: &[BlockDevice]) -> Vec<Device> {
    let matching: Vec<_> = devices.iter().filter(|disk| detect.matches(disk)).collect();
    let mut on_bus: Vec<_> =
        matching.iter().filter_map(|disk| Some((disk.address?, &disk.device))).collect();
    if !on_bus.is_empty() {
        on_bus.sort();
        return on_bus.into_iter().map(|(_, device)| device.clone()).collect();
    }
    let mut others: Vec<_> = matching.iter().map(|disk| &disk.device).collect();
    others.sort_by_key(|device| by_numbers(device.as_str()));
    others.into_iter().cloned().collect()
}

/// Key by which `nvme2n1` comes before `nvme10n1`.
fn by_numbers(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let word = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(word);
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let (digits, after) = after.split_at(digits);
        parts.push((word.to_owned(), digits.parse().unwrap_or(0)));
        rest = after;
    }
    parts
}

/// The disks among `devices`, for a message.
fn described(devices: &[BlockDevice]) -> Vec<String> {
    let described = |disk: &BlockDevice| {
        let called = format!("{} {}", disk.vendor.trim(), disk.model.trim());
        format!("`{}` {} of {} bytes", disk.device, crate::shown(called.trim()), disk.size_bytes)
    };
    devices.iter().filter(|disk| disk.is_disk).take(20).map(described).collect()
}

#[cfg(test)]
mod tests {
    use super::super::device::ScsiAddress;
    use super::*;

    fn spec(text: &str) -> DeviceSpec {
        DeviceSpec::parse(text).unwrap()
    }

    fn disk(name: &str, address: Option<&str>, model: &str, size_bytes: u64) -> BlockDevice {
        BlockDevice {
            vendor: "ATA     ".to_owned(),
            model: model.to_owned(),
            address: address.map(|text| ScsiAddress::parse(text).unwrap()),
            ..BlockDevice::blank(Device::parse(name).unwrap(), size_bytes)
        }
    }

    fn node() -> Vec<BlockDevice> {
        vec![
            disk("/dev/sda", Some("2:0:10:0"), "INTEL SSDSC2KB96", 960_197_124_096),
            disk("/dev/sdb", Some("2:0:2:0"), "INTEL_SSDSC2KB96", 960_197_124_096),
            disk("/dev/sdc", Some("0:0:0:0"), "Samsung SSD 870", 1_000_204_886_016),
            disk("/dev/nvme10n1", None, "INTEL SSDPE2KX010T8", 1_000_204_886_016),
            disk("/dev/nvme2n1", None, "INTEL SSDPE2KX010T8", 1_000_204_886_016),
        ]
    }

    #[test]
    fn a_spec_is_a_path_or_says_what_to_look_for() {
        assert_eq!(spec("/dev/sdb"), DeviceSpec::Path(Device::parse("/dev/sdb").unwrap()));
        for (text, name, size_bytes, index) in [
            ("detect:INTEL:800GB:0", "intel", 800_000_000_000, 0),
            ("detect:Intel  SSD:1.92TB:11", "intel ssd", 1_920_000_000_000, 11),
            ("detect:a:b:c:10GiB:1", "a:b:c", 10 << 30, 1),
            ("detect:x:1 tb:0", "x", 1_000_000_000_000, 0),
            ("detect:x:960G:0", "x", 960_000_000_000, 0),
            ("detect:x:1.5Ti:0", "x", 3 << 39, 0),
            ("detect:x:4096:0", "x", 4096, 0),
        ] {
            let DeviceSpec::Detect(detect) = spec(text) else { panic!("{text}") };
            assert_eq!(
                (detect.name.as_str(), detect.size_bytes, detect.index),
                (name, size_bytes, index),
                "{text}"
            );
            assert_eq!(spec(text).to_string(), text);
        }
    }

    #[test]
    fn what_says_nothing_to_look_for_is_refused() {
        for (text, why) in [
            ("detect:", "has not the form"),
            ("detect:INTEL", "has not the form"),
            ("detect:INTEL:800GB", "has not the form"),
            ("detect::800GB:0", "names no disk"),
            ("detect: :800GB:0", "names no disk"),
            ("detect:INTEL::0", "size ``"),
            ("detect:INTEL:0:0", "size `0`"),
            ("detect:INTEL:-1:0", "size `-1`"),
            ("detect:INTEL:10Q:0", "size `10Q`"),
            ("detect:INTEL:99E:0", "size `99E`"),
            ("detect:INTEL:1.T:0", "size `1.T`"),
            ("detect:INTEL:.5T:0", "size `.5T`"),
            ("detect:INTEL:1.2.3T:0", "size `1.2.3T`"),
            ("detect:INTEL:iB:0", "size `iB`"),
            ("detect:INTEL:1iB:0", "size `1iB`"),
            ("detect:INTEL:١٠G:0", "size `١٠G`"),
            ("detect:INTEL:800GB:", "`` in"),
            ("detect:INTEL:800GB:-1", "`-1` in"),
            ("detect:INTEL:800GB:+1", "`+1` in"),
            ("detect:INTEL:800GB:1001", "`1001` in"),
            ("detect:INTEL:800GB:99999999999999999999", "is not a number of a disk"),
            ("detect:IN\nTEL:800GB:0", "has not the form"),
            ("detect:IN\0TEL:800GB:0", "has not the form"),
            ("DETECT:INTEL:800GB:0", "not below `/dev`"),
        ] {
            let error = DeviceSpec::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
        let long = format!("detect:{}:800GB:0", "x".repeat(101));
        assert!(DeviceSpec::parse(&long).is_err());
    }

    #[test]
    fn a_disk_is_found_by_its_name_its_size_and_its_number_among_those_that_match() {
        for (text, device) in [
            ("detect:INTEL:960GB:0", "/dev/sdb"),
            ("detect:intel ssd:960GB:1", "/dev/sda"),
            ("detect:ATA Samsung:1TB:0", "/dev/sdc"),
            ("detect:Samsung:0.98TB:0", "/dev/sdc"),
            ("detect:Samsung:931.5GiB:0", "/dev/sdc"),
            ("detect:INTEL:1TB:0", "/dev/nvme2n1"),
            ("detect:INTEL:1TB:1", "/dev/nvme10n1"),
            ("/dev/disk/by-id/any", "/dev/disk/by-id/any"),
        ] {
            assert_eq!(find(&spec(text), &node()).unwrap().as_str(), device, "{text}");
        }
    }

    #[test]
    fn it_is_said_which_of_the_disks_that_match_is_meant() {
        let said = |text: &str| choice(&spec(text), &node());
        assert_eq!(
            said("detect:INTEL:960GB:1").unwrap(),
            "`detect:INTEL:960GB:1` is `/dev/sda`; 2 disks match: `/dev/sdb`, `/dev/sda`"
        );
        let one = "`detect:Samsung:1TB:0` is `/dev/sdc`, and no other disk matches";
        assert_eq!(said("detect:Samsung:1TB:0").unwrap(), one);
        assert_eq!((said("/dev/sdb"), said("detect:INTEL:960GB:2")), (None, None));
    }

    #[test]
    fn a_disk_that_is_not_there_is_not_replaced_by_another() {
        for (text, why) in [
            ("detect:SEAGATE:960GB:0", "no disk matches `detect:SEAGATE:960GB:0`"),
            ("detect:Samsung:960GB:0", "no disk matches"),
            ("detect:Samsung:1TiB:0", "no disk matches"),
            (
                "detect:INTEL:960GB:2",
                "`detect:INTEL:960GB:2` asks for number 2 of the disks that match, and there is \
                 no more than numbers 0 to 1: `/dev/sdb`, `/dev/sda`",
            ),
            ("detect:Samsung:1TB:1", "and there is only number 0: `/dev/sdc`"),
        ] {
            let error = find(&spec(text), &node()).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert!(error.hint().is_some());
        }
        let other = BlockDevice { is_disk: false, ..node().remove(2) };
        let error = find(&spec("detect:Samsung:1TB:0"), &[other]).unwrap_err();
        assert_eq!(error.hint().unwrap(), "the node has no disk at all");
    }
}
