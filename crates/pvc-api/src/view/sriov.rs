//! SR-IOV cards and functions on the wire.

use pvc_api_types as api;
use pvc_model::sriov::{PfRecord, SriovRecords, VfRecord};

pub fn pf(records: &SriovRecords, pf: &PfRecord) -> api::SriovPf {
    api::SriovPf {
        phy: pf.name.clone(),
        mtu: pf.mtu.clone(),
        vfs: records.vfs_of(&pf.name).map(|vf| vf.name.clone()).collect(),
    }
}

pub fn vf(record: &VfRecord) -> api::SriovVf {
    let VfRecord { config, pci, .. } = record;
    api::SriovVf {
        phy: record.name.clone(),
        pf: record.pf.clone(),
        mtu: record.mtu.clone(),
        mac: record.mac.clone(),
        config: api::SriovVfConfig {
            vlan_id: config.vlan_id.clone(),
            vlan_qos: config.vlan_qos.clone(),
            tx_rate_min: config.tx_rate_min.clone(),
            tx_rate_max: config.tx_rate_max.clone(),
            link_state: config.link_state.clone(),
            spoof_check: config.spoof_check.clone(),
            trust: config.trust.clone(),
            query_rss: config.query_rss.clone(),
        },
        pci: api::SriovVfPci {
            domain: pci.domain.clone(),
            bus: pci.bus.clone(),
            slot: pci.slot.clone(),
            function: pci.function.clone(),
        },
        usage: api::SriovVfUsage {
            used: if record.used { "True" } else { "False" }.to_owned(),
            domain: record.used_by.map(|by| by.to_string()).unwrap_or_default(),
        },
    }
}
