//! Operations of the API: each is declared once, by [`operations!`].
//!
//! The declaration is what the router serves (`pvc-api`), what the API document says and what a
//! client calls (`pvc-client`): method, path, parameters, reply, who may call it, and whether it
//! reads, changes or begins a task.
//!
//! ```text
//!  operations! { PutFaultsFaultId { PUT "/faults/{fault_id}", Operator, change } … }
//!        │
//!        ├─ router    table.add(put_faults_fault_id): the handler returns
//!        │            Answer<PutFaultsFaultId>, or it does not compile
//!        ├─ document  path, parameters, replies, roles
//!        └─ client    client.change::<PutFaultsFaultId>([id], Nothing)
//! ```

pub use pvc_model::role::Role;
use serde::de::DeserializeOwned;
use utoipa::openapi::schema::{ArrayBuilder, Schema};
use utoipa::openapi::{Ref, RefOr};

use crate::param::Parameters;

/// The path below which all operations are.
pub const ROOT: &str = "/api/v1";

/// Begin of the path, below [`ROOT`], of a change that is only tried. PVC 1.0.3 leaves the
/// parameter `dry_run` out of account, and does not know this path.
pub const TRIED: &str = "/dry-run";

/// Header of each reply to a request below [`TRIED`]: what lacks it is of a server that does not
/// know the path.
pub const TRIED_MARK: &str = "x-pvc-dry-run";

/// Header of a reply to a read that is as the server last saw the cluster, whose store it cannot
/// reach. `Age` beside it says for how many seconds.
pub const STALE: &str = "x-pvc-stale";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
    Put,
    Delete,
}

impl Method {
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
        }
    }
}

/// Effect of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing changes.
    Read,
    /// The change is done when the reply comes.
    Change,
    /// The reply names the task that does it.
    Task,
}

/// Plain text, no JSON, as a [reply](Operation::Reply).
pub enum PlainText {}

/// Server-sent events as a [reply](Operation::Reply).
pub enum EventStream {}

/// Bytes of any kind as a [reply](Operation::Reply).
pub enum OctetStream {}

/// Nothing, which is status 204, as an [other reply](Operation::Other).
pub enum Empty {}

/// Another place to go to, which is status 302, as an [other reply](Operation::Other).
pub enum Redirect {}

/// Media type of [`PlainText`].
pub const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// Media type of [`EventStream`].
pub const EVENT_STREAM: &str = "text/event-stream";

/// Media type of [`OctetStream`].
pub const OCTET_STREAM: &str = "application/octet-stream";

/// The schema of a type that goes over the wire, and those that it refers to.
pub type Component = (String, RefOr<Schema>);

/// A reply that an operation documents.
pub struct Documented {
    /// Status code: `200` and the like.
    pub status: &'static str,
    pub description: &'static str,
    /// Media type and schema; `None` for a reply without a body.
    pub content: Option<(&'static str, RefOr<Schema>)>,
}

/// An operation of the API.
pub trait Operation: Send + Sync + 'static {
    const METHOD: Method;
    /// Below [`ROOT`], with variable parts in braces: `/faults/{fault_id}`.
    const PATH: &'static str;
    /// The group that it stands under in the API document.
    const TAG: &'static str;
    const ROLE: Role;
    const EFFECT: Effect;
    /// The name of the type: what is called `get_faults` in the API document is `GetFaults`.
    const NAME: &'static str;
    /// Description for the API document: the first paragraph is its summary.
    const DOC: &'static str;
    /// Whether the body of the request is a file: the part `file` of a form, or the body itself.
    const FILE: bool = false;
    /// Description of the reply to `dry_run`; `None` if there is no such parameter.
    const DRY_RUN: Option<&'static str>;

