//! What the tokens before do to the logits of the next: penalties by place, n-grams that may not repeat, DRY, bad words.
//!
//! What is known of the tokens is kept from step to step (`repeats.rs`), so that a step does not go through them again.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::repeats::{Ngrams, Repetitions};
use super::{SampleError, SamplingParams, logit_of};

/// What counts less in the penalties counts nothing: a long history need not be gone through in each step.
const LEAST_WEIGHT: f32 = 1e-6;
/// DRY's penalties are bounded, so that none is infinite.
const MOST_DRY: f32 = 1e9;

/// Tokens as keys: they are small numbers that nobody chooses to collide.
pub(super) type TokenMap<V> = HashMap<u32, V, BuildHasherDefault<TokenHasher>>;

/// Spreads a token over all bits by the golden ratio.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenHasher(u64);

impl Hasher for TokenHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, token: u32) {
        self.0 = (self.0 ^ u64::from(token))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(32);
    }
}

/// What the penalties know of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Times it is in the output, each as much as its place counts.
    pub(super) count: f32,
    /// What its last place counts, in prompt or output.
    pub(super) nearest: f32,
    /// What its last place in the output counts; 0 when it is in none.
    pub(super) nearest_output: f32,
}

/// The tokens of a prompt, and of its answer so far.
#[derive(Clone, Debug)]
pub(super) struct History {
    tokens: Vec<u32>,
    num_prompt: usize,
    /// Of a window in which all places count the same: how often each token is in it, and how often in the output.
    window: Option<TokenMap<[u32; 2]>>,
    ngrams: Option<Ngrams>,
    repetitions: Option<Repetitions>,
}

impl History {
    /// Knows of its tokens what these parameters ask.
    pub(super) fn new(params: &SamplingParams) -> Self {
        let is_even = params.has_places() && params.penalty_decay == 1.0;
        Self {
            tokens: Vec::new(),
            num_prompt: 0,
            window: is_even.then(TokenMap::default),
            ngrams: (params.no_repeat_ngram_size > 0).then(|| Ngrams::new(params.no_repeat_ngram_size)),
            repetitions: (params.dry_multiplier > 0.0).then(Repetitions::default),
        }
    }

