//! The steps of a packet, one device after the other.

use super::*;

/// A packet on its way.
pub(super) struct Walk<'w, 'a> {
    pub(super) world: &'w World<'a>,
    pub(super) is_answer: bool,
    pub(super) steps: Vec<Step>,
    pub(super) depends: Vec<Unknown>,
    pub(super) assumed: BTreeSet<Assumption>,
}

/// The end of the way: an error is one that comes before its time.
pub(super) type Ended = Result<End, End>;

impl<'a> Walk<'_, 'a> {
    fn step(&mut self, step: Step) {
        self.steps.push(step);
    }

    fn unknown(&mut self, unknown: Unknown) {
        if !self.depends.contains(&unknown) {
            self.depends.push(unknown);
        }
    }

    pub(super) fn begin_at_guest(&mut self, from: &Guest<'a>, to: &Other<'a>) -> Ended {
        let network = match from.plug {
            Plug::Managed(network) | Plug::Bridged(network) => {
                format!("network {} (`{}`)", network.vni, shown(&network.description))
            }
            Plug::Core(net) => format!("the {net} network"),
            Plug::Unrecorded(vni) => format!("network {vni}"),
            Plug::Device => format!("`{}`", device_of(from.nic)),
        };
        self.step(Step::Interface {
            vm: shown(&from.vm.name),
            mac: shown(&from.nic.mac),
            network,
            address: from.span.address(),
            by: from.by,
        });
        let node = self.node_of(from.vm)?;
        match from.plug {
            Plug::Managed(network) => self.managed(network, from, node, to),
            Plug::Bridged(network) => self.bridged(network, from, node, to),
            Plug::Core(net) => {
                self.step(Step::Bridge { node: node.clone(), link: net.bridge().to_owned() });
                self.leave(node, format!("the {net} network"), from, to)
            }
            Plug::Unrecorded(vni) => self.closed(vni, node, to),
            Plug::Device => {
                let device = device_of(from.nic);
                self.step(Step::Device { node: node.clone(), device: device.clone() });
                self.leave(node, format!("`{device}`"), from, to)
            }
        }
    }

    /// The node that a VM runs on.
    fn node_of(&mut self, vm: &VmRecord) -> Result<NodeName, End> {
        let nodes = &self.world.cluster.nodes;
        let reports = |node: &NodeRecord| node.running.contains(&vm.uuid);
        let assigned = vm.node.as_ref();
        let by_record = || assigned.filter(|_| is_to_run(&vm.state)).cloned();
        let assigned_reports =
            assigned.and_then(|name| nodes.get(name)).is_some_and(|n| reports(n));
        let elsewhere = || {
            let is_up = |node: &NodeRecord| node.daemon_state == DaemonState::Run;
            let node = nodes.values().find(|node| is_up(node) && reports(node))?;
            Some(node.name.clone())
        };
        let name = shown(&vm.name);
        let node = match assigned.filter(|_| assigned_reports).cloned().or_else(elsewhere) {
            Some(node) => node,
            None => {
                let node = by_record().ok_or_else(|| End::Off { vm: name.clone() })?;
                let (vm, node) = (name.clone(), node);
                self.unknown(Unknown::NotReported { vm, node: node.clone() });
                node
            }
        };
        self.step(Step::Node { vm: name, node: node.clone() });
        if let Some(record) = self.world.cluster.nodes.get(&node)
            && record.daemon_state != DaemonState::Run
        {
            let (node, state) = (node.clone(), record.daemon_state.as_str().to_owned());
            self.unknown(Unknown::DaemonState { node, state });
        }
        Ok(node)
    }

    /// Takes note of a node that filters, and how.
    fn note_filter(&mut self, node: &NodeName) {
        let Some(record) = self.world.cluster.nodes.get(node) else { return };
        if record.daemon_state != DaemonState::Run {
            let (node, state) = (node.clone(), record.daemon_state.as_str().to_owned());
            self.unknown(Unknown::DaemonState { node, state });
        } else if !record.runs_our_daemon() {
            self.unknown(Unknown::Legacy { node: node.clone() });
        }
    }

    /// Within a VLAN, whose switches are others'.
    fn bridged(
        &mut self,
        network: &GuestNetwork,
        from: &Guest<'a>,
        node: NodeName,
        to: &Other<'a>,
    ) -> Ended {
        let vni = network.vni;
        self.step(Step::Bridge { node: node.clone(), link: vni.bridge() });
        if let Who::Guest(guest) = &to.who
            && guest.plug.vni() == Some(vni)
        {
            let before = self.steps.len();
            let there = self.node_of(guest.vm)?;
            if there != node {
                self.steps.insert(before, Step::Vlan { node, vni });
                let by = format!("VLAN {vni} of the switches");
                self.assumed.insert(Assumption::Others { by });
            }
            self.step(Step::Bridge { node: there.clone(), link: vni.bridge() });
            return Ok(End::Vm { vm: shown(&guest.vm.name), node: there });
        }
        self.step(Step::Vlan { node: node.clone(), vni });
        self.leave(node, format!("VLAN {vni} of the switches"), from, to)
    }

    /// Within the bridge of a network without a record, which nothing leaves.
    fn closed(&mut self, vni: Vni, node: NodeName, to: &Other<'a>) -> Ended {
        let link = vni.bridge();
        self.step(Step::Bridge { node: node.clone(), link: link.clone() });
        let Who::Guest(guest) = &to.who else { return Err(End::NoNetwork { vni }) };
        if guest.plug.vni() != Some(vni) || self.node_of(guest.vm)? != node {
            return Err(End::NoNetwork { vni });
        }
        self.step(Step::Bridge { node: node.clone(), link });
        self.unknown(Unknown::Closed { node: node.clone(), vni });
        Ok(End::Vm { vm: shown(&guest.vm.name), node })
    }

    /// Out of PVC's hands, and by others' routers to the primary if a managed network has the
    /// target.
    fn leave(&mut self, node: NodeName, by: String, from: &Guest<'a>, to: &Other<'a>) -> Ended {
        self.assumed.insert(Assumption::Others { by: by.clone() });
        let network = match &to.who {
            Who::Guest(guest) => guest.plug.vni().and_then(|vni| self.world.network(vni)),
            Who::Nobody { vni, .. } => self.world.network(*vni),
            Who::Primary => {
                self.unknown(Unknown::FromOutside);
                None
            }
            Who::Outside => None,
        };
        let Some(network) = network.filter(|network| network.managed().is_some()) else {
            return Ok(End::Leaves { node, by });
        };
        let (_, primary) = self.gateway(network, to.span.is_ip4())?;
        self.step(Step::Returns { node: primary.clone(), by });
        if !self.is_forwarded(to.span.is_ip4()) {
            self.unknown(Unknown::Forwarding { node: primary.clone() });
        }
        let packet = self.packet(from.span, to.span, None, Some(network.vni.bridge()));
        self.judge_by_rules(&packet, &primary)?;
        self.enter(network, to, primary)
    }

    fn managed(
        &mut self,
        network: &'a GuestNetwork,
        from: &Guest<'a>,
        node: NodeName,
        to: &Other<'a>,
    ) -> Ended {
        let vni = network.vni;
        self.step(Step::Bridge { node: node.clone(), link: vni.bridge() });
        self.guard(network, from, &node)?;
        self.note_address(from, vni);
        match &to.who {
            Who::Guest(guest) if guest.plug.vni() == Some(vni) => {
                return self.deliver(&node, vni, guest);
            }
            Who::Nobody { vni: of, note } if *of == vni => {
                let (address, note) = (to.span.address(), note.clone());
                return Err(End::Nobody { vni, address, note });
            }
            _ => {}
        }
        let primary = self.reach_gateway(network, to.span.is_ip4(), node)?;
        match &to.who {
            Who::Primary => self.input(network, from, to, primary),
            _ => self.forward(network, from, to, primary),
        }
    }

    fn guard(
        &mut self,
        network: &GuestNetwork,
        from: &Guest<'_>,
        node: &NodeName,
    ) -> Result<(), End> {
        let vni = network.vni;
        if !network.options.spoof_guard {
            return Ok(());
        }
        self.note_filter(node);
        if self.is_from_dhcp_server(from.span.is_ip4()) {
            return Err(End::Dropped { node: node.clone(), by: Dropper::GuardOfDhcp { vni } });
        }
        // In IPv4 it has only what DHCP gives, of which several may be recorded.
        let mac = parse_mac(&from.nic.mac);
        let leases = self.world.index.leases.get(&vni).map_or(&[][..], |leases| leases.of_mac(mac));
        let mut addresses = leases.iter().map(|(address, _)| *address);
        let made = made_address(network, from.nic);
        let is_of_other = net_of(network, from.span.is_ip4())
            .is_some_and(|net| from.span.address().is_none() && !from.span.is_in(&net));
        let has_one = match from.span.address() {
            Some(address) => made == Some(address) || addresses.any(|own| own == address),
            None if is_of_other => false,
            None if from.span.is_ip4() => addresses.any(|address| address.is_ipv4()),
            None => addresses.any(|address| address.is_ipv6()),
        };
        if mac.is_none() || !has_one {
            return Err(End::Dropped { node: node.clone(), by: Dropper::Guard { vni } });
        }
        self.step(Step::Guard { node: node.clone(), vni });
        Ok(())
    }

    /// Whether it is for certain the answer of a DHCP server.
    fn is_from_dhcp_server(&self, is_ip4: bool) -> bool {
        let port = if is_ip4 { 67 } else { 547 };
        let Question { protocol, port: asked, .. } = self.world.question;
        self.is_answer && protocol == Some(Protocol::Udp) && asked == Some(port)
    }

    /// To the gateway of a network, which the primary is.
    fn reach_gateway(
        &mut self,
        network: &GuestNetwork,
        is_ip4: bool,
        from: NodeName,
    ) -> Result<NodeName, End> {
        let (address, primary) = self.gateway(network, is_ip4)?;
        let vni = network.vni;
        self.tunnel(vni, &from, &primary);
        self.step(Step::Gateway { vni, node: primary.clone(), address });
        Ok(primary)
    }

    fn gateway(&mut self, network: &GuestNetwork, is_ip4: bool) -> Result<(IpAddr, NodeName), End> {
        let vni = network.vni;
        let mut gateways = network.gateways().into_iter().map(|gateway| gateway.addr());
        let none = match is_ip4 {
            true => "it has none of IPv4",
            false => "it has none of IPv6",
        };
        let address = gateways.find(|address| address.is_ipv4() == is_ip4);
        let address = address.ok_or(End::NoGateway { vni, why: none })?;
        let primary = self.world.cluster.config.primary.clone();
        let primary = primary.ok_or(End::NoGateway { vni, why: "no node is primary" })?;
        self.note_filter(&primary);
        Ok((address, primary))
    }

    fn tunnel(&mut self, vni: Vni, from: &NodeName, to: &NodeName) {
        if from == to {
            return;
        }
        let end = |node: &NodeName| TunnelEnd {
            node: node.clone(),
            address: self
                .world
                .cluster
                .nodes
                .get(node)
                .and_then(|node| node.daemon.as_ref()?.cluster_address.clone()),
        };
        let (from, to) = (end(from), end(to));
        self.step(Step::Tunnel { vni, from, to });
    }

    /// From the bridge of its network on `node` to a guest.
    fn deliver(&mut self, node: &NodeName, vni: Vni, guest: &Guest<'_>) -> Ended {
        let before = self.steps.len();
        let there = self.node_of(guest.vm)?;
        if there != *node {
            let rest = self.steps.split_off(before);
            self.tunnel(vni, node, &there);
            self.steps.extend(rest);
            self.step(Step::Bridge { node: there.clone(), link: vni.bridge() });
        }
        self.note_address(guest, vni);
        if let Some(mac) = parse_mac(&guest.nic.mac)
            && matches!(self.world.vm_of(vni, mac), Some(None))
        {
            self.unknown(Unknown::OnlyMac { vm: shown(&guest.vm.name), mac: mac_text(mac) });
        }
        Ok(End::Vm { vm: shown(&guest.vm.name), node: there })
    }

    fn note_address(&mut self, guest: &Guest<'_>, vni: Vni) {
        let vm = shown(&guest.vm.name);
        // An answer may go out by another interface.
        let vni = self.world.network_of(&guest.span).map_or(vni, |network| network.vni);
        _ = match guest.by {
            AddressBy::Unknown => self.assumed.insert(Assumption::Address { vm, vni }),
            AddressBy::Mac => self.assumed.insert(Assumption::AddressOfMac { vm }),
            AddressBy::Reservation | AddressBy::Lease => false,
        };
    }

    /// To the primary itself.
    fn input(
        &mut self,
        network: &GuestNetwork,
        from: &Guest<'_>,
        to: &Other<'_>,
        node: NodeName,
    ) -> Ended {
        if self.is_answer {
            return Ok(End::Node { node });
        }
        self.spoofed(network, from, &node)?;
        let is_metadata = to.span.address() == Some(IpAddr::V4(metadata::ADDRESS));
        if is_metadata && self.world.network_of(&from.span).is_none() {
            return Err(End::Dropped { node, by: Dropper::NoService });
        }
        let question = &self.world.question;
        let service = match (question.protocol, question.port) {
            (Some(Protocol::Icmp), _) => Some("ICMP"),
            (None, _) | (_, None) => {
                self.unknown(Unknown::Service);
                return Ok(End::Node { node });
            }
            (Some(_), Some(53)) => Some("DNS"),
            (Some(Protocol::Udp), Some(123)) => Some("NTP"),
            (Some(Protocol::Udp), Some(67)) if from.span.is_ip4() => Some("DHCP"),
            (Some(Protocol::Udp), Some(547)) if !from.span.is_ip4() => Some("DHCP"),
            (Some(Protocol::Tcp), Some(80)) if is_metadata => Some("metadata"),
            _ => None,
        };
        let dropped = || End::Dropped { node: node.clone(), by: Dropper::NoService };
        let service = service.ok_or_else(dropped)?;
        self.step(Step::Service { node: node.clone(), service });
        Ok(End::Node { node })
    }

    /// Nobody sends as a node, and from a guarded network under addresses of it alone.
    fn spoofed(
        &mut self,
        network: &GuestNetwork,
        from: &Guest<'_>,
        node: &NodeName,
    ) -> Result<(), End> {
        let net = net_of(network, from.span.is_ip4());
        if net.is_some_and(|net| from.span.is_in(&net)) {
            return Ok(());
        }
        let is_nodes = self.world.around.nodes.iter().any(|net| from.span.is_in(net));
        let by = match network.options.spoof_guard {
            _ if is_nodes => Dropper::AsNode,
            true => Dropper::Guard { vni: network.vni },
            false => return Ok(()),
        };
        Err(End::Dropped { node: node.clone(), by })
    }

    /// Through the primary, to another network or out.
    fn forward(
        &mut self,
        own: &GuestNetwork,
        from: &Guest<'a>,
        to: &Other<'a>,
        primary: NodeName,
    ) -> Ended {
        let address = to.span.address();
        let nodes = &self.world.around.nodes;
        let is_node = nodes.iter().any(|net| to.span.is_in(net));
        let question = &self.world.question;
        let is_tunnelled =
            question.protocol == Some(Protocol::Udp) && question.port == Some(VXLAN_PORT);
        if is_tunnelled && is_node && to.span.is_ip4() && !self.is_answer {
            return Err(End::Dropped { node: primary, by: Dropper::IntoTunnels });
        }
        self.spoofed(own, from, &primary)?;
        if !self.is_forwarded(to.span.is_ip4()) {
            self.unknown(Unknown::Forwarding { node: primary.clone() });
        }
        let into = self.world.network_of(&to.span);
        let by = |network: &GuestNetwork| Some(network.vni.bridge());
        let packet = self.packet(from.span, to.span, by(own), into.and_then(by));
        self.judge_by_rules(&packet, &primary)?;
        if let Some(network) = into {
            return self.enter(network, to, primary);
        }
        let masked = self.world.network_of(&from.span).filter(|net| net.options.masquerade);
        if let Some(network) = masked.filter(|_| !is_node && !self.is_answer) {
            self.step(Step::Masquerade { node: primary.clone(), vni: network.vni });
        }
        let between = address.and_then(|address| self.world.between_nodes(address));
        if let (Some(_), Some(address), false) = (between, address, self.world.is_primary_asked()) {
            let node = primary.clone();
            self.unknown(Unknown::NotOfPrimary { address, node });
        }
        let by = match &to.who {
            Who::Guest(Guest { plug: Plug::Core(net), .. }) => format!("the {net} network"),
            _ => self.way_out(between),
        };
        self.assumed.insert(Assumption::Others { by: by.clone() });
        Ok(End::Leaves { node: primary, by })
    }

    /// Whether the primary is known to forward packets: nodes of a cluster do, and a machine alone
    /// if a network of that family asks for it.
    fn is_forwarded(&self, is_ip4: bool) -> bool {
        let asks = |network: &GuestNetwork| {
            network.options.masquerade && (is_ip4 || net_of(network, false).is_some())
        };
        !self.world.around.neighbours.is_empty() || self.world.index.networks.iter().any(asks)
    }

    /// Name of the way by which the primary reaches what is outside.
    fn way_out(&self, between: Option<&str>) -> String {
        match between {
            Some(name) => name.to_owned(),
            None if self.world.around.neighbours.is_empty() => "the routes of the node".to_owned(),
            None => "the upstream network".to_owned(),
        }
    }

    /// From the gateway of a network on the primary to who has the address.
    fn enter(&mut self, network: &GuestNetwork, to: &Other<'a>, primary: NodeName) -> Ended {
        let vni = network.vni;
        self.gateway(network, to.span.is_ip4())?;
        self.step(Step::Bridge { node: primary.clone(), link: vni.bridge() });
        match &to.who {
            Who::Guest(guest) => self.deliver(&primary, vni, guest),
            Who::Nobody { note, .. } => {
                let (address, note) = (to.span.address(), note.clone());
                Err(End::Nobody { vni, address, note })
            }
            Who::Primary | Who::Outside => Ok(End::Node { node: primary }),
        }
    }

    /// An answer of the primary itself, which nothing filters.
    pub(super) fn begin_at_primary(&mut self, to: &Other<'a>) -> Ended {
        let network = self.world.network_of(&to.span);
        match (network, &to.who) {
            (Some(network), _) => {
                let (_, primary) = self.gateway(network, to.span.is_ip4())?;
                self.enter(network, to, primary)
            }
            (None, _) => {
                let primary = self.world.cluster.config.primary.clone();
                let node = primary.unwrap_or_else(|| self.world.around.node.clone());
                Ok(End::Leaves { node, by: self.way_out(None) })
            }
        }
    }

    /// An answer that comes back to the primary from outside, where nobody else is asked.
    pub(super) fn begin_outside(&mut self, from: Span, by: &str, to: &Other<'a>) -> Ended {
        let Some(network) = self.world.network_of(&to.span) else {
            // The guest sends under an address that is not of its network.
            return self.begin_at_primary(to);
        };
        let (_, primary) = self.gateway(network, to.span.is_ip4())?;
        self.step(Step::Returns { node: primary.clone(), by: by.to_owned() });
        let is_node = self.world.around.nodes.iter().any(|net| from.is_in(net));
        if !network.options.masquerade || is_node {
            self.assumed.insert(Assumption::WayBack { vni: network.vni });
        }
        let packet = self.packet(from, to.span, None, Some(network.vni.bridge()));
        self.judge_by_rules(&packet, &primary)?;
        self.enter(network, to, primary)
    }

    fn packet(
        &self,
        from: Span,
        to: Span,
        in_by: Option<String>,
        out_by: Option<String>,
    ) -> Packet {
        let Question { protocol, port, .. } = self.world.question;
        let port = port.map_or(ANY_PORT, |port| (port, port));
        let (from_port, to_port) = match self.is_answer {
            false => (ANY_PORT, port),
            true => (port, ANY_PORT),
        };
        let is_answer = self.is_answer;
        Packet { from, to, protocol, from_port, to_port, is_answer, in_by, out_by }
    }

    /// The rules of operators: first those of the network that it goes to.
    fn judge_by_rules(&mut self, packet: &Packet, node: &NodeName) -> Result<(), End> {
        if packet.in_by.is_some() && packet.in_by == packet.out_by {
            return Ok(()); // It stays on its bridge.
        }
        for (direction, span) in [(Direction::In, packet.to), (Direction::Out, packet.from)] {
            if let Some(network) = self.world.network_of(&span) {
                self.chain(network.vni, direction, packet, node)?;
            }
        }
        Ok(())
    }

    fn chain(
        &mut self,
        vni: Vni,
        direction: Direction,
        packet: &Packet,
        node: &NodeName,
    ) -> Result<(), End> {
        let Some(both) = self.world.index.rules.get(&vni) else { return Ok(()) };
        let taken = &both[usize::from(direction == Direction::Out)];
        let mut open = Vec::new();
        let mut decided = None;
        for (acl, rule) in &taken.rules {
            let (test, verdict) = judge(rule, packet);
            match (test, verdict) {
                (Test::False, _) | (_, Verdict::GoesOn) => {}
                (Test::True, Verdict::Passes | Verdict::Drops) => {
                    decided = Some((NamedRule::of(vni, acl), verdict));
                    break;
                }
                _ => open.push((NamedRule::of(vni, acl), verdict)),
            }
        }
        let drops = match &decided {
            Some((_, verdict)) => *verdict == Verdict::Drops,
            None => taken.bad.is_some(),
        };
        self.note_open(vni, node, open, drops);
        self.note_bad(vni, node, direction, taken);
        let (node, rules) = (node.clone(), taken.rules.len());
        match decided {
            Some((rule, verdict)) => {
                let (by, is_open) = (Dropper::Rule(rule.clone()), false);
                self.step(Step::Rule { node: node.clone(), rule, is_open, verdict });
                if drops { Err(End::Dropped { node, by }) } else { Ok(()) }
            }
            None if drops => Err(End::Dropped { node, by: Dropper::Cut { vni, direction } }),
            None => {
                self.step(Step::Unjudged { node, vni, direction, rules });
                Ok(())
            }
        }
    }

    /// Rules that may match, as far as another end would come of it.
    fn note_open(
        &mut self,
        vni: Vni,
        node: &NodeName,
        open: Vec<(NamedRule, Verdict)>,
        drops: bool,
    ) {
        let same = if drops { Verdict::Drops } else { Verdict::Passes };
        let mut open = open.into_iter().filter(|(_, verdict)| *verdict != same);
        for (rule, verdict) in open.by_ref().take(MOST_OPEN) {
            let (node, named) = (node.clone(), rule.clone());
            self.step(Step::Rule { node, rule: named, is_open: true, verdict });
            self.unknown(Unknown::Rule { rule, verdict });
        }
        let more = open.count();
        if more > 0 {
            self.unknown(Unknown::MoreRules { vni, more });
        }
    }

    /// A rule that is not taken leaves it open which of the others are in force.
    fn note_bad(&mut self, vni: Vni, node: &NodeName, direction: Direction, taken: &TakenRules) {
        if let Some((acl, why)) = &taken.bad {
            let (description, why) = (shown(&acl.description), shown(why));
            self.unknown(Unknown::Cut { vni, direction, description, why });
        }
        let fault = rules_fault(vni, node);
        if taken.bad.is_none() && self.world.cluster.faults.contains_key(&fault) {
            self.unknown(Unknown::RulesFault { vni, fault });
        }
    }

    /// Faults of what it has met, which may be in its way.
    pub(super) fn note_faults(&mut self) {
        let mut ids = BTreeSet::new();
        for step in &self.steps {
            let node = step.node().map(NodeName::as_str);
            let kinds: &[&str] = match step {
                Step::Bridge { .. } | Step::Vlan { .. } => &["GUEST_NETWORK"],
                Step::Tunnel { .. } => &["GUEST_NETWORK", "EVPN"],
                Step::Guard { .. } => &["NETWORK_GUARD"],
                Step::Gateway { .. } => &["NETWORK_FIREWALL", "DHCP"],
                Step::Returns { .. } => &["NETWORK_FIREWALL"],
                _ => &[],
            };
            let node = node.into_iter();
            ids.extend(node.flat_map(|node| kinds.iter().map(|kind| fault_id(kind, node))));
        }
        let faults = &self.world.cluster.faults;
        for fault in ids.into_iter().filter(|id| faults.contains_key(id)) {
            self.unknown(Unknown::Fault { fault });
        }
    }
}
