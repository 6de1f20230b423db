//! Adaptive replacement: learns from what it evicted too early whether recency or frequency counts.

use std::collections::{BTreeMap, HashMap};

use super::{Content, EvictionPolicy, Place};
use crate::lists::Lists;

/// Used once since it came.
const RECENT: usize = 0;
/// Used at least twice.
const FREQUENT: usize = 1;

#[derive(Debug, Clone, Copy)]
struct Ghost {
    /// The list it was evicted from.
    list: usize,
    age: u64,
    /// A prompt asked for it; it is not computed yet.
    is_asked: bool,
}

/// Keys of evicted blocks.
#[derive(Debug, Default)]
struct Ghosts {
    now: u64,
    key_to_ghost: HashMap<u64, Ghost>,
    age_to_key: [BTreeMap<u64, u64>; 2],
    num_asked: [usize; 2],
}

impl Ghosts {
    fn len(&self, list: usize) -> usize {
        self.age_to_key[list].len()
    }

    fn push(&mut self, list: usize, key: u64) {
        self.remove(key);
        self.now += 1;
        let (age, is_asked) = (self.now, false);
        self.key_to_ghost.insert(key, Ghost { list, age, is_asked });
        self.age_to_key[list].insert(age, key);
    }

    fn remove(&mut self, key: u64) -> Option<usize> {
        let Ghost { list, age, is_asked } = self.key_to_ghost.remove(&key)?;
        self.age_to_key[list].remove(&age);
        self.num_asked[list] -= usize::from(is_asked);
        Some(list)
    }

    /// Notes that a ghost is asked for; its list, the first time.
    fn ask(&mut self, key: u64) -> Option<usize> {
        let ghost = self.key_to_ghost.get_mut(&key).filter(|ghost| !ghost.is_asked)?;
        ghost.is_asked = true;
        self.num_asked[ghost.list] += 1;
        Some(ghost.list)
    }

    fn pop_oldest(&mut self, list: usize) -> bool {
        let oldest = self.age_to_key[list].first_key_value().map(|(_, &key)| key);
        oldest.is_some_and(|key| self.remove(key).is_some())
    }
}

/// Megiddo & Modha, FAST'03, with blocks that may be held: those count as members of their list, but stay.
///
/// `T1` and `T2` are the blocks used once and more often, `B1` and `B2` the ghosts of those evicted from them, `c` the
/// pool's limit, `p` the size that `T1` should have. Operations are O(log n) for the ghosts, O(1) otherwise.
#[derive(Debug)]
pub struct AdaptiveReplacement {
    capacity: usize,
    target: usize,
    released: Lists<2>,
    /// Members of both lists, held ones too.
    sizes: [usize; 2],
    blocks: Vec<Option<(usize, u64)>>, // list and key
    ghosts: Ghosts,
}

impl AdaptiveReplacement {
    /// For blocks below `num_pages`.
    pub fn new(num_pages: u32) -> Self {
        Self {
            capacity: num_pages as usize,
            target: 0,
            released: Lists::new(num_pages),
            sizes: [0; 2],
            blocks: vec![None; num_pages as usize],
            ghosts: Ghosts::default(),
        }
    }

    /// A ghost is wanted back: its list should have been longer.
    fn adapt(&mut self, list: usize) {
        let (own, other) = (self.ghosts.len(list), self.ghosts.len(1 - list));
        let step = (other / own.max(1)).max(1);
        self.target = match list {
            RECENT => (self.target + step).min(self.capacity),
            _ => self.target.saturating_sub(step),
        };
    }

    /// Drops the oldest ghosts until `|T1| + |B1| <= c` and all four lists hold `2c` at most.
    fn trim(&mut self) {
        while self.sizes[RECENT] + self.ghosts.len(RECENT) > self.capacity && self.ghosts.pop_oldest(RECENT) {}
        let members = self.sizes[RECENT] + self.sizes[FREQUENT];
        while members + self.ghosts.len(RECENT) + self.ghosts.len(FREQUENT) > 2 * self.capacity
            && (self.ghosts.pop_oldest(FREQUENT) || self.ghosts.pop_oldest(RECENT))
        {}
    }

    fn set_list(&mut self, block: u32, list: usize, key: u64) {
        if let Some((old, _)) = self.blocks[block as usize].replace((list, key)) {
            self.sizes[old] -= 1;
        }
        self.sizes[list] += 1;
    }

    fn take(&mut self, block: u32) -> Option<(usize, u64)> {
        let (list, key) = self.blocks[block as usize].take()?;
        self.sizes[list] -= 1;
        Some((list, key))
    }
}

impl EvictionPolicy for AdaptiveReplacement {
    fn insert(&mut self, block: u32, content: Content) {
        self.miss(content.key);
        let ghost = self.ghosts.remove(content.key);
        self.set_list(block, if ghost.is_some() { FREQUENT } else { RECENT }, content.key);
        self.trim();
    }

    fn hit(&mut self, block: u32, _priority: i64) {
        if let Some((_, key)) = self.blocks[block as usize] {
            self.set_list(block, FREQUENT, key);
        }
    }

    fn release(&mut self, block: u32, _place: Place) {
        let list = self.blocks[block as usize].map_or(RECENT, |(list, _)| list);
        self.released.push_back(list, block);
    }

    fn hold(&mut self, block: u32) {
        self.released.remove(block);
    }

    fn evict(&mut self) -> Option<u32> {
        let recent = self.sizes[RECENT];
        let is_frequent_asked = self.ghosts.num_asked[FREQUENT] > 0;
        let first = if recent > self.target || (is_frequent_asked && recent == self.target) {
            RECENT
        } else {
            FREQUENT
        };
        let block = self
            .released
            .pop_front(first)
            .or_else(|| self.released.pop_front(1 - first))?;
        if let Some((list, key)) = self.take(block) {
            self.ghosts.push(list, key);
            self.trim(); // needed only while more is held than the limit allows
        }
        Some(block)
    }

    fn forget(&mut self, block: u32) {
        self.released.remove(block);
        self.take(block);
    }

    fn learns_from_misses(&self) -> bool {
        true
    }

    fn miss(&mut self, key: u64) {
        if let Some(list) = self.ghosts.ask(key) {
            self.adapt(list);
        }
    }

    fn resize(&mut self, num_pages: usize) {
        self.capacity = num_pages;
        self.target = self.target.min(num_pages);
        self.trim();
    }

    fn check(&self, num_held: usize, num_released: usize) -> Result<(), String> {
        let [t1, t2] = self.sizes;
        let (b1, b2, c) = (self.ghosts.len(RECENT), self.ghosts.len(FREQUENT), self.capacity);
        let counted = self.released.len(RECENT) + self.released.len(FREQUENT);
        let is_sound = counted == num_released
            && t1 + t2 == num_held + num_released
            && self.target <= c
            && (b1 == 0 || t1 + b1 <= c)
            && (b1 + b2 == 0 || t1 + t2 + b1 + b2 <= 2 * c);
        is_sound.then_some(()).ok_or_else(|| {
            format!("arc: T1 {t1}, T2 {t2}, B1 {b1}, B2 {b2}, p {}, c {c}, {counted} released; pool: {num_held} held, {num_released} released", self.target)
        })
    }
}
