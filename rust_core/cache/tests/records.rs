//! Records of blocks' last tokens, with the memory behind the pages: whatever is found, forked, swapped or evicted, what a
//! token leaves behind is made of exactly the token before it.

use std::collections::HashMap;

use proptest::prelude::*;
use pyagent_cache::{AddOptions, BlockPool, Group, GroupKind, NO_PAGE, PoolOptions, Salt};

const BLOCK: usize = 4;

/// What is in a page: what each of its tokens left behind, made of the text up to it; and the record, the text that it is of.
#[derive(Clone, Default)]
struct Page {
    slots: [Vec<u32>; BLOCK],
    record: Vec<u32>,
}

/// A pool, what is in its pages, and the tokens of its sequences.
struct Engine {
    pool: BlockPool,
    pages: HashMap<u32, Page>,
    sequences: HashMap<u64, Vec<u32>>,
    prompts: HashMap<u64, Vec<u32>>,
    swapped: HashMap<u64, (Vec<u32>, Vec<Page>)>,
}

impl Engine {
    fn new(num_pages: u32) -> Self {
        let group = Group {
            kind: GroupKind::Recorded,
            pages_per_block: 1,
        };
        let pool = BlockPool::new(PoolOptions {
            block_tokens: BLOCK,
            groups: vec![group],
            ..PoolOptions::new(num_pages)
        });
        Self {
            pool: pool.expect("a small pool"),
            pages: HashMap::new(),
            sequences: HashMap::new(),
            prompts: HashMap::new(),
            swapped: HashMap::new(),
        }
    }

    fn page(&self, number: u32) -> Page {
        self.pages.get(&number).cloned().unwrap_or_default()
    }

    fn copy(&mut self, pairs: &[(u32, u32)]) {
        for (from, to) in pairs {
            let page = self.page(*from);
            self.pages.insert(*to, page);
        }
    }

    /// Starts a sequence as a runner does; returns how many of its tokens need no computing.
    fn add(&mut self, seq: u64, tokens: &[u32]) -> usize {
        let salt = Salt::default();
        let cached = self.pool.add(seq, tokens, &salt, AddOptions::default()).expect("new");
        let next = &tokens[cached..(cached + BLOCK).min(tokens.len() - 1)];
        let part = self.pool.take_part(seq, next).map_or(0, |(part, pairs)| {
            self.copy(&pairs);
            part
        });
        self.sequences.insert(seq, tokens[..cached + part].to_vec());
        self.prompts.insert(seq, tokens.to_vec());
        cached + part
    }

    /// Computes tokens as a step does: what the first leaves behind is made of the record, if that is of the token before
    /// it; else it is there already.
    fn compute(&mut self, seq: u64, more: &[u32]) {
        let first = self.sequences[&seq].len();
        let tokens = [self.sequences[&seq].as_slice(), more].concat();
        if self.pool.reserve(seq, tokens.len()).is_err() {
            return;
        }
        let table = self.pool.tables(seq).expect("there")[0].to_vec();
        for at in first..tokens.len() {
            let is_made = at > first || at == 0 || self.page(table[(at - 1) / BLOCK]).record == tokens[..at];
            let slot = &mut self.pages.entry(table[at / BLOCK]).or_default().slots[at % BLOCK];
            if is_made {
                *slot = tokens[..=at].to_vec();
            }
        }
        for (block, &page) in table
            .iter()
            .enumerate()
            .take(tokens.len().div_ceil(BLOCK))
            .skip(first / BLOCK)
        {
            let record = tokens[..((block + 1) * BLOCK).min(tokens.len())].to_vec();
            self.pages.entry(page).or_default().record = record;
        }
        self.pool.commit(seq, more).expect("reserved");
        self.sequences.insert(seq, tokens);
    }

    fn release(&mut self, seq: u64) {
        self.pool.release(seq).expect("there");
        self.sequences.remove(&seq);
    }

    fn swap_out(&mut self, seq: u64) {
        let pages = self.pool.pages_in_use(seq).expect("there");
        let saved = pages.iter().map(|page| self.page(*page)).collect();
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
        for (slot, page) in slots.iter().zip(saved).filter(|(slot, _)| **slot != NO_PAGE) {
            self.pages.insert(*slot, page);
        }
        self.pool.commit(seq, &tokens[cached..]).expect("restored");
        self.sequences.insert(seq, tokens);
    }

