//! Time to sample one token on one core, for vocabularies of 50,000, 128,000 and 262,144 tokens.
//!
//! `cargo run --release -p pyagent-kernels --example sampling_speed`

use std::time::Instant;

use pyagent_kernels::sampling::{SamplerState, SamplingParams};

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

fn main() {
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
        (
            "the same, with penalties",
            SamplingParams {
                temperature: 0.8,
                top_k: 40,
                top_p: 0.95,
                min_p: 0.05,
                repetition_penalty: 1.1,
                presence_penalty: 0.5,
                ..plain()
            },
        ),
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
        ("mirostat 2", SamplingParams { mirostat: 2, ..plain() }),
    ];
    for vocab in [50_000, 128_000, 262_144] {
        for spread in [2.5, 0.8, 0.1] {
            let row = row(vocab, spread);
            println!("vocabulary {vocab}, spread {spread}");
            for (name, params) in &ways {
                println!("  {name:30} {:8.1} us", microseconds(&row, params.clone()));
            }
        }
    }
}
