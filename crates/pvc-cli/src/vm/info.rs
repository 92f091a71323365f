use pvc_api_types::operations::vm::GetVmVm;
use std::collections::BTreeSet;

use clap::Args;
use pvc_api_types::{Vm, VmMigration, VmNetwork, VmSnapshot};

use super::list::{is_known, known_networks};
use super::{Which, addresses};
use crate::context::Pvc;
use crate::format::{InfoFormat, MaybeJson};
use crate::outcome::Outcome;
use crate::output::labels::Labels;
use crate::output::{Colour, Paint, Table, paint, units};

/// Show a VM in detail
#[derive(Debug, Args)]
pub struct Info {
    #[command(flatten)]
    vm: Which,

    #[arg(short, long, value_enum, default_value_t = InfoFormat::Pretty, help = "How to print it")]
    format: InfoFormat,
}

impl Info {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let vm = pvc.client()?.read_only(GetVmVm, [&self.vm.domain], "VM")?;
        if self.format.print_payload(pvc, &vm)? {
            return Ok(());
        }
        let known = known_networks(pvc.client()?);
        let vm = vm.read()?;
        let mut addresses = addresses::of(pvc.client()?, &vm).unwrap_or_default();
        addresses.extend(addresses::by_agent(&vm, &addresses));
        let view = View {
            vm: &vm,
            known: known.as_ref(),
            addresses: &addresses,
            long: self.format == InfoFormat::Long,
            paint: pvc.out.paint(),
        };
        pvc.out.text(view.text());
        Ok(())
    }
}

/// Column in which the values begin, and the tables.
const WIDTH: usize = 20;

/// A device's property that its definition does not have, as it has always been shown.
const NONE: &str = "None";

struct View<'a> {
    vm: &'a Vm,
    known: Option<&'a BTreeSet<String>>,
    addresses: &'a [String],
    long: bool,
    paint: Paint,
}

