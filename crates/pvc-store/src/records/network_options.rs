//! Options of networks that legacy peers know nothing of: `/pvcrs/networks/{vni}` with JSON, ours
//! alone. Peers that remove a network leave them behind, and may give its number to another one:
//! options that were written before their network was made are those of a former one.

use pvc_model::network::NetworkOptions;
use serde::{Deserialize, Serialize};

use super::{bytes_at, network};
use crate::draft::Draft;
use crate::raw::Raw;
use crate::reader::{MOST_JSON, json};

pub(super) const ROOT: &str = "/pvcrs/networks";

pub(super) fn weight(raw: &Raw, vni: &str) -> usize {
    bytes_at(raw.place(ROOT), vni).min(MOST_JSON)
}

#[derive(Serialize, Deserialize)]
struct Written {
    #[serde(default)]
    masquerade: bool,
    #[serde(default)]
    spoof_guard: bool,
}

fn path(vni: &str) -> String {
    format!("{ROOT}/{vni}")
}

/// The options of the network that there is.
pub(super) fn read(raw: &Raw, vni: &str) -> Option<NetworkOptions> {
    let (path, network) = (path(vni), raw.get(&network::root(vni))?);
    // What is written with the network has the same number.
    raw.get(&path).filter(|options| options.mzxid >= network.czxid)?;
    let Written { masquerade, spoof_guard } = serde_json::from_str(&json(raw, &path)?).ok()?;
    Some(NetworkOptions { masquerade, spoof_guard })
}

/// Writes the options of a network; none if none is set.
pub(crate) fn put(draft: &mut Draft<'_>, vni: &str, options: NetworkOptions) {
    if options == NetworkOptions::default() {
        return remove(draft, vni);
    }
    let NetworkOptions { masquerade, spoof_guard } = options;
    let text = serde_json::to_string(&Written { masquerade, spoof_guard });
    draft.put_deep(path(vni), text.expect("two flags are JSON"));
}

pub(crate) fn remove(draft: &mut Draft<'_>, vni: &str) {
    draft.delete(&path(vni));
}

#[cfg(test)]
mod tests {
    use pvc_ports::{Entry, Stat};

    use super::*;
    use crate::raw::RawNode;
    use crate::reader::raw_of;

    #[test]
    fn options_that_nobody_understands_are_none() {
        let read_back = |text: &str| {
            let network = (network::root("1001"), "web".to_owned());
            read(&raw_of([network, (path("1001"), text.to_owned())]), "1001")
        };
        let both = NetworkOptions { masquerade: true, spoof_guard: true };
        assert_eq!(read_back(r#"{"masquerade":true,"spoof_guard":true,"more":1}"#), Some(both));
        let one = NetworkOptions { masquerade: true, spoof_guard: false };
        assert_eq!(read_back(r#"{"masquerade":true}"#), Some(one));
        for text in ["", "x", r#"{"masquerade":"yes"}"#] {
            assert_eq!(read_back(text), None, "{text}");
        }
    }

    #[test]
    fn options_are_of_the_network_that_was_there_when_they_were_written() {
        let read_at = |made: Option<i64>, written: i64| {
            let mut raw = Raw::default();
            let network = made.map(|czxid| (network::root("1001"), "web", czxid));
            let options = Some((path("1001"), r#"{"masquerade":true}"#, written));
            for (path, data, at) in network.into_iter().chain(options) {
                let stat = Stat { czxid: at, mzxid: at, ..Stat::default() };
                let entry = Entry { data: data.into(), stat };
                raw.put(&path, RawNode::read(&path, &entry));
            }
            read(&raw, "1001").is_some()
        };
        assert!(read_at(Some(7), 7), "both were written at once");
        assert!(read_at(Some(7), 9), "and they changed since");
        assert!(!read_at(Some(8), 7), "the network was made anew by somebody else");
        assert!(!read_at(None, 7));
    }
}
