//! From a row of logits to the next token.
//!
//! The order is part of the contract: logit bias, penalties (repetition, then frequency, then presence), mask,
//! temperature, top-k, top-p, min-p, sample. Log-probabilities are those after the mask at temperature 1.
//!
//! One idea carries all filters: tokens are ranked by logit, ties by the lower id, and top-k, top-p and min-p
//! each keep a prefix of that ranking. The sample walks the same ranking up to `u` times the kept mass, so it
//! depends on the seed, the step and the logits alone: not on the batch, nor on which tokens were cut.

mod buckets;
mod params;
mod rank;
mod sample;
mod score;

#[cfg(test)]
mod tests;

pub use params::{SamplingParams, SamplingParamsError};
pub use score::{Scorer, TokenScore};

use std::collections::HashMap;

use crate::isa::Isa;
use rank::{Limits, Ranking};

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// Its natural log-probability; `None` unless log-probabilities were asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens with their log-probabilities, best first.
    pub top_logprobs: Vec<(u32, f32)>,
}

/// Why no token can be sampled from a row.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// There is nothing to choose from.
    #[error("the row of logits is empty")]
    Empty,
    /// The model (or a bias) produced a number that is not one; negative infinity is allowed and excludes.
    #[error("the logit of token {token} is {value}: the model's output is broken")]
    NotFinite {
        /// The first such token.
        token: u32,
        /// Its logit.
        value: f32,
    },
    /// Mask and logits leave no token.
    #[error("no token is allowed: the mask and the logits exclude all {vocab}")]
    AllMasked {
        /// Tokens in the vocabulary.
        vocab: usize,
    },
    /// The mask does not cover the vocabulary.
    #[error("the mask has {got} words of 32 bits for {vocab} tokens, expected {expected}", expected = .vocab.div_ceil(32))]
    MaskLength {
        /// Words in the mask.
        got: usize,
        /// Tokens in the vocabulary.
        vocab: usize,
    },
    /// A biased or penalised token does not exist.
    #[error("token {token} has a bias or a penalty but the vocabulary ends at {vocab}")]
    UnknownToken {
        /// The id.
        token: u32,
        /// Tokens in the vocabulary.
        vocab: usize,
    },
}

/// One request's sampler: its parameters and the tokens it has seen.
#[derive(Clone, Debug)]
pub struct SamplerState {
    params: SamplingParams,
    /// Times each seen token is in the output; 0 for those in the prompt alone.
    output_counts: HashMap<u32, u32>,
    ranking: Ranking,
}

impl SamplerState {
    /// A sampler that has seen no token.
    pub fn new(params: SamplingParams) -> Self {
        Self {
            params,
            output_counts: HashMap::new(),
            ranking: Ranking::new(Isa::best()),
        }
    }

    /// The request's parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Counts prompt tokens: the repetition penalty is for these too.
    pub fn observe_prompt(&mut self, tokens: &[u32]) {
        if self.params.repetition_penalty != 1.0 {
            for token in tokens {
                self.output_counts.entry(*token).or_insert(0);
            }
        }
    }

    /// Counts an output token.
    pub fn observe(&mut self, token: u32) {
        if self.params.has_penalties() {
            *self.output_counts.entry(token).or_insert(0) += 1;
        }
    }

    /// Samples the token of position `step`. `logits` is worked on in place; bit `i % 32` of word `i / 32` of
    /// the mask allows token `i`. The sampled token is not counted: [`Self::observe`] it.
    pub fn sample(&mut self, logits: &mut [f32], mask: Option<&[u32]>, step: u64) -> Result<Sampled, SampleError> {
        self.add_biases(logits)?;
        self.penalise(logits)?;
        if let Some(mask) = mask {
            apply_mask(logits, mask)?;
        }
        let best = rank::argmax(logits)?;
        let logprobs = self.params.num_logprobs > 0;
        let report = logprobs.then(|| self.ranking.log_probabilities(logits, best, self.params.num_logprobs));
        let token = if self.params.temperature == 0.0 {
            best
        } else {
            let limits = Limits::of(&self.params);
            let uniform = sample::uniform(self.params.seed, step);
            self.ranking
                .sample(logits, best, self.params.temperature, &limits, uniform)
        };
        Ok(match report {
            Some(report) => Sampled {
                token,
                logprob: Some(report.of(logits[token as usize])),
                top_logprobs: report.top,
            },
            None => Sampled {
                token,
                logprob: None,
                top_logprobs: Vec::new(),
            },
        })
    }

    fn add_biases(&self, logits: &mut [f32]) -> Result<(), SampleError> {
        for (token, bias) in &self.params.logit_bias {
            *logit_of(logits, *token)? += bias;
        }
        Ok(())
    }

    /// Repetition divides positive logits and multiplies negative ones (Keskar et al. 2019, arXiv 1909.05858);
    /// frequency and presence are subtracted, for output tokens, as OpenAI's API defines them.
    fn penalise(&self, logits: &mut [f32]) -> Result<(), SampleError> {
        let params = &self.params;
        for (token, count) in &self.output_counts {
            let logit = logit_of(logits, *token)?;
            let repetition = params.repetition_penalty;
            *logit = if *logit > 0.0 {
                *logit / repetition
            } else {
                *logit * repetition
            };
            if *count > 0 {
                *logit -= params.frequency_penalty * *count as f32;
                *logit -= params.presence_penalty;
            }
        }
        Ok(())
    }
}

fn logit_of(logits: &mut [f32], token: u32) -> Result<&mut f32, SampleError> {
    let vocab = logits.len();
    logits
        .get_mut(token as usize)
        .ok_or(SampleError::UnknownToken { token, vocab })
}

/// Excludes the tokens whose bit is not set.
fn apply_mask(logits: &mut [f32], mask: &[u32]) -> Result<(), SampleError> {
    if mask.len() < logits.len().div_ceil(32) {
        return Err(SampleError::MaskLength {
            got: mask.len(),
            vocab: logits.len(),
        });
    }
    for (logits, word) in logits.chunks_mut(32).zip(mask) {
        match *word {
            0 => logits.fill(f32::NEG_INFINITY),
            u32::MAX => {}
            word => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    *logit = if word >> bit & 1 == 1 {
                        *logit
                    } else {
                        f32::NEG_INFINITY
                    };
                }
            }
        }
    }
    Ok(())
}
