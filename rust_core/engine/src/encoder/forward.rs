//! An encoder's forward pass over a run of tokens, on a thread pool.
//!
//! What concerns a token alone is one stage, from one attention to the next: a tile of tokens passes through it in one
//! core's caches. Attention is a stage between them, a piece for each text and head. Every row of every product is one
//! chain of operations (see `pyagent_kernels::matmul`), so neither tiles nor threads show in a result.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use pyagent_kernels::attention::{WholeArgs, WholeScratch, attend_whole, whole_scratch_len};
use pyagent_kernels::elementwise;
use pyagent_kernels::isa::Isa;
use pyagent_kernels::matmul::{Activations, matmul};
use pyagent_kernels::thread_pool::{Piece, ThreadPool};

use super::EncoderError;
use super::bert::{self, Bert};
use super::bert_config::{BertConfig, Positions};
use super::config::{EncoderConfig, Layers};
use super::decoder::Decoder;
use super::distances::Distances;
use super::head::{InnerActivation, activate};
use super::pooling::{normalise, pool, pool_each};
use super::steps::Pooling;
use super::weights::{AttentionWeights, EncoderWeights, LayerWeights, input_forms};
use crate::model::Linear;

/// Tokens that pass through a stage together: what a core's caches hold, and enough to be worth a pass over the weights.
pub(super) const TILE_TOKENS: usize = 64;
/// A tile with fewer is not worth a thread.
const LEAST_TILE_TOKENS: usize = 8;

/// What is set in a token of a pair's second text.
pub const SECOND_TEXT: u32 = 1 << 31;

/// What is set in tokens at the end of a text that see it and that no token sees: those that expand a query.
pub const UNSEEN: u32 = 1 << 30;

/// From which bit on the first token of a text has the number of its task, in models that have tasks.
pub const TASK_SHIFT: u32 = 26;

const MARKS: u32 = SECOND_TEXT | UNSEEN;

/// A token, its position, and its type: 1 in the second text of a pair.
pub(super) struct Place {
    pub(super) token: usize,
    pub(super) position: usize,
    pub(super) kind: usize,
    /// The task of its text, from 1 on; 0 for none.
    pub(super) task: usize,
}

/// Texts in a row: their tokens, each with its place, and where each text is.
pub(super) struct Batch {
    pub(super) tokens: Vec<Place>,
    pub(super) texts: Vec<Range<usize>>,
    /// How many tokens of each text are seen.
    pub(super) seen: Vec<usize>,
    /// How many at the start of each text its vector is not made of: those of an instruction.
    pub(super) skipped: Vec<usize>,
}

impl Batch {
    /// Checks texts.
    pub(super) fn of(texts: &[Vec<u32>], config: &EncoderConfig) -> Result<Self, EncoderError> {
        let mut batch = Self {
            tokens: Vec::new(),
            texts: Vec::with_capacity(texts.len()),
            seen: Vec::with_capacity(texts.len()),
            skipped: Vec::with_capacity(texts.len()),
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
            let is_seen = |token: &u32| token & UNSEEN == 0;
            let num_seen = tokens.iter().take_while(|token| is_seen(token)).count();
            if num_seen == 0 || tokens[num_seen..].iter().any(is_seen) {
                return Err(refused(
                    "tokens that are not seen stand before ones that are".to_owned(),
                ));
            }
            let (task, tokens) = split_task(tokens, config).map_err(refused)?;
            let mut ids = tokens.iter().map(|token| token & !MARKS);
            if let Some(token) = ids.find(|token| *token as usize >= config.vocab_size) {
                return Err(refused(format!(
                    "token {token} is not in the vocabulary of {}",
                    config.vocab_size
                )));
            }
            let start = batch.tokens.len();
            match &config.layers {
                Layers::Bert(bert) => batch.tokens.extend(bert_places(&tokens, bert, task)),
                Layers::Decoder(_) => batch
                    .tokens
                    .extend(tokens.iter().enumerate().map(|(position, token)| Place {
                        token: (token & !MARKS) as usize,
                        position,
                        kind: 0,
                        task,
                    })),
            }
            batch.texts.push(start..batch.tokens.len());
            batch.seen.push(num_seen);
            let of_second = tokens.iter().position(|token| token & SECOND_TEXT != 0);
            batch
                .skipped
                .push(of_second.filter(|_| config.latents().is_some()).unwrap_or(0));
        }
        Ok(batch)
    }

