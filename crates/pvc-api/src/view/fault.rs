//! Faults on the wire.

use pvc_api_types as api;
use pvc_model::fault::FaultRecord;

pub fn fault(record: &FaultRecord) -> api::Fault {
    api::Fault {
        id: record.id.clone(),
        last_reported: record.last_reported.clone(),
        first_reported: record.first_reported.clone(),
        acknowledged_at: record.acknowledged_at.clone(),
        status: if record.acknowledged { "ack" } else { "new" }.into(),
        health_delta: record.delta,
        message: record.message.clone(),
    }
}
