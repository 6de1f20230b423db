//! Bookkeeping of the paged KV cache: which block of KV memory holds which tokens, for whom, and what may be reused.
//!
//! No tensor lives here. A page is a number below `num_pages`; a runner owns the memory behind it and follows
//! the tables that [`BlockPool`] hands out. The parts, from the outside in:
//!
//! - [`BlockPool`]: sequences, their tables and token logs; the only public state.
//! - sequences: which entries one uses, which pages are its own, which slid out of sight.
//! - the store: who uses which pages of an entry, and what goes when memory is short.
//! - entries: finds what was computed by its tokens and everything before them, and compares it in full.
//! - [`EvictionPolicy`]: the order in which cached blocks go. [`BlockHasher`]: a signpost, never trusted.
//!
//! Invariants, all verified by [`BlockPool::check`]:
//!
//! - a page is empty, a sequence's own, or in one entry; it has as many users as sequences whose tables name it;
//! - only whole blocks are shared; what is not whole belongs to one sequence, and can be found, to be copied, when that
//!   one has ended;
//! - nothing used, pinned or with children is evicted: the parent of an entry is an entry.

mod check;
mod entries;
mod error;
mod evict;
mod eviction;
mod ghosts;
mod group;
mod hashers;
mod hints;
mod identity;
mod lists;
mod lookup;
mod marks;
mod memory;
mod pages;
mod pool;
mod report;
mod sequence;
mod stats;
mod store;
mod tally;

pub use error::CacheError;
pub use eviction::{
    AdaptiveReplacement, Content, EvictionPolicy, ForeignPolicy, Lru, Ordered, POLICY_NAMES, Place, Rank, Slru,
    Supervised, TailLru, make_policy,
};
pub use group::{Group, GroupKind, NO_PAGE};
pub use hashers::{HASHER_NAMES, make_hasher};
pub use identity::{BlockHasher, COMMON_TENANT, KeyedHasher, Salt};
pub use pool::{AddOptions, BlockPool, Clock, Found, PoolOptions};
pub use report::{CachedPrefix, Explanation, Reason};
pub use stats::PoolStats;
