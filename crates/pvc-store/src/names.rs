//! A map by name whose copies share what is the same in them, and that is small while it is small.
//!
//! Up to [`FULL`] entries lie side by side in one vector. Where there are more, such vectors are
//! the leaves of a tree whose parts are shared by its copies: to change one entry copies one leaf
//! and what leads to it, however many entries there are. The tree is no higher than the logarithm
//! of their number to the base of [`SMALL`]: a million of them make four levels. So deep, and no
//! deeper, the functions here call themselves.

use std::slice;
use std::sync::Arc;

/// The most entries of a leaf, and the most parts of what is none. To copy so many, of a few words
/// each, costs about as much as to decode a short record.
const FULL: usize = 128;

/// Number of entries or parts below which they are joined with their neighbour's, if both fit into
/// three quarters of one.
const SMALL: usize = FULL / 4;

type Part<V> = (Arc<str>, Arc<Names<V>>);

#[derive(Debug, Clone)]
pub(crate) enum Names<V> {
    /// In the order of the names.
    Leaf(Vec<(Arc<str>, V)>),
    /// Behind one more pointer, so that the small ones need no word to be told apart.
    Inner(Box<Inner<V>>),
}

/// Parts of the same height in order. The name that a part but the first has here is after all
/// names of the parts before it, and not after its own.
#[derive(Debug, Clone)]
pub(crate) struct Inner<V>(Vec<Part<V>>);

impl<V> Default for Names<V> {
    fn default() -> Self {
        Names::Leaf(Vec::new())
    }
}

impl<V> Inner<V> {
    /// Index of the part that has the name, if any has.
    fn place(&self, name: &str) -> usize {
        self.0.partition_point(|(first, _)| **first <= *name).saturating_sub(1)
    }
}

fn find<V>(entries: &[(Arc<str>, V)], name: &str) -> Result<usize, usize> {
    entries.binary_search_by(|(other, _)| (**other).cmp(name))
}

/// Puts `entry` where it belongs; what is too much of `entries` then. Whoever adds in order leaves
/// full ones behind.
fn put<E>(entries: &mut Vec<E>, at: usize, entry: E) -> Option<Vec<E>> {
    // Doubling would leave a third of all memory empty.
    if entries.len() == entries.capacity() {
        entries.reserve_exact(entries.len() / 8 + 1);
    }
    entries.insert(at, entry);
    if entries.len() <= FULL {
        return None;
    }
    let is_last = at + 1 == entries.len();
    let rest = entries.split_off(if is_last { FULL } else { FULL / 2 });
    entries.shrink_to_fit();
    Some(rest)
}

impl<V> Names<V> {
    pub fn get(&self, name: &str) -> Option<&V> {
        let mut names = self;
        loop {
            match names {
                Names::Leaf(entries) => {
                    return find(entries, name).ok().map(|at| &entries[at].1);
                }
                Names::Inner(inner) => names = &inner.0[inner.place(name)].1,
            }
        }
    }

