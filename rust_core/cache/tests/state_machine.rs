//! Random histories of a block pool against an obvious model of it, with simulated KV memory behind the tables.

#[path = "support/narrow.rs"]
mod narrow;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use narrow::Narrow;
use proptest::prelude::*;
use pyagent_cache::{AddOptions, BlockHasher, BlockPool, CacheError, KeyedHasher, PoolOptions, Salt};

const BLOCK: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    Add { seq: u64, adapter: u64, prompt: Vec<u32> },
    Reserve { seq: u64, extra: usize },
    Commit { seq: u64, tokens: Vec<u32> },
    Fork { parent: u64, child: u64 },
    Release { seq: u64 },
    ClearIndex,
}

fn step() -> impl Strategy<Value = Step> {
    let seq = 0..5u64;
    let tokens = |most| prop::collection::vec(0..2u32, 0..most); // two words: prefixes are common
    prop_oneof![
        4 => (seq.clone(), 0..2u64, tokens(14)).prop_map(|(seq, adapter, prompt)| Step::Add { seq, adapter, prompt }),
        4 => (seq.clone(), 0..12usize).prop_map(|(seq, extra)| Step::Reserve { seq, extra }),
        6 => (seq.clone(), tokens(9)).prop_map(|(seq, tokens)| Step::Commit { seq, tokens }),
        2 => (seq.clone(), seq.clone()).prop_map(|(parent, child)| Step::Fork { parent, child }),
        3 => seq.prop_map(|seq| Step::Release { seq }),
        1 => Just(Step::ClearIndex),
    ]
}

/// A block by its meaning: what a hit must agree on; not whole at the end of a sequence that is over. Blocks that may not
/// be shared by content get a number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Content {
    Findable { epoch: u32, adapter: u64, prefix: Vec<u32> },
    Private(u32),
}

#[derive(Debug, Clone)]
struct ModelSequence {
    adapter: u64,
    tokens: Vec<u32>,
    num_reserved: usize,
    whole: Vec<Content>,
    epoch: u32,
}

/// The pool as one would describe it: sets of contents, no block numbers, no hashes.
#[derive(Debug, Default)]
struct Model {
    num_blocks: usize,
    sequences: BTreeMap<u64, ModelSequence>,
    cached: Vec<Content>, // least recently released first
    epoch: u32,
    num_private: u32,
    evictions: u64,
    computed: Vec<(u64, Vec<u32>)>, // every sequence there ever was since the index was cleared
}

impl Model {
    fn held(&self) -> BTreeSet<&Content> {
        self.sequences.values().flat_map(|sequence| &sequence.whole).collect()
    }

    fn active(&self) -> usize {
        let own = |sequence: &ModelSequence| sequence.num_reserved - sequence.whole.len();
        self.held().len() + self.sequences.values().map(own).sum::<usize>()
    }

    fn free(&self) -> usize {
        self.num_blocks - self.active()
    }

    /// Evicts what `needed` more blocks would displace; false (and nothing) when they do not fit.
    fn allocate(&mut self, needed: usize) -> bool {
        let (free, cached) = (self.free(), self.cached.len());
        if needed > free {
            return false;
        }
        let displaced = needed.saturating_sub(free - cached);
        self.cached.drain(..displaced);
        self.evictions += displaced as u64;
        true
    }

    fn is_findable(&self, content: &Content) -> bool {
        self.cached.contains(content) || self.held().contains(content)
    }

    fn prefix_hits(&self, adapter: u64, prompt: &[u32]) -> Vec<Content> {
        (1..prompt.len().div_ceil(BLOCK).max(1))
            .map(|n| Content::Findable {
                epoch: self.epoch,
                adapter,
                prefix: prompt[..n * BLOCK].to_vec(),
            })
            .take_while(|content| self.is_findable(content))
            .collect()
    }

