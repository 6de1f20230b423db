//! What the tokens before do to the logits of the next: penalties by place, n-grams that may not repeat, DRY, bad words.

use std::collections::{BTreeSet, HashMap};

use super::{SampleError, SamplingParams, logit_of};

/// What counts less in the penalties counts nothing: a long history need not be gone through in each step.
const LEAST_WEIGHT: f32 = 1e-6;
/// DRY's penalties are bounded, so that none is infinite.
const MOST_DRY: f32 = 1e9;

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
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    tokens: Vec<u32>,
    num_prompt: usize,
}

impl History {
    pub(super) fn push_prompt(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.num_prompt = self.tokens.len();
    }

    pub(super) fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// The last `count` tokens; 0 is all.
    fn last(&self, count: usize) -> &[u32] {
        let count = if count == 0 { usize::MAX } else { count };
        &self.tokens[self.tokens.len().saturating_sub(count)..]
    }

    /// What the penalties know of the tokens in their window.
    pub(super) fn seen(&self, params: &SamplingParams) -> HashMap<u32, Seen> {
        let mut token_to_seen = HashMap::<u32, Seen>::new();
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

    /// Excludes and lowers what n-grams, DRY and bad words say.
    pub(super) fn apply(&self, params: &SamplingParams, logits: &mut [f32]) -> Result<(), SampleError> {
        if params.no_repeat_ngram_size > 0 {
            for token in repeated_ngrams(&self.tokens, params.no_repeat_ngram_size) {
                *logit_of(logits, token)? = f32::NEG_INFINITY;
            }
        }
        if params.dry_multiplier > 0.0 {
            for (token, length) in repetitions(self.last(params.dry_penalty_last_n), &params.dry_breakers) {
                if length >= params.dry_allowed_length {
                    let power = params.dry_base.powf((length - params.dry_allowed_length) as f32);
                    *logit_of(logits, token)? -= (params.dry_multiplier * power).min(MOST_DRY);
                }
            }
        }
        let output = &self.tokens[self.num_prompt..];
        let ends = params.bad_words.iter().filter_map(|word| word.split_last());
        let completing: BTreeSet<u32> = ends
            .filter(|(_, before)| output.ends_with(before))
            .map(|(last, _)| *last)
            .collect();
        for token in completing {
            *logit_of(logits, token)? -= params.bad_words_penalty;
        }
        Ok(())
    }
}

/// The tokens that would complete a sequence of `size` tokens a second time.
fn repeated_ngrams(tokens: &[u32], size: usize) -> impl Iterator<Item = u32> {
    let tail = tokens.len().checked_sub(size - 1).map(|start| &tokens[start..]);
    let ngrams = tokens.windows(size).filter_map(|ngram| ngram.split_last());
    ngrams.filter_map(move |(last, before)| (Some(before) == tail).then_some(*last))
}

/// The tokens that would go on with a repetition, each with the greatest number of tokens repeated before it.
///
/// A repetition reaches back to the last breaker, and no breaker goes on with one. Linear: the lengths of repetitions
/// are the Z function of the reversed text.
fn repetitions(tokens: &[u32], breakers: &[u32]) -> HashMap<u32, usize> {
    let is_breaker = |token: &u32| breakers.binary_search(token).is_ok();
    let most = tokens.iter().rev().take_while(|token| !is_breaker(token)).count();
    let mut token_to_length = HashMap::new();
    for (distance, length) in z_function(tokens.iter().rev().copied().collect())
        .into_iter()
        .enumerate()
    {
        let length = length.min(most);
        // At distance 0 the text is itself.
        if distance > 0 && length > 0 {
            let next = tokens[tokens.len() - distance];
            if !is_breaker(&next) {
                let longest: &mut usize = token_to_length.entry(next).or_default();
                *longest = length.max(*longest);
            }
        }
    }
    token_to_length
}

/// For each place, how many tokens from there on are the text's first.
fn z_function(text: Vec<u32>) -> Vec<usize> {
    let mut lengths = vec![0; text.len()];
    let (mut start, mut end) = (0, 0);
    for i in 1..text.len() {
        let known = if i < end { lengths[i - start].min(end - i) } else { 0 };
        let further = text[i + known..].iter().zip(&text[known..]).take_while(|(a, b)| a == b);
        lengths[i] = known + further.count();
        if i + lengths[i] > end {
            (start, end) = (i, i + lengths[i]);
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By definition: each earlier place, and how far back it agrees with the end.
    fn brute_force(tokens: &[u32], breakers: &[u32]) -> HashMap<u32, usize> {
        let mut found = HashMap::new();
        for next in 1..tokens.len() {
            let before = tokens[..next].iter().rev().zip(tokens.iter().rev());
            let length = before.take_while(|(a, b)| a == b && !breakers.contains(a)).count();
            if length > 0 && !breakers.contains(&tokens[next]) {
                let longest = found.entry(tokens[next]).or_insert(0);
                *longest = length.max(*longest);
            }
        }
        found
    }

    proptest! {
        /// The repetitions found in linear time are those of the definition.
        #[test]
        fn repetitions_are_those_of_the_definition(
            tokens in prop::collection::vec(0_u32..4, 0..60),
            breakers in prop::collection::btree_set(0_u32..4, 0..3),
        ) {
            let breakers: Vec<u32> = breakers.into_iter().collect();
            prop_assert_eq!(repetitions(&tokens, &breakers), brute_force(&tokens, &breakers));
        }

        /// No sequence of `size` tokens comes twice when the tokens named are left out.
        #[test]
        fn ngrams_do_not_repeat(tokens in prop::collection::vec(0_u32..5, 0..60), size in 1_usize..5) {
            let banned: Vec<u32> = repeated_ngrams(&tokens, size).collect();
            for next in 0..5 {
                let longer = [&tokens[..], &[next]].concat();
                let is_new = longer.len() < size || {
                    let last = &longer[longer.len() - size..];
                    !longer[..longer.len() - 1].windows(size).any(|ngram| ngram == last)
                };
                prop_assert_eq!(is_new, !banned.contains(&next));
            }
        }
    }

    fn history(prompt: &[u32], output: &[u32]) -> History {
        let mut history = History::default();
        history.push_prompt(prompt);
        output.iter().for_each(|token| history.push(*token));
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
        history(&[1, 2, 3, 4, 2, 3, 5], &[1, 2, 3])
            .apply(&params, &mut logits)
            .unwrap();
        assert_eq!(logits, [0.0, 0.0, 0.0, 0.0, -1.0, -0.5]);
        let mut logits = [0.0; 6];
        let broken = SamplingParams {
            dry_breakers: vec![2],
            ..params
        };
        history(&[1, 2, 3, 4], &[1, 2, 3]).apply(&broken, &mut logits).unwrap();
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
            history(prompt, output).apply(&params, &mut logits).unwrap();
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
        history(&[], &[0]).apply(&params, &mut logits).unwrap();
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
        let seen = history(&[7, 1], &[2, 1]).seen(&params);
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
