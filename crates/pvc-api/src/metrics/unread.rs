//! Pages that somebody has not read to the end yet.
//!
//! Anybody may ask for a page, and take a minute to read it. Many who do so at different moments do
//! not hold a page each: while [`MOST`] are being read, those who ask are given the newest of them.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::http::StatusCode;

use crate::error::{ApiError, Result};

/// Most pages of a kind that are in memory at once.
const MOST: usize = 8;

/// Age beyond which a page is given to nobody. By then whoever has shown no key has read his, or
/// his connection has ended.
const OLDEST: Duration = Duration::from_secs(75);

/// The pages that are being read, by when they were made, and none that nobody reads.
pub struct Unread<T> {
    pages: Mutex<Vec<(Duration, Weak<T>)>>,
}

impl<T> Default for Unread<T> {
    fn default() -> Self {
        Unread { pages: Mutex::default() }
    }
}

impl<T> Unread<T> {
    /// Notes a page for as long as somebody has it.
    pub fn note(&self, made: Duration, page: &Arc<T>) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.push((made, Arc::downgrade(page)));
    }

    /// The page to be given in the place of another one that would be made; `None` if that may be.
    ///
    /// # Errors
    /// A reply with status 503 if there are too many and the newest is too old.
    pub fn in_place_of_another(&self, now: Duration) -> Result<Option<Arc<T>>> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|(_, page)| page.strong_count() > 0);
        if pages.len() < MOST {
            return Ok(None);
        }
        let newest = pages.last().filter(|(made, _)| now.saturating_sub(*made) <= OLDEST);
        match newest.and_then(|(_, page)| page.upgrade()) {
            Some(page) => Ok(Some(page)),
            None => {
                let message = format!("{MOST} pages of metrics are still being read: no more now");
                Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_after(15))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_many_are_read_the_newest_is_given_until_it_is_old() {
        let (unread, second) = (Unread::default(), Duration::from_secs);
        let mut read = Vec::new();
        for number in 0..8 {
            assert_eq!(unread.in_place_of_another(second(number)), Ok(None));
            let page = Arc::new(number);
            unread.note(second(number), &page);
            read.push(page);
        }
        assert_eq!(unread.in_place_of_another(second(80)), Ok(Some(Arc::new(7))));
        let refused = unread.in_place_of_another(second(83)).unwrap_err();
        assert_eq!(refused.status, 503);
        read.remove(3);
        assert_eq!(unread.in_place_of_another(second(83)), Ok(None), "one was read to the end");
    }
}
