//! An agent of a guest, as a real libvirt hears it.
//!
//! A guest has nobody at its end of the channel here. So QEMU connects to the socket of an agent
//! that is the test's own, and libvirt, which goes wherever QEMU has the channel, does so too. Of a
//! `virtconsole` in the place of the port QEMU says that the guest has opened it.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};

use pvc_ports::{GuestAgents, MOST_AGENT_ADDRESSES};

use super::*;

const MAC: &str = "52:54:00:ab:cd:01";

/// An agent without a guest.
struct Agent {
    /// Answer about interfaces, without which nothing at all is answered.
    interfaces: Arc<Mutex<Option<String>>>,
}

impl Agent {
    fn at(socket: &Path) -> Self {
        let listener = UnixListener::bind(socket).expect("a socket");
        let agent = Self { interfaces: Arc::default() };
        let interfaces = agent.interfaces.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let interfaces = interfaces.clone();
                std::thread::spawn(move || answer(&stream, &interfaces));
            }
        });
        agent
    }

    fn says(&self, interfaces: Option<String>) {
        *self.interfaces.lock().expect("nobody panics with it") = interfaces;
    }
}

/// Answers each line of one connection.
fn answer(mut stream: &UnixStream, interfaces: &Mutex<Option<String>>) {
    for question in BufReader::new(stream).lines().map_while(Result::ok) {
        let interfaces = interfaces.lock().expect("nobody panics with it").clone();
        let Some(interfaces) = interfaces else { continue };
        let said: String = match question.contains("guest-sync") {
            // It is to say the number again.
            true => question.chars().filter(char::is_ascii_digit).collect(),
            false => interfaces,
        };
        if writeln!(stream, "{{\"return\": {said}}}").is_err() {
            return;
        }
    }
}

fn interface(name: &str, mac: &str, addresses: &[String]) -> String {
    let address = |address: &String| {
        let family = if address.contains(':') { "ipv6" } else { "ipv4" };
        let (kind, of) = (format!("\"ip-address-type\":\"{family}\""), "\"ip-address\"");
        format!("{{{kind},{of}:\"{address}\",\"prefix\":24}}")
    };
    let addresses = addresses.iter().map(address).collect::<Vec<_>>().join(",");
    format!("{{\"name\":\"{name}\",\"hardware-address\":\"{mac}\",\"ip-addresses\":[{addresses}]}}")
}

fn xml_of_one_who_talks(socket: &Path) -> String {
    let channel = format!(
        "<channel type='unix'><source mode='connect' path='{}'/><target type='virtio' \
         name='org.qemu.guest_agent.0'/></channel></devices><qemu:override><qemu:device \
         alias='channel0'><qemu:frontend><qemu:property name='driver' type='string' \
         value='virtconsole'/></qemu:frontend></qemu:device></qemu:override>",
        socket.display()
    );
    let namespace = "<domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0' ";
    guest_xml(UUID, "talks", None).replace("<domain ", namespace).replace("</devices>", &channel)
}

async fn found(agents: &dyn GuestAgents) -> Vec<String> {
    let found = agents.addresses(UUID).await.expect("it answers");
    found.iter().map(|found| format!("{} {}", found.mac, found.address)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_says_is_read_and_no_more_of_it_than_a_guest_may_say() {
    let libvirt = Libvirt::start();
    let (hypervisor, socket) = (libvirt.hypervisor(), libvirt.path("agent"));
    let agent = Agent::at(&socket);
    run(&hypervisor, UUID, &xml_of_one_who_talks(&socket)).await;
    let agents = hypervisor.agents().expect("they are asked");

    let texts = |of: &[&str]| of.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    let usual = [
        interface("lo", "00:00:00:00:00:00", &texts(&["127.0.0.1", "::1"])),
        "{\"name\":\"tun0\"}".to_owned(),
        interface("eth0", "52:54:00:AB:cd:01", &texts(&["10.0.0.5", "fe80::1", "2001:db8::5"])),
    ];
    agent.says(Some(format!("[{}]", usual.join(","))));
    assert_eq!(found(agents).await, [format!("{MAC} 10.0.0.5"), format!("{MAC} 2001:db8::5")]);

    agent.says(Some("[]".to_owned()));
    assert_eq!(found(agents).await, [""; 0]);

    // More of them than are read, of which the first have texts that are too long.
    let addresses: Vec<String> = (0..100).map(|last| format!("10.0.0.{last}")).collect();
    let of_many = |at: u32| match at {
        0..50 => interface(&format!("eth{at}"), &"5".repeat(1000), &["1".repeat(1000)]),
        _ => interface(&format!("eth{at}"), MAC, &addresses),
    };
    let many: Vec<String> = (0..100).map(of_many).collect();
    agent.says(Some(format!("[{}]", many.join(","))));
    assert_eq!(found(agents).await.len(), MOST_AGENT_ADDRESSES);

    agent.says(None);
    agents.addresses(UUID).await.expect_err("it does not answer");
    agent.says(Some(format!("[{}]", interface("eth0", MAC, &texts(&["10.0.0.6"])))));
    let again = eventually("an answer", || async { agents.addresses(UUID).await.ok() }).await;
    assert_eq!(again.len(), 1, "{again:?}");
    hypervisor.destroy(UUID).await.expect("it is destroyed");
}
