//! What a row of logits says of a token that is known already: how likely it was, and what was likelier.

use super::rank::Ranking;
use super::{SampleError, logit_of};
use crate::isa::Isa;

/// A known token's place in a row of logits.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScore {
    /// Its natural log-probability at temperature 1.
    pub logprob: f32,
    /// Its place among all tokens, from 1; of equals the lower id comes first.
    pub rank: u32,
    /// The most likely tokens with their log-probabilities, best first.
    pub top: Vec<(u32, f32)>,
}

/// Scores tokens; keeps its memory from row to row.
#[derive(Debug)]
pub struct Scorer {
    ranking: Ranking,
}

impl Default for Scorer {
    fn default() -> Self {
        Self {
            ranking: Ranking::new(Isa::best()),
        }
    }
}

impl Scorer {
    /// Scores `token` in a row, with the `num_top` best tokens: by the same numbers as those of a sampled token.
    pub fn score(&mut self, logits: &mut [f32], token: u32, num_top: usize) -> Result<TokenScore, SampleError> {
        let best = self.ranking.begin(logits)?;
        let logit = *logit_of(logits, token)?;
        let num_better = logits.iter().filter(|other| **other > logit).count();
        let num_equal = logits[..token as usize].iter().filter(|other| **other == logit).count();
        let report = self.ranking.log_probabilities(logits, best, num_top, false);
        Ok(TokenScore {
            logprob: report.of(logit),
            rank: (1 + num_better + num_equal) as u32,
            top: report.top,
        })
    }

    /// The `num_top` most likely tokens of a row with their log-probabilities, best first.
    pub fn top(&mut self, logits: &mut [f32], num_top: usize) -> Result<Vec<(u32, f32)>, SampleError> {
        let best = self.ranking.begin(logits)?;
        Ok(self.ranking.log_probabilities(logits, best, num_top, false).top)
    }
}
