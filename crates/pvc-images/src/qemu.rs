//! `qemu-img`, as nobody and within limits.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use pvc_model::disk_image::DiskFormat;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::Command;

use crate::MOST_QEMU_BYTES;
use crate::error::{ImageError, io};
use crate::spool::Nameless;

/// Length to which its output is kept, and that of a line of a list.
const MOST_SAID: u64 = 64 << 10;
const MOST_LINE: usize = 4 << 10;

/// Time between two looks whether there is room, in which QEMU writes some 100 MB into memory.
const ROOM_POLL: Duration = Duration::from_millis(100);

/// Time between two flushes of what is read and written.
const FLUSH_PAUSE: Duration = Duration::from_secs(1);

const IMAGE: &str = "/proc/self/fd/0";
const DISK: &str = "/proc/self/fd/1";

const READING: &str = "running `qemu-img`";

/// Words of the C library for a file system that is full.
const FULL: &str = "No space left on device";

/// Time that goes through `bytes` may take.
fn long(bytes: u64) -> Duration {
    Duration::from_secs(300 + bytes / (4 << 20))
}

/// A run of `qemu-img`: as nobody, who has nothing but the files that it is given, and with bounds
/// on memory, time and what it writes. It ends with this process.
fn command(args: &[&str], deadline: Duration, most_written: u64) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"])
        .args(["--pdeathsig=KILL", "--"])
        .args(["prlimit", &format!("--as={MOST_QEMU_BYTES}"), "--core=0", "--nofile=64"])
        .args([format!("--cpu={}", deadline.as_secs()), format!("--fsize={most_written}")])
        .args(["--", "nice", "-n", "10", "qemu-img"])
        .args(args)
        .env_clear()
        .envs([("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("LC_ALL", "C")])
        .current_dir("/")
        .kill_on_drop(true);
    command
}

/// Options with which an image is opened: in its format, and without any other file.
fn options(format: DiskFormat) -> String {
    let backing = match format {
        DiskFormat::Qcow2 | DiskFormat::Qed | DiskFormat::Vmdk => r#","backing":null"#,
        DiskFormat::Raw | DiskFormat::Vdi | DiskFormat::Vpc | DiskFormat::Vhdx => "",
    };
    format!(
        r#"json:{{"driver":"{format}"{backing},"file":{{"driver":"file","filename":"{IMAGE}"}}}}"#
    )
}

#[derive(Deserialize)]
struct Info {
    #[serde(rename = "virtual-size")]
    virtual_size: u64,
}

/// Image that is whole, as far as its format can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// Size of its disk.
    pub disk_bytes: u64,
    /// Length of the parts of the disk that have data, together. It has nothing to do with the
    /// length of the file: parts may be compressed, or lie at one and the same place of it.
    pub data_bytes: u64,
}

/// Refuses an image that is not whole, as far as its format can tell, or whose disk has more than
/// `most_bytes`. The size is looked at first: to look through the tables of a petabyte takes
/// minutes, and others wait.
pub async fn check(
    image: &Nameless,
    format: DiskFormat,
    image_bytes: u64,
    most_bytes: u64,
) -> Result<Checked, ImageError> {
    let opened = options(format);
    let deadline = long(image_bytes);
    let (status, said, error) = run(image, &["info", "--output=json", &opened], deadline).await?;
    if !status.success() {
        return Err(refusal(format, &error));
    }
    let info: Info = serde_json::from_slice(&said)
        .map_err(|why| ImageError::Bad { format, why: format!("`qemu-img info`: {why}") })?;
    let disk_bytes = info.virtual_size;
    if disk_bytes > most_bytes {
        return Err(ImageError::TooLarge { disk_bytes: Some(disk_bytes), most_bytes });
    }
    require_whole(format, image_bytes)?;
    if matches!(format, DiskFormat::Qcow2 | DiskFormat::Qed | DiskFormat::Vdi) {
        let (status, said, error) = run(image, &["check", &opened], deadline).await?;
        // 3 is for room that is wasted inside the image, which harms nobody.
        if !matches!(status.code(), Some(0 | 3)) {
            let why = [&error[..], &said[..]].concat();
            return Err(refusal(format, &why));
        }
    }
    let data_bytes = check_map(image, format, image_bytes, deadline).await?;
    // The last part may be of a whole cluster.
    Ok(Checked { disk_bytes, data_bytes: data_bytes.min(disk_bytes) })
}

/// The parts of a VHDX lie at whole MiB, and so does its end.
fn require_whole(format: DiskFormat, image_bytes: u64) -> Result<(), ImageError> {
    if format == DiskFormat::Vhdx && !image_bytes.is_multiple_of(1 << 20) {
        let why = format!("it ends at {image_bytes} bytes, within a MiB");
        return Err(ImageError::Bad { format, why });
    }
    Ok(())
}

fn refusal(format: DiskFormat, said: &[u8]) -> ImageError {
    let line = lines(said).into_iter().next().unwrap_or_else(|| "no reason".to_owned());
    let why = line.replace(&options(format), "the image").chars().take(200).collect();
    ImageError::Bad { format, why }
}

/// The lines that a program said, without its name.
fn lines(said: &[u8]) -> Vec<String> {
    let said = String::from_utf8_lossy(&said[..said.len().min(4096)]);
    let lines = said.lines().map(|line| line.trim().trim_start_matches("qemu-img: "));
    let plain = |line: &str| line.chars().filter(|c| !c.is_control()).take(400).collect();
    lines.filter(|line| !line.is_empty()).map(plain).collect()
}

/// Runs `qemu-img` on the image; returns how it ended, and what it said on both ways.
async fn run(
    image: &Nameless,
    args: &[&str],
    deadline: Duration,
) -> Result<(ExitStatus, Vec<u8>, Vec<u8>), ImageError> {
    let mut command = command(args, deadline, 0);
    command.stdin(image.for_program()?).stdout(Stdio::piped()).stderr(Stdio::piped());
    let work = async {
        let mut child = command.spawn().map_err(io(READING))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (said, error) = tokio::try_join!(read(out), read(err))?;
        let status = child.wait().await.map_err(io(READING))?;
        Ok((status, said, error))
    };
    in_time(deadline, work).await
}

async fn in_time<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, ImageError>>,
) -> Result<T, ImageError> {
    let late = |_| ImageError::TimedOut { seconds: deadline.as_secs() };
    tokio::time::timeout(deadline, work).await.map_err(late)?
}

