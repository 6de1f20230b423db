//! What the fleet knows of the future, told about prefixes: pinned (never goes), retained (goes last), demoted (goes
//! first). Everything here concerns what is cached now; what a sequence computes later is not covered.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::error::CacheError;
use crate::identity::Salt;
use crate::marks::Units;
use crate::pool::BlockPool;

impl BlockPool {
    /// Keeps the cached prefix of `tokens` until it is unpinned; returns its number of tokens.
    ///
    /// A pin of the same name ends. At most half of the pool's limit can be pinned.
    ///
    /// # Errors
    /// [`CacheError::PinLimit`].
    pub fn pin(&mut self, name: &str, tokens: &[u32], salt: &Salt) -> Result<usize, CacheError> {
        let (num_tokens, units) = self.cover(tokens, salt);
        let limit = self.store.limit / 2;
        let pinned = self.pinned_with(name, &units);
        if pinned > limit.max(self.store.tally.pinned) {
            let name = name.to_owned();
            return Err(CacheError::PinLimit { name, pinned, limit });
        }
        self.store.tick();
        self.store.pin(name, units);
        Ok(num_tokens)
    }

    /// Ends a pin; whether there was one of this name.
    pub fn unpin(&mut self, name: &str) -> bool {
        self.store.tick();
        self.store.unpin(name)
    }

    /// Keeps the cached prefix of `tokens` longer than what is not retained; returns its number of tokens.
    ///
    /// Of what is retained, that goes first which is `expected` latest; `None` is later than any time. Once it is
    /// overdue it is ordinary. What was retained under the same name ends being so.
    pub fn retain(&mut self, name: &str, tokens: &[u32], salt: &Salt, expected: Option<Duration>) -> usize {
        let (num_tokens, units) = self.cover(tokens, salt);
        self.store.tick();
        let micros = |wait: Duration| u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let due = expected.map_or(u64::MAX, |wait| self.store.now.saturating_add(micros(wait)));
        self.store.retain(name, units, due);
        num_tokens
    }

    /// Makes what is retained under this name ordinary; whether there was any.
    pub fn forget(&mut self, name: &str) -> bool {
        self.store.tick();
        self.store.forget_retained(name).is_some()
    }

    /// Lets the cached blocks of `tokens` that nothing else continues go first; returns their number of tokens.
    ///
    /// Those with one of the first `keep_tokens` tokens stay as they are. Blocks a sequence uses are demoted when it
    /// ends; being found by another prompt makes them ordinary.
    pub fn demote(&mut self, tokens: &[u32], keep_tokens: usize, salt: &Salt) -> usize {
        self.store.tick();
        let chain = self.store.chain(tokens, &Arc::new(salt.clone()));
        let kept = keep_tokens.div_ceil(self.block_tokens());
        let rest = &tokens[chain.len() * self.block_tokens()..];
        let tail = self.store.tail(&chain, rest, salt);
        let chain: Vec<u32> = chain.into_iter().chain(tail.map(|tail| tail.entry)).collect();
        self.demote_chain(&chain[kept.min(chain.len())..]).min(tokens.len())
    }

    /// As [`BlockPool::demote`], for what is retained under this name, which ends being so.
    pub fn demote_retained(&mut self, name: &str) -> usize {
        self.store.tick();
        let Some(units) = self.store.forget_retained(name) else {
            return 0;
        };
        let places = units.into_iter().map(|unit| self.store.place_of(unit));
        let full = places.filter(|&(_, class)| class == self.store.layout.chain);
        let chain: Vec<u32> = full.map(|(entry, _)| entry).collect();
        self.demote_chain(&chain)
    }

    fn demote_chain(&mut self, chain: &[u32]) -> usize {
        let store = &mut self.store;
        let full = store.layout.chain;
        let mut num_tokens = 0;
        for &entry in chain.iter().rev() {
            let is_kept = |(child, _)| !store.unit(child, full).is_demoted;
            if store.unit(entry, full).refs > 1 || store.entries.children(entry).any(is_kept) {
                break;
            }
            for class in 0..store.layout.classes.len() {
                store.adjust(store.unit_id(entry, class), |unit| unit.is_demoted = true);
            }
            num_tokens += store.entries.tokens(entry).len();
        }
        num_tokens
    }

    /// The usable prefix of `tokens`, to their end or that of a tail: its length, and the units that make it so.
    fn cover(&self, tokens: &[u32], salt: &Salt) -> (usize, Units) {
        let store = &self.store;
        let mut chain = store.chain(tokens, &Arc::new(salt.clone()));
        chain.truncate(store.usable(&chain));
        let border = chain.len() * store.layout.block_tokens;
        let tail = store.tail(&chain, &tokens[border..], salt);
        chain.extend(tail.map(|tail| tail.entry));
        let full = chain.iter().map(|&entry| store.unit_id(entry, store.layout.chain));
        let sliding = store.layout.sliding().flat_map(|class| {
            let first = store.layout.first_block(class, border).min(chain.len());
            chain[first..].iter().map(move |&entry| store.unit_id(entry, class))
        });
        let units = full.chain(sliding).collect();
        (border + tail.map_or(0, |tail| tail.num_tokens), units)
    }

    /// Pages pinned when the pin `name` covers these units.
    fn pinned_with(&self, name: &str, units: &[u32]) -> usize {
        let store = &self.store;
        let new: HashSet<u32> = units.iter().copied().collect();
        let pages =
            |units: &mut dyn Iterator<Item = u32>| -> usize { units.map(|unit| store.num_pages_of(unit)).sum() };
        let gained = pages(
            &mut units
                .iter()
                .copied()
                .filter(|&unit| store.units[unit as usize].pins == 0),
        );
        let lost = pages(&mut store.pinned_alone(name).into_iter().filter(|unit| !new.contains(unit)));
        store.tally.pinned + gained - lost
    }
}
