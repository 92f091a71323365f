//! Uploads to a real Ceph through the API, beside `rbd import` of the same file.

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

use crate::http::ApiServer;
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

/// The time of uploads, and the memory that they take of the API. Which tree the records are in
/// makes no difference, so they are measured with one.
pub fn figures(kind: Kind, scale: &Scale) -> Result<Vec<Figure>> {
    if kind == Kind::Zookeeper {
        return Ok(Vec::new());
    }
    let ceph = Ceph::start()?;
    let size = scale.upload_bytes;
    let image = ceph.directory.path().join("image");
    write_image(&image, size)?;
    let place = Place::make(kind, Shape::with_vms(scale.small()))?;
    let mut server = ApiServer::on_ceph(&place.source, ceph.directory.path())?;
    let volume = format!("/api/v1/storage/ceph/volume/{POOL}/{VOLUME}");
    server.api.post(&format!("{volume}?size={size}B&force=true"))?;
    let mut times = Pair::default();
    let mut before = 0;
    for round in 0..=scale.uploads {
        let path = format!("{volume}/upload?image_format=raw&force=true");
        let (upload, done) = timed(|| server.api.post_file(&path, &image).map(drop));
        done?;
        let (import, done) = timed(|| ceph.import(&image));
        done?;
        ceph.clear()?;
        if round == 0 {
            // The first one finds caches and the heap empty.
            before = server.peak_memory()?;
            continue;
        }
        times.measured.push(upload);
        times.reference.push(import);
    }
    let after = server.peak_memory()?;
    let (upload, import) = times.spreads();
    let limit = Duration::from_secs_f64(import.p50.as_secs_f64() * 1.3);
    let size = bytes(size);
    Ok(vec![
        Figure::time(format!("upload of {size} over HTTP"), upload)
            .against("`rbd import` of the file", Quantity::Time(import))
            .budget(Budget::P50(limit)),
        Figure::new(format!("peak memory of the API, uploads of {size}"), Quantity::Bytes(after))
            .against("after the first one", Quantity::Bytes(before))
            .budget(BUDGET),
    ])
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
        let output = Command::new("rbd")
            .args(arguments)
            .arg("--pool")
            .arg(POOL)
            .args(["--conf".into(), config, "--keyring".into(), keyring])
            .output()
            .context("`rbd` cannot be started")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`rbd {}` failed: {said}", arguments.join(" "));
        Ok(output.stdout)
    }

    fn import(&self, image: &Path) -> Result<()> {
        let image = image.display().to_string();
        let features = ["--image-feature=layering", "--image-feature=exclusive-lock"];
        self.rbd(&["import", "--no-progress", features[0], features[1], &image, "imported"])?;
        Ok(())
    }

    /// Removes what a round has left.
    fn clear(&self) -> Result<()> {
        self.rbd(&["rm", "--no-progress", "imported"])?;
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
