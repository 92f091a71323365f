use clap::Args;
use pvc_api_types::operations::node::{GetNodeNodeLog, Lines};
use pvc_api_types::param::Or;
use pvc_client::{Client, Error};

use super::Which;
use crate::context::Pvc;
use crate::log;
use crate::outcome::Outcome;

/// Show the log of a node's daemon
///
/// The last lines are shown in a pager (`$PAGER`, or `less`) if the output is a
/// terminal. With `--follow` new lines are printed as they come, until Ctrl-C.
#[derive(Debug, Args)]
pub struct Log {
    #[command(flatten)]
    node: Which,

    /// Number of lines [default: 1000, or 10 with --follow]
    #[arg(short, long)]
    lines: Option<usize>,

    /// Go on with new lines as they come
    #[arg(short, long)]
    follow: bool,
}

impl Log {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let node = self.node.name();
        let client = pvc.take_client()?;
        if self.follow {
            let lines = self.lines.unwrap_or(log::FOLLOWED);
            return log::follow(pvc, lines, &|lines| end_of_log(&client, &node, lines));
        }
        let lines = self.lines.unwrap_or(log::VIEWED);
        let text = end_of_log(&client, &node, lines)?;
        log::view(pvc, &log::tail(&text, lines))
    }
}

/// The last lines.
fn end_of_log(client: &Client, node: &str, lines: usize) -> Result<String, Error> {
    let lines = Lines { lines: Or(u32::try_from(lines).unwrap_or(u32::MAX)) };
    Ok(client.read(GetNodeNodeLog, [node], &lines)?.read()?.data)
}
