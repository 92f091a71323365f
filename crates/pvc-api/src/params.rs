//! Parameters: from the query and a form body to typed values.
//!
//! What an endpoint takes is declared once, with [`params!`]: the handler gets the values, and the
//! API document gets their description. Rules for all of them:
//!
//! - A parameter is looked up in the query and in an urlencoded or multipart body alike.
//! - What nobody declared is ignored: old clients send parameters that belong to other endpoints.
//! - A value that is given twice where one is taken is refused; guessing would corrupt records.
//! - All that is wrong is reported at once, by name.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{RefOr, Required};

use crate::body;
use crate::error::{ApiError, Result};
use crate::settings::Limits;
use crate::state::ApiState;

/// Everything a request brought, by name; each value in the order it came in, the query first.
#[derive(Debug, Default)]
pub struct Given(BTreeMap<String, Vec<String>>);

/// More parameters than any endpoint has, fewer than hurt.
const MAX_PARAMETERS: usize = 4096;

/// The largest body of a request that needs no key.
const STRANGERS_BYTES: usize = 64 << 10;

impl Given {
    fn add(&mut self, name: impl Into<String>, value: impl Into<String>) -> Result<()> {
        if self.0.values().map(Vec::len).sum::<usize>() >= MAX_PARAMETERS {
            return Err(ApiError::refused(format!(
                "more than {MAX_PARAMETERS} parameters were sent"
            )));
        }
        match self.0.entry(name.into()) {
            Entry::Vacant(entry) => drop(entry.insert(vec![value.into()])),
            Entry::Occupied(mut entry) => entry.get_mut().push(value.into()),
        }
        Ok(())
    }

    fn add_urlencoded(&mut self, text: &[u8]) -> Result<()> {
        // What is no text would be replaced: what is recorded would not be what was sent.
        if std::str::from_utf8(&percent_decoded(text)).is_err() {
            return Err(ApiError::refused("the parameters are not UTF-8 text"));
        }
        form_urlencoded::parse(text).try_for_each(|(name, value)| self.add(name, value))
    }

    async fn add_body(&mut self, request: Request, limit: usize, time: Duration) -> Result<()> {
        let read = tokio::time::timeout(time, read_form(request, limit, self));
        read.await.map_err(|_| body::too_slow(time))?
    }

    /// What came in the body alone, of somebody who has not shown who they are yet.
    pub async fn from_stranger(request: Request, limits: &Limits) -> Result<Self> {
        let mut given = Given::default();
        given
            .add_body(request, limits.body_bytes.min(STRANGERS_BYTES), limits.stranger_time)
            .await?;
        Ok(given)
    }

    pub fn values(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }
}

/// The bytes that `text` stands for where it has `%` and two hexadecimal digits.
fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let escaped =
            digit(text.get(at + 1)).zip(digit(text.get(at + 2))).filter(|_| *byte == b'%');
        let escaped = escaped.and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        bytes.push(escaped.unwrap_or(*byte));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    bytes
}

/// One value as text.
pub trait Scalar: Sized {
    /// The value, or what is wrong with the text.
    fn parse(text: &str) -> std::result::Result<Self, String>;
    fn schema() -> Schema;
}

/// One parameter.
pub trait Param: Sized {
    const REQUIRED: bool;
    /// The value made of all texts that came under its name, or what is wrong with them.
    fn read(values: &[String]) -> std::result::Result<Self, String>;
    fn schema() -> Schema;
}

fn only(values: &[String]) -> std::result::Result<Option<&str>, String> {
    match values {
        [] => Ok(None),
        [value] => Ok(Some(value)),
        several => Err(format!("was given {} times, one value is taken", several.len())),
    }
}

/// A parameter that must be there.
impl<T: Scalar> Param for T {
    const REQUIRED: bool = true;
    fn read(values: &[String]) -> std::result::Result<Self, String> {
        let missing = || "is required and was not given".to_owned();
        only(values)?.ok_or_else(missing).and_then(T::parse)
    }
    fn schema() -> Schema {
        <T as Scalar>::schema()
    }
}

/// A parameter that may be absent.
impl<T: Scalar> Param for Option<T> {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> std::result::Result<Self, String> {
        only(values)?.map(T::parse).transpose()
    }
    fn schema() -> Schema {
        <T as Scalar>::schema()
    }
}

/// A list: repeated, separated by commas, or both. Empty parts are left out.
impl Param for Vec<String> {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> std::result::Result<Self, String> {
        let parts = values.iter().flat_map(|value| value.split(',')).map(str::trim);
        Ok(parts.filter(|part| !part.is_empty()).map(str::to_owned).collect())
    }
    fn schema() -> Schema {
        let text = ObjectBuilder::new().schema_type(Type::String).build();
        Schema::Array(ArrayBuilder::new().items(RefOr::T(Schema::Object(text))).build())
    }
}

