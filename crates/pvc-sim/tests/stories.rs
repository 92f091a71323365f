//! Every story below `scenarios` as a test of its own.
//!
//! Each is played by the program, in a process of its own: the same dice fall in every one.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Failed, Trial};
use pvc_sim::Story;

/// The program's exit code for a story that fails as is known.
const KNOWN: i32 = 3;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let folders = match only(&arguments, &top).map_or_else(|| pvc_sim::folders(&top), Ok) {
        Ok(folders) => folders,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::FAILURE;
        }
    };
    let trials = folders.into_iter().flat_map(trials).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The only folder to read when one story is asked for by its whole title, which begins with the
/// folder's name: whoever runs each in a process of its own need not read them all each time.
fn only(arguments: &Arguments, top: &Path) -> Option<Vec<PathBuf>> {
    let title = arguments.filter.as_deref().filter(|_| arguments.exact)?;
    let name = title.split('/').next()?;
    let folders = pvc_sim::folders(top).ok()?;
    let folder = folders.into_iter().find(|folder| folder.ends_with(name))?;
    Some(vec![folder])
}

/// Makes one trial for each story of the folder; one that fails if they cannot be read.
fn trials(folder: PathBuf) -> Vec<Trial> {
    match Story::read(&folder) {
        Ok(stories) => {
            let trial = |story: Story| {
                let folder = folder.clone();
                Trial::test(story.title(), move || play(&folder, &story))
            };
            stories.into_iter().map(trial).collect()
        }
        Err(why) => {
            let name = folder
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            vec![Trial::test(name, move || Err(Failed::from(why.clone())))]
        }
    }
}

fn play(folder: &Path, story: &Story) -> Result<(), Failed> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pvc-sim"));
    command.arg("story").arg(folder);
    if let Some(variant) = &story.variant {
        command.args(["--variant", variant]);
    }
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.code() {
        Some(0 | KNOWN) => Ok(()),
        _ => {
            let said = [output.stdout, output.stderr].concat();
            Err(String::from_utf8_lossy(&said).into_owned().into())
        }
    }
}
