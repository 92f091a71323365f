//! Mark that tells a guest that was made and never let run from one that somebody paused.
//!
//! libvirt gives the same reason for both. So a guest is made with an element of our own among its
//! metadata, which is taken off as soon as it runs: it outlives this program and libvirtd, and
//! nobody else writes it. Whoever dies between letting a guest run and taking the element off
//! leaves a running guest that wears it; reading that guest's XML takes it off.

use std::ops::Range;

use roxmltree::{Document, Node};

use crate::virt::{Domain, VirtError};

const NAMESPACE: &str = "urn:pvc:never-ran";
const ELEMENT: &str = "<pvc:never-ran xmlns:pvc='urn:pvc:never-ran'/>";

/// The description of a guest, with the mark.
///
/// # Errors
/// It is not XML, or would cost more to parse than a description is worth.
pub(crate) fn marked(xml: &str) -> Result<String, String> {
    pvc_domain::check_cost(xml)
        .map_err(|error| format!("the guest's description cannot be used: {error}"))?;
    let document = Document::parse(xml)
        .map_err(|error| format!("the guest's description is not XML: {error}"))?;
    let root = document.root_element();
    let metadata = root.children().find(|node| node.has_tag_name("metadata"));
    let (place, text) = match metadata.map(|metadata| (metadata, inside(metadata))) {
        None => {
            let first = root.first_child().ok_or("the guest's description is empty")?.range().start;
            (first..first, format!("<metadata>{ELEMENT}</metadata>"))
        }
        Some((_, Some(first))) => (first..first, ELEMENT.to_owned()),
        Some((metadata, None)) => (metadata.range(), format!("<metadata>{ELEMENT}</metadata>")),
    };
    Ok(spliced(xml, place, &text))
}

fn inside(metadata: Node<'_, '_>) -> Option<usize> {
    metadata.first_child().map(|child| child.range().start)
}

fn spliced(xml: &str, place: Range<usize>, text: &str) -> String {
    format!("{}{text}{}", &xml[..place.start], &xml[place.end..])
}

/// Whether the XML of a guest may have the mark.
pub(crate) fn is_in(xml: &str) -> bool {
    xml.contains(NAMESPACE)
}

pub(crate) fn is_on(guest: &Domain) -> Result<bool, VirtError> {
    guest.has_metadata(NAMESPACE)
}

pub(crate) fn take_off(guest: &Domain) -> Result<(), VirtError> {
    if is_on(guest)? { guest.remove_metadata(NAMESPACE) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_gets_the_mark_among_its_own_metadata() {
        for (before, after) in [
            (
                "<domain><uuid>1</uuid></domain>",
                "<domain><metadata>M</metadata><uuid>1</uuid></domain>",
            ),
            ("<domain><metadata/><a/></domain>", "<domain><metadata>M</metadata><a/></domain>"),
            ("<domain><metadata></metadata></domain>", "<domain><metadata>M</metadata></domain>"),
            (
                "<domain>\n <metadata>\n <x:y xmlns:x='z'/></metadata></domain>",
                "<domain>\n <metadata>M\n <x:y xmlns:x='z'/></metadata></domain>",
            ),
        ] {
            assert_eq!(
                marked(before).as_deref(),
                Ok(after.replace('M', ELEMENT).as_str()),
                "{before}"
            );
        }
        assert!(is_in(&marked("<domain><a/></domain>").expect("it is XML")));
        marked("<domain>").expect_err("not closed");
        marked("<domain/>").expect_err("empty");
        let dear = marked(&format!("<domain>{}</domain>", "<a b='c'>".repeat(200)));
        assert_eq!(
            dear.expect_err("it is not parsed"),
            "the guest's description cannot be used: the XML has elements nested more than 128 deep"
        );
    }
}
