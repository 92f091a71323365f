//! Certificates that end: when that is a fault, how severe a one, and its words.
//!
//! A certificate ends at a moment of the wall clock, which may be wrong. What is decided here is
//! shown to people, and nothing else is done by it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use crate::NodeName;
use crate::time::utc;

const DAY: u64 = 24 * 60 * 60;

/// Seconds before the end of a certificate from which on that is a fault, and a worse one.
const SOON: u64 = 30 * DAY;
const NEAR: u64 = 7 * DAY;

/// Program that shows the certificates of a file to others, or knows others by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateUser {
    Api,
    /// PVC's daemons.
    ZookeeperClient,
    ZookeeperServer,
    Libvirt,
    /// QEMU, while it moves a guest.
    Qemu,
}

impl CertificateUser {
    /// Action without which the program goes on with the certificate that it has read before;
    /// `None` where it reads the file each time.
    fn after_renewal(self) -> Option<&'static str> {
        match self {
            CertificateUser::Api => Some("`systemctl reload pvcapid`"),
            CertificateUser::ZookeeperServer => {
                Some("a restart of the ZooKeeper servers, one by one")
            }
            CertificateUser::Libvirt => Some("`virt-admin server-update-tls libvirtd`"),
            CertificateUser::ZookeeperClient | CertificateUser::Qemu => None,
        }
    }
}

impl fmt::Display for CertificateUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CertificateUser::Api => "API",
            CertificateUser::ZookeeperClient => "client of ZooKeeper",
            CertificateUser::ZookeeperServer => "ZooKeeper server",
            CertificateUser::Libvirt => "libvirt",
            CertificateUser::Qemu => "QEMU",
        })
    }
}

/// File with certificates, as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFile {
    pub path: String,
    pub used_by: CertificateUser,
    /// Moments at which its certificates end, in the order of the file and in seconds since the
    /// epoch; or why nobody knows them, as a clause.
    pub ends: Result<Vec<u64>, String>,
}

/// Severity of what is wrong with a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Its end is within 30 days, or nobody knows it.
    Soon,
    /// Its end is within 7 days.
    Near,
    Ended,
}

impl Severity {
    /// Points that a node of so many with such a certificate takes from the cluster's 100. All
    /// nodes have theirs on one day as a rule, so that a month before the end they take no more
    /// than 20 together.
    pub fn delta(self, nodes: usize) -> i64 {
        match self {
            Severity::Soon => match nodes {
                0..=10 => 2,
                11..=20 => 1,
                _ => 0,
            },
            Severity::Near => 10,
            Severity::Ended => 50,
        }
    }

    /// Severity of an end at that moment, both in seconds since the epoch.
    fn of_end(now: u64, end: u64) -> Option<Severity> {
        match end.checked_sub(now) {
            None => Some(Severity::Ended),
            Some(0..=NEAR) => Some(Severity::Near),
            Some(..=SOON) => Some(Severity::Soon),
            Some(_) => None,
        }
    }
}

/// Trouble with the certificates of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFault {
    /// The worst of them all.
    pub severity: Severity,
    /// Severity of each file with trouble, by its path.
    pub files: BTreeMap<String, Severity>,
    pub message: String,
}

impl CertificateFault {
    /// Whether a file is worse than it was when `before` was so. The worst of them may be as it
    /// was: that another one has ended is news all the same.
    pub fn is_worse_than(&self, before: &BTreeMap<String, Severity>) -> bool {
        self.files.iter().any(|(path, severity)| before.get(path).is_none_or(|old| severity > old))
    }
}

