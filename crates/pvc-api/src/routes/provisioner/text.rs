//! Userdata for cloud-init in guests, and the scripts that build VMs.

use pvc_api_types::operation::Operation;
use pvc_api_types::operations::provisioner::{
    DeleteProvisionerScriptScript, DeleteProvisionerUserdataUserdata, GetProvisionerScript,
    GetProvisionerScriptScript, GetProvisionerUserdata, GetProvisionerUserdataUserdata,
    PostProvisionerScript, PostProvisionerScriptScript, PostProvisionerUserdata,
    PostProvisionerUserdataUserdata, PutProvisionerScriptScript, PutProvisionerUserdataUserdata,
};
use pvc_api_types::{Message, Script, Userdata};
use pvc_model::provisioner::{Change, Class, NameLimit};
use pvc_provisioner::Text;
use sha2::{Digest as _, Sha256};

use super::{answered, change, found};
use crate::answer::Answer;
use crate::auth::Caller;
use crate::error::Result;
use crate::state::ApiState;
use crate::table::{Ask, Mode, Table};

pub fn add(table: Table) -> Table {
    table
        .add(get_provisioner_userdata)
        .add(post_provisioner_userdata)
        .add(get_provisioner_userdata_userdata)
        .add(post_provisioner_userdata_userdata)
        .add(put_provisioner_userdata_userdata)
        .add(delete_provisioner_userdata_userdata)
        .add(get_provisioner_script)
        .add(post_provisioner_script)
        .add(get_provisioner_script_script)
        .add(post_provisioner_script_script)
        .add(put_provisioner_script_script)
        .add(delete_provisioner_script_script)
}

/// The texts whose names fit.
async fn all(api: &ApiState, class: Class, limit: Option<&str>) -> Result<Vec<Text>> {
    let limit = NameLimit::new(limit);
    let mut texts = answered(api, api.provisioner()?.texts(class, None)).await?;
    texts.retain(|text| limit.matches(&text.name));
    found(class, None, texts)
}

/// The one with this name.
async fn one(api: &ApiState, class: Class, name: &str) -> Result<Vec<Text>> {
    let texts = answered(api, api.provisioner()?.texts(class, Some(name))).await?;
    found(class, Some(name), texts)
}

fn userdata(texts: Vec<Text>) -> Vec<Userdata> {
    let userdata = |Text { id, name, text }| Userdata { id, name, userdata: text };
    texts.into_iter().map(userdata).collect()
}

fn scripts(texts: Vec<Text>) -> Vec<Script> {
    texts.into_iter().map(|Text { id, name, text }| Script { id, name, script: text }).collect()
}

async fn get_provisioner_userdata(
    ask: Ask<GetProvisionerUserdata>,
) -> Result<Answer<GetProvisionerUserdata>> {
    let texts = all(&ask.api, Class::Userdata, ask.params.limit.as_deref()).await?;
    Ok(Answer::json(&userdata(texts)))
}

async fn post_provisioner_userdata(
    ask: Ask<PostProvisionerUserdata>,
) -> Result<Answer<PostProvisionerUserdata>> {
    let (class, name, text) = (Class::Userdata, ask.params.name, ask.params.data);
    change(&ask.api, ask.mode, Change::AddText { class, name, text }).await
}

async fn get_provisioner_userdata_userdata(
    ask: Ask<GetProvisionerUserdataUserdata>,
) -> Result<Answer<GetProvisionerUserdataUserdata>> {
    let [name] = ask.at;
    Ok(Answer::json(&userdata(one(&ask.api, Class::Userdata, &name).await?)))
}

async fn post_provisioner_userdata_userdata(
    ask: Ask<PostProvisionerUserdataUserdata>,
) -> Result<Answer<PostProvisionerUserdataUserdata>> {
    let ([name], class, text) = (ask.at, Class::Userdata, ask.params.data);
    change(&ask.api, ask.mode, Change::AddText { class, name, text }).await
}

async fn put_provisioner_userdata_userdata(
    ask: Ask<PutProvisionerUserdataUserdata>,
) -> Result<Answer<PutProvisionerUserdataUserdata>> {
    let ([name], class, text) = (ask.at, Class::Userdata, ask.params.data);
    change(&ask.api, ask.mode, Change::ModifyText { class, name, text }).await
}

async fn delete_provisioner_userdata_userdata(
    ask: Ask<DeleteProvisionerUserdataUserdata>,
) -> Result<Answer<DeleteProvisionerUserdataUserdata>> {
    let ([name], class) = (ask.at, Class::Userdata);
    change(&ask.api, ask.mode, Change::Remove { class, name }).await
}

/// Changes a script, and logs who has done it: scripts are run as root.
async fn change_script<O: Operation<Reply = Message>>(
    api: &ApiState,
    mode: Mode,
    caller: &Caller,
    asked: Change,
) -> Result<Answer<O>> {
    let (action, name, text) = match &asked {
        Change::AddText { name, text, .. } => ("added", name.clone(), text.as_str()),
        Change::ModifyText { name, text, .. } => ("changed", name.clone(), text.as_str()),
        Change::Remove { name, .. } => ("removed", name.clone(), ""),
        _ => ("changed", String::new(), ""),
    };
    let sha256: String =
        Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let caller = &*caller.description;
    if !mode.is_dry() {
        // Before: what becomes of it may stay unknown.
        tracing::info!(action, script = name, sha256, caller, "a provisioning script is changed");
    }
    let answer = change(api, mode, asked).await;
    if answer.is_err() {
        tracing::info!(script = name, caller, "the change of a provisioning script has failed");
    }
    answer
}

async fn get_provisioner_script(
    ask: Ask<GetProvisionerScript>,
) -> Result<Answer<GetProvisionerScript>> {
    let texts = all(&ask.api, Class::Script, ask.params.limit.as_deref()).await?;
    Ok(Answer::json(&scripts(texts)))
}

async fn post_provisioner_script(
    ask: Ask<PostProvisionerScript>,
) -> Result<Answer<PostProvisionerScript>> {
    let (class, name, text) = (Class::Script, ask.params.name, ask.params.data);
    let asked = Change::AddText { class, name, text };
    change_script(&ask.api, ask.mode, &ask.caller, asked).await
}

async fn get_provisioner_script_script(
    ask: Ask<GetProvisionerScriptScript>,
) -> Result<Answer<GetProvisionerScriptScript>> {
    let [name] = ask.at;
    Ok(Answer::json(&scripts(one(&ask.api, Class::Script, &name).await?)))
}

async fn post_provisioner_script_script(
    ask: Ask<PostProvisionerScriptScript>,
) -> Result<Answer<PostProvisionerScriptScript>> {
    let ([name], class, text) = (ask.at, Class::Script, ask.params.data);
    let asked = Change::AddText { class, name, text };
    change_script(&ask.api, ask.mode, &ask.caller, asked).await
}

async fn put_provisioner_script_script(
    ask: Ask<PutProvisionerScriptScript>,
) -> Result<Answer<PutProvisionerScriptScript>> {
    let ([name], class, text) = (ask.at, Class::Script, ask.params.data);
    let asked = Change::ModifyText { class, name, text };
    change_script(&ask.api, ask.mode, &ask.caller, asked).await
}

async fn delete_provisioner_script_script(
    ask: Ask<DeleteProvisionerScriptScript>,
) -> Result<Answer<DeleteProvisionerScriptScript>> {
    let ([name], class) = (ask.at, Class::Script);
    change_script(&ask.api, ask.mode, &ask.caller, Change::Remove { class, name }).await
}
