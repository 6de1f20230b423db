//! An encoder's forward pass over a run of tokens, on a thread pool.
//!
//! What concerns a token alone is one stage, from one attention to the next: a tile of tokens passes through it in one
//! core's caches. Attention is a stage between them, a piece for each text and head. Every row of every product is one
//! chain of operations (see `pyagent_kernels::matmul`), so neither tiles nor threads show in a result.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use pyagent_kernels::attention::{WholeArgs, WholeScratch, attend_whole, whole_scratch_len};
use pyagent_kernels::elementwise;
use pyagent_kernels::isa::Isa;
use pyagent_kernels::matmul::{Activations, matmul};
use pyagent_kernels::thread_pool::{Piece, ThreadPool};

use super::EncoderError;
use super::config::{EncoderActivation, EncoderArchitecture, EncoderConfig};
use super::head::activate;
use super::pooling::pool;
use super::weights::{EncoderLayer, EncoderWeights, Norm, input_forms};
use crate::model::Linear;

/// Tokens that pass through a stage together: what a core's caches hold, and enough to be worth a pass over the weights.
const TILE_TOKENS: usize = 64;
/// A tile with fewer is not worth a thread.
const LEAST_TILE_TOKENS: usize = 8;

/// What is set in a token of a pair's second text.
pub const SECOND_TEXT: u32 = 1 << 31;

/// A token, its position, and its type: 1 in the second text of a pair.
struct Place {
    token: usize,
    position: usize,
    kind: usize,
}

/// Texts in a row: their tokens, each with its place, and where each text is.
pub(super) struct Batch {
    tokens: Vec<Place>,
    texts: Vec<Range<usize>>,
}

impl Batch {
    /// Checks texts.
    pub(super) fn of(texts: &[Vec<u32>], config: &EncoderConfig) -> Result<Self, EncoderError> {
        let mut batch = Self {
            tokens: Vec::new(),
            texts: Vec::with_capacity(texts.len()),
        };
        for (text, tokens) in texts.iter().enumerate() {
            let refused = |reason: String| EncoderError::Text { text, reason };
            if tokens.is_empty() {
                return Err(refused("it has no tokens".to_owned()));
            }
            if tokens.len() > config.max_tokens {
                let (count, most) = (tokens.len(), config.max_tokens);
                return Err(refused(format!("it has {count} tokens; the model takes {most}")));
            }
            let mut ids = tokens.iter().map(|token| token & !SECOND_TEXT);
            if let Some(token) = ids.find(|token| *token as usize >= config.vocab_size) {
                return Err(refused(format!(
                    "token {token} is not in the vocabulary of {}",
                    config.vocab_size
                )));
            }
            let start = batch.tokens.len();
            let mut position = config.first_position;
            for marked in tokens {
                let token = (marked & !SECOND_TEXT) as usize;
                let is_padding = config.architecture == EncoderArchitecture::Roberta && token == config.pad_id;
                batch.tokens.push(Place {
                    token,
                    position: if is_padding { config.pad_id } else { position },
                    kind: config.kind_of(marked & SECOND_TEXT != 0),
                });
                position += usize::from(!is_padding);
            }
            batch.texts.push(start..batch.tokens.len());
        }
        Ok(batch)
    }

    pub(super) fn num_tokens(&self) -> usize {
        self.tokens.len()
    }
}

/// Memory of a pass.
pub(super) struct Workspace {
    hidden: Vec<f32>,
    /// Queries, keys and values of a token side by side.
    projected: Vec<f32>,
    context: Vec<f32>,
    own: Vec<Mutex<Own>>,
    hidden_forms: (bool, bool),
    ffn_forms: (bool, bool),
}

/// What a thread has for itself.
#[derive(Default)]
struct Own {
    input: Activations,
    ffn_input: Activations,
    out: Vec<f32>,
    attention: WholeScratch,
}

