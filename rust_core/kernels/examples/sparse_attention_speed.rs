//! Speed of sparse attention on one core, in the shape of DeepSeek-V3.2: one token's 128 heads over latents of 512 and 64 in
//! bfloat16, of which 64 index heads of 128 pick 2,048; beside dense attention to all of them. Each part is the least of
//! several rounds, which the parts take in turn.
//!
//! `cargo run --release -p pyagent-kernels --example sparse_attention_speed [positions]...`

use std::time::Instant;

use pyagent_kernels::attention::{
    AttentionArgs, AttentionScratch, BLOCK_TOKENS, CHUNK_TOKENS, KvLayout, KvType, LayerBlocks, attend, attend_picked,
    pick, rate, store_kv,
};
use pyagent_kernels::isa::Isa;

const LAYOUT: KvLayout = KvLayout {
    num_kv_heads: 1,
    head_dim: 576,
    values_in_keys: Some(512),
    index_dim: 128,
    dtype: KvType::Bf16,
};
const HEADS: usize = 128;
/// Heads that dense attention takes at once: see `forward/latent.rs` of the engine.
const SHARING_HEADS: usize = 8;
const INDEX_HEADS: usize = 64;
const NUM_PICKED: usize = 2_048;
const ROUNDS: usize = 9;

/// Numbers in -1..1 that look random.
fn numbers(len: usize, seed: usize) -> Vec<f32> {
    let mixed = |i: usize| ((i + seed * 7_919) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len).map(|i| (mixed(i) >> 40) as f32 / 8_388_608.0 - 1.0).collect()
}

fn main() {
    let told: Vec<usize> = std::env::args()
        .skip(1)
        .filter_map(|positions| positions.parse().ok())
        .collect();
    let all = if told.is_empty() { vec![8_192, 32_768] } else { told };
    for positions in all {
        measure(Isa::best(), positions);
    }
}

fn measure(isa: Isa, positions: usize) {
    let num_blocks = positions.div_ceil(BLOCK_TOKENS);
    let table: Vec<u32> = (0..num_blocks as u32).rev().collect();
    let mut memory = vec![0_u64; num_blocks * LAYOUT.block_bytes() / 8];
    let kv = LayerBlocks {
        base: memory.as_mut_ptr().cast(),
        page_bytes: LAYOUT.block_bytes(),
        pages: &table,
        pages_per_block: 1,
        page_in_block: 0,
    };
    let index = LAYOUT.index().expect("index keys");
    for position in 0..positions {
        let (latent, key) = (
            numbers(LAYOUT.head_dim, position),
            numbers(LAYOUT.index_dim, position + 1_000_003),
        );
        // SAFETY: the table has the position's block, and the memory its page.
        unsafe {
            let (block, slot) = (kv.block(position / BLOCK_TOKENS), position % BLOCK_TOKENS);
            store_kv(isa, &LAYOUT, block, slot, 0, &latent, &[]);
            store_kv(isa, &index, block.add(LAYOUT.index_at()), slot, 0, &key, &[]);
        }
    }
    let q = numbers(HEADS * LAYOUT.head_dim, 3);
    let (index_q, weights) = (numbers(INDEX_HEADS * LAYOUT.index_dim, 4), numbers(INDEX_HEADS, 5));
    let mut out = vec![0.0_f32; HEADS * LAYOUT.value_dim()];
    let mut ratings = vec![0.0_f32; positions.next_multiple_of(CHUNK_TOKENS)];
    let mut picked = vec![0_u32; NUM_PICKED.min(positions)];
    let mut scratch = AttentionScratch::default();
    let result = out.as_mut_ptr();
    let args = |heads: usize, q: *const f32, out: *mut f32, last: usize| AttentionArgs {
        kv,
        kv_head: 0,
        num_query_heads_per_kv: heads,
        first_position: last,
        num_tokens: 1,
        window: None,
        is_window_chunk: false,
        first_seen: 0,
        end_seen: usize::MAX,
        scale: 0.04,
        softcap: None,
        bias: None,
        sinks: None,
        q,
        q_stride: HEADS * LAYOUT.head_dim,
        out,
        out_stride: HEADS * LAYOUT.value_dim(),
        earlier: None,
    };
    let mut best = [f64::INFINITY; 4];
    for _ in 0..ROUNDS {
        let mut start = Instant::now();
        let mut lap = |part: usize| {
            best[part] = best[part].min(start.elapsed().as_secs_f64() * 1e3);
            start = Instant::now();
        };
        // SAFETY: memory, queries, ratings and results are as large as the arguments say.
        unsafe {
            for first in (0..HEADS).step_by(SHARING_HEADS) {
                let q = q[first * LAYOUT.head_dim..].as_ptr();
                let out = result.add(first * LAYOUT.value_dim());
                attend(isa, &LAYOUT, &args(SHARING_HEADS, q, out, positions - 1), &mut scratch);
            }
            lap(0);
            let asked = args(INDEX_HEADS, index_q.as_ptr(), result, positions - 1);
            let chunks = 0..positions.div_ceil(CHUNK_TOKENS);
            rate(
                isa,
                &LAYOUT,
                &asked,
                &weights,
                chunks,
                ratings.as_mut_ptr(),
                &mut scratch,
            );
            lap(1);
            pick(&ratings[..positions], &mut picked);
            lap(2);
            let attended = args(HEADS, q.as_ptr(), result, picked.len() - 1);
            attend_picked(isa, &LAYOUT, &attended, &picked, &mut scratch);
            lap(3);
        }
    }
    let [dense, rated, chosen, attended] = best;
    let sparse = rated + chosen + attended;
    println!(
        "after {positions:6}: dense {dense:7.2} ms; sparse {sparse:7.2} ms ({:.2}): rating {rated:.2}, picking \
         {chosen:.2}, attention {attended:.2}",
        sparse / dense
    );
}
