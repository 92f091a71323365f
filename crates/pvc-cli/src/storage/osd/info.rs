use clap::Args;
use pvc_api_types::Osd;
use pvc_api_types::operations::osd::GetStorageCephOsdOsdid;

use super::list::size;
use super::{Which, figure, is, number};
use crate::context::Pvc;
use crate::format::{InfoFormat, MaybeJson};
use crate::outcome::Outcome;
use crate::output::labels::Labels;
use crate::output::{Paint, harmless, units};

/// Show an OSD in detail
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  pvc storage osd info 4")]
pub struct Info {
    #[command(flatten)]
    osd: Which,

    #[arg(short, long, value_enum, default_value_t = InfoFormat::Pretty, help = "How to print it")]
    format: InfoFormat,
}

impl Info {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let osd = pvc.client()?.read_only(GetStorageCephOsdOsdid, [&self.osd.osd], "OSD")?;
        if self.format.print_payload(pvc, &osd)? {
            return Ok(());
        }
        let text = view(&osd.read()?, pvc.out.paint());
        pvc.out.text(text);
        Ok(())
    }
}

const WIDTH: usize = 18;

fn view(osd: &Osd, paint: Paint) -> String {
    let yes = |state: &str| if is(osd, state) { "Yes" } else { "No" };
    let text = |text: &str| harmless(text, &[]);
    let split = if osd.is_split { " (shared by several OSDs)" } else { "" };
    let mut lines = Labels::new(paint, WIDTH);
    lines.heading("OSD information:");
    lines.blank();
    lines.line("ID", text(&osd.id));
    lines.line("Node", text(&osd.node));
    lines.line("Device", format!("{}{split}", text(&osd.device)));
    lines.line("Database", text(&osd.db_device));
    lines.line("FSID", text(&osd.fsid));
    lines.line("Class", text(&figure(osd, "class")));
    lines.blank();
    lines.line("Up", yes("up"));
    lines.line("In", yes("in"));
    lines.line("State", text(&figure(osd, "state")));
    lines.line("Weight", figure(osd, "weight"));
    lines.line("Reweight", figure(osd, "reweight"));
    lines.line("Placement groups", figure(osd, "pgs"));
    lines.blank();
    lines.line("Size", number(osd, "kb", size));
    lines.line("Used", number(osd, "kb_used", size));
    lines.line("Free", number(osd, "kb_avail", size));
    lines.line("Utilization", number(osd, "utilization", units::percent));
    lines.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view() {
        let osds: Vec<Osd> =
            serde_json::from_str(include_str!("../../../tests/wire/osds.json")).unwrap();
        let texts: Vec<String> = osds.iter().map(|osd| view(osd, Paint::OFF)).collect();
        crate::golden::check("osd-info.txt", &texts.join("\n"));
    }
}
