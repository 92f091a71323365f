//! `docs/dev/scenarios.md` says what is so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The lessons of `lessons.md` that the simulated world can have to do with: how many rows each
/// part has.
const ROWS: [(char, usize); 8] =
    [('A', 29), ('B', 18), ('C', 16), ('D', 16), ('E', 8), ('F', 16), ('G', 12), ('H', 15)];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    fs::read_to_string(top().join("docs/dev/scenarios.md")).unwrap()
}

#[test]
fn the_page_shows_every_sentence() {
    let page = page();
    for (mark, sentences) in ["actions", "facts"].into_iter().zip(pvc_sim::sentences()) {
        let wanted = format!("<!-- {mark} -->\n```\n{sentences}\n```\n");
        assert!(
            page.contains(&wanted),
            "docs/dev/scenarios.md: after `<!-- {mark} -->` should be:\n{wanted}"
        );
    }
}

#[test]
fn the_pages_example_is_a_story_that_is_true() {
    let page = page();
    let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("README.md"), "The example of the page.\n").unwrap();
    fs::write(folder.path().join("scenario.toml"), example).unwrap();
    let played = Command::new(env!("CARGO_BIN_EXE_pvc-sim"))
        .arg("story")
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(
        played.status.success(),
        "{}",
        String::from_utf8_lossy(&[played.stdout, played.stderr].concat())
    );
}

/// The rows of the table of lessons: the number, and what shows it.
fn lessons(page: &str) -> BTreeMap<String, String> {
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, number, _, shown, _] = cells[..] else { return None };
        let (part, digits) = (number.chars().next()?, number.get(1..)?);
        let is_row = part.is_ascii_uppercase() && digits.parse::<usize>().is_ok();
        is_row.then(|| (number.to_owned(), shown.to_owned()))
    });
    rows.collect()
}

/// Lists what is in backticks.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The names of all functions of the workspace's sources.
fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
            found.extend(names.map(str::to_owned));
        }
    }
}

#[test]
fn every_lesson_is_shown_somewhere_and_what_shows_it_exists() {
    let page = page();
    let lessons = lessons(&page);
    let stories: BTreeSet<String> = fs::read_dir(top().join("scenarios"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut tests = BTreeSet::new();
    for folder in ["crates", "bin", "tests"] {
        functions(&top().join(folder), &mut tests);
    }
    for (part, rows) in ROWS {
        for row in 1..=rows {
            let number = format!("{part}{row}");
            let shown =
                lessons.get(&number).unwrap_or_else(|| panic!("lesson {number} has no row"));
            assert!(!shown.is_empty(), "lesson {number} is shown nowhere");
            for name in names(shown) {
                let exists =
                    if name.contains('-') { stories.contains(name) } else { tests.contains(name) };
                assert!(exists, "lesson {number}: there is no `{name}`");
            }
        }
    }
    let rows: usize = ROWS.iter().map(|(_, rows)| rows).sum();
    assert_eq!(lessons.len(), rows, "a row that is none of a lesson");
}
