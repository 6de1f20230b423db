//! Pages and who uses them: an entry's pages in one group are a *unit*, the smallest thing held, pinned or evicted.
//!
//! Invariants: a unit with pages is in exactly one [`State`]; [`Store::settle`] alone moves it. Pages are empty, in
//! a unit, or private to a sequence.

use crate::entries::{Entries, Key};
use crate::eviction::{Content, EvictionPolicy, Place};
use crate::ghosts::Ghosts;
use crate::group::{Layout, NO_PAGE};
use crate::identity::{BlockHasher, Salt};
use crate::lists::Lists;
use crate::lookup::{Alike, unit_key};
use crate::marks::Marks;
use crate::pages::EmptyPages;
use crate::pool::Clock;
use crate::tally::Tally;

/// In place of a unit: the owner of a page that is empty, private, or not its unit's first.
pub(crate) const NO_UNIT: u32 = u32::MAX;

/// Where a unit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum State {
    /// It has no pages.
    #[default]
    Absent,
    /// Held, pinned or retained; or of an unlisted entry.
    Kept,
    /// The policy may evict it.
    Released,
    /// It goes before what the policy orders.
    Demoted,
    /// The policy gave it up, and it waits for its children to go first.
    Doomed,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Unit {
    /// Sequences that use it.
    pub(crate) refs: u32,
    pub(crate) pins: u32,
    pub(crate) retains: u32,
    pub(crate) is_demoted: bool,
    pub(crate) state: State,
}

/// Everything but the sequences.
pub(crate) struct Store {
    pub(crate) layout: Layout,
    pub(crate) empty: EmptyPages,
    pub(crate) num_pages: usize,
    pub(crate) limit: usize,
    pub(crate) entries: Entries,
    pub(crate) units: Vec<Unit>, // [entries, classes]
    pub(crate) owner: Vec<u32>,  // [num_pages]: the unit whose first page it is
    pub(crate) tally: Tally,
    pub(crate) policy: Box<dyn EvictionPolicy>,
    pub(crate) demoted: Lists<1>,
    pub(crate) doomed: Vec<u32>,
    pub(crate) evictions: [u64; 3], // by cause
    pub(crate) marks: Marks,
    pub(crate) ghosts: Ghosts,
    pub(crate) hasher: Box<dyn BlockHasher>,
    pub(crate) clock: Clock,
    pub(crate) now: u64,
}

impl Store {
    pub(crate) fn unit_id(&self, entry: u32, class: usize) -> u32 {
        entry * self.layout.classes.len() as u32 + class as u32
    }

    /// A unit's entry and class.
    pub(crate) fn place_of(&self, unit: u32) -> (u32, usize) {
        let num_classes = self.layout.classes.len() as u32;
        (unit / num_classes, (unit % num_classes) as usize)
    }

    pub(crate) fn unit(&self, entry: u32, class: usize) -> Unit {
        self.units[self.unit_id(entry, class) as usize]
    }

    /// The pages of `entry` in `class`; none where they were given up.
    pub(crate) fn pages(&self, entry: u32, class: usize) -> Option<&[u32]> {
        let row = &self.layout.classes[class].row;
        let is_there = self.unit(entry, class).state != State::Absent;
        is_there.then(|| self.entries.pages(entry, row))
    }

    pub(crate) fn first_page(&self, unit: u32) -> u32 {
        let (entry, class) = self.place_of(unit);
        self.entries.pages(entry, &self.layout.classes[class].row)[0]
    }

    pub(crate) fn num_pages_of(&self, unit: u32) -> usize {
        self.layout.classes[self.place_of(unit).1].row.len()
    }

    /// A new entry, without pages.
    pub(crate) fn new_entry(&mut self, key: Key, tokens: &[u32], is_listed: bool) -> u32 {
        let entry = self.entries.insert(key, tokens, is_listed);
        let first = self.unit_id(entry, 0) as usize;
        let end = first + self.layout.classes.len();
        self.units.resize(end.max(self.units.len()), Unit::default());
        self.units[first..end].fill(Unit::default());
        entry
    }

    /// Gives a unit without pages these ones, used by one sequence.
    pub(crate) fn attach(&mut self, entry: u32, class: usize, pages: &[u32], priority: i64) {
        let row = self.layout.classes[class].row.clone();
        let unit = self.unit_id(entry, class);
        self.adjust(unit, |unit| unit.refs += 1);
        if row.is_empty() {
            return;
        }
        self.entries.pages_mut(entry, &row).copy_from_slice(pages);
        self.owner[pages[0] as usize] = unit;
        self.units[unit as usize].state = State::Kept;
        self.units[unit as usize].is_demoted = false;
        self.tally.add(&self.units[unit as usize], row.len());
        self.insert_in_policy(unit, priority);
    }

