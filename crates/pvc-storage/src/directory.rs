//! The storage of one machine in words, where a cluster has Ceph's.

use pvc_model::size::format_size;
use pvc_ports::PoolInfo;

/// State of the pools, as `pvc storage status` shows it.
pub(crate) fn status(pools: &[PoolInfo], volumes: usize) -> String {
    let stored = pools.iter().fold(0, |sum: u64, pool| sum.saturating_add(pool.stored_bytes));
    // All pools lie on one file system: what is free there is free in each of them.
    let free = pools.iter().map(|pool| pool.free_bytes).max().unwrap_or(0);
    let (pools, stored, free) = (pools.len(), format_size(stored), format_size(free));
    format!(
        "  storage:\n    kind:    directory of this machine\n    pools:   {pools}\n    \
         volumes: {volumes}\n\n  data:\n    usage:   {stored} stored, {free} free\n"
    )
}

/// Usage of each pool, as `pvc storage util` shows it.
pub(crate) fn usage(pools: &[PoolInfo]) -> String {
    let longest = pools.iter().map(|pool| pool.name.as_str().chars().count()).max().unwrap_or(0);
    let width = longest.max("POOL".len());
    let mut text = format!("--- POOLS ---\n{:width$}  STORED   FREE  %USED\n", "POOL");
    for pool in pools {
        let (stored, free) = (format_size(pool.stored_bytes), format_size(pool.free_bytes));
        let all = pool.stored_bytes as f64 + pool.free_bytes as f64;
        let used = if all > 0.0 { pool.stored_bytes as f64 / all * 100.0 } else { 0.0 };
        let name = pool.name.as_str();
        text.push_str(&format!("{name:width$}  {stored:>6}  {free:>5}  {used:>5.2}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use pvc_model::storage::PoolName;

    use super::*;

    #[test]
    fn pools_of_one_disk_have_their_free_space_once() {
        let pool = |name: &str, stored_bytes| PoolInfo {
            name: PoolName::new(name),
            stored_bytes,
            free_bytes: 30 << 30,
        };
        let pools = [pool("vms", 10 << 30), pool("archive", 0)];
        assert_eq!(
            status(&pools, 3),
            "  storage:\n    kind:    directory of this machine\n    pools:   2\n    volumes: 3\n\
             \n  data:\n    usage:   10G stored, 30G free\n"
        );
        assert_eq!(
            usage(&pools),
            "--- POOLS ---\nPOOL     STORED   FREE  %USED\nvms         10G    30G  25.00\n\
             archive      0B    30G   0.00\n"
        );
        assert_eq!(usage(&[]), "--- POOLS ---\nPOOL  STORED   FREE  %USED\n");
    }
}
