//! Finding what is known of a prompt, and how much of that can be used.

use std::sync::Arc;

use crate::entries::{Entry, Key, NO_ENTRY};
use crate::identity::Salt;
use crate::sequence::Sequence;
use crate::store::{State, Store};

/// Of the blocks that follow a prefix, so many are compared with what a prompt goes on with, the newest first.
const MOST_COMPARED: usize = 64;

impl Store {
    /// The longest known chain of entries along `tokens`: the common ones, then the tenant's own.
    pub(crate) fn chain(&self, tokens: &[u32], salt: &Arc<Salt>) -> Vec<u32> {
        let common = Arc::new(salt.in_common());
        let mut chain = self.follow(Vec::new(), tokens, &common);
        if common != *salt {
            chain = self.follow(chain, tokens, salt);
        }
        chain
    }

    /// The longest known chain along `tokens` that goes on from this one under exactly this salt.
    fn follow(&self, mut chain: Vec<u32>, tokens: &[u32], salt: &Arc<Salt>) -> Vec<u32> {
        let mut key = Key {
            hash: self.chain_hash(&chain, salt),
            parent: end_of(&chain),
            salt: Arc::clone(salt),
        };
        for tokens in tokens.chunks_exact(self.layout.block_tokens).skip(chain.len()) {
            key.hash = self.hasher.block(key.hash, tokens);
            let Some(entry) = self.entries.find(&key, tokens) else {
                break;
            };
            chain.push(entry);
            key.parent = entry;
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

    /// The hash that the block of this salt after this chain follows.
    pub(crate) fn chain_hash(&self, chain: &[u32], salt: &Salt) -> u64 {
        let last = chain.last().and_then(|&entry| self.entries.get(entry));
        last.map_or_else(|| self.hasher.root(salt), |entry| self.hash_after(&entry.key, salt))
    }

    /// The hash that a block of this salt after the entry of `key` follows.
    pub(crate) fn hash_after(&self, key: &Key, salt: &Salt) -> u64 {
        match *key.salt == *salt {
            true => key.hash,
            false => self.hasher.border(key.hash, salt),
        }
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

/// How a block that follows a prefix begins as a prompt does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Alike {
    /// Tokens in common, at least one.
    pub(crate) num_tokens: usize,
    pub(crate) entry: u32,
}

impl Store {
    /// Of the newest blocks after `parent`, those with all their pages that begin as `tokens` do and that `salt` sees.
    pub(crate) fn alike(&self, parent: u32, tokens: &[u32], salt: &Salt) -> impl Iterator<Item = Alike> {
        let begins_so = move |(number, entry): (u32, &Entry)| {
            let num_tokens = num_common(self.entries.tokens(number), tokens);
            let is_usable = num_tokens > 0 && salt.sees(&entry.key.salt) && self.has_all_pages(number);
            is_usable.then_some(Alike {
                num_tokens,
                entry: number,
            })
        };
        self.entries.children(parent).take(MOST_COMPARED).filter_map(begins_so)
    }

    /// The block after a usable chain that begins with most of `tokens`.
    pub(crate) fn part(&self, chain: &[u32], tokens: &[u32], salt: &Salt) -> Option<Alike> {
        let parts = self.alike(end_of(chain), tokens, salt);
        let parts = parts.filter(|part| self.stands_for(*part));
        parts.filter_map(|part| self.gone_on_from(part)).max()
    }

    /// Whether what an entry holds can be used for the tokens in common: the state after a block is that after all of it.
    pub(crate) fn stands_for(&self, part: Alike) -> bool {
        !self.layout.has_states || part.num_tokens == self.entries.tokens(part.entry).len()
    }

    /// What can be gone on from of a part: where the record is not that of the last token in common, this is computed once
    /// more; all else that the token leaves behind is there.
    fn gone_on_from(&self, part: Alike) -> Option<Alike> {
        let is_whole = part.num_tokens == self.entries.tokens(part.entry).len();
        let num_again = usize::from(self.layout.has_records && !is_whole);
        let num_tokens = part.num_tokens - num_again;
        (num_tokens > 0).then_some(Alike { num_tokens, ..part })
    }

    /// The tail after a usable chain that begins with all of `tokens`, or these with all of it.
    pub(crate) fn tail(&self, chain: &[u32], tokens: &[u32], salt: &Salt) -> Option<Alike> {
        let is_all = |part: &Alike| part.num_tokens == tokens.len().min(self.entries.tokens(part.entry).len());
        let tails = self
            .alike(end_of(chain), tokens, salt)
            .filter(|part| self.entries.is_tail(part.entry));
        tails.filter(is_all).max()
    }

    /// Whether no class gave up its pages of the entry.
    fn has_all_pages(&self, entry: u32) -> bool {
        let mut classes = (0..).zip(&self.layout.classes);
        classes.all(|(class, layout)| layout.row.is_empty() || self.unit(entry, class).state != State::Absent)
    }
}

fn end_of(chain: &[u32]) -> u32 {
    chain.last().copied().unwrap_or(NO_ENTRY)
}

/// How many tokens both begin with.
pub(crate) fn num_common(left: &[u32], right: &[u32]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

/// Names the content of a unit across evictions.
pub(crate) fn unit_key(hash: u64, class: usize) -> u64 {
    hash ^ (class as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
