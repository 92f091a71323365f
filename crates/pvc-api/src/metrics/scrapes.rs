//! Shared page for all who ask at the same time.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use pvc_model::cluster::Cluster;
use pvc_ports::aside;

use super::unread::Unread;
use super::{VmShares, health, resource};
use crate::error::Result;

/// Pages for scrapers of one view of the cluster.
pub struct Scrape {
    health: String,
    resource: String,
}

impl Scrape {
    /// The state of the cluster, in the memory of this page.
    pub fn health(self: &Arc<Self>) -> Bytes {
        Bytes::from_owner(Part { page: self.clone(), text: |page| page.health.as_str() })
    }

    /// The resources of the cluster, in the memory of this page.
    pub fn resource(self: &Arc<Self>) -> Bytes {
        Bytes::from_owner(Part { page: self.clone(), text: |page| page.resource.as_str() })
    }
}

/// A text of a page, which is kept for that long.
struct Part {
    page: Arc<Scrape>,
    text: fn(&Scrape) -> &str,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        (self.text)(&self.page).as_bytes()
    }
}

type Making = BoxFuture<'static, Result<Arc<Scrape>>>;

/// Pages are made where they keep no other request, and no keepalive, from its turn, and one at a
/// time: after a change of all records a page takes milliseconds, and anybody may ask.
///
/// Who asks while one is made of the present view, or is about to be, is given that one. So nobody
/// waits for more than two, however many ask, and nobody is told of a view that was over when they
/// asked, unless too many pages are still being read. Nothing of a page is kept when the last one
/// who waits for it has read it.
#[derive(Default)]
pub struct Scrapes {
    known: Arc<tokio::sync::Mutex<VmShares>>,
    under_way: Mutex<Option<UnderWay>>,
    unread: Unread<Scrape>,
}

struct UnderWay {
    page: WeakShared<Making>,
    /// View that it is made of, once it has begun. The view is not kept alive, but its address is
    /// not given to another as long as this is here.
    view: Arc<OnceLock<Weak<Cluster>>>,
}

impl UnderWay {
    /// The page, if somebody waits for it and it says, or will say, how `view` is.
    fn of(&self, view: &Arc<Cluster>) -> Option<Shared<Making>> {
        let begun_with = self.view.get();
        let fits = begun_with.is_none_or(|begun| std::ptr::eq(begun.as_ptr(), Arc::as_ptr(view)));
        self.page.upgrade().filter(|_| fits)
    }
}

impl Scrapes {
    /// A page of the view that `view` shows at `now`, or of a later one. Whoever goes away
    /// meanwhile gives the turn to the next only when the page is made.
    pub async fn page(
        self: &Arc<Self>,
        now: Duration,
        view: impl Fn() -> Arc<Cluster> + Send + 'static,
    ) -> Result<Arc<Scrape>> {
        let page = {
            let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            match under_way.as_ref().and_then(|under_way| under_way.of(&view())) {
                Some(page) => page,
                None => {
                    let begun_with = Arc::new(OnceLock::new());
                    let page = self.clone().make(now, view, begun_with.clone()).boxed().shared();
                    let weak = page.downgrade();
                    *under_way = weak.map(|page| UnderWay { page, view: begun_with });
                    page
                }
            }
        };
        page.await
    }

    async fn make(
        self: Arc<Self>,
        now: Duration,
        view: impl Fn() -> Arc<Cluster> + Send,
        begun_with: Arc<OnceLock<Weak<Cluster>>>,
    ) -> Result<Arc<Scrape>> {
        let mut known = self.known.clone().lock_owned().await;
        if let Some(page) = self.unread.in_place_of_another(now)? {
            return Ok(page);
        }
        let cluster = {
            // Whoever asks from here on sees what this is made of.
            let _nobody_asks = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            let cluster = view();
            begun_with.get_or_init(|| Arc::downgrade(&cluster));
            cluster
        };
        let make = move || {
            let resource = resource(&cluster, &mut known);
            let page = Arc::new(Scrape { health: health(&cluster), resource });
            self.unread.note(now, &page);
            page
        };
        Ok(aside(make).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    /// A view that can be replaced by another.
    #[derive(Clone, Default)]
    struct Views(Arc<Mutex<Arc<Cluster>>>);

    impl Views {
        fn name(&self, name: &str) {
            let mut next = Cluster::default();
            next.config.maintenance = name == "maintenance";
            *self.0.lock().unwrap() = Arc::new(next);
        }

        fn now(&self) -> impl Fn() -> Arc<Cluster> + Send + use<> {
            let views = self.clone();
            move || views.0.lock().unwrap().clone()
        }
    }

    fn says_maintenance(page: &Scrape) -> bool {
        page.health.contains("pvc_cluster_maintenance 1")
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_ask_at_once_share_a_page() {
        let (scrapes, views) = (Arc::new(Scrapes::default()), Views::default());
        // Somebody else has the turn: all of them wait.
        let turn = scrapes.known.clone().lock_owned().await;
        let pages = futures::future::join_all((0..5).map(|_| scrapes.page(NOW, views.now())));
        let (pages, ()) = tokio::join!(pages, async { drop(turn) });
        let pages: Vec<_> = pages.into_iter().map(Result::unwrap).collect();
        assert!(pages.iter().all(|page| Arc::ptr_eq(page, &pages[0])));
        assert_eq!(pages[0].resource().as_ptr(), pages[1].resource().as_ptr(), "one memory");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_waits_for_a_page_that_has_not_begun_is_answered_with_the_present_view() {
        let (scrapes, views) = (Arc::new(Scrapes::default()), Views::default());
        let turn = scrapes.known.clone().lock_owned().await;
        let first = tokio::spawn({
            let (scrapes, view) = (scrapes.clone(), views.now());
            async move { scrapes.page(NOW, view).await }
        });
        while scrapes.under_way.lock().unwrap().is_none() {
            tokio::task::yield_now().await;
        }
        views.name("maintenance");
        let (second, ()) = tokio::join!(scrapes.page(NOW, views.now()), async { drop(turn) });
        let second = second.unwrap();
        assert!(says_maintenance(&second));
        assert!(Arc::ptr_eq(&first.await.unwrap().unwrap(), &second));
    }

    #[tokio::test]
    async fn a_page_of_another_view_is_nobodys() {
        let (scrapes, views) = (Arc::new(Scrapes::default()), Views::default());
        let view = views.now()();
        let (page, begun_with) = (scrapes.clone(), Arc::new(OnceLock::new()));
        let page = page.make(NOW, views.now(), begun_with.clone()).boxed().shared();
        let under_way = UnderWay { page: page.downgrade().unwrap(), view: begun_with };
        assert!(under_way.of(&view).is_some(), "it has not begun");
        let first = page.clone().await.unwrap();
        assert!(under_way.of(&view).is_some(), "it was made of this one");
        views.name("maintenance");
        assert!(under_way.of(&views.now()()).is_none(), "the view is another by now");
        assert!(!says_maintenance(&first));
        drop(page);
        assert!(under_way.of(&view).is_none(), "nobody waits for it any more");
        let next = scrapes.page(NOW, views.now()).await.unwrap();
        assert!(says_maintenance(&next));
    }
}
