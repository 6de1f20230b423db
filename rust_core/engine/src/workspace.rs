//! Buffers of one forward pass, shared by the pool's threads.

use std::cell::UnsafeCell;

use pyagent_kernels::matmul::Activations;

use crate::config::ModelConfig;
use crate::model::Weights;

/// A matrix of f32 whose rows different threads write between two barriers.
pub struct Rows {
    values: UnsafeCell<Vec<f32>>,
    width: usize,
}

// SAFETY: threads touch disjoint rows between two barriers; `row` documents it.
unsafe impl Sync for Rows {}

impl Rows {
    fn new(width: usize) -> Self {
        Self {
            values: UnsafeCell::new(Vec::new()),
            width,
        }
    }

    fn reserve(&mut self, rows: usize) {
        let values = self.values.get_mut();
        if values.len() < rows * self.width {
            values.resize(rows * self.width, 0.0);
        }
    }

    /// Values in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Where the first row starts.
    pub fn base(&self) -> *mut f32 {
        // SAFETY: only the pointer is read; the vector is resized only through `&mut self`.
        unsafe { (*self.values.get()).as_mut_ptr() }
    }

    /// One row.
    ///
    /// # Safety
    /// `row` is below the rows reserved, and no other thread uses this row until the next barrier.
    #[expect(clippy::mut_from_ref, reason = "rows are shared out between threads")]
    pub unsafe fn row(&self, row: usize) -> &mut [f32] {
        // SAFETY: the caller keeps rows apart; the range lies inside the vector.
        unsafe { std::slice::from_raw_parts_mut(self.base().add(row * self.width), self.width) }
    }

    /// The first `rows` rows.
    pub fn first(&mut self, rows: usize) -> &mut [f32] {
        let width = self.width;
        &mut self.values.get_mut()[..rows * width]
    }
}

/// Every buffer of a forward pass. Grows to the largest batch seen.
#[expect(missing_docs, reason = "the fields are the stages of a decoder layer")]
pub struct Workspace {
    pub residual: Rows,
    pub query: Rows,
    pub key: Rows,
    pub value: Rows,
    pub heads: Rows,
    pub gate: Rows,
    pub up: Rows,
    pub inner: Rows,
    pub delta: Rows,
    pub logits: Rows,
    pub hidden_input: Activations,
    pub heads_input: Activations,
    pub ffn_input: Activations,
    pub output_input: Activations,
    hidden_forms: Forms,
    heads_forms: Forms,
    ffn_forms: Forms,
    output_forms: Forms,
    sizes: (usize, usize, usize),
}

/// In which forms matrices want their input.
#[derive(Clone, Copy, Default)]
struct Forms {
    is_quantised: bool,
    is_dense: bool,
}

impl Forms {
    fn of<'a>(matrices: impl IntoIterator<Item = &'a pyagent_kernels::pack::PackedMatrix>) -> Self {
        matrices.into_iter().fold(Self::default(), |forms, matrix| Self {
            is_quantised: forms.is_quantised || matrix.is_quantised(),
            is_dense: forms.is_dense || !matrix.is_quantised(),
        })
    }
}

impl Workspace {
    /// Empty buffers for a model.
    pub fn new(config: &ModelConfig, weights: &Weights) -> Self {
        let layers = || weights.layers.iter();
        Self {
            residual: Rows::new(config.hidden_size),
            query: Rows::new(config.query_size()),
            key: Rows::new(config.kv_size()),
            value: Rows::new(config.kv_size()),
            heads: Rows::new(config.query_size()),
            gate: Rows::new(config.ffn_size),
            up: Rows::new(config.ffn_size),
            inner: Rows::new(config.ffn_size),
            delta: Rows::new(config.hidden_size),
            logits: Rows::new(config.vocab_size),
            hidden_input: Activations::new(),
            heads_input: Activations::new(),
            ffn_input: Activations::new(),
            output_input: Activations::new(),
            hidden_forms: Forms::of(layers().flat_map(|layer| {
                [
                    &layer.query.weight,
                    &layer.key.weight,
                    &layer.value.weight,
                    &layer.gate.weight,
                    &layer.up.weight,
                ]
            })),
            heads_forms: Forms::of(layers().map(|layer| &layer.attention_output.weight)),
            ffn_forms: Forms::of(layers().map(|layer| &layer.down.weight)),
            output_forms: Forms::of([weights.output_matrix()]),
            sizes: (config.hidden_size, config.query_size(), config.ffn_size),
        }
    }

    /// Makes room for a batch of `tokens` tokens of which `outputs` give logits.
    pub fn prepare(&mut self, tokens: usize, outputs: usize) {
        for rows in [
            &mut self.residual,
            &mut self.query,
            &mut self.key,
            &mut self.value,
            &mut self.heads,
            &mut self.gate,
            &mut self.up,
            &mut self.inner,
            &mut self.delta,
        ] {
            rows.reserve(tokens);
        }
        self.logits.reserve(outputs);
        let (hidden, heads, ffn) = self.sizes;
        let resize = |input: &mut Activations, rows: usize, cols: usize, forms: Forms| {
            input.resize(rows, cols, forms.is_quantised, forms.is_dense);
        };
        resize(&mut self.hidden_input, tokens, hidden, self.hidden_forms);
        resize(&mut self.heads_input, tokens, heads, self.heads_forms);
        resize(&mut self.ffn_input, tokens, ffn, self.ffn_forms);
        resize(&mut self.output_input, outputs, hidden, self.output_forms);
    }
}