    pub(super) fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The text that a token is of.
    pub(super) fn text_of(&self, token: usize) -> usize {
        self.texts.partition_point(|text| text.end <= token)
    }

    /// Tokens of the longest text.
    pub(super) fn longest(&self) -> usize {
        self.texts.iter().map(ExactSizeIterator::len).max().unwrap_or(0)
    }
}

/// The number of a text's task, and its tokens without it.
fn split_task<'a>(tokens: &'a [u32], config: &EncoderConfig) -> Result<(usize, Cow<'a, [u32]>), String> {
    let Some(tasks) = &config.tasks else {
        return Ok((0, tokens.into()));
    };
    let ids = (1 << TASK_SHIFT) - 1;
    let task = ((tokens[0] & !MARKS) >> TASK_SHIFT) as usize;
    if task > tasks.all.len() {
        return Err(format!("it is of task {task}; the model has {}", tasks.all.len()));
    }
    let mut tokens = tokens.to_vec();
    tokens[0] &= ids | MARKS;
    Ok((task, tokens.into()))
}

/// A text's tokens in BERT's families, where RoBERTa's positions stand still at padding.
fn bert_places<'a>(tokens: &'a [u32], bert: &'a BertConfig, task: usize) -> impl Iterator<Item = Place> + 'a {
    let mut next = match bert.positions {
        Positions::Table { first, .. } => first,
        Positions::Rotary { .. } | Positions::Alibi => 0,
    };
    tokens.iter().map(move |marked| {
        let token = (marked & !MARKS) as usize;
        let is_padding = bert.architecture.counts_from_padding() && token == bert.pad_id;
        let position = if is_padding { bert.pad_id } else { next };
        next += usize::from(!is_padding);
        Place {
            token,
            position,
            kind: bert.kind_of(marked & SECOND_TEXT != 0),
            task,
        }
    })
}

/// Numbers of a token in a pass's memory, and in a thread's.
#[derive(Clone, Copy)]
pub(super) struct Widths {
    /// Of the stream.
    pub(super) hidden: usize,
    /// Of queries, keys and values side by side.
    pub(super) projected: usize,
    /// Of what attention gives.
    pub(super) context: usize,
    /// Inside the feed-forward block.
    ffn: usize,
    /// Inside what follows the layers.
    last: usize,
}

impl Widths {
    pub(super) fn of(config: &EncoderConfig) -> Self {
        let hidden = config.hidden_size;
        let last = config.latents().map_or(0, |latents| latents.widest(hidden));
        match &config.layers {
            Layers::Bert(bert) => Self {
                hidden,
                projected: 3 * hidden,
                context: hidden,
                ffn: bert.ffn_size,
                last,
            },
            Layers::Decoder(decoder) => Self {
                hidden,
                projected: decoder.model.query_size() + 2 * decoder.model.kv_size(),
                context: decoder.model.query_size(),
                ffn: decoder.model.ffn_size,
                last,
            },
        }
    }
}

impl Widths {
    /// Bytes of a thread's memory for a tile, for inputs in both forms.
    pub(super) fn thread_bytes(self) -> usize {
        let inputs = (TILE_TOKENS + 16) * (self.hidden + self.context + self.ffn + self.last + 64) * 8;
        inputs + TILE_TOKENS * (self.hidden.max(self.ffn) * 8 + self.hidden * 4 + self.last * 4)
    }
}

/// Memory of a pass.
pub(super) struct Workspace {
    pub(super) hidden: Vec<f32>,
    /// Queries, keys and values of a token side by side.
    pub(super) projected: Vec<f32>,
    pub(super) context: Vec<f32>,
    pub(super) own: Vec<Mutex<Own>>,
    pub(super) forms: (bool, bool),
}

