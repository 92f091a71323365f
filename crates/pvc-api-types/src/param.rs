//! Parameters: what an operation takes, declared once for whoever reads it and whoever sends it.
//!
//! [`params!`] declares what an operation takes and [`choice!`] a parameter that is one of a few
//! words. The server reads values from [`Given`] and describes them in the API document; the client
//! writes the same type as a query and a form. Rules for all of them:
//!
//! - A parameter is looked up in the query and in an urlencoded or multipart body alike.
//! - What nobody declared is ignored: clients of PVC 1.0.3 send parameters that belong to other
//!   operations.
//! - A value that is given twice where one is taken is refused; guessing would corrupt records.
//! - All that is wrong is reported at once, by name.

use std::collections::BTreeMap;

use pvc_model::shown;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{RefOr, Required};

/// Everything a request brought, by name; each value in the order it came in, the query first.
#[derive(Debug, Default)]
pub struct Given(BTreeMap<String, Vec<String>>);

impl Given {
    pub fn add(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.entry(name.into()).or_default().push(value.into());
    }

    /// Number of values, of all names together.
    pub fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    pub fn values(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }
}

/// Mistakes in parameters: name and sentence, in the order of the declaration.
pub type Mistakes = Vec<(String, String)>;

/// Parameters that a client sends: name and value, in the order of the declaration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// Part that stands in the address.
    pub query: Vec<(&'static str, String)>,
    /// Part that stands in a form body; an operation that declares no such member has no body.
    pub form: Vec<(&'static str, String)>,
}

/// A value as text.
pub trait Scalar: Sized {
    /// The value, or what is wrong with the text.
    fn parse(text: &str) -> Result<Self, String>;
    fn text(&self) -> String;
    fn schema() -> Schema;
}

/// A parameter.
pub trait Param: Sized {
    const REQUIRED: bool;
    /// The value made of all texts that came under its name, or what is wrong with them.
    fn read(values: &[String]) -> Result<Self, String>;
    /// The texts that a client sends under its name; none if it is left out.
    fn write(&self) -> Vec<String>;
    fn schema() -> Schema;
}

fn only(values: &[String]) -> Result<Option<&str>, String> {
    match values {
        [] => Ok(None),
        [value] => Ok(Some(value)),
        several => Err(format!("was given {} times, one value is taken", several.len())),
    }
}

/// A parameter that must be there.
impl<T: Scalar> Param for T {
    const REQUIRED: bool = true;
    fn read(values: &[String]) -> Result<Self, String> {
        let missing = || "is required and was not given".to_owned();
        only(values)?.ok_or_else(missing).and_then(T::parse)
    }
    fn write(&self) -> Vec<String> {
        vec![self.text()]
    }
    fn schema() -> Schema {
        <T as Scalar>::schema()
    }
}

/// A parameter that may be absent.
impl<T: Scalar> Param for Option<T> {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> Result<Self, String> {
        only(values)?.map(T::parse).transpose()
    }
    fn write(&self) -> Vec<String> {
        self.iter().map(Scalar::text).collect()
    }
    fn schema() -> Schema {
        <T as Scalar>::schema()
    }
}

fn parts(values: &[String]) -> Vec<String> {
    let parts = values.iter().flat_map(|value| value.split(',')).map(str::trim);
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn list_schema() -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String).build();
    Schema::Array(ArrayBuilder::new().items(RefOr::T(Schema::Object(text))).build())
}

/// A list: repeated, separated by commas, or both. Empty parts are left out. Sent repeated.
impl Param for Vec<String> {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> Result<Self, String> {
        Ok(parts(values))
    }
    fn write(&self) -> Vec<String> {
        self.clone()
    }
    fn schema() -> Schema {
        list_schema()
    }
}

/// A list that PVC 1.0.3 takes as one text with commas: sent so, read as any list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commas(pub Vec<String>);

impl Commas {
    /// The list that a text with commas is.
    pub fn of(text: &str) -> Self {
        Commas(parts(&[text.to_owned()]))
    }
}

impl Param for Commas {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> Result<Self, String> {
        Ok(Commas(parts(values)))
    }
    fn write(&self) -> Vec<String> {
        if self.0.is_empty() { Vec::new() } else { vec![self.0.join(",")] }
    }
    fn schema() -> Schema {
        list_schema()
    }
}

