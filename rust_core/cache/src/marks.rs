//! Named marks on cached prefixes: pins, which never go, and retained ones, which go last.

use std::collections::{BTreeMap, HashMap};

use crate::store::{State, Store};

/// The units of a prefix, those of least use alone at the end: windows after full ones, tails after heads.
pub(crate) type Units = Vec<u32>;

#[derive(Debug)]
struct Retained {
    units: Units,
    /// When it is expected back (`u64::MAX`: nobody knows), and a number that tells equals apart.
    due: (u64, u64),
}

#[derive(Debug, Default)]
pub(crate) struct Marks {
    pins: HashMap<String, Units>,
    retained: HashMap<String, Retained>,
    due_to_name: BTreeMap<(u64, u64), String>,
    num_retained_ever: u64,
}

impl Marks {
    /// How often each unit is pinned and retained.
    pub(crate) fn counts(&self) -> (HashMap<u32, u32>, HashMap<u32, u32>) {
        let count = |units: &mut dyn Iterator<Item = &u32>| {
            let mut counts = HashMap::new();
            units.for_each(|&unit| *counts.entry(unit).or_default() += 1);
            counts
        };
        let retained = self.retained.values().flat_map(|retained| &retained.units);
        (count(&mut self.pins.values().flatten()), count(&mut { retained }))
    }
}

impl Store {
    pub(crate) fn pin(&mut self, name: &str, units: Units) {
        units.iter().for_each(|&unit| self.adjust(unit, |unit| unit.pins += 1));
        let old = self.marks.pins.insert(name.to_owned(), units);
        self.drop_pins(old.unwrap_or_default());
    }

    /// Ends a pin; false when there is none of this name.
    pub(crate) fn unpin(&mut self, name: &str) -> bool {
        let units = self.marks.pins.remove(name);
        let is_there = units.is_some();
        self.drop_pins(units.unwrap_or_default());
        is_there
    }

    fn drop_pins(&mut self, units: Units) {
        for unit in units.into_iter().rev() {
            self.adjust(unit, |unit| unit.pins -= 1);
            self.collect(self.place_of(unit).0);
        }
    }

    /// Units of a pin that no other pin covers.
    pub(crate) fn pinned_alone(&self, name: &str) -> Vec<u32> {
        let units = self.marks.pins.get(name).into_iter().flatten().copied();
        units.filter(|&unit| self.units[unit as usize].pins == 1).collect()
    }

    pub(crate) fn retain(&mut self, name: &str, units: Units, expected: u64) {
        units
            .iter()
            .for_each(|&unit| self.adjust(unit, |unit| unit.retains += 1));
        self.forget_retained(name);
        self.marks.num_retained_ever += 1;
        let due = (expected, self.marks.num_retained_ever);
        self.marks.due_to_name.insert(due, name.to_owned());
        self.marks.retained.insert(name.to_owned(), Retained { units, due });
    }

    /// Ends a retaining; its units, or `None` when there is none of this name.
    pub(crate) fn forget_retained(&mut self, name: &str) -> Option<Units> {
        let Retained { units, due } = self.marks.retained.remove(name)?;
        self.marks.due_to_name.remove(&due);
        for &unit in units.iter().rev() {
            self.adjust(unit, |unit| unit.retains -= 1);
            self.collect(self.place_of(unit).0);
        }
        Some(units)
    }

    /// What should have come back by now is ordinary from now on.
    pub(crate) fn expire_marks(&mut self) {
        while let Some((&(expected, _), name)) = self.marks.due_to_name.first_key_value()
            && expected < self.now
        {
            let name = name.clone();
            self.forget_retained(&name);
        }
    }

    /// The next unit to evict of what is expected back latest; it is not retained any more.
    pub(crate) fn pop_retained(&mut self) -> Option<u32> {
        loop {
            let (_, name) = self.marks.due_to_name.last_key_value()?;
            let Some(unit) = self.marks.retained.get_mut(name)?.units.pop() else {
                let name = name.clone();
                self.forget_retained(&name);
                continue;
            };
            self.adjust_in_place(unit, |unit| unit.retains -= 1);
            let slot = self.units[unit as usize];
            if slot.state != State::Absent && slot.refs + slot.pins + slot.retains == 0 {
                return Some(unit);
            }
            self.collect(self.place_of(unit).0);
        }
    }

    pub(crate) fn clear_marks(&mut self) {
        let names: Vec<String> = self.marks.pins.keys().cloned().collect();
        names.iter().for_each(|name| {
            self.unpin(name);
        });
        let names: Vec<String> = self.marks.retained.keys().cloned().collect();
        names.iter().for_each(|name| {
            self.forget_retained(name);
        });
    }
}