    pub fn iter(&self) -> Iter<'_, V> {
        match self {
            Names::Leaf(entries) => Iter { parts: Vec::new(), leaf: entries.iter() },
            Names::Inner(inner) => Iter { parts: vec![inner.0.iter()], leaf: [].iter() },
        }
    }

    /// Number of entries. Looks at every leaf, at no entry.
    pub fn len(&self) -> usize {
        match self {
            Names::Leaf(entries) => entries.len(),
            Names::Inner(inner) => inner.0.iter().map(|(_, part)| part.len()).sum(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.width() == 0
    }

    /// Number of entries or parts at the top.
    fn width(&self) -> usize {
        match self {
            Names::Leaf(entries) => entries.len(),
            Names::Inner(inner) => inner.0.len(),
        }
    }

    fn first(&self) -> Option<&Arc<str>> {
        self.iter().next().map(|(name, _)| name)
    }
}

impl<V: Clone> Names<V> {
    /// Returns the value of `name`. Copies what is shared on the way to it, so it is for who
    /// changes it.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut V> {
        match self {
            Names::Leaf(entries) => find(entries, name).ok().map(|at| &mut entries[at].1),
            Names::Inner(inner) => {
                let at = inner.place(name);
                Arc::make_mut(&mut inner.0[at].1).get_mut(name)
            }
        }
    }

    /// Returns the value of `name`, to be changed; adds what `new` gives if it had none.
    pub fn get_or_insert(&mut self, name: &str, new: impl FnOnce() -> (Arc<str>, V)) -> &mut V {
        if self.get(name).is_none() {
            let (name, value) = new();
            if let Some(rest) = self.add(name, value) {
                let begin = std::mem::take(self);
                let parts = [begin, rest]
                    .map(|part| (part.first().cloned().unwrap_or_default(), Arc::new(part)));
                *self = Names::Inner(Box::new(Inner(parts.into())));
            }
        }
        self.get_mut(name).expect("it was there or was put there")
    }

    /// Adds a name that is not there. What is too much then: the last half, or the last entry.
    fn add(&mut self, name: Arc<str>, value: V) -> Option<Names<V>> {
        match self {
            Names::Leaf(entries) => {
                let at = find(entries, &name).unwrap_or_else(|at| at);
                put(entries, at, (name, value)).map(Names::Leaf)
            }
            Names::Inner(inner) => {
                let at = inner.place(&name);
                let rest = Arc::make_mut(&mut inner.0[at].1).add(name, value)?;
                let first = rest.first().cloned().unwrap_or_default();
                let rest = put(&mut inner.0, at + 1, (first, Arc::new(rest)));
                rest.map(|rest| Names::Inner(Box::new(Inner(rest))))
            }
        }
    }

    /// Takes `name` away; nothing is copied if it is not there.
    pub fn remove(&mut self, name: &str) {
        if self.get(name).is_none() {
            return;
        }
        self.take(name);
        while let Names::Inner(inner) = self {
            match inner.0.len() {
                0 => *self = Names::default(),
                1 => {
                    let (_, only) = inner.0.remove(0);
                    *self = Arc::unwrap_or_clone(only);
                }
                _ => return,
            }
        }
    }

    fn take(&mut self, name: &str) {
        match self {
            Names::Leaf(entries) => {
                if let Ok(at) = find(entries, name) {
                    entries.remove(at);
                }
            }
            Names::Inner(inner) => {
                let at = inner.place(name);
                Arc::make_mut(&mut inner.0[at].1).take(name);
                inner.join(at);
            }
        }
    }

    fn append(&mut self, next: Names<V>) {
        match (self, next) {
            (Names::Leaf(entries), Names::Leaf(mut next)) => entries.append(&mut next),
            (Names::Inner(inner), Names::Inner(mut next)) => inner.0.append(&mut next.0),
            _ => unreachable!("all parts of one have the same height"),
        }
    }
}

impl<V: Clone> Inner<V> {
    /// Joins part `at` with a neighbour if it has become small; one that is empty goes.
    fn join(&mut self, at: usize) {
        let width = self.0[at].1.width();
        if width == 0 {
            self.0.remove(at);
            return;
        }
        let fits = |other: &usize| {
            let other = self.0.get(*other).map(|(_, part)| part.width());
            other.is_some_and(|other| other + width <= FULL - SMALL)
        };
        if width > SMALL {
            return;
        }
        let left = if fits(&(at + 1)) {
            at
        } else if at > 0 && fits(&(at - 1)) {
            at - 1
        } else {
            return;
        };
        let (_, right) = self.0.remove(left + 1);
        Arc::make_mut(&mut self.0[left].1).append(Arc::unwrap_or_clone(right));
    }
}

/// The entries in the order of their names.
pub(crate) struct Iter<'a, V> {
    parts: Vec<slice::Iter<'a, Part<V>>>,
    leaf: slice::Iter<'a, (Arc<str>, V)>,
}