/// What a thread has for itself.
#[derive(Default)]
pub(super) struct Own {
    pub(super) input: Activations,
    pub(super) context_input: Activations,
    pub(super) ffn_input: Activations,
    pub(super) out: Vec<f32>,
    pub(super) gate: Vec<f32>,
    /// The numbers between the matrices of what a task adds.
    pub(super) low: Vec<f32>,
    pub(super) attention: WholeScratch,
}

impl Own {
    /// Makes room for a tile.
    pub(super) fn resize(&mut self, num_rows: usize, widths: Widths, (integers, numbers): (bool, bool)) {
        self.input.resize(num_rows, widths.hidden, integers, numbers);
        self.context_input.resize(num_rows, widths.context, integers, numbers);
        self.ffn_input.resize(num_rows, widths.ffn, integers, numbers);
        let most = num_rows * widths.hidden.max(widths.ffn);
        self.out.resize(self.out.len().max(most), 0.0);
        self.gate.resize(self.gate.len().max(most), 0.0);
    }
}

impl Workspace {
    /// Has room for the streams of so many tokens, of which `most_at_once` are computed together.
    pub(super) fn new(
        config: &EncoderConfig,
        weights: &EncoderWeights,
        threads: usize,
        most_tokens: usize,
        most_at_once: usize,
    ) -> Self {
        let widths = Widths::of(config);
        let last = input_forms(weights.last_matrices());
        let layers = match &weights.layers {
            LayerWeights::Bert(bert) => input_forms(bert.matrices()),
            LayerWeights::Decoder(decoder) => input_forms(decoder.model.matrices()),
        };
        Self {
            hidden: vec![0.0; most_tokens * widths.hidden],
            projected: vec![0.0; most_at_once * widths.projected],
            context: vec![0.0; most_at_once * widths.context],
            own: (0..threads).map(|_| Mutex::default()).collect(),
            forms: (last.0 || layers.0, last.1 || layers.1 || config.tasks.is_some()),
        }
    }

    /// Bytes, for inputs in both forms.
    pub(super) fn bytes_of(config: &EncoderConfig, threads: usize, most_tokens: usize) -> usize {
        let widths = Widths::of(config);
        let attention = whole_scratch_len(config.max_tokens.min(most_tokens), config.head_dim()) * 4;
        let shared = most_tokens * (widths.hidden + widths.projected + widths.context) * 4;
        let distances = match &config.layers {
            Layers::Bert(bert) if bert.distance_kind().is_some() => {
                Distances::bytes(bert.num_heads, config.max_tokens.min(most_tokens))
            }
            _ => 0,
        };
        shared + distances + threads * (widths.thread_bytes() + attention)
    }
}

/// Numbers that several threads write at different places.
#[derive(Clone, Copy)]
pub(super) struct Shared {
    base: *mut f32,
    pub(super) width: usize,
}

// SAFETY: whoever uses a row says, at the place, why it is theirs.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    pub(super) fn of(numbers: &mut [f32], width: usize) -> Self {
        let base = numbers.as_mut_ptr();
        Self { base, width }
    }

    pub(super) fn at(self, row: usize) -> *mut f32 {
        self.base.wrapping_add(row * self.width)
    }

    /// # Safety
    /// The rows are the caller's in this stage.
    #[expect(clippy::mut_from_ref, reason = "a view of memory that stages share")]
    pub(super) unsafe fn rows(&self, rows: Range<usize>) -> &mut [f32] {
        // SAFETY: by contract; the workspace has the rows.
        unsafe { std::slice::from_raw_parts_mut(self.at(rows.start), rows.len() * self.width) }
    }
}

/// What the stages of a pass share.
pub(super) struct Memory {
    pub(super) hidden: Shared,
    pub(super) projected: Shared,
    pub(super) context: Shared,
    pub(super) numbers: Shared,
}

/// A head of attention: where its keys and values begin in a token's row, its factor, and which tokens are seen.
pub(super) struct AttentionHead {
    pub(super) key: usize,
    pub(super) value: usize,
    pub(super) scale: f32,
    pub(super) before: usize,
    pub(super) behind: usize,
    /// What is added to scores by distance, from that of distance 0; null for nothing.
    pub(super) bias: *const f32,
}

