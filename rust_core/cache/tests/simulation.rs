//! Random histories of a block pool with simulated KV memory behind it: whatever happens, every table leads to exactly
//! the content that its sequence computed, nothing leaks, and what is pinned can be found.

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/narrow.rs"]
mod narrow;
#[path = "support/steps.rs"]
mod steps;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use faulty::{Fault, Faulty};
use narrow::Narrow;
use proptest::prelude::*;
use pyagent_cache::{
    AddOptions, BlockPool, CacheError, EvictionPolicy, Group, GroupKind, KeyedHasher, NO_PAGE, PoolOptions, Reason,
    Salt, Supervised, TailLru, make_policy,
};
use steps::{Prompt, Step, groups, step};

/// What a slot of a page holds: group, page of the block, adapter, and all tokens up to the slot's. KV depends on these.
type Kv = (usize, usize, u64, Arc<Vec<u32>>);

#[derive(Debug, Clone)]
struct Running {
    adapter: u64,
    log: Vec<u32>,
    /// Of the prompt, what is not computed yet.
    rest: Vec<u32>,
    /// Whether it was added since the index was cleared.
    is_findable: bool,
}

struct Swapped {
    running: Running,
    pages: Vec<Vec<Option<Kv>>>,
}

struct Machine {
    pool: BlockPool,
    block_tokens: usize,
    groups: Vec<Group>,
    memory: HashMap<(u32, usize), Kv>,
    running: BTreeMap<u64, Running>,
    swapped: BTreeMap<u64, Swapped>,
    pins: BTreeMap<u8, (u64, Vec<u32>)>,
    /// Every sequence there was since the index was cleared.
    texts: Vec<(u64, Vec<u32>)>,
    /// Those that ended: what is not whole of them can be found too.
    ended: Vec<(u64, Vec<u32>)>,
    seconds: Arc<AtomicU64>,
}

/// Whether a layer of this kind attends from `position` to the earlier (or same) token `seen`.
fn sees(kind: GroupKind, position: usize, seen: usize) -> bool {
    match kind {
        GroupKind::Full | GroupKind::Recorded => true,
        GroupKind::Window(size) => position - seen < size,
        GroupKind::Chunk(size) => position / size == seen / size,
        GroupKind::State(_) => position - seen < 2,
    }
}

fn salt(adapter_id: u64) -> Salt {
    Salt {
        adapter_id,
        ..Salt::default()
    }
}

impl Machine {
    fn apply(&mut self, step: Step) {
        match step {
            Step::Add {
                seq,
                adapter,
                prompt,
                priority,
            } => self.add(seq, adapter, self.prompt(&prompt), priority),
            Step::Reserve { seq, extra } => {
                self.reserve(seq, extra);
            }
            Step::Compute { seq, sampled } => self.compute(seq, &sampled),
            Step::Fork { parent, child } => self.fork(parent, child),
            Step::Release { seq } => self.release(seq),
            Step::SwapOut { seq } => self.swap_out(seq),
            Step::SwapIn { seq } => self.swap_in(seq),
            Step::GiveBack => self.give_back(),
            Step::Wait { seconds } => drop(self.seconds.fetch_add(seconds, Ordering::Relaxed)),
            Step::SetLimit { share } => {
                let limit = self.pool.stats().num_pages * share.max(2) / 8;
                let active = self.pool.stats().active;
                let excess = self.pool.set_limit(limit).expect("not more than there are");
                assert!(excess >= active.saturating_sub(limit));
            }
            Step::ClearIndex => {
                self.pool.clear_index();
                self.texts.clear();
                self.ended.clear();
                self.pins.clear();
                self.swapped.clear();
                self.running
                    .values_mut()
                    .for_each(|running| running.is_findable = false);
            }
            hint => self.hint(hint),
        }
        self.compare();
    }

