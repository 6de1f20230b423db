//! The integrity check: everything the pool keeps in two places is compared.

use std::collections::HashMap;

use crate::entries::{Entry, NO_ENTRY};
use crate::error::CacheError;
use crate::group::NO_PAGE;
use crate::pool::BlockPool;
use crate::sequence::Sequence;
use crate::store::{NO_UNIT, State, Store};
use crate::tally::Tally;

macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(CacheError::Inconsistent(format!($($text)+)));
        }
    };
}

/// How often each unit is used, by counting.
type Uses = HashMap<u32, u32>;

impl BlockPool {
    /// Verifies all invariants of the pool; meant for tests and for an idle engine.
    ///
    /// # Errors
    /// [`CacheError::Inconsistent`] names the first thing that does not add up.
    pub fn check(&self) -> Result<(), CacheError> {
        let mut uses = Uses::new();
        let mut users = vec![0u32; self.store.num_pages];
        for (&seq, sequence) in &self.sequences {
            self.store.check_sequence(seq, sequence, &mut uses, &mut users)?;
        }
        self.store.empty.iter().for_each(|page| users[page as usize] += 1);
        self.store.check_units(&uses, &mut users)?;
        for (page, users) in users.iter().enumerate() {
            ensure!(*users == 1, "page {page} is in {users} places, expected one");
        }
        self.store.check_entries()?;
        self.store.check_policy()
    }
}

impl Store {
    fn check_sequence(
        &self,
        seq: u64,
        sequence: &Sequence,
        uses: &mut Uses,
        users: &mut [u32],
    ) -> Result<(), CacheError> {
        let layout = &self.layout;
        let (reserved, whole) = (sequence.num_reserved(layout), sequence.entries.len());
        ensure!(
            whole == sequence.tokens.len() / layout.block_tokens,
            "sequence {seq} has {whole} entries"
        );
        ensure!(
            sequence.tokens.len() <= reserved * layout.block_tokens,
            "sequence {seq} has no room for its tokens"
        );
        for (table, class) in sequence.tables.iter().zip(&layout.classes) {
            ensure!(
                table.len() == reserved * class.row.len(),
                "the tables of sequence {seq} differ in length"
            );
        }
        for &entry in &sequence.entries {
            *uses.entry(self.unit_id(entry, layout.chain)).or_default() += 1;
        }
        for class in 0..layout.num_groups {
            let border = layout.first_block(class, whole * layout.block_tokens);
            for block in 0..reserved {
                let pages = sequence.pages(layout, class, block);
                if block >= whole {
                    pages.into_iter().flatten().for_each(|&page| users[page as usize] += 1);
                    continue;
                }
                let entry = sequence.entries[block];
                ensure!(
                    (pages.is_some() == (block >= border))
                        || (pages.is_none() && layout.classes[class].kind.is_state()),
                    "sequence {seq} sees block {block} of class {class} wrongly"
                );
                if pages.is_some() {
                    ensure!(
                        pages == self.pages(entry, class),
                        "block {block} of sequence {seq} is not its entry's"
                    );
                    *uses.entry(self.unit_id(entry, class)).or_default() += u32::from(class != layout.chain);
                }
            }
        }
        self.check_chain(seq, sequence)
    }

    fn check_chain(&self, seq: u64, sequence: &Sequence) -> Result<(), CacheError> {
        let mut parent = NO_ENTRY;
        for (&number, tokens) in sequence
            .entries
            .iter()
            .zip(sequence.tokens.chunks_exact(self.layout.block_tokens))
        {
            let Some(entry) = self.entries.get(number) else {
                return Err(CacheError::Inconsistent(format!(
                    "entry {number} of sequence {seq} is gone"
                )));
            };
            ensure!(
                entry.is_listed == sequence.is_indexed,
                "sequence {seq} and entry {number} differ in being found"
            );
            ensure!(
                self.entries.tokens(number) == tokens,
                "entry {number} of sequence {seq} has other tokens"
            );
            let is_next = entry.key.parent == parent && sequence.salt.sees(&entry.key.salt);
            ensure!(
                is_next || !entry.is_listed,
                "entry {number} of sequence {seq} follows something else"
            );
            parent = number;
        }
        Ok(())
    }

