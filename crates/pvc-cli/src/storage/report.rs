//! Text of a report of the storage.

use pvc_api_types::CephReport;
use pvc_client::Payload;

use super::age;
use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::output::{Paint, harmless};

/// Prints the report of an answer below its heading, and says it if it is old.
pub fn print(pvc: &mut Pvc, what: &str, answer: &Payload<CephReport>) -> Outcome {
    let report = answer.read()?;
    let age = age::of(answer, report.answered_at);
    let text = text(what, &report, age, pvc.out.paint());
    pvc.out.text(text);
    pvc.out.flush();
    age::note(pvc, what, age);
    Ok(())
}

/// The report below a heading that says whose words it is, and how many seconds old.
fn text(what: &str, report: &CephReport, age: Option<u64>, paint: Paint) -> String {
    let node = harmless(&report.primary_node, &[]);
    let age = age.map(|age| format!(", {}", age::words(age))).unwrap_or_default();
    let heading = format!("{what} (primary node {node}{age}):");
    let words = match report.ceph_data.as_str() {
        "" => "Nothing has been collected yet: the primary node does so with each keepalive.",
        words => words,
    };
    format!("{}\n\n{}\n", paint.bold(&heading), harmless(words, &['\n', '\t']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(words: &str) -> CephReport {
        CephReport {
            r#type: "status".to_owned(),
            primary_node: "hv1".to_owned(),
            ceph_data: words.to_owned(),
            answered_at: None,
        }
    }

    #[test]
    fn a_report_is_printed_below_its_heading() {
        let words = "  cluster:\n    id:     f5a0b2f6-6f2b-4a52-9a4e-3b0c5a5d8b11\n    health: \
                     HEALTH_OK\n \n  services:\n    mon: 3 daemons, quorum hv1,hv2,hv3 (age 3d)";
        let text = text("Storage status", &report(words), Some(12), Paint::OFF);
        crate::golden::check("storage-status.txt", &text);
    }

    #[test]
    fn a_storage_that_nobody_has_looked_at_and_a_hostile_one_are_shown_as_such() {
        let empty = text("Storage utilization", &report(""), None, Paint::OFF);
        assert!(empty.starts_with("Storage utilization (primary node hv1):\n"), "{empty}");
        assert!(empty.contains("Nothing has been collected yet"), "{empty}");
        let hostile = text("Storage status", &report("\x1b]0;x\x07"), None, Paint::OFF);
        assert!(!hostile.contains(['\x1b', '\x07']), "{hostile}");
    }
}
