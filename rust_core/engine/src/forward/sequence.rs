//! One sequence's tokens in a recurrent layer, in runs that bring its state from one block's pages to another's.
//!
//! A state cannot go back to before a token. So a piece that has drafts change its cells of it saves them first, and puts
//! them back afterwards.

use std::ops::Range;

use pyagent_kernels::pack::BLOCK_COLS;
use pyagent_kernels::recurrent::{CELL_CHANNELS, history_len};

use super::recurrent::MOST_BLOCKS;
use super::{PRODUCT_TILE, Part, Pass};
use crate::config::{ModelConfig, Recurrent};
use crate::kv::{Cell, KvMemory, StatePages, StateRun};
use crate::model::{Mixer, RecurrentWeights, ScanWeights};
use crate::workspace::Own;

/// Numbers of a state that a piece of a recurrent layer changes, at most.
pub(crate) fn most_piece_state(config: &ModelConfig) -> usize {
    let Some(recurrent) = &config.recurrent else { return 0 };
    let history = MOST_BLOCKS * BLOCK_COLS / CELL_CHANNELS * history_len(recurrent.taps());
    let (_, matrix_len) = recurrent.matrix_cells();
    let columns = match recurrent {
        Recurrent::ShortConvolution { .. } => 0,
        Recurrent::DeltaNet(net) => net.values_size() / net.num_key_heads,
        Recurrent::KimiDelta(shape) => shape.head_size,
        Recurrent::Mamba1(_) => MOST_BLOCKS * BLOCK_COLS,
        Recurrent::Mamba2(space) => space.head_size,
        Recurrent::Lightning(shape) => shape.head_size,
    };
    history.max(columns / CELL_CHANNELS * matrix_len)
}

/// One sequence's tokens in a recurrent layer.
pub(super) struct Sequence<'a> {
    pub(super) recurrent: Recurrent,
    pub(super) weights: &'a RecurrentWeights,
    pub(super) states: &'a StatePages,
    /// The pages of its states.
    pub(super) table: &'a [u32],
    runs: &'a [StateRun],
    /// Row of the batch of the first token.
    first_row: usize,
    /// Where each projection's output begins in a row.
    pub(super) columns: Vec<usize>,
}

impl Sequence<'_> {
    /// Brings some cells of the state, of `len` numbers each, past the tokens: `compute` takes those of some rows of a run.
    /// What drafts change is put back from `saved`.
    ///
    /// # Safety
    /// The cells are this thread's in this stage.
    pub(super) unsafe fn advance(
        &self,
        kv: &KvMemory,
        (cells, len): (impl Iterator<Item = Cell> + Clone, usize),
        saved: &mut Vec<f32>,
        mut compute: impl FnMut(&StateRun, Range<usize>),
    ) {
        for run in self.runs {
            saved.clear();
            for cell in cells.clone() {
                // SAFETY: by contract; runs follow each other.
                unsafe {
                    let cell = kv.begin(self.states, self.table, run, cell, len);
                    if run.is_draft {
                        saved.extend_from_slice(std::slice::from_raw_parts(cell, len));
                    }
                }
            }
            self.tiles(run).for_each(|rows| compute(run, rows));
            for (cell, saved) in cells.clone().zip(saved.chunks_exact(len)) {
                let cell = kv.cell(self.states, self.table, run.to, cell);
                // SAFETY: by contract; it was as long when it was saved.
                unsafe { cell.copy_from_nonoverlapping(saved.as_ptr(), len) };
            }
        }
    }

    /// The rows of a run, some at a time.
    fn tiles(&self, run: &StateRun) -> impl Iterator<Item = Range<usize>> + use<> {
        let rows = self.first_row + run.tokens.start..self.first_row + run.tokens.end;
        let starts = rows.clone().step_by(PRODUCT_TILE);
        starts.map(move |start| start..(start + PRODUCT_TILE).min(rows.end))
    }
}

impl Part<'_> {
    /// Brings some heads' matrices of a sequence past its tokens, of which `compute` takes some rows at a time: the frame of
    /// every rule that has a matrix for each head, with so many columns. Nothing where the layer has attention.
    ///
    /// # Safety
    /// The heads' matrices are this thread's in this stage.
    pub(super) unsafe fn advance_heads(
        &self,
        (layer, segment): (usize, usize),
        (heads, columns): (impl Iterator<Item = usize> + Clone, usize),
        own: &mut Own,
        mut compute: impl FnMut(&Sequence<'_>, &ScanWeights, &StateRun, Range<usize>, &mut Own),
    ) {
        let Some(sequence) = self.sequence(layer, segment) else {
            return;
        };
        let Some(scan) = &sequence.weights.scan else { return };
        let each = columns / CELL_CHANNELS;
        let [_, len] = sequence.states.cell_lens;
        let matrices = &sequence.states.layer(layer).matrices;
        let cells = heads.flat_map(move |head| head * each..(head + 1) * each);
        let mut saved = std::mem::take(&mut own.saved);
        // SAFETY: by contract; runs and tiles follow each other.
        unsafe {
            let cells = (cells.map(|cell| matrices[cell]), len);
            sequence.advance(self.pass.kv, cells, &mut saved, |run, rows| {
                compute(&sequence, scan, run, rows, own);
            });
        }
        own.saved = saved;
    }

    /// A segment's tokens in a layer; none where the layer has attention.
    pub(super) fn sequence(&self, layer: usize, segment: usize) -> Option<Sequence<'_>> {
        let Pass {
            config, weights, kv, ..
        } = *self.pass;
        let (Mixer::Recurrent(weights), Some(recurrent)) = (&weights.layers[layer].mixer, config.recurrent) else {
            return None;
        };
        Some(Sequence {
            recurrent,
            weights,
            states: kv.pages.states.as_ref()?,
            table: kv.pages.state_table(self.plan.segments[segment].tables),
            runs: &self.plan.runs[segment],
            first_row: self.plan.starts[segment],
            columns: recurrent.columns(config.hidden_size).0,
        })
    }
}
