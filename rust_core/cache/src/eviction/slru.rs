//! Segmented LRU: what was used twice is protected from what was used once.

use super::{Content, EvictionPolicy, Place};
use crate::lists::Lists;

const PROBATION: usize = 0;
const PROTECTED: usize = 1;

/// Karedla, Love & Wherry (1994): hits move a block to the protected segment; what that has no room for goes back to
/// the recent end of the probationary one, from whose old end blocks are evicted. Every operation is O(1).
#[derive(Debug)]
pub struct Slru {
    released: Lists<2>,
    is_protected: Vec<bool>,
    max_protected: usize,
}

impl Slru {
    /// For blocks below `num_pages`, of which four in five may be protected.
    pub fn new(num_pages: u32) -> Self {
        Self {
            released: Lists::new(num_pages),
            is_protected: vec![false; num_pages as usize],
            max_protected: num_pages as usize * 4 / 5,
        }
    }

    fn demote_overflow(&mut self) {
        while self.released.len(PROTECTED) > self.max_protected {
            if let Some(block) = self.released.pop_front(PROTECTED) {
                self.is_protected[block as usize] = false;
                self.released.push_back(PROBATION, block);
            }
        }
    }
}

impl EvictionPolicy for Slru {
    fn insert(&mut self, block: u32, _content: Content) {
        self.is_protected[block as usize] = false;
    }

    fn hit(&mut self, block: u32, _priority: i64) {
        self.is_protected[block as usize] = true;
    }

    fn release(&mut self, block: u32, _place: Place) {
        let segment = usize::from(self.is_protected[block as usize]);
        self.released.push_back(segment, block);
        self.demote_overflow();
    }

    fn hold(&mut self, block: u32) {
        self.released.remove(block);
    }

    fn evict(&mut self) -> Option<u32> {
        self.released
            .pop_front(PROBATION)
            .or_else(|| self.released.pop_front(PROTECTED))
    }

    fn forget(&mut self, block: u32) {
        self.released.remove(block);
    }

    fn resize(&mut self, num_pages: usize) {
        self.max_protected = num_pages * 4 / 5;
        self.demote_overflow();
    }

    fn check(&self, _num_held: usize, num_released: usize) -> Result<(), String> {
        let (probation, protected) = (self.released.len(PROBATION), self.released.len(PROTECTED));
        (probation + protected == num_released && protected <= self.max_protected)
            .then_some(())
            .ok_or_else(|| format!("slru has {probation} + {protected} released blocks, the pool {num_released}"))
    }
}
