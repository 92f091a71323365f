//! OSDs and pools in numbers.

use std::sync::Arc;

use pvc_model::cluster::Cluster;
use pvc_model::storage::OsdRecord;
use serde_json::{Map, Value};

use super::page::Page;
use crate::view::storage::{object, pool};

/// The figures of an OSD: the name of the metric, what it is, the member of the statistics, a
/// factor. Sizes keep the units that dashboards know: `size` is in KiB beside metrics in bytes,
/// hence the second one.
const OSD_FIGURES: [(&str, &str, &str, f64); 16] = [
    ("util", "utilization in percent", "utilization", 1.0),
    ("var", "variance of utilization", "var", 1.0),
    ("pgs", "placement groups", "pgs", 1.0),
    ("size", "size in KiB", "kb", 1.0),
    ("size_bytes", "size in bytes", "kb", 1024.0),
    ("used", "used bytes", "kb_used", 1024.0),
    ("used_data", "bytes used by data", "kb_used_data", 1024.0),
    ("used_omap", "bytes used by omap", "kb_used_omap", 1024.0),
    ("used_meta", "bytes used by metadata", "kb_used_meta", 1024.0),
    ("avail", "available bytes", "kb_avail", 1024.0),
    ("weight", "CRUSH weight", "weight", 1.0),
    ("reweight", "reweight", "reweight", 1.0),
    ("wr_ops", "write operations per second", "wr_ops", 1.0),
    ("wr_data", "written bytes per second", "wr_data", 1.0),
    ("rd_ops", "read operations per second", "rd_ops", 1.0),
    ("rd_data", "read bytes per second", "rd_data", 1.0),
];

pub fn osds(page: &mut Page, cluster: &Cluster) {
    let mut osds: Vec<(&Arc<OsdRecord>, Map<String, Value>)> =
        cluster.osds.values().map(|osd| (osd, object(&osd.stats))).collect();
    osds.sort_by_key(|(osd, _)| osd.id.parse::<u64>().unwrap_or(u64::MAX));
    page.gauge("pvc_ceph_osd_device", "PVC OSD device", |samples| {
        for (osd, _) in &osds {
            samples.info(&[("osd", &osd.id), ("device", &format!("{}:{}", osd.node, osd.device))]);
        }
    });
    page.gauge("pvc_ceph_osd_db_device", "PVC OSD database device", |samples| {
        osds.iter()
            .for_each(|(osd, _)| samples.info(&[("osd", &osd.id), ("db_device", &osd.db_device)]));
    });
    page.gauge("pvc_ceph_osd_device_class", "PVC OSD device class", |samples| {
        for (osd, stats) in &osds {
            let class = stats.get("class").and_then(Value::as_str).unwrap_or_default();
            samples.info(&[("osd", &osd.id), ("device_class", class)]);
        }
    });
    for (name, help, member, factor) in OSD_FIGURES {
        page.gauge(&format!("pvc_ceph_osd_{name}"), format!("PVC OSD {help}"), |samples| {
            for (osd, stats) in &osds {
                samples.add(&[("osd", &osd.id)], number(stats.get(member)) * factor);
            }
        });
    }
}

/// A figure of the statistics: a number, or a text like `94.3k` as Ceph prints it. 0 if it is
/// neither, as before the first collection.
fn number(value: Option<&Value>) -> f64 {
    match value {
        Some(Value::Number(number)) => number.as_f64().unwrap_or_default(),
        Some(Value::String(text)) => scaled(text).unwrap_or_default(),
        _ => 0.0,
    }
}

fn scaled(text: &str) -> Option<f64> {
    let text = text.trim();
    let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let power = match unit.chars().next().map(|c| c.to_ascii_lowercase()) {
        None => 0,
        Some(letter) => "kmgtpe".find(letter).map(|at| at + 1).unwrap_or_default(),
    };
    Some(number.parse::<f64>().ok()? * 1024_f64.powi(i32::try_from(power).ok()?))
}

/// The figures of a pool: the name of the metric, what it is, the member of the statistics, a
/// factor.
const POOL_FIGURES: [(&str, &str, &str, f64); 14] = [
    ("stored_bytes", "stored bytes", "stored_bytes", 1.0),
    ("free_bytes", "free bytes", "free_bytes", 1.0),
    ("used_bytes", "used bytes", "used_bytes", 1.0),
    ("used_percent", "used space in percent", "used_percent", 100.0),
    ("num_objects", "objects", "num_objects", 1.0),
    ("num_objects_clones", "object clones", "num_object_clones", 1.0),
    ("num_objects_copies", "object copies", "num_object_copies", 1.0),
    (
        "num_objects_missing_on_primary",
        "objects missing on their primary",
        "num_objects_missing_on_primary",
        1.0,
    ),
    ("num_objects_unfound", "unfound objects", "num_objects_unfound", 1.0),
    ("num_objects_degraded", "degraded objects", "num_objects_degraded", 1.0),
    ("read_ops", "read operations", "read_ops", 1.0),
    ("read_bytes", "read bytes", "read_bytes", 1.0),
    ("write_ops", "write operations", "write_ops", 1.0),
    ("write_bytes", "written bytes", "write_bytes", 1.0),
];

pub fn pools(page: &mut Page, cluster: &Cluster) {
    let pools: Vec<_> = cluster.pools.values().map(|record| pool(record, cluster)).collect();
    page.gauge("pvc_ceph_pool_tier", "PVC pool tier", |samples| {
        pools.iter().for_each(|pool| samples.info(&[("pool", &pool.name), ("tier", &pool.tier)]));
    });
    page.gauge("pvc_ceph_pool_pgs", "PVC pool placement groups", |samples| {
        pools.iter().for_each(|pool| {
            samples.add(&[("pool", &pool.name)], pool.pgs.parse().unwrap_or_default())
        });
    });
    page.gauge("pvc_ceph_pool_volumes", "PVC pool volumes", |samples| {
        pools
            .iter()
            .for_each(|pool| samples.add(&[("pool", &pool.name)], pool.volume_count as f64));
    });
    for (name, help, member, factor) in POOL_FIGURES {
        page.gauge(&format!("pvc_ceph_pool_{name}"), format!("PVC pool {help}"), |samples| {
            for pool in &pools {
                samples.add(&[("pool", &pool.name)], number(pool.stats.get(member)) * factor);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn figures_are_numbers_or_texts_as_ceph_prints_them() {
        for (value, figure) in [
            (serde_json::json!(12), 12.0),
            ("12".into(), 12.0),
            ("1.5k".into(), 1536.0),
            ("2M".into(), 2_097_152.0),
            ("|".into(), 0.0),
            (serde_json::Value::Null, 0.0),
        ] {
            assert_eq!(number(Some(&value)), figure, "{value}");
        }
    }
}
