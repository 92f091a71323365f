//! Arguments of jobs about OSDs, under the names that PVC 1.0.3 has for them.

use pvc_model::job::osd::OsdReplacement;
use pvc_model::job::{JobWork, NotUnderstood};
use pvc_model::osd::{AddOsds, DbSize, DeviceSpec, OsdId};
use pvc_model::size::parse_size;

use super::Arguments;

/// The arguments of a job about OSDs by name; none of another.
pub(super) fn arguments(work: &JobWork) -> Vec<(String, String)> {
    let of = |args: [(&'static str, String); 2]| {
        args.map(|(name, value)| (name.to_owned(), value)).to_vec()
    };
    match work {
        JobWork::AddOsds(new) | JobWork::PlanOsds(new) => addition_arguments(new),
        JobWork::ReplaceOsd(replacement) => replacement_arguments(replacement),
        JobWork::RefreshOsd { osd, device } => {
            of([("osd_id", osd.to_string()), ("device", device.to_string())])
        }
        JobWork::RemoveOsd { osd, force } => {
            of([("osd_id", osd.to_string()), ("force_flag", flag(*force).to_owned())])
        }
        JobWork::AddDbGroup { device } => vec![("device".to_owned(), device.to_string())],
        _ => Vec::new(),
    }
}

fn flag(is_set: bool) -> &'static str {
    if is_set { "True" } else { "False" }
}

fn addition_arguments(new: &AddOsds) -> Vec<(String, String)> {
    let own = [
        ("device", Some(new.device.to_string())),
        ("weight", Some(new.weight.to_string())),
        ("split_count", Some(new.count.to_string())),
    ];
    given(own.into_iter().chain(db_arguments(new.db)))
}

fn replacement_arguments(replacement: &OsdReplacement) -> Vec<(String, String)> {
    let own = [
        ("osd_id", Some(replacement.osd.to_string())),
        ("new_device", Some(replacement.device.to_string())),
        ("old_device", replacement.old_device.as_ref().map(ToString::to_string)),
        ("weight", replacement.weight.map(|weight| weight.to_string())),
        ("force_flag", Some(flag(replacement.force).to_owned())),
    ];
    given(own.into_iter().chain(db_arguments(replacement.db)))
}

fn db_arguments(db: Option<DbSize>) -> [(&'static str, Option<String>); 2] {
    let (ratio, size) = match db {
        Some(DbSize::Ratio(ratio)) => (Some(ratio.to_string()), None),
        Some(DbSize::Bytes(bytes)) => (None, Some(bytes.to_string())),
        None => (None, None),
    };
    [("ext_db_ratio", ratio), ("ext_db_size", size)]
}

fn given(all: impl Iterator<Item = (&'static str, Option<String>)>) -> Vec<(String, String)> {
    all.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

impl Arguments<'_> {
    /// The work of a job whose kind has this name.
    pub(super) fn osd_work(&self, name: &str) -> Result<JobWork, NotUnderstood> {
        match name {
            JobWork::ADD_OSDS => self.addition().map(JobWork::AddOsds),
            JobWork::PLAN_OSDS => self.addition().map(JobWork::PlanOsds),
            JobWork::REPLACE_OSD => self.replacement().map(JobWork::ReplaceOsd),
            JobWork::REFRESH_OSD => self.refresh(),
            JobWork::REMOVE_OSD => self.removal(),
            JobWork::ADD_DB_GROUP => {
                self.device_spec("device").map(|device| JobWork::AddDbGroup { device })
            }
            name => Err(NotUnderstood::UnknownKind { name: name.to_owned() }),
        }
    }

    fn device_spec(&self, argument: &'static str) -> Result<DeviceSpec, NotUnderstood> {
        self.parsed(argument, DeviceSpec::parse)
    }

    fn db(&self) -> Result<Option<DbSize>, NotUnderstood> {
        let ratio = self.maybe("ext_db_ratio", str::parse::<f64>)?;
        let bytes = self.maybe("ext_db_size", parse_size)?;
        DbSize::of(ratio, bytes).map_err(|bad| {
            let argument = if ratio.is_some() { "ext_db_ratio" } else { "ext_db_size" };
            NotUnderstood::BadArgument { argument, why: bad.to_string() }
        })
    }

    fn addition(&self) -> Result<AddOsds, NotUnderstood> {
        Ok(AddOsds {
            device: self.device_spec("device")?,
            weight: self.parsed("weight", str::parse)?,
            db: self.db()?,
            count: self.maybe("split_count", str::parse)?.unwrap_or(1),
        })
    }

    fn osd(&self) -> Result<OsdId, NotUnderstood> {
        self.parsed("osd_id", OsdId::parse)
    }

    fn replacement(&self) -> Result<OsdReplacement, NotUnderstood> {
        Ok(OsdReplacement {
            osd: self.osd()?,
            device: self.device_spec("new_device")?,
            old_device: self.maybe("old_device", DeviceSpec::parse)?,
            weight: self.maybe("weight", str::parse)?,
            db: self.db()?,
            force: self.force(),
        })
    }

    fn force(&self) -> bool {
        self.find("force_flag") == Some(flag(true))
    }

    fn refresh(&self) -> Result<JobWork, NotUnderstood> {
        Ok(JobWork::RefreshOsd { osd: self.osd()?, device: self.device_spec("device")? })
    }

    fn removal(&self) -> Result<JobWork, NotUnderstood> {
        Ok(JobWork::RemoveOsd { osd: self.osd()?, force: self.force() })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    fn device_spec() -> impl Strategy<Value = DeviceSpec> {
        let names = "/dev/[a-z0-9]{1,8}|detect:[A-Z]{1,8} [a-z]{1,4}:[1-9]{1,3}(GB|TiB):[0-9]";
        names.prop_map(|name| DeviceSpec::parse(&name).expect("names of this form are devices"))
    }

    fn db() -> impl Strategy<Value = Option<DbSize>> {
        let ratio = (1..=1000_u32).prop_map(|part| DbSize::Ratio(f64::from(part) / 1000.0));
        let bytes = (4_u64 << 20..1 << 50).prop_map(DbSize::Bytes);
        option::of(prop_oneof![ratio, bytes])
    }

    fn osd() -> impl Strategy<Value = OsdId> {
        (0..1000_u32).prop_map(OsdId)
    }

    fn addition() -> impl Strategy<Value = AddOsds> {
        (device_spec(), 0.0..100.0_f64, db(), 1..16_u32)
            .prop_map(|(device, weight, db, count)| AddOsds { device, weight, db, count })
    }

    fn replacement() -> impl Strategy<Value = OsdReplacement> {
        let weight = option::of(0.0..100.0_f64);
        (osd(), device_spec(), option::of(device_spec()), weight, db(), any::<bool>()).prop_map(
            |(osd, device, old_device, weight, db, force)| OsdReplacement {
                osd,
                device,
                old_device,
                weight,
                db,
                force,
            },
        )
    }

    /// Any work about OSDs.
    pub fn work() -> impl Strategy<Value = JobWork> {
        prop_oneof![
            addition().prop_map(JobWork::AddOsds),
            addition().prop_map(JobWork::PlanOsds),
            replacement().prop_map(JobWork::ReplaceOsd),
            (osd(), device_spec()).prop_map(|(osd, device)| JobWork::RefreshOsd { osd, device }),
            (osd(), any::<bool>()).prop_map(|(osd, force)| JobWork::RemoveOsd { osd, force }),
            device_spec().prop_map(|device| JobWork::AddDbGroup { device }),
        ]
    }
}
