//! Each policy, through the pool, against the obvious way to write it: after every prompt, the same is cached.

use std::collections::BTreeSet;

use proptest::prelude::*;
use pyagent_cache::{AddOptions, BlockPool, EvictionPolicy, PoolOptions, Salt, TailLru, make_policy};

const BLOCK: usize = 2;

/// A cache of `size` keys, as its inventors wrote it down.
trait Reference {
    fn access(&mut self, key: u32, priority: i64);
    fn cached(&self) -> BTreeSet<u32>;
}

/// Keys with a rank; the lowest goes.
struct Ranked {
    size: usize,
    now: i64,
    keys: Vec<(i64, i64, u32)>, // rank, last use, key
    rank: fn(old: Option<i64>, now: i64, priority: i64) -> i64,
}

impl Reference for Ranked {
    fn access(&mut self, key: u32, priority: i64) {
        self.now += 1;
        let old = self.keys.iter().position(|&(_, _, other)| other == key);
        let old = old.map(|place| self.keys.remove(place).0);
        if old.is_none() && self.keys.len() == self.size {
            let lowest = *self.keys.iter().min().expect("it is full");
            self.keys.retain(|&other| other != lowest);
        }
        self.keys.push(((self.rank)(old, self.now, priority), self.now, key));
    }

    fn cached(&self) -> BTreeSet<u32> {
        self.keys.iter().map(|&(_, _, key)| key).collect()
    }
}

struct Slru {
    size: usize,
    probation: Vec<u32>,
    protected: Vec<u32>,
}

impl Reference for Slru {
    fn access(&mut self, key: u32, _priority: i64) {
        let is_hit = self.cached().contains(&key);
        if !is_hit && self.probation.len() + self.protected.len() == self.size {
            let segment = if self.probation.is_empty() {
                &mut self.protected
            } else {
                &mut self.probation
            };
            segment.remove(0);
        }
        self.probation.retain(|&other| other != key);
        self.protected.retain(|&other| other != key);
        if is_hit {
            &mut self.protected
        } else {
            &mut self.probation
        }
        .push(key);
        while self.protected.len() > self.size * 4 / 5 {
            self.probation.push(self.protected.remove(0));
        }
    }

    fn cached(&self) -> BTreeSet<u32> {
        self.probation.iter().chain(&self.protected).copied().collect()
    }
}

/// Megiddo & Modha, FAST'03, figure 4; lists are oldest first.
#[derive(Default)]
struct Arc {
    c: usize,
    p: usize,
    t1: Vec<u32>,
    t2: Vec<u32>,
    b1: Vec<u32>,
    b2: Vec<u32>,
}

fn take(list: &mut Vec<u32>, key: u32) -> bool {
    let place = list.iter().position(|&other| other == key);
    place.map(|place| list.remove(place)).is_some()
}

impl Arc {
    fn replace(&mut self, is_in_b2: bool) {
        let t1 = self.t1.len();
        if t1 >= 1 && ((is_in_b2 && t1 == self.p) || t1 > self.p) {
            self.b1.push(self.t1.remove(0));
        } else {
            self.b2.push(self.t2.remove(0));
        }
    }

    fn miss(&mut self) {
        let (l1, l2) = (self.t1.len() + self.b1.len(), self.t2.len() + self.b2.len());
        if l1 == self.c {
            if self.t1.len() < self.c {
                self.b1.remove(0);
                self.replace(false);
            } else {
                self.t1.remove(0);
            }
        } else if l1 + l2 >= self.c {
            if l1 + l2 == 2 * self.c {
                self.b2.remove(0);
            }
            self.replace(false);
        }
    }
}

impl Reference for Arc {
    fn access(&mut self, key: u32, _priority: i64) {
        let (b1, b2) = (self.b1.len(), self.b2.len());
        if take(&mut self.t1, key) || take(&mut self.t2, key) {
            self.t2.push(key);
        } else if self.b1.contains(&key) {
            self.p = self.c.min(self.p + (b2 / b1).max(1));
            self.replace(false);
            take(&mut self.b1, key);
            self.t2.push(key);
        } else if self.b2.contains(&key) {
            self.p = self.p.saturating_sub((b1 / b2).max(1));
            self.replace(true);
            take(&mut self.b2, key);
            self.t2.push(key);
        } else {
            self.miss();
            self.t1.push(key);
        }
    }

    fn cached(&self) -> BTreeSet<u32> {
        self.t1.iter().chain(&self.t2).copied().collect()
    }
}

fn reference(name: &str, size: usize) -> Box<dyn Reference> {
    let ranked = |rank| Ranked {
        size,
        now: 0,
        keys: vec![],
        rank,
    };
    match name {
        "lru" => Box::new(ranked(|_, now, _| now)),
        "lfu" => Box::new(ranked(|old, _, _| old.unwrap_or(0) + 1)),
        "fifo" => Box::new(ranked(|old, now, _| old.unwrap_or(now))),
        "priority" => Box::new(ranked(|old, _, priority| old.unwrap_or(i64::MIN).max(priority))),
        "slru" => Box::new(Slru {
            size,
            probation: vec![],
            protected: vec![],
        }),
        "arc" => Box::new(Arc {
            c: size,
            ..Arc::default()
        }),
        other => unreachable!("{other}"),
    }
}