    fn hint(&mut self, step: Step) {
        let name = |name: u8| name.to_string();
        match step {
            Step::Pin {
                name: pin,
                adapter,
                prompt,
            } => {
                let mut tokens = self.prompt(&prompt);
                match self.pool.pin(&name(pin), &tokens, &salt(adapter)) {
                    Ok(covered) => {
                        tokens.truncate(covered);
                        self.pins.insert(pin, (adapter, tokens));
                    }
                    Err(error) => assert!(matches!(error, CacheError::PinLimit { .. })),
                }
            }
            Step::Unpin { name: pin } => assert_eq!(self.pool.unpin(&name(pin)), self.pins.remove(&pin).is_some()),
            Step::Retain {
                name: retained,
                adapter,
                prompt,
                seconds,
            } => {
                let tokens = self.prompt(&prompt);
                let covered = self.pool.retain(
                    &name(retained),
                    &tokens,
                    &salt(adapter),
                    seconds.map(Duration::from_secs),
                );
                assert!(covered <= tokens.len());
            }
            Step::Demote { adapter, prompt } => {
                let tokens = self.prompt(&prompt);
                assert!(self.pool.demote(&tokens, 0, &salt(adapter)) <= tokens.len());
            }
            Step::DemoteRetained { name: retained } => drop(self.pool.demote_retained(&name(retained))),
            Step::Forget { name: retained } => drop(self.pool.forget(&name(retained))),
            other => unreachable!("{other:?} is no hint"),
        }
    }

    fn prompt(&self, prompt: &Prompt) -> Vec<u32> {
        let old: &[u32] = self.texts.get(prompt.text).map_or(&[], |(_, text)| text);
        let start = old.len() * prompt.share.min(8) / 8;
        [&old[..start], &prompt.more].concat()
    }

    /// The longest common beginning with whole blocks of anything computed, or with all of what ended.
    fn naive_hits(&self, adapter: u64, prompt: &[u32]) -> usize {
        let usable = &prompt[..prompt.len().saturating_sub(1)];
        let common = |tokens: &[u32]| tokens.iter().zip(usable).take_while(|(a, b)| a == b).count();
        let whole = |tokens: &Vec<u32>| common(&tokens[..tokens.len() / self.block_tokens * self.block_tokens]);
        let is_of_adapter = |text: &&(u64, Vec<u32>)| text.0 == adapter;
        let wholes = self.texts.iter().filter(is_of_adapter).map(|(_, tokens)| whole(tokens));
        let ended = self.ended.iter().filter(is_of_adapter);
        wholes.chain(ended.map(|(_, tokens)| common(tokens))).max().unwrap_or(0)
    }

    fn add(&mut self, seq: u64, adapter: u64, prompt: Vec<u32>, priority: i64) {
        let (salt, options) = (
            salt(adapter),
            AddOptions {
                priority,
                ..AddOptions::default()
            },
        );
        if prompt.is_empty() || self.running.contains_key(&seq) {
            assert!(self.pool.add(seq, &prompt, &salt, options).is_err());
            return;
        }
        let naive = self.naive_hits(adapter, &prompt);
        let expected = self.pool.lookup(&prompt, &salt);
        let explained = self.pool.explain(&prompt, &salt);
        let cached = expected.num_tokens;
        assert_eq!(explained.cached_tokens, cached);
        assert!(explained.known_tokens >= cached && explained.known_tokens <= prompt.len());
        let is_missed = cached / self.block_tokens < naive / self.block_tokens;
        assert!(cached <= naive && !(is_missed && explained.reason == Reason::Complete));
        assert!(
            cached == naive || self.pool.stats().evictions() > 0,
            "nothing was evicted: all is found"
        );
        let before = self.pool.stats();
        let whole = self.pool.add(seq, &prompt, &salt, options).expect("new");
        let found = whole + self.take_part(seq, &prompt[whole..prompt.len() - 1]);
        let after = self.pool.stats();
        assert!(
            found <= expected.num_tokens
                && (found == expected.num_tokens
                    || before.evictions() < after.evictions()
                    || after.free < self.width())
        );
        assert!(found < expected.num_tokens || after.free == before.free.saturating_sub(expected.num_pages));
        let (log, rest) = (prompt[..found].to_vec(), prompt[found..].to_vec());
        self.running.insert(
            seq,
            Running {
                adapter,
                log,
                rest,
                is_findable: true,
            },
        );
    }