/// List, and whether anything was said at all: an empty text means the empty list.
impl Param for Option<Commas> {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> Result<Self, String> {
        if values.is_empty() { Ok(None) } else { Commas::read(values).map(Some) }
    }
    fn write(&self) -> Vec<String> {
        self.iter().map(|list| list.0.join(",")).collect()
    }
    fn schema() -> Schema {
        list_schema()
    }
}

/// List, and whether anything was said at all: an empty text means the empty list. Sent repeated.
impl Param for Option<Vec<String>> {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> Result<Self, String> {
        Ok((!values.is_empty()).then(|| parts(values)))
    }
    fn write(&self) -> Vec<String> {
        match self {
            Some(list) if list.is_empty() => vec![String::new()],
            Some(list) => list.clone(),
            None => Vec::new(),
        }
    }
    fn schema() -> Schema {
        list_schema()
    }
}

/// A list that is repeated, one value each: commas are part of a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repeated(pub Vec<String>);

impl Repeated {
    fn of(values: &[String]) -> Self {
        Repeated(values.iter().filter(|value| !value.is_empty()).cloned().collect())
    }
}

impl Param for Repeated {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> Result<Self, String> {
        Ok(Repeated::of(values))
    }
    fn write(&self) -> Vec<String> {
        self.0.clone()
    }
    fn schema() -> Schema {
        list_schema()
    }
}

/// List, and whether anything was said at all: an empty text means the empty list.
impl Param for Option<Repeated> {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> Result<Self, String> {
        Ok((!values.is_empty()).then(|| Repeated::of(values)))
    }
    fn write(&self) -> Vec<String> {
        match self {
            Some(list) if list.0.is_empty() => vec![String::new()],
            Some(list) => list.0.clone(),
            None => Vec::new(),
        }
    }
    fn schema() -> Schema {
        list_schema()
    }
}

/// A boolean that is false unless said otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flag(pub bool);

impl Param for Flag {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> Result<Self, String> {
        Option::<bool>::read(values).map(|flag| Flag(flag.unwrap_or(false)))
    }
    fn write(&self) -> Vec<String> {
        vec![self.0.text()]
    }
    fn schema() -> Schema {
        <bool as Scalar>::schema()
    }
}

/// A boolean as [`Flag`] that PVC 1.0.3 does not know, or for which it takes any text as true: a
/// client sends it only where it is true.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Added(pub bool);

impl Param for Added {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> Result<Self, String> {
        Flag::read(values).map(|flag| Added(flag.0))
    }
    fn write(&self) -> Vec<String> {
        if self.0 { vec![true.text()] } else { Vec::new() }
    }
    fn schema() -> Schema {
        <bool as Scalar>::schema()
    }
}

/// A number that is `DEFAULT` unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Or<const DEFAULT: u32>(pub u32);

impl<const DEFAULT: u32> Default for Or<DEFAULT> {
    fn default() -> Self {
        Or(DEFAULT)
    }
}

impl<const DEFAULT: u32> Param for Or<DEFAULT> {
    const REQUIRED: bool = false;
    fn read(values: &[String]) -> Result<Self, String> {
        Option::<u32>::read(values).map(|number| Or(number.unwrap_or(DEFAULT)))
    }
    fn write(&self) -> Vec<String> {
        vec![self.0.to_string()]
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
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
    fn text(&self) -> String {
        self.clone()
    }
    fn schema() -> Schema {
        Schema::Object(ObjectBuilder::new().schema_type(Type::String).build())
    }
}

const TRUE: [&str; 6] = ["y", "yes", "t", "true", "on", "1"];
const FALSE: [&str; 7] = ["n", "no", "f", "false", "off", "0", ""];

impl Scalar for bool {
    fn parse(text: &str) -> Result<Self, String> {
        let is_one_of = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
        match (is_one_of(&TRUE), is_one_of(&FALSE)) {
            (true, _) => Ok(true),
            (_, true) => Ok(false),
            _ => Err(format!("`{}` is neither `true` nor `false`", shown(text))),
        }
    }
    /// Text in the words that every server understands.
    fn text(&self) -> String {
        if *self { "True".to_owned() } else { "False".to_owned() }
    }
    fn schema() -> Schema {
        let words = ["True", "False", "true", "false", "yes", "no", "on", "off", "1", "0"];
        choice_schema(words)
    }
}

impl Scalar for u32 {
    fn parse(text: &str) -> Result<Self, String> {
        let none = |_| format!("`{}` is not a whole number from 0 to {}", shown(text), u32::MAX);
        text.parse().map_err(none)
    }
    fn text(&self) -> String {
        self.to_string()
    }
    fn schema() -> Schema {
        let number = ObjectBuilder::new().schema_type(SchemaType::from(Type::Integer));
        Schema::Object(number.minimum(Some(0)).maximum(Some(u32::MAX)).build())
    }
}

impl Scalar for u64 {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("`{}` is not a whole number from 0 on", shown(text)))
    }
    fn text(&self) -> String {
        self.to_string()
    }
    fn schema() -> Schema {
        let number = ObjectBuilder::new().schema_type(SchemaType::from(Type::Integer));
        Schema::Object(number.minimum(Some(0)).build())
    }
}

