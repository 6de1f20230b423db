//! The block pool: sequences and their tables over pages that are shared by content.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::entries::Entries;
use crate::error::CacheError;
use crate::eviction::{EvictionPolicy, Lru};
use crate::ghosts::Ghosts;
use crate::group::{Group, Layout, NO_PAGE};
use crate::identity::{BlockHasher, KeyedHasher, Salt};
use crate::lists::Lists;
use crate::marks::Marks;
use crate::pages::EmptyPages;
use crate::sequence::Sequence;
use crate::store::{NO_UNIT, Store};
use crate::tally::Tally;

/// Microseconds since some moment.
pub type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// What a pool is made of.
pub struct PoolOptions {
    /// Pages in all, at most `u32::MAX - 1`.
    pub num_pages: u32,
    /// Tokens a block.
    pub block_tokens: usize,
    /// The model's groups of layers, at most one of them full.
    pub groups: Vec<Group>,
    /// Order of eviction; [`Lru`] if none.
    pub policy: Option<Box<dyn EvictionPolicy>>,
    /// How identities are condensed.
    pub hasher: Box<dyn BlockHasher>,
    /// The clock of expected returns and of last uses.
    pub clock: Clock,
}

impl PoolOptions {
    /// Blocks of 16 tokens in one full group, a page each; least recently used goes first.
    pub fn new(num_pages: u32) -> Self {
        let start = Instant::now();
        Self {
            num_pages,
            block_tokens: 16,
            groups: vec![Group::FULL],
            policy: None,
            hasher: Box::new(KeyedHasher::default()),
            clock: Box::new(move || u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)),
        }
    }
}

/// How a prompt is added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AddOptions {
    /// How long its content is worth keeping, for policies that ask; higher is longer.
    pub priority: i64,
    /// Whether the request ran before, so that its hits do not count again.
    pub is_resumed: bool,
    /// Tokens that may be taken from the cache at most: those after them are to be computed, cached or not.
    pub most_cached: Option<usize>,
}

/// What is there of a prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// Tokens that need no computing.
    pub num_tokens: usize,
    /// Free pages that a sequence would take by holding them.
    pub num_pages: usize,
}

/// A fixed number of pages of KV memory, the sequences that use them, and the prefixes that can be used again.
///
/// Costs are constant or in proportion to the blocks touched, except [`BlockPool::clear_index`] and
/// [`BlockPool::check`]. Content is indexed once: a sequence that fills a block which the index knows gives
/// its own back and shares the known one. Tables are therefore to be read again after each commit.
pub struct BlockPool {
    pub(crate) store: Store,
    pub(crate) sequences: HashMap<u64, Sequence>,
    pub(crate) hits_tokens: u64,
    pub(crate) queried_tokens: u64,
}

impl BlockPool {
    /// A pool of empty pages.
    ///
    /// # Errors
    /// [`CacheError::BadSize`] for a size of zero, or one whose bookkeeping does not fit in memory;
    /// [`CacheError::BadGroups`].
    pub fn new(options: PoolOptions) -> Result<Self, CacheError> {
        let (num_pages, block_tokens) = (options.num_pages, options.block_tokens);
        let bad_size = |reason| CacheError::BadSize {
            num_pages,
            block_tokens,
            reason,
        };
        if num_pages == 0 || block_tokens == 0 {
            return Err(bad_size("both must be at least 1"));
        }
        if num_pages >= NO_PAGE - 64 || block_tokens > 1 << 16 {
            return Err(bad_size("the most is 4 billion pages, and 65536 tokens a block"));
        }
        let layout = Layout::new(block_tokens, &options.groups)?;
        let mut owner = Vec::new();
        let room = owner.try_reserve_exact(num_pages as usize).ok();
        let empty = room.and_then(|()| EmptyPages::all(num_pages));
        let empty = empty.ok_or_else(|| bad_size("its bookkeeping does not fit in memory"))?;
        owner.resize(num_pages as usize, NO_UNIT);
        let store = Store {
            entries: Entries::new(&layout),
            layout,
            empty,
            num_pages: num_pages as usize,
            limit: num_pages as usize,
            units: Vec::new(),
            owner,
            tally: Tally::default(),
            policy: options.policy.unwrap_or_else(|| Box::new(Lru::new(num_pages))),
            demoted: Lists::new(num_pages),
            doomed: Vec::new(),
            evictions: [0; 3],
            marks: Marks::default(),
            ghosts: Ghosts::new(num_pages),
            hasher: options.hasher,
            clock: options.clock,
            now: 0,
        };
        Ok(Self {
            store,
            sequences: HashMap::new(),
            hits_tokens: 0,
            queried_tokens: 0,
        })
    }

    /// Tokens a block.
    pub fn block_tokens(&self) -> usize {
        self.store.layout.block_tokens
    }

