//! Asks about the functions of SR-IOV cards. The records are changed; their nodes set the cards.

use pvc_model::cluster::Cluster;
use pvc_model::shown;
use pvc_model::sriov::settings::{self, VfFields, VfRefusal};
use pvc_store::{Change, Changes, Store};

use crate::Outcome;
use crate::refusal::{Kind, Refusal};

impl Refusal for VfRefusal {
    fn kind(&self) -> Kind {
        VfRefusal::kind(self)
    }

    fn hint(&self) -> Option<String> {
        VfRefusal::hint(self)
    }
}

/// Changes the settings of VF `vf` of a node.
pub async fn set_vf(
    store: &Store,
    node: &str,
    vf: &str,
    fields: &VfFields,
) -> Outcome<(), VfRefusal> {
    let decide = |cluster: &Cluster| {
        let record = cluster.node(node).ok_or_else(|| VfRefusal::NoNode { node: shown(node) })?;
        let (vf, config) = settings::change(record, vf, fields)?;
        let mut changes = Changes::new();
        if config != vf.config {
            let (node, vf) = (record.name.clone(), vf.name.clone());
            changes.push(Change::ConfigureVf { node, vf, config });
        }
        Ok((changes, ()))
    };
    store.change(decide).await
}