/// As a list, and whether anything was said at all: an empty text means the empty list.
impl Param for Option<Vec<String>> {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> std::result::Result<Self, String> {
        if values.is_empty() { Ok(None) } else { Vec::read(values).map(Some) }
    }
    fn schema() -> Schema {
        <Vec<String> as Param>::schema()
    }
}

/// A boolean that is false unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flag(pub bool);

impl Param for Flag {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> std::result::Result<Self, String> {
        Option::<bool>::read(values).map(|flag| Flag(flag.unwrap_or(false)))
    }
    fn schema() -> Schema {
        <bool as Scalar>::schema()
    }
}

/// A number that is `DEFAULT` unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Or<const DEFAULT: u32>(pub u32);

impl<const DEFAULT: u32> Param for Or<DEFAULT> {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> std::result::Result<Self, String> {
        Option::<u32>::read(values).map(|number| Or(number.unwrap_or(DEFAULT)))
    }
    fn schema() -> Schema {
        let Schema::Object(mut object) = <u32 as Scalar>::schema() else {
            return <u32 as Scalar>::schema();
        };
        object.default = Some(DEFAULT.into());
        Schema::Object(object)
    }
}

impl Scalar for String {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        Ok(text.to_owned())
    }
    fn schema() -> Schema {
        Schema::Object(ObjectBuilder::new().schema_type(Type::String).build())
    }
}

const TRUE: [&str; 6] = ["y", "yes", "t", "true", "on", "1"];
const FALSE: [&str; 7] = ["n", "no", "f", "false", "off", "0", ""];

impl Scalar for bool {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let is_one_of = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
        match (is_one_of(&TRUE), is_one_of(&FALSE)) {
            (true, _) => Ok(true),
            (_, true) => Ok(false),
            _ => Err(format!("`{}` is neither `true` nor `false`", shown(text))),
        }
    }
    fn schema() -> Schema {
        let words = ["True", "False", "true", "false", "yes", "no", "on", "off", "1", "0"];
        Schema::Object(
            ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).build(),
        )
    }
}

impl Scalar for u32 {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        text.parse()
            .map_err(|_| format!("`{}` is not a whole number from 0 to {}", shown(text), u32::MAX))
    }
    fn schema() -> Schema {
        let number = SchemaType::from(Type::Integer);
        Schema::Object(
            ObjectBuilder::new()
                .schema_type(number)
                .minimum(Some(0))
                .maximum(Some(u32::MAX))
                .build(),
        )
    }
}

impl Scalar for u64 {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        text.parse().map_err(|_| format!("`{}` is not a whole number from 0 on", shown(text)))
    }
    fn schema() -> Schema {
        let number = SchemaType::from(Type::Integer);
        Schema::Object(ObjectBuilder::new().schema_type(number).minimum(Some(0)).build())
    }
}

/// The beginning of a text that a client sent, fit for a message.
pub fn shown(text: &str) -> String {
    let mut shown: String =
        text.chars().take(60).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(60).is_some() {
        shown.push('…');
    }
    shown
}

/// One of `words`, or what is allowed instead.
pub fn choose<T: Copy>(text: &str, words: &[(&str, T)]) -> std::result::Result<T, String> {
    words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
        let allowed: Vec<String> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
        format!("`{}` is not one of {}", shown(text), allowed.join(", "))
    })
}

pub fn choice_schema(words: impl IntoIterator<Item = &'static str>) -> Schema {
    Schema::Object(ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).build())
}

/// Declares a parameter that is one of a few words: `choice! { pub enum Action { Add = "add" } }`.
macro_rules! choice {
    ($(#[$doc:meta])* pub enum $name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($variant),+ }

        impl $crate::params::Scalar for $name {
            fn parse(text: &str) -> std::result::Result<Self, String> {
                $crate::params::choose(text, &[$(($word, $name::$variant)),+])
            }
            fn schema() -> utoipa::openapi::schema::Schema {
                $crate::params::choice_schema([$($word),+])
            }
        }
    };
}
pub(crate) use choice;

/// What an endpoint takes; made by [`params!`].
pub trait Parameters: Sized {
    /// Whether the large limit on bodies applies.
    const LARGE: bool = false;
    fn read(given: &Given) -> Result<Self>;
}

/// Reads one parameter and notes what is wrong with it.
pub fn take<T: Param>(given: &Given, name: &str, errors: &mut Vec<(String, String)>) -> Option<T> {
    T::read(given.values(name)).map_err(|text| errors.push((name.to_owned(), text))).ok()
}

/// The refusal that tells everything that is wrong; the sentence is about the first.
pub fn refusal(errors: Vec<(String, String)>) -> ApiError {
    let message = errors.first().map(|(name, text)| format!("{name}: {text}")).unwrap_or_default();
    let mut error = ApiError::refused(message);
    error.body.errors = errors.into_iter().collect();
    error
}

/// The description of a parameter in the API document.
pub fn describe<T: Param>(name: &str, doc: &str) -> Parameter {
    let required = if T::REQUIRED { Required::True } else { Required::False };
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Query)
        .required(required)
        .description(Some(doc.trim()))
        .schema(Some(T::schema()))
        .build()
}

