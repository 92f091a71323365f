//! fio: how it is asked for a test, and what is kept of its report.

use std::time::Duration;

use pvc_model::benchmark::{LARGEST_BLOCK_BYTES, Load, MOST_REPORT_BYTES, Test};
use pvc_ports::{Command, ExecError, MeasuredPlace, Output};
use serde_json::{Map, Value, json};

/// Time that fio gets beyond that of the test, to open the volume and to end.
const BEYOND: Duration = Duration::from_secs(120);

/// The largest report that is read, in bytes. It has some ten thousand, and is read in less than a
/// millisecond: the runtime is not held up.
const MOST_READ_BYTES: usize = 256 << 10;

/// The command that does the test for this time, on so many bytes from the beginning on.
pub(super) fn test(test: Test, bytes: u64, place: &MeasuredPlace, time: Duration) -> Command {
    let mut args = vec![
        format!("--name={}", test.name()),
        format!("--rw={}", test.pattern()),
        format!("--bs={}", test.block()),
        format!("--iodepth={}", test.depth()),
        format!("--runtime={}", time.as_secs()),
        format!("--size={bytes}"),
    ];
    let fixed = "--time_based --randrepeat=1 --group_reporting";
    args.extend(fixed.split(' ').map(str::to_owned));
    command(args, place, time)
}

/// The command that writes so many bytes from the beginning on, or those for which there is time.
pub(super) fn fill(bytes: u64, place: &MeasuredPlace, time: Duration) -> Command {
    let args = vec![
        "--name=fill".to_owned(),
        "--rw=write".to_owned(),
        format!("--bs={}", LARGEST_BLOCK_BYTES.min(bytes)),
        "--iodepth=64".to_owned(),
        format!("--runtime={}", time.as_secs()),
        format!("--size={bytes}"),
        "--end_fsync=1".to_owned(),
    ];
    command(args, place, time)
}