    /// Starts a sequence on the longest usable prefix of `prompt`; returns its number of tokens.
    ///
    /// The prefix is whole blocks and leaves at least one token of the prompt to compute. Nothing is reserved
    /// for the rest. [`BlockPool::take_part`] then takes what is cached of the next block.
    ///
    /// # Errors
    /// [`CacheError::DuplicateSequence`], [`CacheError::EmptyPrompt`].
    pub fn add(&mut self, seq: u64, prompt: &[u32], salt: &Salt, options: AddOptions) -> Result<usize, CacheError> {
        self.check_new(seq, prompt)?;
        let usable = &prompt[..options.most_cached.unwrap_or(usize::MAX).min(prompt.len() - 1)];
        let mut sequence = self.start(prompt, usable, salt, options.priority);
        if self.store.policy.learns_from_misses() {
            self.store.report_misses(prompt, &sequence);
        }
        let num_cached = sequence.tokens.len();
        if !options.is_resumed {
            sequence.uncounted = (num_cached as u64, prompt.len() as u64);
        }
        self.sequences.insert(seq, sequence);
        Ok(num_cached)
    }

    pub(crate) fn check_new(&self, seq: u64, prompt: &[u32]) -> Result<(), CacheError> {
        if self.sequences.contains_key(&seq) {
            return Err(CacheError::DuplicateSequence(seq));
        }
        if prompt.is_empty() {
            return Err(CacheError::EmptyPrompt(seq));
        }
        Ok(())
    }

    /// A sequence that holds the longest usable prefix of `usable`.
    pub(crate) fn start(&mut self, prompt: &[u32], usable: &[u32], salt: &Salt, priority: i64) -> Sequence {
        let store = &mut self.store;
        store.tick();
        let salt = Arc::new(salt.clone());
        let chain = store.chain(usable, &salt);
        let num_blocks = store.usable(&chain);
        let hash = store.chain_hash(&chain[..num_blocks], &salt);
        let mut sequence = Sequence::new(&store.layout, prompt, &chain[..num_blocks], salt, hash);
        sequence.priority = priority;
        if store.layout.has_states && chain.len() > num_blocks {
            sequence.expect_branch(chain.len());
        }
        sequence.hold_entries(store);
        sequence
    }

    /// Continues a sequence just added by what a cached block has in common with `tokens`, which come next in its prompt.
    ///
    /// Returns how many tokens that are, and the `(source, destination)` pages whose KV must be copied before pages are
    /// taken or given back again. None when no block begins so. No policy hears of it: what is copied is not held.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`], [`CacheError::UnknownSequence`].
    pub fn take_part(&mut self, seq: u64, tokens: &[u32]) -> Result<(usize, Vec<(u32, u32)>), CacheError> {
        let sequence = self.sequences.get_mut(&seq).ok_or(CacheError::UnknownSequence(seq))?;
        let store = &mut self.store;
        let find = |store: &Store, sequence: &Sequence| store.part(&sequence.entries, tokens, &sequence.salt);
        if !sequence.is_indexed || !sequence.is_at_border(&store.layout) || find(store, sequence).is_none() {
            return Ok((0, Vec::new()));
        }
        let own = store.allocate(store.layout.width)?;
        let Some(part) = find(store, sequence) else {
            own.into_iter().for_each(|page| store.empty.give(page));
            return Ok((0, Vec::new())); // it had to go for the pages
        };
        store.note_hit(part.entry, sequence.priority);
        sequence.push_row(&store.layout, &own);
        sequence.tokens.extend_from_slice(&tokens[..part.num_tokens]);
        sequence.num_unrecorded = sequence.tokens.len();
        let (hits, queried) = &mut sequence.uncounted;
        *hits += (part.num_tokens as u64).min(*queried - *hits);
        let source = store.entries.pages(part.entry, &(0..store.layout.width));
        Ok((part.num_tokens, source.iter().copied().zip(own).collect()))
    }

    /// What [`BlockPool::add`] and [`BlockPool::take_part`] would find cached now. Not a use: no policy hears of it.
    pub fn lookup(&self, prompt: &[u32], salt: &Salt) -> Found {
        let store = &self.store;
        let usable = &prompt[..prompt.len().saturating_sub(1)];
        let chain = store.chain(usable, &Arc::new(salt.clone()));
        let num_blocks = store.usable(&chain);
        let num_tokens = num_blocks * self.block_tokens();
        let part = store.part(&chain[..num_blocks], &usable[num_tokens..], salt);
        let pages_to_hold = |class| {
            let in_sight = &chain[store.layout.first_block(class, num_tokens).min(num_blocks)..num_blocks];
            let is_free = |&&entry: &&u32| {
                let unit = store.unit(entry, class);
                unit.refs + unit.pins == 0
            };
            in_sight.iter().filter(is_free).count() * store.layout.classes[class].row.len()
        };
        let num_held: usize = (0..store.layout.num_groups).map(pages_to_hold).sum();
        Found {
            num_tokens: num_tokens + part.map_or(0, |part| part.num_tokens),
            num_pages: num_held + part.map_or(0, |_| store.layout.width),
        }
    }

