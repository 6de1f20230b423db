//! What can happen to a block pool, at random.

use proptest::prelude::*;
use pyagent_cache::{Group, GroupKind};

#[derive(Debug, Clone)]
pub enum Step {
    Add {
        seq: u64,
        adapter: u64,
        prompt: Prompt,
        priority: i64,
    },
    Reserve {
        seq: u64,
        extra: usize,
    },
    Compute {
        seq: u64,
        sampled: Vec<u32>,
    },
    Fork {
        parent: u64,
        child: u64,
    },
    Release {
        seq: u64,
    },
    SwapOut {
        seq: u64,
    },
    SwapIn {
        seq: u64,
    },
    Pin {
        name: u8,
        adapter: u64,
        prompt: Prompt,
    },
    Unpin {
        name: u8,
    },
    Retain {
        name: u8,
        adapter: u64,
        prompt: Prompt,
        seconds: Option<u64>,
    },
    Demote {
        adapter: u64,
        prompt: Prompt,
    },
    DemoteRetained {
        name: u8,
    },
    Forget {
        name: u8,
    },
    SetLimit {
        share: usize,
    },
    GiveBack,
    Wait {
        seconds: u64,
    },
    ClearIndex,
}

/// Tokens after the start of one of the texts so far, as turns of a conversation are.
#[derive(Debug, Clone)]
pub struct Prompt {
    pub text: usize,
    pub share: usize, // of the text's length, in eighths
    pub more: Vec<u32>,
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let words = prop::collection::vec(0..2u32, 0..9);
    (0..20usize, 0..12usize, words).prop_map(|(text, share, more)| Prompt { text, share, more })
}

pub fn step() -> impl Strategy<Value = Step> {
    let seq = || 0..5u64;
    let (adapter, name) = (0..2u64, 0..3u8);
    let sampled = prop::collection::vec(0..2u32, 0..9);
    prop_oneof![
        8 => (seq(), adapter.clone(), prompt(), 0..3i64)
            .prop_map(|(seq, adapter, prompt, priority)| Step::Add { seq, adapter, prompt, priority }),
        2 => (seq(), 0..12usize).prop_map(|(seq, extra)| Step::Reserve { seq, extra }),
        14 => (seq(), sampled).prop_map(|(seq, sampled)| Step::Compute { seq, sampled }),
        2 => (seq(), seq()).prop_map(|(parent, child)| Step::Fork { parent, child }),
        6 => seq().prop_map(|seq| Step::Release { seq }),
        2 => seq().prop_map(|seq| Step::SwapOut { seq }),
        2 => seq().prop_map(|seq| Step::SwapIn { seq }),
        1 => (name.clone(), adapter.clone(), prompt()).prop_map(|(name, adapter, prompt)| Step::Pin { name, adapter, prompt }),
        1 => name.clone().prop_map(|name| Step::Unpin { name }),
        2 => (name.clone(), adapter.clone(), prompt(), prop::option::of(0..9u64))
            .prop_map(|(name, adapter, prompt, seconds)| Step::Retain { name, adapter, prompt, seconds }),
        1 => (adapter, prompt()).prop_map(|(adapter, prompt)| Step::Demote { adapter, prompt }),
        1 => name.clone().prop_map(|name| Step::DemoteRetained { name }),
        1 => name.prop_map(|name| Step::Forget { name }),
        1 => (0..=8usize).prop_map(|share| Step::SetLimit { share }),
        1 => Just(Step::GiveBack),
        1 => (0..5u64).prop_map(|seconds| Step::Wait { seconds }),
        1 => prop::bool::weighted(0.2).prop_map(|clear| if clear { Step::ClearIndex } else { Step::GiveBack }),
    ]
}

pub fn groups() -> impl Strategy<Value = Vec<Group>> {
    let group = |kind, pages_per_block| Group { kind, pages_per_block };
    prop_oneof![
        Just(vec![Group::FULL]),
        Just(vec![group(GroupKind::Full, 2)]),
        (1..9usize, 1..3usize).prop_map(move |(size, pages)| vec![Group::FULL, group(GroupKind::Window(size), pages)]),
        (1..9usize, 1..3usize).prop_map(move |(size, pages)| vec![group(GroupKind::Chunk(size), pages), Group::FULL]),
        (1..9usize).prop_map(move |size| vec![group(GroupKind::Window(size), 1)]),
        (1..9usize, 1..9usize).prop_map(move |(window, chunk)| vec![
            group(GroupKind::Window(window), 1),
            group(GroupKind::Chunk(chunk), 2)
        ]),
        (1..9usize, 1..9usize).prop_map(move |(small, large)| vec![
            group(GroupKind::Window(small), 1),
            Group::FULL,
            group(GroupKind::Window(large), 1)
        ]),
    ]
}
