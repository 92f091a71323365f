//! The output formats, as each kind of command offers them.

use clap::{Args, ValueEnum};
use pvc_client::{Kind, Payload};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};
use crate::output::{self, Table, json};

/// Formats of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// A table
    Pretty,
    /// The bare names
    Raw,
    /// Answer of the API, on one line
    Json,
    /// The same, indented
    JsonPretty,
    /// The table's rows as comma-separated values
    Csv,
    /// The table's rows as YAML
    Yaml,
}

/// Formats of one thing in detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InfoFormat {
    /// Fields that matter from day to day
    Pretty,
    /// Everything
    Long,
    /// Answer of the API, on one line
    Json,
    /// The same, indented
    JsonPretty,
}

/// Formats of overviews without a raw form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlainFormat {
    /// A table
    Pretty,
    /// On one line
    Json,
    /// The same, indented
    JsonPretty,
    /// The table's rows as comma-separated values
    Csv,
    /// The table's rows as YAML
    Yaml,
}

/// Formats of a text that is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TextFormat {
    /// The text
    Pretty,
    /// Answer of the API, on one line
    Json,
    /// The same, indented
    JsonPretty,
}

/// Whether a format is JSON, and which.
pub trait MaybeJson: Copy {
    fn json(self) -> Option<Json>;

    /// Form in which a list's rows are printed in this format; `None` if they are not.
    fn form(self) -> Option<Form> {
        None
    }

    /// Prints `value` if the format is JSON; returns whether it did.
    fn print(self, pvc: &mut Pvc, value: &impl Serialize) -> bool {
        match self.json() {
            Some(Json::Line) => pvc.out.line(json::compact(value)),
            Some(Json::Indented) => pvc.out.line(json::pretty(value)),
            None => return false,
        }
        true
    }

    /// Prints an answer as it came if the format is JSON; returns whether it did.
    fn print_payload<T: DeserializeOwned>(
        self,
        pvc: &mut Pvc,
        payload: &Payload<T>,
    ) -> Result<bool, Failure> {
        match self.json() {
            Some(Json::Line) => pvc.out.line(json::compact_text(payload.text()?)),
            Some(Json::Indented) => pvc.out.line(json::pretty_text(payload.text()?)),
            None => return Ok(false),
        }
        Ok(true)
    }
}

/// Form in which the rows of a list are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Table,
    Csv,
    Yaml,
}

/// Columns of a list that are printed and how its rows are sorted: the options that all lists have.
#[derive(Debug, Clone, Default, Args)]
pub struct Shape {
    /// Only these columns, in this order; a wrong one is answered with those there are
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',')]
    columns: Vec<String>,

    /// Sort by this column; with `-` before it the other way round
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    sort: Option<String>,

    /// Leave the headings out
    #[arg(long)]
    no_headers: bool,
}

impl Shape {
    fn is_given(&self) -> bool {
        !self.columns.is_empty() || self.sort.is_some() || self.no_headers
    }

    /// Fails if rows were asked for where a single thing is shown.
    pub fn not_for_one(&self, format: impl MaybeJson) -> Outcome {
        if self.is_given() || matches!(format.form(), Some(Form::Csv | Form::Yaml)) {
            return Err(Failure::usage("columns, `csv` and `yaml` are for lists")
                .hint("leave the ID out, or use `--format json`"));
        }
        Ok(())
    }

    /// Fails if something was said of rows where the format has none.
    pub fn check(&self, format: impl MaybeJson) -> Outcome {
        if self.is_given() && format.form().is_none() {
            return Err(Failure::usage("`--columns`, `--sort` and `--no-headers` are for tables")
                .hint(
                    "use them with `--format` `pretty`, `csv` or `yaml`; for JSON there is `jq`",
                ));
        }
        Ok(())
    }

    /// Prints a list. Only a terminal makes columns leave: what reads a pipe has room.
    pub fn print(&self, pvc: &mut Pvc, format: impl MaybeJson, mut table: Table) -> Outcome {
        if let Some(column) = &self.sort {
            table.sort(column).map_err(Failure::usage)?;
        }
        if !self.columns.is_empty() {
            table.select(&self.columns).map_err(Failure::usage)?;
        }
        match format.form() {
            Some(Form::Csv) => pvc.out.document(table.csv(!self.no_headers)),
            Some(Form::Yaml) => pvc.out.text(table.yaml()),
            Some(Form::Table) | None => self.draw(pvc, table),
        }
        Ok(())
    }