impl View<'_> {
    fn text(&self) -> String {
        let mut lines = Labels::new(self.paint, WIDTH);
        lines.heading("Virtual machine information:");
        lines.blank();
        self.hardware(&mut lines);
        if self.long {
            self.machine(&mut lines);
        }
        lines.blank();
        self.placement(&mut lines);
        lines.blank();
        self.tags(&mut lines);
        self.snapshots(&mut lines);
        self.networks(&mut lines);
        if self.long {
            lines.blank();
            self.disks(&mut lines);
            self.interfaces(&mut lines);
            self.controllers(&mut lines);
        }
        lines.finish()
    }

    fn hardware(&self, lines: &mut Labels) {
        let vm = self.vm;
        lines.line("Name", &vm.name);
        lines.line("UUID", &vm.uuid);
        lines.line("Description", &vm.description);
        lines.line("Profile", &vm.profile);
        lines.line("Memory (M)", vm.memory.to_string());
        lines.line("vCPUs", vm.vcpu.to_string());
        if self.long {
            lines.line("Topology (S/C/T)", &vm.vcpu_topology);
        }
        if self.long || vm.vnc.listen.is_some() {
            let listen = vm.vnc.listen.as_deref().unwrap_or(NONE);
            let is_open = pvc_domain::has_open_vnc(&vm.xml).unwrap_or_default();
            let listen =
                if is_open { format!("{listen} (no password)") } else { listen.to_owned() };
            lines.line("VNC listen", listen);
            lines.line("VNC port", vm.vnc.port.as_deref().unwrap_or(NONE));
        }
    }

    fn machine(&self, lines: &mut Labels) {
        let vm = self.vm;
        lines.line("Emulator", &vm.emulator);
        lines.line("Type", &vm.r#type);
        lines.line("Arch", &vm.arch);
        lines.line("Machine", &vm.machine);
        lines.line("Features", vm.features.join(" "));
        self.statistics(lines);
    }

    /// The hypervisor's counters; memory comes in KiB, CPU time in nanoseconds.
    fn statistics(&self, lines: &mut Labels) {
        let memory =
            |name: &str| units::bytes(figure(&self.vm.memory_stats, name).saturating_mul(1024));
        let faults = |name: &str| units::count(figure(&self.vm.memory_stats, name));
        let seconds =
            |name: &str| format!("{:.1}s", figure(&self.vm.vcpu_stats, name) as f64 / 1e9);
        let mut table = Table::new().indented(WIDTH).columns(&[
            ("Swap In", 8),
            ("Swap Out", 9),
            ("Faults (maj/min)", 17),
            ("Available", 10),
            ("Usable", 7),
            ("Unused", 7),
            ("RSS", 4),
        ]);
        table.row(vec![
            memory("swap_in").into(),
            memory("swap_out").into(),
            format!("{}/{}", faults("major_fault"), faults("minor_fault")).into(),
            memory("available").into(),
            memory("usable").into(),
            memory("unused").into(),
            memory("rss").into(),
        ]);
        self.table(lines, "Memory stats", table);
        let mut table = Table::new().indented(WIDTH).columns(&[
            ("CPU time", 9),
            ("User time", 10),
            ("System time", 12),
        ]);
        table.row(vec![
            seconds("cpu_time").into(),
            seconds("user_time").into(),
            seconds("system_time").into(),
        ]);
        self.table(lines, "vCPU stats", table);
    }

    fn placement(&self, lines: &mut Labels) {
        let vm = self.vm;
        lines.line("State", self.paint.colour(paint::vm_state(&vm.state), &vm.state));
        lines.line("Current node", &vm.node);
        lines.line("Previous node", if vm.last_node.is_empty() { "N/A" } else { &vm.last_node });
        if !vm.failed_reason.is_empty() {
            lines.line("Failure reason", &vm.failed_reason);
        }
        if let Some(text) = vm.migration.as_ref().and_then(migration) {
            lines.line("Migration", text);
        }
        lines.blank();
        let limit = vm.node_limit.as_deref().filter(|limit| !limit.is_empty());
        lines.line("Node limit", limit.map_or_else(|| "Any".to_owned(), |limit| limit.join(", ")));
        let autostart = if vm.node_autostart { "True" } else { "False" };
        lines.line("Autostart", self.paint.colour(paint::flag(vm.node_autostart), autostart));
        lines.line("Migration method", method(vm.migration_method.as_deref()));
        lines.line("Migration selector", selector(vm.node_selector.as_deref()));
        lines.line("Max live downtime", format!("{} ms", vm.migration_max_downtime));
    }

    fn tags(&self, lines: &mut Labels) {
        let table = super::tag::table(&self.vm.tags).indented(WIDTH);
        self.table(lines, "Tags", table);
    }

    fn snapshots(&self, lines: &mut Labels) {
        let mut table =
            Table::new().indented(WIDTH).columns(&[("Name", 5), ("Age", 4), ("XML Changes", 12)]);
        for snapshot in &self.vm.snapshots {
            table.row(vec![
                snapshot.name.as_str().into(),
                units::age(snapshot.age).into(),
                changes(snapshot).into(),
            ]);
        }
        self.table(lines, "Snapshots", table);
    }

    fn networks(&self, lines: &mut Labels) {
        let name = |network: &VmNetwork| match is_known(&network.vni, self.known) {
            true => network.vni.clone(),
            false => self.paint.colour(Colour::Red, format!("{} [invalid]", network.vni)),
        };
        let names: Vec<String> = self.vm.networks.iter().map(name).collect();
        lines.line("Networks", if names.is_empty() { "N/A".to_owned() } else { names.join(", ") });
        if !self.addresses.is_empty() {
            lines.line("Addresses", self.addresses.join(", "));
        }
    }

    fn disks(&self, lines: &mut Labels) {
        let mut disks = Table::new().indented(WIDTH).columns(&[
            ("ID", 3),
            ("Type", 5),
            ("Name", 5),
            ("Dev", 4),
            ("Bus", 4),
            ("Requests (r/w)", 15),
            ("Data (r/w)", 11),
        ]);
        for (id, disk) in self.vm.disks.iter().enumerate() {
            disks.row(vec![
                id.to_string().into(),
                disk.r#type.as_str().into(),
                disk.name.as_str().into(),
                disk.dev.as_str().into(),
                disk.bus.as_str().into(),
                counts(disk.rd_req, disk.wr_req).into(),
                bytes(disk.rd_bytes, disk.wr_bytes).into(),
            ]);
        }
        self.table(lines, "Disks", disks);
    }

    fn interfaces(&self, lines: &mut Labels) {
        let mut interfaces = Table::new().indented(WIDTH).columns(&[
            ("ID", 3),
            ("Type", 5),
            ("Source", 7),
            ("Model", 6),
            ("MAC", 18),
            ("Data (r/w)", 11),
            ("Packets (r/w)", 14),
            ("Errors (r/w)", 13),
        ]);
        for (id, network) in self.vm.networks.iter().enumerate() {
            interfaces.row(vec![
                id.to_string().into(),
                network.r#type.as_str().into(),
                network.source.as_deref().unwrap_or(NONE).into(),
                network.model.as_deref().unwrap_or(NONE).into(),
                network.mac.as_deref().unwrap_or(NONE).into(),
                bytes(network.rd_bytes, network.wr_bytes).into(),
                counts(network.rd_packets, network.wr_packets).into(),
                counts(network.rd_errors, network.wr_errors).into(),
            ]);
        }
        self.table(lines, "Interfaces", interfaces);
    }

    fn controllers(&self, lines: &mut Labels) {
        let mut controllers =
            Table::new().indented(WIDTH).columns(&[("ID", 3), ("Type", 5), ("Model", 6)]);
        for (id, controller) in self.vm.controllers.iter().enumerate() {
            controllers.row(vec![
                id.to_string().into(),
                controller.r#type.as_str().into(),
                controller.model.as_deref().unwrap_or(NONE).into(),
            ]);
        }
        self.table(lines, "Controllers", controllers);
    }

    /// A table whose first line stands behind its label; `N/A` for one without rows.
    fn table(&self, lines: &mut Labels, label: &str, table: Table) {
        if table.is_empty() {
            return lines.line(label, "N/A");
        }
        let rendered = table.render(self.paint);
        let mut rows = rendered.lines();
        lines.line(label, rows.next().unwrap_or_default().trim_start());
        rows.for_each(|row| lines.block(row));
    }
}

