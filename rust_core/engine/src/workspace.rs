//! Buffers of one forward pass: those that stages hand to each other, and those that a thread uses up by itself.
//!
//! Only what must outlive a stage has a row for each token of a step. What a thread computes and consumes within one
//! piece of a stage lies in its [`Own`] memory, as large as a piece.

mod largest_step;

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyagent_kernels::attention::{AttentionScratch, chunk_len};
use pyagent_kernels::matmul::Activations;

pub use self::largest_step::LargestStep;
use crate::config::{Experts, ModelConfig};
use crate::forward::{
    ChannelBuffers, IndexerBuffers, KimiBuffers, LatentBuffers, MtpBuffers, PerLayerBuffers, Routing, mixed_size,
    most_piece_columns, most_piece_rows, most_piece_state, most_slots, mtp_sizes, num_delta_rows, num_kept_rows,
    num_streams, output_size,
};
use crate::model::{Gated, Layer, Mixer, Weights};

/// Tokens of a prompt that are scored at a time: enough to read the output matrix seldom, few enough for their logits to
/// take little memory.
pub(crate) const SCORED_ROWS: usize = 16;

/// A matrix of f32 whose rows different threads write in one stage.
pub struct Rows {
    values: UnsafeCell<Vec<f32>>,
    width: usize,
}

// SAFETY: threads touch disjoint rows in a stage; `row` documents it.
unsafe impl Sync for Rows {}

impl Rows {
    pub(crate) fn new(width: usize) -> Self {
        Self {
            values: UnsafeCell::new(Vec::new()),
            width,
        }
    }

    /// Makes room for so many rows, no more; what was in them is lost.
    pub(crate) fn reserve(&mut self, rows: usize) {
        reserve(self.values.get_mut(), rows * self.width);
    }

    /// Bytes held.
    pub(crate) fn bytes(&mut self) -> usize {
        self.values.get_mut().capacity() * size_of::<f32>()
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
    /// `row` is below the rows reserved, and no other thread uses this row in this stage.
    #[expect(clippy::mut_from_ref, reason = "rows are shared out between threads")]
    pub unsafe fn row(&self, row: usize) -> &mut [f32] {
        // SAFETY: the caller keeps rows apart; the range lies inside the vector.
        unsafe { std::slice::from_raw_parts_mut(self.base().add(row * self.width), self.width) }
    }

    /// One row, to read.
    ///
    /// # Safety
    /// `row` is below the rows reserved, and nobody writes it in this stage.
    pub unsafe fn shared_row(&self, row: usize) -> &[f32] {
        // SAFETY: the caller keeps writers away; the range lies inside the vector.
        unsafe { std::slice::from_raw_parts(self.base().add(row * self.width), self.width) }
    }

    /// Some columns of some rows.
    ///
    /// # Safety
    /// As [`Self::row`], for these columns of these rows; they exist.
    pub unsafe fn patch(&self, rows: Range<usize>, columns: Range<usize>) -> Patch<'_> {
        debug_assert!(columns.end <= self.width);
        Patch {
            origin: self.base(),
            stride: self.width,
            rows,
            columns,
            _memory: PhantomData,
        }
    }

    /// The first `rows` rows.
    pub fn first(&mut self, rows: usize) -> &mut [f32] {
        let width = self.width;
        &mut self.values.get_mut()[..rows * width]
    }
}

/// Makes room for so many values, no more; what was there is lost.
fn reserve(values: &mut Vec<f32>, len: usize) {
    if values.len() < len {
        *values = Vec::new(); // freed first, so that old and new are never held together
        *values = vec![0.0; len];
    }
}

/// Some columns of some rows, that one thread has to itself: a part of [`Rows`], or its own memory.
///
/// Rows and columns are counted as in the whole matrix.
pub struct Patch<'a> {
    /// Where row 0, column 0 would be.
    origin: *mut f32,
    stride: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    _memory: PhantomData<&'a mut [f32]>,
}

impl<'a> Patch<'a> {
    /// A patch in memory that is the thread's own.
    ///
    /// # Panics
    /// When the tile does not fit.
    pub fn own(memory: &'a mut [f32], rows: Range<usize>, columns: Range<usize>) -> Self {
        let stride = stride_of(columns.len());
        assert!(rows.len() * stride <= memory.len(), "a tile larger than its memory");
        Self {
            origin: memory.as_mut_ptr().wrapping_sub(rows.start * stride + columns.start),
            stride,
            rows,
            columns,
            _memory: PhantomData,
        }
    }

