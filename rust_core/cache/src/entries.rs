//! The prefix index: entries (blocks of tokens after a known prefix), their tree, and the pages each has.
//!
//! It finds an entry by what was computed, with the hash only as a signpost, and knows nothing of who uses it.
//! Listed entries can be found; each is the child of its prefix's entry. Unlisted ones belong to sequences under
//! which the index was cleared: they have pages, but neither parent nor children. A *tail* is an entry of fewer tokens
//! than a block, where a sequence ended: nothing is its child.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::group::{Layout, NO_PAGE};
use crate::identity::Salt;

/// In place of an entry: the parent of a first block, the end of a list.
pub(crate) const NO_ENTRY: u32 = u32::MAX;

/// Everything but the tokens that tells one listed entry from another.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    /// Chain hash.
    pub(crate) hash: u64,
    /// The entry before it, or [`NO_ENTRY`].
    pub(crate) parent: u32,
    /// Salt of the sequences that computed it; those that see it may use it.
    pub(crate) salt: Arc<Salt>,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) is_listed: bool,
    /// Blocks before it.
    pub(crate) depth: u32,
    /// At most a block's.
    pub(crate) num_tokens: usize,
    /// Prompts that found it.
    pub(crate) hits: u32,
    /// When it was last held or let go, on the pool's clock.
    pub(crate) last_use: u64,
    /// The highest of those who used it.
    pub(crate) priority: i64,
    /// Tokens of the longest sequence that ended on or after it.
    pub(crate) reach: usize,
    pub(crate) first_child: u32,
    pub(crate) next_sibling: u32,
    previous_sibling: u32,
    next_in_bucket: u32,
}

/// All entries, by number. Numbers of forgotten entries are used again.
#[derive(Debug)]
pub(crate) struct Entries {
    block_tokens: usize,
    width: usize,
    slots: Vec<Option<Entry>>,
    unused: Vec<u32>,
    tokens: Vec<u32>, // [entries, block_tokens]
    pages: Vec<u32>,  // [entries, width]
    hash_to_bucket: HashMap<u64, u32>,
    pub(crate) first_root: u32,
}

