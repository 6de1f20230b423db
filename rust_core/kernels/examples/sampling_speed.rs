//! Time to sample one token on one core, for vocabularies of 50,000, 128,000 and 262,144 tokens or the one named; then a
//! batch of 16 on two threads, and what a context of 128,000 tokens adds.
//!
//! `cargo run --release -p pyagent-kernels --example sampling_speed [-- VOCABULARY]`

use std::sync::Mutex;
use std::time::Instant;

use pyagent_kernels::sampling::{SamplerState, SamplingParams};
use pyagent_kernels::thread_pool::ThreadPool;

/// Logits with the given spread; a spread of 2 to 3 is that of a language model, 0.1 is nearly flat.
fn row(vocab: usize, spread: f32) -> Vec<f32> {
    let hash = |i: usize| {
        (i as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    let uniform = |i: usize| ((hash(i) >> 40) as f32 + 1.0) / 16_777_217.0;
    (0..vocab).map(|i| -spread * uniform(i).ln()).collect()
}

/// Least microseconds of a token, without the copy of the row, over a tenth of a second: what other programs take does not
/// count. The sampler has seen a thousand tokens.
fn microseconds(row: &[f32], params: SamplingParams) -> f64 {
    let mut sampler = SamplerState::new(params.checked().expect("the parameters are in range"));
    let seen: Vec<u32> = (0..1000).map(|i| i * 7).collect();
    sampler.observe_prompt(&seen[..500]);
    seen[500..].iter().for_each(|token| sampler.observe(*token));
    let mut logits = row.to_vec();
    let mut seconds = Vec::new();
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < 0.1 {
        logits.copy_from_slice(row);
        let start = Instant::now();
        sampler
            .sample(&mut logits, None, seconds.len() as u64)
            .expect("the row is sound");
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.into_iter().fold(f64::INFINITY, f64::min) * 1e6
}

/// Least microseconds of a batch of 16 rows on two threads.
fn batch_microseconds(row: &[f32], params: &SamplingParams) -> f64 {
    let pool = ThreadPool::new(2);
    let one = |seed| {
        let params = SamplingParams { seed, ..params.clone() };
        let mut sampler = SamplerState::new(params.checked().expect("the parameters are in range"));
        (0..1000).for_each(|i| sampler.observe(i * 7));
        Mutex::new((sampler, row.to_vec()))
    };
    let rows: Vec<_> = (0..16).map(one).collect();
    let mut least = f64::INFINITY;
    for step in 0..200 {
        let sample = |index: usize| {
            let mut one = rows[index].lock().expect("no thread panicked");
            let (sampler, logits) = &mut *one;
            sampler.sample(logits, None, step).expect("the row is sound");
        };
        for one in &rows {
            one.lock().expect("no thread panicked").1.copy_from_slice(row);
        }
        let start = Instant::now();
        pool.run(&[rows.len()], |piece| sample(piece.index))
            .expect("no thread panics");
        least = least.min(start.elapsed().as_secs_f64());
    }
    least * 1e6
}

/// Least microseconds of a step, sampled token observed, at the end of a text of 128,000 tokens.
fn long_microseconds(row: &[f32], params: SamplingParams) -> f64 {
    let mut sampler = SamplerState::new(params.checked().expect("the parameters are in range"));
    let text: Vec<u32> = (0..128_000_u64)
        .map(|i| (i * i % 6007 * (i % 17) % 30_000) as u32)
        .collect();
    sampler.observe_prompt(&text[..127_000]);
    text[127_000..].iter().for_each(|token| sampler.observe(*token));
    let mut logits = row.to_vec();
    let mut least = f64::INFINITY;
    for step in 0..200 {
        logits.copy_from_slice(row);
        let start = Instant::now();
        let sampled = sampler.sample(&mut logits, None, step).expect("the row is sound");
        sampler.observe(sampled.token);
        least = least.min(start.elapsed().as_secs_f64());
    }
    least * 1e6
}

fn usual() -> SamplingParams {
    SamplingParams {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        repetition_penalty: 1.1,
        presence_penalty: 0.5,
        ..SamplingParams::default()
    }
}

fn main() {
    let named = std::env::args()
        .nth(1)
        .map(|name| name.parse().expect("a number of tokens"));
    let vocabularies = named.map_or(vec![50_000, 128_000, 262_144], |vocab| vec![vocab]);
    let plain = SamplingParams::default;
    let ways = [
        (
            "greedy",
            SamplingParams {
                temperature: 0.0,
                ..plain()
            },
        ),
        (
            "greedy, 5 logprobs",
            SamplingParams {
                temperature: 0.0,
                num_logprobs: 5,
                ..plain()
            },
        ),
        (
            "greedy, 5 logprobs, entropy",
            SamplingParams {
                temperature: 0.0,
                num_logprobs: 5,
                has_entropy: true,
                ..plain()
            },
        ),
        ("temperature 1", plain()),
        ("top-k 40", SamplingParams { top_k: 40, ..plain() }),
        ("top-p 0.95", SamplingParams { top_p: 0.95, ..plain() }),
        (
            "0.8, k 40, p 0.95, min-p 0.05",
            SamplingParams {
                temperature: 0.8,
                top_k: 40,
                top_p: 0.95,
                min_p: 0.05,
                ..plain()
            },
        ),
        ("the usual mix: with penalties", usual()),
        ("min-p 0.05", SamplingParams { min_p: 0.05, ..plain() }),
        (
            "top-n-sigma 1, min-p 0.05",
            SamplingParams {
                top_n_sigma: 1.0,
                min_p: 0.05,
                ..plain()
            },
        ),
        (
            "typical 0.9",
            SamplingParams {
                typical_p: 0.9,
                ..plain()
            },
        ),
        (
            "XTC 0.5, top-p 0.95",
            SamplingParams {
                xtc_probability: 0.5,
                top_p: 0.95,
                ..plain()
            },
        ),
        (
            "top-k by entropy",
            SamplingParams {
                top_k_entropy: 2.0,
                ..plain()
            },
        ),
        (
            "min-p 0.05 by entropy",
            SamplingParams {
                min_p: 0.05,
                min_p_entropy: 0.5,
                ..plain()
            },
        ),
        (
            "the usual mix on schedules",
            SamplingParams {
                temperature_tokens: 1000,
                temperature_cosine: true,
                penalty_warmup: 1000,
                ..usual()
            },
        ),
        ("mirostat 2", SamplingParams { mirostat: 2, ..plain() }),
    ];
    for vocab in &vocabularies {
        for spread in [2.5, 0.8, 0.1] {
            let row = row(*vocab, spread);
            println!("vocabulary {vocab}, spread {spread}");
            for (name, params) in &ways {
                println!("  {name:30} {:8.1} us", microseconds(&row, params.clone()));
            }
        }
    }
    let long = [
        (
            "greedy",
            SamplingParams {
                temperature: 0.0,
                ..plain()
            },
        ),
        (
            "usual, the last 64",
            SamplingParams {
                repeat_last_n: 64,
                ..usual()
            },
        ),
        (
            "usual, the last 100,000",
            SamplingParams {
                repeat_last_n: 100_000,
                ..usual()
            },
        ),
        (
            "usual, decay 0.99",
            SamplingParams {
                penalty_decay: 0.99,
                ..usual()
            },
        ),
        (
            "usual, decay 0.9999",
            SamplingParams {
                penalty_decay: 0.9999,
                ..usual()
            },
        ),
        (
            "n-grams of 4",
            SamplingParams {
                temperature: 0.0,
                no_repeat_ngram_size: 4,
                ..plain()
            },
        ),
        (
            "DRY",
            SamplingParams {
                temperature: 0.0,
                dry_multiplier: 0.8,
                ..plain()
            },
        ),
    ];
    for vocab in &vocabularies {
        let row = row(*vocab, 2.5);
        println!("vocabulary {vocab}, 16 rows on two threads");
        println!("  {:30} {:8.1} us", "the usual mix", batch_microseconds(&row, &usual()));
        println!("vocabulary {vocab}, after 128,000 tokens");
        for (name, params) in &long {
            println!("  {name:30} {:8.1} us", long_microseconds(&row, params.clone()));
        }
    }
}