    /// The rows.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// The columns.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// Where row 0, column 0 would be; only the tile's rows and columns are there.
    pub fn origin(&self) -> *mut f32 {
        self.origin
    }

    /// Values from a row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// A row of the tile.
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        self.part(row, self.columns())
    }

    /// Some columns of a row.
    ///
    /// # Panics
    /// When they are not the tile's.
    pub fn part(&mut self, row: usize, columns: Range<usize>) -> &mut [f32] {
        assert!(self.rows.contains(&row), "a row of the tile");
        let is_inside = columns.start <= columns.end && self.columns.start <= columns.start;
        assert!(is_inside && columns.end <= self.columns.end, "columns of the tile");
        let start = self.origin.wrapping_add(row * self.stride + columns.start);
        // SAFETY: the tile's places lie in memory that is borrowed for it alone.
        unsafe { std::slice::from_raw_parts_mut(start, columns.len()) }
    }
}

/// Values from one row of a tile to the next: an odd number of cache lines, lest rows share their cache sets.
fn stride_of(columns: usize) -> usize {
    (columns.div_ceil(16) | 1) * 16
}

/// What one thread computes and uses up by itself, within a piece. On cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
pub struct Own {
    /// For a row of the residual stream.
    pub row: Vec<f32>,
    /// For a tile: keys, gates or what heads attended to.
    pub first: Vec<f32>,
    /// For a tile beside that one: values, or what gates let through.
    pub second: Vec<f32>,
    /// For the part of a state that drafts change, as it was before.
    pub saved: Vec<f32>,
    /// How many blocks the thread's own stream has added in this step, if the step is one of few tokens.
    pub num_blocks: Option<usize>,
    /// For attention; its size is that of a tile of tokens, whatever the step.
    pub attention: AttentionScratch,
}

impl Own {
    fn reserve(&mut self, config: &ModelConfig, tokens: usize) {
        let len = own_tile_len(config, tokens);
        let (_, joined) = mtp_sizes(config).unwrap_or_default();
        reserve(&mut self.row, config.hidden_size + separate_size(config).max(joined));
        reserve(&mut self.first, len);
        reserve(&mut self.second, len);
        self.saved.clear();
        self.saved.reserve_exact(most_piece_state(config));
    }

    fn bytes(&self) -> usize {
        let tiles = self.first.capacity() + self.second.capacity();
        (self.row.capacity() + tiles + self.saved.capacity()) * size_of::<f32>()
    }
}

/// Keys, or values, of a token that wait for all heads' norm before they are stored.
fn waiting_kv_size(config: &ModelConfig) -> usize {
    if config.architecture.is_qk_norm_wide() {
        config.kv_size()
    } else {
        0
    }
}

/// Values of a row of the stream that experts beside a dense block need twice; 0 where there are none.
fn separate_size(config: &ModelConfig) -> usize {
    if config.has_separate_experts() {
        config.hidden_size
    } else {
        0
    }
}

/// Width inside layers whose block is not as wide as others', and inside the expert that all tokens share; 0 where there
/// are none.
fn beside_sizes(config: &ModelConfig) -> (usize, usize) {
    let wide = config.gemma4.map_or(0, |gemma4| gemma4.wide_size);
    let of_experts = |experts: Experts| (experts.dense_size, experts.shared_size);
    config.experts.map_or((wide, 0), of_experts)
}

/// Values of the largest tile that a thread has in its own memory in a step of so many tokens.
fn own_tile_len(config: &ModelConfig, tokens: usize) -> usize {
    most_piece_rows(tokens).saturating_mul(stride_of(most_piece_columns(config)))
}

/// The residual stream and what stands between it and the next matrix.
///
/// For a few tokens every thread keeps a stream of its own and computes all of it, which is quicker than to wait for
/// the others; for many, all share the first and each computes some rows.
#[expect(missing_docs, reason = "the fields are the stages between two blocks")]
pub struct Stream {
    pub residual: Rows,
    pub hidden_input: Activations,
    /// Of experts that lie beside a dense block: what they read, and what their router reads.
    pub expert_input: Activations,
    pub router_input: Activations,
    pub output_input: Activations,
}

