//! Recurrent states in a pool, with the memory behind the pages: whatever is found, forked, swapped or evicted, a sequence
//! goes on from the state of exactly its own tokens.

use std::collections::HashMap;

use proptest::prelude::*;
use pyagent_cache::{AddOptions, BlockPool, Group, GroupKind, NO_PAGE, PoolOptions, Salt};

const BLOCK: usize = 4;
const STATE_PAGES: usize = 2;

/// The state after some tokens: all of them, condensed.
fn state_of(tokens: &[u32]) -> u64 {
    tokens.iter().fold(1, |state: u64, &token| {
        state.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(token + 1)
    })
}

/// A pool, what is in its pages, and the tokens of its sequences.
struct Engine {
    pool: BlockPool,
    page_to_state: HashMap<u32, u64>,
    sequences: HashMap<u64, Vec<u32>>,
    swapped: HashMap<u64, (Vec<u32>, Vec<Option<u64>>)>,
}

impl Engine {
    fn new(num_pages: u32, every: usize) -> Self {
        let state = Group {
            kind: GroupKind::State(every),
            pages_per_block: STATE_PAGES,
        };
        let pool = BlockPool::new(PoolOptions {
            block_tokens: BLOCK,
            groups: vec![Group::FULL, state],
            ..PoolOptions::new(num_pages)
        });
        Self {
            pool: pool.expect("a small pool"),
            page_to_state: HashMap::new(),
            sequences: HashMap::new(),
            swapped: HashMap::new(),
        }
    }

    fn copy(&mut self, pairs: &[(u32, u32)]) {
        for (from, to) in pairs {
            let state = self.page_to_state.get(from).copied().unwrap_or(0);
            self.page_to_state.insert(*to, state);
        }
    }

    /// Starts a sequence as a runner does; returns how many of its tokens need no computing.
    fn add(&mut self, seq: u64, tokens: &[u32]) -> usize {
        let salt = Salt::default();
        let cached = self.pool.add(seq, tokens, &salt, AddOptions::default()).expect("new");
        let next = &tokens[cached..(cached + BLOCK).min(tokens.len() - 1)];
        let part = match self.pool.take_part(seq, next) {
            Ok((part, pairs)) => {
                self.copy(&pairs);
                part
            }
            Err(_) => 0,
        };
        self.sequences.insert(seq, tokens[..cached + part].to_vec());
        self.expect_state(seq);
        cached + part
    }

    /// The pages of the state after `end` tokens.
    fn state_pages(&self, seq: u64, end: usize) -> Vec<u32> {
        let table = &self.pool.tables(seq).expect("there")[1];
        let block = (end - 1) / BLOCK;
        table[block * STATE_PAGES..(block + 1) * STATE_PAGES].to_vec()
    }

    /// The sequence's state is that of its tokens, in all of its pages.
    fn expect_state(&self, seq: u64) {
        let tokens = &self.sequences[&seq];
        if tokens.is_empty() {
            return;
        }
        for page in self.state_pages(seq, tokens.len()) {
            assert_ne!(page, NO_PAGE, "the state after {} tokens is nowhere", tokens.len());
            assert_eq!(self.page_to_state.get(&page), Some(&state_of(tokens)), "another state");
        }
    }

    /// Computes tokens as a step does: the state is written wherever a block that it reaches has pages.
    fn compute(&mut self, seq: u64, more: &[u32]) -> bool {
        let first = self.sequences[&seq].len();
        let end = first + more.len();
        if self.pool.reserve(seq, end).is_err() {
            return false;
        }
        self.expect_state(seq);
        let tokens = [self.sequences[&seq].as_slice(), more].concat();
        for block in first / BLOCK..end.div_ceil(BLOCK) {
            let end_of_block = ((block + 1) * BLOCK).min(end);
            for page in self.state_pages(seq, end_of_block) {
                self.page_to_state.insert(page, state_of(&tokens[..end_of_block]));
            }
        }
        self.pool.commit(seq, more).expect("reserved");
        self.sequences.insert(seq, tokens);
        self.pool.check().expect("consistent");
        self.expect_state(seq);
        true
    }

    fn release(&mut self, seq: u64) {
        self.pool.release(seq).expect("there");
        self.sequences.remove(&seq);
        self.pool.check().expect("consistent");
    }

    fn fork(&mut self, parent: u64, child: u64) {
        if let Ok(pairs) = self.pool.fork(parent, child) {
            self.copy(&pairs);
            self.sequences.insert(child, self.sequences[&parent].clone());
            self.expect_state(child);
        }
    }

    fn swap_out(&mut self, seq: u64) {
        let pages = self.pool.pages_in_use(seq).expect("there");
        let saved = pages.iter().map(|page| self.page_to_state.get(page).copied()).collect();
        let tokens = self.sequences[&seq].clone();
        self.release(seq);
        if !tokens.is_empty() {
            self.swapped.insert(seq, (tokens, saved));
        }
    }

    fn swap_in(&mut self, seq: u64) {
        let Some((tokens, saved)) = self.swapped.remove(&seq) else {
            return;
        };
        let Ok((cached, slots)) = self.pool.restore(seq, &tokens, &Salt::default(), AddOptions::default()) else {
            self.swapped.insert(seq, (tokens, saved));
            return;
        };
        assert_eq!(slots.len(), saved.len(), "a place for each page that was saved");
        for (slot, state) in slots.iter().zip(&saved) {
            match state {
                Some(state) if *slot != NO_PAGE => drop(self.page_to_state.insert(*slot, *state)),
                _ => {}
            }
        }
        self.pool.commit(seq, &tokens[cached..]).expect("restored");
        self.sequences.insert(seq, tokens);
        self.pool.check().expect("consistent");
        self.expect_state(seq);
    }
}