    /// The variable parts of the path, in their order.
    type At: AsRef<[String]> + DeserializeOwned + Send;
    type Params: Parameters;
    /// The body of the reply: what is sent as JSON, [`PlainText`], an
    /// [`EventStream`] or an [`OctetStream`].
    type Reply;
    /// The body of the reply to a dry run; [`Infallible`](std::convert::Infallible) if there is no
    /// such parameter.
    type DryRun;
    /// The reply in the place of `Reply` where that has nothing to say: [`Empty`] or a
    /// [`Redirect`]; [`Infallible`](std::convert::Infallible) if it always has.
    type Other;

    /// The replies that are no refusals.
    fn replies() -> Vec<Documented>;
    /// The schemas that the replies refer to.
    fn components() -> Vec<Component>;
}

/// Identifier of an operation in the API document: `get_vm_vm_state`.
pub fn id<O: Operation>() -> String {
    let mut id = String::with_capacity(O::NAME.len() + 4);
    for (at, c) in O::NAME.char_indices() {
        if c.is_ascii_uppercase() && at > 0 {
            id.push('_');
        }
        id.push(c.to_ascii_lowercase());
    }
    id
}

/// The path of an operation with its variable parts filled in by `fill`.
pub fn path<O: Operation>(at: &O::At, mut fill: impl FnMut(&str) -> String) -> String {
    let mut values = at.as_ref().iter();
    let mut path = String::new();
    for piece in O::PATH.split_inclusive('/') {
        let slash = if piece.ends_with('/') { "/" } else { "" };
        match piece.trim_end_matches('/').starts_with('{') {
            true => {
                path.push_str(&fill(values.next().expect("as many values as variable parts")));
                path.push_str(slash);
            }
            false => path.push_str(piece),
        }
    }
    path
}

/// The names of the variable parts of a path.
pub fn variables(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// Number of variable parts of a path.
pub const fn variable_parts(path: &str) -> usize {
    let (bytes, mut at, mut count) = (path.as_bytes(), 0, 0);
    while at < bytes.len() {
        if bytes[at] == b'{' {
            count += 1;
        }
        at += 1;
    }
    count
}

/// Meaning of a variable part of a path.
pub fn meaning(variable: &str) -> &'static str {
    match variable {
        "vm" => "Name or UUID of the VM",
        "node" => "Name of the node",
        "fault_id" => "Identifier of the fault",
        "task_id" => "Identifier of the task",
        "vf" => "Name of the virtual function",
        "vni" => "VNI or description",
        "mac" => "MAC address; of what is removed also its host name, address or DUID",
        "description" => "Description of the rule",
        "osdid" => "Number of the OSD",
        "pool" => "Name of the pool",
        "volume" => "Name of the volume",
        "snapshot" => "Name of the snapshot",
        "id" => "Identifier of the volume in the trash",
        "template" => "Name of the template",
        "disk_id" => "Name of the disk",
        "userdata" => "Name of the userdata",
        "script" => "Name of the script",
        "profile" => "Name of the profile",
        "ova" => "Name of the OVA",
        _ => "",
    }
}

/// A reference to a type by its name.
pub fn named<T: utoipa::ToSchema>() -> RefOr<Schema> {
    RefOr::Ref(Ref::from_schema_name(T::name()))
}

/// A type of which no component is made.
pub fn inlined<T: utoipa::PartialSchema>() -> RefOr<Schema> {
    T::schema()
}

/// A list of references to a type.
pub fn list_of<T: utoipa::ToSchema>() -> RefOr<Schema> {
    RefOr::T(Schema::Array(ArrayBuilder::new().items(named::<T>()).build()))
}

/// A type with all that it refers to.
pub fn component<T: utoipa::ToSchema>(all: &mut Vec<Component>) {
    all.push((T::name().into_owned(), T::schema()));
    T::schemas(all);
}

/// A text.
pub fn text() -> RefOr<Schema> {
    plain(utoipa::openapi::Type::String)
}

/// The JSON value `null`.
pub fn null() -> RefOr<Schema> {
    plain(utoipa::openapi::Type::Null)
}

