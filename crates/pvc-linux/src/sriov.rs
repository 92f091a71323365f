//! SR-IOV cards of this machine: their number of functions and where those lie over sysfs, their
//! settings over netlink.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::TryStreamExt;
use pvc_model::link::{Mac, is_link_name};
use pvc_model::sriov::plan::{CardSeen, FunctionSeen};
use pvc_model::sriov::settings::{VfLinkState, VfSetting, VfSettings};
use pvc_model::sriov::{MOST_FUNCTIONS, PciAddress};
use pvc_ports::{NetworkError, Sriov};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkMessage, LinkVfInfo, VfInfo, VfInfoLinkState, VfInfoRate,
    VfInfoRssQueryEn, VfInfoSpoofCheck, VfInfoTrust, VfInfoVlan, VfLinkState as KernelLinkState,
};

use crate::network::kernel::{ask, errno, index_of};

/// The cards of this machine.
#[derive(Debug, Clone)]
pub struct LinuxSriov {
    devices: PathBuf,
    turns: Turns,
}

/// Locks of the cards, by name, so that one thread at a time is at a card: the kernel lets who
/// reads wait while a driver is at work, and of threads that nobody waits for any more there is not
/// to be another each time.
type Turns = Arc<Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>>;

impl LinuxSriov {
    pub fn new() -> Self {
        Self::at("/sys/class/net")
    }

    /// Looks for cards in another folder than `/sys/class/net`.
    pub fn at(devices: impl Into<PathBuf>) -> Self {
        LinuxSriov { devices: devices.into(), turns: Turns::default() }
    }

    /// The folder of an interface, if there is one of that name.
    fn folder(&self, card: &str) -> Option<PathBuf> {
        let folder = self.devices.join(card);
        (is_link_name(card) && folder.exists()).then_some(folder)
    }

    /// Does something at the card that may take long. It goes on if nobody waits for it any more.
    async fn at_card<T: Send + 'static>(
        &self,
        card: &str,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let turn = {
            let mut turns = self.turns.lock().expect("nobody panics while holding it");
            turns.entry(card.to_owned()).or_default().clone()
        };
        let turn = turn.lock_owned().await;
        let work = move || {
            let _turn = turn;
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other).flatten()
    }
}

impl Default for LinuxSriov {
    fn default() -> Self {
        Self::new()
    }
}

