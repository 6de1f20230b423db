//! The integrity check: everything the pool keeps in two places is compared.

use crate::error::CacheError;
use crate::index::NO_BLOCK;
use crate::pool::{BlockPool, Sequence};

macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(CacheError::Inconsistent(format!($($text)+)));
        }
    };
}

impl BlockPool {
    /// Verifies all invariants of the pool; meant for tests and for an idle engine.
    ///
    /// # Errors
    /// [`CacheError::Inconsistent`] names the first thing that does not add up.
    pub fn check(&self) -> Result<(), CacheError> {
        self.check_refs()?;
        self.check_free_list()?;
        self.check_index()?;
        self.sequences
            .iter()
            .try_for_each(|(&seq, sequence)| self.check_sequence(seq, sequence))
    }

    fn check_refs(&self) -> Result<(), CacheError> {
        let mut counted = vec![0u32; self.refs.len()];
        for &block in self.sequences.values().flat_map(|sequence| &sequence.table) {
            counted[block as usize] += 1;
        }
        for (block, (&refs, &tables)) in self.refs.iter().zip(&counted).enumerate() {
            ensure!(
                refs == tables,
                "block {block} counts {refs} references, {tables} tables hold it"
            );
        }
        Ok(())
    }

    fn check_free_list(&self) -> Result<(), CacheError> {
        let free: Vec<u32> = self.free.iter().collect();
        ensure!(
            free.len() == self.free.len(),
            "the free list counts {}, has {}",
            self.free.len(),
            free.len()
        );
        if let Some(held) = free.iter().find(|&&block| self.refs[block as usize] > 0) {
            ensure!(false, "block {held} is free and in use");
        }
        let used = self.refs.iter().filter(|&&refs| refs > 0).count();
        let total = self.refs.len();
        ensure!(
            free.len() + used == total,
            "{} free and {used} used blocks, expected {total}",
            free.len()
        );
        let cached = free.iter().filter(|&&block| self.index.contains(block)).count();
        ensure!(
            cached == self.num_cached,
            "{cached} cached blocks, the count says {}",
            self.num_cached
        );
        Ok(())
    }

    fn check_index(&self) -> Result<(), CacheError> {
        let indexed = (0..self.refs.len() as u32).filter_map(|block| Some((block, self.index.key(block)?)));
        for (block, key) in indexed {
            let tokens = self.index.tokens(block);
            let found = self.index.find(key, tokens);
            ensure!(
                found == Some(block),
                "block {block} is indexed, its key finds {found:?}"
            );
            let parent_hash = if key.parent == NO_BLOCK {
                Some(self.hasher.root(&key.salt))
            } else {
                self.index
                    .key(key.parent)
                    .filter(|parent| parent.salt == key.salt)
                    .map(|parent| parent.hash)
            };
            let expected = parent_hash.map(|hash| self.hasher.block(hash, tokens));
            ensure!(
                expected == Some(key.hash),
                "block {block} does not follow from its parent {}",
                key.parent
            );
        }
        let (reachable, entries) = (self.index.num_reachable(), self.index.len());
        ensure!(
            reachable == entries,
            "{entries} blocks are indexed, the buckets hold {reachable}"
        );
        Ok(())
    }

    fn check_sequence(&self, seq: u64, sequence: &Sequence) -> Result<(), CacheError> {
        let (room, used) = (sequence.table.len() * self.block_tokens, sequence.tokens.len());
        ensure!(used <= room, "sequence {seq} has {used} tokens in room for {room}");
        let num_whole = used / self.block_tokens;
        for &block in &sequence.table[num_whole..] {
            let is_own = self.refs[block as usize] == 1 && !self.index.contains(block);
            ensure!(is_own, "sequence {seq} shares block {block}, which is not whole");
        }
        let mut parent = NO_BLOCK;
        for (&block, tokens) in sequence
            .table
            .iter()
            .zip(sequence.tokens.chunks_exact(self.block_tokens))
        {
            let key = self.index.key(block);
            ensure!(
                key.is_some() == sequence.is_indexed,
                "sequence {seq} and block {block} differ in being indexed"
            );
            if let Some(key) = key {
                let is_same = key.parent == parent && key.salt == sequence.salt && self.index.tokens(block) == tokens;
                ensure!(is_same, "block {block} of sequence {seq} is indexed as something else");
            }
            parent = block;
        }
        Ok(())
    }
}