    /// The prefixes that can be found, to the ends of their blocks.
    fn findable<'m>(&'m self, adapter: u64) -> impl Iterator<Item = &'m Vec<u32>> {
        let here = move |content: &'m Content| match content {
            Content::Findable {
                epoch,
                adapter: of,
                prefix,
            } if (*epoch, *of) == (self.epoch, adapter) => Some(prefix),
            _ => None,
        };
        self.held().into_iter().chain(&self.cached).filter_map(here)
    }

    /// After so many whole blocks, how many tokens a block has in common with the prompt, but for its last token.
    fn part_hits(&self, adapter: u64, prompt: &[u32], num_blocks: usize) -> usize {
        let whole = num_blocks * BLOCK;
        let common = |prefix: &Vec<u32>| {
            let is_next = (whole + 1..=whole + BLOCK).contains(&prefix.len());
            let usable = prefix.iter().zip(&prompt[..prompt.len() - 1]);
            let same = usable.take_while(|(a, b)| a == b).count();
            if is_next { same.saturating_sub(whole) } else { 0 }
        };
        self.findable(adapter).map(common).max().unwrap_or(0)
    }

    /// Forgets ends of sequences that this new block begins with.
    fn supersede(&mut self, new: &Content) {
        let Content::Findable { epoch, adapter, prefix } = new else {
            return;
        };
        let is_old = |other: &Content| match other {
            Content::Findable {
                epoch: e,
                adapter: a,
                prefix: old,
            } => {
                (e, a) == (epoch, adapter)
                    && old.len() % BLOCK != 0
                    && old.len() < prefix.len()
                    && prefix.starts_with(old)
                    && old.len() / BLOCK == (prefix.len() - 1) / BLOCK
            }
            Content::Private(_) => false,
        };
        self.cached.retain(|other| !is_old(other));
    }

    /// The longest common run of whole blocks with anything ever computed.
    fn naive_hits(&self, adapter: u64, prompt: &[u32]) -> usize {
        let usable = prompt.len().saturating_sub(1) / BLOCK;
        let common = |tokens: &Vec<u32>| {
            let same = tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
            (same / BLOCK).min(usable)
        };
        let same_adapter = self.computed.iter().filter(|(other, _)| *other == adapter);
        same_adapter.map(|(_, tokens)| common(tokens)).max().unwrap_or(0)
    }

    fn add(&mut self, seq: u64, adapter: u64, prompt: &[u32]) -> usize {
        let whole = self.prefix_hits(adapter, prompt);
        self.cached.retain(|content| !whole.contains(content));
        let num_cached = whole.len() * BLOCK;
        let tokens = prompt[..num_cached].to_vec();
        let (num_reserved, epoch) = (whole.len(), self.epoch);
        self.sequences.insert(
            seq,
            ModelSequence {
                adapter,
                tokens,
                num_reserved,
                whole,
                epoch,
            },
        );
        num_cached
    }

    fn commit(&mut self, seq: u64, tokens: &[u32]) {
        let Some(mut sequence) = self.sequences.remove(&seq) else {
            return;
        };
        sequence.tokens.extend(tokens);
        while sequence.whole.len() < sequence.tokens.len() / BLOCK {
            let prefix = sequence.tokens[..(sequence.whole.len() + 1) * BLOCK].to_vec();
            let content = if sequence.epoch == self.epoch {
                Content::Findable {
                    epoch: self.epoch,
                    adapter: sequence.adapter,
                    prefix,
                }
            } else {
                self.num_private += 1;
                Content::Private(self.num_private)
            };
            self.cached.retain(|other| *other != content);
            self.supersede(&content);
            sequence.whole.push(content);
        }
        if sequence.epoch == self.epoch {
            self.computed.push((sequence.adapter, sequence.tokens.clone()));
        }
        self.sequences.insert(seq, sequence);
    }

    fn release(&mut self, seq: u64) {
        let Some(sequence) = self.sequences.remove(&seq) else {
            return;
        };
        let (epoch, adapter, prefix) = (sequence.epoch, sequence.adapter, sequence.tokens);
        let is_block = |other: &Vec<u32>| {
            other.starts_with(&prefix) && other.len().div_ceil(BLOCK) == prefix.len().div_ceil(BLOCK)
        };
        if prefix.len() % BLOCK != 0 && epoch == self.epoch && !self.findable(adapter).any(is_block) {
            let tail = Content::Findable { epoch, adapter, prefix };
            self.supersede(&tail);
            self.cached.push(tail);
        }
        for content in sequence.whole.into_iter().rev() {
            let is_current = matches!(&content, Content::Findable { epoch, .. } if *epoch == self.epoch);
            if is_current && !self.held().contains(&content) {
                self.cached.push(content);
            }
        }
    }

    fn clear_index(&mut self) {
        self.epoch += 1;
        self.cached.clear();
        self.computed.clear();
    }
}

