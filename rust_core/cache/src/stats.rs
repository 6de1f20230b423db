//! Counts of a pool at one moment, and since it was made.

use crate::pool::BlockPool;

/// Counts of a pool at one moment, and since it was made. All but the hits are in pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Pages in the pool.
    pub num_pages: usize,
    /// Pages that may be in use or cached now.
    pub limit: usize,
    /// Pages that can be had now, cached ones included.
    pub free: usize,
    /// Pages no sequence uses, whose content can still be found.
    pub cached: usize,
    /// Pages used by at least one sequence.
    pub active: usize,
    /// Prompt tokens taken from the cache, of those looked up.
    pub hits_tokens: u64,
    /// Prompt tokens looked up; those of a request put back are counted once.
    pub queried_tokens: u64,
    /// Cached pages given up because they were demoted.
    pub evicted_demoted: u64,
    /// Cached pages given up by the policy.
    pub evicted_policy: u64,
}

impl PoolStats {
    /// Cached pages given up for whatever reason.
    pub fn evictions(&self) -> u64 {
        self.evicted_demoted + self.evicted_policy
    }
}

impl BlockPool {
    /// Counts now, and since the pool was made.
    pub fn stats(&self) -> PoolStats {
        let store = &self.store;
        let [evicted_demoted, evicted_policy] = store.evictions;
        PoolStats {
            num_pages: store.num_pages,
            limit: store.limit,
            free: store.num_free(),
            cached: store.tally.cached,
            active: store.num_active(),
            hits_tokens: self.hits_tokens,
            queried_tokens: self.queried_tokens,
            evicted_demoted,
            evicted_policy,
        }
    }
}