    fn draw(&self, pvc: &mut Pvc, mut table: Table) {
        let room = pvc.out.is_terminal().then(output::width);
        let narrow = room.filter(|_| self.columns.is_empty());
        let gone = narrow.map_or_else(Vec::new, |room| table.fit(room));
        let text = table.text(pvc.out.paint(), !self.no_headers, room);
        if !text.is_empty() {
            pvc.out.line(text);
        }
        if !gone.is_empty() {
            pvc.out.flush();
            pvc.note(&format!("(no room for: {}; `--columns` chooses)", gone.join(", ")));
        }
    }
}

/// Options by which a list that the API answers is printed.
#[derive(Debug, Args)]
pub struct Listing {
    #[arg(short, long, value_enum, default_value_t = ListFormat::Pretty, help = "How to print it")]
    format: ListFormat,

    #[command(flatten)]
    shape: Shape,
}

impl Listing {
    /// Fails if what was said of columns does not go with the format.
    pub fn check(&self) -> Outcome {
        self.shape.check(self.format)
    }

    /// Whether the names alone are printed.
    pub fn is_bare(&self) -> bool {
        self.format == ListFormat::Raw
    }

    /// Reads what is to be printed of an answer; `None` if it is wanted as it came, and has been
    /// printed so. Fails if something was `wanted` and nothing fits: `command` shows all.
    pub fn read<T: DeserializeOwned, U: DeserializeOwned>(
        &self,
        pvc: &mut Pvc,
        answer: &Payload<Vec<T>>,
        wanted: bool,
        (one, command): (&str, &str),
    ) -> Result<Option<Vec<U>>, Failure> {
        if wanted && answer.is_empty() {
            return Err(Failure::not_found(format!("no {one} fits"))
                .hint(format!("`{command}` shows all of them")));
        }
        if self.format.print_payload(pvc, answer)? {
            return Ok(None);
        }
        Ok(Some(answer.read_as()?))
    }

    /// Prints a list by its names alone or as rows.
    pub fn print<T>(
        &self,
        pvc: &mut Pvc,
        records: &[T],
        name: impl Fn(&T) -> String,
        table: impl FnOnce(&[T]) -> Table,
    ) -> Outcome {
        if self.is_bare() {
            records.iter().for_each(|record| pvc.out.line(name(record)));
            return Ok(());
        }
        self.shape.print(pvc, self.format, table(records))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Json {
    Line,
    Indented,
}

impl MaybeJson for ListFormat {
    fn json(self) -> Option<Json> {
        match self {
            ListFormat::Json => Some(Json::Line),
            ListFormat::JsonPretty => Some(Json::Indented),
            ListFormat::Pretty | ListFormat::Raw | ListFormat::Csv | ListFormat::Yaml => None,
        }
    }

    fn form(self) -> Option<Form> {
        match self {
            ListFormat::Pretty => Some(Form::Table),
            ListFormat::Csv => Some(Form::Csv),
            ListFormat::Yaml => Some(Form::Yaml),
            ListFormat::Raw | ListFormat::Json | ListFormat::JsonPretty => None,
        }
    }
}

impl MaybeJson for InfoFormat {
    fn json(self) -> Option<Json> {
        match self {
            InfoFormat::Json => Some(Json::Line),
            InfoFormat::JsonPretty => Some(Json::Indented),
            InfoFormat::Pretty | InfoFormat::Long => None,
        }
    }
}

impl MaybeJson for PlainFormat {
    fn json(self) -> Option<Json> {
        match self {
            PlainFormat::Json => Some(Json::Line),
            PlainFormat::JsonPretty => Some(Json::Indented),
            PlainFormat::Pretty | PlainFormat::Csv | PlainFormat::Yaml => None,
        }
    }

    fn form(self) -> Option<Form> {
        match self {
            PlainFormat::Pretty => Some(Form::Table),
            PlainFormat::Csv => Some(Form::Csv),
            PlainFormat::Yaml => Some(Form::Yaml),
            PlainFormat::Json | PlainFormat::JsonPretty => None,
        }
    }
}

impl MaybeJson for TextFormat {
    fn json(self) -> Option<Json> {
        match self {
            TextFormat::Json => Some(Json::Line),
            TextFormat::JsonPretty => Some(Json::Indented),
            TextFormat::Pretty => None,
        }
    }
}

/// A list that the server does not find is an empty one.
pub fn or_empty<T: DeserializeOwned>(
    answer: Result<Payload<Vec<T>>, pvc_client::Error>,
) -> Result<Payload<Vec<T>>, pvc_client::Error> {
    match answer {
        Err(error) if error.kind() == Kind::NotFound => Ok(Payload::empty()),
        answer => answer,
    }
}