/// KV of a token depends on the adapter and on all tokens up to it; so does this stand-in.
type Kv = (u64, Vec<u32>);

/// The pool, its model, and the memory a runner would write.
struct Machine {
    pool: BlockPool,
    model: Model,
    memory: HashMap<(u32, usize), Kv>,
}

impl Machine {
    fn new(num_blocks: u32, hasher: Box<dyn BlockHasher>) -> Self {
        let pool = BlockPool::new(PoolOptions {
            block_tokens: BLOCK,
            hasher,
            ..PoolOptions::new(num_blocks)
        })
        .expect("a small pool");
        let model = Model {
            num_blocks: num_blocks as usize,
            ..Model::default()
        };
        Self {
            pool,
            model,
            memory: HashMap::new(),
        }
    }

    fn slot(&self, seq: u64, position: usize) -> (u32, usize) {
        (self.pool.table(seq).expect("there")[position / BLOCK], position % BLOCK)
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Add { seq, adapter, prompt } => self.add(seq, adapter, &prompt),
            Step::Reserve { seq, extra } => self.reserve(seq, extra),
            Step::Commit { seq, tokens } => self.commit(seq, &tokens),
            Step::Fork { parent, child } => self.fork(parent, child),
            Step::Release { seq } => {
                let is_there = self.model.sequences.contains_key(&seq);
                assert_eq!(self.pool.release(seq).is_ok(), is_there);
                self.model.release(seq);
            }
            Step::ClearIndex => {
                self.pool.clear_index();
                self.model.clear_index();
            }
        }
        self.compare();
    }

    fn add(&mut self, seq: u64, adapter: u64, prompt: &[u32]) {
        let salt = Salt {
            adapter_id: adapter,
            ..Salt::default()
        };
        if prompt.is_empty() || self.model.sequences.contains_key(&seq) {
            assert!(self.pool.add(seq, prompt, &salt, AddOptions::default()).is_err());
            return;
        }
        let naive = self.model.naive_hits(adapter, prompt) * BLOCK;
        let expected = self.model.add(seq, adapter, prompt);
        let part = self.model.part_hits(adapter, prompt, expected / BLOCK);
        let (found, free) = (self.pool.lookup(prompt, &salt), self.pool.stats().free);
        assert_eq!(found.num_tokens, expected + part);
        assert_eq!(self.pool.add(seq, prompt, &salt, AddOptions::default()), Ok(expected));
        assert!(expected + part < prompt.len());
        assert_eq!(free - self.pool.stats().free, found.num_pages - usize::from(part > 0));
        self.take_part(seq, prompt, part);
        assert!(
            self.model.evictions > 0 || expected == naive,
            "nothing evicted: all that was computed is found"
        );
    }

    fn take_part(&mut self, seq: u64, prompt: &[u32], part: usize) {
        let whole = self.pool.num_tokens(seq).expect("there");
        let result = self.pool.take_part(seq, &prompt[whole..prompt.len() - 1]);
        if part == 0 {
            assert_eq!(result, Ok((0, vec![])));
            return;
        }
        if !self.model.allocate(1) {
            assert_eq!(result, Err(CacheError::OutOfPages { needed: 1, free: 0 }));
            return;
        }
        let sequence = &self.model.sequences[&seq];
        let left = self.model.part_hits(sequence.adapter, prompt, whole / BLOCK); // less when the block itself had to go
        let (num_tokens, copies) = result.expect("there is room");
        assert_eq!((num_tokens, copies.len()), (left, usize::from(left > 0)));
        self.copy(copies);
        let sequence = self.model.sequences.get_mut(&seq).expect("there");
        sequence.tokens.extend(&prompt[whole..whole + left]);
        sequence.num_reserved += usize::from(left > 0);
    }

    fn copy(&mut self, copies: Vec<(u32, u32)>) {
        for (from, to) in copies {
            for offset in 0..BLOCK {
                if let Some(kv) = self.memory.get(&(from, offset)).cloned() {
                    self.memory.insert((to, offset), kv);
                }
            }
        }
    }

    fn reserve(&mut self, seq: u64, extra: usize) {
        let Some(sequence) = self.model.sequences.get(&seq) else {
            assert_eq!(self.pool.reserve(seq, extra), Err(CacheError::UnknownSequence(seq)));
            return;
        };
        let num_tokens = sequence.tokens.len() + extra;
        let needed = num_tokens.div_ceil(BLOCK).saturating_sub(sequence.num_reserved);
        let free = self.model.free();
        let result = self.pool.reserve(seq, num_tokens);
        if self.model.allocate(needed) {
            assert_eq!(result, Ok(()));
            self.model.sequences.get_mut(&seq).expect("there").num_reserved += needed;
        } else {
            assert_eq!(result, Err(CacheError::OutOfPages { needed, free }));
        }
    }

    fn commit(&mut self, seq: u64, tokens: &[u32]) {
        let Some(sequence) = self.model.sequences.get(&seq) else {
            assert_eq!(self.pool.commit(seq, tokens), Err(CacheError::UnknownSequence(seq)));
            return;
        };
        let room = sequence.num_reserved * BLOCK - sequence.tokens.len();
        if tokens.len() > room {
            assert!(matches!(
                self.pool.commit(seq, tokens),
                Err(CacheError::NotReserved { .. })
            ));
        }
        let tokens = &tokens[..tokens.len().min(room)];
        let (adapter, mut log) = (sequence.adapter, sequence.tokens.clone());
        for &token in tokens {
            log.push(token);
            let slot = self.slot(seq, log.len() - 1);
            self.memory.insert(slot, (adapter, log.clone()));
        }
        assert_eq!(self.pool.commit(seq, tokens), Ok(()));
        self.model.commit(seq, tokens);
    }

    fn fork(&mut self, parent: u64, child: u64) {
        let result = self.pool.fork(parent, child);
        let Some(source) = self.model.sequences.get(&parent).cloned() else {
            assert_eq!(result, Err(CacheError::UnknownSequence(parent)));
            return;
        };
        if self.model.sequences.contains_key(&child) {
            assert_eq!(result, Err(CacheError::DuplicateSequence(child)));
            return;
        }
        let num_reserved = source.tokens.len().div_ceil(BLOCK);
        let needed = num_reserved - source.whole.len();
        if !self.model.allocate(needed) {
            assert_eq!(result, Err(CacheError::OutOfPages { needed, free: 0 }));
            return;
        }
        let copies = result.expect("there is room");
        assert_eq!(copies.len(), needed);
        self.copy(copies);
        self.model
            .sequences
            .insert(child, ModelSequence { num_reserved, ..source });
    }

    fn compare(&self) {
        self.pool.check().expect("consistent");
        let stats = self.pool.stats();
        let counts = (stats.free, stats.cached, stats.active, stats.evictions());
        let model = &self.model;
        assert_eq!(
            counts,
            (model.free(), model.cached.len(), model.active(), model.evictions)
        );
        for (&seq, sequence) in &model.sequences {
            assert_eq!(self.pool.tokens(seq).expect("there"), sequence.tokens);
            assert_eq!(self.pool.table(seq).expect("there").len(), sequence.num_reserved);
            for position in 0..sequence.tokens.len() {
                let kv = (sequence.adapter, sequence.tokens[..=position].to_vec());
                assert_eq!(
                    self.memory.get(&self.slot(seq, position)),
                    Some(&kv),
                    "KV of {position} in {seq}"
                );
            }
        }
    }

    fn drain(&mut self) {
        for seq in self.model.sequences.keys().copied().collect::<Vec<_>>() {
            self.apply(Step::Release { seq });
        }
        let stats = self.pool.stats();
        assert_eq!((stats.free, stats.active), (stats.num_pages, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order, the pool agrees with its model, every sequence reads its own KV, and all
    /// blocks are free in the end; also when hashes collide, and when memory is short.
    #[test]
    fn pool_agrees_with_model(
        steps in prop::collection::vec(step(), 1..80),
        num_blocks in 1..24u32,
        width in prop_oneof![Just(None), Just(Some(1)), Just(Some(3))],
    ) {
        let hasher: Box<dyn BlockHasher> = match width {
            None => Box::new(KeyedHasher::default()),
            Some(width) => Box::new(Narrow(width)),
        };
        let mut machine = Machine::new(num_blocks, hasher);
        steps.into_iter().for_each(|step| machine.apply(step));
        machine.drain();
    }
}
