//! The log-probabilities of a prompt's tokens, gathered over the steps that compute it.
//!
//! Position `p` of the prompt says how likely its token `p + 1` was; so the first token has no score and the prompt's last
//! position gives none. Positions come in order and may come again after a preemption: those are not scored twice.

use std::ops::Range;

use pyagent_kernels::sampling::TokenScore;

use crate::forward::Scoring;

/// A prompt, and the scores of its tokens so far.
#[derive(Debug)]
pub struct PromptScores {
    tokens: Vec<u32>,
    num_top: usize,
    scores: Vec<TokenScore>,
}

impl PromptScores {
    /// Nothing is scored of the prompt yet; `num_top` of the most likely tokens are to be told beside each of its own.
    pub fn new(tokens: Vec<u32>, num_top: usize) -> Self {
        Self {
            tokens,
            num_top,
            scores: Vec::new(),
        }
    }

    /// The scores of the second token and those after it.
    pub fn scores(&self) -> &[TokenScore] {
        &self.scores
    }

    /// Whether all tokens but the first have their score.
    pub fn is_complete(&self) -> bool {
        self.scores.len() + 1 >= self.tokens.len()
    }

    /// The positions to score when those of `computed` are computed.
    ///
    /// # Errors
    /// When positions before them were neither scored nor computed now, or the tokens computed are not the prompt's.
    pub fn wanted(&self, first_position: usize, computed: &[u32]) -> Result<Range<usize>, String> {
        let end = first_position + computed.len();
        let start = self.scores.len();
        let last = end.min(self.tokens.len().saturating_sub(1));
        if start >= last {
            return Ok(start..start);
        }
        if first_position > start {
            return Err(format!(
                "position {first_position} is computed before position {start} of the prompt is scored"
            ));
        }
        if self.tokens[first_position..last] != computed[..last - first_position] {
            return Err("the tokens computed are not those of the prompt to score".to_owned());
        }
        Ok(start..last)
    }

    /// What a segment that begins at `first_position` is asked for these positions.
    pub fn scoring(&self, first_position: usize, positions: Range<usize>) -> Option<Scoring<'_>> {
        (!positions.is_empty()).then(|| Scoring {
            first: positions.start - first_position,
            targets: &self.tokens[positions.start + 1..positions.end + 1],
            num_top: self.num_top,
        })
    }

    /// Takes the next scores in.
    pub fn extend(&mut self, scores: impl IntoIterator<Item = TokenScore>) {
        self.scores.extend(scores);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(rank: u32) -> TokenScore {
        TokenScore {
            logprob: -1.0,
            rank,
            top: Vec::new(),
        }
    }

    /// Over any chunks, every position but the last is wanted once, in order, and the first token has no score.
    #[test]
    fn positions_are_wanted_once_and_in_order() {
        let mut scores = PromptScores::new(vec![1, 2, 3, 4, 5, 6, 7], 2);
        assert_eq!(scores.wanted(0, &[1, 2, 3]), Ok(0..3));
        let scoring = scores.scoring(0, 0..3).expect("there are positions");
        assert_eq!(
            (scoring.first, scoring.targets, scoring.num_top),
            (0, &[2, 3, 4][..], 2)
        );
        scores.extend((0..3).map(score));
        assert_eq!(scores.wanted(0, &[1, 2]), Ok(3..3), "computed again after a preemption");
        assert_eq!(scores.wanted(2, &[3, 4, 5]), Ok(3..5));
        let scoring = scores.scoring(2, 3..5).expect("there are positions");
        assert_eq!((scoring.first, scoring.targets), (1, &[5, 6][..]));
        scores.extend((3..5).map(score));
        assert!(!scores.is_complete());
        assert_eq!(scores.wanted(5, &[6, 7]), Ok(5..6));
        scores.extend([score(6)]);
        assert!(scores.is_complete());
        assert_eq!(scores.wanted(7, &[8]), Ok(6..6), "decoding wants nothing");
        assert!(scores.scoring(7, 6..6).is_none());
    }

    /// Positions that were skipped, or of another text, are refused: a score given for them would be wrong.
    #[test]
    fn skipped_and_foreign_positions_are_refused() {
        let scores = PromptScores::new(vec![1, 2, 3, 4], 0);
        assert!(scores.wanted(2, &[3, 4]).is_err());
        assert!(scores.wanted(0, &[1, 9, 3]).is_err());
    }

    /// A prompt of one token is complete from the start.
    #[test]
    fn one_token_needs_no_score() {
        let scores = PromptScores::new(vec![1], 5);
        assert!(scores.is_complete());
        assert_eq!(scores.wanted(0, &[1]), Ok(0..0));
    }
}
