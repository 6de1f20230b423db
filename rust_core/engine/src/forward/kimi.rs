//! Kimi Delta Attention in a recurrent layer (Kimi Team 2025, arXiv 2510.26692): the delta rule with a decay for each number
//! of a key.
//!
//! Decays and gates are made of few numbers of a token, which one stage hands on. A piece of the scan has one head of one
//! sequence: it makes the head's decays and gates of them, and brings its state past the tokens.

use std::ops::Range;

use pyagent_kernels::elementwise;
use pyagent_kernels::matmul::Activations;
use pyagent_kernels::recurrent::{CELL_CHANNELS, Decays, DeltaRule, fade, scan};

use super::delta::sigmoid;
use super::sequence::Sequence;
use super::{PRODUCT_TILE, Part, Pass};
use crate::config::{KimiDelta, ModelConfig, Recurrent};
use crate::kv::StateRun;
use crate::model::{KimiWeights, Mixer, ScanWeights, Weights};
use crate::workspace::{Forms, Own, Patch};

/// Parts of a token's key that a piece prepares: keys, queries and decays.
const PREPARED: usize = 3;

/// Columns of what a piece prepares.
pub(super) fn columns_per_key(shape: &KimiDelta) -> usize {
    PREPARED * shape.head_size
}

/// What a layer's stages hand to each other.
pub struct KimiBuffers {
    /// What decays are made of, and what gates are made of.
    inputs: [Activations; 2],
    forms: [Forms; 2],
}

impl KimiBuffers {
    /// Empty buffers.
    pub fn new(weights: &Weights) -> Self {
        let layers = weights.layers.iter();
        let layers = || layers.clone().filter_map(|layer| layer.mixer.kimi());
        Self {
            inputs: [Activations::new(), Activations::new()],
            forms: [
                Forms::of(layers().map(|kimi| &kimi.decays.weight)),
                Forms::of(layers().map(|kimi| &kimi.gates.weight)),
            ],
        }
    }

    /// Makes room for so many tokens.
    pub fn reserve(&mut self, config: &ModelConfig, tokens: usize) {
        for ((input, forms), cols) in self.inputs.iter_mut().zip(self.forms).zip(kimi_sizes(config)) {
            input.resize(tokens, cols, forms.is_quantised, forms.is_dense);
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.inputs.iter().map(Activations::bytes).sum()
    }
}

/// Columns of both inputs, if the model has such layers.
pub(crate) fn kimi_sizes(config: &ModelConfig) -> impl Iterator<Item = usize> + use<> {
    let sizes = match &config.recurrent {
        Some(Recurrent::KimiDelta(shape)) => Some([shape.head_size; 2]),
        _ => None,
    };
    sizes.into_iter().flatten()
}

/// A head of a layer.
struct Head<'a> {
    shape: &'a KimiDelta,
    scan: &'a ScanWeights,
    kimi: &'a KimiWeights,
    layer: usize,
    head: usize,
}

