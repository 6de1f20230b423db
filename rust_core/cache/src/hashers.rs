//! Named ways to condense identities. The keys of `sha256` and `xxh3` are the same in every process and language.
//!
//! A root is the hash of adapter id, length of media hash, media hash, length of tenant, tenant; a block that of its
//! parent's hash and its tokens. A tenant's first block after a common one follows, in place of that block's hash,
//! the hash of a block of its two halves, the lower first, after the tenant's root. Numbers are little-endian, tokens 4 bytes, others 8; a key is the first 8 bytes.

use sha2::Digest;
use xxhash_rust::xxh3::xxh3_64;

use crate::identity::{BlockHasher, KeyedHasher, Salt};

/// Names that [`make_hasher`] knows.
pub const HASHER_NAMES: [&str; 3] = ["siphash", "sha256", "xxh3"];

/// The hasher of this name: `siphash` has a key of its own for each pool, the others none.
pub fn make_hasher(name: &str) -> Option<Box<dyn BlockHasher>> {
    Some(match name {
        "siphash" => Box::new(KeyedHasher::default()),
        "sha256" => Box::new(Unkeyed(sha256)),
        "xxh3" => Box::new(Unkeyed(xxh3_64)),
        _ => return None,
    })
}

struct Unkeyed(fn(&[u8]) -> u64);

fn sha256(bytes: &[u8]) -> u64 {
    let digest = sha2::Sha256::digest(bytes);
    digest
        .iter()
        .take(8)
        .rev()
        .fold(0, |key, &byte| key << 8 | u64::from(byte))
}

impl BlockHasher for Unkeyed {
    fn root(&self, salt: &Salt) -> u64 {
        let len = |part: &[u8]| (part.len() as u64).to_le_bytes();
        let mut bytes = salt.adapter_id.to_le_bytes().to_vec();
        bytes.extend(len(&salt.media_hash));
        bytes.extend(&salt.media_hash);
        bytes.extend(len(&salt.tenant));
        bytes.extend(&salt.tenant);
        self.0(&bytes)
    }

    fn block(&self, parent: u64, tokens: &[u32]) -> u64 {
        let mut bytes = Vec::with_capacity(8 + tokens.len() * 4);
        bytes.extend(parent.to_le_bytes());
        tokens.iter().for_each(|token| bytes.extend(token.to_le_bytes()));
        self.0(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hashes are the published ones: NIST's SHA-256 of "abc", xxHash's XXH3 of nothing.
    #[test]
    fn hashes_equal_published_vectors() {
        assert_eq!(
            sha256(b"abc").to_le_bytes(),
            [0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea]
        );
        assert_eq!(xxh3_64(b""), 0x2d06_8005_38d3_94c2);
    }

    /// Each name gives a hasher that tells salts, parents and tokens apart; an unknown one gives none.
    #[test]
    fn hashers_tell_identities_apart() {
        let tenant = |tenant: &[u8], media: &[u8]| Salt {
            tenant: tenant.into(),
            media_hash: media.into(),
            ..Salt::default()
        };
        for name in HASHER_NAMES {
            let hasher = make_hasher(name).expect("a name");
            let roots = [
                Salt::default(),
                tenant(b"ab", b""),
                tenant(b"b", b"a"),
                tenant(b"", b"ab"),
            ];
            let mut keys: Vec<u64> = roots.iter().map(|salt| hasher.root(salt)).collect();
            keys.extend([
                hasher.block(1, &[2, 3]),
                hasher.block(1, &[3, 2]),
                hasher.block(2, &[2, 3]),
            ]);
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), 7, "{name}");
        }
        assert!(make_hasher("md5").is_none());
    }
}
