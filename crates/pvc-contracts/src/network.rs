//! Contract of every [`Network`], on a machine (or a network namespace) with nothing to lose.

#![allow(clippy::disallowed_methods, reason = "real adapters work in real time")]

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::link::{IpNet, Link, LinkAbilities, LinkKind, Links, Route, Vxlan};
use pvc_ports::{Network, NetworkError};

/// Things that the suite needs from whoever runs it.
pub struct NetworkFixture {
    /// A link that may be a port of a bridge, switched off and without addresses.
    pub device: String,
    /// Abilities of this kernel.
    pub able: LinkAbilities,
}

/// Of a kernel that can do everything.
pub const ABLE: LinkAbilities = LinkAbilities { vlans: true, vxlans: true };

const BRIDGE: &str = "brcontract";

/// Runs the whole suite.
///
/// # Panics
/// When the network breaks the contract.
pub async fn network_contract(network: Arc<dyn Network>, fixture: NetworkFixture) {
    let suite = Suite { network, fixture };
    suite.what_is_there_is_seen_in_one_look().await;
    suite.a_bridge_is_made_once_and_starts_switched_off().await;
    suite.what_exists_as_something_else_is_not_made().await;
    suite.odd_names_and_absent_links_are_named().await;
    suite.a_link_is_switched_on_and_off_and_gets_its_mtu().await;
    suite.a_link_becomes_a_port_and_leaves_again().await;
    suite.a_bridge_keeps_the_mac_address_that_it_was_given().await;
    suite.a_note_stays_on_its_link().await;
    suite.checksums_are_computed_where_somebody_asks_for_it().await;
    suite.addresses_come_and_go_without_their_neighbours().await;
    suite.a_leased_address_goes_by_itself_unless_it_is_leased_anew().await;
    suite.an_address_is_announced_on_a_link_that_is_up().await;
    suite.routes_come_and_go().await;
    suite.a_vlan_is_made_where_the_kernel_can().await;
    suite.a_vxlan_is_made_where_the_kernel_can().await;
    suite.what_the_kernel_can_do_is_found_out_without_a_trace().await;
    suite.settings_are_read_and_written_by_path().await;
    suite.a_removed_bridge_frees_its_ports_and_a_card_is_not_removed().await;
}

struct Suite {
    network: Arc<dyn Network>,
    fixture: NetworkFixture,
}

impl Suite {
    async fn what_is_there_is_seen_in_one_look(&self) {
        let links = self.links().await;
        assert!(links.contains_key("lo"), "{links:?}");
        for (name, link) in &links {
            assert_eq!(*name, link.name);
        }
        let device = self.device().await;
        assert!(!device.up && device.addresses.is_empty() && device.master.is_none(), "{device:?}");
        assert!(device.mtu >= 1280 && device.mac.is_some(), "{device:?}");
    }

    async fn a_bridge_is_made_once_and_starts_switched_off(&self) {
        for _ in 0..2 {
            ok(self.network.create_bridge(BRIDGE).await);
            let bridge = self.link(BRIDGE).await;
            assert_eq!(bridge.kind, LinkKind::Bridge);
            assert!(!bridge.up && bridge.addresses.is_empty(), "{bridge:?}");
        }
    }

    async fn what_exists_as_something_else_is_not_made(&self) {
        let error =
            self.network.create_bridge(&self.fixture.device).await.expect_err("it is no bridge");
        assert!(
            matches!(&error, NetworkError::OtherKind { link, .. } if *link == self.fixture.device),
            "{error}"
        );
    }

    async fn odd_names_and_absent_links_are_named(&self) {
        for odd in ["", "a/b", "a b", "sixteen-letters-"] {
            let error = self.network.create_bridge(odd).await.expect_err(odd);
            assert!(
                matches!(&error, NetworkError::BadName { name } if name == odd),
                "{odd}: {error}"
            );
        }
        let (network, address) = (&self.network, net("192.0.2.1/24"));
        is_no_link(network.set_mtu("absent", 1500).await);
        is_no_link(network.set_up("absent", true).await);
        is_no_link(network.set_master("absent", Some(BRIDGE)).await);
        is_no_link(network.set_master(BRIDGE, Some("absent")).await);
        is_no_link(network.create_vlan("vl7", "absent", 7).await);
        let vxlan = Vxlan { lower: Some("absent".to_owned()), ..vxlan(7) };
        is_no_link(network.create_vxlan("vx7", &vxlan).await);
        is_no_link(network.add_address("absent", address).await);
        is_no_link(network.announce("absent", address.addr()).await);
        ok(network.remove_address("absent", address).await);
        ok(network.remove_link("absent").await);
    }

