//! The block pool: sequences and their tables over reference-counted blocks.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::CacheError;
use crate::free_list::FreeList;
use crate::identity::{BlockHasher, KeyedHasher, Salt};
use crate::index::{Key, NO_BLOCK, PrefixIndex};

/// Counts of a pool at one moment, and since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Blocks in the pool.
    pub num_blocks: usize,
    /// Blocks no sequence holds, cached ones included.
    pub free: usize,
    /// Free blocks whose content can still be found and reused.
    pub cached: usize,
    /// Blocks held by at least one sequence.
    pub active: usize,
    /// Prompt tokens taken from the cache since the pool was made.
    pub hits_tokens: u64,
    /// Prompt tokens looked up since the pool was made.
    pub queried_tokens: u64,
    /// Cached blocks given up for new content since the pool was made.
    pub evictions: u64,
}

#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) table: Vec<u32>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) salt: Arc<Salt>,
    /// Chain hash of the last whole block.
    pub(crate) hash: u64,
    /// Whether its whole blocks are in the index; false for good once the index was cleared under it.
    pub(crate) is_indexed: bool,
}

/// A fixed number of KV blocks, the sequences that use them, and the prefixes that can be used again.
///
/// Costs are constant or in proportion to the blocks touched, except [`BlockPool::clear_index`] and
/// [`BlockPool::check`]. Content is indexed once: a sequence that fills a block which the index knows gives
/// its own back and shares the known one. Tables are therefore to be read again after each commit.
pub struct BlockPool {
    pub(crate) block_tokens: usize,
    pub(crate) refs: Vec<u32>,
    pub(crate) free: FreeList,
    pub(crate) num_cached: usize,
    pub(crate) index: PrefixIndex,
    pub(crate) sequences: HashMap<u64, Sequence>,
    pub(crate) hasher: Box<dyn BlockHasher>,
    hits_tokens: u64,
    queried_tokens: u64,
    evictions: u64,
}

impl BlockPool {
    /// A pool of `num_blocks` free blocks of `block_tokens` tokens each (16 is customary).
    ///
    /// # Errors
    /// [`CacheError::BadSize`] for a size of zero, or one whose bookkeeping does not fit in memory.
    pub fn new(num_blocks: u32, block_tokens: usize) -> Result<Self, CacheError> {
        Self::with_hasher(num_blocks, block_tokens, Box::new(KeyedHasher::default()))
    }

    /// A pool with its own way of hashing, for tests and for identities shared between nodes.
    ///
    /// # Errors
    /// As [`BlockPool::new`].
    pub fn with_hasher(num_blocks: u32, block_tokens: usize, hasher: Box<dyn BlockHasher>) -> Result<Self, CacheError> {
        let bad_size = |reason| CacheError::BadSize {
            num_blocks,
            block_tokens,
            reason,
        };
        if num_blocks == 0 || block_tokens == 0 {
            return Err(bad_size("both must be at least 1"));
        }
        if num_blocks == NO_BLOCK {
            return Err(bad_size("that block number is reserved"));
        }
        let no_memory = || bad_size("its bookkeeping does not fit in memory");
        let index = PrefixIndex::new(num_blocks, block_tokens).ok_or_else(no_memory)?;
        let free = FreeList::full(num_blocks).ok_or_else(no_memory)?;
        Ok(Self {
            block_tokens,
            refs: vec![0; num_blocks as usize],
            free,
            num_cached: 0,
            index,
            sequences: HashMap::new(),
            hasher,
            hits_tokens: 0,
            queried_tokens: 0,
            evictions: 0,
        })
    }

    /// Tokens a block.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Starts a sequence on the longest cached prefix of `prompt`; returns its number of tokens.
    ///
    /// The prefix is whole blocks and leaves at least one token of the prompt to compute. Nothing is reserved
    /// for the rest.
    ///
    /// # Errors
    /// [`CacheError::DuplicateSequence`], [`CacheError::EmptyPrompt`].
    pub fn add(&mut self, seq: u64, prompt: &[u32], salt: &Salt) -> Result<usize, CacheError> {
        if self.sequences.contains_key(&seq) {
            return Err(CacheError::DuplicateSequence(seq));
        }
        if prompt.is_empty() {
            return Err(CacheError::EmptyPrompt(seq));
        }
        let salt = Arc::new(salt.clone());
        let (table, hash) = self.longest_prefix(prompt, &salt);
        table.iter().for_each(|&block| self.hold(block));
        let num_cached = table.len() * self.block_tokens;
        self.hits_tokens += num_cached as u64;
        self.queried_tokens += prompt.len() as u64;
        let tokens = prompt[..num_cached].to_vec();
        self.sequences.insert(
            seq,
            Sequence {
                table,
                tokens,
                salt,
                hash,
                is_indexed: true,
            },
        );
        Ok(num_cached)
    }

