//! From what Ceph's monitors and managers answer to pools and OSDs in numbers.

use std::collections::BTreeMap;

use pvc_model::fullness::Ratios;
use pvc_model::pool::Replication;
use pvc_model::storage::PoolName;
use pvc_ports::{OsdFigures, PoolFigures, PoolInfo};
use serde::{Deserialize, Deserializer};

use crate::answers::json;

/// Reads a figure that later releases write as `null` where it is no number.
fn figure<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// `mgr services`, as far as it is about metrics.
#[derive(Deserialize)]
struct Services {
    prometheus: Option<String>,
}

#[derive(Deserialize)]
struct Df {
    pools: Vec<DfPool>,
}

#[derive(Deserialize)]
struct DfPool {
    id: u64,
    name: String,
    stats: DfStats,
}

#[derive(Deserialize)]
struct DfStats {
    stored: u64,
    max_avail: u64,
    bytes_used: u64,
    #[serde(deserialize_with = "figure")]
    percent_used: f64,
}

#[derive(Deserialize)]
struct PgDump {
    pool_stats: Vec<PgPool>,
}

#[derive(Deserialize)]
struct PgPool {
    poolid: u64,
    stat_sum: PgSum,
}

/// A pool that loses and regains copies may count below zero for a moment.
#[derive(Deserialize)]
struct PgSum {
    num_objects: i64,
    num_object_clones: i64,
    num_object_copies: i64,
    num_objects_missing_on_primary: i64,
    num_objects_unfound: i64,
    num_objects_degraded: i64,
    num_read: i64,
    num_read_kb: i64,
    num_write: i64,
    num_write_kb: i64,
}

/// `df`: how full pools are.
pub(crate) fn fullness(df: &[u8]) -> Result<Vec<PoolInfo>, String> {
    let df: Df = json(df)?;
    let info = |pool: DfPool| PoolInfo {
        name: PoolName::new(pool.name),
        stored_bytes: pool.stats.stored,
        free_bytes: pool.stats.max_avail,
    };
    Ok(df.pools.into_iter().map(info).collect())
}

/// `df` and `pg dump pools`, joined by the pools' numbers. A pool that only one of them has is left
/// out: it was made or removed this moment.
pub(crate) fn pool_figures(df: &[u8], pg_dump: &[u8]) -> Result<Vec<PoolFigures>, String> {
    let (df, dump): (Df, PgDump) = (json(df)?, json(pg_dump)?);
    let mut sums: BTreeMap<u64, PgSum> =
        dump.pool_stats.into_iter().map(|pool| (pool.poolid, pool.stat_sum)).collect();
    let joined = |pool: DfPool| sums.remove(&pool.id).map(|sum| pool_of(pool, &sum));
    Ok(df.pools.into_iter().filter_map(joined).collect())
}

fn pool_of(pool: DfPool, sum: &PgSum) -> PoolFigures {
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    PoolFigures {
        name: PoolName::new(pool.name),
        id: pool.id,
        stored_bytes: pool.stats.stored,
        free_bytes: pool.stats.max_avail,
        used_bytes: pool.stats.bytes_used,
        used_fraction: pool.stats.percent_used,
        objects: count(sum.num_objects),
        object_clones: count(sum.num_object_clones),
        object_copies: count(sum.num_object_copies),
        objects_missing_on_primary: count(sum.num_objects_missing_on_primary),
        objects_unfound: count(sum.num_objects_unfound),
        objects_degraded: count(sum.num_objects_degraded),
        read_ops: count(sum.num_read),
        read_bytes: count(sum.num_read_kb).saturating_mul(1024),
        write_ops: count(sum.num_write),
        write_bytes: count(sum.num_write_kb).saturating_mul(1024),
    }
}

#[derive(Deserialize)]
struct PoolDetail {
    pool_name: String,
    size: Option<u32>,
    min_size: Option<u32>,
    pg_num: Option<u32>,
    /// The number that `pg_num` is on its way to.
    pg_num_target: Option<u32>,
    /// Words between commas.
    #[serde(default)]
    flags_names: String,
    #[serde(default)]
    application_metadata: BTreeMap<String, serde_json::Value>,
}

/// A pool that is there.
pub(crate) struct Pool {
    pub name: PoolName,
    pub is_for_volumes: bool,
    /// Whether anybody has said what it is for.
    pub has_purpose: bool,
    pub replication: Option<Replication>,
    /// Number of placement groups that it is to have.
    pub placement_groups: Option<u32>,
    /// Whether somebody has said that it is not to be removed.
    pub is_kept: bool,
}