fn pool(num_pages: u32, policy: Box<dyn EvictionPolicy>) -> BlockPool {
    BlockPool::new(PoolOptions {
        block_tokens: BLOCK,
        policy: Some(policy),
        ..PoolOptions::new(num_pages)
    })
    .expect("a small pool")
}

/// A prompt of whole blocks of these words is computed, as far as it is not cached.
fn access(pool: &mut BlockPool, words: &[u32], priority: i64) {
    let tokens: Vec<u32> = words.iter().flat_map(|&word| [word; BLOCK]).collect();
    let prompt = [&tokens[..], &[u32::MAX]].concat();
    let options = AddOptions {
        priority,
        is_resumed: false,
        most_cached: None,
    };
    let cached = pool.add(1, &prompt, &Salt::default(), options).expect("new");
    pool.reserve(1, tokens.len()).expect("room");
    pool.commit(1, &tokens[cached..]).expect("reserved");
    pool.check().expect("consistent");
    pool.release(1).expect("there");
    pool.check().expect("consistent");
}

fn num_cached(pool: &BlockPool, words: &[u32]) -> usize {
    let tokens: Vec<u32> = words.iter().flat_map(|&word| [word; BLOCK]).collect();
    pool.lookup(&[&tokens[..], &[u32::MAX]].concat(), &Salt::default())
        .num_tokens
        / BLOCK
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Prompts of one block leave the same cached as the reference does, at every moment.
    #[test]
    fn policy_equals_reference(
        name in prop::sample::select(vec!["lru", "lfu", "fifo", "priority", "slru", "arc"]),
        size in 1..9u32,
        trace in prop::collection::vec((0..14u32, -1..2i64), 1..120),
    ) {
        let mut pool = pool(size, make_policy(name, size).expect("a name"));
        let mut reference = reference(name, size as usize);
        for (key, priority) in trace {
            access(&mut pool, &[key], priority);
            reference.access(key, priority);
            let cached: BTreeSet<u32> = (0..14).filter(|&key| num_cached(&pool, &[key]) == 1).collect();
            prop_assert_eq!(cached, reference.cached());
        }
    }

    /// Tail-optimised LRU on conversations: blocks after `L + Q - X` tokens go first, then the least recently used.
    #[test]
    fn tail_lru_equals_reference(
        size in 4..16u32,
        (next_turn, in_time) in (0..5usize, 0..9usize),
        trace in prop::collection::vec((0..5u32, 1..5usize), 1..80),
    ) {
        let mut pool = pool(size, Box::new(TailLru::new(size, next_turn, in_time)));
        let mut queues: [Vec<(u32, usize)>; 2] = [vec![], vec![]]; // tails, others; oldest first
        let mut reach = [[0; 5]; 5]; // of each block: the longest conversation through it since it was computed
        for (conversation, len) in trace {
            access(&mut pool, &vec![conversation; len], 0);
            let cached = |queues: &[Vec<(u32, usize)>; 2], block| queues.iter().flatten().any(|&other| other == (conversation, block));
            let hits = (0..len).take_while(|&block| cached(&queues, block)).count();
            queues.iter_mut().for_each(|queue| queue.retain(|&(other, block)| other != conversation || block >= hits));
            while queues[0].len() + queues[1].len() + len > size as usize {
                let first = usize::from(queues[0].is_empty());
                queues[first].remove(0);
            }
            for block in (0..len).rev() {
                let reach = &mut reach[conversation as usize][block];
                *reach = if block < hits { *reach } else { 0 }.max(len * BLOCK);
                let is_tail = (block + 1) * BLOCK + in_time > *reach + next_turn;
                queues[usize::from(!is_tail)].push((conversation, block));
            }
            for other in 0..5 {
                let expected = (0..5).take_while(|&block| queues.iter().flatten().any(|&(c, b)| (c, b) == (other, block))).count();
                prop_assert_eq!(num_cached(&pool, &[other; 5]), expected);
            }
        }
    }
}

/// A smaller pool protects fewer blocks: those that were used longest ago are on probation again, and go first.
#[test]
fn a_smaller_pool_protects_less() {
    let mut pool = pool(10, make_policy("slru", 10).expect("a name"));
    for key in (0..8).chain(0..8) {
        access(&mut pool, &[key], 0);
    }
    pool.set_limit(6).expect("less");
    pool.check().expect("consistent");
    for key in 8..11 {
        access(&mut pool, &[key], 0);
    }
    let cached: Vec<u32> = (0..11).filter(|&key| num_cached(&pool, &[key]) == 1).collect();
    assert_eq!(cached, [4, 5, 6, 7, 9, 10]);
}
