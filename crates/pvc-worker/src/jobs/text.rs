//! Text forms of what steps are made of.

/// The text form of a type, for `#[serde(with = …)]`: as it displays, and read by a function that
/// says what is wrong with another text.
macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident: $type:ty, $read:expr;)+) => {$(
        $(#[$doc])*
        pub(super) mod $name {
            use serde::de::Error;
            use serde::{Deserialize, Deserializer, Serializer};

            pub fn serialize<S: Serializer>(value: &$type, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(value)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                let text = String::deserialize(from)?;
                $read(&text).map_err(D::Error::custom)
            }
        }
    )+};
}

texts! {
    /// `pool/volume`
    volume: pvc_model::storage::VolumeId, |text: &str| {
        pvc_model::storage::VolumeId::from_record(text)
            .ok_or_else(|| format!("`{text}` is no volume"))
    };
    /// Path below `/dev`.
    device: pvc_model::osd::Device, pvc_model::osd::Device::parse;
    /// Number of an OSD.
    osd: pvc_model::osd::OsdId, pvc_model::osd::OsdId::parse;
    /// Name of a volume group.
    group: pvc_model::osd::LvmName, pvc_model::osd::LvmName::parse;
}