/// `osd pool ls detail`: every pool.
pub(crate) fn pools(detail: &[u8]) -> Result<Vec<Pool>, String> {
    let pools: Vec<PoolDetail> = json(detail)?;
    let pool = |found: PoolDetail| Pool {
        name: PoolName::new(found.pool_name),
        is_for_volumes: found.application_metadata.contains_key("rbd"),
        has_purpose: !found.application_metadata.is_empty(),
        replication: found
            .size
            .zip(found.min_size)
            .map(|(copies, min_copies)| Replication { copies, min_copies }),
        placement_groups: found.pg_num_target.or(found.pg_num),
        is_kept: found.flags_names.split(',').any(|flag| flag == "nodelete"),
    };
    Ok(pools.into_iter().map(pool).collect())
}

#[derive(Deserialize)]
struct OsdDump {
    osds: Vec<DumpedOsd>,
}

#[derive(Deserialize)]
struct DumpedOsd {
    osd: u64,
    uuid: String,
    up: u8,
    #[serde(rename = "in")]
    is_in: u8,
    #[serde(deserialize_with = "figure")]
    primary_affinity: f64,
}

#[derive(Deserialize)]
struct OsdDf {
    nodes: Vec<DfOsd>,
}

#[derive(Deserialize)]
struct DfOsd {
    id: i64,
    #[serde(default)]
    device_class: String,
    #[serde(deserialize_with = "figure")]
    crush_weight: f64,
    #[serde(deserialize_with = "figure")]
    reweight: f64,
    kb: u64,
    kb_used: u64,
    #[serde(default)]
    kb_used_data: u64,
    #[serde(default)]
    kb_used_omap: u64,
    #[serde(default)]
    kb_used_meta: u64,
    kb_avail: u64,
    #[serde(deserialize_with = "figure")]
    utilization: f64,
    #[serde(deserialize_with = "figure")]
    var: f64,
    pgs: u64,
}

#[derive(Deserialize)]
struct FullRatios {
    #[serde(deserialize_with = "figure")]
    nearfull_ratio: f64,
    #[serde(deserialize_with = "figure")]
    backfillfull_ratio: f64,
    #[serde(deserialize_with = "figure")]
    full_ratio: f64,
}

/// `osd dump`: when OSDs are full. Ceph's own defaults in the place of ratios that mean nothing.
pub(crate) fn full_ratios(dump: &[u8]) -> Result<Ratios, String> {
    let FullRatios { nearfull_ratio, backfillfull_ratio, full_ratio } = json(dump)?;
    // Ceph computes with single precision and prints more digits than that has.
    let [nearfull, backfillfull, full] = [nearfull_ratio, backfillfull_ratio, full_ratio]
        .map(|ratio| (ratio * 10_000.0).round() / 10_000.0);
    Ok(Ratios::new(nearfull, backfillfull, full).unwrap_or_default())
}

/// `mgr services`: the page of the manager's module `prometheus`, if that is enabled.
pub(crate) fn metrics_url(services: &[u8]) -> Result<Option<String>, String> {
    let Services { prometheus } = json(services)?;
    match prometheus {
        Some(url) if !url.starts_with("http://") => {
            Err(format!("its manager exports metrics at `{url}`, which is no plain HTTP"))
        }
        url => Ok(url.map(|url| format!("{}/metrics", url.trim_end_matches('/')))),
    }
}

/// `osd dump`, `osd df` and `osd status`, joined by the OSDs' numbers. One that any of them lacks
/// is left out: half of an OSD's figures would be read as its figures.
pub(crate) fn osd_figures(dump: &[u8], df: &[u8], status: &str) -> Result<Vec<OsdFigures>, String> {
    let (dump, df): (OsdDump, OsdDf) = (json(dump)?, json(df)?);
    let rows: BTreeMap<u64, Row> =
        status.lines().filter_map(row).map(|row| (row.id, row)).collect();
    let by_id: BTreeMap<i64, DfOsd> = df.nodes.into_iter().map(|osd| (osd.id, osd)).collect();
    let joined = |osd: &DumpedOsd| {
        let fullness = by_id.get(&i64::try_from(osd.osd).ok()?)?;
        Some(osd_of(osd, fullness, rows.get(&osd.osd)?))
    };
    Ok(dump.osds.iter().filter_map(joined).collect())
}

