//! OVAs: VMs that another hypervisor has given away.
//!
//! ```text
//!  the file, as it comes ─▶ receive: description, then disks, each into a volume without a name
//!    all of it is there ─▶ finish:  the volumes get their names
//!                                   rows of the database, in one transaction
//!    or: nothing is left, neither a volume nor a row
//! ```

mod finish;
mod receive;

use axum::extract::Request;
use pvc_api_types::operation::Operation;
use pvc_api_types::operations::provisioner::{
    DeleteProvisionerOvaOva, GetProvisionerOva, GetProvisionerOvaOva, PostProvisionerOva,
    PostProvisionerOvaOva,
};
use pvc_api_types::{Ova, Uploaded};
use pvc_model::job::JobWork;
use pvc_model::provisioner::{Catalog, Change, Class, NameLimit, check_new_ova, find_ova};
use pvc_model::shown;
use pvc_model::storage::{PoolName, VolumeId, VolumeName};
use pvc_ops::storage;
use pvc_provisioner::{Mode as Making, ProvisionerError};
use pvc_store::ChangeError;

use super::{answered, catalog, change, found};
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::incoming::Incoming;
use crate::refuse::{not_provisioned, refused};
use crate::routes::storage::transfer::{File, hexadecimal, length, without_body};
use crate::slots::Slot;
use crate::state::ApiState;
use crate::table::{Ask, Table, ask};
use crate::under_way::Transfer;
use crate::view::provisioner as view;
use crate::{ahead, body};

pub fn add(table: Table) -> Table {
    table
        .add(get_provisioner_ova)
        .add_raw(post_provisioner_ova)
        .add(get_provisioner_ova_ova)
        .add_raw(post_provisioner_ova_ova)
        .add(delete_provisioner_ova_ova)
}

fn ovas(kept: &Catalog, is_wanted: impl Fn(&str) -> bool) -> Vec<Ova> {
    kept.ovas.iter().filter(|ova| is_wanted(&ova.name)).map(view::ova).collect()
}

async fn get_provisioner_ova(ask: Ask<GetProvisionerOva>) -> Result<Answer<GetProvisionerOva>> {
    let limit = NameLimit::new(ask.params.limit.as_deref());
    let ovas = ovas(&catalog(&ask.api).await?, |name| limit.matches(name));
    Ok(Answer::json(&found(Class::Ova, None, ovas)?))
}

async fn get_provisioner_ova_ova(
    ask: Ask<GetProvisionerOvaOva>,
) -> Result<Answer<GetProvisionerOvaOva>> {
    let [wanted] = ask.at;
    let ovas = ovas(&catalog(&ask.api).await?, |name| name == wanted);
    Ok(Answer::json(&found(Class::Ova, Some(&wanted), ovas)?))
}

/// An OVA that is to be added.
#[derive(Debug, Clone)]
struct Wanted {
    pool: PoolName,
    name: String,
    /// The most bytes of the file.
    most_bytes: u64,
}

impl Wanted {
    fn new(pool: &str, name: &str, most_bytes: u64) -> Self {
        Wanted { pool: PoolName::new(pool), name: name.to_owned(), most_bytes }
    }

    /// The volume with a disk of it, by the name of the disk.
    fn volume(&self, disk_id: &str) -> VolumeId {
        let volume = VolumeName::new(format!("ova_{}_{disk_id}", self.name));
        VolumeId { pool: self.pool.clone(), volume }
    }

    /// The volume that PVC 1.0.3 keeps the file in, under whose name the upload is a task.
    fn archive(&self) -> VolumeId {
        let volume = VolumeName::new(format!("ova_{}", self.name));
        VolumeId { pool: self.pool.clone(), volume }
    }
}

async fn post_provisioner_ova(
    api: ApiState,
    request: Request,
) -> Result<Answer<PostProvisionerOva>> {
    post(api, request, |asked: &Ask<PostProvisionerOva>| {
        let given = &asked.params;
        Wanted::new(&given.pool, &given.name, given.ova_size)
    })
    .await
}

async fn post_provisioner_ova_ova(
    api: ApiState,
    request: Request,
) -> Result<Answer<PostProvisionerOvaOva>> {
    post(api, request, |asked: &Ask<PostProvisionerOvaOva>| {
        let [name] = &asked.at;
        Wanted::new(&asked.params.pool, name, asked.params.ova_size)
    })
    .await
}

async fn post<O: Operation<Reply = Uploaded, DryRun = Uploaded>>(
    api: ApiState,
    request: Request,
    wanted: impl FnOnce(&Ask<O>) -> Wanted,
) -> Result<Answer<O>> {
    let (head, mut file) = without_body(request);
    let admitted = match ask::<O>(api, head).await {
        Ok(asked) => admit(asked, wanted, &mut file).await,
        Err(refusal) => Err(refusal),
    };
    match admitted {
        Ok((asked, wanted, Some(slot))) => take(asked, wanted, slot, file).await,
        Ok((asked, wanted, None)) => {
            body::turn_away(file.body);
            let message = asked.mode.message(format!("Added OVA \"{}\".", wanted.name));
            Ok(Answer::json(&Uploaded { message, ..Uploaded::default() }))
        }
        Err(refusal) => {
            body::turn_away(file.body);
            Err(refusal)
        }
    }
}