#[derive(Debug, Clone)]
enum Action {
    Start { seq: u64, branch: u32, len: usize },
    Compute { seq: u64, branch: u32, len: usize },
    Release { seq: u64 },
    Fork { parent: u64, child: u64 },
    SwapOut { seq: u64 },
    SwapIn { seq: u64 },
    Shrink { limit: usize },
}

/// Tokens of one of a few texts that begin alike.
fn text(branch: u32, range: std::ops::Range<usize>) -> Vec<u32> {
    range.map(|at| if at < 9 { 7 } else { branch }).collect()
}

fn action() -> impl Strategy<Value = Action> {
    let seq = || 0..4_u64;
    prop_oneof![
        4 => (seq(), 0..3_u32, 1..30_usize).prop_map(|(seq, branch, len)| Action::Start { seq, branch, len }),
        8 => (seq(), 0..3_u32, 1..14_usize).prop_map(|(seq, branch, len)| Action::Compute { seq, branch, len }),
        3 => seq().prop_map(|seq| Action::Release { seq }),
        2 => (seq(), seq()).prop_map(|(parent, child)| Action::Fork { parent, child }),
        2 => seq().prop_map(|seq| Action::SwapOut { seq }),
        2 => seq().prop_map(|seq| Action::SwapIn { seq }),
        1 => (10..90_usize).prop_map(|limit| Action::Shrink { limit }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever happens, a sequence that goes on has the state of its own tokens.
    #[test]
    fn every_sequence_has_its_own_state(every in 1..5_usize, actions in prop::collection::vec(action(), 1..60)) {
        let mut engine = Engine::new(90, every);
        for action in actions {
            let is_there = |seq: u64| engine.sequences.contains_key(&seq);
            let is_known = |seq: u64| is_there(seq) || engine.swapped.contains_key(&seq);
            match action {
                Action::Start { seq, branch, len } if !is_known(seq) => {
                    engine.add(seq, &text(branch, 0..len));
                }
                Action::Compute { seq, branch, len } if is_there(seq) => {
                    let first = engine.sequences[&seq].len();
                    engine.compute(seq, &text(branch, first..first + len));
                }
                Action::Release { seq } if is_there(seq) => engine.release(seq),
                Action::Fork { parent, child } if is_there(parent) && !is_known(child) => engine.fork(parent, child),
                Action::SwapOut { seq } if is_there(seq) => engine.swap_out(seq),
                Action::SwapIn { seq } => engine.swap_in(seq),
                Action::Shrink { limit } => drop(engine.pool.set_limit(limit)),
                _ => {}
            }
            engine.pool.check().expect("consistent");
        }
    }
}

/// A prompt computed in one step leaves a state where the next turn, and where another prompt with the same beginning,
/// goes on.
#[test]
fn turns_and_branches_go_on_from_checkpoints() {
    let mut engine = Engine::new(1_000, 100);
    let prompt: Vec<u32> = (0..42).collect();
    assert_eq!(engine.add(1, &prompt), 0);
    engine.compute(1, &prompt);
    engine.release(1);
    assert_eq!(
        engine.add(2, &prompt),
        40,
        "the prompt's last whole block has its state"
    );
    engine.release(2);
    let turn = [prompt.as_slice(), &[90, 91, 92]].concat();
    assert_eq!(engine.add(3, &turn), 42, "the end of the turn has its state");
    engine.release(3);
    let branch = [&prompt[..22], &[80; 20]].concat();
    assert_eq!(engine.add(4, &branch), 0, "no state was kept in the middle");
    engine.compute(4, &branch);
    engine.release(4);
    let other = [&prompt[..22], &[70; 20]].concat();
    assert_eq!(
        engine.add(5, &other),
        20,
        "the second to leave there kept the state where it left"
    );
}

/// Half of a block is no use where the state is that after all of it.
#[test]
fn a_part_of_a_block_is_not_taken() {
    let mut engine = Engine::new(100, 1);
    engine.add(1, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    engine.compute(1, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    engine.release(1);
    assert_eq!(engine.add(2, &[1, 2, 3, 4, 5, 6, 0, 0, 0]), 4);
    assert_eq!(engine.add(3, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 1]), 9);
}

/// Checkpoints stay when their sequence goes on; states between them go before anything else.
#[test]
fn states_between_checkpoints_go_first() {
    let mut engine = Engine::new(1_000, 4);
    let tokens: Vec<u32> = (0..64).collect();
    engine.add(1, &tokens[..1]);
    for token in &tokens {
        assert!(engine.compute(1, &[*token]));
    }
    let stats = engine.pool.stats();
    // Of 16 blocks: the last's is held, those of blocks 4, 8 and 12 are cached, twelve others are as good as empty.
    assert_eq!(stats.demoted, 12 * STATE_PAGES);
    assert!(engine.pool.most_pages(64, 1) >= stats.active);
    engine.release(1);
    assert_eq!(engine.add(2, &[&tokens[..35], &[0]].concat()), 32);
}

/// A step that ends before what was reserved still has a place for its state.
#[test]
fn a_shorter_step_than_reserved_has_its_state() {
    let mut engine = Engine::new(100, 50);
    engine.add(1, &[5; 30]);
    engine.pool.reserve(1, 30).expect("room");
    assert!(engine.compute(1, &[5; 9]));
    assert!(engine.compute(1, &[5; 21]));
}
