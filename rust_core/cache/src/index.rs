//! The prefix index: from what a block computes to the block, with the hash only as a signpost.

use std::collections::HashMap;
use std::sync::Arc;

use crate::identity::Salt;

/// In place of a block: the parent of a first block, the end of a bucket.
pub(crate) const NO_BLOCK: u32 = u32::MAX;

/// Everything but the tokens that tells one indexed block from another.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    /// Chain hash of the block.
    pub(crate) hash: u64,
    /// The indexed block before it, or [`NO_BLOCK`].
    pub(crate) parent: u32,
    /// Salt of the sequences that may use it.
    pub(crate) salt: Arc<Salt>,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    next_in_bucket: u32,
}

/// Indexed blocks by chain hash; blocks whose hashes collide share a bucket, chained through their entries.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    block_tokens: usize,
    hash_to_bucket: HashMap<u64, u32>,
    entries: Vec<Option<Entry>>,
    tokens: Vec<u32>, // [num_blocks * block_tokens], valid where there is an entry
}

impl PrefixIndex {
    /// An empty index. `None` when there is no memory for it.
    pub(crate) fn new(num_blocks: u32, block_tokens: usize) -> Option<Self> {
        let (mut entries, mut tokens) = (Vec::new(), Vec::new());
        entries.try_reserve_exact(num_blocks as usize).ok()?;
        entries.resize_with(num_blocks as usize, || None);
        let num_tokens = (num_blocks as usize).checked_mul(block_tokens)?;
        tokens.try_reserve_exact(num_tokens).ok()?;
        tokens.resize(num_tokens, 0);
        Some(Self {
            block_tokens,
            hash_to_bucket: HashMap::new(),
            entries,
            tokens,
        })
    }

    /// Number of indexed blocks.
    pub(crate) fn len(&self) -> usize {
        self.entries.iter().flatten().count()
    }

    /// Number of blocks that a walk over all buckets meets.
    pub(crate) fn num_reachable(&self) -> usize {
        self.hash_to_bucket.keys().map(|&hash| self.bucket(hash).count()).sum()
    }

    /// Whether `block` is indexed.
    pub(crate) fn contains(&self, block: u32) -> bool {
        self.entries[block as usize].is_some()
    }

    /// The key of an indexed block.
    pub(crate) fn key(&self, block: u32) -> Option<&Key> {
        self.entries[block as usize].as_ref().map(|entry| &entry.key)
    }

    /// The tokens of an indexed block.
    pub(crate) fn tokens(&self, block: u32) -> &[u32] {
        let start = block as usize * self.block_tokens;
        &self.tokens[start..start + self.block_tokens]
    }

    fn bucket(&self, hash: u64) -> impl Iterator<Item = (u32, &Entry)> {
        let entry = |block: u32| self.entries.get(block as usize)?.as_ref().map(|entry| (block, entry));
        let first = self.hash_to_bucket.get(&hash).and_then(|&block| entry(block));
        std::iter::successors(first, move |(_, previous)| entry(previous.next_in_bucket))
    }

    /// The block that holds exactly these tokens after exactly this parent under an equal salt.
    pub(crate) fn find(&self, key: &Key, tokens: &[u32]) -> Option<u32> {
        let is_same = |entry: &Entry| {
            entry.key.hash == key.hash
                && entry.key.parent == key.parent
                && (Arc::ptr_eq(&entry.key.salt, &key.salt) || entry.key.salt == key.salt)
        };
        self.bucket(key.hash)
            .find(|(block, entry)| is_same(entry) && self.tokens(*block) == tokens)
            .map(|(block, _)| block)
    }

    /// Indexes `block`, which must not be indexed, nor anything identical to it.
    pub(crate) fn insert(&mut self, block: u32, key: Key, tokens: &[u32]) {
        debug_assert!(!self.contains(block));
        let start = block as usize * self.block_tokens;
        self.tokens[start..start + self.block_tokens].copy_from_slice(tokens);
        let next_in_bucket = self.hash_to_bucket.insert(key.hash, block).unwrap_or(NO_BLOCK);
        self.entries[block as usize] = Some(Entry { key, next_in_bucket });
    }

    /// Forgets `block`; returns whether it was indexed.
    pub(crate) fn remove(&mut self, block: u32) -> bool {
        let Some(removed) = self.entries[block as usize].take() else {
            return false;
        };
        let (hash, next) = (removed.key.hash, removed.next_in_bucket);
        if self.hash_to_bucket.get(&hash) != Some(&block) {
            let before = self
                .bucket(hash)
                .find(|(_, entry)| entry.next_in_bucket == block)
                .map(|(before, _)| before);
            if let Some(entry) = before.and_then(|before| self.entries[before as usize].as_mut()) {
                entry.next_in_bucket = next;
            }
        } else if next == NO_BLOCK {
            self.hash_to_bucket.remove(&hash);
        } else {
            self.hash_to_bucket.insert(hash, next);
        }
        true
    }

    /// Forgets all blocks.
    pub(crate) fn clear(&mut self) {
        self.hash_to_bucket.clear();
        self.entries.fill_with(|| None);
    }
}