/// A decimal number that is finite: neither `inf` nor `NaN`.
impl Scalar for f64 {
    fn parse(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| format!("`{}` is not a number", shown(text)))
    }
    fn text(&self) -> String {
        self.to_string()
    }
    fn schema() -> Schema {
        let number = ObjectBuilder::new().schema_type(SchemaType::from(Type::Number));
        Schema::Object(number.build())
    }
}

/// Chooses one of `words`, or says what is allowed instead.
pub fn choose<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
        let allowed: Vec<String> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
        format!("`{}` is not one of {}", shown(text), allowed.join(", "))
    })
}

pub fn choice_schema(words: impl IntoIterator<Item = &'static str>) -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String);
    Schema::Object(text.enum_values(Some(words)).build())
}

/// A parameter that is one of a few words; made by [`choice!`].
pub trait Choice: Scalar + Copy + Send + Sync + 'static {
    const WORDS: &'static [&'static str];
    fn word(self) -> &'static str;
}

/// Declares a parameter that is one of a few words: `choice! { pub enum Action { Add = "add" } }`.
macro_rules! choice {
    ($(#[$doc:meta])* pub enum $name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($variant),+ }

        impl $crate::param::Choice for $name {
            const WORDS: &'static [&'static str] = &[$($word),+];
            fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl $crate::param::Scalar for $name {
            fn parse(text: &str) -> std::result::Result<Self, String> {
                $crate::param::choose(text, &[$(($word, $name::$variant)),+])
            }
            fn text(&self) -> String {
                $crate::param::Choice::word(*self).to_owned()
            }
            fn schema() -> utoipa::openapi::schema::Schema {
                $crate::param::choice_schema([$($word),+])
            }
        }
    };
}

/// Parameters that an operation takes; made by [`params!`].
pub trait Parameters: Sized + Send {
    /// Whether the large limit on bodies applies.
    const LARGE: bool = false;
    /// The values, or everything that is wrong with what was given.
    ///
    /// # Errors
    /// The mistakes by name.
    fn read(given: &Given) -> Result<Self, Mistakes>;
    fn write(&self) -> Written;
    /// The description of those that stand in the address.
    fn described() -> Vec<Parameter>;
    /// The name and the schema of the form body, if there is one.
    fn form() -> Option<(&'static str, RefOr<Schema>)> {
        None
    }
}

/// Parameters of an operation that takes none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nothing;

impl Parameters for Nothing {
    fn read(_: &Given) -> Result<Self, Mistakes> {
        Ok(Nothing)
    }
    fn write(&self) -> Written {
        Written::default()
    }
    fn described() -> Vec<Parameter> {
        Vec::new()
    }
}

/// Reads one parameter and notes what is wrong with it.
pub fn take<T: Param>(given: &Given, name: &str, mistakes: &mut Mistakes) -> Option<T> {
    T::read(given.values(name)).map_err(|text| mistakes.push((name.to_owned(), text))).ok()
}

/// Adds what a client sends of one parameter.
pub fn put<T: Param>(value: &T, name: &'static str, to: &mut Vec<(&'static str, String)>) {
    to.extend(value.write().into_iter().map(|text| (name, text)));
}

/// The description of a parameter in the API document.
pub fn describe<T: Param>(name: &str, doc: &str) -> Parameter {
    let required = if T::REQUIRED { Required::True } else { Required::False };
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Query)
        .required(required)
        .description(Some(crate::param::paragraph(doc)))
        .schema(Some(T::schema()))
        .build()
}

/// A doc comment as text: lines of one paragraph are joined.
pub fn paragraph(doc: &str) -> String {
    let lines: Vec<&str> = doc.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(" ")
}