    fn insert_in_policy(&mut self, unit: u32, priority: i64) {
        let (entry, class) = self.place_of(unit);
        let block = self.first_page(unit);
        if let Some(entry) = self.entries.get(entry).filter(|entry| entry.is_listed) {
            let key = unit_key(entry.key.hash, class);
            self.policy.insert(block, Content { key, priority });
        }
    }

    /// One more sequence uses the unit.
    pub(crate) fn hold(&mut self, entry: u32, class: usize) {
        self.adjust(self.unit_id(entry, class), |unit| {
            unit.refs += 1;
            unit.is_demoted = false;
        });
    }

    /// A prompt of this priority found the unit, which is held for it.
    pub(crate) fn hit(&mut self, entry: u32, class: usize, priority: i64) {
        let unit = self.unit_id(entry, class);
        if self.units[unit as usize].state != State::Absent {
            self.policy.hit(self.first_page(unit), priority);
        }
    }

    /// One sequence fewer uses the unit.
    pub(crate) fn let_go(&mut self, entry: u32, class: usize, demote: bool) {
        self.adjust(self.unit_id(entry, class), |unit| {
            unit.refs -= 1;
            unit.is_demoted |= demote && unit.refs == 0;
        });
        self.collect(entry);
    }

    /// Changes who uses a unit, and moves it to where it then belongs.
    pub(crate) fn adjust(&mut self, unit: u32, change: impl FnOnce(&mut Unit)) {
        self.adjust_in_place(unit, change);
        self.settle(unit);
    }

    /// As [`Store::adjust`], for a unit that is about to be evicted.
    pub(crate) fn adjust_in_place(&mut self, unit: u32, change: impl FnOnce(&mut Unit)) {
        let num_pages = self.num_pages_of(unit);
        let state = &mut self.units[unit as usize];
        self.tally.subtract(state, num_pages);
        change(state);
        self.tally.add(state, num_pages);
    }

    /// Moves a unit to the state that follows from who uses it.
    fn settle(&mut self, unit: u32) {
        let Unit {
            refs,
            pins,
            retains,
            is_demoted,
            state: old,
        } = self.units[unit as usize];
        let (entry, _) = self.place_of(unit);
        let is_listed = self.entries.get(entry).is_some_and(|entry| entry.is_listed);
        let new = match () {
            () if old == State::Absent => return,
            () if refs + pins + retains > 0 => State::Kept,
            () if !is_listed => return self.vacate(unit),
            () if is_demoted => State::Demoted,
            () if old == State::Doomed => State::Doomed,
            () => State::Released,
        };
        if old == new {
            return;
        }
        let block = self.first_page(unit);
        self.leave(unit, old, block);
        match new {
            State::Released => self.policy.release(block, self.place_in_sequence(entry)),
            State::Demoted => self.demoted.push_back(0, block),
            _ => {}
        }
        self.set_state(unit, new);
    }

    /// Takes a unit out of where it stands; it is held in the policy afterwards.
    fn leave(&mut self, unit: u32, old: State, block: u32) {
        match old {
            State::Released => self.policy.hold(block),
            State::Doomed => {
                let (entry, _) = self.place_of(unit);
                let priority = self.entries.get(entry).map_or(0, |entry| entry.priority);
                self.insert_in_policy(unit, priority);
            }
            State::Demoted => {
                self.demoted.remove(block);
            }
            State::Kept | State::Absent => {}
        }
    }

    pub(crate) fn set_state(&mut self, unit: u32, state: State) {
        let num_pages = self.num_pages_of(unit);
        let slot = &mut self.units[unit as usize];
        self.tally.subtract(slot, num_pages);
        slot.state = state;
        self.tally.add(slot, num_pages);
    }

    fn place_in_sequence(&self, entry: u32) -> Place {
        let (depth, reach) = self
            .entries
            .get(entry)
            .map_or((0, 0), |entry| (entry.depth, entry.reach));
        Place {
            end: depth as usize * self.layout.block_tokens + self.entries.tokens(entry).len(),
            reach,
        }
    }

