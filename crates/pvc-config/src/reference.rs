//! The reference page of all keys, made from the table.

use std::fmt::Write;

use crate::keys::{KEYS, Key, Need, OldPlace};

const HEAD: &str = include_str!("reference.md");

/// `docs/manual/configuration.md`: every key with its type, default, requirement and older place.
pub fn reference_page() -> String {
    let mut page = HEAD.to_owned();
    let mut section = "";
    for key in KEYS.iter().filter(|key| key.old != OldPlace::Only) {
        let top = key.path.split('.').next().unwrap_or_default();
        if top != section {
            section = top;
            heading(&mut page, &format!("`{top}`"));
        }
        page.push_str(&row(key, key.path, &old_place(key)));
    }
    heading(&mut page, "Only in `pvcnoded.yaml`");
    for key in KEYS.iter().filter(|key| key.old == OldPlace::Only) {
        page.push_str(&row(key, "—", &format!("`pvc.{}`", key.path)));
    }
    page
}

fn heading(page: &mut String, title: &str) {
    let columns = "| key | value | default | required | in `pvcnoded.yaml` | meaning \
                   |\n|---|---|---|---|---|---|\n";
    write!(page, "\n## {title}\n\n{columns}").expect("writing to a string does not fail");
}

fn row(key: &Key, path: &str, old: &str) -> String {
    let path = if path == "—" { path.to_owned() } else { format!("`{path}`") };
    let spellings: Vec<_> = key.aliases.iter().map(|alias| format!(" or `{alias}`")).collect();
    let cells = [
        format!("{path}{}", spellings.concat()),
        key.kind.expected(),
        default(key),
        need(key),
        old.to_owned(),
        about(key),
    ];
    format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}

/// The sentences about the key, the last of which says whether it is one of ours.
fn about(key: &Key) -> String {
    match key.ours {
        true => format!("{} PVC 1.0.3 does not know this key.", key.about),
        false => key.about.to_owned(),
    }
}

fn default(key: &Key) -> String {
    let shown = |text: &str| format!("`{}`", text.replace("\"{node}\"", "this node"));
    match (key.default, key.alone) {
        (None, None) => "—".into(),
        (Some(both), None) => shown(both),
        (None, Some(alone)) => format!("standalone: {}", shown(alone)),
        (Some(cluster), Some(alone)) => format!("{}; standalone: {}", shown(cluster), shown(alone)),
    }
}

fn need(key: &Key) -> String {
    match key.need {
        Need::Always => "in each item".into(),
        Need::Cluster => "in a cluster".into(),
        Need::ClusterWith(flags) => format!("in a cluster with {}", any_of(flags)),
        Need::With(flag) => format!("with `{flag}`"),
        Need::Optional => "no".into(),
    }
}

/// The flags by their last words, which are unique.
fn any_of(flags: &[&str]) -> String {
    let words: Vec<_> = flags
        .iter()
        .filter_map(|path| path.rsplit('.').next())
        .map(|word| format!("`{word}`"))
        .collect();
    words.join(" or ")
}

fn old_place(key: &Key) -> String {
    let under_pvc = |paths: &[&str]| {
        let paths: Vec<_> = paths.iter().map(|path| format!("`pvc.{path}`")).collect();
        paths.join(" or ")
    };
    match key.old {
        OldPlace::At(paths) => under_pvc(paths),
        OldPlace::Maybe(paths) => format!("{} (may be left out)", under_pvc(paths)),
        OldPlace::Within(path) => format!("in `pvc.{path}`"),
        OldPlace::Same => "—".into(),
        OldPlace::Only => String::new(),
    }
}
