//! How near the matrix kernels come to this machine's limits.
//!
//! `cargo run --release -p pyagent-kernels --example matmul_speed [-- ISA FORMAT THREADS ...]` prints, per weight type, shape
//! and number of threads, GB/s of weights for one token and Gop/s (a multiplication and an addition are two) for
//! batches, beside the read bandwidth and the `vpdpbusd` rate measured in the same run. Each figure is the best of
//! several passes over enough copies of the matrix to leave the caches, as the layers of a model do.

use std::hint::black_box;
use std::time::Instant;

use pyagent_kernels::ggml::GgmlType;
use pyagent_kernels::isa::{Isa, features};
use pyagent_kernels::matmul::{Activations, matmul};
use pyagent_kernels::pack::PackedMatrix;
use pyagent_kernels::thread_pool::ThreadPool;

const KINDS: [GgmlType; 5] = [
    GgmlType::Q4_1,
    GgmlType::Q4_0,
    GgmlType::Q8_0,
    GgmlType::Q4_K,
    GgmlType::Q6_K,
];
const SHAPES: [(usize, usize); 3] = [(576, 1536), (1536, 576), (2048, 8192)];
const TOKENS: [usize; 8] = [1, 2, 4, 8, 16, 32, 128, 512];
/// Bytes of weights that one pass reads: well past a third-level cache.
const PASS_BYTES: usize = 256 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let isa = arguments
        .iter()
        .find_map(|name| Isa::from_name(name))
        .unwrap_or(Isa::best());
    let kinds: Vec<GgmlType> = arguments.iter().filter_map(|name| GgmlType::from_name(name)).collect();
    let kinds = if kinds.is_empty() { KINDS.to_vec() } else { kinds };
    println!("kernels {}, cpu has {}", isa.name(), features().join(" "));
    let threads: Vec<usize> = arguments.iter().filter_map(|count| count.parse().ok()).collect();
    for threads in if threads.is_empty() { vec![1, 2] } else { threads } {
        let pool = ThreadPool::new(threads);
        let limits = Limits {
            read_bytes: read_rate(&pool),
            dot_ops: dot_rate(&pool),
        };
        println!(
            "\n{threads} thread(s): reads {:.1} GB/s, vpdpbusd {:.0} Gop/s, stage {:.2} us",
            limits.read_bytes / 1e9,
            limits.dot_ops / 1e9,
            stage_seconds(&pool) * 1e6
        );
        println!(
            "{:6} {:>10}  {:>14}  Gop/s for {TOKENS:?} tokens",
            "type", "shape", "1 token GB/s"
        );
        for kind in &kinds {
            for (rows, cols) in SHAPES {
                measure(&pool, isa, *kind, rows, cols, &limits);
            }
        }
    }
}

struct Limits {
    read_bytes: f64,
    dot_ops: f64,
}

fn measure(pool: &ThreadPool, isa: Isa, kind: GgmlType, rows: usize, cols: usize, limits: &Limits) {
    if kind.row_bytes(cols).is_err() {
        println!(
            "{:6} {:>10}  needs columns by {}",
            kind.name(),
            format!("{rows}x{cols}"),
            kind.block_elements()
        );
        return;
    }
    let source: Vec<u8> = (0..rows * kind.row_bytes(cols).expect("whole blocks"))
        .map(|at| (at * 37 % 59) as u8)
        .collect();
    let start = Instant::now();
    let first = PackedMatrix::pack(kind, &source, rows, cols).expect("a matrix");
    let pack_rate = source.len() as f64 / start.elapsed().as_secs_f64();
    let copies = PASS_BYTES.div_ceil(first.bytes());
    let mut layers = vec![first];
    layers.resize_with(copies, || {
        PackedMatrix::pack(kind, &source, rows, cols).expect("a matrix")
    });
    let mut line = format!("{:6} {:>10}  ", kind.name(), format!("{rows}x{cols}"));
    for tokens in TOKENS {
        let mut x = Activations::new();
        x.resize(tokens, cols, kind.is_quantised(), !kind.is_quantised());
        for token in 0..tokens {
            let numbers: Vec<f32> = (0..cols)
                .map(|c| ((c * 7 + token * 13) % 101) as f32 / 50.0 - 1.0)
                .collect();
            // SAFETY: the set was detected, and nobody else has the batch.
            unsafe { x.write_row(isa, token, &numbers) };
        }
        let num_layers = copies.min((copies * 2).div_ceil(tokens)).max(1);
        let seconds = pass_seconds(pool, isa, &layers[..num_layers], &x);
        let ops = (2 * rows * cols * tokens * num_layers) as f64 / seconds;
        if tokens == 1 {
            let bytes = (layers[0].bytes() * num_layers) as f64 / seconds;
            line += &format!("{:6.1} ({:3.0} %)", bytes / 1e9, 100.0 * bytes / limits.read_bytes);
        }
        line += &format!(" {:5.0}", ops / 1e9);
        if tokens == 512 {
            line += &format!(
                " ({:.0} %)  packs {:.0} MB/s",
                100.0 * ops / limits.dot_ops,
                pack_rate / 1e6
            );
        }
    }
    println!("{line}");
}

