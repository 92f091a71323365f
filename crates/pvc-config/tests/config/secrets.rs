//! No secret in any message, whatever happened to the file.

use proptest::prelude::*;
use pvc_config::{Config, Secret};

use crate::{OLD_SAMPLE, SAMPLE};

/// The texts that are secrets in the samples.
const PLACES: [&str; 5] = [
    "change-this-password-too",
    "change-this-password-as-well",
    "change-this-password",
    "replace-this-with-a-long-random-text",
    "replace-this-with-another-long-random-text",
];

#[test]
fn a_secret_prints_as_stars() {
    let secret = Secret::new("hunter2");
    assert_eq!(format!("{secret} {secret:?} {secret:#?}"), "*** *** ***");
    assert_eq!(secret.reveal(), "hunter2");
}

#[test]
fn a_secret_in_the_wrong_place_is_not_shown() {
    let tokens = "  token:\n    - description: everyday use\n      token: \
                  replace-this-with-another-long-random-text\n";
    let credentials = "        database: pvcapi\n        username: pvcapi\n        password: \
                       change-this-password\n";
    let automirror = "#automirror:\n";
    let cases = [
        (tokens, "  token: SESAME\n"),
        (tokens, "  token:\n    - SESAME\n"),
        (tokens, "  token:\n    - SESAME: me\n"),
        (tokens, "  token:\n    SESAME: me\n"),
        (tokens, "  token: [[SESAME]]\n"),
        (tokens, "  token:\n    - token: [SESAME]\n"),
        (tokens, "  token:\n    - token: {key: SESAME}\n"),
        (credentials, "        SESAME\n"),
        (credentials, "        [pvcapi, SESAME]\n"),
        (automirror, "automirror: SESAME\n"),
        (automirror, "automirror:\n  destinations: {c2: {key: SESAME}}\n"),
    ];
    for (from, to) in cases {
        assert_eq!(SAMPLE.matches(from).count(), 1, "`{from}` must be in the sample once");
        let shown = match Config::parse(&SAMPLE.replace(from, to), "pvc.conf", "pvchv1") {
            Ok(config) => format!("{config:?} {}", pvc_config::render(&config.warnings)),
            Err(errors) => format!("{errors} {errors:?}"),
        };
        assert!(!shown.contains("SESAME"), "{to}: {shown}");
    }
}

/// A way to write a secret that may or may not be what the key wants, or be YAML at all.
fn written(style: usize, secret: &str) -> String {
    match style {
        0 => secret.to_owned(),
        1 => format!("\"{secret}\""),
        2 => format!("[{secret}]"),
        3 => format!("{{{secret}: 1}}"),
        4 => format!("{{token: {secret}}}"),
        5 => format!("!{secret}"),
        6 => format!("*{secret}"),
        7 => format!("&{secret}"),
        8 => format!("\"{secret}"),
        9 => format!("'{secret}' x"),
        10 => format!("%{secret}"),
        11 => format!("{secret}: x"),
        12 => format!("|\n  {secret}"),
        13 => format!("- {secret}"),
        14 => format!("!!int {secret}"),
        _ => format!("x #{secret}"),
    }
}

/// A slip of an editor.
#[derive(Debug, Clone)]
enum Slip {
    Drop(usize),
    Repeat(usize),
    Swap(usize),
    Indent(usize, usize),
    Join(usize),
    NoSpace(usize),
}

fn slip() -> impl Strategy<Value = Slip> {
    let line = 0usize..220;
    prop_oneof![
        line.clone().prop_map(Slip::Drop),
        line.clone().prop_map(Slip::Repeat),
        line.clone().prop_map(Slip::Swap),
        (line.clone(), 0usize..12).prop_map(|(line, indent)| Slip::Indent(line, indent)),
        line.clone().prop_map(Slip::Join),
        line.prop_map(Slip::NoSpace),
    ]
}

fn apply(lines: &mut Vec<String>, slip: &Slip) {
    match *slip {
        Slip::Drop(line) if line < lines.len() => drop(lines.remove(line)),
        Slip::Repeat(line) if line < lines.len() => lines.insert(line, lines[line].clone()),
        Slip::Swap(line) if line + 1 < lines.len() => lines.swap(line, line + 1),
        Slip::Indent(line, indent) if line < lines.len() => {
            lines[line] = " ".repeat(indent) + lines[line].trim_start();
        }
        Slip::Join(line) if line + 1 < lines.len() => {
            let next = lines.remove(line + 1);
            lines[line] += &next;
        }
        Slip::NoSpace(line) if line < lines.len() => lines[line] = lines[line].replace(": ", ":"),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_message_and_no_debug_output_holds_a_secret(
        old in any::<bool>(),
        core in "[A-Z]{12,20}",
        styles in prop::collection::vec(0usize..16, 5),
        odd in prop::collection::vec(0usize..5, 0..2),
        slips in prop::collection::vec(slip(), 0..4),
    ) {
        let secret = |n: usize| format!("{core}{n}");
        let mut text = if old { OLD_SAMPLE } else { SAMPLE }.to_owned();
        for (n, place) in PLACES.iter().enumerate() {
            let style = if odd.contains(&n) { styles[n] } else { 0 };
            text = text.replace(place, &written(style, &secret(n)));
        }
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        slips.iter().for_each(|slip| apply(&mut lines, slip));
        let text = lines.join("\n");

        let shown = match Config::parse(&text, "pvc.conf", "pvchv1") {
            Ok(config) => format!("{config:?} {config:#?} \
                                   {}", pvc_config::render(&config.warnings)),
            Err(errors) => format!("{errors} {errors:?}"),
        };

        prop_assert!(!shown.contains(&core), "{shown}\n---\n{text}");
    }
}