/// The layers of an encoder, a stage at a time.
pub(super) trait Stages: Sync {
    /// Heads of attention.
    fn num_heads(&self) -> usize;

    /// A head of a layer.
    fn head(&self, layer: usize, head: usize) -> AttentionHead;

    /// Brings a tile of tokens from what attention `layer - 1` gave to queries, keys and values of attention `layer`, and
    /// after the last layer to the tokens' vectors. The thread's memory has room for the tile.
    ///
    /// # Safety
    /// The tile's rows are the caller's in this stage.
    unsafe fn tile(&self, memory: &Memory, layer: usize, rows: Range<usize>, own: &mut Own);
}

/// Of what a pass gives numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Gives {
    /// Of each text: its vector, or a number for each label.
    Texts,
    /// Of each token: its vector.
    Tokens,
    /// Of nothing: what the layers give stays where it is.
    Stream,
}

/// One forward pass.
pub(super) struct Pass<'a> {
    pub(super) config: &'a EncoderConfig,
    pub(super) weights: &'a EncoderWeights,
    pub(super) isa: Isa,
    pub(super) batch: &'a Batch,
    pub(super) gives: Gives,
}

impl Pass<'_> {
    /// Computes the batch and writes what the texts or their tokens give.
    pub(super) fn run(
        &self,
        pool: &ThreadPool,
        space: &mut Workspace,
        numbers: &mut [f32],
    ) -> Result<(), EncoderError> {
        match (&self.config.layers, &self.weights.layers) {
            (Layers::Bert(bert), LayerWeights::Bert(weights)) => {
                let (isa, batch, num_layers) = (self.isa, self.batch, self.config.num_layers);
                let layers = Bert {
                    config: bert,
                    num_layers,
                    weights,
                    isa,
                    batch,
                };
                self.run_stages(&layers, pool, space, numbers)
            }
            (Layers::Decoder(decoder), LayerWeights::Decoder(weights)) => {
                let (isa, batch) = (self.isa, self.batch);
                let layers = Decoder {
                    config: decoder,
                    weights,
                    isa,
                    batch,
                    rope: &weights.rope,
                };
                self.run_stages(&layers, pool, space, numbers)
            }
            _ => unreachable!("weights are loaded by their configuration"),
        }
    }

    fn run_stages(
        &self,
        layers: &impl Stages,
        pool: &ThreadPool,
        space: &mut Workspace,
        numbers: &mut [f32],
    ) -> Result<(), EncoderError> {
        let widths = Widths::of(self.config);
        let memory = Memory {
            hidden: Shared::of(&mut space.hidden, widths.hidden),
            projected: Shared::of(&mut space.projected, widths.projected),
            context: Shared::of(&mut space.context, widths.context),
            numbers: Shared::of(numbers, self.config.num_outputs()),
        };
        let (own, forms) = (&space.own, space.forms);
        let (num_tokens, num_texts) = (self.batch.num_tokens(), self.batch.texts.len());
        let num_tiles = num_tiles(num_tokens, pool.num_threads());
        let num_heads = layers.num_heads();
        let num_given = self.num_given();
        let mut stages = [num_tiles, num_texts * num_heads].repeat(self.config.num_layers);
        stages.extend([num_tiles, num_given]);
        let last = stages.len() - 1;
        pool.run(&stages, |Piece { stage, index, thread }| {
            // A thread that panicked leaves memory that the next pass writes anew.
            let mut own = own[thread].lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: a tile's rows, a head's columns of a text's rows and a text's numbers are this piece's alone in its
            // stage, and what else it reads is written in an earlier one.
            unsafe {
                if stage == last {
                    self.finish_text(&memory, index, forms, &mut own);
                } else if stage % 2 == 1 {
                    let head = layers.head(stage / 2, index % num_heads);
                    self.attend(&memory, index / num_heads, index % num_heads, &head, &mut own);
                } else {
                    let tile = index * num_tokens / num_tiles..(index + 1) * num_tokens / num_tiles;
                    own.resize(tile.len(), widths, forms);
                    layers.tile(&memory, stage / 2, tile.clone(), &mut own);
                    if stage + 1 == last
                        && let Some(latents) = self.weights.latents()
                    {
                        latents.pass(self.isa, memory.hidden.rows(tile), forms, &mut own);
                    }
                }
            }
        })?;
        Ok(())
    }

    /// How many texts or tokens it gives numbers of.
    pub(super) fn num_given(&self) -> usize {
        match self.gives {
            Gives::Texts => self.batch.texts.len(),
            Gives::Tokens => self.batch.num_tokens(),
            Gives::Stream => 0,
        }
    }

    /// # Safety
    /// The head's columns of the text's context are the caller's in this stage.
    unsafe fn attend(&self, memory: &Memory, text: usize, index: usize, head: &AttentionHead, own: &mut Own) {
        let Range { start, end } = self.batch.texts[text];
        let head_dim = self.config.head_dim();
        let first = memory.projected.at(start);
        let args = WholeArgs {
            num_tokens: end - start,
            num_keys: self.batch.seen[text],
            head_dim,
            before: head.before,
            behind: head.behind,
            scale: head.scale,
            bias: head.bias,
            query: first.wrapping_add(index * head_dim),
            key: first.wrapping_add(head.key),
            value: first.wrapping_add(head.value),
            stride: memory.projected.width,
            out: memory.context.at(start).wrapping_add(index * head_dim),
            out_stride: memory.context.width,
        };
        // SAFETY: by contract; queries, keys and values are written.
        unsafe { attend_whole(self.isa, &args, &mut own.attention) };
    }

    /// Writes what a text or a token gives: its vector, or the numbers of its labels. A token is a text of one row.
    ///
    /// # Safety
    /// The text's numbers are the caller's in this stage.
    pub(super) unsafe fn finish_text(&self, memory: &Memory, text: usize, forms: (bool, bool), own: &mut Own) {
        let rows = match self.gives {
            Gives::Texts => self.batch.texts[text].start + self.batch.skipped[text]..self.batch.texts[text].end,
            Gives::Tokens | Gives::Stream => text..text + 1,
        };
        // SAFETY: by contract; the rows are only read.
        let (rows, numbers) = unsafe { (memory.hidden.rows(rows), memory.numbers.rows(text..text + 1)) };
        let (Some(head), Some(weights)) = (&self.config.head, &self.weights.head) else {
            return self.pool_text(rows, numbers, forms, own);
        };
        let (isa, hidden) = (self.isa, self.config.hidden_size);
        let mut mean = Vec::new();
        let vector = match self.config.layers {
            Layers::Bert(_) if head.is_of_mean => {
                mean.resize(hidden, 0.0);
                pool(Pooling::Mean, rows, &mut mean);
                &mean
            }
            Layers::Bert(_) => &rows[..hidden],
            Layers::Decoder(_) => &rows[rows.len() - hidden..],
        };
        own.input.resize(1, hidden, forms.0, forms.1);
        fill(isa, &own.input, vector);
        if let Some(dense) = &weights.dense {
            own.out.resize(own.out.len().max(hidden), 0.0);
            let inner = &mut own.out[..hidden];
            // SAFETY: the thread's own memory.
            unsafe { multiply(isa, dense, &own.input, inner.as_mut_ptr(), hidden) };
            add_bias(isa, dense, inner);
            match head.inner {
                InnerActivation::Relu => inner.iter_mut().filter(|x| **x < 0.0).for_each(|x| *x = 0.0),
                InnerActivation::Tanh => inner.iter_mut().for_each(|x| *x = f64::from(*x).tanh() as f32),
                InnerActivation::Of(activation) => bert::activate(isa, activation, inner),
            }
            if let (Some(norm), Layers::Bert(bert)) = (&weights.norm, &self.config.layers) {
                elementwise::layer_norm(isa, inner, &norm.weight, &norm.bias, bert.norm_epsilon);
            }
            fill(isa, &own.input, inner);
        }
        // SAFETY: the text's own numbers, one for each label.
        unsafe { multiply(isa, &weights.labels, &own.input, numbers.as_mut_ptr(), numbers.len()) };
        add_bias(isa, &weights.labels, numbers);
        activate(head.activation, numbers);
    }
}

