//! Names in order of their bytes, from keys that are in another order.
//!
//! Keys are in order of `name + "/"`, so the keys of `a` come after those of `a!b`, and `a` comes before it. A page of
//! names is read from keys in their order. When it is full, names are missing that come before some of those found and
//! whose keys come later. Such a name is a beginning of the key where the page stopped, and the byte that follows it there
//! is not after `/`. Each of them is looked up.

use std::collections::BTreeSet;

use super::keys::{ContenderKey, KeyLayout, KeyRange, end_of_prefix};
use super::messages::StoredKey;
use crate::engine::Query;

/// One page of names that is being read.
pub(super) struct NameScan<'a> {
    layout: &'a KeyLayout,
    query: &'a Query,
    found: BTreeSet<String>,
    /// The key at which the page was full, without the prefix.
    stopped: Option<Vec<u8>>,
}

impl<'a> NameScan<'a> {
    pub fn new(layout: &'a KeyLayout, query: &'a Query) -> Self {
        Self { layout, query, found: BTreeSet::new(), stopped: None }
    }

    /// The keys to read, in order.
    pub fn range(&self) -> KeyRange {
        let from = match &self.query.after {
            Some(after) if after.as_str() > self.query.prefix.as_str() => after,
            _ => &self.query.prefix,
        };
        let (all_from, all_end) = self.layout.all();
        let start = self.layout.raw(from);
        let end = match self.query.prefix.is_empty() {
            true => all_end,
            false => end_of_prefix(&self.layout.raw(&self.query.prefix)),
        };
        (if start.is_empty() { all_from } else { start }, end)
    }

    /// Takes the next key. `false`: the page is full.
    pub fn take_key(&mut self, kv: &StoredKey) -> bool {
        if let Some(name) = shown_name(self.layout, kv)
            && self.is_asked_for(&name)
        {
            self.found.insert(name);
        }
        if self.found.len() < self.query.limit {
            return true;
        }
        self.stopped = self.layout.without_prefix(&kv.key).map(<[u8]>::to_vec);
        false
    }

    fn is_asked_for(&self, name: &str) -> bool {
        name.starts_with(&self.query.prefix) && self.query.after.as_deref().is_none_or(|after| name > after)
    }

    /// Names that may be missing, and the rest of the keys in which each of them would be found.
    pub fn missing(&self) -> Vec<(String, KeyRange)> {
        let Some(stopped) = &self.stopped else { return Vec::new() };
        let mut missing = Vec::new();
        for end in 1..stopped.len() {
            let Ok(name) = std::str::from_utf8(&stopped[..end]) else { continue };
            if stopped[end] <= b'/' && self.is_asked_for(name) && !self.found.contains(name) {
                let (start, end) = self.layout.queue(name);
                let mut rest = [&self.layout.raw("")[..], stopped].concat();
                rest.push(0);
                missing.push((name.to_owned(), (start.max(rest), end)));
            }
        }
        missing
    }

    /// The page, with those of the missing that are there.
    pub fn finish(mut self, there: impl IntoIterator<Item = String>) -> Vec<String> {
        self.found.extend(there);
        self.found.into_iter().take(self.query.limit).collect()
    }
}

/// The name of a key that is shown: of ours, or a lock of Go's library.
pub(super) fn shown_name(layout: &KeyLayout, kv: &StoredKey) -> Option<String> {
    match layout.parse_any(kv)? {
        (name, ContenderKey::Ours(..) | ContenderKey::Foreign(true)) => Some(name),
        (_, ContenderKey::Foreign(false)) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::Mode;
    use crate::engine::consensus::lease_id::PublicId;

    type World = BTreeMap<Vec<u8>, i64>;

    fn stored(key: &[u8], lease: i64) -> StoredKey {
        StoredKey { key: key.to_vec(), lease, ..StoredKey::default() }
    }

    fn inside<'w>(world: &'w World, range: &KeyRange) -> impl Iterator<Item = StoredKey> + 'w {
        let (from, end) = range.clone();
        let to_the_end = end == [0];
        world
            .iter()
            .filter(move |(key, _)| **key >= from && (to_the_end || **key < end))
            .map(|(key, lease)| stored(key, *lease))
    }

    /// Reads one page as the engine does.
    fn read_page(layout: &KeyLayout, world: &World, query: &Query) -> Vec<String> {
        let mut scan = NameScan::new(layout, query);
        for kv in inside(world, &scan.range()) {
            if !scan.take_key(&kv) {
                break;
            }
        }
        let missing = scan.missing();
        let there = missing
            .into_iter()
            .filter(|(name, rest)| inside(world, rest).any(|kv| shown_name(layout, &kv).as_ref() == Some(name)));
        let there: Vec<String> = there.map(|(name, _)| name).collect();
        scan.finish(there)
    }

    fn any_name() -> impl Strategy<Value = String> {
        // Bytes around the slash, and digits as in suffixes, make names that are beginnings of each other.
        "[a\\-./0x!~]{1,5}"
    }

    fn any_world() -> impl Strategy<Value = (Vec<String>, Vec<String>, Vec<String>)> {
        let names = || prop::collection::vec(any_name(), 0..25);
        (names(), names(), names())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

        /// Goal: page by page all names are read, each once, in order of their bytes: ours and those of other clients.
        #[test]
        fn pages_are_all_names_in_order(
            (ours, foreign, junk) in any_world(), prefix in "[a\\-./0x!~]{0,2}", limit in 1..5_usize, base in "(|p/)",
        ) {
            let layout = KeyLayout::new(&base);
            let mut world = World::new();
            for (at, name) in ours.iter().enumerate() {
                let public = PublicId([u8::try_from(at).expect("few"); 16]);
                let mode = [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 1, capacity: 2 }][at % 3];
                world.insert(layout.contender(name, mode, public), 5);
            }
            for (at, name) in foreign.iter().enumerate() {
                let lease = 0xa0 + i64::try_from(at).expect("few");
                world.insert(layout.raw(&format!("{name}/{lease:x}")), lease);
            }
            for name in &junk {
                // It may have the name of a lock's key.
                world.entry(layout.raw(name)).or_insert(0);
                world.insert(layout.raw(&format!("\u{1}e/{name}")), 0);
            }
            let mut expected: Vec<String> =
                ours.into_iter().chain(foreign).filter(|name| name.starts_with(&prefix)).collect();
            expected.sort();
            expected.dedup();
            let mut read: Vec<String> = Vec::new();
            loop {
                let query = Query { prefix: prefix.clone(), after: read.last().cloned(), limit };
                let page = read_page(&layout, &world, &query);
                prop_assert!(page.len() <= limit);
                if page.is_empty() {
                    break;
                }
                read.extend(page);
                prop_assert!(read.len() <= expected.len(), "{:?} of {:?}", read, expected);
            }
            prop_assert_eq!(read, expected);
        }
    }
}