    /// Takes in the prompt, before anything else.
    pub(super) fn push_prompt(&mut self, params: &SamplingParams, tokens: &[u32]) {
        for token in tokens {
            self.num_prompt += 1;
            self.add(params, *token);
        }
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.begin(&self.tokens, &params.dry_breakers);
        }
    }

    /// Takes in an output token.
    pub(super) fn push(&mut self, params: &SamplingParams, token: u32) {
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.push(token, self.tokens.len(), &params.dry_breakers);
        }
        self.add(params, token);
    }

    fn add(&mut self, params: &SamplingParams, token: u32) {
        let index = self.tokens.len();
        self.tokens.push(token);
        if let Some(ngrams) = &mut self.ngrams {
            ngrams.push(&self.tokens);
        }
        if let Some(window) = &mut self.window {
            let is_output = u32::from(index >= self.num_prompt);
            let counts = window.entry(token).or_default();
            *counts = [counts[0] + 1, counts[1] + is_output];
            if let Some(left) = index.checked_sub(params.repeat_last_n) {
                let was_output = u32::from(left >= self.num_prompt);
                let counts = window.entry(self.tokens[left]).or_default();
                *counts = [counts[0] - 1, counts[1] - was_output];
                if counts[0] == 0 {
                    window.remove(&self.tokens[left]);
                }
            }
        }
    }

    /// The last `count` tokens; 0 is all.
    fn last(&self, count: usize) -> &[u32] {
        let count = if count == 0 { usize::MAX } else { count };
        &self.tokens[self.tokens.len().saturating_sub(count)..]
    }

    /// What the penalties know of the tokens in their window.
    pub(super) fn seen(&self, params: &SamplingParams) -> Box<dyn Iterator<Item = (u32, Seen)> + '_> {
        let Some(window) = &self.window else {
            return Box::new(self.seen_by_place(params).into_iter());
        };
        let seen = |(token, [_, num_output]): (&u32, &[u32; 2])| {
            let seen = Seen {
                count: *num_output as f32,
                nearest: 1.0,
                nearest_output: if *num_output > 0 { 1.0 } else { 0.0 },
            };
            (*token, seen)
        };
        Box::new(window.iter().map(seen))
    }

    /// [`Self::seen`] where places count less the further back they are: goes back as far as that counts.
    fn seen_by_place(&self, params: &SamplingParams) -> TokenMap<Seen> {
        let mut token_to_seen = TokenMap::<Seen>::default();
        let num_output = self.tokens.len() - self.num_prompt;
        let mut weight = 1.0_f32;
        for (distance, token) in self.last(params.repeat_last_n).iter().rev().enumerate() {
            let seen = token_to_seen.entry(*token).or_default();
            seen.nearest = seen.nearest.max(weight);
            if distance < num_output {
                seen.count += weight;
                seen.nearest_output = seen.nearest_output.max(weight);
            }
            weight *= params.penalty_decay;
            if weight < LEAST_WEIGHT {
                break;
            }
        }
        token_to_seen
    }

    /// Excludes and lowers what n-grams, DRY and bad words say, which cost `bad_words_penalty` now.
    pub(super) fn apply(
        &self,
        params: &SamplingParams,
        bad_words_penalty: f32,
        logits: &mut [f32],
    ) -> Result<(), SampleError> {
        if let Some(ngrams) = &self.ngrams {
            for token in ngrams.completing(&self.tokens) {
                *logit_of(logits, token)? = f32::NEG_INFINITY;
            }
        }
        if let Some(repetitions) = &self.repetitions {
            let window = params.dry_penalty_last_n;
            for (token, length) in repetitions.found(&self.tokens, window, &params.dry_breakers) {
                if length >= params.dry_allowed_length {
                    let power = params.dry_base.powf((length - params.dry_allowed_length) as f32);
                    *logit_of(logits, token)? -= (params.dry_multiplier * power).min(MOST_DRY);
                }
            }
        }
        if bad_words_penalty == 0.0 {
            return Ok(());
        }
        let output = &self.tokens[self.num_prompt..];
        let ends = params.bad_words.iter().filter_map(|word| word.split_last());
        let completing: BTreeSet<u32> = ends
            .filter(|(_, before)| output.ends_with(before))
            .map(|(last, _)| *last)
            .collect();
        for token in completing {
            *logit_of(logits, token)? -= bad_words_penalty;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A window that is kept knows what going back through it finds.
        #[test]
        fn windows_know_what_going_back_finds(
            prompt in prop::collection::vec(0_u32..6, 0..30),
            output in prop::collection::vec(0_u32..6, 0..30),
            repeat_last_n in 1_usize..40,
        ) {
            let params = SamplingParams { presence_penalty: 1.0, repeat_last_n, ..SamplingParams::default() };
            let history = history(&params, &prompt, &output);
            prop_assert_eq!(history.seen(&params).collect::<TokenMap<_>>(), history.seen_by_place(&params));
        }
    }

    fn history(params: &SamplingParams, prompt: &[u32], output: &[u32]) -> History {
        let mut history = History::new(params);
        history.push_prompt(params, prompt);
        output.iter().for_each(|token| history.push(params, *token));
        history
    }

    /// DRY's penalty grows by its base with each repeated token beyond the allowed length.
    #[test]
    fn dry_penalises_by_the_length_of_the_repetition() {
        let params = SamplingParams {
            dry_multiplier: 0.5,
            dry_base: 2.0,
            dry_allowed_length: 2,
            ..SamplingParams::default()
        };
        let mut logits = [0.0; 6];
        // "1 2 3 4" and "2 3 5" were said; after "1 2 3" 4 repeats three tokens, 5 two, which is allowed at its price.
        history(&params, &[1, 2, 3, 4, 2, 3, 5], &[1, 2, 3])
            .apply(&params, params.bad_words_penalty, &mut logits)
            .unwrap();
        assert_eq!(logits, [0.0, 0.0, 0.0, 0.0, -1.0, -0.5]);
        let mut logits = [0.0; 6];
        let broken = SamplingParams {
            dry_breakers: vec![2],
            ..params
        };
        history(&broken, &[1, 2, 3, 4], &[1, 2, 3])
            .apply(&broken, 0.0, &mut logits)
            .unwrap();
        assert_eq!(logits, [0.0; 6]);
    }

    /// A bad word is what the output may not hold; the prompt may.
    #[test]
    fn bad_words_are_those_of_the_output() {
        let params = SamplingParams {
            bad_words: vec![vec![1, 2], vec![3]],
            ..SamplingParams::default()
        };
        let after = |prompt: &[u32], output: &[u32]| {
            let mut logits = [0.0; 4];
            history(&params, prompt, output)
                .apply(&params, params.bad_words_penalty, &mut logits)
                .unwrap();
            logits.map(|logit| logit == f32::NEG_INFINITY)
        };
        assert_eq!(after(&[1], &[]), [false, false, false, true]);
        assert_eq!(after(&[], &[1]), [false, false, true, true]);
        // One that two words end with has its penalty once.
        let params = SamplingParams {
            bad_words: vec![vec![1], vec![1], vec![0, 1]],
            bad_words_penalty: 2.0,
            ..params
        };
        let mut logits = [0.0; 4];
        history(&params, &[], &[0])
            .apply(&params, params.bad_words_penalty, &mut logits)
            .unwrap();
        assert_eq!(logits, [0.0, -2.0, 0.0, 0.0]);
    }

    /// The window bounds what is seen, and what is further back counts less.
    #[test]
    fn places_count_by_distance_within_the_window() {
        let params = SamplingParams {
            repeat_last_n: 3,
            penalty_decay: 0.5,
            ..SamplingParams::default()
        };
        let seen = history(&params, &[7, 1], &[2, 1]);
        let seen: TokenMap<Seen> = seen.seen(&params).collect();
        assert_eq!(seen.len(), 2);
        assert_eq!(
            seen[&1],
            Seen {
                count: 1.0,
                nearest: 1.0,
                nearest_output: 1.0
            }
        );
        assert_eq!(
            seen[&2],
            Seen {
                count: 0.5,
                nearest: 0.5,
                nearest_output: 0.5
            }
        );
    }
}