fn osd_of(osd: &DumpedOsd, df: &DfOsd, row: &Row) -> OsdFigures {
    OsdFigures {
        id: osd.osd,
        uuid: osd.uuid.clone(),
        is_up: osd.up == 1,
        is_in: osd.is_in == 1,
        primary_affinity: osd.primary_affinity,
        utilization: df.utilization,
        variance: df.var,
        placement_groups: df.pgs,
        kib: df.kb,
        kib_used: df.kb_used,
        kib_used_data: df.kb_used_data,
        kib_used_omap: df.kb_used_omap,
        kib_used_meta: df.kb_used_meta,
        kib_available: df.kb_avail,
        crush_weight: df.crush_weight,
        reweight: df.reweight,
        class: df.device_class.clone(),
        node: row.node.clone(),
        used: row.used.clone(),
        available: row.available.clone(),
        write_ops: row.write_ops.clone(),
        write_data: row.write_data.clone(),
        read_ops: row.read_ops.clone(),
        read_data: row.read_data.clone(),
        state: row.state.clone(),
    }
}

/// A row of `osd status`. Up to Ceph 17 it comes as a table for people only: drawn with `|` up to
/// 14, in columns since.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    id: u64,
    node: String,
    used: String,
    available: String,
    write_ops: String,
    write_data: String,
    read_ops: String,
    read_data: String,
    state: String,
}

fn row(line: &str) -> Option<Row> {
    let plain = without_colours(line);
    let mut cells: Vec<&str> = if plain.contains('|') {
        plain.trim().trim_matches('|').split('|').map(str::trim).collect()
    } else {
        plain.split_whitespace().collect()
    };
    // An OSD whose host is not known has an empty column, which is none between spaces.
    if cells.len() == 8 {
        cells.insert(1, "");
    }
    let [id, node, used, available, write_ops, write_data, read_ops, read_data, state] = cells[..]
    else {
        return None;
    };
    Some(Row {
        id: id.parse().ok()?,
        node: node.split('.').next().unwrap_or_default().to_owned(),
        used: used.to_owned(),
        available: available.to_owned(),
        write_ops: write_ops.to_owned(),
        write_data: write_data.to_owned(),
        read_ops: read_ops.to_owned(),
        read_data: read_data.to_owned(),
        state: state.to_owned(),
    })
}

