//! Functions of SR-IOV cards. Served from the release that manages networks on; clients ask the API
//! of PVC 1.0.3 as well.

use crate::SriovVf;

operations! { "sriov":
    /// A virtual function of a node.
    GetSriovVfNodeVf { GET "/sriov/vf/{node}/{vf}", Reader, read -> [SriovVf] }
}
