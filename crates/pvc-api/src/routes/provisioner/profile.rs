//! Profiles: all that VMs are made of.

use pvc_api_types::Profile;
use pvc_api_types::operations::provisioner::{
    DeleteProvisionerProfileProfile, GetProvisionerProfile, GetProvisionerProfileProfile,
    PostProvisionerProfile, PostProvisionerProfileProfile, PutProvisionerProfileProfile,
};
use pvc_api_types::param::Choice as _;
use pvc_model::provisioner::{Catalog, Change, Class, NameLimit, NewProfile, ProfileFields};

use super::{catalog, change, found};
use crate::answer::Answer;
use crate::error::Result;
use crate::table::{Ask, Table};
use crate::view::provisioner as view;

pub fn add(table: Table) -> Table {
    table
        .add(get_provisioner_profile)
        .add(post_provisioner_profile)
        .add(get_provisioner_profile_profile)
        .add(post_provisioner_profile_profile)
        .add(put_provisioner_profile_profile)
        .add(delete_provisioner_profile_profile)
}

fn profiles(kept: &Catalog, is_wanted: impl Fn(&str) -> bool) -> Vec<Profile> {
    let wanted = kept.profiles.iter().filter(|profile| is_wanted(&profile.name));
    wanted.map(|profile| view::profile(kept, profile)).collect()
}

async fn get_provisioner_profile(
    ask: Ask<GetProvisionerProfile>,
) -> Result<Answer<GetProvisionerProfile>> {
    let limit = NameLimit::new(ask.params.limit.as_deref());
    let profiles = profiles(&catalog(&ask.api).await?, |name| limit.matches(name));
    Ok(Answer::json(&found(Class::Profile, None, profiles)?))
}

/// The members of both forms of an ask, under the names of the model.
macro_rules! new_profile {
    ($given:ident, $name:expr) => {
        NewProfile {
            name: $name,
            source: $given.profile_type.word().to_owned(),
            fields: ProfileFields {
                system_template: Some($given.system_template),
                network_template: $given.network_template,
                storage_template: $given.storage_template,
                userdata: $given.userdata,
                script: Some($given.script),
                arguments: Some($given.arg.0),
            },
            ova: $given.ova,
        }
    };
}

async fn post_provisioner_profile(
    ask: Ask<PostProvisionerProfile>,
) -> Result<Answer<PostProvisionerProfile>> {
    let given = ask.params;
    let new = new_profile!(given, given.name);
    change(&ask.api, ask.mode, Change::AddProfile(new)).await
}

async fn get_provisioner_profile_profile(
    ask: Ask<GetProvisionerProfileProfile>,
) -> Result<Answer<GetProvisionerProfileProfile>> {
    let [wanted] = ask.at;
    let profiles = profiles(&catalog(&ask.api).await?, |name| name == wanted);
    Ok(Answer::json(&found(Class::Profile, Some(&wanted), profiles)?))
}

async fn post_provisioner_profile_profile(
    ask: Ask<PostProvisionerProfileProfile>,
) -> Result<Answer<PostProvisionerProfileProfile>> {
    let ([name], given) = (ask.at, ask.params);
    let new = new_profile!(given, name);
    change(&ask.api, ask.mode, Change::AddProfile(new)).await
}

async fn put_provisioner_profile_profile(
    ask: Ask<PutProvisionerProfileProfile>,
) -> Result<Answer<PutProvisionerProfileProfile>> {
    let ([name], given) = (ask.at, ask.params);
    let fields = ProfileFields {
        system_template: given.system_template,
        network_template: given.network_template,
        storage_template: given.storage_template,
        userdata: given.userdata,
        script: given.script,
        arguments: given.arg.map(|arguments| arguments.0),
    };
    change(&ask.api, ask.mode, Change::ModifyProfile { name, fields }).await
}

async fn delete_provisioner_profile_profile(
    ask: Ask<DeleteProvisionerProfileProfile>,
) -> Result<Answer<DeleteProvisionerProfileProfile>> {
    let ([name], class) = (ask.at, Class::Profile);
    change(&ask.api, ask.mode, Change::Remove { class, name }).await
}
