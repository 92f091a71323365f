//! Cost of parsing an XML text, counted before it is parsed.
//!
//! roxmltree takes time that grows with the square of one element's attributes, and with the cube
//! of the namespaces: each element that declares one compares all that its parent knows with all of
//! its own. So a text of 70 KB can take half a minute. One pass over the bytes counts what makes a
//! text slow, and what is over a limit is refused unparsed.
//!
//! A text is split here as the parser splits it, up to the first place that is not well-formed;
//! there the parser ends, and everything that it has read was counted.

use crate::DomainError;

/// The largest domain XML that is taken, in bytes: hundreds of times the size of a usual one.
pub const MAX_XML_BYTES: usize = 1 << 20;

/// The deepest nesting of elements that is taken. A domain XML of libvirt has about ten levels.
pub(crate) const MAX_DEPTH: usize = 128;

/// The most elements that are taken: a guest with a thousand disks has fewer.
pub(crate) const MAX_ELEMENTS: usize = 20_000;

/// The most attributes of one element that are taken; the richest of libvirt's have about twenty.
pub(crate) const MAX_ATTRIBUTES: usize = 64;

/// The most namespaces that a text may declare, all elements together. libvirt, QEMU's command line
/// and what management tools write into `<metadata>` need five or six.
pub(crate) const MAX_NAMESPACES: usize = 32;

/// Counts so far.
#[derive(Default)]
struct Counted {
    /// The most elements that are taken.
    limit: usize,
    elements: usize,
    depth: usize,
    namespaces: usize,
}

/// Refuses a text whose parsing would cost more than a domain XML is worth. Takes one pass.
///
/// # Errors
/// The first limit that the text is over.
pub fn check_cost(xml: &str) -> Result<(), DomainError> {
    check(xml, MAX_XML_BYTES, MAX_ELEMENTS)
}

/// [`check_cost`] with a sixteenth of the bytes and of the elements left for what a host adds
/// to a definition.
pub(crate) fn check_room(xml: &str) -> Result<(), DomainError> {
    check(xml, MAX_XML_BYTES / 16 * 15, MAX_ELEMENTS / 16 * 15)
}

fn check(xml: &str, bytes: usize, elements: usize) -> Result<(), DomainError> {
    if xml.len() > bytes {
        return Err(DomainError::TooLarge { bytes: xml.len(), limit: bytes });
    }
    let mut counted = Counted { limit: elements, ..Counted::default() };
    let mut rest = xml.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte == b'<') {
        rest = &rest[at..];
        rest = match rest {
            [b'<', b'!', b'-', b'-', inside @ ..] => after(inside, b"-->"),
            [b'<', b'!', b'[', inside @ ..] => after(inside, b"]]>"),
            [b'<', b'?', inside @ ..] => after(inside, b"?>"),
            [b'<', b'/', inside @ ..] => {
                counted.depth = counted.depth.saturating_sub(1);
                after(inside, b">")
            }
            [_, inside @ ..] => counted.start_tag(inside)?,
            [] => rest,
        };
    }
    Ok(())
}

/// Returns what follows `end` in `bytes`; nothing if it is not there.
fn after<'a>(bytes: &'a [u8], end: &[u8]) -> &'a [u8] {
    let at = bytes.windows(end.len()).position(|window| window == end);
    at.map_or(&[], |at| &bytes[at + end.len()..])
}