    /// Takes what a cached block has in common with a prompt, with its KV; returns how many tokens that are.
    fn take_part(&mut self, seq: u64, tokens: &[u32]) -> usize {
        match self.pool.take_part(seq, tokens) {
            Ok((num_tokens, copies)) => {
                assert_eq!(copies.len(), if num_tokens > 0 { self.width() } else { 0 });
                copies.into_iter().for_each(|(from, to)| self.copy(from, to));
                num_tokens
            }
            Err(error) => {
                let needed = self.width();
                let free = self.pool.stats().free;
                assert_eq!(error, CacheError::OutOfPages { needed, free });
                0
            }
        }
    }

    /// Pages of a block in all groups.
    fn width(&self) -> usize {
        self.groups.iter().map(|group| group.pages_per_block).sum()
    }

    fn num_blocks(&self, seq: u64) -> usize {
        self.pool.table(seq).expect("there").len() / self.groups[0].pages_per_block
    }

    fn reserve(&mut self, seq: u64, extra: usize) -> bool {
        let Some(running) = self.running.get(&seq) else {
            assert_eq!(self.pool.reserve(seq, extra), Err(CacheError::UnknownSequence(seq)));
            return false;
        };
        let num_tokens = running.log.len() + extra;
        let missing = num_tokens
            .div_ceil(self.block_tokens)
            .saturating_sub(self.num_blocks(seq));
        let needed = missing * self.width();
        let free = self.pool.stats().free;
        let result = self.pool.reserve(seq, num_tokens);
        if needed > free {
            assert_eq!(result, Err(CacheError::OutOfPages { needed, free }));
        } else {
            assert_eq!(result, Ok(()));
        }
        result.is_ok()
    }

    /// Computes the rest of the prompt, as much of it as `sampled` is long, or else the sampled tokens.
    fn compute(&mut self, seq: u64, sampled: &[u32]) {
        if !self.reserve(seq, sampled.len()) {
            return;
        }
        let mut running = self.running.remove(&seq).expect("it has room");
        let num_prompt = running.rest.len().min(sampled.len());
        let tokens: Vec<u32> = running
            .rest
            .drain(..num_prompt)
            .chain(sampled[num_prompt..].iter().copied())
            .collect();
        for &token in &tokens {
            running.log.push(token);
            self.write(seq, &running);
            self.read(seq, &running, running.log.len() - 1);
        }
        assert_eq!(self.pool.commit(seq, &tokens), Ok(()));
        if running.is_findable {
            self.texts.push((running.adapter, running.log.clone()));
        }
        self.running.insert(seq, running);
    }

    /// The pages of the token at `position`, by group; `None` where it is out of sight.
    fn pages(&self, seq: u64, group: usize, position: usize) -> Option<Vec<u32>> {
        let num_pages = self.groups[group].pages_per_block;
        let start = position / self.block_tokens * num_pages;
        let pages = self.pool.tables(seq).expect("there")[group][start..start + num_pages].to_vec();
        (!pages.contains(&NO_PAGE)).then_some(pages)
    }

    fn write(&mut self, seq: u64, running: &Running) {
        let position = running.log.len() - 1;
        let history = Arc::new(running.log.clone());
        for group in 0..self.groups.len() {
            let pages = self.pages(seq, group, position).expect("reserved");
            for (part, page) in pages.into_iter().enumerate() {
                let kv = (group, part, running.adapter, Arc::clone(&history));
                self.memory.insert((page, position % self.block_tokens), kv);
            }
        }
    }

