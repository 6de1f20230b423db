//! Least recently used: blocks go in the order in which they were released.

use super::{Content, EvictionPolicy, Place};
use crate::lists::Lists;

/// The default policy; every operation is O(1).
#[derive(Debug)]
pub struct Lru {
    released: Lists<1>,
}

impl Lru {
    /// For blocks below `num_pages`.
    pub fn new(num_pages: u32) -> Self {
        Self {
            released: Lists::new(num_pages),
        }
    }

    /// Whether `block` may be evicted.
    pub(crate) fn is_released(&self, block: u32) -> bool {
        self.released.contains(block)
    }

    /// Whether none may.
    pub(crate) fn is_empty(&self) -> bool {
        self.released.len(0) == 0
    }
}

impl EvictionPolicy for Lru {
    fn insert(&mut self, _block: u32, _content: Content) {}

    fn hit(&mut self, _block: u32, _priority: i64) {}

    fn release(&mut self, block: u32, _place: Place) {
        self.released.push_back(0, block);
    }

    fn hold(&mut self, block: u32) {
        self.released.remove(block);
    }

    fn evict(&mut self) -> Option<u32> {
        self.released.pop_front(0)
    }

    fn forget(&mut self, block: u32) {
        self.released.remove(block);
    }

    fn check(&self, _num_held: usize, num_released: usize) -> Result<(), String> {
        let counted = self.released.len(0);
        (counted == num_released)
            .then_some(())
            .ok_or_else(|| format!("lru has {counted} released blocks, the pool {num_released}"))
    }
}
