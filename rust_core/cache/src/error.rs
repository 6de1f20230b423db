//! What can go wrong with a block pool, split by who can act on it.

use thiserror::Error;

/// An operation the pool refused; the pool is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CacheError {
    /// Not enough free pages: release or preempt a sequence, then try again.
    #[error("{needed} more KV pages needed, {free} free; release a sequence first")]
    OutOfPages {
        /// Pages the call had to add.
        needed: usize,
        /// Pages that were free, cached ones included.
        free: usize,
    },
    /// The sequence was never added, or is released already.
    #[error("sequence {0} is not in the block pool; add it first")]
    UnknownSequence(u64),
    /// A sequence with this id is in the pool.
    #[error("sequence {0} is in the block pool already; release it first or choose another id")]
    DuplicateSequence(u64),
    /// A prompt of no tokens leaves nothing to compute.
    #[error("sequence {0} has an empty prompt; expected at least one token")]
    EmptyPrompt(u64),
    /// Tokens were committed that the sequence's table has no room for.
    #[error("sequence {seq} has room for {reserved} tokens, the commit makes it {num_tokens}; reserve first")]
    NotReserved {
        /// The sequence.
        seq: u64,
        /// Tokens its table covers.
        reserved: usize,
        /// Tokens it would hold after the commit.
        num_tokens: usize,
    },
    /// The pool cannot be made in this size.
    #[error("a pool of {num_pages} pages, {block_tokens} tokens a block, cannot be made: {reason}")]
    BadSize {
        /// Pages asked for.
        num_pages: u32,
        /// Tokens a block.
        block_tokens: usize,
        /// Why not.
        reason: &'static str,
    },
    /// The groups of layers do not make sense.
    #[error("these KV groups cannot be kept: {reason}")]
    BadGroups {
        /// What was expected.
        reason: &'static str,
    },
    /// More pages were allowed than there are.
    #[error("the limit cannot be {limit} pages; the pool has {num_pages}")]
    BadLimit {
        /// The limit asked for.
        limit: usize,
        /// Pages in the pool.
        num_pages: usize,
    },
    /// More would be pinned than may be.
    #[error("pinning '{name}' makes {pinned} pages pinned, at most {limit} may be; unpin something first")]
    PinLimit {
        /// Name of the pin.
        name: String,
        /// Pages that would be pinned then.
        pinned: usize,
        /// Pages that may be.
        limit: usize,
    },
    /// The integrity check failed: a bug in the pool, not in its use.
    #[error("the block pool is inconsistent: {0}")]
    Inconsistent(String),
}