impl Entries {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self {
            block_tokens: layout.block_tokens,
            width: layout.width,
            slots: Vec::new(),
            unused: Vec::new(),
            tokens: Vec::new(),
            pages: Vec::new(),
            hash_to_bucket: HashMap::new(),
            first_root: NO_ENTRY,
        }
    }

    /// Numbers in use, and those that were.
    pub(crate) fn bound(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The entry of this number, if there is one.
    pub(crate) fn get(&self, entry: u32) -> Option<&Entry> {
        self.slots.get(entry as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, entry: u32) -> Option<&mut Entry> {
        self.slots.get_mut(entry as usize)?.as_mut()
    }

    pub(crate) fn tokens(&self, entry: u32) -> &[u32] {
        let start = entry as usize * self.block_tokens;
        &self.tokens[start..start + self.get(entry).map_or(0, |entry| entry.num_tokens)]
    }

    /// The pages of `entry` in one part of its row; [`NO_PAGE`] where they were given up.
    pub(crate) fn pages(&self, entry: u32, row: &Range<usize>) -> &[u32] {
        let start = entry as usize * self.width;
        &self.pages[start + row.start..start + row.end]
    }

    pub(crate) fn pages_mut(&mut self, entry: u32, row: &Range<usize>) -> &mut [u32] {
        let start = entry as usize * self.width;
        &mut self.pages[start + row.start..start + row.end]
    }

    fn bucket(&self, hash: u64) -> impl Iterator<Item = (u32, &Entry)> {
        let entry = |number: u32| Some((number, self.get(number)?));
        let first = self.hash_to_bucket.get(&hash).and_then(|&number| entry(number));
        std::iter::successors(first, move |(_, previous)| entry(previous.next_in_bucket))
    }

    /// Number of entries that a walk over all buckets meets.
    pub(crate) fn num_reachable(&self) -> usize {
        self.hash_to_bucket.keys().map(|&hash| self.bucket(hash).count()).sum()
    }

    /// The entry of exactly these tokens after exactly this parent under an equal salt.
    pub(crate) fn find(&self, key: &Key, tokens: &[u32]) -> Option<u32> {
        let is_same = |other: &Key| {
            other.hash == key.hash
                && other.parent == key.parent
                && (Arc::ptr_eq(&other.salt, &key.salt) || other.salt == key.salt)
        };
        self.bucket(key.hash)
            .find(|(number, entry)| is_same(&entry.key) && self.tokens(*number) == tokens)
            .map(|(number, _)| number)
    }

    /// The entries right after `parent` (at the start, for [`NO_ENTRY`]).
    pub(crate) fn children(&self, parent: u32) -> impl Iterator<Item = (u32, &Entry)> {
        let first = self.get(parent).map_or(self.first_root, |entry| entry.first_child);
        let entry = |number: u32| Some((number, self.get(number)?));
        std::iter::successors(entry(first), move |(_, entry_before)| entry(entry_before.next_sibling))
    }

    /// Whether it is of fewer tokens than a block.
    pub(crate) fn is_tail(&self, entry: u32) -> bool {
        self.get(entry)
            .is_some_and(|entry| entry.num_tokens < self.block_tokens)
    }

    pub(crate) fn has_children(&self, entry: u32) -> bool {
        self.get(entry).is_some_and(|entry| entry.first_child != NO_ENTRY)
    }

    /// A new entry without pages; a listed one must not be there yet.
    pub(crate) fn insert(&mut self, key: Key, tokens: &[u32], is_listed: bool) -> u32 {
        let number = self.unused.pop().unwrap_or(self.bound());
        if number == self.bound() {
            self.slots.push(None);
            self.tokens.resize(self.tokens.len() + self.block_tokens, 0);
            self.pages.resize(self.pages.len() + self.width, NO_PAGE);
        }
        let start = number as usize * self.block_tokens;
        self.tokens[start..start + tokens.len()].copy_from_slice(tokens);
        let (hash, parent) = (key.hash, key.parent);
        let depth = self.get(parent).map_or(0, |entry| entry.depth + 1);
        self.slots[number as usize] = Some(Entry {
            key,
            is_listed,
            depth,
            num_tokens: tokens.len(),
            hits: 0,
            last_use: 0,
            priority: i64::MIN,
            reach: 0,
            first_child: NO_ENTRY,
            next_sibling: NO_ENTRY,
            previous_sibling: NO_ENTRY,
            next_in_bucket: NO_ENTRY,
        });
        if is_listed {
            let next_in_bucket = self.hash_to_bucket.insert(hash, number).unwrap_or(NO_ENTRY);
            let next_sibling = std::mem::replace(self.first_child_of(parent), number);
            if let Some(next) = self.get_mut(next_sibling) {
                next.previous_sibling = number;
            }
            if let Some(entry) = self.get_mut(number) {
                (entry.next_in_bucket, entry.next_sibling) = (next_in_bucket, next_sibling);
            }
        }
        number
    }

    fn first_child_of(&mut self, parent: u32) -> &mut u32 {
        match self.slots.get_mut(parent as usize).and_then(Option::as_mut) {
            Some(entry) => &mut entry.first_child,
            None => &mut self.first_root,
        }
    }

    /// Makes `entry`, which must have no children, unfindable.
    pub(crate) fn unlist(&mut self, number: u32) {
        let Some(entry) = self.get_mut(number).filter(|entry| entry.is_listed) else {
            return;
        };
        entry.is_listed = false;
        let (hash, parent) = (entry.key.hash, entry.key.parent);
        let (in_bucket, next, previous) = (entry.next_in_bucket, entry.next_sibling, entry.previous_sibling);
        entry.key.parent = NO_ENTRY;
        self.unlink_bucket(hash, number, in_bucket);
        match self.get_mut(previous) {
            Some(before) => before.next_sibling = next,
            None => *self.first_child_of(parent) = next,
        }
        if let Some(after) = self.get_mut(next) {
            after.previous_sibling = previous;
        }
    }

    fn unlink_bucket(&mut self, hash: u64, number: u32, next: u32) {
        if self.hash_to_bucket.get(&hash) != Some(&number) {
            let before = self
                .bucket(hash)
                .find(|(_, entry)| entry.next_in_bucket == number)
                .map(|(before, _)| before);
            if let Some(entry) = before.and_then(|before| self.get_mut(before)) {
                entry.next_in_bucket = next;
            }
        } else if next == NO_ENTRY {
            self.hash_to_bucket.remove(&hash);
        } else {
            self.hash_to_bucket.insert(hash, next);
        }
    }

    /// Makes all entries unfindable at once.
    pub(crate) fn unlist_all(&mut self) {
        self.hash_to_bucket.clear();
        self.first_root = NO_ENTRY;
        for entry in self.slots.iter_mut().flatten() {
            entry.is_listed = false;
            entry.key.parent = NO_ENTRY;
            entry.first_child = NO_ENTRY;
        }
    }

    /// Forgets `entry`, which must have no children and no pages.
    pub(crate) fn remove(&mut self, number: u32) {
        self.unlist(number);
        if self.slots[number as usize].take().is_some() {
            self.unused.push(number);
        }
    }
}
