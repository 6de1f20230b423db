//! What makes two blocks the same: their tokens, everything before them, and the sequence's salt.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// What besides tokens decides a block's KV, or who may see it. Blocks are shared between equal salts only.
///
/// The fields are compared in full on every hit; a media digest should therefore be a cryptographic one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Salt {
    /// Adapter (LoRA) that computes the sequence; 0 is the bare model.
    pub adapter_id: u64,
    /// Digest of the images or audio behind placeholder tokens, in order; empty without any.
    pub media_hash: Box<[u8]>,
    /// Separates tenants that must not learn from timing what others asked; empty is the common pool.
    pub tenant: Box<[u8]>,
}

/// Condenses block identities into 64 bits, as a chain: each block's hash covers its parent's.
///
/// A collision costs a comparison, never a wrong answer: the index compares what the hash stands for.
pub trait BlockHasher: Send + Sync {
    /// The hash before a sequence's first block.
    fn root(&self, salt: &Salt) -> u64;
    /// The hash of a block of `tokens` that follows a block (or root) with hash `parent`.
    fn block(&self, parent: u64, tokens: &[u32]) -> u64;
}

/// SipHash with a key of its own for each pool, so that no prompt can be made to collide on purpose.
#[derive(Debug, Default)]
pub struct KeyedHasher(RandomState);

impl BlockHasher for KeyedHasher {
    fn root(&self, salt: &Salt) -> u64 {
        self.0.hash_one(salt)
    }

    fn block(&self, parent: u64, tokens: &[u32]) -> u64 {
        let mut state = self.0.build_hasher();
        state.write_u64(parent);
        tokens.hash(&mut state);
        state.finish()
    }
}
