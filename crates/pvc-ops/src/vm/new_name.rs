//! Names of VMs that are to be made.

use pvc_domain::VM_NAME_LIMIT;
use pvc_model::cluster::Cluster;
use pvc_model::image::is_like_an_image;
use pvc_model::job::{JobId, being_made, being_renamed_from};
use pvc_model::{BadName, check_name};

use crate::refusal::{Kind, Refusal};

/// Reason why a VM that is to be made cannot be called so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NewNameRefusal {
    #[error(transparent)]
    Name(#[from] BadName),
    #[error("the disks of VM `{vm}` would be called as images are")]
    LikeAnImage { vm: String },
    #[error("VM `{vm}` is being made by task `{job}`")]
    UnderWay { vm: String, job: JobId },
    #[error("VM `{other}` is being renamed to `{vm}`")]
    NameGoesTo { vm: String, other: String },
}

impl Refusal for NewNameRefusal {
    fn kind(&self) -> Kind {
        match self {
            NewNameRefusal::Name(_) | NewNameRefusal::LikeAnImage { .. } => Kind::Invalid,
            NewNameRefusal::UnderWay { .. } | NewNameRefusal::NameGoesTo { .. } => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            NewNameRefusal::UnderWay { job, .. } => {
                Some(format!("`pvc task log {job}` shows how far it is"))
            }
            _ => None,
        }
    }
}

/// Refuses a name that is none for a new VM in any cluster.
pub(crate) fn check_new_vm(name: &str) -> Result<(), NewNameRefusal> {
    check_name("VM", name, VM_NAME_LIMIT)?;
    match is_like_an_image(name) {
        true => Err(NewNameRefusal::LikeAnImage { vm: name.to_owned() }),
        false => Ok(()),
    }
}

/// Refuses a name that a job is about to give to another VM. `own` is the job that makes this one,
/// if there is one already.
pub(crate) fn require_name_of_nobody(
    cluster: &Cluster,
    name: &str,
    own: Option<&JobId>,
) -> Result<(), NewNameRefusal> {
    let vm = name.to_owned();
    if let Some(job) = being_made(cluster, name).find(|job| Some(*job) != own) {
        return Err(NewNameRefusal::UnderWay { vm, job: job.clone() });
    }
    match being_renamed_from(cluster, name) {
        Some(other) => Err(NewNameRefusal::NameGoesTo { vm, other: other.to_owned() }),
        None => Ok(()),
    }
}
