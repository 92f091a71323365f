use super::Class;
use crate::BadName;
use crate::refusal::Kind;

/// Reason why the provisioner does not change what it keeps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProvisionerRefusal {
    #[error("there is no {class} `{name}`")]
    NotFound { class: Class, name: String },
    #[error("network template `{template}` has no network `{vni}`")]
    NoNet { template: String, vni: String },
    #[error("storage template `{template}` has no disk `{disk_id}`")]
    NoDisk { template: String, disk_id: String },
    #[error("there is {} `{name}` already", one(*class))]
    Exists { class: Class, name: String },
    #[error("{class}: {most} are kept already, and no more can be")]
    Full { class: Class, most: usize },
    #[error("network template `{template}` has network `{vni}` already")]
    HasNet { template: String, vni: String },
    #[error("storage template `{template}` has {what} already")]
    HasDisk { template: String, what: String },
    #[error("{class} `{name}` is used by {}", profiles(.by))]
    Used { class: Class, name: String, by: Vec<String> },
    #[error("there is no script `ova` or `default_ova`, of which VMs of OVAs are made")]
    NoOvaScript,
    #[error("profile `{profile}` has no {class}")]
    Broken { profile: String, class: Class },
    #[error("there is no network `{vni}`, which profile `{profile}` has")]
    NoNetwork { profile: String, vni: String },
    #[error(transparent)]
    Name(#[from] BadName),
    /// A value that cannot be taken.
    #[error("{parameter}: {why}")]
    Value { parameter: &'static str, why: String },
}

/// The class with its article.
fn one(class: Class) -> String {
    match class {
        Class::Ova => format!("an {class}"),
        _ => format!("a {class}"),
    }
}

/// The most names that a message has.
const MOST_NAMED: usize = 10;

fn profiles(names: &[String]) -> String {
    let noun = if names.len() == 1 { "profile" } else { "profiles" };
    let names = names.iter().map(|name| format!("`{}`", crate::shown(name)));
    format!("{noun} {}", crate::listed(names, MOST_NAMED))
}

impl ProvisionerRefusal {
    pub(super) fn value(parameter: &'static str, why: impl Into<String>) -> Self {
        ProvisionerRefusal::Value { parameter, why: why.into() }
    }

    pub fn kind(&self) -> Kind {
        match self {
            ProvisionerRefusal::NotFound { .. }
            | ProvisionerRefusal::NoNet { .. }
            | ProvisionerRefusal::NoDisk { .. } => Kind::NotFound,
            ProvisionerRefusal::Exists { .. }
            | ProvisionerRefusal::Full { .. }
            | ProvisionerRefusal::HasNet { .. }
            | ProvisionerRefusal::HasDisk { .. }
            | ProvisionerRefusal::NoOvaScript
            | ProvisionerRefusal::Broken { .. }
            | ProvisionerRefusal::NoNetwork { .. }
            | ProvisionerRefusal::Used { .. } => Kind::Conflict,
            ProvisionerRefusal::Name(_) | ProvisionerRefusal::Value { .. } => Kind::Invalid,
        }
    }

    /// The parameter that is wrong, if it is one, and why.
    pub fn parameter(&self) -> Option<(&'static str, String)> {
        match self {
            ProvisionerRefusal::Value { parameter, why } => Some((parameter, why.clone())),
            ProvisionerRefusal::Name(bad) => Some(("name", bad.to_string())),
            _ => None,
        }
    }

    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            ProvisionerRefusal::NotFound { class, .. } => Some(format!(
                "`pvc provisioner {} list` shows those there are",
                match class {
                    Class::SystemTemplate => "template system",
                    Class::NetworkTemplate => "template network",
                    Class::StorageTemplate => "template storage",
                    Class::Userdata => "userdata",
                    Class::Script => "script",
                    Class::Ova => "ova",
                    Class::Profile => "profile",
                }
            )),
            ProvisionerRefusal::NoNet { .. } => {
                Some("`pvc provisioner template network list` shows them".to_owned())
            }
            ProvisionerRefusal::NoDisk { .. } => {
                Some("`pvc provisioner template storage list` shows them".to_owned())
            }
            ProvisionerRefusal::HasNet { .. } => Some(
                "a VM gets an interface for each; `--permit-duplicate` adds it once more"
                    .to_owned(),
            ),
            ProvisionerRefusal::NoOvaScript => {
                Some("`pvc provisioner script add ova FILE` adds it".to_owned())
            }
            ProvisionerRefusal::Broken { .. } => {
                Some("`pvc provisioner profile modify` gives it what it lacks".to_owned())
            }
            ProvisionerRefusal::NoNetwork { .. } => Some(
                "`pvc network add` makes it; `pvc provisioner template network vni` changes which \
                 there are"
                    .to_owned(),
            ),
            ProvisionerRefusal::Used { .. } => Some(
                "remove the profile, or have it use another by `pvc provisioner profile modify`"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}