/// Judges the files of `node` at `now`, in seconds since the epoch; `None` if nothing is wrong. The
/// message names the worst first.
pub fn fault(node: &NodeName, now: u64, files: &[CertificateFile]) -> Option<CertificateFault> {
    let with_trouble = |file: &CertificateFile| {
        let (severity, words) = trouble(now, file)?;
        Some((severity, words, file.used_by))
    };
    let mut troubles: Vec<(Severity, String, CertificateUser)> =
        files.iter().filter_map(with_trouble).collect();
    troubles.sort_by_key(|(severity, ..)| Reverse(*severity));
    let (severity, ..) = *troubles.first()?;
    let of_file = |file: &CertificateFile| Some((file.path.clone(), trouble(now, file)?.0));
    let of_files: BTreeMap<String, Severity> = files.iter().filter_map(of_file).collect();
    let is_known = |file: &CertificateFile| file.ends.as_ref().is_ok_and(|ends| !ends.is_empty());
    let is_end_near = files.iter().any(|file| is_known(file) && of_files.contains_key(&file.path));
    let mut steps: Vec<&str> = Vec::new();
    for step in troubles.iter().filter_map(|(.., used_by)| used_by.after_renewal()) {
        if !steps.contains(&step) {
            steps.push(step);
        }
    }
    let then = match steps.is_empty() {
        true => String::new(),
        false => format!(", then {}", steps.join(", ")),
    };
    let words: Vec<String> = troubles.into_iter().map(|(_, words, _)| words).collect();
    let words = words.join("; ");
    let to_do = match is_end_near {
        true => format!("Put renewed ones in their place{then}"),
        false => "Nobody knows when these end: look at them".to_owned(),
    };
    let message = format!("certificates of node {node}: {words}. {to_do}");
    Some(CertificateFault { severity, files: of_files, message })
}

