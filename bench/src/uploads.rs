//! Uploads to a real Ceph through the API, beside `rbd import` of the same file, and the memory
//! that files take on their way in and out.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pvc_contracts::ceph_cluster::CephCluster;
use pvc_store::synthetic::Shape;
use serde_json::Value;
use tempfile::TempDir;

use crate::http::{ApiServer, Client};
use crate::measure::{Pair, Scale, timed};
use crate::place::{Kind, Place};
use crate::report::{Budget, Figure, Quantity, bytes};

/// Pool of every made-up cluster.
const POOL: &str = "vms";

/// Volume that is given new contents.
const VOLUME: &str = "uploaded";

/// Part of the file that is made at once.
const PIECE: usize = 1 << 20;

/// Memory that the API may take, however large a file is.
const BUDGET: Budget = Budget::Bytes(100_000_000);

/// The time of uploads, and the memory that they and downloads take of the API. Which tree the
/// records are in makes no difference, so they are measured with one.
pub fn figures(kind: Kind, scale: &Scale) -> Result<Vec<Figure>> {
    if kind == Kind::Zookeeper {
        return Ok(Vec::new());
    }
    let ceph = Ceph::start()?;
    let files = Files::make(ceph.directory.path(), scale.upload_bytes)?;
    let place = Place::make(kind, Shape::with_vms(scale.small()))?;
    let mut figures = Vec::from(beside_import(&ceph, &files, &place, scale)?);
    for way in [Way::Compressed, Way::Qcow2, Way::Download] {
        figures.push(memory(way, &ceph, &files, &place, scale)?);
    }
    Ok(figures)
}

/// Uploads of the file as it is, beside `rbd import` of it.
fn beside_import(ceph: &Ceph, files: &Files, place: &Place, scale: &Scale) -> Result<[Figure; 2]> {
    let size = scale.upload_bytes;
    let mut server = ApiServer::on_ceph(&place.source, ceph.directory.path())?;
    server.api.post(&format!("{}?size={size}B&force=true", volume()))?;
    let mut times = Pair::default();
    let mut before = 0;
    for round in 0..=scale.uploads {
        let (upload, done) = timed(|| Way::Raw.go(server.api_port, files));
        done?;
        let (import, done) = timed(|| ceph.import(&files.raw));
        done?;
        ceph.rbd(&["rm", "--no-progress", "imported"])?;
        ceph.purge_trash()?;
        if round == 0 {
            // The first one finds caches and the heap empty.
            before = server.peak_memory()?;
            continue;
        }
        times.measured.push(upload);
        times.reference.push(import);
    }
    let peak = Way::Raw.memory(size, server.peak_memory()?, before);
    let (upload, import) = times.spreads();
    let limit = Duration::from_secs_f64(import.p50.as_secs_f64() * 1.3);
    let upload = Figure::time(format!("upload of {} over HTTP", bytes(size)), upload)
        .against("`rbd import` of the file", Quantity::Time(import))
        .budget(Budget::P50(limit));
    Ok([upload, peak])
}

/// Memory that files take of an API that has seen no others.
fn memory(way: Way, ceph: &Ceph, files: &Files, place: &Place, scale: &Scale) -> Result<Figure> {
    let server = ApiServer::on_ceph(&place.source, ceph.directory.path())?;
    let mut before = 0;
    for round in 0..=scale.uploads {
        way.go(server.api_port, files).context(way.title())?;
        ceph.purge_trash()?;
        if round == 0 {
            before = server.peak_memory()?;
        }
    }
    Ok(way.memory(scale.upload_bytes, server.peak_memory()?, before))
}

/// The volume as a path of the API.
fn volume() -> String {
    format!("/api/v1/storage/ceph/volume/{POOL}/{VOLUME}")
}

/// Way of the contents of a volume through the API.
#[derive(Debug, Clone, Copy)]
enum Way {
    Raw,
    /// By a decoder, on a thread.
    Compressed,
    /// By way of a file that is kept, and `qemu-img`.
    Qcow2,
    Download,
}

