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
    /// Pinned pages.
    pub pinned: usize,
    /// Retained pages.
    pub retained: usize,
    /// Cached pages that go first.
    pub demoted: usize,
    /// Prompt tokens taken from the cache, of those looked up.
    pub hits_tokens: u64,
    /// Prompt tokens looked up; a prompt counts once, when the first of its tokens is computed.
    pub queried_tokens: u64,
    /// Cached pages given up because they were demoted.
    pub evicted_demoted: u64,
    /// Cached pages given up by the policy.
    pub evicted_policy: u64,
    /// Cached pages given up although they were retained.
    pub evicted_retained: u64,
    /// Why the eviction policy that was asked for is out of use, if it is.
    pub policy_error: Option<String>,
}

impl PoolStats {
    /// Cached pages given up for whatever reason.
    pub fn evictions(&self) -> u64 {
        self.evicted_demoted + self.evicted_policy + self.evicted_retained
    }
}

impl BlockPool {
    /// Counts now, and since the pool was made.
    pub fn stats(&self) -> PoolStats {
        let store = &self.store;
        let [evicted_demoted, evicted_policy, evicted_retained] = store.evictions;
        PoolStats {
            num_pages: store.num_pages,
            limit: store.limit,
            free: store.num_free(),
            cached: store.tally.cached,
            active: store.num_active(),
            pinned: store.tally.pinned,
            retained: store.tally.retained,
            demoted: store.tally.demoted,
            hits_tokens: self.hits_tokens,
            queried_tokens: self.queried_tokens,
            evicted_demoted,
            evicted_policy,
            evicted_retained,
            policy_error: store.policy.error().map(str::to_owned),
        }
    }
}
