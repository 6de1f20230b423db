//! What depends on the place in the output: the temperature, how strong the penalties are, and what a bad word costs.
//!
//! `step` is the number of the output token, from 0. Each is worked out once for a row.

use super::SamplingParams;
use std::f64::consts::PI;

/// The temperature, which goes from one to another over the first tokens.
pub(super) fn temperature(params: &SamplingParams, step: u64) -> f32 {
    let (first, tokens) = (params.temperature, params.temperature_tokens);
    if tokens == 0 {
        return first;
    }
    between(
        first,
        params.temperature_end,
        way(step, tokens, params.temperature_cosine),
    )
}

/// The part of the penalties that counts: it grows to all of them, and then falls.
pub(super) fn penalty_strength(params: &SamplingParams, step: u64) -> f32 {
    let (warmup, tokens) = (params.penalty_warmup, params.penalty_tokens);
    let way = |step, tokens| way(step, tokens, params.penalty_cosine);
    match step.checked_sub(warmup) {
        None => way(step, warmup) as f32,
        Some(_) if tokens == 0 => 1.0,
        Some(step) => between(1.0, params.penalty_end, way(step, tokens)),
    }
}

/// What a token costs that completes a bad word.
pub(super) fn bad_words_penalty(params: &SamplingParams, step: u64) -> f32 {
    let (penalty, tokens) = (params.bad_words_penalty, params.bad_words_tokens);
    match tokens {
        0 => penalty,
        _ if step >= tokens => 0.0, // of an infinite one too
        _ => penalty * (1.0 - way(step, tokens, false)) as f32,
    }
}

/// How much of the way is done: 0 at the first token, 1 at token `tokens`, along a line or half a cosine.
fn way(step: u64, tokens: u64, is_cosine: bool) -> f64 {
    if step >= tokens {
        return 1.0;
    }
    let done = step as f64 / tokens as f64;
    if is_cosine {
        (1.0 - (PI * done).cos()) / 2.0
    } else {
        done
    }
}

fn between(first: f32, last: f32, way: f64) -> f32 {
    if way == 1.0 {
        return last;
    }
    let (first, last) = (f64::from(first), f64::from(last));
    (first + (last - first) * way) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn params() -> SamplingParams {
        SamplingParams::default()
    }

    proptest! {
        /// A schedule begins and ends exactly where it says, goes there without turning, and is halfway in the middle.
        #[test]
        fn temperatures_go_from_one_to_the_other(
            temperature in 0.01_f32..2.0,
            temperature_end in 0.0_f32..2.0,
            half in 1_u64..10_000,
            temperature_cosine in any::<bool>(),
            step in any::<u64>(),
        ) {
            let temperature_tokens = 2 * half;
            let params = SamplingParams { temperature, temperature_end, temperature_tokens, temperature_cosine, ..params() };
            let at = |step| super::temperature(&params, step);
            prop_assert_eq!(at(0), temperature);
            prop_assert_eq!(at(temperature_tokens.saturating_add(step)), temperature_end);
            prop_assert!((at(half) - (temperature + temperature_end) / 2.0).abs() < 1e-5);
            let step = step % temperature_tokens;
            let rise = (at(step + 1) - at(step)) * (temperature_end - temperature);
            prop_assert!(rise >= 0.0);
        }
    }

    /// Penalties grow to all of them, stay, or fall to their end; without a schedule they are what they are.
    #[test]
    fn penalties_grow_and_then_fall() {
        let strengths = |params: SamplingParams| [0, 5, 10, 15, 20, 99].map(|step| penalty_strength(&params, step));
        assert_eq!(strengths(params()), [1.0; 6]);
        let warm = SamplingParams {
            penalty_warmup: 10,
            ..params()
        };
        assert_eq!(strengths(warm.clone()), [0.0, 0.5, 1.0, 1.0, 1.0, 1.0]);
        let both = SamplingParams {
            penalty_tokens: 10,
            penalty_end: 0.5,
            ..warm
        };
        assert_eq!(strengths(both.clone()), [0.0, 0.5, 1.0, 0.75, 0.5, 0.5]);
        let falling = SamplingParams {
            penalty_warmup: 0,
            penalty_end: 0.0,
            ..both
        };
        assert_eq!(strengths(falling), [1.0, 0.5, 0.0, 0.0, 0.0, 0.0]);
    }

    /// What a bad word costs falls to nothing; a prohibition holds until then, and not a token longer.
    #[test]
    fn bad_words_cost_less_and_less() {
        let costs = |params: SamplingParams| [0, 1, 3, 4, 9].map(|step| bad_words_penalty(&params, step));
        let soft = SamplingParams {
            bad_words_penalty: 8.0,
            ..params()
        };
        assert_eq!(costs(soft.clone()), [8.0; 5]);
        let bad_words_tokens = 4;
        assert_eq!(
            costs(SamplingParams {
                bad_words_tokens,
                ..soft
            }),
            [8.0, 6.0, 2.0, 0.0, 0.0]
        );
        let (all, none) = (f32::INFINITY, 0.0);
        assert_eq!(costs(params()), [all; 5]);
        assert_eq!(
            costs(SamplingParams {
                bad_words_tokens,
                ..params()
            }),
            [all, all, all, none, none]
        );
    }
}
