//! Networks of VMs.

use crate::{Acl, Lease, Network};

params! {
    /// Filter of the networks to list.
    #[derive(Default)]
    pub struct NetworkFilter {
        /// A regular expression on the VNI or the description.
        limit: Option<String>,
    }
}

params! {
    /// Filter of the leases to list.
    #[derive(Default)]
    pub struct LeaseFilter {
        /// A regular expression on the MAC address.
        limit: Option<String>,
        /// Only reservations.
        reserved = "static": Option<bool>,
    }
}

choice! {
    /// Direction of the packets that a rule is about.
    pub enum Way { In = "in", Out = "out" }
}

params! {
    /// Filter of the rules to list.
    #[derive(Default)]
    pub struct AclFilter {
        /// A regular expression on the description.
        limit: Option<String>,
        /// Only those of this direction.
        direction: Option<Way>,
    }
}

operations! { "network":
    /// The networks by VNI.
    GetNetwork { GET "/network", Reader, read(NetworkFilter) -> [Network] }

    /// A network, by VNI or description.
    GetNetworkVni { GET "/network/{vni}", Reader, read -> [Network] }

    /// The DHCP leases of a network: reservations, then what was given, each by MAC address.
    GetNetworkVniLease { GET "/network/{vni}/lease", Reader, read(LeaseFilter) -> [Lease] }

    /// The DHCP leases of a network whose MAC address matches.
    GetNetworkVniLeaseMac { GET "/network/{vni}/lease/{mac}", Reader, read -> [Lease] }

    /// The rules of a network's firewall: those of packets that come in, then of those that go out,
    /// each in their order.
    GetNetworkVniAcl { GET "/network/{vni}/acl", Reader, read(AclFilter) -> [Acl] }

    /// The rules of a network's firewall whose description matches.
    GetNetworkVniAclDescription { GET "/network/{vni}/acl/{description}", Reader, read -> [Acl] }
}
