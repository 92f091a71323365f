//! Records of a VM beside its hardware.

use pvc_model::shown;
use pvc_model::vm::{MigrationMethod, Selector, Tag};
use pvc_store::{ChangeError, Changes, Expect, Store, VmChange};

use super::define::known_nodes;
use crate::refusal::{Kind, NoNode, NoVm, Refusal, find_vm};

/// The longest tag, in characters.
const TAG_LIMIT: usize = 128;

/// Changes of metadata; `None` leaves a value as it is, `Some(None)` clears it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meta {
    /// Empty: any node.
    pub node_limit: Option<Vec<String>>,
    pub selector: Option<Option<Selector>>,
    pub autostart: Option<bool>,
    pub profile: Option<String>,
    pub migration_method: Option<Option<MigrationMethod>>,
    pub max_downtime_ms: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetaRefusal {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error(transparent)]
    NoNode(#[from] NoNode),
    #[error("nothing is to be changed")]
    NothingGiven,
    #[error("the maximum downtime must be at least 1 ms")]
    NoDowntime,
}

impl Refusal for MetaRefusal {
    fn kind(&self) -> Kind {
        match self {
            MetaRefusal::NoVm(error) => error.kind(),
            MetaRefusal::NoNode(_) | MetaRefusal::NothingGiven | MetaRefusal::NoDowntime => {
                Kind::Invalid
            }
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            MetaRefusal::NoVm(error) => error.hint(),
            MetaRefusal::NoNode(error) => error.hint(),
            MetaRefusal::NothingGiven => Some("give at least one of the options".to_owned()),
            MetaRefusal::NoDowntime => Some("300 ms is the usual value".to_owned()),
        }
    }
}

/// Changes metadata of VM `vm`.
pub async fn set_meta(
    store: &Store,
    vm: &str,
    meta: &Meta,
) -> Result<(), ChangeError<MetaRefusal>> {
    if *meta == Meta::default() {
        return Err(ChangeError::Refused(MetaRefusal::NothingGiven));
    }
    if meta.max_downtime_ms == Some(0) {
        return Err(ChangeError::Refused(MetaRefusal::NoDowntime));
    }
    store
        .change(|cluster| {
            let uuid = find_vm(cluster, vm)?.uuid;
            let node_limit = match &meta.node_limit {
                Some(names) => Some(VmChange::NodeLimit(known_nodes(cluster, names)?)),
                None => None,
            };
            let asked = [
                node_limit,
                meta.selector.clone().map(VmChange::Selector),
                meta.autostart.map(VmChange::Autostart),
                meta.profile.clone().map(VmChange::Profile),
                meta.migration_method.clone().map(VmChange::MigrationMethod),
                meta.max_downtime_ms.map(VmChange::MaxDowntime),
            ];
            let mut changes = Changes::new();
            for change in asked.into_iter().flatten() {
                changes.vm(uuid, change);
            }
            Ok((changes, ()))
        })
        .await
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TagRefusal {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error("{0}")]
    BadTag(String),
    #[error("VM `{vm}` has no tag `{tag}`")]
    NoTag { vm: String, tag: String },
    #[error("tag `{tag}` of VM `{vm}` is protected")]
    Protected { vm: String, tag: String },
    #[error("tag `{tag}` of VM `{vm}` belongs to the system")]
    OfSystem { vm: String, tag: String },
}

impl Refusal for TagRefusal {
    fn kind(&self) -> Kind {
        match self {
            TagRefusal::NoVm(error) => error.kind(),
            TagRefusal::BadTag(_) => Kind::Invalid,
            TagRefusal::NoTag { .. } => Kind::NotFound,
            TagRefusal::Protected { .. } | TagRefusal::OfSystem { .. } => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            TagRefusal::NoVm(error) => error.hint(),
            TagRefusal::NoTag { .. } => Some("`pvc vm tag get` shows the tags".to_owned()),
            TagRefusal::Protected { vm, tag } => Some(format!(
                "`pvc vm tag add {vm} {tag}` without `--protected` lifts the protection"
            )),
            TagRefusal::BadTag(_) | TagRefusal::OfSystem { .. } => None,
        }
    }
}

/// Whether `tag` can be a tag: it becomes part of a path, and `mirror:destination` is in use.
pub(super) fn check_tag(tag: &str) -> Result<(), String> {
    let allowed =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '+' | '=' | '@');
    let length = tag.chars().count();
    if tag.is_empty() {
        return Err("a tag cannot be empty".to_owned());
    }
    if length > TAG_LIMIT {
        return Err(format!(
            "tag `{}` has {length} characters, at most {TAG_LIMIT} are allowed",
            shown(tag)
        ));
    }
    if !tag.chars().all(allowed) || matches!(tag, "." | "..") {
        return Err(format!("tag `{}` can have letters, digits and `.-_:+=@` only", shown(tag)));
    }
    Ok(())
}

/// Gives VM `vm` a tag, or changes whether it is protected.
pub async fn add_tag(
    store: &Store,
    vm: &str,
    tag: &str,
    protected: bool,
) -> Result<(), ChangeError<TagRefusal>> {
    check_tag(tag).map_err(|why| ChangeError::Refused(TagRefusal::BadTag(why)))?;
    store
        .change(|cluster| {
            let record = find_vm(cluster, vm)?;
            if record.tags.iter().any(|found| found.name == tag && found.kind != "user") {
                return Err(TagRefusal::OfSystem { vm: record.name.clone(), tag: tag.to_owned() });
            }
            let mut changes = Changes::new();
            changes.vm(
                record.uuid,
                VmChange::AddTag(Tag { name: tag.to_owned(), kind: "user".to_owned(), protected }),
            );
            changes.expect(Expect::VmExists(record.uuid));
            Ok((changes, ()))
        })
        .await
}

/// Takes a tag from VM `vm`.
pub async fn remove_tag(store: &Store, vm: &str, tag: &str) -> Result<(), ChangeError<TagRefusal>> {
    store
        .change(|cluster| {
            let record = find_vm(cluster, vm)?;
            let found = record.tags.iter().find(|found| found.name == tag);
            let (vm, tag) = (record.name.clone(), shown(tag));
            let Some(found) = found else { return Err(TagRefusal::NoTag { vm, tag }) };
            if found.protected {
                return Err(TagRefusal::Protected { vm, tag });
            }
            if found.kind != "user" {
                return Err(TagRefusal::OfSystem { vm, tag });
            }
            let mut changes = Changes::new();
            changes.vm(record.uuid, VmChange::RemoveTag(found.name.clone()));
            Ok((changes, ()))
        })
        .await
}