/// A number that a file of a device holds; `None` if the device has no such file.
fn number(file: &Path) -> io::Result<Option<u32>> {
    match fs::read_to_string(file) {
        Ok(text) => text.trim().parse().map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The card in the folder of an interface, without the settings of its functions.
fn card_in(folder: &Path) -> io::Result<CardSeen> {
    let device = folder.join("device");
    let Some(most_functions) = number(&device.join("sriov_totalvfs"))? else {
        return Ok(CardSeen::default());
    };
    let count = number(&device.join("sriov_numvfs"))?.unwrap_or(0).min(MOST_FUNCTIONS);
    let mut functions = Vec::new();
    for index in 0..count {
        let function = device.join(format!("virtfn{index}"));
        let Ok(target) = fs::read_link(&function) else { continue };
        let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(pci) = PciAddress::parse(name) else { continue };
        let link = link_of(&function);
        let (mac, settings) = (None, VfSettings::default());
        functions.push(FunctionSeen { index, pci, link, mac, settings });
    }
    Ok(CardSeen { most_functions, functions })
}

/// The network interface of a function; `None` while a guest has it.
fn link_of(function: &Path) -> Option<String> {
    let mut links = fs::read_dir(function.join("net")).ok()?.flatten();
    links.next()?.file_name().into_string().ok()
}

fn make(folder: &Path, count: u32) -> io::Result<()> {
    let file = folder.join("device/sriov_numvfs");
    let has = number(&file)?.ok_or(io::ErrorKind::NotFound)?;
    if has == count {
        return Ok(());
    }
    // It would take another number only by way of none, under whoever uses those that it has.
    if has > 0 {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    let mut file = fs::OpenOptions::new().write(true).open(&file)?;
    io::Write::write_all(&mut file, count.to_string().as_bytes())
}

/// The functions' MAC addresses and settings, by number, as the kernel tells them.
fn settings_of(message: &LinkMessage) -> BTreeMap<u32, (Option<Mac>, VfSettings)> {
    let lists = message.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::VfInfoList(list) => Some(list),
        _ => None,
    });
    let mut functions: BTreeMap<u32, (Option<Mac>, VfSettings)> = BTreeMap::new();
    for info in lists.flatten().flat_map(|LinkVfInfo(info)| info) {
        match info {
            VfInfo::Mac(said) => {
                let mac = said.mac.get(..6).and_then(|mac| Mac::try_from(mac).ok());
                functions.entry(said.vf_id).or_default().0 = mac;
            }
            VfInfo::Vlan(said) => {
                let vlan = u16::try_from(said.vlan_id).ok().zip(u8::try_from(said.qos).ok());
                functions.entry(said.vf_id).or_default().1.vlan = vlan;
            }
            VfInfo::Rate(said) => {
                let rates = Some((said.min_tx_rate, said.max_tx_rate));
                functions.entry(said.vf_id).or_default().1.rates = rates;
            }
            VfInfo::SpoofCheck(said) => {
                functions.entry(said.vf_id).or_default().1.spoof_check = Some(said.enabled);
            }
            VfInfo::LinkState(said) => {
                functions.entry(said.vf_id).or_default().1.link_state = match said.state {
                    KernelLinkState::Auto => Some(VfLinkState::Auto),
                    KernelLinkState::Enable => Some(VfLinkState::Enable),
                    KernelLinkState::Disable => Some(VfLinkState::Disable),
                    _ => None,
                };
            }
            VfInfo::Trust(said) => {
                functions.entry(said.vf_id).or_default().1.trust = Some(said.enabled);
            }
            VfInfo::RssQueryEn(said) => {
                functions.entry(said.vf_id).or_default().1.query_rss = Some(said.enabled);
            }
            _ => {}
        }
    }
    functions
}

/// The kernel's form of a setting of a function.
fn message(card: u32, index: u32, setting: &VfSetting) -> LinkMessage {
    let info = match setting {
        VfSetting::Vlan { id, qos } => {
            VfInfo::Vlan(VfInfoVlan::new(index, u32::from(*id), u32::from(*qos)))
        }
        VfSetting::Rates { min, max } => VfInfo::Rate(VfInfoRate::new(index, *min, *max)),
        VfSetting::SpoofCheck(flag) => VfInfo::SpoofCheck(VfInfoSpoofCheck::new(index, *flag)),
        VfSetting::LinkState(state) => {
            let state = match state {
                VfLinkState::Enable => KernelLinkState::Enable,
                VfLinkState::Disable => KernelLinkState::Disable,
                VfLinkState::Auto | VfLinkState::Unknown(_) => KernelLinkState::Auto,
            };
            VfInfo::LinkState(VfInfoLinkState::new(index, state))
        }
        VfSetting::Trust(flag) => VfInfo::Trust(VfInfoTrust::new(index, *flag)),
        VfSetting::QueryRss(flag) => VfInfo::RssQueryEn(VfInfoRssQueryEn::new(index, *flag)),
    };
    let mut message = LinkMessage::default();
    message.header.index = card;
    message.attributes.push(LinkAttribute::VfInfoList(vec![LinkVfInfo(vec![info])]));
    message
}

#[async_trait]
impl Sriov for LinuxSriov {
    async fn card(&self, card: &str) -> Result<Option<CardSeen>, NetworkError> {
        let what = || format!("show the functions of `{card}`");
        let Some(folder) = self.folder(card) else { return Ok(None) };
        let place = folder.clone();
        let mut seen = match self.at_card(card, move || card_in(&place)).await {
            Ok(seen) => seen,
            // It went while it was looked at.
            Err(_) if !folder.exists() => return Ok(None),
            Err(source) => return Err(NetworkError::Refused { what: what(), source }),
        };
        if seen.functions.is_empty() {
            return Ok(Some(seen));
        }
        let index = index_of(card)?;
        let said: Vec<LinkMessage> = ask(what(), async |handle| {
            // With their counters the answer on a card of many functions would be cut off.
            let wanted = vec![LinkExtentMask::Vf, LinkExtentMask::SkipStats];
            let question = handle.link().get().match_index(index);
            let question = question.set_filter_mask(AddressFamily::Unspec, wanted);
            question.execute().try_collect().await.map_err(errno)
        })
        .await?;
        let mut settings: BTreeMap<_, _> = said.iter().flat_map(settings_of).collect();
        for function in &mut seen.functions {
            if let Some(known) = settings.remove(&function.index) {
                (function.mac, function.settings) = known;
            }
        }
        Ok(Some(seen))
    }

    async fn make_functions(&self, card: &str, count: u32) -> Result<(), NetworkError> {
        let folder =
            self.folder(card).ok_or_else(|| NetworkError::NoLink { link: card.to_owned() })?;
        // Each function is a device that drivers look at: that may take seconds.
        self.at_card(card, move || make(&folder, count)).await.map_err(|source| {
            match source.kind() {
                io::ErrorKind::NotFound => {
                    NetworkError::Unsupported { what: format!("functions of `{card}` (SR-IOV)") }
                }
                _ => {
                    let what = format!("make {count} functions of `{card}`");
                    NetworkError::Refused { what, source }
                }
            }
        })
    }

    async fn set_function(
        &self,
        card: &str,
        index: u32,
        setting: &VfSetting,
    ) -> Result<(), NetworkError> {
        let message = message(index_of(card)?, index, setting);
        let what = format!("{setting}, function {index} of `{card}`");
        ask(what, async |handle| handle.link().set(message).execute().await.map_err(errno)).await
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rtnetlink::packet_core::{Emitable, NetlinkDeserializable, NetlinkHeader};
    use rtnetlink::packet_route::RouteNetlinkMessage;

    use super::*;

    /// Bytes of a link message as the kernel or a client would send it.
    fn bytes(message: &LinkMessage) -> Vec<u8> {
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        bytes
    }

    /// The message that the kernel's bytes are.
    fn said(bytes: &[u8]) -> LinkMessage {
        let mut header = NetlinkHeader::default();
        header.message_type = 16;
        match RouteNetlinkMessage::deserialize(&header, bytes).unwrap() {
            RouteNetlinkMessage::NewLink(message) => message,
            other => panic!("{other:?}"),
        }
    }

    /// An attribute: its length, its kind, its value, filled up to four bytes.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len() + 4).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    const IFLA_VFINFO_LIST: u16 = 22;
    const NESTED: u16 = 0x8000;

    /// The head of a link message: link 3, nothing said of its flags.
    fn head() -> Vec<u8> {
        words(&[0, 3, 0, 0])
    }

    #[test]
    fn each_setting_is_sent_as_include_uapi_linux_if_link_h_has_it() {
        let kinds: [(VfSetting, u16, &[u32]); 6] = [
            (VfSetting::Vlan { id: 100, qos: 3 }, 2, &[5, 100, 3]),
            (VfSetting::Rates { min: 10, max: 1000 }, 6, &[5, 10, 1000]),
            (VfSetting::SpoofCheck(true), 4, &[5, 1]),
            (VfSetting::LinkState(VfLinkState::Disable), 5, &[5, 2]),
            (VfSetting::Trust(false), 9, &[5, 0]),
            (VfSetting::QueryRss(true), 7, &[5, 1]),
        ];
        for (setting, kind, value) in kinds {
            let info = attribute(1, &attribute(kind, &words(value)));
            let list = attribute(IFLA_VFINFO_LIST, &info);
            let mut sent = bytes(&message(3, 5, &setting));
            // That an attribute has others in it may be said or left out.
            let is_marked = sent[18..20] == (IFLA_VFINFO_LIST | NESTED).to_ne_bytes();
            if is_marked {
                sent[18..20].copy_from_slice(&IFLA_VFINFO_LIST.to_ne_bytes());
            }
            assert_eq!(sent[16..], list, "{setting}");
            assert_eq!(sent[4..8], 3_u32.to_ne_bytes(), "the link");
        }
    }

    #[test]
    fn what_the_kernel_tells_of_functions_is_read() {
        let mac = |index: u32, last: u8| {
            let mut value = words(&[index]);
            value.extend([0x52, 0x54, 0, 0, 0, last]);
            value.resize(4 + 32, 0);
            attribute(1, &value)
        };
        // In the order of rtnl_fill_vfinfo; what a driver knows nothing of is -1.
        let first = [
            mac(0, 1),
            attribute(13, &[0; 32]),
            attribute(2, &words(&[0, 100, 3])),
            attribute(6, &words(&[0, 10, 1000])),
            attribute(3, &words(&[0, 1000])),
            attribute(4, &words(&[0, 1])),
            attribute(5, &words(&[0, 2])),
            attribute(7, &words(&[0, 0])),
            attribute(9, &words(&[0, 1])),
        ];
        let second = [mac(1, 2), attribute(4, &words(&[1, u32::MAX]))];
        let list = [attribute(1, &first.concat()), attribute(1, &second.concat())].concat();
        let message = said(&[head(), attribute(IFLA_VFINFO_LIST | NESTED, &list)].concat());
        let found = settings_of(&message);
        let whole = VfSettings {
            vlan: Some((100, 3)),
            rates: Some((10, 1000)),
            spoof_check: Some(true),
            link_state: Some(VfLinkState::Disable),
            trust: Some(true),
            query_rss: Some(false),
        };
        assert_eq!(found[&0], (Some([0x52, 0x54, 0, 0, 0, 1]), whole));
        let little = VfSettings { spoof_check: Some(false), ..VfSettings::default() };
        assert_eq!(found[&1], (Some([0x52, 0x54, 0, 0, 0, 2]), little));
        assert_eq!(settings_of(&said(&head())).len(), 0);
    }

    #[test]
    fn functions_are_found_in_sysfs_also_those_that_guests_have() {
        let root = tempfile::tempdir().unwrap();
        let (net, pci) = (root.path().join("class/net"), root.path().join("devices"));
        let card = pci.join("0000:3b:00.0");
        fs::create_dir_all(net.join("ens1")).unwrap();
        fs::create_dir_all(net.join("lo")).unwrap();
        fs::create_dir_all(&card).unwrap();
        symlink(&card, net.join("ens1/device")).unwrap();
        fs::write(card.join("sriov_totalvfs"), "8\n").unwrap();
        fs::write(card.join("sriov_numvfs"), "2\n").unwrap();
        for (index, link) in [Some("ens1v0"), None].into_iter().enumerate() {
            let function = pci.join(format!("0000:3b:02.{index}"));
            fs::create_dir_all(&function).unwrap();
            if let Some(link) = link {
                fs::create_dir_all(function.join("net").join(link)).unwrap();
            }
            let target = format!("../0000:3b:02.{index}");
            symlink(target, card.join(format!("virtfn{index}"))).unwrap();
        }
        let seen = card_in(&net.join("ens1")).unwrap();
        assert_eq!(seen.most_functions, 8);
        let found = seen.functions.iter();
        let found: Vec<_> = found.map(|one| (one.pci.to_string(), one.link.as_deref())).collect();
        let expected =
            [("0000:3b:02.0".to_owned(), Some("ens1v0")), ("0000:3b:02.1".to_owned(), None)];
        assert_eq!(found, expected);
        assert_eq!(card_in(&net.join("lo")).unwrap(), CardSeen::default());
        let number = || fs::read_to_string(card.join("sriov_numvfs")).unwrap();
        make(&net.join("ens1"), 2).unwrap();
        for other in [4, 1, 0] {
            let kept = make(&net.join("ens1"), other).unwrap_err();
            assert_eq!((kept.kind(), number().as_str()), (io::ErrorKind::ResourceBusy, "2\n"));
        }
        fs::write(card.join("sriov_numvfs"), "0\n").unwrap();
        make(&net.join("ens1"), 4).unwrap();
        assert_eq!(number(), "4\n");
        assert_eq!(make(&net.join("lo"), 1).unwrap_err().kind(), io::ErrorKind::NotFound);
        let cards = LinuxSriov::at(&net);
        for odd in ["../../devices", "a/b", "", ".."] {
            assert_eq!(cards.folder(odd), None, "{odd}");
        }
    }
}
