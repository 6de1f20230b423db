//! Decode steps of one sequence beside plain readings of as many bytes, in turns: `decode_beside_reading FILE [threads] [rounds]`.
//! Then, beside these, steps that verify drafts: of two to eight rows of the sequence.
//!
//! A reading adds up one array as large as the model's weights, each thread a part. Other programs, and where a hypervisor
//! puts the cores, change memory's rate within seconds, so only a step and the reading right after it are compared.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pyagent_engine::forward::Segment;
use pyagent_engine::runner::{CpuModel, EngineError, LoadOptions};
use pyagent_kernels::attention::{BLOCK_TOKENS, KvType};

/// Tokens of the sequence: a context that takes no time worth speaking of.
const CONTEXT: usize = 64;
/// Rows of a step at most.
const MOST_ROWS: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args
        .next()
        .ok_or("usage: decode_beside_reading FILE [threads] [rounds]")?;
    let threads: usize = args.next().map_or(Ok(2), |text| text.parse())?;
    let rounds: usize = args.next().map_or(Ok(200), |text| text.parse())?;
    let options = LoadOptions {
        threads,
        isa: None,
        kv_type: KvType::Bf16,
        kv_bytes: 1 << 30,
        most_positions: None,
        has_mtp: false,
        head: None,
        family: None,
        progress: None,
    };
    let mut model = CpuModel::load(Path::new(&path), &options)?;
    let array: Vec<u64> = (0..model.weight_bytes() as u64 / 8).collect();
    let mut pages = 0..;
    let groups = &model.kv().pages.groups;
    let tables: Vec<Arc<Vec<u32>>> = groups
        .iter()
        .map(|group| {
            Arc::new(
                pages
                    .by_ref()
                    .take(CONTEXT / BLOCK_TOKENS * group.pages_per_block)
                    .collect(),
            )
        })
        .collect();
    let vocab = model.config().vocab_size;
    let mut step_seconds = |round: usize, num_rows: usize| -> Result<f64, EngineError> {
        let tokens: Vec<u32> = (round..round + num_rows)
            .map(|place| ((300 + place * 7919) % vocab) as u32)
            .collect();
        let start = Instant::now();
        model.execute(&[Segment {
            tables: &tables,
            first_position: round % (CONTEXT - MOST_ROWS),
            tokens: &tokens,
            num_outputs: num_rows,
            scoring: None,
            num_drafts: 0,
            adapter_id: 0,
            probe: None,
            prompt: &[],
        }])?;
        Ok(start.elapsed().as_secs_f64())
    };
    let (mut steps, mut readings, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let step = step_seconds(round, 1)?;
        let reading = reading_seconds(&array, threads);
        steps.push(step);
        readings.push(reading);
        ratios.push(reading / step);
    }
    let rate = |seconds: f64| 8.0 * array.len() as f64 / seconds / 1e9;
    let [step, reading] = [&mut steps, &mut readings].map(|seconds| quantile(seconds, 0.5));
    println!(
        "weights {} MB, {threads} threads, {rounds} rounds",
        array.len() / 125_000
    );
    println!("a step     {:6.2} ms, {:5.1} GB/s", step * 1e3, rate(step));
    println!("a reading  {:6.2} ms, {:5.1} GB/s", reading * 1e3, rate(reading));
    let [low, median, high] = [0.25, 0.5, 0.75].map(|share| quantile(&mut ratios, share));
    println!("of plain reading: {median:.3} in the median, quartiles {low:.3} and {high:.3}");
    let mut by_rows = vec![Vec::new(); MOST_ROWS];
    for round in 0..rounds / 4 {
        for (place, seconds) in by_rows.iter_mut().enumerate() {
            seconds.push(step_seconds(round, place + 1)?);
        }
    }
    let medians: Vec<_> = by_rows.iter_mut().map(|seconds| quantile(seconds, 0.5)).collect();
    let ratios = medians.iter().map(|seconds| format!("{:.2}", seconds / medians[0]));
    println!(
        "steps of 1 to {MOST_ROWS} rows: {}",
        ratios.collect::<Vec<_>>().join(" ")
    );
    Ok(())
}

/// Seconds that threads take to add up an array.
fn reading_seconds(array: &[u64], threads: usize) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for part in array.chunks(array.len().div_ceil(threads)) {
            scope.spawn(move || black_box(sum(part)));
        }
    });
    start.elapsed().as_secs_f64()
}

fn sum(numbers: &[u64]) -> u64 {
    let mut lanes = [0_u64; 32];
    for line in numbers.chunks_exact(lanes.len()) {
        for (lane, number) in lanes.iter_mut().zip(line) {
            *lane = lane.wrapping_add(*number);
        }
    }
    lanes.into_iter().fold(0, u64::wrapping_add)
}

/// The number below which a share of them are.
fn quantile(numbers: &mut [f64], share: f64) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[((numbers.len() - 1) as f64 * share) as usize]
}
