//! Drafts in models with recurrent layers: whether a batch's can be verified, and what comes of those that were right.

use std::time::Instant;

use pyagent_kernels::attention::BLOCK_TOKENS;

use super::{CpuModel, EngineError};
use crate::forward::{Pass, Plan, Segment};

impl CpuModel {
    /// Brings the states of recurrent layers past drafts of the last batch that were right. Each segment has those of a
    /// sequence; the first of them is the batch's draft with that number in `first_drafts`. Other models have no states.
    ///
    /// # Panics
    /// When there is not one number for each segment.
    pub fn accept(&mut self, segments: &[Segment<'_>], first_drafts: &[usize]) -> Result<(), EngineError> {
        assert_eq!(segments.len(), first_drafts.len(), "a number for each segment");
        if self.kv.pages.states.is_none() || segments.is_empty() {
            return Ok(());
        }
        let ends = segments
            .iter()
            .zip(first_drafts)
            .map(|(segment, first)| first + segment.tokens.len());
        if let Some(segment) = ends.enumerate().find(|(_, end)| *end > self.num_drafts) {
            let (segment, reason) = (segment.0, format!("the last batch had {} drafts", self.num_drafts));
            return Err(EngineError::Batch { segment, reason });
        }
        self.check_all(segments)?;
        let start = Instant::now();
        let threads = self.pool.num_threads();
        let mut plan = Plan::new(segments, &self.config, &self.kv.pages, &self.adapters, threads);
        plan.accept(first_drafts, self.num_drafts);
        let pass = Pass {
            config: &self.config,
            weights: &self.weights,
            kv: &self.kv,
            space: &self.space,
            rope: &self.rope,
            write_norms: &[],
            isa: self.isa,
        };
        let (stages, num_pieces) = pass.acceptance_stages(&plan);
        self.pool.run(&num_pieces, |piece| {
            // SAFETY: as in a step of these tokens, which is smaller than the last one, for which room was made; and the
            // drafts are some that it kept.
            unsafe { pass.compute(&plan, stages[piece.stage], piece) };
        })?;
        self.compute_seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Whether a segment's drafts can be verified: a token comes before them, and wherever they end, its block has a state.
    pub(super) fn check_drafts(&self, segment: &Segment<'_>) -> Result<(), String> {
        let Some(states) = self.kv.pages.states.as_ref().filter(|_| segment.num_drafts > 0) else {
            return Ok(());
        };
        let (num_tokens, num_drafts) = (segment.tokens.len(), segment.num_drafts);
        if num_drafts >= num_tokens || num_drafts > BLOCK_TOKENS {
            return Err(format!(
                "{num_drafts} drafts of {num_tokens} tokens; a model with recurrent layers verifies {BLOCK_TOKENS} at \
                 most, after a token"
            ));
        }
        let end = segment.first_position + num_tokens - num_drafts;
        let table = self.kv.pages.state_table(segment.tables);
        states.check(table, segment.first_position, end, self.kv.num_pages)
    }
}
