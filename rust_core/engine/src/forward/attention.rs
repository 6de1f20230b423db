//! How a batch's attention is shared out, and its stage of the forward pass.
//!
//! The work is cut into tiles of tokens and heads. A few tiles would leave threads idle, most of all one: so those of few
//! tokens are split further, into the chunks of their context; whoever computes the last chunk of a tile puts them
//! together. The result is the same, since chunks are part of the definition of attention.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyagent_kernels::attention::{self, AttentionArgs, AttentionScratch, CHUNK_TOKENS, EarlierChunks, KvLayout};
use pyagent_kernels::elementwise;
use pyagent_kernels::isa::Isa;
use pyagent_kernels::pack::BLOCK_COLS;

use super::{Part, Pass, Role, Segment, latent, part};
use crate::config::{Latent, ModelConfig};
use crate::workspace::{Own, Patch};

/// The most query tokens of a tile: they share the reading of keys and values.
const MAX_TILE: usize = 16;
/// The least, if there are so many: fewer do not fill the registers. Larger tiles are not split, so that the results of
/// their chunks take little memory.
const MIN_TILE: usize = 4;
/// With so many tiles for each thread, the threads have nearly equal work.
const TILES_PER_THREAD: usize = 4;

/// The pieces of a batch's attention.
pub(super) struct AttentionPlan {
    tiles: Vec<Tile>,
    /// Unit of heads, tile, and which of its chunks if it is split. A thread's run has the same rows as in the other
    /// stages, and in it one unit's pieces follow each other: what their sequences share of it is still in the caches.
    pieces: Vec<(usize, usize, Option<usize>)>,
    num_units: usize,
    /// For each tile and unit of heads: pieces done in this layer.
    done: Vec<AtomicUsize>,
    num_split_rows: usize,
}

/// Neighbouring tokens of a segment.
struct Tile {
    segment: usize,
    /// The first token, counted from the segment's.
    first: usize,
    num_tokens: usize,
    /// Row of the batch of the first token.
    row: usize,
    num_pieces: usize,
    /// Where its chunks' results begin, in tokens.
    split_row: usize,
    /// Of one token that attends to positions that are picked: how many. All of its heads are one unit.
    num_picked: Option<usize>,
}

/// Neighbouring tokens that may be a tile: the first, counted from the segment's, how many, and whether they attend to
/// positions that are picked.
type Run = (usize, usize, bool);

/// The tiles of a segment, of at most so many tokens and of one chunk where texts are cut; of one each from the first on
/// that attends to fewer positions than it sees.
fn runs<'a>(segment: &Segment<'a>, tile: usize, config: &ModelConfig) -> impl Iterator<Item = Run> + use<'a> {
    let (count, num_picked) = (segment.tokens.len(), config.num_picked());
    let chunk_len = config.dual_chunks.map_or(usize::MAX, |dual| dual.chunk_len);
    let start = segment.first_position;
    let dense = num_picked.map_or(count, |picked| picked.saturating_sub(segment.first_position).min(count));
    let len = move |first: usize| tile.min(dense - first).min(chunk_len - (start + first) % chunk_len);
    let firsts = std::iter::successors(Some(0), move |first| (*first < dense).then(|| first + len(*first)));
    let whole = firsts
        .take_while(move |first| *first < dense)
        .map(move |first| (first, len(first), false));
    whole.chain((dense..count).map(|first| (first, 1, true)))
}

