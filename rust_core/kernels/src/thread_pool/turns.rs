//! Turns of the callers of one pool.

use std::sync::{Condvar, Mutex, PoisonError};

use super::lock;

/// Lets one caller run at a time, in the order in which they came: a plain lock would go to whoever asks again first.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The next ticket, and the one whose turn it is.
    pub(super) tickets: Mutex<(u64, u64)>,
    passed: Condvar,
}

/// A turn; the next begins when it is dropped.
#[must_use]
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    pub(super) fn take(&self) -> Turn<'_> {
        let mut tickets = lock(&self.tickets);
        let mine = tickets.0;
        tickets.0 += 1;
        while tickets.1 != mine {
            tickets = self.passed.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut tickets = lock(&self.0.tickets);
        tickets.1 += 1;
        if tickets.0 != tickets.1 {
            self.0.passed.notify_all();
        }
    }
}
