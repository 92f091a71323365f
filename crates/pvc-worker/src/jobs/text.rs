//! Text forms of what steps are made of.

/// `pool/volume`
pub(super) mod volume {
    use pvc_model::storage::VolumeId;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(volume: &VolumeId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(volume)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<VolumeId, D::Error> {
        let text = String::deserialize(from)?;
        VolumeId::from_record(&text)
            .ok_or_else(|| D::Error::custom(format_args!("`{text}` is no volume")))
    }
}
