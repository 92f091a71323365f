//! `cargo xtask`: everything that is neither cargo nor nextest.
//!
//! It depends on almost nothing, so that it builds in seconds: what needs the project's own code is
//! asked of the programs that have it.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "nothing is simulated here")]

mod advisories;
mod architecture;
mod bench;
mod check;
mod dependencies;
mod generated;
mod lab;
mod mutants;
mod package;
mod run;
mod sim;
mod words;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  advisories [CHECKOUT]             write docs/dev/advisories.toml again from RustSec's database, \
  which is fetched unless CHECKOUT has it; see docs/dev/dependencies.md
  bench [--quick] [--json FILE] …   build the release programs and measure them; see \
  docs/dev/benchmarks.md
  check                             formatting, clippy, words, dependency policy, generated files, \
  the rules
  deny                              licences, bans, sources and advisories of what we depend on; \
  see docs/dev/dependencies.md
  generate                          write every generated file again: the two below
  config                            write docs/manual/configuration.md from the table of keys
  openapi                           write docs/api/openapi.json from the routes
  lab COMMAND …                     three real nodes on this machine; see docs/dev/lab.md
  mutants [--file FILE]… [--shard K/N]
                                    does a test fail for each small change of the safety rules? \
                                    see CONTRIBUTING.md
  package [--debug] [--no-build] [--revision N] [--output DIRECTORY]
                                    make Debian packages in target/debian; see \
                                    docs/manual/install.md
  sim [--seeds N] [--seed S] [--hours H] …
                                    clusters in a simulated world, from seeds; see \
                                    docs/dev/simulation.md
  stories [FOLDER]… [--jobs N]      stories of a cluster in that world; see docs/dev/scenarios.md
  words                             doc comments, names, long lines, and the code map of \
                                    ARCHITECTURE.md; see docs/dev/words.md
  man [DIRECTORY]                   write the man pages of `pvc` to target/man
  completions [DIRECTORY]           write the shell completions of `pvc` to target/completions
";

/// Exit code of a program that SIGPIPE has ended, as a shell gives it: 128 and the signal.
const BROKEN_PIPE: i32 = 128 + 13;

/// Exit code if the command line makes no sense.
const USAGE_ERROR: u8 = 2;

/// Ends the process when nobody reads: whoever stops reading has what he wants:
/// `cargo xtask lab status | head` is no bug of ours.
fn end_when_nobody_reads() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str().is_some_and(|text| text.starts_with("failed printing to stdout"))
        {
            std::process::exit(BROKEN_PIPE);
        }
        usual(panic);
    }));
}

fn main() -> ExitCode {
    end_when_nobody_reads();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("--help", [].as_slice()),
    };
    let done = match (command, rest) {
        ("advisories", []) => dependencies::renew_advisories(None),
        ("advisories", [checkout]) => dependencies::renew_advisories(Some(checkout)),
        ("bench", rest) => bench::run(rest),
        ("check", []) => check::run(),
        ("deny", []) => dependencies::run(),
        ("generate", []) => generated::config().and_then(|()| generated::openapi()),
        ("config", []) => generated::config(),
        ("openapi", []) => generated::openapi(),
        ("lab", rest) => lab::run(rest),
        ("mutants", rest) => mutants::run(rest),
        ("package", rest) => package::run_with(rest),
        ("sim", rest) => sim::seeds(rest),
        ("stories", rest) => sim::stories(rest),
        ("words", []) => words::run(),
        ("man", []) => generated::man("target/man"),
        ("man", [directory]) => generated::man(directory),
        ("completions", []) => generated::completions("target/completions"),
        ("completions", [directory]) => generated::completions(directory),
        ("-h" | "--help" | "help", _) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("error: `{}` is not something xtask does\n\n{USAGE}", arguments.join(" "));
            return ExitCode::from(USAGE_ERROR);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
