//! What makes two blocks the same: their tokens, everything before them, and the sequence's salt.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// The tenant whose blocks every tenant finds: only text that all may know of is to be computed for it.
pub const COMMON_TENANT: &[u8] = b"*";

/// What besides tokens decides a block's KV, or who may see it. Blocks are shared between equal salts, and those of
/// [`COMMON_TENANT`] with all.
///
/// The fields are compared in full on every hit; a media digest should therefore be a cryptographic one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Salt {
    /// Adapter (LoRA) that computes the sequence; 0 is the bare model.
    pub adapter_id: u64,
    /// Digest of the images or audio behind placeholder tokens, in order; empty without any.
    pub media_hash: Box<[u8]>,
    /// Separates tenants that must not learn from timing what others asked.
    pub tenant: Box<[u8]>,
}

impl Salt {
    /// Whether a sequence of this salt may use blocks computed under `other`.
    pub fn sees(&self, other: &Self) -> bool {
        let is_same_kv = self.adapter_id == other.adapter_id && self.media_hash == other.media_hash;
        is_same_kv && (*other.tenant == *COMMON_TENANT || self.tenant == other.tenant)
    }

    /// The same KV as all find it.
    pub(crate) fn in_common(&self) -> Self {
        Self {
            tenant: COMMON_TENANT.into(),
            ..self.clone()
        }
    }
}

/// Condenses block identities into 64 bits, as a chain: each block's hash covers its parent's.
///
/// A collision costs a comparison, never a wrong answer: the index compares what the hash stands for.
pub trait BlockHasher: Send + Sync {
    /// The hash before a sequence's first block.
    fn root(&self, salt: &Salt) -> u64;
    /// The hash of a block of `tokens` that follows a block (or root) with hash `parent`.
    fn block(&self, parent: u64, tokens: &[u32]) -> u64;
    /// What a tenant's first own block follows, after a common block with hash `parent`: without the salt
    /// the hash would be that of other tenants' equal blocks.
    fn border(&self, parent: u64, salt: &Salt) -> u64 {
        self.block(self.root(salt), &[parent as u32, (parent >> 32) as u32])
    }
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