    /// What the token at `position` sees is what was computed for the sequence.
    fn read(&self, seq: u64, running: &Running, position: usize) {
        for (group, Group { kind, .. }) in self.groups.iter().enumerate() {
            for seen in (0..running.log.len().min(position + 1)).filter(|&seen| sees(*kind, position, seen)) {
                let pages = self
                    .pages(seq, group, seen)
                    .unwrap_or_else(|| panic!("token {seen} of {seq} is out of sight"));
                for (part, page) in pages.into_iter().enumerate() {
                    let found = self
                        .memory
                        .get(&(page, seen % self.block_tokens))
                        .expect("something was computed");
                    let expected = (group, part, running.adapter, &running.log[..=seen]);
                    assert_eq!(
                        (found.0, found.1, found.2, &found.3[..]),
                        expected,
                        "token {seen} of {seq}"
                    );
                }
            }
        }
    }

    fn copy(&mut self, from: u32, to: u32) {
        for slot in 0..self.block_tokens {
            match self.memory.get(&(from, slot)).cloned() {
                Some(kv) => self.memory.insert((to, slot), kv),
                None => self.memory.remove(&(to, slot)),
            };
        }
    }

    fn fork(&mut self, parent: u64, child: u64) {
        let result = self.pool.fork(parent, child);
        let Some(source) = self.running.get(&parent).cloned() else {
            assert_eq!(result, Err(CacheError::UnknownSequence(parent)));
            return;
        };
        if self.running.contains_key(&child) {
            assert_eq!(result, Err(CacheError::DuplicateSequence(child)));
            return;
        }
        let Ok(copies) = result else {
            assert!(matches!(result, Err(CacheError::OutOfPages { .. })));
            return;
        };
        copies.into_iter().for_each(|(from, to)| self.copy(from, to));
        self.running.insert(child, source);
    }

    fn release(&mut self, seq: u64) {
        let running = self.running.remove(&seq);
        assert_eq!(self.pool.release(seq).is_ok(), running.is_some());
        let findable = running.filter(|running| running.is_findable);
        self.ended
            .extend(findable.map(|running| (running.adapter, running.log)));
    }

    fn swap_out(&mut self, seq: u64) {
        let Some(running) = self.running.get(&seq).cloned() else {
            return;
        };
        if running.log.is_empty() || !running.is_findable || self.swapped.contains_key(&seq) {
            return;
        }
        let slots = 0..self.block_tokens;
        let saved = |page: u32| {
            slots
                .clone()
                .map(|slot| self.memory.get(&(page, slot)).cloned())
                .collect()
        };
        let pages = self
            .pool
            .pages_in_use(seq)
            .expect("there")
            .into_iter()
            .map(saved)
            .collect();
        self.release(seq);
        self.swapped.insert(seq, Swapped { running, pages });
    }

    fn swap_in(&mut self, seq: u64) {
        let Some(swapped) = self.swapped.remove(&seq).filter(|_| !self.running.contains_key(&seq)) else {
            return;
        };
        let (log, salt) = (&swapped.running.log, salt(swapped.running.adapter));
        let before = self.pool.stats();
        match self.pool.restore(seq, log, &salt, AddOptions::default()) {
            Ok((num_cached, slots)) => {
                assert_eq!(slots.len(), swapped.pages.len());
                for (&page, saved) in slots.iter().zip(swapped.pages).filter(|(page, _)| **page != NO_PAGE) {
                    for (slot, kv) in saved.into_iter().enumerate() {
                        self.memory.remove(&(page, slot));
                        kv.and_then(|kv| self.memory.insert((page, slot), kv));
                    }
                }
                self.pool.commit(seq, &log[num_cached..]).expect("room");
                self.texts.push((swapped.running.adapter, log.clone()));
                self.running.insert(seq, swapped.running);
            }
            Err(error) => {
                assert!(matches!(error, CacheError::OutOfPages { .. }));
                assert_eq!(self.pool.stats().active, before.active);
            }
        }
    }

    /// The memory behind these pages is lost, as the system is free to make it.
    fn give_back(&mut self) {
        let freed: BTreeSet<u32> = self.pool.take_freed().into_iter().collect();
        self.memory.retain(|(page, _), _| !freed.contains(page));
    }