impl<'a, V> Iterator for Iter<'a, V> {
    type Item = &'a (Arc<str>, V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.leaf.next() {
                return Some(entry);
            }
            match self.parts.last_mut()?.next().map(|(_, part)| &**part) {
                None => drop(self.parts.pop()),
                Some(Names::Leaf(entries)) => self.leaf = entries.iter(),
                Some(Names::Inner(inner)) => self.parts.push(inner.0.iter()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Put(u16, u32),
        Remove(u16),
        /// The copy that is compared at the end begins here.
        Keep,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..2_000_u16, any::<u32>()).prop_map(|(name, value)| Step::Put(name, value)),
            4 => (0..2_000_u16).prop_map(Step::Remove),
            1 => Just(Step::Keep),
        ]
    }

    /// The names from the one to the other, in either direction, or spread.
    fn bulk() -> impl Strategy<Value = Vec<Step>> {
        let names = (0..2_000_u16, 0..1_200_u16, 0..3_u8).prop_map(|(first, count, order)| {
            let names = (0..count).map(move |at| first.wrapping_add(at) % 2_000);
            match order {
                0 => names.collect::<Vec<_>>(),
                1 => names.rev().collect(),
                _ => names.map(|name| name.wrapping_mul(797) % 2_000).collect(),
            }
        });
        (names, any::<bool>()).prop_map(|(names, is_put)| {
            let step = |name| if is_put { Step::Put(name, 1) } else { Step::Remove(name) };
            names.into_iter().map(step).collect()
        })
    }

    /// The height of what is sound.
    fn height<V>(names: &Names<V>, is_root: bool) -> usize {
        assert!(names.width() <= FULL && (is_root || names.width() > 0));
        let Names::Inner(inner) = names else { return 1 };
        let heights: Vec<usize> = inner.0.iter().map(|(_, part)| height(part, false)).collect();
        assert!(heights.iter().all(|height| *height == heights[0]), "{heights:?}");
        heights[0] + 1
    }

    fn listed(names: &Names<u32>) -> Vec<(String, u32)> {
        names.iter().map(|(name, value)| (name.to_string(), *value)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn it_holds_what_a_map_holds_and_so_do_its_copies(
            steps in vec(prop_oneof![1 => bulk(), 1 => vec(step(), 0..200)], 0..8),
        ) {
            let (mut names, mut map) = (Names::default(), BTreeMap::new());
            let (mut kept, mut kept_map) = (names.clone(), map.clone());
            for step in steps.into_iter().flatten() {
                match step {
                    Step::Put(name, value) => {
                        let name = format!("{name}");
                        *names.get_or_insert(&name, || (name.as_str().into(), 0)) = value;
                        map.insert(name, value);
                    }
                    Step::Remove(name) => {
                        names.remove(&format!("{name}"));
                        map.remove(&format!("{name}"));
                    }
                    Step::Keep => (kept, kept_map) = (names.clone(), map.clone()),
                }
            }
            height(&names, true);
            for (names, map) in [(&names, &map), (&kept, &kept_map)] {
                let expected: Vec<_> =
                    map.iter().map(|(name, value)| (name.clone(), *value)).collect();
                prop_assert_eq!(listed(names), expected);
                prop_assert_eq!((names.len(), names.is_empty()), (map.len(), map.is_empty()));
                for name in 0..2_000 {
                    let name = format!("{name}");
                    prop_assert_eq!(names.get(&name), map.get(&name));
                }
            }
        }
    }

    thread_local! {
        static COPIES: Cell<usize> = const { Cell::new(0) };
    }

    /// A value that counts how often it is copied.
    #[derive(Debug, Default)]
    struct Counted;

    impl Clone for Counted {
        fn clone(&self) -> Self {
            COPIES.set(COPIES.get() + 1);
            Counted
        }
    }

    /// The most entries that a change of one of `names` copies, each beside a copy that somebody
    /// reads.
    fn copied(
        names: &mut Names<Counted>,
        mut change: impl FnMut(&mut Names<Counted>, &str),
    ) -> usize {
        let mut most = 0;
        for number in (0..100_000).step_by(97) {
            let read = names.clone();
            COPIES.set(0);
            change(names, &format!("{number}"));
            most = most.max(COPIES.get());
            drop(read);
        }
        most
    }

    #[test]
    fn a_change_of_one_among_a_hundred_thousand_copies_no_more_than_two_leaves() {
        let mut names = Names::default();
        COPIES.set(0);
        for number in 0..100_000 {
            let name = format!("{}", number * 7_919 % 100_000);
            names.get_or_insert(&name, || (name.as_str().into(), Counted));
        }
        assert_eq!(COPIES.get(), 0, "nobody has a copy");
        assert_eq!((names.len(), height(&names, true)), (100_000, 3));
        let set = |names: &mut Names<Counted>, name: &str| *names.get_mut(name).unwrap() = Counted;
        assert!(copied(&mut names, set) <= FULL);
        assert!(copied(&mut names, Names::remove) <= 2 * FULL);
        let put = |names: &mut Names<Counted>, name: &str| {
            names.get_or_insert(name, || (name.into(), Counted));
        };
        assert!(copied(&mut names, put) <= FULL);
        for number in 0..100_000 {
            names.remove(&format!("{number}"));
        }
        assert!(names.is_empty() && matches!(names, Names::Leaf(_)));
    }

    #[test]
    fn a_small_one_is_no_larger_than_a_vector() {
        assert_eq!(size_of::<Names<u64>>(), size_of::<Vec<u64>>());
    }
}
