//! Faults on the wire.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
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

/// A time since the epoch as faults have it: the server's local time.
pub fn local_time(since_epoch: Duration) -> String {
    let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or_default();
    let time = Timestamp::from_second(seconds)
        .unwrap_or(Timestamp::UNIX_EPOCH)
        .to_zoned(TimeZone::system());
    time.strftime("%Y-%m-%d %H:%M:%S").to_string()
}