impl AttentionPlan {
    pub(super) fn new(segments: &[Segment<'_>], num_units: usize, config: &ModelConfig, threads: usize) -> Self {
        let enough = TILES_PER_THREAD * threads;
        let num_rows: usize = segments.iter().map(|segment| segment.tokens.len()).sum();
        let tile = (num_rows / enough).clamp(MIN_TILE, MAX_TILE);
        let num_tiles: usize = segments.iter().map(|segment| runs(segment, tile, config).count()).sum();
        let mut plan = Self {
            tiles: Vec::with_capacity(num_tiles),
            pieces: Vec::new(),
            num_units,
            done: (0..num_tiles * num_units).map(|_| AtomicUsize::new(0)).collect(),
            num_split_rows: 0,
        };
        let mut pieces = Vec::new();
        let mut row = 0;
        for (index, segment) in segments.iter().enumerate() {
            for (first, num_tokens, is_picked) in runs(segment, tile, config) {
                let num_picked = config.num_picked().filter(|_| is_picked);
                let num_seen = num_picked.unwrap_or(segment.first_position + first + num_tokens);
                let num_chunks = num_seen.div_ceil(CHUNK_TOKENS);
                let is_split = num_tiles < enough && num_tokens <= MIN_TILE && num_chunks > 1;
                let chunks = if is_split { num_chunks } else { 1 };
                pieces.extend((0..chunks).map(|chunk| (plan.tiles.len(), is_split.then_some(chunk))));
                plan.tiles.push(Tile {
                    segment: index,
                    first,
                    num_tokens,
                    row: row + first,
                    num_pieces: chunks,
                    split_row: plan.num_split_rows,
                    num_picked,
                });
                plan.num_split_rows += if is_split { chunks * num_tokens } else { 0 };
            }
            row += segment.tokens.len();
        }
        for thread in 0..threads {
            let run = &pieces[part(pieces.len(), threads, thread)];
            for unit in 0..num_units {
                let pieces = run
                    .iter()
                    .filter(|(tile, _)| unit == 0 || plan.tiles[*tile].num_picked.is_none());
                plan.pieces.extend(pieces.map(|&(tile, chunk)| (unit, tile, chunk)));
            }
        }
        plan
    }

    pub(super) fn num_pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Tokens times chunks of the tiles that are split.
    pub(super) fn num_split_rows(&self) -> usize {
        self.num_split_rows
    }
}

/// The most query tokens times chunks that steps of so many tokens, over so many positions, compute apart.
pub(crate) fn most_split_rows(tokens: usize, positions: usize, threads: usize) -> usize {
    let split_tokens = TILES_PER_THREAD
        .saturating_mul(threads)
        .saturating_mul(MIN_TILE)
        .min(tokens);
    match positions.div_ceil(CHUNK_TOKENS) {
        0 | 1 => 0,
        num_chunks => split_tokens.saturating_mul(num_chunks),
    }
}

impl Part<'_> {
    /// A piece of attention; the last of a tile makes of it the output matrix's input.
    pub(super) unsafe fn attend(&self, index: usize, piece: usize, own: &mut Own) {
        let Pass { config, .. } = *self.pass;
        let plan = &self.plan.attention[config.head_kind(index)];
        let per_unit = groups_per_unit(config, index);
        let (unit, tile, chunk) = plan.pieces[piece];
        let done = &plan.done[tile * plan.num_units + unit];
        let tile = &plan.tiles[tile];
        if let Some(latent) = config.latent.filter(|_| tile.num_picked.is_some()) {
            // SAFETY: all heads of the tile's row are this piece's, or this chunk of them is; likewise.
            unsafe { self.attend_picked(index, (tile, done), chunk, &latent, own) };
            return;
        }
        let groups = unit * per_unit..(unit + 1) * per_unit;
        let width = unit_width(config, index);
        let rows = tile.row..tile.row + tile.num_tokens;
        let mut heads = Patch::own(&mut own.first, rows, unit * width..(unit + 1) * width);
        // SAFETY: these rows' columns are this piece's, or this chunk of them is; the KV was stored in the stage before.
        unsafe {
            for group in groups.clone() {
                let args = self.attention_args(index, tile, group, &mut heads);
                self.attend_piece(index, &args, tile, (group, chunk), &mut own.attention);
            }
            // Whoever is last sees what the others have written.
            if done.fetch_add(1, Ordering::AcqRel) + 1 == tile.num_pieces {
                done.store(0, Ordering::Relaxed);
                for group in groups.filter(|_| chunk.is_some()) {
                    let args = self.attention_args(index, tile, group, &mut heads);
                    self.merge_chunks(index, &args, tile, group, &mut own.attention);
                }
                match &config.latent {
                    Some(latent) => self.hand_on_latents(latent, &mut heads),
                    None => self.hand_on(index, &mut heads),
                }
            }
        }
    }

    /// Attention of a token to the positions that it picked, or to one chunk of these, for all heads. The result lies where the
    /// queries did.
    ///
    /// # Safety
    /// All heads of the tile's row are this piece's, or this chunk of them is.
    unsafe fn attend_picked(
        &self,
        index: usize,
        (tile, done): (&Tile, &AtomicUsize),
        chunk: Option<usize>,
        latent: &Latent,
        own: &mut Own,
    ) {
        let Pass { config, space, isa, .. } = *self.pass;
        let layout = self.layout(index);
        // SAFETY: by contract; whoever is last sees what the others have written, and they are done with the queries.
        unsafe {
            let mut heads = space
                .query
                .patch(tile.row..tile.row + 1, 0..config.num_heads * latent.rank);
            let picked = space.indexer.picked(tile.row);
            let args = AttentionArgs {
                num_query_heads_per_kv: config.num_heads,
                first_position: picked.len() - 1,
                ..self.attention_args(index, tile, 0, &mut heads)
            };
            let scratch = &mut own.attention;
            match chunk {
                None => attention::attend_picked(isa, layout, &args, picked, scratch),
                Some(chunk) => {
                    let results = self.chunk_results(index, &args, tile, (0, chunk));
                    attention::attend_picked_chunk(isa, layout, &args, (picked, chunk), results, scratch);
                }
            }
            if done.fetch_add(1, Ordering::AcqRel) + 1 == tile.num_pieces {
                done.store(0, Ordering::Relaxed);
                if chunk.is_some() {
                    self.merge_chunks(index, &args, tile, 0, scratch);
                }
                self.hand_on_latents(latent, &mut heads);
            }
        }
    }