/// Refuses what is known to be refused before a byte of the file is read; in a dry run there is no
/// slot then.
async fn admit<O: Operation>(
    asked: Ask<O>,
    wanted: impl FnOnce(&Ask<O>) -> Wanted,
    file: &mut File,
) -> Result<(Ask<O>, Wanted, Option<Slot>)> {
    let (api, wanted) = (asked.api.clone(), wanted(&asked));
    if !api.view().pools.contains_key(&wanted.pool) {
        let why = format!("there is no pool `{}`", shown(wanted.pool.as_str()));
        return Err(ApiError::parameter("pool", why));
    }
    if wanted.most_bytes == 0 {
        return Err(ApiError::parameter("ova_size", "an OVA has at least one byte"));
    }
    let slot = match asked.mode.is_dry() {
        true => None,
        false => Some(api.uploads().take(&asked.caller.description, "uploads")?),
    };
    if slot.is_some() {
        // Database and storage may need longer than a client of PVC 1.0.3 waits.
        let body = std::mem::take(&mut file.body);
        file.body = ahead::taken(&file.headers, body, api.clock().clone());
    }
    storage::check_no_task(&api.view(), &wanted.archive().volume)
        .map_err(|refusal| refused(ChangeError::Refused(refusal)))?;
    check_new_ova(&catalog(&api).await?, &wanted.name)
        .map_err(|refusal| not_provisioned(ProvisionerError::Refused(refusal)))?;
    // Its disks have no fewer bytes than what they are packed into, as a rule.
    let first = [(wanted.volume(&pvc_ova::disk_id(0)), wanted.most_bytes)];
    receive::check_volumes(&api, &wanted, &first).await?;
    Ok((asked, wanted, slot))
}

/// Takes the file, and adds what is in it.
async fn take<O: Operation<Reply = Uploaded>>(
    asked: Ask<O>,
    wanted: Wanted,
    slot: Slot,
    file: File,
) -> Result<Answer<O>> {
    let Ask { api, caller, .. } = asked;
    let clock = api.clock().clone();
    let incoming = Incoming::open(&file.headers, file.body, clock.as_ref()).await?;
    let work = JobWork::Upload { volume: wanted.archive() };
    let transfer = Transfer::begin(&api, work, &caller.description);
    transfer.announce(length(&file.headers).unwrap_or(wanted.most_bytes));
    let mut receiver = receive::Receiver::new(&api, &wanted, slot, &transfer, incoming);
    let stop = transfer.stop().clone();
    let received = match stop.run_until_cancelled(receiver.receive()).await {
        Some(Ok(())) => receiver.into_received(),
        Some(Err(error)) => {
            receiver.turn_away();
            return Err(transfer.failed(error));
        }
        None => {
            receiver.turn_away();
            return Err(transfer.stopped());
        }
    };
    let (file_bytes, crc32) = (received.file_bytes, hexadecimal(&received.crc32.to_be_bytes()));
    let disk_bytes = received.disk_bytes;
    let message = finish::finish(&api, received, transfer).await?;
    let sha256 = String::new();
    Ok(Answer::json(&Uploaded { message, file_bytes, crc32, sha256, disk_bytes }))
}

/// Removes the volumes first, so that whoever was cut off can do it again: what is still kept of
/// the OVA says which they are.
async fn delete_provisioner_ova_ova(
    ask: Ask<DeleteProvisionerOvaOva>,
) -> Result<Answer<DeleteProvisionerOvaOva>> {
    let ([name], class) = (ask.at, Class::Ova);
    let kept = catalog(&ask.api).await?;
    let ova = find_ova(&kept, &name)
        .map_err(|refusal| not_provisioned(ProvisionerError::Refused(refusal)))?;
    let volumes = ova.volumes.iter().map(|volume| VolumeId {
        pool: PoolName::new(&volume.pool),
        volume: VolumeName::new(&volume.volume),
    });
    let volumes: Vec<VolumeId> = volumes.collect();
    let removal = Change::Remove { class, name };
    let (provisioner, cluster) = (ask.api.provisioner()?, ask.api.view());
    let tried = provisioner.change(&cluster, &removal, Making::DryRun);
    answered(&ask.api, tried).await?;
    if ask.mode.is_dry() {
        finish::check_removals(&ask.api, volumes).await?;
        return change(&ask.api, ask.mode, removal).await;
    }
    let moved = finish::trash_volumes(&ask.api, volumes).await?;
    let removed = change(&ask.api, ask.mode, removal).await?;
    if ask.api.settings().removed_volumes_stay.is_zero() {
        finish::purge(&ask.api, moved).await?;
    }
    Ok(removed)
}