/// Judges one file. A chain is as good as its weakest part. Of two authorities the old one counts,
/// too: until it is taken out of the file, some certificate may depend on it.
fn trouble(now: u64, file: &CertificateFile) -> Option<(Severity, String)> {
    let CertificateFile { path, used_by, ends } = file;
    let ends = match ends {
        Ok(ends) => ends,
        Err(why) => {
            return Some((
                Severity::Soon,
                format!("`{path}` ({used_by}) could not be judged: {why}"),
            ));
        }
    };
    let Some((index, end)) = ends.iter().copied().enumerate().min_by_key(|(_, end)| *end) else {
        return Some((Severity::Soon, format!("`{path}` ({used_by}) holds no certificate")));
    };
    let severity = Severity::of_end(now, end)?;
    let which = match ends.len() {
        1 => String::new(),
        all => format!(", certificate {} of {all}", index + 1),
    };
    let date = utc(end);
    let words = match end.saturating_sub(now) / DAY {
        _ if severity == Severity::Ended => format!("has ended on {date}"),
        0 => format!("ends on {date}, in less than a day"),
        1 => format!("ends on {date}, in 1 day"),
        days => format!("ends on {date}, in {days} days"),
    };
    Some((severity, format!("`{path}` ({used_by}{which}) {words}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-20 12:00:00 UTC.
    const NOW: u64 = 1_795_176_000;

    fn file(path: &str, used_by: CertificateUser, ends: &[u64]) -> CertificateFile {
        CertificateFile { path: path.to_owned(), used_by, ends: Ok(ends.to_vec()) }
    }

    fn fault_of(files: &[CertificateFile]) -> Option<CertificateFault> {
        fault(&NodeName::new("hv1"), NOW, files)
    }

    #[test]
    fn a_certificate_is_a_worse_fault_the_nearer_its_end_is() {
        for (end, expected) in [
            (NOW + 30 * DAY + 1, None),
            (NOW + 30 * DAY, Some((Severity::Soon, "ends on 2026-12-20 12:00:00 UTC, in 30 days"))),
            (
                NOW + 7 * DAY + 1,
                Some((Severity::Soon, "ends on 2026-11-27 12:00:01 UTC, in 7 days")),
            ),
            (NOW + 7 * DAY, Some((Severity::Near, "ends on 2026-11-27 12:00:00 UTC, in 7 days"))),
            (
                NOW + 2 * DAY - 1,
                Some((Severity::Near, "ends on 2026-11-22 11:59:59 UTC, in 1 day")),
            ),
            (
                NOW + DAY - 1,
                Some((Severity::Near, "ends on 2026-11-21 11:59:59 UTC, in less than a day")),
            ),
            (NOW, Some((Severity::Near, "ends on 2026-11-20 12:00:00 UTC, in less than a day"))),
            (NOW - 1, Some((Severity::Ended, "has ended on 2026-11-20 11:59:59 UTC"))),
            (0, Some((Severity::Ended, "has ended on 1970-01-01 00:00:00 UTC"))),
            (u64::MAX, None),
        ] {
            let found = fault_of(&[file("/own.pem", CertificateUser::Qemu, &[end])]);
            let expected = expected.map(|(severity, words)| {
                let message = format!(
                    "certificates of node hv1: `/own.pem` (QEMU) {words}. Put renewed ones in \
                     their place"
                );
                let files = [("/own.pem".to_owned(), severity)].into();
                CertificateFault { severity, files, message }
            });
            assert_eq!(found, expected, "{end}");
        }
    }

    #[test]
    fn a_month_before_the_end_all_nodes_together_take_no_more_than_20_points() {
        for nodes in 0_u8..=100 {
            let [soon, near, ended] = [Severity::Soon, Severity::Near, Severity::Ended]
                .map(|severity| severity.delta(usize::from(nodes)));
            assert!(soon * i64::from(nodes) <= 20, "{nodes}");
            assert!(soon < near && near < ended, "{nodes}");
        }
        assert_eq!([1, 10, 11, 20, 21].map(|nodes| Severity::Soon.delta(nodes)), [2, 2, 1, 1, 0]);
    }

    #[test]
    fn a_fault_is_worse_when_one_file_is_also_behind_a_worse_one() {
        let severities = |own: Severity| -> BTreeMap<String, Severity> {
            [("/ca.pem".to_owned(), Severity::Ended), ("/own.pem".to_owned(), own)].into()
        };
        let found = fault_of(&[
            file("/ca.pem", CertificateUser::Libvirt, &[NOW - DAY]),
            file("/own.pem", CertificateUser::Libvirt, &[NOW + DAY]),
        ])
        .unwrap();
        assert_eq!(found.files, severities(Severity::Near));
        for (before, is_worse) in [
            (severities(Severity::Soon), true),
            (severities(Severity::Near), false),
            (severities(Severity::Ended), false),
            ([("/ca.pem".to_owned(), Severity::Ended)].into(), true),
            (BTreeMap::new(), true),
        ] {
            assert_eq!(found.is_worse_than(&before), is_worse, "{before:?}");
        }
    }

    #[test]
    fn of_several_certificates_in_a_file_the_first_one_that_ends_counts() {
        let (soon, later) = (NOW + 20 * DAY, NOW + 1000 * DAY);
        for (ends, expected) in [
            (&[later, soon, later][..], Some("(libvirt, certificate 2 of 3) ends on 2026-12-10")),
            (&[soon, soon][..], Some("(libvirt, certificate 1 of 2) ends on 2026-12-10")),
            (&[soon][..], Some("(libvirt) ends on 2026-12-10")),
            (&[later, later][..], None),
        ] {
            let found = fault_of(&[file("/ca.pem", CertificateUser::Libvirt, ends)]);
            let message = found.map(|fault| fault.message).unwrap_or_default();
            let is_so = expected.map_or(message.is_empty(), |words| message.contains(words));
            assert!(is_so, "{ends:?}: {message}");
        }
    }

    #[test]
    fn a_fault_names_each_file_the_worst_first_and_what_is_to_be_done() {
        let unread = CertificateFile {
            path: "/unread.pem".to_owned(),
            used_by: CertificateUser::Api,
            ends: Err("it does not exist".to_owned()),
        };
        let found = fault_of(&[
            file("/good.pem", CertificateUser::ZookeeperServer, &[NOW + 31 * DAY]),
            unread,
            file("/ca.pem", CertificateUser::Libvirt, &[NOW + 3 * DAY]),
            file("/client.pem", CertificateUser::Libvirt, &[NOW - DAY]),
            file("/empty.pem", CertificateUser::Qemu, &[]),
        ]);
        let message = "certificates of node hv1: `/client.pem` (libvirt) has ended on 2026-11-19 \
                       12:00:00 UTC; `/ca.pem` (libvirt) ends on 2026-11-23 12:00:00 UTC, in 3 \
                       days; `/unread.pem` (API) could not be judged: it does not exist; \
                       `/empty.pem` (QEMU) holds no certificate. Put renewed ones in their \
                       place, then `virt-admin server-update-tls libvirtd`, \
                       `systemctl reload pvcapid`";
        let found = found.map(|fault| (fault.severity, fault.message));
        assert_eq!(found, Some((Severity::Ended, message.to_owned())));
        assert_eq!(fault_of(&[]), None);
    }

    #[test]
    fn what_cannot_be_read_is_no_worse_than_what_ends_in_a_month() {
        for ends in [Ok(Vec::new()), Err("it has more than 1048576 bytes".to_owned())] {
            let (path, used_by) = ("/own.pem".to_owned(), CertificateUser::Api);
            let found = fault_of(&[CertificateFile { path, used_by, ends }]).unwrap();
            assert_eq!(found.severity, Severity::Soon);
            assert!(!found.message.contains("renewed"), "{}", found.message);
        }
    }
}