    fn check_units(&self, uses: &Uses, users: &mut [u32]) -> Result<(), CacheError> {
        let mut tally = Tally::default();
        let (pins, retains) = self.marks.counts();
        for (number, unit) in (0..).zip(&self.units) {
            let (entry, class) = self.place_of(number);
            let counted = uses.get(&number).copied().unwrap_or(0);
            ensure!(
                unit.refs == counted,
                "unit {number} counts {} users, has {counted}",
                unit.refs
            );
            let marks = [&pins, &retains].map(|counts| counts.get(&number).copied().unwrap_or(0));
            ensure!(
                [unit.pins, unit.retains] == marks,
                "unit {number} counts other marks than {marks:?}: {unit:?}"
            );
            let row = &self.layout.classes[class].row;
            let pages = self.entries.pages(entry, row);
            let is_there = unit.state != State::Absent;
            ensure!(
                pages.iter().all(|&page| (page != NO_PAGE) == is_there),
                "unit {number} is {:?} with {pages:?}",
                unit.state
            );
            if !is_there {
                continue;
            }
            pages.iter().for_each(|&page| users[page as usize] += 1);
            let is_kept = unit.refs + unit.pins + unit.retains > 0;
            ensure!(
                (unit.state == State::Kept) == is_kept,
                "unit {number} is {:?}: {unit:?}",
                unit.state
            );
            ensure!(
                self.owner[pages[0] as usize] == number,
                "page {} does not know its unit {number}",
                pages[0]
            );
            ensure!(
                self.demoted.contains(pages[0]) == (unit.state == State::Demoted),
                "unit {number} is {:?}",
                unit.state
            );
            tally.add(unit, row.len());
        }
        ensure!(tally == self.tally, "counted {tally:?}, kept {:?}", self.tally);
        let owned = self.owner.iter().filter(|&&unit| unit != NO_UNIT).count();
        let present = self.units.iter().filter(|unit| unit.state != State::Absent).count();
        ensure!(
            owned == present,
            "{owned} pages know a unit, {present} units have pages"
        );
        Ok(())
    }

    fn check_entries(&self) -> Result<(), CacheError> {
        let all = (0..self.entries.bound()).filter_map(|number| Some((number, self.entries.get(number)?)));
        let mut num_listed = 0;
        for (number, entry) in all {
            let chain = self.unit(number, self.layout.chain);
            let is_used = chain.refs + chain.pins + chain.retains > 0;
            ensure!(
                is_used || entry.is_listed,
                "entry {number} is used by nobody and cannot be found"
            );
            if entry.is_listed {
                num_listed += 1;
                self.check_listed(number, entry, is_used)?;
            }
        }
        let reachable = self.entries.num_reachable();
        ensure!(
            reachable == num_listed,
            "{num_listed} entries are listed, the buckets hold {reachable}"
        );
        Ok(())
    }

    fn check_listed(&self, number: u32, entry: &Entry, is_used: bool) -> Result<(), CacheError> {
        let tokens = self.entries.tokens(number);
        let found = self.entries.find(&entry.key, tokens);
        ensure!(
            found == Some(number),
            "entry {number} is listed, its key finds {found:?}"
        );
        ensure!(
            !self.entries.is_tail(number) || (entry.num_tokens > 0 && !self.entries.has_children(number)),
            "entry {number} is no whole block and has children"
        );
        let has_full = !self.layout.classes[self.layout.chain].row.is_empty();
        ensure!(
            !has_full || self.pages(number, self.layout.chain).is_some(),
            "entry {number} has no full pages"
        );
        let is_child = self
            .entries
            .children(entry.key.parent)
            .any(|(child, _)| child == number);
        ensure!(
            is_child,
            "entry {number} is not among the children of {}",
            entry.key.parent
        );
        let parent_hash = if entry.key.parent == NO_ENTRY {
            Some(self.hasher.root(&entry.key.salt))
        } else {
            let parent = self.entries.get(entry.key.parent);
            let is_used_too = !is_used || self.unit(entry.key.parent, self.layout.chain).state != State::Released;
            ensure!(is_used_too, "entry {number} is used, its parent is not");
            let is_sound = |parent: &&Entry| parent.is_listed && entry.key.salt.sees(&parent.key.salt);
            parent
                .filter(is_sound)
                .map(|parent| self.hash_after(&parent.key, &entry.key.salt))
        };
        let expected = parent_hash.map(|hash| self.hasher.block(hash, tokens));
        ensure!(
            expected == Some(entry.key.hash),
            "entry {number} does not follow from its parent"
        );
        Ok(())
    }

    fn check_policy(&self) -> Result<(), CacheError> {
        let is_listed = |number: u32| {
            self.entries
                .get(self.place_of(number).0)
                .is_some_and(|entry| entry.is_listed)
        };
        let listed = || {
            (0..)
                .zip(&self.units)
                .filter(|&(number, _)| is_listed(number))
                .map(|(_, unit)| unit.state)
        };
        let released = listed().filter(|&state| state == State::Released).count();
        let held = listed()
            .filter(|state| matches!(state, State::Kept | State::Demoted))
            .count();
        self.policy.check(held, released).map_err(CacheError::Inconsistent)
    }
}
