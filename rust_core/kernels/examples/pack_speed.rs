//! What packing weights costs, by type: the best of some runs on one thread, beside a plain copy of as many bytes.
//!
//! `cargo run --release -p pyagent-kernels --example pack_speed`

use std::time::Instant;

use pyagent_kernels::ggml::GgmlType;
use pyagent_kernels::pack::PackedMatrix;

const ROWS: usize = 1024;
const COLS: usize = 4096;
const RUNS: usize = 15;

fn main() {
    for kind in GgmlType::ALL {
        let num_bytes = ROWS * kind.row_bytes(COLS).expect("whole blocks");
        let source: Vec<u8> = (0..num_bytes).map(|i| ((i * 2_654_435_761) >> 7) as u8).collect();
        let matrix = PackedMatrix::allocate(kind, ROWS, COLS).expect("a possible shape");
        let mut copy = vec![0; num_bytes];
        let pack = best(|| {
            // SAFETY: nobody else has the matrix.
            unsafe { matrix.pack_groups(&source, 0..matrix.num_groups()) };
        });
        let copied = best(|| copy.copy_from_slice(&source));
        let rate = |seconds: f64| num_bytes as f64 / seconds / 1e9;
        println!("{:8} {:5.2} GB/s, a copy {:5.1}", kind.name(), rate(pack), rate(copied));
    }
}

fn best(mut work: impl FnMut()) -> f64 {
    let seconds = (0..RUNS).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}