impl Workspace {
    pub(super) fn new(config: &EncoderConfig, weights: &EncoderWeights, threads: usize, most_tokens: usize) -> Self {
        let of_hidden = |layer: &EncoderLayer| {
            let EncoderLayer {
                query,
                key,
                value,
                attention_output,
                up,
                ..
            } = layer;
            input_forms(
                [query, key, value, attention_output, up]
                    .map(|linear| &linear.weight)
                    .into_iter(),
            )
        };
        let of_head = weights
            .head
            .iter()
            .flat_map(|head| [&head.dense.weight, &head.labels.weight]);
        let of_ffn = |layer: &EncoderLayer| input_forms(std::iter::once(&layer.down.weight));
        let either = |one: (bool, bool), other: (bool, bool)| (one.0 || other.0, one.1 || other.1);
        let all = |forms: &dyn Fn(&EncoderLayer) -> (bool, bool)| {
            weights.layers.iter().map(forms).fold((false, false), either)
        };
        Self {
            hidden: vec![0.0; most_tokens * config.hidden_size],
            projected: vec![0.0; most_tokens * config.hidden_size * 3],
            context: vec![0.0; most_tokens * config.hidden_size],
            own: (0..threads).map(|_| Mutex::default()).collect(),
            hidden_forms: either(all(&of_hidden), input_forms(of_head)),
            ffn_forms: all(&of_ffn),
        }
    }

    /// Bytes, for inputs in both forms.
    pub(super) fn bytes_of(config: &EncoderConfig, threads: usize, most_tokens: usize) -> usize {
        let (hidden, ffn) = (config.hidden_size, config.ffn_size);
        let inputs = (TILE_TOKENS + 16) * (hidden + ffn + 64) * 8;
        let out = TILE_TOKENS * hidden.max(ffn) * 4;
        let attention = whole_scratch_len(config.max_tokens.min(most_tokens), config.head_dim()) * 4;
        most_tokens * hidden * 5 * 4 + threads * (inputs + out + attention)
    }
}

/// Numbers that several threads write at different places.
#[derive(Clone, Copy)]
struct Shared {
    base: *mut f32,
    width: usize,
}

// SAFETY: whoever uses a row says, at the place, why it is theirs.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn of(numbers: &mut [f32], width: usize) -> Self {
        let base = numbers.as_mut_ptr();
        Self { base, width }
    }

    fn at(self, row: usize) -> *mut f32 {
        self.base.wrapping_add(row * self.width)
    }

    /// # Safety
    /// The rows are the caller's in this stage.
    #[expect(clippy::mut_from_ref, reason = "a view of memory that stages share")]
    unsafe fn rows(&self, rows: Range<usize>) -> &mut [f32] {
        // SAFETY: by contract; the workspace has the rows.
        unsafe { std::slice::from_raw_parts_mut(self.at(rows.start), rows.len() * self.width) }
    }
}

/// One forward pass.
pub(super) struct Pass<'a> {
    pub(super) config: &'a EncoderConfig,
    pub(super) weights: &'a EncoderWeights,
    pub(super) isa: Isa,
    pub(super) batch: &'a Batch,
}

/// What the stages of a pass share.
struct Memory {
    hidden: Shared,
    projected: Shared,
    context: Shared,
    vectors: Shared,
}

