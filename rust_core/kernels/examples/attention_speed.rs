//! Speed of the attention kernel on one core, in the shape of SmolLM2-135M: 9 query and 3 key-value heads of 64.
//!
//! `cargo run --release -p pyagent-kernels --example attention_speed`

use std::time::Instant;

use pyagent_kernels::attention::{
    AttentionArgs, AttentionScratch, BLOCK_TOKENS, KvLayout, KvType, LayerBlocks, attend, store_kv,
};
use pyagent_kernels::isa::Isa;

const HEADS: usize = 3;
/// Layers of SmolLM2, which share a page: the layer's next block is not its neighbour.
const LAYERS: usize = 30;

/// One sequence's keys, values and queries.
struct Sequence {
    layout: KvLayout,
    memory: Vec<u64>,
    table: Vec<u32>,
    queries: Vec<f32>,
    out: Vec<f32>,
    scratch: AttentionScratch,
}

impl Sequence {
    fn new(layout: KvLayout, num_positions: usize, num_queries: usize) -> Self {
        let num_blocks = num_positions.div_ceil(BLOCK_TOKENS);
        let table: Vec<u32> = (0..num_blocks as u32).rev().collect();
        let mut memory = vec![0_u64; num_blocks * LAYERS * layout.block_bytes() / 8];
        let width = layout.num_kv_heads * layout.head_dim;
        let kv = layer_blocks(&layout, memory.as_mut_ptr(), &table);
        for position in 0..num_positions {
            let row: Vec<f32> = (0..width)
                .map(|i| ((position * 31 + i * 17) % 101) as f32 / 50.0 - 1.0)
                .collect();
            // SAFETY: the table has the position's block.
            let block = unsafe { kv.block(position / BLOCK_TOKENS) };
            for (head, row) in row.chunks_exact(layout.head_dim).enumerate() {
                // SAFETY: the memory has every page of the table.
                unsafe { store_kv(Isa::best(), &layout, block, position % BLOCK_TOKENS, head, row, row) };
            }
        }
        let row = width * HEADS;
        let queries: Vec<f32> = (0..num_queries * row).map(|i| (i % 37) as f32 / 18.0 - 1.0).collect();
        let out = vec![0.0; queries.len()];
        Self {
            layout,
            memory,
            table,
            queries,
            out,
            scratch: AttentionScratch::default(),
        }
    }

    /// All key-value heads of `num_tokens` tokens, 16 tokens a call.
    fn attend(&mut self, isa: Isa, first_position: usize, num_tokens: usize) {
        let row = HEADS * self.layout.num_kv_heads * self.layout.head_dim;
        for kv_head in 0..self.layout.num_kv_heads {
            let column = kv_head * HEADS * self.layout.head_dim;
            for first in (0..num_tokens).step_by(16) {
                let args = AttentionArgs {
                    kv: layer_blocks(&self.layout, self.memory.as_mut_ptr(), &self.table),
                    kv_head,
                    num_query_heads_per_kv: HEADS,
                    first_position: first_position + first,
                    num_tokens: 16.min(num_tokens - first),
                    window: None,
                    scale: 0.125,
                    softcap: None,
                    q: self.queries[first * row + column..].as_ptr(),
                    q_stride: row,
                    out: self.out[first * row + column..].as_mut_ptr(),
                    out_stride: row,
                };
                // SAFETY: memory, queries and result are as large as the arguments say.
                unsafe { attend(isa, &self.layout, &args, &mut self.scratch) };
            }
        }
    }
}

/// The last layer's blocks.
fn layer_blocks<'a>(layout: &KvLayout, memory: *mut u64, pages: &'a [u32]) -> LayerBlocks<'a> {
    LayerBlocks {
        base: memory.cast::<u8>().wrapping_add((LAYERS - 1) * layout.block_bytes()),
        page_bytes: LAYERS * layout.block_bytes(),
        pages,
        pages_per_block: 1,
        page_in_block: 0,
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

fn main() {
    for dtype in KvType::ALL {
        let layout = KvLayout {
            num_kv_heads: 3,
            head_dim: 64,
            dtype,
        };
        for isa in Isa::available() {
            println!("{isa:?}, keys and values in {dtype:?}");
            for (depth, num_tokens) in [(0, 128), (0, 512), (2048, 64), (8192, 16)] {
                if isa == Isa::Scalar && depth + num_tokens > 128 {
                    continue; // x86 builds have no FMA outside the kernels of a set: a call for each
                }
                let mut sequence = Sequence::new(layout, depth + num_tokens, num_tokens);
                let seconds = best_seconds(|| sequence.attend(isa, depth, num_tokens));
                let num_pairs = num_tokens * (2 * depth + num_tokens + 1) / 2 * HEADS * layout.num_kv_heads;
                let gflops = (num_pairs * layout.head_dim * 4) as f64 / seconds / 1e9;
                println!(
                    "  {num_tokens:4} tokens after {depth:5}: {:8.1} us, {gflops:6.1} Gflop/s",
                    seconds * 1e6
                );
            }
            for depth in [1000, 4000, 8000] {
                if isa == Isa::Scalar && depth > 1000 {
                    continue;
                }
                let mut sequence = Sequence::new(layout, depth, 1);
                let seconds = best_seconds(|| sequence.attend(isa, depth - 1, 1));
                let bytes = depth * layout.block_bytes() / BLOCK_TOKENS;
                let rate = bytes as f64 / seconds / 1e9;
                println!(
                    "     1 token  after {depth:5}: {:8.1} us, {rate:6.1} GB/s",
                    seconds * 1e6
                );
            }
        }
    }
}
