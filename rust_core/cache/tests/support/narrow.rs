//! A hasher under which nearly everything collides.

use pyagent_cache::{BlockHasher, Salt};

/// Hashes into `self.0` values: 1 makes everything collide, 3 nearly everything.
pub struct Narrow(pub u64);

impl BlockHasher for Narrow {
    fn root(&self, salt: &Salt) -> u64 {
        salt.adapter_id % self.0
    }

    fn block(&self, parent: u64, tokens: &[u32]) -> u64 {
        (parent + tokens.iter().map(|&token| u64::from(token)).sum::<u64>()) % self.0
    }
}