    /// How many tokens of `prompt` an [`BlockPool::add`] would find cached now.
    pub fn num_cached_tokens(&self, prompt: &[u32], salt: &Salt) -> usize {
        self.longest_prefix(prompt, &Arc::new(salt.clone())).0.len() * self.block_tokens
    }

    fn longest_prefix(&self, prompt: &[u32], salt: &Arc<Salt>) -> (Vec<u32>, u64) {
        let usable = &prompt[..prompt.len().saturating_sub(1)];
        let mut table = Vec::new();
        let mut key = Key {
            hash: self.hasher.root(salt),
            parent: NO_BLOCK,
            salt: Arc::clone(salt),
        };
        let mut found_hash = key.hash;
        for tokens in usable.chunks_exact(self.block_tokens) {
            key.hash = self.hasher.block(found_hash, tokens);
            let Some(block) = self.index.find(&key, tokens) else {
                break;
            };
            table.push(block);
            (key.parent, found_hash) = (block, key.hash);
        }
        (table, found_hash)
    }

    /// Makes room so that the sequence's table covers `num_tokens` tokens, all or nothing.
    ///
    /// # Errors
    /// [`CacheError::OutOfBlocks`], [`CacheError::UnknownSequence`].
    pub fn reserve(&mut self, seq: u64, num_tokens: usize) -> Result<(), CacheError> {
        let held = self.sequence(seq)?.table.len();
        let needed = num_tokens.div_ceil(self.block_tokens).saturating_sub(held);
        let blocks = self.allocate(needed)?;
        self.sequence_mut(seq)?.table.extend(blocks);
        Ok(())
    }

    /// Records that the KV of these next tokens is computed; blocks that became whole can be found from now on.
    ///
    /// # Errors
    /// [`CacheError::NotReserved`], [`CacheError::UnknownSequence`].
    pub fn commit(&mut self, seq: u64, tokens: &[u32]) -> Result<(), CacheError> {
        let block_tokens = self.block_tokens;
        let sequence = self.sequence_mut(seq)?;
        let reserved = sequence.table.len() * block_tokens;
        let num_tokens = sequence.tokens.len() + tokens.len();
        if num_tokens > reserved {
            return Err(CacheError::NotReserved {
                seq,
                reserved,
                num_tokens,
            });
        }
        let first = sequence.tokens.len() / block_tokens;
        sequence.tokens.extend_from_slice(tokens);
        if sequence.is_indexed {
            (first..num_tokens / block_tokens).for_each(|position| self.register(seq, position));
        }
        Ok(())
    }

    /// Indexes the whole block at `position` of the table, or swaps it for the identical indexed one.
    fn register(&mut self, seq: u64, position: usize) {
        let Some(sequence) = self.sequences.get_mut(&seq) else {
            return;
        };
        let tokens = &sequence.tokens[position * self.block_tokens..(position + 1) * self.block_tokens];
        let own = sequence.table[position];
        let key = Key {
            hash: self.hasher.block(sequence.hash, tokens),
            parent: position
                .checked_sub(1)
                .map_or(NO_BLOCK, |before| sequence.table[before]),
            salt: Arc::clone(&sequence.salt),
        };
        sequence.hash = key.hash;
        if let Some(known) = self.index.find(&key, tokens) {
            sequence.table[position] = known;
            self.hold(known);
            self.drop_hold(own);
        } else {
            self.index.insert(own, key, tokens);
        }
    }

