//! Text that must not be seen.

use std::fmt;

/// A password, token or key. It prints as `***` everywhere; whoever really needs the text says so
/// with [`Secret::reveal`].
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself. Never for a log line, an error or an answer.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A section that another part of the program reads in detail. It may hold keys of remote
/// clusters, so only the names of its keys are printed.
#[derive(Clone, PartialEq)]
pub struct RawSection(serde_json::Value);

impl RawSection {
    pub(crate) fn new(value: serde_json::Value) -> Self {
        Self(value)
    }

    /// The section's content, with the meaning that YAML 1.1 gives to `yes`, `on` and the like.
    pub fn value(&self) -> &serde_json::Value {
        &self.0
    }
}

impl fmt::Debug for RawSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.0.as_object().into_iter().flat_map(|map| map.keys()).collect();
        f.debug_tuple("RawSection").field(&keys).finish()
    }
}
