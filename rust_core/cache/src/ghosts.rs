//! Hashes of blocks that were evicted, so that a miss can be told from what was never there. Bounded; only for reports.

use std::collections::{HashSet, VecDeque};

/// The last evicted blocks, each once.
#[derive(Debug)]
pub(crate) struct Ghosts {
    capacity: usize,
    order: VecDeque<u64>,
    hashes: HashSet<u64>,
}

impl Ghosts {
    /// Remembers as many blocks as a pool of so many pages can cache.
    pub(crate) fn new(num_pages: u32) -> Self {
        Self {
            capacity: num_pages as usize,
            order: VecDeque::new(),
            hashes: HashSet::new(),
        }
    }

    pub(crate) fn push(&mut self, hash: u64) {
        if !self.hashes.insert(hash) {
            return;
        }
        self.order.push_back(hash);
        if self.order.len() > self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.hashes.remove(&oldest);
        }
    }

    pub(crate) fn contains(&self, hash: u64) -> bool {
        self.hashes.contains(&hash)
    }

    pub(crate) fn clear(&mut self) {
        self.order.clear();
        self.hashes.clear();
    }
}
