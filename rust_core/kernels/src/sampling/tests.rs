//! Each filter against its paper's formula in double precision, and samples against the distribution they follow.

use super::*;
use proptest::prelude::*;

fn params() -> SamplingParams {
    SamplingParams::default()
}

fn sampler(params: SamplingParams) -> SamplerState {
    SamplerState::new(params.checked().unwrap())
}

/// Logits that look like a model's: a few high ones over a broad floor.
fn logits(vocab: usize, seed: u64) -> Vec<f32> {
    (0..vocab)
        .map(|i| (sample::uniform(seed, i as u64).ln() * -2.5) as f32 - 3.0)
        .collect()
}

/// The tokens of some logits that are left, best first, with their probabilities: each filter sees those before it keep.
struct Left {
    order: Vec<usize>,
    scaled: Vec<f64>,
}

impl Left {
    fn probabilities(&self) -> Vec<f64> {
        let greatest = self.scaled[self.order[0]].max(self.scaled[*self.order.last().unwrap()]);
        let weights: Vec<f64> = self.order.iter().map(|i| (self.scaled[*i] - greatest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }

    fn entropy(&self) -> f64 {
        let terms = self
            .probabilities()
            .into_iter()
            .filter(|p| *p > 0.0)
            .map(|p| -p * p.ln());
        terms.sum()
    }

    fn retain(&mut self, keeps: impl Fn(usize, f64) -> bool) {
        let probabilities = self.probabilities();
        let kept = self.order.iter().zip(probabilities).enumerate();
        self.order = kept
            .filter(|(rank, (_, p))| keeps(*rank, *p))
            .map(|(_, (i, _))| *i)
            .collect();
    }
}

/// What the contract says is sampled from: the token probabilities after all filters, in double precision.
fn reference(params: &SamplingParams, logits: &[f32], allowed: impl Fn(usize) -> bool) -> Vec<f64> {
    filtered(params, logits, allowed, false)
}

fn filtered(params: &SamplingParams, logits: &[f32], allowed: impl Fn(usize) -> bool, has_xtc: bool) -> Vec<f64> {
    let scaled: Vec<f64> = logits
        .iter()
        .map(|x| f64::from(*x) / f64::from(params.temperature))
        .collect();
    let mut order: Vec<usize> = (0..logits.len()).filter(|i| allowed(*i)).collect();
    order.sort_by(|a, b| scaled[*b].total_cmp(&scaled[*a]).then(a.cmp(b)));
    let mut left = Left { order, scaled };
    let entropy = left.entropy();
    if params.top_n_sigma > 0.0 {
        let all: Vec<f64> = left.order.iter().map(|i| left.scaled[*i]).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let sigma = (all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / all.len() as f64).sqrt();
        let least = all[0] - f64::from(params.top_n_sigma) * sigma;
        left.order = left
            .order
            .iter()
            .copied()
            .filter(|i| left.scaled[*i] >= least)
            .collect();
    }
    let (epsilon, eta) = (f64::from(params.epsilon_cutoff), f64::from(params.eta_cutoff));
    left.retain(|rank, p| rank == 0 || p >= epsilon);
    let least = eta.min(eta.sqrt() * (-left.entropy()).exp());
    left.retain(|rank, p| rank == 0 || p >= least);
    if params.top_k > 0 {
        left.order.truncate(params.top_k);
    }
    if params.top_k_entropy > 0.0 {
        let count = (f64::from(params.top_k_entropy) * entropy.exp()).round() as usize;
        left.order.truncate(count.max(1));
    }
    if params.top_h < 1.0 {
        let (all, most) = (left.order.clone(), f64::from(params.top_h) * left.entropy());
        left.order.truncate(1);
        for next in &all[1..] {
            left.order.push(*next);
            if left.entropy() > most {
                left.order.pop();
                break;
            }
        }
    }
    if params.typical_p < 1.0 {
        let (entropy, probabilities) = (left.entropy(), left.probabilities());
        let mut ranks: Vec<usize> = (0..left.order.len()).collect();
        let distance = |rank: &usize| (-probabilities[*rank].ln() - entropy).abs();
        ranks.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
        let mut mass = 0.0;
        let crossing = ranks.iter().position(|rank| {
            mass += probabilities[*rank];
            mass >= f64::from(params.typical_p)
        });
        ranks.truncate(crossing.map_or(ranks.len(), |i| i + 1));
        ranks.sort_unstable();
        left.order = ranks.into_iter().map(|rank| left.order[rank]).collect();
    }
    let probabilities = left.probabilities();
    if params.top_p < 1.0 {
        let mut mass = 0.0;
        let crossing = probabilities.iter().position(|p| {
            mass += p;
            mass >= f64::from(params.top_p)
        });
        left.order.truncate(crossing.map_or(left.order.len(), |i| i + 1));
    }
    let best = left.probabilities()[0];
    let min_p = f64::from(params.min_p) * (-f64::from(params.min_p_entropy) * entropy).exp();
    left.retain(|_, p| p >= min_p * best);
    if has_xtc {
        let num_top = left
            .probabilities()
            .iter()
            .filter(|p| **p >= f64::from(params.xtc_threshold))
            .count();
        left.order.drain(..num_top.saturating_sub(1));
    }
    let mut out = vec![0.0; logits.len()];
    for (i, p) in left.order.iter().zip(left.probabilities()) {
        out[*i] = p;
    }
    out
}

/// Samples `num_samples` times and compares the counts with the reference by the chi-square statistic.
fn check_samples(params: SamplingParams, row: &[f32]) {
    let expected = reference(&params, row, |_| true);
    let num_samples = 40_000;
    let mut counts = vec![0_u32; row.len()];
    let mut sampler = sampler(params.clone());
    for step in 0..num_samples {
        counts[sampler.sample(&mut row.to_vec(), None, step).unwrap().token as usize] += 1;
    }
    let (mut statistic, mut freedom) = (0.0, -1.0);
    let mut rare = (0.0_f64, 0.0_f64);
    for (count, p) in counts.iter().zip(&expected) {
        assert!(
            *p > 0.0 || *count == 0,
            "{params:?}: a token was sampled that the filters cut"
        );
        let mean = p * num_samples as f64;
        if mean >= 8.0 {
            statistic += (f64::from(*count) - mean).powi(2) / mean;
            freedom += 1.0;
        } else {
            rare = (rare.0 + f64::from(*count), rare.1 + mean);
        }
    }
    if rare.1 >= 8.0 {
        statistic += (rare.0 - rare.1).powi(2) / rare.1;
        freedom += 1.0;
    }
    // Mean f, variance 2 f: five deviations is one chance in a million, and the seeds are fixed anyway.
    let limit = freedom + 5.0 * (2.0_f64 * freedom).sqrt() + 1.0;
    assert!(
        statistic < limit,
        "{params:?}: chi-square {statistic} for {freedom} degrees of freedom"
    );
}

/// Samples follow the distribution that each filter, and all together, leave.
#[test]
fn samples_follow_the_filtered_distribution() {
    let row = logits(600, 5);
    check_samples(params(), &row);
    check_samples(
        SamplingParams {
            temperature: 0.7,
            seed: 1,
            ..params()
        },
        &row,
    );
    check_samples(
        SamplingParams {
            temperature: 1.5,
            top_k: 7,
            seed: 2,
            ..params()
        },
        &row,
    );
    check_samples(
        SamplingParams {
            top_p: 0.8,
            seed: 3,
            ..params()
        },
        &row,
    );
    check_samples(
        SamplingParams {
            min_p: 0.1,
            seed: 4,
            ..params()
        },
        &row,
    );
    check_samples(
        SamplingParams {
            temperature: 1.2,
            top_k: 50,
            top_p: 0.9,
            min_p: 0.02,
            seed: 5,
            ..params()
        },
        &row,
    );
    check_samples(
        SamplingParams {
            temperature: 3.0,
            top_p: 0.95,
            seed: 6,
            ..params()
        },
        &row,
    );
}

/// A row so flat that the ranking must grow to its end is still sampled from evenly.
#[test]
fn flat_rows_are_sampled_evenly() {
    check_samples(SamplingParams { seed: 9, ..params() }, &[1.5; 1000]);
    check_samples(
        SamplingParams {
            top_p: 0.5,
            seed: 10,
            ..params()
        },
        &[0.0; 1000],
    );
}

/// The nucleus is the fewest tokens whose mass reaches p, the crossing token included.
#[test]
fn top_p_keeps_the_crossing_token() {
    let row: Vec<f32> = [0.5_f32, 0.3, 0.15, 0.05].map(f32::ln).to_vec();
    for (top_p, kept) in [(0.4, 1), (0.6, 2), (0.79, 2), (0.81, 3), (0.96, 4)] {
        let mut sampler = sampler(SamplingParams { top_p, ..params() });
        let sampled = (0..2000).map(|step| sampler.sample(&mut row.clone(), None, step).unwrap().token);
        assert_eq!(sampled.max(), Some(kept - 1), "top_p {top_p}");
    }
}

/// Min-p keeps the tokens at least that times as likely as the likeliest, after the temperature.
#[test]
fn min_p_keeps_by_ratio_to_the_best() {
    let row: Vec<f32> = [0.5_f32, 0.26, 0.14, 0.1].map(f32::ln).to_vec();
    for (min_p, temperature, kept) in [
        (0.5, 1.0, 2),
        (0.25, 1.0, 3),
        (0.19, 1.0, 4),
        (0.5, 2.0, 3),
        (1.0, 1.0, 1),
    ] {
        let mut sampler = sampler(SamplingParams {
            min_p,
            temperature,
            ..params()
        });
        let sampled = (0..3000).map(|step| sampler.sample(&mut row.clone(), None, step).unwrap().token);
        assert_eq!(
            sampled.max(),
            Some(kept - 1),
            "min_p {min_p} at temperature {temperature}"
        );
    }
}

/// Repetition divides positive and multiplies negative logits of seen tokens; the others count output alone.
#[test]
fn penalties_follow_their_formulas() {
    let mut sampler = sampler(SamplingParams {
        repetition_penalty: 2.0,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        logit_bias: vec![(4, -3.0)],
        ..params()
    });
    sampler.observe_prompt(&[0, 1, 1]);
    for token in [1, 2, 2] {
        sampler.observe(token);
    }
    let mut row = [4.0, -4.0, 4.0, 4.0, 4.0];
    sampler.sample(&mut row, None, 0).unwrap();
    assert_eq!(row, [2.0, -8.75, 0.75, 4.0, 1.0]);
}

/// Greedy takes the likeliest token, the lowest id of equals, and minus zero equals zero.
#[test]
fn greedy_takes_the_lowest_of_equals() {
    let mut sampler = sampler(SamplingParams {
        temperature: 0.0,
        ..params()
    });
    for len in [3, 17, 40, 1000] {
        let mut row = vec![-1.0; len];
        (row[len - 1], row[len - 2]) = (0.0, -0.0);
        let sampled = sampler.sample(&mut row, None, 0).unwrap();
        assert_eq!(
            (sampled.token as usize, sampled.logprob, sampled.top_logprobs.len()),
            (len - 2, None, 0)
        );
    }
}

/// Log-probabilities are those of the whole row after the mask, at temperature 1, to 1e-6.
#[test]
fn logprobs_are_of_the_masked_row_at_temperature_one() {
    let row = logits(3000, 8);
    let mask: Vec<u32> = (0..94).map(|i| 0x5555_5555_u32.rotate_left(i % 2)).collect();
    let allowed = |i: usize| mask[i / 32] >> (i % 32) & 1 == 1;
    let plain = params();
    let expected = reference(&plain, &row, allowed);
    for temperature in [0.0, 0.3, 2.0] {
        let mut sampler = sampler(SamplingParams {
            temperature,
            top_k: 3,
            num_logprobs: 5,
            ..params()
        });
        let sampled = sampler.sample(&mut row.clone(), Some(&mask), 3).unwrap();
        assert_eq!(sampled.top_logprobs.len(), 5);
        assert!(sampled.top_logprobs.is_sorted_by(|a, b| a.1 >= b.1));
        let own = (sampled.token, sampled.logprob.unwrap());
        for (token, logprob) in sampled.top_logprobs.iter().chain([&own]) {
            let exact = expected[*token as usize].ln();
            assert!((f64::from(*logprob) - exact).abs() < 1e-6, "{logprob} is not {exact}");
        }
    }
}

/// The entropy is that of the whole row after penalties and mask, at temperature 1, to 1e-5 on every instruction set; asking for it
/// changes no other number, and it is not computed otherwise.
#[test]
fn entropy_is_of_the_masked_row_at_temperature_one() {
    for (vocab, seed) in [(1, 1), (15, 2), (17, 3), (3000, 8), (49_152, 9)] {
        let row: Vec<f32> = logits(vocab, seed).iter().map(|x| x * (seed as f32) / 4.0).collect();
        let mask: Vec<u32> = (0..vocab.div_ceil(32) as u32)
            .map(|i| 0x5555_5555_u32.rotate_left(i % 2))
            .collect();
        let allowed = |i: usize| mask[i / 32] >> (i % 32) & 1 == 1;
        let probabilities = reference(&params(), &row, allowed);
        let exact: f64 = probabilities.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
        let asked = |has_entropy, temperature| SamplingParams {
            temperature,
            top_k: 3,
            num_logprobs: 5,
            has_entropy,
            ..params()
        };
        for isa in Isa::available() {
            let sample = |params| {
                let mut sampler = sampler(params);
                sampler.ranking = Ranking::new(isa);
                sampler.sample(&mut row.clone(), Some(&mask), 3).unwrap()
            };
            for temperature in [0.0, 0.3, 2.0] {
                let (with, without) = (sample(asked(true, temperature)), sample(asked(false, temperature)));
                let entropy = f64::from(with.entropy.unwrap());
                assert!(
                    (entropy - exact).abs() < 1e-5,
                    "{entropy} is not {exact} of {vocab} on {isa:?}"
                );
                assert!(entropy >= 0.0);
                assert_eq!(Sampled { entropy: None, ..with }, without);
            }
        }
    }
    let silent = SamplingParams {
        has_entropy: true,
        ..params()
    };
    assert_eq!(
        sampler(silent).sample(&mut logits(9, 1), None, 0).unwrap().entropy,
        None
    );
}

/// A sample is a function of seed, step and logits: neither earlier samples nor another request change it.
#[test]
fn samples_depend_on_seed_step_and_logits_alone() {
    let row = logits(2000, 3);
    let sample = |sampler: &mut SamplerState, step| sampler.sample(&mut row.clone(), None, step).unwrap().token;
    let mut forward = sampler(SamplingParams { seed: 42, ..params() });
    let there: Vec<u32> = (0..50).map(|step| sample(&mut forward, step)).collect();
    let mut backward = sampler(SamplingParams { seed: 42, ..params() });
    let back: Vec<u32> = (0..50).rev().map(|step| sample(&mut backward, step)).collect();
    assert!(there.iter().eq(back.iter().rev()));
    let mut other = sampler(SamplingParams { seed: 43, ..params() });
    assert_ne!(there, (0..50).map(|step| sample(&mut other, step)).collect::<Vec<_>>());
}

/// Uniform numbers of consecutive steps, and of consecutive seeds, fill 64 bins evenly.
#[test]
fn uniforms_are_even_over_steps_and_seeds() {
    for of in [|i| sample::uniform(7, i), |i| sample::uniform(i, 0)] {
        let mut bins = [0.0_f64; 64];
        for i in 0..64_000 {
            bins[(of(i) * 64.0) as usize] += 1.0;
        }
        let statistic: f64 = bins.iter().map(|count| (count - 1000.0).powi(2) / 1000.0).sum();
        assert!(
            statistic < 63.0 + 5.0 * 126.0_f64.sqrt(),
            "chi-square {statistic} for 63 degrees of freedom"
        );
    }
}

/// Rows and masks that leave nothing sound to sample are errors that name the token.
#[test]
fn unsound_rows_are_errors() {
    let mut plain = sampler(params());
    let mut error = |row: &[f32], mask: Option<&[u32]>| plain.sample(&mut row.to_vec(), mask, 0).unwrap_err();
    assert_eq!(error(&[], None), SampleError::Empty);
    assert_eq!(error(&[1.0, 2.0], Some(&[0])), SampleError::AllMasked { vocab: 2 });
    assert_eq!(
        error(&[f32::NEG_INFINITY; 2], None),
        SampleError::AllMasked { vocab: 2 }
    );
    assert_eq!(
        error(&[0.0; 33], Some(&[1])),
        SampleError::MaskLength { got: 1, vocab: 33 }
    );
    assert_eq!(
        error(&[0.0, f32::INFINITY], None),
        SampleError::NotFinite {
            token: 1,
            value: f32::INFINITY
        }
    );
    let mut row = vec![0.0; 40];
    row[37] = f32::NAN;
    assert!(error(&row, None).to_string().contains("token 37 is NaN"));
    let mut biased = sampler(SamplingParams {
        logit_bias: vec![(9, 1.0)],
        ..params()
    });
    assert_eq!(
        biased.sample(&mut [0.0; 9], None, 0),
        Err(SampleError::UnknownToken { token: 9, vocab: 9 })
    );
}

/// Each parameter out of its range is refused by name, with the value and the range.
#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let error = |params: SamplingParams| params.checked().unwrap_err().to_string();
    assert_eq!(
        error(SamplingParams {
            temperature: -1.0,
            ..params()
        }),
        "temperature must be a finite number of at least 0, got -1"
    );
    assert!(
        error(SamplingParams {
            temperature: f32::NAN,
            ..params()
        })
        .ends_with("got NaN")
    );
    assert_eq!(
        error(SamplingParams { top_p: 0.0, ..params() }),
        "top_p must be above 0 and at most 1, got 0"
    );
    assert!(error(SamplingParams { min_p: 1.5, ..params() }).starts_with("min_p must be"));
    assert!(
        error(SamplingParams {
            repetition_penalty: 0.0,
            ..params()
        })
        .starts_with("repetition_penalty")
    );
    assert!(
        error(SamplingParams {
            frequency_penalty: 2.5,
            ..params()
        })
        .starts_with("frequency_penalty")
    );
    assert!(
        error(SamplingParams {
            presence_penalty: -2.5,
            ..params()
        })
        .starts_with("presence_penalty")
    );
    assert!(
        error(SamplingParams {
            logit_bias: vec![(0, 101.0)],
            ..params()
        })
        .starts_with("logit_bias")
    );
}

proptest! {
    /// Whatever the filters, a sampled token is one that they and the mask keep, and the best is always kept.
    #[test]
    fn sampled_tokens_are_kept_by_filters_and_mask(
        row in prop::collection::vec(-12.0_f32..12.0, 1..700),
        mask in prop::collection::vec(any::<u32>(), 22),
        temperature in 0.05_f32..3.0,
        top_k in 0_usize..300,
        top_p in 0.01_f32..=1.0,
        min_p in prop_oneof![Just(0.0_f32), 0.0_f32..=1.0],
        step in any::<u64>(),
    ) {
        let allowed = |i: usize| mask[i / 32] >> (i % 32) & 1 == 1;
        prop_assume!((0..row.len()).any(allowed));
        let params = SamplingParams { temperature, top_k, top_p, min_p, ..params() };
        // The crossing token may differ when its mass is within rounding of p: ask for a little more or less.
        let wider = SamplingParams { top_p: (top_p * 1.00001).min(1.0), min_p: min_p * 0.99999, ..params.clone() };
        let expected = reference(&wider, &row, allowed);
        let token = sampler(params.clone()).sample(&mut row.clone(), Some(&mask), step).unwrap().token;
        prop_assert!(allowed(token as usize));
        prop_assert!(expected[token as usize] > 0.0);
        let greedy = SamplingParams { temperature: 0.0, ..params };
        let best = sampler(greedy).sample(&mut row.clone(), Some(&mask), step).unwrap().token;
        prop_assert!(expected[best as usize] > 0.0);
        prop_assert!((0..row.len()).filter(|i| allowed(*i)).all(|i| row[i] <= row[best as usize]));
    }

    /// A known token's score is its log-softmax in double precision, its rank its place in the sorted row.
    #[test]
    fn scores_are_the_log_softmax(row in prop::collection::vec(-9_i8..9, 1..300), token in 0_usize..300, count in 0_usize..25) {
        let row: Vec<f32> = row.into_iter().map(|x| f32::from(x) / 2.0).collect();
        let token = token % row.len();
        let mut order: Vec<u32> = (0..row.len() as u32).collect();
        order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        let logprob = |token: u32| f64::from(row[token as usize]) - sum.ln();
        let score = Scorer::default().score(&mut row.clone(), token as u32, count).unwrap();
        prop_assert!((f64::from(score.logprob) - logprob(token as u32)).abs() < 1e-5);
        prop_assert_eq!(order[score.rank as usize - 1], token as u32);
        order.truncate(count);
        let (tokens, logprobs): (Vec<u32>, Vec<f32>) = score.top.into_iter().unzip();
        prop_assert!(tokens.iter().zip(&logprobs).all(|(&token, &told)| (f64::from(told) - logprob(token)).abs() < 1e-5));
        prop_assert_eq!(tokens, order);
    }

    /// The ranking made from run maxima is the sorted row, for any count and any number of ties.
    #[test]
    fn ranking_is_the_sorted_row(row in prop::collection::vec(-5_i8..5, 1..500), count in 1_usize..600) {
        let row: Vec<f32> = row.into_iter().map(|x| if x == -5 { f32::NEG_INFINITY } else { f32::from(x) }).collect();
        let mut expected: Vec<u32> = (0..row.len() as u32).filter(|i| row[*i as usize] > f32::NEG_INFINITY).collect();
        expected.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
        expected.truncate(count);
        prop_assert_eq!(Ranking::new(Isa::Scalar).best(&row, count), expected);
    }

    /// Each filter, and any two together, keep what their papers' formulas say, with the same probabilities.
    #[test]
    fn filters_keep_what_their_formulas_say(
        row in prop::collection::vec(-9.0_f32..9.0, 1..900),
        temperature in 0.2_f32..3.0,
        filters in prop::sample::subsequence((0..10).collect::<Vec<_>>(), 1..3),
        strength in 0.02_f32..0.98,
        top_k in 1_usize..700,
    ) {
        let mut params = SamplingParams { temperature, ..params() };
        for filter in filters {
            match filter {
                0 => params.top_n_sigma = 3.0 * strength,
                1 => params.epsilon_cutoff = 0.02 * strength,
                2 => params.eta_cutoff = 0.02 * strength,
                3 => params.top_k = top_k,
                4 => params.top_h = strength,
                5 => params.typical_p = strength,
                6 => params.top_p = strength,
                7 => params.top_k_entropy = 3.0 * strength,
                8 => (params.min_p, params.min_p_entropy) = (0.3 * strength, strength),
                _ => (params.xtc_probability, params.xtc_threshold) = (1.0, 0.2 * strength),
            }
        }
        let has_xtc = params.xtc_probability > 0.0;
        let expected = filtered(&params, &row, |_| true, has_xtc);
        let mut found = vec![0.0; row.len()];
        let mut sampler = sampler(params.clone());
        for (token, probability) in sampler.distribution(&mut row.clone(), None, 0).unwrap() {
            found[token as usize] = probability;
        }
        // A token whose place is within rounding of a border may be on either side of it.
        let differing = expected.iter().zip(&found).filter(|(a, b)| (**a > 0.0) != (**b > 0.0)).count();
        prop_assert!(differing <= 1, "{params:?}: {differing} tokens differ");
        if differing == 0 {
            for (a, b) in expected.iter().zip(&found) {
                prop_assert!((a - b).abs() < 1e-5 * a.max(1e-3), "{params:?}: {a} is not {b}");
            }
        }
        // The sample, for which as little as possible is ranked, is of that distribution and where its uniform says.
        for step in 0..4 {
            let sampled = sampler.sample(&mut row.clone(), None, step).unwrap().token;
            prop_assert!(found[sampled as usize] > 0.0);
            let uniform = sample::uniform(params.seed, step);
            let mut order: Vec<usize> = (0..row.len()).filter(|i| found[*i] > 0.0).collect();
            order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
            let mut reached = 0.0;
            let walked = order.iter().find(|i| { reached += found[**i]; reached > uniform }).or(order.last());
            prop_assert!(walked == Some(&(sampled as usize)) || (reached - uniform).abs() < 1e-4);
        }
    }
}

/// Mirostat holds the mean surprise of what it samples, in bits, at the wanted one, with either algorithm.
#[test]
fn mirostat_holds_the_surprise() {
    for algorithm in [1, 2] {
        for tau in [4.0, 6.0] {
            let mut sampler = sampler(SamplingParams {
                mirostat: algorithm,
                mirostat_tau: tau,
                ..params()
            });
            let (mut total, count) = (0.0, 4000);
            for step in 0..count {
                // Zipf's law with the exponent 1: 8 bits without a filter.
                let row: Vec<f32> = logits(2000, step % 50).iter().map(|logit| logit * 0.4).collect();
                let probabilities = reference(&params(), &row, |_| true);
                let token = sampler.sample(&mut row.clone(), None, step).unwrap().token;
                total -= probabilities[token as usize].log2();
            }
            let mean = total / count as f64;
            assert!(
                (mean - f64::from(tau)).abs() < 0.1,
                "algorithm {algorithm}: {mean} bits, not {tau}"
            );
        }
    }
}

/// The dynamic temperature is the lowest where one token has everything, and the highest where all are equal.
#[test]
fn dynamic_temperature_follows_the_entropy() {
    let dynamic = SamplingParams {
        temperature: 1.0,
        dynatemp_range: 0.5,
        ..params()
    };
    let second =
        |params: SamplingParams, row: &[f32]| sampler(params).distribution(&mut row.to_vec(), None, 0).unwrap()[1].1;
    let sharp = [12.0, 0.0, 0.0, 0.0];
    let expected = second(
        SamplingParams {
            temperature: 0.5,
            ..params()
        },
        &sharp,
    );
    assert!((second(dynamic.clone(), &sharp) / expected - 1.0).abs() < 0.01);
    // Half the tokens have everything: half of the greatest entropy, and so the middle.
    let half = [30.0, 30.0, 0.0, 0.0];
    let found = sampler(dynamic).distribution(&mut half.to_vec(), None, 0).unwrap();
    let middle = (f64::exp(-30.0) / 2.0).ln();
    assert!((found[2].1.ln() - middle).abs() < 0.01);
}

/// XTC excludes the top choices as often as it should, and never the only one.
#[test]
fn xtc_excludes_the_top_as_often_as_asked() {
    let row: Vec<f32> = [0.5_f32, 0.3, 0.15, 0.05].map(f32::ln).to_vec();
    let mut sampler = sampler(SamplingParams {
        xtc_probability: 0.25,
        xtc_threshold: 0.1,
        ..params()
    });
    let counts = (0..8000).fold([0_u32; 4], |mut counts, step| {
        counts[sampler.sample(&mut row.clone(), None, step).unwrap().token as usize] += 1;
        counts
    });
    // Two in four of the rest, and none when it has its turn: 0.75 * 0.5.
    assert!((f64::from(counts[0]) / 8000.0 - 0.375).abs() < 0.02, "{counts:?}");
    let alone = [9.0, 0.0, 0.0];
    assert_eq!(sampler.sample(&mut alone.to_vec(), None, 3).unwrap().token, 0);
}

/// Only allowed tokens are sampled, also those of a vocabulary longer than the last of them.
#[test]
fn allowed_tokens_are_all_that_is_sampled() {
    let mut sampler = sampler(SamplingParams {
        allowed_tokens: Some(vec![3, 40]),
        ..params()
    });
    let found = sampler.distribution(&mut logits(200, 1), None, 0).unwrap();
    assert_eq!(
        found
            .iter()
            .map(|(token, _)| *token)
            .collect::<std::collections::BTreeSet<_>>(),
        [3, 40].into()
    );
}

/// The spread that top-n-sigma measures is the model's: a bias or a penalty does not widen it.
#[test]
fn top_n_sigma_is_of_the_models_logits() {
    let row = logits(2000, 6);
    let kept = |logit_bias| {
        let params = SamplingParams {
            top_n_sigma: 1.0,
            logit_bias,
            ..params()
        };
        sampler(params).distribution(&mut row.clone(), None, 0).unwrap().len()
    };
    let best = (0..2000).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
    let lowered = (0..1000)
        .filter(|token| *token != best)
        .map(|token| (token, -100.0))
        .collect();
    assert!(kept(lowered) <= kept(Vec::new()));
}
