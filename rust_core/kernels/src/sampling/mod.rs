//! From a row of logits to the next token.
//!
//! The order is part of the contract: logit bias, penalties (repetition, then frequency, then presence), n-grams, DRY, bad
//! words, allowed tokens, mask, processors from outside, temperature (scheduled, dynamic), top-n-sigma, epsilon, eta, top-k, top-h,
//! typical, top-p, min-p, XTC, sample. Each filter sees the probabilities of what those before it keep, as if they were all. Mirostat takes the
//! place of all filters. Log-probabilities and the entropy are those after the mask and the processors, at temperature 1.
//!
//! One idea carries all filters: tokens are ranked by logit, ties by the lower id, and each filter keeps a range of that
//! ranking: those by threshold without ranking anything, the others with as much of it as they need. The sample walks the
//! same ranking up to `u` times the kept mass, so it depends on the seed, the step and the logits alone: not on the
//! batch, nor on which tokens were cut. Penalties by place, DRY and Mirostat also depend on the tokens before.

mod buckets;
mod filters;
mod history;
mod mirostat;
mod params;
mod ranges;
mod rank;
mod repeats;
mod sample;
mod scan;
mod schedule;
mod score;
mod weigh;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

pub use params::SamplingParams;
pub use ranges::SamplingParamsError;
pub use score::{Scorer, TokenScore};

use crate::isa::Isa;
use filters::Filters;
use history::{History, Seen, TokenMap};
use mirostat::{Mirostat, NUM_ESTIMATED};
use rank::Ranking;
use weigh::{Row, Weighed};

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// Its natural log-probability; `None` unless log-probabilities were asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens with their log-probabilities, best first.
    pub top_logprobs: Vec<(u32, f32)>,
    /// The entropy in nats of the distribution that these are of; `None` unless it was asked for.
    pub entropy: Option<f32>,
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
    /// The tokens that have penalties, where places do not matter.
    seen: TokenMap<Seen>,
    history: History,
    mirostat: Option<Mirostat>,
    /// The standard deviation of the row as the model made it, where that is read.
    sigma: f32,
    /// A bit for each token that the request allows.
    allowed: Option<Vec<u32>>,
    ranking: Ranking,
}

impl SamplerState {
    /// A sampler that has seen no token.
    pub fn new(params: SamplingParams) -> Self {
        Self {
            seen: TokenMap::default(),
            history: History::new(&params),
            mirostat: Mirostat::of(&params),
            sigma: 0.0,
            allowed: params.allowed_tokens.as_deref().map(bits_of),
            ranking: Ranking::new(Isa::best()),
            params,
        }
    }

    /// The request's parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The tokens that have penalties where places do not matter, with how often each is in the output; 0 is the prompt's.
    pub fn seen_tokens(&self) -> Vec<(u32, u32)> {
        let mut seen: Vec<_> = self
            .seen
            .iter()
            .map(|(token, seen)| (*token, seen.count as u32))
            .collect();
        seen.sort_unstable();
        seen
    }

    /// Takes in the prompt's tokens, which some penalties see too.
    pub fn observe_prompt(&mut self, tokens: &[u32]) {
        if self.params.has_history() {
            self.history.push_prompt(&self.params, tokens);
        }
        if self.params.repetition_penalty != 1.0 {
            for token in tokens {
                self.seen.entry(*token).or_default().nearest = 1.0;
            }
        }
    }

    /// Takes in an output token.
    pub fn observe(&mut self, token: u32) {
        if self.params.has_history() {
            self.history.push(&self.params, token);
        }
        if self.params.has_penalties() {
            let seen = self.seen.entry(token).or_default();
            seen.count += 1.0;
            (seen.nearest, seen.nearest_output) = (1.0, 1.0);
        }
    }

    /// Samples the token of position `step`. `logits` is worked on in place; bit `i % 32` of word `i / 32` of
    /// the mask allows token `i`. The sampled token is not counted: [`Self::observe`] it.
    pub fn sample(&mut self, logits: &mut [f32], mask: Option<&[u32]>, step: u64) -> Result<Sampled, SampleError> {
        let best = self.adjust(logits, mask, step)?;
        Ok(self.draw(logits, best, step))
    }