    /// Attention of a tile, or of one chunk of it, for one group of heads.
    unsafe fn attend_piece(
        &self,
        index: usize,
        args: &AttentionArgs<'_>,
        tile: &Tile,
        (group, chunk): (usize, Option<usize>),
        scratch: &mut AttentionScratch,
    ) {
        let (isa, layout) = (self.pass.isa, self.layout(index));
        // SAFETY: as the caller's; a chunk's results lie in its own part of the buffer.
        unsafe {
            match chunk {
                None => attention::attend(isa, layout, args, scratch),
                // A window hides the chunks before it.
                Some(chunk) if args.chunks().contains(&chunk) => {
                    let results = self.chunk_results(index, args, tile, (group, chunk - args.chunks().start));
                    attention::attend_chunk(isa, layout, args, chunk, results, scratch);
                }
                Some(_) => {}
            }
        }
    }

    /// Puts together the chunks of a tile that was split.
    unsafe fn merge_chunks(
        &self,
        index: usize,
        args: &AttentionArgs<'_>,
        tile: &Tile,
        group: usize,
        scratch: &mut AttentionScratch,
    ) {
        let (isa, layout) = (self.pass.isa, self.layout(index));
        let results = self.chunk_results(index, args, tile, (group, 0));
        // SAFETY: all chunks are done.
        unsafe { attention::merge_chunks(isa, layout, args, results, scratch) };
    }

    /// Hands what heads gave to the output matrix, through its gates where the family has them.
    unsafe fn hand_on(&self, index: usize, heads: &mut Patch<'_>) {
        let Pass { space, isa, config, .. } = *self.pass;
        let gated = heads.rows().filter(|_| config.architecture.has_gated_attention());
        for row in gated {
            // SAFETY: the projections are over, and nobody writes gates in this stage.
            let gates = unsafe { space.gate.shared_row(row) };
            let columns = heads.columns();
            if config.architecture.are_gates_of_heads() {
                gate_heads(
                    isa,
                    heads.row(row),
                    config.head_dim,
                    &gates[columns.start / config.head_dim..],
                );
            } else {
                elementwise::sigmoid_mul(isa, heads.row(row), &gates[columns]);
            }
        }
        // SAFETY: these columns of the input are this piece's.
        unsafe {
            space.heads_inputs[config.head_kind(index)].write_tile(
                isa,
                heads.rows(),
                heads.columns(),
                heads.origin(),
                heads.stride(),
            );
        }
    }