impl Counted {
    /// Counts the start tag that `tag` begins with, behind its `<`. What follows the tag.
    fn start_tag<'a>(&mut self, tag: &'a [u8]) -> Result<&'a [u8], DomainError> {
        self.elements += 1;
        if self.elements > self.limit {
            return Err(DomainError::TooManyElements { limit: self.limit });
        }
        let mut attributes = 0;
        let mut quote = None;
        let mut word = 0; // where the name of the attribute begins
        for (at, byte) in tag.iter().enumerate() {
            match (quote, byte) {
                (Some(open), byte) if open == *byte => (quote, word) = (None, at + 1),
                (Some(_), _) => {}
                (None, b'"' | b'\'') => quote = Some(*byte),
                (None, b'=') => {
                    attributes += 1;
                    self.attribute(&tag[word..at], attributes)?;
                }
                (None, b'>') => {
                    self.depth += usize::from(at == 0 || tag[at - 1] != b'/');
                    if self.depth > MAX_DEPTH {
                        return Err(DomainError::TooDeep { limit: MAX_DEPTH });
                    }
                    return Ok(&tag[at + 1..]);
                }
                (None, byte) if byte.is_ascii_whitespace() && attributes == 0 => word = at + 1,
                (None, _) => {}
            }
        }
        Ok(&[])
    }

    fn attribute(&mut self, name: &[u8], attributes: usize) -> Result<(), DomainError> {
        if attributes > MAX_ATTRIBUTES {
            return Err(DomainError::TooManyAttributes { limit: MAX_ATTRIBUTES });
        }
        self.namespaces += usize::from(name.trim_ascii().starts_with(b"xmlns"));
        if self.namespaces > MAX_NAMESPACES {
            return Err(DomainError::TooManyNamespaces { limit: MAX_NAMESPACES });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(xml: &str) -> String {
        check_cost(xml).map_or_else(|error| error.to_string(), |()| "taken".to_owned())
    }

    #[test]
    fn each_limit_is_one_more_than_what_is_taken() {
        let nested = |depth: usize| format!("{}{}", "<a>".repeat(depth), "</a>".repeat(depth));
        let attributes = |count: usize| {
            let all: String = (0..count).map(|number| format!(" a{number}='1'")).collect();
            format!("<a{all}/>")
        };
        let namespaces = |count: usize| format!("<a>{}</a>", "<b xmlns='u' />".repeat(count));
        let elements = |count: usize| format!("<a>{}</a>", "<b/>".repeat(count - 1));
        for (text, at, said_over) in [
            (&nested as &dyn Fn(usize) -> String, MAX_DEPTH, "nested more than 128 deep"),
            (&attributes, MAX_ATTRIBUTES, "an element with more than 64 attributes"),
            (&namespaces, MAX_NAMESPACES, "more than 32 namespaces"),
            (&elements, MAX_ELEMENTS, "more than 20000 elements"),
        ] {
            assert_eq!(said(&text(at)), "taken", "{said_over}");
            assert!(roxmltree::Document::parse(&text(at)).is_ok(), "{said_over}");
            let over = said(&text(at + 1));
            assert!(over.contains(said_over), "{over}");
        }
    }

    #[test]
    fn what_looks_like_a_tag_and_is_none_is_not_counted() {
        let many = "<b xmlns:c='d' a='1'>".repeat(MAX_DEPTH + 1);
        for xml in [
            format!("<a><!-- {many} --></a>"),
            format!("<a><![CDATA[{many}]]></a>"),
            format!("<?pi {many}?><a/>"),
            "<a b='>' c=\"<d>'\" e='\"'/>".to_owned(),
            "<a b = '=====' />".to_owned(),
        ] {
            assert_eq!(said(&xml), "taken");
        }
    }

    #[test]
    fn what_follows_a_misleading_quote_or_comment_is_counted() {
        let many = "<b xmlns:c='d'/>".repeat(MAX_NAMESPACES + 1);
        for begin in [
            "<a b='-->'>",
            "<a b='\"'>",
            "<a><!-- ' -->",
            "<a><![CDATA[ \" ]]>",
            "<a>'",
            "<?x '?><a>",
        ] {
            assert!(said(&format!("{begin}{many}</a>")).contains("namespaces"), "{begin}");
        }
    }

    #[test]
    fn an_unfinished_text_ends_the_count() {
        for xml in ["", "<", "<a", "<a b='", "<!--", "<![CDATA[", "<?", "</", "<a b='c'"] {
            assert_eq!(said(xml), "taken", "{xml}");
        }
    }
}
