//! What the pool can say about a prompt, and about what it holds: for the person who asks why something was computed.

use std::sync::Arc;

use crate::entries::{Entry, NO_ENTRY};
use crate::identity::Salt;
use crate::lookup::num_common;
use crate::pool::BlockPool;
use crate::store::{State, Store};

/// Why a prompt's cached prefix is not longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// All whole blocks but the last token's are cached.
    Complete,
    /// What is cached goes on with other tokens.
    Changed,
    /// It was cached once.
    Evicted,
    /// Nothing like it was computed.
    Cold,
}

/// How far a prompt is cached, how far it was known, and why it stops there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explanation {
    /// Tokens that need no computing now.
    pub cached_tokens: usize,
    /// Tokens up to the first that differs from anything computed, as far as is remembered.
    pub known_tokens: usize,
    /// Why `cached_tokens` is not more.
    pub reason: Reason,
}

/// A prefix that can be found, to its last block, whole or not.
#[derive(Debug, Clone, PartialEq)]
pub struct CachedPrefix {
    /// Hash of the whole prefix; the same in every process for hashers without a key of their own.
    pub key: u64,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Whose it is.
    pub salt: Arc<Salt>,
    /// Pages along it, those shared with other prefixes included.
    pub num_pages: usize,
    /// Whether a sequence uses its last block.
    pub is_used: bool,
    /// Whether its last block is pinned.
    pub is_pinned: bool,
    /// Whether its last block is retained.
    pub is_retained: bool,
    /// Whether its last block goes first.
    pub is_demoted: bool,
    /// Microseconds since its last block was used.
    pub idle_micros: u64,
    /// Prompts that found its last block.
    pub hits: u32,
}

impl BlockPool {
    /// How far `prompt` is cached, and why not further.
    pub fn explain(&self, prompt: &[u32], salt: &Salt) -> Explanation {
        let store = &self.store;
        let salt = Arc::new(salt.clone());
        let chain = store.chain(prompt, &salt);
        let usable_tokens = prompt.len().saturating_sub(1);
        let usable = usable_tokens / self.block_tokens();
        let cached = store.usable(&chain[..chain.len().min(usable)]);
        let next = &prompt[cached * self.block_tokens()..usable_tokens];
        let part = store.part(&chain[..cached], next, &salt);
        let cached_tokens = cached * self.block_tokens() + part.map_or(0, |part| part.num_tokens);
        let known = chain.len() * self.block_tokens();
        let remembered = known + store.remembered(&prompt[known..], store.chain_hash(&chain, &salt));
        let (common, reason) = match store.nearest(&chain, &prompt[known..], &salt) {
            _ if cached == usable => (0, Reason::Complete),
            (common, _) if remembered > known || chain.len() > cached => (common, Reason::Evicted),
            nearest => nearest,
        };
        Explanation {
            cached_tokens,
            known_tokens: remembered.max(known + common).max(cached_tokens),
            reason,
        }
    }

    /// The tenants' prefixes that can be found and that nothing of the same tenant goes on from, last used first; at
    /// most `limit`.
    pub fn prefixes(&self, limit: usize, tenants: &[&[u8]]) -> Vec<CachedPrefix> {
        let store = &self.store;
        let all = (0..store.entries.bound()).filter_map(|number| Some((number, store.entries.get(number)?)));
        let is_own = |entry: &Entry| tenants.contains(&&*entry.key.salt.tenant);
        let is_end = |number, entry: &Entry| {
            let goes_on = |(_, child): (u32, &Entry)| child.key.salt == entry.key.salt;
            entry.is_listed && !store.entries.children(number).any(goes_on)
        };
        let mut ends: Vec<(u32, &Entry)> = all
            .filter(|&(number, entry)| is_own(entry) && is_end(number, entry))
            .collect();
        ends.sort_by_key(|&(number, entry)| (std::cmp::Reverse(entry.last_use), number));
        ends.truncate(limit);
        let now = (store.clock)();
        ends.into_iter()
            .map(|(number, entry)| store.describe(number, entry, now))
            .collect()
    }
}

impl Store {
    /// Tokens of whole blocks after `hash` that were cached once.
    fn remembered(&self, tokens: &[u32], mut hash: u64) -> usize {
        let blocks = tokens.chunks_exact(self.layout.block_tokens);
        let is_known = |block: &&[u32]| {
            hash = self.hasher.block(hash, block);
            self.ghosts.contains(hash)
        };
        blocks.take_while(is_known).count() * self.layout.block_tokens
    }

    /// How many of `tokens` agree with what follows `chain` in the cache, and why no whole block does.
    fn nearest(&self, chain: &[u32], tokens: &[u32], salt: &Salt) -> (usize, Reason) {
        let compare = |number: u32| {
            let common = num_common(self.entries.tokens(number), tokens);
            (common, common == self.entries.tokens(number).len())
        };
        let end = chain.last().copied().unwrap_or(NO_ENTRY);
        let seen = self
            .entries
            .children(end)
            .filter(|(_, entry)| salt.sees(&entry.key.salt));
        let best = seen.map(|(number, _)| compare(number)).max();
        let (common, is_all) = best.unwrap_or((0, true));
        let reason = match () {
            () if is_all || (common == 0 && chain.is_empty()) => Reason::Cold,
            () => Reason::Changed,
        };
        (common, reason)
    }

    fn describe(&self, number: u32, entry: &Entry, now: u64) -> CachedPrefix {
        let up = |&number: &u32| Some(self.entries.get(number)?.key.parent).filter(|&parent| parent != NO_ENTRY);
        let mut chain: Vec<u32> = std::iter::successors(Some(number), up).collect();
        chain.reverse();
        let classes = 0..self.layout.classes.len();
        let present = |entry: u32| {
            classes
                .clone()
                .filter_map(move |class| self.pages(entry, class))
                .map(<[u32]>::len)
        };
        let units: Vec<_> = classes.clone().map(|class| self.unit(number, class)).collect();
        CachedPrefix {
            key: entry.key.hash,
            tokens: chain
                .iter()
                .flat_map(|&entry| self.entries.tokens(entry))
                .copied()
                .collect(),
            salt: Arc::clone(&entry.key.salt),
            num_pages: chain.iter().flat_map(|&entry| present(entry)).sum(),
            is_used: units.iter().any(|unit| unit.refs > 0),
            is_pinned: units.iter().any(|unit| unit.pins > 0),
            is_retained: units.iter().any(|unit| unit.retains > 0),
            is_demoted: units.iter().any(|unit| unit.state == State::Demoted),
            idle_micros: now.saturating_sub(entry.last_use),
            hits: entry.hits,
        }
    }
}
