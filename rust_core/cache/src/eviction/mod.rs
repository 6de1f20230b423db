//! Eviction policies: the order in which cached blocks that nobody holds are given up.
//!
//! A policy sees blocks as numbers below the pool's page count (the first page of a block in one class of groups),
//! each from its insertion until it is evicted or forgotten. It never sees what is pinned, retained or demoted as
//! evictable: such blocks are held as far as it knows. [`make_policy`] makes one by name.

mod arc;
mod lru;
mod ordered;
mod slru;
mod supervised;
mod tlru;

pub use arc::AdaptiveReplacement;
pub use lru::Lru;
pub use ordered::{Ordered, Rank};
pub use slru::Slru;
pub use supervised::{ForeignPolicy, Supervised};
pub use tlru::TailLru;

/// What `tlru` takes the next turn of a conversation to be, in tokens.
const NEXT_TURN_TOKENS: usize = 256;
/// What `tlru` takes to be computed before anybody minds, in tokens.
const IN_TIME_TOKENS: usize = 1024;

/// What a block computed, as far as a policy may know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// The same for the same content, also after it was evicted and computed again.
    pub key: u64,
    /// Of the request that computed it; higher is worth keeping longer.
    pub priority: i64,
}

/// Where in its sequence a block stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Tokens up to the block's last.
    pub end: usize,
    /// Tokens of the longest sequence that went through it.
    pub reach: usize,
}

/// Orders blocks. A block is inserted held; hits come while it is held; only released ones may be evicted.
///
/// No call may fail. What a policy from elsewhere returns is checked by [`crate::Supervised`].
pub trait EvictionPolicy: Send {
    /// A block's content was computed.
    fn insert(&mut self, block: u32, content: Content);
    /// A prompt of this priority found the (held) block.
    fn hit(&mut self, block: u32, priority: i64);
    /// Nobody holds the block any more: it may be evicted.
    fn release(&mut self, block: u32, place: Place);
    /// Somebody holds the block again, unless it was held already.
    fn hold(&mut self, block: u32);
    /// Picks one of the released blocks and forgets it; `None` when none is released.
    fn evict(&mut self) -> Option<u32>;
    /// The block's content is gone for another reason.
    fn forget(&mut self, block: u32);

    /// Whether [`EvictionPolicy::miss`] is worth the computing of a prompt's keys.
    fn learns_from_misses(&self) -> bool {
        false
    }
    /// A prompt asked for content that is not there; it will be computed, and room made for it first.
    fn miss(&mut self, _key: u64) {}
    /// The pool's limit is now so many pages.
    fn resize(&mut self, _num_pages: usize) {}
    /// Why the policy that was asked for is out of use, if it is.
    fn error(&self) -> Option<&str> {
        None
    }
    /// Compares the policy's own counts with the pool's.
    ///
    /// # Errors
    /// What does not add up.
    fn check(&self, num_held: usize, num_released: usize) -> Result<(), String>;
}

/// Names that [`make_policy`] knows.
pub const POLICY_NAMES: [&str; 7] = ["lru", "lfu", "fifo", "arc", "slru", "tlru", "priority"];

/// The built-in policy of this name, for a pool of so many pages.
pub fn make_policy(name: &str, num_pages: u32) -> Option<Box<dyn EvictionPolicy>> {
    Some(match name {
        "lru" => Box::new(Lru::new(num_pages)),
        "lfu" => Box::new(Ordered::new(Rank::Frequency, num_pages)),
        "fifo" => Box::new(Ordered::new(Rank::Age, num_pages)),
        "arc" => Box::new(AdaptiveReplacement::new(num_pages)),
        "slru" => Box::new(Slru::new(num_pages)),
        "tlru" => Box::new(TailLru::new(num_pages, NEXT_TURN_TOKENS, IN_TIME_TOKENS)),
        "priority" => Box::new(Ordered::new(Rank::Priority, num_pages)),
        _ => return None,
    })
}