impl Part<'_> {
    /// Hands on what a row's decays and gates are made of.
    ///
    /// # Safety
    /// The layer's projections are over; the row is this thread's in this stage.
    pub(super) unsafe fn hand_on_gates(&self, row: usize) {
        let Pass { config, space, isa, .. } = *self.pass;
        let Some(Recurrent::KimiDelta(shape)) = &config.recurrent else {
            return;
        };
        // SAFETY: by contract.
        unsafe {
            let mixed = space.mixed.shared_row(row);
            let parts = mixed[3 * shape.inner_size()..].chunks_exact(shape.head_size);
            for (input, part) in space.kimi.inputs.iter().zip(parts) {
                input.write_row(isa, row, part);
            }
        }
    }

    /// A head of a sequence, normalised and gated.
    ///
    /// # Safety
    /// The layer's convolution is over, and decays and gates are handed on; the piece's head and its state are this
    /// thread's in this stage.
    pub(super) unsafe fn scan_kimi(&self, layer: usize, shape: &KimiDelta, piece: usize, own: &mut Own) {
        let (segment, head) = (piece / shape.num_heads, piece % shape.num_heads);
        let heads = (std::iter::once(head), shape.head_size);
        // SAFETY: by contract.
        unsafe {
            self.advance_heads((layer, segment), heads, own, |sequence, scan, run, rows, own| {
                let Some(kimi) = &sequence.weights.kimi else { return };
                let head = Head {
                    shape,
                    scan,
                    kimi,
                    layer,
                    head,
                };
                self.scan_tile_of_kimi(sequence, run, &head, rows, own);
            });
        }
    }

    unsafe fn scan_tile_of_kimi(
        &self,
        sequence: &Sequence<'_>,
        run: &StateRun,
        head: &Head<'_>,
        rows: Range<usize>,
        own: &mut Own,
    ) {
        let Pass {
            config, space, isa, kv, ..
        } = *self.pass;
        let (size, inner) = (head.shape.head_size, head.shape.inner_size());
        let columns = head.head * size..(head.head + 1) * size;
        let [for_decays, for_gates] = &space.kimi.inputs;
        let mut prepared = Patch::own(&mut own.second, rows.clone(), 0..PREPARED * size);
        let mut out = Patch::own(&mut own.first, rows.clone(), columns.clone());
        // SAFETY: by contract; what is written is this piece's.
        unsafe {
            self.prepare_keys((size, inner), head.head, &mut prepared);
            self.multiply_columns(&head.kimi.decays, for_decays, None, &mut out);
        }
        let mut rates = [0.0; PRODUCT_TILE];
        for (rate, row) in rates.iter_mut().zip(rows.clone()) {
            let decays = &mut prepared.row(row)[2 * size..];
            decays.copy_from_slice(out.row(row));
            fade(
                isa,
                decays,
                &head.scan.step_biases[columns.clone()],
                head.scan.log_decays[head.head],
            );
            // SAFETY: the projections are over, and nobody writes these in this stage.
            let mixed = unsafe { space.mixed.shared_row(row) };
            *rate = sigmoid(f64::from(mixed[sequence.columns[5] + head.head]));
        }
        let width = space.mixed.width();
        let first_key = prepared.origin().wrapping_add(rows.start * prepared.stride());
        let values = space.mixed.base().wrapping_add(rows.start * width + 2 * inner);
        for column in columns.clone().step_by(CELL_CHANNELS) {
            let matrix = sequence.states.layer(head.layer).matrices[column / CELL_CHANNELS];
            let work = DeltaRule {
                keys: first_key,
                queries: first_key.wrapping_add(size),
                key_stride: prepared.stride(),
                key_size: size,
                values: values.wrapping_add(column),
                value_stride: width,
                decays: Decays::OfKeys(first_key.wrapping_add(2 * size)),
                rates: &rates[..rows.len()],
                out: out.origin().wrapping_add(rows.start * out.stride() + column),
                out_stride: out.stride(),
                state: kv.cell(sequence.states, sequence.table, run.to, matrix),
            };
            // SAFETY: by contract; keys, queries and decays were prepared for these rows.
            unsafe { scan(isa, &work) };
        }
        // Keys are used up: gates take their place.
        let mut gates = Patch::own(&mut own.second, rows.clone(), columns.clone());
        // SAFETY: by contract; what is written is this piece's.
        unsafe {
            self.multiply_columns(&head.kimi.gates, for_gates, None, &mut gates);
            for row in rows.clone() {
                elementwise::rms_norm_in_place(isa, out.row(row), &head.scan.norm, config.norm_epsilon);
                elementwise::sigmoid_mul(isa, out.row(row), gates.row(row));
            }
            space
                .mixer_input
                .write_tile(isa, rows, columns, out.origin(), out.stride());
        }
    }
}

impl Mixer {
    /// What a layer of Kimi Delta Attention has besides.
    fn kimi(&self) -> Option<&KimiWeights> {
        match self {
            Self::Recurrent(recurrent) => recurrent.kimi.as_ref(),
            _ => None,
        }
    }
}