    /// Attention of a tile for one group of heads, into its columns of `heads`.
    fn attention_args(&self, index: usize, tile: &Tile, group: usize, heads: &mut Patch<'_>) -> AttentionArgs<'_> {
        let Pass { config, space, kv, .. } = *self.pass;
        let segment = &self.plan.segments[tile.segment];
        let heads_per_group = heads_per_group(config, index);
        let first_head = group * heads_per_group;
        let (column, out_column) = (
            first_head * config.head_dim_of(index),
            first_head * config.value_dim_of(index),
        );
        let layer = &self.pass.weights.layers[index];
        let (sinks, bias) = (layer.sinks.as_deref(), layer.score_bias.as_deref());
        let (q_stride, out_stride) = (space.query.width(), heads.stride());
        AttentionArgs {
            kv: kv.layer(self.pass.kv_layer(index), segment.tables),
            kv_head: if config.latent.is_some() { 0 } else { group },
            num_query_heads_per_kv: heads_per_group,
            first_position: self.pass.last_seen(segment) + tile.first,
            num_tokens: tile.num_tokens,
            window: self.seen(index, segment),
            is_window_chunk: config.are_windows_chunks,
            first_seen: if config.is_cross(index) {
                0
            } else {
                segment.prompt.len()
            },
            end_seen: if config.is_cross(index) {
                segment.prompt.len()
            } else {
                usize::MAX
            },
            scale: config.attention_scale,
            softcap: config.attention_softcap,
            bias: bias.map(|bias| bias.of_heads(first_head)),
            sinks: sinks.map(|sinks| &sinks[first_head..first_head + heads_per_group]),
            q: space.query.base().wrapping_add(tile.row * q_stride + column),
            q_stride,
            out: heads.origin().wrapping_add(tile.row * out_stride + out_column),
            out_stride,
            earlier: config.dual_chunks.map(|dual| EarlierChunks {
                len: dual.chunk_len,
                q_offset: config.query_size(),
            }),
        }
    }

    /// How many positions a layer's tokens see: in a head's layer, whose pass has one, all but the first.
    fn seen(&self, index: usize, segment: &Segment<'_>) -> Option<usize> {
        let config = self.pass.config;
        match self.pass.role {
            _ if config.is_mtp(index) => Some(self.pass.seen_by_head(segment)),
            Role::Assistant(_) => self.pass.seen_by_assistant(index, segment),
            _ => config.window(index),
        }
    }

    fn layout(&self, index: usize) -> &KvLayout {
        self.pass.kv.pages.layout(self.pass.kv_layer(index))
    }

    /// Where the results go of a group of a layer's heads for the `index`th chunk that the tile sees.
    fn chunk_results(
        &self,
        layer: usize,
        args: &AttentionArgs<'_>,
        tile: &Tile,
        (group, index): (usize, usize),
    ) -> *mut f32 {
        let Pass { config, space, .. } = *self.pass;
        let rows_before = tile.split_row * config.num_heads;
        let rows = tile.num_tokens * args.num_query_heads_per_kv;
        let chunks_before = group * tile.num_pieces + index;
        let row_len = attention::chunk_len(config.value_dim_of(layer), 1);
        space
            .chunks
            .base()
            .wrapping_add((rows_before + chunks_before * rows) * row_len)
    }
}

/// Multiplies what each head gave by its gate.
fn gate_heads(isa: Isa, heads: &mut [f32], head_dim: usize, gates: &[f32]) {
    for (head, gate) in heads.chunks_exact_mut(head_dim).zip(gates) {
        let mut gate = [*gate];
        elementwise::sigmoid(isa, &mut gate);
        elementwise::scale(isa, head, gate[0]);
    }
}

/// Columns of what one piece of a layer gives.
fn unit_width(config: &ModelConfig, layer: usize) -> usize {
    groups_per_unit(config, layer) * heads_per_group(config, layer) * config.value_dim_of(layer)
}

/// A layer with heads of each shape.
fn kinds(config: &ModelConfig) -> impl Iterator<Item = usize> + Clone {
    let last = config.all_layers().end - 1; // of Gemma 4, one that sees everything
    let first = (0..last).find(|layer| config.head_kind(*layer) != config.head_kind(last));
    first.into_iter().chain([last])
}

/// Columns of what a piece of any layer gives, at most.
pub(super) fn most_unit_width(config: &ModelConfig) -> usize {
    kinds(config).map(|layer| unit_width(config, layer)).max().unwrap_or(0)
}

/// Units of heads: a piece of attention covers one. Of layers with heads of each shape; a shape that no layer has is as
/// the other.
pub(super) fn num_units(config: &ModelConfig) -> impl Iterator<Item = usize> {
    let num_shapes = config.heads_sizes().iter().filter(|size| **size > 0).count();
    let mut layers = kinds(config).cycle();
    let units = |layer| config.num_heads / heads_per_group(config, layer) / groups_per_unit(config, layer);
    (0..num_shapes).filter_map(move |_| layers.next()).map(units)
}

/// Query heads that one call of attention covers: those that share a key-value head. All share a latent, and would be one
/// piece.
fn heads_per_group(config: &ModelConfig, layer: usize) -> usize {
    match config.latent {
        Some(_) => latent::sharing_heads(config.num_heads),
        None => config.num_heads / config.kv_heads_of(layer),
    }
}

/// Groups of heads that one piece covers: their outputs must fill whole blocks of a quantised input.
fn groups_per_unit(config: &ModelConfig, layer: usize) -> usize {
    let num_kv_heads = config.kv_heads_of(layer);
    let width = config.num_heads / num_kv_heads * config.head_dim_of(layer);
    match num_kv_heads {
        _ if config.latent.is_some() || width.is_multiple_of(BLOCK_COLS) => 1,
        heads if heads.is_multiple_of(2) => 2,
        heads => heads,
    }
}
