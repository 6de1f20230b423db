//! Tail-optimised LRU: the ends of conversations that would be answered in time without them go first.

use super::{Content, EvictionPolicy, Place};
use crate::lists::Lists;

const TAILS: usize = 0;
const OTHERS: usize = 1;

/// Zhang et al. (2025), arXiv 2510.15152. A conversation of `L` tokens will come back with about `Q` more; if `X`
/// tokens are computed within the latency target, those after `L + Q - X` need not be cached. They are evicted first,
/// then others; both least recently used first. Every operation is O(1).
#[derive(Debug)]
pub struct TailLru {
    released: Lists<2>,
    next_turn_tokens: usize,
    in_time_tokens: usize,
}

impl TailLru {
    /// For blocks below `num_pages`: `Q` is `next_turn_tokens`, `X` is `in_time_tokens`.
    pub fn new(num_pages: u32, next_turn_tokens: usize, in_time_tokens: usize) -> Self {
        Self {
            released: Lists::new(num_pages),
            next_turn_tokens,
            in_time_tokens,
        }
    }
}

impl EvictionPolicy for TailLru {
    fn insert(&mut self, _block: u32, _content: Content) {}

    fn hit(&mut self, _block: u32, _priority: i64) {}

    fn release(&mut self, block: u32, place: Place) {
        let is_tail = place.end + self.in_time_tokens > place.reach + self.next_turn_tokens;
        self.released.push_back(if is_tail { TAILS } else { OTHERS }, block);
    }

    fn hold(&mut self, block: u32) {
        self.released.remove(block);
    }

    fn evict(&mut self) -> Option<u32> {
        self.released
            .pop_front(TAILS)
            .or_else(|| self.released.pop_front(OTHERS))
    }

    fn forget(&mut self, block: u32) {
        self.released.remove(block);
    }

    fn check(&self, _num_held: usize, num_released: usize) -> Result<(), String> {
        let counted = self.released.len(TAILS) + self.released.len(OTHERS);
        (counted == num_released)
            .then_some(())
            .ok_or_else(|| format!("tlru has {counted} released blocks, the pool {num_released}"))
    }
}
