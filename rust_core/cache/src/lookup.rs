//! Finding what is known of a prompt, and how much of that can be used.

use std::sync::Arc;

use crate::entries::{Key, NO_ENTRY};
use crate::identity::Salt;
use crate::sequence::Sequence;
use crate::store::Store;

impl Store {
    /// The longest known chain of entries along `tokens`.
    pub(crate) fn chain(&self, tokens: &[u32], salt: &Arc<Salt>) -> Vec<u32> {
        let mut chain = Vec::new();
        let mut key = Key {
            hash: self.hasher.root(salt),
            parent: NO_ENTRY,
            salt: Arc::clone(salt),
        };
        let mut known_hash = key.hash;
        for tokens in tokens.chunks_exact(self.layout.block_tokens) {
            key.hash = self.hasher.block(known_hash, tokens);
            let Some(entry) = self.entries.find(&key, tokens) else {
                break;
            };
            chain.push(entry);
            (key.parent, known_hash) = (entry, key.hash);
        }
        chain
    }

    /// Tells the policy which whole blocks of a new sequence's prompt are not there.
    pub(crate) fn report_misses(&mut self, prompt: &[u32], sequence: &Sequence) {
        let (chain, mut hash) = (self.layout.chain, sequence.hash);
        for tokens in prompt[sequence.tokens.len()..].chunks_exact(self.layout.block_tokens) {
            hash = self.hasher.block(hash, tokens);
            self.policy.miss(unit_key(hash, chain));
        }
    }

    /// The hash that the block after this chain follows.
    pub(crate) fn chain_hash(&self, chain: &[u32], salt: &Salt) -> u64 {
        let last = chain.last().and_then(|&entry| self.entries.get(entry));
        last.map_or_else(|| self.hasher.root(salt), |entry| entry.key.hash)
    }

    /// How many blocks of a chain can be used: every class has the pages that the token after them can see.
    pub(crate) fn usable(&self, chain: &[u32]) -> usize {
        let mut usable = 0;
        let mut first_of_run = vec![0; self.layout.classes.len()]; // since then, no page is missing
        for (block, &entry) in chain.iter().enumerate() {
            let end = block + 1;
            for (class, first) in first_of_run.iter_mut().enumerate() {
                let has_pages = self.layout.classes[class].row.is_empty() || self.pages(entry, class).is_some();
                *first = if has_pages { *first } else { end };
            }
            let position = end * self.layout.block_tokens;
            let is_seen = |(class, &first): (usize, &usize)| first <= self.layout.first_block(class, position);
            if first_of_run.iter().enumerate().all(is_seen) {
                usable = end;
            }
        }
        usable
    }
}

/// Names the content of a unit across evictions.
pub(crate) fn unit_key(hash: u64, class: usize) -> u64 {
    hash ^ (class as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