/// Numbers of what was read and of what was written.
fn counts(read: i64, write: i64) -> String {
    format!("{}/{}", units::count(read), units::count(write))
}

/// Sizes of what was read and of what was written.
fn bytes(read: i64, write: i64) -> String {
    format!("{}/{}", units::bytes(read), units::bytes(write))
}

fn figure(figures: &std::collections::BTreeMap<String, f64>, name: &str) -> i64 {
    figures.get(name).map_or(0, |figure| *figure as i64)
}

/// A move that is under way or has failed; one that is done shows in the nodes.
fn migration(migration: &VmMigration) -> Option<String> {
    let VmMigration { from, to, percent, seconds, why, .. } = migration;
    let again = if why.is_empty() { String::new() } else { format!(" (before: {why})") };
    match migration.phase.as_str() {
        "waiting" => Some(format!("{from} to {to}: waits for {to}{again}")),
        "copying" => Some(format!("{from} to {to}: {percent}% after {seconds}s{again}")),
        "shutting-down" => Some(format!("{from} to {to}: shuts down, to be started there{again}")),
        "handed-over" => {
            Some(format!("{from} to {to}: is there, and goes on when {to} has taken it over"))
        }
        "failed" => Some(format!("{from} to {to} failed: {why}")),
        _ => None,
    }
}

fn method(method: Option<&str>) -> String {
    match method {
        Some("live") => "Live only".to_owned(),
        Some("shutdown") => "Shutdown only".to_owned(),
        Some(other) if !other.is_empty() && other != "none" => format!("{other} only"),
        _ => "Live, Shutdown".to_owned(),
    }
}

fn selector(selector: Option<&str>) -> &str {
    match selector {
        Some(selector) if !selector.is_empty() && selector != "none" => selector,
        _ => "Default",
    }
}

/// Number of lines that the definition has gained and lost since.
fn changes(snapshot: &VmSnapshot) -> String {
    let count = |sign: char, header: &str| {
        let lines = snapshot.xml_diff_lines.iter();
        lines.filter(|line| line.starts_with(sign) && !line.starts_with(header)).count()
    };
    format!("+{}/-{}", count('+', "+++"), count('-', "---"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm() -> Vm {
        let vms: Vec<Vm> = serde_json::from_str(include_str!("../../tests/wire/vms.json")).unwrap();
        vms.into_iter().next().unwrap()
    }

    fn text(vm: &Vm, long: bool) -> String {
        View { vm, known: None, addresses: &[], long, paint: Paint::OFF }.text()
    }

    #[test]
    fn the_daily_view() {
        crate::golden::check("vm-info.txt", &(text(&vm(), false)));
    }

    #[test]
    fn the_long_view() {
        crate::golden::check("vm-info-long.txt", &(text(&vm(), true)));
    }

    #[test]
    fn a_console_that_everybody_reaches_without_a_password_is_marked() {
        let mut vm = vm();
        vm.vnc.listen = Some("0.0.0.0".to_owned());
        for (password, shown) in
            [("", "0.0.0.0 (no password)\n"), (" passwd='s3cret'", "0.0.0.0\n")]
        {
            let graphics = format!("<graphics type='vnc' listen='0.0.0.0'{password}/>");
            vm.xml = format!("<domain><devices>{graphics}</devices></domain>");
            let text = text(&vm, false);
            assert!(text.contains(&format!("VNC listen:         {shown}")), "{text}");
        }
    }

    #[test]
    fn a_vm_of_which_nothing_is_known_is_shown_all_the_same() {
        let text = text(&Vm::default(), true);
        assert!(
            text.contains("Node limit:         Any\n")
                && text.contains("Migration method:   Live, Shutdown\n"),
            "{text}"
        );
    }

    #[test]
    fn a_state_from_the_future_has_a_colour_too() {
        let vm = Vm { state: "teleport".to_owned(), ..vm() };
        let view = View { vm: &vm, known: None, addresses: &[], long: false, paint: Paint::ON };
        assert!(view.text().contains("\x1b[94mteleport\x1b[0m"));
    }
}