fn command(mut args: Vec<String>, place: &MeasuredPlace, time: Duration) -> Command {
    // In one process: it ends when that is killed.
    let fixed = "--thread --numjobs=1 --output-format=json";
    args.extend(fixed.split(' ').map(str::to_owned));
    let mut env = Vec::new();
    match place {
        MeasuredPlace::Rbd { image, user, config, keyring } => {
            args.extend([
                "--ioengine=rbd".to_owned(),
                "--direct=1".to_owned(),
                format!("--clientname={user}"),
                format!("--pool={}", image.pool),
                format!("--rbdname={}", image.volume),
            ]);
            // The engine has no option for these; librados asks the environment.
            env.push(("CEPH_CONF".to_owned(), config.display().to_string()));
            env.push(("CEPH_KEYRING".to_owned(), keyring.display().to_string()));
        }
        MeasuredPlace::File { path, is_direct } => {
            let engine = if *is_direct { "libaio" } else { "psync" };
            args.extend([
                format!("--ioengine={engine}"),
                format!("--direct={}", u8::from(*is_direct)),
                // A `:` would part two files.
                format!("--filename={}", path.display().to_string().replace(':', "\\:")),
            ]);
        }
    }
    let deadline = time + BEYOND;
    Command { program: "fio".to_owned(), args, env, stdin: None, deadline }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FioError {
    #[error(transparent)]
    NotRun(#[from] ExecError),
    #[error("`fio` failed: {said}")]
    Failed { said: String },
    #[error("the report of `fio` is not understood: {why}")]
    NotUnderstood { why: String },
}

fn not_understood(why: &str) -> FioError {
    FioError::NotUnderstood { why: why.to_owned() }
}

/// Reads the report of fio.
fn printed(output: &Output) -> Result<Value, FioError> {
    if output.code != Some(0) {
        return Err(FioError::Failed { said: last_words(output) });
    }
    if output.stdout.len() > MOST_READ_BYTES {
        return Err(not_understood("it is too long"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    // Warnings stand before it.
    let start = text.find('{').ok_or_else(|| not_understood("it has no JSON in it"))?;
    let printed: Value = serde_json::from_str(&text[start..])
        .map_err(|error| FioError::NotUnderstood { why: error.to_string() })?;
    let job = printed.pointer("/jobs/0").ok_or_else(|| not_understood("it has no `jobs`"))?;
    match job["error"].as_i64().filter(|error| *error != 0) {
        Some(error) => Err(FioError::Failed { said: format!("error {error} in the test") }),
        None => Ok(printed),
    }
}

/// Bytes that fio has written.
pub(super) fn written(output: &Output) -> Result<u64, FioError> {
    let printed = printed(output)?;
    let bytes = printed["jobs"][0]["write"]["io_bytes"].as_u64();
    bytes.ok_or_else(|| not_understood("`io_bytes` is missing"))
}

/// Reads what fio has printed, and returns what is kept of it as JSON text, with the load of the
/// node beside it.
pub(super) fn report(test: Test, output: &Output, load: &Load) -> Result<String, FioError> {
    let printed = printed(output)?;
    let job = &printed["jobs"][0];
    let figures = &job[if test.is_read() { "read" } else { "write" }];
    for needed in ["bw_bytes", "iops", "io_bytes"] {
        let is_sound = figures[needed].as_f64().is_some_and(|figure| figure >= 0.0);
        if !is_sound {
            return Err(not_understood(&format!("`{needed}` is missing")));
        }
    }
    let kept = merged(&printed, job, load).to_string();
    if kept.len() > MOST_REPORT_BYTES {
        return Err(not_understood("what is to be kept of it is too long"));
    }
    Ok(kept)
}

fn last_words(output: &Output) -> String {
    let (errors, printed) =
        (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    let mut lines = printed.lines().chain(errors.lines()).map(str::trim);
    let said = lines.rfind(|line| line.starts_with("fio:"));
    let said = said.or_else(|| errors.lines().map(str::trim).rfind(|line| !line.is_empty()));
    match (said, output.code) {
        (Some(line), _) => line.trim_start_matches("fio:").trim().chars().take(300).collect(),
        (None, Some(code)) => format!("it ended with status {code}"),
        (None, None) => "it was ended by a signal".to_owned(),
    }
}

/// Members of a job in a report that are kept as they are.
const OF_JOB: [&str; 8] =
    ["jobname", "groupid", "error", "elapsed", "job_runtime", "usr_cpu", "sys_cpu", "ctx"];

/// Shares of requests by their latency: those without any are left out.
const BUCKETS: [&str; 3] = ["latency_ns", "latency_us", "latency_ms"];

fn merged(printed: &Value, job: &Value, load: &Load) -> Value {
    let mut kept: Map<String, Value> = OF_JOB
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), scalar(job.get(*name)?)?)))
        .collect();
    for direction in ["read", "write"] {
        kept.insert(direction.to_owned(), direction_of(&job[direction]));
    }
    for name in BUCKETS {
        kept.insert(name.to_owned(), figures(&job[name], |figure| figure != 0.0));
    }
    let top = ["fio version", "timestamp", "time"];
    let top = top.iter().filter_map(|name| Some((*name, scalar(printed.get(*name)?)?)));
    let mut merged = Map::new();
    merged.insert(
        "avg_cpu_util_percent".to_owned(),
        json!({ "total": load.cpu_total, "ceph-mon": load.cpu_mon, "ceph-osd": load.cpu_osd }),
    );
    merged.insert(
        "avg_memory_util_percent".to_owned(),
        json!({
            "total": load.memory_total,
            "ceph-mon": load.memory_mon,
            "ceph-osd": load.memory_osd,
        }),
    );
    merged.insert(
        "avg_network_util_bps".to_owned(),
        json!({
            "sent": load.sent_bps,
            "recv": load.received_bps,
            "total": load.sent_bps + load.received_bps,
        }),
    );
    merged.extend(top.map(|(name, value)| (name.to_owned(), value)));
    merged.insert("jobs".to_owned(), json!([kept]));
    Value::Object(merged)
}

/// The figures of one direction, and its latencies.
fn direction_of(all: &Value) -> Value {
    let mut kept = figures(all, |_| true);
    if let Some(kept) = kept.as_object_mut() {
        for name in ["lat_ns", "clat_ns"] {
            let mut latency = figures(&all[name], |_| true);
            if let (Some(latency), Some(percentiles)) =
                (latency.as_object_mut(), all[name].get("percentile"))
            {
                latency.insert("percentile".to_owned(), figures(percentiles, |_| true));
            }
            kept.insert(name.to_owned(), latency);
        }
    }
    kept
}

/// The members of an object that are numbers which `wanted` wants; no more than 40.
fn figures(object: &Value, wanted: impl Fn(f64) -> bool) -> Value {
    let members = object.as_object().into_iter().flatten();
    let numbers = members.filter(|(_, value)| value.as_f64().is_some_and(&wanted));
    let named = numbers.filter(|(name, _)| name.len() <= 40).take(40);
    Value::Object(named.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// A number, or a short text.
fn scalar(value: &Value) -> Option<Value> {
    match value {
        Value::Number(_) => Some(value.clone()),
        Value::String(text) => Some(Value::String(text.chars().take(60).collect())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use pvc_model::storage::VolumeId;

    use super::*;

    fn place() -> MeasuredPlace {
        MeasuredPlace::Rbd {
            image: VolumeId::parse("vms/pvcbenchmark").unwrap(),
            user: "admin".to_owned(),
            config: "/etc/ceph/ceph.conf".into(),
            keyring: "/etc/ceph/keyring".into(),
        }
    }

    fn says(stdout: &str) -> Output {
        Output { code: Some(0), stdout: stdout.as_bytes().to_vec(), stderr: Vec::new() }
    }

    #[test]
    fn fio_has_the_image_in_arguments_and_the_cluster_in_the_environment() {
        let time = Duration::from_secs(75);
        let command = test(Test::RandRead4KLowDepth, 8 << 20, &place(), time);
        for argument in [
            "--ioengine=rbd",
            "--pool=vms",
            "--rbdname=pvcbenchmark",
            "--clientname=admin",
            "--rw=randread",
            "--bs=4K",
            "--iodepth=1",
            "--runtime=75",
            "--size=8388608",
            "--time_based",
            "--thread",
            "--output-format=json",
        ] {
            assert!(command.args.iter().any(|given| given == argument), "{argument}");
        }
        let config = ("CEPH_CONF".to_owned(), "/etc/ceph/ceph.conf".to_owned());
        assert!(command.env.contains(&config));
        assert!(command.deadline > Duration::from_secs(75));
    }

    #[test]
    fn a_file_is_read_past_the_cache_if_its_file_system_can() {
        let of = |is_direct| {
            let place = MeasuredPlace::File { path: "/a:b/disk.raw".into(), is_direct };
            test(Test::SeqRead, 4096, &place, Duration::from_secs(1)).args
        };
        let has = |args: &[String], wanted: &str| args.iter().any(|given| given == wanted);
        assert!(has(&of(true), "--direct=1") && has(&of(true), "--ioengine=libaio"));
        assert!(has(&of(false), "--direct=0") && has(&of(false), "--ioengine=psync"));
        assert!(has(&of(true), "--filename=/a\\:b/disk.raw"));
    }

    #[test]
    fn a_volume_is_filled_once_and_no_longer_than_there_is_time() {
        let command = fill(16 << 20, &place(), Duration::from_secs(300));
        for argument in ["--rw=write", "--size=16777216", "--bs=4194304", "--runtime=300"] {
            assert!(command.args.iter().any(|given| given == argument), "{argument}");
        }
        assert!(!command.args.iter().any(|given| given == "--time_based"));
        let said = |text| written(&says(text));
        assert_eq!(said(r#"{"jobs":[{"write":{"io_bytes":12}}]}"#).unwrap(), 12);
        for odd in [r#"{"jobs":[{"write":{"io_bytes":-1}}]}"#, r#"{"jobs":[{"read":{}}]}"#, "{}"] {
            assert!(said(odd).is_err(), "{odd}");
        }
        assert!(said(r#"{"jobs":[{"error":28,"write":{"io_bytes":12}}]}"#).is_err());
    }

    #[test]
    fn what_is_read_of_a_report_is_kept_and_what_is_zero_is_not() {
        let text = include_str!("report.json");
        let load = Load { cpu_osd: 12.5, sent_bps: 8.0, received_bps: 2.0, ..Load::default() };
        let noisy = format!("fio: a warning\n{text}");
        let kept = report(Test::SeqRead, &says(&noisy), &load).expect("fio printed it");
        let kept: Value = serde_json::from_str(&kept).unwrap();
        let whole: Value = serde_json::from_str(text).unwrap();
        for figure in [
            "/jobs/0/read/bw_bytes",
            "/jobs/0/read/iops",
            "/jobs/0/read/io_bytes",
            "/jobs/0/read/bw_dev",
            "/jobs/0/read/iops_stddev",
            "/jobs/0/read/lat_ns/mean",
            "/jobs/0/read/clat_ns/percentile/99.000000",
            "/jobs/0/job_runtime",
            "/jobs/0/usr_cpu",
        ] {
            let found = kept.pointer(figure);
            assert!(found.is_some() && found == whole.pointer(figure), "{figure}");
        }
        assert_eq!(kept["avg_cpu_util_percent"]["ceph-osd"], 12.5);
        assert_eq!(kept["avg_network_util_bps"]["total"], 10.0);
        let buckets = kept["jobs"][0]["latency_us"].as_object().unwrap();
        assert!(buckets.values().all(|share| share.as_f64() != Some(0.0)));
        assert!(kept.to_string().len() < text.len());
        assert_eq!(kept["jobs"][0].get("job options"), None);
    }

    #[test]
    fn what_is_no_report_is_refused() {
        let deep = format!("{}{}", r#"{"a":"#.repeat(5000), "}".repeat(5000));
        let long = format!("{{\"jobs\":\"{}\"}}", "x".repeat(MOST_READ_BYTES));
        let failed = r#"{"jobs":[{"error":5,"read":{"bw_bytes":1,"iops":1,"io_bytes":1}}]}"#;
        let odd = r#"{"jobs":[{"error":0,"read":{"bw_bytes":"1","iops":-1}}]}"#;
        for text in ["", "nothing", "{", "[]", "{}", r#"{"jobs":[]}"#, &deep, &long, failed, odd] {
            let refused = report(Test::SeqRead, &says(text), &Load::default());
            assert!(refused.is_err(), "{}", text.chars().take(40).collect::<String>());
        }
    }

    #[test]
    fn the_last_words_of_fio_say_why_it_failed() {
        let said = |code, stdout: &str, stderr: &str| {
            let (stdout, stderr) = (stdout.as_bytes().to_vec(), stderr.as_bytes().to_vec());
            let output = Output { code, stdout, stderr };
            report(Test::SeqRead, &output, &Load::default()).unwrap_err().to_string()
        };
        let missing = said(Some(1), "fio: engine rbd not loadable\n", "IO engine rbd not found\n");
        assert_eq!(missing, "`fio` failed: engine rbd not loadable");
        assert_eq!(said(Some(1), "", "rbd_open failed.\n"), "`fio` failed: rbd_open failed.");
        assert_eq!(said(Some(2), "", ""), "`fio` failed: it ended with status 2");
        assert_eq!(said(None, "", ""), "`fio` failed: it was ended by a signal");
    }
}
