//! What the bookkeeping costs with 256 running sequences of 8,192 tokens: `cargo run --release --example pool_speed -p
//! pyagent-cache`.

use std::time::Instant;

use pyagent_cache::{AddOptions, BlockPool, Group, GroupKind, PoolOptions, Salt};

const SEQUENCES: u64 = 256;
const TOKENS: usize = 8192;
const STEPS: usize = 256;

fn main() {
    let window = Group {
        kind: GroupKind::Window(512),
        pages_per_block: 1,
    };
    for (name, groups) in [
        ("full", vec![Group::FULL]),
        ("full and window", vec![Group::FULL, window]),
    ] {
        let num_pages = (SEQUENCES as usize * (TOKENS + STEPS) / 16 * 3) as u32;
        let options = PoolOptions {
            groups,
            ..PoolOptions::new(num_pages)
        };
        let mut pool = BlockPool::new(options).expect("a pool");
        println!("{name}:");
        measure(&mut pool);
    }
}

fn measure(pool: &mut BlockPool) {
    let salt = Salt::default();
    let prompt = |seq: u64| -> Vec<u32> { (0..TOKENS as u32).map(|token| token * 300 + seq as u32).collect() };
    for seq in 0..SEQUENCES {
        let prompt = prompt(seq);
        pool.add(seq, &prompt, &salt, AddOptions::default()).expect("new");
        for chunk in prompt.chunks(512) {
            let num_tokens = pool.num_tokens(seq).expect("there") + chunk.len();
            pool.reserve(seq, num_tokens).expect("room");
            pool.commit(seq, chunk).expect("reserved");
        }
    }
    let start = Instant::now();
    for step in 1..=STEPS {
        for seq in 0..SEQUENCES {
            pool.reserve(seq, TOKENS + step).expect("room");
        }
    }
    report("reserve a token", start, STEPS as u64 * SEQUENCES);
    let start = Instant::now();
    for step in 0..STEPS {
        for seq in 0..SEQUENCES {
            pool.commit(seq, &[step as u32 * 300 + seq as u32]).expect("reserved");
        }
    }
    report("commit a token", start, STEPS as u64 * SEQUENCES);
    let start = Instant::now();
    (0..SEQUENCES).for_each(|seq| pool.release(seq).expect("there"));
    report("release", start, SEQUENCES);
    let prompts: Vec<Vec<u32>> = (0..SEQUENCES).map(prompt).collect();
    let start = Instant::now();
    for (seq, prompt) in (0..).zip(&prompts) {
        let cached = pool.add(seq, prompt, &salt, AddOptions::default()).expect("new");
        assert_eq!(cached, TOKENS - 16);
    }
    report("add 8,192 cached tokens", start, SEQUENCES);
}

fn report(what: &str, start: Instant, times: u64) {
    println!("  {what}: {:.3} us", start.elapsed().as_secs_f64() * 1e6 / times as f64);
}