    async fn a_link_is_switched_on_and_off_and_gets_its_mtu(&self) {
        let device = &self.fixture.device;
        for up in [true, true, false, true] {
            ok(self.network.set_up(device, up).await);
            assert_eq!(self.device().await.up, up);
        }
        for mtu in [1400, 1400, 1500] {
            ok(self.network.set_mtu(device, mtu).await);
            assert_eq!(self.device().await.mtu, mtu);
        }
        let refused = self.network.set_mtu(device, 1).await.expect_err("nothing fits into that");
        assert!(matches!(refused, NetworkError::Refused { .. }), "{refused}");
        assert_eq!(self.device().await.mtu, 1500);
    }

    async fn a_link_becomes_a_port_and_leaves_again(&self) {
        let device = &self.fixture.device;
        for master in [Some(BRIDGE), Some(BRIDGE), None, None, Some(BRIDGE)] {
            ok(self.network.set_master(device, master).await);
            assert_eq!(self.device().await.master.as_deref(), master);
        }
        assert!(self.network.set_master(BRIDGE, Some("lo")).await.is_err(), "`lo` is no bridge");
    }

    async fn a_bridge_keeps_the_mac_address_that_it_was_given(&self) {
        let device = &self.fixture.device;
        ok(self.network.set_master(device, None).await);
        // The largest: of those of its ports a bridge takes the smallest.
        let mac = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff];
        for _ in 0..2 {
            ok(self.network.set_mac(BRIDGE, mac).await);
            assert_eq!(self.link(BRIDGE).await.mac, Some(mac));
        }
        ok(self.network.set_master(device, Some(BRIDGE)).await);
        assert_eq!(self.link(BRIDGE).await.mac, Some(mac));
        is_no_link(self.network.set_mac("absent", mac).await);
    }

    async fn a_note_stays_on_its_link(&self) {
        assert_eq!(self.link(BRIDGE).await.alias, None);
        for note in ["one", "PVC network 7", "PVC network 7"] {
            ok(self.network.set_alias(BRIDGE, note).await);
            assert_eq!(self.link(BRIDGE).await.alias.as_deref(), Some(note));
        }
        let error = self.network.set_alias(BRIDGE, &"x".repeat(300)).await.expect_err("too long");
        assert!(matches!(error, NetworkError::Refused { .. }), "{error}");
        ok(self.network.set_alias(BRIDGE, "").await);
        assert_eq!(self.link(BRIDGE).await.alias, None);
        is_no_link(self.network.set_alias("absent", "x").await);
    }

    async fn checksums_are_computed_where_somebody_asks_for_it(&self) {
        for _ in 0..2 {
            ok(self.network.compute_checksums(BRIDGE).await);
        }
        is_no_link(self.network.compute_checksums("absent").await);
    }

    async fn addresses_come_and_go_without_their_neighbours(&self) {
        let (own, floating, other) =
            (net("192.0.2.1/24"), net("192.0.2.250/24"), net("2001:db8::1/64"));
        ok(self.network.set_up(BRIDGE, true).await);
        for address in [own, floating, floating, other, other] {
            ok(self.network.add_address(BRIDGE, address).await);
        }
        let has = self.link(BRIDGE).await.addresses;
        assert!(has.is_superset(&[own, floating, other].into()), "{has:?}");
        // The first address of a network goes, and the second stays.
        for _ in 0..2 {
            ok(self.network.remove_address(BRIDGE, own).await);
            let has = self.link(BRIDGE).await.addresses;
            assert!(!has.contains(&own) && has.is_superset(&[floating, other].into()), "{has:?}");
        }
        ok(self.network.remove_address(BRIDGE, other).await);
        ok(self.network.add_address(BRIDGE, own).await);
        ok(self.network.remove_address(BRIDGE, floating).await);
        let has = self.link(BRIDGE).await.addresses;
        assert!(has.contains(&own) && !has.contains(&floating) && !has.contains(&other), "{has:?}");
    }

    async fn a_leased_address_goes_by_itself_unless_it_is_leased_anew(&self) {
        const SHORT: Duration = Duration::from_secs(2);
        const LONG: Duration = Duration::from_secs(3600);
        let [four, six] = [net("192.0.2.251/24"), net("2001:db8::fb/64")];
        let [renewed, kept] = [net("192.0.2.252/24"), net("192.0.2.253/24")];
        for address in [four, six, renewed, kept] {
            ok(self.network.lease_address(BRIDGE, address, SHORT).await);
        }
        ok(self.network.lease_address(BRIDGE, renewed, LONG).await);
        ok(self.network.add_address(BRIDGE, kept).await);
        let mut has = self.link(BRIDGE).await.addresses;
        assert!(has.is_superset(&[four, six, renewed, kept].into()), "{has:?}");
        let until = tokio::time::Instant::now() + Duration::from_secs(20);
        while has.contains(&four) || has.contains(&six) {
            assert!(tokio::time::Instant::now() < until, "its time is long over");
            tokio::time::sleep(Duration::from_millis(100)).await;
            has = self.link(BRIDGE).await.addresses;
        }
        assert!(has.is_superset(&[renewed, kept].into()), "{has:?}");
        for address in [renewed, kept] {
            ok(self.network.remove_address(BRIDGE, address).await);
        }
        is_no_link(self.network.lease_address("absent", four, SHORT).await);
    }

    async fn an_address_is_announced_on_a_link_that_is_up(&self) {
        for address in ["192.0.2.1", "2001:db8::1"] {
            let address: IpAddr = address.parse().expect("an address");
            ok(self.network.announce(BRIDGE, address).await);
            ok(self.network.set_up(BRIDGE, false).await);
            let error =
                self.network.announce(BRIDGE, address).await.expect_err("nobody would hear it");
            assert!(matches!(error, NetworkError::Refused { .. }), "{error}");
            ok(self.network.set_up(BRIDGE, true).await);
        }
    }

    async fn routes_come_and_go(&self) {
        let default = self.route("0.0.0.0/0", Some("192.0.2.254"), 0);
        let metric = self.route("0.0.0.0/0", Some("192.0.2.253"), 512);
        let direct = self.route("198.51.100.0/24", None, 0);
        for route in [&default, &default, &metric, &direct] {
            ok(self.network.add_route(route).await);
        }
        let routes = ok(self.network.routes().await);
        for route in [&default, &metric, &direct] {
            assert!(routes.contains(route), "{route} in {routes:?}");
        }
        let rival = self.route("0.0.0.0/0", Some("192.0.2.252"), 0);
        let error = self.network.add_route(&rival).await.expect_err("one way at a time");
        assert!(matches!(error, NetworkError::Refused { .. }), "{error}");
        for route in [&metric, &direct, &direct] {
            ok(self.network.remove_route(route).await);
        }
        let routes = ok(self.network.routes().await);
        assert!(
            routes.contains(&default) && !routes.contains(&metric) && !routes.contains(&direct),
            "{routes:?}"
        );
        ok(self.network.remove_route(&default).await);
    }

    async fn a_vlan_is_made_where_the_kernel_can(&self) {
        let device = &self.fixture.device;
        let made = self.network.create_vlan("vlcontract", device, 7).await;
        if !self.fixture.able.vlans {
            let error = made.expect_err("this kernel has no VLANs");
            assert!(matches!(error, NetworkError::Unsupported { .. }), "{error}");
            return;
        }
        ok(made);
        ok(self.network.create_vlan("vlcontract", device, 7).await);
        let vlan = self.link("vlcontract").await;
        assert_eq!(vlan.kind, LinkKind::Vlan { lower: Some(device.clone()), id: 7 });
        assert!(!vlan.up, "{vlan:?}");
        assert_eq!(vlan.lies_on.as_deref(), Some(&**device));
        let error = self
            .network
            .create_vlan("vlcontract", device, 8)
            .await
            .expect_err("it has another number");
        assert!(matches!(error, NetworkError::OtherKind { .. }), "{error}");
        assert!(
            self.network.create_vlan("vlother", device, 4095).await.is_err(),
            "4094 is the last"
        );
        ok(self.network.remove_link("vlcontract").await);
        assert!(!self.links().await.contains_key("vlcontract"));
    }

    async fn a_vxlan_is_made_where_the_kernel_can(&self) {
        let (network, name) = (&self.network, "vxcontract");
        let device = Some(self.fixture.device.clone());
        let local: IpAddr = "192.0.2.1".parse().expect("an address");
        let made = network.create_vxlan(name, &vxlan(7)).await;
        if !self.fixture.able.vxlans {
            let error = made.expect_err("this kernel has no VXLANs");
            assert!(matches!(error, NetworkError::Unsupported { .. }), "{error}");
            return;
        }
        ok(made);
        let error = network.create_vxlan("vxother", &vxlan(7)).await.expect_err("it is taken");
        assert!(matches!(error, NetworkError::Refused { .. }), "{error}");
        ok(network.remove_link(name).await);
        for wanted in [
            Vxlan { learning: true, ..vxlan(7) },
            Vxlan { local: Some(local), port: 8472, ..vxlan(16_777_215) },
            Vxlan { lower: device, local: "2001:db8::7".parse().ok(), ..vxlan(7) },
        ] {
            for _ in 0..2 {
                ok(network.create_vxlan(name, &wanted).await);
            }
            let link = self.link(name).await;
            assert_eq!(link.kind, LinkKind::Vxlan(wanted.clone()));
            assert!(!link.up, "{link:?}");
            let other = Vxlan { id: 8, ..wanted };
            let error = network.create_vxlan(name, &other).await.expect_err("it is another one");
            assert!(matches!(error, NetworkError::OtherKind { .. }), "{error}");
            ok(network.set_master(name, Some(BRIDGE)).await);
            ok(network.set_mtu(name, 1400).await);
            assert_eq!(self.link(name).await.mtu, 1400);
            ok(network.remove_link(name).await);
            assert!(!self.links().await.contains_key(name));
        }
        assert!(network.create_vxlan(name, &vxlan(1 << 24)).await.is_err(), "24 bits are all");
        assert!(!self.links().await.contains_key(name));
    }

    async fn what_the_kernel_can_do_is_found_out_without_a_trace(&self) {
        let before = self.links().await;
        assert_eq!(ok(self.network.abilities().await), self.fixture.able);
        assert_eq!(self.links().await, before);
    }

    async fn settings_are_read_and_written_by_path(&self) {
        let key = format!("net/ipv4/conf/{BRIDGE}/rp_filter");
        for value in ["0", "0", "1"] {
            ok(self.network.set_setting(&key, value).await);
            assert_eq!(ok(self.network.setting(&key).await).as_deref(), Some(value));
        }
        let key = format!("net/ipv6/conf/{BRIDGE}/disable_ipv6");
        for value in ["1", "0"] {
            ok(self.network.set_setting(&key, value).await);
            assert_eq!(ok(self.network.setting(&key).await).as_deref(), Some(value));
        }
        let absent = "net/ipv4/conf/absent/rp_filter";
        assert_eq!(ok(self.network.setting(absent).await), None);
        let error =
            self.network.set_setting(absent, "1").await.expect_err("there is no such setting");
        assert!(matches!(&error, NetworkError::NoSetting { key } if key == absent), "{error}");
    }

    async fn a_removed_bridge_frees_its_ports_and_a_card_is_not_removed(&self) {
        ok(self.network.set_master(&self.fixture.device, Some(BRIDGE)).await);
        for _ in 0..2 {
            ok(self.network.remove_link(BRIDGE).await);
            assert!(!self.links().await.contains_key(BRIDGE));
        }
        assert_eq!(self.device().await.master, None);
        let error =
            self.network.remove_link(&self.fixture.device).await.expect_err("a card is not ours");
        assert!(matches!(error, NetworkError::OtherKind { .. }), "{error}");
    }

    async fn links(&self) -> Links {
        ok(self.network.links().await)
    }

    async fn link(&self, name: &str) -> Link {
        let mut links = self.links().await;
        links.remove(name).unwrap_or_else(|| panic!("`{name}` is not among {links:?}"))
    }

    async fn device(&self) -> Link {
        self.link(&self.fixture.device).await
    }

    fn route(&self, to: &str, via: Option<&str>, metric: u32) -> Route {
        let via = via.map(|via| via.parse().expect("an address"));
        Route { to: net(to), via, link: Some(BRIDGE.to_owned()), metric }
    }
}

fn vxlan(id: u32) -> Vxlan {
    Vxlan { id, local: None, lower: None, port: 4789, learning: false }
}

fn net(text: &str) -> IpNet {
    text.parse().expect("an address with its prefix length")
}

fn ok<T, E: Debug>(done: Result<T, E>) -> T {
    done.expect("the contract says that this succeeds")
}

fn is_no_link(done: Result<(), NetworkError>) {
    let error = done.expect_err("there is no such link");
    assert!(matches!(&error, NetworkError::NoLink { link } if link == "absent"), "{error}");
}
