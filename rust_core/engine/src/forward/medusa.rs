//! A pass of one of Medusa's heads (Cai et al. 2024, arXiv 2401.10774): what it reads is a decoder's output for a sequence's newest
//! token, and nothing else. Its layers add `silu(W x + b)` to their `x`; a matrix of the last one's output gives logits.

use pyagent_kernels::elementwise;
use pyagent_kernels::isa::Isa;
use pyagent_kernels::matmul::{self, Activations};
use pyagent_kernels::pack::ROWS_PER_GROUP;
use pyagent_kernels::thread_pool::Piece;

use super::{MOST_GROUPS, Tiling};
use crate::config::MedusaConfig;
use crate::model::MedusaWeights;
use crate::workspace::{Forms, Rows};

/// What the stages of a pass hand to each other.
pub struct MedusaBuffers {
    stream: Rows,
    /// What the layer before adds, before its bias and `silu`.
    delta: Rows,
    input: Activations,
    /// Logits of all passes since there was room for them.
    pub logits: Rows,
    forms: Forms,
}

impl MedusaBuffers {
    /// Empty buffers.
    pub fn new(config: &MedusaConfig, weights: &MedusaWeights) -> Self {
        Self {
            stream: Rows::new(config.hidden_size),
            delta: Rows::new(config.hidden_size),
            input: Activations::new(),
            logits: Rows::new(config.num_drafted),
            forms: Forms::of(weights.matrices()),
        }
    }

    /// Makes room for so many rows.
    pub fn reserve(&mut self, rows: usize) {
        let Forms { is_quantised, is_dense } = self.forms;
        self.input.resize(rows, self.stream.width(), is_quantised, is_dense);
        for buffer in [&mut self.stream, &mut self.delta, &mut self.logits] {
            buffer.reserve(rows);
        }
    }

    /// Bytes held.
    pub fn bytes(&mut self) -> usize {
        let rows = [&mut self.stream, &mut self.delta, &mut self.logits];
        self.input.bytes() + rows.map(Rows::bytes).iter().sum::<usize>()
    }
}

/// A pass of one head.
pub struct MedusaPass<'a> {
    /// All heads' weights.
    pub weights: &'a MedusaWeights,
    /// Which head.
    pub head: usize,
    /// Buffers, with room for its rows.
    pub buffers: &'a MedusaBuffers,
    /// A decoder's outputs.
    pub outputs: &'a Rows,
    /// Of each row, which of these it reads.
    pub rows: &'a [usize],
    /// The first of its rows of logits.
    pub first_logits: usize,
    /// Threads that compute.
    pub num_threads: usize,
    /// The instruction set.
    pub isa: Isa,
}

impl MedusaPass<'_> {
    /// How many pieces each stage has: of each layer, and of the matrix that gives logits, one that writes its input, and one of
    /// the product.
    pub fn num_pieces(&self) -> Vec<usize> {
        let products = 0..=self.weights.layers[self.head].len();
        let pieces = products.flat_map(|product| [self.rows.len(), self.tiling(product).num_pieces()]);
        pieces.collect()
    }

    /// How a product is cut: that of a layer, or the one behind all layers.
    fn tiling(&self, product: usize) -> Tiling {
        let groups = match self.weights.layers[self.head].get(product) {
            Some(layer) => layer.weight.num_groups(),
            None => self.weights.output(self.head).num_groups(),
        };
        Tiling::new(self.rows.len(), groups, MOST_GROUPS, self.num_threads)
    }

    /// Computes a piece of a stage.
    ///
    /// # Safety
    /// The outputs that rows read are complete, buffers have room for the rows, and stages are run in their order.
    pub unsafe fn compute(&self, piece: Piece) {
        let product = piece.stage / 2;
        // SAFETY: by contract; a piece of the first kind of stage has a row to itself, one of the second columns of rows.
        unsafe {
            match piece.stage % 2 {
                0 => self.enter(product, piece.index),
                _ => self.multiply(product, piece.index),
            }
        }
    }

    /// A row of the stream before a product, which is written as its input.
    unsafe fn enter(&self, product: usize, row: usize) {
        let (buffers, isa) = (self.buffers, self.isa);
        // SAFETY: products before are complete, and the row is this piece's.
        unsafe {
            let stream = buffers.stream.row(row);
            match product.checked_sub(1) {
                None => stream.copy_from_slice(self.outputs.shared_row(self.rows[row])),
                Some(before) => {
                    let delta = buffers.delta.row(row);
                    if let Some(bias) = &self.weights.layers[self.head][before].bias {
                        elementwise::add(isa, delta, bias);
                    }
                    elementwise::silu(isa, delta);
                    elementwise::add(isa, stream, delta);
                }
            }
            buffers.input.write_row(isa, row, stream);
        }
    }

    unsafe fn multiply(&self, product: usize, piece: usize) {
        let (buffers, (rows, groups)) = (self.buffers, self.tiling(product).ranges(piece));
        let (matrix, out, first) = match self.weights.layers[self.head].get(product) {
            Some(layer) => (&layer.weight, &buffers.delta, 0),
            None => (self.weights.output(self.head), &buffers.logits, self.first_logits),
        };
        debug_assert!(groups.start * ROWS_PER_GROUP <= out.width());
        // SAFETY: inputs are written, and these columns of these rows are this piece's.
        unsafe {
            let out_base = out.base().wrapping_add(first * out.width());
            matmul::matmul(self.isa, matrix, groups, &buffers.input, rows, out_base, out.width());
        }
    }
}
