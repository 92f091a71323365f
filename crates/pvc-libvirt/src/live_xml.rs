//! Reading of the XML that libvirt writes or is about to be given.

use pvc_ports::VncAddress;
use roxmltree::{Document, Node};
use uuid::Uuid;

/// Address at which the first graphics element listens, if it is VNC and has got its port.
pub(crate) fn vnc(xml: &str) -> Option<VncAddress> {
    pvc_domain::check_cost(xml).ok()?;
    let document = Document::parse(xml).ok()?;
    let graphics = document.descendants().find(|node| node.has_tag_name("graphics"))?;
    if graphics.attribute("type") != Some("vnc") {
        return None;
    }
    let port = graphics.attribute("port")?.parse().ok()?;
    Some(VncAddress {
        listen: graphics.attribute("listen").unwrap_or("127.0.0.1").to_owned(),
        port,
    })
}

/// Whether an agent in the guest has opened the channel that is for it.
pub(crate) fn has_agent(xml: &str) -> bool {
    // A parse is dear, and most guests have no agent.
    const NAME: &str = "org.qemu.guest_agent.0";
    if !xml.contains(NAME) || pvc_domain::check_cost(xml).is_err() {
        return false;
    }
    let Ok(document) = Document::parse(xml) else { return false };
    let channels = document.descendants().filter(|node| node.has_tag_name("channel"));
    let mut targets = channels.filter_map(|channel| child(channel, "target"));
    targets.any(|target| {
        target.attribute("name") == Some(NAME) && target.attribute("state") == Some("connected")
    })
}

/// The UUID that the guest described by `xml` would get.
pub(crate) fn uuid(xml: &str) -> Result<Uuid, String> {
    pvc_domain::check_cost(xml)
        .map_err(|error| format!("the guest's description is refused: {error}"))?;
    let document = Document::parse(xml)
        .map_err(|error| format!("the guest's description is not XML: {error}"))?;
    let uuid = child(document.root_element(), "uuid").and_then(|node| node.text());
    let uuid = uuid.ok_or("the guest's description has no `uuid`")?.trim();
    uuid.parse().map_err(|_| format!("`{uuid}` is not a UUID"))
}

/// The emulator and the machine's kind of CPUs, from libvirt's description of what is possible
/// here.
pub(crate) fn emulator(capabilities: &str) -> Option<String> {
    let document = Document::parse(capabilities).ok()?;
    Some(child(document.root_element(), "path")?.text()?.trim().to_owned())
}

fn child<'a, 'input>(parent: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    parent.children().find(|node| node.has_tag_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_display_is_found_in_live_xml() {
        let xml = "<domain><devices><graphics type='vnc' port='5903' autoport='yes' \
                   listen='127.0.0.1'>\
                   <listen type='address' address='127.0.0.1'/></graphics></devices></domain>";
        assert_eq!(vnc(xml), Some(VncAddress { listen: "127.0.0.1".to_owned(), port: 5903 }));
    }

    #[test]
    fn an_agent_is_there_when_it_has_opened_its_channel() {
        let xml = |name: &str, state: &str| {
            format!(
                "<domain><devices><channel type='unix'><source mode='bind' path='/x'/>\
                 <target type='virtio' name='{name}'{state}/></channel></devices></domain>"
            )
        };
        let agent = "org.qemu.guest_agent.0";
        assert!(has_agent(&xml(agent, " state='connected'")));
        assert!(!has_agent(&xml(agent, " state='disconnected'")));
        assert!(!has_agent(&xml(agent, "")));
        assert!(!has_agent(&xml("com.redhat.spice.0", " state='connected'")));
        assert!(!has_agent(&format!("<domain>{agent} connected")));
    }

    #[test]
    fn a_display_without_a_port_or_of_another_kind_is_none() {
        for graphics in [
            "<graphics type='vnc' port='-1' autoport='yes'/>",
            "<graphics type='spice' port='5900'/>",
            "",
        ] {
            assert_eq!(
                vnc(&format!("<domain><devices>{graphics}</devices></domain>")),
                None,
                "{graphics}"
            );
        }
    }

    #[test]
    fn a_description_without_a_usable_uuid_says_so() {
        assert_eq!(
            uuid("<domain><name>a</name></domain>"),
            Err("the guest's description has no `uuid`".to_owned())
        );
        assert_eq!(uuid("<domain><uuid>7</uuid></domain>"), Err("`7` is not a UUID".to_owned()));
        assert!(
            uuid("<domain>")
                .expect_err("not closed")
                .starts_with("the guest's description is not XML: ")
        );
    }
}