/// The beginning of what comes; the rest is read and forgotten.
async fn read(from: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, ImageError> {
    let Some(mut from) = from else { return Ok(Vec::new()) };
    let mut said = Vec::new();
    (&mut from).take(MOST_SAID).read_to_end(&mut said).await.map_err(io(READING))?;
    tokio::io::copy(&mut from, &mut tokio::io::sink()).await.map_err(io(READING))?;
    Ok(said)
}

/// A part of the disk that lies in the image.
#[derive(Deserialize)]
struct Extent {
    length: u64,
    #[serde(default)]
    offset: Option<u64>,
    #[serde(default)]
    data: bool,
}

/// Refuses an image that names data behind its own end: QEMU would read zeros there. Returns the
/// length of all that has data, in bytes.
async fn check_map(
    image: &Nameless,
    format: DiskFormat,
    image_bytes: u64,
    deadline: Duration,
) -> Result<u64, ImageError> {
    let opened = options(format);
    let mut command = command(&["map", "--output=json", &opened], deadline, 0);
    command.stdin(image.for_program()?).stdout(Stdio::piped()).stderr(Stdio::piped());
    let work = async {
        let mut child = command.spawn().map_err(io(READING))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let extents = check_extents(out, format, image_bytes);
        let (data_bytes, error) = tokio::try_join!(extents, read(err))?;
        let status = child.wait().await.map_err(io(READING))?;
        match status.success() {
            true => Ok(data_bytes),
            false => Err(refusal(format, &error)),
        }
    };
    in_time(deadline, work).await
}

/// Looks at each extent that is printed, one in each line: `[{ … },`. Returns the length of those
/// with data, in bytes.
async fn check_extents(
    out: Option<impl AsyncRead + Unpin>,
    format: DiskFormat,
    image_bytes: u64,
) -> Result<u64, ImageError> {
    let mut data_bytes = 0_u64;
    let Some(out) = out else { return Ok(data_bytes) };
    let bad = |why: String| ImageError::Bad { format, why };
    let mut lines = BufReader::new(out);
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = MOST_LINE as u64;
        let read = (&mut lines).take(limit).read_until(b'\n', &mut line).await;
        if read.map_err(io(READING))? == 0 {
            return Ok(data_bytes);
        }
        if line.len() == MOST_LINE {
            return Err(bad("`qemu-img map` prints a line that is too long".to_owned()));
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim().trim_start_matches('[').trim_end_matches([',', ']']);
        if text.is_empty() {
            continue;
        }
        let extent: Extent =
            serde_json::from_str(text).map_err(|why| bad(format!("`qemu-img map`: {why}")))?;
        let end = extent.offset.map(|offset| offset.saturating_add(extent.length));
        if let Some(end) = end.filter(|end| extent.data && *end > image_bytes) {
            return Err(bad(format!(
                "it was cut: data is at {end} bytes, and it has {image_bytes}"
            )));
        }
        if extent.data {
            data_bytes = data_bytes.saturating_add(extent.length);
        }
    }
}

/// Makes of the image a raw disk.
pub async fn convert(
    image: &Nameless,
    format: DiskFormat,
    disk: &Nameless,
    disk_bytes: u64,
) -> Result<(), ImageError> {
    // QEMU's disks are of whole sectors.
    let disk_bytes = disk_bytes.next_multiple_of(512);
    disk.set_size(disk_bytes).await?;
    let opened = options(format);
    let args = ["convert", "-n", "--target-is-zero", "-S", "64k", "-O", "raw", &opened, DISK];
    let deadline = long(disk_bytes);
    let command = command(&args, deadline, disk_bytes);
    let late = ImageError::TimedOut { seconds: deadline.as_secs() };
    let (status, error) = from_to(command, image, disk, deadline, late).await?;
    match status.success() {
        true => Ok(()),
        // Nothing is wrong with the image.
        false if lines(&error).iter().any(|line| line.ends_with(FULL)) => {
            Err(io("keeping the disk of the image")(Errno::ENOSPC.into()))
        }
        false => Err(refusal(format, &error)),
    }
}

/// Ways in which an image is made, where a format has several.
fn making(format: DiskFormat) -> &'static [&'static str] {
    match format {
        DiskFormat::Qcow2 => &["-o", "compat=1.1"],
        // One file, which programs of VMware and VirtualBox open as it is; disks of ESXi have this
        // adapter.
        DiskFormat::Vmdk => &["-o", "subformat=monolithicSparse,adapter_type=lsilogic"],
        // The disk would be rounded up to a whole number of cylinders.
        DiskFormat::Vpc => &["-o", "subformat=dynamic,force_size=on"],
        DiskFormat::Raw | DiskFormat::Qed | DiskFormat::Vdi | DiskFormat::Vhdx => &[],
    }
}

