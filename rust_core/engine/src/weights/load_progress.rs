//! How much of a model's weights is in memory: counted by who loads them, read by anybody at any time.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of weights that a load is through with, of all: never fewer than before, nor more than those.
///
/// A matrix counts when it is arranged for the kernels; norms, and what is left alone, count when the load ends.
#[derive(Debug, Default)]
pub struct LoadProgress {
    done: AtomicU64,
    total: AtomicU64,
}

impl LoadProgress {
    /// Expects more bytes.
    pub fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that are done.
    pub fn add(&self, bytes: u64) {
        let total = self.total();
        let added = |done: u64| Some(done.saturating_add(bytes).min(total));
        let _ = self.done.fetch_update(Ordering::Relaxed, Ordering::Relaxed, added);
    }

    /// Counts all that is left: the load is through.
    pub fn finish(&self) {
        self.add(u64::MAX);
    }

    /// Bytes that are done.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Bytes in all; 0 before they are known.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}