impl Pass<'_> {
    /// Writes a text's vector, as pooling gives it.
    fn pool_rows(&self, rows: &[f32], out: &mut [f32]) {
        match &self.weights.attention {
            Some(AttentionWeights::Query(query)) => query.pool(rows, out),
            _ => pool_each(&self.config.pooling, rows, out),
        }
    }

    /// Writes a text's vector, of length 1.
    fn pool_text(&self, rows: &[f32], vector: &mut [f32], forms: (bool, bool), own: &mut Own) {
        let dense = &self.config.dense;
        if dense.is_empty() {
            self.pool_rows(rows, vector);
            return normalise(vector);
        }
        let num_pooled = self.config.num_pooled();
        let widest = dense.iter().map(|step| step.num_outputs).fold(num_pooled, usize::max);
        own.out.resize(own.out.len().max(widest), 0.0);
        self.pool_rows(rows, &mut own.out[..num_pooled]);
        for (step, linear) in dense.iter().zip(&self.weights.dense) {
            own.input.resize(1, step.num_inputs, forms.0, forms.1);
            fill(self.isa, &own.input, &own.out[..step.num_inputs]);
            // SAFETY: the thread's own memory, which has room; the input was copied.
            unsafe { multiply_into(self.isa, linear, &own.input, own.out.as_mut_ptr(), step.num_outputs) };
            if step.is_tanh {
                let inner = &mut own.out[..step.num_outputs];
                inner.iter_mut().for_each(|x| *x = f64::from(*x).tanh() as f32);
            }
        }
        vector.copy_from_slice(&own.out[..vector.len()]);
        normalise(vector);
    }
}