impl Stream {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        Self {
            residual: Rows::new(config.hidden_size),
            hidden_input: Activations::new(),
            expert_input: Activations::new(),
            router_input: Activations::new(),
            output_input: Activations::new(),
        }
    }

    pub(crate) fn bytes(&mut self) -> usize {
        let separate = self.expert_input.bytes() + self.router_input.bytes();
        self.residual.bytes() + self.hidden_input.bytes() + self.output_input.bytes() + separate
    }
}

/// Every buffer of a forward pass. Grows to the largest batch seen.
#[expect(missing_docs, reason = "the fields are the stages of a decoder layer")]
pub struct Workspace {
    /// One stream per thread.
    pub streams: Vec<Stream>,
    /// One for each thread, which alone locks it.
    own: Vec<Mutex<Own>>,
    pub query: Rows,
    /// Keys, where their norm is over all heads, which different threads compute; likewise values.
    pub key: Rows,
    pub value: Rows,
    /// Gates of what heads attend to, where the family has them.
    pub gate: Rows,
    /// What recurrent layers make of their input: each projection's output after the other's.
    pub mixed: Rows,
    /// The same of drafts, of all recurrent layers.
    pub kept: Rows,
    /// What a block gives, to be added to the stream; what every block gives, where threads have streams of their own.
    pub delta: Rows,
    /// What dense blocks give that lie beside experts, likewise.
    pub dense_delta: Rows,
    /// What chunks of the context gave, a row for each query token, head and chunk.
    pub chunks: Rows,
    pub logits: Rows,
    /// What adapters make of a product's input.
    pub low: Rows,
    /// What heads attended to, of layers with heads of each shape.
    pub heads_inputs: [Activations; 2],
    pub ffn_input: Activations,
    /// What recurrent layers hand to their output matrices.
    pub mixer_input: Activations,
    /// Insides of layers without experts, in a mixture of them, or of wide ones.
    pub dense_input: Activations,
    /// Insides of the expert that all tokens share.
    pub shared_input: Activations,
    pub routing: Routing,
    pub channels: ChannelBuffers,
    pub kimi: KimiBuffers,
    pub latent: LatentBuffers,
    pub indexer: IndexerBuffers,
    pub per_layer: PerLayerBuffers,
    pub mtp: MtpBuffers,
    hidden_forms: Forms,
    heads_forms: Forms,
    ffn_forms: Forms,
    mixer_forms: Forms,
    dense_forms: Forms,
    shared_forms: Forms,
    output_forms: Forms,
}

/// In which forms matrices want their input.
#[derive(Clone, Copy, Default)]
pub(crate) struct Forms {
    pub(crate) is_quantised: bool,
    pub(crate) is_dense: bool,
}

impl Forms {
    pub(crate) fn of<'a>(matrices: impl IntoIterator<Item = &'a pyagent_kernels::pack::PackedMatrix>) -> Self {
        matrices.into_iter().fold(Self::default(), |forms, matrix| Self {
            is_quantised: forms.is_quantised || matrix.is_quantised(),
            is_dense: forms.is_dense || !matrix.is_quantised(),
        })
    }
}

/// The output matrices of attention, or of recurrent layers.
fn outputs(weights: &Weights, are_recurrent: bool) -> impl Iterator<Item = &pyagent_kernels::pack::PackedMatrix> {
    let layers = weights.layers.iter();
    let layers = layers.filter(move |layer| matches!(layer.mixer, Mixer::Recurrent(_)) == are_recurrent);
    layers.filter_map(|layer| Some(&layer.attention_output.as_ref()?.weight))
}

