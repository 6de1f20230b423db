//! Lightning attention in a recurrent layer (Qin et al. 2024, arXiv 2405.17381): each head's scan, and the norm of all heads'
//! outputs.
//!
//! A head's state is a sum of products of keys and values, of which every token leaves the same share. That is a state space
//! whose steps are 1, without a skip: keys are what tokens write along, queries what they read along. A piece of the scan has
//! one head of one sequence, whose outputs take the place of its values; a piece of the norm has a token.

use std::ops::Range;

use pyagent_kernels::elementwise;
use pyagent_kernels::recurrent::{CELL_CHANNELS, SelectiveScan, selective_scan};

use super::sequence::Sequence;
use super::{PRODUCT_TILE, Part, Pass};
use crate::config::Lightning;
use crate::kv::StateRun;
use crate::model::ScanWeights;
use crate::workspace::Own;

/// The epsilon of the norm of outputs, of which files say nothing.
const NORM_EPSILON: f32 = 1e-6;

impl Part<'_> {
    /// A head of a sequence.
    ///
    /// # Safety
    /// The layer's projections are over; the piece's head and its state are this thread's in this stage.
    pub(super) unsafe fn scan_lightning(&self, layer: usize, shape: &Lightning, piece: usize, own: &mut Own) {
        let (segment, head) = (piece / shape.num_heads, piece % shape.num_heads);
        let heads = (std::iter::once(head), shape.head_size);
        // SAFETY: by contract.
        unsafe {
            self.advance_heads((layer, segment), heads, own, |sequence, _, run, rows, _| {
                self.scan_lightning_head(sequence, run, shape, (layer, head), rows);
            });
        }
    }

    unsafe fn scan_lightning_head(
        &self,
        sequence: &Sequence<'_>,
        run: &StateRun,
        shape: &Lightning,
        (layer, head): (usize, usize),
        rows: Range<usize>,
    ) {
        let Pass {
            config, space, isa, kv, ..
        } = *self.pass;
        let (size, stride) = (shape.head_size, space.mixed.width());
        // A head's query, key and value lie beside each other.
        let columns = 3 * size * head..3 * size * (head + 1);
        let query = space.mixed.base().wrapping_add(rows.start * stride + columns.start);
        // SAFETY: the head's columns of these rows are this piece's.
        let mut activated = unsafe { space.mixed.patch(rows.clone(), columns) };
        rows.clone().for_each(|row| elementwise::silu(isa, activated.row(row)));
        let slope = shape.slope((layer, config.num_layers), head);
        let decays = [(-slope).exp() as f32; PRODUCT_TILE];
        let steps = [1.0; PRODUCT_TILE];
        for cell in 0..size / CELL_CHANNELS {
            let matrix = sequence.states.layer(layer).matrices[head * (size / CELL_CHANNELS) + cell];
            let work = SelectiveScan {
                b: query.wrapping_add(size),
                c: query,
                state_size: size,
                x: query.wrapping_add(2 * size + cell * CELL_CHANNELS),
                stride,
                decays: &decays[..rows.len()],
                steps: &steps[..rows.len()],
                skip: 0.0,
                state: kv.cell(sequence.states, sequence.table, run.to, matrix),
            };
            // SAFETY: by contract; queries and keys lie before the values, and are only read.
            unsafe { selective_scan(isa, &work) };
        }
    }

    /// Normalises a token's outputs, gates them, and hands them to the output matrix.
    ///
    /// # Safety
    /// The layer's scan is over; the row is this thread's in this stage.
    pub(super) unsafe fn normalise_lightning(&self, scan: &ScanWeights, shape: &Lightning, row: usize) {
        let Pass { space, isa, .. } = *self.pass;
        let (size, inner) = (shape.head_size, shape.inner_size());
        // SAFETY: by contract.
        unsafe {
            let (heads, gates) = space.mixed.row(row).split_at_mut(3 * inner);
            for head in 0..shape.num_heads {
                let values = (3 * head + 2) * size;
                heads.copy_within(values..values + size, head * size);
            }
            let outputs = &mut heads[..inner];
            elementwise::rms_norm_in_place(isa, outputs, &scan.norm, NORM_EPSILON);
            elementwise::sigmoid_mul(isa, outputs, &gates[..inner]);
            space.mixer_input.write_row(isa, row, outputs);
        }
    }
}