    /// The first half of [`Self::sample`], up to the mask: what processors of logits then change.
    pub fn prepare(&mut self, logits: &mut [f32], mask: Option<&[u32]>, step: u64) -> Result<(), SampleError> {
        self.adjust(logits, mask, step).map(drop)
    }

    /// The second half of [`Self::sample`], of logits that [`Self::prepare`] has seen.
    pub fn sample_prepared(&mut self, logits: &[f32], step: u64) -> Result<Sampled, SampleError> {
        let best = self.ranking.begin(logits)?;
        Ok(self.draw(logits, best, step))
    }

    fn draw(&mut self, logits: &[f32], best: u32, step: u64) -> Sampled {
        let (num_logprobs, has_entropy) = (self.params.num_logprobs, self.params.has_entropy);
        let report =
            (num_logprobs > 0).then(|| self.ranking.log_probabilities(logits, best, num_logprobs, has_entropy));
        let temperature = schedule::temperature(&self.params, step);
        let token = if temperature == 0.0 {
            best
        } else {
            self.choose(logits, best, step, temperature)
        };
        match report {
            Some(report) => Sampled {
                token,
                logprob: Some(report.of(logits[token as usize])),
                top_logprobs: report.top,
                entropy: report.entropy,
            },
            None => Sampled {
                token,
                logprob: None,
                top_logprobs: Vec::new(),
                entropy: None,
            },
        }
    }

    /// What [`Self::sample`] samples from at a temperature above 0: tokens with their probabilities, best first. For
    /// tests: ranks the whole row.
    pub fn distribution(
        &mut self,
        logits: &mut [f32],
        mask: Option<&[u32]>,
        step: u64,
    ) -> Result<Vec<(u32, f64)>, SampleError> {
        let best = self.adjust(logits, mask, step)?;
        let temperature = schedule::temperature(&self.params, step);
        let (filters, row) = self.filtered(logits, best, step, temperature);
        Ok(self.ranking.distribution(&row, &filters))
    }

    /// Biases, penalises and masks the logits; the likeliest token then.
    fn adjust(&mut self, logits: &mut [f32], mask: Option<&[u32]>, step: u64) -> Result<u32, SampleError> {
        if self.params.top_n_sigma > 0.0 {
            // Before a bias or a penalty makes it larger than anything.
            self.sigma = self.ranking.deviation(logits);
        }
        for (token, bias) in &self.params.logit_bias {
            *logit_of(logits, *token)? += bias;
        }
        let strength = schedule::penalty_strength(&self.params, step);
        if strength == 0.0 {
            // Before a warm-up or after a decay there are no penalties.
        } else if self.params.has_places() {
            self.penalise(self.history.seen(&self.params), strength, logits)?;
        } else {
            let seen = self.seen.iter().map(|(token, seen)| (*token, *seen));
            self.penalise(seen, strength, logits)?;
        }
        if self.params.has_history() {
            let bad_words_penalty = schedule::bad_words_penalty(&self.params, step);
            self.history.apply(&self.params, bad_words_penalty, logits)?;
        }
        if let Some(allowed) = &self.allowed {
            allow_only(logits, allowed);
        }
        if let Some(mask) = mask {
            apply_mask(logits, mask)?;
        }
        self.ranking.begin(logits)
    }

    fn choose(&mut self, logits: &[f32], best: u32, step: u64, temperature: f32) -> u32 {
        let (filters, row) = self.filtered(logits, best, step, temperature);
        let uniform = sample::uniform(self.params.seed, step);
        let token = self.ranking.sample(&row, &filters, uniform);
        if let Some(mirostat) = &mut self.mirostat {
            mirostat.learn(row.weighed.weight_of(token));
        }
        token
    }

