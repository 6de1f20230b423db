//! Speed of the attention kernel on one core, in the shapes of SmolLM2-135M (9 query and 3 key-value heads of 64),
//! Gemma 3 270M (4 and 1 of 256) and GLM-4.7-Flash (4 of its 20 heads over latents of 512 and 64). `memory` says that keys and values come from there, as they do while a model
//! decodes; elsewhere they stay in the caches.
//!
//! `cargo run --release -p pyagent-kernels --example attention_speed [dtype] [shape]`

use std::time::Instant;

use pyagent_kernels::attention::{
    AttentionArgs, AttentionScratch, BLOCK_TOKENS, KvLayout, KvType, LayerBlocks, attend, store_kv,
};
use pyagent_kernels::isa::Isa;

/// A model's heads and layers; layers share a page: a layer's next block is not its neighbour.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    heads_per_kv: usize,
    num_kv_heads: usize,
    head_dim: usize,
    values_in_keys: Option<usize>,
    layers: usize,
}

const SHAPES: [Shape; 3] = [
    Shape {
        name: "SmolLM2",
        heads_per_kv: 3,
        num_kv_heads: 3,
        head_dim: 64,
        values_in_keys: None,
        layers: 30,
    },
    Shape {
        name: "Gemma 3 270M",
        heads_per_kv: 4,
        num_kv_heads: 1,
        head_dim: 256,
        values_in_keys: None,
        layers: 18,
    },
    // Heads of a group: see `forward/latent.rs`.
    Shape {
        name: "GLM-4.7-Flash",
        heads_per_kv: 4,
        num_kv_heads: 1,
        head_dim: 576,
        values_in_keys: Some(512),
        layers: 47,
    },
];
/// What does not fit the caches.
const FAR_BYTES: usize = 192 << 20;

/// One sequence's keys, values and queries.
struct Sequence {
    shape: Shape,
    layout: KvLayout,
    memory: Vec<u64>,
    table: Vec<u32>,
    queries: Vec<f32>,
    out: Vec<f32>,
    scratch: AttentionScratch,
}

impl Sequence {
    /// Room for `num_layers` layers, of which the pages hold one after the other.
    fn new(shape: Shape, dtype: KvType, num_layers: usize, num_positions: usize, num_queries: usize) -> Self {
        let layout = KvLayout {
            num_kv_heads: shape.num_kv_heads,
            head_dim: shape.head_dim,
            values_in_keys: shape.values_in_keys,
            index_dim: 0,
            dtype,
        };
        let num_blocks = num_positions.div_ceil(BLOCK_TOKENS);
        let width = layout.num_kv_heads * layout.head_dim;
        let row = width * shape.heads_per_kv;
        let queries: Vec<f32> = (0..num_queries * row).map(|i| (i % 37) as f32 / 18.0 - 1.0).collect();
        let mut sequence = Self {
            shape,
            layout,
            memory: vec![0; num_blocks * num_layers * layout.block_bytes() / 8],
            table: (0..num_blocks as u32).rev().collect(),
            out: vec![0.0; queries.len()],
            queries,
            scratch: AttentionScratch::default(),
        };
        for layer in 0..num_layers {
            sequence.fill(layer, num_positions);
        }
        sequence
    }

    fn fill(&mut self, layer: usize, num_positions: usize) {
        let kv = self.blocks(layer);
        let width = self.layout.num_kv_heads * self.layout.head_dim;
        for position in 0..num_positions {
            let row: Vec<f32> = (0..width)
                .map(|i| ((position * 31 + i * 17) % 101) as f32 / 50.0 - 1.0)
                .collect();
            // SAFETY: the table has the position's block.
            let block = unsafe { kv.block(position / BLOCK_TOKENS) };
            for (head, row) in row.chunks_exact(self.layout.head_dim).enumerate() {
                let slot = position % BLOCK_TOKENS;
                let values = if self.layout.values_in_keys.is_some() { &[] } else { row };
                // SAFETY: the memory has every page of the table.
                unsafe { store_kv(Isa::best(), &self.layout, block, slot, head, row, values) };
            }
        }
    }