    /// Makes room so that the sequence's tables cover `num_tokens` tokens, all or nothing. Of a state, blocks have pages
    /// where it is to be kept; the last always: the step that follows ends there.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`], [`CacheError::UnknownSequence`].
    pub fn reserve(&mut self, seq: u64, num_tokens: usize) -> Result<(), CacheError> {
        let sequence = self.sequences.get_mut(&seq).ok_or(CacheError::UnknownSequence(seq))?;
        let layout = &self.store.layout;
        let blocks = num_tokens.div_ceil(layout.block_tokens);
        let missing = sequence.pages_to_extend(layout, blocks);
        if missing == 0 {
            return Ok(());
        }
        let pages = self.store.allocate(missing)?;
        sequence.extend_to(&self.store.layout, blocks, pages);
        Ok(())
    }

    /// Records that the KV of these next tokens is computed; blocks that became whole can be found from now on.
    ///
    /// # Errors
    /// [`CacheError::NotReserved`], [`CacheError::UnknownSequence`].
    pub fn commit(&mut self, seq: u64, tokens: &[u32]) -> Result<(), CacheError> {
        let sequence = self.sequences.get_mut(&seq).ok_or(CacheError::UnknownSequence(seq))?;
        let block_tokens = self.store.layout.block_tokens;
        let reserved = sequence.num_reserved(&self.store.layout) * block_tokens;
        let num_tokens = sequence.tokens.len() + tokens.len();
        if num_tokens > reserved {
            return Err(CacheError::NotReserved {
                seq,
                reserved,
                num_tokens,
            });
        }
        sequence.tokens.extend_from_slice(tokens);
        let (hits, queried) = std::mem::take(&mut sequence.uncounted);
        self.hits_tokens += hits;
        self.queried_tokens += queried;
        if num_tokens / block_tokens > sequence.entries.len() {
            self.store.tick();
            while num_tokens / block_tokens > sequence.entries.len() {
                sequence.register(&mut self.store);
            }
            sequence.slide(&mut self.store);
        }
        Ok(())
    }

    /// The pages of the first group's blocks in order; see [`BlockPool::tables`].
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn table(&self, seq: u64) -> Result<&[u32], CacheError> {
        self.tables(seq).map(|tables| tables[0].as_slice())
    }

    /// For each group, the pages of each block in order; [`NO_PAGE`] where a block slid out of the group's sight.
    ///
    /// Token `t` lives in slot `t % block_tokens` of block `t / block_tokens`. The tables may be kept: a change to the
    /// sequence copies those that somebody keeps.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn tables(&self, seq: u64) -> Result<&[Arc<Vec<u32>>], CacheError> {
        self.sequence(seq).map(|sequence| sequence.tables.as_slice())
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

    /// The adapter that computes the sequence; 0 is the bare model.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn adapter_id(&self, seq: u64) -> Result<u64, CacheError> {
        self.sequence(seq).map(|sequence| sequence.salt.adapter_id)
    }

    /// Ends a sequence. What it computed stays findable until its memory is needed.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn release(&mut self, seq: u64) -> Result<(), CacheError> {
        let sequence = self.sequences.remove(&seq).ok_or(CacheError::UnknownSequence(seq))?;
        self.store.tick();
        sequence.release(&mut self.store);
        Ok(())
    }

    /// Starts `child` as a copy of `parent`; returns the `(source, destination)` pages whose KV must be copied.
    ///
    /// Whole blocks are shared; a partial last block is copied. Blocks the parent reserved ahead stay its own.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`], [`CacheError::UnknownSequence`], [`CacheError::DuplicateSequence`].
    pub fn fork(&mut self, parent: u64, child: u64) -> Result<Vec<(u32, u32)>, CacheError> {
        let source = self.sequence(parent)?;
        if self.sequences.contains_key(&child) {
            return Err(CacheError::DuplicateSequence(child));
        }
        let layout = &self.store.layout;
        let partial = source.partial_row(layout);
        let mut copy = source.clone();
        copy.uncounted = (0, 0);
        copy.truncate_to_whole(layout);
        let own = self.store.allocate(partial.len())?;
        if !own.is_empty() {
            copy.push_row(&self.store.layout, &own);
        }
        copy.hold_shared(&mut self.store);
        self.sequences.insert(child, copy);
        Ok(partial.into_iter().zip(own).collect())
    }

    /// Makes all computed blocks unfindable, those of running sequences (which go on) and later ones of theirs too.
    ///
    /// For when KV computed so far must not be used by others: weights or an adapter changed.
    pub fn clear_index(&mut self) {
        self.store.unlist_all();
        self.sequences
            .values_mut()
            .for_each(|sequence| sequence.is_indexed = false);
    }

    pub(crate) fn sequence(&self, seq: u64) -> Result<&Sequence, CacheError> {
        self.sequences.get(&seq).ok_or(CacheError::UnknownSequence(seq))
    }
}
