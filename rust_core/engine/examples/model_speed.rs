//! Prefill and decode speed of a model file: `model_speed FILE [threads] [isa] [kv]`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pyagent_engine::forward::Segment;
use pyagent_engine::runner::{CpuModel, LoadOptions};
use pyagent_kernels::attention::{BLOCK_TOKENS, KvType};
use pyagent_kernels::isa::Isa;

/// Where a prompt's last piece ends.
const DEEP: usize = 8192;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: model_speed FILE [threads] [isa] [kv]")?;
    let threads = args.next().map_or(Ok(2), |text| text.parse())?;
    let isa = args.next().and_then(|name| Isa::from_name(&name));
    let kv = args.next().unwrap_or_else(|| "bf16".to_owned());
    let kv_type = KvType::ALL
        .into_iter()
        .find(|kind| kind.name() == kv)
        .ok_or("no such kv type")?;
    let options = LoadOptions {
        threads,
        isa,
        kv_type,
        kv_bytes: 4 << 30,
        most_positions: None,
        has_mtp: true,
        head: None,
        family: None,
        progress: None,
    };
    let mut model = CpuModel::load(Path::new(&path), &options)?;
    println!(
        "loaded in {:.0} ms, {} MiB of weights, {}",
        model.load_seconds() * 1e3,
        model.weight_bytes() >> 20,
        model.isa().name()
    );

    let vocab = model.config().vocab_size as u32;
    let tokens: Vec<u32> = (0..512).map(|i| (i * 7919 + 300) % vocab).collect();
    // Pages for 512 blocks of the first sequence and 72 of each other, its groups of layers one after the other.
    let mut pages = 0..;
    let tables: Vec<Vec<Arc<Vec<u32>>>> = (0..32)
        .map(|sequence| {
            let num_blocks = if sequence == 0 { DEEP / BLOCK_TOKENS } else { 72 };
            let groups = model.kv().pages.groups.iter();
            groups
                .map(|group| Arc::new(pages.by_ref().take(num_blocks * group.pages_per_block).collect()))
                .collect()
        })
        .collect();
    for round in 0..5 {
        let start = Instant::now();
        model.execute(&[Segment {
            tables: &tables[0],
            first_position: 0,
            tokens: &tokens,
            num_outputs: 1,
            scoring: None,
            num_drafts: 0,
            adapter_id: 0,
            probe: None,
            prompt: &[],
        }])?;
        println!(
            "prefill 512, round {round}: {:.0} tok/s",
            512.0 / start.elapsed().as_secs_f64()
        );
    }
    if model.config().context_length >= DEEP {
        let mut best = f64::MAX;
        for _ in 0..2 {
            let start = Instant::now();
            model.execute(&[Segment {
                tables: &tables[0],
                first_position: DEEP - 512,
                tokens: &tokens,
                num_outputs: 1,
                scoring: None,
                num_drafts: 0,
                adapter_id: 0,
                probe: None,
                prompt: &[],
            }])?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        println!("512 tokens ending at {DEEP}: {:.0} tok/s", 512.0 / best);
    }
    let mut best = f64::MAX;
    for _ in 0..40 {
        let start = Instant::now();
        model.execute(&[Segment {
            tables: &tables[0],
            first_position: 1000,
            tokens: &tokens[..20],
            num_outputs: 1,
            scoring: None,
            num_drafts: 0,
            adapter_id: 0,
            probe: None,
            prompt: &[],
        }])?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("20 tokens after 1000: {:.1} ms", best * 1e3);
    for (batch, depth) in [(1, 16), (1, 1000), (2, 1000), (8, 16), (16, 16), (32, 16)] {
        // The best of single steps: other work on the machine disturbs most of a longer run.
        let mut best = f64::MAX;
        for step in 0..80 {
            let position = step % 16;
            let segments: Vec<Segment<'_>> = (0..batch)
                .map(|sequence| Segment {
                    tables: &tables[sequence],
                    first_position: depth + position,
                    tokens: std::slice::from_ref(&tokens[16 * sequence + position]),
                    num_outputs: 1,
                    scoring: None,
                    num_drafts: 0,
                    adapter_id: 0,
                    probe: None,
                    prompt: &[],
                })
                .collect();
            let start = Instant::now();
            model.execute(&segments)?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        println!(
            "decode, {batch} sequences at depth {depth}: {:.0} tok/s in all",
            batch as f64 / best
        );
    }
    Ok(())
}
