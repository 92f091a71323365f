//! Output of a command: one locked writer, colours only where somebody can see them.

pub mod json;
pub mod labels;
pub mod paint;
pub mod table;
mod terminal;
pub mod units;

use std::io::{ErrorKind, IsTerminal, Write};

pub use paint::{Colour, Paint};
pub use table::{Cell, Table, harmless};
pub use terminal::{calm, colour_code};

use crate::outcome::Exit;

/// Standard output. Data goes here and nothing else does.
///
/// A reader that goes away early (`pvc vm list | head -1`) ends the program quietly: that is no
/// mistake of anybody.
pub struct Output {
    writer: Box<dyn Write>,
    paint: Paint,
    terminal: bool,
}

impl Output {
    /// The standard output of this process; `silent` swallows everything.
    pub fn stdout(silent: bool, force_colour: bool) -> Self {
        let stdout = std::io::stdout();
        let terminal = stdout.is_terminal();
        let writer: Box<dyn Write> = if silent {
            Box::new(std::io::sink())
        } else {
            Box::new(std::io::BufWriter::with_capacity(1 << 16, stdout.lock()))
        };
        Self { writer, paint: Paint::choose(force_colour, terminal), terminal }
    }

    pub fn paint(&self) -> Paint {
        self.paint
    }

    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Prints text and a newline.
    pub fn line(&mut self, text: impl AsRef<str>) {
        self.text(text);
        self.text("\n");
    }

    /// Prints text. Whoever wrote it, a terminal obeys nothing of it but our colours.
    pub fn text(&mut self, text: impl AsRef<str>) {
        let text = calm(text.as_ref(), self.paint.is_on());
        let outcome = self.writer.write_all(text.as_bytes());
        quit_if_closed(outcome);
    }

    /// Prints a text that others read, such as a file, as it is; to a terminal with its colours
    /// alone.
    pub fn document(&mut self, text: impl AsRef<str>) {
        let text = match self.terminal {
            true => calm(text.as_ref(), true),
            false => text.as_ref().into(),
        };
        let outcome = self.writer.write_all(text.as_bytes());
        quit_if_closed(outcome);
    }

    pub fn flush(&mut self) {
        let outcome = self.writer.flush();
        quit_if_closed(outcome);
    }
}

/// Prints a line to standard error, of which a terminal obeys nothing.
pub fn aside(text: impl AsRef<str>) {
    let _ = writeln!(std::io::stderr(), "{}", calm(text.as_ref(), false));
}

fn quit_if_closed(outcome: std::io::Result<()>) {
    match outcome {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => end(Exit::Success),
        Err(error) => {
            let _ = writeln!(
                std::io::stderr(),
                "error: cannot write to standard output: {}",
                crate::outcome::plain_io(&error)
            );
            end(Exit::Failed);
        }
    }
}

fn end(exit: Exit) -> ! {
    std::process::exit(exit as i32)
}

/// The width to fit text into: the terminal's less one, 80 without a terminal.
pub fn width() -> usize {
    match terminal_size::terminal_size() {
        Some((terminal_size::Width(columns), _)) if columns > 1 => usize::from(columns) - 1,
        _ => 80,
    }
}
