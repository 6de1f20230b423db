//! Seeds keep their texts: what was sampled from these rows when this was written, in one hash.

use super::*;

/// Logits with a tail like a model's, in exact arithmetic, so that they are the same everywhere.
fn row(vocab: usize, seed: u64, spread: f32) -> Vec<f32> {
    let bits = |i: usize| (sample::uniform(seed, i as u64) * 2.0_f64.powi(53)) as u64;
    (0..vocab)
        .map(|i| {
            let bits = bits(i);
            let whole = (bits << 11).leading_zeros() as f32;
            spread * (whole + (bits & 0xffff) as f32 / 65_536.0) - 4.0
        })
        .collect()
}

/// Each way of sampling that ends in another part of the code.
fn ways() -> Vec<SamplingParams> {
    let plain = SamplingParams::default;
    vec![
        SamplingParams {
            temperature: 0.0,
            ..plain()
        },
        plain(),
        SamplingParams {
            temperature: 0.7,
            ..plain()
        },
        SamplingParams { top_k: 40, ..plain() },
        SamplingParams {
            top_k: 700,
            top_p: 0.9,
            ..plain()
        },
        SamplingParams { top_p: 0.9, ..plain() },
        SamplingParams {
            min_p: 0.02,
            temperature: 1.3,
            ..plain()
        },
        SamplingParams {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            ..plain()
        },
        SamplingParams {
            top_p: 0.99,
            min_p: 0.001,
            ..plain()
        },
        SamplingParams {
            top_n_sigma: 1.5,
            ..plain()
        },
        SamplingParams {
            epsilon_cutoff: 0.0005,
            top_k: 90,
            ..plain()
        },
        SamplingParams {
            eta_cutoff: 0.001,
            ..plain()
        },
        SamplingParams { top_h: 0.6, ..plain() },
        SamplingParams {
            typical_p: 0.5,
            top_k: 50,
            ..plain()
        },
        SamplingParams {
            typical_p: 0.9,
            ..plain()
        },
        SamplingParams {
            xtc_probability: 0.5,
            xtc_threshold: 0.05,
            top_p: 0.95,
            ..plain()
        },
        SamplingParams {
            xtc_probability: 1.0,
            xtc_threshold: 0.01,
            ..plain()
        },
        SamplingParams { mirostat: 1, ..plain() },
        SamplingParams { mirostat: 2, ..plain() },
        SamplingParams {
            dynatemp_range: 0.5,
            top_p: 0.9,
            ..plain()
        },
        SamplingParams {
            num_logprobs: 5,
            repetition_penalty: 1.3,
            presence_penalty: 0.5,
            ..plain()
        },
        SamplingParams {
            frequency_penalty: 0.4,
            repeat_last_n: 20,
            penalty_decay: 0.9,
            ..plain()
        },
    ]
}

/// What is sampled, folded by FNV-1a.
fn hash(isa: Isa) -> Vec<u64> {
    let sampled = |params: SamplingParams| {
        let mut sampler = SamplerState::new(SamplingParams { seed: 7, ..params });
        sampler.ranking = Ranking::new(isa);
        sampler.observe_prompt(&[1, 2, 3, 5, 8, 13, 21]);
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut fold = |x: u32| hash = (hash ^ u64::from(x)).wrapping_mul(0x0100_0000_01b3);
        let shapes = [
            (7, 1.0),
            (500, 1.0),
            (3001, 0.4),
            (3001, 0.05),
            (20_000, 1.2),
            (20_000, 0.2),
        ];
        for step in 0..30 {
            let (vocab, spread) = shapes[step % shapes.len()];
            let mut logits = row(vocab, step as u64, spread);
            let mask: Vec<u32> = (0..vocab.div_ceil(32)).map(|i| 0x9249_2492 ^ i as u32).collect();
            let mask = (step % 4 == 3).then_some(&mask[..]);
            if let Ok(sampled) = sampler.sample(&mut logits, mask, step as u64) {
                fold(sampled.token);
                sampled.logprob.into_iter().for_each(|logprob| fold(logprob.to_bits()));
                sampled.top_logprobs.iter().for_each(|(token, logprob)| {
                    fold(*token);
                    fold(logprob.to_bits());
                });
                if sampled.token < 7 {
                    sampler.observe(sampled.token);
                }
            }
        }
        hash
    };
    ways().into_iter().map(sampled).collect()
}

/// The same seed gives the same tokens on every instruction set, and as ever.
#[test]
fn seeds_keep_their_texts() {
    for isa in Isa::available() {
        assert_eq!(hash(isa), GOLDEN, "{}", isa.name());
    }
}

const GOLDEN: [u64; 22] = [
    16378572923551344241,
    1831528980069478528,
    7266008764084318614,
    15925996852880619498,
    2463312455043621316,
    3171996841025071782,
    314784806662937340,
    235206087617726079,
    8037011396830155905,
    11532037990199441786,
    3280124108967093634,
    2175724186336816182,
    16524566219358510853,
    16251318159706149088,
    434258336197962512,
    7802109665857374985,
    2205844612416164009,
    13187237632493462212,
    9100064741561788136,
    3452823418882975199,
    12568627354097968876,
    16335277179824322745,
];
