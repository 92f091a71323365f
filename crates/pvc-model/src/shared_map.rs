//! An ordered map whose copies share what it holds.

use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A [`BTreeMap`] that is copied when it is changed while others hold it, not when it is cloned: of
/// a large cluster that changes in one place, only the map with that place is made anew. It reads
/// and changes as a `BTreeMap` does.
pub struct SharedMap<K, V>(Arc<BTreeMap<K, V>>);

impl<K, V> Deref for SharedMap<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &BTreeMap<K, V> {
        &self.0
    }
}

impl<K: Clone, V: Clone> DerefMut for SharedMap<K, V> {
    fn deref_mut(&mut self) -> &mut BTreeMap<K, V> {
        Arc::make_mut(&mut self.0)
    }
}

impl<K, V> Clone for SharedMap<K, V> {
    fn clone(&self) -> SharedMap<K, V> {
        SharedMap(self.0.clone())
    }
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> SharedMap<K, V> {
        SharedMap(Arc::default())
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &SharedMap<K, V>) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl<K, V> From<BTreeMap<K, V>> for SharedMap<K, V> {
    fn from(map: BTreeMap<K, V>) -> SharedMap<K, V> {
        SharedMap(Arc::new(map))
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SharedMap<K, V> {
    fn from(pairs: [(K, V); N]) -> SharedMap<K, V> {
        BTreeMap::from(pairs).into()
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> SharedMap<K, V> {
        BTreeMap::from_iter(pairs).into()
    }
}

impl<'a, K, V> IntoIterator for &'a SharedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = btree_map::Iter<'a, K, V>;

    fn into_iter(self) -> btree_map::Iter<'a, K, V> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_shares_until_it_is_changed_and_keeps_what_it_was_made_of() {
        let first: SharedMap<u32, &str> = [(1, "one"), (2, "two")].into();
        let mut second = first.clone();
        assert!(std::ptr::eq(&*first, &*second));
        second.insert(3, "three");
        assert_eq!((first.len(), second.len()), (2, 3));
        assert_ne!(first, second);
        second.remove(&3);
        assert_eq!(first, second);
    }
}