fn plain(kind: utoipa::openapi::Type) -> RefOr<Schema> {
    let object = utoipa::openapi::ObjectBuilder::new();
    RefOr::T(Schema::Object(object.schema_type(kind).build()))
}

/// Declares operations of one group.
///
/// ```text
/// operations! { "faults":
///     /// What it does.
///     NAME { METHOD "/path/{variable}", ROLE, EFFECT }
/// }
/// ```
///
/// An effect is `read(PARAMETERS) -> REPLY`, `change(PARAMETERS)` or `task(PARAMETERS)`; the
/// parameters are left out where there are none. A reply is a type, `[TYPE]` for a list of it,
/// `json TYPE` for JSON that the document calls a text, `text`, `events`, `bytes` or `null`; a type
/// may be followed by `204 "WHY"`, if there may be nothing to say. That to a change is a sentence,
/// or `change(PARAMETERS) -> TYPE`; `upload` is such a change by a file. What changes something can
/// be tried dry, with a reply of the same type, or `change(PARAMETERS), dry_run: TYPE, "what it
/// replies"`.
macro_rules! operations {
    ($tag:literal: $(
        $(#[doc = $doc:literal])+
        $name:ident { $method:ident $path:literal, $role:ident, $($effect:tt)+ }
    )+) => {$(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy)]
        pub struct $name;

        impl $crate::operation::Operation for $name {
            const METHOD: $crate::operation::Method = operations!(@method $method);
            const PATH: &'static str = $path;
            const TAG: &'static str = $tag;
            const ROLE: $crate::operation::Role = $crate::operation::Role::$role;
            const NAME: &'static str = stringify!($name);
            const DOC: &'static str = concat!($($doc, "\n"),+);
            type At = [String; $crate::operation::variable_parts($path)];
            operations!(@effect $($effect)+);
        }
    )+};

    (@method GET) => { $crate::operation::Method::Get };
    (@method POST) => { $crate::operation::Method::Post };
    (@method PUT) => { $crate::operation::Method::Put };
    (@method DELETE) => { $crate::operation::Method::Delete };

    (@effect read -> $($reply:tt)+) => {
        operations!(@effect read($crate::param::Nothing) -> $($reply)+);
    };
    (@effect read($params:ty) -> $($reply:tt)+) => {
        const EFFECT: $crate::operation::Effect = $crate::operation::Effect::Read;
        const DRY_RUN: Option<&'static str> = None;
        type Params = $params;
        type DryRun = std::convert::Infallible;
        operations!(@reply $($reply)+);
    };
    (@effect change) => { operations!(@effect change($crate::param::Nothing)); };
    (@effect change($params:ty)) => {
        operations!(@effect change($params), dry_run: crate::Message,
            "Change nothing, and reply whether it would be refused.");
    };
    (@effect change($params:ty) -> $reply:path) => {
        const EFFECT: $crate::operation::Effect = $crate::operation::Effect::Change;
        const DRY_RUN: Option<&'static str> =
            Some("Change nothing, and reply what would change, or that it would be refused.");
        type Params = $params;
        type DryRun = $reply;
        operations!(@reply $reply);
    };
    (@effect upload($params:ty) -> $reply:path) => {
        const FILE: bool = true;
        operations!(@effect change($params) -> $reply);
    };
    (@effect change($params:ty), dry_run: $dry:path, $text:literal) => {
        const EFFECT: $crate::operation::Effect = $crate::operation::Effect::Change;
        const DRY_RUN: Option<&'static str> = Some($text);
        type Params = $params;
        type DryRun = $dry;
        operations!(@reply crate::Message);
    };
    (@effect session($params:ty)) => {
        const EFFECT: $crate::operation::Effect = $crate::operation::Effect::Change;
        const DRY_RUN: Option<&'static str> = None;
        type Params = $params;
        type DryRun = std::convert::Infallible;
        operations!(@reply crate::Message, 302 "Nobody needs to log in");
    };
    (@effect task) => { operations!(@effect task($crate::param::Nothing)); };
    (@effect task($params:ty)) => {
        const EFFECT: $crate::operation::Effect = $crate::operation::Effect::Task;
        const DRY_RUN: Option<&'static str> =
            Some("Begin nothing, and reply whether it would be refused.");
        type Params = $params;
        type Reply = crate::TaskRef;
        type DryRun = crate::Message;
        type Other = std::convert::Infallible;
        fn replies() -> Vec<$crate::operation::Documented> {
            let json = |schema| Some(("application/json", schema));
            vec![
                $crate::operation::Documented {
                    status: "202",
                    description: "Done",
                    content: json($crate::operation::named::<crate::TaskRef>()),
                },
                $crate::operation::Documented {
                    status: "200",
                    description: "The dry run was not refused",
                    content: json($crate::operation::named::<crate::Message>()),
                },
            ]
        }
        fn components() -> Vec<$crate::operation::Component> {
            Vec::new()
        }
    };

    (@reply text) => {
        operations!(@raw $crate::operation::PlainText, $crate::operation::PLAIN_TEXT, text());
    };
    (@reply events) => {
        operations!(@raw $crate::operation::EventStream, $crate::operation::EVENT_STREAM, text());
    };
    (@reply bytes) => {
        operations!(@raw $crate::operation::OctetStream, $crate::operation::OCTET_STREAM, text());
    };
    (@reply null) => {
        type Reply = ();
        type Other = std::convert::Infallible;
        fn replies() -> Vec<$crate::operation::Documented> {
            let content = Some(("application/json", $crate::operation::null()));
            vec![$crate::operation::Documented { status: "200", description: "Done", content }]
        }
        fn components() -> Vec<$crate::operation::Component> {
            Vec::new()
        }
    };
    (@reply json $reply:ty) => {
        operations!(@raw $reply, "application/json", inlined::<$reply>());
    };
    (@reply [$reply:ty]) => {
        type Reply = Vec<$reply>;
        type Other = std::convert::Infallible;
        fn replies() -> Vec<$crate::operation::Documented> {
            let content = Some(("application/json", $crate::operation::list_of::<$reply>()));
            vec![$crate::operation::Documented { status: "200", description: "Done", content }]
        }
        operations!(@components $reply);
    };
    (@reply $reply:ty) => {
        type Other = std::convert::Infallible;
        operations!(@named $reply);
    };
    (@reply $reply:ty, 204 $why:literal) => {
        type Other = $crate::operation::Empty;
        operations!(@named $reply, "204" $why);
    };
    (@reply $reply:ty, 302 $why:literal) => {
        type Other = $crate::operation::Redirect;
        operations!(@named $reply, "302" $why);
    };

    (@named $reply:ty $(, $other:literal $why:literal)?) => {
        type Reply = $reply;
        fn replies() -> Vec<$crate::operation::Documented> {
            let content = Some(("application/json", $crate::operation::named::<$reply>()));
            vec![
                $crate::operation::Documented { status: "200", description: "Done", content },
                $($crate::operation::Documented {
                    status: $other,
                    description: $why,
                    content: None,
                },)?
            ]
        }
        operations!(@components $reply);
    };
    (@components $reply:ty) => {
        fn components() -> Vec<$crate::operation::Component> {
            let mut all = Vec::new();
            $crate::operation::component::<$reply>(&mut all);
            all
        }
    };
    (@raw $reply:ty, $media:expr, $($schema:tt)+) => {
        type Reply = $reply;
        type Other = std::convert::Infallible;
        fn replies() -> Vec<$crate::operation::Documented> {
            let content = Some(($media, $crate::operation::$($schema)+));
            vec![$crate::operation::Documented { status: "200", description: "Done", content }]
        }
        fn components() -> Vec<$crate::operation::Component> {
            Vec::new()
        }
    };
}
