use clap::Args;
use pvc_api_types::Pool;
use pvc_api_types::operations::storage::GetStorageCephPoolPool;

use super::Which;
use crate::context::Pvc;
use crate::format::{InfoFormat, MaybeJson};
use crate::outcome::Outcome;
use crate::output::Paint;
use crate::output::labels::Labels;
use crate::output::units;

/// Show a pool in detail
///
/// `long` shows the objects and the traffic as well.
#[derive(Debug, Args)]
pub struct Info {
    #[command(flatten)]
    pool: Which,

    #[arg(short, long, value_enum, default_value_t = InfoFormat::Pretty, help = "How to print it")]
    format: InfoFormat,
}

impl Info {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let pool = pvc.client()?.read_only(GetStorageCephPoolPool, [&self.pool.name], "pool")?;
        if self.format.print_payload(pvc, &pool)? {
            return Ok(());
        }
        let text = view(&pool.read()?, self.format == InfoFormat::Long, pvc.out.paint());
        pvc.out.text(text);
        Ok(())
    }
}

const WIDTH: usize = 20;

fn view(pool: &Pool, long: bool, paint: Paint) -> String {
    let number =
        |name: &str| pool.stats.get(name).and_then(serde_json::Value::as_f64).unwrap_or(0.0);
    let whole = |name: &str| number(name) as i64;
    let bytes = |name: &str| units::bytes(whole(name));
    let mut lines = Labels::new(paint, WIDTH);
    lines.heading("Pool information:");
    lines.blank();
    lines.line("Name", &pool.name);
    lines.line("ID", whole("id").to_string());
    lines.line("Tier", &pool.tier);
    lines.line("Placement groups", &pool.pgs);
    lines.line("Volumes", pool.volume_count.to_string());
    lines.blank();
    lines.line("Stored", bytes("stored_bytes"));
    let share = units::percent(number("used_percent") * 100.0);
    lines.line("Used", format!("{} ({share})", bytes("used_bytes")));
    lines.line("Free", bytes("free_bytes"));
    if long {
        lines.blank();
        for (label, figure) in [
            ("Objects", "num_objects"),
            ("Clones", "num_object_clones"),
            ("Copies", "num_object_copies"),
            ("Degraded", "num_objects_degraded"),
            ("Missing", "num_objects_missing_on_primary"),
            ("Unfound", "num_objects_unfound"),
        ] {
            lines.line(label, whole(figure).to_string());
        }
        lines.blank();
        let traffic = |operations: &str, amount: &str| {
            format!("{} operations, {}", units::objects(whole(operations)), bytes(amount))
        };
        lines.line("Read", traffic("read_ops", "read_bytes"));
        lines.line("Written", traffic("write_ops", "write_bytes"));
    }
    lines.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_views() {
        let pools: Vec<Pool> =
            serde_json::from_str(include_str!("../../../tests/wire/pools.json")).unwrap();
        let [first, second] =
            [(0, true), (1, false)].map(|(at, b)| view(&pools[at], b, Paint::OFF));
        let text = format!("{first}\n{second}");
        crate::golden::check("pool-info.txt", &text);
    }
}