    /// The row at its temperature, and what cuts it then.
    fn filtered<'a>(&mut self, logits: &'a [f32], best: u32, step: u64, temperature: f32) -> (Filters, Row<'a>) {
        let params = &self.params;
        let temperature = weigh::dynamic_temperature(params, temperature, &self.ranking.weighed(logits, best, 1.0));
        let weighed = self.ranking.weighed(logits, best, temperature);
        let filters = if let Some(mirostat) = &mut self.mirostat {
            let best = if mirostat.estimates() {
                self.ranking.best_weights(&weighed, NUM_ESTIMATED)
            } else {
                Vec::new()
            };
            mirostat.filters(&best, weighed.mass(), logits.len())
        } else {
            let has_xtc = params.xtc_probability > 0.0
                && sample::uniform(params.seed ^ XTC_STREAM, step) < f64::from(params.xtc_probability);
            let filters = cut_by_threshold(params, &weighed, self.sigma, Filters::of(params, has_xtc));
            if params.follows_entropy() {
                filters.following(params, weighed.row(0.0, true).entropy())
            } else {
                filters
            }
        };
        (filters, weighed.row(filters.least(), filters.reads_entropy()))
    }

    /// Repetition divides positive logits and multiplies negative ones (Keskar et al. 2019, arXiv 1909.05858);
    /// frequency and presence are subtracted, for output tokens, as OpenAI's API defines them.
    /// Only the part `strength` of each counts.
    fn penalise(
        &self,
        all: impl Iterator<Item = (u32, Seen)>,
        strength: f32,
        logits: &mut [f32],
    ) -> Result<(), SampleError> {
        let params = &self.params;
        let (frequency, presence) = (params.frequency_penalty * strength, params.presence_penalty * strength);
        for (token, seen) in all {
            let logit = logit_of(logits, token)?;
            let repetition = match seen.nearest * strength {
                1.0 => params.repetition_penalty,
                nearest => params.repetition_penalty.powf(nearest),
            };
            *logit = if *logit > 0.0 {
                *logit / repetition
            } else {
                *logit * repetition
            };
            *logit -= frequency * seen.count;
            *logit -= presence * seen.nearest_output;
        }
        Ok(())
    }
}

/// Sets XTC's random numbers apart from the samples'.
const XTC_STREAM: u64 = 0x5854_4358_5443_5854;

/// The filters, with the bound that top-n-sigma, epsilon and eta put on weights, one after the other.
fn cut_by_threshold(params: &SamplingParams, weighed: &Weighed<'_>, sigma: f32, mut filters: Filters) -> Filters {
    if params.top_n_sigma > 0.0 {
        filters = filters.with_least(weighed.weight_below(params.top_n_sigma * sigma));
    }
    if params.epsilon_cutoff > 0.0 {
        let row = weighed.row(filters.least(), false);
        filters = filters.with_least(f64::from(params.epsilon_cutoff) * row.mass());
    }
    if params.eta_cutoff > 0.0 {
        let row = weighed.row(filters.least(), true);
        let eta = f64::from(params.eta_cutoff);
        filters = filters.with_least(eta.min(eta.sqrt() * (-row.entropy()).exp()) * row.mass());
    }
    filters
}

fn logit_of(logits: &mut [f32], token: u32) -> Result<&mut f32, SampleError> {
    let vocab = logits.len();
    logits
        .get_mut(token as usize)
        .ok_or(SampleError::UnknownToken { token, vocab })
}

/// A bit for each of these tokens.
fn bits_of(tokens: &[u32]) -> Vec<u32> {
    let words = tokens.iter().max().map_or(0, |last| *last as usize / 32 + 1);
    let mut bits = vec![0; words];
    for token in tokens {
        bits[*token as usize / 32] |= 1 << (token % 32);
    }
    bits
}

/// Excludes the tokens whose bit is not set, and those beyond the bits.
fn allow_only(logits: &mut [f32], bits: &[u32]) {
    let (first, rest) = logits.split_at_mut(logits.len().min(bits.len() * 32));
    rest.fill(f32::NEG_INFINITY);
    exclude(first, bits);
}

/// Excludes the tokens whose bit is not set.
fn apply_mask(logits: &mut [f32], mask: &[u32]) -> Result<(), SampleError> {
    if mask.len() < logits.len().div_ceil(32) {
        return Err(SampleError::MaskLength {
            got: mask.len(),
            vocab: logits.len(),
        });
    }
    exclude(logits, mask);
    Ok(())
}

fn exclude(logits: &mut [f32], bits: &[u32]) {
    for (logits, word) in logits.chunks_mut(32).zip(bits) {
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
}
