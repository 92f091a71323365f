//! SR-IOV: cards, and the functions of them that guests are given.

use crate::{SriovPf, SriovVf};

params! {
    /// The node whose cards are meant.
    pub struct PfChoice {
        /// Name of the node.
        node: String,
    }
}

params! {
    /// The node whose functions are meant.
    pub struct VfChoice {
        /// Name of the node.
        node: String,
        /// Only those of this card.
        pf: Option<String>,
    }
}

params! {
    /// Filter of the functions of a node.
    #[derive(Default)]
    pub struct VfFilter {
        /// Only those of this card.
        pf: Option<String>,
    }
}

choice! {
    /// State of the link that a function's guest sees.
    pub enum LinkStateWord { Auto = "auto", Enable = "enable", Disable = "disable" }
}

params! {
    /// Settings of a function to change: what is not given stays.
    #[derive(Default)]
    pub struct VfChange {
        /// VLAN of its frames: 1 to 4094, or 0 for none.
        vlan_id: Option<u32>,
        /// Priority of frames in that VLAN: 0 to 7.
        vlan_qos: Option<u32>,
        /// The least rate at which it may send, in Mbit/s.
        tx_rate_min: Option<u32>,
        /// The highest rate at which it may send, in Mbit/s; 0 for no limit.
        tx_rate_max: Option<u32>,
        /// State of its link: that of the card's, or always on or off.
        link_state: Option<LinkStateWord>,
        /// Whether the card drops what its guest sends from another MAC address.
        spoof_check: Option<bool>,
        /// Whether its guest may change its MAC address and hear what is for others.
        trust: Option<bool>,
        /// Whether its guest may ask how the card spreads what it receives.
        query_rss: Option<bool>,
    }
}

operations! { "sriov":
    /// Replies `null`, as PVC 1.0.3.
    GetSriov { GET "/sriov", Reader, read -> null }

    /// The SR-IOV cards of a node.
    GetSriovPf { GET "/sriov/pf", Reader, read(PfChoice) -> [SriovPf] }

    /// The SR-IOV cards of a node.
    GetSriovPfNode { GET "/sriov/pf/{node}", Reader, read -> [SriovPf] }

    /// The virtual functions of a node's SR-IOV cards.
    GetSriovVf { GET "/sriov/vf", Reader, read(VfChoice) -> [SriovVf] }

    /// The virtual functions of a node's SR-IOV cards.
    GetSriovVfNode { GET "/sriov/vf/{node}", Reader, read(VfFilter) -> [SriovVf] }

    /// A virtual function of a node.
    GetSriovVfNodeVf { GET "/sriov/vf/{node}/{vf}", Reader, read -> [SriovVf] }

    /// Changes the settings of a virtual function. Its node sets them.
    PutSriovVfNodeVf { PUT "/sriov/vf/{node}/{vf}", Operator, change(VfChange) }
}