    fn compare(&self) {
        self.pool.check().expect("consistent");
        let stats = self.pool.stats();
        let tables = self
            .running
            .keys()
            .flat_map(|&seq| self.pool.tables(seq).expect("there"));
        let held: BTreeSet<u32> = tables
            .flat_map(|table| table.iter().copied())
            .filter(|&page| page != NO_PAGE)
            .collect();
        assert_eq!(stats.active, held.len());
        assert!(stats.free + stats.active <= stats.limit.max(stats.active));
        assert!(stats.pinned > 0 || stats.free == stats.limit.saturating_sub(stats.active));
        assert!(stats.active + stats.cached <= stats.num_pages);
        for (&seq, running) in &self.running {
            assert_eq!(self.pool.tokens(seq).expect("there"), running.log);
            self.read(seq, running, running.log.len());
        }
        for (adapter, tokens) in self.pins.values() {
            let prompt = [&tokens[..], &[7]].concat();
            assert_eq!(
                self.pool.lookup(&prompt, &salt(*adapter)).num_tokens,
                tokens.len(),
                "pinned"
            );
        }
    }

    fn drain(&mut self) {
        for seq in self.running.keys().copied().collect::<Vec<_>>() {
            self.apply(Step::Release { seq });
        }
        for name in 0..3 {
            self.apply(Step::Unpin { name });
            self.apply(Step::Forget { name });
        }
        self.pool.set_limit(0).expect("less than there are");
        let stats = self.pool.stats();
        assert_eq!((stats.active, stats.cached, stats.pinned, stats.retained), (0, 0, 0, 0));
        self.pool.check().expect("consistent");
        assert!(
            self.pool.prefixes(1, &[b""]).is_empty(),
            "no entry is left without pages"
        );
    }
}

/// A policy by number: the built-in ones, and one that fails.
fn policy(number: usize, num_pages: u32, calls_left: usize) -> Box<dyn EvictionPolicy> {
    let faulty = |fault| {
        let released = Vec::new();
        Supervised::new(
            Box::new(Faulty {
                calls_left,
                fault,
                released,
            }),
            num_pages,
        )
    };
    match number {
        0 => Box::new(TailLru::new(num_pages, 2, 5)),
        1 => Box::new(faulty(Fault::Raises)),
        2 => Box::new(faulty(Fault::ChoosesHeld)),
        3 => Box::new(faulty(Fault::ChoosesNothing)),
        other => make_policy(pyagent_cache::POLICY_NAMES[other - 4], num_pages).expect("a name"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Under any policy, groups, hints, limits and collisions: tables lead to the right content, nothing leaks, what is
    /// pinned stays, and what was never evicted is found.
    #[test]
    fn tables_lead_to_right_content(
        steps in prop::collection::vec(step(), 1..120),
        num_pages in 4..40u32,
        block_tokens in 1..4usize,
        groups in groups(),
        policy_number in 0..11usize,
        calls_left in 0..60usize,
        width in prop_oneof![2 => Just(None), 1 => Just(Some(1)), 1 => Just(Some(3))],
    ) {
        let seconds = Arc::new(AtomicU64::new(0));
        let now = Arc::clone(&seconds);
        let pool = BlockPool::new(PoolOptions {
            block_tokens,
            groups: groups.clone(),
            policy: Some(policy(policy_number, num_pages, calls_left)),
            hasher: match width {
                None => Box::new(KeyedHasher::default()),
                Some(width) => Box::new(Narrow(width)),
            },
            clock: Box::new(move || now.load(Ordering::Relaxed) * 1_000_000),
            ..PoolOptions::new(num_pages)
        });
        let mut machine = Machine {
            pool: pool.expect("a small pool"),
            block_tokens,
            groups,
            memory: HashMap::new(),
            running: BTreeMap::new(),
            swapped: BTreeMap::new(),
            pins: BTreeMap::new(),
            texts: Vec::new(),
            ended: Vec::new(),
            seconds,
        };
        steps.into_iter().for_each(|step| machine.apply(step));
        machine.drain();
    }
}