impl Pass<'_> {
    /// Computes the batch and writes the texts' vectors.
    pub(super) fn run(
        &self,
        pool: &ThreadPool,
        space: &mut Workspace,
        vectors: &mut [f32],
    ) -> Result<(), EncoderError> {
        let hidden = self.config.hidden_size;
        let memory = Memory {
            hidden: Shared::of(&mut space.hidden, hidden),
            projected: Shared::of(&mut space.projected, 3 * hidden),
            context: Shared::of(&mut space.context, hidden),
            vectors: Shared::of(vectors, self.config.num_outputs()),
        };
        let (own, forms) = (&space.own, (space.hidden_forms, space.ffn_forms));
        let (num_tokens, num_texts) = (self.batch.num_tokens(), self.batch.texts.len());
        let num_tiles = num_tiles(num_tokens, pool.num_threads());
        let num_heads = self.config.num_heads;
        let mut stages = [num_tiles, num_texts * num_heads].repeat(self.config.num_layers);
        stages.extend([num_tiles, num_texts]);
        let last = stages.len() - 1;
        pool.run(&stages, |Piece { stage, index, thread }| {
            // A thread that panicked leaves memory that the next pass writes anew.
            let mut own = own[thread].lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: a tile's rows, a head's columns of a text's rows and a text's vector are this piece's alone in its
            // stage, and what else it reads is written in an earlier one.
            unsafe {
                if stage == last {
                    self.finish_text(&memory, index, forms.0, &mut own);
                } else if stage % 2 == 1 {
                    self.attend(&memory, index / num_heads, index % num_heads, &mut own);
                } else {
                    let tile = index * num_tokens / num_tiles..(index + 1) * num_tokens / num_tiles;
                    self.tile(&memory, stage / 2, tile, forms, &mut own);
                }
            }
        })?;
        Ok(())
    }

    /// Brings a tile of tokens from what attention `layer - 1` gave to queries, keys and values of attention `layer`.
    ///
    /// # Safety
    /// The tile's rows are the caller's in this stage.
    unsafe fn tile(
        &self,
        memory: &Memory,
        layer: usize,
        rows: Range<usize>,
        (hidden_forms, ffn_forms): ((bool, bool), (bool, bool)),
        own: &mut Own,
    ) {
        let EncoderConfig {
            hidden_size,
            ffn_size,
            num_layers,
            ..
        } = *self.config;
        own.input
            .resize(rows.len(), hidden_size, hidden_forms.0, hidden_forms.1);
        own.ffn_input.resize(rows.len(), ffn_size, ffn_forms.0, ffn_forms.1);
        let most = rows.len() * hidden_size.max(ffn_size);
        own.out.resize(own.out.len().max(most), 0.0);
        // SAFETY: by contract.
        let hidden = unsafe { memory.hidden.rows(rows.clone()) };
        if layer == 0 {
            self.embed(rows.clone(), hidden);
        } else {
            // SAFETY: by contract; attention is over.
            let context = unsafe { memory.context.rows(rows.clone()) };
            self.finish_layer(&self.weights.layers[layer - 1], hidden, context, own);
        }
        if layer == num_layers {
            return;
        }
        let EncoderLayer { query, key, value, .. } = &self.weights.layers[layer];
        self.fill(&own.input, hidden);
        for (part, linear) in [query, key, value].into_iter().enumerate() {
            let out = memory.projected.at(rows.start).wrapping_add(part * hidden_size);
            let stride = memory.projected.width;
            // SAFETY: these columns of the tile's rows.
            unsafe { self.multiply(linear, &own.input, out, stride) };
            for row in 0..rows.len() {
                // SAFETY: as above, and they are written.
                let numbers = unsafe { std::slice::from_raw_parts_mut(out.wrapping_add(row * stride), hidden_size) };
                self.add_bias(linear, numbers);
            }
        }
    }

    fn embed(&self, rows: Range<usize>, hidden: &mut [f32]) {
        let EncoderWeights {
            words,
            positions,
            types,
            embedding_norm,
            ..
        } = self.weights;
        let mut row = vec![0.0; self.config.hidden_size];
        let tokens = &self.batch.tokens[rows];
        let width = row.len();
        for (place, out) in tokens.iter().zip(hidden.chunks_exact_mut(width)) {
            words.row(place.token, out);
            if let Some(types) = types {
                elementwise::add(self.isa, out, &types[place.kind * width..][..width]);
            }
            positions.row(place.position, &mut row);
            elementwise::add(self.isa, out, &row);
            self.normalise(out, embedding_norm);
        }
    }

    /// What follows attention: its output matrix, and the feed-forward block, each added and normalised.
    fn finish_layer(&self, layer: &EncoderLayer, hidden: &mut [f32], context: &[f32], own: &mut Own) {
        let (hidden_size, ffn_size) = (self.config.hidden_size, self.config.ffn_size);
        self.fill(&own.input, context);
        // SAFETY: the thread's own memory.
        unsafe { self.multiply(&layer.attention_output, &own.input, own.out.as_mut_ptr(), hidden_size) };
        self.add_block(&layer.attention_output, &layer.attention_norm, hidden, &own.out);
        self.fill(&own.input, hidden);
        // SAFETY: as above.
        unsafe { self.multiply(&layer.up, &own.input, own.out.as_mut_ptr(), ffn_size) };
        let num_rows = hidden.len() / hidden_size;
        for row in own.out[..num_rows * ffn_size].chunks_exact_mut(ffn_size) {
            self.add_bias(&layer.up, row);
            match self.config.activation {
                EncoderActivation::Gelu => elementwise::gelu(self.isa, row),
                EncoderActivation::GeluTanh => elementwise::gelu_tanh(self.isa, row),
            }
        }
        self.fill(&own.ffn_input, &own.out[..num_rows * ffn_size]);
        // SAFETY: as above; the input was copied.
        unsafe { self.multiply(&layer.down, &own.ffn_input, own.out.as_mut_ptr(), hidden_size) };
        self.add_block(&layer.down, &layer.ffn_norm, hidden, &own.out);
    }

    /// Adds a block's output and bias to the stream, and normalises it.
    fn add_block(&self, linear: &Linear, norm: &Norm, hidden: &mut [f32], out: &[f32]) {
        let width = self.config.hidden_size;
        for (hidden, out) in hidden.chunks_exact_mut(width).zip(out.chunks_exact(width)) {
            self.add_bias(linear, hidden);
            elementwise::add(self.isa, hidden, out);
            self.normalise(hidden, norm);
        }
    }

    fn add_bias(&self, linear: &Linear, row: &mut [f32]) {
        if let Some(bias) = &linear.bias {
            elementwise::add(self.isa, row, bias);
        }
    }

    fn normalise(&self, row: &mut [f32], norm: &Norm) {
        elementwise::layer_norm(self.isa, row, &norm.weight, &norm.bias, self.config.norm_epsilon);
    }

    /// Writes a product's input.
    fn fill(&self, input: &Activations, rows: &[f32]) {
        let (tokens, cols) = (input.tokens(), input.cols());
        assert_eq!(rows.len(), tokens * cols, "a row for each token");
        // SAFETY: the input is the thread's own; the rows are there.
        unsafe { input.write_tile(self.isa, 0..tokens, 0..cols, rows.as_ptr(), cols) };
    }

    /// # Safety
    /// At `out` there is a row for each of the input's tokens, `stride` numbers apart, that nobody else uses.
    unsafe fn multiply(&self, linear: &Linear, input: &Activations, out: *mut f32, stride: usize) {
        let (weight, tokens) = (&linear.weight, 0..input.tokens());
        // SAFETY: by contract; the input is written, the weights are packed.
        unsafe { matmul(self.isa, weight, 0..weight.num_groups(), input, tokens, out, stride) };
    }

    /// # Safety
    /// The head's columns of the text's context are the caller's in this stage.
    unsafe fn attend(&self, memory: &Memory, text: usize, head: usize, own: &mut Own) {
        let Range { start, end } = self.batch.texts[text];
        let (width, head_dim) = (self.config.hidden_size, self.config.head_dim());
        let first = memory.projected.at(start).wrapping_add(head * head_dim);
        let args = WholeArgs {
            num_tokens: end - start,
            head_dim,
            scale: (head_dim as f32).powf(-0.5),
            query: first,
            key: first.wrapping_add(width),
            value: first.wrapping_add(2 * width),
            stride: memory.projected.width,
            out: memory.context.at(start).wrapping_add(head * head_dim),
            out_stride: memory.context.width,
        };
        // SAFETY: by contract; queries, keys and values are written.
        unsafe { attend_whole(self.isa, &args, &mut own.attention) };
    }

    /// Writes what a text gives: its vector, or the numbers of its labels.
    ///
    /// # Safety
    /// The text's numbers are the caller's in this stage.
    unsafe fn finish_text(&self, memory: &Memory, text: usize, forms: (bool, bool), own: &mut Own) {
        let rows = self.batch.texts[text].clone();
        // SAFETY: by contract; the rows are only read.
        let (rows, numbers) = unsafe { (memory.hidden.rows(rows), memory.vectors.rows(text..text + 1)) };
        let (Some(head), Some(weights)) = (&self.config.head, &self.weights.head) else {
            return pool(self.config.pooling, rows, numbers);
        };
        let hidden = self.config.hidden_size;
        own.input.resize(1, hidden, forms.0, forms.1);
        self.fill(&own.input, &rows[..hidden]);
        own.out.resize(own.out.len().max(hidden), 0.0);
        let first = &mut own.out[..hidden];
        // SAFETY: the thread's own memory.
        unsafe { self.multiply(&weights.dense, &own.input, first.as_mut_ptr(), hidden) };
        self.add_bias(&weights.dense, first);
        first.iter_mut().for_each(|x| *x = f64::from(*x).tanh() as f32);
        self.fill(&own.input, first);
        // SAFETY: the text's own numbers, one for each label.
        unsafe { self.multiply(&weights.labels, &own.input, numbers.as_mut_ptr(), numbers.len()) };
        self.add_bias(&weights.labels, numbers);
        activate(head.activation, numbers);
    }
}

/// How many tiles a batch is cut into: as many for each thread.
fn num_tiles(num_tokens: usize, num_threads: usize) -> usize {
    let wanted = num_tokens.div_ceil(TILE_TOKENS).next_multiple_of(num_threads);
    wanted.min(num_tokens.div_ceil(LEAST_TILE_TOKENS))
}
