//! Arguments of a job that makes a VM from a profile, by the names of PVC 1.0.3.

use pvc_model::job::NotUnderstood;
use pvc_model::job::provision::Provision;

use super::Arguments;

/// Name of an argument for the script, of which there may be several. They may be passwords: a name
/// that ends so is a secret's, and is kept apart.
const SCRIPT_ARGUMENT: &str = "script_run_arg_key";

pub(super) fn arguments(wanted: &Provision) -> Vec<(String, String)> {
    let Provision { vm, profile, define, start, refuse_memory_overcommit, arguments } = wanted;
    let mut named = vec![
        ("vm_name".to_owned(), vm.name.clone()),
        ("profile_name".to_owned(), profile.clone()),
        ("define_vm".to_owned(), define.to_string()),
        ("start_vm".to_owned(), start.to_string()),
        ("refuse_memory_overcommit".to_owned(), refuse_memory_overcommit.to_string()),
    ];
    named.extend(arguments.iter().map(|text| (SCRIPT_ARGUMENT.to_owned(), text.clone())));
    named
}

impl Arguments<'_> {
    pub(super) fn provision(&self) -> Result<Provision, NotUnderstood> {
        if self.uuid.is_none() {
            return Err(NotUnderstood::MissingArgument { argument: "vm" });
        }
        let vm = pvc_model::job::JobVm { name: self.text("vm_name")?, uuid: self.uuid };
        let is_set = |flag| self.find(flag) == Some("true");
        let of_script = self.args.iter().filter(|(name, _)| name == SCRIPT_ARGUMENT);
        Ok(Provision {
            vm,
            profile: self.text("profile_name")?,
            define: is_set("define_vm"),
            start: is_set("start_vm"),
            refuse_memory_overcommit: is_set("refuse_memory_overcommit"),
            arguments: of_script.map(|(_, text)| text.clone()).collect(),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use pvc_model::Uuid;
    use pvc_model::job::{JobVm, JobWork};

    use super::*;

    pub fn work() -> impl Strategy<Value = JobWork> {
        let texts = ("\\PC{0,20}", "\\PC{0,20}", vec("\\PC{0,20}", 0..4));
        (any::<u128>(), texts, any::<[bool; 3]>()).prop_map(|(uuid, texts, flags)| {
            let (name, profile, arguments) = texts;
            let vm = JobVm { name, uuid: Some(Uuid::from_u128(uuid)) };
            let [define, start, refuse_memory_overcommit] = flags;
            JobWork::Provision(Box::new(Provision {
                vm,
                profile,
                define,
                start,
                refuse_memory_overcommit,
                arguments,
            }))
        })
    }
}
