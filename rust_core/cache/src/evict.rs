//! What goes when memory is short: demoted units, then the policy's choice, last retained ones; all after their children.

use crate::entries::NO_ENTRY;
use crate::error::CacheError;
use crate::store::{NO_UNIT, State, Store};

/// Why cached pages were given up; an index into the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Demoted,
    Policy,
    Retained,
}

impl Store {
    /// Pages that hold or held something.
    pub(crate) fn num_used(&self) -> usize {
        self.num_pages - self.empty.len()
    }

    /// Pages that sequences use.
    pub(crate) fn num_active(&self) -> usize {
        self.num_used() - self.tally.cached
    }

    /// Pages that can be had now, those of cached units included.
    pub(crate) fn num_free(&self) -> usize {
        self.limit.saturating_sub(self.num_active() + self.tally.cached_pinned)
    }

    /// Takes `needed` pages for new content, all or nothing.
    pub(crate) fn allocate(&mut self, needed: usize) -> Result<Vec<u32>, CacheError> {
        let free = self.num_free();
        if needed > free {
            return Err(CacheError::OutOfPages { needed, free });
        }
        if self.num_used() + needed > self.limit {
            self.tick();
        }
        while self.num_used() + needed > self.limit {
            if !self.evict() {
                return Err(CacheError::OutOfPages {
                    needed,
                    free: self.limit.saturating_sub(self.num_used()),
                });
            }
        }
        Ok(std::iter::from_fn(|| self.empty.take()).take(needed).collect())
    }

    /// Gives up the least valuable unit; false when none may go.
    pub(crate) fn evict(&mut self) -> bool {
        self.expire_marks();
        if self.evict_doomed() {
            return true;
        }
        if let Some(block) = self.demoted.front(0) {
            return self.doom(self.owner[block as usize], Cause::Demoted);
        }
        match self.policy.evict() {
            Some(block) => {
                let unit = self.owner[block as usize];
                debug_assert!(unit != NO_UNIT && self.units[unit as usize].state == State::Released);
                self.set_state(unit, State::Doomed);
                self.doom(unit, Cause::Policy)
            }
            None => self.pop_retained().is_some_and(|unit| self.doom(unit, Cause::Retained)),
        }
    }

    /// Gives a unit up, or what hangs on it first.
    fn doom(&mut self, unit: u32, cause: Cause) -> bool {
        let (entry, class) = self.place_of(unit);
        if class != self.layout.chain || !self.entries.has_children(entry) {
            self.give_up(unit, cause);
            return true;
        }
        self.push_doomed(unit);
        self.evict_doomed()
    }

    fn push_doomed(&mut self, unit: u32) {
        let block = self.first_page(unit);
        match self.units[unit as usize].state {
            State::Released | State::Kept => self.policy.forget(block),
            State::Demoted => {
                self.demoted.remove(block);
                self.policy.forget(block);
            }
            State::Doomed | State::Absent => {}
        }
        self.set_state(unit, State::Doomed);
        self.doomed.push(unit);
    }

    /// Gives up a leaf under the last doomed unit. Units that were used since they were doomed are spared.
    fn evict_doomed(&mut self) -> bool {
        while let Some(&unit) = self.doomed.last() {
            if self.units[unit as usize].state != State::Doomed {
                self.doomed.pop();
                continue;
            }
            let (entry, chain) = self.place_of(unit);
            let child = self.entries.get(entry).map_or(NO_ENTRY, |entry| entry.first_child);
            if child == NO_ENTRY {
                self.doomed.pop();
                self.give_up(unit, Cause::Policy);
                return true;
            }
            self.push_doomed(self.unit_id(child, chain));
        }
        false
    }

    /// Empties a unit; with an entry's full unit, its others go too, since they are of no use without.
    fn give_up(&mut self, unit: u32, cause: Cause) {
        let (entry, class) = self.place_of(unit);
        let before = self.empty.len();
        if class == self.layout.chain {
            for class in 0..self.layout.classes.len() {
                self.vacate(self.unit_id(entry, class));
            }
        } else {
            self.vacate(unit);
        }
        self.evictions[cause as usize] += (self.empty.len() - before) as u64;
        self.collect(entry);
    }
}
