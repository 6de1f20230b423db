//! A head of another file that drafts for a decoder (EAGLE-3, arXiv 2503.01840): steps keep three places of the decoder's stream
//! for it, of which a matrix makes what it goes on from. All else is as for a head of the decoder's own file ([`super::mtp`]),
//! in a pass with its own configuration, weights and buffers, whose keys and values lie in the decoder's pages.

use std::ops::Range;

use pyagent_kernels::elementwise;
use pyagent_kernels::matmul::Activations;
use pyagent_kernels::pack::{PackedMatrix, ROWS_PER_GROUP};

use super::{Part, Pass, Role, Segment, Stage};
use crate::config::eagle::NUM_TAPS;
use crate::model::HeadEntry;
use crate::workspace::Rows;

/// Places of a decoder's stream, and what it was there.
pub struct Taps {
    /// After how many layers each is.
    pub layers: [usize; NUM_TAPS],
    /// Of each row of the last step, one place after the other.
    pub features: Rows,
}

/// What a head's pass has beside a decoder's.
pub struct HeadPass<'a> {
    /// The layer in KV memory that is its own.
    pub layer: usize,
    /// How many positions it sees, its own included; `None` means all.
    pub window: Option<usize>,
    /// Tokens' embeddings.
    pub embedding: &'a PackedMatrix,
    /// Places of the decoder's stream for each row of the step.
    pub features: &'a Rows,
}

impl Pass<'_> {
    /// The stages that keep the stream as it is after so many layers, for a head that reads it there.
    pub(super) fn tap_stages(&self, num_layers: usize) -> impl Iterator<Item = Stage> + use<> {
        let layers = match self.role {
            Role::Tapped(taps) => Some(taps.layers),
            _ => None,
        };
        let places = layers.into_iter().flatten().enumerate();
        places
            .filter(move |(_, layer)| *layer == num_layers)
            .map(|(place, _)| Stage::Tap(place))
    }

    /// The blocks before a place of the stream.
    pub(super) fn blocks_before_tap(&self, place: usize) -> usize {
        match self.role {
            Role::Tapped(taps) => self.config.blocks_per_layer() * taps.layers[place],
            _ => 0,
        }
    }

    /// The matrix that tokens' embeddings are rows of.
    pub(super) fn embedding(&self) -> &PackedMatrix {
        match self.role {
            Role::Head(head) => head.embedding,
            _ => &self.weights.embedding,
        }
    }

    /// How many positions a head's token sees: all but the first, whose slot has nothing, within its window.
    pub(super) fn seen_by_head(&self, segment: &Segment<'_>) -> usize {
        let window = match self.role {
            Role::Head(head) => head.window,
            _ => None,
        };
        segment.first_position.min(window.unwrap_or(usize::MAX))
    }
}

impl Part<'_> {
    /// What a layer's queries, keys and values are made of.
    pub(super) fn attention_input(&self, layer: usize) -> &Activations {
        let Pass { config, space, .. } = *self.pass;
        if config.reads_both && config.is_mtp(layer) {
            &space.mtp.joined
        } else {
            &self.stream.hidden_input
        }
    }

    /// Keeps a row of the stream as one of the places that a head reads.
    ///
    /// # Safety
    /// The row of the stream is at that place, and nobody else keeps it.
    pub(super) unsafe fn tap(&self, place: usize, row: usize) {
        let Role::Tapped(taps) = self.pass.role else { return };
        let hidden = self.pass.config.hidden_size;
        // SAFETY: by contract; a row's places are kept in stages of their own.
        unsafe {
            let residual = self.stream.residual.shared_row(row);
            taps.features.row(row)[place * hidden..(place + 1) * hidden].copy_from_slice(residual);
        }
    }

    /// A row's places, normalised where the head does, for the matrix that makes of them what it goes on from.
    ///
    /// # Safety
    /// All places are kept; the row is this thread's.
    pub(super) unsafe fn fuse_input(&self, row: usize) {
        let Pass { config, space, isa, .. } = *self.pass;
        let (Role::Head(head), HeadEntry::Fused(fusion)) = (self.pass.role, &self.pass.mtp().entry) else {
            return;
        };
        // SAFETY: by contract; nothing else reads the places of this step.
        unsafe {
            let features = head.features.row(row);
            let mut rest = &mut features[..];
            for norm in &fusion.norms {
                let (part, others) = rest.split_at_mut(norm.len());
                elementwise::rms_norm_in_place(isa, part, norm, config.norm_epsilon);
                rest = others;
            }
            space.mtp.fused.write_row(isa, row, features);
        }
    }

    /// What a head goes on from, some columns of some rows.
    ///
    /// # Safety
    /// The input is complete, and these columns of these rows are this piece's.
    pub(super) unsafe fn fuse(&self, (rows, groups): (Range<usize>, Range<usize>)) {
        let Pass { config, space, .. } = *self.pass;
        let HeadEntry::Fused(fusion) = &self.pass.mtp().entry else {
            return;
        };
        let columns = groups.start * ROWS_PER_GROUP..(groups.end * ROWS_PER_GROUP).min(config.hidden_size);
        // SAFETY: by contract.
        unsafe {
            let mut out = space.mtp.output.patch(rows, columns);
            self.multiply_columns(&fusion.matrix, &space.mtp.fused, None, &mut out);
        }
    }
}