impl Workspace {
    /// Empty buffers for a model and a number of threads.
    pub fn new(config: &ModelConfig, weights: &Weights, threads: usize) -> Self {
        let layers = || weights.layers.iter();
        let is_dense = |(index, layer): &(usize, &Layer)| layer.ffn.router().is_none() && config.has_dense_size(*index);
        let downs = |are_dense: bool| {
            let blocks = layers().enumerate().filter(|layer| is_dense(layer) == are_dense);
            let gated = blocks.flat_map(|(_, layer)| layer.ffn.gated());
            Forms::of(gated.map(|gated| &gated.down.weight))
        };
        Self {
            streams: (0..threads).map(|_| Stream::new(config)).collect(),
            own: (0..threads).map(|_| Mutex::default()).collect(),
            query: Rows::new(config.num_queries() * config.query_size()),
            key: Rows::new(waiting_kv_size(config)),
            value: Rows::new(waiting_kv_size(config)),
            gate: Rows::new(config.num_gates()),
            mixed: Rows::new(mixed_size(config)),
            kept: Rows::new(mixed_size(config)),
            delta: Rows::new(config.hidden_size),
            dense_delta: Rows::new(separate_size(config)),
            chunks: Rows::new(config.num_heads * chunk_len(config.value_dim(), 1)),
            logits: Rows::new(config.vocab_size),
            low: Rows::new(0),
            heads_inputs: [Activations::new(), Activations::new()],
            ffn_input: Activations::new(),
            mixer_input: Activations::new(),
            dense_input: Activations::new(),
            shared_input: Activations::new(),
            routing: Routing::new(config),
            channels: ChannelBuffers::new(config, weights),
            kimi: KimiBuffers::new(weights),
            latent: LatentBuffers::new(weights),
            indexer: IndexerBuffers::new(config),
            per_layer: PerLayerBuffers::new(config, weights),
            mtp: MtpBuffers::new(config, weights),
            hidden_forms: Forms::of(layers().flat_map(|layer| {
                let mixer = layer.mixer.inputs().into_iter();
                let ffn = layer.ffn.gated().iter().flat_map(Gated::inputs);
                let shared = layer.ffn.shared().into_iter();
                let shared = shared.flat_map(|shared| shared.gated.inputs());
                let per_layer = layer.per_layer.iter().map(|per_layer| &per_layer.gate);
                let linears = mixer
                    .chain(layer.ffn.raters())
                    .chain(ffn)
                    .chain(shared)
                    .chain(per_layer);
                linears.map(|linear| &linear.weight)
            })),
            heads_forms: Forms::of(outputs(weights, false)),
            mixer_forms: Forms::of(outputs(weights, true)),
            ffn_forms: downs(false),
            dense_forms: downs(true),
            shared_forms: Forms::of(layers().filter_map(|layer| Some(&layer.ffn.shared()?.gated.down.weight))),
            output_forms: Forms::of([weights.output_matrix()]),
        }
    }

