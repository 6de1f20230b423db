//! Drafts in models with recurrent layers: what their rows bring to such a layer is kept until it is known which of them
//! are right; those then change the states, computed from what was kept.
//!
//! The state itself is put back after them by the piece that had them change it ([`super::sequence`]).

use super::{Part, Pass, Plan, Segment, Stage};
use crate::config::ModelConfig;

/// Rows of a batch whose projections in recurrent layers are kept, or were kept by the batch before.
#[derive(Clone, Debug, Default)]
pub(super) struct DraftRows {
    /// Rows of the batch that are drafts.
    verified: Vec<usize>,
    /// Of each row of the batch, as which draft it was verified before.
    accepted: Vec<usize>,
    /// How many were kept at once, of each layer.
    num_kept: usize,
}

impl DraftRows {
    /// The drafts of a batch to verify.
    pub(super) fn verified(segments: &[Segment<'_>]) -> Self {
        let ends = segments.iter().scan(0, |end, segment| {
            *end += segment.tokens.len();
            Some((*end, segment.num_drafts))
        });
        let verified: Vec<usize> = ends.flat_map(|(end, num_drafts)| end - num_drafts..end).collect();
        Self {
            num_kept: verified.len(),
            verified,
            accepted: Vec::new(),
        }
    }

    /// Rows that are, of `num_kept` kept ones, these.
    pub(super) fn accepted(accepted: Vec<usize>, num_kept: usize) -> Self {
        Self {
            verified: Vec::new(),
            accepted,
            num_kept,
        }
    }

    /// The rows that are to be verified.
    pub(super) fn rows(&self) -> &[usize] {
        &self.verified
    }

    /// How many there are to verify.
    pub(super) fn num_verified(&self) -> usize {
        self.verified.len()
    }

    /// Where what is kept of a layer's drafts begins, as rows.
    fn first_kept(&self, config: &ModelConfig, layer: usize) -> usize {
        num_recurrent_before(config, layer) * self.num_kept
    }
}

/// Recurrent layers before this one.
fn num_recurrent_before(config: &ModelConfig, layer: usize) -> usize {
    let before = config.recurrent_layers.iter().take(layer);
    before.filter(|is_recurrent| **is_recurrent).count()
}

/// Rows that are kept of so many drafts, in all layers.
pub(crate) fn num_kept_rows(config: &ModelConfig, num_drafts: usize) -> usize {
    num_recurrent_before(config, config.recurrent_layers.len()) * num_drafts
}

impl Pass<'_> {
    /// The stages that bring states past the accepted drafts of a plan: of each recurrent layer, those that change it.
    pub(crate) fn acceptance_stages(&self, plan: &Plan<'_>) -> (Vec<Stage>, Vec<usize>) {
        let layers = (0..self.config.num_layers).filter(|&layer| self.config.recurrent(layer).is_some());
        let stages = layers.flat_map(|layer| [Stage::TakeKept(layer)].into_iter().chain(self.state_stages(layer)));
        self.counted(plan, stages.collect())
    }
}

impl<'a> Plan<'a> {
    /// Takes the rows for accepted drafts, each segment's from the one with this number on, of `num_kept`.
    pub(crate) fn accept(&mut self, first_drafts: &[usize], num_kept: usize) {
        let segments = self.segments.iter().zip(first_drafts);
        let accepted = segments.flat_map(|(segment, first)| *first..first + segment.tokens.len());
        self.drafts = DraftRows::accepted(accepted.collect(), num_kept);
    }

    /// The rows of drafts to verify, in models that must be brought past those that are right.
    pub(crate) fn draft_rows(&self) -> Vec<usize> {
        self.drafts.rows().to_vec()
    }

    /// Drafts to verify in layers that have states.
    pub(crate) fn num_drafts(&self) -> usize {
        self.drafts.num_verified()
    }
}

impl Part<'_> {
    /// Keeps what a draft brings to a recurrent layer.
    ///
    /// # Safety
    /// The layer's projections are over, and nobody changes them in this stage.
    pub(super) unsafe fn keep_draft(&self, layer: usize, index: usize) {
        let (space, drafts) = (self.pass.space, &self.plan.drafts);
        let kept = drafts.first_kept(self.pass.config, layer) + index;
        // SAFETY: by contract; room was made for all layers' drafts, and this one's is this piece's.
        unsafe {
            let mixed = space.mixed.shared_row(drafts.verified[index]);
            space.kept.row(kept).copy_from_slice(mixed);
        }
    }

    /// Puts what was kept of a row's draft in the place of the layer's projections.
    ///
    /// # Safety
    /// The row is this thread's in this stage, and the draft was kept.
    pub(super) unsafe fn take_kept(&self, layer: usize, row: usize) {
        let (space, drafts) = (self.pass.space, &self.plan.drafts);
        let kept = drafts.first_kept(self.pass.config, layer) + drafts.accepted[row];
        // SAFETY: by contract.
        unsafe { space.mixed.row(row).copy_from_slice(space.kept.shared_row(kept)) };
    }
}
