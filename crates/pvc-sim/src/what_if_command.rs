//! `pvc-sim what-if`: what happens if a node of a recorded cluster dies, as JSON for `pvc cluster
//! what-if`.

use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use pvc_api_types::{WhatIfRefusal, WhatIfReply};
use pvc_model::fence::Rules;
use pvc_sim::{Death, Log, Question};

use crate::{FAILED, SUCCEEDED};

pub const USAGE: &str = "\
       pvc-sim what-if FILE --node NODE [--death power|hang] [--keepalive-interval S]
                       [--fence-intervals N] [--log] [--debug]
                                              what happens if that node dies, as JSON; FILE is what
                                              `pvc cluster backup` wrote, `-` standard input
";

/// Real time that a simulation may take until it is taken for one that hangs.
const TIME_LIMIT: Duration = Duration::from_secs(180);

struct Asked {
    file: String,
    node: String,
    death: Death,
    rules: Rules,
    log: bool,
    debug: bool,
}

fn parse(arguments: &[String]) -> Result<Asked, String> {
    let (mut file, mut node) = (None, None);
    let rules = Rules {
        keepalive_interval: Duration::from_secs(5),
        fence_intervals: 6,
        recover_after_success: true,
    };
    let mut asked = Asked {
        file: String::new(),
        node: String::new(),
        death: Death::Power,
        rules,
        log: false,
        debug: false,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value =
            || rest.next().cloned().ok_or_else(|| format!("`{argument}` needs a value"));
        match argument.as_str() {
            "--node" => node = Some(value()?),
            "--death" => asked.death = death(&value()?)?,
            "--keepalive-interval" => {
                let seconds = number(&value()?)?;
                if seconds == 0 {
                    return Err("`--keepalive-interval` must be at least 1 s".to_owned());
                }
                asked.rules.keepalive_interval = Duration::from_secs(seconds.into());
            }
            "--fence-intervals" => asked.rules.fence_intervals = number(&value()?)?,
            "--log" => asked.log = true,
            "--debug" => asked.debug = true,
            option if option.starts_with("--") => return Err(format!("`{option}` is no option")),
            path if file.is_none() => file = Some(path.to_owned()),
            more => return Err(format!("`{more}` is too much: one file is enough")),
        }
    }
    asked.file = file.ok_or("which backup? `pvc-sim what-if FILE --node NODE`")?;
    asked.node = node.ok_or("which node? `--node NODE`")?;
    Ok(asked)
}

fn death(word: &str) -> Result<Death, String> {
    let found = Death::ALL.into_iter().find(|death| death.as_str() == word);
    found.ok_or_else(|| format!("`{word}` is no way to die: `power` or `hang`"))
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

/// Answers in this process. Ends it.
pub fn what_if(arguments: &[String]) -> Result<ExitCode, String> {
    let asked = parse(arguments)?;
    let backup = read(&asked.file).map_err(|error| format!("`{}`: {error}", asked.file))?;
    let question = Question { backup, node: asked.node, death: asked.death, rules: asked.rules };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|error| error.to_string())?;
    give_up_in_time();
    let answer = runtime.block_on(async {
        let log = Log::new(asked.log);
        log.capture_daemons(if asked.debug { tracing::Level::DEBUG } else { tracing::Level::INFO });
        pvc_sim::capture_panics(&log);
        pvc_sim::what_if(&question, &log).await
    });
    let failed = answer.is_err();
    say(match answer {
        Ok(answer) => WhatIfReply { answer: Some(answer), refused: None },
        Err(refused) => WhatIfReply { answer: None, refused: Some(refused) },
    });
    // What was left behind in the world waits for ever; there is nothing to be put in order.
    std::process::exit(if failed { FAILED } else { SUCCEEDED });
}

fn say(reply: WhatIfReply) {
    say!("{}", serde_json::to_string(&reply).expect("texts and numbers are JSON"));
}

fn read(file: &str) -> std::io::Result<String> {
    if file != "-" {
        return std::fs::read_to_string(file);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map(|_| text)
}

/// Ends this process with a word if the simulation hangs.
fn give_up_in_time() {
    std::thread::spawn(|| {
        std::thread::sleep(TIME_LIMIT);
        let message =
            format!("the simulation has not come to an end within {} s", TIME_LIMIT.as_secs());
        let hint = "please report it with the backup, without the passwords in it".to_owned();
        let refused = WhatIfRefusal { not_found: false, message, hint };
        say(WhatIfReply { answer: None, refused: Some(refused) });
        std::process::exit(FAILED);
    });
}