impl Way {
    fn title(self) -> &'static str {
        match self {
            Way::Raw => "uploads",
            Way::Compressed => "`.zst` uploads",
            Way::Qcow2 => "qcow2 uploads",
            Way::Download => "downloads",
        }
    }

    /// Takes the contents this way, on a connection of their own: one that is kept is closed by the
    /// API when nothing has come for twenty seconds, as while files are made or `rbd` works.
    fn go(self, port: u16, files: &Files) -> Result<()> {
        let mut client = Client::connect(port)?;
        let path = |format: &str| format!("{}/upload?image_format={format}&force=true", volume());
        match self {
            Way::Raw => client.post_file(&path("raw"), &files.raw).map(drop),
            Way::Compressed => client.post_file(&path("raw"), &files.compressed).map(drop),
            Way::Qcow2 => client.post_file(&path("qcow2"), &files.qcow2).map(drop),
            Way::Download => {
                let length = client.download(&format!("{}/download", volume()))?;
                let size = files.raw.metadata()?.len();
                ensure!(length == size, "{length} bytes came of a volume of {size}");
                Ok(())
            }
        }
    }

    /// The figure of the most memory that the API had, after all of it and after the first one.
    fn memory(self, size: u64, after: u64, before: u64) -> Figure {
        let name = format!("peak memory of the API, {} of {}", self.title(), bytes(size));
        Figure::new(name, Quantity::Bytes(after))
            .against("after the first one", Quantity::Bytes(before))
            .budget(BUDGET)
    }
}

/// Files of one disk.
struct Files {
    raw: PathBuf,
    compressed: PathBuf,
    qcow2: PathBuf,
}

impl Files {
    /// Makes a raw disk without holes, and the other files of it.
    fn make(directory: &Path, size: u64) -> Result<Files> {
        let file = |name: &str| directory.join(name);
        let (raw, compressed, qcow2) = (file("image"), file("image.zst"), file("image.qcow2"));
        write_image(&raw, size)?;
        run(Command::new("zstd").arg("-q").arg(&raw).arg("-o").arg(&compressed))?;
        let convert = ["convert", "-f", "raw", "-O", "qcow2"];
        run(Command::new("qemu-img").args(convert).args([&raw, &qcow2]))?;
        Ok(Files { raw, compressed, qcow2 })
    }
}

/// Runs the program; returns what it put out.
fn run(command: &mut Command) -> Result<Vec<u8>> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("`{program}` cannot be started"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{program}` failed: {said}");
    Ok(output.stdout)
}

/// A real Ceph with the pool.
struct Ceph {
    cluster: CephCluster,
    /// Folder of the cluster and of the file. Dropped after it.
    directory: TempDir,
}

impl Ceph {
    fn start() -> Result<Ceph> {
        let directory = tempfile::Builder::new().prefix("pvc-bench-").tempdir()?;
        let cluster = CephCluster::start(directory.path()).context("Ceph does not start")?;
        cluster.ceph(&["osd", "pool", "create", POOL])?;
        cluster.ceph(&["osd", "pool", "application", "enable", POOL, "rbd"])?;
        Ok(Ceph { cluster, directory })
    }

    fn rbd(&self, arguments: &[&str]) -> Result<Vec<u8>> {
        let (config, keyring) = (self.cluster.config(), self.cluster.keyring());
        let mut command = Command::new("rbd");
        command.args(arguments).args(["--pool", POOL]);
        command.args(["--conf".into(), config, "--keyring".into(), keyring]);
        run(&mut command).with_context(|| arguments.join(" "))
    }

    fn import(&self, image: &Path) -> Result<()> {
        let image = image.display().to_string();
        let features = ["--image-feature=layering", "--image-feature=exclusive-lock"];
        self.rbd(&["import", "--no-progress", features[0], features[1], &image, "imported"])?;
        Ok(())
    }

    /// Removes the contents that a round has replaced.
    fn purge_trash(&self) -> Result<()> {
        let trash: Value = serde_json::from_slice(&self.rbd(&["trash", "ls", "--format=json"])?)?;
        for id in trash.as_array().into_iter().flatten().filter_map(|entry| entry["id"].as_str()) {
            self.rbd(&["trash", "rm", "--no-progress", "--force", "--image-id", id])?;
        }
        Ok(())
    }
}

/// Files of a Ceph in this folder: its configuration, and the keyring of `client.admin`.
pub fn files_of(directory: &Path) -> (PathBuf, PathBuf) {
    (directory.join("ceph.conf"), directory.join("keyring"))
}

/// Makes a file without holes in which no two blocks are the same.
fn write_image(path: &Path, size: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut state = 1_u64;
    let mut piece = vec![0; PIECE];
    for _ in 0..size / PIECE as u64 {
        for word in piece.chunks_exact_mut(8) {
            // Steele, Lea and Flood's SplitMix, without its last steps.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word.copy_from_slice(&mixed.to_le_bytes());
        }
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(())
}