/// Seconds of the best pass over the layers, each product shared over the pool as a forward pass would.
fn pass_seconds(pool: &ThreadPool, isa: Isa, layers: &[PackedMatrix], x: &Activations) -> f64 {
    let rows = layers[0].rows();
    let mut out = vec![0.0_f32; rows * x.tokens()];
    let out_address = out.as_mut_ptr() as usize;
    let num_pieces = layers.iter().map(|w| (pool.num_threads() * 4).min(w.num_groups()));
    let num_pieces: Vec<_> = num_pieces.collect();
    let pass = || {
        pool.run(&num_pieces, |piece| {
            let (w, count) = (&layers[piece.stage], num_pieces[piece.stage]);
            let groups = piece.index * w.num_groups() / count..(piece.index + 1) * w.num_groups() / count;
            // SAFETY: the set was detected; all is written; pieces write different rows of `out`.
            unsafe { matmul(isa, w, groups, x, 0..x.tokens(), out_address as *mut f32, rows) };
        })
        .expect("no panic");
    };
    best_seconds(7, pass)
}

fn best_seconds(times: usize, mut work: impl FnMut()) -> f64 {
    work();
    (0..times)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

/// Bytes per second that the threads together can read from memory.
fn read_rate(pool: &ThreadPool) -> f64 {
    let numbers = vec![1_u64; 256 << 17];
    let seconds = best_seconds(5, || {
        pool.run(&[pool.num_threads()], |piece| {
            let part = numbers.len() / pool.num_threads();
            let part = &numbers[piece.index * part..][..part];
            let mut sums = [0_u64; 32];
            for line in part.chunks_exact(32) {
                fetch(line.as_ptr().wrapping_add(1 << 10));
                for (sum, number) in sums.iter_mut().zip(line) {
                    *sum ^= number;
                }
            }
            black_box(sums);
        })
        .expect("no panic");
    });
    (numbers.len() * 8) as f64 / seconds
}

/// Asks for 256 bytes, without which one core alone does not reach the memory's rate.
fn fetch(at: *const u64) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..4 {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: any address may be asked for.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(8 * line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Seconds a stage takes in which each thread finds a piece without work.
fn stage_seconds(pool: &ThreadPool) -> f64 {
    let num_pieces = vec![pool.num_threads(); 20_000];
    let seconds = best_seconds(3, || pool.run(&num_pieces, |_| {}).expect("no panic"));
    seconds / num_pieces.len() as f64
}

/// Operations per second of nothing but 512-bit `vpdpbusd`, on all threads together.
#[cfg(target_arch = "x86_64")]
fn dot_rate(pool: &ThreadPool) -> f64 {
    use std::arch::x86_64::{_mm512_dpbusd_epi32, _mm512_set1_epi32};

    const ROUNDS: usize = 1 << 20;
    const CHAINS: usize = 16;

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn spin() {
        let mut sums = [_mm512_set1_epi32(0); CHAINS];
        let (a, b) = (_mm512_set1_epi32(black_box(3)), _mm512_set1_epi32(black_box(5)));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    if Isa::best() < Isa::Avx512 {
        return f64::NAN;
    }
    let seconds = best_seconds(5, || {
        // SAFETY: the set is available.
        pool.run(&[pool.num_threads()], |_| unsafe { spin() })
            .expect("no panic");
    });
    (ROUNDS * CHAINS * 128 * pool.num_threads()) as f64 / seconds
}

#[cfg(not(target_arch = "x86_64"))]
fn dot_rate(_: &ThreadPool) -> f64 {
    f64::NAN
}