    /// Has the stream's output in the forms that these matrices want.
    pub(crate) fn set_outputs<'a>(&mut self, matrices: impl Iterator<Item = &'a pyagent_kernels::pack::PackedMatrix>) {
        self.output_forms = Forms::of(matrices);
    }

    /// Makes room for a batch of `tokens` tokens of which `outputs` give logits.
    /// `split_rows` counts query tokens times chunks of their context, where these are computed apart.
    pub fn prepare(&mut self, config: &ModelConfig, tokens: usize, outputs: usize, split_rows: usize) {
        let streams = num_streams(config, tokens, self.streams.len());
        let is_adapted = self.low.width() > 0;
        let resize = |input: &mut Activations, rows: usize, cols: usize, forms: Forms| {
            input.resize(rows, cols, forms.is_quantised, forms.is_dense || is_adapted);
        };
        let has_mtp = config.has_mtp;
        let of_mtp = has_mtp.then_some(&mut self.mtp.stream).into_iter();
        for stream in self.streams[..streams].iter_mut().chain(of_mtp) {
            stream.residual.reserve(tokens);
            let hidden = config.hidden_size;
            resize(&mut stream.hidden_input, tokens, hidden, self.hidden_forms);
            let separate = separate_size(config);
            for input in [&mut stream.expert_input, &mut stream.router_input] {
                resize(input, tokens, separate, self.hidden_forms);
            }
            resize(&mut stream.output_input, outputs, hidden, self.output_forms);
        }
        self.mtp.reserve(config, tokens);
        for own in &mut self.own {
            let own = own.get_mut().unwrap_or_else(PoisonError::into_inner);
            own.reserve(config, tokens);
            own.num_blocks = None;
        }
        self.query.reserve(tokens);
        self.key.reserve(tokens);
        self.value.reserve(tokens);
        self.gate.reserve(tokens);
        self.mixed.reserve(tokens);
        self.delta.reserve(num_delta_rows(config, tokens));
        self.dense_delta.reserve(num_delta_rows(config, tokens));
        self.chunks.reserve(split_rows);
        self.logits.reserve(outputs);
        for (input, size) in self.heads_inputs.iter_mut().zip(config.heads_sizes()) {
            resize(input, tokens, size, self.heads_forms);
        }
        self.channels.reserve(config, tokens);
        self.kimi.reserve(config, tokens);
        self.latent.reserve(config, tokens);
        self.indexer.reserve(tokens);
        self.per_layer.reserve(config, tokens);
        let mixer_columns = output_size(config);
        resize(&mut self.mixer_input, tokens, mixer_columns, self.mixer_forms);
        let slots = most_slots(config, tokens);
        resize(&mut self.ffn_input, slots, config.ffn_size, self.ffn_forms);
        let (dense, shared) = beside_sizes(config);
        resize(&mut self.dense_input, tokens, dense, self.dense_forms);
        resize(&mut self.shared_input, tokens, shared, self.shared_forms);
        self.routing.reserve(config, tokens);
    }

    /// Makes room for storing a head's keys and values of so many tokens, and for nothing else.
    pub fn prepare_storing(&mut self, config: &ModelConfig, tokens: usize) {
        for own in &mut self.own {
            own.get_mut()
                .unwrap_or_else(PoisonError::into_inner)
                .reserve(config, tokens);
        }
        self.mtp.reserve(config, tokens);
    }

    /// Makes room for so many rows of numbers that adapters hand to products, of which each has `width`; 0 is for steps
    /// without adapters, whose inputs need no form of their own. What comes before [`Self::prepare`].
    pub fn prepare_adapters(&mut self, (rows, width): (usize, usize)) {
        if width != self.low.width() {
            self.low = Rows::new(width);
        }
        self.low.reserve(rows);
    }

    /// Makes room for what is kept of so many drafts.
    pub fn prepare_drafts(&mut self, config: &ModelConfig, drafts: usize) {
        self.kept.reserve(num_kept_rows(config, drafts));
    }

    /// Makes room for so many ratings of positions.
    pub fn prepare_ratings(&mut self, ratings: usize) {
        self.indexer.reserve_ratings(ratings);
    }

    /// Has every thread that keeps a stream of its own compute it anew from the blocks' outputs, for other rows' logits.
    pub fn rewind(&self) {
        for index in 0..self.own.len() {
            self.own(index).num_blocks = None;
        }
    }

    /// What the thread with this index has to itself.
    pub fn own(&self, index: usize) -> MutexGuard<'_, Own> {
        // After a panic its content is as good as any.
        self.own[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes held by all buffers.
    pub fn bytes(&mut self) -> usize {
        let streams = self.streams.iter_mut().map(Stream::bytes);
        let own = self.own.iter_mut();
        let own = own.map(|own| own.get_mut().unwrap_or_else(PoisonError::into_inner).bytes());
        let projected = [
            &mut self.query,
            &mut self.key,
            &mut self.value,
            &mut self.gate,
            &mut self.mixed,
            &mut self.kept,
        ];
        let projected = projected.map(Rows::bytes);
        let rows = [
            &mut self.delta,
            &mut self.dense_delta,
            &mut self.chunks,
            &mut self.logits,
            &mut self.low,
        ]
        .map(Rows::bytes);
        let insides = [
            &self.mixer_input,
            &self.ffn_input,
            &self.dense_input,
            &self.shared_input,
        ]
        .map(Activations::bytes);
        let heads = self.heads_inputs.iter().map(Activations::bytes).sum::<usize>();
        let more = self.channels.bytes()
            + self.kimi.bytes()
            + self.latent.bytes()
            + self.indexer.bytes()
            + self.per_layer.bytes()
            + self.mtp.bytes()
            + self.routing.bytes();
        let inputs = heads + more + insides.iter().sum::<usize>();
        let rows = projected.into_iter().chain(rows).sum::<usize>();
        streams.sum::<usize>() + own.sum::<usize>() + rows + inputs
    }
}

/// Rotary tables that a model's layers read: those with a window have one of their own.
pub(crate) fn num_rope_tables(config: &ModelConfig) -> usize {
    let has_windows = (0..config.num_layers).any(|layer| config.window(layer).is_some());
    1 + usize::from(has_windows)
}
