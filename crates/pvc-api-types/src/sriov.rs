//! SR-IOV: cards and their functions.

wire! {
    /// An SR-IOV card (physical function) whose functions are handed out.
    pub struct SriovPf {
        /// Its network interface.
        pub phy: String,
        pub mtu: String,
        /// Its virtual functions by name.
        pub vfs: Vec<String>,
    }

    /// A virtual function of an SR-IOV card.
    pub struct SriovVf {
        /// Its name: that of its card, `v`, and its number.
        pub phy: String,
        /// The network interface of its card.
        pub pf: String,
        pub mtu: String,
        /// MAC address that it has: of one that a VM uses, that of the VM's interface.
        pub mac: String,
        pub config: SriovVfConfig,
        pub pci: SriovVfPci,
        pub usage: SriovVfUsage,
    }

    /// Settings of a virtual function; a text is empty if its record lacks it.
    pub struct SriovVfConfig {
        /// VLAN of its frames; `0` for none.
        pub vlan_id: String,
        /// Priority of frames in that VLAN.
        pub vlan_qos: String,
        /// In Mbit/s.
        pub tx_rate_min: String,
        /// In Mbit/s; `0` for no limit.
        pub tx_rate_max: String,
        /// `auto`, `enable` or `disable`.
        pub link_state: String,
        /// `True` or `False`, as the following two.
        pub spoof_check: String,
        pub trust: String,
        pub query_rss: String,
    }

    /// The PCI address of a virtual function, in hexadecimal texts.
    pub struct SriovVfPci {
        pub domain: String,
        pub bus: String,
        pub slot: String,
        pub function: String,
    }

    /// User of a virtual function.
    pub struct SriovVfUsage {
        /// `True` or `False`.
        pub used: String,
        /// UUID of the VM; empty if there is none.
        pub domain: String,
    }
}