    /// Empties a unit's pages, wherever it stands.
    pub(crate) fn vacate(&mut self, unit: u32) {
        let (entry, class) = self.place_of(unit);
        let old = self.units[unit as usize].state;
        if old == State::Absent {
            return;
        }
        let block = self.first_page(unit);
        if old == State::Demoted {
            self.demoted.remove(block);
        }
        if old != State::Doomed && self.entries.get(entry).is_some_and(|entry| entry.is_listed) {
            self.policy.forget(block);
        }
        self.set_state(unit, State::Absent);
        self.owner[block as usize] = NO_UNIT;
        let row = self.layout.classes[class].row.clone();
        for page in self.entries.pages_mut(entry, &row) {
            self.empty.give(std::mem::replace(page, NO_PAGE));
        }
    }

    /// Forgets an entry that nobody uses any more and that has no pages, then its prefix's if the same holds for it.
    pub(crate) fn collect(&mut self, entry: u32) {
        let mut next = entry;
        while let Some(entry) = self.entries.get(next) {
            let classes = 0..self.layout.classes.len();
            let is_used = |unit: Unit| unit.refs + unit.pins + unit.retains > 0 || unit.state != State::Absent;
            if self.entries.has_children(next) || classes.into_iter().any(|class| is_used(self.unit(next, class))) {
                return;
            }
            let parent = entry.key.parent;
            if entry.is_listed && !self.entries.is_tail(next) {
                self.ghosts.push(entry.key.hash);
            }
            self.entries.remove(next);
            next = parent;
        }
    }

    /// Gives up the tails that a new block after `parent` makes useless: those that it begins with.
    ///
    /// Marked ones stay until their marks end, and go first then.
    pub(crate) fn supersede(&mut self, parent: u32, tokens: &[u32], salt: &Salt) {
        let is_own = |entry: u32| self.entries.get(entry).is_some_and(|entry| *entry.key.salt == *salt);
        let is_old = |part: &Alike| {
            let num_tokens = self.entries.tokens(part.entry).len();
            part.num_tokens == num_tokens && num_tokens < tokens.len() && is_own(part.entry)
        };
        let old: Vec<Alike> = self.alike(parent, tokens, salt).filter(is_old).collect();
        for Alike { entry, .. } in old {
            let chain = self.unit(entry, self.layout.chain);
            for class in 0..self.layout.classes.len() {
                let unit = self.unit_id(entry, class);
                match chain.pins + chain.retains {
                    0 => self.vacate(unit),
                    _ => self.adjust(unit, |unit| unit.is_demoted = true),
                }
            }
            self.collect(entry);
        }
    }

    /// Makes all entries unfindable; what no sequence uses is emptied.
    pub(crate) fn unlist_all(&mut self) {
        self.clear_marks();
        self.ghosts.clear();
        self.doomed.clear();
        for unit in 0..self.units.len() as u32 {
            let (entry, _) = self.place_of(unit);
            let state = self.units[unit as usize].state;
            if state != State::Absent && self.entries.get(entry).is_some_and(|entry| entry.is_listed) {
                self.retire(unit, state);
            }
        }
        self.entries.unlist_all();
        for unit in 0..self.units.len() as u32 {
            if self.units[unit as usize].refs == 0 {
                self.vacate(unit);
            }
        }
        (0..self.entries.bound()).for_each(|entry| self.collect(entry));
    }

    /// Takes a unit from the policy and the lists; its pages stay.
    fn retire(&mut self, unit: u32, state: State) {
        let block = self.first_page(unit);
        if state == State::Demoted {
            self.demoted.remove(block);
        }
        if state != State::Doomed {
            self.policy.forget(block);
        }
        self.set_state(unit, State::Kept);
    }

    /// Reads the clock, for what is noted until the next time.
    pub(crate) fn tick(&mut self) {
        self.now = (self.clock)();
    }

    /// A prompt of this priority found the entry.
    pub(crate) fn note_hit(&mut self, entry: u32, priority: i64) {
        self.note_use(entry, priority);
        if let Some(entry) = self.entries.get_mut(entry) {
            entry.hits = entry.hits.saturating_add(1);
        }
    }

    /// A sequence of this priority uses the entry.
    pub(crate) fn note_use(&mut self, entry: u32, priority: i64) {
        let now = self.now;
        if let Some(entry) = self.entries.get_mut(entry) {
            entry.last_use = now;
            entry.priority = entry.priority.max(priority);
        }
    }

    /// A sequence of so many tokens ended on or after the entry.
    pub(crate) fn note_end(&mut self, entry: u32, num_tokens: usize) {
        let now = self.now;
        if let Some(entry) = self.entries.get_mut(entry) {
            entry.last_use = now;
            entry.reach = entry.reach.max(num_tokens);
        }
    }
}
