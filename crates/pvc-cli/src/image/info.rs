use clap::Args;
use pvc_api_types::Image;

use super::Which;
use crate::context::Pvc;
use crate::format::{MaybeJson as _, TextFormat};
use crate::outcome::Outcome;
use crate::output::Paint;
use crate::output::labels::Labels;
use crate::storage::size;

/// Show an image in detail
#[derive(Debug, Args)]
pub struct Info {
    #[command(flatten)]
    image: Which,

    #[arg(short, long, value_enum, default_value_t = TextFormat::Pretty, help = "How to print it")]
    format: TextFormat,
}

impl Info {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let image = self.image.find(pvc)?;
        if self.format.print(pvc, &image) {
            return Ok(());
        }
        let text = view(&image, pvc.out.paint());
        pvc.out.text(text);
        Ok(())
    }
}

fn view(image: &Image, paint: Paint) -> String {
    let mut lines = Labels::new(paint, 20);
    lines.heading("Image information:");
    lines.blank();
    lines.line("Name", &image.name);
    lines.line("Pool", &image.pool);
    lines.line("Volume", &image.volume);
    lines.line("Size", size::exact(&image.size, image.size_bytes));
    lines.finish()
}