/// Adds a matrix's bias to a row of what it gave.
pub(super) fn add_bias(isa: Isa, linear: &Linear, row: &mut [f32]) {
    if let Some(bias) = &linear.bias {
        elementwise::add(isa, row, bias);
    }
}

/// Writes a product's input.
pub(super) fn fill(isa: Isa, input: &Activations, rows: &[f32]) {
    let (tokens, cols) = (input.tokens(), input.cols());
    assert_eq!(rows.len(), tokens * cols, "a row for each token");
    // SAFETY: the input is the thread's own; the rows are there.
    unsafe { input.write_tile(isa, 0..tokens, 0..cols, rows.as_ptr(), cols) };
}

/// # Safety
/// At `out` there is a row for each of the input's tokens, `stride` numbers apart, that nobody else uses.
pub(super) unsafe fn multiply(isa: Isa, linear: &Linear, input: &Activations, out: *mut f32, stride: usize) {
    let (weight, tokens) = (&linear.weight, 0..input.tokens());
    // SAFETY: by contract; the input is written, the weights are packed.
    unsafe { matmul(isa, weight, 0..weight.num_groups(), input, tokens, out, stride) };
}

/// Multiplies and adds the bias.
///
/// # Safety
/// As [`multiply`].
pub(super) unsafe fn multiply_into(isa: Isa, linear: &Linear, input: &Activations, out: *mut f32, stride: usize) {
    let width = linear.weight.rows();
    // SAFETY: by contract.
    unsafe { multiply(isa, linear, input, out, stride) };
    for row in 0..input.tokens() {
        // SAFETY: as above, and they are written.
        add_bias(isa, linear, unsafe {
            std::slice::from_raw_parts_mut(out.wrapping_add(row * stride), width)
        });
    }
}

/// How many tiles a batch is cut into: as many for each thread.
pub(super) fn num_tiles(num_tokens: usize, num_threads: usize) -> usize {
    let wanted = num_tokens.div_ceil(TILE_TOKENS).next_multiple_of(num_threads);
    wanted.min(num_tokens.div_ceil(LEAST_TILE_TOKENS))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each token is of the text that it lies in, the first and the last too.
    #[test]
    fn tokens_are_of_their_texts() {
        let batch = Batch {
            tokens: Vec::new(),
            texts: vec![0..2, 2..3, 3..7],
            seen: vec![2, 1, 4],
            skipped: vec![0; 3],
        };
        let texts: Vec<usize> = (0..7).map(|token| batch.text_of(token)).collect();
        assert_eq!(texts, [0, 0, 1, 2, 2, 2, 2]);
    }
}
