//! Pages of Ceph's manager and of the exporter beside ZooKeeper, as they come.
//!
//! Whoever asks while one is fetched is given that one: anybody may ask, and each of them asks one
//! question at a time, whatever the number of those who wait.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_ops::storage::StorageRefusal;
use pvc_ports::{Exporters, Storage, aside};

use super::unread::Unread;
use crate::error::{ApiError, Result};

/// Time that a page may take in all. A scraper gives up after 10 s unless it is told otherwise.
const TIME_LIMIT: Duration = Duration::from_secs(8);

/// Port of the exporter of ZooKeeper's metrics in every PVC cluster.
const ZOOKEEPER_EXPORTER: u16 = 9141;

/// Port of ZooKeeper itself, which the exporter adds to the name of each server.
const ZOOKEEPER_PORT: &str = ":2181";

type Fetched = BoxFuture<'static, Result<Arc<String>>>;

/// A page that is fetched once for all who ask at the same time.
#[derive(Default)]
pub struct Page {
    under_way: Mutex<Option<WeakShared<Fetched>>>,
    unread: Arc<Unread<String>>,
}

/// A page in the memory of one that others have as well.
struct Common(Arc<String>);

impl AsRef<[u8]> for Common {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl Page {
    /// The page that is under way at `now`, or the one that `fetch` fetches; a former one while too
    /// many are being read. The same page is the same memory for all.
    pub async fn fetched(
        &self,
        now: Duration,
        what: &'static str,
        fetch: impl Future<Output = Result<String>> + Send + 'static,
    ) -> Result<Bytes> {
        let page: Shared<Fetched> = {
            let unread = self.unread.clone();
            let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            match under_way.as_ref().and_then(WeakShared::upgrade) {
                // One that has been fetched may be kept by who has not looked yet.
                Some(page) if page.peek().is_none() => page,
                _ => {
                    if let Some(page) = unread.in_place_of_another(now)? {
                        return Ok(Bytes::from_owner(Common(page)));
                    }
                    let page = async move {
                        let page = Arc::new(in_time(what, fetch).await?);
                        unread.note(now, &page);
                        Ok(page)
                    };
                    let page: Fetched = page.boxed();
                    let page = page.shared();
                    *under_way = page.downgrade();
                    page
                }
            }
        };
        page.await.map(|page| Bytes::from_owner(Common(page)))
    }
}

async fn in_time(
    what: &'static str,
    fetch: impl Future<Output = Result<String>>,
) -> Result<String> {
    match tokio::time::timeout(TIME_LIMIT, fetch).await {
        Ok(page) => page,
        Err(_) => {
            let seconds = TIME_LIMIT.as_secs();
            Err(unavailable(format!("the metrics of {what} did not come within {seconds} s")))
        }
    }
}

fn unavailable(message: String) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

/// Whether the storage has metrics of its own.
pub fn has_ceph(storage: Option<&dyn Storage>) -> bool {
    storage.is_some_and(|storage| storage.cluster().is_some())
}

/// The page of Ceph's active manager.
pub async fn ceph(
    storage: Option<Arc<dyn Storage>>,
    by: Option<Arc<dyn Exporters>>,
) -> Result<String> {
    let none = || ApiError::not_found("there is no Ceph here, and so there are no metrics of it");
    let (storage, by) = (storage.ok_or_else(none)?, by.ok_or_else(none)?);
    let cluster = storage.cluster().ok_or_else(none)?;
    let url = cluster.metrics_url().await.map_err(|error| {
        let refusal = StorageRefusal::from(error);
        unavailable(pvc_model::with_causes(&refusal)).hint(pvc_ops::Refusal::hint(&refusal))
    })?;
    let url = url.ok_or_else(|| {
        unavailable("Ceph's manager exports no metrics".to_owned())
            .hint(Some("`ceph mgr module enable prometheus` has it do so"))
    })?;
    by.page(&url).await.map_err(|error| unavailable(error.to_string()))
}

/// The page of the exporter on the primary node.
pub async fn zookeeper(view: Arc<Cluster>, by: Option<Arc<dyn Exporters>>) -> Result<String> {
    let by = by.ok_or_else(|| {
        let message = "this PVC has its records in a file, and there are no metrics of a ZooKeeper";
        ApiError::not_found(message)
    })?;
    let primary = view.config.primary.as_ref();
    let primary = primary.ok_or_else(|| {
        unavailable("no node is primary, and its metrics of ZooKeeper are those shown".to_owned())
            .retry_after(5)
    })?;
    let page = by.page(&zookeeper_url(primary)).await.map_err(|error| {
        unavailable(error.to_string()).hint(Some(
            "the package `prometheus-zookeeper-exporter` serves them on each coordinator",
        ))
    })?;
    Ok(aside(move || sorted(&page)).await)
}

fn zookeeper_url(primary: &NodeName) -> String {
    format!("http://{primary}:{ZOOKEEPER_EXPORTER}/metrics")
}

/// The lines of a page in order, and the servers in their labels without ZooKeeper's port.
fn sorted(page: &str) -> String {
    let mut lines: Vec<String> = page.lines().map(without_port).collect();
    lines.sort_unstable();
    lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}

fn without_port(line: &str) -> String {
    match (line.starts_with('#'), line.find('{'), line.rfind('}')) {
        (false, Some(start), Some(end)) if start < end => {
            let (labels, rest) = line[start..].split_at(end - start);
            let labels = labels.replace(&format!("{ZOOKEEPER_PORT}\""), "\"");
            format!("{}{labels}{rest}", &line[..start])
        }
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn lines_are_sorted_and_servers_are_named_without_their_port() {
        let page = "zk_up{zk_host=\"hv1:2181\"} 1\n# TYPE zk_up gauge\na_b{x=\"1:21812\"} 2181\n\
                    # HELP zk_up Whether \":2181\" is up\nzk_odd} {\nzk_znodes 7";
        let expected = "# HELP zk_up Whether \":2181\" is up\n# TYPE zk_up gauge\n\
                        a_b{x=\"1:21812\"} 2181\nzk_odd} {\nzk_up{zk_host=\"hv1\"} 1\n\
                        zk_znodes 7\n";
        assert_eq!(sorted(page), expected);
        assert_eq!(sorted(""), "");
    }

    #[tokio::test]
    async fn who_ask_at_once_share_a_page_and_the_next_is_fetched_anew() {
        let page = Page::default();
        let fetch = |text: &'static str| {
            page.fetched(Duration::ZERO, "it", async move {
                tokio::task::yield_now().await;
                Ok(text.to_owned())
            })
        };
        let (first, second) = tokio::join!(fetch("one"), fetch("two"));
        assert_eq!((&first, &second), (&Ok("one".into()), &Ok("one".into())));
        assert_eq!(first.unwrap().as_ptr(), second.unwrap().as_ptr(), "and its memory");
        assert_eq!(fetch("three").await, Ok("three".into()));
    }

    #[tokio::test]
    async fn who_never_read_theirs_do_not_hold_one_each() {
        let page = Page::default();
        let mut read = Vec::new();
        for number in 0..20 {
            let fetch = async move { Ok(number.to_string()) };
            read.push(page.fetched(Duration::ZERO, "it", fetch).await.expect("it is given"));
        }
        let held: BTreeSet<*const u8> = read.iter().map(|page| page.as_ptr()).collect();
        assert_eq!((held.len(), &read[19][..]), (8, &b"7"[..]));
        drop(read);
        let fetch = async { Ok("new".to_owned()) };
        assert_eq!(page.fetched(Duration::ZERO, "it", fetch).await, Ok("new".into()));
    }
}