    fn blocks(&self, layer: usize) -> LayerBlocks<'_> {
        let base = self.memory.as_ptr().cast::<u8>().cast_mut();
        LayerBlocks {
            base: base.wrapping_add(layer * self.layout.block_bytes()),
            page_bytes: self.memory.len() * 8 / self.table.len(),
            pages: &self.table,
            pages_per_block: 1,
            page_in_block: 0,
        }
    }

    /// All key-value heads of `num_tokens` tokens, 16 tokens a call.
    fn attend(&mut self, isa: Isa, layer: usize, first_position: usize, num_tokens: usize) {
        let heads = self.shape.heads_per_kv;
        let row = heads * self.layout.num_kv_heads * self.layout.head_dim;
        let mut scratch = std::mem::take(&mut self.scratch);
        for kv_head in 0..self.layout.num_kv_heads {
            let column = kv_head * heads * self.layout.head_dim;
            for first in (0..num_tokens).step_by(16) {
                let args = AttentionArgs {
                    kv: self.blocks(layer),
                    kv_head,
                    num_query_heads_per_kv: heads,
                    first_position: first_position + first,
                    num_tokens: 16.min(num_tokens - first),
                    window: None,
                    is_window_chunk: false,
                    first_seen: 0,
                    end_seen: usize::MAX,
                    scale: 0.125,
                    softcap: None,
                    bias: None,
                    sinks: None,
                    q: self.queries[first * row + column..].as_ptr(),
                    q_stride: row,
                    out: self.out[first * row + column..].as_ptr().cast_mut(),
                    out_stride: row,
                    earlier: None,
                };
                // SAFETY: memory, queries and result are as large as the arguments say.
                unsafe { attend(isa, &self.layout, &args, &mut scratch) };
            }
        }
        self.scratch = scratch;
    }
}

/// The least seconds of several runs, over at least a fifth of a second.
fn best_seconds(mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed().as_secs_f64() < 0.2 || best == f64::INFINITY {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn measure_prompts(shape: Shape, dtype: KvType, isa: Isa) {
    for (depth, num_tokens) in [(0, 128), (0, 512), (1000, 20), (2048, 64), (8192, 16)] {
        if isa == Isa::Scalar && depth + num_tokens > 128 {
            continue; // x86 builds have no FMA outside the kernels of a set: a call for each
        }
        let mut sequence = Sequence::new(shape, dtype, 1, depth + num_tokens, num_tokens);
        let seconds = best_seconds(|| sequence.attend(isa, 0, depth, num_tokens));
        let heads = shape.heads_per_kv * shape.num_kv_heads;
        let num_pairs = num_tokens * (2 * depth + num_tokens + 1) / 2 * heads;
        let products = shape.head_dim + sequence.layout.value_dim();
        let gflops = (num_pairs * products * 2) as f64 / seconds / 1e9;
        let micros = seconds * 1e6;
        println!("  {num_tokens:4} tokens after {depth:5}: {micros:8.1} us, {gflops:6.1} Gflop/s");
    }
}

fn measure_tokens(shape: Shape, dtype: KvType, isa: Isa) {
    for (depth, is_far) in [
        (16, false),
        (128, false),
        (1000, false),
        (1000, true),
        (8000, false),
        (8000, true),
    ] {
        if isa == Isa::Scalar && depth > 1000 || is_far && isa != Isa::best() {
            continue;
        }
        let parts = if shape.values_in_keys.is_some() { 1 } else { 2 };
        let layout_bytes = parts * shape.num_kv_heads * shape.head_dim * dtype.bytes();
        let layers = if is_far { FAR_BYTES / (depth * layout_bytes) } else { 1 };
        let layers = layers.next_multiple_of(if is_far { shape.layers } else { 1 });
        let mut sequence = Sequence::new(shape, dtype, layers, depth, 1);
        let mut layer = 0;
        let rounds = if is_far { layers } else { 1 };
        let seconds = best_seconds(|| {
            for _ in 0..rounds {
                sequence.attend(isa, layer, depth - 1, 1);
                layer = (layer + 1) % layers;
            }
        }) / rounds as f64;
        let bytes = depth * sequence.layout.block_bytes() / BLOCK_TOKENS;
        let rate = bytes as f64 / seconds / 1e9;
        let from = if is_far { ", memory" } else { "" };
        println!(
            "     1 token  after {depth:5}: {:8.1} us, {rate:6.1} GB/s{from}",
            seconds * 1e6
        );
    }
}

fn main() {
    let only = std::env::args().nth(1);
    let shape_only = std::env::args().nth(2);
    for dtype in KvType::ALL {
        if only.as_ref().is_some_and(|name| name != dtype.name()) {
            continue;
        }
        for shape in SHAPES {
            if shape_only.as_ref().is_some_and(|name| name != shape.name) {
                continue;
            }
            for isa in Isa::available() {
                println!("{}, {isa:?}, keys and values in {dtype:?}", shape.name);
                measure_prompts(shape, dtype, isa);
                measure_tokens(shape, dtype, isa);
            }
        }
    }
}