    /// Each token of each sequence left behind what is made of its own text.
    fn check(&self) {
        self.pool.check().expect("consistent");
        for (seq, tokens) in &self.sequences {
            let table = &self.pool.tables(*seq).expect("there")[0];
            for at in 0..tokens.len() {
                let page = self.page(table[at / BLOCK]);
                assert_eq!(page.slots[at % BLOCK], tokens[..=at], "token {at} of sequence {seq}");
            }
        }
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
    range
        .map(|at| if at < 6 + branch as usize { 7 } else { branch })
        .collect()
}

fn action() -> impl Strategy<Value = Action> {
    let seq = || 0..4_u64;
    prop_oneof![
        4 => (seq(), 0..3_u32, 1..30_usize).prop_map(|(seq, branch, len)| Action::Start { seq, branch, len }),
        8 => (seq(), 0..3_u32, 1..9_usize).prop_map(|(seq, branch, len)| Action::Compute { seq, branch, len }),
        4 => seq().prop_map(|seq| Action::Release { seq }),
        2 => (seq(), seq()).prop_map(|(parent, child)| Action::Fork { parent, child }),
        2 => seq().prop_map(|seq| Action::SwapOut { seq }),
        2 => seq().prop_map(|seq| Action::SwapIn { seq }),
        1 => (4..40_usize).prop_map(|limit| Action::Shrink { limit }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever happens, what a token leaves behind is that of a text that was computed at once.
    #[test]
    fn every_token_goes_on_from_the_one_before(actions in prop::collection::vec(action(), 1..60)) {
        let mut engine = Engine::new(40);
        for action in actions {
            let is_there = |seq: u64| engine.sequences.contains_key(&seq);
            let is_known = |seq: u64| is_there(seq) || engine.swapped.contains_key(&seq);
            match action {
                Action::Start { seq, branch, len } if !is_known(seq) => {
                    engine.add(seq, &text(branch, 0..len));
                }
                Action::Compute { seq, branch, len } if is_there(seq) => {
                    let first = engine.sequences[&seq].len();
                    let of_prompt = engine.prompts[&seq].iter().skip(first).take(len).copied();
                    let mut more: Vec<u32> = of_prompt.collect();
                    more.extend(text(branch, first + more.len()..first + len));
                    engine.compute(seq, &more);
                }
                Action::Release { seq } if is_there(seq) => engine.release(seq),
                Action::Fork { parent, child } if is_there(parent) && !is_known(child) => {
                    if let Ok(pairs) = engine.pool.fork(parent, child) {
                        engine.copy(&pairs);
                        engine.sequences.insert(child, engine.sequences[&parent].clone());
                        engine.prompts.insert(child, engine.prompts[&parent].clone());
                    }
                }
                Action::SwapOut { seq } if is_there(seq) => engine.swap_out(seq),
                Action::SwapIn { seq } => engine.swap_in(seq),
                Action::Shrink { limit } => drop(engine.pool.set_limit(limit)),
                _ => {}
            }
            engine.check();
        }
    }
}

/// Of a part of a block the last token is computed once more; the end of a text is gone on from where it is.
#[test]
fn the_last_token_of_a_part_is_computed_once_more() {
    let mut engine = Engine::new(100);
    let prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
    engine.add(1, &prompt);
    engine.compute(1, &prompt);
    engine.release(1);
    for (tokens, expected) in [
        (&[1, 2, 3, 4, 5, 6, 7, 0, 0][..], 6),
        (&[1, 2, 3, 4, 5, 0, 0], 4),
        (&[1, 2, 3, 4, 5, 6, 7, 8, 0], 8),
        (&prompt, 9),
        (&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], 11),
    ] {
        let found = engine.pool.lookup(tokens, &Salt::default()).num_tokens;
        assert_eq!((found, engine.add(2, tokens)), (expected, expected), "{tokens:?}");
        engine.compute(2, &tokens[expected..]);
        engine.check();
        engine.release(2);
    }
}

/// An engine whose sequence 2 has a part of a text that is gone, and has not computed the part's last token again.
fn after_a_part() -> Engine {
    let mut engine = Engine::new(100);
    engine.add(1, &[1, 2, 3, 4, 5, 6, 7]);
    engine.compute(1, &[1, 2, 3, 4, 5, 6, 7]);
    engine.release(1);
    assert_eq!(engine.add(2, &[1, 2, 3, 4, 5, 6, 0, 0]), 5);
    engine.pool.set_limit(2).expect("the first text's end is evicted");
    engine.pool.set_limit(100).expect("there is room again");
    engine
}

fn goes_on_from_a_whole_block(engine: &mut Engine) {
    assert_eq!(engine.add(3, &[1, 2, 3, 4, 5, 9, 9]), 4);
    engine.compute(3, &[5, 9, 9]);
    engine.check();
}

/// A text that left before it computed the last token of its part again leaves no end to go on from.
#[test]
fn an_end_without_its_record_is_not_kept() {
    let mut engine = after_a_part();
    engine.release(2);
    goes_on_from_a_whole_block(&mut engine);
}

/// What was swapped out before the last token of its part was computed again leaves none either, once it is back.
#[test]
fn a_restored_end_without_its_record_is_not_kept() {
    let mut engine = after_a_part();
    engine.swap_out(2);
    engine.swap_in(2);
    engine.release(2);
    goes_on_from_a_whole_block(&mut engine);
}

/// A part with one token in common is none, and takes no page.
#[test]
fn a_part_of_one_token_is_none() {
    let mut engine = Engine::new(100);
    engine.add(1, &[1, 2, 3, 4, 5, 6, 7]);
    engine.compute(1, &[1, 2, 3, 4, 5, 6, 7]);
    engine.release(1);
    let (tokens, salt) = ([1, 2, 3, 4, 5, 0, 0], Salt::default());
    let found = engine.pool.lookup(&tokens, &salt);
    assert_eq!((found.num_tokens, found.num_pages), (4, 1));
    assert_eq!(engine.pool.add(2, &tokens, &salt, AddOptions::default()), Ok(4));
    assert_eq!(engine.pool.take_part(2, &tokens[4..6]), Ok((0, vec![])));
    engine.pool.check().expect("consistent");
}
