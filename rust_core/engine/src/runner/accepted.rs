//! Drafts in models with recurrent layers, or with a head that drafts: whether a batch's can be verified, and what comes of
//! those that were right.

use std::time::Instant;

use pyagent_kernels::attention::BLOCK_TOKENS;

use super::{CpuModel, EngineError};
use crate::forward::{Plan, Segment, keep_records};

impl CpuModel {
    /// Brings the states of recurrent layers, and the records of a head, past drafts of the last batch that were right. Each segment has those of a
    /// sequence; the first of them is the batch's draft with that number in `first_drafts`. Other models have neither.
    ///
    /// # Panics
    /// When there is not one number for each segment.
    pub fn accept(&mut self, segments: &[Segment<'_>], first_drafts: &[usize]) -> Result<(), EngineError> {
        assert_eq!(segments.len(), first_drafts.len(), "a number for each segment");
        let has_states = self.kv.pages.states.is_some();
        let has_head = self.config.has_mtp || self.head.is_some();
        if segments.is_empty() || !(has_states || has_head) {
            return Ok(());
        }
        let ends = segments
            .iter()
            .zip(first_drafts)
            .map(|(segment, first)| first + segment.tokens.len());
        let num_drafts = self.draft_rows.len();
        if let Some(segment) = ends.enumerate().find(|(_, end)| *end > num_drafts) {
            let (segment, reason) = (segment.0, format!("the last batch had {num_drafts} drafts"));
            return Err(EngineError::Batch { segment, reason });
        }
        self.check_all(segments)?;
        let start = Instant::now();
        if has_states {
            self.accept_states(segments, first_drafts)?;
        }
        if has_head {
            self.accept_records(segments, first_drafts);
        }
        self.compute_seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn accept_states(&self, segments: &[Segment<'_>], first_drafts: &[usize]) -> Result<(), EngineError> {
        let threads = self.pool.num_threads();
        let mut plan = Plan::new(segments, &self.config, &self.kv.pages, &self.adapters, threads);
        plan.accept(first_drafts, self.draft_rows.len());
        let pass = self.pass();
        let (stages, num_pieces) = pass.acceptance_stages(&plan);
        self.pool.run(&num_pieces, |piece| {
            // SAFETY: as in a step of these tokens, which is smaller than the last one, for which room was made; and the
            // drafts are some that it kept.
            unsafe { pass.compute(&plan, stages[piece.stage], piece) };
        })?;
        Ok(())
    }

    fn accept_records(&mut self, segments: &[Segment<'_>], first_drafts: &[usize]) {
        let own = self.head.as_ref().map_or(&self.space, |head| &head.space);
        for (segment, &first) in segments.iter().zip(first_drafts) {
            let rows = self.draft_rows[first..first + segment.tokens.len()].iter().copied();
            // SAFETY: `check_all` saw that the segments' pages exist; the model is this caller's alone, and the rows are
            // those of the last batch, whose outputs are kept.
            unsafe {
                keep_records(&self.kv, &own.mtp.output, segment.tables, segment.first_position, rows);
            }
        }
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