/// The line without the sequences that colour it on a terminal.
fn without_colours(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, part| plain + part.split_once('m').map_or("", |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_managers_page_of_metrics_is_where_its_module_says() {
        let url = |services: &str| metrics_url(services.as_bytes());
        assert_eq!(url("{}"), Ok(None));
        assert_eq!(url(r#"{"dashboard":"https://hv1:8443/"}"#), Ok(None));
        let expected = Ok(Some("http://hv1:9283/metrics".to_owned()));
        assert_eq!(url(r#"{"prometheus":"http://hv1:9283/"}"#), expected);
        assert_eq!(url(r#"{"prometheus":"http://hv1:9283"}"#), expected);
        let expected = Ok(Some("http://[fd00::1]:9283/metrics".to_owned()));
        assert_eq!(url(r#"{"prometheus":"http://[fd00::1]:9283/"}"#), expected);
        for odd in [r#"{"prometheus":"https://hv1:9283/"}"#, r#"{"prometheus":7}"#, "[", ""] {
            assert!(url(odd).is_err(), "{odd}");
        }
    }

    const DF: &[u8] = br#"{"stats":{"total_bytes":10737418240},"pools":[
        {"name":"device_health_metrics","id":1,"stats":{"stored":0,"objects":0,"kb_used":0,"bytes_used":0,"percent_used":0,"max_avail":9896198144}},
        {"name":"vms","id":2,"stats":{"stored":35,"objects":4,"kb_used":8,"bytes_used":8192,"percent_used":8.27e-07,"max_avail":9896198144}}]}"#;

    const PG_DUMP: &[u8] = br#"{"pg_ready":true,"pool_stats":[{"poolid":2,"num_pg":1,"stat_sum":{"num_bytes":35,
        "num_objects":4,"num_object_clones":1,"num_object_copies":12,"num_objects_missing_on_primary":0,
        "num_objects_degraded":-1,"num_objects_unfound":0,"num_read":36,"num_read_kb":26,"num_write":6,"num_write_kb":5}}]}"#;

    const OSD_DUMP: &[u8] = br#"{"epoch":15,"osds":[
        {"osd":0,"uuid":"d63af914","up":1,"in":1,"weight":1,"primary_affinity":1,"state":["exists","up"]},
        {"osd":1,"uuid":"e74bf025","up":0,"in":1,"weight":1,"primary_affinity":0.5,"state":["exists"]},
        {"osd":2,"uuid":"new","up":0,"in":0,"weight":0,"primary_affinity":1,"state":["exists","new"]}]}"#;

    const OSD_DF: &[u8] = br#"{"nodes":[
        {"id":0,"device_class":"ssd","name":"osd.0","crush_weight":0.0097,"reweight":1,"kb":10485760,"kb_used":297216,
         "kb_used_data":120,"kb_used_omap":0,"kb_used_meta":297088,"kb_avail":10188544,"utilization":2.83,"var":1,"pgs":2,"status":"up"},
        {"id":1,"device_class":"ssd","name":"osd.1","crush_weight":0.0097,"reweight":1,"kb":0,"kb_used":0,
         "kb_used_data":0,"kb_used_omap":0,"kb_used_meta":0,"kb_avail":0,"utilization":0,"var":0,"pgs":0,"status":"down"}],
        "stray":[],"summary":{}}"#;

    #[test]
    fn pools_are_joined_by_number_and_not_by_place() {
        let found = pool_figures(DF, PG_DUMP).unwrap();
        assert_eq!(found.len(), 1, "one that only `df` has is left out");
        let vms = &found[0];
        assert_eq!(
            (vms.name.as_str(), vms.id, vms.stored_bytes, vms.used_bytes),
            ("vms", 2, 35, 8192)
        );
        assert_eq!((vms.object_copies, vms.read_bytes, vms.write_ops), (12, 26 * 1024, 6));
        assert_eq!(vms.objects_degraded, 0, "no pool has less than nothing degraded");
    }

    #[test]
    fn an_osd_of_which_something_is_unknown_is_left_out() {
        let status = "ID  HOST   USED  AVAIL  WR OPS  WR DATA  RD OPS  RD DATA  STATE      \n \
                      0  hv1.example.com     290M  9949M      1     124k       3       55   \
                      exists,up  \n 1            0      0       0        0       0        0   \
                      exists     \n";
        let found = osd_figures(OSD_DUMP, OSD_DF, status).unwrap();
        assert_eq!(found.iter().map(|osd| osd.id).collect::<Vec<_>>(), [0, 1]);
        let first = &found[0];
        assert_eq!(
            (first.node.as_str(), first.write_data.as_str(), first.class.as_str()),
            ("hv1", "124k", "ssd")
        );
        assert_eq!((first.kib, first.is_up, first.state.as_str()), (10_485_760, true, "exists,up"));
        assert_eq!((found[1].node.as_str(), found[1].is_up, found[1].is_in), ("", false, true));
    }

    #[test]
    fn a_drawn_and_coloured_table_is_read_too() {
        let line = "| \x1b[1;31m3\x1b[0m  | hv2.example.com | 10.1G | \
                    100G  |    0   |     0   |    1   |   124k  | exists,up |";
        let found = row(line).unwrap();
        assert_eq!((found.id, found.node.as_str(), found.read_data.as_str()), (3, "hv2", "124k"));
        assert_eq!(row("+----+------+-------+"), None);
        assert_eq!(
            row("| id | host | used | avail | wr ops | wr data | rd ops | rd data | state |"),
            None
        );
        assert_eq!(row(""), None);
    }

    #[test]
    fn pools_for_volumes_are_distinguished_from_others() {
        let detail =
            br#"[{"pool_name":"device_health_metrics","application_metadata":{"mgr_devicehealth":{}}},
            {"pool_name":"vms","size":3,"min_size":2,"application_metadata":{"rbd":{}},
             "flags_names":"hashpspool,nodelete,selfmanaged_snaps"},{"pool_name":"bare"}]"#;
        let found = pools(detail).unwrap();
        assert_eq!(found.iter().map(|pool| pool.is_kept).collect::<Vec<_>>(), [false, true, false]);
        let ours: Vec<_> = found
            .iter()
            .filter(|pool| pool.is_for_volumes)
            .map(|pool| pool.name.as_str())
            .collect();
        assert_eq!((found.len(), ours), (3, vec!["vms"]));
    }

    #[test]
    fn figures_that_are_no_numbers_count_as_nothing() {
        let df = String::from_utf8(OSD_DF.to_vec()).unwrap();
        let status = "0  hv1  290M  9949M  1  124k  3  55  exists,up";
        for word in ["null", "nan"] {
            let df = df.replace("\"utilization\":2.83", &format!("\"utilization\":{word}"));
            let found = osd_figures(OSD_DUMP, df.as_bytes(), status).unwrap();
            assert_eq!((found[0].utilization, found[0].variance), (0.0, 1.0), "{word}");
        }
    }

    #[test]
    fn an_answer_that_is_no_json_is_an_error() {
        assert!(fullness(b"Error").is_err() && pools(b"").is_err());
        assert!(osd_figures(b"{}", OSD_DF, "").is_err());
    }
}
