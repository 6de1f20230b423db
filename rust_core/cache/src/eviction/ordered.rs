//! Policies that rank each block by one number: by use, by age, by priority. The lowest rank goes first; among
//! equals, the one released longest ago.

use std::collections::BTreeSet;

use super::{Content, EvictionPolicy, Place};

/// What a block is ranked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    /// How often it was used since it was computed: least frequently used goes first.
    Frequency,
    /// When it was computed: first in, first out.
    Age,
    /// The highest priority of the requests that used it.
    Priority,
}

#[derive(Debug, Clone, Copy, Default)]
struct Block {
    rank: i64,
    /// When it was released; 0 while it is held.
    released: u64,
}

/// A policy by rank; every operation is O(log n).
#[derive(Debug)]
pub struct Ordered {
    rank: Rank,
    now: u64,
    blocks: Vec<Block>,
    queue: BTreeSet<(i64, u64, u32)>,
}

impl Ordered {
    /// For blocks below `num_pages`.
    pub fn new(rank: Rank, num_pages: u32) -> Self {
        Self {
            rank,
            now: 0,
            blocks: vec![Block::default(); num_pages as usize],
            queue: BTreeSet::new(),
        }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }
}

impl EvictionPolicy for Ordered {
    fn insert(&mut self, block: u32, content: Content) {
        let rank = match self.rank {
            Rank::Frequency => 1,
            Rank::Age => self.tick().cast_signed(),
            Rank::Priority => content.priority,
        };
        self.blocks[block as usize] = Block { rank, released: 0 };
    }

    fn hit(&mut self, block: u32, priority: i64) {
        let rank = &mut self.blocks[block as usize].rank;
        *rank = match self.rank {
            Rank::Frequency => rank.saturating_add(1),
            Rank::Age => *rank,
            Rank::Priority => (*rank).max(priority),
        };
    }

    fn release(&mut self, block: u32, _place: Place) {
        let released = self.tick();
        let slot = &mut self.blocks[block as usize];
        slot.released = released;
        self.queue.insert((slot.rank, released, block));
    }

    fn hold(&mut self, block: u32) {
        let Block { rank, released } = self.blocks[block as usize];
        self.queue.remove(&(rank, released, block));
        self.blocks[block as usize].released = 0;
    }

    fn evict(&mut self) -> Option<u32> {
        self.queue.pop_first().map(|(_, _, block)| block)
    }

    fn forget(&mut self, block: u32) {
        self.hold(block);
    }

    fn check(&self, _num_held: usize, num_released: usize) -> Result<(), String> {
        let counted = self.queue.len();
        (counted == num_released)
            .then_some(())
            .ok_or_else(|| format!("{counted} blocks are ranked, {num_released} released"))
    }
}
