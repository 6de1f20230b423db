//! Bookkeeping of the paged KV cache: which block of KV memory holds which tokens, for whom, and what may be reused.
//!
//! No tensor lives here. A block is a number below `num_blocks`; a runner owns the memory behind it and follows
//! the block tables that [`BlockPool`] hands out. Four parts:
//!
//! - [`BlockPool`]: sequences, their tables and token logs, reference counts; the only public state.
//! - the prefix index: finds a computed block by what was computed, and compares it in full before it is used.
//! - the free list: the order in which blocks are handed out again, so that cached prefixes live long.
//! - [`BlockHasher`]: how a block's identity is condensed into 64 bits; replaceable, never trusted.
//!
//! Invariants, all verified by [`BlockPool::check`]:
//!
//! - a block's reference count is the number of tables that hold it; it is in the free list when that is zero;
//! - only whole blocks are shared or indexed; a partial block belongs to one table;
//! - the parent of an indexed block is indexed, because a block is released (and so evicted) before its parent.

mod check;
mod error;
mod free_list;
mod identity;
mod index;
mod pool;

pub use error::CacheError;
pub use identity::{BlockHasher, KeyedHasher, Salt};
pub use pool::{BlockPool, PoolStats};
