//! How many pages are cached, pinned, retained and demoted, kept up with each change of a unit.

use crate::store::{State, Unit};

/// Pages by use; a page can count more than once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// In units no sequence uses.
    pub(crate) cached: usize,
    /// Of those, pinned ones.
    pub(crate) cached_pinned: usize,
    pub(crate) pinned: usize,
    pub(crate) retained: usize,
    pub(crate) demoted: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, unit: &Unit, num_pages: usize) {
        let [cached, cached_pinned, pinned, retained, demoted] = Self::kinds(unit);
        self.cached += num_pages * cached;
        self.cached_pinned += num_pages * cached_pinned;
        self.pinned += num_pages * pinned;
        self.retained += num_pages * retained;
        self.demoted += num_pages * demoted;
    }

    pub(crate) fn subtract(&mut self, unit: &Unit, num_pages: usize) {
        let [cached, cached_pinned, pinned, retained, demoted] = Self::kinds(unit);
        self.cached -= num_pages * cached;
        self.cached_pinned -= num_pages * cached_pinned;
        self.pinned -= num_pages * pinned;
        self.retained -= num_pages * retained;
        self.demoted -= num_pages * demoted;
    }

    fn kinds(unit: &Unit) -> [usize; 5] {
        let is_there = unit.state != State::Absent;
        [
            unit.refs == 0,
            unit.refs == 0 && unit.pins > 0,
            unit.pins > 0,
            unit.retains > 0,
            unit.state == State::Demoted,
        ]
        .map(|is| usize::from(is && is_there))
    }
}