/// The description of a form body in the API document: its members with schema, description, need.
pub fn describe_form(members: Vec<(&str, Schema, &str, bool)>) -> RefOr<Schema> {
    let object = members.into_iter().fold(
        ObjectBuilder::new(),
        |object, (name, mut schema, doc, required)| {
            if let Schema::Object(object) = &mut schema {
                object.description = Some(doc.trim().to_owned());
            }
            let object = object.property(name, schema);
            if required { object.required(name) } else { object }
        },
    );
    RefOr::T(Schema::Object(object.build()))
}

/// Declares what an endpoint takes.
///
/// Members behind `@form` are documented as members of a form body, because they are long or
/// secret; they are found in the query as well. `= "name"` names a parameter that is no Rust
/// identifier.
macro_rules! params {
    (
        $(#[doc = $type_doc:literal])*
        $(#[large = $large:literal])?
        pub struct $name:ident {
            $( $(#[doc = $doc:literal])* $member:ident $(= $alias:literal)? : $kind:ty, )*
            $( @form $( $(#[doc = $form_doc:literal])* $form:ident : $form_kind:ty, )+ )?
        }
    ) => {
        $(#[doc = $type_doc])*
        #[derive(Debug)]
        pub struct $name {
            $( $(#[doc = $doc])* pub $member: $kind, )*
            $( $( $(#[doc = $form_doc])* pub $form: $form_kind, )+ )?
        }

        impl $crate::params::Parameters for $name {
            $( const LARGE: bool = $large; )?
            fn read(given: &$crate::params::Given) -> $crate::error::Result<Self> {
                let mut errors = Vec::new();
                $( let $member = $crate::params::take::<$kind>(given, params!(@name $member $($alias)?), &mut errors); )*
                $( $( let $form = $crate::params::take::<$form_kind>(given, stringify!($form), &mut errors); )+ )?
                match ($($member,)* $( $($form,)+ )?) {
                    ($(Some($member),)* $( $(Some($form),)+ )?) => Ok($name { $($member,)* $( $($form,)+ )? }),
                    _ => Err($crate::params::refusal(errors)),
                }
            }
        }

        impl utoipa::IntoParams for $name {
            fn into_params(
                _: impl Fn() -> Option<utoipa::openapi::path::ParameterIn>,
            ) -> Vec<utoipa::openapi::path::Parameter> {
                vec![$( $crate::params::describe::<$kind>(params!(@name $member $($alias)?), concat!($($doc, "\n"),*)) ),*]
            }
        }

        $(
            impl utoipa::PartialSchema for $name {
                fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                    use $crate::params::Param;
                    $crate::params::describe_form(vec![$(
                        (stringify!($form), <$form_kind as Param>::schema(), concat!($($form_doc, "\n"),*), <$form_kind as Param>::REQUIRED)
                    ),+])
                }
            }
            impl utoipa::ToSchema for $name {}
        )?
    };
    (@name $member:ident) => { stringify!($member) };
    (@name $member:ident $alias:literal) => { $alias };
}
pub(crate) use params;

/// The declared parameters of a request.
pub struct Params<T>(pub T);

impl<T: Parameters + Send> FromRequest<ApiState> for Params<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self> {
        let limits = &state.settings().limits;
        let limit = if T::LARGE { limits.restore_bytes } else { limits.body_bytes };
        let mut given = Given::default();
        given.add_urlencoded(request.uri().query().unwrap_or_default().as_bytes())?;
        if request.method() != Method::GET && request.method() != Method::HEAD {
            given.add_body(request, limit, limits.body_time).await?;
        }
        T::read(&given).map(Params)
    }
}

/// Adds what the body holds, if it is a form. Any other body is left unread: old clients send
/// content types that mean nothing.
async fn read_form(request: Request, limit: usize, given: &mut Given) -> Result<()> {
    let request = body::check_announced(request, limit)?;
    let kind =
        request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        "application/x-www-form-urlencoded" => {
            let bytes = body::read(request.into_body(), limit).await?;
            given.add_urlencoded(&bytes)
        }
        "multipart/form-data" => read_multipart(request, limit, given).await,
        _ => Ok(()),
    }
}

async fn read_multipart(request: Request, limit: usize, given: &mut Given) -> Result<()> {
    let (parts, content) = request.into_parts();
    // Read as a whole first: the limit then counts every byte, whatever part it belongs to.
    let bytes = body::read(content, limit).await?;
    let bad =
        |text: String| ApiError::refused(format!("the multipart body cannot be read: {text}"));
    let mut request = Request::from_parts(parts, Body::from(bytes));
    // The limit is ours, and kept.
    DefaultBodyLimit::disable().apply(&mut request);
    let mut form =
        Multipart::from_request(request, &()).await.map_err(|error| bad(error.body_text()))?;
    while let Some(field) = form.next_field().await.map_err(|error| bad(error.body_text()))? {
        let Some(name) = field.name().map(str::to_owned) else { continue };
        let value = field.bytes().await.map_err(|error| match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => body::too_large(limit),
            _ => bad(error.body_text()),
        })?;
        let value = String::from_utf8(value.into());
        let value =
            value.map_err(|_| ApiError::parameter(&name, "is not UTF-8 text".to_owned()))?;
        given.add(name, value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    choice! {
        /// A colour.
        pub enum Colour { Red = "red", Green = "green" }
    }

    params! {
        /// For the tests.
        pub struct Sample {
            /// One of two.
            colour: Colour,
            really = "yes-i-really-mean-it": Option<String>,
            flag: Flag,
            lines: Or<10>,
            names: Vec<String>,
            @form
            /// Long.
            text: Option<String>,
        }
    }

    fn read(query: &str) -> Result<Sample> {
        let mut given = Given::default();
        given.add_urlencoded(query.as_bytes()).unwrap();
        Sample::read(&given)
    }

    #[test]
    fn what_is_absent_has_its_documented_default() {
        let sample = read("colour=red").unwrap();
        assert_eq!((sample.colour, sample.flag.0, sample.lines.0), (Colour::Red, false, 10));
        assert!(sample.names.is_empty() && sample.text.is_none() && sample.really.is_none());
    }

    #[test]
    fn q15_lists_are_taken_repeated_and_separated_by_commas() {
        assert_eq!(read("colour=red&names=a,b&names=c&names=").unwrap().names, ["a", "b", "c"]);
    }

    #[test]
    fn q08_a_wrong_parameter_is_told_as_text_and_all_of_them_by_name() {
        let error = read("colour=blue&lines=x&flag=perhaps").unwrap_err();
        assert_eq!(error.body.message, "colour: `blue` is not one of `red`, `green`");
        assert_eq!(error.body.errors.keys().collect::<Vec<_>>(), ["colour", "flag", "lines"]);
        assert_eq!(read("").unwrap_err().body.message, "colour: is required and was not given");
    }

    #[test]
    fn q43_a_value_given_twice_where_one_is_taken_is_refused() {
        let error = read("colour=red&colour=green").unwrap_err();
        assert_eq!(error.body.errors["colour"], "was given 2 times, one value is taken");
    }

    #[test]
    fn q44_a_boolean_is_a_known_word_in_any_case_or_refused() {
        for (word, value) in [
            ("True", true),
            ("YES", true),
            ("on", true),
            ("1", true),
            ("False", false),
            ("no", false),
            ("", false),
        ] {
            assert_eq!(read(&format!("colour=red&flag={word}")).unwrap().flag.0, value, "{word}");
        }
        assert!(read("colour=red&flag=+true").is_err() && read("colour=red&flag=maybe").is_err());
    }

    #[test]
    fn q36_a_number_that_is_none_is_refused() {
        for bad in ["", "-1", "1.5", "x", "99999999999"] {
            assert!(read(&format!("colour=red&lines={bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn unknown_parameters_are_ignored() {
        assert!(read("colour=red&nonsense=1&nonsense=2").is_ok());
    }

    #[test]
    fn a_flood_of_parameters_is_refused() {
        let mut given = Given::default();
        assert!(given.add_urlencoded("a&".repeat(5000).as_bytes()).is_err());
    }

    #[test]
    fn the_document_knows_names_needs_and_words() {
        let documented = <Sample as utoipa::IntoParams>::into_params(|| None);
        let names: Vec<&str> = documented.iter().map(|parameter| parameter.name.as_str()).collect();
        assert_eq!(names, ["colour", "yes-i-really-mean-it", "flag", "lines", "names"]);
        let json = serde_json::to_value(&documented[0]).unwrap();
        assert_eq!(json["schema"]["enum"], serde_json::json!(["red", "green"]));
        assert_eq!(
            (&json["required"], &json["description"]),
            (&true.into(), &"One of two.".into())
        );
        let form = serde_json::to_value(<Sample as utoipa::PartialSchema>::schema()).unwrap();
        assert_eq!(form["properties"]["text"]["description"], "Long.");
    }
}