/// Makes of a raw disk an image of at most `most_bytes`. The disk is whatever somebody wrote there:
/// what it looks like is not asked.
pub async fn make(
    disk: &Nameless,
    disk_bytes: u64,
    format: DiskFormat,
    image: &Nameless,
    most_bytes: u64,
) -> Result<(), ImageError> {
    let opened = options(DiskFormat::Raw);
    let to = ["-O", format.as_str()];
    let args = [&["convert"], &to[..], making(format), &[&opened, DISK]].concat();
    let deadline = long(disk_bytes);
    let command = command(&args, deadline, most_bytes);
    let late = ImageError::NotMadeInTime { seconds: deadline.as_secs() };
    let (status, error) = from_to(command, disk, image, deadline, late).await?;
    match status.success() {
        true => Ok(()),
        false => Err(ImageError::NotMade { format, why: said(&error, status) }),
    }
}

/// Reason of a failure, as a program has said it, or by how it ended. Before the reason it may say
/// that it could not remove what it had begun.
fn said(error: &[u8], status: ExitStatus) -> String {
    match lines(error).pop() {
        Some(line) => {
            line.replace(&options(DiskFormat::Raw), "the disk").replace(DISK, "the image")
        }
        None => format!("`qemu-img` ended with {status}"),
    }
}

/// Runs `qemu-img` from one file to another, while there is room beside that; returns how it ended,
/// and what it complained of.
async fn from_to(
    mut command: Command,
    from: &Nameless,
    to: &Nameless,
    deadline: Duration,
    late: ImageError,
) -> Result<(ExitStatus, Vec<u8>), ImageError> {
    command.stdin(from.for_program()?).stdout(to.for_program()?).stderr(Stdio::piped());
    let work = async {
        let mut child = command.spawn().map_err(io(READING))?;
        let error = read(child.stderr.take()).await?;
        let status = child.wait().await.map_err(io(READING))?;
        Ok((status, error))
    };
    tokio::select! {
        biased;
        done = tokio::time::timeout(deadline, work) => done.unwrap_or(Err(late)),
        error = no_room(to) => Err(error),
        error = keep_flushing(from, to) => Err(error),
    }
}

/// Returns when too little room is left beside what is written. A flush may take many seconds, and
/// is not waited for.
async fn no_room(to: &Nameless) -> ImageError {
    loop {
        if let Err(error) = to.require_room(0).await {
            return error;
        }
        tokio::time::sleep(ROOM_POLL).await;
    }
}

/// Has what is written on the disk now and then, so that neither that nor what was read fills the
/// memory. Returns when that fails.
async fn keep_flushing(from: &Nameless, to: &Nameless) -> ImageError {
    loop {
        let flushed = async {
            to.flush().await?;
            from.flush().await
        };
        if let Err(error) = flushed.await {
            return error;
        }
        tokio::time::sleep(FLUSH_PAUSE).await;
    }
}