/// The description of a form body in the API document: its members with schema, description, need.
pub fn describe_form(members: Vec<(&str, Schema, &str, bool)>) -> RefOr<Schema> {
    let object = members.into_iter().fold(
        ObjectBuilder::new(),
        |object, (name, mut schema, doc, required)| {
            if let Schema::Object(object) = &mut schema {
                object.description = Some(paragraph(doc));
            }
            let object = object.property(name, schema);
            if required { object.required(name) } else { object }
        },
    );
    RefOr::T(Schema::Object(object.build()))
}

/// Declares what an operation takes.
///
/// Members behind `@form` are sent in a form body, because they are long or secret; the server
/// finds them in the query as well. `= "name"` names a parameter that is no Rust identifier.
macro_rules! params {
    (
        $(#[doc = $type_doc:literal])*
        $(#[derive($($derived:ident),+)])?
        $(@large $large:literal)?
        pub struct $name:ident {
            $( $(#[doc = $doc:literal])* $member:ident $(= $alias:literal)? : $kind:ty, )*
            $( @form $( $(#[doc = $form_doc:literal])* $form:ident : $form_kind:ty, )+ )?
        }
    ) => {
        $(#[doc = $type_doc])*
        #[derive(Debug, Clone)]
        $(#[derive($($derived),+)])?
        pub struct $name {
            $( $(#[doc = $doc])* pub $member: $kind, )*
            $( $( $(#[doc = $form_doc])* pub $form: $form_kind, )+ )?
        }

        impl $crate::param::Parameters for $name {
            $( const LARGE: bool = $large; )?

            fn read(
                given: &$crate::param::Given,
            ) -> std::result::Result<Self, $crate::param::Mistakes> {
                let mut mistakes = $crate::param::Mistakes::new();
                $(
                    let name = params!(@name $member $($alias)?);
                    let $member = $crate::param::take::<$kind>(given, name, &mut mistakes);
                )*
                $($(
                    let name = stringify!($form);
                    let $form = $crate::param::take::<$form_kind>(given, name, &mut mistakes);
                )+)?
                match ($($member,)* $( $($form,)+ )?) {
                    ($(Some($member),)* $( $(Some($form),)+ )?) => {
                        Ok($name { $($member,)* $( $($form,)+ )? })
                    }
                    _ => Err(mistakes),
                }
            }

            fn write(&self) -> $crate::param::Written {
                #[allow(unused_mut, reason = "not every operation has both")]
                let mut written = $crate::param::Written::default();
                $(
                    let name = params!(@name $member $($alias)?);
                    $crate::param::put(&self.$member, name, &mut written.query);
                )*
                $($( $crate::param::put(&self.$form, stringify!($form), &mut written.form); )+)?
                written
            }

            fn described() -> Vec<utoipa::openapi::path::Parameter> {
                vec![$( $crate::param::describe::<$kind>(
                    params!(@name $member $($alias)?),
                    concat!($($doc, "\n"),*),
                ) ),*]
            }

            $(
                fn form() -> Option<(
                    &'static str,
                    utoipa::openapi::RefOr<utoipa::openapi::schema::Schema>,
                )> {
                    use $crate::param::Param;
                    Some((stringify!($name), $crate::param::describe_form(vec![$((
                        stringify!($form),
                        <$form_kind as Param>::schema(),
                        concat!($($form_doc, "\n"),*),
                        <$form_kind as Param>::REQUIRED,
                    )),+])))
                }
            )?
        }
    };
    (@name $member:ident) => { stringify!($member) };
    (@name $member:ident $alias:literal) => { $alias };
}

#[cfg(test)]
mod tests {
    use super::*;

    choice! {
        /// A colour.
        pub enum Colour { Red = "red", Green = "green" }
    }

    params! {
        /// Parameters for the tests.
        pub struct Sample {
            /// Colour, one of two.
            colour: Colour,
            really = "yes-i-really-mean-it": Option<String>,
            flag: Flag,
            lines: Or<10>,
            names: Vec<String>,
            nodes: Option<Commas>,
            @form
            /// Long.
            text: Option<String>,
        }
    }

    fn given(pairs: &[(&'static str, String)]) -> Given {
        let mut given = Given::default();
        pairs.iter().for_each(|(name, value)| given.add(*name, value));
        given
    }

    fn read(query: &str) -> Result<Sample, Mistakes> {
        let mut given = Given::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap();
            given.add(name, value);
        }
        Sample::read(&given)
    }

    #[test]
    fn what_is_absent_has_its_documented_default() {
        let sample = read("colour=red").unwrap();
        assert_eq!((sample.colour, sample.flag.0, sample.lines.0), (Colour::Red, false, 10));
        assert!(sample.names.is_empty() && sample.really.is_none() && sample.text.is_none());
        assert!(sample.nodes.is_none());
    }

    #[test]
    fn q15_lists_are_taken_repeated_and_separated_by_commas() {
        assert_eq!(read("colour=red&names=a,b&names=c&names=").unwrap().names, ["a", "b", "c"]);
        assert_eq!(read("colour=red&nodes=").unwrap().nodes, Some(Commas(Vec::new())));
    }

    #[test]
    fn a_list_of_whole_values_keeps_their_commas_and_an_empty_text_clears_it() {
        let values = |values: &[&str]| -> Vec<String> {
            values.iter().map(|value| (*value).to_owned()).collect()
        };
        let both = values(&["packages=a,b", "x=1"]);
        assert_eq!(Repeated::read(&both).unwrap().write(), both);
        assert_eq!(<Option<Repeated> as Param>::read(&[]), Ok(None));
        let cleared = <Option<Repeated> as Param>::read(&values(&[""])).unwrap();
        assert_eq!(cleared, Some(Repeated::default()));
        assert_eq!(cleared.write(), [""]);
    }

    #[test]
    fn q43_a_value_given_twice_where_one_is_taken_is_refused() {
        let mistakes = read("colour=red&colour=green").unwrap_err();
        let text = "was given 2 times, one value is taken";
        assert_eq!(mistakes, [("colour".to_owned(), text.to_owned())]);
    }

    #[test]
    fn q44_a_boolean_is_a_known_word_in_any_case_or_refused() {
        for (words, value) in [(&TRUE[..], true), (&FALSE[..], false)] {
            for word in words {
                assert_eq!(<bool as Scalar>::parse(&word.to_uppercase()), Ok(value), "{word}");
            }
        }
        assert!(
            <bool as Scalar>::parse(" true").is_err() && <bool as Scalar>::parse("maybe").is_err()
        );
    }

    #[test]
    fn q36_a_number_that_is_none_is_refused() {
        for bad in ["", "-1", "1.5", "x", "99999999999"] {
            assert!(read(&format!("colour=red&lines={bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_decimal_number_is_finite() {
        assert_eq!(<f64 as Scalar>::parse("0.05"), Ok(0.05));
        assert_eq!(<f64 as Scalar>::parse("2").map(|two| two.text()), Ok("2".to_owned()));
        for bad in ["", "x", "inf", "NaN", "1,5", "1e999", "٢"] {
            assert!(<f64 as Scalar>::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_reported_in_the_order_of_the_declaration() {
        let mistakes = read("colour=blue&lines=x&flag=perhaps").unwrap_err();
        let names: Vec<&str> = mistakes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["colour", "flag", "lines"]);
        assert_eq!(mistakes[0].1, "`blue` is not one of `red`, `green`");
    }

    #[test]
    fn what_a_client_writes_a_server_reads() {
        for flag in [false, true] {
            let sample = Sample {
                colour: Colour::Green,
                really: Some("yes".to_owned()),
                flag: Flag(flag),
                lines: Or(7),
                names: vec!["a b".to_owned(), "ü".to_owned()],
                nodes: Some(Commas(vec!["hv1".to_owned(), "hv2".to_owned()])),
                text: Some("<x/>".to_owned()),
            };
            let written = sample.write();
            assert_eq!(written.form, [("text", "<x/>".to_owned())]);
            let pairs: Vec<_> = written.query.into_iter().chain(written.form).collect();
            let again = Sample::read(&given(&pairs)).unwrap();
            assert_eq!(format!("{sample:?}"), format!("{again:?}"));
        }
    }

    #[test]
    fn the_document_knows_names_needs_and_words() {
        let documented = Sample::described();
        let names: Vec<&str> = documented.iter().map(|parameter| parameter.name.as_str()).collect();
        let all = ["colour", "yes-i-really-mean-it", "flag", "lines", "names", "nodes"];
        assert_eq!(names, all);
        let json = serde_json::to_value(&documented[0]).unwrap();
        assert_eq!(json["schema"]["enum"], serde_json::json!(["red", "green"]));
        assert_eq!(
            (&json["required"], &json["description"]),
            (&true.into(), &"Colour, one of two.".into())
        );
        let (name, form) = Sample::form().unwrap();
        let form = serde_json::to_value(form).unwrap();
        assert_eq!((name, &form["properties"]["text"]["description"]), ("Sample", &"Long.".into()));
    }
}