    /// The sequence's blocks in order; token `t` lives in slot `t % block_tokens` of block `t / block_tokens`.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn table(&self, seq: u64) -> Result<&[u32], CacheError> {
        self.sequence(seq).map(|sequence| sequence.table.as_slice())
    }

    /// The sequence's tokens whose KV is computed.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn tokens(&self, seq: u64) -> Result<&[u32], CacheError> {
        self.sequence(seq).map(|sequence| sequence.tokens.as_slice())
    }

    /// How many tokens of the sequence have their KV computed.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn num_tokens(&self, seq: u64) -> Result<usize, CacheError> {
        self.tokens(seq).map(<[u32]>::len)
    }

    /// Ends a sequence. Its whole blocks stay findable until their memory is needed.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn release(&mut self, seq: u64) -> Result<(), CacheError> {
        let sequence = self.sequences.remove(&seq).ok_or(CacheError::UnknownSequence(seq))?;
        // Tail first: the head of a prompt is shared by the most sequences, and a child without its parent is useless.
        sequence.table.iter().rev().for_each(|&block| self.drop_hold(block));
        Ok(())
    }

    /// Starts `child` as a copy of `parent`; returns the `(source, destination)` blocks whose KV must be copied.
    ///
    /// Whole blocks are shared; a partial last block is copied. Blocks the parent reserved ahead stay its own.
    ///
    /// # Errors
    /// [`CacheError::OutOfBlocks`], [`CacheError::UnknownSequence`], [`CacheError::DuplicateSequence`].
    pub fn fork(&mut self, parent: u64, child: u64) -> Result<Vec<(u32, u32)>, CacheError> {
        let source = self.sequence(parent)?;
        if self.sequences.contains_key(&child) {
            return Err(CacheError::DuplicateSequence(child));
        }
        let num_whole = source.tokens.len() / self.block_tokens;
        let is_partial = !source.tokens.len().is_multiple_of(self.block_tokens);
        let partial = is_partial.then(|| source.table[num_whole]);
        let mut copy = Sequence {
            table: source.table[..num_whole].to_vec(),
            tokens: source.tokens.clone(),
            salt: Arc::clone(&source.salt),
            hash: source.hash,
            is_indexed: source.is_indexed,
        };
        let own = self.allocate(usize::from(is_partial))?;
        copy.table.iter().for_each(|&block| self.hold(block));
        copy.table.extend(&own);
        self.sequences.insert(child, copy);
        Ok(partial.into_iter().zip(own).collect())
    }

    /// Makes all computed blocks unfindable, those of running sequences (which go on) and later ones of theirs too.
    ///
    /// For when KV computed so far must not be used by others: weights or an adapter changed.
    pub fn clear_index(&mut self) {
        self.index.clear();
        self.num_cached = 0;
        self.sequences
            .values_mut()
            .for_each(|sequence| sequence.is_indexed = false);
    }

    /// Counts now, and since the pool was made.
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            num_blocks: self.refs.len(),
            free: self.free.len(),
            cached: self.num_cached,
            active: self.refs.len() - self.free.len(),
            hits_tokens: self.hits_tokens,
            queried_tokens: self.queried_tokens,
            evictions: self.evictions,
        }
    }

    fn sequence(&self, seq: u64) -> Result<&Sequence, CacheError> {
        self.sequences.get(&seq).ok_or(CacheError::UnknownSequence(seq))
    }

    fn sequence_mut(&mut self, seq: u64) -> Result<&mut Sequence, CacheError> {
        self.sequences.get_mut(&seq).ok_or(CacheError::UnknownSequence(seq))
    }

    /// Takes `needed` blocks off the free list for new content, each held once; all or nothing.
    fn allocate(&mut self, needed: usize) -> Result<Vec<u32>, CacheError> {
        let free = self.free.len();
        if needed > free {
            return Err(CacheError::OutOfBlocks { needed, free });
        }
        let blocks: Vec<u32> = std::iter::from_fn(|| self.free.pop_front()).take(needed).collect();
        for &block in &blocks {
            self.refs[block as usize] = 1;
            if self.index.remove(block) {
                self.num_cached -= 1;
                self.evictions += 1;
            }
        }
        Ok(blocks)
    }

    /// One more table holds `block`, whose content is computed.
    fn hold(&mut self, block: u32) {
        if self.refs[block as usize] == 0 {
            self.free.remove(block);
            self.num_cached -= usize::from(self.index.contains(block));
        }
        self.refs[block as usize] += 1;
    }

    /// One table fewer holds `block`; without any it is free: last to be reused if findable, else first.
    fn drop_hold(&mut self, block: u32) {
        self.refs[block as usize] -= 1;
        if self.refs[block as usize] > 0 {
            return;
        }
        if self.index.contains(block) {
            self.num_cached += 1;
            self.free.push_back(block);
        } else {
            self.free.push_front(block);
        }
    }
}
